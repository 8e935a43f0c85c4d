"""Inheritance, metaclasses, dataclasses, enums and named tuples (see language_cases.py)."""

import abc
import dataclasses
import enum
import typing

import torch
from language_cases import case, made


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


# ---- attributes of classes that are written --------------------------------------------------------------------------
@made
def class_written_by_methods():
    class Count:
        n = 0
        last = None

        def f(self, x):
            Count.n += 1
            type(self).last = x * 2
            return x * Count.n, self.n, self.last

    count = Count()
    return lambda x: (count.f(x), Count.n), [Count]


@made
def class_written_by_module():
    class Net(torch.nn.Module):
        calls = 0

        def forward(self, x):
            self.__class__.calls += 1
            return x * 2 if Net.calls > 2 else x + Net.calls

    return Net(), [Net]


@made(over=1, hit=False)  # what another class inherits has no guard that would tell
def class_written_and_inherited():
    class Base:
        n = 1

    class Derived(Base):
        pass

    class Other(Base):
        n = 5

    def fn(x):
        Base.n = Derived.n + 1
        return x * Derived.n, Derived().n, Base.n, Other.n, Other().n

    return fn, [Base, Derived, Other]


@made
def class_written_in_init():
    class Numbered:
        n = 0

        def __init__(self):
            Numbered.n += 1
            self.k = Numbered.n

    def fn(x):
        a, b = Numbered(), Numbered()
        return x * a.k + b.k, Numbered.n

    return fn, [Numbered]


@made
def class_written_and_shadowed():
    class Held:
        n = 1

    a, b = Held(), Held()
    a.n = 7

    def fn(x):
        Held.n += 1
        b.n = b.n + Held.n
        return x * a.n, a.n, b.n, Held.n

    return fn, [Held, a, b]


@made(over=1, hit=False)
def class_written_around_breaks():
    class Held:
        n = 1

    def fn(x):
        Held.n += 1
        print("n", Held.n)
        Held.n += 1
        if x.sum() > 0:
            Held.n += 10
        return x * Held.n

    return fn, [Held]


@made(over=1, hit=False)
def class_written_and_read_whole():
    class Held:
        n = 1

    def fn(x):
        setattr(Held, "n", Held.n + 1)
        return x * getattr(Held, "n", 0), Held.__dict__["n"]

    return fn, [Held]


@made(hit=False)
def class_written_by_others():
    class Held:
        n = 0

    calls = []

    def fn(x):
        calls.append(1)
        if len(calls) == 3:
            Held.n = 100
        Held.n += 1
        return x * Held.n

    return fn, [Held]


@made(over=2, hit=False)
def class_written_through_a_metaclass():
    class Meta(type):
        def __setattr__(cls, name, value):
            super().__setattr__(name, value if name == "_total" else value + 1)

        @property
        def total(cls):
            return cls._total

        @total.setter
        def total(cls, value):
            cls._total = value

    class Held(metaclass=Meta):
        n, _total = 1, 0

    def fn(x):
        Held.n = 3
        Held.total = 5
        return x * Held.n, Held.total

    return fn, [Held]


@made(over=2, hit=False)
def class_given_methods():
    class Held:
        n = 1

    def fn(x):
        Held.g = lambda self, y: y * 2
        r = Held().g(x)
        del Held.g
        Held.n = 2
        Held.n = 3
        return r, hasattr(Held, "g"), Held.n

    return fn, [Held]
