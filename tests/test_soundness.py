"""Soundness: small functions that once were, or could be, replayed wrongly. Each compares eager with compiled over several calls.

Code that is not compiled (`then`) makes the changes between calls, so that only guards can notice them.
"""

import collections
import decimal
import functools
import gc
import itertools
import math
import operator
import sys
import time
import traceback
import types
import warnings
import weakref

import ccompile
import pytest
import torch
import torch.utils.checkpoint
from conftest import same, together

CASES = {}
space = types.SimpleNamespace


def T(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def case(fn=None, **options):
    def add(fn):
        CASES[fn.__name__.replace("_", "-")] = fn, options
        return fn

    return add if fn is None else add(fn)


@ccompile.disable
def brk(*_):
    return None


def then(f, change):
    """f, and then a change of the world that the trace does not see."""
    change = ccompile.disable(change)

    def fn(*args):
        result = f(*args)
        change()
        return result

    return fn


def ix(i):
    """An index that is out of range in the fourth call."""
    return T(3, 4, seed=i), torch.tensor([0, 1 if i != 3 else 9])


# ---- reads, containers, aliasing -----------------------------------------------------------------------------------
@case
def tuple_key():
    d = {(1, 2): 3.0}
    n = [0]

    def f(x):
        return x * d[(1, 2)]

    def g(x):
        n[0] += 1
        d[(1, 2)] = float(n[0])
        return f(x)

    cf = f
    return then(f, lambda: d.__setitem__((1, 2), d[(1, 2)] + 1))


@case
def obj_key():
    class K:
        pass

    k = K()
    d = {k: 1.0}

    def f(x):
        return x * d[k]

    return then(f, lambda: d.__setitem__(k, d[k] + 1))


@case
def max_list_symbolic():
    def f(x):
        a = x.sum().item()
        b = max([a, 0.5])
        return x * b

    return f


@case
def sorted_symbolic():
    def f(x):
        a = x.sum().item()
        c = x.mean().item()
        b = sorted([a, c])
        return x * b[0]

    return f


@case
def tuple_eq_symbolic():
    def f(x):
        a = x.sum().item()
        if (a, 1) > (0.0, 0):
            return x + 1
        return x - 1

    return f


@case
def fmt_tuple_symbolic():
    def f(x):
        a = x.sum().item()
        c = x.mean().item()
        return x, "%.3f %.3f" % (a, c)

    return f


@case
def in_tuple_symbolic():
    def f(x):
        whole = (x * 4).round()  # sums that no order rounds
        a = round(whole.sum().item())
        b = whole.sum().item()
        return x, [b] == [1.0], str([b]), repr((b,)), sum([b, b]), math.fsum([b, a])

    return f


@case
def set_symbolic():
    def f(x):
        a = x.sum().item()
        b = x.mean().item()
        s = {a, b}
        return x * len(s), s

    return f


@case(make_args=lambda i: (torch.full((2,), 1.0 if i % 2 else float(i)), torch.full((2,), 1.0)))
def set_symbolic_collide():
    def f(x, y):
        a = x[0].item()
        b = y[0].item()
        s = {a, b}
        return x * len(s), s

    return f


@case(make_args=lambda i: (torch.full((2,), 1.0 if i % 2 else float(i)), torch.full((2,), 1.0)))
def dict_symbolic_collide():
    def f(x, y):
        a = x[0].item()
        b = y[0].item()
        s = {a: 1, b: 2}
        return x * len(s), s

    return f


@case
def adopted_list_two_frames():
    def inner(l, x):
        brk()
        l.append(x + 1)
        brk()
        l.append(x + 2)

    def f(x):
        l = []
        inner(l, x)
        return l

    return f


@case
def adopted_list_two_frames2():
    def inner(l, x):
        brk()
        l.append(x + 1)
        brk()
        l.append(x + 2)
        brk()
        l.append(len(l))

    def f(x):
        l = []
        d = {"l": l}
        inner(l, x)
        inner(l, x)
        return l, d

    return f


@case
def adopted_dict():
    def inner(d, x):
        brk()
        d["a"] = x + 1
        brk()
        d["b"] = x
        return 1

    def f(x):
        d = {}
        inner(d, x)
        brk()
        inner(d, x + 1)
        return d

    return f


@case
def adopted_iter_two_frames():
    def inner(it, x):
        brk()
        a = next(it)
        brk()
        b = next(it)
        brk()
        return a * x + b

    def f(x):
        it = iter([1, 2, 3, 4, 5, 6])
        y = inner(it, x)
        brk()
        return y + next(it)

    return f


@case
def default_alias():
    l0 = [0]
    cnt = [0]

    def g(x, l=l0):
        l.append(1)
        return x + 1

    def f(x):
        g(x)
        return x

    return f, l0


@case
def default_alias2():
    l0 = [0]
    other = [0]
    cur = [l0]

    def g(x, l=l0):
        l.append(x.shape[0])
        return x + 1

    sw = ccompile.disable(lambda: cur.__setitem__(0, other if cur[0] is l0 else l0))

    def h(x, l):
        g(x)
        return l

    def f(x):
        r = h(x, cur[0])
        sw()
        l0.clear()
        other.clear()
        return r is l0

    return f, (l0, other)


@case
def real_attr_computed():
    def f(x):
        a = x.sum().item() * 2
        return x * a.real, a.imag

    return f


@case(raises=True, make_args=lambda i: (T(3, 4, seed=i), torch.tensor([0, 1 if i != 2 else 9])))
def try_index_error_inplace():
    def f(x, i):
        y = x + 0
        x.add_(1)
        try:
            z = y[i]
        except IndexError:
            z = y
        return z + 1

    return f


@case(raises=True, make_args=lambda i: (T(3, 4, seed=i), torch.tensor([0, 1 if i != 2 else 9])))
def try_index_error_effect():
    s = space(n=0)

    def f(x, i):
        s.n += 1
        try:
            z = x[i]
        except IndexError:
            z = x
            s.n += 10
        return z + 1

    return f, s


@case(raises=True, make_args=lambda i: (T(3, 4, seed=i), torch.tensor([0, 1 if i != 2 else 9])))
def index_error_random():
    s = space(n=0)

    def f(x, i):
        y = torch.rand(3, 4) + x
        with torch.no_grad():
            z = y[i]
        return z + 1

    return f, s


@case(
    raises=True,
    make_args=lambda i: (T(3, 4, seed=i).requires_grad_(), torch.tensor([0, 1 if i != 2 else 9])),
    no_grad=False,
)
def index_error_random_nograd():
    s = space(n=0)

    def f(x, i):
        y = torch.rand(3, 4) + x
        with torch.no_grad():
            z = y[i]
        return z + 1 + y.sum()

    return f, s


@case
def del_attr():
    s = space(n=0, c=1)

    def f(x):
        s.c = x.shape[0]
        del s.c
        s.c = 2
        return x

    return f, s


@case(raises=True)
def del_attr_missing():
    s = space(c=1, n=0)

    def f(x):
        s.n += 1
        try:
            del s.c
        except AttributeError:
            s.n += 10
        return x

    return f, s


@case
def gen_finally():
    out = []

    def gen(x):
        try:
            yield x + 1
            yield x + 2
        finally:
            out.append("fin")

    def f(x):
        g = gen(x)
        y = next(g)
        del g
        out.append("after")
        return y

    return f, out


@case
def cached_property():
    class A:
        def __init__(s):
            s.k = 2.0

        @functools.cached_property
        def p(s):
            return s.k * 3

    a = A()

    def f(x):
        return x * a.p

    return then(f, lambda: (setattr(a, "k", a.k + 1), a.__dict__.pop("p", None))), a


@case
def lru():
    calls = []

    @functools.lru_cache(maxsize=None)
    def h(n):
        calls.append(n)
        return n * 2.0

    def f(x):
        return x * h(x.shape[0])

    return f, calls


@case
def class_list():
    class A:
        items = [1.0]

        def m(s, x):
            for i in s.items:
                x = x * i
            return x

    a = A()
    return then(lambda x: a.m(x), lambda: A.items.append(2.0))


@case
def dict_order():
    d = {"a": 1.0, "b": 2.0}

    def f(x):
        for k in d:
            x = x * d[k] + len(k) + (1 if k == "a" else 2) * x
        return x

    return then(f, lambda: d.__setitem__("a", d.pop("a")))


@case
def meta_prop():
    class M(type):
        @property
        def v(cls):
            return cls.__dict__["_v"]

    class A(metaclass=M):
        _v = 1.0

    def f(x):
        return x * A.v

    return then(f, lambda: setattr(A, "_v", A._v + 1))


@case
def super_noargs():
    class A:
        def m(s, x):
            return x * 2

    class B(A):
        def m(s, x):
            return super().m(x) + 1

    b = B()
    return then(lambda x: b.m(x), lambda: setattr(A, "m", lambda s, x: x * 3))


@case
def set_name():
    class D:
        def __set_name__(s, o, n):
            s.n = "_" + n

        def __get__(s, i, o=None):
            return getattr(i, s.n, 1.0)

        def __set__(s, i, v):
            setattr(i, s.n, v)

    class A:
        d = D()

    a = A()

    def f(x):
        a.d = a.d + 1.0
        return x * a.d

    return f, a


@case
def user_eq_hash():
    class K:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __hash__(s):
            return hash(s.v)

    d = {K(1): 2.0, K(2): 3.0}

    def f(x):
        return x * d[K(1)]

    return then(f, lambda: d.__setitem__(K(1), d[K(1)] + 1))


@case
def user_eq_in_list():
    class K:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

    l = [K(1), K(2)]

    def f(x):
        return x + 1 if K(2) in l else x - 1

    return then(f, lambda: setattr(l[1], "v", 5 - l[1].v))


@case
def set_of_tensors():
    def f(x):
        a = x + 1
        b = x + 2
        s = {a, b, a}
        return len(s), a in s, sum(t.sum() for t in [a, b])

    return f


@case
def weakrefs():
    class A:
        pass

    a = A()
    a.v = 1.0
    r = weakref.ref(a)

    def f(x):
        return x * r().v

    return then(f, lambda: setattr(a, "v", a.v + 1))


@case
def isinst():
    def f(x, v=[1, True, 1.0, None, "s", (1,)]):
        out = []
        for k in v:
            out.append((isinstance(k, int | str), isinstance(k, (int, (str, float)))))
        return out, x + 1

    return f


@case
def mod_getattr():
    m = types.ModuleType("mm")
    exec("V=1.0\ndef __getattr__(n):\n    if n=='W': return V\n    raise AttributeError(n)\n", m.__dict__)

    def f(x):
        return x * m.W, hasattr(m, "Z")

    return then(f, lambda: setattr(m, "V", m.V + 1))


@case
def dict_subclass():
    class D(dict):
        def __missing__(s, k):
            s[k] = len(s) + 1.0
            return s[k]

    d = D()

    def f(x):
        return x * d["a"] * d[str(x.shape[0])], len(d)

    return f, d


@case
def dict_subclass_override():
    class D(dict):
        def __getitem__(s, k):
            return dict.__getitem__(s, k) * 2

        def get(s, k, d=None):
            return 7.0

        def __contains__(s, k):
            return True

        def __len__(s):
            return 5

        def __iter__(s):
            return iter(["a"])

    d = D(a=1.0, b=2.0)

    def f(x):
        y = x * d["a"] * d.get("q") * len(d)
        if "z" in d:
            y = y + 1
        for k in d:
            y = y + d[k]
        return y, dict(d), list(d), {**d}

    return f, d


@case
def same_list_two_ways():
    s = space(l=[1.0])
    m = s.l

    def f(x):
        s.l.append(x.shape[0] * 1.0)
        return x * m[-1] * len(m)

    return f, (s, m)


@case
def alias_args_lists():
    a = [1.0]
    b = [1.0]
    s = space(a=a, b=b)
    sw = ccompile.disable(lambda: setattr(s, "b", s.a if s.b is not s.a else b))

    def g(x):
        s.a.append(2.0)
        return x * len(s.b)

    def f(x):
        r = g(x)
        sw()
        return r

    return f, s


@case
def fresh_then_outer():
    outer = []

    def f(x):
        l = [x]
        outer.append(l)
        l.append(x + 1)
        d = {"l": l}
        outer.append(d)
        l.append(3)
        d["k"] = l
        return l

    return f, outer


@case(raises=True, calls=6)
def exc_after_effect():
    s = space(n=0, l=[])

    def f(x):
        s.n += 1
        s.l.append(x.shape[0])
        if s.n == 3:
            raise ValueError("three")
        return x * s.n

    return f, s


# ---- exceptions being handled across breaks ------------------------------------------------------------------------
@case(raises=True)
def reraise_after_break():
    def f(x):
        try:
            raise ValueError("a")
        except ValueError:
            brk()
            raise

    return f


@case(raises=True)
def context_after_break():
    def f(x):
        try:
            raise ValueError("a")
        except ValueError:
            brk()
            raise KeyError("b")

    return f


@case(raises=True)
def excinfo_after_break():
    def f(x):
        try:
            raise ValueError("a")
        except ValueError:
            brk()
            return str(sys.exc_info()[1]), x

    return f


@case(raises=True)
def context_nobreak():
    def f(x):
        try:
            x + torch.zeros(9)
        except RuntimeError:
            raise KeyError("b")

    return f


@case(raises=True)
def finally_break():
    def f(x):
        try:
            raise ValueError("a")
        finally:
            brk()

    return f


@case(raises=True)
def callee_in_handler():
    def g(x):
        brk()
        raise

    def f(x):
        try:
            raise ValueError("a")
        except ValueError:
            try:
                g(x)
            except ValueError as e:
                return str(e), x + 1

    return f


# ---- operations that raise in a replay -----------------------------------------------------------------------------
@case(raises=True, make_args=ix, calls=5)
def fail_behind_break():
    s = space(n=[])

    def f(x, i):
        brk()
        s.n.append(1)
        x.add_(1)
        z = x[i]
        s.n.append(2)
        return z

    return f, s


@case(raises=True, make_args=ix, calls=5)
def fail_behind_break_callee():
    s = space(n=[])

    def g(x, i):
        brk()
        s.n.append(1)
        x.add_(1)
        z = x[i]
        s.n.append(2)
        return z

    def f(x, i):
        try:
            return g(x, i) + 1
        except IndexError:
            return x

    return f, s


@case(raises=True, make_args=ix, calls=5)
def fail_behind_break_callee2():
    s = space(n=[])

    def g(x, i):
        brk()
        s.n.append(1)
        x.add_(1)
        z = x[i]
        s.n.append(2)
        return z

    def f(x, i):
        return g(x, i) + 1

    return f, s


@case(raises=True, make_args=ix, calls=5)
def fail_user_with():
    log = []

    class W:
        def __enter__(s):
            log.append("in")

        def __exit__(s, *a):
            log.append(a[0])
            return True

    def f(x, i):
        with W():
            y = torch.rand(2) + 1
            z = x[i]
            log.append(2)
            return z
        return y

    return f, log


@case(raises=True, make_args=ix, calls=5, no_grad=False)
def fail_nograd_random():
    def f(x, i):
        with torch.no_grad():
            y = torch.rand(2) + 1
            z = x[i]
        return y, z

    return f


@case(raises=True, make_args=ix, calls=5, no_grad=False)
def fail_autocast():
    def f(x, i):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.t()
            z = x[i]
        return y, z

    return f


@case(raises=True, make_args=ix, calls=5)
def unused_index():
    def f(x, i):
        x[i]
        return x + 1

    return f


def masked(i):
    return T(2, 3, seed=i), torch.full((2, 3), i in (2, 4)), T(4)


@case(raises=True, make_args=masked, calls=5)
def unused_masked_scatter():
    def f(x, mask, source):
        x.masked_scatter(mask, source)
        return x + 1

    return f


@case(raises=True, make_args=masked, calls=5)
def unused_masked_scatter_in_place():
    def f(x, mask, source):
        y = x * 2
        y.masked_scatter_(mask, source)
        return x + 1

    return f


@case(raises=True, make_args=lambda i: (T(3, 4, seed=i), torch.tensor([0, 1 if i != 0 else 9])), calls=5)
def first_raises():
    def f(x, i):
        try:
            z = x[i]
        except IndexError:
            z = x
        return z + 1

    return f


@case(raises=True, make_args=lambda i: (T(3, 4, seed=i), [1, 2]), calls=5)
def store_raises():
    l = [1]

    def f(x, k):
        try:
            l[5] = x
        except IndexError:
            l[0] = len(l)
        try:
            del k[7]
        except IndexError as e:
            return x + 1, str(e)

    return f, l


@case(raises=True, make_args=lambda i: T(3, 4, seed=i), calls=5)
def attr_raises():
    class S:
        __slots__ = ("a",)

        @property
        def ro(s):
            return 1

    s = S()
    n = []

    def f(x):
        try:
            s.zz = 1
        except AttributeError:
            n.append(1)
        try:
            s.ro = 1
        except AttributeError:
            n.append(2)
        try:
            del s.a
        except AttributeError:
            n.append(3)
        s.a = x.shape[0]
        return x + 1

    return f, n


# ---- numbers and arguments ------------------------------------------------------------------------------------------
@case(
    make_args=lambda i: (
        T(2, 2, seed=i),
        [1, True, 1.0, 2, 2.0, False, 0, 0.0, -0.0, float("nan"), float("inf"), -(2**62)][i],
    ),
    calls=12,
)
def equal_scalars():
    def f(x, k):
        return x * k, (x + k).dtype, type(k), math.copysign(1, k)

    return f


@case(make_args=lambda i: ((T(2, seed=i),) * (i % 3 + 1), {}), calls=8)
def varargs():
    def f(*a):
        return sum(a), len(a)

    return f


@case(make_args=lambda i: ((T(2, seed=i),), {"k": i} if i % 2 else {"j": T(2)}), calls=6)
def keyword_only():
    default = T(2, seed=9)

    def f(x, *, k=2, j=default, **kw):
        return x * k + j

    return f


@case(make_args=lambda i: (T(2, 2, seed=i), i), calls=6)
def symbol_and_complex():
    def f(x, k):
        return x * (k + 1j), (2.5 + 1j) - k, x.shape[0] + 1j, k + decimal.Decimal(2)

    return f


@case
def keys_with_a_hash_in_python():
    def f(x):
        rows = collections.OrderedDict((row, i) for i, row in enumerate(x))
        rows.move_to_end(next(iter(rows)))
        brk(rows)
        return {row: row * 2 for row in x}, rows

    return f


@case(calls=6)
def attributes_of_what_has_no_dict_yet():
    """Tensors and functions have a dict only once an attribute was set."""
    weight, n = torch.ones(4), [0]

    def scale():
        return 2.0

    def f(x):
        x = x * weight.scale if hasattr(weight, "scale") else x + weight
        return (x * scale.factor if hasattr(scale, "factor") else x), getattr(weight, "sum")()

    def change():
        n[0] += 1
        if n[0] == 2:
            weight.scale = scale.factor = 3.0
        if n[0] == 4:
            weight.sum = lambda: 5.0

    return then(f, change)


@case
def global_read_and_deleted():
    code = """
def fn(x):
    global Q
    y = x * globals()["Q"]
    Q += 1
    try:
        del missing
    except NameError:
        y = y + 1
    return y
"""
    names = {"Q": 1.0}
    exec(code.replace("global Q", "global Q, missing"), names)
    return names["fn"]


@case(raises=True)
def hook_that_is_always_called():
    """Module._call_impl leaves these out, behind a hook that raises, when it is told that it is compiled."""
    model, seen = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), []

    def refuse(module, args, result):
        raise ValueError("refused")

    model[0].register_forward_hook(refuse)
    model[0].register_forward_hook(lambda module, args, result: seen.append(1), always_call=True)
    return (lambda x: model(x)), seen


