"""torch.utils.checkpoint with use_reentrant=True: a break, whose function is compiled on its own and run again by the backward."""

import functools
import gc
import sys
import warnings
import weakref

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import autograd_nodes
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential

check = functools.partial(checkpoint, use_reentrant=True)
LOG = []


class Block(nn.Module):
    def __init__(self, n=8, dropout=0.25):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, scale=1.0):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x))))) * scale


class Blocks(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.blocks, self.call = nn.ModuleList(Block() for _ in range(3)), call

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return x


def by_default(block, x):
    return checkpoint(block, x)


def by_lambda(block, x):
    return check(lambda y: block(y, 0.5), x)


def by_partial(block, x):
    return check(functools.partial(block.__call__, scale=0.5), x)


def with_numbers(block, x):
    return check(block, x, 0.25)


def with_several_results(block, x):
    def fn(x, more):
        y = block(x)
        return y, y.detach() * 2, "text", more + 1

    y, z, text, more = check(fn, x, 1)
    assert text == "text" and more == 2
    return y + z


def inside_another(block, x):
    return check(lambda y: check(block, y) + 1, x)


def with_autocast(block, x):
    with torch.autocast("cpu", torch.bfloat16):
        return check(block, x).float()


def with_a_log(block, x):
    def fn(x):
        LOG.append((torch.is_grad_enabled(), x.requires_grad))
        return block(x)

    return check(fn, x)


def with_a_break(block, x):
    def fn(x):
        y = block(x)
        return y * 2 if y.sum().item() > 0 else y

    return check(fn, x)


def in_place(block, x):
    def fn(x):
        y = block(x)
        return y.mul_(2).add_(x)

    return check(fn, x)


CALLS = [by_default, by_lambda, by_partial, with_numbers, with_several_results, inside_another, with_autocast]
CALLS += [with_a_log, with_a_break, in_place]


def step(model, call, x):
    """The result, the logs and the gradients of a step."""
    LOG.clear()
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = call(x)
        y.square().mean().backward()
    return y.detach(), x.grad, [p.grad for p in model.parameters()], list(LOG), torch.rand(1)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("call", CALLS)
def test_as_eager(call, mode):
    torch.manual_seed(0)
    model = Blocks(call)
    compiled = ccompile.compile(model, mode=mode)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if call is with_autocast else {"rtol": 1e-4, "atol": 1e-5}
    for n in (4, 4, 4, 5, 6, 4):
        x = torch.randn(n, 8)
        torch.testing.assert_close(step(model, compiled, x), step(model, model, x), **tolerance)
    model.eval()
    x = torch.randn(4, 8)
    torch.testing.assert_close(step(model, compiled, x), step(model, model, x), **tolerance)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(compiled(x), model(x), **tolerance)


def functions_of(o):
    """The functions that checkpoints behind this result keep."""
    return [node.run_function for node in autograd_nodes(o) if isinstance(node, CheckpointFunction._backward_cls)]


@pytest.mark.parametrize("call", [by_default, by_lambda, by_partial, with_numbers])
def test_what_is_made_for_each_call_replays(call):
    model = Blocks(call).eval()
    compiled = ccompile.compile(model)
    for _ in range(4):
        step(model, compiled, torch.ones(4, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = compiled(torch.ones(4, 8, requires_grad=True))
    made = [f.func for f in functions_of(y)]
    assert len(set(map(id, made))) == 3
    before = [m.report()["recordings"] for m in made]
    assert all(n <= 3 for n in before), "without gradients, in the backward, and one may give up"
    step(model, compiled, torch.ones(4, 8))
    assert [m.report()["recordings"] for m in made] == before
    assert all(m.report()["hits"] >= 6 for m in made)


def test_sequential():
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    fn = lambda x: checkpoint_sequential(layers, 2, x, use_reentrant=True)  # noqa: E731
    compiled = ccompile.compile(fn)
    for _ in range(4):
        x = torch.randn(3, 8)
        torch.testing.assert_close(step(layers, compiled, x), step(layers, fn, x))


def test_errors_are_eagers():
    block = Block()

    def fn(x):
        def inner(x):
            if x.shape[0] == 3:
                raise ValueError("three rows")
            return block(x)

        return check(inner, x)

    compiled = ccompile.compile(fn)
    for n in (4, 4, 3, 4, 3):
        x = torch.randn(n, 8, requires_grad=True)
        if n == 3:
            with pytest.raises(ValueError, match="three rows"):
                compiled(x)
            continue
        with pytest.raises(RuntimeError, match=r"incompatible with .grad\(\)"):
            torch.autograd.grad(compiled(x).sum(), x)
        compiled(x).sum().backward()


def called_in_a_break(x):
    return INNER(x) + 1


def test_a_compiled_function_that_a_break_calls_is_compiled():
    global INNER
    INNER = ccompile.compile(lambda x: x.sin() * 2)
    outer = ccompile.compile(lambda x: torch._dynamo.disable(called_in_a_break)(x * 3).cos())
    for n in (3, 3, 3, 4, 5, 5):
        x = torch.randn(n)
        torch.testing.assert_close(outer(x), ((x * 3).sin() * 2 + 1).cos())
    assert INNER.report()["hits"] >= 3


def calls_itself(x, n):
    return x if n == 0 else torch._dynamo.disable(lambda: SELF(x * 2 + n, n - 1))()


def test_a_compiled_function_that_calls_itself_in_a_break():
    global SELF
    SELF = ccompile.compile(calls_itself)
    for n in (0, 1, 2, 3, 4, 3, 2, 6):
        x = torch.randn(3)
        expected = functools.reduce(lambda y, k: y * 2 + k, range(n, 0, -1), x)
        torch.testing.assert_close(SELF(x, n), expected)


def calls_itself_deeply(x, n):
    y = x * 0.5
    return y if n == 0 else torch._dynamo.disable(lambda: DEEP(y + 1, n - 1))() - 1


def test_deep_recursion():
    """A region in a region takes more C stack than a plain call."""
    global DEEP
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20000)
    try:
        DEEP = calls_itself_deeply
        expected = DEEP(torch.ones(2), 1500)
        DEEP = ccompile.compile(calls_itself_deeply)
        for _ in range(3):
            torch.testing.assert_close(DEEP(torch.ones(2), 1500), expected)
        with pytest.raises(RecursionError):
            DEEP(torch.ones(2), 1 << 40)
    finally:
        sys.setrecursionlimit(limit)


def test_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = ccompile.explain(Blocks(by_default))(torch.ones(4, 8, requires_grad=True))
    assert [r.reason for r in told.break_reasons] == ["handed"]
    assert "compiled on its own" in str(told) and "use_reentrant=False" in str(told)
    assert [one.node_count for one in told.inner] == [7, 7, 7] and not told.inner[0].break_reasons
    assert "   1. Block: 1 graph, 0 graph breaks, 7 ops" in str(told)


def test_disabled_code_stays_eager():
    model = Blocks(by_default)

    def fn(x):
        with ccompile.disable():
            return model(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = ccompile.compile(fn)(torch.ones(4, 8, requires_grad=True))
    assert functions_of(y) == list(model.blocks)[::-1]


def test_other_settings_of_checkpoint_keep_the_function():
    """context_fn's contexts may look at every op."""
    block, seen = Block(), []

    def contexts():
        class Mode(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func.overloadpacket.__name__)
                return func(*args, **kwargs or {})

        return Mode(), Mode()

    def fn(x):
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    def ops(call):
        seen.clear()
        call(torch.ones(4, 8, requires_grad=True)).sum().backward()
        return list(seen)

    expected, compiled = ops(fn), ccompile.compile(fn)
    for _ in range(3):
        assert ops(compiled) == expected


def test_nothing_outlives_the_model():
    model = Blocks(by_default)
    compiled = ccompile.compile(model)
    for _ in range(3):
        step(model, compiled, torch.ones(4, 8))
    dead = weakref.ref(model.blocks[0].up)
    del model, compiled
    gc.collect()
    assert dead() is None


def test_reset_frees_what_was_compiled():
    model = Blocks(by_default)
    compiled = ccompile.compile(model)
    for _ in range(3):
        step(model, compiled, torch.ones(4, 8))
    x = torch.ones(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [weakref.ref(f.func) for f in functions_of(compiled(x.requires_grad_()))]
    assert len(made) == 3
    ccompile.reset()
    gc.collect()
    assert [one() for one in made] == [None] * 3
    x = torch.ones(4, 8)
    torch.testing.assert_close(step(model, compiled, x), step(model, model, x))
