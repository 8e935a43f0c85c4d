"""What `explain` tells: counts as torch._dynamo.explain's, nodes that compute what eager computes, reasons why torch runs
an op, places in the user's code, and for each cause of a break a rewrite that avoids it."""

import contextlib
import io
import linecache
import math
import operator
import pathlib
import re

import ccompile
import numpy
import pytest
import torch
from ccompile import report
from conftest import EAGER
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")
ROOT = pathlib.Path(__file__).resolve().parents[1]


def told_of(fn, *args, grad=False):
    ccompile.reset()
    with torch.set_grad_enabled(grad), contextlib.redirect_stdout(io.StringIO()):
        return ccompile.explain(fn, *args)


# ---- counts and nodes, against Dynamo's --------------------------------------------------------------------------------
def chain(x):
    return torch.relu(x + 1) * 2


def methods(x):
    return x.sigmoid().sum(dim=0, keepdim=True) / x.size(0)


def prints(x):
    y = torch.exp(x) + 1
    print(y.shape)
    return torch.tanh(y) * x


def prints_last(x):
    y = x - 1
    print("done")
    return y


def prints_twice(x):
    y = torch.relu(x)
    print("a")
    y = torch.exp(y)
    print("b")
    return torch.sin(y)


def branches(x):
    if x.sum() > 3:
        return torch.cos(x)
    return x


def parts(x):
    a, b = torch.split(x, 2)
    return torch.cat([a, b * 2], dim=0)


def returns(x):
    return x


def slices(x):
    return x[1:3] + x[..., None][2, 0]


def prints_number(x):
    print(f"loss {x.sum().item():.4f}")
    return x * 2


def rounds_number(x):
    y = x * 2
    return y, round(y.sum().item() * 0.5, 4)


def formats_number(x):
    y = x * 2
    return y, f"{y.sum().item() + 1:.3f}"


COUNTED = [chain, methods, prints, prints_last, prints_twice, branches, parts, returns, slices]
COUNTED += [prints_number, rounds_number, formats_number]
COUNTED += [nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))]
NAMES = [getattr(fn, "__name__", type(fn).__name__) for fn in COUNTED]


def calls(nodes):
    return [(node.op, node.target) for node in nodes if node.op in ("call_function", "call_method")]


@pytest.mark.parametrize("fn", COUNTED, ids=NAMES)
def test_counts_are_dynamos(fn):
    import torch._dynamo as dynamo

    x = torch.ones(4, 4)
    dynamo.reset()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        theirs = dynamo.explain(fn)(x)
    dynamo.reset()
    told = told_of(fn, x)
    # Dynamo's count is -1 where it has no graph.
    assert (told.graph_count, told.graph_break_count) == (theirs.graph_count, max(theirs.graph_break_count, 0)), told
    assert told.break_count >= len(theirs.break_reasons)
    found = re.findall(r"(?:Graph|Graph Break|Op) Count: \d+", str(told))
    assert found == re.findall(r"(?:Graph|Graph Break|Op) Count: \d+", str(theirs).replace("-1", "0"))
    if not isinstance(fn, nn.Module):  # Dynamo keeps some functions of torch.nn.functional whole
        assert told.ops_per_graph == theirs.ops_per_graph
        assert [calls(graph.nodes) for graph in told.graphs] == [calls(gm.graph.nodes) for gm in theirs.graphs]


def run(nodes, inputs):
    """Interprets the nodes."""
    value = {}

    def given(a):
        if isinstance(a, tuple | list):
            return type(a)(map(given, a))
        if isinstance(a, slice):
            return slice(given(a.start), given(a.stop), given(a.step))
        return value.get(a, a) if isinstance(a, type(nodes[0])) else a

    for node in nodes:
        if node.op == "placeholder":
            value[node] = inputs[node.target]
        elif node.op == "output":
            return given(node.args[0])
        else:
            args, kwargs = given(node.args), {key: given(a) for key, a in node.kwargs.items()}
            is_method = node.op == "call_method"
            value[node] = getattr(args[0], node.target)(*args[1:], **kwargs) if is_method else node.target(*args, **kwargs)


