"""Containers: existing ones that C code writes (in place, through their items, by __init__), hashes that
write, and iterators that are suspended at breaks."""

import collections
import heapq  # noqa: F401 (the table's code uses it)
import itertools  # noqa: F401
import operator
import random

import ccompile
import pytest
import torch


class S(set):
    pass


class L(list):
    pass


class D(dict):
    pass


class Counted(int):
    """Its hash and its order write."""

    asked = 0

    def __hash__(self):
        Counted.asked += 1
        return int(self) + 1

    def __lt__(self, other):
        Counted.asked += 1
        return int(self) < int(other)


class Marked(int):
    """The same, into itself."""

    def __init__(self, value=0):
        self.asked = 0

    def __hash__(self):
        self.asked += 1
        return int(self)


KEY = Counted(5)
SETS, LISTS, DICTS = (set, S), (list, L, collections.deque), (dict, D, collections.OrderedDict)
FIRST = {list: [3, 1, 2], L: [3, 1, 2], collections.deque: [3, 1, 2]}
RAISES = "def g():\n yield {}\n raise ValueError\ntry: {}\nexcept ValueError: pass"
WRITES = [
    (SETS, "s -= s"),
    (SETS, "s ^= s"),
    (SETS, "s &= s"),
    (SETS, "s |= s"),
    (SETS, "s ^= s\nn = len(s)\ns.add(7)\nreturn n, sorted(s), x + 1"),
    (SETS, "s -= {1}"),
    (SETS, "s ^= {1, 7}"),
    (SETS, "s &= {1}"),
    (SETS, "s |= {7}"),
    (SETS, "s -= {1: 2}.keys()"),
    (SETS, "s.update(s)"),
    (SETS, "s.__init__([7])"),
    (SETS, "s.__init__(s)"),
    (SETS, RAISES.format(7, "s.update(g())")),
    (LISTS, "s += s"),
    (LISTS, "s *= 2"),
    (LISTS, "s += b'ab'"),
    (LISTS, "s += (v for v in (7, 8))"),
    (LISTS, "s += [7]"),
    (LISTS, "s += collections.UserList([7])"),
    (LISTS, "s += {7: 8}.items()"),
    (LISTS, "s += map(str, [7])"),
    (LISTS, "s.extend(s)"),
    (LISTS, "s.extend(map(str, [7]))"),
    (LISTS, "s.__init__([7])"),
    (LISTS, "m = [7]\ns.__iadd__(m)\nm.clear()"),
    (LISTS, RAISES.format(7, "s += g()")),
    (LISTS, RAISES.format(7, "s.extend(g())")),
    (DICTS, "s |= s"),
    (DICTS, "s |= {1: 7, 8: 9}"),
    (DICTS, "s |= s.items()"),
    (DICTS, "s |= [(7, 8)]"),
    (DICTS, "o = collections.OrderedDict([(7, 8), (9, 0)])\no.move_to_end(7)\ns |= o"),
    (DICTS, "o = collections.OrderedDict([(7, 8), (9, 0)])\no.move_to_end(7)\ns.update(o)"),
    (DICTS, "s.update(collections.UserDict({7: 8}))"),
    (DICTS, "s |= collections.UserDict({7: 8})"),
    (DICTS, "s.update(s)"),
    (DICTS, "s.__init__([(7, 8)])"),
    (DICTS, "s.__init__(a=7)"),
    (DICTS, RAISES.format("(7, 8)", "s |= g()")),
    (DICTS, RAISES.format("(7, 8)", "s.update(g())")),
    ((Exception, KeyError, StopIteration), "s.__init__(7, 8)"),
    (SETS, "s.add(KEY)"),
    (SETS, "s.discard(KEY)"),
    (SETS, "s.update([KEY])"),
    (DICTS, "s[KEY] = 7"),
    (DICTS, "s.update({KEY: 7})"),
    (DICTS, "s.setdefault(KEY, 7)"),
    (DICTS, "s.pop(KEY, 7)"),
    (SETS, "return {KEY: 7}, x + 1"),
    (SETS, "return {KEY}, frozenset([KEY]), x + 1"),
    (SETS, "return {(KEY, 1)}, collections.OrderedDict([(KEY, 1)]), collections.defaultdict(int, {KEY: 1}), x + 1"),
    (SETS, "d = dict.fromkeys(map(Marked, range(4)))\nt = set(d)\nreturn [k.asked for k in d], t, x + 1"),
    (SETS, "d = dict.fromkeys(map(Marked, range(4)))\nreturn d, dict(d), S(d), D(d), frozenset(d), x + 1"),
    ((list,), "def key(v):\n s2[0] += 1\n return -v\ns2 = [0]\ns.sort(key=key)\nreturn s2, x + 1"),
    ((list,), "s[:] = map(Counted, (3, 1, 2))\ns.sort()"),
    ((list,), "for v in (3, 1, 2): heapq.heappush(s, Counted(v))"),
]


