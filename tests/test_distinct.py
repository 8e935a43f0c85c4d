"""C code that compares or hashes finds an object by identity before it asks __eq__: what was recorded with two objects does not
hold for one, and the other way round."""

import collections
import enum
import math
import operator

import ccompile
import ccompile.api
import numpy as np
import pytest
import torch
from conftest import EAGER


class Plain:
    pass


class ByIdentity:
    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


class ByType:
    def __eq__(self, other):
        return isinstance(other, ByType)

    __hash__ = object.__hash__


class Never:
    """Equal to nothing, not even to itself."""

    def __eq__(self, other):
        return False

    def __hash__(self):
        return 1


class OwnHash:
    def __hash__(self):
        return 3


class DictByIdentity(dict):
    __hash__ = object.__hash__


class ListByIdentity(list):
    __hash__ = object.__hash__


Pair = collections.namedtuple("Pair", "first second")

KINDS = {
    "tensor": lambda: torch.ones(2),
    "object": Plain,
    "module": lambda: torch.nn.Linear(1, 1),
    "function": lambda: lambda: 1,
    "eq by identity": ByIdentity,
    "eq by type": ByType,
    "never equal": Never,
    "own hash": OwnHash,
    "dict": DictByIdentity,
    "list": ListByIdentity,
    "NaN": lambda: float("nan"),
    "numpy's NaN": lambda: np.float64("nan"),
}

HASHED = [
    "len({a, b})", "len(set([a, b]))", "len({v for v in (a, b)})", "len({a} - {b})", "len({a} & {b})", "len({a} | {b})", "len({a} ^ {b})",
    "{a} == {b}", "{a} <= {b}", "{a} < {b}", "{a}.issubset([b])", "{a}.isdisjoint([b])", "len({a}.intersection([b]))",
    "(s := {a}, s.discard(b), len(s))[2]", "(s := {a}, s.update([b]), len(s))[2]", "(s := {a}, s.add(b), len(s))[2]", "a in {b}",
    "len(dict([(a, 1), (b, 2)]))", "len(dict(zip([a, b], 'xy')))", "len(collections.OrderedDict([(a, 1), (b, 2)]))",
    "len(collections.Counter([a, b]))", "len({**{a: 1}, b: 2})", "len({a: 1} | {b: 2})", "(d := {a: 1}, d.update({b: 2}), len(d))[2]",
    "(d := {a: 1}, d.__setitem__(b, 2), len(d))[2]", "{a: 1}.get(b)", "{a: 1}.pop(b, 3)", "{a: 1}.setdefault(b, 3)", "{a: 1} == {b: 1}",
    "len({a: 1}.keys() - {b})", "{a: 1}.keys() == {b: 1}.keys()", "{a: 1}.keys() >= {b}", "b in {a: 1}.keys()", "(b, 1) in {a: 1}.items()",
    "len({a: 1}.items() & {b: 1}.items())", "(a, 1) in {(b, 1)}", "{(a, 1): 1}.get((b, 1))", "{frozenset([a]): 1}.get(frozenset([b]))",
    "frozenset((a, 1)) == frozenset((b, 1))", "len({Pair(a, 1), Pair(b, 1)})", "len(set(zip([a], [1])) | set(zip([b], [1])))",
    "len(set.intersection(*map(set, ([a], [b]))))", "len(set().union([a], [b]))", "len(dict.fromkeys([a, b]))",
    "collections.OrderedDict({a: 1}) == collections.OrderedDict({b: 1})",
]  # fmt: skip
COMPARED = [
    "a in [b]", "a in (b,)", "[a].index(b)", "(a,).index(b)", "[a].count(b)", "[a] == [b]", "(1, a) == (1, b)", "[a] != [b]", "a in collections.deque([b])",
    "(l := [a], l.remove(b), len(l))[2]", "operator.contains([a], b)", "operator.eq([a], [b])", "operator.eq((a,), (b,))", "{'k': a} == {'k': b}",
    "('k', a) in {'k': b}.items()", "a in {'k': b}.values()", "(a, b) in [(b, b)]", "[(a, 1)].count((b, 1))",
    "collections.deque([a]) == collections.deque([b])", "operator.indexOf([b], a)", "operator.countOf([b], a)", "collections.deque([b]).index(a)",
    "[[[[[a]]]]] == [[[[[b]]]]]", "types.MappingProxyType({'k': a}) == types.MappingProxyType({'k': b})",
    "operator.eq([[[[[a]]]]], [[[[[b]]]]])", "(a, [b]) == (b, [a])",
    "collections.deque([b]).count(a)", "types.SimpleNamespace(a=a) == types.SimpleNamespace(a=b)",
]  # fmt: skip


def outcome(fn, *args):
    try:
        return fn(torch.ones(2), *args)[1]
    except Exception as e:
        return type(e)


