"""Numbers that differ between calls, and texts made of them, in everything that Python does with one: each source (an argument,
a size, x.sum().item() ...) with each read. A read is an op on symbols, a constant under a guard, or a break; moving the number
is none of these (csrc/rec/number.c, sym.c)."""

# ruff: noqa: F401 (the expressions use these modules)
import array
import bisect
import cmath
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import io
import itertools
import json
import math
import operator
import pickle
import random
import re
import statistics
import string
import struct
import sys
import types

import ccompile
import numpy as np
import pytest
import torch
from torch import nn

TEXT_VALUES = (1.0, 2.5, 3.0, 11.25, 120.5, 1.0, 7.0, 3.0, 999.0, 1000.5, -2.5, 0.0, 10.0, 3.0)
GLOBALS = {}

TEXT_SOURCES = {
    "item": "v = x.mean().item(); s = f'loss={v:.3f}'",
    "argument": "v = k; s = f'loss={v:.3f}'",
    "float": "v = float(x.mean()) * 2; s = 'loss=' + str(v)",
    "computed": "v = k * 1.5; s = 'loss=%s' % v",
}


# ---- texts ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    s: str


Pair = collections.namedtuple("Pair", "a b")


class Holder:
    def __init__(self, text=None):
        self.text = text

    def method(self, text):
        self.last = text
        return self.last[5], len(self.last)


def attributes(s):
    holder = Holder(s)
    holder.text += "a"
    setattr(holder, "other", holder.text)  # noqa: B010
    return holder.other, len(holder.other), vars(holder)


def passes(s, k=None):
    return s, k, (s.upper() if k else s)


def yields(s):
    yield s
    yield len(s)


def matched(s):
    match s:
        case "loss=1.000":
            return 1
        case str():
            return 2


def walrus(s):
    return (n := len(s)) + n


def slices(s):
    return s[::2], s[::-1], s[:-1], s[5:7]


def unpacked(s):
    a, *b = s
    return a, b, len(b)


def extended(s):
    r = ["a"]
    r.extend(s)
    r += s
    r.append(s)
    return r, len(r)


def in_place(s):
    s += "a"
    s *= 2
    return s, len(s), s[5]


def nested(s):
    held = {"a": [s, {"b": (s,)}]}
    return held["a"][1]["b"][0][5], len(held["a"][0]), held


def looped(s):
    r = []
    for i, c in enumerate(s):
        if c == ".":
            break
        r.append(c)
    return r, i


def grown(s):
    n = 0
    while len(s) < 14:
        s = s + "a"
        n += 1
    return s, n


def parsed(s):
    try:
        return int(s)
    except ValueError as e:
        return str(e)


def raised(s):
    try:
        raise KeyError(s)
    except KeyError as e:
        return e.args[0][5], str(e), len(str(e))


def keyed(s):
    d = {}
    d[s] = 1
    d.setdefault(s, 2)
    d[s] += 1
    return d, s in d, "loss=1.000" in d, d.pop(s, None)


def named(s):
    d = dict(a=s)
    d.update(b=s)
    d["c"] = s
    return d, [len(v) for v in d.values()], d["c"][5:]


def through_global(s):
    GLOBALS["x"] = s
    return GLOBALS["x"][5], len(GLOBALS["x"])


def listed(s):
    r, q = ["loss=1.000", "loss=3.000", s], {"loss=2.500"}
    r.insert(0, s)
    q.add(s)
    q.discard("loss=3.000")
    r.remove(s)
    return r, sorted(q), len({s, "a"} | q), s in q


def popped(s, d):
    d.pop(s, None)
    d[s] = 2
    d.update({s: 3})
    d |= {s: 4}
    return d, d.get(s), list(d), d.popitem()


def among_numbers(v):
    r, d = [1.0, v, 3.0], {1.0: 2, v: 4}
    r.sort()
    r.append(v)
    return r, d, r.index(v), r.count(1.0), max(r), v in d


def in_set(v):
    q, t = {1.0, v}, collections.deque([v, 2.0])
    q.add(v)
    q.discard(3.0)
    t.rotate(1)
    return len(q), t, t.count(1.0), v in t, sorted(q), divmod(v, 2), f"{v:>{len(q) + 5}}"


