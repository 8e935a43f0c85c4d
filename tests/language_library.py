"""functools, itertools, collections, text, copy, inspect, logging, numpy (see language_cases.py)."""

import bisect
import collections
import collections.abc
import copy
import functools
import heapq
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import string
import textwrap
import time
import types
import typing
import weakref

import numpy as np
import torch
from language_cases import case, made, t
from torch import nn


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


@case
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


@case(over=4)
def itertools_tee(x):
    a, b = itertools.tee(iter([x, x + 1]))
    return next(a), list(b), list(a)


@case
def itertools_repeat(x):
    return sum(itertools.repeat(x, 3)), list(map(operator.mul, [x, x], itertools.repeat(2)))


# ---- collections -----------------------------------------------------------------------------------------------------
@case(over=1)
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


# ---- builtins over sequences -----------------------------------------------------------------------------------------
@case
def builtin_map_filter(x):
    return (
        list(map(lambda a, b: a + b, [x, x], (1, 2))),
        list(filter(None, [0, 1, x.dim()])),
        list(filter(lambda v: v > 1, (1, 2))),
    )


@case
def builtin_sorted(x):
    rows = [("b", 2), ("a", 2), ("c", 1)]
    l = [3, 1, 2]
    l.sort(reverse=True)
    return (
        x,
        sorted(rows, key=lambda r: r[1]),
        sorted(rows, key=operator.itemgetter(0)),
        l,
        sorted("bca"),
        sorted({"b": 1, "a": 2}),
    )


@case
def builtin_any_all(x):
    return (
        x,
        any(i > 2 for i in range(4)),
        all([]),
        any(map(callable, (x.sin, 3))),
        all(isinstance(v, int) for v in x.shape),
    )


@case
def builtin_min_max_sum(x):
    return (
        x * max(3, 1),
        min([4, 2], default=0),
        max([], default=7),
        sum([[1], [2]], []),
        max("a", "b"),
        min({2, 1}),
        sum((x, x)),
    )


@case
def builtin_zip_enumerate(x):
    out = []
    for i, (a, b) in enumerate(zip(x, reversed(list(x))), 1):
        out.append(a * i + b)
    return out, dict(zip("ab", range(2))), list(zip(*[(1, 2), (3, 4)]))


@case
def builtin_numbers(x):
    return (
        x,
        abs(-3),
        divmod(7, 2),
        pow(2, 5, 7),
        round(3.14159, 2),
        bin(5),
        hex(255),
        int("ff", 16),
        float("1e3"),
        complex(1, 2) * 2,
    )


@case
def builtin_conversions(x):
    return (
        x,
        list("ab"),
        tuple({1: 2}),
        set([1, 1]),
        dict([(1, 2)]),
        str(3.5),
        bool([]),
        int(True),
        bytes(b"a"),
        frozenset("a"),
        ord("a"),
        chr(98),
    )


@case
def builtin_identity(x):
    y = x
    return y is x, x is not None, id(x) == id(y), hash((1, "a")) == hash((1, "a")), callable(len), repr([1, "a"])


@case
def operator_getters(x):
    rows = [{"k": 2, "v": x}, {"k": 1, "v": x + 1}]
    get = operator.itemgetter("k")
    shape = operator.attrgetter("shape")(x)
    return sorted(map(get, rows)), shape, operator.methodcaller("sum", 0)(x), operator.itemgetter(0, 2)("abc")


# ---- text ------------------------------------------------------------------------------------------------------------
@case
def f_strings(x):
    name, v = "n", 3.14159
    return (
        x,
        f"{name!r:>6}|{v:.2f}|{v=:.1f}|{x.shape[0]:03d}|{'a' if v > 3 else 'b'}|{{}}|{x.dtype}|{1_000_000:,}|{0.5:%}",
    )


@case
def string_methods(x):
    s = " Hello,World "
    return (
        x,
        s.strip().lower().split(","),
        s.replace("l", "L", 1),
        "-".join("abc"),
        s.find("W"),
        "a=b".partition("="),
        "x".center(5, "*"),
        "ab".startswith(("a", "z")),
    )


@case
def string_formatting(x):
    return (
        x,
        "%s %5.2f %r %03d" % ("a", 2.5, "b", 7),
        "{0!r:>5}|{k}|{0[1]}|{1.shape}".format([1, 2], x, k=3),
        "{!r}".format("q"),
        format(255, "x"),
    )


@case
def string_templates(x):
    return x, string.Template("$a-$b").substitute(a=1, b=2), string.ascii_lowercase[:3], textwrap.dedent("  a\n  b")