def shown(o):
    """What can be told of a value: order and all."""
    if isinstance(o, Marked):
        return "Marked", int(o), o.asked
    if isinstance(o, BaseException):
        return type(o).__name__, o.args
    if isinstance(o, dict):
        return type(o).__name__, [(shown(k), shown(v)) for k, v in o.items()]
    if isinstance(o, (list, tuple, set, frozenset, collections.deque)):
        return type(o).__name__, [shown(v) for v in o]
    return repr(o)


def cases():
    for kinds, code in WRITES:
        for kind in kinds:
            if kind is not collections.deque or "__iadd__" not in code:
                yield pytest.param(kind, code, id=f"{kind.__name__}: {code}".replace("\n", "; "))


@pytest.mark.parametrize("kind, code", list(cases()))
def test_writes(kind, code):
    """What a replay leaves in a container that was there before, and how often it asks for hashes."""
    scope = dict(globals())
    body = code if "return" in code else code + "\nreturn x + 1"
    exec("def f(x, s):\n " + body.replace("\n", "\n "), scope)
    compiled = ccompile.compile(scope["f"])

    def told(fn):
        s = kind(1, 2) if issubclass(kind, Exception) else kind(FIRST.get(kind, {1: 2, 3: 4}))
        Counted.asked = 0
        try:
            result = fn(torch.ones(2), s)
        except Exception as error:
            result = error
        asked = Counted.asked
        return shown(result), shown(s), asked

    for _ in range(4):
        assert told(compiled) == told(scope["f"])


def test_in_place_is_replayed():
    """Writing in place of what was there before needs no break."""

    def f(x, items, seen, table):
        items += items
        seen |= {3}
        table |= {4: 5}
        return x + 1

    compiled = ccompile.compile(f, fullgraph=True)
    before = ccompile.counters()["hits"]
    for _ in range(4):
        items, seen, table = L([0]), S({1}), D({6: 7})
        compiled(torch.ones(2), items, seen, table)
        assert (items, seen, table) == ([0, 0], {1, 3}, {4: 5, 6: 7})
    assert ccompile.counters()["hits"] == before + 3


# ---- iterators that wait at breaks ---------------------------------------------------------------------------------
WALKS = (
    "iter(d)|iter(d.values())|iter(d.items())|reversed(d)|reversed(d.values())|reversed(d.items())|enumerate(d)|zip(d, d.values())"
    "|zip(d.items(), 'abcdef')|iter(set(d))|iter(frozenset(d))|(k for k in d)|enumerate(d.items())|map(str, d)|zip('abc', d)"
    "|zip(b'abc', d)|itertools.chain(d, d.values())|enumerate('abcd')|zip(reversed('abc'), d)|itertools.islice(d, 2)"
    "|iter(collections.deque(d))|zip('aéü', d)|itertools.zip_longest('ab', d)|zip(itertools.repeat(5), d)"
).split("|")
STEPS = (
    ["brk()"] * 2
    + ["r.append(next(it, None))"] * 3
    + [
        "d[7] = 8",
        "d.pop(2, None)",
        "d[3] = 5",
        "d.clear()",
        "d[1] = brk(9)",
        "d.update({20: 1, 21: 2, 22: 3})",
        "x = x + 1",
    ]
)
ENDS = [
    "return r + list(itertools.islice(it, 9)), d, x",
    "return r, d, x, type(it).__name__",
    "for v in itertools.islice(it, 4): brk(); r.append(v)\nreturn r, d, x",
    "for v in it:\n d[3] = len(r); brk(); r.append(v); x = x + 1\n if len(r) > 6: break\nreturn r, d, x",
]


@ccompile.disable
def brk(value=None):
    return value


