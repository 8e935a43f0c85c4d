"""When generators and objects with finalisers end: what a store, a deletion or a name's next value drops, generators that other
iterators hold, generators with graph breaks inside. Each function runs 9 times, eagerly and compiled, on the same state."""

import collections
import enum
import functools
import itertools
import weakref

import ccompile
import pytest
import torch
from conftest import replaying


class State:
    slot = None

    def __init__(self):
        self.n, self.g, self.items, self.by_name, self.slotted = 0, None, [None], {}, Slotted()


class Slotted:
    __slots__ = ("g",)


class Held:
    """Can be weakly referenced."""


class Final:
    def __init__(self, o):
        self.o = o

    def __del__(self):
        self.o.n += 1


def two(o):
    try:
        yield 1
        yield 2
    finally:
        o.n += 1


def up_to(n, o):
    v = 0
    try:
        while v < n:
            yield v
            v += 1
        return v
    finally:
        o.n += 1


def told(x):
    try:
        yield 1
        print("in", x.sum().item())
        yield 2
    finally:
        print("end")


# ---- what a store replaces --------------------------------------------------------------------------------------------


def attribute(x, o):
    it = two(o)
    o.g = it
    n = o.n
    next(it)
    return x + n, n


def attribute_unnamed(x, o):
    o.g = two(o)
    next(o.g)
    return o.n


def by_setattr(x, o):
    it = two(o)
    next(it)
    setattr(o, "g", it)  # noqa: B010
    return o.n, x + 1


def item_of_dict(x, o):
    it = two(o)
    next(it)
    o.by_name["g"] = it
    return o.n, x + 1


def slice_of_list(x, o):
    it = two(o)
    next(it)
    o.items[:] = [it]
    return o.n


def advanced_before(x, o):
    if o.g is not None:
        next(o.g)
    o.g = two(o)
    return o.n, x + 1


def set_to_none(x, o):
    o.g = None
    n = o.n
    o.g = two(o)
    next(o.g)
    return n, o.n


def deleted_attribute(x, o):
    del o.g
    n = o.n
    o.g = two(o)
    next(o.g)
    return n, x


def popped(x, o):
    o.items.append(two(o))
    next(o.items[-1])
    o.items.pop(0)
    return o.n, x + 1


def slot(x, o):
    o.slotted.g = Final(o)
    n = o.n
    return n, x + 1


def final_attribute(x, o):
    o.g = Final(o)
    return o.n, x + 1


def final_item(x, o):
    o.by_name["g"] = Final(o)
    return o.n, x + 1


def final_read_before(x, o):
    o.g = Final(o)
    n = o.n
    o.m = n
    return x + n


def final_in_list(x, o):
    o.items[0] = [Final(o)]
    return o.n, x + 1


def final_of_class(x, o):
    State.slot = Final(o)
    return o.n, x + 1


HELD = None


def final_global(x, o):
    global HELD
    HELD = Final(o)
    n = o.n
    return n, x + 1


def printed():
    try:
        yield 1
    finally:
        print("end")


class Printing:
    def __del__(self):
        print("end")


def printing_attribute(x, o):
    o.g = printed()
    next(o.g)
    o.g = None


def printing_final(x, o):
    o.g = Printing()
    del o.g


LIST = []


def final_through_a_list_beside_a_break(x, o):
    mine = Final(o)
    x.sum().item()
    LIST.append(Final(o))
    LIST.pop()
    return mine is None


# ---- generators that only other iterators hold ------------------------------------------------------------------------


def chained(x, o):
    it = up_to(3, o)
    it = itertools.chain(it, [2])
    next(it, 0)


def chained_under_two_names(x, o):
    it = up_to(3, o)
    chain = itertools.chain(it, [2])
    next(chain, 0)


def chained_across_break(x, o):
    chain = itertools.chain(up_to(3, o), [2])
    print()
    next(chain, 0)
    return x + 1


def named_chained_across_break(x, o):
    it = up_to(3, o)
    chain = itertools.chain(it, [2])
    print()
    next(chain, 0)


def zipped(x, o):
    it = up_to(3, o)
    it = zip(it, [2, 2])
    next(it, 0)


def mapped(x, o):
    it = map(abs, up_to(3, o))
    print()
    next(it, 0)
    return x + 1


def unpacked(x, o):
    a, *_ = itertools.takewhile(lambda v: v < 1, up_to(3, o))
    return a, o.n


def unpacked_zip(x, o):
    a, *_ = zip(up_to(3, o), [1])
    return a, o.n


def sliced_name(x, o):
    it = itertools.islice(up_to(3, o), 2)
    next(it)
    it = 3
    return o.n, it


def sliced_cell(x, o):
    it = itertools.islice(up_to(3, o), 2)
    next(it)

    def inner():
        nonlocal it
        it = None
        return o.n

    return inner()


def sliced_attribute(x, o):
    p = Slotted()
    p.g = itertools.islice(up_to(3, o), 2)
    next(p.g)
    p.g = 3
    return o.n


