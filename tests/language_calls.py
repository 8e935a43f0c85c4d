"""Functions, calls, closures, small statements (see language_cases.py)."""

import functools
import math
import operator
import types

import torch
from language_cases import case, made
from torch import nn


# ---- parameters and calls --------------------------------------------------------------------------------------------
def positional_only(a, b=2, /, c=3, *, d=4, **kw):
    return a * b + c - d + sum(kw.values())


@case
def call_positional_only(x):
    return positional_only(x), positional_only(x, 5, d=1), positional_only(x, c=1, a=7, b=8)


@case
def call_positional_only_refused(x):
    try:
        return positional_only(a=x)
    except TypeError as e:
        return x, str(e)


@case(hit=False)
def call_missing_argument(x):
    return x, positional_only()


@case(hit=False)
def call_too_many(x):
    return (lambda a: a)(x, x)


@case
def call_keyword_only(x):
    def f(*, k, m=2):
        return x * k + m

    return f(k=3), f(m=1, k=2), f(**{"k": 5})


@case
def call_default_mutable(x):
    def f(v, seen=[]):
        seen.append(v.sum())
        return len(seen)

    return f(x), f(x), x + f(x)


@made(hit=False)
def default_mutable_outside():
    def f(x, seen=[]):
        seen.append(len(seen))
        return x * len(seen)

    return f, f.__defaults__


@case
def call_star_mixed(x):
    def f(*args, **kw):
        return len(args), sorted(kw), sum(args[1:], args[0]) * kw.get("k", 1)

    a = [x, x + 1]
    return f(*a, *a, x), f(*(x,), **{"k": 2}, z=1), f(*[x], *(), k=3, **{})


@case(hit=False)
def call_duplicate_keyword(x):
    kw = {"k": 1}
    return x, positional_only(x, **kw, **kw)


@case
def call_star_of_generator(x):
    return torch.stack([*map(torch.sin, x)]), max(*(i for i in range(3))), torch.cat(tuple(r for r in (x, x * 2)))


@case
def call_keywords_order(x):
    def f(**kw):
        return list(kw), [v for v in kw.values() if not isinstance(v, torch.Tensor)]

    return x * 2, f(z=1, a=2, m=x), f(**dict(b=1), **dict(a=2))


@case
def argument_rebound(x):
    def f(a, b=None):
        b = a if b is None else b
        a = a * 2
        del a
        return b + 1

    return f(x), f(x, x * 3)


@case
def decorator_plain(x):
    def twice(fn):
        @functools.wraps(fn)
        def inner(*args, **kw):
            """inner"""
            return fn(fn(*args, **kw))

        return inner

    @twice
    def step(v):
        """step"""
        return v * 2 + 1

    return step(x), step.__name__, step.__doc__, step.__wrapped__(x)


@case
def decorator_with_arguments(x):
    def scaled(by, /, *, plus=0):
        return lambda fn: lambda v: fn(v) * by + plus

    @scaled(2)
    @scaled(3, plus=1)
    def f(v):
        return v.sin()

    return f(x)


@case(hit=False, over=1)  # a class is made: the object itself would have to be rebuilt
def decorator_class(x):
    class Counted:
        def __init__(self, fn):
            self.fn, self.calls = fn, 0

        def __call__(self, *args):
            self.calls += 1
            return self.fn(*args)

    f = Counted(torch.cos)
    return f(x) + f(x * 2), f.calls


@made
def decorator_registry():
    registry = {}

    def register(name):
        def add(fn):
            registry[name] = fn
            return fn

        return add

    @register("double")
    def double(x):
        return x * 2

    register("neg")(operator.neg)
    return lambda x: {k: f(x) for k, f in registry.items()}


@made(hit=False)
def decorator_timer():
    """A decorator that keeps a record of what it wrapped."""
    log = []

    def logged(fn):
        @functools.wraps(fn)
        def inner(*args):
            log.append(("in", fn.__name__))
            try:
                return fn(*args)
            finally:
                log.append(("out", len(log)))

        return inner

    return logged(lambda x: x.exp()), log


# ---- closures and recursion ------------------------------------------------------------------------------------------
@made
def closure_counter():
    n = 0

    def f(x):
        nonlocal n
        n = n % 2 + 1
        return x * n

    return f, lambda: n


@case
def closure_late_binding(x):
    fs = [lambda v: v * i for i in range(3)]
    gs = [lambda v, i=i: v * i for i in range(3)]
    return [f(x) for f in fs], [g(x) for g in gs]


