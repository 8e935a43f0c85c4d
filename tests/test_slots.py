"""The contents of frames' slots behind a break: which slots share an object, who else holds it, and whose functions the frames
belong to are facts of one recording, and guarded (csrc/rec/resume.c, cc_guard_alone).

A case makes a function of (x, flag) and calls it with flags in several orders, so that each state is recorded first once
and met by the segments of the others.
"""

import collections
import copy
import itertools
import types

import ccompile
import pytest
import torch
from conftest import EAGER

ORDERS = [order for n in (2, 3) for order in itertools.product((0, 1), repeat=n) if len(set(order)) == 2]
ORDERS += [(0, 1, 0, 1, 1, 0), (1, 0, 1, 0, 0, 1)]
CASES = {}


@ccompile.disable
def brk(*_):
    pass


class Thing:
    pass


def case(make):
    CASES[make.__name__] = make
    return make


# ---- how containers are made, changed and read -----------------------------------------------------------------------


def counting(n):
    for i in range(n):
        sent = yield i
        if sent is not None:
            yield ("sent", sent)


# kind: (make, change(object, x), show(object))
KINDS = {
    "list": (lambda: [1], lambda o, x: o.append(float(x.sum())), list),
    "dict": (lambda: {"n": 1}, lambda o, x: o.update(n=o["n"] + 1, m=len(o)), dict),
    "set": (lambda: {1}, lambda o, x: o.add(len(o) + 1), sorted),
    "deque": (lambda: collections.deque([1, 2], maxlen=4), lambda o, x: o.append(len(o)), list),
    "defaultdict": (lambda: collections.defaultdict(list), lambda o, x: o["k"].append(1), dict),
    "ordered": (lambda: collections.OrderedDict(a=1), lambda o, x: o.__setitem__("b", len(o)), list),
    "bytearray": (lambda: bytearray(b"a"), lambda o, x: o.append(98), bytes),
    "object": (lambda: types.SimpleNamespace(n=1), lambda o, x: setattr(o, "n", o.n + 1), lambda o: o.n),
    "list_iterator": (lambda: iter([1, 2, 3, 4, 5, 6]), lambda o, x: next(o), list),
    "tuple_iterator": (lambda: iter((1, 2, 3, 4, 5, 6)), lambda o, x: next(o), list),
    "range_iterator": (lambda: iter(range(6)), lambda o, x: next(o), list),
    "reversed": (lambda: reversed([1, 2, 3, 4, 5]), lambda o, x: next(o), list),
    "dict_iterator": (lambda: iter({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}), lambda o, x: next(o), list),
    "enumerate": (lambda: enumerate([1, 2, 3, 4, 5, 6]), lambda o, x: next(o), list),
    "zip": (lambda: zip([1, 2, 3, 4, 5, 6], (7, 8, 9, 10, 11, 12)), lambda o, x: next(o), list),
    "zip_of_text": (lambda: zip([1, 2, 3, 4, 5, 6], "abcdef"), lambda o, x: next(o), list),
    "map": (lambda: map(str, [1, 2, 3, 4, 5, 6]), lambda o, x: next(o), list),
    "filter": (lambda: filter(None, [1, 2, 3, 4, 5, 6]), lambda o, x: next(o), list),
    "chain": (lambda: itertools.chain([1, 2], [3, 4, 5, 6]), lambda o, x: next(o), list),
    "count": (lambda: itertools.count(3), lambda o, x: next(o), lambda o: next(o)),
    "generator": (lambda: counting(7), lambda o, x: next(o), list),
    "enumerate_of_generator": (lambda: enumerate(counting(7)), lambda o, x: next(o), list),
    "zip_of_generators": (lambda: zip(counting(7), counting(6), strict=False), lambda o, x: next(o), list),
    "zip_of_one_generator": (lambda: zip(*[counting(9)] * 2, strict=False), lambda o, x: next(o), list),
    "chain_of_lists": (lambda: itertools.chain.from_iterable([[1], [], [2, 3], [4, 5, 6]]), lambda o, x: next(o), list),
    "zip_of_chain": (lambda: zip(itertools.chain([1, 2], [3, 4, 5]), "abcdef"), lambda o, x: next(o), list),
    "expression": (lambda: (i * i for i in [1, 2, 3, 4, 5, 6]), lambda o, x: next(o), list),
    "nested": (lambda: [[1], {"k": [2]}], lambda o, x: (o[0].append(3), o[1]["k"].append(4)), repr),
}


