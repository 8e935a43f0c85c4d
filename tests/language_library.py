"""functools, itertools and collections (see language_cases.py)."""

import bisect
import collections
import collections.abc
import functools
import heapq
import inspect
import itertools
import operator

import torch
from language_cases import SINCE_313, case, made


# ---- functools -------------------------------------------------------------------------------------------------------
def affine(x, a=1, *, b=0):
    return x * a + b


@case
def functools_partial(x):
    f = functools.partial(affine, a=2)
    g = functools.partial(f, b=3)
    return f(x), g(x), g(x, b=1), g.func is affine, g.keywords, functools.partial(torch.add, x)(1)


@case
def functools_partialmethod(x):
    return Partial().twice(x), Partial().by(x, 3)


class Partial:
    def by(self, x, k):
        return x * k

    twice = functools.partialmethod(by, k=2)


@case
def functools_reduce(x):
    f = functools.reduce(lambda a, b: a * 2 + b, [x, x + 1, 3])
    return f, functools.reduce(operator.mul, (1, 2, 3, 4)), functools.reduce(lambda a, b: a + [b], "ab", [])


@case
def functools_wraps(x):
    @functools.wraps(affine)
    def f(*args, **kw):
        return affine(*args, **kw) + 1

    return f(x, b=1), f.__name__, f.__wrapped__ is affine, list(inspect.signature(f).parameters)


@functools.lru_cache(maxsize=None)
def cached(n):
    return [n * 2]


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@case
def functools_lru_cache(x):
    a, b = cached(3), cached(3)
    return x * a[0] + fibonacci(20), a is b


class Output(collections.OrderedDict):
    """As diffusers and transformers return results."""

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


@case
def ordered_dict_views(x, given=collections.OrderedDict(a=1, bb=2)):  # noqa: B008
    out = Output(sample=x)
    out.sample = x + sum(given.values())
    keys = given.keys()
    named = [(k, v * 2) for k, v in given.items()]
    return out, "a" in keys, "c" in keys, keys, list(keys), named, list(out.items()), len(out.values())


@made
def import_relative():
    space = {"__package__": "json", "__name__": "json.user"}
    source = """
def f(x):
    from . import JSONDecoder, decoder
    from .encoder import JSONEncoder
    import json.scanner as scanner
    return x + decoder.FLAGS.value, JSONDecoder is decoder.JSONDecoder, JSONEncoder.__name__, scanner.__name__
"""
    exec(source, space)
    return space["f"]


class Recipe:
    def __init__(self, order):
        self.order = order


@functools.lru_cache(256)
def recipe_of(pattern, names=()):
    return Recipe([pattern.index(c) for c in sorted(pattern)])


@functools.lru_cache(256)
def sizes_by(recipe, shape, named):
    return [shape[i] for i in recipe.order], {"n": len(shape), **dict(named)}


@case
def functools_lru_cache_of_objects(x, **named):
    """As einops does: what one cached function gives is looked up in another one."""
    named = {"h": 2, **named}
    recipe = recipe_of("cab", names=tuple(named))
    y = x.reshape(1, *x.shape)
    sizes, known = sizes_by(recipe, tuple(y.shape), tuple(named.items()))
    return y.permute(recipe.order).reshape(sizes) * known["n"] + known["h"], recipe.order


class Grid:
    def __init__(self, n):
        self.n = n

    @functools.lru_cache(None)  # noqa: B019
    def sizes(self, k):
        return [self.n] * k

    def __call__(self, x):
        return x.sum() * sum(self.sizes(2)), self.sizes(3)


@made
def functools_lru_cache_of_a_method():
    grids = [Grid(2), Grid(5)]
    return lambda x: [grid(x) for grid in grids], grids[0].n


@made
def functools_lru_cache_inside():
    calls = []

    @functools.lru_cache(maxsize=2)
    def table(n):
        calls.append(n)
        return torch.arange(n).float()

    return lambda x: x + table(3) * table(1), calls


class WithCached:
    def __init__(self, v):
        self.v, self.n = v, 0

    @functools.cached_property
    def norm(self):
        self.n += 1
        return self.v.norm()