# fmt: off
TEXT_READS = [
    "len(s)", "s[0]", "s[-1]", "s[5:]", "s[:6]", "s.upper()", "s.split('=')", "s == 'loss=1.000'", "'1' in s", "s + 'x'",
    "'x' + s", "s * 2", "s.ljust(20)", "s.rjust(15)", "s.center(20)", "s.zfill(12)", "float(s[5:])", "s.startswith('loss=1')",
    "s.endswith('0')", "s.find('.')", "s.index('=')", "s.count('0')", "s.replace('.', ',')", "list(s)", "tuple(s)",
    "sorted(s)", "max(s)", "min(s)", "s < 'loss=5'", "hash(s) == hash(str(s))", "{s: 1}", "{s}", "d.get(s)",
    "s.partition('=')", "s.rpartition('=')", "s.strip('los')", "s.lstrip('l')", "s.isdigit()", "s.encode()", "'%s!' % s",
    "f'{s}!'", "f'{s:>20}'", "f'{s!r}'", "repr(s)", "str(s)", "bool(s)", "s.title()", "s.join(['a','b'])", "', '.join([s, s])",
    "s.splitlines()", "re.sub(r'\\d', 'x', s)", "re.match(r'loss=(\\d+)', s).group(1)", "re.findall(r'\\d', s)",
    "json.dumps({'a': s})", "[c for c in s]", "[c for c in s if c.isdigit()]", "next(iter(s))", "enumerate(s).__next__()",
    "dict(zip(s, s))", "set(s) == {'a'}", "len(list(s))", "s.__len__()", "s.casefold()", "s.swapcase()",
    "s.translate({46: 44})", "ord(s[5])", "any(c == '1' for c in s)", "sum(c == '0' for c in s)",
    "s not in ('a', 'loss=1.000')", "s != 'x'", "x.new_zeros(len(s))", "x * len(s)", "x * int(s[5:6])", "s.rsplit('.', 1)",
    "s.isalnum()", "s.removeprefix('loss=')", "s.expandtabs()", "s >= 'loss=2'", "print(s)", "print(len(s))",
    "type(s).__name__", "isinstance(s, str)", "s.__class__", "(s, len(s))", "len(s + 'ab')", "len(f'{s}a')", "len(s[5:])",
    "len(s.split('.')[0])", "len(str(v))", "len(repr(v))", "len(f'{v:.2f}')", "str(v)[0]", "int(v)", "len('%.1f' % v)",
    "len('{:.1f}'.format(v))", "len(format(v, '.1f'))", "'%d' % v", "'%5.2f' % v", "len(str(int(v)))", "len(hex(int(v)))",
    "len(bin(int(v)))", "chr(65 + int(v) % 20)", "bytes([int(v) % 255])", "len(bytes(int(v)))", "len(' ' * int(v))",
    "len([0] * int(v))", "(0,) * int(v)", "'ab'[int(v) % 2]", "len(range(int(v)))", "list(range(int(v)))", "divmod(v, 3)",
    "v.is_integer()", "v.hex()", "v.as_integer_ratio()", "int(v).bit_length()", "int(v).to_bytes(4, 'big')", "round(v)",
    "round(v, 1)", "-v", "abs(-v)", "v // 2", "v % 2", "v ** 2", "v > 3", "v == 3", "hash(v) % 7", "complex(v)",
    "complex(v, 1).real", "min(v, 3)", "max(v, 3, 2)", "sum([v, v])", "sorted([v, 3, 1])", "[v, 3].index(v)", "v in [3., 4.]",
    "{v: 1}", "{int(v): 2}.get(3)", "d.get(int(v))", "[10, 20, 30, 40, 50][int(v) % 5]", "'{:>{w}}'.format('a', w=int(v))",
    "f'{1:{int(v)+1}}'", "x[:int(v)]", "x[int(v) % 3]", "x.repeat(int(v) + 1)", "torch.full((2,), v)", "torch.arange(v)",
    "torch.arange(int(v))", "torch.linspace(0, v, 3)", "x.clamp(max=v)", "x.add(x, alpha=v)", "torch.tensor([v, v])",
    "torch.tensor(int(v))", "torch.ones(int(v) + 1).sum()", "x if v > 3 else -x", "listed(s)", "popped(s, d)",
    "repr(ValueError(v))", "str(KeyError((s, v)))", "f'{ValueError(s)}'", "print(ValueError(s))", "[ValueError(s)]",
    "(v, 1) == (1.0, 1)", "hash(v) == hash(1.0)", "{(v, 2): 3}.get((1.0, 2))", "{(v,): 1}", "{((s,),): 1}",
    "str((v, [v, {v: v}]))", "len(repr([v]))", "among_numbers(v)", "in_set(v)", "[*s]", "(*s, 1)", "{*s} == {'a'}",
    "(lambda a, *b: (a, b))(*s)", "list(zip([s], [1]))", "dict([(s, 1)])", "dict(zip([s], [v]))", "set([s])",
    "frozenset((s,))", "dict.fromkeys([s])", "dict.fromkeys(s)", "sorted([s, 'loss=3'])", "max(s, 'loss=3')",
    "max([s, 'loss=3'])", "min([s, 'loss=3'], key=len)", "['loss=1.000', s].index(s)", "[s, 'loss=1.000'].count('loss=1.000')",
    "s in ['loss=1.000']", "(s,) == ('loss=1.000',)", "[s] < ['loss=3']", "hash((s,)) == hash(('loss=1.000',))", "{(s, 1): 2}",
    "{(s, 1): 2}.get(('loss=1.000', 1))", "str([s])", "repr({'a': s})", "f'{[s]}'", "f'{(s, v)}'", "json.dumps([s, v])",
    "functools.partial(len, s)()", "functools.partial(max, s)('loss=3')", "list(map(len, [s]))", "list(map(str.upper, [s]))",
    "[len(q) for q in [s]]", "sum(len(q) for q in (s, s))", "(lambda **k: k)(**{s: 1})", "setattr(o, s, 1)",
    "getattr(o, 'x' + s, 3)", "hasattr(o, s)", "type(s)(s)", "eval('len(q)', {'q': s})", "eval(s[5:])", "bytes(s, 'utf8')",
    "io.StringIO(s).read(3)", "'{}'.format(s)", "'{:>14}'.format(s)", "'{0:.3}'.format(s)", "'%.3s' % s", "'%s %s' % (s, v)",
    "'%(a)s' % {'a': s}", "str.format('{a}', a=s)", "(s + 'ab').upper()", "(s + 'ab')[3]", "(s * 2)[9:]", "len(s * 2)",
    "(s + s) == 2 * s", "'-'.join([s, 'b'])", "'-'.join((s, s)).split('-')", "Exception(s).args", "str(Exception(s))",
    "repr(ValueError(s, v))", "len(str(Exception(s)))", "len(Exception(s).args[0])", "operator.itemgetter(0)(s)",
    "operator.add(s, 'a')", "operator.contains(s, '1')", "operator.getitem(s, 5)", "operator.eq(s, 'loss=1.000')",
    "operator.length_hint(s)", "operator.mul(s, 2)", "operator.methodcaller('upper')(s)",
    "functools.reduce(lambda a, b: a + b, s)", "functools.reduce(lambda a, b: a + b, [s, 'c'])",
    "itertools.chain(s, 'a').__next__()", "list(itertools.chain([s], 'a'))", "list(itertools.islice(s, 5, 7))",
    "list(itertools.product(s[5:6], 'ab'))", "list(itertools.repeat(s, 2))", "list(itertools.accumulate([s, 'a']))",
    "collections.Counter(s).most_common(1)", "collections.Counter([s])", "collections.OrderedDict([(s, 1)])",
    "collections.deque(s)", "collections.deque([s])", "collections.defaultdict(list, {s: 1})", "list(reversed(s))",
    "list(enumerate(s))[5]", "next(iter([s]))", "(s or 'x')", "(s and 'x')", "not s", "s if len(s) > 10 else 'short'",
    "[1, 2] if s > 'loss=2' else [3]", "copy.copy(s)", "copy.deepcopy([s])", "copy.deepcopy({'a': s, 'b': v})",
    "pickle.loads(pickle.dumps(s))", "Row(s)", "Row(s).s", "len(Row(s).s)", "Row(s) == Row('loss=1.000')", "Pair(s, 1)",
    "Pair(s, 1).a[5]", "Pair(s, 1)._asdict()", "repr(Row(s))", "hash(Pair(s, 1)) == 3", "dataclasses.asdict(Row(s))",
    "dataclasses.replace(Row(s), s=s + 'a')", "passes(s)", "passes(s, k=s)", "list(yields(*[s]))", "Holder().method(s)",
    "Holder(s).text", "attributes(s)", "isinstance(s, (int, float))", "callable(s)", "s.__class__.__name__", "type(s) is str",
    "s.__eq__('loss=1.000')", "str.__len__(s)", "str.upper(s)", "str.join('a', s)", "s.__contains__('1')", "s.__getitem__(5)",
    "s.__add__('a')", "s.__mod__(())", "s.__hash__() == 3", "s.__iter__().__next__()", "sys.intern(s)", "sys.getsizeof(s)",
    "collections.ChainMap({s: 1}).get('loss=1.000')", "types.SimpleNamespace(a=s)", "types.SimpleNamespace(a=s).a[5]",
    "x.new_tensor([float(s[5:])])", "torch.tensor(float(s.split('=')[1]))",
    "nn.ModuleDict({'a': nn.Identity()})['a'](x) * len(s)", "matched(s)", "walrus(s)", "slices(s)", "unpacked(s)",
    "extended(s)", "in_place(s)", "nested(s)", "looped(s)", "grown(s)", "parsed(s)", "raised(s)", "keyed(s)", "named(s)",
    "through_global(s)",
]
# fmt: on