@pytest.mark.parametrize("name", CASES)
def test_soundness(name):
    fn, options = CASES[name]
    options = {"calls": 4, "hit": False, "build": True, "make_args": lambda i: T(3, 4, seed=i), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recompile_limit
        same(fn, **options)


# ---- threads, recursion, reset -----------------------------------------------------------------------------------------
def test_threads_record_and_replay_one_function():
    def f(x, seen):
        seen.append(1)
        y = x * 2 + 1
        if y.sum() > 0:
            y = y + 1
        brk()
        return y.relu() + len(seen)

    compiled = ccompile.compile(f)

    def work(k):
        for i in range(40):
            x = T(3, 4, seed=31 * i + k)
            assert torch.allclose(f(x, []), compiled(x, [])), (k, i)

    together(6, work)


def test_compiled_function_calls_itself():
    def f(x, n):
        if n == 0:
            return x
        brk()
        return compiled(x + 1, n - 1) * 2

    compiled = ccompile.compile(f)
    for _ in range(3):
        assert compiled(torch.ones(2), 3).tolist() == [32.0, 32.0]


def test_reset_inside_a_call():
    @ccompile.compile
    def f(x):
        y = x + 1
        ccompile.reset()
        brk()
        return y * 2

    for _ in range(4):
        assert f(torch.ones(2)).tolist() == [4.0, 4.0]


@pytest.mark.parametrize("depth", [50, 62, 63, 64, 65, 200])
def test_break_deep_in_recursion(depth):
    def deep(x, n):
        if n == 0:
            brk()
            return x
        return deep(x + 1, n - 1)

    f = ccompile.compile(deep)
    for _ in range(3):
        assert f(torch.zeros(1), depth).item() == depth


def test_keyboard_interrupt_in_a_break():
    log = []

    @ccompile.disable
    def interrupt():
        raise KeyboardInterrupt

    @ccompile.compile
    def f(x):
        y = x + 1
        try:
            interrupt()
        finally:
            log.append(1)
        return y

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            f(torch.ones(2))
    assert log == [1] * 4


def test_finalisers_run_in_effects():
    log = []

    class Fin:
        def __del__(self):
            log.append(1)
            ccompile.reset()

    @ccompile.compile
    def f(x, box):
        box.a = None
        box.b = [x]
        return x + 1

    for _ in range(4):
        f(torch.ones(2), space(a=Fin(), b=Fin()))
    assert log == [1] * 8


def test_an_argument_that_is_also_a_default():
    default, other = [0], [0]

    def g(x, seen=default):
        seen.append(1)
        return x + 1

    f = ccompile.compile(lambda x, seen: g(x))
    f(torch.ones(2), default)
    default[:] = [0]
    f(torch.ones(2), other)
    assert (default, other) == ([0, 1], [0])


def test_eq_is_added_to_a_class():
    class Key:
        pass

    keys, key = [Key(), Key()], Key()
    f = ccompile.compile(lambda x: x + 1 if key in keys else x - 1)
    assert [f(torch.zeros(1)).item() for _ in range(2)] == [-1.0, -1.0]
    Key.__eq__ = lambda a, b: True
    assert f(torch.zeros(1)).item() == 1.0


def test_callbacks_of_the_interpreter_are_not_recorded():
    """Garbage collection, finalisers and weak references call Python code in the middle of anything: it is no part of
    what was called, and must neither be replayed nor break it."""
    seen = []

    def helper(phase):
        seen.append((phase, time.perf_counter()))

    def callback(phase, info):
        helper(phase)

    class Loud:
        def __del__(self):
            helper("del")

    def fn(x):
        loud = Loud()
        ref = weakref.ref(loud, lambda r: helper("ref"))
        y = x * 2
        del loud
        for i in range(300):
            y = y + len([[] for _ in range(9)])
        return y, type(ref)

    gc.callbacks.append(callback)
    threshold = gc.get_threshold()
    gc.set_threshold(20)
    try:
        compiled = ccompile.compile(lambda x: x * 2 + len([[] for _ in range(500)]), fullgraph=True)
        with torch.no_grad():
            for i in range(4):
                x = torch.randn(3)
                torch.testing.assert_close(compiled(x), x * 2 + 500)
        same(fn, torch.ones(3), calls=4, hit=False)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)
    assert seen


