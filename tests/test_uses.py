"""Containers with numbers that differ between calls, in everything that Python does with them: each kind of container from each
source (an argument, an attribute, made in the call, across a break ...), each read, call and store. Results and all containers are
eager's, with the order of sets and dicts."""

# ruff: noqa: F401 (the expressions use these modules)
import collections
import copy
import heapq
import itertools
import operator
import re
import types

import ccompile
import pytest
import torch


class SubList(list):
    pass


class SubDict(dict):
    pass


class Doubling(dict):
    def __missing__(self, key):
        return key * 2


MAKE = {
    "list": lambda k: [k, 1, k + 1, 2],
    "list of texts": lambda k: [f"x{k}", "a", "b"],
    "list of lists": lambda k: [[k], [1, k]],
    "list of tuples": lambda k: [(k, "a"), (1, "b")],
    "SubList": lambda k: SubList([k, 1, 2]),
    "UserList": lambda k: collections.UserList([k, 1]),
    "deque": lambda k: collections.deque([k, 1, 2], maxlen=4),
    "tuple": lambda k: (k, 1, k + 1),
    "Size": lambda k: torch.Size([k, 2]),
    "range": lambda k: range(k, k + 3),
    "dict": lambda k: {k: 1, "a": k, 2: "b"},
    "SubDict": lambda k: SubDict({k: 1, "a": k}),
    "Doubling": lambda k: Doubling({k: 1, "a": k}),
    "OrderedDict": lambda k: collections.OrderedDict([(k, 1), ("a", k)]),
    "defaultdict": lambda k: collections.defaultdict(list, {k: [1], "a": [k]}),
    "Counter": lambda k: collections.Counter([k, 1, 1]),
    "ChainMap": lambda k: collections.ChainMap({k: 1}, {1: k, "a": 3}),
    "mappingproxy": lambda k: types.MappingProxyType({k: 1, "a": k}),
    "set": lambda k: {k, 1, 2},
    "frozenset": lambda k: frozenset({k, 1}),
    "str": lambda k: f"a{k}b",
    "bytes": lambda k: b"a%d" % k,
    "bytearray": lambda k: bytearray(b"a%d" % k),
    "namespace": lambda k: types.SimpleNamespace(a=k, b=1),
}

