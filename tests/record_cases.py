"""Language features in recorded code: a table for test_record.py. User code, so pytest does not rewrite its asserts."""

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing

import torch
from torch import nn


class Feature(typing.NamedTuple):
    fn: object  # a function, or a class of modules
    inputs: object  # call number -> arguments
    hit: bool  # the last call replays


FEATURES = {}


def t(*shape, seed=0):
    g = torch.Generator().manual_seed(seed + 31 * len(shape) + sum(shape))
    return torch.randn(*shape, generator=g)


def feature(fn=None, *, inputs=None, hit=True):
    """Registers fn under its own name. Without `inputs` it is called with one 3x4 tensor, other numbers in each call."""

    def add(fn):
        FEATURES[fn.__name__.replace("_", "-")] = Feature(fn, inputs or (lambda i: (t(3, 4, seed=i),)), hit)
        return fn

    return add if fn is None else add(fn)


def two(i):
    return t(3, 4, seed=i), t(3, 4, seed=i + 50)


# ---- functions and calls --------------------------------------------------------------------------------------------
def make_adder(n):
    def add(x):
        return x + n

    return add


add_three = make_adder(3)


def doubled(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kw):
        return fn(*args, **kw) * 2

    return wrapper


def with_bias(bias):
    def wrap(fn):
        return lambda x: fn(x) + bias

    return wrap


@doubled
@with_bias(0.5)
def decorated(x):
    return x.sin()


def defaults(x, k=2, *rest, scale=3.0, **more):
    return x * k * scale + len(rest) + sum(more.values())


@feature
def closure(x):
    return add_three(x) * 2


@feature
def decorators(x):
    return decorated(x) + 1


@feature
def default_arguments(x):
    return defaults(x), defaults(x, 3), defaults(x, 3, 1, 2), defaults(x, scale=1.0, a=1, b=2)


@feature
def star_calls(x):
    args, kw = (2, 9, 9), {"scale": 1.5, "z": 1}
    return defaults(x, *args, **kw), defaults(*(x, 5), *[1], **{"q": 2}, **kw)


@feature
def partial_and_reduce(x):
    f = functools.partial(defaults, k=4, scale=0.5)
    return functools.reduce(operator.add, [f(x), x, x * 2])


@feature
def nested_functions(x):
    total = 0

    def inner(v):
        nonlocal total
        total += 1
        return v * total

    return inner(x) + inner(x), total


@feature
def lambdas_in_table(x):
    table = {"relu": torch.relu, "neg": lambda v: -v, "sq": lambda v: v * v}
    for name in ("relu", "neg", "sq"):
        x = table[name](x) + 1
    return x


@feature
def recursion(x):
    def power(v, n):
        return v if n == 1 else v * power(v, n - 1)

    return power(x, 4)


@feature
def method_references(x):
    f, g = x.add, torch.Tensor.mul
    return g(f(1), 2), getattr(x, "sin")().cos()


@feature
def operator_module(x):
    return operator.mul(operator.getitem(x, 0), 3), operator.itemgetter(1)(x), operator.attrgetter("shape")(x)


@feature
def map_filter_zip(x):
    rows = list(map(lambda r: r * 2, x))
    kept = list(filter(lambda p: p[0] != 1, enumerate(rows)))
    return torch.stack([a + b for (_, a), b in zip(kept, rows)]), len(kept)


@feature
def itertools_functions(x):
    parts = list(itertools.chain([x, x + 1], (x * 2,)))
    pairs = [(i, j) for i, j in itertools.product(range(2), repeat=2)]
    return sum(p * i for p, (i, _) in zip(parts, pairs)), list(itertools.accumulate([1, 2, 3]))


@feature
def sorting(x):
    order = sorted([(3, "c"), (1, "a"), (2, "b")], key=lambda p: -p[0])
    names = sorted({"b": 1, "a": 2})
    return x * order[0][0], order, names, list(reversed(order)), min(4, 2), max(order)


@feature
def any_all_sum(x):
    flags = [x.dim() == 2, x.size(0) > 1]
    return x * sum(v for v in (1, 2, 3)) if all(flags) and any(f for f in flags) else x


# ---- control flow ----------------------------------------------------------------------------------------------------
@feature
def comprehensions(x):
    rows = [r * i for i, r in enumerate(x) if i != 1]
    table = {i: r + 1 for i, r in enumerate(rows)}
    return torch.stack(rows), table, {i % 2 for i in range(5)}, [[j * x for j in range(i)] for i in range(3)]


@feature
def generator_expression(x):
    return sum(r.exp() for r in x), tuple(r * 2 for r in x)