def test_finalisers_of_what_a_call_makes_run_in_each_call():
    def build():
        seen = []

        class Loud:
            def __del__(self):
                seen.append("del")

        def fn(x):
            loud = Loud()
            seen.append("made")
            del loud
            return x + 1

        return fn, seen

    (eager, expected), (fn, seen) = build(), build()
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x), eager(x))
            assert seen == expected


class Loud:
    """Says when it dies."""

    def __init__(self, seen, x):
        self.seen, self.x = seen, x

    def __del__(self):
        self.seen.append("del")


def announced(seen, x):
    try:
        while True:
            yield x
            x = x + 1
    finally:
        seen.append(torch.is_grad_enabled())


def relayed(seen, x):
    yield from announced(seen, x)


def grad_kept_on(seen, x):
    with torch.enable_grad():
        yield x


def never_deleted(seen, x):
    loud = Loud(seen, x * 2)
    return loud.x + 1


def deleted_in_a_list(seen, x):
    louds = [Loud(seen, x * i) for i in range(3)]
    total = sum(loud.x for loud in louds)
    louds.pop(0)
    return total


def deleted_after_breaks(seen, x):
    loud = Loud(seen, x * 2)
    seen.append(bool((loud.x + 1).sum() > 1e9))
    y = x * 2
    seen.append(bool(y.sum() > 1e9))
    return y + 1


