"""Graph breaks: every pattern of seeds 000 and 002, and all places where a break can sit in Python's control flow.

Each pattern runs eagerly and compiled on several inputs, which cover both sides of its branches. Its break count may not
exceed torch._dynamo.explain's.
"""

import collections
import csv
import io
import itertools
import operator
import re
import reprlib
import sys

import break_patterns
import ccompile
import numpy as np
import pytest
import torch
from break_patterns import (
    DOWN,
    PATTERNS,
    UP,
    GoodWhere,
    LogInsideForward,
    assert_fails,
    conditional_v1,
    dynamic_range,
    explicit_break,
    external_calls,
    item_in_nested,
    t,
    to_list,
)
from ccompile.api import compiled_of
from conftest import EAGER, alike, counters, dynamo_breaks, explained, hits, no_worse, outcome, replaying, same
from torch import nn
from torch._higher_order_ops.while_loop import while_loop


def build(p):
    return p.fn() if isinstance(p.fn, type) else p.fn


@pytest.mark.parametrize("name", PATTERNS)
def test_equal(name):
    """Several calls with different data give what eager gives; the same inputs over again replay."""
    p = PATTERNS[name]
    n = len(p.inputs)
    same(build(p), make_args=lambda i: p.inputs[i % n], calls=2 * n, hit=p.hit)


@pytest.mark.parametrize("name", PATTERNS)
def test_counts(name):
    p = PATTERNS[name]
    if p.dynamo:
        no_worse(build(p), *p.inputs[0], expect=p.expect, graphs=p.graphs, most=p.most, bare=p.bare)
    elif not EAGER:
        report = explained(build(p), *p.inputs[0])
        assert report.graph_count == p.graphs
        assert report.break_count == p.expect or p.expect is None and report.break_count >= 1


def test_patterns_can_fail():
    """The inputs of a pattern tell its outcomes apart: a result baked in by the first call would be seen."""
    for name, p in PATTERNS.items():
        fn = build(p)
        torch.manual_seed(7)
        seen = [outcome(fn, args) for args in p.inputs]
        with pytest.raises(AssertionError):
            for later in seen[1:]:
                alike((seen[0].value, seen[0].printed), (later.value, later.printed), path=name)


# ---- reports ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name, words, source",
    [
        ("log-inside-forward", ("item",), "m = y.mean().item()"),
        ("print-shape", ("print",), 'print(f"Shape: {x.shape}")'),
        ("if-mean", ("bool", "branch", "truth"), "if x.mean() > threshold:"),
        ("to-int", ("int", "item"), "n = int(x[0, 0])"),
        ("tolist", ("tolist",), "a, b, c = (x * 2).tolist()"),
    ],
)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_reasons_name_cause_and_place(name, words, source):
    p = PATTERNS["reshape-by-item" if name == "to-int" else name]
    report = explained(build(p), *p.inputs[0])
    (reason,) = report.break_reasons
    assert reason.file == break_patterns.__file__ and reason.advice
    with open(reason.file) as file:
        assert source in file.read().splitlines()[reason.line - 1]
    assert any(word in (reason.text + reason.reason).lower() for word in words)
    assert str(reason.line) in str(report)


ARRAY = np.ones(4)
SAID = {
    "makes a tensor subclass": lambda x: x.as_subclass(nn.Parameter),
    "shares a numpy array's memory": lambda x: torch.from_numpy(ARRAY) + x,
    "hands out a memory address": lambda x: x.data_ptr(),
    "reads a tensor's version": lambda x: x._version,
    "hands out a tensor's storage": lambda x: x.untyped_storage().nbytes(),
    "reads a tensor's data": lambda x: x.sum().item(),
    "graph_break() was called": lambda x: torch._dynamo.graph_break(),
}


@pytest.mark.skipif(EAGER, reason="nothing is compiled")
@pytest.mark.parametrize("words", SAID)
def test_reasons_say_what_is_done(words):
    torch._dynamo.config  # imported lazily, which is a break of its own
    found = ccompile.explain(SAID[words])(torch.ones(4))
    assert words in found.break_reasons[0].text, found
    assert "changes torch's state" not in found.break_reasons[0].text


