"""Compiled code inside other code: compiled modules in compiled models, ccompile's own functions, and torch's tracers."""

import copy
import pickle

import ccompile
import pytest
import torch
from conftest import EAGER, explained, hits, same
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="needs the product")


def t(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Counting(nn.Module):
    """State, and a branch on data."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        if y.sum() > 0:
            y = y * 2
        return y + self.calls


class Parts(nn.Module):
    """Parts compiled in all the ways that there are, one of them twice."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.block = ccompile.compile(nn.Sequential(nn.Linear(4, 4), ccompile.compile(nn.Tanh())), mode="reduce-overhead")
        self.bound = ccompile.compile(self.norm.forward)
        self.plain = ccompile.compile(lambda x: x * 2, mode="max-autotune")

    @ccompile.compile(fullgraph=True)
    def method(self, x):
        return x + self.norm.weight

    def forward(self, x):
        return self.plain(self.method(self.bound(self.block(x))))


class Breaking(Parts):
    def __init__(self):
        super().__init__()
        self.counting = ccompile.compile(Counting())
        self.eager = ccompile.disable(nn.ReLU())

    def forward(self, x):
        return self.eager(super().forward(self.counting(x))) - 1


def build(cls):
    def make():
        torch.manual_seed(3)
        model = cls()
        return model, model

    return make


def test_compiled_parts_are_inlined():
    same(build(Parts), build=True, make_args=lambda i: t(2, 4, seed=i), calls=4)
    report = explained(Parts(), t(2, 4))
    assert (report.graph_count, report.break_count) == (1, 0)


def test_compiled_parts_that_break():
    same(build(Breaking), build=True, make_args=lambda i: t(2, 4, seed=i), calls=8)
    same(build(Breaking), build=True, make_args=lambda i: t(2, 4, seed=i), calls=4, no_grad=False, backward=True)
    reasons = explained(Breaking(), t(2, 4)).break_reasons
    assert [r.reason for r in reasons] == ["tensor_branch", "disabled"]
    assert reasons[0].function == "Counting.forward"


def test_parts_can_be_replaced():
    model, x = Parts(), t(2, 4)
    compiled = ccompile.compile(model)
    with torch.no_grad():
        for part in (model.block, ccompile.compile(nn.Linear(4, 4)), ccompile.compile(nn.Linear(4, 4)), nn.ReLU()):
            model.block = part
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(hits(lambda: compiled(x)), model(x))


def lazily(x, cache):
    if "f" not in cache:
        cache["f"] = ccompile.compile(torch.nn.functional.relu)
        ccompile.mark_dynamic(x, 0)
    return cache["f"](x * 2) + 1


def test_own_functions_are_one_break_each():
    same(lambda: lambda x, c={}: lazily(x, c), build=True, make_args=lambda i: t(3 + i, seed=i), calls=5)
    report = explained(lazily, t(3), {})
    assert [r.text.split(":")[0] for r in report.break_reasons] == ["call of compile", "call of mark_dynamic"]
    assert report.give_ups == []


# ---- tracers: what is compiled runs eagerly, so that they see its ops -----------------------------------------------
def pointwise(x, y):
    return torch.relu(x) * 2 + y.sum()


def warm(fn, *args):
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for _ in range(2):
            compiled(*args)
    return compiled


def test_symbolic_trace():
    for fn, args in ((pointwise, (t(3), t(3))), (nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (t(2, 3),))):
        for compiled in (ccompile.compile(fn), warm(fn, *args)):
            traced = torch.fx.symbolic_trace(compiled)
            assert str(traced.graph) == str(torch.fx.symbolic_trace(fn).graph)
            torch.testing.assert_close(traced(*args), fn(*args))


def test_jit_trace():
    compiled = warm(pointwise, t(3), t(3))
    traced = torch.jit.trace(compiled, (t(3), t(3)))
    assert "aten::relu" in str(traced.graph)
    torch.testing.assert_close(traced(t(3, seed=5), t(3)), pointwise(t(3, seed=5), t(3)))


def test_export():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    for module in (warm(model, t(2, 3)), Parts()):
        x = t(2, 3 if isinstance(module, nn.Sequential) else 4)
        program = torch.export.export(module, (x,))
        assert [n for n in program.graph.nodes if n.op == "call_function"]
        torch.testing.assert_close(program.module()(x), module(x))


def test_torch_compile_around_and_inside():
    compiled = warm(pointwise, t(3), t(3))
    try:
        outer = torch.compile(compiled, backend="eager", fullgraph=True)
        torch.testing.assert_close(outer(t(3), t(3)), pointwise(t(3), t(3)))
        model, x = Parts(), t(2, 4)
        outer = torch.compile(model, backend="eager")   # breaks at parts, which run eagerly there
        torch.testing.assert_close(outer(x), model(x))
        torch.testing.assert_close(ccompile.compile(outer)(x), model(x))
    finally:
        torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(hits(lambda: compiled(t(3), t(3))), pointwise(t(3), t(3)))


def module_level(x):
    return x + 1


decorated = module_level = ccompile.compile(module_level)


def test_copies():
    """Functions are copied and pickled as functions are; a compiled method belongs to the copy of its object."""
    assert copy.deepcopy(decorated) is decorated and copy.copy(decorated) is decorated
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    model, x = Parts(), t(2, 4)
    with torch.no_grad():
        again = copy.deepcopy(model)
        again.norm.weight.fill_(3.0)
        assert again.bound is not model.bound and again.bound.__wrapped__.__self__ is again.norm
        torch.testing.assert_close(again.bound(x), again.norm(x))
        torch.testing.assert_close(model.bound(x), model.norm(x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(model.bound))(x), model.norm(x))   # the method itself


def test_looks_like_a_function():
    import inspect
    import types
    import typing

    def fn(x: int, *, y: float = 2.0) -> float:
        return x + y

    compiled = ccompile.compile(fn)
    assert isinstance(compiled, types.FunctionType) and inspect.isfunction(compiled) and not inspect.iscoroutinefunction(compiled)
    assert compiled.__code__ is fn.__code__ and compiled.__kwdefaults__ == {"y": 2.0}
    assert typing.get_type_hints(compiled) == typing.get_type_hints(fn)
    assert not isinstance(ccompile.compile(nn.Linear(2, 2)).__call__, types.FunctionType)


def test_explain_with_arguments():
    """As torch._dynamo.explain(model, x), which the source documents write."""
    report = ccompile.explain(pointwise, t(3), y=t(3))
    assert report.graph_count == 1 and report.break_count == 0
    (graph,) = report.graphs
    assert [node.made_by for node in graph.nodes if node.made_by] == list(graph.ops)
