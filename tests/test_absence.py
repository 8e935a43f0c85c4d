"""Something absent while recording may exist later, and disappear again: after each change a call gives what eager gives.

A case makes a function of one tensor and a list of changes to what it reads, separately for each side. The function runs a few
times before the first change and after each one: it may itself store what it found missing.
"""

import collections
import functools
import sys
import types

import ccompile
import pytest
import torch
from conftest import hits
from torch.distributions.utils import lazy_property

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def put(o, **values):
    return [functools.partial(setattr, o, name, value) for name, value in values.items()]


def cut(o, *names):
    return [functools.partial(delattr, o, name) for name in names]


def said(value):
    return value.tolist() if isinstance(value, torch.Tensor) else repr(value)


def walk(make, wrap):
    torch.manual_seed(3)
    fn, *changes = make()
    fn, seen = wrap(fn), []
    with torch.no_grad():
        for change in [lambda: None, *changes]:
            change()
            for i in range(3):
                try:
                    seen.append(said(fn(torch.arange(3.0) + i)))
                except Exception as error:
                    seen.append((type(error).__name__, str(error)))
    return seen


# ---- attributes of instances -------------------------------------------------------------------------------------
@case
def instance_hasattr():
    o = types.SimpleNamespace()
    return lambda x: x * 2 if hasattr(o, "k") else x, *put(o, k=1), *cut(o, "k"), *put(o, k=2)


def shadowed(base, *args):
    """An instance, of a fixed size or not, gets an attribute of its method's name."""
    o = type("Of", (base,), {"twice": lambda self: 2})(*args)
    return lambda x: x + o.twice(), *put(o, twice=lambda: 5), *cut(o, "twice")


BASES = [(object,), (int, 3), (float, 3.0), (complex, 1j), (str, "a"), (bytes, b"a"), (tuple, (1,)), (list,), (dict,), (set,), (Exception,)]
CASES |= {f"shadowed_{base[0].__name__}": functools.partial(shadowed, *base) for base in BASES}


@case
def instance_default():
    o = types.SimpleNamespace()
    return lambda x: x + getattr(o, "k", 5), *put(o, k=1), *cut(o, "k"), *put(o, k=7.5)


@case
def instance_caught():
    o = types.SimpleNamespace()

    def f(x):
        try:
            return x * o.k
        except AttributeError:
            return x - 1

    return f, *put(o, k=3), *cut(o, "k"), *put(o, k=torch.ones(3))


@case
def instance_kept_by_the_function():
    o = types.SimpleNamespace(made=0)

    def f(x):
        if not hasattr(o, "cache"):
            o.cache = x * 2
            o.made += 1
        return o.cache + o.made

    return f, *cut(o, "cache"), *put(o, cache=torch.ones(3)), *cut(o, "cache")


@case
def instance_shadows_its_class():
    class A:
        k = 1

    o = A()
    return lambda x: x * o.k, *put(o, k=2), *put(A, k=5), *cut(o, "k"), *cut(A, "k"), *put(o, k=9)


@case
def instance_of_another_class():
    class A:
        k = property(lambda s: 1)

    class B:
        k = property(lambda s: 2)

    o = A()
    return lambda x: x * o.k, *put(o, __class__=B), *put(o, __class__=A)


@case
def default_object_of_another_class():
    class A:
        k = property(lambda s: 1)

    class B:
        k = property(lambda s: 2)

    def f(x, o=A()):  # noqa: B008
        return x * o.k

    return f, lambda: setattr(f.__defaults__[0], "__class__", B), lambda: setattr(f.__defaults__[0], "__class__", A)


@case
def instance_updated_through_its_dict():
    o = types.SimpleNamespace(n=1)

    def f(x):
        vars(o).update(a=x * o.n)
        return o.a + hasattr(o, "b") + o.n

    return f, *put(o, b=1, n=2), *cut(o, "a"), *cut(o, "b")


@case
def slots_unset():
    class A:
        __slots__ = ("a",)

    o = A()
    return lambda x: x * getattr(o, "a", 4), *put(o, a=2), *cut(o, "a"), *put(o, a=3)


