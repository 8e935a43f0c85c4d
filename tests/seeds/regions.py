"""Document 000, third part: compiled regions next to eager ones, and what compiling costs."""

import itertools
import sys
import time
import types
import unittest.mock
from collections import defaultdict

import ccompile
import torch
from seeds.device import Stream, stream, synchronize
from seeds.listing import program, t
from seeds.stand_ins import BaseModel, ComplexModel, DynamicAttention, DynamicModule, DynamicPath, MainPath
from torch import nn


def analyze_compilation_regions(model, example_input):
    import ccompile as dynamo

    dynamo.reset()

    explanation = dynamo.explain(model, example_input)

    regions = []
    for i, graph in enumerate(explanation.graphs):
        region_info = {
            "id": i,
            "ops_count": len(graph.nodes),
            "has_control_flow": any(
                node.op == "call_function" and "control" in str(node.target) for node in graph.nodes
            ),
            "memory_ops": sum(1 for node in graph.nodes if node.op in ["placeholder", "output"]),
        }
        regions.append(region_info)

    return regions, explanation.graph_break_count


def visualize_compilation_regions(model, example_input):
    import torch.fx as fx

    traced = fx.symbolic_trace(model)

    compiled_subgraphs = []
    current_subgraph = []

    for node in traced.graph.nodes:
        if is_break_point(node):
            if current_subgraph:
                compiled_subgraphs.append(current_subgraph)
                current_subgraph = []
        else:
            current_subgraph.append(node)

    if current_subgraph:
        compiled_subgraphs.append(current_subgraph)

    print(f"found {len(compiled_subgraphs)} regions")
    for i, subgraph in enumerate(compiled_subgraphs):
        print(f"region {i}: {len(subgraph)} ops")

    return compiled_subgraphs


def is_break_point(node):
    if node.op == "call_function":
        target_str = str(node.target)
        if any(builtin in target_str for builtin in ["print", "input", "eval"]):
            return True

    if node.op == "call_method" and node.target in ["item", "numpy"]:
        return True

    if node.op == "call_module" and not hasattr(torch.nn, node.target.__class__.__name__):
        return True

    return False


class PartiallyCompiledModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU())

        self.dynamic_processor = DynamicModule()

        self.decoder = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))

        self.encoder = ccompile.compile(self.encoder, backend="ccompile")
        self.decoder = ccompile.compile(self.decoder, backend="ccompile")

    def forward(self, x):
        features = self.encoder(x)

        with ccompile.disable():
            processed = self.dynamic_processor(features)

        output = self.decoder(processed)

        return output


@program("000 PartiallyCompiledModel")
def _():
    model = PartiallyCompiledModel()
    return [model(t(2, 3, 8, 8, seed=i)) for i in range(3)]


class SelectiveCompilation(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(10)])

    @ccompile.compile(backend="ccompile")
    def compiled_forward(self, x):
        for i in range(5):
            x = self.layers[i](x)
            x = torch.relu(x)
        return x

    def dynamic_forward(self, x, mask):
        for i in range(5, 10):
            if mask[i - 5]:
                x = self.layers[i](x)
            x = torch.relu(x)
        return x

    def forward(self, x, mask=None):
        x = self.compiled_forward(x)
        if mask is not None:
            x = self.dynamic_forward(x, mask)
        return x


@program("000 SelectiveCompilation")
def _():
    model = SelectiveCompilation()
    return [model(t(2, 256, seed=i), mask) for i, mask in enumerate((None, [1, 0, 1, 1, 0], None))]


class AdaptiveExecutionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = BaseModel()
        self.compiled_model = ccompile.compile(self.model, mode="reduce-overhead")
        self.use_compiled = True
        self.fallback_count = 0
        self.max_fallbacks = 3

    def forward(self, x):
        if self.use_compiled:
            try:
                return self.compiled_model(x)
            except Exception as e:
                print(f"compiled call failed: {e}")
                self.fallback_count += 1

                if self.fallback_count >= self.max_fallbacks:
                    self.use_compiled = False
                    print("switching to eager")

                return self.model(x)
        else:
            return self.model(x)