def collected(seen, x):
    loud = Loud(seen, x * 2)
    loud.me = loud
    return loud.x + 1


def never_closed(seen, x):
    values = announced(seen, x)
    return next(values) * 2 + next(values)


def never_closed_over_breaks(seen, x):
    values = announced(seen, x)
    y = next(values)
    seen.append(bool(y.sum() > 1e9))
    y = y * 2
    seen.append(bool(y.sum() > 1e9))
    return y


def never_closed_and_relayed(seen, x):
    values = relayed(seen, x)
    return next(values) + next(values)


def never_closed_in_zip(seen, x):
    pairs = zip(announced(seen, x), [1, 2])
    return sum(a * b for a, b in pairs)


def mode_left_on(seen, x):
    values = grad_kept_on(seen, x)
    next(values)
    seen.append(torch.is_grad_enabled())
    return x * 2


FINALISED = (
    *(never_deleted, deleted_in_a_list, deleted_after_breaks, collected, never_closed, never_closed_over_breaks),
    *(never_closed_and_relayed, never_closed_in_zip, mode_left_on),
)


@pytest.mark.parametrize("fn", FINALISED, ids=lambda fn: fn.__name__)
def test_what_a_call_leaves_is_finalised_in_each_call(fn):
    """A local that nobody reads any more dies when eager's frame ends, or with the next collection."""
    compiled, seen, expected = ccompile.compile(fn), [], []
    for i in range(6):
        x = T(3, seed=i)
        with torch.no_grad():
            torch.testing.assert_close(compiled(seen, x), fn(expected, x))
            gc.collect()
            assert seen == expected
            assert not torch.is_grad_enabled()


