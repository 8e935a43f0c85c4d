"""Document 000, last part: exercises 4.1 to 4.8 and the usual mistakes."""

import time

import ccompile
import torch
import torch.nn.functional as F
from seeds.listing import calls, program, t
from seeds.stand_ins import *
from torch import nn

FastModel, MediumModel, FullModel = FastDecisionNet, MediumDecisionNet, FullDecisionNet


def process(x, threshold):
    if x.mean().item() > threshold:
        x = x * 2

    print(f"Processing tensor of shape {x.shape}")

    for i in range(x.size(0)):
        x[i] = torch.relu(x[i])

    indices = torch.where(x > 0)[0]
    selected = x[indices]

    return selected


calls("000 exercise 4.1, process", process, (t(4, 3), -9.0), (t(4, 3), 9.0), graphs=3, breaks=2)


def conditional_norm(x, use_batch_norm, use_layer_norm):
    if use_batch_norm:
        return F.batch_norm(x, running_mean, running_var)
    elif use_layer_norm:
        return F.layer_norm(x, normalized_shape)
    else:
        return x


def conditional_norm_optimized(x, use_batch_norm, use_layer_norm):
    bn_weight = use_batch_norm.float()
    ln_weight = use_layer_norm.float() * (1 - bn_weight)
    identity_weight = (1 - bn_weight) * (1 - ln_weight)

    bn_result = F.batch_norm(x, running_mean, running_var)
    ln_result = F.layer_norm(x, normalized_shape)

    return bn_weight * bn_result + ln_weight * ln_result + identity_weight * x

    result = x
    result = torch.where(use_layer_norm, F.layer_norm(x, normalized_shape), result)
    result = torch.where(use_batch_norm, F.batch_norm(x, running_mean, running_var), result)
    return result


running_mean, running_var, normalized_shape = torch.zeros(3), torch.ones(3), (3,)
YES, NO = torch.tensor(True), torch.tensor(False)
calls(
    "000 exercise 4.2, conditional_norm",
    conditional_norm,
    (t(4, 3), False, True),
    (t(4, 3), True, True),
    graphs=1,
    breaks=0,
)
calls(
    "000 exercise 4.2, conditional_norm_optimized", conditional_norm_optimized, (t(4, 3), NO, YES), graphs=1, breaks=0
)


def conditional_norm_where(x, use_batch_norm, use_layer_norm):
    """The second answer, which stands behind a return in the document."""
    result = x
    result = torch.where(use_layer_norm, F.layer_norm(x, normalized_shape), result)
    result = torch.where(use_batch_norm, F.batch_norm(x, running_mean, running_var), result)
    return result


calls("000 exercise 4.2, by torch.where", conditional_norm_where, (t(4, 3), NO, YES), graphs=1, breaks=0)


def rnn_cell(x, h, steps):
    for t in range(steps):
        h = torch.tanh(W_hh @ h + W_xh @ x[t])
    return h


def rnn_cell_unrolled(x, h, steps, max_steps=10):
    for t in range(max_steps):
        mask = (t < steps).float()
        h_new = torch.tanh(W_hh @ h + W_xh @ x[min(t, x.size(0) - 1)])
        h = mask * h_new + (1 - mask) * h
    return h


def rnn_cell_scan(x, h, steps):
    h_states = []
    for t in range(x.size(0)):
        h = torch.tanh(W_hh @ h + W_xh @ x[t])
        h_states.append(h)

    h_all = torch.stack(h_states)
    return h_all[steps - 1]


W_hh, W_xh = t(4, 4) * 0.5, t(4, 4, seed=1) * 0.5
calls("000 exercise 4.3, rnn_cell", rnn_cell, (t(5, 4), t(4), 3), (t(5, 4), t(4), 4), graphs=1, breaks=0)
calls("000 exercise 4.3, rnn_cell_unrolled", rnn_cell_unrolled, (t(5, 4), t(4), torch.tensor(3)), graphs=1, breaks=0)
calls("000 exercise 4.3, rnn_cell_scan", rnn_cell_scan, (t(5, 4), t(4), 3), graphs=1, breaks=0)


