"""Document 000, first part: what breaks a graph, what a break costs, and how to find it."""

import logging
import time

import ccompile
import torch
from seeds.listing import calls, program, t
from seeds.stand_ins import softmax
from torch import nn


def problematic_forward(x):
    results = []
    for i in range(x.size(0)):
        results.append(x[i] * 2)

    cache = {}
    cache["feature"] = x

    print(f"Shape: {x.shape}")

    return torch.stack(results)


calls("000 problematic_forward", problematic_forward, (t(4, 3),), graphs=2, breaks=1)


def dynamic_control_flow(x, threshold):
    if x.mean() > threshold:
        return x * 2
    else:
        return x + 1

    for _ in range(int(x.sum())):
        x = x * 0.9


# Thresholds for either branch; the loop behind the return is never reached.
calls("000 dynamic_control_flow", dynamic_control_flow, (t(4, 3), -9.0), (t(4, 3), 9.0), graphs=2, breaks=1)


def loop_of_dynamic_control_flow(x):
    for _ in range(int(x.sum())):
        x = x * 0.9
    return x


calls(
    "000 dynamic_control_flow, its loop",
    loop_of_dynamic_control_flow,
    (torch.ones(3),),
    (torch.ones(2),),
    graphs=2,
    breaks=1,
)


def data_dependent_shape(x, indices):
    selected = x[indices]

    n = int(x[0, 0])
    reshaped = x.reshape(n, -1)

    return selected, reshaped


LEADING = t(4, 6)
LEADING[0, 0] = 8
calls("000 data_dependent_shape", data_dependent_shape, (LEADING, torch.tensor([2, 0])), graphs=2, breaks=1)


def external_calls(x):
    np_array = x.cpu().numpy()
    processed = softmax(np_array)

    def custom_process(tensor):
        return tensor**2 + 1

    result = custom_process(x)
    return torch.from_numpy(processed)


# Two breaks, as the document expects; today's Dynamo replaces numpy's functions by torch's.
calls("000 external_calls", external_calls, (t(4, 3),), graphs=1, breaks=2, bare=2)


dynamo = ccompile


def monitor_recompiles(model, inputs):
    compile_times = []

    @dynamo.optimize("inductor")
    def compiled_model(x):
        return model(x)

    with dynamo.config.patch(verbose=True):
        for inp in inputs:
            start = time.time()
            _ = compiled_model(inp)
            compile_times.append(time.time() - start)

    return compile_times


@program("000 monitor_recompiles")
def _():
    times = monitor_recompiles(nn.Linear(4, 4), [t(n, 4) for n in (2, 3, 3)])
    return len(times)


@program("000 verbose logs", recorded=False)
def _():
    ccompile.config.verbose = True
    ccompile.config.log_level = logging.INFO

    verbose, ccompile.config.verbose = ccompile.config.verbose, False
    return verbose


def analyze_graph_breaks(model, example_input):
    import ccompile as dynamo

    dynamo.reset()
    explanation = dynamo.explain(model)(example_input)

    print(f"graph breaks: {explanation.graph_break_count}")
    print(f"graphs: {len(explanation.graphs)}")

    for i, graph in enumerate(explanation.graphs):
        print(f"\n{i}:")
        print(f"  ops: {len(graph.nodes)}")
        # The document reads graph.placeholder_nodes, which torch's graphs do not have.
        print(f"  inputs: {[node for node in graph.nodes if node.op == 'placeholder']}")

    return explanation


def profile_with_breaks(model, input_data):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True, record_shapes=True) as prof:
        with torch.no_grad():
            for _ in range(100):
                model(input_data)

    prof.export_chrome_trace("trace_with_breaks.json")
    return prof
