"""Class statements, operators and attributes (see language_cases.py)."""

import collections
import dataclasses
import threading

import torch
from language_cases import Seen, case, made


# ---- class statements inside -----------------------------------------------------------------------------------------
@case(hit=False, over=1)  # a class statement runs code that is no function's: one break for each
def class_inside(x):
    class Scale:
        by = 2

        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v * self.by

    return Scale(x).get()


@case(hit=False, over=2)  # two class statements
def class_inside_inherits(x):
    class A:
        def f(self, v):
            return v + 1

    class B(A):
        def f(self, v):
            return super().f(v) * 2

    return B().f(x), [c.__name__ for c in B.__mro__]


@case(hit=False, over=1)  # a class statement
def class_inside_closure(x):
    k = 3

    class Holder:
        total = k * 2
        items = [i for i in range(total)]

        @property
        def value(self):
            return x * k + self.total

    return Holder().value, Holder.items


@case(hit=False, over=1)  # makes a class
def namedtuple_inside(x):
    Pair = collections.namedtuple("Pair", "a b")
    p = Pair(x, x + 1)
    return p.a * p.b, p._fields, tuple(p._replace(a=1))[0]


@case(hit=False, over=2)  # a class statement, and what gives it methods
def dataclass_inside(x):
    @dataclasses.dataclass
    class D:
        v: torch.Tensor
        k: int = 2

    d = D(x)
    return d.v * d.k, [f.name for f in dataclasses.fields(d)]


@case(hit=False, over=1)  # makes a class
def type_called(x):
    C = type("C", (), {"k": 3, "f": lambda self, v: v * self.k})
    return C().f(x), C.__name__


# ---- operators -------------------------------------------------------------------------------------------------------
class Vec:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        return Vec(self.v + (o.v if isinstance(o, Vec) else o))

    def __radd__(self, o):
        return Vec(o + self.v)

    def __mul__(self, o):
        return NotImplemented if isinstance(o, str) else Vec(self.v * o)

    def __rmul__(self, o):
        return Vec(o * self.v * 10)

    def __iadd__(self, o):
        self.v = self.v + o
        return self

    def __neg__(self):
        return Vec(-self.v)

    def __getitem__(self, k):
        return self.v[k]

    def __setitem__(self, k, v):
        self.v = torch.where(torch.arange(len(self.v))[:, None] == k, v, self.v)

    def __delitem__(self, k):
        self.deleted = k

    def __len__(self):
        return self.v.shape[0]

    def __contains__(self, k):
        return k == 3

    def __call__(self, k=1):
        return self.v * k

    def __matmul__(self, o):
        return self.v @ o.v.t()

    def __eq__(self, o):
        return isinstance(o, Vec) and self.v.shape == o.v.shape

    def __hash__(self):
        return 7

    def __lt__(self, o):
        return len(self) < len(o)

    def __abs__(self):
        return self.v.abs()

    def __invert__(self):
        return "inverted"

    def __pow__(self, k, mod=None):
        return self.v**k

    def __index__(self):
        return 2

    def __bool__(self):
        return False

    def __repr__(self):
        return f"Vec({tuple(self.v.shape)})"

    def __format__(self, spec):
        return f"<{spec}>"

    def __iter__(self):
        return iter((1, self.v))

    def __reversed__(self):
        return "reversed"


@case
def operators_binary(x):
    a, b = Vec(x), Vec(x + 1)
    return (a + b).v, (a + 1).v, (1 + a).v, (a * 2).v, (2 * a).v, a @ b, a**2


@case
def operators_reflected_with_tensor(x):
    return (Vec(x) + x).v, Vec(x) * 3, sum([Vec(x), Vec(x)], Vec(0)).v


@case
def operators_not_implemented(x):
    try:
        return Vec(x) * "s"
    except TypeError as e:
        return x, str(e)


@case
def operators_in_place(x):
    a = b = Vec(x)
    a += 1
    a *= 2
    return a.v, b.v, a is b


@case
def operators_items(x):
    a = Vec(x)
    a[1] = 5.0
    del a[0]
    return a[0], a[:, 1], len(a), 3 in a, 4 in a, a.deleted


@case
def operators_unary_and_conversion(x):
    a = Vec(x)
    return (-a).v, abs(a), ~a, [1, 2, 3][a], bool(a), "set" if a else "unset", list(a), reversed(a)


@case
def operators_compare_and_hash(x):
    a, b = Vec(x), Vec(x + 1)
    return x, a == b, a != b, a == 1, a < b, len({a, b}), {a: 1}[b], a in [b], sorted([a, b])[0] is a


@case
def operators_text(x):
    a = Vec(x)
    return x * 2, repr(a), str(a), f"{a:>5}", f"{a!r}", "{}".format(a), "%s" % a


@case
def object_called(x):
    f = Vec(x)
    return f(), f(k=2), callable(f), [g(3) for g in (f, f.__call__)]


# ---- attributes ------------------------------------------------------------------------------------------------------
class Lazy:
    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        self.asked.append(name)
        return len(name)


class Watched:
    def __init__(self, v):
        object.__setattr__(self, "log", [])
        self.v = v

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append("-" + name)
        object.__delattr__(self, name)


class Through:
    def __init__(self, d):
        self.d = d

    def __getattribute__(self, name):
        if name.startswith("key_"):
            return object.__getattribute__(self, "d")[name[4:]]
        return object.__getattribute__(self, name)


@case
def getattr_hook(x):
    o = Lazy()
    return x * o.abc + o.de, o.asked, hasattr(o, "_no"), getattr(o, "_no", 5)