class AdaptiveCompiler:
    def __init__(self, model, warmup_iters=10, min_speedup=1.2):
        self.model = model
        self.compiled_models = {}
        self.performance_stats = {}
        self.warmup_iters = warmup_iters
        self.min_speedup = min_speedup

    def should_compile(self, input_shape):
        key = tuple(input_shape)

        if key not in self.performance_stats:
            return False

        stats = self.performance_stats[key]

        if stats["count"] < self.warmup_iters:
            return False

        if stats["count"] == self.warmup_iters:
            avg_eager_time = stats["eager_time"] / stats["count"]
            expected_speedup = self.estimate_speedup(input_shape)
            compile_overhead = self.estimate_compile_time(input_shape)

            break_even = compile_overhead / (avg_eager_time * (expected_speedup - 1))

            if break_even < 100:
                return True

        if key in self.compiled_models:
            actual_speedup = stats["eager_time"] / stats["compiled_time"]
            return actual_speedup >= self.min_speedup

        return False

    def __call__(self, x):
        shape_key = tuple(x.shape)

        if shape_key not in self.performance_stats:
            self.performance_stats[shape_key] = {"count": 0, "eager_time": 0, "compiled_time": 0}

        stats = self.performance_stats[shape_key]
        stats["count"] += 1

        if self.should_compile(shape_key):
            if shape_key not in self.compiled_models:
                self.compiled_models[shape_key] = ccompile.compile(self.model, dynamic=True)

            start = time.time()
            result = self.compiled_models[shape_key](x)
            stats["compiled_time"] += time.time() - start
        else:
            start = time.time()
            result = self.model(x)
            stats["eager_time"] += time.time() - start


class WholeAdaptive(AdaptiveCompiler):
    """With the estimates that the document leaves out."""

    def estimate_speedup(self, shape):
        return 1e9  # worth it at any price

    def estimate_compile_time(self, shape):
        return 0.01


@program("000 exercise 4.4, AdaptiveCompiler")
def _():
    model = WholeAdaptive(nn.Linear(8, 8), warmup_iters=2, min_speedup=0.0)  # the document's: 10 and 1.2
    return [model(t(2, 8, seed=i)) for i in range(5)], list(model.compiled_models)


class RealTimeSystem:
    def __init__(self, deadline_ms=50):
        self.deadline = deadline_ms / 1000

        self.models = [("fast", FastModel(), 10), ("medium", MediumModel(), 25), ("full", FullModel(), 60)]

        for name, model, _ in self.models[:2]:
            setattr(self, f"{name}_compiled", ccompile.compile(model, mode="reduce-overhead"))

    def execute_with_deadline(self, x):
        start = time.time()
        remaining = self.deadline

        for name, model, expected_time in reversed(self.models):
            if expected_time / 1000 < remaining * 0.9:
                if name in ["fast", "medium"]:
                    model = getattr(self, f"{name}_compiled")

                result = self.run_with_timeout(model, x, remaining)

                if result is not None:
                    actual_time = time.time() - start
                    return result, name, actual_time

            remaining = self.deadline - (time.time() - start)

        return self.fast_compiled(x), "fast_fallback", time.time() - start

    def run_with_timeout(self, model, x, timeout):
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
            future = executor.submit(model, x)
            try:
                return future.result(timeout=timeout)
            except concurrent.futures.TimeoutError:
                return None


@program("000 exercise 4.5, RealTimeSystem")
def _():
    system = RealTimeSystem(
        deadline_ms=60_000
    )  # the document's: 50; which model answers must not depend on the machine
    names = [model for model, _, _ in system.models]
    answers = [system.execute_with_deadline(t(2, 16, seed=i))[:2] for i in range(2)]
    system.models = system.models[:2]
    return names, answers, [system.execute_with_deadline(t(2, 16, seed=i))[:2] for i in range(2)]