@pytest.mark.parametrize("fn", [chain, methods, parts, slices], ids=operator.attrgetter("__name__"))
def test_nodes_and_code_compute_what_eager_does(fn):
    x = torch.randn(4, 4)
    (graph,) = told_of(fn, x).graphs
    assert torch.equal(run(graph.nodes, {"x": x}), fn(x))
    for text in (graph.code, graph.print_readable(print_output=False)):
        names = {"torch": torch, "operator": operator}
        exec(text, names)
        assert torch.equal(names["forward"](None, x), fn(x))
    users = {node: {user for user in graph.nodes if node in user.all_input_nodes} for node in graph.nodes}
    assert all(set(node.users) == users[node] for node in graph.nodes)
    assert graph.graph.nodes is graph.nodes and str(graph).startswith("graph():\n    %x : [num_users=")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = 2.5

    def forward(self, x, *, bias):
        y = torch.relu(self.fc(x)) * self.scale
        m = y.mean().item()
        return y * m + bias


def test_names_and_places_are_the_users():
    told = told_of(lambda: Net()(torch.ones(3, 4), bias=torch.ones(4)))
    ccompile.reset()
    with torch.no_grad():
        told = ccompile.explain(Net())(torch.ones(3, 4), bias=torch.ones(4))
    names = [node.target for node in told.graphs[0].nodes if node.op == "placeholder"]
    assert names == ["x", "self.fc.weight", "self.fc.bias"]
    assert "bias" in [node.target for node in told.graphs[1].nodes if node.op == "placeholder"]
    (reason,) = told.break_reasons
    assert (reason.file, reason.function) == (__file__, "Net.forward")
    source = pathlib.Path(__file__).read_text().splitlines()
    assert ".item()" in source[reason.line - 1]
    lines = str(reason).splitlines()
    assert "in Net.forward" in lines[1] and lines[3].strip() == "... 2 frames in torch"
    linear = told.graphs[0].ops[0]  # called in torch.nn's code
    assert linear.file == __file__ and "self.fc(x)" in source[linear.line - 1]
    assert told.graphs[0].start.startswith(__file__)


def test_results_may_contain_themselves():
    def f(x):
        ring = [x * 2]
        ring.append(ring)
        return ring

    (graph,) = told_of(f, torch.ones(3)).graphs
    assert graph.code.endswith("return [mul, ...]\n")


# ---- give-ups -----------------------------------------------------------------------------------------------------------
def counts_up(x):
    y = x * 2
    for _ in range(x.sum().long()):
        y = y + 1
    return y


def test_graphs_have_the_order_of_the_call():
    """Also after recompilations, which record the beginning anew."""

    def f(x):
        y = torch.relu(x)
        ccompile.graph_break()
        y = torch.sin(y)
        ccompile.graph_break()
        return torch.tanh(y)

    compiled = ccompile.compile(f)
    for n in (4, 4, 8, 5):
        compiled(torch.ones(n, 2))
    for told in (report.report(compiled), ccompile.explain(f)(torch.ones(3, 2))):
        assert [[op.name for op in graph.ops] for graph in told.graphs] == [["torch.relu"], ["torch.sin"], ["torch.tanh"]]


def test_a_give_up_is_followed_by_the_recording_that_sticks():
    told = told_of(counts_up, torch.ones(3))
    assert torch.equal(told.result, torch.full((3,), 5.0))
    assert (told.graph_count, told.break_count, len(told.give_ups), told.repeats) == (2, 1, 1, 1)
    assert "now graph break 1" in str(told)


def test_a_repeat_that_raises_is_the_last():
    left = [1]

    def f(x):
        left.pop()
        return counts_up(x)

    told = told_of(f, torch.ones(3))
    assert torch.equal(told.result, torch.full((3,), 5.0)) and told.give_ups


# ---- what runs through torch --------------------------------------------------------------------------------------------
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