def outcome(f, *args):
    try:
        result = f(*args)
    except Exception as e:
        result = type(e).__name__, str(e)
    return re.sub("0x[0-9a-f]+", "", repr((result, args[-1])))


def read_by(source, read):
    """A function that makes v (and s) and reads it, in a module of its own."""
    scope = dict(globals())
    exec(f"def fn(x, k, o, d=None):\n    {source}\n    y = x * 2\n    return y, {read}\n", scope)
    return scope["fn"]


@pytest.mark.parametrize("read", TEXT_READS)
def test_texts(read, capsys):
    for name, source in TEXT_SOURCES.items():
        fn = read_by(source, read)
        compiled = ccompile.compile(fn)
        for call, value in enumerate(TEXT_VALUES):
            outcomes = []
            for f in (fn, compiled):
                args = torch.full((3,), value), value, types.SimpleNamespace(), {"loss=1.000": 1, 3: 4}
                outcomes.append((outcome(f, *args), capsys.readouterr().out))
            assert outcomes[0] == outcomes[1], (name, call)


# ---- numbers ----------------------------------------------------------------------------------------------------------

VALUES = (3, 4, 3, 7, 5, 0, 12, 3, 1, 9, 4, 2)
HELD = [0]

SOURCES = {
    "argument": "v = k",
    "size": "v = x.size(0)",
    "shape": "v = x.shape[0]",
    "numel": "v = x.numel()",
    "length": "v = len(o.zeros)",
    "attribute": "v = o.k",
    "counter": "o.k = o.k * 1; v = o.k",
    "dict": "v = o.by_name['k']",
    "list": "v = o.items[0]",
    "global": "v = HELD[0]",
    "function": "v = held()",
    "tuple": "v, _ = (k, x)",
    "computed": "v = k * 2 // 2",
    "text": "v = int(str(k))",
    "int(item)": "v = int(x.sum().item())",
    "item": "v = x.int().sum().item()",
    "int(tensor)": "v = int(x.sum())",
    "tolist": "v = x.int().sum(0, keepdim=True).tolist()[0]",
    "float": "v = float(k)",
    "half": "v = k * 0.5",
    "float item": "v = x.sum().item()",
    "bool": "v = k > 3",
    "np.float64": "v = np.float64(k)",
    "np.int64": "v = np.int64(k)",
    "np.float32 of a tensor": "v = x.sum().numpy()[()]",
}


