"""copy, inspect, logging, types, numpy, tensors and generators (see language_cases.py)."""

import copy
import inspect
import logging
import math
import os
import random
import time
import types
import typing
import warnings
import weakref

import numpy as np
import torch
import torch.utils._pytree as pytree
from language_cases import Seen, case, made, t
from language_library import Version, affine
from torch import nn


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


@case(over=2)  # a logger's level is looked at through locks and caches
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


@case(over=1)  # the clock is read twice; Dynamo counts once
def time_and_environment(x):
    start = time.perf_counter()
    y = x * 2
    return (
        y,
        time.perf_counter() >= start,
        os.environ.get("NOT_SET_ANYWHERE", "unset"),
        os.path.join("a", "b"),
        os.path.basename("a/b.c"),
    )


@case(over=3)  # Python's generator is C state; three draws
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
@case(over=5)  # arrays have no provenance: each use is a break
def numpy_round_trip(x):
    a = x.numpy() * 2
    a[0, 0] = 7
    return torch.from_numpy(a) + 1, a.shape, a.dtype


@case(over=1)  # np.prod: C code in front of Python code that is full of C calls
def numpy_scalars(x):
    k = np.float32(1.5)
    return x * k, x + np.int64(2), x * float(np.sqrt(4.0)), np.prod(x.shape), int(np.ceil(2.5))


@case(over=2)  # arrays have no guards: each use is a break
def numpy_constants(x):
    return x + torch.as_tensor(TABLE), torch.tensor(TABLE.tolist()), torch.from_numpy(TABLE)


TABLE = np.arange(3, dtype=np.float32)


@case(over=4)  # arrays have no provenance: each use is a break
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


@case(over=2)  # attributes of tensors are set: twice
def tensor_attributes(x):
    x.tag = "kept"
    y = x * 2
    y.note = [1]
    return x.tag, y, y.note, hasattr(x + 1, "tag"), x.requires_grad, x.grad_fn, y.is_leaf, y.ndim, x.T.shape


@case
def tensor_iteration_nested(x):
    return [[v * 2 for v in row] for row in x], torch.stack([sum(row) for row in x])


@case(hit=False, over=1)  # tolist, and int() of what was computed from it
def tensor_values_nested(x):
    return [[round(v, 2) for v in row] for row in x.tolist()], {int(v > 0) for row in x for v in row}


class Meters(torch.Tensor):
    """A subclass without any hooks."""

    def doubled(self):
        return self * 2


@case(over=7)  # subclasses run in eager, op by op
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


@case(over=1)  # its result is made in C code
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


@case(over=4)  # subclasses run in eager, op by op
def torch_function_subclass(x):
    Tracked.calls.clear()
    y = torch.relu(x.as_subclass(Tracked) * 2)
    return type(y).__name__, y.as_subclass(torch.Tensor), list(Tracked.calls)


@case(hit=False, over=1)  # a class statement
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


@case(inputs=lambda i: (t(2, 3, seed=i), t(2, 3, seed=i + 9)))
def vmap_and_grad(x, y):
    f = torch.func.vmap(lambda a, b: (a * b).sum())
    return f(x, y), torch.func.grad(lambda a: (a * a).sum())(x)


@case
def numpy_scalars_of_all_kinds(x):
    return (
        x * np.float32(1.5),
        x + np.int64(2),
        np.float32(0.5) + 1,
        float(np.float64(2)),
        int(np.int32(x.shape[0])),
        np.float32(2) * np.float32(3),
        x[np.int64(0)],
    )


@case
def logging_get(x):
    log = logging.getLogger("abc")
    return x * 2, log.name, logging.getLogger("abc") is log


# ---- generators, and checks of data ----------------------------------------------------------------------------------
@case
def generator_made_and_seeded(x):
    g = torch.Generator(device=x.device)
    g.manual_seed(3)
    return x + torch.randn(x.shape, generator=g), torch.empty(3).uniform_(generator=g), g.device


@case
def generators_of_equal_seeds(x):
    a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    return x * torch.rand(3, generator=a), torch.rand(3, generator=b), torch.rand(3, generator=a), a is b


@case
def generator_over_a_break(x):
    g = torch.Generator().manual_seed(4)
    a = x * torch.rand(3, generator=g)
    return a * x.sum().item() + torch.rand(3, generator=g), g.get_state()


@made
def generator_kept():
    class Noise:
        generator = state = None

    noise = Noise()

    def fn(x):
        if noise.generator is None:
            noise.generator = torch.Generator().manual_seed(2)
        y = x + torch.rand(3, generator=noise.generator)
        noise.state = noise.generator.get_state()
        return y

    return fn, Seen(lambda: [noise.state])