def test_a_generator_without_handlers_may_be_left():
    """It ends without running code."""

    def count(x):
        while True:
            yield x
            x = x + 1

    def fn(x):
        values = count(x)
        return next(values) + next(values)

    same(fn, torch.ones(3), options={"fullgraph": True})


def test_recomputation_may_stop_a_compiled_module():
    """torch.utils.checkpoint's hook raises out of the op behind which nothing is needed any more: once."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Dropout(0.5))
    compiled = ccompile.compile(model)

    def gradient(called, i):
        torch.manual_seed(i)
        x = T(3, 4, seed=i).requires_grad_()
        y = torch.utils.checkpoint.checkpoint(called, x, use_reentrant=bool(i % 2))
        y.sum().backward()
        return x.grad

    for i in range(6):
        torch.testing.assert_close(gradient(compiled, i), gradient(model, i))


def test_what_python_code_raises_in_a_replay_is_raised_once():
    """A custom op may have done anything before."""
    asked = []

    @torch.library.custom_op("ccompile_soundness::impatient", mutates_args=())
    def impatient(x: torch.Tensor) -> torch.Tensor:
        asked.append(1)
        if x[0] > 9:
            raise ValueError(f"asked {len(asked)} times")
        return x * 2

    compiled = ccompile.compile(lambda x: impatient(x + 1) * 2)
    with torch.no_grad():
        for i in range(4):
            torch.testing.assert_close(compiled(T(3, seed=i)), (T(3, seed=i) + 1) * 4)
        before = len(asked)
        with pytest.raises(ValueError, match=f"asked {before + 1} times"):
            compiled(torch.full((3,), 10.0))
    assert len(asked) == before + 1


@pytest.mark.parametrize("divide", (operator.floordiv, operator.mod, torch.fmod), ids=lambda f: f.__name__)
def test_a_division_by_zero_raises_though_nobody_reads_it(divide):
    def fn(a, b):
        divide(a, b)
        return a + 1

    def arguments(i):
        return torch.tensor([5, 6, i]), torch.tensor([1, 2, 0 if i == 3 else 3])

    same(fn, make_args=arguments, calls=5, raises=True)


def test_new_memory_is_filled_under_deterministic_algorithms():
    def fn(x):
        y = torch.empty(2, 3)
        y[0] = x[0]
        return torch.empty(3), x.new_empty(2, 2), torch.empty_like(x), torch.empty(4, dtype=torch.long), y, x + 1

    torch.use_deterministic_algorithms(True)
    try:
        for given in same(fn, T(2, 3), calls=4):
            assert given.value[0].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


OPERATOR = (3).__add__


def test_a_bound_operator_is_replaced(monkeypatch):
    """Its type and its slot are the next one's, too."""
    compiled = ccompile.compile(lambda x: x * OPERATOR(1))
    with torch.no_grad():
        for n in (3, 3, 3, 5, 5, 3):
            monkeypatch.setattr(sys.modules[__name__], "OPERATOR", (n).__add__)
            torch.testing.assert_close(compiled(T(3)), T(3) * (n + 1))


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