# fmt: off
SEQUENCE = [
    "c.index(1)", "c.count(k)", "c[0]", "c[-1]", "c[1:]", "c[::-1]", "c * 2", "c + c", "k in c", "len(c)", "list(c)",
    "sorted(c, key=str)", "max(c, key=str)", "c == type(c)(c)", "tuple(c)", "[v for v in c]", "dict(enumerate(c))",
    "list(zip(c, c))", "(lambda *a: a)(*c)", "list(reversed(c))", "set(map(str, c))", "str(c)", "repr(c)",
    "hash(tuple(map(str, c)))", "any(v == k for v in c)", "next(iter(c))", "bool(c)", "[*c, *c]",
    "list(itertools.chain(c, c))", "list(map(str, c))", "sum(1 for _ in c)", "f'{c}'", "copy.copy(c)", "copy.deepcopy(c)",
    "operator.itemgetter(0)(c)", "c < c", "c is c", "isinstance(c, (list, tuple))", "list(filter(None, c))",
    "','.join(map(str, c))",
]
LIST_CALLS = [
    "c.append(k)", "c.extend([k, 1])", "c.insert(1, k)", "c.pop()", "c.pop(0)", "c.remove(1)", "c.reverse()",
    "c.sort(key=str)", "c.clear()", "c.copy()", "c.__setitem__(0, k)", "c.__delitem__(0)", "heapq.heapify(c)",
    "c.__iadd__([k])",
]
LIST_STORES = [
    "c[0] = k", "c[-1] = k + 1", "del c[0]", "del c[-1:]", "c[1:2] = [k, k]", "c += [k]", "c *= 2", "c[0] += 1",
    "c[0], c[1] = c[1], c[0]",
]
DEQUE = [
    "c.appendleft(k)", "c.popleft()", "c.rotate(1)", "c.extendleft([k, 1])", "c.maxlen", "c.count(1)",
]
DICT = [
    "c.get(k)", "c.get(k + 1, 5)", "c.get('a')", "c['a']", "c[k]", "k in c", "'z' in c", "len(c)", "list(c)", "list(c.keys())",
    "list(c.values())", "list(c.items())", "dict(c)", "{**c}", "str(c)", "repr(c)", "c == dict(c)", "sorted(c, key=str)",
    "max(c.values(), key=str)", "next(iter(c.items()))", "c.keys() & {1, 'a'}", "c.keys() | {1}", "list(reversed(c))",
    "bool(c)", "[v for v in c.values()]", "{v: q for q, v in c.items() if isinstance(v, int)}", "c | {1: 2}", "{1: 3} | c",
    "copy.copy(c)", "copy.deepcopy(c)", "sum(1 for v in c if v == k)", "c.keys() == {k, 'a'}", "list(zip(c, c.values()))",
    "(lambda **q: q)(**{str(q): v for q, v in c.items()})", "c.__getitem__('a')", "c.__contains__(k)",
    "hasattr(c, 'move_to_end')", "isinstance(c, dict)", "c is c", "(k, 1) in c.items()", "1 in c.values()", "min(c, key=str)",
    "tuple(c.items())[0]", "list(enumerate(c))",
]
DICT_CALLS = [
    "c.pop('a')", "c.pop('z', k)", "c.popitem()", "c.setdefault('z', k)", "c.setdefault('a', 9)", "c.update({k: 7})",
    "c.update(z=k)", "c.update([(k, 3)])", "c.clear()", "c.copy()", "c.__setitem__('q', k)", "c.__delitem__('a')",
]
DICT_STORES = [
    "c['q'] = k", "c[k] = 5", "del c['a']", "c['a'] = k + 1", "c |= {'z': k}", "c['a'] += c['a']", "c[k], c['a'] = 1, 2",
]
COUNTER = [
    "c.most_common(1)", "c.elements().__next__()", "c.total()", "c - collections.Counter([1])", "c + c", "c.subtract([1])",
    "c[k]", "c['no']", "c & c", "+c",
]
SET = [
    "k in c", "len(c)", "sorted(c)", "c | {9}", "c & {1, k}", "c - {1}", "c ^ {1, 5}", "c <= {1, 2, k}", "c == {1, 2, k}",
    "c.union([7])", "c.intersection([1])", "c.difference({1})", "c.isdisjoint({8})", "c.issubset({1, 2, k, 3})", "str(len(c))",
    "bool(c)", "list(c)", "max(c)", "sum(c)", "frozenset(c)", "copy.copy(c)", "{v + 1 for v in c}", "tuple(c)",
    "next(iter(c))", "hash(frozenset(c)) == 1", "c.symmetric_difference({1})", "sorted(map(str, c))", "any(v == k for v in c)",
]
SET_CALLS = [
    "c.add(k + 1)", "c.discard(1)", "c.remove(1)", "c.pop()", "c.clear()", "c.update({k, 8})", "c.intersection_update({1})",
    "c.difference_update({1})", "c.copy()", "c.symmetric_difference_update({1, 9})",
]
SET_STORES = [
    "c |= {k + 2}", "c -= {1}", "c &= {k, 1}", "c ^= {4}",
]
TEXT = [
    "c.upper()", "c + 'x'", "c * 2", "c[1]", "c[1:]", "len(c)", "c.find('b')", "c.split('1')", "c.replace('a', 'z')",
    "'1' in c", "c == 'a3b'", "c < 'a4'", "list(c)", "c.startswith('a1')", "c.encode() if isinstance(c, str) else c.decode()",
    "c.strip('ab')", "sorted(c)", "hash(c) == 1", "{c: 1}", "c.isalnum()", "c.join(['1', '2'])", "f'{c:>9}'", "c.center(9)",
    "c.partition('3')", "max(c)", "[q for q in c]", "c in {'a3b': 1}", "int(c[1:-1])", "c.zfill(8)", "c.rjust(7, '.')",
    "c.count('1')",
]
BYTES = [
    "c + b'x'", "c[0]", "c[1:]", "len(c)", "c.decode()", "list(c)", "c == b'a3'", "c.find(b'1')", "c.hex()", "bytes(c)",
    "sum(c)", "c.split(b'1')", "3 in c", "c * 2", "c.upper()", "int(c[1:])", "bytearray(c)", "memoryview(c)[0]",
]
BYTEARRAY = [
    "c.append(3)", "c.extend(b'z')", "c.pop()",
]
RANGE = [
    "list(c)", "len(c)", "c[1]", "c[-1]", "k in c", "c.start", "c.stop", "sum(c)", "c[1:]", "c == range(3, 6)",
    "list(reversed(c))", "c.index(k)", "c.count(k)", "max(c)", "hash(c) == 1", "str(c)", "x.new_zeros(len(c))",
]
ORDERED = ["c.move_to_end(k)", "c.move_to_end('a', last=False)", "c.popitem(last=False)", "list(c.items())"]
DEFAULT = ["c['new']", "c['new'].append(k)", "c[k].append(k)", "c.default_factory"]
NAMESPACE = ["c.a", "vars(c)", "str(c)", "c == types.SimpleNamespace(a=3, b=1)", "c.__dict__['a']", "setattr(c, 'b', k)"]
NAMESPACE_STORES = ["c.a = k + 1", "c.z = k", "del c.b", "c.a += 1"]
# fmt: on