@made(inputs=lambda i: (t(2, 3, seed=i), 5 + i // 2), hit=False)
def generator_rewound():
    g = torch.Generator()

    def fn(x, seed):
        g.manual_seed(seed)
        state = g.get_state()
        a = x * torch.rand(3, generator=g)
        g.set_state(state)
        return a, torch.rand(3, generator=g)

    return fn, Seen(lambda: [g.get_state()])


@case(inputs=lambda i: (torch.full((3,), (-1.0) ** (i // 2 + 1)).neg(), []), hit=False)
def assert_async(x, seen):
    seen.append(1)
    x.add_(1)
    torch._assert_async((x > 0).all(), "not positive")
    seen.append(2)
    x.mul_(2)
    return x + torch.rand(3)


@case(inputs=lambda i: (torch.full((3,), (-1.0) ** i),), hit=False)
def assert_async_caught(x):
    try:
        torch._assert_async((x > 0).all())
        return x + 1
    except RuntimeError:
        return x - 1


# ---- sizes and strides changed in place ------------------------------------------------------------------------------
@case
def reshaped_in_place(x):
    y, seen = x * 2, []
    flat = y.view(-1)
    seen.append(y)
    y.t_()
    y[0, 1] = 5
    flat[0] = 7
    y.unsqueeze_(0).transpose_(1, 2)
    return y, flat, y.squeeze_(0).is_contiguous(), seen[0] is y, y.swapaxes_(0, 1).stride()


@case(inputs=lambda i: (t(3, 4, seed=i), []))
def reshaped_after_it_is_kept(x, seen):
    y = x * 2
    seen.append(y)
    y.unsqueeze_(0)
    z = y[0]
    y.add_(1)
    return y, z, {"y": y}, seen[0] is y


@case
def reshaped_views(x):
    y = x[1:]
    y.unsqueeze_(1)
    y.mul_(2)
    return y, [v.unsqueeze_(0) for v in x.split(1)]


# ---- functions of TorchScript ----------------------------------------------------------------------------------------
def script_branches(x, k: float):
    y = x * k
    if bool(y.sum() > 0):
        y = y.sin()
    for _ in range(2):
        y = y + 1
    return y, {"twice": y * 2}


def script_writes(x):
    return x.add_(1)


def script_gives_its_argument(x):
    return x, x.view(-1)


def script_draws(x):
    return torch.rand_like(x) + x


def script_raises(x):
    if bool(x.sum() > 100):
        raise ValueError("large")
    return x + 1


def script_selects(x):
    return x[x > 0]


def scripted(fn, call, **options):
    """call(x, scripted fn)"""

    def make():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f = torch.jit.script(fn)
        return lambda x: call(x, f)

    make.__name__ = fn.__name__
    made(make, **options)


scripted(script_branches, lambda x, f: (f(x + 1, 2.0)[1]["twice"] * 3, f(x, 0.5)))
scripted(script_writes, lambda x, f: (f(x * 2), x), over=1)
scripted(script_gives_its_argument, lambda x, f: (f(x)[1].add_(1), x), over=1)
scripted(script_draws, lambda x, f: (f(x), torch.rand(2)), over=1)
scripted(
    script_raises, lambda x, f: f(x * 2) * 3, inputs=lambda i: (torch.full((3,), 1000.0 if i == 2 else i),), hit=False
)
scripted(script_selects, lambda x, f: f(x * 2) * 3)


@made
def traced_with_a_constant_that_is_written():
    constant = torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = torch.jit.trace(lambda x: x * constant + 1, torch.ones(2, 3))

    def fn(x):
        constant.add_(1)
        y = f(x)
        constant.mul_(0.5)
        return y, f(x)

    return fn, Seen(lambda: [constant])


@case(inputs=lambda i: ({"a": t(3, seed=i), "b": [t(2, seed=i), (t(2, seed=i + 1), None)]},))
def trees_mapped(tree):
    leaves, spec = pytree.tree_flatten(tree)
    doubled = pytree.tree_unflatten([v * 2 if isinstance(v, torch.Tensor) else v for v in leaves], spec)
    return doubled, pytree.tree_map_only(torch.Tensor, torch.sin, tree)


@case
def detached_in_place(x):
    y, seen = x * 2, []
    seen.append(y)
    y.detach_()
    y.add_(1)
    return y + 1, seen[0] is y