def by_kind(make_case):
    for kind, (make, change, show) in KINDS.items():
        CASES[f"{make_case.__name__}-{kind}"] = lambda m=make_case, a=(make, change, show): m(*a)


# ---- two slots -------------------------------------------------------------------------------------------------------


@by_kind
def one_or_two(make, change, show):
    def f(x, flag):
        a = make()
        b = a if flag else make()
        brk()
        change(a, x)
        brk()
        change(b, x)
        same = a is b
        return show(a), show(b), same, x + 1

    return f


@by_kind
def one_or_two_frames(make, change, show):
    """The other one lies in the caller's frame."""

    def inner(x, a):
        brk()
        change(a, x)
        brk()
        change(a, x)
        return x * 2

    def f(x, flag):
        a = make()
        b = a if flag else make()
        y = inner(x, a)
        change(b, x)
        brk()
        return show(b), a is b, show(a), y

    return f


@by_kind
def dead_or_alive(make, change, show):
    """The second slot is not read any more."""

    def f(x, flag):
        a = make()
        other = a if flag else None  # noqa: F841
        brk()
        change(a, x)
        brk()
        change(a, x)
        return show(a), x + 1

    return f


# ---- a slot and somebody else ----------------------------------------------------------------------------------------


def elsewhere(put):
    def decorate(get):
        def make_case(make, change, show):
            store = types.SimpleNamespace(kept=None)

            def f(x, flag):
                a = make()
                held = put(a, store) if flag else None
                brk()
                change(a, x)
                brk()
                change(a, x)
                brk()
                other = get(store, held) if flag else None
                result = other is a
                return result, show(a), None if other is None else show(other), x + 1

            return f

        make_case.__name__ = get.__name__
        return by_kind(make_case)

    return decorate


@elsewhere(lambda a, store: setattr(store, "kept", a))
def attribute(store, held):
    return store.kept


@elsewhere(lambda a, store: KEPT.append(a))
def item_of_a_global(store, held):
    return KEPT[-1]


@elsewhere(lambda a, store: (a, 1))
def tuple_in_a_slot(store, held):
    return held[0]


@elsewhere(lambda a, store: [[a]])
def nested_list_in_a_slot(store, held):
    return held[0][0]


@elsewhere(lambda a, store: {"k": (a,)})
def dict_of_tuples(store, held):
    return held["k"][0]


@elsewhere(lambda a, store: lambda: a)
def cell(store, held):
    return held()


@elsewhere(lambda a, store: held_by_generator(a))
def generators_frame(store, held):
    return next(held)


KEPT = []


def held_by_generator(a):
    yield
    yield a


# ---- iterators over what others hold ---------------------------------------------------------------------------------


def over(items):
    def decorate(wrap):
        def make_case():
            def f(x, flag):
                source = items()
                it = wrap(source)
                other = source if flag else items()
                brk()
                first = next(it)
                if isinstance(other, list):
                    other.append(9)
                else:
                    next(other)
                brk()
                second = next(it)
                return first, second, list(it), list(other), x + 1

            return f

        CASES[f"over-{wrap.__name__}-{items.__name__}"] = make_case
        return wrap

    return decorate


def items():
    return [1, 2, 3, 4, 5, 6]


def iterator():
    return iter([1, 2, 3, 4, 5, 6])