KEY, DICT = vars(Slotted)["k"].__get__, vars(type)["__dict__"].__get__


def test_descriptors_get():
    """What descriptor.__get__(o) reads is guarded as o's attribute is."""
    compiled = ccompile.compile(lambda x, o: x * KEY(o) + len(DICT(type(o))))
    with torch.no_grad():
        for k in (1, 2, 2, 3, 2):
            torch.testing.assert_close(compiled(T(3), Slotted(k)), T(3) * k + len(vars(Slotted)))
    assert ccompile.explain(lambda x, o: x * KEY(o) + len(DICT(type(o))))(T(3), Slotted(1)).break_count == 0


# ---- which function it is --------------------------------------------------------------------------------------------
def made_function(tag):
    def alike_but_for_its_identity(x):
        return x + 1

    alike_but_for_its_identity.tag = tag
    return alike_but_for_its_identity


class Tagged:
    def __init__(self, tag):
        self.tag = tag

    def __call__(self, x):
        return x + 1


MAKE = made_function
MADE = made_function(0), made_function(1)
IN_DICT = {MADE[0]: "a", MADE[1]: "b"}


def tag_written(f):
    f.tag += 10
    return f.tag, MADE[0].tag


def tag_of_first_written(f):
    MADE[0].tag += 10
    return f.tag


def made_or_given(f):
    return (f if f.tag else MAKE(0)) is MADE[0]


LOOKS_AT = {
    "call": lambda f: f(1),
    "is": lambda f: f is MADE[0],
    "is not": lambda f: MADE[0] is not f,
    "operator.is_": lambda f: operator.is_(f, MADE[0]),
    "==": lambda f: f == MADE[0],
    "in": lambda f: (f in MADE[:1], MADE[0] in [f]),
    "index": lambda f: MADE.index(f),
    "remove": lambda f: [f, MADE[1], MADE[0]].remove(MADE[0]),
    "d[f]": lambda f: IN_DICT[f],
    "d.get": lambda f: IN_DICT.get(f),
    "f in d": lambda f: f in {MADE[0]: 1},
    "keys": lambda f: len({f: 1, MADE[0]: 2}),
    "keys stored": lambda f: (d := {f: 1}, d.__setitem__(MADE[0], 2), len(d))[2],
    "set": lambda f: len({f, MADE[0]}),
    "set()": lambda f: len(set([f, MADE[0]])),
    "frozenset": lambda f: len(frozenset((f, MADE[0]))),
    "fromkeys": lambda f: len(dict.fromkeys([f, MADE[0]])),
    "id": lambda f: id(f) == id(MADE[0]),
    "id given": lambda f: id(f),
    "hash": lambda f: hash(f) == hash(MADE[0]),
    "hash given": lambda f: (hash(f), hash((f, 1)), hash(f.__init__)),
    "repr": lambda f: repr(f) == f"{MADE[0]}",
    "text given": lambda f: (str(f), f"{f!r}", f"{[f]}", "%s" % f, "{}".format(f)),
    "key of a new dict": lambda f: {f: 1}.get(MADE[0]),
    "tuples": lambda f: (f, 1) == (MADE[0], 1),
    "deque": lambda f: MADE[0] in collections.deque([f]),
    "partial": lambda f: functools.partial(f).func is MADE[0],
    "attribute": lambda f: f.tag,
    "attribute written": tag_written,
    "first's written": tag_of_first_written,
    "made or given": made_or_given,
}