@case
def slots_lazy():
    class A:
        __slots__ = ("a", "made")

        def __getattr__(self, name):
            if name != "a":
                raise AttributeError(name)
            self.made += 1
            self.a = torch.ones(3) * self.made
            return self.a

    o = A()
    o.made = 0
    return lambda x: x + o.a, *cut(o, "a"), *put(o, a=torch.zeros(3)), *cut(o, "a")


@case
def slots_deleted():
    class A:
        __slots__ = ("a",)

    o = A()

    def f(x):
        try:
            del o.a
            return x
        except AttributeError:
            return x + 1

    return f, *put(o, a=1), *put(o, a=2)


# ---- what keeps what it makes ------------------------------------------------------------------------------------
class Caching:
    """Django's and werkzeug's cached_property."""

    def __init__(self, f):
        self.f, self.name = f, f.__name__

    def __get__(self, o, cls=None):
        if o is None:
            return self
        value = o.__dict__[self.name] = self.f(o)
        return value


def kept_by(decorate):
    class A:
        def __init__(self):
            self.w, self.made = torch.ones(3), 0

        @decorate
        def scale(self):
            self.made += 1
            return self.w * self.made

    o = A()

    def grow():
        o.w += 1

    return lambda x: x * o.scale, grow, *cut(o, "scale"), grow, *put(o, scale=torch.zeros(3)), *cut(o, "scale")


CASES["caching_descriptor"] = lambda: kept_by(Caching)
CASES["lazy_property"] = lambda: kept_by(lazy_property)


@case
def functools_cached_property():
    class A:
        made = 0

        @functools.cached_property
        def scale(self):
            A.made += 1
            return torch.ones(3) * A.made

    o = A()
    return lambda x: x * o.scale, *cut(o, "scale"), *put(o, scale=torch.zeros(3)), *cut(o, "scale")


@case
def getattr_that_keeps():
    class A:
        made = 0

        def __getattr__(self, name):
            if name != "table":
                raise AttributeError(name)
            type(self).made += 1
            self.table = torch.ones(3) * self.made
            return self.table

    o = A()
    return lambda x: x * o.table, *cut(o, "table"), *put(o, table=torch.zeros(3)), *cut(o, "table")


@case
def module_getattr_that_keeps():
    class N(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))

        def __getattr__(self, name):
            if name == "table":
                self.__dict__["table"] = self.w.detach() * 2
                return self.__dict__["table"]
            return super().__getattr__(name)

        def forward(self, x):
            return x * self.table

    n = N()

    def grow():
        n.w += 1

    return n, grow, *cut(n, "table"), grow


@case
def class_that_keeps():
    class Once:
        def __init__(self, f):
            self.f = f

        def __get__(self, o, cls):
            value = self.f(cls)
            cls.table = value
            return value

    class A:
        made = 0

    def make(cls):
        cls.made += 1
        return cls.made

    A.table = Once(make)
    return lambda x: x * A().table, *put(A, table=7), *put(A, table=Once(make))


@case
def lazy_module():
    m = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU(), torch.nn.LazyLinear(2))
    return m, lambda: m[0].weight.mul_(2)


# ---- classes, metaclasses and descriptors ------------------------------------------------------------------------
@case
def class_getattr():
    class A:
        pass

    o = A()
    return lambda x: x * getattr(o, "zz", 1), *put(A, __getattr__=lambda s, n: 2), *cut(A, "__getattr__"), *put(A, zz=3)


@case
def class_getattribute():
    class A:
        k = 1

    o = A()
    return lambda x: x * o.k, *put(A, __getattribute__=lambda s, n: 2), *cut(A, "__getattribute__")


@case
def base_gets_the_attribute():
    class A:
        pass

    class B(A):
        pass

    o = B()
    return lambda x: x * getattr(o, "k", 1), *put(A, k=2), *put(B, k=3), *cut(B, "k"), *cut(A, "k")


@case
def class_setattr():
    class A:
        pass

    o, seen = A(), []

    def f(x):
        o.k = 1
        return x + len(seen)

    return f, *put(A, __setattr__=lambda s, n, v: seen.append(n)), *cut(A, "__setattr__")


@case
def property_is_set():
    class A:
        pass

    o, seen = A(), []

    def f(x):
        o.k = 1
        return x + len(seen)

    return f, *put(A, k=property(lambda s: 3, lambda s, v: seen.append(v))), *cut(A, "k")


