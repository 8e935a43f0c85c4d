"""Python code that runs inside ops, and state that C code reads invisibly: a replay gives both what eager gives.

Kernels of custom ops and hooks of saved tensors see the writes that precede them in the program, and none that follow; the
result of a cached function comes from its cache; flags of the interpreter and of numpy are read again."""

import contextlib
import copy
import functools
import gc
import json
import operator
import random
import sys
import threading
import types

import ccompile
import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import EAGER, breaks, same

X = torch.ones(2)
STATE = types.SimpleNamespace(scale=1.0, n=0)
CONTEXT = {"scale": 1.0}
LOG = []


# ---- custom ops ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("ccompile_order::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    LOG.append((CONTEXT["scale"], STATE.scale, STATE.n))
    return x * CONTEXT["scale"] + STATE.scale


@torch.library.custom_op("ccompile_order::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor) -> None:
    x.mul_(CONTEXT["scale"])


@torch.library.custom_op("ccompile_order::tallied", mutates_args=())
def tallied(x: torch.Tensor, name: str) -> torch.Tensor:
    LOG.append(name)
    return x.clone()


@torch.library.custom_op("ccompile_order::noted", mutates_args=())
def noted(x: torch.Tensor, name: str) -> None:
    LOG.append((name, x.sum().item()))


def notes(x):
    noted(x, "before")
    y = x * 2
    torch.ops.ccompile_order.noted(y, "between")
    torch.ops.ccompile_order.noted.default(y + 1, "after")
    return y + 1


def test_an_op_without_a_result_runs_in_every_call():
    seen = []
    for call in (notes, ccompile.compile(notes)):
        LOG.clear()
        seen.append(([call(torch.full((2,), float(i))).tolist() for i in range(5)], LOG[:]))
    assert seen[0] == seen[1] and len(LOG) == 15


def tallies_and_indexes(x, i):
    return (tallied(x, "once") * 2 + 1)[i]


def test_an_index_out_of_range_behind_python_code_raises_what_eager_raises():
    """The op can't run again, so nothing behind it may leave an error to a second, eager run."""
    x, good, bad = torch.ones(4, 3), torch.tensor([0, 1]), torch.tensor([0, 9])
    compiled = ccompile.compile(tallies_and_indexes)
    for _ in range(4):
        assert compiled(x, good).equal(tallies_and_indexes(x, good))
    for call in (tallies_and_indexes, compiled):
        LOG.clear()
        with pytest.raises(IndexError, match="out of bounds"):
            call(x, bad)
        assert LOG == ["once"]


@torch.library.custom_op("ccompile_order::picky", mutates_args=())
def picky(x: torch.Tensor) -> torch.Tensor:
    if STATE.n % 2:
        raise ValueError(f"{STATE.n}")
    return x + 1


LIBRARY = torch.library.Library("ccompile_order", "FRAGMENT")
for key in ("CPU", "CompositeImplicitAutograd"):
    LIBRARY.define(f"by_{key}(Tensor x) -> Tensor")
    LIBRARY.impl(f"by_{key}", lambda x: x * CONTEXT["scale"], key)
LIBRARY.define("some.one(Tensor x) -> Tensor")
LIBRARY.define("some.two(Tensor x, Tensor y) -> Tensor")
LIBRARY.impl("some.one", lambda x: x * CONTEXT["scale"], "CompositeExplicitAutograd")
LIBRARY.impl("some.two", lambda x, y: x * CONTEXT["scale"] + y, "CompositeExplicitAutograd")


@contextlib.contextmanager
def context(v):
    old = CONTEXT["scale"]
    CONTEXT["scale"] = v
    try:
        yield
    finally:
        CONTEXT["scale"] = old


class Scale:
    def __init__(self, v):
        self.v = v

    def __enter__(self):
        self.old, STATE.scale = STATE.scale, self.v

    def __exit__(self, *_):
        STATE.scale = self.old


def in_a_context(x):
    with context(5.0):
        y = scaled(x)
    return y + 1


def in_two_contexts(x):
    with context(5.0), Scale(7.0):
        y = scaled(x + 1)
        with context(6.0):
            z = scaled(y)
    return y + z, scaled(z)


def between_writes(x):
    STATE.n = 1
    y = scaled(x)
    STATE.n = 2
    z = scaled(y)
    STATE.n = 3
    return z


def in_a_loop(x):
    for i in range(3):
        STATE.n = i
        x = scaled(x)
    return x


def counted(x):
    STATE.n += 1
    return scaled(x) * STATE.n


def written_behind(x):
    y = scaled(x)
    STATE.n += 10
    return y


def in_place(x):
    y = x * 2
    with context(3.0):
        scale_(y)
    return y


def by_overload(x):
    CONTEXT["scale"] = 4.0
    y = torch.ops.ccompile_order.some.one(x), torch.ops.ccompile_order.some.two(x, x), torch.ops.ccompile_order.some(x)
    CONTEXT["scale"] = 1.0
    return y


def by_key(x):
    with context(2.0):
        y = torch.ops.ccompile_order.by_CPU(x)
    with context(3.0):
        return y + torch.ops.ccompile_order.by_CompositeImplicitAutograd(x)


def caught(x):
    STATE.n += 1
    try:
        return picky(x)
    except ValueError as e:
        return str(e)


def caught_without_writes(x):
    try:
        return picky(x) * 2
    except ValueError as e:
        return x, str(e)
    finally:
        STATE.scale += 1


CASES = (
    in_a_context,
    in_two_contexts,
    between_writes,
    in_a_loop,
    counted,
    written_behind,
    in_place,
    by_overload,
    by_key,
    caught,
)


def forget():
    STATE.scale, STATE.n, CONTEXT["scale"] = 1.0, 0, 1.0
    LOG.clear()


def seen(fn, calls, before=lambda i: None):
    forget()
    out = []
    for i in range(calls):
        before(i)
        out.append((repr(fn(torch.ones(2) * i)), list(LOG), vars(STATE).copy(), CONTEXT.copy()))
    return out


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_ops_in_python_see_what_was_written_before_them(fn):
    with torch.no_grad():
        assert seen(ccompile.compile(fn), 8) == seen(fn, 8)


def test_what_an_op_in_python_raises_meets_the_handlers_around_it():
    def before(i):
        STATE.n = i // 2

    with torch.no_grad():
        want, got = seen(caught_without_writes, 8, before), seen(ccompile.compile(caught_without_writes), 8, before)
    assert got == want


def test_ops_in_python_break_nothing_where_nothing_is_written():
    f = lambda x: scaled(x * 2).relu() + torch.ops.ccompile_order.by_CPU(x)
    forget()
    same(f, X)
    assert EAGER or breaks(f, X).breaks == 0


# ---- what a kernel changes ---------------------------------------------------------------------------------------------
CHANGED = {"n": 0}
CHANGES = []
COUNT = 0


class Changed:
    n = 0


class Holder:
    def __init__(self):
        self.n, self.tensor = 0, X
        self.linear = nn.Linear(2, 2)


HELD = Holder()


@torch.library.custom_op("ccompile_order::changes", mutates_args=())
def changes(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    for o in (Changed, HELD):
        o.n += 1
    COUNT += 1
    CHANGED["n"] += 1
    if "key" in CHANGED:
        del CHANGED["key"]
    else:
        CHANGED["key"] = COUNT
    CHANGES.append(COUNT)
    HELD.tensor = HELD.tensor + 1
    HELD.linear.weight.requires_grad_(COUNT % 2 == 0)
    return x + 1


def change_nothing():
    global COUNT
    COUNT = Changed.n = HELD.n = 0
    CHANGED.clear()
    CHANGED["n"] = 0
    CHANGES.clear()
    HELD.tensor = X
    HELD.linear.weight.requires_grad_(True)


def read_before_and_behind(x):
    n, held = HELD.n, HELD
    return changes(x) * (held.n - n) + held.n


def read_in_a_callee(x):
    def op(x):
        return changes(x)

    return op(x) * HELD.n


def read_twice(x):
    for _ in range(3):
        x = changes(x) * COUNT
    return x


READ_BEHIND = {
    "dict": lambda x: changes(x) * CHANGED["n"],
    "key": lambda x: changes(x) * (2 if "key" in CHANGED else 3),
    "get": lambda x: changes(x) * CHANGED.get("key", 7),
    "length": lambda x: changes(x) * len(CHANGES),
    "items": lambda x: changes(x) * sum(CHANGES),
    "global": lambda x: changes(x) * COUNT,
    "class": lambda x: changes(x) * Changed.n,
    "object": lambda x: changes(x) * HELD.n,
    "getattr": lambda x: changes(x) * getattr(HELD, "n", 0),
    "tensor": lambda x: changes(x) * HELD.tensor,
    "requires_grad": lambda x: changes(x) * (2 if HELD.linear.weight.requires_grad else 3),
    "before_and_behind": read_before_and_behind,
    "callee": read_in_a_callee,
    "twice": read_twice,
}


@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("name", READ_BEHIND)
def test_what_a_kernel_changes_is_read_behind_it(name, dynamic):
    def run(fn):
        change_nothing()
        return [(fn(X * i).tolist(), COUNT) for i in range(8)]

    with torch.no_grad():
        assert run(ccompile.compile(READ_BEHIND[name], dynamic=dynamic)) == run(READ_BEHIND[name])


@pytest.mark.skipif(EAGER, reason="nothing is compiled")
def test_what_a_kernel_may_change_is_said():
    compiled = ccompile.compile(lambda x: changes(x) * HELD.n)
    with torch.no_grad():
        for _ in range(3):
            compiled(X)
    found = ccompile.report.report(compiled)
    assert [b.reason for b in found.break_reasons] == ["changed"], found


# ---- kernels that keep to their operands -----------------------------------------------------------------------------
def doubled(x):
    return torch.cat([x[i : i + 1] * 2 for i, _ in enumerate(x.tolist())])


@torch.library.custom_op("ccompile_order::grouped", mutates_args=())
def grouped(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.size(0), dtype=x.dtype)
    for i, v in enumerate(x.tolist()):
        if v < 0:
            raise ValueError(f"{v}")
        torch.mul(x[i : i + 1], 3.0, out=out[i : i + 1])
    return out + doubled(x)


def behind_writes(x):
    STATE.n += 1
    with context(STATE.n):
        y = grouped(x)
        STATE.scale += 1
    return grouped(y) * CONTEXT["scale"]


def grouped_caught(x):
    STATE.n += 1
    try:
        return grouped(x - 2)
    except ValueError as e:
        return str(e)


@pytest.mark.parametrize("fn", (behind_writes, grouped_caught), ids=lambda f: f.__name__)
def test_kernels_that_keep_to_their_operands_are_nodes_anywhere(fn):
    with torch.no_grad():
        assert seen(ccompile.compile(fn), 8) == seen(fn, 8)
        forget()
        assert EAGER or breaks(fn, X + 2).breaks == 0


FACTOR, TABLE = 2.0, [2.0]
HOLDER = torch.nn.Module()
HOLDER.factor = 2.0


def factor():
    return FACTOR


def counting():
    counting.n = getattr(counting, "n", 0)
    return counting.n


def closed():
    table = [2.0]

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x * table[0]

    return kernel, lambda v: table.__setitem__(0, v)


def by_default(x: torch.Tensor, table: list[float] | None = None) -> torch.Tensor:
    return x * by_default.table[0]


by_default.table = [2.0]


def set_factor(v):
    globals()["FACTOR"] = v


def outer_of_cells():
    value = 2.0

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x * value

    def change(v):
        nonlocal value
        value = v

    return kernel, change


def reads_global(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def reads_list(x: torch.Tensor) -> torch.Tensor:
    return x * TABLE[0]


def reads_helper(x: torch.Tensor) -> torch.Tensor:
    return x * factor()


def reads_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * HOLDER.factor


def reads_function(x: torch.Tensor) -> torch.Tensor:
    return x * counting()


def reads_inside(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([(lambda v: v * FACTOR)(v) for v in x])


def reads_module(x: torch.Tensor) -> torch.Tensor:
    return x * float(sys.ps9)


def reads_environment(x: torch.Tensor) -> torch.Tensor:
    import os

    return x * float(os.environ.get("order_factor", "2"))


def reads_by_another_op(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.ccompile_order.kernel_reads_list(x)


def set_environment(v):
    import os

    os.environ["order_factor"] = str(v)


KERNELS = {
    "reads_list": (reads_list, lambda v: TABLE.__setitem__(0, v)),
    "reads_global": (reads_global, set_factor),
    "reads_helper": (reads_helper, set_factor),
    "reads_inside": (reads_inside, set_factor),
    "reads_attribute": (reads_attribute, lambda v: setattr(HOLDER, "factor", v)),
    "reads_function": (reads_function, lambda v: setattr(counting, "n", v)),
    "reads_module": (reads_module, lambda v: setattr(sys, "ps9", v)),
    "reads_environment": (reads_environment, set_environment),
    "by_default": (by_default, lambda v: by_default.table.__setitem__(0, v)),
    "closed": closed(),
    "cells": outer_of_cells(),
    "reads_by_another_op": (reads_by_another_op, lambda v: TABLE.__setitem__(0, v)),
}
OPS = {}
for name, (kernel, _) in KERNELS.items():
    schema = "(Tensor x, float[]? table=None) -> Tensor" if name == "by_default" else "(Tensor x) -> Tensor"
    OPS[name] = torch.library.custom_op(f"ccompile_order::kernel_{name}", kernel, mutates_args=(), schema=schema)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_reads_what_is_written_before_it(name):
    op, change = OPS[name], KERNELS[name][1]

    def f(x):
        STATE.n += 1
        change(float(STATE.n))
        y = op(x)
        change(100.0)
        return y

    def run(fn):
        forget()
        out = []
        for i in range(7):
            change(50.0)
            out.append(fn(torch.full((2,), float(i))).tolist())
        return out

    with torch.no_grad():
        assert run(ccompile.compile(f)) == run(f)


# ---- hooks of saved tensors ------------------------------------------------------------------------------------------
def pack(t):
    LOG.append(STATE.n)
    return t


def hooks():
    return torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)


def writes_between(x):
    STATE.n = 5
    y = (x * x).exp()
    STATE.n = 7
    z = (y * y).sum()
    STATE.n = 8
    return z


def sets_hooks(x):
    STATE.n += 1
    with hooks():
        y = (x * x).exp()
        STATE.n += 1
        z = y * y
        STATE.n += 1
        w = (z * z).sum()
    STATE.n += 1
    return w.exp()


def sets_hooks_only(x):
    with hooks():
        return (x * x).exp()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.n = nn.Linear(4, 4), 0

    def forward(self, x):
        self.n += 1
        STATE.n = self.n
        return self.linear(x).relu() * 2


def gradients(fn, calls, hooked):
    """Sizes differ from call to call in the second half."""
    out = []
    for i in range(calls):
        forget()
        if isinstance(fn, Counting):
            fn.n = 0
        x = torch.ones(4 if i < calls // 2 or isinstance(fn, Counting) else i, requires_grad=True)
        with hooks() if hooked(i) else contextlib.nullcontext():
            y = fn(x)
        y.sum().backward()
        out.append((list(LOG), STATE.n, x.grad.tolist()))
    return out


@pytest.mark.parametrize(
    "hooked", (lambda i: False, lambda i: True, lambda i: i % 3 != 2), ids=("never", "always", "mixed")
)
@pytest.mark.parametrize("make", (lambda: writes_between, lambda: sets_hooks, lambda: sets_hooks_only, Counting),
                         ids=("writes_between", "sets_hooks", "sets_hooks_only", "module"))  # fmt: skip
def test_hooks_of_saved_tensors_see_what_was_written_before_them(make, hooked):
    torch.manual_seed(0)
    fn = make()
    twin = copy.deepcopy(fn)
    compiled = ccompile.compile(twin)
    calls = 12
    want = gradients(fn, calls, hooked)
    if isinstance(twin, Counting):
        calling = lambda x: compiled(x)
        got = []
        for i in range(calls):
            forget()
            twin.n = 0
            x = torch.ones(4, requires_grad=True)
            with hooks() if hooked(i) else contextlib.nullcontext():
                y = calling(x)
            y.sum().backward()
            got.append((list(LOG), STATE.n, x.grad.tolist()))
    else:
        got = gradients(compiled, calls, hooked)
    assert got == want


# ---- copy.deepcopy ---------------------------------------------------------------------------------------------------
class Node:
    pass


def tree():
    n = Node()
    n.a, n.b = Node(), Node()
    n.a.a = Node()
    n.a.a.a, n.a.a.b, n.b.a = torch.ones(2), 1, torch.ones(2)
    return n


def cyclic():
    n = Node()
    n.a = n
    return n


def shared():
    n, m = Node(), Node()
    m.a = torch.ones(2)
    n.a, n.b, n.t = [m], {"m": m}, (m, m.a)
    return n


def mlp():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def shape(o, names):
    """What an object is made of, with each object under the number at which it came first."""
    if isinstance(o, (int, str, float, type(None))):
        return o
    if id(o) in names:
        return names[id(o)]
    names[id(o)] = f"#{len(names)}"
    if isinstance(o, torch.Tensor):
        return (names[id(o)], o.tolist())
    if isinstance(o, dict):
        return (names[id(o)], [(k, shape(v, names)) for k, v in o.items()])
    if isinstance(o, (list, tuple)):
        return (names[id(o)], [shape(v, names) for v in o])
    return (names[id(o)], type(o).__name__, shape({k: v for k, v in vars(o).items() if k[0] != "_"}, names))


@pytest.mark.parametrize("order", ("tree then cyclic", "all", "one"))
def test_a_copy_is_made_of_this_call_s_objects(order):
    compiled = ccompile.compile(lambda x, n: copy.deepcopy(n))
    makes = {"tree then cyclic": [tree] * 5 + [cyclic] * 5, "all": [tree, shared, cyclic] * 5, "one": [shared] * 6}[
        order
    ]
    kept = []
    for make in makes:
        n = make()
        kept.append(n)
        assert shape(compiled(X, n), {}) == shape(copy.deepcopy(n), {})


@pytest.mark.parametrize("make", (tree, mlp, shared), ids=lambda f: f.__name__)
def test_copies_where_memory_is_used_again(make):
    for seed in range(12):
        random.seed(seed)
        compiled, kept, fixed = ccompile.compile(lambda x, n: copy.deepcopy(n)), [], make()
        for i in range(8):
            n = fixed if seed % 2 else make()
            kept.append(n)
            kept += [[{}, [], (1, i), Node()][random.randrange(4)] for _ in range(random.randrange(5))]
            if random.random() < 0.3:
                kept.clear()
            kept.append(copy.deepcopy(n))
            kept.append(compiled(X, n))
            assert shape(kept[-1], {}) == shape(kept[-2], {})


def test_copies_with_one_memo_on_both_sides_of_a_break():
    def f(x, a, b):
        memo = {}
        first = copy.deepcopy(a, memo)
        n = x.sum().item()
        second = copy.deepcopy(b, memo)
        return first, second, n

    compiled, kept = ccompile.compile(f), []
    for i in range(8):
        a, b = Node(), Node()
        a.v, b.v = i, a if i % 2 else Node()
        kept.append((a, b))
        assert shape(compiled(X, a, b), {}) == shape(f(X, a, b), {})


# ---- functools.lru_cache ---------------------------------------------------------------------------------------------
def caches():
    """What a cached function may look like: (made of a function, called as)."""
    return {
        "plain": (functools.lru_cache, lambda g: g(2)),
        "unbounded": (functools.cache, lambda g: g(2)),
        "small": (functools.lru_cache(maxsize=1), lambda g: g(2)),
        "typed": (functools.lru_cache(typed=True), lambda g: (g(2), g(2.0), g(True))),
        "none": (functools.lru_cache(maxsize=0), lambda g: g(2)),
        "keywords": (functools.lru_cache(maxsize=4), lambda g: (g(k=2), g(2, b=3), g(2, 3))),
        "typed keywords": (functools.lru_cache(typed=True), lambda g: (g(k=2), g(2, b=3.0))),
        "text": (functools.cache, lambda g: g("a")),
        "pairs": (functools.lru_cache(maxsize=2), lambda g: (g((1, 2)), g(((1, 2), "a")), g((1, 2)))),
        "evicts itself": (functools.lru_cache(maxsize=2), lambda g: (g(1), g(2), g(3), g(1))),
    }


GIVES = {
    "numbers": lambda k, b: (STATE.n, repr((k, b))),
    "a number": lambda k, b: STATE.n,
    "a list": lambda k, b: [STATE.n],
    "an object": lambda k, b: types.SimpleNamespace(n=STATE.n),
    "None": lambda k, b: LOG.append(STATE.n),
}


@pytest.mark.parametrize("gives", GIVES, ids=lambda s: s.replace(" ", "_"))
@pytest.mark.parametrize("kind", caches(), ids=lambda s: s.replace(" ", "_"))
def test_what_a_cache_forgets_is_computed_again(kind, gives):
    def run(compile):
        made, call = caches()[kind]
        calls, out = [], []

        @made
        def g(k, b=0):
            calls.append((k, b))
            return GIVES[gives](k, b)

        f = compile(lambda x: (x + 1, call(g)))
        forget()
        for i in range(14):
            STATE.n = i
            if i in (4, 9):
                g.cache_clear()
            if i in (6, 7, 11):
                g(100 + i)
            r = f(X)[1]
            out.append((repr(r), repr(f(X)[1]), len(calls), g.cache_info(), list(LOG)))
        return out

    assert run(ccompile.compile) == run(lambda f: f)


def test_what_a_cached_function_raises_is_not_kept():
    def run(compile, catches):
        @functools.lru_cache
        def h(k):
            STATE.n += 1
            if STATE.n < 4 or STATE.n == 6:
                raise ValueError(STATE.n)
            return 1.0

        def retried(x):
            try:
                return h(1)
            except ValueError as e:
                return str(e)

        f, out = compile(retried if catches else lambda x: x + h(1)), []
        forget()
        for i in range(9):
            if i == 6:
                h.cache_clear()
            try:
                out.append((repr(f(X)), STATE.n, h.cache_info()))
            except ValueError as e:
                out.append((repr(e), STATE.n, h.cache_info()))
        return out

    for catches in (False, True):
        assert run(ccompile.compile, catches) == run(lambda f: f, catches)


def test_another_cached_function_in_its_place():
    holder = types.SimpleNamespace(g=None)
    f = lambda x: holder.g(1)
    compiled = ccompile.compile(f)
    for n in (1, 1, 1, 2, 2, 3, 3):
        holder.g = functools.lru_cache(lambda k, n=n: n * k)
        assert compiled(X) == n and compiled(X) == n and holder.g.cache_info()[:2] == (1, 1)


def test_cached_methods_and_cached_functions_of_cached_results():
    class Grid:
        def __init__(self, n):
            self.n = n

        @functools.lru_cache(maxsize=3)  # noqa: B019
        def sizes(self, k):
            return (self.n, STATE.n, k)

        def __call__(self, x):
            return x, self.sizes(1), self.sizes(2), area(self.sizes(1))

    @functools.lru_cache(maxsize=2)
    def area(sizes):
        return sum(sizes) + 100 * STATE.n

    def run(compile):
        grids, out = [Grid(2), Grid(5)], []
        Grid.sizes.cache_clear()
        area.cache_clear()
        f = compile(lambda x: [grid(x)[1:] for grid in grids])
        for i in range(8):
            STATE.n = i
            out.append((repr(f(X)), Grid.sizes.cache_info(), area.cache_info()))
        return out

    assert run(ccompile.compile) == run(lambda f: f)


def test_cached_functions_break_nothing():
    @functools.lru_cache
    def table(n, k=1):
        return tuple(range(n * k))

    f = lambda x: x * sum(table(3)) + sum(table(3, k=2))
    same(f, X)
    assert EAGER or breaks(f, X).breaks == 0


# ---- state that C code reads unseen ----------------------------------------------------------------------------------
BIG, TEXT = 10**5000, "1" * 5000
LIMIT, DIGITS = sys.getrecursionlimit(), sys.get_int_max_str_digits()
ONE, ZERO = np.float64(1), np.float64(0)


def setting(how, on, off):
    return lambda: how(on), lambda: how(off)


digits = setting(sys.set_int_max_str_digits, 0, DIGITS)
errors = setting(lambda how: np.seterr(all=how), "raise", "ignore")
legacy = setting(lambda v: np.set_printoptions(legacy=v), "1.13", False)
dtype = setting(torch.set_default_dtype, torch.float64, torch.float32)

STATES = {
    "recursion limit": (lambda x: sys.getrecursionlimit(), setting(sys.setrecursionlimit, LIMIT + 100, LIMIT)),
    "collector": (lambda x: gc.isenabled(), (gc.disable, gc.enable)),
    "str": (lambda x: len(str(BIG)), digits),
    "str of a list": (lambda x: len(str([BIG])), digits),
    "str of what was computed": (lambda x: len(str((1 << 20000) + 1)), digits),
    "repr": (lambda x: len(repr(BIG)), digits),
    "f-string": (lambda x: len(f"{BIG}"), digits),
    "f-string of a dict": (lambda x: len(f"{ {1: BIG} }"), digits),
    "format": (lambda x: len(format(BIG, "d")), digits),
    "format method": (lambda x: len("{}".format(BIG)), digits),
    "%d": (lambda x: len("%d" % BIG), digits),
    "%s of a tuple": (lambda x: len("%s" % (BIG,)), digits),
    "int": (lambda x: int(TEXT).bit_length(), digits),
    "json.dumps": (lambda x: len(json.dumps([BIG])), digits),
    "json.loads": (lambda x: json.loads(TEXT).bit_length(), digits),
    "numpy /": (lambda x: float(ONE / ZERO), errors),
    "numpy -": (lambda x: int(-np.int8(-128)), errors),
    "numpy +": (lambda x: int(np.int8(100) + np.int8(100)), errors),
    "numpy operator": (lambda x: float(operator.truediv(ONE, ZERO)), errors),
    "numpy ufunc": (lambda x: float(np.log(0.0)), errors),
    "numpy class": (lambda x: float(np.float16(1e10)), errors),
    "numpy sum": (lambda x: float(sum([np.float32(3e38), np.float32(3e38)])), errors),
    "numpy repr": (lambda x: repr(ONE / 3), legacy),
    "numpy f-string": (lambda x: f"{ONE / 3!r}", legacy),
    "encode": (lambda x: "a".encode("utf-8") + "é".encode("ascii", "replace"), (lambda: None, lambda: None)),
    "torch.finfo": (lambda x: torch.finfo().bits, dtype),
    "autocast elsewhere": (
        lambda x: str(torch.get_autocast_dtype("xpu")),
        setting(lambda v: torch.set_autocast_dtype("xpu", v), torch.float16, torch.bfloat16),
    ),
}


@pytest.mark.parametrize("name", STATES, ids=lambda s: s.replace(" ", "_"))
def test_state_that_c_code_reads(name):
    fn, (change, undo) = STATES[name]

    def f(x):
        try:
            return fn(x)
        except (ValueError, FloatingPointError) as e:
            return type(e)

    compiled = ccompile.compile(f)
    with np.errstate(all="ignore"):
        try:
            for step in range(6):
                (change if step % 2 else undo)()
                want = f(X)
                assert [compiled(X) for _ in range(3)] == [want] * 3
        finally:
            undo()


def test_a_handler_of_a_codec_that_was_replaced():
    import codecs

    f = lambda x: ("\u1234".encode("ascii", "ccompile_order"), b"\xff".decode("utf-8", errors="ccompile_order"))
    compiled = ccompile.compile(f)
    for c in "abba":
        codecs.register_error("ccompile_order", lambda e, c=c: (c, e.end))
        for _ in range(2):
            assert compiled(X) == f(X) == (c.encode(), c)


def test_a_sum_in_the_context_of_decimals():
    import decimal

    third = decimal.Decimal(1) / 3
    f = lambda x: str(sum([third, third]))
    compiled = ccompile.compile(f)
    for n in (28, 5, 28, 3):
        with decimal.localcontext() as c:
            c.prec = n
            assert [compiled(X), compiled(X)] == [f(X)] * 2


def test_each_thread_has_its_own_identity():
    kept = {}

    def f(x):
        me = threading.get_ident()
        kept.setdefault(me, []).append(1)
        return x + 1, me

    compiled, bad = ccompile.compile(f), []

    def work():
        for _ in range(4):
            if compiled(X)[1] != threading.get_ident():
                bad.append(1)

    work()
    gate = threading.Barrier(3)
    threads = [threading.Thread(target=lambda: (gate.wait(), work(), gate.wait())) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad and sorted(map(len, kept.values())) == [4] * 4


# ---- ops whose results nobody reads ----------------------------------------------------------------------------------
def unread(x):
    tallied(x, "a")
    return x + 1


def unread_twice(x):
    y = tallied(x, "b") + 1
    tallied(x, "a")
    tallied(x, "a")
    tallied(y * 2, "c")
    return x * 2


def unread_beside_others(x):
    y = (x * 2).sin()
    tallied(y, "a")
    z = tallied(x, "b").cos() + y
    tallied(z, "c")
    return z


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [unread, unread_twice, unread_beside_others])
def test_kernels_in_python_run_although_their_results_are_not_read(fn, grad):
    x = torch.ones(3, requires_grad=grad)
    LOG.clear()
    expected, order = fn(x), list(LOG)
    compiled = ccompile.compile(fn)
    for _ in range(5):
        LOG.clear()
        assert compiled(x).allclose(expected)
        assert LOG == order


def test_ranges_of_the_profiler_by_their_ops():
    def fn(x):
        handle = torch.ops.profiler._record_function_enter("by its op", None)
        y = x * 2 + 4
        torch.ops.profiler._record_function_exit(handle)
        return y

    compiled = ccompile.compile(fn)
    for _ in range(5):
        with torch.autograd.profiler.profile(use_kineto=False) as profile:
            compiled(X)
        assert [e.name for e in profile.function_events].count("by its op") == 1