@feature
def generator_function(x):
    def steps(v, n):
        for i in range(n):
            v = v + i
            got = yield v
            v = v if got is None else v * got

    out = list(steps(x, 3))
    g = steps(x, 3)
    first, second = next(g), g.send(2)
    g.close()
    return out, first, second


@feature
def loops(x):
    for i in range(6):
        if i == 1:
            continue
        if i == 4:
            break
        x = x + i
    else:
        x = x * 100
    n = 0
    while n < 3:
        n += 1
        x = x / n
    else:
        x = x - 1
    return x, n


@feature
def early_returns(x):
    if x.dim() == 1:
        return x
    if x.shape[0] > 100:
        return x * 2
    return x.t() + 1


@feature
def walrus(x):
    if (n := x.size(-1)) > 2 and (y := x * n) is not None:
        return y + n
    return x


@feature
def match_statement(x):
    out = []
    for command in (("scale", 2.0), {"op": "shift", "by": 1}, [1, 2, 3], 7, None, "word"):
        match command:
            case ("scale", float(k)):
                x = x * k
            case {"op": "shift", "by": by}:
                x = x + by
            case [first, *rest]:
                out.append((first, rest))
            case int(n) if n > 5:
                out.append(n)
            case None:
                out.append("none")
            case _:
                out.append("other")
    return x, out


@feature
def chained_comparison(x):
    return x + (1 if 0 < x.shape[0] <= 3 < x.shape[1] else 2), not x.shape, x.shape[0] in (3, 5)


@feature
def try_except_inside(x):
    log = []
    try:
        log.append("try")
        x = x * {"a": 1}["b"]
    except KeyError as error:
        log.append(str(error))
        x = x + 1
    else:
        log.append("else")
    finally:
        log.append("finally")
    return x, log


@feature
def try_tensor_error(x):
    try:
        return x @ x
    except RuntimeError as error:
        return x @ x.t(), type(error).__name__


class Stop(Exception):
    def __init__(self, value):
        super().__init__("stop")
        self.value = value


@feature
def raise_and_catch(x):
    def helper(v):
        raise Stop(v * 2)

    try:
        helper(x)
    except (ValueError, Stop) as stop:
        return stop.value + 1


@feature
def nested_finally(x):
    log = []

    def inner():
        try:
            return x * 2
        finally:
            log.append("inner")

    for i in range(2):
        try:
            if i:
                break
            y = inner()
        finally:
            log.append(i)
    return y, log