W = torch.randn(4, 4)
TORCHS = {
    "f64": (lambda x: x.double() @ W.double(), False, {"matmul": "no library call for float64"}),
    "complex": (lambda x: torch.view_as_real(torch.complex(x, x) * 2), False, {"mul": "no kernels for a value"}),
    "view": (lambda x: (x + 1)[1:], False, {"getitem": "a view"}),
    "random": (lambda x: x + torch.rand_like(x), False, {"torch.rand_like": "torch's generator"}),
    "unknown": (lambda x: torch.linalg.svdvals(x + 1), False, {"svdvals": "only torch implements"}),
    "data": (lambda x: x[x > 0] + 1, False, {"add": "no kernels for a value"}),
    "stage": (lambda x: x.exp() * 2, True, {"Tensor.exp": "no stage pays", "mul": "no stage pays"}),
    "stages": (lambda x: torch.lgamma((x * 2).exp().sin()).exp() * 2, True, {"torch.lgamma": "only torch implements"}),
    "host op": (lambda x: torch.sort((x * 2).exp().sin())[0], True, {"torch.sort": "only torch implements"}),
    "write": (lambda x: W.mul_(1.0) + (x * 2).sin().exp(), True, {"Tensor.mul_": "it writes to existing memory"}),
}


@pytest.mark.parametrize("name", TORCHS)
def test_ops_of_torch_have_a_reason(name):
    fn, grad, expected = TORCHS[name]
    x = torch.randn(4, 4, requires_grad=grad)
    (graph,) = told_of(fn, x, grad=grad).graphs
    whys = {op.name.removeprefix("torch.linalg."): why for op, why in graph.torch_ops}
    whys = {name.rpartition("linalg_")[2]: why for name, why in whys.items()}
    for op, why in expected.items():
        assert why in whys[op], whys
    kinds = {plan["name"]: [step["kind"] for step in plan["steps"]] for plan in graph.plans}
    for op in graph.ops:  # what runs through torch has a step of torch's, and the other way round
        steps = [graph.plans[plan]["steps"][step] for plan, step in op.runs]
        assert any(step["kind"] == "torch" for step in steps) <= (op.why_torch is not None), (op, kinds)


def test_a_switched_off_backend_is_the_reason():
    with ccompile.config.patch(backend_onednn=False):
        (graph,) = told_of(lambda x: (x @ W).relu(), torch.randn(4, 4)).graphs
    ((op, why),) = graph.torch_ops
    assert op.op == "matmul" and "switched off or missing" in why
    with ccompile.config.patch(training=False):
        (graph,) = told_of(lambda x: (x @ W).relu() * 2, torch.randn(4, 4, requires_grad=True), grad=True).graphs
    assert [why for _, why in graph.torch_ops] == ["autograd records it (training is off)"] * 3


# ---- plans, memory, times -------------------------------------------------------------------------------------------------
def test_plans_memory_and_times():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    told = told_of(layer, torch.randn(2, 3, 16), grad=True)
    (graph,) = told.graphs
    forward, backward = graph.plans
    assert (forward["name"], backward["name"]) == ("stage 0 forward", "stage 0 backward")
    assert 0 < forward["made_bytes"] <= forward["saved_bytes"] and forward["saved"] > 3
    for plan in graph.plans:
        assert 0 < plan["block_bytes"] <= plan["apart_bytes"]
        assert plan["compile_ms"] >= plan["passes_ms"] + plan["kernels_ms"] + plan["primitives_ms"] > 0
    assert list(told.phases) == ["recording", "passes", "kernels", "primitives", "planning"]
    assert told.compile_times.splitlines()[1].startswith("recording, ") and told.phases["recording"] > 0
    names = [name for _, name, _ in graph.kernels]
    assert any(name.startswith("product linear") for name in names), names
    assert all(line.startswith("stage 0") for line in report.plan_lines(graph))


