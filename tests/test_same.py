"""Distinguishing equal objects: values that compare equal but that a function tells apart by type, sign, text, order of
iteration or identity. Each case is recorded with one value, then called with another and with the first again."""

import collections
import dataclasses
import io
import math
import operator
import types
import typing

import ccompile
import numpy as np
import pytest
import torch
from conftest import hits

S = types.SimpleNamespace(v=None)
X = torch.ones(2)
NAN, OTHER_NAN = float("nan"), float("nan")
TEXT, OTHER_TEXT = "".join(["sen", "tinel"]), "".join(["sen", "tinel"])
BIG, OTHER_BIG = int("123456789123"), int("123456789123")
IN_LIST, IN_DICT, IN_SET = [NAN, 1.0], {NAN: 1}, {NAN}
DEQUE = collections.deque([NAN])


def taken_out(*members, out):
    s = set(members)
    for o in out:
        s.discard(o)
    return s


VALUES = {
    "complex": (
        lambda v: (math.copysign(1, v.real), math.copysign(1, v.imag)),
        0j,
        complex(-0.0, 0.0),
        complex(0.0, -0.0),
    ),
    "complex_nan": (lambda v: str(v), complex(NAN, 0.0), complex(NAN, -0.0)),
    "range": (
        lambda v: (v.start, v.stop, v.step, repr(v)),
        range(0, 3, 2),
        range(0, 4, 2),
        range(0),
        range(5, 5),
        range(5, 5, 2),
    ),
    "range_of_bool": (lambda v: repr(v.start), range(1, 3), range(True, 3)),
    "float32": (lambda v: (X * v).signbit().tolist(), np.float32(0.0), np.float32(-0.0)),
    "float16": (lambda v: math.copysign(1, float(v)), np.float16(0.0), np.float16(-0.0)),
    "float64": (lambda v: math.copysign(1, v), np.float64(0.0), np.float64(-0.0), 0.0),
    "numpy_types": (lambda v: type(v).__name__, np.int64(1), np.int32(1), np.uint8(1), np.bool_(True), 1, True, 1.0),
    "dict_keys": (lambda v: repr(v), {0: 1}, {False: 1}, {0.0: 1}, {-0.0: 1}),
    "sorted": (lambda v: repr(sorted(v)), {1, 2}, {True, 2}, {1.0, 2}),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    fn, *values = VALUES[name]

    def f(x, v):
        return x + 1, fn(v)

    c = ccompile.compile(f)
    for v in values + values:
        assert repr(c(X, v)) == repr(f(X, v))


SETS = [
    ("order", ({0, 8}, {8, 0}), lambda: [k for k in S.v]),
    ("weights", ({0, 8}, {8, 0}), lambda: sum(v * 10**i for i, v in enumerate(S.v))),
    ("list", ({0, 8, 16}, {16, 8, 0}, {8, 16, 0}), lambda: list(S.v)),
    ("star", ({0, 8}, {8, 0}), lambda: (*S.v,)),
    ("unpack", ({0, 8}, {8, 0}), lambda: (lambda a, b: (a, b))(*S.v)),
    ("repr", ({0, 8}, {8, 0}), lambda: repr(S.v)),
    ("join", ({"a"}, {"b"}, {"a"}), lambda: ",".join(S.v)),
    ("types", ({1}, {True}, {1.0}), lambda: repr(S.v)),
    ("signs", ({0.0}, {-0.0}, {0}), lambda: repr(list(S.v))),
    ("frozen", (frozenset({0, 8}), frozenset([8, 0])), lambda: list(S.v)),
    ("copy", ({0, 8}, {8, 0}), lambda: list(S.v.copy())),
    ("union", ({0, 8}, {8, 0}), lambda: list(S.v | {1})),
    ("of_a_table", ({7, 15}, taken_out(1, 7, 15, out=[1])), lambda: list(S.v.copy())),
    (
        "of_a_larger_table",
        ({3, 35}, taken_out(*range(30), 35, out=[k for k in range(30) if k != 3])),
        lambda: list(S.v | {67}),
    ),
    ("comprehension", ({0, 8}, {8, 0}), lambda: {k: i for i, k in enumerate(S.v)}),
    ("in", ({1, 2}, {2, 1}, {True, 2}, {3}), lambda: (1 in S.v, 3 in S.v)),
    ("len", ({1, 2}, {1}, {2, 3}), lambda: len(S.v)),
    ("set_to_other", ({0, 8}, [0, 8], {8, 0}, (8, 0)), lambda: list(S.v)),
]


@pytest.mark.parametrize("name,values,fn", SETS, ids=[s[0] for s in SETS])
def test_sets(name, values, fn):
    def f(x):
        return x + 1, fn()

    c = ccompile.compile(f)
    for S.v in values + values:
        assert repr(c(X)) == repr(f(X))


POPS = {
    "pop": lambda v: [v.pop()],
    "two": lambda v: [v.pop(), v.pop()],
    "pop_and_add": lambda v: [v.pop(), v.add(24), list(v)],
    "add": lambda v: [v.add(24), list(v)],
    "discard": lambda v: [v.discard(8), list(v)],
    "update": lambda v: [v.update([24, 1]), list(v), 24 in v],
}


@pytest.mark.parametrize("name", POPS)
def test_sets_that_are_written(name):
    def f(x):
        return x + 1, POPS[name](S.v)

    def turn(finger):
        s = {64, 0, 8}
        for _ in range(finger):
            s.add(s.pop())
        return s

    c = ccompile.compile(f)
    for make in (lambda: {0, 8}, lambda: {8, 0}, lambda: {0, 8}, lambda: turn(0), lambda: turn(1), lambda: turn(2)):
        S.v = make()
        got = repr((c(X), list(S.v)))
        S.v = make()
        assert got == repr((f(X), list(S.v)))


def test_members_alone():
    """What is only asked for its members may lie in any order."""
    c = ccompile.compile(lambda x: x + 1 if 8 in S.v else x - 1)
    S.v = {0, 8}
    c(X)
    S.v = {8, 0}
    hits(lambda: c(X))


IDENTITY = {
    "str_is": (TEXT, OTHER_TEXT, lambda v: v is TEXT),
    "str_is_not": (TEXT, OTHER_TEXT, lambda v: v is not TEXT),
    "str_operator": (TEXT, OTHER_TEXT, lambda v: (operator.is_(v, TEXT), operator.is_not(v, TEXT))),
    "str_of_two": (TEXT, OTHER_TEXT, lambda v: v is S.v),
    "int_is": (BIG, OTHER_BIG, lambda v: v is BIG),
    "float_is": (1e300, float("1e300"), lambda v: v is S.v),
    "bytes_is": (b"sentinel", bytes([*b"sentinel"]), lambda v: v is S.v),
    "nan_is": (NAN, OTHER_NAN, lambda v: v is NAN),
    "id": (TEXT, OTHER_TEXT, lambda v: id(v) == id(TEXT)),
    "id_of_two": (BIG, OTHER_BIG, lambda v: id(v) == id(S.v)),
    "key_is": ({TEXT: 1}, {OTHER_TEXT: 1}, lambda v: [k is TEXT for k in v]),
    "member_is": ({TEXT}, {OTHER_TEXT}, lambda v: [k is TEXT for k in v]),
    "item_is": ([BIG], [OTHER_BIG], lambda v: v[0] is BIG),
    "nan_in_list": (NAN, OTHER_NAN, lambda v: v in IN_LIST),
    "nan_in_tuple": (NAN, OTHER_NAN, lambda v: v in (NAN, 1)),
    "nan_in_set": (NAN, OTHER_NAN, lambda v: v in IN_SET),
    "nan_in_deque": (NAN, OTHER_NAN, lambda v: v in DEQUE),
    "nan_index": (NAN, OTHER_NAN, lambda v: IN_LIST.count(v)),
    "nan_get": (NAN, OTHER_NAN, lambda v: IN_DICT.get(v, 5)),
    "nan_in_dict": (NAN, OTHER_NAN, lambda v: v in IN_DICT),
    "nan_in_keys": (NAN, OTHER_NAN, lambda v: v in IN_DICT.keys()),
    "nan_in_values": (NAN, OTHER_NAN, lambda v: NAN in {1: v}.values()),
    "nan_as_key": (NAN, OTHER_NAN, lambda v: len({v: 1, NAN: 2})),
    "nan_as_member": (NAN, OTHER_NAN, lambda v: len({v, NAN})),
    "nan_stored": (NAN, OTHER_NAN, lambda v: len(dict([(v, 1), (NAN, 2)]))),
    "nan_lists": (NAN, OTHER_NAN, lambda v: [v] == [NAN]),
    "nan_nested": (NAN, OTHER_NAN, lambda v: ((1, v),) == ((1, NAN),)),
    "nan_of_two_lists": ([NAN], [OTHER_NAN], lambda v: v == [NAN]),
    "nan_hash": (NAN, OTHER_NAN, lambda v: hash(v) == hash(NAN)),
    "nan_complex": (complex(NAN, 1), complex(NAN, 1), lambda v: v in [S.v]),
}


@pytest.mark.parametrize("name", IDENTITY)
def test_identity(name):
    a, b, fn = IDENTITY[name]

    def f(x, v):
        return x + 1, fn(v)

    c = ccompile.compile(f)
    for v in (a, b, a, b):
        S.v = a
        assert repr(c(X, v)) == repr(f(X, v))
    c = ccompile.compile(f)
    for v, S.v in ((b, a), (a, a), (b, b), (a, b)):
        assert repr(c(X, v)) == repr(f(X, v))


def test_identity_costs_no_hits():
    """Words that are compared with == alone, and numbers that nobody looks for, may be any objects of that value."""
    c = ccompile.compile(lambda x, mode, p: x + p if mode == TEXT else x)
    c(X, TEXT, 1e300)
    hits(lambda: c(X, OTHER_TEXT, float("1e300")))


def test_a_break_gives_a_sentinel_or_a_number():
    @ccompile.disable
    def give():
        return S.v

    def f(x):
        x = x + 1
        v = give()
        return x * 2, v is NAN, v in IN_LIST

    c = ccompile.compile(f)
    for S.v in (NAN, OTHER_NAN, 1.0, NAN, float("nan"), NAN):
        assert repr(c(X)) == repr(f(X))


def test_a_set_that_is_written_and_left_as_it_was():
    """Its table differs each time, and nobody asks for the order."""

    def f(x, key):
        if key in S.v:
            return x
        S.v.add(key)
        n = len(S.v)
        S.v.discard(key)
        return x + n

    S.v = {1, 2}
    c = ccompile.compile(f)
    c(X, 5)
    for _ in range(4):
        hits(lambda: c(X, 5))
    assert S.v == {1, 2}


def two_added(v):
    s = set()
    s.add(v[0])
    s.add(v[1])
    return len(s)


def updated(d, v):
    d.update(v)
    return d


HASHED = {
    "dict": dict,
    "dict_and_keyword": lambda v: dict(v, z=1),
    "update": lambda v: updated({}, v),
    "ordered": collections.OrderedDict,
    "ordered_update": lambda v: updated(collections.OrderedDict(), v),
    "defaultdict": lambda v: collections.defaultdict(list, v),
    "comprehension": lambda v: {a: b for a, b in v},
    "set": lambda v: len(set(v)),
    "frozenset": lambda v: len(frozenset(v)),
    "set_update": lambda v: len(updated(set(), v)),
    "star": lambda v: len({*v}),
    "display": lambda v: len({v[0], v[1]}),
    "keys": lambda v: len({v[0]: 1, v[1]: 2}),
    "set_comprehension": lambda v: len({k for k in v}),
    "key_comprehension": lambda v: len({k: 1 for k in v}),
    "fromkeys": lambda v: len(dict.fromkeys(v)),
    "add": two_added,
    "counter": lambda v: collections.Counter(v),
    "difference": lambda v: len({(1, 2)} - set(v)),
    "sum": lambda v: sum(v, ()),
}


@pytest.mark.parametrize("name", HASHED)
def test_tuples_that_are_hashed(name):
    """Where they are met by others, all that they hold counts."""

    def f(v):
        return HASHED[name](v)

    c = ccompile.compile(f)
    for make in (
        lambda: [(1, 2), (1, 2)],
        lambda: [(1, 2), (3, 4)],
        lambda: [(5, 6), (7, 8)],
        lambda: [((1, 2), 3), ((1, 3), 3)],
        lambda: [((1, 2), 3), ((1, 2), 3)],
        lambda: [(1, 2), (1, 2)],
    ):
        assert repr(c(make())) == repr(f(make()))


def own(v):
    return v is int(str(v))


def test_small_ints_that_leave_a_recording():
    """A number that differs from call to call is an object of its own while code is recorded; the world gets CPython's."""
    told = []
    kept = types.SimpleNamespace(n=0)
    box = [None]

    @ccompile.disable
    def tell(v):
        told.append(own(v))

    def f(x, n):
        made = [n, n + 1]
        table = {1: n}
        kept.n = n + 2
        box[0] = n - 1
        tell(n)
        return made, table, (n, n * 2), n

    c = ccompile.compile(f)
    for n in (3, 4, 5, -2, 6, 7):
        made, table, pair, same = c(X, n)
        assert all(map(own, [*made, *table.values(), *pair, same, kept.n, box[0], n]))
        assert told.pop()


# ---- wrappers that a function makes --------------------------------------------------------------------------------------------
@ccompile.disable
def told(x):
    return None


def wraps_static(x, k):
    def scale(v):
        return v * k

    wrapper = staticmethod(scale)
    told(x)
    return wrapper(x), wrapper.__func__ is scale, wrapper.__wrapped__ is scale


def wraps_class(x, k):
    log = []
    wrapper = classmethod(lambda cls, v: (log.append(k), v * k)[1])
    told(x)
    return wrapper.__get__(None, int)(x), log


def wraps_noted(x, k):
    wrapper = staticmethod(lambda v: v * k)
    wrapper.note = [k]
    told(x)
    wrapper.note.append(1)
    return wrapper(x), wrapper.note


def wraps_property(x, k):
    held = [k]
    get = property(lambda self: held[0], lambda self, v: held.append(v))
    both = get.deleter(lambda self: held.clear())
    told(x)
    get.__set__(x, k + 1)
    return get.__get__(x, None), held, both.fget is get.fget, x + k


def wraps_nothing_read(x, k):
    wrapper = staticmethod([k])
    x = x + 1
    wrapper.__func__.append(x.shape[0])
    return wrapper.__func__, x


@pytest.mark.parametrize("f", [wraps_static, wraps_class, wraps_noted, wraps_property, wraps_nothing_read])
def test_wrappers(f):
    """A property, staticmethod or classmethod of one call is none of the next one's."""
    compiled = ccompile.compile(f)
    for k in (1, 1, 2, 3, 1):
        assert repr(compiled(X, k)) == repr(f(X, k))


def test_wrappers_are_made_anew():
    compiled = ccompile.compile(lambda x: (staticmethod(told), property(told), x + 1))
    made = [compiled(X) for _ in range(4)]
    assert len({id(m[0]) for m in made}) == len({id(m[1]) for m in made}) == 4


# ---- where an object lies that the function makes -------------------------------------------------------------------------------
class Plain:
    pass


TOLD_BY = {
    "id": id,
    "hash": hash,
    "hash of a tuple": lambda o: hash((o, 1)),
    "repr": repr,
    "str": str,
    "format": lambda o: f"{o}",
    "format_map": lambda o: "{o!r}".format_map({"o": o}),
    "percent": lambda o: "%r" % (o,),
    "text of a list": lambda o: str([o]),
    "map": lambda o: list(map(repr, [o])),
    "generator": lambda o: ", ".join(repr(v) for v in (o, o)),
}


@pytest.mark.parametrize("made", [object, Plain, lambda: lambda: 1], ids=["object", "instance", "function"])
@pytest.mark.parametrize("by", TOLD_BY)
def test_addresses(by, made):
    """What a function is told before a break holds behind it, and for its caller."""

    def f(x):
        o = made()
        before = TOLD_BY[by](o)
        told(x)
        return before == TOLD_BY[by](o), before, o

    compiled = ccompile.compile(f)
    for _ in range(4):
        same, before, o = compiled(X)
        assert same and before == TOLD_BY[by](o)


def test_reversed_list_that_became_shorter():
    def f(x):
        items = list(range(5))
        back = reversed(items)
        next(back)
        told(x)
        items[1:] = []
        told(x)
        left = operator.length_hint(back), list(back)
        items.extend(range(9))
        return left, operator.length_hint(back)

    compiled = ccompile.compile(f)
    assert [compiled(X) for _ in range(4)] == [f(X)] * 4


def sparse():
    return torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.ones(2), (2,))


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)])
@pytest.mark.parametrize("first, second", [(sparse, lambda: torch.ones(2)), (lambda: torch.ones(2), sparse)])
def test_tensors_that_no_guard_describes(first, second, order):
    """Their identity is guarded although nothing else of them is."""

    def f(p, new):
        before = p.grad
        told(p)
        if new is not None:
            p.grad = new
        told(p)
        return before is p.grad, p.grad is not before

    compiled = ccompile.compile(f)
    for replaced in order:
        for _ in range(2):
            p = torch.ones(2, requires_grad=True)
            p.grad = first()
            assert compiled(p, second() if replaced else None) == (not replaced, bool(replaced))