@case
def setattr_hook(x):
    o = Watched(x)
    o.w = x + 1
    del o.w
    setattr(o, "v", x * 2)
    return o.v, o.log


@case
def getattribute_hook(x):
    o = Through({"a": x, "b": 2})
    try:
        return o.key_c
    except KeyError:
        return o.key_a * o.key_b, o.d


@made
def getattribute_hook_outside():
    o = Through({"a": 1.0})

    def f(x):
        o.d["a"] = o.d["a"] % 2 + 1
        return x * o.key_a

    return f, o.__dict__


@case
def instance_dict_walk(x):
    o = Watched(x)
    o.__dict__["z"] = 5
    return {k: v for k, v in vars(o).items() if k != "log"}, sorted(o.__dict__), "v" in o.__dict__, o.z


@case
def attribute_missing(x):
    try:
        return Vec(x).nothing
    except AttributeError as e:
        return x, str(e)


@case
def class_attributes(x):
    class_level = Counted
    return (
        x * class_level.start,
        Counted().start,
        Counted.__name__,
        Counted.__mro__[-1] is object,
        type(Counted()).start,
    )


class Counted:
    start = 3
    made = 0

    def __init__(self):
        type(self).made += 1

    @classmethod
    def build(cls, v):
        o = cls()
        o.v = v
        return o

    @staticmethod
    def double(v):
        return v * 2


@case
def class_and_static_methods(x):
    o = Counted.build(x)
    return Counted.double(o.v), o.double(1), type(o).__name__


@made(hit=False)
def class_counter_written():
    class Own(Counted):
        made = 0

    def f(x):
        Own()
        if Own.made > 2:
            Own.made = 0
        return x * Own.made

    return f, lambda: Own.made


class Celsius:
    def __init__(self, v):
        self._v = v

    @property
    def f(self):
        return self._v * 1.8 + 32

    @f.setter
    def f(self, v):
        self._v = (v - 32) / 1.8

    @f.deleter
    def f(self):
        self._v = None


@case
def property_get_set_delete(x):
    o = Celsius(x)
    a = o.f
    o.f = x * 2
    b = o._v
    del o.f
    return a, b, o._v


@case
def property_read_only(x):
    class_ = Cubic
    try:
        class_(x).cube = 1
    except AttributeError as e:
        return class_(x).cube, "cube" in str(e)


class Cubic:
    def __init__(self, v):
        self.v = v

    cube = property(lambda self: self.v**3)


class Checked:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, o, owner=None):
        return self if o is None else getattr(o, self.name)

    def __set__(self, o, v):
        if v is None:
            raise ValueError("not None")
        setattr(o, self.name, v)


class NonData:
    def __get__(self, o, owner):
        return (o is None, owner.__name__)


class WithDescriptors:
    a, b, c = Checked(), Checked(), NonData()

    def __init__(self, a, b):
        self.a, self.b = a, b


@case
def descriptors(x):
    o = WithDescriptors(x, 2)
    o.b = o.b + 1
    try:
        o.a = None
    except ValueError as e:
        return o.a * o.b, str(e), o.c, WithDescriptors.c, type(WithDescriptors.a).__name__


@case
def descriptor_shadowed(x):
    o = WithDescriptors(x, 1)
    o.__dict__["c"] = "own"
    o.__dict__["a"] = "ignored"
    return o.a, o.c


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@case
def slots(x):
    o = Slotted(x)
    try:
        o.c = 1
    except AttributeError:
        o.b = 2
    del o.b
    return o, hasattr(o, "b"), hasattr(o, "__dict__"), o.a + 1


@case
def methods_stored(x):
    o = Celsius(x)
    fs = [Counted.double, Vec(x).__add__, x.add, o.__class__.f.fget]
    return fs[0](x), fs[1](1).v, fs[2](3), fs[3](o)


@case
def methods_bound_equal(x):
    v = Vec(x)
    m = v.__call__
    return m(2), m.__self__ is v, m.__func__ is Vec.__call__, m == v.__call__, m is v.__call__, m.__name__


@case
def method_replaced_on_instance(x):
    v = Vec(x)
    v.extra = lambda k: x * k
    v.__call__ = lambda: "not used"
    return v.extra(3), v()


@case
def getattr_by_name(x):
    return (
        [getattr(x, n)() for n in ("sin", "cos")],
        getattr(x, "nothing", None),
        hasattr(x, "shape"),
        getattr(torch, "relu")(x),
    )


# ---- threading.local -------------------------------------------------------------------------------------------------
def with_local(fn):
    """fn(x, local), and what the local holds in this thread."""

    def make():
        local = threading.local()
        local.scale, local.kept = 2.0, None
        return lambda x: fn(x, local), Seen(lambda: [dict(vars(local))])

    make.__name__ = fn.__name__
    return made(make)


@with_local
def thread_local_read(x, local):
    return x * local.scale, hasattr(local, "absent"), getattr(local, "absent", 3)


@with_local
def thread_local_written(x, local):
    local.rows = x.shape[0]
    local.rows += 1
    local.kept = x * local.rows
    del local.scale
    local.scale = 3.0
    return local.kept + local.scale


@with_local
def thread_local_stack(x, local):
    if not hasattr(local, "stack"):
        local.stack = []
    local.stack.append(2)
    y = x * local.stack[-1]
    local.stack.pop()
    return y


@with_local
def thread_local_lacks(x, local):
    try:
        return local.absent
    except AttributeError as error:
        return x + 1, str(error)