def from_a_local(look):
    def fn(x, k):
        f = MADE[k]
        brk()
        return x + 1, look(f)

    return fn


def from_a_cell(look):
    def fn(x, k):
        f = MADE[k]

        def inner():
            brk()
            return x + 1, look(f)

        return inner()

    return fn


def from_an_argument(look):
    def fn(x, k):
        return x + 1, look(MADE[k])

    return fn


@pytest.mark.parametrize("place", [from_a_local, from_a_cell, from_an_argument])
@pytest.mark.parametrize("name", LOOKS_AT)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("make", [made_function, Tagged])
def test_which_object_it_is(name, place, first, make, monkeypatch):
    """Objects are known by their types, and behind a break functions by their code. Where it matters which one it is, that is guarded."""
    made = make(0), make(1)
    monkeypatch.setitem(globals(), "MAKE", make)
    monkeypatch.setitem(globals(), "MADE", made)
    monkeypatch.setitem(globals(), "IN_DICT", {made[0]: "a", made[1]: "b"})
    fn = place(LOOKS_AT[name])
    compiled = ccompile.compile(fn)
    for k in (first, first, 1 - first, 0, 1, 1, 0):
        results = []
        for call in fn, compiled:
            MADE[0].tag, MADE[1].tag = 0, 1
            results.append((call(T(2), k)[1], MADE[0].tag, MADE[1].tag))
        assert results[0] == results[1], k


def test_where_a_tensor_lies():
    """Tensors of other calls lie elsewhere: id() of one is a break."""
    held = []

    def fn(x, parameter):
        y = x + 1
        return y, id(x), id(y), id(parameter)

    compiled, parameter = ccompile.compile(fn), torch.nn.Parameter(T(2))
    with torch.no_grad():
        for i in range(4):
            x = T(2, seed=i)
            y, *ids = compiled(x, parameter)
            held += [x, y]
            assert ids == [id(x), id(y), id(parameter)]


def test_functions_of_each_call_share_what_follows():
    """A function that each call makes is no other one for what is behind a break, whoever else holds it."""

    class Holder:
        def __init__(self, f):
            brk()
            if f is not None:
                self.name = f.__name__
            self.f = f

    def fn(x):
        def inner(v):
            return v * x

        holders = []
        for i in range(2):
            holders.append(Holder(inner))
        return inner(x + i), holders[1].name

    compiled = ccompile.compile(fn)
    for i in range(3):
        same_calls = fn(T(3, seed=i)), compiled(T(3, seed=i))
        assert torch.equal(same_calls[0][0], same_calls[1][0]) and same_calls[0][1] == same_calls[1][1]
    before = ccompile.counters()
    compiled(T(3))
    assert ccompile.counters()["recording"] == before["recording"]


# ---- tracebacks that code asks for ---------------------------------------------------------------------------------------
def traceback_handed_on(x):
    def handler(kind, error, traceback):
        return issubclass(kind, KeyError) and error.args

    try:
        {}["none"]
    except KeyError as e:
        details = type(e), e, e.__traceback__
        return x + 1, handler(*details)


def traceback_looked_at(x):
    try:
        {}["none"]
    except KeyError as e:
        return x + 1, e.__traceback__ is None, e.__traceback__.tb_lineno


def traceback_given(x):
    try:
        raise ValueError("a")
    except ValueError as e:
        return x + 1, e.__traceback__


def traceback_kept(x):
    try:
        raise ValueError("a")
    except ValueError as e:
        found = e.__traceback__
    brk()
    return x + 1, found