def held():
    return HELD[0]


def ints_in_set(v):
    q, t = {1, v}, collections.deque([v, 2])
    q.add(v)
    q.discard(3)
    t.rotate(1)
    return len(q), t, t.count(1), v in t, sorted(q)


def in_list(v):
    r = [1, v, 3]
    r.sort()
    r.append(v)
    r.insert(0, v + 1)
    r.remove(v)
    return r, r.index(3), max(r), sum(r), r[::-1], r == [1, 3], v in r


def in_dict(v):
    d = {1: 2, v: 4}
    d[v] += 1
    d.setdefault(v, 9)
    d.update({v + 1: v})
    return d, list(d.items()), d.pop(v), v in d, sorted(d), max(d.values()), min(d, key=d.get)


def while_loop(v):
    n = 0
    while v > 1:
        v = v // 2 if v % 2 == 0 else v - 1
        n += 1
    return n, v


def for_else(v):
    for i in range(20):
        if i == v:
            break
    else:
        return "none"
    return i


def matched_number(v):
    match v:
        case 3 | 4:
            return "a"
        case int() if v > 5:
            return "b"
        case [*_]:
            return "c"
        case _:
            return v


def raising(v):
    try:
        return 10 // (v - 3), [1, 2, 3, 4][v]
    except ZeroDivisionError as e:
        return str(e)
    except IndexError as e:
        return str(e), v
    finally:
        GLOBALS["n"] = v