def test_kernels_have_sources_on_request(monkeypatch):
    assert [source for _, _, source in told_of(chain, torch.ones(3)).graphs[0].kernels] == [""]
    monkeypatch.setenv("CCOMPILE_DUMP", "kernels")
    ((_, name, source),) = told_of(chain, torch.ones(3)).graphs[0].kernels
    assert name == "kernel add_relu_mul" and "define" in source


# ---- rewrites -------------------------------------------------------------------------------------------------------------
ROW = re.compile(r'^CC_REWRITE\((\w+), "([^"]*)", "((?:[^"\\]|\\.)*)", "((?:[^"\\]|\\.)*)"\)$', re.M)
REWRITES = ROW.findall((ROOT / "csrc/rec/breaks.def").read_text())


def function_of(text):
    names = {"torch": torch, "numpy": numpy, "math": math}
    lines = text.encode().decode("unicode_escape")
    name = f"<rewrite {len(linecache.cache)}>"
    linecache.cache[name] = (len(lines), None, lines.splitlines(keepends=True), name)
    exec(compile(lines, name, "exec"), names)
    return names["f"], lines


def test_all_rewrites_are_read():
    assert len(REWRITES) == len(re.findall(r"^CC_REWRITE", (ROOT / "csrc/rec/breaks.def").read_text(), re.M)) > 10


@pytest.mark.parametrize("row", range(len(REWRITES)), ids=lambda i: f"{REWRITES[i][0]}-{REWRITES[i][1]}-{i}")
def test_rewrites_avoid_the_break(row):
    """The first code breaks for the row's reason, and is told of the second, which gives the same without a break."""
    reason, _, before, after = REWRITES[row]
    (f, text), (g, better) = function_of(before), function_of(after)
    x = torch.tensor([2.0, 0.5, 1.0, 0.5])
    told = told_of(f, x)
    (broken,) = [one for one in told.break_reasons + told.give_ups if one.reason == reason.lower()][:1]
    assert (text, better) in broken.rewrites
    arguments = (x, int(x[0]))[: g.__code__.co_argcount]
    better_told = told_of(g, *arguments)
    assert better_told.break_count == 0 and not better_told.give_ups, better_told
    torch.testing.assert_close(better_told.result, told.result)


def test_no_rewrite_where_no_row_fits():
    told = told_of(lambda x: ccompile.graph_break() or x + 1, torch.ones(3))
    assert told.break_reasons[0].rewrites == () and "instead of" not in str(told)


# ---- nothing to tell -----------------------------------------------------------------------------------------------------
WHY_NOTHING = [
    (lambda: ccompile.disable(chain), contextlib.nullcontext, "chain is disabled"),
    (lambda: ccompile.compile(ccompile.disable(nn.ReLU())), contextlib.nullcontext, "ReLU is disabled"),
    (lambda: chain, lambda: ccompile.set_stance("force_eager"), "the stance is 'force_eager' (ccompile.set_stance)"),
    (lambda: chain, ccompile.disable, "the call is inside ccompile.disable(), or inside a recording"),
    (
        lambda: chain,
        lambda: ccompile.config.patch(memory_limit=1),
        "memory_limit: nothing is recorded while more than 1 MiB are resident",
    ),
]


@pytest.mark.parametrize(("make", "block", "why"), WHY_NOTHING, ids=[why for _, _, why in WHY_NOTHING])
def test_says_why_nothing_was_recorded(make, block, why, tmp_path):
    x, fn = torch.ones(3), make()
    with block():
        told = ccompile.explain(fn)(x)
    assert told.why_nothing == why and f"\nNothing was recorded: {why}" in str(told)
    assert (told.graph_count, told.graph_break_count, told.op_count) == (0, 0, 0)
    assert torch.equal(told.result, fn(x))
    told.to_html(tmp_path / "told.html")
    assert "Nothing was recorded" in (tmp_path / "told.html").read_text()


def test_what_was_recorded_has_no_such_reason():
    for fn, x in ((chain, torch.ones(3)), (lambda x: x, 3)):
        assert ccompile.explain(fn)(x).why_nothing is None