# ---- calls that are one break ----------------------------------------------------------------------------------------
def pulls_back(x):
    y, pull = torch.func.vjp(lambda v: (v.sin() * 2).sum(), x)
    return pull(torch.ones_like(y))[0] + y


def in_a_list(x):
    fs = [torch.func.vjp(lambda v: v * k, x)[1] for k in (1.0, 2.0)]
    return fs[0](x)[0] + fs[1](x)[0]


def conditions(x):
    def small(v):
        return torch.cond(v.max() > 3, lambda u: u * factor, lambda u: u - 1, (v,))

    factor = x * 0 + 2
    return torch.cond(x.sum() > 4, lambda v: v.sin() + factor, small, (x + 0,)) * 2


def turns(x):
    y = while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v * 1.5), (torch.tensor(0), x + 0))[1]
    return y + 1


@pytest.mark.skipif(EAGER, reason="nothing is compiled")
@pytest.mark.parametrize("fn", (pulls_back, in_a_list, conditions, turns), ids=lambda f: f.__name__)
def test_calls_of_transforms_are_recorded_for_a_while_only(fn):
    """Each call makes other functions; both ways of each predicate come in turn."""
    inputs = [torch.full((4,), v) for v in (0.5, 2.0, -3.0, 3.5)]
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for _ in range(3):
            for x in inputs:
                assert torch.equal(compiled(x), fn(x))
        before = counters()["recording"]
        for x in inputs:
            assert torch.equal(compiled(x), fn(x))
        assert counters()["recording"] == before


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_explain_counts_ops():
    report = explained(lambda x: torch.relu(x + 1) * 2, t(3))
    assert (report.graph_count, report.break_count, report.op_count) == (1, 0, 3)
    assert list(report.break_reasons) == []


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_comparison_before_a_branch_is_recorded():
    """Only the branch is the break, also where one instruction compares and asks for the truth."""

    def branches(x):
        y = -x if x.sum() < 3 else x
        if 0 < x.mean():
            y = y * 2
        return y

    report = explained(branches, torch.ones(2))
    names = [op.name for graph in report.graphs for op in graph.ops]
    assert report.break_count == 2
    assert names.count("__lt__") == 2, names


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_arrays_end_at_a_tensor():
    """What is done with arrays is one break; indexing a tensor behind it is recorded, also where it is loaded with its index."""

    def indexed(x):
        a = (x * 2).numpy()
        n, m = a.shape
        k = int(a.argmax()) % n
        return x[k] * m

    report = explained(indexed, torch.ones(2, 3))
    assert [[op.name for op in graph.ops] for graph in report.graphs] == [["mul"], ["getitem", "mul"]]


# ---- exceptions around breaks ------------------------------------------------------------------------------------------
def index_error_caught(x):
    y = x * 2
    try:
        v = y.tolist()[5]
    except IndexError as error:
        return y + 1, str(error)
    return y * v, ""


def index_error(x):
    y = x * 2
    return y * y.tolist()[5]


def zero_division_caught(x):
    try:
        v = 1 / (x > 100).sum().item()
    except ZeroDivisionError:
        v = -1.0
    finally:
        x = x + 10
    return x * v


def zero_division(x):
    n = (x > 100).sum().item()
    y = x + n
    return y / (1 // n)


def item_of_many(x):
    y = x + 1
    z = y.item()
    return y * z


def bool_of_many(x):
    if x + 1 > 0:
        return x
    return x * 2


def raise_from_break(x):
    try:
        return x + int("seven")
    except ValueError as error:
        raise RuntimeError(f"wrapped {x.sum().item():.1f}") from error


def raise_on_branch(x):
    if (x > 0.25).any():
        raise ValueError("above")
    return x - 1


def deep_raise(x):
    def inner(v):
        s = v.sum().item()
        return [0][int(abs(s)) + 1]

    def middle(v):
        return inner(v * 2) + 1

    return x + middle(x)


def print_then_raise(x):
    y = x * 2
    print("before", len(x))
    y = y + 1
    raise KeyError("after")


class Closing:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, *_):
        self.log.append(kind and kind.__name__)
        return kind is IndexError