@case
def closure_shared_cell(x):
    total = x * 0

    def add(v):
        nonlocal total
        total = total + v

    def read():
        return total

    add(x)
    add(x * 2)
    return read()


@case(hit=False)
def closure_unbound(x):
    def f():
        return later

    try:
        f()
    except NameError as e:
        text = str(e)
    later = x
    return f(), text


@case
def closure_deleted(x):
    y = x + 1

    def f():
        return y  # noqa: F821

    a = f()
    del y
    try:
        f()
    except NameError as e:
        return a, type(e).__name__, str(e)


@case
def local_unbound(x):
    if x.shape[0] == 7:
        y = x
    try:
        return y
    except UnboundLocalError as e:
        return x, str(e)


@case
def recursion_deep(x):
    def f(v, n):
        return v if n == 0 else f(v * 0.9 + n, n - 1)

    return f(x, 30)


@case
def recursion_mutual(x):
    def even(n, v):
        return v if n == 0 else odd(n - 1, v + 1)

    def odd(n, v):
        return v * -1 if n == 0 else even(n - 1, v * 2)

    return even(5, x), even(4, x)


@case
def recursion_structures(x):
    def walk(v):
        if isinstance(v, torch.Tensor):
            return v * 2
        if isinstance(v, dict):
            return {k: walk(u) for k, u in v.items()}
        if isinstance(v, (list, tuple)):
            return type(v)(walk(u) for u in v)
        return v

    return walk({"a": [x, (x + 1, 3)], "b": {"c": x, "d": None}})


@case
def recursion_error(x):
    def f(v):
        return f(v)

    try:
        f(x)
    except RecursionError as e:
        return x + 1, "maximum recursion" in str(e)


@case
def lambda_table(x):
    table = {"a": lambda v: v + 1, "b": lambda v, k=2: v * k, "c": lambda *v: torch.stack(v).sum(0)}
    return table["a"](x), table["b"](x, k=5), table["c"](x, x), (lambda: x)()


@case
def lambda_composed(x):
    compose = lambda *fs: functools.reduce(lambda f, g: lambda v: g(f(v)), fs)
    return compose(torch.sin, lambda v: v + 1, torch.exp)(x)


@case
def function_attributes(x):
    def f(v):
        f.calls += 1
        return v * f.calls

    f.calls = 0
    f(x)
    return f(x), f.calls, f.__name__, f.__qualname__, f.__code__.co_argcount


@made
def function_attribute_outside():
    def f(x):
        f.last = x.shape[0]
        return x + getattr(f, "bias", 0)

    f.bias = 2
    return f, f.__dict__


@case
def annotations_and_docs(x):
    def f(a: torch.Tensor, b: "int" = 1) -> torch.Tensor:
        c: float = 2.0
        d: int  # noqa: F842
        return a * b * c

    return f(x), sorted(f.__annotations__), f.__defaults__


# ---- small statements ------------------------------------------------------------------------------------------------
@case
def star_unpacking(x):
    a, *b = x, 1, 2
    *c, d = range(4)
    (e, *f), g = "abc", x
    [h, [i, *j]] = [1, (2, 3, 4)]
    return a, b, c, d, e, f, g, h, i, j, [*b, *c], {*c}, {**{"k": a}, "m": 1}, (*b, x)


@case
def unpacking_error(x):
    try:
        a, b, c = x
    except ValueError as e:
        return x, str(e)


@case
def walrus_forms(x):
    if (y := x.shape[0]) > 1 and (z := y * 2) < 10:
        x = x + y + z
    while (y := y - 1) > 0:
        x = x * 2
    return x, y, (w := 3) + w


@case
def comparison_chain(x):
    n, m = x.shape
    return x, 0 < n < m <= 3, n < m > 5, 1 == 1.0 != 2 != None, n in (1, 2) in ([True],), not n > m


@case
def boolean_values(x):
    return x, [] or x, {} and 1, 0 or None or "", "a" and x, not [], (1 and 0) or 5, None if x is None else x + 1


@case
def augmented_assignments(x):
    a, l, d, s, n = x.clone(), [1], {"k": 1}, {1}, 7
    a += 1
    a *= 2
    a -= x
    l += (2,)
    l *= 2
    d |= {"z": x}
    d["k"] += 4
    s |= {3}
    s ^= {1}
    n //= 2
    n **= 3
    n <<= 1
    n %= 10
    n ^= 5
    return a, l, d, sorted(s), n