@program("000 AdaptiveExecutionModel")
def _():
    model = AdaptiveExecutionModel()
    results = [model(t(2, 16, seed=i)) for i in range(3)]
    return results, model.fallback_count, model.use_compiled


class InputAwareExecution(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = ComplexModel()
        self.compiled_model = ccompile.compile(self.model)
        self.shape_cache = {}

    def should_compile(self, x):
        batch_size = x.size(0)

        if batch_size < 4:
            return False

        shape_key = tuple(x.shape)
        if shape_key in self.shape_cache:
            return self.shape_cache[shape_key]

        compile_benefit = self.estimate_compile_benefit(x)
        use_compiled = compile_benefit > 0.2

        self.shape_cache[shape_key] = use_compiled
        return use_compiled

    def estimate_compile_benefit(self, x):
        flops = x.numel() * 1000
        compile_overhead = 0.1
        eager_time = flops / 1e9
        compiled_time = eager_time * 0.5

        benefit = (eager_time - compiled_time - compile_overhead) / eager_time
        return max(0, benefit)

    def forward(self, x):
        if self.should_compile(x):
            return self.compiled_model(x)
        else:
            return self.model(x)


@program("000 InputAwareExecution")
def _():
    model = InputAwareExecution().eval()
    # A batch of 16 is worth it by the document's estimate, one of 8 is not, and one of 2 is never compiled.
    return [model(t(n, 3, 96, 96)) for n in (2, 8, 16, 16)], model.shape_cache


class HybridPipeline(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = ccompile.compile(
            nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.MaxPool2d(2)), backend="ccompile"
        )

        self.stage2_dynamic = DynamicAttention()

        self.stage3 = ccompile.compile(
            nn.Sequential(nn.Linear(64 * 28 * 28, 256), nn.ReLU(), nn.Linear(256, 10)), backend="ccompile"
        )

    def forward(self, x, attention_mask=None):
        x = self.stage1(x)

        if attention_mask is not None:
            x = self.stage2_dynamic(x, attention_mask)

        x = x.view(x.size(0), -1)

        x = self.stage3(x)

        return x


@program("000 HybridPipeline")
def _():
    model = HybridPipeline()  # 58x58 pixels give the 28x28 that its Linear expects
    mask = t(1, 64, 1, 1) > 0
    return [model(t(2, 3, 58, 58, seed=i), m) for i, m in enumerate((None, mask, None))]


class AsyncHybridModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.compiled_path = ccompile.compile(MainPath())
        self.dynamic_path = DynamicPath()

    def forward(self, x):
        compiled_stream = Stream()
        dynamic_stream = Stream()

        with stream(compiled_stream):
            compiled_result = self.compiled_path(x)

        with stream(dynamic_stream):
            dynamic_result = self.dynamic_path(x)

        synchronize()

        alpha = 0.7
        result = alpha * compiled_result + (1 - alpha) * dynamic_result

        return result


@program("000 AsyncHybridModel")
def _():
    model = AsyncHybridModel()
    return [model(t(2, 16, seed=i)) for i in range(3)]


class CompilationCostAnalyzer:
    def __init__(self, model):
        self.model = model
        self.compilation_times = {}
        self.execution_times = {}

    def analyze(self, inputs_list):
        results = []

        for i, input_tensor in enumerate(inputs_list):
            shape_key = tuple(input_tensor.shape)

            if shape_key not in self.compilation_times:
                start = time.time()
                compiled_model = ccompile.compile(self.model)
                _ = compiled_model(input_tensor)
                self.compilation_times[shape_key] = time.time() - start

            compiled_model = ccompile.compile(self.model)

            start = time.time()
            for _ in range(100):
                _ = self.model(input_tensor)
            eager_time = (time.time() - start) / 100

            start = time.time()
            for _ in range(100):
                _ = compiled_model(input_tensor)
            compiled_time = (time.time() - start) / 100

            results.append(
                {
                    "shape": shape_key,
                    "compilation_time": self.compilation_times[shape_key],
                    "eager_time": eager_time,
                    "compiled_time": compiled_time,
                    "speedup": eager_time / compiled_time,
                    "break_even_iterations": self.compilation_times[shape_key] / (eager_time - compiled_time),
                }
            )

        return results


@program("000 CompilationCostAnalyzer")
def _():
    # The document divides by eager_time - compiled_time. Under set_stance("force_eager") the two are equal now and
    # then, so the clock that it reads here is one whose steps grow: no two of its spans are equal.
    clock = types.SimpleNamespace(time=itertools.accumulate(itertools.count(1)).__next__)
    with unittest.mock.patch.object(sys.modules[__name__], "time", clock):
        analyzed = CompilationCostAnalyzer(nn.Linear(8, 8)).analyze([t(2, 8), t(3, 8)])
    return [(one["shape"], sorted(one)) for one in analyzed]


class AdaptiveCompilationStrategy:
    def __init__(self, threshold_iterations=100):
        self.threshold = threshold_iterations
        self.execution_count = defaultdict(int)
        self.compiled_models = {}

    def get_model(self, model, input_shape):
        shape_key = tuple(input_shape)
        self.execution_count[shape_key] += 1

        if self.execution_count[shape_key] >= self.threshold:
            if shape_key not in self.compiled_models:
                print(f"compiling the model for {shape_key}")
                self.compiled_models[shape_key] = ccompile.compile(model, dynamic=True)
            return self.compiled_models[shape_key]
        else:
            return model


@program("000 AdaptiveCompilationStrategy")
def _():
    strategy, model = AdaptiveCompilationStrategy(threshold_iterations=3), nn.Linear(8, 8)  # the document's: 100
    results = []
    for i in range(5):
        x = t(2, 8, seed=i)
        results.append(strategy.get_model(model, x.shape)(x))
    return results, list(strategy.compiled_models)


class MemoryAwareCompilation(nn.Module):
    def __init__(self, model, memory_limit_gb=4):
        super().__init__()
        self.model = model
        self.memory_limit = memory_limit_gb * 1024 * 1024 * 1024
        self.compiled_model = None

    def check_memory_usage(self):
        if torch.cuda.is_available():
            allocated = torch.cuda.memory_allocated()
            reserved = torch.cuda.memory_reserved()
            return allocated, reserved
        return 0, 0

    def forward(self, x):
        allocated, reserved = self.check_memory_usage()

        if reserved < self.memory_limit * 0.7:
            if self.compiled_model is None:
                self.compiled_model = ccompile.compile(self.model, mode="reduce-overhead")
            return self.compiled_model(x)
        else:
            print("low on memory: eager")
            return self.model(x)


@program("000 MemoryAwareCompilation")
def _():
    model, tight = MemoryAwareCompilation(nn.Linear(8, 8)), MemoryAwareCompilation(nn.Linear(8, 8), memory_limit_gb=0)
    return [model(t(2, 8, seed=i)) for i in range(3)], tight(t(2, 8)), tight.compiled_model


class ChunkedCompilation(nn.Module):
    def __init__(self, model, chunk_size=4):
        super().__init__()
        self.model = model
        self.chunk_size = chunk_size
        self.compiled_chunk_model = ccompile.compile(model)

    def forward(self, x):
        batch_size = x.size(0)

        if batch_size <= self.chunk_size:
            return self.compiled_chunk_model(x)
        else:
            outputs = []
            for i in range(0, batch_size, self.chunk_size):
                chunk = x[i : i + self.chunk_size]
                output = self.compiled_chunk_model(chunk)
                outputs.append(output)

            return torch.cat(outputs, dim=0)


@program("000 ChunkedCompilation")
def _():
    model = ChunkedCompilation(nn.Linear(8, 8))
    return [model(t(n, 8, seed=i)) for i, n in enumerate((3, 10, 4, 10))]