def swallowed_by_with(x):
    log = []
    with Closing(log):
        y = x * 2
        y = y * y.tolist()[9]
    return x + 1, log


def finally_runs(x):
    log = []
    try:
        with Closing(log):
            x = x * 2
            x = x / (x.sum().item() * 0)
    except ZeroDivisionError:
        log.append("caught")
    finally:
        log.append("finally")
    return x, log


RAISING = [
    index_error_caught,
    index_error,
    zero_division_caught,
    zero_division,
    item_of_many,
    bool_of_many,
    raise_from_break,
    raise_on_branch,
    deep_raise,
    assert_fails,
    print_then_raise,
    swallowed_by_with,
    finally_runs,
]


@pytest.mark.parametrize("fn", RAISING, ids=lambda f: f.__name__)
def test_exceptions(fn):
    """Type, text, chain, prints and the traceback's lines in user code are eager's, in the first call and in replays."""
    past = same(fn, t(4), calls=4, trace=True, hit=False, raises=True)
    assert past[0].error is None or past[0].lines


def test_exception_only_sometimes():
    """A branch that raises and one that returns, in turn, under one compiled function."""
    inputs = [DOWN, UP, DOWN, UP, DOWN]
    past = same(raise_on_branch, make_args=lambda i: inputs[i], calls=5, trace=True, raises=True)
    assert [o.error for o in past] == [None, ValueError, None, ValueError, None]


def test_branches_stay_compiled():
    """Once each side of a branch has been taken, alternating between them replays."""
    fn = ccompile.compile(conditional_v1)
    with torch.no_grad():
        for x in (UP, DOWN, UP, DOWN):
            fn(x, 0.0)
        with replaying(4):
            for x in (UP, DOWN, DOWN, UP):
                alike(conditional_v1(x, 0.0), fn(x, 0.0))


# ---- disable -------------------------------------------------------------------------------------------------------
@ccompile.disable
def not_compiled(x):
    return [v * 2 for v in x.tolist()]


@ccompile.disable()
def not_compiled_called(x):
    return float(x.sum()) * 2


class DisabledMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @ccompile.disable
    def dynamic(self, x):
        return x * (2 if x.sum() > 0 else 3)

    def forward(self, x):
        return self.dynamic(self.fc(x)) + 1


def disabled_call(x):
    y = x + 1
    return y * torch.tensor(not_compiled(y))


def disabled_called(x):
    y = x + 1
    return y * not_compiled_called(y)


def disabled_block(x):
    y = x * 2
    with ccompile.disable():
        z = y * (2 if y.sum() > 0 else 3)
    return z + 1


DISABLED = {
    "decorator": (disabled_call, 1),
    "called-decorator": (disabled_called, 1),
    "method": (DisabledMethod, 1),
    "context-manager": (disabled_block, 2),
}


@pytest.mark.parametrize("name", DISABLED)
def test_disable(name):
    fn, most = DISABLED[name]
    fn = fn() if isinstance(fn, type) else fn
    same(fn, make_args=lambda i: t(3, seed=i) if i % 2 else -t(3, seed=i), calls=6)
    report = explained(fn, t(3))
    assert EAGER or 1 <= report.break_count <= most


def test_compile_disabled_is_eager():
    before = counters()
    fn = ccompile.compile(conditional_v1, disable=True)
    alike(conditional_v1(UP, 0.0), fn(UP, 0.0))
    assert EAGER or counters()["recording"] == before["recording"]


# ---- fullgraph -------------------------------------------------------------------------------------------------------
LOG = []