@case
def string_encoding(x):
    return (
        x,
        "é".encode(),
        b"abc".decode(),
        "a\tb".expandtabs(4),
        "abc".translate(str.maketrans("a", "z")),
        "aXb".swapcase(),
        "12".isdigit(),
    )


@case(over=5)
def regular_expressions(x):
    m = re.match(r"(\w+)\.(\d+)", "layer.12")
    return x * int(m.group(2)), m.groups(), re.sub(r"\d", "#", "a1b2"), re.findall("[a-c]", "abcd")


@case(hit=False)
def f_string_of_values(x):
    return x * 2, f"{x.sum().item():.3f}", f"{float(x[0, 0]):+.2f}"


@case(over=1)
def json_round_trip(x):
    text = json.dumps({"a": [1, 2.5, None], "shape": list(x.shape)}, sort_keys=True)
    return x * len(text), json.loads(text)


@case(over=3)
def string_io(x):
    out = io.StringIO()
    out.write("a")
    print("b", file=out)
    return x * 2, out.getvalue()


# ---- copy, inspect, logging, types -----------------------------------------------------------------------------------
@case
def copy_shallow(x):
    d = {"a": [1], "x": x}
    e, l = copy.copy(d), [x, [1]][:]
    e["a"].append(2)
    return d, e["a"] is d["a"], e["x"] is x, l, d.copy() is d


@case(hit=False)
def copy_deep(x):
    d = {"a": [1, {"k": x}], "n": None}
    d["self"] = d["a"]
    e = copy.deepcopy(d)
    e["a"].append(2)
    return d, e, e["self"] is e["a"], e["a"][1]["k"] is x


@case
def copy_of_objects(x):
    o = types.SimpleNamespace(a=[1], x=x)
    p = copy.copy(o)
    p.a.append(2)
    p.x = x + 1
    return o, p, o.a is p.a


@case
def copy_hooks(x):
    class_ = Copied
    c, d = copy.copy(class_(x)), copy.deepcopy(class_(x))
    return c.v, d.v, c.how, d.how


class Copied:
    def __init__(self, v, how="made"):
        self.v, self.how = v, how

    def __copy__(self):
        return Copied(self.v + 1, "copy")

    def __deepcopy__(self, memo):
        return Copied(self.v + 2, "deep")


@case
def inspect_signature(x):
    sig = inspect.signature(affine)
    kw = {k: 2 for k in sig.parameters if k != "x"}
    return affine(x, **kw), str(sig), [p.default for p in sig.parameters.values()][1:]


@case
def inspect_questions(x):
    return (
        x,
        inspect.isfunction(affine),
        inspect.ismethod(x.sin),
        inspect.isclass(Version),
        inspect.getmembers(types.SimpleNamespace(a=1))[-1],
    )


@case
def inspect_bound_arguments(x):
    b = inspect.signature(affine).bind(x, b=4)
    b.apply_defaults()
    return affine(*b.args, **b.kwargs), list(b.arguments)


@case(over=2)
def logging_quiet(x):
    log = logging.getLogger("language.quiet")
    log.debug("not shown %s", x.shape)
    return x * 2, log.isEnabledFor(logging.DEBUG)


@made
def logging_shown():
    seen = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    log = logging.Logger("language.shown")
    log.addHandler(Keep())

    def f(x):
        y = x * 2
        log.warning("shape %s", tuple(y.shape))
        return y + 1

    return f, seen


@case
def simple_namespace(x):
    o = types.SimpleNamespace(a=1, b=x)
    o.c = o.a + 1
    return o.b * o.c, o == types.SimpleNamespace(a=1, b=x, c=2), o


@case
def mapping_proxy(x):
    p = types.MappingProxyType({"a": x, "b": 2})
    try:
        p["c"] = 1
    except TypeError as e:
        return p["a"] * p["b"], list(p), str(e)


@case
def typing_helpers(x):
    v: typing.Optional[int] = 3
    return typing.cast(torch.Tensor, x) * v, typing.get_origin(list[int]) is list, typing.get_type_hints(hinted)


def hinted(a: int) -> str: ...


@made
def weak_references():
    class Node:
        pass

    node = Node()
    ref = weakref.ref(node)
    table = weakref.WeakKeyDictionary({node: 2.0})
    return (lambda x: (x * table[node], ref() is node)), node


@case(over=1)
def time_and_environment(x):
    start = time.perf_counter()
    y = x * 2
    return (
        y,
        time.perf_counter() >= start,
        os.environ.get("CCOMPILE_NOT_SET", "unset"),
        os.path.join("a", "b"),
        os.path.basename("a/b.c"),
    )