@pytest.mark.parametrize("broken", ["", "print(end='')"], ids=["", "behind a break"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_object_or_two(kind, broken):
    make = KINDS[kind]
    wrong = []
    for text in HASHED + COMPARED:
        for first in (False, True):  # what is recorded: one object or two
            scope = {"collections": collections, "operator": operator, "Pair": Pair, "types": __import__("types")}
            exec(f"def fn(x, a, b):\n    y = x * 2\n    {broken or 'pass'}\n    return y, {text}\n", scope)
            fn, compiled = scope["fn"], ccompile.compile(scope["fn"])
            a, b = make(), make()
            for i in range(6):
                other = a if (i < 3) == first else b
                if outcome(compiled, a, other) != outcome(fn, a, other):
                    wrong.append((text, first, i))
                    break
    assert not wrong


def test_many_members():
    """A list's members are not compared with one another: an item that is looked for is."""
    modules = [torch.nn.Linear(1, 1) for _ in range(60)]

    def fn(x, m):
        return x * 2, modules.index(m)

    compiled = ccompile.compile(fn)
    for i in (3, 3, 3, 59, 3):
        assert compiled(torch.ones(2), modules[i])[1] == i
    entry = ccompile.api.compiled_of(compiled).report()["entries"][0]
    assert EAGER or len(entry["segments"][0]["guards"]) < 400


def test_ints_written_to_a_deque_while_recording():
    """`is` tells CPython's cached int from a copy that stood for a number that varies."""
    for made in (collections.deque([1]), collections.OrderedDict(a=1)):
        state, held = Plain(), made
        state.n = 1

        def fn(x, state=state, held=held):
            v = state.n + 1
            if isinstance(held, dict):
                held["a"] = v
            else:
                held.append(v)
            return x * 2, v

        compiled = ccompile.compile(fn)
        for i in range(6):
            state.n = i
            _, v = compiled(torch.ones(2))
            assert (held["a"] if isinstance(held, dict) else held[-1]) is v and v == i + 1


def test_methods_are_those_of_one_object():
    class Held:
        def m(self):
            return 1

    def fn(x, a, b):
        return x * 2, a.m == b.m, len({a.m, b.m}), [a.m].count(b.m)

    compiled = ccompile.compile(fn)
    a, b = Held(), Held()
    for other in (b, b, b, a, b, a):
        assert compiled(torch.ones(2), a, other)[1:] == fn(torch.ones(2), a, other)[1:]


def test_lists_of_objects_are_compared_by_place():
    """No graph break, and a guard a place."""
    first, second = [Plain() for _ in range(200)], [Plain() for _ in range(200)]

    def fn(x, a, b):
        return x * 2, a == b

    compiled = ccompile.compile(fn)
    for a, b in ((first, second), (first, second), (first, [*first]), (first, [*first[:-1], second[-1]]), (first, second)):
        assert compiled(torch.ones(2), a, b)[1] == fn(torch.ones(2), a, b)[1]
    report = ccompile.api.compiled_of(compiled).report()
    assert EAGER or not report["breaks_seen"]
    assert EAGER or len(report["entries"][0]["segments"][0]["guards"]) < 1500


NAN_READS = {
    "a node's argument": lambda x, k: torch.full_like(x, k),
    "isnan": lambda x, k: (x * 2, math.isnan(k)),
    "compared": lambda x, k: (x * 2, k != k, k < 1.0, abs(k) > 1),
    "max": lambda x, k: (x * 2, max(1.0, k)),
    "behind a break": lambda x, k: (x * 2, math.isnan((x * k).sum().item())),
    "returned": lambda x, k: (x * 2, k),
}


@pytest.mark.parametrize("name", NAN_READS)
def test_a_new_nan_in_each_call(name):
    """Nothing here finds it by identity, so no guard asks for the object: one recording serves all."""
    compiled = ccompile.compile(NAN_READS[name])
    for _ in range(8):
        k = float("nan")
        result = compiled(torch.ones(3), k)
        assert name != "returned" or result[1] is k
    assert EAGER or ccompile.api.compiled_of(compiled).report()["recordings"] == 1


# ---- members of enums whose metaclass is the user's ------------------------------------------------------------------
class Listed(enum.EnumMeta):
    def __contains__(cls, value):
        return any(value in (member, member.value) for member in cls)


class Making(enum.EnumMeta):
    def __call__(cls, value):
        made = object.__new__(cls)
        made._name_, made._value_ = "made", value
        return made


class Kind(enum.Enum, metaclass=Listed):
    IMAGE, MASK = 0, 1


class Made(enum.Enum, metaclass=Making):
    FIRST = 0


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_enums_with_a_metaclass_are_keys():
    """kornia's DataKey: a member is known by its identity, as are those of other enums."""
    weights = {Kind.MASK: 3.0}

    def f(x, kind):
        return x * len(weights.get(kind, {} if kind is Kind.IMAGE else ())) if kind not in weights else x * weights[kind]

    g = ccompile.compile(f)
    for i in range(6):
        kind = Kind.MASK if i % 2 else Kind.IMAGE
        assert torch.equal(g(torch.ones(2), kind), f(torch.ones(2), kind))
    report = ccompile.api.compiled_of(g).report()
    assert report["breaks_seen"] == [] and report["recordings"] == 2

    g = ccompile.compile(lambda x: (x + 1, Made(3)))
    given = [g(torch.ones(1))[1] for _ in range(4)]
    assert len({id(made) for made in given}) == 4, "a metaclass that makes a new member in each call"