def special_methods(v):
    class C:
        k = v

        def __len__(self):
            return v

        def __bool__(self):
            return v > 3

        def __index__(self):
            return v % 3

        def __eq__(self, o):
            return o == v

        def __hash__(self):
            return v

        def __lt__(self, o):
            return v < o

        def __contains__(self, q):
            return q == v

        def __getitem__(self, q):
            return q + v

        def __call__(self, q):
            return q * v

        def __str__(self):
            return f"C{v}"

        def __iter__(self):
            return iter([v, v + 1])

    c = C()
    return (
        len(c),
        bool(c),
        [1, 2, 3][c],
        c == 3,
        hash(c),
        c < 3,
        3 in c,
        c[1],
        c(2),
        str(c),
        list(c),
        sorted([c.k, 4]),
        max(c),
        {c: 1}.get(c),
    )


def defaults(v):
    def f(a, b=v, *, c=v + 1):
        return a + b + c

    return f(1), f.__defaults__, f(1, 2, c=v)


def starred(v):
    a, *b = range(v + 1)
    c = [*b, v]
    return a, b, c, max(*c, 0), (lambda *q, **k: (q, k))(*c, z=v)


def generated(v):
    def g():
        for i in range(v):
            q = yield i + v
            if q:
                return q

    return list(g()), sum(g()), next(g(), None)


def accumulated(v):
    t = 0
    h = []
    for i in range(v % 5 + 1):
        t += i * v
        h.append(t)
    return t, h, h[-1], len(h)


def asserted(v):
    try:
        assert v > 3, f"bad {v}"
    except AssertionError as e:
        return str(e), e.args
    return v


def nested_number(v):
    n = {"a": [v, {"b": (v, v + 1)}]}
    n["a"][1]["b"] += (v,)
    return n, n["a"][1]["b"][-1] * 2, n["a"][0] == 3


def global_number(v):
    GLOBALS["c"] = GLOBALS.get("c", 0) * 0 + v
    return GLOBALS["c"], GLOBALS["c"] > 3


def bounded_deque(v):
    d = collections.deque(maxlen=3)
    for i in range(v + 2):
        d.append(i * v)
    return list(d), d[0], d[-1], sum(d)


def grown_set(v):
    s = set()
    for i in range(v % 6):
        s.add(i % 3)
    return len(s), s == {0, 1, 2}, s <= {0, 1}, sorted(s)


def compared(v):
    return [v < 3, v == 3.0, v >= 4, v != 4, 3 < v <= 7, (v > 3) + (v > 4), v == "3", v is None]


@functools.lru_cache(None)
def tripled(v):
    return v * 3


def memoised(v):
    return tripled(v), tripled(v + 1)


def recursive(v):
    return v if v < 2 else recursive(v - 1 if v < 8 else 7) + 1


def comprehensions(v):
    return [(i, j) for i in range(v % 4) for j in range(i) if (i + j) % 2], {i for i in range(v % 4)}, {str(i): i for i in range(v % 4)}