@case
def delete_forms(x):
    l, d = [x, 1, 2, 3], {"a": 1, "b": x}
    o = types.SimpleNamespace(v=1, w=2)
    del l[1], d["a"], o.v
    del l[1:]
    y = x + 1
    z = y
    del y
    return l, d, vars(o), z


@case
def delete_missing(x):
    o = types.SimpleNamespace()
    try:
        del o.v
    except AttributeError as e:
        text = str(e)
    d = {}
    try:
        del d["k"]
    except KeyError as e:
        return x, text, e.args


@case
def slices_of_sequences(x):
    l = list(range(8))
    l[1:4] = [x]
    l[::3] = "abc" if len(l[::3]) == 3 else [0] * len(l[::3])
    s = slice(None, None, -1)
    return l[s], (1, 2, 3)[-2:], "hello"[1:-1:2], l[-1:], s.indices(4)


@case
def ternaries_and_lambdas(x):
    sign = lambda v: "pos" if v > 0 else "neg" if v < 0 else "zero"
    return x, [sign(v) for v in (-1, 0, 2)], (x.sin if x.dim() == 2 else x.cos)()


@case
def integers_and_floats(x):
    n = x.shape[1]
    return (
        x * (n / 2),
        n // 2,
        -7 // 2,
        -7 % 3,
        2**-1,
        divmod(17, 5),
        round(2.5),
        0.1 + 0.2,
        int("12"),
        1e300 * 10,
        math.inf > 1,
    )


@case(hit=False)
def zero_division(x):
    return x / 2, 1 // (x.shape[0] - 2)


@case(over=1)  # two prints; Dynamo does not count the one before the first op
def print_plain(x):
    print("a", 1, sep="-", end="!\n")
    y = x * 2
    print(f"{y.shape} {y.dtype}")
    return y


@case
def print_tensors(x):
    y = x.round() * 0
    print(y, [y.sum()], {"k": y.shape})
    return y + x


@case
def sum_min_max_of_tensors(x):
    rows = [v.sum() for v in x]
    return sum(rows), sum(rows, x.mean()), torch.stack(rows).max(), min(x.shape), max([1, 2], key=lambda v: -v)


@case(hit=False)
def max_of_tensors(x):
    return max(v.sum() for v in x), min(x.sum(), x.mean()), any(v.sum() > 0 for v in x), all([x.sum() < 1e9])


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


@case
def functional_call(x):
    net = NET
    params = {k: v * 2 for k, v in net.named_parameters()}
    return torch.func.functional_call(net, params, (x,))


NET = Layers()


@case
def getattr_default_is_the_value(x):
    def f(v):
        return v * 2

    return f(x), getattr(f, "__doc__", None), getattr(f, "__defaults__", None), getattr(f, "missing", None)


# ---- defaults that are new objects in each call ----------------------------------------------------------------------
@case
def default_of_an_argument(x):
    f = lambda v, w=x: v * w
    return f(x), f(x * 2), f(x, x), f(x * 2, x)


@case
def default_for_a_keyword(x):
    def f(v, *, w=x, k=3):
        return v * w + k

    return f(x), f(x * 2, w=x, k=1)


@case
def defaults_behind_a_break(x):
    y = x * 2

    def f(v, w=y, seen=[], *, k=3, named={}):
        seen.append(k)
        named[len(seen)] = k
        return v * w + len(seen) * len(named)

    y = print(end="")
    return f(x), f(x, x), f(x, k=7), f.__defaults__, f.__kwdefaults__


@case
def defaults_changed_behind_a_break(x):
    x = x + 1

    def f(v, w=x, *, k=[3]):
        return v * w + k[-1]

    print(end="")
    a = f(x)
    f.__kwdefaults__["k"] = [4]
    b = f(x)
    f.__kwdefaults__["k"].append(5)
    c = f(x)
    print(end="")
    return a, b, c, f(x)


@case
def functions_of_a_loop_behind_a_break(x):
    fs = [lambda v, i=i, w=[x * i]: v * i + w[0] for i in range(3)]
    print(end="")
    return [f(x) for f in fs], [f(x, w=[x]) for f in fs]


class Scale:
    def __init__(self, k):
        self.k = k

    def __call__(self, v):
        return v * self.k


@case
def default_of_an_instance(x):
    x = x + 1
    f = lambda v, by=Scale(3): by(v)
    print(end="")
    return f(x), f(x, by=Scale(2))