@case
def descriptor_get():
    class D:
        pass

    class A:
        d = D()

    o = A()
    return lambda x: x * 3 if isinstance(o.d, int) else x, *put(D, __get__=lambda s, o, t: 2), *cut(D, "__get__")


@case
def descriptor_get_of_class():
    class D:
        pass

    class A:
        d = D()

    return lambda x: x * 3 if isinstance(A.d, int) else x, *put(D, __get__=lambda s, o, t: 2), *cut(D, "__get__")


@case
def descriptor_set():
    class D:
        def __get__(self, o, t):
            return 1

    class A:
        d = D()

    o = A()
    o.__dict__["d"] = 5
    return lambda x: x * o.d, *put(D, __set__=lambda s, o, v: 0), *cut(D, "__set__"), *put(D, __delete__=lambda s, o: 0)


@case
def descriptor_of_another_class():
    class D:
        def __get__(self, o, t):
            return 1

    class E(D):
        def __get__(self, o, t):
            return 2

    class A:
        d = D()

    d, o = A.__dict__["d"], A()
    return lambda x: x * o.d, *put(d, __class__=E), *put(d, __class__=D)


@case
def metaclass_changed():
    class M(type):
        q = property(lambda c: 1)

    class N(type):
        q = property(lambda c: 2)

    class A(metaclass=M):
        pass

    return lambda x: x * A.q, *put(A, __class__=N), *put(A, __class__=M)


@case
def metaclass_getattr():
    class M(type):
        pass

    class A(metaclass=M):
        pass

    return (
        lambda x: x * getattr(A, "q", 1),
        *put(M, __getattr__=lambda c, n: 2),
        *put(A, q=3),
        *cut(A, "q"),
        *cut(M, "__getattr__"),
    )


@case
def metaclass_shadows():
    class M(type):
        pass

    class A(metaclass=M):
        q = 1

    return lambda x: x * A.q, *put(M, q=property(lambda c: 2)), *cut(M, "q")


@case
def super_finds_it_nearer():
    class A:
        def k(self):
            return 1

    class B(A):
        pass

    class C(B):
        def k(self):
            return super().k()

    o = C()
    return lambda x: x * o.k(), *put(B, k=lambda s: 2), *cut(B, "k"), *put(A, k=lambda s: 3)


@case
def tensor_attribute():
    t = torch.ones(3)
    return (
        lambda x: x * getattr(t, "zz", 2),
        *put(t, zz=3),
        *cut(t, "zz"),
        *put(torch.Tensor, zz=4),
        *cut(torch.Tensor, "zz"),
    )


@case
def special_methods():
    class A:
        pass

    o = A()

    def f(x):
        n = 1 if o else 2
        try:
            n += len(o)
        except TypeError:
            n += 10
        try:
            n += o[0]
        except TypeError:
            n += 100
        try:
            n += o()
        except TypeError:
            n += 1000
        try:
            n += 5 if 3 in o else 6
        except TypeError:
            n += 10000
        return x * n

    changes = {
        "__bool__": lambda s: False,
        "__len__": lambda s: 3,
        "__getitem__": lambda s, i: i if i < 5 else [][0],
        "__call__": lambda s: 7,
        "__contains__": lambda s, i: True,
    }
    there = [step for name, method in changes.items() for step in put(A, **{name: method})]
    return f, *there, *cut(A, *changes)


@case
def type_of_module():
    class M(types.ModuleType):
        pass

    m = types.ModuleType("m")

    def f(x):
        return x * (2 + (type(m) is M)) + isinstance(m, M) * 5 - (m.__class__ is M)

    return f, *put(m, __class__=M), *put(m, __class__=types.ModuleType)


@case
def type_of_class():
    class M(type):
        pass

    class N(M):
        pass

    class A(metaclass=M):
        pass

    return lambda x: x * (2 + (type(A) is N)) + isinstance(A, N) * 5, *put(A, __class__=N), *put(A, __class__=M)


@case
def metaclass_call():
    class M(type):
        pass

    class A(metaclass=M):
        def __init__(self):
            self.k = 1

    return lambda x: x * A().k, *put(M, __call__=lambda c: types.SimpleNamespace(k=5)), *cut(M, "__call__")