@pytest.mark.parametrize("seed", range(120))
def test_walks(seed):
    """An iterator stands at breaks, its dict is written between them (also in size, with gaps, emptied and filled again)."""
    draw = random.Random(seed)
    walk = draw.choice(WALKS)
    kind = draw.choice(["dict", "dict", "D", "collections.OrderedDict"]) if "d" in walk[:11] else "dict"
    given = draw.random() < 0.4
    lines = ["r = []"] + ([] if given else [f"d = {kind}({{1: 2, 2: 3, 3: 4}})"]) + [f"it = {walk}"]
    lines += draw.choices(STEPS, k=draw.randint(2, 7)) + draw.choice(ENDS).split("\n")
    scope = dict(globals())
    exec("def f(x, d):\n " + "\n ".join(lines), scope)
    compiled = ccompile.compile(scope["f"])

    def told(fn, i):
        d = eval(kind)({1: 2, 2: 3, 3: 4})
        if i % 2 and given:  # the same, with a gap
            d = eval(kind)([(9, 9), (1, 2), (2, 3), (3, 4)])
            del d[9]
        if i == 4 and given:
            d[1] = 77
        try:
            return shown(fn(torch.ones(2), d)), shown(d)
        except Exception as error:
            return shown(error), shown(d)

    for i in range(5):
        assert told(compiled, i) == told(scope["f"], i), "\n".join(lines)


@pytest.mark.parametrize("walk", [w for w in WALKS if "itertools" not in w and "deque" not in w])
def test_walks_are_replayed(walk):
    """What stands at a break has a recipe: the third call records nothing."""
    scope = dict(globals())
    exec(f"def f(x, d):\n r = []\n for v in {walk}:\n  brk(); x = x + 1; r.append(v)\n return r, x", scope)
    compiled = ccompile.compile(scope["f"])
    for i in range(4):
        before = ccompile.counters()
        assert shown(compiled(torch.ones(1), {1: 2, 2: 3, 3: 4})) == shown(
            scope["f"](torch.ones(1), {1: 2, 2: 3, 3: 4})
        )
        after = ccompile.counters()
        if i > 1:
            assert after.get("recording", 0) == before.get("recording", 0)
            assert after["hits"] > before["hits"]


def test_an_iterator_is_of_its_dict():
    """What a function gives is an iterator over the dict that it was given."""

    def f(x, d):
        it = iter(d.items())
        next(it)
        return it, x + 1

    compiled = ccompile.compile(f)
    for _ in range(3):
        d = {1: 2, 3: 4}
        it, _ = compiled(torch.ones(1), d)
        assert type(it) is type(iter(d.items())) and it.__length_hint__() == 1
        d[3] = 5
        assert next(it) == (3, 5)
        d[4] = 5
        with pytest.raises(RuntimeError, match="changed size"):
            next(it)


# ---- objects of classes that derive from builtin ones ---------------------------------------------------------------
class T(tuple):
    pass


class Named(tuple):
    def __init__(self, v):
        self.v = 1


class Filled(list):
    def __init__(self, v):
        super().__init__(v)
        self.v = 1


class F(frozenset):
    pass


class Ordered(collections.OrderedDict):
    pass


class Whole(int):
    def __init__(self, v):
        self.v = 1


class Real(float):
    pass


class Text(str):
    pass


MADE = [
    *[(kind, ([1, 2], [3, 4], [2, 1], [1, 2, 3])) for kind in (L, S, T, F, Named, Filled)],
    *[(kind, ([(1, 2)], [(3, 4)], {1: 2}, {3: 4}, [(1, 2), (3, 4)], [(3, 4), (1, 2)])) for kind in (D, Ordered)],
    (Whole, (1, 2, "3", "4")),
    (Real, (1.5, 2.5, "3", "4")),
    (Text, ([1], [2], "a", "b")),
]


@pytest.mark.parametrize("kind, values", MADE, ids=[kind.__name__ for kind, _ in MADE])
def test_made(kind, values):
    """What C code of the builtin class takes out of the arguments is guarded."""

    def f(x, v):
        return kind(v), x + 1

    compiled = ccompile.compile(f)
    for v in values * 2:
        assert shown(compiled(torch.ones(1), v)) == shown(f(torch.ones(1), v))
        assert type(compiled(torch.ones(1), v)[0]) is kind


class Told(set):
    def __iter__(self):
        yield from (f"told {v}" for v in set.__iter__(self))


def fewer(s, member=lambda i: (i, i + 1)):
    for i in range(55):
        s.discard(member(i))
    return s