@case
def functools_cached_property(x):
    o = WithCached(x)
    return o.norm + o.norm, o.n, "norm" in vars(o)


@made
def functools_cached_property_outside():
    o = WithCached(torch.ones(3))
    return (lambda x: x * o.norm), o


@functools.singledispatch
def describe(v):
    return "other"


@describe.register
def _(v: int):
    return "int"


@describe.register(list)
def _(v):
    return [describe(u) for u in v]


@describe.register(torch.Tensor)
def _(v):
    return v * 2


@case
def functools_singledispatch(x):
    return describe(x), describe(3), describe([1, "s", x]), describe(None)


class Dispatching:
    @functools.singledispatchmethod
    def f(self, v):
        return "other"

    @f.register
    def _(self, v: int):
        return v + 1


@case(hit=not SINCE_313)  # the library looks in a WeakKeyDictionary there
def functools_singledispatchmethod(x):
    return x, Dispatching().f(1), Dispatching().f("s")


@functools.total_ordering
class Version:
    def __init__(self, n):
        self.n = n

    def __eq__(self, o):
        return self.n == o.n

    def __lt__(self, o):
        return self.n < o.n


@case
def functools_total_ordering(x):
    a, b = Version(1), Version(2)
    return x, a <= b, a >= b, a > b, max(a, b).n, sorted([b, a])[0].n


@case
def functools_cmp_to_key(x):
    return x, sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))


# ---- itertools -------------------------------------------------------------------------------------------------------
@case
def itertools_chain(x):
    return list(itertools.chain([x], (1, 2), "a")), [*itertools.chain.from_iterable([[x + 1], [3]])]


@case
def itertools_zip_longest(x):
    return list(itertools.zip_longest([x, x + 1], "a", fillvalue=0))


@case
def itertools_product(x):
    return [x * a + b for a, b in itertools.product((1, 2), (3, 4))], len(list(itertools.product("ab", repeat=3)))


@case
def itertools_accumulate(x):
    return list(itertools.accumulate([x, x * 2, x * 3])), list(itertools.accumulate([1, 2, 3], operator.mul, initial=5))


@case
def itertools_accumulate_lambda(x):
    return list(itertools.accumulate([x, x + 1], lambda a, b: a * 0.5 + b))


@case
def itertools_islice(x):
    return [x * i for i in itertools.islice(itertools.count(2, 3), 1, 4)], list(itertools.islice("abcdef", 1, None, 2))


@case(hit=False)
def itertools_groupby(x):
    rows = [("a", 1), ("a", 2), ("b", 3)]
    return (
        x,
        {k: [v for _, v in g] for k, g in itertools.groupby(rows, key=lambda r: r[0])},
        [k for k, _ in itertools.groupby("aab")],
    )


@case
def itertools_cycle(x):
    c = itertools.cycle([1, 2])
    return [x * next(c) for _ in range(3)], [k for k, _ in zip(itertools.cycle("ab"), range(3))]


@case
def itertools_starmap(x):
    return list(itertools.starmap(torch.add, [(x, 1), (x, x)])), list(itertools.starmap(pow, [(2, 3)]))


@case
def itertools_pairwise(x):
    return [b - a for a, b in itertools.pairwise(x.unbind(1))]


@case
def itertools_filters(x):
    return (
        [x * i for i in itertools.takewhile(lambda n: n < 3, range(9))],
        list(itertools.dropwhile(lambda n: n < 3, range(5))),
        list(itertools.compress("abc", (1, 0, 1))),
        list(itertools.filterfalse(None, (0, 1, 2))),
    )


@case
def itertools_combinatorics(x):
    return [a * b for a, b in itertools.combinations(x.unbind(1), 2)], len(list(itertools.permutations(range(3))))


@case(over=4)  # the two iterators share C state that can't be rebuilt
def itertools_tee(x):
    a, b = itertools.tee(iter([x, x + 1]))
    return next(a), list(b), list(a)


@case
def itertools_repeat(x):
    return sum(itertools.repeat(x, 3)), list(map(operator.mul, [x, x], itertools.repeat(2)))


