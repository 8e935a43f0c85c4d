"""What reads a number from a tensor, or a text made of one (f"{x.mean().item():.3f}"): its length, its letters, its order, what
it is a key of. Such an event is a break, or its operand is a constant under a guard; moving it is neither (csrc/rec/number.c)."""

# ruff: noqa: F401 (the expressions use these modules)
import collections
import copy
import dataclasses
import functools
import io
import itertools
import json
import operator
import pickle
import re
import sys
import types

import ccompile
import pytest
import torch
from torch import nn

VALUES = (1.0, 2.5, 3.0, 11.25, 120.5, 1.0, 7.0, 3.0, 999.0, 1000.5, -2.5, 0.0, 10.0, 3.0)
GLOBALS = {}

SOURCES = {
    "item": "v = x.mean().item(); s = f'loss={v:.3f}'",
    "argument": "v = k; s = f'loss={v:.3f}'",
    "float": "v = float(x.mean()) * 2; s = 'loss=' + str(v)",
    "computed": "v = k * 1.5; s = 'loss=%s' % v",
}


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
READS = [
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


def outcome(f, value):
    try:
        result = f(torch.full((3,), value), value, {"loss=1.000": 1, 3: 4}, types.SimpleNamespace())
    except Exception as e:
        result = type(e).__name__, str(e)
    return re.sub("0x[0-9a-f]+", "", repr(result))


@pytest.mark.parametrize("read", READS)
def test_reads(read, capsys):
    for name, source in SOURCES.items():
        scope = dict(globals())
        exec(f"def fn(x, k, d, o):\n    {source}\n    y = x * 2\n    return y, {read}\n", scope)
        compiled = ccompile.compile(scope["fn"])
        for call, value in enumerate(VALUES):
            expected, printed = outcome(scope["fn"], value), capsys.readouterr().out
            assert (outcome(compiled, value), capsys.readouterr().out) == (expected, printed), (name, call)