def sliced_item(x, o):
    p = [itertools.islice(up_to(3, o), 2)]
    next(p[0])
    p[0] = 3
    return o.n


def sliced_key(x, o):
    p = {"a": itertools.islice(up_to(3, o), 2)}
    next(p["a"])
    del p["a"]
    return o.n


def sliced_slice(x, o):
    p = [itertools.islice(up_to(3, o), 2)]
    next(p[0])
    p[:] = []
    return o.n


def nested_lists(x, o):
    p = [[[up_to(3, o)]]]
    next(p[0][0][0])
    p = p[0]
    n = o.n
    p = p[0]
    p = 1
    return n, o.n, p


def in_deque(x, o):
    p = collections.deque([up_to(3, o)], maxlen=1)
    next(p[0])
    p.append(1)
    return o.n


def in_partial(x, o):
    f = functools.partial(next, up_to(3, o))
    f()
    f = None
    return o.n, f


def in_exception(x, o):
    e = ValueError(up_to(3, o))
    next(e.args[0])
    e.args = ()
    return o.n


# ---- objects in containers that C code drops ---------------------------------------------------------------------------


def name_of(final):
    return final.o.n


def mapped_list(x, o):
    list(map(name_of, [Final(o), Final(o)]))


def unpacked_map(x, o):
    a, b = map(name_of, [Final(o), Final(o)])
    return a, b, o.n


def reversed_list(x, o):
    list(reversed([Final(o)]))
    return o.n


def looped_over(x, o):
    for v in [Final(o), Final(o)]:
        pass
    print(o.n)
    return v is None


def chained_lists(x, o):
    [*itertools.chain([Final(o)], [Final(o)])]
    return o.n


# ---- generators whose variables hold an object with a finaliser ------------------------------------------------------------


def over(final):
    yield final.o.n
    yield 2


def generator_left_behind(x, o):
    it = over(Final(o))
    next(it)
    print()
    print(o.n)


def generator_not_started(x, o):
    it = over(Final(o))
    print(it is None)
    print(o.n)


def beside_another(x, o):
    d = Final(o)
    it = over(Final(o))
    next(it)
    print()
    return d is it, o.n


# ---- a generator within another -----------------------------------------------------------------------------------------


def delegating(o):
    try:
        yield from two(o)
    finally:
        o.n += 10


def delegation_dropped(x, o):
    it = delegating(o)
    next(it)
    it = None
    return o.n, it


def delegation_closed(x, o):
    it = delegating(o)
    next(it)
    it.close()
    return o.n


def delegation_in_a_list(x, o):
    its = [delegating(o)]
    next(its[0])
    its.pop()
    return o.n


def updated_dict(x, o):
    o.by_name.update(g=Final(o))
    n = o.n
    o.by_name.update({"h": Final(o)})
    return n, o.n


# ---- breaks inside ----------------------------------------------------------------------------------------------------


def thrice(it):
    next(it)
    next(it)
    return next(it, 0)


def twice_and_close(it):
    next(it)
    next(it)
    it.close()


def send(it):
    a, b = it.send(None), next(it)
    try:
        next(it)
    except StopIteration as e:
        return a, b, e.value


def throw(it):
    next(it)
    next(it)
    try:
        it.throw(KeyError("a"))
    except KeyError:
        return 1


def exhausted_by_callee(x, o):
    it = told(x)
    return thrice(it)


def closed_by_callee(x, o):
    it = told(x)
    twice_and_close(it)
    print("after")


def sent_by_callee(x, o):
    it = told(x)
    return send(it)


def thrown_by_callee(x, o):
    it = told(x)
    throw(it)
    print("after")


def listed_by_callee(x, o):
    it = told(x)
    a, b = list(it)
    return a + b


def in_a_list(x, o):
    its = [told(x)]
    r = thrice(its[0])
    print("after")
    return r


def of_a_closure(x, o):
    it = told(x)

    def inner():
        return thrice(it)

    r = inner()
    print("after")
    return r


def default_of_a_local_function(x, o):
    fn = lambda d=Final(o): o.n
    y = x + x
    return y, fn()


def iterator_in_a_handler(x, o):
    it = two(o)
    try:
        raise ValueError(1)
    except ValueError as e:
        x.tolist()
        next(it)
    return o.n


def not_kept(x, o):
    o.by_name.setdefault("k", 1)
    o.by_name.setdefault("k", Final(o))
    a = o.n
    o.by_name.pop("m", Final(o))
    return a, o.n


def not_kept_within(x, o):
    o.by_name["k"] = 1
    a = [o.n]
    o.by_name.pop("m", [Final(o)])
    a.append(o.n)
    o.by_name.pop("m", (Final(o), Final(o)))
    a.append(o.n)
    o.by_name.setdefault("k", [Final(o)])
    a.append(o.n)
    o.by_name.setdefault("k", lambda d=Final(o): 1)
    return a, o.n


class Key(enum.Enum):
    A = 1