for made in (items, iterator):
    over(made)(iter)
    over(made)(enumerate)
    over(made)(zip)

    @over(made)
    def twice(o):
        return zip(o, o)

    @over(made)
    def both(o):
        return zip(o, enumerate(o))

    @over(made)
    def deeper(o):
        return enumerate(zip(o, [7, 8, 9, 10, 11, 12]))

    @over(made)
    def mapped(o):
        return map(str, o)

    @over(made)
    def expression(o):
        return (i + 1 for i in o)


@case
def zip_of_one_or_two():
    def f(x, flag):
        a = iter([1, 2, 3, 4, 5, 6])
        z = zip(a, a if flag else iter([1, 2, 3, 4, 5, 6]))
        del a
        brk()
        first = next(z)
        brk()
        return first, list(z), x + 1

    return f


@case
def list_within_an_adopted_one():
    kept = []

    def f(x, flag):
        inner = [1]
        a = [inner, [2]]
        if flag:
            kept.append(inner)
        del inner
        brk()
        a[0].append(3)
        a[1].append(4)
        brk()
        a.append(a[0])
        a[2].append(5)
        return a, kept[-1:] if flag else None, bool(flag) and kept[-1] is a[0]

    return f


@case
def two_items_are_one():
    def f(x, flag):
        inner = [1]
        a = [inner, inner if flag else [1]]
        del inner
        brk()
        a[0].append(3)
        brk()
        return a, a[0] is a[1], x + 1

    return f


@case
def it_holds_itself():
    def f(x, flag):
        a = [1]
        if flag:
            a.append(a)
        brk()
        a.append(2)
        brk()
        return len(a), a[1] is a, x + 1

    return f


@case
def argument_or_own():
    given = [5]

    def f(x, flag):
        a = given if flag else [5]
        brk()
        a.append(len(a))
        brk()
        a.append(len(given))
        return list(a), list(given), a is given

    return f


@case
def an_object_and_its_dict():
    class Bag:
        pass

    def f(x, flag):
        o = Bag()
        o.n = 1
        held, update = vars(o), vars(o).update
        if flag:
            del held
        brk()
        update(m=2)
        brk()
        o.k = 3
        return vars(o), flag or held is vars(o), x + 1

    return f


@case
def a_copy_of_what_was_written():
    def f(x, flag):
        o = types.SimpleNamespace() if flag else Thing()
        o.n = 5
        brk()
        other = copy.copy(o)
        other.m = 6
        return vars(o), vars(other), copy.deepcopy(other).n, x + 1

    return f


@case
def written_then_copied():
    kept = Thing()

    def f(x, flag):
        kept.n = 5 + flag
        return vars(copy.copy(kept)), vars(kept), x + 1

    return f


class Failed(OSError):
    def __init__(self, text, number=None):
        self.number = number
        super().__init__(*([] if number is None else [number]), text)


@case
def what_exceptions_keep():
    made = [
        lambda: StopIteration((2,)),
        lambda: OSError(2, "no", "file"),
        lambda: OSError("odd"),
        lambda: SystemExit(3),
        lambda: UnicodeDecodeError("utf8", b"a", 0, 1, "reason"),
        lambda: ImportError("text", name="n", path="p"),
        lambda: AttributeError("text", name="n", obj=3),
        lambda: SyntaxError("text", ("file", 1, 2, "line")),
        lambda: KeyError("k"),
        lambda: Failed("text"),
        lambda: Failed("text", 2),
    ]

    def f(x, flag):
        errors = [make() for make in made]
        errors[1].errno = 5 + flag
        try:
            try:
                raise errors[8]
            except KeyError as error:
                raise errors[7] from None if flag else error
        except SyntaxError:
            pass
        brk()
        own = [
            {k: v for k in dir(e) if k[:2] != "__" and not callable(v := getattr(e, k, None))} | {"text": str(e)} for e in errors
        ]
        return own, [e.__suppress_context__ for e in errors], x + 1

    return f