class GraphBreakAnalyzer:
    def __init__(self):
        self.break_patterns = {
            "item_call": (lambda n: ".item()" in str(n), "avoid .item(), use tensor ops"),
            "python_loop": (lambda n: "for" in str(n) and "range" in str(n), "vectorise the Python loop"),
            "print_statement": (lambda n: "print" in str(n), "remove the print or make it conditional"),
            "dynamic_shape": (lambda n: "size()" in str(n) or "shape" in str(n), "use symbolic shapes or specialise"),
        }

    def analyze(self, model, example_input):
        import ccompile as dynamo

        dynamo.reset()
        explanation = dynamo.explain(model)(example_input)

        report = {"total_breaks": explanation.graph_break_count, "graphs": [], "suggestions": []}

        for i, graph in enumerate(explanation.graphs):
            graph_info = self.analyze_graph(graph)
            report["graphs"].append(graph_info)

        report["suggestions"] = self.generate_suggestions(report)

        return report

    def analyze_graph(self, graph):
        info = {"node_count": len(graph.nodes), "break_causes": [], "optimization_potential": "low"}

        for node in graph.nodes:
            node_str = str(node)

            for pattern_name, (checker, suggestion) in self.break_patterns.items():
                if checker(node_str):
                    info["break_causes"].append(
                        {"pattern": pattern_name, "node": node_str[:100], "suggestion": suggestion}
                    )

        if len(info["break_causes"]) > 2:
            info["optimization_potential"] = "high"
        elif len(info["break_causes"]) > 0:
            info["optimization_potential"] = "medium"

        return info

    def generate_suggestions(self, report):
        suggestions = []

        cause_counts = {}
        for graph in report["graphs"]:
            for cause in graph["break_causes"]:
                pattern = cause["pattern"]
                cause_counts[pattern] = cause_counts.get(pattern, 0) + 1

        for pattern, count in sorted(cause_counts.items(), key=lambda x: x[1], reverse=True):
            _, suggestion = self.break_patterns[pattern]
            suggestions.append(
                {
                    "priority": "high" if count > 3 else "medium",
                    "pattern": pattern,
                    "occurrences": count,
                    "recommendation": suggestion,
                }
            )

        return suggestions


class OptimizedDrivingDecision(nn.Module):
    def __init__(self):
        super().__init__()

        self.static_perception = ccompile.compile(StaticPerception(), fullgraph=True, mode="max-autotune")

        self.dynamic_planner = DynamicPlanner()

        self.compiled_branches = {}

        self.safety = SafetyChecker()

    def forward(self, sensors, context):
        features = self.static_perception(sensors)

        scenario = self.identify_scenario(features, context)

        if scenario not in self.compiled_branches:
            branch = self.create_scenario_branch(scenario)
            self.compiled_branches[scenario] = ccompile.compile(branch, dynamic=True)

        decision = self.compiled_branches[scenario](features)

        with torch.no_grad():
            safe_decision = self.safety.verify(decision, context)

        return safe_decision

    def identify_scenario(self, features, context):
        scenarios = ["highway", "intersection", "parking", "emergency"]

        if context.get("emergency", False):
            return "emergency"
        elif context.get("at_intersection", False):
            return "intersection"
        elif context.get("speed", 0) > 50:
            return "highway"
        else:
            return "parking"

    def create_scenario_branch(self, scenario):
        if scenario == "emergency":
            return EmergencyBranch()
        elif scenario == "intersection":
            return IntersectionBranch()
        elif scenario == "highway":
            return HighwayBranch()
        else:
            return ParkingBranch()


@program("000 exercise 4.7, OptimizedDrivingDecision")
def _():
    model = OptimizedDrivingDecision()
    contexts = {"emergency": True}, {"at_intersection": True}, {"speed": 60}, {}
    return [model(t(2, 3, 8, 8, seed=i), contexts[i % 4]) for i in range(8)], list(model.compiled_branches)