def padded(v):
    return "a".ljust(v % 9, ".") + "|" + "b".rjust(v % 9) + f"{'c':^{v % 9 + 1}}"


def written_out(v):
    s = str(v) + "px"
    return s, s.rstrip("px"), int(s[:-2]), s == "3px", s.startswith("3"), {s: 1}, len(s)


def switched(v):
    return {3: lambda: "three", 4: lambda: "four"}.get(v, lambda: v)()


def as_float(v):
    return float(v) == 3.0, float(v).is_integer(), int(float(v)), v / 1 == 3, (v + 0.5) // 1, round(v + 0.5)


class Colour(enum.Enum):
    A = 3
    B = 4


class Level(enum.IntEnum):
    A = 3
    B = 4


def enums(v):
    try:
        return Colour(v), Level(v), Level(v) == v, Colour(v).name
    except ValueError as e:
        return str(e)


def suppressed(v):
    with contextlib.suppress(KeyError):
        return {3: 1, 4: 2}[v]
    return -v


def deleted(v):
    r = list(range(6))
    del r[v % 6]
    d = {i: i for i in range(6)}
    del d[v % 6]
    return r, d


def augmented(v):
    r = [1, 2, 3, 4]
    r[v % 4] += v
    r[v % 4 :] = [v]
    a = b = v
    a += 1
    b *= 2
    return r, a, b


def heaps(v):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, v)
    return heapq.heappop(h), h, heapq.nlargest(2, h)


def bits(v):
    return [int(c) for c in bin(v)[2:]], [(v >> i) & 1 for i in range(4)], v & -v, int("101", 2) * v, int(str(v), 8) if v < 8 else 0


