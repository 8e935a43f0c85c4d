"""Classes and objects: operators, attributes, descriptors, metaclasses, dataclasses, enums, modules (see language_cases.py)."""

import abc
import collections
import dataclasses
import enum
import typing

import torch
from language_cases import case, made


# ---- class statements inside -----------------------------------------------------------------------------------------
@case(hit=False, over=1)
def class_inside(x):
    class Scale:
        by = 2

        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v * self.by

    return Scale(x).get()


@case(hit=False, over=2)
def class_inside_inherits(x):
    class A:
        def f(self, v):
            return v + 1

    class B(A):
        def f(self, v):
            return super().f(v) * 2

    return B().f(x), [c.__name__ for c in B.__mro__]


@case(hit=False, over=1)
def class_inside_closure(x):
    k = 3

    class Holder:
        total = k * 2
        items = [i for i in range(total)]

        @property
        def value(self):
            return x * k + self.total

    return Holder().value, Holder.items


@case(hit=False, over=8)
def namedtuple_inside(x):
    Pair = collections.namedtuple("Pair", "a b")
    p = Pair(x, x + 1)
    return p.a * p.b, p._fields, tuple(p._replace(a=1))[0]


@case(hit=False, over=7)
def dataclass_inside(x):
    @dataclasses.dataclass
    class D:
        v: torch.Tensor
        k: int = 2

    d = D(x)
    return d.v * d.k, [f.name for f in dataclasses.fields(d)]


@case(hit=False, over=1)
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


# ---- inheritance and metaclasses -------------------------------------------------------------------------------------
class Top:
    def f(self, v):
        return v + 1

    def g(self):
        return "top"


class Left(Top):
    def f(self, v):
        return super().f(v) * 2


class Right(Top):
    def f(self, v):
        return super().f(v) * 3

    def g(self):
        return "right " + super().g()


class Bottom(Left, Right):
    def f(self, v):
        return super(Bottom, self).f(v) + 100

    @classmethod
    def name(cls):
        return cls.__name__

    def __init_subclass__(cls, tag="none", **kw):
        cls.tag = tag


class Tagged(Bottom, tag="tagged"):
    pass


@case
def super_diamond(x):
    return Bottom().f(x), Bottom().g(), super(Left, Bottom()).f(x), Tagged.tag, Tagged.name()


@case
def super_missing(x):
    class_ = Top
    try:
        super(class_, class_()).f(x)
    except AttributeError as e:
        return x + 1, str(e)


class Meta(type):
    registry = {}

    def __new__(mcs, name, bases, space):
        cls = super().__new__(mcs, name, bases, space)
        mcs.registry[name] = cls
        return cls

    def __call__(cls, *args):
        o = super().__call__(*args)
        o.via = "meta"
        return o

    def __getitem__(cls, k):
        return (cls.__name__, k)

    def __len__(cls):
        return 5

    @property
    def doubled(cls):
        return cls.k * 2

    def __instancecheck__(cls, o):
        return isinstance(o, int)


class WithMeta(metaclass=Meta):
    k = 3

    def __init__(self, v):
        self.v = v


@case
def metaclass_features(x):
    o = WithMeta(x)
    return (
        o.v * WithMeta.doubled,
        o.via,
        WithMeta[2],
        len(WithMeta),
        isinstance(3, WithMeta),
        "WithMeta" in Meta.registry,
    )


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def name(self): ...

    def text(self):
        return self.name


class Square(Shape):
    name = "square"

    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2


@case
def abstract_classes(x):
    s = Square(x)
    try:
        Shape()
    except TypeError as e:
        return s.area(), s.text(), isinstance(s, Shape), "abstract" in str(e)


@typing.runtime_checkable
class HasArea(typing.Protocol):
    def area(self): ...


@case
def protocols_and_typing(x):
    class_ = typing.cast(type, Square)
    return class_(x).area(), isinstance(class_(x), HasArea), isinstance(3, HasArea), typing.cast("int", x) is x


class Options(typing.TypedDict, total=False):
    k: int
    name: str


class Stack(typing.Generic[typing.TypeVar("T")]):
    def __init__(self):
        self.items = []

    def push(self, v):
        self.items.append(v)
        return self


@case
def typed_dict_and_generic(x):
    o = Options(k=3, name="n")
    o["k"] += 1
    s = Stack[torch.Tensor]()
    return x * o["k"], o, s.push(x).push(1).items, type(s).__name__