class PerformanceTuner:
    def __init__(self, model):
        self.model = model
        self.metrics = {"compile_times": {}, "execution_times": {}, "memory_usage": {}, "graph_breaks": {}}
        self.optimal_configs = {}

    def profile_configuration(self, config, test_inputs):
        import ccompile as dynamo

        dynamo.reset()
        for key, value in config.items():
            if hasattr(dynamo.config, key):  # of the keys below, neither torch's nor ours
                setattr(dynamo.config, key, value)

        start = time.time()
        compiled = ccompile.compile(
            self.model,
            backend=config.get("backend", "ccompile"),
            mode=config.get("mode", "default"),
            dynamic=config.get("dynamic", False),
        )
        compile_time = time.time() - start

        exec_times = []
        for input_tensor in test_inputs:
            start = time.time()
            _ = compiled(input_tensor)
            exec_times.append(time.time() - start)

        explanation = dynamo.explain(self.model)(test_inputs[0])

        return {
            "compile_time": compile_time,
            "avg_exec_time": sum(exec_times) / len(exec_times),
            "graph_breaks": explanation.graph_break_count,
            "memory_peak": self.measure_memory_peak(compiled, test_inputs[0]),
        }

    def auto_tune(self, test_inputs, constraints=None):
        configurations = [
            {"backend": "ccompile", "mode": "default", "dynamic": False},
            {"backend": "ccompile", "mode": "reduce-overhead", "dynamic": False},
            {"backend": "ccompile", "mode": "max-autotune", "dynamic": False},
            {"backend": "ccompile", "mode": "default", "dynamic": True},
        ]

        best_config = None
        best_score = float("inf")

        for config in configurations:
            metrics = self.profile_configuration(config, test_inputs)

            score = self.calculate_score(metrics, constraints)

            if score < best_score:
                best_score = score
                best_config = config

        return best_config, best_score

    def calculate_score(self, metrics, constraints):
        score = 0

        score += metrics["avg_exec_time"] * 1000

        score += metrics["graph_breaks"] * 10

        if constraints and constraints.get("frequent_recompile", False):
            score += metrics["compile_time"] * 100

        if constraints and "max_memory" in constraints:
            if metrics["memory_peak"] > constraints["max_memory"]:
                score += 10000

        return score

    def measure_memory_peak(self, model, input_tensor):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            _ = model(input_tensor)
            return torch.cuda.max_memory_allocated()
        return 0


@program("000 exercise 4.8, PerformanceTuner")
def _():
    config, score = PerformanceTuner(nn.Linear(8, 8)).auto_tune([t(2, 8), t(3, 8)])
    return sorted(config)


def over_optimized(x, conditions):
    c1, c2, c3 = conditions
    x1 = operation1(x)
    x2 = operation2(x)
    x3 = operation3(x)

    result = torch.where(c1, torch.where(c2, x1, x2), torch.where(c3, x2, x3))
    return result


operation1, operation2, operation3 = op1, op2, op3
calls("000 over_optimized", over_optimized, (t(4, 3), (YES, NO, YES)), graphs=1, breaks=0)


def always_compiled(different_shapes, base_model, data):
    results = []
    for shape in different_shapes:
        model = ccompile.compile(base_model)
        result = model(data[shape])

        results.append(result)
    return results


@program("000 compiling in a loop")
def _():
    shapes = [(2, 8), (3, 8), (2, 8)]
    return always_compiled(shapes, nn.Linear(8, 8), {shape: t(*shape) for shape in shapes})


BASE_MODEL = nn.Linear(8, 8)  # the document compiles a name that it has not assigned yet


def process_batches(data_loader):
    model = ccompile.compile(BASE_MODEL, dynamic=False)
    for batch in data_loader:
        output = model(batch)


@program("000 process_batches")
def _():
    return process_batches([t(n, 8) for n in (2, 3, 2, 4)])