LISTS = SEQUENCE + LIST_CALLS, LIST_STORES
DICTS = DICT + DICT_CALLS, DICT_STORES
USES = {
    **dict.fromkeys(("list", "SubList", "UserList", "list of texts", "list of lists"), LISTS),
    **dict.fromkeys(("tuple", "list of tuples", "Size"), (SEQUENCE, [])),
    "deque": (SEQUENCE + LIST_CALLS + DEQUE, LIST_STORES),
    **dict.fromkeys(("dict", "SubDict", "Doubling"), DICTS),
    "OrderedDict": (DICT + DICT_CALLS + ORDERED, DICT_STORES),
    "defaultdict": (DICT + DICT_CALLS + DEFAULT, DICT_STORES),
    "Counter": (DICT + DICT_CALLS + COUNTER, DICT_STORES),
    **dict.fromkeys(("mappingproxy", "ChainMap"), (DICT, [])),
    "set": (SET + SET_CALLS, SET_STORES),
    "frozenset": (SET, []),
    "str": (TEXT, []),
    "bytes": (BYTES, []),
    "bytearray": (BYTES + BYTEARRAY, []),
    "range": (RANGE, []),
    "namespace": (NAMESPACE, NAMESPACE_STORES),
}

SOURCES = {
    "argument": "c = a",
    "attribute": "c = o.c",
    "item": "c = o.d['c']",
    "global": "c = HELD[0]",
    "made": "c = make(k)",
    "made before a break": "c = make(k); print(end='')",
    "argument before a break": "c = a; print(end='')",
    "made behind a break": "c = make(int(x.sum().item()))",
    "copy": "c = copy.copy(a)",
}

VALUES = (3, 4, 3, 7, 5, 1, 2, 3, 9, 4)
HELD = [None]


class World:
    """The containers of one of the two sides. anew: all are made again in each call, not only in every fourth."""

    def __init__(self, make, anew):
        self.make, self.anew, self.held, self.o = make, anew, None, types.SimpleNamespace(c=None, d={})

    def call(self, fn, i, k):
        if self.anew or i % 4 == 0:
            self.a, self.held, self.o.c, self.o.d["c"] = (self.make(k) for _ in range(4))
        HELD[0] = self.held
        try:
            result = fn(torch.ones(k), k, self.a, self.o)
        except Exception as e:
            result = type(e).__name__, str(e)
        return re.sub("0x[0-9a-f]+", "", repr((result, self.a, self.o, self.held)))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", USES)
def test_uses(kind, source):
    """A third of the uses for each source: another one for the next source."""
    reads, stores = USES[kind]
    uses = [f"r = {read}" for read in reads] + [f"{store}; r = 0" for store in stores]
    for number, use in enumerate(uses[list(SOURCES).index(source) % 3 :: 3]):
        scope = {**globals(), "make": MAKE[kind]}
        lines = ["def fn(x, k, a, o):", SOURCES[source], "y = x * 2", use, "n = len(c) if hasattr(c, '__len__') else 0"]
        exec("\n    ".join([*lines, "return y, r, n, c"]), scope)
        compiled, anew = ccompile.compile(scope["fn"]), number % 2 == 0
        worlds = World(MAKE[kind], anew), World(MAKE[kind], anew)
        for i, k in enumerate(VALUES):
            assert worlds[1].call(compiled, i, k) == worlds[0].call(scope["fn"], i, k), (use, i, k)