@case
def init_added():
    class A:
        k = 1

    return lambda x: x * A().k, *put(A, __init__=lambda s: setattr(s, "k", 3)), *cut(A, "__init__")


@case
def pattern_of_attributes():
    class P:
        pass

    p = P()

    def f(x):
        match p:
            case P(k=1):
                return x * 5
            case P(k=2):
                return x * 6
        return x

    return f, *put(p, k=1), *put(p, k=2), *cut(p, "k"), *put(P, k=1)


@case
def pattern_of_match_args():
    class P:
        a = 1

    p = P()

    def f(x):
        try:
            match p:
                case P(1):
                    return x * 5
        except TypeError:
            return x * 9
        return x

    return f, *put(P, __match_args__=("a",)), *put(p, a=2), *cut(P, "__match_args__")


@case
def pattern_of_other_match_args():
    class P:
        __match_args__ = ("a", "b")
        a, b = 1, 2

    p = P()

    def f(x):
        match p:
            case P(1, k):
                return x * k
        return x

    return f, *put(P, __match_args__=("b", "a")), *put(P, __match_args__=("a",)), *put(P, __match_args__=["a", "b"])


@case
def module_gets_a_buffer():
    m = torch.nn.Module()

    def f(x):
        return x * 2 if getattr(m, "b", None) is None else x + m.b

    return f, lambda: m.register_buffer("b", torch.ones(3)), *cut(m, "b"), lambda: m.register_buffer("b", None)


@case
def module_gets_a_hook():
    m, hook = torch.nn.ReLU(), []
    return m, lambda: hook.append(m.register_forward_hook(lambda m, i, o: o * 2)), lambda: hook[0].remove()


# ---- functions and methods ---------------------------------------------------------------------------------------
def tensors_of(data):
    """In place: the object stays, and all that is known of it changes."""
    return [
        functools.partial(setattr, data, "data", torch.ones(3, dtype=torch.float64)),
        functools.partial(setattr, data, "data", torch.full((1,), 2.0)),
        functools.partial(setattr, data, "data", torch.ones(2, 3)),
        lambda: data.requires_grad_(),
    ]


@case
def default_tensor():
    w = torch.ones(3)

    def f(x, w=w):
        return x * w * 2

    return f, *tensors_of(w)


@case
def default_tensor_by_keyword():
    w = torch.ones(3)

    def f(x, *, w=w):
        return x * w * 2

    return f, *tensors_of(w)


@case
def default_tensor_of_what_is_called():
    w = torch.ones(3)

    def g(x, w=w, *, v=w):
        return x * w + v

    return lambda x: g(x) * 2, *tensors_of(w)


@case
def function_attribute():
    def g():
        pass

    return lambda x: x * getattr(g, "k", 1), *put(g, k=2), *cut(g, "k"), *put(g, k=3)


@case
def method_attribute():
    class A:
        def m(self):
            pass

    b = A().m
    return lambda x: x * getattr(b, "k", 1), *put(A.m, k=2), *cut(A.m, "k")


@case
def method_name():
    class A:
        def m(self, k=3):
            pass

    b = A().m
    return (
        lambda x: x * len(b.__name__) + len(b.__defaults__),
        *put(A.m, __name__="longer"),
        *put(A.m, __defaults__=(1, 2)),
    )


@case
def method_of_this_call():
    class A:
        def m(self):
            pass

    o = A()
    return lambda x: x * getattr(o.m, "k", 1), *put(A.m, k=2), *cut(A.m, "k")


@case
def parts_of_code_that_are_made_anew():
    def g(a, b, *, c):
        pass

    def f(x):
        n = 0
        for name in ("a", "c", "z"):
            if name in g.__code__.co_varnames:
                n += g.__code__.co_varnames.index(name)
        return x * n if hasattr(g, "__name__") else x

    def other(z, y):
        pass

    return f, *put(g, __code__=other.__code__)


# ---- modules -----------------------------------------------------------------------------------------------------
@case
def module_attribute():
    m = types.ModuleType("m")
    return lambda x: x * getattr(m, "k", 1), *put(m, k=2), *cut(m, "k"), *put(m, k=3)


@case
def module_getattr():
    m = types.ModuleType("m")
    return (
        lambda x: x * getattr(m, "k", 1),
        *put(m, __getattr__=lambda n: 2),
        *put(m, k=3),
        *cut(m, "k"),
        *cut(m, "__getattr__"),
    )