def effect_then_print(x):
    LOG.append("before")
    y = x * 2
    print("never shown")
    LOG.append("after")
    return y


def effect_in_breaking_call(x):
    y = x * 2
    unknown(LOG)
    return y


@ccompile.disable
def unknown(log):
    log.append("performed")


UNSUPPORTED = {
    "item": (LogInsideForward, (t(8, 16),), "item", "m = y.mean().item()"),
    "print": (effect_then_print, (t(3),), "print", 'print("never shown")'),
    "branch": (conditional_v1, (UP, 0.0), "bool|branch|truth", "if x.mean() > threshold:"),
    "range": (dynamic_range, (torch.ones(3),), "int|item", "range(int(x.sum()))"),
    "tolist": (to_list, (t(3),), "tolist", ".tolist()"),
    "numpy": (external_calls, (t(3, 4),), "numpy", ".numpy()"),
    "disabled": (effect_in_breaking_call, (t(3),), "", "unknown(LOG)"),
    "nested": (item_in_nested, (t(3),), "item", "n = y.abs().sum().item()"),
    "graph-break": (explicit_break, (t(3),), "break", "ccompile.graph_break()"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_fullgraph_raises_before_the_break(name, capsys):
    """Unsupported names reason and line; the breaking instruction itself has not run, and no effect is done twice."""
    fn, args, word, source = UNSUPPORTED[name]
    LOG.clear()
    compiled = ccompile.compile(fn() if isinstance(fn, type) else fn, fullgraph=True)
    with torch.no_grad(), pytest.raises(ccompile.Unsupported) as info:
        compiled(*args)
    text = str(info.value)
    assert any(part in text.lower() for part in word.split("|"))
    lines = []
    for name_of_file in (__file__, break_patterns.__file__):
        with open(name_of_file) as file:
            lines += [i for i, line in enumerate(file, 1) if source in line]
    assert any(str(line) in text for line in lines), f"none of the lines {lines} in {text!r}"
    assert "never shown" not in capsys.readouterr().out
    assert LOG in ([], ["before"])


RAISING = {
    "view": lambda x: x.view(7),
    "matmul": lambda x: x @ x.new_ones(9, 1),
    "operator": lambda x: x + "a",
    "index": lambda x: x[x.shape[0]],
    "cat": lambda x: torch.cat([x, 1]),
    "callee": lambda x: torch.nn.functional.linear(x, x.new_ones(4, 9)),
    "key": lambda x: {}[x.shape[0]],
}


@pytest.mark.parametrize("name", RAISING)
def test_fullgraph_and_errors_of_ops(name):
    """What an op raises is no break: it reaches the caller as in eager, each time, and good calls go on."""
    fn, good = RAISING[name], lambda x: x * 2
    both = lambda x, which: (fn if which else good)(x)
    same(both, make_args=lambda i: (t(4), i % 3 == 1), calls=7, hit=False, raises=True, options={"fullgraph": True})


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_fullgraph_and_errors_that_are_caught():
    """Behind the handler nothing is recorded, so the call is no full graph."""

    def caught(x):
        try:
            return x.view(7)
        except RuntimeError:
            return x

    with pytest.raises(ccompile.Unsupported, match="raises"):
        ccompile.compile(caught, fullgraph=True)(t(4))


@pytest.mark.parametrize("name", [n for n, p in PATTERNS.items() if p.expect == 0])
def test_fullgraph_takes_what_has_no_break(name):
    p = PATTERNS[name]
    n = len(p.inputs)
    same(build(p), make_args=lambda i: p.inputs[i % n], calls=2 * n, options={"fullgraph": True})


def test_fullgraph_on_a_later_branch():
    """An entry without a break is reached first; the input that leads to the break still raises."""

    def fn(x, loud):
        if loud:
            print("never shown")
        return x * 2

    compiled = ccompile.compile(fn, fullgraph=True)
    with torch.no_grad():
        alike(fn(UP, False), compiled(UP, False))
        if not EAGER:
            with pytest.raises(ccompile.Unsupported):
                compiled(UP, True)
        alike(fn(DOWN, False), hits(lambda: compiled(DOWN, False), 2))


def test_dynamo_oracle_works():
    """The oracle itself: seed 002's counts as today's dynamo gives them."""
    assert dynamo_breaks(GoodWhere(), t(4, 16)) == (1, 0)
    assert dynamo_breaks(LogInsideForward(), t(8, 16)).breaks == 1
    assert dynamo_breaks(conditional_v1, UP, 0.0) == (2, 1)

# ---- what runs eagerly for good says so ------------------------------------------------------------------------------
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_a_function_that_always_raises_says_when_it_is_left_to_eager():
    def f(x):
        raise ValueError(x.shape)

    compiled, before = ccompile.compile(f, options={"give_up_limit": 3}), counters()["eager"]
    for _ in range(4):
        with pytest.raises(ValueError):
            compiled(torch.ones(2))
    assert counters()["eager"] > before
    assert [found["reason"] for found in compiled_of(compiled).report()["give_ups"]] == ["raised"]


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_a_break_with_too_many_variants_says_so():
    def f(x, n):
        ccompile.graph_break()
        return x * n

    compiled, before = ccompile.compile(f, options={"loop_limit": 2}, dynamic=False), counters()["eager"]
    with torch.no_grad():
        for n in range(2, 7):
            assert compiled(torch.ones(2), n)[0] == n
    assert counters()["eager"] > before
    assert "limit" in [found["reason"] for found in compiled_of(compiled).report()["give_ups"]]


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_one_call_that_raises_leaves_no_break():
    """Nor does it where it was the first."""

    def f(x):
        y = x * 2
        with torch.no_grad():
            z = y @ torch.ones(3, 2)
        return z.relu() + 1

    good, bad = torch.ones(2, 3), torch.ones(2, 4)
    for first in (bad, good):
        compiled = ccompile.compile(f)
        for x in (first, good, bad, good, torch.ones(5, 3)):
            assert outcome(f, (x,)).text == outcome(compiled, (x,)).text
        assert not [s for e in compiled_of(compiled).report()["entries"] for s in e["segments"] if s["break"]]


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_what_raises_in_each_call_is_recorded_up_to_there():
    def f(x):
        return (x * 2).view(7)

    compiled, x = ccompile.compile(f), torch.ones(2, 3)
    for _ in range(3):
        assert outcome(f, (x,)).text == outcome(compiled, (x,)).text
    with replaying(2):
        for _ in range(2):
            assert outcome(f, (x,)).text == outcome(compiled, (x,)).text


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def scaled(self, by):
        return self.a * by + self.b


# What is made of operator's getters in front of a break is made anew in each call: a getter, and two of another content.
GETTERS = {
    "itemgetter": (operator.itemgetter, [(1, 5), (3, 2)], (0,), (1,), (-1,)),
    "attrgetter": (operator.attrgetter, [Pair(1, 5), Pair(3, 2)], ("a",), ("b",), ("a", "b")),
    "methodcaller": (operator.methodcaller, [Pair(1, 5), Pair(3, 2)], ("scaled", 2), ("scaled", -2), ("scaled", 0)),
}


@pytest.mark.skipif(EAGER, reason="needs the product")
@pytest.mark.parametrize("name", GETTERS)
def test_getters_behind_a_break_are_known_by_what_they_get(name):
    make, items, *contents = GETTERS[name]

    def f(x, content):
        getter = make(*content)
        ccompile.graph_break()
        return x * 2, items.index(max(items, key=getter)), getter(items[0])

    compiled, x = ccompile.compile(f), torch.ones(3)
    for content in [*contents, *contents]:
        alike(f(x, content), compiled(x, content))
    with replaying(6):
        for content in [*contents, *contents]:
            alike(f(x, content), compiled(x, content))


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_counter_of_what_breaks_gave_is_recorded_once():
    def f(x):
        counts = collections.Counter()
        for row in x:
            counts[int(row.argmax().item())] += 1
        return x * counts.most_common(1)[0][1]

    compiled, x = ccompile.compile(f), torch.eye(4)[[0, 1, 0, 2]]
    for _ in range(3):
        alike(f(x), compiled(x))
    with replaying(4):
        for i in range(4):
            alike(f(x + i), compiled(x + i))


def test_an_exception_without_its_traceback_is_rebuilt():
    def f(x):
        try:
            try:
                raise KeyError(1)
            except KeyError as e:
                e.with_traceback(None)
                raise ZeroDivisionError from None
        except ZeroDivisionError as e:
            kept = e
        ccompile.graph_break()
        return x + 1, kept.__context__.__traceback__, repr(kept.__context__)

    compiled, x = ccompile.compile(f), torch.ones(2)
    for _ in range(4):
        alike(f(x), compiled(x))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="TypeError")
def test_truth_of_notimplemented_warns_in_each_call():
    def f(x):
        return x + (1 if not NotImplemented else 2), bool(NotImplemented)

    compiled, x = ccompile.compile(f), torch.ones(2)
    for _ in range(4):
        with pytest.warns(DeprecationWarning) as warned:
            alike((x + 2, True), compiled(x))
        assert len(warned) == 2


class Numbered(enumerate):
    pass


class Paired(zip):
    pass


class Chained(itertools.chain):
    pass


OUTSIDE = {
    "enumerate": lambda: Numbered("abc"),
    "zip": lambda: Paired("abc", "def"),
    "chain": lambda: Chained("ab", "c"),
    "csv": lambda: csv.reader(["a,b", "c,d", "e,f"]),
    "pattern": lambda: re.finditer("[ab]", "aabb"),
    "file": lambda: io.StringIO("a\nb\nc\n"),
}
ADVANCES = {
    "next": lambda it: next(it),
    "default": lambda it: next(it, None),
    "method": lambda it: it.__next__(),
    "for": lambda it: [v for v, _ in zip(it, range(2))],
    "list": lambda it: list(it),
    "zip": lambda it: list(zip(it, "ab")),
    "sorted": lambda it: sorted(map(str, it)),
    "call": lambda it: (lambda *args: args)(*it),
    "unpack": lambda it: [*it],
    "in": lambda it: "b" in it,
    "any": lambda it: any(v is None for v in it),
    "islice": lambda it: list(itertools.islice(it, 2)),
    "yield from": lambda it: list((lambda: (yield from it))()),
}


@pytest.mark.parametrize("advance", ADVANCES)
@pytest.mark.parametrize("kind", OUTSIDE)
def test_iterators_from_outside_advance(kind, advance):
    """Also if a Python class inherits C's __next__."""

    def f(x, it):
        return x + 1, str(ADVANCES[advance](it)), str(next(it, None))

    compiled, x = ccompile.compile(f), torch.ones(2)
    for _ in range(4):
        theirs, ours = OUTSIDE[kind](), OUTSIDE[kind]()
        alike(f(x, theirs), compiled(x, ours))
        assert [str(v) for v in theirs] == [str(v) for v in ours]


@pytest.mark.parametrize("make", [list, dict])
def test_a_container_keeps_its_address(make):
    def f(x):
        c = make()
        address = id(c)
        c.update({1: 2}) if make is dict else c.append(1)
        ccompile.graph_break()
        c.update({3: 2}) if make is dict else c.extend([3])
        ccompile.graph_break()
        return x + 1, id(c) == address, c

    compiled, x = ccompile.compile(f), torch.ones(2)
    for _ in range(4):
        alike(f(x), compiled(x))


class Unprintable:
    def __repr__(self):
        raise ValueError


def test_reprlib_tells_the_address_of_this_call():
    def f(x):
        o = Unprintable()
        return x + 1, reprlib.repr(o), hex(id(o))

    compiled = ccompile.compile(f)
    for _ in range(4):
        _, text, address = compiled(torch.ones(2))
        assert address[2:] in text