def updated_by_odd_keys(x, o):
    o.by_name[Key.A] = Final(o)
    o.by_name[(1, 2)] = Final(o)
    o.by_name["k"] = Final(o)
    print(end="")
    y, a = x + 1, [o.n]
    o.by_name.update({Key.A: 1})
    a.append(o.n)
    o.by_name.update({(1, 2): 1})
    a.append(o.n)
    o.by_name.update([("k", 1)])
    return y, a, o.n


def updated_by_pairs(x, o):
    print(end="")
    a = o.n
    o.by_name.update([("k", 1)])
    b = o.n
    o.by_name["k"] = Final(o) if o.n % 3 else 2
    o.n += 1
    return x + 1, a, b


def stored_as_it_is_first(x, o):
    o.g = Final(o)
    print(end="")
    o.g = o.g
    o.g = 5
    return x + 1, o.n


def moved_and_dropped(x, o):
    o.g = Final(o)
    print(end="")
    o.items[0] = o.g
    o.g = None
    o.items[0] = None
    return x + 1, o.n


def in_an_order(x, o):
    o.order = getattr(o, "order", [])
    a = Ordered(o, 1)
    b = Ordered(o, 2)
    return len(o.order), o.order


def of_a_loop(x, o):
    seen = []
    for d in map(Final, [o, o, o]):
        seen.append(d.o.n)
    return x + 1, seen


class Ordered(Final):
    def __init__(self, o, k):
        super().__init__(o)
        self.k = k

    def __del__(self):
        self.o.order.append(self.k)


FUNCTIONS = [f for f in list(globals().values()) if callable(f) and getattr(f, "__code__", None) and f.__code__.co_varnames[:2] == ("x", "o")]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_ends(fn, capsys):
    runs = []
    for f in (fn, ccompile.compile(fn)):
        global HELD
        o, run, State.slot, HELD = State(), [], None, None
        for _ in range(9):
            result = f(torch.ones(1), o)
            run.append((repr(result), o.n, capsys.readouterr().out))
        runs.append(run)
    assert runs[1] == runs[0]


def test_what_a_variable_holds_in_other_calls_only():
    """No guard reads a variable that the trace overwrites, and that was empty, or held a number, when it was recorded."""

    @torch.compiler.disable
    def maybe(made, o):
        return Final(o) if made else None

    def fn(x, o, made):
        held = maybe(made, o)
        print(end="")
        held = 4
        a = o.n
        maybe(made, o)
        return x + 1, a, o.n

    def loop(x, o, made):
        seen = []
        for d in map(Final, [o] * 3):
            seen.append(o.n)
        return x + 1, seen

    for f in (fn, loop):
        runs = []
        for g in (f, ccompile.compile(f)):
            o = State()
            runs.append([repr(g(torch.ones(i % 2 + 2), o, i in (4, 5, 8))) for i in range(10)])
        assert runs[1] == runs[0]


def test_functions_are_found():
    assert len(FUNCTIONS) > 40


def test_functions_that_lru_cache_wraps_in_the_call():
    """docs/limits.md: at most 64 of them stay alive."""

    def fn(x):
        @functools.lru_cache
        def doubled(i):
            return x[i] * 2

        return doubled(0) + doubled(0)

    compiled, given = ccompile.compile(fn), []
    for _ in range(100):
        x = torch.ones(3)
        given.append(weakref.ref(x))
        assert compiled(x) == 4
    assert sum(ref() is not None for ref in given) <= 65


def test_a_store_over_a_plain_object_is_no_break():
    def fn(x, o):
        o.g = [x * 2]
        o.by_name["k"] = x + 1
        return o.g[0] + o.by_name["k"]

    compiled, o = ccompile.compile(fn), State()
    for _ in range(3):
        compiled(torch.ones(1), o)
    with replaying(4):
        for _ in range(4):
            assert compiled(torch.ones(1), o) == 4


def test_a_store_of_what_is_there_drops_nothing():
    """A weak reference that is read behind it is no break."""

    def fn(x, o):
        o.g = o.g
        o.items[0] = o.items[0]
        return x + 1, o.weak() is None

    compiled, o, apart = ccompile.compile(fn), State(), Held()
    o.g, o.items, o.weak = Held(), [Held(), 1], weakref.ref(apart)
    for _ in range(3):
        compiled(torch.ones(1), o)
    with replaying(4):
        for _ in range(4):
            assert compiled(torch.ones(1), o)[1] is False


def test_a_store_of_what_was_there_when_it_was_recorded():
    def fn(x, o, v):
        o.g = v
        return x + 1, o.weak() is None

    runs = []
    for f in (fn, ccompile.compile(fn)):
        o, v, run = State(), Held(), []
        for i in range(9):
            o.g = v if i < 5 else Held()
            o.weak = weakref.ref(o.g)
            run.append(f(torch.ones(1), o, v)[1])
        runs.append(run)
    assert runs[1] == runs[0] == [False] * 5 + [True] * 4