@case
def texts_of_exceptions():
    """C fields that a text is made of, set before and behind a break."""
    kept = [OSError(2, "no", "file"), SyntaxError("text", ("file", 1, 2, "line")), ImportError("text", name="n")]
    kept += [UnicodeDecodeError("utf8", b"ab", 0, 1, "reason")]

    def f(x, flag):
        kept[0].errno, kept[1].lineno, kept[2].msg, kept[3].reason = 5 + flag, 7 + flag, "m" * (flag + 1), "r" * (flag + 1)
        here = [str(e) for e in kept]
        brk()
        behind = [str(e) for e in kept]
        kept[0].filename, kept[1].msg, kept[3].start = "f" * (flag + 1), "s" * (flag + 1), flag
        return here, behind, [f"{e}" for e in kept], x + 1

    return f


@case
def cells_of_one_or_two():
    def make():
        n = 0

        def add(k):
            nonlocal n
            n += k
            brk()
            n += 1
            return n

        return add

    def f(x, flag):
        p = make()
        q = p if flag else make()
        brk()
        r = p(1)
        brk()
        s = q(10)
        brk()
        return r, s, p(0), q(0), p is q

    return f


@case
def cell_of_the_caller():
    def f(x, flag):
        n = 1

        def own():
            nonlocal n
            n += 1
            brk()
            n += 1
            return n

        def other(n=5):
            def own():
                nonlocal n
                n += 1
                brk()
                n += 1
                return n

            return own

        g = own if flag else other()
        r = g()
        n += 10
        return r, n, g(), n, x + 1

    return f


# ---- frames of other functions of the same code ----------------------------------------------------------------------


def reads_globals(x):
    y = x * K
    brk()
    y = y + K
    brk()
    return (y + K).tolist(), len(NAMES), abs(-1)


K, NAMES = 0.0, ()


def with_globals(k, names, **builtins):
    import builtins as module

    scope = {"K": k, "NAMES": names, "brk": brk, "__builtins__": {**vars(module), **builtins}}
    return types.FunctionType(reads_globals.__code__, scope)


@case
def other_globals():
    functions = with_globals(1.0, ()), with_globals(2.0, (1,))
    return lambda x, flag: functions[flag](x)


@case
def other_builtins():
    functions = with_globals(1.0, ()), with_globals(1.0, (), abs=lambda v: v, len=lambda v: 7)
    return lambda x, flag: functions[flag](x)


@case
def other_globals_of_a_method():
    a, b = with_globals(1.0, ()), with_globals(2.0, (1,))
    classes = [type("C", (), {"run": lambda self, x, f=f: f(x)}) for f in (a, b)]
    objects = [c() for c in classes]
    return lambda x, flag: objects[flag].run(x)


# ----------------------------------------------------------------------------------------------------------------------


def outcome(fn, *args):
    try:
        return repr(fn(*args))
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("name", CASES)
def test_facts_of_one_recording(name):
    for order in ORDERS:
        KEPT.clear()
        eager, compiled = CASES[name](), CASES[name]()
        call = ccompile.compile(compiled)
        x = torch.ones(2)
        for i, flag in enumerate(order):
            assert outcome(call, x, flag) == outcome(eager, x, flag), order[: i + 1]


@pytest.mark.skipif(EAGER, reason="asserts replays")
@pytest.mark.parametrize("kind", ["list", "dict", "list_iterator", "enumerate", "zip", "generator", "expression"])
def test_what_only_slots_hold_replays(kind):
    """Calls in the same state as one that was recorded replay all segments: nothing is recorded again."""
    for name in ("one_or_two", "dead_or_alive"):
        call = ccompile.compile(CASES[f"{name}-{kind}"]())
        x = torch.ones(2)
        for flag in (0, 1, 0, 1):
            call(x, flag)
        before = call.report()["recordings"]
        for flag in (0, 1, 0, 1):
            call(x, flag)
        assert call.report()["recordings"] == before