# ---- annotations that hold an object of the call -----------------------------------------------------------------------


@ccompile.disable
def brk():
    pass


def listed(o):
    a = list[o]
    brk()
    return a.__args__[0] is o


def in_a_union(o):
    a = int | list[o]
    brk()
    return a.__args__[1].__args__[0] is o


def parameters():
    t = typing.TypeVar("T")
    a = list[t]
    brk()
    return a.__parameters__ == (t,), a == list[t]


def parameters_of_a_union():
    t = typing.TypeVar("T")
    brk()
    return list[int | list[t]].__parameters__ == (t,)


def parameters_of_a_dataclass():
    t = typing.TypeVar("T")

    @dataclasses.dataclass
    class Pair(typing.Generic[t]):
        x: t

    brk()
    return Pair.__parameters__ == (t,), Pair[int](3).x, dataclasses.fields(Pair)[0].type is t


class Plain:
    pass


MAKES = {
    "plain": Plain,
    "file": io.StringIO,
    "object": object,
    "list": lambda: [1],
    "type_var": lambda: typing.TypeVar("T"),
    "class": lambda: int,
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("fn", [listed, in_a_union])
def test_annotations_of_an_argument(fn, make):
    call = ccompile.compile(fn)
    for _ in range(4):
        o = make()
        assert call(o) == fn(o) is True


@pytest.mark.parametrize("fn", [parameters, parameters_of_a_union, parameters_of_a_dataclass])
def test_annotations_of_a_variable(fn):
    call = ccompile.compile(fn)
    for _ in range(4):
        assert call() == fn()


def test_an_annotation_of_types_costs_no_hits():
    def fn(x):
        a = dict[str, int | None]
        return x + len(a.__args__)

    call, x = ccompile.compile(fn), torch.ones(2)
    for _ in range(2):
        call(x)
    assert hits(lambda: call(x)).tolist() == [3, 3]


# ---- tuples: code gets another one, with symbols, in place of one whose numbers vary ----------------------------------
class Owner:
    def __init__(self, t):
        self.t = t


TUPLES = {
    "is": lambda x, t, u: (x + t[0], t is u),
    "both read": lambda x, t, u: (x + t[0] + u[1], t is u, t is not u),
    "behind a break": lambda x, t, u: (print(end=""), x + t[0], t is u),
    "id": lambda x, t, u: (x + t[0], id(t) == id(u)),
    "in a list": lambda x, t, u: (x + t[0], any(v is t for v in [(0, 1), u])),
    "attribute": lambda x, t, u: (x + t[0], Owner(t).t is u),
    "of its numbers": lambda x, t, u: (x + t[0], t is (t[0], t[1]), u is (u[0], u[1])),
    "size": lambda x, t, u: (x + t[0], x.shape is t),
    "key": lambda x, t, u: (x + t[0], [k is u for k in {t: 1}], next(iter({u: 2})) is t),
}


@pytest.mark.parametrize("name", TUPLES)
def test_tuples_whose_numbers_vary(name):
    fn = TUPLES[name]
    compiled = ccompile.compile(fn)
    for i in range(9):
        t = (i, 2)
        u = t if i % 2 else (7, 8 + i)
        got, want = compiled(X, t, u), fn(X, t, u)
        assert torch.equal(got[1 if name == "behind a break" else 0], want[1 if name == "behind a break" else 0])
        assert got[-1] == want[-1]


@pytest.mark.parametrize("breaks", [False, True], ids=["", "break"])
def test_a_tuple_whose_numbers_vary_is_handed_on(breaks):
    held = []

    def fn(x, t):
        held.append(t)
        if breaks:
            print(end="")
        return x * t[0], t, [t], {"t": t}

    compiled = ccompile.compile(fn)
    for i in range(9):
        t = (i, 2.5)
        result = compiled(X, t)
        assert torch.equal(result[0], X * i)
        assert result[1] is t and result[2][0] is t and result[3]["t"] is t and held[-1] is t


def test_members_that_are_tuples():
    def fn(x, s, t):
        for a, b in s:
            x = x * a + b
        return x, [m is t for m in s], {k: 1 for k in s}

    compiled = ccompile.compile(fn)
    for i in range(12):
        t = tuple([1, i % 2])
        s = {t, (3, (4, 5)[i % 2])} if i % 3 else {tuple([1, i % 2]), (3, 4), (True, 1.0)}
        got, want = compiled(X, s, t), fn(X, s, t)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
        assert [type(k[0]) for k in got[2]] == [type(k[0]) for k in want[2]]


@pytest.mark.parametrize("n", [2, 100], ids=["few", "many"])
def test_keys_that_are_tuples_found_by_identity(n):
    """Up to 64 keys are guarded by their places, more by their values."""

    def fn(x, d, t):
        return x + len(d), [k is t for k in d], id(t) == id(next(iter(d)))

    compiled = ccompile.compile(fn)
    for i in range(9):
        t = tuple([1, 2])
        d = {t if i % 2 else tuple([1, 2]): 0, **{(k, "more"): k for k in range(1, n)}}
        got, want = compiled(X, d, t), fn(X, d, t)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