def traceback_raised_again(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            details = type(e), e, e.__traceback__
            raise details[1]
    except ValueError as again:
        return x + 1, again.__traceback__


@pytest.mark.parametrize(
    "fn",
    [traceback_handed_on, traceback_looked_at, traceback_given, traceback_kept, traceback_raised_again],
    ids=lambda fn: fn.__name__,
)
def test_tracebacks(fn):
    def shown(result):
        x, *rest = result
        return x.tolist(), [
            [(frame.name, frame.lineno) for frame in traceback.extract_tb(v)]
            if isinstance(v, types.TracebackType)
            else v
            for v in rest
        ]

    compiled = ccompile.compile(fn)
    for i in range(4):
        assert shown(compiled(T(2, seed=i))) == shown(fn(T(2, seed=i)))
    before = ccompile.counters()
    compiled(T(2))
    assert ccompile.counters()["hits"] == before["hits"] + 1
    if fn is traceback_handed_on:
        assert ccompile.explain(fn)(T(2)).break_count == 0
        ccompile.compile(fn, fullgraph=True)(T(2))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: list(map(int, ["1", "one"])),
        lambda x: list(map(operator.itemgetter(3), [[1], [2]])),
        lambda x: sorted([x, x], key=operator.attrgetter("none")),
        lambda x: list(map(operator.methodcaller("none"), [x])),
        lambda x: list(itertools.accumulate([x, "a"])),
        lambda x: sum([x, "a"]),
        lambda x: functools.reduce(operator.add, [x, "a"]),
        lambda x: torch._foreach_add([x, x], [x, T(3)]),
        lambda x: torch.utils.checkpoint.checkpoint(lambda y: y @ T(5), x, use_reentrant=False),
    ],
    ids=["map", "itemgetter", "attrgetter", "methodcaller", "accumulate", "sum", "reduce", "foreach", "checkpoint"],
)
def test_tracebacks_through_c_code(fn):
    """Python code of ours that runs in place of C code has no frame in a traceback, and text of torch's C++ is eager's."""

    def raised(call):
        with pytest.raises(Exception) as info:  # noqa: PT011 - eager says which
            call(T(2))
        frames = traceback.extract_tb(info.value.__traceback__)[1:]
        return type(info.value), str(info.value), [(f.filename, f.lineno, f.name) for f in frames]

    compiled = ccompile.compile(fn)
    for _ in range(3):
        ours, theirs = raised(compiled), raised(fn)
        theirs_here = [f for f in theirs[2] if f[0] == __file__]
        assert ours[:2] == theirs[:2]
        assert [f for f in ours[2] if f[0] == __file__] == theirs_here
        assert not [f for f in ours[2] if "<ccompile>" in f[0]]


def extended_behind_append(log, other):
    log.append(0.0)
    log += other


def extended_behind_item(log, other):
    log[0] = 1.0
    log += other


def extended_by_what_is_written(log, other):
    log.append(0.0)
    if type(other) is list:
        other.append(0.5)
    log += other


def extended_by_itself(log, other):
    log.append(len(other))
    del log[:-2]
    log += log


def repeated_behind_append(log, other):
    del log[2:]
    log.append(0.0)
    log *= len(other)


@pytest.mark.parametrize(
    "change",
    [
        extended_behind_append,
        extended_behind_item,
        extended_by_what_is_written,
        extended_by_itself,
        repeated_behind_append,
    ],
    ids=lambda fn: fn.__name__,
)
@pytest.mark.parametrize(
    "items",
    [
        lambda i: [i, i + 1],
        lambda i: (i,) * (i // 3),
        lambda i: {i: 1},
        lambda i: collections.deque([i]),
        lambda i: "abcdef"[i],
        lambda i: T(2, seed=i),
    ],
    ids=["list", "tuple", "dict", "deque", "text", "tensor"],
)
def test_a_list_is_extended_that_was_written_before(change, items):
    def make():
        log = [5]

        def f(x, other):
            change(log, other)
            return x + 1

        return f, log

    same(make, build=True, calls=5, hit=False, make_args=lambda i: (T(2, seed=i), items(i)))


SIZED_BY_A_TENSOR = {  # torch's C code reads t, a 0-dim tensor of an int, where it expects an int
    "sum": lambda x, t: x.sum(t) * 2,
    "amax": lambda x, t: x.amax(dim=t) * 2,
    "mean of a list": lambda x, t: x.mean([t]) * 2,
    "pool": lambda x, t: torch.nn.functional.max_pool2d(x[None], t + 1) * 2,
    "conv": lambda x, t: torch.conv2d(x[None, :1], torch.ones(1, 1, 2, 2), stride=t + 1) * 2,
    "fft": lambda x, t: torch.fft.fft(x, t + 2).real * 2,
    "permute": lambda x, t: x.permute(t, 1 - t, 2) * 2,
    "squeeze": lambda x, t: x[:1].unsqueeze(2).squeeze([t * 2]) * 2,
    "where": lambda x, t: torch.where(condition=x[0, 0] > t)[0] * 2,
    "an item of one element": lambda x, t: x.sum([2, t.view(1)]) * 2,
    "an item behind random numbers": lambda x, t: torch.rand(2).sum() * 0 + x.sum([2, t.view(1)]) * 2,
    "interpolate": lambda x, t: torch.nn.functional.interpolate(x, size=t + 1) * 2,
    "interpolate to a count": lambda x, t: torch.nn.functional.interpolate(x, size=[(x[0, 0] > t).sum()], mode="linear") * 2,
    "sparse": lambda x, t: torch.cat([(x[0] * (x[0] > 9 * t)).to_sparse_csr().values() * 2, sparse_values(x[0] * (x[0] > 9 * t))]),
    "blocks": lambda x, t: (x[0, :, :4] * (x[0, :, :4] > 9 * t)).to_sparse_bsr((1, 1)).values() * 2,
    "a copy that may be none": lambda x, t: contiguous_and_written((x[0, :1] > t).nonzero()),
}


def sparse_values(x):
    return (x.to_sparse() * x.to_sparse()).coalesce().values() * 2


def contiguous_and_written(x):
    y = x.contiguous()
    y.add_(1)
    return x * 2


@pytest.mark.parametrize("name", SIZED_BY_A_TENSOR)
def test_a_tensor_decides_a_size(name):
    f = SIZED_BY_A_TENSOR[name]
    fn, x = ccompile.compile(f), torch.arange(60.0).view(3, 4, 5) - 2
    for value in (1, 1, 1, 0, 0, 1):
        t = torch.tensor(value)
        want, got = f(x, t), fn(x, t)
        assert got.shape == want.shape and torch.equal(got, want)
