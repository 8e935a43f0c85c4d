"""A callable that is compiled again finds what was compiled before."""

import functools
import gc
import threading
import weakref

import ccompile
import pytest
import torch
from ccompile import sharing
from torch import nn


@pytest.fixture(autouse=True)
def _forgotten():
    for table in (sharing._lenders, sharing._kept):
        table.clear()


def relu(x):
    return torch.relu(x) + 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x

    def twice(self, x):
        return self.linear(x) * 2


class Callable:
    by = 3.0

    def __call__(self, x):
        return x * self.by


def recordings(calls):
    before = ccompile.counters()
    calls()
    return sum(ccompile.counters[kind] - before[kind] for kind in ("recording", "recompile"))


X = torch.randn(3, 4)
BLOCK, CALLABLE = Block(), Callable()
AGAIN = {
    "function": lambda: relu,
    "module": lambda: BLOCK,
    "method": lambda: BLOCK.twice,
    "instance": lambda: CALLABLE,
    "compiled": lambda: ccompile.compile(relu),
}


@pytest.mark.parametrize("name", AGAIN)
def test_compiled_again(name):
    first = ccompile.compile(AGAIN[name]())
    assert recordings(functools.partial(first, X)) == 1
    second = ccompile.compile(AGAIN[name]())
    assert second is not first
    assert recordings(lambda: torch.testing.assert_close(second(X), AGAIN[name]()(X))) == 0
    del first
    assert recordings(lambda: second(X)) == 0
    other = torch.randn(2, 5, 4)
    third = ccompile.compile(AGAIN[name]())
    assert recordings(lambda: (second(other), third(other))) == 1
    assert len(ccompile.api.compiled_of(third).report()["entries"]) == 2
    ccompile.api.compiled_of(third).reset()
    assert recordings(lambda: second(X)) == 1


@pytest.mark.parametrize(
    "arguments",
    [{"mode": "reduce-overhead"}, {"fullgraph": True}, {"dynamic": False}, {"options": {"training": False}}, {"name": "other"},
     {"isolate_recompiles": True}, {"recompile_limit": 3}, {"dynamic": {"x": {0: ccompile.Dim()}}}],
    ids=lambda arguments: "-".join(arguments),
)  # fmt: skip
def test_other_settings_are_compiled_apart(arguments):
    first, other, knob = ccompile.compile(relu), ccompile.compile(relu, **arguments), None
    with ccompile.config.patch(loop_limit=7):
        knob = ccompile.compile(relu)
    assert [recordings(lambda c=c: c(X)) for c in (first, other, knob)] == [1, 1, 1]


def test_functions_made_in_a_loop():
    def run():
        for _ in range(8):

            def made(x):
                return torch.sin(x) + 2

            torch.testing.assert_close(ccompile.compile(made)(X), made(X))

    assert recordings(run) <= 2  # the second result of this code is kept
    before = len(sharing._kept), len(sharing._lenders)
    assert recordings(run) == 0
    assert before == (len(sharing._kept), len(sharing._lenders)) == (1, 1)


def test_other_cells_globals_and_defaults_are_compiled_apart():
    def make(by):
        def scaled(x, more=1.0):
            return x * by + more

        return scaled

    functions = [make(by) for by in (2.0, 3.0)] + [make(2.0)]
    functions[2].__defaults__ = (torch.ones(4),)
    for space in ({"by": 5.0}, {"by": 6.0}):
        exec("def scaled(x): return x * by", space)
        functions.append(space["scaled"])
    compiled = [ccompile.compile(f) for f in functions]
    for _ in range(2):
        for f, c in zip(functions, compiled, strict=True):
            torch.testing.assert_close(c(X), f(X))
    assert all(len(ccompile.api.compiled_of(c).report()["entries"]) == 1 for c in compiled)


@pytest.mark.parametrize("part", ["__defaults__", "__code__", "__kwdefaults__"])
def test_parts_of_a_function_that_are_replaced(part):
    def make():
        def f(x, by=2.0, *, more=1.0):
            return x * by + more

        return f

    first, second = make(), make()
    second.__kwdefaults__ = first.__kwdefaults__
    compiled = ccompile.compile(first), ccompile.compile(second)
    assert [recordings(lambda c=c: c(X)) for c in compiled] == [1, 0]
    new = {"__defaults__": (5.0,), "__kwdefaults__": {"more": 7.0}, "__code__": (lambda x, by=2.0, *, more=1.0: x - by).__code__}
    setattr(second, part, new[part])
    for _ in range(2):
        torch.testing.assert_close(compiled[1](X), second(X))
        torch.testing.assert_close(compiled[0](X), first(X))
    assert not torch.equal(first(X), second(X))


def test_nothing_is_kept_alive():
    model, refs = Block(), []
    for _ in range(3):
        refs.append(weakref.ref(ccompile.api.compiled_of(ccompile.compile(model))))
        ccompile.compile(model.twice)(X)
    class Local(nn.Module):
        def forward(self, x):
            return x + 1

    for _ in range(2):
        ccompile.compile(Local())(X)
    gone = weakref.ref(model), weakref.ref(Local)
    del model, Local
    gc.collect()
    gc.collect()
    assert not any(ref() for ref in (*gone, *refs))
    assert all(ref() is None for ref in sharing._lenders.values()) and not sharing._kept


def test_tables_do_not_grow():
    for i in range(sharing._KNOWN + 50):
        space = {}
        exec(f"def f(x): return x + {i}", space)
        for _ in range(2):
            ccompile.compile(space["f"])
    assert len(sharing._kept) == sharing._KEPT
    assert len(sharing._lenders) == sharing._KNOWN


def test_compiled_inside_compiled_code_and_in_threads():
    def f(x):
        return ccompile.compile(relu)(x) * 2

    compiled, wrong = ccompile.compile(f), []

    def run():
        for _ in range(20):
            if not torch.equal(compiled(X), f(X)) or not torch.equal(ccompile.compile(relu)(X), relu(X)):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