# ---- collections -----------------------------------------------------------------------------------------------------
@case(over=1)  # what popitem or reversed of an OrderedDict gives is not known
def collections_ordered_dict(x):
    o = collections.OrderedDict([("a", x), ("b", 2), ("c", 3)])
    o.move_to_end("a")
    o["d"] = x + 1
    return o, o.popitem(last=False), list(reversed(o)), o == {"c": 3}


@case
def collections_defaultdict(x):
    d = collections.defaultdict(list)
    for k, v in (("a", x), ("b", 1), ("a", x + 1)):
        d[k].append(v)
    n = collections.defaultdict(lambda: 5)
    n["k"] += 1
    return dict(d), "z" in d, len(d), n["k"] * x, dict(n)


@case
def collections_deque(x):
    q = collections.deque([x, 1], maxlen=3)
    q.append(2)
    q.appendleft(x * 2)
    q.rotate(1)
    q.extend([5])
    return list(q), q.popleft(), q.maxlen, q[-1], len(q)


@case
def collections_counter(x):
    c = collections.Counter("hello")
    c.update("lo")
    c["z"] -= 1
    d = c + collections.Counter("h")
    return x * c["l"], c.most_common(1), d["h"], c["nothing"], sorted(c.elements())[:2], c.total()


@case
def collections_chain_map(x):
    m = collections.ChainMap({"a": x}, {"a": 1, "b": 2})
    m["c"] = 3
    n = m.new_child({"b": 9})
    return m["a"] * m["b"], sorted(m), n["b"], "z" in m, len(n)


@case
def collections_namedtuple(x):
    p = PAIR(x, 2)
    return p, p.a * p.b, p._asdict()["b"], PAIR._make([1, 2]), p == (x, 2) if False else len(p)


PAIR = collections.namedtuple("PAIR", "a b", defaults=(7,))


class Mapping(collections.abc.MutableMapping):
    def __init__(self):
        self.d = {}

    def __getitem__(self, k):
        return self.d[k]

    def __setitem__(self, k, v):
        self.d[k.lower()] = v

    def __delitem__(self, k):
        del self.d[k]

    def __iter__(self):
        return iter(self.d)

    def __len__(self):
        return len(self.d)


@case
def collections_abc(x):
    m = Mapping()
    m["A"] = x
    m.update(B=2)
    return m["a"] * m.get("b"), m.pop("c", 3), list(m.items())[1:], "a" in m, m.setdefault("E", 5), len(m)


@case
def collections_user_types(x):
    u = collections.UserDict(a=x)
    u["b"] = 1
    l = collections.UserList([1, 2])
    l.append(3)
    return u["a"] * len(u), l.data, collections.UserString("ab").upper().data


@case
def sets_and_frozensets(x):
    a, b = {1, 2, 3}, frozenset((2, 3, 4))
    a.add(5)
    a.discard(9)
    return x * len(a & b), a | b, a - b, a ^ b, b >= {2}, a.isdisjoint({7}), {b: 1}[frozenset((4, 3, 2))], set() == a


@case
def heap_and_bisect(x):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    return x * heapq.heappop(h), h, heapq.nlargest(2, h), bisect.bisect([1, 3, 5], 4)


# ---- bisect, descriptors ---------------------------------------------------------------------------------------------
@case
def bisect_insort(x):
    items = [1, 3, 5]
    bisect.insort(items, 4)
    bisect.insort_left(items, 0)
    bisect.insort(items, -2, key=lambda v: -v)
    return x * bisect.bisect_left(items, 4), items


@made(hit=False)
def bisect_insort_outside():
    items = [1, 5]

    def fn(x):
        bisect.insort(items, len(items))
        return x * items[0], items[-1]

    return fn, items


@case
def bisect_insort_tensors(x):
    items = [x[0, 0], x[0, 1]]
    bisect.insort(items, x[1, 1])
    return items


class Factor:
    k = 3


@made
def function_get():
    factor = Factor()

    def fn(self, y):
        return y * self.k

    return lambda x: (fn.__get__(factor, Factor)(x), fn.__get__(None, Factor) is fn, fn.__get__(factor)(x))