# fmt: off
READS = [
    "v", "v + 1", "-v", "~v", "abs(v)", "v & 3", "v | 8", "v ^ 5", "v << 2", "v >> 1", "v // 3", "v % 3", "v / 2", "v ** 2",
    "2 ** v", "divmod(v, 3)", "pow(v, 2, 7)", "v * 'ab'", "[0] * v", "(1,) * v", "v * [x]", "b'a' * v", "'a' * v",
    "len('a' * v)", "len([0] * v)", "range(v)", "list(range(v))", "len(range(v))", "range(v)[-1]", "list(range(0, v, 2))",
    "list(range(v, 0, -1))", "v in range(5)", "sum(range(v))", "[i for i in range(v)]", "{i: i for i in range(v)}",
    "sum(i for i in range(v))", "list(zip(range(v), 'abcdefghijklmnop'))", "list(enumerate(range(v)))",
    "[10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130][v]", "'abcdefghijklmnopq'[v]", "'abcdefghijklmnopq'[:v]",
    "'abcdefghijklmnopq'[v:]", "[1, 2, 3, 4, 5][v:]", "[1, 2, 3, 4, 5][:v]", "[1, 2, 3, 4, 5][-v:]", "(1, 2, 3, 4, 5)[::v]",
    "slice(v)", "slice(0, v).indices(5)", "[1, 2, 3, 4, 5][slice(1, v)]", "{3: 'a', 4: 'b'}.get(v)",
    "{3: 'a', 4: 'b'}.get(v, v)", "v in {3, 4}", "v in [3, 4]", "v in (3, 4.0)", "{v: 1}", "{v}", "{v, 3}", "{v: 1, 3: 2}",
    "len({v, 3, 4})", "[v, 3].index(3)", "[v, 3, v].count(v)", "v == 3", "v != 3", "v < 4", "v <= 3", "v > 3 > 1", "1 < v < 5",
    "v is v", "v is 3", "bool(v)", "not v", "v and 3", "v or 3", "v if v > 3 else -v", "x if v % 2 else -x", "min(v, 4)",
    "max(v, 4)", "max([v, 4, 1])", "min((v, 4), default=1)", "max(v, 4, key=lambda q: -q)", "sorted([v, 4, 1])",
    "sorted([v, 4, 1], reverse=True)", "sorted([v, 4], key=lambda q: -q)", "sum([v, 1])", "sum([v, 1], v)",
    "math.prod([v, 2])", "math.gcd(v, 4)", "math.factorial(v % 6)", "math.comb(v + 3, 2)", "math.sqrt(v)", "math.log(v + 1)",
    "math.floor(v / 2)", "math.ceil(v / 2)", "math.isqrt(v)", "math.isclose(v, 3)", "math.copysign(1, v)", "math.fmod(v, 3)",
    "math.hypot(v, 4)", "math.log2(v + 1)", "math.exp(v % 5)", "math.sin(v)", "math.trunc(v)", "int(v)", "float(v)",
    "complex(v)", "complex(v, 1)", "bool(v - 3)", "round(v)", "round(v / 3, 2)", "round(v, -1)", "str(v)", "repr(v)", "f'{v}'",
    "f'{v:03d}'", "f'{v:>8}'", "f'{v!r:>5}'", "f'{v:x}'", "f'{v:,}'", "f'{v:.2f}'", "f'{v:e}'", "f'{v:{v}}'", "'%d' % v",
    "'%5.1f' % v", "'%s-%s' % (v, x.size(0))", "'{}'.format(v)", "'{0:b} {0:o}'.format(v)", "format(v, '05d')", "hex(v)",
    "bin(v)", "oct(v)", "chr(65 + v % 20)", "len(str(v))", "str(v)[0]", "int(str(v))", "str(v).zfill(4)", "v.bit_length()",
    "v.to_bytes(4, 'big')", "v.bit_count()", "v.real", "v.imag", "v.numerator", "v.conjugate()", "v.as_integer_ratio()",
    "v.__add__(1)", "v.__class__", "type(v)", "type(v) is int", "isinstance(v, int)", "isinstance(v, (float, bool))",
    "hash(v) == hash(3)", "hash((v, 1)) == hash((3, 1))", "(v, 1) == (3, 1)", "(v, 1) < (3, 2)", "[v] == [3]",
    "{'a': v} == {'a': 3}", "{v} == {3}", "{v} | {3}", "{v} & {3}", "{v} - {3}", "{3, 4} >= {v}", "operator.add(v, 1)",
    "operator.lt(v, 3)", "operator.index(v)", "operator.mul([1], v)", "operator.itemgetter(v % 2)([5, 6])",
    "operator.contains([3], v)", "functools.reduce(lambda a, b: a * b, [v, 2])", "functools.reduce(operator.add, [v, 2, 3])",
    "functools.partial(pow, v)(2)", "list(map(lambda q: q + v, [1, 2]))", "list(map(abs, [v, -v]))",
    "list(filter(lambda q: q > v, [2, 3, 4, 5]))", "list(itertools.islice(range(100), v))",
    "list(itertools.islice(itertools.count(v), 2))", "list(itertools.repeat(1, v))", "list(itertools.accumulate([v, 1]))",
    "list(itertools.combinations(range(v % 5), 2))", "list(itertools.chain(range(v % 3), [v]))",
    "list(itertools.product(range(v % 3), repeat=2))", "list(itertools.takewhile(lambda q: q < v, range(9)))",
    "list(reversed(range(v)))", "any(q == v for q in (3, 4))", "all(q < v for q in (3, 4))",
    "next((q for q in (3, 4) if q == v), None)", "collections.deque(range(9), maxlen=v)",
    "collections.Counter([v, 3, 3]).most_common(1)", "collections.OrderedDict([(v, 1)])", "collections.deque([1, 2, 3], v)",
    "np.arange(v)", "np.zeros(v).shape", "np.float32(v) * 2", "np.array([v, 1]).sum()", "np.linspace(0, 1, v)",
    "np.int64(v) + 1", "torch.arange(v)", "torch.zeros(v)", "torch.full((2,), v)", "torch.tensor(v)", "torch.tensor([v, 1])",
    "torch.ones(2, v)", "torch.linspace(0, 1, v)", "torch.eye(v)", "torch.randperm(v).sort()[0]", "torch.Size([v, 2])",
    "torch.Size([v, 2]).numel()", "x * v", "x + v", "x ** (v % 4)", "x / (v + 1)", "x // (v + 1)", "x > v",
    "x.add(x, alpha=v)", "x.clamp(max=v)", "x.repeat(v % 4 + 1)", "x.expand(v, -1) if x.dim() == 1 else x", "x[:v]",
    "x[v % 3]", "x[..., v % 3]", "x[-(v % 3) - 1]", "x.roll(v)", "x.view(-1, 1).repeat(1, v)", "x.narrow(0, 0, v % 3)",
    "x.split(v + 1)", "x.chunk(v + 1)[0]", "x.unsqueeze(v % 2)", "x.sum(v % 1)", "x.topk(v % 3)[0]", "x.new_zeros(v)",
    "x.new_full((2,), v)", "x.masked_fill(x > v, v)", "torch.where(x > v, x, v)", "torch.nn.functional.pad(x, (0, v))",
    "torch.nn.functional.one_hot(torch.tensor(v % 3), v + 1)", "x.tile(v)", "x.to(torch.float64) * v", "x.int() * v",
    "x.int() << (v % 3)", "torch.cat([x] * (v + 1))", "torch.stack([x] * (v + 1)).shape", "torch.arange(v, v + 3)",
    "torch.tril(torch.ones(v, v), v - 2)", "x.index_select(0, torch.tensor([v % 3]))", "x.cumsum(0)[v % 3]",
    "nn.functional.dropout(x, 0.0 if v else 0.5)", "x.reshape(1, -1).expand(v, -1)", "copy.copy(v)", "copy.deepcopy([v])",
    "pickle.loads(pickle.dumps(v))", "json.dumps({'a': v})", "fractions.Fraction(v, 3)", "decimal.Decimal(v) / 3",
    "struct.pack('i', v)", "array.array('i', [v])", "datetime.timedelta(days=v)", "bisect.bisect([1, 2, 3, 4], v)",
    "heapq.nsmallest(2, [v, 4, 1])", "statistics.mean([v, 4])", "cmath.sqrt(v)", "bytes(v)", "bytearray(v)",
    "bytes([v % 256])", "memoryview(b'abcdef')[:v].tobytes()", "'abc'.ljust(v)", "'a,b,c'.split(',', v)",
    "'aaa'.replace('a', 'b', v)", "'abcabc'.find('a', v)", "' '.join(str(i) for i in range(v))",
    "string.ascii_lowercase[v % 26]", "random.Random(v).random()", "eval('v + 1', {'v': v})", "types.SimpleNamespace(a=v)",
    "Row(v)", "Row(v) == Row(3)", "Pair(v, 1)", "Pair(v, 1) == (3, 1)", "Exception(v).args", "repr(ValueError(v))",
    "str(KeyError(v))", "ints_in_set(v)", "in_list(v)", "in_dict(v)", "while_loop(v)", "for_else(v)", "matched_number(v)",
    "raising(v)", "special_methods(v)", "defaults(v)", "starred(v)", "generated(v)", "accumulated(v)", "asserted(v)",
    "nested_number(v)", "global_number(v)", "bounded_deque(v)", "grown_set(v)", "compared(v)", "memoised(v)", "recursive(v)",
    "comprehensions(v)", "padded(v)", "written_out(v)", "switched(v)", "as_float(v)", "enums(v)", "suppressed(v)",
    "deleted(v)", "augmented(v)", "heaps(v)", "bits(v)",
]
# fmt: on


def state_of(value):
    """The arguments of a call, all of them made of its number; random streams too."""
    HELD[0] = value
    GLOBALS.clear()
    random.seed(value)
    torch.manual_seed(value)
    np.random.seed(value)
    holder = types.SimpleNamespace(zeros=[0] * value, k=value, by_name={"k": value, "z": 1}, items=[value, 5])
    return torch.ones(value), value, holder


THOROUGH = ("argument", "size", "attribute", "list", "int(item)", "float item", "np.float64", "np.float32 of a tensor")


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("source", SOURCES)
def test_numbers(source, part):
    """All reads of some sources, every third of the others, which share code with them."""
    step, first = (1, 0) if source in THOROUGH else (3, list(SOURCES).index(source) % 3)
    for read in READS[first::step][part::4]:
        fn = read_by(SOURCES[source], read)
        compiled = ccompile.compile(fn)
        for call, value in enumerate(VALUES):
            expected = outcome(fn, *state_of(value)), GLOBALS.copy()
            assert (outcome(compiled, *state_of(value)), GLOBALS) == expected, (read, call)