@case
def module_getattr_keeps():
    m = types.ModuleType("m")
    m.made = 0

    def find(name):
        if name != "k":
            raise AttributeError(name)
        m.made += 1
        m.k = m.made
        return m.k

    m.__getattr__ = find
    return lambda x: x * m.k, *cut(m, "k"), *put(m, k=9), *cut(m, "k")


def module_of_another_class():
    class M(types.ModuleType):
        v = property(lambda s: 5)

    m = types.ModuleType("m")
    m.v = 1
    return lambda x: x * m.v, *put(m, __class__=M), *put(m, __class__=types.ModuleType)


# 3.14's specialised LOAD_ATTR_MODULE goes on reading the module's dict, so eager is no oracle there.
if sys.version_info < (3, 14):
    case(module_of_another_class)


def fake_module(name, **values):
    m = types.ModuleType(name)
    m.__dict__.update(values)
    sys.modules[name] = m
    return m


@case
def module_replaced():
    fake_module("absence_fake", k=1)

    def f(x):
        import absence_fake

        return x * absence_fake.k

    return (
        f,
        lambda: fake_module("absence_fake", k=2),
        lambda: sys.modules.pop("absence_fake"),
        lambda: fake_module("absence_fake", k=3),
    )


@case
def submodule_replaced():
    fake_module("absence_pkg", __path__=[], sub=fake_module("absence_pkg.sub", k=1))

    def f(x):
        import absence_pkg.sub as s
        from absence_pkg.sub import k

        return x * k + s.k

    def replace(k):
        sys.modules["absence_pkg"].sub = fake_module("absence_pkg.sub", k=k)

    return f, functools.partial(replace, 2), lambda: fake_module("absence_pkg.sub", k=5), functools.partial(replace, 3)


@case
def global_shadows_builtin():
    space = {"torch": torch}
    exec("def f(x): return x * len([1, 2])", space)
    return space["f"], lambda: space.update(len=lambda o: 5), lambda: space.pop("len")


# ---- dicts -------------------------------------------------------------------------------------------------------
def of_dict(read):
    d = {}
    changes = [
        functools.partial(d.__setitem__, "k", 2),
        functools.partial(d.pop, "k", None),
        functools.partial(d.update, k=3, j=1),
    ]
    return lambda x: x * read(d), *changes, d.clear


CASES["dict_get"] = lambda: of_dict(lambda d: d.get("k", 1))
CASES["dict_in"] = lambda: of_dict(lambda d: 5 if "k" in d else 6)
CASES["dict_pop"] = lambda: of_dict(lambda d: d.pop("k", 4))
CASES["dict_setdefault"] = lambda: of_dict(lambda d: d.setdefault("k", 4))
CASES["dict_item"] = lambda: of_dict(lambda d: d["k"])
CASES["dict_of_other_key"] = lambda: of_dict(lambda d: d.get("j", 7))


@case
def dict_delete():
    d = {}

    def f(x):
        try:
            del d["k"]
            return x
        except KeyError:
            return x + 1

    return f, functools.partial(d.update, k=1), functools.partial(d.update, k=1, j=2)


def of_factory(make_dict, use):
    d = make_dict()
    return lambda x: use(d, x), lambda: d.pop("k", None), lambda: d.update(k=use_value(d)), d.clear


def use_value(d):
    return next(iter(d.values())) if d else 3


class Meter:
    def __init__(self):
        self.n, self.total = 0, 0.0

    def update(self, v):
        self.n += 1
        self.total = self.total + v


def metered(d, x):
    d["k"].update(x.sum())
    return x * d["k"].n + d["k"].total


def accumulated(d, x):
    d["k"] += x.sum()
    return d["k"] + len(d)


def listed(d, x):
    d["k"].append(1)
    return x * len(d["k"])


def of_meters():
    d = collections.defaultdict(Meter)
    return (
        lambda x: metered(d, x),
        d.clear,
        lambda: d.update(k=Meter()),
        lambda: setattr(d, "default_factory", None),
        d.clear,
    )