# sets whose members leave gaps or meet, so that another set of the same members has another order
ORDERED = {
    "tuples": lambda k: fewer({(i, i + 1) for i in range(60)}),
    "tuples of an argument": lambda k: fewer({(i, i + k) for i in range(60)}),
    "nested": lambda k: fewer({((i, i + 1), i) for i in range(60)}, lambda i: ((i, i + 1), i)),
    "frozen": lambda k: frozenset(fewer({(i, i + 1) for i in range(60)})) | {(k, k)},
    "classes": lambda k: {int, float, str, dict, list, tuple, bytes, set, bool} - {int, float},
}


@pytest.mark.parametrize("make", ORDERED.values(), ids=ORDERED)
def test_the_order_of_sets(make):
    def f(x, k):
        s = make(k)
        return x + 1, s, next(iter(s))

    compiled = ccompile.compile(f)
    for k in (1, 1, 1, 2, 2, 1):
        _, s, first = compiled(torch.ones(1), k)
        wanted = f(torch.ones(1), k)[1]
        assert type(s) is type(wanted) and list(s) == list(wanted) and next(iter(s)) is first


def test_a_set_that_tells_others_than_its_members():
    def f(x):
        s = Told()
        s.add(1)
        s.add(2)
        return x + 1, s

    compiled = ccompile.compile(f)
    for _ in range(4):
        assert set.__eq__(compiled(torch.ones(1))[1], {1, 2})


class Asks:
    asked = 0

    def __call__(self):
        Asks.asked += 1
        return 1


class LongByCall(list):
    __len__ = Asks()


def test_truth_asks_for_the_length_once():
    def f(x, o):
        return x + 1 if o else x - 1

    compiled, o = ccompile.compile(f), LongByCall()
    for _ in range(4):
        before = Asks.asked
        assert torch.equal(compiled(torch.ones(2), o), torch.full((2,), 2.0))
        assert Asks.asked == before + 1


def test_a_tuple_that_holds_itself():
    def f(x):
        t = ([],)
        t[0].append(t)
        brk()
        return t, x + 1

    compiled = ccompile.compile(f)
    for _ in range(3):
        t, _ = compiled(torch.ones(1))
        assert t[0][0] is t and len(t[0]) == 1


def test_a_generator_that_was_renamed():
    def f(x):
        def made():
            yield 1
            yield 2

        g = made()
        g.__name__ = g.__qualname__ = "another"
        next(g)
        brk()
        return g, x + 1

    compiled = ccompile.compile(f)
    for _ in range(4):
        g, _ = compiled(torch.ones(1))
        assert (g.__name__, g.__qualname__, next(g)) == ("another", "another", 2)


FILLING = [
    "'ab'.translate(d)",
    "'%(k)s' % d",
    "'%(k)s' % o['d']",
    "operator.mod('%(k)s', d)",
    "str.__mod__('%(k)s', d)",
    "'{k}'.format_map(d)",
    "'{0[k]} {1[d][k]}'.format(d, o)",
]


@pytest.mark.parametrize("use", FILLING)
def test_items_that_c_code_stores_in_a_defaultdict(use):
    space = {"operator": operator}
    exec(f"def f(x, d, o):\n    return {use}, x + 1", space)
    compiled = ccompile.compile(space["f"])
    for factory in (int, int, list, int, None):
        seen = []
        for fn in (space["f"], compiled):
            d = collections.defaultdict(factory, a=1)
            try:
                seen.append((fn(torch.ones(1), d, {"d": d})[0], dict(d)))
            except (KeyError, TypeError) as e:
                seen.append((repr(e), dict(d)))
        assert seen[0] == seen[1]


GETTERS = ["itemgetter(1)", "itemgetter(1, 2)", "attrgetter('a')", "attrgetter('a', 'b')", "methodcaller('a')"]


@pytest.mark.parametrize("given", ["", "1, 2", "*[1, 2, 3]", "obj=1", "**{'obj': 1}"])
@pytest.mark.parametrize("getter", GETTERS)
def test_errors_of_getters(getter, given):
    space = {"operator": operator}
    exec(
        f"def f(x):\n    try:\n        return operator.{getter}({given}), x\n    except TypeError as e:\n        return str(e), x + 1",
        space,
    )
    compiled = ccompile.compile(space["f"])
    for _ in range(3):
        assert compiled(torch.ones(1))[0] == space["f"](torch.ones(1))[0]