@case(over=3)
def python_random(x):
    return x * random.random(), random.randint(1, 5), random.choice([1, 2, 3]), np.random.rand()


@case
def math_functions(x):
    d = x.shape[-1]
    return (
        x / math.sqrt(d),
        math.log2(8),
        math.ceil(2.1),
        math.prod((2, 3)),
        math.isclose(0.1 + 0.2, 0.3),
        math.gcd(12, 18),
        math.pi,
    )


# ---- numpy and tensors -----------------------------------------------------------------------------------------------
@case(over=5)
def numpy_round_trip(x):
    a = x.numpy() * 2
    a[0, 0] = 7
    return torch.from_numpy(a) + 1, a.shape, a.dtype


@case(over=4)
def numpy_scalars(x):
    k = np.float32(1.5)
    return x * k, x + np.int64(2), x * float(np.sqrt(4.0)), np.prod(x.shape), int(np.ceil(2.5))


@case(over=2)
def numpy_constants(x):
    return x + torch.as_tensor(TABLE), torch.tensor(TABLE.tolist()), torch.from_numpy(TABLE)


TABLE = np.arange(3, dtype=np.float32)


@case(over=4)
def numpy_shares_memory(x):
    y = x * 1
    a = y.numpy()
    y.add_(1)
    b = a.copy()
    a[:] = 0
    return y, torch.from_numpy(b)


@case
def tensor_as_dict_key(x):
    y = x + 1
    d = {x: "x", y: "y"}
    return d[x], d[y], x in d, len({x, y, x}), [k.sum() for k in d]


@case
def tensor_in_list(x):
    y = x * 2
    l = [x, y]
    return l.index(x), any(v is y for v in l), l.count(x) if False else len(l)


@case(hit=False)
def tensor_to_text(x):
    y = (x * 0).round()
    return x, str(y), repr(y.shape), f"{y.sum().item()}", "%s" % (y.dtype,)


@case(over=2)
def tensor_attributes(x):
    x.tag = "kept"
    y = x * 2
    y.note = [1]
    return x.tag, y, y.note, hasattr(x + 1, "tag"), x.requires_grad, x.grad_fn, y.is_leaf, y.ndim, x.T.shape


@case
def tensor_iteration_nested(x):
    return [[v * 2 for v in row] for row in x], torch.stack([sum(row) for row in x])


@case(hit=False, over=1)
def tensor_values_nested(x):
    return [[round(v, 2) for v in row] for row in x.tolist()], {int(v > 0) for row in x for v in row}


class Meters(torch.Tensor):
    """A subclass without any hooks."""

    def doubled(self):
        return self * 2


@case(over=7)
def tensor_subclass(x):
    m = x.as_subclass(Meters)
    n = m.doubled() + 1
    return type(n).__name__, n.as_subclass(torch.Tensor), type(m.sum()).__name__


class Logging:
    """__torch_function__ without being a tensor."""

    def __init__(self, v, log):
        self.v, self.log = v, log

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        logs = [a for a in args if isinstance(a, cls)]
        args = [a.v if isinstance(a, cls) else a for a in args]
        logs[0].log.append(func.__name__)
        return cls(func(*args, **(kwargs or {})), logs[0].log)


@case(over=1)
def torch_function_protocol(x):
    log = []
    o = torch.add(Logging(x, log), 1)
    o = torch.sin(o)
    return o.v, log


class Tracked(torch.Tensor):
    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@case(over=4)
def torch_function_subclass(x):
    Tracked.calls.clear()
    y = torch.relu(x.as_subclass(Tracked) * 2)
    return type(y).__name__, y.as_subclass(torch.Tensor), list(Tracked.calls)


@case(hit=False, over=1)
def torch_function_mode(x):
    class Count(torch.overrides.TorchFunctionMode):
        n = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Count.n += 1
            return func(*args, **(kwargs or {}))

    with Count():
        y = torch.sin(x) + 1
    return y, Count.n


@case
def parameters_made(x):
    p = nn.Parameter(x.clone(), requires_grad=False)
    return p * 2, isinstance(p, nn.Parameter), type(p * 1) is torch.Tensor


@case
def tensor_pickled_shape(x):
    shape = torch.Size([1, *x.shape])
    return x.reshape(shape), shape.numel(), shape[1:] + (5,), list(shape), isinstance(shape, tuple)


@case(inputs=lambda i: (t(2, 3, seed=i), t(2, 3, seed=i + 9)), hit=False)
def vmap_and_grad(x, y):
    f = torch.func.vmap(lambda a, b: (a * b).sum())
    return f(x, y), torch.func.grad(lambda a: (a * a).sum())(x)