@feature
def with_no_grad(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = y + 1
    return y, z, torch.is_grad_enabled()


@feature
def context_managers(x):
    log = []

    @contextlib.contextmanager
    def scope(name):
        log.append("in " + name)
        try:
            yield len(log)
        finally:
            log.append("out " + name)

    with scope("a") as n, scope("b"):
        x = x * n
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        log.append({}["none"])
    return x, log


@feature
def with_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return y, y.dtype, x @ x.t()


@feature
def assertions(x):
    assert x.dim() == 2 and x.dtype == torch.float32, "shape"
    return x + 1


# ---- data ------------------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Result:
    value: torch.Tensor
    extra: object = None
    parts: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.value.sum()


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: torch.Tensor
    n: int = 1


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class ModelOutput(collections.OrderedDict):
    """Like that of transformers: an ordered dict whose items are attributes too."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[k] for k in self)


Named = collections.namedtuple("Named", "left right")


class Typed(typing.NamedTuple):
    left: torch.Tensor
    n: int = 3


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@feature
def dataclass_output(x):
    out = Result(x * 2, parts=[x])
    out.extra = out.total()
    return out, dataclasses.replace(out, extra=None), Frozen(x + 1)


@feature
def namedtuple_output(x):
    p = Named(x, x * 2)
    left, right = p
    return p, p._replace(left=right), Typed(left + 1), p._asdict()


@feature
def model_output(x):
    out = ModelOutput()
    out["logits"] = x * 2
    out["loss"] = x.mean()
    return out, out.logits is out["logits"], out.to_tuple()


@feature
def slots_output(x):
    s = Slots(x + 1, None)
    s.b = s.a * 2
    return s


@feature(hit=False)  # the class is another one in each call
def class_in_forward(x):
    class Local:
        scale = 2

        def __init__(self, v):
            self.v = v

        @property
        def twice(self):
            return self.v * self.scale

        @classmethod
        def make(cls, v):
            return cls(v + 1)

        @staticmethod
        def shift(v):
            return v - 1

        def __call__(self, w):
            return self.twice + w

        def __len__(self):
            return 3

        def __getitem__(self, i):
            return self.v[i]

    o = Local.make(x)
    return o(x), o.shift(x), len(o), o[1]


@feature
def tuple_dict_none_outputs(x):
    return (
        x,
        None,
        {"a": x + 1, "b": [x * 2, (1, "s", 2.5)]},
        {1, 2},
        frozenset({3}),
        ...,
        slice(1, 2),
        x.dtype,
        x.device,
    )


@feature
def same_object_twice(x):
    y = x * 2
    pair = [y, y]
    return pair, pair, y, {"again": pair}


@feature
def lists(x):
    a = [x, x + 1]
    a.append(x * 2)
    a.extend([1, 2])
    a.insert(0, "first")
    b = a.pop()
    a += [b]
    a[1], a[2] = a[2], a[1]
    del a[0]
    a.reverse()
    c = a[1:3] + [0] * 2
    c[:1] = [7, 8]
    return a, c, b, c.index(7), [3, 4, 3].count(3), [*a, *c]


@feature
def dicts(x):
    d = {"a": x}
    d.update(b=x + 1, c=3)
    d.setdefault("e", []).append(x)
    d["a"] = d.pop("b") * 2
    e = {**d, "z": 0} | {"y": 1}
    return (
        d,
        list(e),
        d.get("none", 5),
        "a" in d,
        [(k, v) for k, v in e.items() if isinstance(v, int)],
        dict(zip("ab", (1, 2))),
    )


@feature
def other_containers(x):
    d = collections.defaultdict(list)
    d["k"].append(x)
    q = collections.deque([x, x + 1], maxlen=2)
    q.append(x * 2)
    c = collections.Counter("abca")
    o = collections.OrderedDict(a=x, b=1)
    o.move_to_end("a")
    return dict(d), list(q), c["a"], o


@feature
def unpacking(x):
    a, *rest = x
    (b, c), d = rest, 4
    first, *_, last = range(5)
    return a + b, c * d, first, last


@feature
def strings(x):
    name = f"{x.shape[0]}x{x.shape[-1]!r:>4}"
    return (
        x * len(name),
        name,
        "%d-%s" % (x.dim(), x.dtype),
        "{:.2f}".format(math.pi),
        "a,b".split(","),
        name.upper(),
        str(x.shape),
    )


@feature(hit=False)  # deepcopy works by id()
def copies(x):
    d = {"x": [1, [2]]}
    e, f = copy.copy(d), copy.deepcopy(d)
    f["x"][1].append(3)
    return x * f["x"][1][1], d, e["x"] is d["x"], f


# ---- objects and types -----------------------------------------------------------------------------------------------
@feature
def isinstance_checks(x):
    kinds = [
        isinstance(x, torch.Tensor),
        isinstance(x, (int, nn.Parameter)),
        issubclass(Named, tuple),
        type(x) is torch.Tensor,
        isinstance([], collections.abc.Sequence),
        callable(torch.relu),
    ]
    return x * sum(kinds), kinds


@feature
def get_set_attribute(x):
    o = Slots(x, 1)
    setattr(o, "b", getattr(o, "a") + 1)
    return getattr(o, "b"), hasattr(o, "c"), getattr(o, "c", "none"), vars(Result(x))


class Vector:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Vector(self.v + other)

    __radd__ = __add__

    def __eq__(self, other):
        return isinstance(other, Vector)

    def __bool__(self):
        return True

    def __iter__(self):
        yield from (self.v, 1)

    def __contains__(self, n):
        return n == 4


@feature
def dunder_methods(x):
    o = 1 + (Vector(x) + 2)
    v, n = o
    return v * n if o and 4 in o and o == Vector(0) else None


@feature
def enums(x):
    return x * (2 if Color("r") is Color.RED else 3), Color.BLUE.value, [c.name for c in Color]


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def transform(self, x):
        return self.fc(x)

    @property
    def width(self):
        return self.fc.weight.shape[0]

    def forward(self, x):
        return self.transform(x)


@feature
class SuperCalls(Base):
    def transform(self, x):
        return super().transform(x).relu() + self.width

    def forward(self, x):
        return super(SuperCalls, self).forward(x) * 2


@feature
class GetattrModule(Base):
    def __getattr__(self, name):
        if name == "magic":
            return 3.0
        return super().__getattr__(name)

    def forward(self, x):
        return self.transform(x) * self.magic + len(list(self.parameters())) + len(dict(self.named_children()))


@feature
class ModuleContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.table = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4) * i) for i in range(2)])
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU(), nn.Dropout(0.1)))
        self.eval()

    def forward(self, x):
        for i, layer in enumerate(self.layers[1:]):
            x = self.table["relu" if i else "tanh"](layer(x)) + self.scales[i]
        return self.seq(x) + self.seq[0].bias, len(self.layers), [n for n, _ in self.named_parameters()][:2]


@feature
class HooksInside(Base):
    def __init__(self):
        super().__init__()
        self.fc.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
        self.fc.register_forward_hook(lambda m, a, out: out + a[0])
