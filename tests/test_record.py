"""Recorded code: each feature of the language and of tensors gives what eager gives, and replays."""

import ccompile
import pytest
import record_tensors  # noqa: F401  fills the second half of the table
import torch
from conftest import EAGER, alike, hits, learned, no_worse, outcome, replaying, same
from record_cases import FEATURES, t
from torch import nn


def build(name):
    fn = FEATURES[name].fn
    return fn() if isinstance(fn, type) else fn


@pytest.mark.parametrize("name", FEATURES)
def test_equal(name):
    """Four calls with changing inputs; the last two have inputs of a kind that was seen, and the last one must replay."""
    f = FEATURES[name]
    same(build(name), make_args=f.inputs, calls=4, hit=f.hit)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_no_more_breaks_than_dynamo(name):
    f = FEATURES[name]
    args, kw = arguments(f)
    # A class that is made in each call is another one each time: no guard can hold for it, so making it is a break.
    no_worse(build(name), *args, bare=(name == "class-in-forward") + learned(name), **kw)


def test_inputs_change():
    """Each feature gives different results for different calls, so a result baked in would be seen."""
    for name, f in FEATURES.items():
        torch.manual_seed(7)
        values = []
        for i in range(2):
            args, kw = arguments(f, i)
            out = outcome(build(name), args, kw)
            assert out.error is None, f"{name} raises {out.error}: {out.text}"
            values.append(out.value)
        with pytest.raises(AssertionError):
            alike(*values, path=f"{name} gives the same for other inputs")


def arguments(f, i=0):
    made = f.inputs(i)
    if len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict):
        return made
    return made, {}


@pytest.mark.parametrize(
    "name", ["SuperCalls", "ModuleContainers", "closure", "einsum-and-friends", "outputs-alias", "loops"]
)
def test_gradients(name):
    """Under grad mode the same graphs carry autograd: outputs, parameters' and inputs' gradients are eager's."""
    made = FEATURES[name].inputs(0)[0]
    same(build(name), make_args=lambda i: (made.clone().mul_(i + 1).requires_grad_(),), no_grad=False, backward=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dynamic": True},
        {"dynamic": False},
        {"mode": "default"},
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"fullgraph": True},
    ],
    ids=str,
)
def test_options(options):
    """Options choose how, never what."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    same(net, make_args=lambda i: t(3 + i % 2, 4, seed=i), calls=6, options=options)


def test_decorator_forms():
    def fn(x, k=2):
        """Its text."""
        return x * k

    for make in (ccompile.compile, ccompile.compile(), ccompile.compile(dynamic=True)):
        compiled = make(fn)
        assert compiled.__name__ == "fn" and compiled.__doc__ == "Its text."
        with torch.no_grad():
            for i in range(2):
                alike(fn(t(3, seed=i)), compiled(t(3, seed=i)))
            for i in range(2):
                alike(fn(t(3, seed=i), k=3), compiled(t(3, seed=i), k=3))
            with replaying(2):
                alike(fn(t(3)), compiled(t(3)))
                alike(fn(t(3), k=3), compiled(t(3), k=3))


class Counter:
    """A class with a compiled method: each instance has state of its own."""

    def __init__(self, k):
        self.k = k

    @ccompile.compile
    def scaled(self, x):
        return x * self.k + 1


def test_compiled_method():
    a, b = Counter(2.0), Counter(5.0)
    with torch.no_grad():
        for i in range(3):
            alike(t(3, seed=i) * 2 + 1, a.scaled(t(3, seed=i)))
            alike(t(3, seed=i) * 5 + 1, b.scaled(t(3, seed=i)))
        with replaying(2):
            a.scaled(t(3))
            b.scaled(t(3))


def test_compiled_inside_compiled():
    inner = ccompile.compile(lambda x: torch.relu(x) * 2)

    def outer(x):
        return inner(x + 1) - inner(x)

    compiled = ccompile.compile(outer)
    with torch.no_grad():
        for i in range(3):
            alike(outer(t(4, seed=i)), compiled(t(4, seed=i)))
        hits(lambda: compiled(t(4)), 2)


def test_compiled_module_is_a_module():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    keys = list(net.state_dict())
    compiled = ccompile.compile(net)
    assert isinstance(compiled, nn.Module)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    assert len(compiled.state_dict()) == len(keys)
    compiled.eval()
    assert not net.training and not net[1].training
    net.train()
    assert compiled.training
    compiled.to(torch.float64)
    assert net[0].weight.dtype == torch.float64
    assert compiled[0] is net[0]
    with torch.no_grad():
        net.eval()
        alike(net(t(2, 4).double()), compiled(t(2, 4).double()))


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_is_compiling_in_recorded_code():
    fn = ccompile.compile(lambda x: x * (2 if torch.compiler.is_compiling() and ccompile.is_compiling() else 3))
    with torch.no_grad():
        for _ in range(3):
            alike(t(3) * 2, fn(t(3)))
    assert not ccompile.is_compiling() and not torch.compiler.is_compiling()


def asks():
    return torch.compiler.is_compiling()


class Printing:
    def __init__(self):
        print(end="")


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_is_compiling_has_one_answer_in_a_call():
    """Libraries keep state in one place or another by the answer (transformers' CompileableContextVar): a recording that gives up
    half-way must not change it."""

    def gives_up(x):
        first = asks()
        Printing()
        return x * 2, first, asks(), torch.compiler.is_compiling(), torch._dynamo.is_compiling(), ccompile.is_compiling()

    def variants(x):
        first = asks()
        for _ in range(int(x.sum())):
            x = x + 1
        return x, first, asks()

    for fn, kind in ((gives_up, "give_up"), (variants, "eager")):
        compiled, before = ccompile.compile(fn, options={"loop_limit": 2}), ccompile.counters()
        for i in range(5):
            with torch.no_grad():
                _, first, *others = compiled(torch.ones(3) * i)
            assert first and all(others)
        assert ccompile.counters[kind] == before[kind] + 1
    assert not asks() and not ccompile.is_compiling()


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_code_with_an_operator_of_dynamos_hears_that_it_is_not_compiled():
    """Also where the recording has given up: what it would take then only Dynamo can trace."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def scans(x):
        scan = associative_scan
        return x + 1 if torch.compiler.is_compiling() else (scan is associative_scan) * x

    def gives_up(x):
        first, before = asks(), scans(x)
        Printing()
        return first, before, scans(x), asks()

    compiled = ccompile.compile(gives_up)
    for _ in range(3):
        with torch.no_grad():
            first, before, behind, again = compiled(t(3))
        assert first and again
        alike((t(3), t(3)), (before, behind))