@case
def type_questions(x):
    o = Bottom()
    return (
        x,
        type(o) is Bottom,
        o.__class__.__name__,
        isinstance(o, (int, Top)),
        issubclass(Bottom, Right),
        type(x).__name__,
        type(3)(2.7),
    )


@case
def class_changed(x):
    o = Left()
    a = o.f(x)
    o.__class__ = Right
    return a, o.f(x), o.g()


@case
def new_and_init(x):
    a, b = Single(x), Single(x + 1)
    return a.v, b.v, type(a).__name__, Odd(5), type(Odd(5)).__name__


class Single:
    def __new__(cls, v):
        o = super().__new__(cls)
        o.extra = 1
        return o

    def __init__(self, v):
        self.v = v * self.extra


class Odd(int):
    def __new__(cls, v):
        return super().__new__(cls, v * 2 + 1)

    def half(self):
        return self // 2


class Names(list):
    def append(self, v):
        super().append(str(v) if not isinstance(v, torch.Tensor) else v)


class Defaults(dict):
    def __missing__(self, k):
        self[k] = k * 2
        return self[k]


@case
def builtin_subclasses(x):
    n, d = Names(), Defaults(a=1)
    n.append(3)
    n.append(x)
    return n, len(n), d["b"], d["a"], d, x * Odd(2), Odd(3).half(), isinstance(n, list)


@case
def str_subclass(x):
    class_ = Text
    s = class_("ab")
    return x, s.shout(), s + "c", s == "ab", {s: 1}["ab"]


class Text(str):
    def shout(self):
        return self.upper() + "!"


# ---- dataclasses, enums, named tuples --------------------------------------------------------------------------------
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    k: int = 2
    log: list = dataclasses.field(default_factory=list)
    total: object = dataclasses.field(init=False, repr=False, default=None)

    def __post_init__(self):
        self.total = self.x.sum() * self.k

    @property
    def n(self):
        return len(self.log)


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: int
    w: str = "w"


@dataclasses.dataclass(slots=True, kw_only=True)
class SlotData:
    v: torch.Tensor
    w: int = 0


@dataclasses.dataclass(order=True)
class Ordered(Frozen if False else object):
    rank: int
    v: object = dataclasses.field(compare=False, default=None)


class PostInit:
    pass


@case
def dataclass_post_init(x):
    b = Batch(x, 3)
    b.log.append("one")
    return b, b.total + b.n, Batch(x).log is b.log, dataclasses.is_dataclass(b)


@case
def dataclass_frozen(x):
    f = Frozen(2)
    try:
        f.v = 3
    except dataclasses.FrozenInstanceError as e:
        return x * f.v, str(e), f == Frozen(2, "w"), len({f, Frozen(2)}), dataclasses.replace(f, v=5)


@case
def dataclass_slots_and_order(x):
    s = SlotData(v=x, w=1)
    s.w += 1
    rows = sorted([Ordered(2, "b"), Ordered(1, x)])
    return s, rows, Ordered(1) < Ordered(2), repr(Frozen(1))


@case
def dataclass_helpers(x):
    b = Frozen(1)
    names = [f.name for f in dataclasses.fields(b)]
    return x, names, dataclasses.asdict(b), dataclasses.astuple(b)


@made(hit=False)
def dataclass_outside():
    b = Batch(torch.ones(2))

    def f(x):
        b.k = b.k % 3 + 1
        b.log.append(b.k)
        return x * b.k, b.n

    return f, b


class Mode(enum.Enum):
    ADD = "add"
    MUL = "mul"

    def apply(self, v):
        return v + 2 if self is Mode.ADD else v * 2

    @classmethod
    def default(cls):
        return cls.MUL


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = A | B


@case
def enum_members(x):
    return (
        Mode.ADD.apply(x),
        Mode["MUL"].apply(x),
        Mode("add") is Mode.ADD,
        Mode.default().name,
        [m.value for m in Mode],
    )


@case
def enum_numbers_and_flags(x):
    f = Flags.A | Flags.B
    return x * Level.HIGH, Level.LOW < 3, f is Flags.C, Flags.A in f, bool(f & Flags.B), Level(5).name, len(Mode)


@case
def enum_in_dict(x):
    table = {Mode.ADD: x + 1, Mode.MUL: x * 2}
    try:
        Mode("none")
    except ValueError as e:
        return table[Mode.MUL], str(e), {m.name: v for m, v in table.items()}


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: int = 4

    def product(self):
        return self.a * self.b


@case
def named_tuple_class(x):
    p = Pair(x)
    a, b = p
    return p, p.product(), p._replace(b=2), p._asdict(), a is p.a, p[1], Pair._fields