CASES["defaultdict_of_objects"] = of_meters
CASES["defaultdict_of_tensors"] = lambda: of_factory(
    lambda: collections.defaultdict(lambda: torch.zeros(())), accumulated
)
CASES["defaultdict_of_lists"] = lambda: of_factory(
    lambda: collections.defaultdict(list), lambda d, x: listed(d, x) if not isinstance(d["k"], int) else x
)
CASES["defaultdict_of_partials"] = lambda: of_factory(
    lambda: collections.defaultdict(functools.partial(torch.zeros, 1)), accumulated
)


@case
def defaultdict_factory_changed():
    d = collections.defaultdict(lambda: 1)

    def f(x):
        return x * d[len(d)]

    return f, lambda: setattr(d, "default_factory", lambda: 2), lambda: setattr(d, "default_factory", None)


@case
def defaultdict_methods():
    d = collections.defaultdict(lambda: 3)
    return lambda x: x * d.__getitem__("k") + len(d), d.clear, lambda: d.update(k=4)


@case
def missing_that_keeps():
    class Cache(dict):
        made = 0

        def __missing__(self, key):
            type(self).made += 1
            value = self[key] = [0] * self.made
            return value

    d = Cache()

    def f(x):
        d["k"].append(1)
        return x * len(d["k"])

    return f, d.clear, lambda: d.update(k=[])


@case
def missing_that_gives():
    class D(dict):
        def __missing__(self, key):
            return 7

    d = D()
    return (
        lambda x: x * d["k"],
        lambda: d.update(k=1),
        d.clear,
        lambda: setattr(D, "__missing__", lambda s, k: 8),
        *cut(D, "__missing__"),
    )


@case
def missing_added():
    class D(dict):
        pass

    d = D()

    def f(x):
        try:
            return x * d["k"]
        except KeyError:
            return x - 1

    return f, *put(D, __missing__=lambda s, k: 8), *cut(D, "__missing__"), lambda: d.update(k=1)


@case
def counter():
    c = collections.Counter()

    def f(x):
        c["k"] += 1
        return x * c["k"] + c["j"]

    return f, c.clear, lambda: c.update(j=3)


@case
def chain_map():
    a, b = {}, {}
    c = collections.ChainMap(a, b)
    return lambda x: x * c.get("k", 1), lambda: b.update(k=2), lambda: a.update(k=3), a.clear, b.clear


@case
def list_too_short():
    items = []

    def f(x):
        try:
            return x * items[2]
        except IndexError:
            return x - len(items)

    return f, lambda: items.extend([1, 2]), lambda: items.append(5), items.clear


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_change_is_seen(name):
    eager = walk(CASES[name], lambda f: f)
    assert walk(CASES[name], ccompile.compile) == eager


@pytest.mark.parametrize(
    "name",
    [
        "instance_updated_through_its_dict",
        "parts_of_code_that_are_made_anew",
        "caching_descriptor",
        "module_replaced",
        "missing_that_gives",
    ],
)
def test_what_stays_is_replayed(name):
    fn, before = ccompile.compile(CASES[name]()[0]), ccompile.counters()["graph_break"]
    with torch.no_grad():
        fn(torch.ones(3)), fn(torch.ones(3))
        hits(lambda: fn(torch.ones(3)))
    assert ccompile.counters()["graph_break"] == before


class WithSlots:
    __slots__ = ("n", "z")


class WithDefault:
    n = 5


def by_delattr(o):
    delattr(o, "n")  # noqa: B043


def by_statement(o):
    del o.n


def behind_a_write(o):
    o.z = 1
    del o.n


def by_object(o):
    o.z = 1
    object.__delattr__(o, "n")


@pytest.mark.parametrize("cls", [types.SimpleNamespace, WithSlots, WithDefault])
@pytest.mark.parametrize("delete", [by_delattr, by_statement, behind_a_write, by_object])
def test_deleting_what_is_absent(delete, cls):
    def fn(x, o):
        try:
            delete(o)
        except AttributeError as e:
            return x * 2, str(e)
        return x, ""

    compiled, objects = ccompile.compile(fn), (cls(), cls())
    for i in range(10):
        for o in objects if i % 3 == 2 else ():
            o.n = i
        (want, why), (got, reason) = (f(torch.ones(2), o) for f, o in zip((fn, compiled), objects))
        assert torch.equal(got, want) and reason == why
