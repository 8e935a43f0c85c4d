"""The rows of test_ops.py: torch callables and what they are called with.

A row names its callables as csrc/tens/binds.def does, with further spaces: F torch · M torch.Tensor · N torch._C._nn ·
S torch._C._special · V torch._C._VariableFunctions · P torch.nn.functional · L torch.linalg · O operator · B builtins · X Own. A case is a function from a Maker, which gives
random tensors of the dtype under test, to (args, kwargs). The first name of a row runs all cases in f32 and a covering
choice of them in the other dtypes; the others run two. CCOMPILE_OPS=all runs everything with every dtype (many minutes).
What eager refuses has to be refused alike.

How results are compared (see test_ops.Compare): `ulp` 0 is bit for bit; else so many units in the last place of the result's
dtype, or no farther from the f64 result than twice eager's own distance. `norm` measures both against the largest element
of the result (sums, products: the order of additions is free)."""

import builtins
import dataclasses
import itertools
import operator
import os
from collections.abc import Callable

import torch
import torch.nn.functional as P


class Own:
    """What has no name in torch."""

    def getitem(tensor, index):
        return tensor[index]

    def setitem(tensor, index, value):
        tensor[index] = value

    def doubled(tensor, dtype):
        """Through f64, which holds each int32 but not each int64."""
        return tensor.double().to(dtype)

    def delayed(tensor, index, value):
        """A view written through after its base was read."""
        view, read = tensor[index], tensor * 2
        view.fill_(value)
        return view, read

    def viewed(tensor, view):
        """Read through a view, or several."""
        seen = view(tensor * 2)
        return [part + 1 for part in seen] if isinstance(seen, (tuple, list)) else seen + 1

    def meshed(how, *vectors):
        """meshgrid whose results are only read."""
        return [seen * 2 for seen in torch.meshgrid(*vectors, indexing=how)]

    def emptied(tensor, make, write):
        """What is written into memory that nobody has written before."""
        made = make(tensor)
        write(made, tensor)
        return made, made * 2

    def windows(tensor, size, weight):
        """Views whose elements overlap, as operands of a product."""
        seen = tensor.unfold(-1, size, 1)
        return seen @ weight, weight.t() @ seen.transpose(-1, -2), seen.sum(-1), seen.contiguous()


SPACES = {"F": torch, "M": torch.Tensor, "N": torch._C._nn, "S": torch._C._special, "V": torch._C._VariableFunctions, "P": P, "L": torch.linalg, "O": operator, "B": builtins, "X": Own}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
f32, f64, bf16, f16, i64, i32, i16, i8, u8, b1 = FLOATS + INTS
inf, nan = float("inf"), float("nan")
ALL = os.environ.get("CCOMPILE_OPS") == "all"
SPECIAL = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-42, -1e-42, 1e-40, 88.0, -88.0, 0.5, 2.5, -2.5, 1.5, 100.0, -110.0, 6e-8]


def resolve(name):
    """The callable of a name such as "F:sin"; it has to exist."""
    space, _, attribute = name.partition(":")
    return getattr(SPACES[space], ("special_" if space == "S" else "") + attribute)


class Maker:
    """Seeded tensors of one dtype. Equal seeds give equal tensors."""

    def __init__(self, dtype, seed):
        self.dtype, self.random, self.made = dtype, torch.Generator(torch.empty(0).device).manual_seed(seed), 0

    def t(self, *shape, dtype=None, special=True, scale=3):
        """Any values; 20 or more floats begin with special ones, in another order for each operand."""
        dtype = dtype or self.dtype
        self.made += 1
        if dtype is b1:
            return torch.randint(0, 2, shape, generator=self.random).bool()
        if not dtype.is_floating_point:
            return torch.randint(0 if dtype is u8 else -9, 10, shape, generator=self.random).to(dtype)
        made = (torch.randn(shape, generator=self.random, dtype=f64) * scale).to(dtype)
        if special and made.numel() >= 20:
            made.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=f64).roll(5 * self.made).to(dtype)
        return made

    def x(self, *shape, dtype=None, scale=1):
        """Finite and tame."""
        return self.t(*shape, dtype=dtype, special=False, scale=scale)

    def w(self, *shape):
        """As t, integers from their whole range."""
        if self.dtype in FLOATS or self.dtype is b1:
            return self.t(*shape)
        info = torch.iinfo(self.dtype)
        made = torch.randint(info.min, info.max, shape, generator=self.random, dtype=i64).to(self.dtype)
        if made.numel() > 4:
            made.view(-1)[:4] = torch.tensor([info.min, info.max, 0, 1], dtype=i64).roll(self.made).to(self.dtype)
        self.made += 1
        return made

    def p(self, *shape):
        """Not negative, with inf, nan and 0."""
        return self.t(*shape).abs()

    def u(self, *shape):
        """In [-1, 1], with nan and the edges."""
        return self.t(*shape, scale=0.5).clamp(-1, 1) if self.dtype in FLOATS else self.t(*shape).clamp(0, 1)

    def d(self, *shape):
        """A divisor: no zero, no denormal (eager's own fmod is NaN there) and, for integers, no overflow."""
        made = self.t(*shape)
        small = made.abs() < 1e-3 if self.dtype in FLOATS else made == 0
        return torch.where(small, torch.ones_like(made), made)

    def n(self, *shape):
        """Small and not negative: shifts, exponents."""
        return self.x(*shape).abs().clamp(max=7)

    def mask(self, *shape):
        return self.t(*shape, dtype=b1)

    def idx(self, high, *shape, dtype=i64):
        return torch.randint(0, high, shape, generator=self.random).to(dtype)

    def other(self):
        """A dtype to mix this one with."""
        return {f32: f64, f64: f32, bf16: f32, f16: bf16, i64: f32, i32: i64, i16: u8, i8: u8, u8: i8, b1: i8}[self.dtype]


def A(*args, **kwargs):
    return args, kwargs


def cl(t):
    return t.contiguous(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)


@dataclasses.dataclass
class Row:
    names: list[str]
    cases: list[Callable]
    dtypes: tuple = FLOATS + INTS
    ulp: float = 0
    norm: bool = False
    random: bool = False  # draws from torch's stream
    kernels: int = 0  # so many of its first cases, in the first dtype, leave the host nothing to do
    breaks: bool = False  # breaks the graph: looks at a shape that depends on data, or is a callable that nothing is known of

    def chosen(self):
        """(name, dtype, case): all cases in the first dtype, a covering choice in the others; one for each alias."""
        if ALL:
            yield from itertools.product(self.names, self.dtypes, self.cases)
            return
        first, *others = self.dtypes
        for case in self.cases:
            yield self.names[0], first, case
        for i, dtype in enumerate(others):
            yield self.names[0], dtype, self.cases[0]
            if len(self.cases) > 1 and (dtype in FLOATS or len(self.cases) > 9):
                yield self.names[0], dtype, self.cases[1 + (i * 3) % (len(self.cases) - 1)]
        for i, name in enumerate(self.names[1:]):
            yield name, first, self.cases[0]
            yield name, first, self.cases[(i + 1) % len(self.cases)]


ROWS = []


def row(names, *cases, **options):
    """FM:sin is F:sin and M:sin."""
    single = [f"{space}:{name.partition(':')[2]}" for name in names.split() for space in name.partition(":")[0]]
    ROWS.append(Row(single, list(cases), **options))


def each(names, *cases, **options):
    """A row for each word."""
    for name in names.split():
        row(name, *cases, **options)


# ---- pointwise: patterns ----------------------------------------------------------------------------------------------
def unary(k="t", *more):
    """One tensor of every shape and layout. k: the Maker's method."""
    return (
        lambda m: A(getattr(m, k)(67)),
        lambda m: A(getattr(m, k)()),
        lambda m: A(getattr(m, k)(0, 3)),
        lambda m: A(getattr(m, k)(5, 7).t()),
        lambda m: A(cl(getattr(m, k)(2, 5, 3, 4))),
        lambda m: A(getattr(m, k)(3, 1, 5).expand(3, 4, 5)),
        lambda m: A(getattr(m, k)(4, 33)[:, 1::2]),
        lambda m: A(getattr(m, k)(2, 3, 5).permute(2, 0, 1)),
        *more,
    )


def binary(j="t", k="t", *more, numbers=True):
    def a(m, *shape):
        return getattr(m, j)(*shape)

    def b(m, *shape):
        return getattr(m, k)(*shape)

    return (
        lambda m: A(a(m, 67), b(m, 67)),
        lambda m: A(a(m, 5, 1, 7), b(m, 3, 1)),
        lambda m: A(a(m, 4), b(m)),
        lambda m: A(a(m, 0, 3), b(m, 3)),
        lambda m: A(a(m, 5, 7).t(), b(m, 7, 5)),
        lambda m: A(cl(a(m, 2, 5, 3, 4)), cl(b(m, 2, 5, 3, 4))),
        lambda m: A(cl(a(m, 2, 5, 3, 4)), b(m, 5, 1, 1)),
        lambda m: A(a(m, 4, 33)[:, ::2], b(m, 1, 17).expand(4, 17)),
        lambda m: A(a(m, 21), b(m, 21).to(m.other())),
        lambda m: A(a(m, 21).to(m.other()), b(m).to(m.dtype)),
        lambda m: A(a(m, 3), b(m, 4)),  # refused
        *((lambda m, n=n: A(a(m, 23), n) for n in (3, 0.3, True, -2, 2.0)) if numbers else ()),
        *((lambda m: A(a(m), 2.5), lambda m: A(a(m, 2, 3), torch.tensor(2.5, dtype=f64)), lambda m: A(a(m, 23), torch.tensor(0.37))) if numbers else ()),
        *more,
    )


def number_first(k="t", numbers=(2, 0.5, -1)):
    return tuple(lambda m, n=n: A(n, getattr(m, k)(23)) for n in numbers)


def ternary(j="t", k="t", l="t", *more):  # noqa: E741
    def all3(m, *shapes):
        return A(*(getattr(m, kind)(*shape) for kind, shape in zip((j, k, l), shapes, strict=True)))

    return (
        lambda m: all3(m, (67,), (67,), (67,)),
        lambda m: all3(m, (5, 1, 7), (3, 1), (7,)),
        lambda m: all3(m, (), (4,), ()),
        lambda m: all3(m, (0, 3), (3,), (1, 3)),
        lambda m: A(*(cl(t) for t in all3(m, *[(2, 5, 3, 4)] * 3)[0])),
        lambda m: A(*(t.t() for t in all3(m, *[(4, 9)] * 3)[0])),
        lambda m: all3(m, (3,), (4,), (3,)),  # refused
        *more,
    )


NEAR = {"ulp": 4}  # transcendental functions: another polynomial than eager's
CANCELS = {"ulp": 4, "norm": True}  # differences of rounded terms
INFS = (lambda m: A(m.t(23), inf), lambda m: A(m.t(23), nan), lambda m: A(m.t(23), -0.0))

# ---- pointwise ---------------------------------------------------------------------------------------------------------
ALPHA = (lambda m: dict_call(m, alpha=2), lambda m: dict_call(m, alpha=0.5), lambda m: A(m.t(9), 3, alpha=2))


def dict_call(m, **kwargs):
    return A(m.t(4, 23), m.t(23), **kwargs)


row("FM:add M:__add__ M:__radd__ O:add", *binary("w", "w"), *INFS, lambda m: A(input=m.t(9), other=m.t(9)))
row("FM:sub FM:subtract M:__sub__ O:sub", *binary("w", "w"), *INFS)
row("F:add M:add F:sub M:sub", *ALPHA, ulp=1)
row("F:rsub", *binary("w", "w"), *ALPHA, ulp=1)
row("O:sub O:add O:mul", *number_first("w"), lambda m: A(True, m.t(9)))
row("FM:mul FM:multiply M:__mul__ M:__rmul__ O:mul", *binary("w", "w"), *INFS)
row("FM:div FM:divide FM:true_divide M:__truediv__ M:__div__ O:truediv", *binary("t", "t"), *INFS, ulp=1)
row("O:truediv", *number_first("t"), ulp=1)
for mode in ("floor", "trunc"):
    row("FM:div FM:divide", *(lambda m, c=c, mode=mode: A(*c(m)[0], rounding_mode=mode) for c in binary("t", "d")))
row("FM:floor_divide M:__floordiv__ O:floordiv", *binary("t", "d"))
row("O:floordiv O:mod", *number_first("d", (7, 7.5)))
row("FM:remainder M:__mod__ O:mod", *binary("t", "d"), *number_first("d", (7, -7)))
row("FM:fmod", *binary("t", "d"))
# Exponents are exact in f32: eager takes them in f64 for some elements of a tensor, and in f32 for others.
row("FM:pow O:pow B:pow", *binary("p", "n", numbers=False), *(lambda m, n=n: A(m.p(23), n) for n in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.75, -3)),
    *number_first("x", (2, 0.5)), lambda m: A(m.t(23), 3), lambda m: A(m.t(23), m.x(23)), ulp=8)
row("M:__pow__ M:__rpow__", lambda m: A(m.p(23), 2), lambda m: A(m.x(23), 3), ulp=8)
each("FM:square", *unary("x"))
row("FM:neg FM:negative M:__neg__ O:neg", *unary("w"))
row("FM:abs FM:absolute M:__abs__ O:abs B:abs", *unary("w"))
each("FM:sign FM:sgn FM:signbit FM:floor FM:ceil FM:frac FM:isnan FM:isinf FM:isfinite FM:isposinf FM:isneginf FM:isreal", *unary())
each("FM:positive O:pos", *unary())
row("FM:trunc FM:fix", *unary())
row("FM:round S:round", *unary(), lambda m: A(m.t(67), decimals=1), lambda m: A(m.t(67), decimals=0))
row("FM:sqrt", *unary("p"), lambda m: A(m.t(67)), ulp=1)
each("FM:rsqrt FM:reciprocal", *unary("p"), ulp=2)
each("FM:exp FM:sin FM:cos FM:tan FM:sinh FM:cosh FM:tanh FM:sigmoid FM:deg2rad FM:rad2deg", *unary(), **NEAR)
row("FM:exp2 S:exp2", *unary(), **NEAR)
row("FM:expm1 S:expm1", *unary(), **NEAR)
row("FM:erf S:erf", *unary(), **NEAR)
row("FM:erfc S:erfc", *unary(), **NEAR)
row("S:expit", *unary(), **NEAR)
row("FM:atan FM:arctan", *unary(), **NEAR)
each("FM:log FM:log2 FM:log10", *unary("p"), lambda m: A(m.t(67)), **NEAR)
row("FM:log1p S:log1p", *unary("p"), lambda m: A(m.t(67)), **NEAR)
row("FM:asin FM:arcsin", *unary("u"), **NEAR)
row("FM:acos FM:arccos", *unary("u"), **NEAR)
each("FM:erfinv FM:lgamma FM:digamma FM:i0", *unary("u"), **NEAR)
row("FM:atan2 FM:arctan2", *binary(numbers=False), **NEAR)
row("S:xlog1py", *binary("t", "p"), *number_first("p"), **NEAR)
row("S:entr", *unary("p"), lambda m: A(m.t(67)), **NEAR)
row("FM:asinh FM:arcsinh", *unary(), **NEAR)
row("FM:acosh FM:arccosh", *unary("p"), lambda m: A(m.t(67)), **NEAR)
row("FM:atanh FM:arctanh", *unary("u"), **NEAR)
row("FM:sinc S:sinc", *unary(), **NEAR)
row("FM:logit S:logit", *unary("u"), lambda m: A(m.t(67)), lambda m: A(m.t(67), 1e-3), lambda m: A(m.t(67), eps=None), **NEAR)
row("FM:hypot", *binary(numbers=False), **NEAR)
row("FM:xlogy S:xlogy", *binary("t", "p"), *number_first("p"), **NEAR)
each("FM:logaddexp FM:logaddexp2", *binary(numbers=False), **CANCELS)
# Steps between which eager rounds to half precision.
each("FM:xlogy S:xlog1py", lambda m: A(m.x(9, 40), m.x(9, 40).abs() + 0.5), dtypes=(bf16,), ulp=0)
row("S:entr", lambda m: A(m.x(9, 40).abs()), dtypes=(bf16,), ulp=0)
row("FM:logit", lambda m: A(m.x(9, 40).sigmoid()), lambda m: A(m.x(9, 40).sigmoid(), 1e-2), dtypes=(bf16,), ulp=0)
row("FM:pow", *(lambda m, n=n: A(m.x(9, 40), n) for n in (3, -2, -1, 2)), dtypes=(f16, bf16), ulp=0)
each("FM:nextafter FM:fmin FM:fmax FM:heaviside FM:ldexp", *binary(numbers=False), **NEAR)
row("FM:copysign", *binary(), lambda m: A(m.t(67), -0.0))
each("FM:gcd FM:lcm", *binary(numbers=False), dtypes=INTS)
for name in "minimum maximum".split():
    row(f"FM:{name} FM:{name[:3]}", *binary("w", "w", numbers=False))
row("FM:clamp_min", *binary(), lambda m: A(m.t(67), nan))
row("FM:clamp_max", *binary(), lambda m: A(m.t(67), nan))
row("FM:clamp FM:clip", *ternary(), lambda m: A(m.t(67), -0.5, 0.5), lambda m: A(m.t(67), None, 1), lambda m: A(m.t(67), 1),
    lambda m: A(m.t(67), min=0.3, max=None), lambda m: A(m.t(67), m.t(67)), lambda m: A(m.t(67), 2, -2),
    lambda m: A(m.t(67)), lambda m: A(m.t(67), nan, 1))
row("F:where", *(lambda m, c=c: (lambda a, b: A(m.mask(*a.shape), a, b))(*c(m)[0]) for c in binary("w", "w", numbers=False)),
    lambda m: A(m.mask(67), m.t(67), 1), lambda m: A(m.mask(67), 0.5, m.t(67)), lambda m: A(m.mask(5, 1), 0.5, m.t(7)),
    lambda m: A(m.mask(5), 1, 0), lambda m: A(m.mask(5), 1.0, 0), lambda m: A(m.t(23) > 0, m.t(23), -inf))
row("FM:masked_fill", *(lambda m, v=v: A(m.t(5, 13), m.mask(5, 13), v) for v in (1, -inf, 0.0, True)),
    lambda m: A(m.t(5, 13), m.mask(13), torch.tensor(2.0)), lambda m: A(m.t(13), m.mask(5, 1), 3),
    lambda m: A(m.t(5, 13).t(), m.mask(5), 3), lambda m: A(m.t(5), m.x(5), 3), lambda m: A(m.t(5), m.mask(5), m.t(2)))
for names in ("eq", "ne FM:not_equal", "lt FM:less", "le FM:less_equal", "gt FM:greater", "ge FM:greater_equal"):
    row(f"FM:{names} M:__{names[:2]}__ O:{names[:2]}", *binary("w", "w"), *INFS)
row("O:lt O:eq", *number_first())
each("FM:logical_and FM:logical_or FM:logical_xor", *binary(numbers=False))
row("FM:logical_not", *unary())
for name in "and or xor".split():
    row(f"FM:bitwise_{name} M:__{name}__ M:__r{name}__ O:{name + '_' * (name != 'xor')}", *binary("w", "w"), dtypes=INTS + (f32,))
row("FM:bitwise_not M:__invert__ O:invert", *unary("w"), dtypes=INTS + (f32,))
row("FM:bitwise_left_shift M:__lshift__ O:lshift", *binary("w", "n"), lambda m: A(m.t(9), -1), lambda m: A(m.t(9), 70), dtypes=INTS + (f32,))
row("FM:bitwise_right_shift M:__rshift__ O:rshift", *binary("w", "n"), lambda m: A(m.t(9), -1), lambda m: A(m.t(9), 70), dtypes=INTS + (f32,))
row("M:where", lambda m: A(m.t(5, 7), m.mask(7), m.t(5, 7)), lambda m: A(m.t(5), m.mask(5), 2), lambda m: A(m.t(5), m.mask(4), 2))
row("FM:lerp", *ternary(), lambda m: A(m.t(67), m.t(67), 0.3), lambda m: A(m.t(67), m.t(67), 0.7), **CANCELS)
row("FM:addcmul", *ternary(), lambda m: A(m.t(67), m.t(67), m.t(67), value=2), lambda m: A(m.t(67), m.t(67), m.t(67), value=0.3), **CANCELS)
row("FM:addcdiv", *ternary("t", "t", "d"), lambda m: A(m.t(67), m.t(67), m.d(67), value=2), lambda m: A(m.t(9), m.t(9), m.d(9), value=0.3), **CANCELS)
row("FM:nan_to_num", *unary(), lambda m: A(m.t(67), 1.0), lambda m: A(m.t(67), nan=0.5, posinf=2.0, neginf=-3.0))
row("FM:isclose", *binary(numbers=False))
row("FM:allclose", lambda m: A(m.t(5), m.t(5)))
row("FM:equal", lambda m: A(m.t(5), m.t(5)), dtypes=(f32, i64))
row("FM:float_power", lambda m: A(m.p(9), 2), lambda m: A(m.p(9), m.x(9)), **NEAR)

# ---- activations -------------------------------------------------------------------------------------------------------
row("FM:relu P:relu", *unary())
row("N:relu6 P:relu6", *unary())
row("N:leaky_relu P:leaky_relu", *unary(), lambda m: A(m.t(67), 0.2))
row("N:elu", *unary("t", lambda m: A(m.t(67), 0.7), lambda m: A(m.t(67), 0.7, 1.3, 0.9)), **NEAR)
row("P:elu", *unary("t", lambda m: A(m.t(67), 0.7)), **NEAR)
row("F:selu P:selu", *unary(), **NEAR)
row("F:celu P:celu", *unary("t", lambda m: A(m.t(67), 0.7)), **NEAR)
# Eager's gelu is oneDNN's, whose tail is coarse; special values are test_special.py's.
row("N:gelu P:gelu", *unary("x"), lambda m: A(m.x(67), approximate="tanh"), lambda m: A(m.x(67), approximate="none"), ulp=8, norm=True)
row("N:silu P:silu", *unary(), **NEAR)
row("N:mish P:mish", *unary(), **NEAR)
row("N:softplus P:softplus", *unary("t", lambda m: A(m.t(67), 2.0, 5.0)), **NEAR)
row("N:hardtanh P:hardtanh", *unary("t", lambda m: A(m.t(67), -0.3, 0.7), lambda m: A(m.t(67), 1, -1)))
each("N:hardsigmoid P:hardsigmoid N:hardswish P:hardswish P:softsign", *unary(), **NEAR)
row("P:tanhshrink", *unary(), **CANCELS)
row("N:log_sigmoid P:logsigmoid", *unary(), **NEAR)
row("F:threshold P:threshold", *unary("t")[:0], lambda m: A(m.t(67), 0.5, 0.1), lambda m: A(m.t(5, 7).t(), 0, 20))
row("P:hardshrink FM:hardshrink", *unary(), lambda m: A(m.t(67), 0.3))
row("P:softshrink N:softshrink", *unary(), lambda m: A(m.t(67), 0.3), ulp=1)  # the sign of its 0 depends on the place
row("P:glu N:glu", lambda m: A(m.t(2, 6, 4).transpose(1, 2), 1), lambda m: A(m.t(4, 10)), lambda m: A(m.t(4, 10), 0), lambda m: A(m.t(3)), **NEAR)
row("F:prelu M:prelu P:prelu", lambda m: A(m.t(4, 5, 6), m.x(5)), lambda m: A(m.t(4, 5), m.x(5)), lambda m: A(cl(m.t(2, 5, 4, 4)), m.x(5)), lambda m: A(m.t(4, 4, 4), m.x(4)), lambda m: A(m.t(5), m.x(5)), lambda m: A(m.t(), m.x(1)), lambda m: A(m.t(4, 5), m.x(4)), lambda m: A(m.t(30), m.x(1)), dtypes=FLOATS)
row("P:rrelu F:rrelu", lambda m: A(m.t(4, 5)), lambda m: A(m.t(67), 0.2, 0.4), dtypes=FLOATS, ulp=1)
row("P:dropout F:dropout", lambda m: A(m.t(4, 25), 0.0, False), lambda m: A(m.t(4, 25), 0.5, True), dtypes=FLOATS, random=True)
row("P:dropout2d P:alpha_dropout", lambda m: A(m.t(4, 5, 2, 2), 0.5, False), lambda m: A(m.t(4, 5, 2, 2), 0.5, True), dtypes=FLOATS, random=True)
row("F:feature_dropout", lambda m: A(m.t(4, 5, 2, 2), 0.5, False), lambda m: A(m.t(4, 5, 2, 2), 0.5, True), dtypes=FLOATS, random=True)

# ---- casts, copies, factories -------------------------------------------------------------------------------------------
row("M:float M:double M:half M:bfloat16 M:int M:long M:short M:char M:byte M:bool", *unary("x"))
row("X:doubled", *(lambda m, to=to: A(m.w(99), to) for to in (i32, i16, i8, u8, i64)), dtypes=(i64, i32), kernels=5)
row("M:to", *(lambda m, to=to: A((m.t(99, dtype=f64) + 2.0**40).floor().to(m.dtype), to) for to in (u8, i32, i16, i8)), dtypes=(f64, f32), kernels=4)
row("M:to", *(lambda m, d=d: A(m.x(23), d) for d in FLOATS + INTS), lambda m: A(m.t(5, 7).t(), f64), lambda m: A(m.t(3), "cpu", f16),
    lambda m: A(cl(m.t(2, 5, 3, 4)), dtype=f64), lambda m: A(m.t(23), m.dtype, copy=True), lambda m: A(m.t(5), m.t(5, dtype=f16)),
    lambda m: A(m.t(2, 5, 3, 4), bf16, memory_format=torch.channels_last), lambda m: A(m.t(4, 1).expand(4, 3), f16), lambda m: A(m.t(3), "cpu"))
row("M:to", lambda m: A(m.t(67), bf16), lambda m: A(m.t(67), f16), lambda m: A(m.t(67), b1), dtypes=FLOATS)
row("M:type M:type_as", lambda m: A(m.x(5), m.x(5, dtype=f64)), lambda m: A(m.x(5), f64))
row("M:type_as M:to", *(lambda m, d=d: A(m.t(4, 23), m.t(2, dtype=d)) for d in (f64, bf16, f16)), lambda m: A(m.x(5, 3).t(), m.x(2, 5, 3, 4, dtype=f64)), lambda m: A(cl(m.x(2, 3, 4, 5)), m.t(dtype=i32)), lambda m: A(m.x(5), m.x(5)), lambda m: A(m.t(0, 3), m.t(dtype=f64)), dtypes=(f32, i64, b1), kernels=5)
row("M:to", lambda m: A(m.x(5), m.x(2, dtype=f64), True), lambda m: A(m.x(5), m.x(2, dtype=f64), copy=True), lambda m: A(m.x(5), other=m.x(2, dtype=f16)), dtypes=(f32, i64))
row("FM:clone", *unary(), lambda m: A(m.t(2, 5, 3, 4), memory_format=torch.channels_last), lambda m: A(m.t(4, 6)[:, ::2], memory_format=torch.contiguous_format))
row("M:contiguous", *unary(), lambda m: A(m.t(2, 5, 3, 4), memory_format=torch.channels_last), lambda m: A(cl(m.t(2, 5, 3, 4))))
row("FM:detach", *unary())
row("F:full", lambda m: A((3, 5), 2, dtype=m.dtype), lambda m: A((3,), 1.5), lambda m: A((), True), lambda m: A([0, 2], 7), lambda m: A((2,), nan), lambda m: A((2, -1), 1))
row("F:full_like", lambda m: A(m.t(5, 7).t(), 2), lambda m: A(cl(m.t(2, 5, 3, 4)), True), lambda m: A(m.t(3), 1.5, dtype=f64), lambda m: A(m.t(3, 1).expand(3, 4), 2))
row("F:zeros_like F:ones_like", *unary(), lambda m: A(m.t(3), dtype=f64))
row("F:zeros F:ones", lambda m: A(3, 5, dtype=m.dtype), lambda m: A((2,)), lambda m: A(()), lambda m: A(-1))
row("M:new_zeros M:new_ones", lambda m: A(m.t(3), 2, 3), lambda m: A(m.t(3), (4,)), lambda m: A(m.t(3), 2, dtype=f64))
row("M:new_full", lambda m: A(m.t(3), (2, 3), 2), lambda m: A(m.t(3), (4,), 1.5, dtype=f64))
row("M:new_tensor", lambda m: A(m.t(3), [1, 2]))
row("F:arange", lambda m: A(5), lambda m: A(2, 9, 3), lambda m: A(0, 1, 0.25), lambda m: A(5, dtype=m.dtype), lambda m: A(5, 1))
row("F:linspace F:logspace", lambda m: A(0, 1, 7), lambda m: A(-2, 2, steps=5, dtype=f64), dtypes=(f32,))
row("F:eye", lambda m: A(3, dtype=m.dtype), lambda m: A(2, 4))
row("F:tensor F:as_tensor", lambda m: A([[1.0, 2.0], [3.0, 4.0]], dtype=m.dtype), lambda m: A(3))
row("N:one_hot", lambda m: A(m.idx(5, 4), 5), lambda m: A(m.idx(5, 6, 3).t(), 7), lambda m: A(m.idx(40, 9), 40), lambda m: A(m.idx(1), 1), lambda m: A(m.idx(5, 4), 2), lambda m: A(m.idx(5, 4) - 9, 6), lambda m: A(m.idx(5, 0), 3), dtypes=(i64,), kernels=4)
row("P:one_hot", lambda m: A(m.idx(5, 4), 5), lambda m: A(m.idx(5, 2, 3), 7), lambda m: A(m.idx(5, 4), 2), dtypes=(i64,))
row("F:rand F:randn", lambda m: A(3, 4), lambda m: A((2,), dtype=f64), dtypes=(f32,), random=True)
row("F:rand_like F:randn_like F:bernoulli", lambda m: A(m.x(3, 4).abs().clamp(max=1)), dtypes=FLOATS, random=True)
row("F:randint", lambda m: A(5, (3,)), lambda m: A(2, 9, (3, 4)), dtypes=(f32,), random=True)
row("F:randperm", lambda m: A(7), dtypes=(f32,), random=True)
row("F:multinomial", lambda m: A(m.x(9).abs() + 0.1, 3), dtypes=(f32, f64), random=True)

# ---- reductions ----------------------------------------------------------------------------------------------------------
def reduced(k="x", *more, over=True):
    """Over all elements, one dim, several dims; empty, 0-dim, strided, large."""
    def t(m, *shape):
        return getattr(m, k)(*shape)

    return (
        lambda m: A(t(m, 3, 5, 17), dim=-1),
        lambda m: A(t(m, 3, 5, 17), dim=1, keepdim=True),
        lambda m: A(t(m, 3, 5, 17)),
        lambda m: A(t(m), dim=0),
        lambda m: A(t(m, 0, 3), dim=0),
        lambda m: A(t(m, 3, 0), dim=0),
        lambda m: A(cl(t(m, 2, 5, 3, 4)), dim=1),
        lambda m: A(t(m, 5, 33).t(), dim=0),
        lambda m: A(t(m, 4, 33)[:, 1::2], dim=-1),
        lambda m: A(t(m, 3, 1, 5).expand(3, 4, 5), dim=1),
        lambda m: A(t(m, 40, 130), dim=0),
        lambda m: A(t(m, 3), dim=1),  # refused
        *((lambda m: A(t(m, 3, 5, 17), dim=(0, 2)), lambda m: A(cl(t(m, 2, 5, 3, 4)), dim=(2, 3), keepdim=True), lambda m: A(t(m, 3, 4), dim=(0, 0))) if over else ()),
        *more,
    )


SUMS = {"ulp": 16, "norm": True}
each("FM:sum FM:mean FM:nansum", *reduced(), lambda m: A(m.t(3, 25), dim=0), lambda m: A(m.x(9), dtype=f64), lambda m: A(m.x(3, 9), (0, 1)), **SUMS)
row("FM:nanmean", *reduced("t"), dtypes=FLOATS, **SUMS)
row("FM:count_nonzero", *reduced("t")[:2], lambda m: A(m.t(3, 5)), lambda m: A(m.t(3, 5), (0, 1)), lambda m: A(m.t(0, 3), 0), lambda m: A(m.t()))
row("FM:prod", *reduced(over=False), lambda m: A(m.t(3, 25), dim=0), **SUMS)
each("FM:amax FM:amin", *reduced("w"), lambda m: A(m.t(3, 25), 0), lambda m: A(m.t(3, 25), (0, 1)))
each("FM:max FM:min", *reduced("w", over=False), lambda m: A(m.t(3, 25), 0), lambda m: A(m.t(25)))
each("FM:max FM:min", lambda m: A(m.t(3, 25), 1), lambda m: A(m.t(25, 3), 0, True), lambda m: A(m.t(4, 33)[:, 1::2], 1), lambda m: A(cl(m.t(2, 5, 3, 4)), 1), lambda m: A(m.idx(3, 7, 40).to(m.dtype), -1), lambda m: A(m.t(3, 1, 5).expand(3, 4, 5), 1), lambda m: A(m.t(1, 40000), 1), lambda m: A(m.t(5), 0), kernels=8)
each("FM:argmax FM:argmin", *reduced("w", over=False), lambda m: A(m.t(3, 25), 0), lambda m: A(m.t(25)))
each("FM:all FM:any", *reduced("t"))
each("FM:std FM:var", *reduced(), lambda m: A(m.x(3, 9), 1, False), lambda m: A(m.x(3, 9), 1, correction=0), lambda m: A(m.x(3, 9), unbiased=False), dtypes=FLOATS, ulp=64, norm=True)
row("F:std_mean F:var_mean", *reduced(), lambda m: A(m.x(3, 9), 1), lambda m: A(m.x(3, 9), unbiased=False), lambda m: A(m.x(3, 9), True), lambda m: A(m.x(3, 9), 1, True), lambda m: A(m.x(3, 9), dim=0, unbiased=True, keepdim=True), lambda m: A(m.x(3, 9), (0, 1), correction=0, keepdim=True), dtypes=FLOATS, ulp=64, norm=True)
row("FM:norm", lambda m: A(m.x(4, 9)), lambda m: A(m.x(4, 9), dim=1), lambda m: A(m.x(4, 9), 1, dim=0, keepdim=True), lambda m: A(m.x(4, 9), inf, 1), lambda m: A(m.x(4, 9), "fro"), **SUMS)
row("L:norm L:vector_norm", lambda m: A(m.x(4, 9)), lambda m: A(m.x(4, 9), dim=1), lambda m: A(m.x(4, 9), 1, dim=0), lambda m: A(m.x(4, 9), inf), lambda m: A(m.x(4, 9), -1, (0, 1), True), **SUMS)
row("FM:logsumexp", *reduced()[:2], *reduced()[3:], lambda m: A(m.t(3, 25), dim=1), lambda m: A(m.x(3, 9), (0, 1)), **SUMS)
SCANNED = (((3, 17), 1), ((3, 17), 0), ((3, 5, 7), 1), ((4, 130), -1), ((1,), 0), ((), 0), ((0, 3), 0), ((3, 0), 0), ((3, 4), 2))
each("FM:cumsum FM:cumprod", *(lambda m, s=s, d=d: A(m.x(*s), d) for s, d in SCANNED), lambda m: A(m.x(5, 7).t(), 0), lambda m: A(m.x(9), 0, dtype=f64), lambda m: A(cl(m.x(2, 5, 3, 4)), 1), lambda m: A(m.x(4, 33)[:, 1::2], -1), lambda m: A(m.x(3, 1, 5).expand(3, 4, 5), 1), kernels=6, **SUMS)
each("FM:cumsum FM:cumprod", lambda m: A(m.x(9), dim=0, dtype=f64), lambda m: A(m.x(3, 9) > 0, 1), lambda m: A(m.x(3, 9), 1, dtype=i32), lambda m: A(m.x(3, 9).to(torch.int16), 1, dtype=f32), dtypes=(f32,), kernels=4, **SUMS)
each("FM:cummax FM:cummin", lambda m: A(m.t(3, 17), 1), lambda m: A(m.t(5, 17).t(), 0), lambda m: A(m.t(25, 3), 0), lambda m: A(cl(m.t(2, 5, 3, 4)), 1), lambda m: A(m.t(3, 1, 25).expand(3, 4, 25), 1), lambda m: A(m.idx(3, 4, 40).to(m.dtype), -1), lambda m: A(m.t(), 0), lambda m: A(m.t(0, 3), 0), lambda m: A(m.t(3), 1), kernels=7)
row("FM:logcumsumexp", *(lambda m, s=s, d=d: A(m.x(*s), d) for s, d in SCANNED), lambda m: A(m.t(3, 25), 1), lambda m: A(cl(m.x(2, 5, 3, 4)), 1), lambda m: A(m.x(5, 7).t(), 0), dtypes=FLOATS, kernels=6, **SUMS)
each("FM:count_nonzero FM:aminmax", *reduced(over=False)[:3])
row("FM:aminmax", lambda m: A(m.t(3, 25)), lambda m: A(m.t(3, 25), dim=0), lambda m: A(m.t(5, 7).t(), dim=-1, keepdim=True), lambda m: A(m.t()), kernels=3)
each("FM:median FM:nanmedian", lambda m: A(m.x(3, 17), 1), lambda m: A(m.x(17)), lambda m: A(m.x(3, 9), dim=0, keepdim=True))
row("FM:topk", lambda m: A(m.x(3, 17), 4), lambda m: A(m.x(3, 17), 2, 0, False), lambda m: A(m.x(3), 4), dtypes=(f32, f64, i64))
each("FM:sort FM:argsort", lambda m: A(m.x(3, 17)), lambda m: A(m.x(3, 17), dim=0, descending=True, stable=True), dtypes=(f32, f64, i64))
row("FM:kthvalue", lambda m: A(m.x(3, 17), 4), dtypes=(f32, f64))
row("FM:quantile", lambda m: A(m.x(17), 0.3), lambda m: A(m.x(3, 17), m.x(2).sigmoid(), dim=1), dtypes=(f32, f64), ulp=4)
row("FM:bincount", lambda m: A(m.idx(5, 20), None, 7), dtypes=(i64,))
row("FM:histc", lambda m: A(m.x(20), 5, -1, 1), dtypes=(f32,))
row("FM:unique", lambda m: A(m.idx(5, 20)), dtypes=(i64,), breaks=True)
row("FM:nonzero", lambda m: A(m.mask(5, 4)), dtypes=(b1,))
row("FM:masked_select", lambda m: A(m.t(5, 4), m.mask(5, 4)), dtypes=(f32, i64))
row("FM:dist", lambda m: A(m.x(9), m.x(9)), lambda m: A(m.x(9), m.x(9), 1), dtypes=FLOATS[:2], **SUMS)
row("FM:trace", lambda m: A(m.x(4, 4)), dtypes=(f32, i64), **SUMS)

# ---- normalisation, softmax ------------------------------------------------------------------------------------------------
each("FM:softmax FM:log_softmax", lambda m: A(m.t(1, 40001), -1), lambda m: A(m.x(3, 1, 20000), 2), lambda m: A(m.x(40000, 2), 0), lambda m: A(m.x(40000), 0), lambda m: A(m.x(2, 80000)[:, ::2], 1), dtypes=FLOATS, ulp=64, norm=True, kernels=5)
each("FM:softmax FM:log_softmax S:softmax S:log_softmax P:softmax P:log_softmax", lambda m: A(m.x(4, 17), -1), lambda m: A(m.x(4, 17), 0), lambda m: A(m.x(2, 3, 5, 7), 1),
     lambda m: A(m.x(5, 33).t(), 1), lambda m: A(m.x(3, 1, 5).expand(3, 4, 5), -1), lambda m: A(m.x(), 0), lambda m: A(m.x(0, 3), 1), lambda m: A(m.x(3, 0), 1),
     lambda m: A(m.t(3, 25), 1), lambda m: A(m.x(4, 130)[:, ::2], 1), lambda m: A(m.x(3, 9), 1, dtype=f64), lambda m: A(m.x(3), 2),
     lambda m: A(m.x(3, 9).masked_fill(m.mask(3, 9), -inf), 1), lambda m: A(m.x(3, 9).fill_(-inf), 1), dtypes=FLOATS + (i64,), ulp=8, norm=True)
row("P:softmin", lambda m: A(m.x(4, 17), -1), dtypes=FLOATS, ulp=8, norm=True)
row("F:layer_norm P:layer_norm", lambda m: A(m.x(4, 17), (17,)), lambda m: A(m.x(4, 17), (17,), m.x(17), m.x(17)), lambda m: A(m.x(4, 17), (17,), m.x(17), None, 1e-3),
    lambda m: A(m.x(2, 3, 5), [3, 5], m.x(3, 5), m.x(3, 5)), lambda m: A(m.x(9, 4).t(), (9,), m.x(9), m.x(9)), lambda m: A(m.x(0, 4), (4,)),
    lambda m: A(m.t(3, 25), (25,)), lambda m: A(m.x(4, 5), (4,)), lambda m: A(m.x(4, 5), (5,), m.x(4)), dtypes=FLOATS, ulp=16, norm=True)
row("F:rms_norm P:rms_norm", lambda m: A(m.x(4, 17), (17,)), lambda m: A(m.x(4, 17), (17,), m.x(17)), lambda m: A(m.x(2, 3, 5), (3, 5), m.x(3, 5), 1e-3),
    lambda m: A(m.x(9, 4).t(), (9,)), dtypes=FLOATS, ulp=16, norm=True)
row("F:group_norm P:group_norm", lambda m: A(m.x(2, 6, 5), 3), lambda m: A(m.x(2, 6, 4, 3), 2, m.x(6), m.x(6)), lambda m: A(cl(m.x(2, 6, 4, 3)), 6, m.x(6), m.x(6), 1e-3),
    lambda m: A(m.x(2, 6, 5), 4), dtypes=FLOATS, ulp=32, norm=True)
row("P:batch_norm", lambda m: A(m.x(3, 5, 4, 2), m.x(5), m.x(5).abs() + 0.1), lambda m: A(m.x(3, 5), m.x(5), m.x(5).abs() + 0.1, m.x(5), m.x(5)),
    lambda m: A(cl(m.x(3, 5, 4, 2)), m.x(5), m.x(5).abs() + 0.1, m.x(5), m.x(5), False, 0.1, 1e-3), lambda m: A(m.x(3, 5, 7), m.x(5), m.x(5).abs(), m.x(5), m.x(5), True),
    lambda m: A(m.x(3, 5, 4, 2), None, None, None, None, True), lambda m: A(m.x(3, 5, 4), m.x(4), m.x(4)), dtypes=FLOATS, ulp=32, norm=True)
row("F:batch_norm", lambda m: A(m.x(3, 5, 4, 2), m.x(5), m.x(5), m.x(5), m.x(5).abs() + 0.1, False, 0.1, 1e-5, True), kernels=1, dtypes=FLOATS, ulp=32, norm=True)
TRAINS = (*(lambda m, s=s: A(m.x(*s), m.x(s[1]), m.x(s[1]), m.x(s[1]), m.x(s[1]).abs(), True, 0.3, 1e-5, True) for s in ((3, 5, 4, 2), (7, 5), (4, 5, 1), (2, 40, 31, 17), (1, 5, 3, 4, 2), (1, 5), (90, 600), (3, 3, 120, 99))),
    lambda m: A(cl(m.x(3, 5, 4, 2)), None, m.x(5), m.x(5), m.x(5).abs(), True, 0.3, 1e-5, True), lambda m: A(cl(m.x(3, 40, 31, 17)), m.x(40), None, m.x(40), m.x(40).abs(), True, 1.0, 1e-3, True),
    lambda m: A(m.x(3, 5, 9), m.x(5), m.x(5), None, None, True, 0.3, 1e-5, True), lambda m: A(m.x(9, 5, 3).permute(2, 1, 0), None, None, m.x(10)[::2], m.x(10).abs()[1::2], True, 0, 1e-5, True),
    lambda m: A(m.x(3, 10, 9)[:, ::2, 1:], m.x(5), m.x(5), m.x(5), m.x(5).abs(), True, -1, 1e-5, True), lambda m: A(m.x(4, 5).t(), None, None, m.x(4), m.x(4), True, 0.3, 1e-5, True))
row("F:batch_norm", *TRAINS, lambda m: A(m.t(40, 5), m.x(5), m.x(5), m.x(5), m.x(5).abs(), True, 0.3, 1e-5, True), lambda m: A(m.x(40, 5) * 0 + 3, m.x(5), m.x(5), m.x(5), m.x(5).abs(), True, 0.3, 1e-5, True),
    *(lambda m, d=d: A(m.x(4, 5, 9), m.x(5, dtype=d), m.x(5, dtype=d), m.x(5, dtype=d), m.x(5, dtype=d).abs(), True, 0.1, 1e-5, True) for d in (f32, f64)),
    lambda m: A(m.x(0, 5), m.x(5), m.x(5), m.x(5), m.x(5), True, 0.1, 1e-5, True), lambda m: A(m.x(3, 5, 2), m.x(5), m.x(5), m.x(4), m.x(5), True, 0.1, 1e-5, True), lambda m: A(m.x(3, 5, 2), m.x(5), m.x(5), m.x(5), None, True, 0.1, 1e-5, True),
    lambda m: A(m.x(5), m.x(5), m.x(5), m.x(5), m.x(5), True, 0.1, 1e-5, True), kernels=14, dtypes=FLOATS, ulp=32, norm=True)
row("F:instance_norm", *(lambda m, c=c: (c(m)[0], c(m)[1]) for c in (TRAINS[0], TRAINS[3], TRAINS[4], TRAINS[8], TRAINS[9], TRAINS[11], TRAINS[12])), lambda m: A(m.x(3, 5, 9), m.x(5), None, m.x(5), m.x(5).abs(), False, 0.1, 1e-5, True),
    lambda m: A(m.x(3, 5), m.x(5), None, m.x(5), m.x(5).abs(), True, 0.1, 1e-5, True), kernels=8, dtypes=FLOATS, ulp=32, norm=True)
row("F:instance_norm", lambda m: A(m.x(3, 5, 9), m.x(5), m.x(5), None, None, True, 0.1, 1e-5, False), lambda m: A(m.x(3, 5, 9), None, None, m.x(5), m.x(5).abs(), False, 0.1, 1e-5, False), dtypes=FLOATS, ulp=32, norm=True)
row("P:instance_norm", lambda m: A(m.x(3, 5, 4, 2)), lambda m: A(cl(m.x(3, 5, 4, 2)), weight=m.x(5), bias=m.x(5)), lambda m: A(m.x(3, 5, 9), weight=m.x(5), eps=0.1), lambda m: A(m.x(5, 9)), lambda m: A(m.x(3, 5, 1)), lambda m: A(m.x(3, 5, 9), m.x(5), m.x(5).abs(), m.x(5), m.x(5), True), dtypes=FLOATS, ulp=32, norm=True)
row("P:local_response_norm", lambda m: A(m.x(2, 5, 4), 3), dtypes=FLOATS[:2], ulp=16, norm=True)
row("P:normalize", lambda m: A(m.x(4, 9)), lambda m: A(m.x(4, 9), 1, 0), dtypes=FLOATS, ulp=8, norm=True)
row("F:cosine_similarity", lambda m: A(m.x(40, 64), m.x(40, 64), -1), lambda m: A(m.x(40, 64), m.x(40, 64), 0), dtypes=(f16, bf16), ulp=0)
row("FM:nanmean FM:logsumexp", lambda m: A(m.x(40, 33), -1), lambda m: A(m.x(40, 33), 0), dtypes=(f16, bf16), ulp=0)
row("FM:log_softmax", lambda m: A(m.x(40, 33), -1), lambda m: A(m.x(40, 33), 0), dtypes=(f16, bf16), ulp=0)
row("F:rms_norm", lambda m: A(m.x(9, 64), (64,)), lambda m: A(m.x(9, 64) / 100, (64,), m.x(64)), dtypes=(f16, bf16), ulp=0)
row("P:cosine_similarity", lambda m: A(m.x(4, 9), m.x(4, 9)), lambda m: A(m.x(4, 9), m.x(9), 1), dtypes=FLOATS[:2], ulp=16, norm=True)

# ---- views -----------------------------------------------------------------------------------------------------------------
row("M:view", lambda m: A(m.t(4, 6), 2, -1), lambda m: A(m.t(4, 6), (2, 12)), lambda m: A(m.t(24), 2, 3, 4), lambda m: A(m.t(0, 3), 3, 0), lambda m: A(m.t(), 1, 1),
    lambda m: A(m.t(4, 6).t(), 24), lambda m: A(m.t(4, 6)[:, ::2], 4, 3, 1), lambda m: A(m.t(4), 3), lambda m: A(m.x(4), torch.uint8), lambda m: A(cl(m.t(2, 4, 3, 3)), 2, 2, 2, 9))
row("FM:reshape", lambda m: A(m.t(4, 6), (2, -1)), lambda m: A(m.t(4, 6).t(), (24,)), lambda m: A(m.t(4, 6).t(), (3, 2, 4)), lambda m: A(m.t(0, 3), (3, 0)), lambda m: A(m.t(1), ()),
    lambda m: A(cl(m.t(2, 4, 3, 3)), (2, 36)), lambda m: A(m.t(4, 1).expand(4, 3), (12,)), lambda m: A(m.t(4), (3,)), lambda m: A(m.t(0), (0, -1)))
row("M:reshape_as M:view_as M:expand_as", lambda m: A(m.t(1, 6), m.t(1, 6)), lambda m: A(m.t(6, 1), m.t(6, 1)))
row("FM:flatten", lambda m: A(m.t(2, 3, 4)), lambda m: A(m.t(2, 3, 4), 1), lambda m: A(m.t(2, 3, 4).transpose(0, 1), 1, 2), lambda m: A(m.t()), lambda m: A(m.t(3).t()), lambda m: A(m.t(2, 3), 2))
row("FM:unflatten", lambda m: A(m.t(2, 12), 1, (3, 4)), lambda m: A(m.t(12), 0, (-1, 4)), lambda m: A(m.t(12), 0, (5, 2)))
row("FM:ravel", *unary(), lambda m: A(m.t(4, 6)[::2]), lambda m: A(m.t(4, 6).t()), lambda m: A(m.t(9)[::2]))
row("FM:transpose FM:swapaxes FM:swapdims", lambda m: A(m.t(2, 3, 4), 0, 2), lambda m: A(m.t(2, 3, 4), -1, 1), lambda m: A(m.t(), 0, -1), lambda m: A(m.t(3), 0, 1))
row("FM:t", lambda m: A(m.t(2, 3)), lambda m: A(m.t(2)), lambda m: A(m.t(2, 3, 4)))
row("F:adjoint M:adjoint", lambda m: A(m.t(2, 3)), lambda m: A(m.t(3)))
row("F:permute M:permute", lambda m: A(m.t(2, 3, 4), (2, 0, 1)), lambda m: A(m.t(2, 3), (-1, 0)), lambda m: A(m.t(2, 3), (0, 0)), lambda m: A(m.t(2, 3), (0,)))
row("M:permute", lambda m: A(m.t(2, 3, 4), 2, 0, 1), lambda m: A(m.t(), ()))
row("FM:movedim FM:moveaxis", lambda m: A(m.t(2, 3, 4), 0, 2), lambda m: A(m.t(2, 3, 4), (0, 1), (2, 0)), lambda m: A(m.t(2, 3), -1, 0), lambda m: A(m.t(2, 3), 0, 2))
row("M:expand", lambda m: A(m.t(3, 1), 3, 4), lambda m: A(m.t(1, 3), (2, -1, 3)), lambda m: A(m.t(), 2, 3), lambda m: A(m.t(1), 0), lambda m: A(m.t(3), 4))
row("FM:broadcast_to", lambda m: A(m.t(3, 1), (2, 3, 4)), lambda m: A(m.t(3), (4,)))
row("F:broadcast_tensors", lambda m: A(m.t(3, 1), m.t(4)), lambda m: A(m.t(3), m.t(4)))
row("FM:squeeze", lambda m: A(m.t(1, 3, 1), 0), lambda m: A(m.t(1, 3, 1)), lambda m: A(m.t(2, 3), 0), lambda m: A(m.t(1, 3, 1), (0, 2)), lambda m: A(m.t(), 0), lambda m: A(m.t(3), 2))
row("FM:unsqueeze", lambda m: A(m.t(2, 3), 0), lambda m: A(m.t(2, 3).t(), -1), lambda m: A(m.t(), 0), lambda m: A(m.t(3), 3))
row("FM:select", lambda m: A(m.t(2, 3, 4), 1, 2), lambda m: A(m.t(2, 3), -1, -1), lambda m: A(m.t(2, 3), 0, 2), lambda m: A(m.t(), 0, 0))
row("FM:narrow", lambda m: A(m.t(4, 6), 1, 2, 3), lambda m: A(m.t(4, 6), 0, 4, 0), lambda m: A(m.t(4, 6), -1, -3, 2), lambda m: A(m.t(4), 0, 3, 2))
row("FM:split", lambda m: A(m.t(2, 7), 3, 1), lambda m: A(m.t(7), [3, 4]), lambda m: A(m.t(7, 2), 2), lambda m: A(m.t(7), [3, 3]))
row("FM:split_with_sizes", lambda m: A(m.t(7), [3, 4]), lambda m: A(m.t(2, 7).t(), (3, 0, 4)), lambda m: A(m.t(2, 6), [2, 2, 2], 1), lambda m: A(m.t(7), [3, 3]))
each("FM:chunk FM:tensor_split", lambda m: A(m.t(2, 7), 3, 1), lambda m: A(m.t(7, 2), 2), lambda m: A(m.t(2), 0))
row("FM:tensor_split", *(lambda m, at=at: A(m.t(2, 7), at, 1) for at in ((2, 5), (5, 3), (-3, 9), (), (0, 0, 7), [1])), lambda m: A(m.t(7), -1))
each("FM:unbind", lambda m: A(m.t(3, 4)), lambda m: A(m.t(3, 4), 1), lambda m: A(m.t()))
row("FM:hsplit FM:vsplit", lambda m: A(m.t(4, 6), 2), lambda m: A(m.t(4, 6), (1, 3)), lambda m: A(m.t(4), 2))
row("FM:dsplit", lambda m: A(m.t(2, 3, 4), 2), lambda m: A(m.t(2, 3, 5), (1, 3)), lambda m: A(m.t(4, 6), 2))
row("M:unfold", lambda m: A(m.t(2, 9), 1, 3, 2), lambda m: A(m.t(9), 0, 10, 1), lambda m: A(m.t(9, 4), 0, 3, 3), lambda m: A(m.t(9, 4).t(), -1, 4, 1))
row("FM:as_strided", lambda m: A(m.t(12), (3, 2), (1, 4)), lambda m: A(m.t(12), (3,), (2,), 1), lambda m: A(m.t(3), (3,), (2,)))
row("FM:diag FM:diag_embed", lambda m: A(m.t(4, 6)), lambda m: A(m.t(4, 4), 1))
row("FM:diagonal", lambda m: A(m.t(4, 6)), lambda m: A(m.t(4, 6), 2), lambda m: A(m.t(4, 6), -3), lambda m: A(m.t(2, 4, 6), 1, -1, 1), lambda m: A(m.t(4, 6), 6), lambda m: A(m.t(4, 6), 0, 1, 1))
VIEWS = (lambda t: t.movedim(0, 2), lambda t: torch.moveaxis(t, (0, 1), (2, 0)), lambda t: t.unflatten(2, (3, -1)), lambda t: t.ravel(), lambda t: t.adjoint(), lambda t: t.squeeze(), lambda t: t.squeeze((1, 2)),
         lambda t: t.broadcast_to((2, 4, 5, 6)), lambda t: t.tensor_split(4, 2), lambda t: t.tensor_split((2, 5), 2), lambda t: t.vsplit(2), lambda t: t.hsplit((1, 3)), lambda t: t.dsplit(3), lambda t: t.diagonal(), lambda t: t.diagonal(-1, 2, 0), lambda t: t.unfold(1, 3, 1), lambda t: t[0].unfold(0, 2, 2))
row("X:viewed", *(lambda m, view=view: A(m.x(4, 5, 6), view) for view in VIEWS), lambda m: A(m.x(3, 1, 1), VIEWS[6]), kernels=len(VIEWS) + 1)
row("X:windows", lambda m: A(m.x(3, 40), 8, m.x(8, 5)), lambda m: A(m.x(40), 8, m.x(8, 16)), lambda m: A(m.x(3, 2, 9), 4, m.x(4, 1)), lambda m: A(m.x(40, 70).t(), 33, m.x(33, 64)), dtypes=FLOATS, ulp=16, norm=True)
row("F:view_as_real", lambda m: A(m.t(3).to(torch.complex64)), dtypes=(f32,))
row("F:real F:conj M:resolve_conj", *unary()[:3])
INDEX = (0, -1, slice(1, None), slice(None, None, 2), (slice(None), 1), (..., 0), None, (0, 1), (slice(1, 3), None, -2), (..., slice(0, 0)), True, 9)
row("X:getitem", *(lambda m, i=i: A(m.t(4, 6), i) for i in INDEX), lambda m: A(m.t(4, 6), m.idx(4, 3)), lambda m: A(m.t(4, 6), (m.idx(4, 3), m.idx(6, 3))),
    lambda m: A(m.t(4, 6), (slice(None), m.idx(6, 2, 2))), lambda m: A(m.t(4, 6), [0, 2]), lambda m: A(m.t(4, 6), m.mask(4, 6)), lambda m: A(m.t(4, 6), m.idx(4)), lambda m: A(m.t(3), m.idx(3, 2) + 3))
row("M:__getitem__", *(lambda m, i=i: A(m.t(4, 6), i) for i in (0, (..., 0))))
row("O:getitem", *(lambda m, i=i: A(m.t(4, 6), i) for i in INDEX), lambda m: A(m.t(4, 6), m.idx(4, 3)), lambda m: A(m.t(4, 6), 9))

# ---- layout ----------------------------------------------------------------------------------------------------------------
JOINED = (lambda m: A([m.t(2, 3), m.t(2, 3)]), lambda m: A((m.t(2, 3), m.t(2, 3), m.t(2, 3)), 1), lambda m: A([m.t(3, 2).t(), m.t(2, 3)], -1), lambda m: A([m.t(2, 3), m.t(2, 3, dtype=m.other())], 1),
          lambda m: A([m.t(0, 3), m.t(2, 3)]), lambda m: A([cl(m.t(2, 4, 3, 3)), cl(m.t(2, 4, 3, 3))], 1), lambda m: A([m.t(2, 3)], dim=0), lambda m: A([m.t(2, 3), m.t(3, 2)]), lambda m: A([m.t(0), m.t(2, 3)]), lambda m: A([]),
          lambda m: A([m.t(5, 2100), m.t(5, 2199)[:, 99:], m.t(5, 2100)], 1))
row("F:cat F:concat F:concatenate", *JOINED)
row("F:stack", *JOINED)
row("F:hstack F:column_stack F:vstack F:row_stack F:dstack", *JOINED[:1], lambda m: A([m.t(2, 3), m.t(2, 1)]), lambda m: A([m.t(2, 3, 4), m.t(2, 2, 4)]), kernels=3)
row("F:vstack F:row_stack", lambda m: A([m.t(2, 3), m.t(1, 3)]), lambda m: A([m.t(2, 3, 4).transpose(1, 2), m.t(3, 4, 3)]), lambda m: A([m.t(3), m.t(3)]), lambda m: A([m.t(3), m.t(2, 3)]), kernels=2)
row("F:dstack", lambda m: A([m.t(2, 3, 4), m.t(2, 3, 1)]), lambda m: A([m.t(2, 3), m.t(2, 3)]), kernels=1)
row("F:hstack F:column_stack", lambda m: A([m.t(3), m.t(4)]), lambda m: A([m.t(3), m.t(3)]), lambda m: A([m.t(), m.t(3)]))
row("P:pad N:pad", lambda m: A(m.t(2, 3), (1, 2)), lambda m: A(m.t(2, 3), (1, 2, 0, 1), "constant", 2), lambda m: A(m.t(2, 5), (-1, 2)), lambda m: A(m.t(2, 3, 5), (1, 2), "reflect"),
    lambda m: A(m.t(2, 3, 5, 4), (1, 1, 2, 0), mode="replicate"), lambda m: A(m.t(2, 3, 5), (2, 2), "circular"), lambda m: A(cl(m.t(2, 3, 4, 4)), (1, 1, 1, 1)), lambda m: A(m.t(2, 3), (1,)))
OWN = (lambda m, how: A(m.t(2, 3, 5), (1, 2), how), lambda m, how: A(m.t(2, 3, 5, 4), (1, 3, 2, 0), how), lambda m, how: A(cl(m.t(2, 3, 5, 4)), (2, 1, 1, 3), how), lambda m, how: A(m.t(1, 2, 3, 4, 5), (1, 2, 0, 3, 2, 1), how),
       lambda m, how: A(m.t(3, 5, 2).transpose(1, 2), (4, 0), how), lambda m, how: A(m.t(2, 3, 5)[:, ::2, 1:], (1, 1), how), lambda m, how: A(m.t(2, 3, 1), (0, 0), how), lambda m, how: A(m.t(2, 3, 5), (-1, 2), how), lambda m, how: A(m.t(2, 3, 5), (5, 6), how))
row("N:pad P:pad", *(lambda m, make=make, how=how: make(m, how) for make in OWN[:3] for how in ("reflect", "replicate", "circular")), kernels=9)
row("N:pad P:pad", *(lambda m, make=make, how=how: make(m, how) for make in OWN[3:] for how in ("reflect", "replicate", "circular")))
row("N:pad P:pad", lambda m: A(m.t(2, 5), (-1, 2)), lambda m: A(m.t(4, 6).t(), (2, -2, -3, 1), "constant", 3), lambda m: A(m.t(2, 3, 5), (-1, -3)), lambda m: A(m.t(2, 5), (-5, 2)), lambda m: A(m.t(2, 3), (-2, -2)), lambda m: A(m.t(2, 3), (-4, 3)), kernels=3)
row("M:repeat", lambda m: A(m.t(2, 3), 2, 1), lambda m: A(m.t(3), (2, 0)), lambda m: A(m.t(), 3), lambda m: A(m.t(2, 3), 2))
row("FM:tile", lambda m: A(m.t(2, 3), (2,)), lambda m: A(m.t(3), (2, 2)))
row("FM:repeat_interleave", lambda m: A(m.t(2, 3), 2), lambda m: A(m.t(2, 3), 2, dim=1), lambda m: A(m.t(3), m.idx(3, 3)))
row("FM:roll", lambda m: A(m.t(2, 5), 2), lambda m: A(m.t(2, 5), (1, -2), (0, 1)), lambda m: A(m.t(5, 2).t(), 1, 1))
row("FM:roll", lambda m: A(m.t(2, 5), 2), lambda m: A(m.t(3, 2, 5), -7), lambda m: A(m.t(7), 15), lambda m: A(m.t(5, 2).t(), 3), lambda m: A(m.t(), 3), lambda m: A(m.t(0, 2), 3), lambda m: A(cl(m.t(2, 3, 4, 5)), 3), kernels=3)
row("FM:flip", lambda m: A(m.t(2, 5), (1,)), lambda m: A(m.t(5, 2).t(), (0, 1)), lambda m: A(m.t(2), (1,)))
row("FM:rot90", lambda m: A(m.t(2, 5)))
row("FM:fliplr FM:flipud", lambda m: A(m.t(2, 5)), lambda m: A(m.t(5, 2, 3).transpose(0, 2)), kernels=2)
each("FM:tril FM:triu", lambda m: A(m.t(5, 7)), lambda m: A(m.t(2, 4, 4), 1), lambda m: A(m.t(5, 7).t(), -2), lambda m: A(m.t(3)))
row("F:tril_indices", lambda m: A(3, 3), dtypes=(f32,))
row("F:meshgrid", lambda m: A(m.t(2), m.t(3), indexing="ij"), lambda m: A(m.t(2), m.t(3), m.t(), m.t(4), indexing="xy"), lambda m: A([m.t(2), m.t(6)[::2]]), lambda m: A(m.t(2), m.t(0), indexing="xy"), lambda m: A(m.t(2, 2), m.t(3)), dtypes=(f32, i64))
row("V:meshgrid", lambda m: A([m.t(2), m.t(3)], indexing="ij"), lambda m: A((m.t(2), m.t(3)), indexing="xy"), dtypes=(f32,))
row("X:meshed", *(lambda m, how=how: A(how, m.t(3), m.t(10)[1::3], m.t(), m.t(2)) for how in ("ij", "xy")), dtypes=(f32, i64, b1), kernels=2)
row("F:cartesian_prod", lambda m: A(m.t(2), m.t(3)), dtypes=(f32,))
row("FM:diff", lambda m: A(m.t(4, 23)), lambda m: A(m.t(4, 6), 1, 0), lambda m: A(m.t(23)[::2]), lambda m: A(m.t(2, 6, 5).transpose(1, 2), dim=-2), lambda m: A(m.t(4, 6), 2), lambda m: A(m.t(4, 1)), lambda m: A(m.t(4, 6), n=0), lambda m: A(m.t()), lambda m: A(m.t(4), 1, 1), lambda m: A(m.t(4), append=m.t(2)), kernels=4)
EMPTY = (lambda t: torch.empty(t.shape), lambda t: torch.empty_like(t), lambda t: t.new_empty(t.shape), lambda t: torch.empty(*t.shape, dtype=t.dtype), lambda t: torch.empty_like(t, memory_format=torch.contiguous_format), lambda t: t.new_empty(t.shape[::-1]).t())
WRITE = (lambda e, t: e.copy_(t), lambda e, t: e.fill_(2), lambda e, t: (operator.setitem(e, slice(0, 2), t[:2] * 2), operator.setitem(e, slice(2, None), t[2:] + 1)), lambda e, t: e.zero_().add_(t))
row("X:emptied", *(lambda m, e=e, w=w: A(m.t(5, 7), e, w) for e in EMPTY for w in WRITE), lambda m: A(m.t(7, 5).t(), EMPTY[1], WRITE[2]), lambda m: A(m.t(0, 3), EMPTY[1], WRITE[0]), kernels=20, dtypes=FLOATS + INTS[:2])
row("F:empty", lambda m: A(0, 3), lambda m: A((2, 0), dtype=m.dtype))
row("F:empty_like", lambda m: A(m.t(0, 3)), lambda m: A(m.t(0), dtype=f64))
row("F:pixel_shuffle P:pixel_shuffle F:pixel_unshuffle P:pixel_unshuffle", lambda m: A(m.t(1, 8, 4, 4), 2), lambda m: A(m.t(2, 3, 4, 4, 6), 2), lambda m: A(cl(m.t(2, 8, 4, 6)), 2))
row("P:channel_shuffle F:channel_shuffle F:native_channel_shuffle", lambda m: A(m.t(1, 6, 2, 2), 3), lambda m: A(m.t(2, 6, 5), 2), lambda m: A(cl(m.t(2, 6, 2, 3)), 3), lambda m: A(m.t(1, 6, 2, 2), 4))
row("M:unsafe_chunk", lambda m: A(m.t(4), 2))

# ---- indexing --------------------------------------------------------------------------------------------------------------
row("FM:index_select", lambda m: A(m.t(4, 6), 0, m.idx(4, 3)), lambda m: A(m.t(6, 4).t(), 1, m.idx(6, 9)), lambda m: A(m.t(4), 0, m.idx(4, 2, dtype=i32)), lambda m: A(m.t(4), 0, m.idx(4, 2) + 4), lambda m: A(m.t(4, 6), 0, m.idx(4, 2, 2)))
row("FM:gather", lambda m: A(m.t(4, 6), 1, m.idx(6, 4, 3)), lambda m: A(m.t(6, 4).t(), 0, m.idx(4, 2, 5)), lambda m: A(m.t(4), 0, m.idx(4, 3) + 9), lambda m: A(m.t(4), 0, m.x(3)))
row("FM:take FM:take_along_dim", lambda m: A(m.t(4, 6), m.idx(20, 3)))
row("FM:take_along_dim", lambda m: A(m.t(4, 6), m.idx(6, 4, 3), 1), lambda m: A(m.t(4, 6), m.idx(6, 1, 3), 1), lambda m: A(m.t(1, 6), m.idx(6, 4, 3), -1), lambda m: A(m.t(40, 300), m.idx(300, 40, 300), 1), lambda m: A(m.t(4, 6), m.idx(6, 4, 3) - 6, 1), kernels=5)
row("P:embedding", lambda m: A(m.idx(9, 3, 4), m.t(9, 5)), lambda m: A(m.idx(9, 4, dtype=i32), m.t(9, 5), 2), lambda m: A(m.idx(9, 0), m.t(9, 5)), lambda m: A(m.idx(9), m.t(5, 9).t()), lambda m: A(m.idx(9, 4) + 9, m.t(9, 5)), lambda m: A(m.x(3), m.t(9, 5)))
row("F:embedding", lambda m: A(m.t(9, 5), m.idx(9, 3, 4)), lambda m: A(m.t(9, 5), m.idx(9, 4), -1, False, False))
row("P:embedding_bag", lambda m: A(m.idx(9, 3, 4), m.x(9, 5)), lambda m: A(m.idx(9, 7), m.x(9, 5), torch.tensor([0, 3]), mode="sum"), dtypes=FLOATS[:2], **SUMS)
def permutation(m, n, high=None):
    return torch.randperm(high or n, generator=m.random)[:n]


SCATTERED = (lambda m: A(m.t(4, 6), 1, m.idx(6, 4, 1), m.t(4, 1)), lambda m: A(m.t(4, 6), 0, m.idx(4, 1, 6), 2), lambda m: A(m.t(4, 6), -1, m.idx(6, 3, 9), m.t(4, 11)), lambda m: A(m.t(6, 4).t(), 0, m.idx(4, 5, 6), m.t(6, 5).t()),
             lambda m: A(m.t(4, 5, 6), 1, m.idx(5, 4, 1, 6).expand(4, 3, 6), m.t(4, 3, 6)), lambda m: A(m.t(9), 0, m.idx(9, 30, dtype=i32), m.t(30)), lambda m: A(m.t(4, 6), 1, m.idx(6, 4, 0), m.t(4, 0)),
             lambda m: A(m.t(3, 4000), 1, m.idx(4000, 3, 9000), m.t(3, 9000)))
row("FM:scatter", *SCATTERED, lambda m: A(m.t(), 0, m.idx(1), m.t()), lambda m: A(m.t(4, 6), 1, m.idx(6, 4, 1), m.t(4, 1), reduce="add"), lambda m: A(m.t(4), 0, m.idx(4, 2) + 4, 1), lambda m: A(m.t(4), 0, m.idx(4, 2) - 4, 1), lambda m: A(m.t(4, 6), 1, m.idx(6, 5, 1), 1), kernels=8)
ADDED = (lambda m: A(m.x(4, 6), 1, m.idx(6, 4, 5), m.x(4, 5)), lambda m: A(m.x(4), 0, m.idx(4, 30), m.x(30)), lambda m: A(m.x(4, 6).t(), 0, m.idx(6, 9, 3), m.x(9, 4)), lambda m: A(m.x(9, 64), 0, m.idx(9, 50, 1).expand(50, 64), m.x(50, 64)), lambda m: A(m.x(40, 900), 0, m.idx(40, 70, 900), m.x(70, 900)))
row("FM:scatter_add", *ADDED, lambda m: A(m.x(4), 0, m.idx(4, 3) + 4, m.x(3)), kernels=5, **SUMS)
row("FM:index_add", lambda m: A(m.x(4, 6), 1, m.idx(6, 9), m.x(4, 9)), lambda m: A(m.x(4), 0, m.idx(4, 3), m.x(3), alpha=2), lambda m: A(m.x(4, 6, 5), 0, m.idx(4, 7, dtype=i32), m.x(7, 6, 5)), lambda m: A(m.x(6, 4).t(), -1, m.idx(6, 2), m.x(2, 4).t(), alpha=-1),
    lambda m: A(m.x(300, 96), 0, m.idx(300, 700), m.x(700, 96)), lambda m: A(m.x(4, 6), 0, m.idx(4, 0), m.x(0, 6)), lambda m: A(m.x(4), 0, m.idx(4), m.x(1)), lambda m: A(m.x(4, 6), 0, m.idx(4, 2) - 4, m.x(2, 6)), lambda m: A(m.x(4, 6), 0, m.idx(4, 3), m.x(2, 6)), kernels=6, **SUMS)
row("FM:index_copy", lambda m: A(m.t(4, 6), 0, torch.tensor([2, 0]), m.t(2, 6)), lambda m: A(m.t(4, 6), 1, m.idx(6, 9), m.t(4, 9)), lambda m: A(m.t(5, 4, 6).permute(2, 0, 1), -1, permutation(m, 4), m.t(6, 5, 4)), lambda m: A(m.t(4, 6), 0, torch.tensor([2, -1]), m.t(2, 6)), kernels=3)
row("FM:index_fill", lambda m: A(m.t(4, 6), 0, m.idx(4, 2), 3), lambda m: A(m.t(4, 6), 1, m.idx(6, 2), m.t()), lambda m: A(m.t(4, 33)[:, ::2], 1, m.idx(17, 5) - 17, 1), lambda m: A(m.t(4, 6), 0, m.idx(4, 2) + 4, 3), lambda m: A(m.t(4, 6), 0, m.idx(4, 2), 2.5), kernels=3)
REDUCED = [lambda m, how=how, own=own: A(m.x(4, 6), 1, m.idx(6, 4, 9), m.x(4, 9), how, include_self=own) for how in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)]
row("FM:scatter_reduce", *REDUCED, lambda m: A(m.t(5, 30), 0, m.idx(5, 40, 30), m.t(40, 30), "amax"), lambda m: A(m.t(5, 30), 0, m.idx(5, 40, 30), m.t(40, 30), "amin", include_self=False), lambda m: A(m.x(90, 300), 0, m.idx(90, 100, 300), m.x(100, 300), "mean"),
    lambda m: A(m.x(4), 0, m.idx(4, 3) + 4, m.x(3), "amax", include_self=False), kernels=13, **SUMS)
row("FM:index_put", lambda m: A(m.t(4, 6), (torch.tensor([2, 0]),), m.t(6)), lambda m: A(m.x(4, 6), (m.idx(4, 3), m.idx(6, 3)), m.t(special=False), True), lambda m: A(m.t(4, 6), (m.mask(4, 6),), m.t()), lambda m: A(m.t(4, 6), (m.mask(4),), m.t()), lambda m: A(m.t(4, 5, 6), (m.idx(4, 3, 1) - 4, m.idx(5, 2)), m.t(3, 2, 6)),
    lambda m: A(m.x(40, 5), (m.idx(40, 300),), m.x(300, 5), True), lambda m: A(m.t(4, 5, 6), (m.idx(4, 9), m.idx(5, 9), m.idx(6, 9, dtype=i32)), m.t(9)), lambda m: A(m.t(4, 6), (m.idx(4, 3).t(), m.idx(6, 1)), m.t(3)), lambda m: A(m.t(4, 6), (m.mask(4, 6),), m.t(24)), lambda m: A(m.t(4, 6), (m.idx(4, 3) + 4,), m.t(6)), kernels=8, **SUMS)
# masks whose entries select rows that are not one piece of memory
PACKED = [lambda m, shape=shape: A(m.t(5, 7, 6)[:, :3, 1:5], m.mask(*shape) | True, m.t(90)) for shape in ((), (1, 1), (3, 1), (5, 1, 1), (5, 3, 1))]
PACKED += [lambda m: A(m.t(6, 4).t().clone(), m.mask() | True, m.t(24)), lambda m: A(m.t(6, 4, 5).permute(1, 0, 2).clone(), m.mask(4, 1, 1), m.t(120))]
row("FM:masked_scatter", lambda m: A(m.t(4, 6), m.mask(4, 6), m.t(24)), lambda m: A(m.t(4, 6), m.mask(4, 1), m.t(30)), lambda m: A(m.t(4, 6, 5), m.mask(6, 1), m.t(130)), lambda m: A(m.t(6, 4).t(), m.mask(6), m.t(4, 6)), lambda m: A(m.t(4, 6), m.mask(4, 6) | True, m.t(7)), *PACKED, kernels=4)
row("F:bucketize F:searchsorted", lambda m: A(m.x(9).sort()[0], m.x(9).sort()[0]), dtypes=(f32, i64))
row("FM:select_scatter", lambda m: A(m.t(4, 6), m.t(6), 0, 1), lambda m: A(m.t(4, 5, 6), m.t(4, 6), 1, -2), lambda m: A(m.t(6, 4).t(), m.t(4), 1, 3), lambda m: A(m.t(4, 6), m.t(6), 0, 4), kernels=3)
row("FM:slice_scatter", lambda m: A(m.t(4, 6), m.t(2, 6), 0, 1, 3), lambda m: A(m.t(4, 6), m.t(4, 3), 1, step=2), lambda m: A(m.t(4, 6), m.t(4, 2), -1, -2), lambda m: A(m.t(4, 6), m.t(0, 6), 0, 3, 1), lambda m: A(m.t(4, 6), m.t(3, 6), 0, 1, 3), kernels=4)
row("FM:diagonal_scatter", lambda m: A(m.t(4, 6), m.t(4)), lambda m: A(m.t(4, 6), m.t(3), -1), lambda m: A(m.t(4, 5, 6), m.t(5, 4), 2, 0, 2), kernels=3)

# ---- products --------------------------------------------------------------------------------------------------------------
PRODUCT = {"dtypes": FLOATS + (i64, i32), "ulp": 16, "norm": True}
row("N:linear P:linear", lambda m: A(m.x(3, 17), m.x(5, 17), m.x(5)), lambda m: A(m.x(2, 3, 17), m.x(5, 17)), lambda m: A(m.x(17), m.x(5, 17), m.x(5)), lambda m: A(m.x(17, 3).t(), m.x(17, 5).t(), m.x(5)),
    lambda m: A(m.x(0, 17), m.x(5, 17), m.x(5)), lambda m: A(m.x(3, 0), m.x(5, 0), m.x(5)), lambda m: A(m.x(3, 4, 34)[..., ::2], m.x(5, 17), None), lambda m: A(m.t(3, 25), m.x(4, 25), m.x(4)),
    lambda m: A(m.x(3, 4), m.x(5, 6)), lambda m: A(m.x(3, 4), m.x(5, 4, dtype=m.other())), lambda m: A(m.x(3, 4), m.x(5, 4), m.x(1)), **PRODUCT)
row("FM:matmul M:__matmul__ O:matmul", *(lambda m, a=a, b=b: A(m.x(*a), m.x(*b)) for a, b in (((4, 6), (6, 5)), ((6,), (6,)), ((6,), (6, 5)), ((4, 6), (6,)), ((2, 4, 6), (6, 5)), ((2, 4, 6), (2, 6, 5)),
    ((2, 1, 4, 6), (3, 6, 5)), ((4, 0), (0, 5)), ((0, 4), (4, 5)), ((1, 1), (1, 1)), ((33, 65), (65, 17)))), lambda m: A(m.x(6, 4).t(), m.x(5, 6).t()), lambda m: A(m.x(2, 3, 4, 6), m.x(2, 3, 7, 6).transpose(-1, -2)),
    lambda m: A(m.x(4, 1, 6).expand(4, 3, 6), m.x(6, 5)), lambda m: A(m.t(5, 5), m.x(5, 5)), lambda m: A(m.x(3, 4), m.x(3, 4)), lambda m: A(m.x(), m.x(3)), **PRODUCT)
row("FM:mm", lambda m: A(m.x(4, 6), m.x(6, 5)), lambda m: A(m.x(6, 4).t(), m.x(5, 6).t()), lambda m: A(m.x(4, 0), m.x(0, 5)), lambda m: A(m.x(4, 6), m.x(5, 6)), lambda m: A(m.x(6), m.x(6)), **PRODUCT)
row("FM:bmm", lambda m: A(m.x(3, 4, 6), m.x(3, 6, 5)), lambda m: A(m.x(3, 6, 4).mT, m.x(1, 6, 5).expand(3, 6, 5)), lambda m: A(m.x(0, 4, 6), m.x(0, 6, 5)), lambda m: A(m.x(2, 4, 6), m.x(3, 6, 5)), **PRODUCT)
row("FM:addmm", lambda m: A(m.x(5), m.x(4, 6), m.x(6, 5)), lambda m: A(m.x(4, 5), m.x(4, 6), m.x(6, 5), beta=0, alpha=2), lambda m: A(m.x(4, 1), m.x(4, 6), m.x(5, 6).t()), lambda m: A(m.x(), m.x(4, 6), m.x(6, 5), alpha=0.5),
    lambda m: A(m.x(5), m.x(4, 0), m.x(0, 5)), lambda m: A(m.x(4), m.x(4, 6), m.x(6, 5)), **PRODUCT)
row("FM:baddbmm FM:addbmm", lambda m: A(m.x(5), m.x(3, 4, 6), m.x(3, 6, 5)), lambda m: A(m.x(4, 5), m.x(3, 4, 6), m.x(3, 6, 5), beta=0.5, alpha=2), **PRODUCT)
SCALES = ({}, {"beta": 0.5, "alpha": 2}, {"beta": 0}, {"beta": 0, "alpha": -0.5}, {"alpha": 3}, {"beta": 2.5}, {"beta": 1, "alpha": 1.0})
SCALES_OTHER = ({"alpha": 0}, {"beta": 0, "alpha": 0})
for name, *shapes in (("addmm", (4, 5), (4, 6), (6, 5)), ("addmm", (5,), (1, 6), (6, 5)), ("baddbmm", (3, 4, 5), (3, 4, 6), (3, 6, 5)), ("baddbmm", (4, 1), (3, 4, 6), (3, 6, 5)), ("addbmm", (4, 5), (3, 4, 6), (3, 6, 5)),
                      ("addbmm", (), (3, 4, 6), (3, 6, 5)), ("addmv", (4,), (4, 6), (6,)), ("addmv", (), (4, 6), (6,)), ("addr", (4, 5), (4,), (5,)), ("addr", (5,), (4,), (5,))):  # fmt: skip
    row(f"FM:{name}", *(lambda m, k=k, s=shapes: (tuple(m.x(*shape) for shape in s), dict(k)) for k in SCALES + SCALES_OTHER),
        lambda m, s=shapes: A(*(m.x(*shape[::-1]).permute(*range(len(shape))[::-1]) for shape in s), alpha=2), lambda m, s=shapes: A(m.x(9), *(m.x(*shape) for shape in s[1:])), **PRODUCT, kernels=len(SCALES))  # fmt: skip
row("FM:baddbmm FM:addbmm", lambda m: A(m.x(5), m.x(0, 4, 6), m.x(0, 6, 5)), lambda m: A(m.x(5), m.x(2, 4, 0), m.x(2, 0, 5), beta=2), lambda m: A(m.x(4, 5), m.x(2, 4, 6), m.x(2, 6, 5), beta=True), **PRODUCT)
row("FM:mv", lambda m: A(m.x(4, 6), m.x(6)), lambda m: A(m.x(6, 4).t(), m.x(6)), lambda m: A(m.x(0, 6), m.x(6)), lambda m: A(m.x(4, 0), m.x(0)), lambda m: A(m.x(4, 6), m.x(4)), **PRODUCT)
row("L:vecdot", lambda m: A(m.x(4, 6), m.x(4, 6)), lambda m: A(m.x(4, 6), m.x(4, 6), dim=0), lambda m: A(m.x(4, 6), m.x(6)), **PRODUCT)
row("L:vecdot", lambda m: A(m.x(40, 2), m.x(40, 2)), dtypes=(f16, bf16), ulp=0)
row("FM:dist", lambda m: A(m.x(4, 6), m.x(4, 6)), lambda m: A(m.x(4, 6), m.x(6), 1), lambda m: A(m.x(4, 6), m.x(6), 2), dtypes=FLOATS, **SUMS)
row("F:pairwise_distance P:pairwise_distance", lambda m: A(m.x(4, 6), m.x(4, 6), 1.0), lambda m: A(m.x(4, 6), m.x(4, 6)), lambda m: A(m.x(4, 6), m.x(4, 6), keepdim=True), lambda m: A(m.x(4, 6), m.x(6), 1.0), lambda m: A(m.x(6), m.x(6), eps=0.1), dtypes=FLOATS, ulp=64, norm=True)
row("F:cosine_similarity P:cosine_similarity", lambda m: A(m.x(4, 6), m.x(4, 6)), lambda m: A(m.x(4, 6), m.x(4, 6), dim=0), lambda m: A(m.x(3, 4, 6), m.x(3, 4, 6), -1), lambda m: A(m.x(4, 1, 6), m.x(1, 5, 6), -1), lambda m: A(m.x(4, 6), m.x(4, 6), 1, 0.5), lambda m: A(torch.zeros(3, 4), m.x(3, 4)), dtypes=FLOATS, ulp=64, norm=True)
row("FM:addmv", lambda m: A(m.x(4), m.x(4, 6), m.x(6)), **PRODUCT)
row("FM:dot FM:outer FM:ger FM:inner FM:vdot", lambda m: A(m.x(6), m.x(6)), lambda m: A(m.x(12)[::2], m.x(6)),  lambda m: A(m.x(6), m.x(5)), **PRODUCT)
row("F:tensordot F:kron", lambda m: A(m.x(3, 4), m.x(3, 4)), **PRODUCT)
row("F:tensordot", *(lambda m, d=d, s=s: A(m.x(*s[0]), m.x(*s[1]), d) for d, s in ((1, ((3, 4), (4, 5))), (2, ((2, 3, 4), (3, 4, 5))), (([1, 0], [0, 1]), ((3, 4, 5), (4, 3, 2))), (([0, 2], [1, -1]), ((3, 4, 5), (4, 3, 5))),
    (0, ((2, 3), (4,))), (([0], [0]), ((6,), (6,))), (1, ((3, 0), (0, 5))), (1, ((3, 4), (5, 4))), (([0, 0], [0, 1]), ((3, 3), (3, 3))))), lambda m: A(m.x(4, 3).t(), m.x(5, 4).t(), 1), kernels=6, **PRODUCT)
row("FM:inner", *(lambda m, s=s: A(m.x(*s[0]), m.x(*s[1])) for s in (((3, 4), (5, 4)), ((2, 3, 4), (5, 4)), ((4,), (5, 4)), ((4,), (4,)), ((), (4,)), ((3, 0), (2, 0)), ((3, 4), (5, 3)))), kernels=4, **PRODUCT)
EINSUMS = (
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("ij,jk->ki", (3, 4), (4, 5)), ("ij,kj->ik", (3, 4), (5, 4)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)), ("bhqk,bkhd->bqhd", (2, 3, 4, 6), (2, 6, 3, 5)), ("bct,bcs->bts", (2, 3, 4), (2, 3, 5)), ("bts,bcs->bct", (2, 4, 5), (2, 3, 5)),
    ("btd,hd->bth", (2, 3, 4), (5, 4)), ("btd,dnh->bnth", (2, 3, 6), (6, 4, 5)), ("btnh,nhd->btd", (2, 3, 4, 5), (4, 5, 6)), ("bhqd,hdk->bhqk", (2, 3, 20, 5), (3, 5, 6)), ("bhqd,hdk->bhqk", (2, 3, 4, 5), (3, 5, 6)), ("bhd,hdk->bhk", (2, 3, 5), (3, 5, 6)),
    ("nctv,vw->nctw", (2, 3, 4, 5), (5, 5)), ("ncts,kst->nckt", (2, 3, 4, 5), (6, 5, 4)), ("abcd,dcef->afeb", (2, 3, 4, 5), (5, 4, 6, 7)), ("abcd,efcd->aebf", (2, 3, 4, 5), (6, 7, 4, 5)), ("abc,cd->dab", (2, 3, 4), (4, 5)),
    ("i,j->ij", (3,), (4,)), ("ab,cd->acbd", (2, 3), (4, 5)), ("ij,ij->ij", (3, 4), (3, 4)), ("ij,k->ij", (3, 4), (5,)), ("i,i->", (5,), (5,)), ("ij,ij->", (3, 4), (3, 4)), ("ij,ij->j", (3, 4), (3, 4)), ("bij,bj->b", (2, 3, 4), (2, 4)), ("bij,bj->bi", (2, 3, 4), (2, 4)),
    ("ij,i->j", (3, 4), (3,)), ("i,ij->j", (3,), (3, 4)), ("ij,j->i", (3, 4), (4,)), ("ij,jk->", (3, 4), (4, 5)), ("ij,jk->k", (3, 4), (4, 5)), ("...ij,...jk->...ik", (2, 3, 4), (1, 4, 5)), ("...ij,jk->...ik", (2, 3, 3, 4), (4, 5)), ("i...,i->...", (3, 4, 5), (3,)),
    ("ij...,jk...->ik...", (2, 3, 7), (3, 4, 7)), ("...,...->...", (3, 4), (4,)), ("bid,bjd->bij", (1, 4, 5), (2, 6, 5)), ("bid,bjd->bij", (2, 4, 1), (2, 6, 1)), ("iij,jk->ik", (3, 3, 4), (4, 5)), (" i j , j k -> i k ", (3, 4), (4, 5)), ("aB,Bc", (2, 3), (3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("bn,anm,bm->ba", (3, 4), (6, 4, 5), (3, 5)), ("bi,bj,bk->bijk", (2, 3), (2, 4), (2, 5)), ("ij,jk,kl,lm->im", (2, 9), (9, 3), (3, 8), (8, 2)), ("ij->", (3, 4)), ("ij->j", (3, 4)), ("ijk->ki", (3, 4, 5)), ("ii", (4, 4)), ("iij->j", (3, 3, 4)),
)  # fmt: skip
EINSUMS_OTHER = (  # views, nothing in them, of numbers, refused
    ("ii->i", (4, 4)), ("ij->ji", (3, 4)), ("...ij->...ji", (2, 3, 4)), ("ij->i", (3, 1)), ("ij,jk->ik", (0, 3), (3, 4)), ("ij,jk->ik", (2, 0), (0, 4)), ("i,->i", (3,), ()), (",", (), ()), ("ij,jk->ik", (3, 4), (5, 4)), ("ij,jk", (3, 4)),
    ("ij->k", (3, 4)), ("i.j->ij", (3, 4)), ("ij", (3, 4, 5)), ("ij,ij,ij,ij,ij,ij->i",) + ((3, 4),) * 6, ("abcdefgh,h->abcdefg", (2,) * 8, (2,)), ("i1->i", (3, 4)), ("ij->jj", (3, 3)),
)  # fmt: skip
row("F:einsum", *(lambda m, e=e, s=s: A(e, *(m.x(*shape) for shape in s)) for e, *s in EINSUMS + EINSUMS_OTHER), kernels=len(EINSUMS), **PRODUCT)
row("F:einsum", *(lambda m, e=e, s=s: A(e, *(m.x(*shape[::-1]).permute(*range(len(shape))[::-1]) for shape in s)) for e, *s in EINSUMS), lambda m: A("nchw,nkhw->nhwck", cl(m.x(2, 3, 4, 5)), cl(m.x(2, 6, 4, 5))), kernels=len(EINSUMS), **PRODUCT)
row("F:einsum", lambda m: A(m.x(3, 4), [0, 1], m.x(4, 5), [1, 2]), lambda m: A(m.x(3, 4), [0, 1], m.x(4, 5), [1, 2], [2, 0]), lambda m: A(m.x(2, 3, 4), [..., 27, 1], m.x(4, 5), [1, 30], [..., 30, 27]), lambda m: A("ij,jk", [m.x(3, 4), m.x(4, 5)]), lambda m: A(m.x(3, 4), [0, 60]), kernels=4, **PRODUCT)
row("F:einsum", lambda m: A("ij,jk->ik", m.t(5, 6), m.t(6, 7)), lambda m: A("ij,j->i", m.t(5, 6), m.t(6)), lambda m: A("ij,ik->ijk", m.t(5, 6), m.t(5, 7)), lambda m: A("ij,jk->ik", m.x(3, 4), m.x(4, 5, dtype=m.other())), dtypes=FLOATS[:2], ulp=16, norm=True, kernels=3)
row("V:einsum", lambda m: A("ij->j", (m.x(3, 4),)), lambda m: A("ij,jk->ik", (m.x(3, 4), m.x(4, 5))), lambda m: A("ij,jk,kl->il", (m.x(3, 4), m.x(4, 5), m.x(5, 2)), path=[0, 1, 0, 1]), lambda m: A("ij->ji", [m.x(3, 4)], path=[]), kernels=3, **PRODUCT)
row("V:tensordot", lambda m: A(m.x(3, 4), m.x(4, 5), [1], [0]), lambda m: A(m.x(3, 4), m.x(3, 4), (0, -1), (0, 1)), kernels=2, **PRODUCT)
for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
    row(f"F:{name}", *(
        lambda m, g=gates, two=name == "lstm", first=first: A(
            m.x(3, 2, 5), (m.x(1, 3 if first else 2, 4),) * 2 if two else m.x(1, 3 if first else 2, 4),
            [m.x(4 * g, 5), m.x(4 * g, 4), m.x(4 * g), m.x(4 * g)], True, 1, 0.0, False, False, first)
        for first in (False, True)), dtypes=FLOATS[:2], ulp=256, norm=True)  # fmt: skip
row("P:bilinear", lambda m: A(m.x(3, 4), m.x(3, 5), m.x(2, 4, 5), m.x(2)), dtypes=FLOATS[:2], **SUMS)
row("L:multi_dot", *(lambda m, s=s: A([m.x(*shape) for shape in s]) for s in (((2, 3), (3, 4), (4, 2)), ((2, 30), (30, 4)), ((3,), (3, 4), (4,)), ((20, 3), (3, 40), (40, 2), (2, 5)), ((3,), (3, 4), (4, 2), (2, 9)), ((2, 3), (4, 5)), ((2, 3),))), lambda m: A([m.x(3, 2).t(), m.x(3, 4), m.x(2, 4).t()]),
    dtypes=FLOATS[:2], kernels=5, **SUMS)
row("F:cdist", lambda m: A(m.x(4, 5), m.x(3, 5)), lambda m: A(m.x(2, 4, 5), m.x(2, 3, 5), 1.0), dtypes=FLOATS[:2], ulp=256, norm=True)
row("F:_native_multi_head_attention", lambda m: (lambda x: A(x, x, x, 8, 2, m.x(24, 8), m.x(24), m.x(8, 8), m.x(8), None, False))(m.x(2, 3, 8)), lambda m: A(m.x(2, 3, 8), m.x(2, 3, 8), m.x(2, 3, 8), 8, 2, m.x(24, 8), m.x(24), m.x(8, 8), m.x(8)), dtypes=(f32,), ulp=64, norm=True)
row("F:_transformer_encoder_layer_fwd", *(lambda m, g=g, n=n: A(m.x(2, 3, 8), 8, 2, m.x(24, 8), m.x(24), m.x(8, 8), m.x(8), g, n, 1e-5, m.x(8), m.x(8), m.x(8), m.x(8), m.x(12, 8), m.x(12), m.x(8, 12), m.x(8)) for g in (False, True) for n in (False, True)), dtypes=(f32,), ulp=64, norm=True)
row("P:scaled_dot_product_attention N:scaled_dot_product_attention", lambda m: A(m.x(2, 3, 7, 8), m.x(2, 3, 9, 8), m.x(2, 3, 9, 8)), lambda m: A(m.x(2, 3, 7, 8), m.x(2, 3, 7, 8), m.x(2, 3, 7, 8), is_causal=True),
    lambda m: A(m.x(2, 7, 3, 8).transpose(1, 2), m.x(2, 9, 3, 8).transpose(1, 2), m.x(2, 9, 3, 8).transpose(1, 2), m.mask(7, 9) | torch.eye(7, 9).bool()),
    lambda m: A(m.x(2, 3, 7, 8), m.x(2, 3, 9, 8), m.x(2, 3, 9, 8), attn_mask=m.x(2, 1, 7, 9), scale=0.3), lambda m: A(m.x(7, 8), m.x(9, 8), m.x(9, 5)), lambda m: A(m.x(2, 4, 7, 8), m.x(2, 2, 9, 8), m.x(2, 2, 9, 8), enable_gqa=True),
    lambda m: A(m.x(2, 3, 7, 8), m.x(2, 3, 9, 8), m.x(2, 3, 9, 8), torch.zeros(7, 9).bool()), lambda m: A(m.x(2, 3, 7, 8), m.x(2, 3, 9, 7), m.x(2, 3, 9, 8)), dtypes=FLOATS, ulp=32, norm=True)

# ---- convolution, pooling, resampling --------------------------------------------------------------------------------------
CONV = {"dtypes": FLOATS, "ulp": 32, "norm": True}
row("F:conv2d P:conv2d", lambda m: A(m.x(2, 4, 9, 8), m.x(6, 4, 3, 3), m.x(6)), lambda m: A(m.x(2, 4, 9, 8), m.x(6, 4, 3, 3), None, 2, 1), lambda m: A(m.x(2, 4, 9, 8), m.x(8, 1, 3, 3), m.x(8), 1, 1, 1, 4),
    lambda m: A(cl(m.x(2, 4, 9, 8)), m.x(6, 4, 3, 3), m.x(6), (1, 2), (1, 0), (2, 1)), lambda m: A(cl(m.x(2, 4, 9, 8)), cl(m.x(6, 2, 1, 1)), m.x(6), groups=2), lambda m: A(m.x(4, 9, 8), m.x(6, 4, 3, 2)),
    lambda m: A(m.x(2, 4, 9, 8), m.x(6, 4, 3, 3), m.x(6), 1, "same"), lambda m: A(m.x(0, 4, 9, 8), m.x(6, 4, 3, 3)), lambda m: A(m.x(2, 4, 18, 8)[:, :, ::2], m.x(6, 4, 3, 3)), lambda m: A(m.x(1, 3, 16, 16), m.x(17, 3, 7, 7), m.x(17), 2, 3),
    lambda m: A(m.x(2, 4, 9, 8), m.x(6, 3, 3, 3)), lambda m: A(m.x(2, 4, 2, 2), m.x(6, 4, 3, 3)), lambda m: A(m.x(2, 4, 9, 8), m.x(6, 4, 3, 3), m.x(5)), **CONV)
row("F:conv1d P:conv1d", lambda m: A(m.x(2, 4, 19), m.x(6, 4, 3), m.x(6)), lambda m: A(m.x(2, 4, 19), m.x(4, 1, 5), None, 2, 2, 2, 4), lambda m: A(m.x(4, 19), m.x(6, 4, 3), padding="valid"), lambda m: A(m.x(2, 19, 4).transpose(1, 2), m.x(6, 4, 1)), **CONV)
row("F:conv3d P:conv3d", lambda m: A(m.x(1, 3, 5, 6, 7), m.x(4, 3, 3, 3, 3), m.x(4)), lambda m: A(cl(m.x(1, 3, 5, 6, 7)), m.x(6, 1, 2, 3, 1), None, 2, 1, 1, 3), **CONV)
row("F:conv_transpose1d P:conv_transpose1d", lambda m: A(m.x(2, 4, 9), m.x(4, 6, 3), m.x(6)), lambda m: A(m.x(2, 4, 9), m.x(4, 3, 3), None, 2, 1, 1, 2), **CONV)
row("F:conv_transpose2d P:conv_transpose2d", lambda m: A(m.x(2, 4, 5, 6), m.x(4, 6, 3, 3), m.x(6)), lambda m: A(m.x(2, 4, 5, 6), m.x(4, 3, 3, 2), m.x(6), 2, 1, 1, 2, 1), lambda m: A(cl(m.x(2, 4, 5, 6)), m.x(4, 6, 2, 2), None, 2), **CONV)
row("F:conv_transpose3d P:conv_transpose3d", lambda m: A(m.x(1, 3, 4, 4, 3), m.x(3, 2, 2, 2, 2), m.x(2), 2), **CONV)
POOL = {"dtypes": FLOATS, "ulp": 16, "norm": True}
row("P:max_pool2d F:max_pool2d", lambda m: A(m.t(2, 4, 9, 8), 2), lambda m: A(m.t(2, 4, 9, 8), 3, 2, 1), lambda m: A(cl(m.t(2, 4, 9, 8)), (3, 2), (1, 2), (1, 0), 2, True), lambda m: A(m.t(4, 9, 8), 2), lambda m: A(m.x(2, 4, 9, 8), 2, 2, 2), lambda m: A(cl(m.t(1, 70, 7, 6)), 3, 2, 1), lambda m: A(cl(m.t(1, 3, 9, 40)), 2), lambda m: A(cl(m.t(2, 11, 5, 40)), 3, 1, 1), lambda m: A(m.x(2, 4), 2), dtypes=FLOATS)
row("P:max_pool1d F:max_pool1d", lambda m: A(m.t(2, 4, 9), 2), lambda m: A(m.t(4, 9), 3, 1, 1), dtypes=FLOATS)
row("P:max_pool3d F:max_pool3d", lambda m: A(m.t(1, 2, 5, 4, 6), 2), dtypes=FLOATS[:2])
row("P:max_pool2d", lambda m: A(m.x(2, 4, 9, 8), 2, return_indices=True), dtypes=FLOATS[:2])
row("N:avg_pool2d P:avg_pool2d", lambda m: A(m.x(2, 4, 9, 8), 2), lambda m: A(cl(m.x(2, 4, 9, 8)), 3, 2, 1), lambda m: A(m.x(2, 4, 9, 8), (2, 3), 2, (1, 1), True, False), lambda m: A(m.x(4, 9, 8), 2, divisor_override=3), lambda m: A(cl(m.x(1, 70, 7, 6)), 3, 2, 1), lambda m: A(cl(m.x(1, 3, 9, 40)), 2), lambda m: A(cl(m.x(2, 11, 5, 40)), 3, 1, 1), **POOL)
row("P:avg_pool1d F:avg_pool1d", lambda m: A(m.x(2, 4, 9), 2), lambda m: A(m.x(4, 9), 3, 1, 1), **POOL)
row("N:avg_pool3d P:avg_pool3d", lambda m: A(m.x(1, 2, 5, 4, 6), 2), **POOL)
row("N:adaptive_avg_pool2d P:adaptive_avg_pool2d", lambda m: A(m.x(2, 4, 9, 8), (1, 1)), lambda m: A(m.x(2, 4, 9, 8), (3, 5)), lambda m: A(cl(m.x(2, 4, 9, 8)), (1, 1)), lambda m: A(cl(m.x(2, 4, 9, 8)), (2, 3)), lambda m: A(m.x(4, 9, 8), (1, 8)), lambda m: A(cl(m.x(1, 70, 7, 6)), (2, 5)), lambda m: A(cl(m.x(2, 3, 9, 40)), (4, 20)), lambda m: A(m.x(2, 24, 7, 7), 1), **POOL)
row("P:adaptive_avg_pool1d F:adaptive_avg_pool1d", lambda m: A(m.x(2, 4, 9), 1), lambda m: A(m.x(2, 4, 9), 4), lambda m: A(m.x(1, 1, 200003), 16000), **POOL)
row("N:adaptive_avg_pool3d P:adaptive_avg_pool3d", lambda m: A(m.x(1, 2, 5, 4, 6), 2), **POOL)
row("P:adaptive_max_pool1d", lambda m: A(m.x(2, 4, 9), 4), dtypes=FLOATS[:2])
row("P:adaptive_max_pool2d", lambda m: A(m.x(2, 4, 9, 8), 3), lambda m: A(m.t(2, 24, 7, 7), 1), lambda m: A(m.x(2, 4, 9, 8), (2, None), True), dtypes=FLOATS[:2])
row("N:max_pool2d_with_indices", lambda m: A(m.t(2, 4, 9, 8), 2), lambda m: A(m.t(2, 4, 9, 8), 3, 2, 1), lambda m: A(cl(m.t(2, 4, 9, 8)), (3, 2), (1, 2), (1, 0), 2, True), lambda m: A(m.t(2, 4, 9, 16)[..., ::2], 2), lambda m: A(m.t(2, 4, 9, 8).fill_(-inf), 2, 2, 1), lambda m: A(m.idx(2, 2, 4, 9, 8).to(m.dtype), 3),
    lambda m: A(m.t(4, 9, 8), 2), lambda m: A(m.t(0, 4, 9, 8), 2), lambda m: A(m.x(2, 4, 9, 8), 2, 2, 2), kernels=6, dtypes=FLOATS)
row("F:max_pool1d_with_indices", lambda m: A(m.t(2, 4, 19), 2), lambda m: A(m.t(2, 4, 19), 3, 1, 1, 2), lambda m: A(m.t(4, 9), 2), kernels=2, dtypes=FLOATS)
row("N:max_pool3d_with_indices", lambda m: A(m.t(1, 2, 5, 4, 6), 2), lambda m: A(cl(m.t(1, 2, 5, 4, 6)), 3, 2, 1), kernels=2, dtypes=FLOATS[:2])
row("F:adaptive_max_pool1d", lambda m: A(m.t(2, 4, 19), 4), lambda m: A(m.t(2, 4, 19), 1), *(lambda m, n=n, o=o: A(m.t(3, 5, n).round(), o) for n, o in ((14, 1), (16, 1), (33, 1), (100, 2))), lambda m: A(m.x(3, 5, 40) * 0 - inf, 1), lambda m: A(m.t(2, 4, 5), 7), lambda m: A(m.t(4, 9), 2), lambda m: A(m.t(2, 4, 9), (2, 3)), kernels=8, dtypes=FLOATS[:2])
row("N:adaptive_max_pool2d", lambda m: A(m.t(2, 4, 9, 8), (1, 1)), lambda m: A(m.t(2, 4, 9, 40).round(), (1, 1)), lambda m: A(m.t(2, 4, 9, 8), (3, 5)), lambda m: A(cl(m.t(2, 4, 9, 8)), (2, 3)), lambda m: A(m.t(2, 4, 9, 16)[..., ::2], (4, 4)), lambda m: A(m.t(4, 9, 8), (1, 8)), lambda m: A(m.t(2, 4, 9, 8), (0, 2)), lambda m: A(m.t(2, 4, 9, 40)[..., 3:].round(), (2, 1)), kernels=5, dtypes=FLOATS[:2])
BESIDE_ROWS = tuple(lambda m, k=k, o=o: A(m.t(4, 4, 9), k, *o) for k in ((1, 2), (1, 3), (2, 1)) for o in ((), (1,), ((1, 2), (0, k[1] // 2))))  # of images without a batch, whose heights stay
IMAGE = tuple(lambda m, o=o: A(m.t(4, 4, 9), o) for o in ((4, 1), (4, 2), (None, 3), (1, 1), (4, 9)))
VOLUME = tuple(lambda m, o=o: A(m.t(4, 4, 4, 9), o) for o in ((4, 4, 1), (1, 1, 1), (None, 2, 2)))
row("P:max_pool2d", *BESIDE_ROWS, kernels=9, dtypes=FLOATS[:2])
row("N:avg_pool2d", *BESIDE_ROWS, kernels=9, **POOL)
row("N:adaptive_max_pool2d", *IMAGE, dtypes=FLOATS[:2])
row("N:adaptive_avg_pool2d", *IMAGE, **POOL)
row("N:adaptive_max_pool3d", *VOLUME, dtypes=FLOATS[:2])
row("N:adaptive_avg_pool3d", *VOLUME, **POOL)
row("N:adaptive_max_pool3d", lambda m: A(m.t(1, 2, 5, 4, 6), (2, 2, 2)), lambda m: A(cl(m.t(1, 2, 5, 4, 6)), (2, 3, 1)), kernels=2, dtypes=FLOATS[:2])
row("P:adaptive_max_pool2d P:max_pool2d", lambda m: A(m.t(2, 4, 9, 8), 2), kernels=1, dtypes=FLOATS[:2])
row("P:lp_pool2d", lambda m: A(m.x(2, 4, 8, 8).abs(), 2, 2), dtypes=FLOATS[:2], **SUMS)
row("P:interpolate", lambda m: A(m.x(1, 3, 5, 4), scale_factor=2), lambda m: A(m.x(1, 3, 5, 4), (7, 9), mode="bilinear", align_corners=False), lambda m: A(cl(m.x(1, 3, 5, 4)), scale_factor=2.0, mode="nearest"), lambda m: A(m.x(1, 3, 5), 8, mode="linear"),
    lambda m: A(m.x(1, 3, 5, 4), (8, 8), mode="bicubic", align_corners=True), lambda m: A(m.x(1, 3, 8, 8), (4, 4), mode="area"), lambda m: A(m.x(1, 3, 8, 8), (4, 4), mode="bilinear", antialias=True), lambda m: A(m.x(1, 3, 5, 4)), **POOL)
row("N:upsample_nearest1d", lambda m: A(m.x(1, 3, 5), None, (2.0,)), lambda m: A(m.x(1, 3, 5), [10], None), lambda m: A(m.x(1, 3, 5), [7], None), lambda m: A(m.x(1, 3, 5), None, (2.3,)), dtypes=FLOATS)
row("N:upsample_nearest2d", lambda m: A(m.x(2, 3, 5, 4), None, (2.0, 4.0)), lambda m: A(m.x(2, 3, 5, 4), [15, 4], None), lambda m: A(cl(m.x(2, 3, 5, 4)), None, (2.0, 2.0)), lambda m: A(m.x(1, 3, 5, 4), (10, 9), (2.0, 2.3)), lambda m: A(m.x(2, 3, 5, 4)[:, :, ::2], (6, 8), None), lambda m: A(m.x(2, 3, 5, 4), None, (3.0, 5.0)), dtypes=FLOATS)
row("N:upsample_nearest3d", lambda m: A(m.x(1, 3, 2, 5, 4), None, (2.0, 2.0, 2.0)), lambda m: A(cl(m.x(1, 3, 2, 5, 4)), [2, 10, 12], None), dtypes=FLOATS)
def resampled(*shape, corners=False):
    """By factors and to sizes, larger and smaller, and as it was: each as a kernel. Then other layouts, and what eager refuses."""
    n, flags = len(shape) - 2, ((True,), (False,)) if corners else ((),)
    return (
        *(lambda m, f=f, a=a: A(m.x(*shape), None, *a, [float(v) for v in f[:n]]) for f in ((2, 3, 2), (1.7, 0.5, 1), (2.3, 2.3, 0.4)) for a in flags),
        *(lambda m, s=s, a=a: A(m.x(*shape), list(s[:n]), *a, None) for s in ((7, 9, 2), shape[2:], (1, 1, 1)) for a in flags),
        lambda m: A(m.t(*shape[:-1], 2 * shape[-1])[..., ::2], [6, 8, 5][:n], *flags[0], None),
        lambda m: A(cl(m.t(*shape)) if n > 1 else m.t(*shape).mT.contiguous().mT, [6, 8, 5][:n], *flags[-1], None),
        lambda m: A(m.x(*shape), [0, 8, 5][:n], *flags[0], None),
        lambda m: A(m.x(*shape), [6, 8, 5, 1][: n + 1], *flags[0], None),
        lambda m: A(m.x(*shape[1:]), [6, 8, 5][:n], *flags[0], None),
    )


row("N:upsample_linear1d", *resampled(2, 3, 5, corners=True), kernels=14, **POOL)
row("N:upsample_bilinear2d", *resampled(2, 3, 5, 4, corners=True), kernels=14, **POOL)
row("N:upsample_trilinear3d", *resampled(2, 3, 4, 5, 3, corners=True), kernels=14, **POOL)
row("N:upsample_bicubic2d", *resampled(2, 3, 5, 4, corners=True), kernels=14, **POOL)
row("N:_upsample_nearest_exact1d N:upsample_nearest1d", *resampled(2, 3, 5), kernels=8, dtypes=FLOATS)
row("N:_upsample_nearest_exact2d N:upsample_nearest2d", *resampled(2, 3, 5, 4), kernels=8, dtypes=FLOATS)
row("N:_upsample_nearest_exact3d N:upsample_nearest3d", *resampled(2, 3, 4, 5, 3), kernels=8, dtypes=FLOATS)
row("P:interpolate", *(lambda m, k=k: A(m.x(2, 17, 5, 4), **k) for k in ({"scale_factor": 1.7, "mode": "bilinear"}, {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}, {"size": 9, "mode": "bicubic", "align_corners": True},
    {"scale_factor": 2.3}, {"size": (9, 3), "mode": "nearest-exact"}, {"size": (3, 2), "mode": "area"})), kernels=6, **POOL)
row("P:interpolate", *(lambda m, s=s, f=f, k=k: A(f(m.x(*s)), scale_factor=k) for k in (1.05, 2.05) for s, f in (((1, 3, 10), torch.clone), ((1, 3, 10, 10), torch.clone), ((1, 1, 10, 200), torch.clone), ((1, 4, 10, 200), cl), ((1, 3, 5, 5, 10), cl), ((1, 4, 5, 5, 10), cl))), dtypes=FLOATS)
row("P:upsample", lambda m: A(m.x(1, 3, 5, 4), scale_factor=2), **POOL)
row("P:grid_sample", lambda m: A(m.x(1, 3, 5, 4), m.x(1, 6, 7, 2), align_corners=False), dtypes=FLOATS[:2], **SUMS)
row("P:affine_grid", lambda m: A(m.x(1, 2, 3), (1, 3, 4, 5), align_corners=False), dtypes=FLOATS[:2], **SUMS)
row("P:unfold", lambda m: A(m.x(1, 3, 5, 4), (2, 2), (1, 1), (0, 0), (1, 1)), dtypes=FLOATS[:2])
row("P:unfold N:im2col", lambda m: A(m.t(2, 3, 5, 6), (2, 2), (1, 1), (0, 0), (1, 1)), lambda m: A(m.t(3, 5, 6), (3, 2), (1, 2), (1, 2), (2, 1)), lambda m: A(cl(m.t(2, 3, 5, 6)), (3, 3), (1, 1), (1, 1), (2, 2)), lambda m: A(m.t(2, 3, 6, 5).transpose(2, 3), (1, 4), (1, 1), (0, 1), (1, 3)),
    lambda m: A(m.t(2, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1)), lambda m: A(m.t(0, 3, 5, 6), (2, 2), (1, 1), (0, 0), (1, 1)), lambda m: A(m.t(2, 3, 5, 6), (7, 2), (1, 1), (0, 0), (1, 1)), lambda m: A(m.t(2, 3, 5, 6), (2, 2), (0, 1), (0, 0), (1, 1)), dtypes=FLOATS, kernels=5)
row("P:fold", lambda m: A(m.x(1, 12, 4), (3, 3), 2), dtypes=FLOATS[:2], **SUMS)

# ---- losses ----------------------------------------------------------------------------------------------------------------
LOSS = {"dtypes": FLOATS, "ulp": 32, "norm": True}


def reductions(*cases):
    return (*cases, *(lambda m, c=c, r=r: (c(m)[0], {**c(m)[1], "reduction": r}) for c in cases[:1] for r in ("none", "sum", "odd")))


row("P:cross_entropy", *reductions(lambda m: A(m.x(6, 9), m.idx(9, 6)), lambda m: A(m.x(2, 9, 4), m.idx(9, 2, 4), label_smoothing=0.1), lambda m: A(m.x(6, 9), m.x(6, 9).softmax(1)), lambda m: A(m.x(6, 9), m.idx(9, 6), m.x(9).abs(), ignore_index=2),
    lambda m: A(m.x(6, 9), m.idx(9, 6) * 0 + 9), lambda m: A(m.x(6, 9), m.idx(9, 5))), **LOSS)
CLASSES = (
    lambda m: A(m.x(6, 9), m.idx(9, 6), None, 1, -100), lambda m: A(m.x(6, 9), m.idx(9, 6), None, 0, 3), lambda m: A(m.x(6, 9), m.idx(9, 6), m.x(9).abs(), 1, 3), lambda m: A(m.x(6, 9), m.idx(9, 6), m.x(9).abs(), 2, -1),
    lambda m: A(m.x(6, 9), torch.where(m.mask(6), m.idx(9, 6), -7), None, 1, -7), lambda m: A(m.x(2, 9, 4, 3), m.idx(9, 2, 4, 3), m.x(9).abs(), 0), lambda m: A(cl(m.x(2, 9, 4, 3)), m.idx(9, 2, 4, 3)), lambda m: A(m.x(9, 6).t(), m.idx(9, 12)[::2]),
    lambda m: A(m.x(9), m.idx(9), None, 1), lambda m: A(m.x(3, 700), m.idx(700, 3), m.x(1400)[::2], 1), lambda m: A(m.x(2, 5, 40), m.idx(5, 2, 40), None, 2, 4), lambda m: A(m.x(2, 1), m.idx(1, 2)),
    lambda m: A(m.t(6, 25), m.idx(25, 6), m.t(25), 0), lambda m: A(m.x(6, 9), m.idx(9, 6) * 0 - 100), lambda m: A(m.x(0, 9), m.idx(9, 0)), lambda m: A(m.x(6, 9), m.idx(9, 6) * 0 - 9), lambda m: A(m.x(6, 9), m.idx(9, 6), m.x(8)), lambda m: A(m.x(6, 9), m.idx(9, 6).to(i32)))
row("N:nll_loss_nd", *CLASSES, kernels=14, **LOSS)
row("N:cross_entropy_loss", *CLASSES, lambda m: A(m.x(6, 9), m.x(6, 9).softmax(1)), kernels=14, **LOSS)
row("N:cross_entropy_loss", *(lambda m, c=c, s=s: (c(m)[0], {"label_smoothing": s}) for c, s in zip(CLASSES[:14], (0.1, 0.5) * 7, strict=True)), lambda m: A(m.x(6, 9), m.idx(9, 6), label_smoothing=1.5), kernels=14, **LOSS)
row("P:nll_loss", *reductions(lambda m: A(m.x(6, 9).log_softmax(1), m.idx(9, 6)), lambda m: A(m.x(2, 9, 4, 3), m.idx(9, 2, 4, 3), m.x(9).abs())), **LOSS)
each("P:mse_loss P:l1_loss P:smooth_l1_loss P:huber_loss", *reductions(lambda m: A(m.x(4, 9), m.x(4, 9)), lambda m: A(m.x(9, 4).t(), m.x(4, 9))), **LOSS)
row("N:mse_loss N:l1_loss N:smooth_l1_loss N:huber_loss N:soft_margin_loss", lambda m: A(m.x(4, 9), m.x(4, 9)), *(lambda m, r=r: A(m.x(4, 9), m.x(4, 9), r) for r in (0, 1, 2)), lambda m: A(m.x(4, 9), m.x(9)), lambda m: A(m.x(0, 9), m.x(0, 9)), **LOSS)
row("N:smooth_l1_loss N:huber_loss", lambda m: A(m.x(4, 9), m.x(4, 9), 1, 0.3), lambda m: A(m.x(4, 9), m.x(4, 9), 2, 1.7), **LOSS)
row("F:binary_cross_entropy_with_logits", *(lambda m, r=r, w=w, p=p: A(m.x(4, 9), m.mask(4, 9).to(m.dtype), m.x(*w).abs() if w else None, m.x(*p).abs() if p else None, r) for r, w, p in ((0, (9,), ()), (1, (4, 1), (9,)), (2, (), (9,)), (1, (9,), ()), (0, (), (4, 9)))), lambda m: A(m.t(4, 25), m.x(4, 25).sigmoid(), None, m.x(25), 0), lambda m: A(m.x(4, 9), m.x(4, 9), m.x(4), None, 1), kernels=6, **LOSS)
row("F:binary_cross_entropy_with_logits F:kl_div", lambda m: A(m.x(4, 9), m.x(4, 9).sigmoid()), lambda m: A(m.x(4, 9), m.x(4, 9).sigmoid(), reduction=0), lambda m: A(m.x(4, 9), m.x(4, 9).sigmoid(), reduction=2), **LOSS)
row("F:kl_div", lambda m: A(m.x(4, 9), m.x(4, 9).sigmoid(), 1), lambda m: A(m.x(4, 9), m.x(4, 9), 0, log_target=True), lambda m: A(m.x(4, 9), m.x(4, 9), 1, log_target=True), lambda m: A(m.x(4, 9), m.x(4, 9), 2, log_target=True), lambda m: A(m.x(4, 9), m.x(4, 9), 0, log_target=False), **LOSS)
row("P:binary_cross_entropy", *reductions(lambda m: A(m.x(4, 9).sigmoid(), m.x(4, 9).sigmoid()), lambda m: A(m.x(4, 9), m.x(4, 9) + 3)), **LOSS)
row("P:binary_cross_entropy_with_logits", *reductions(lambda m: A(m.x(4, 9), m.x(4, 9).sigmoid()), lambda m: A(m.x(4, 9), m.x(4, 9).sigmoid(), pos_weight=m.x(9).abs())), **LOSS)
row("P:kl_div", *reductions(lambda m: A(m.x(4, 9).log_softmax(1), m.x(4, 9).softmax(1)), lambda m: A(m.x(4, 9).log_softmax(1), m.x(4, 9).log_softmax(1), log_target=True)), **LOSS)
row("N:binary_cross_entropy", *(lambda m, r=r, w=w: A(m.x(4, 9).sigmoid(), m.x(4, 9).sigmoid(), m.x(*w).abs() if w else None, r) for r, w in ((0, ()), (1, (4, 9)), (2, (9,)), (1, ()), (0, (4, 1)))), lambda m: A(m.x(9, 4).sigmoid().t(), m.mask(4, 9).to(m.dtype)), lambda m: A(m.mask(30).to(m.dtype), m.mask(30).to(m.dtype), None, 0),
    lambda m: A(m.x(4, 9).sigmoid().log(), m.x(4, 9)), lambda m: A(m.x(4, 9).sigmoid() + 0.9, m.x(4, 9)), lambda m: A(m.t(30) * nan, m.x(30)), lambda m: A(m.x(0, 9), m.x(0, 9)), lambda m: A(m.x(4, 9).sigmoid(), m.x(9)), kernels=7, **LOSS)
row("N:cross_entropy_loss", *(lambda m, w=w, r=r, s=s, sh=sh: A(m.x(*sh), m.x(*sh).softmax(0), m.x(sh[1] if len(sh) > 1 else sh[0]).abs() if w else None, r, -100, s) for w, r, s, sh in ((0, 1, 0.0, (6, 9)), (1, 0, 0.1, (6, 9)), (1, 1, 0.0, (2, 9, 4)), (0, 2, 0.5, (2, 5, 4, 3)), (0, 0, 0.0, (9,)), (1, 1, 0.1, (9,)), (1, 2, 0.0, (6, 9)))),
    lambda m: A(cl(m.x(2, 9, 4, 3)), m.x(2, 9, 4, 3).softmax(1)), lambda m: A(m.x(9, 6).t(), m.x(6, 18)[:, ::2]), lambda m: A(m.x(6, 9), m.x(6, 9), None, 1, 3), lambda m: A(m.x(6, 9), m.x(6, 8)), kernels=9, **LOSS)
PM = (lambda m, *s: m.mask(*s).to(m.dtype) * 2 - 1)
row("F:hinge_embedding_loss", *(lambda m, r=r: A(m.x(4, 9), PM(m, 4, 9), 0.7, r) for r in (0, 1, 2)), lambda m: A(m.t(30), m.x(30).round(), 1.0, 0), lambda m: A(m.x(4, 9), PM(m, 9)), lambda m: A(m.x(9), PM(m, 4, 9)), kernels=5, **LOSS)
row("F:margin_ranking_loss", *(lambda m, r=r: A(m.x(4, 9), m.x(4, 9), PM(m, 4, 9), 0.7, r) for r in (0, 1, 2)), lambda m: A(m.t(30), m.t(30), m.x(30), 0.0, 0), lambda m: A(m.x(4, 9), m.x(4, 9), m.x(9)), lambda m: A(m.x(4, 9), m.x(9), m.x(9)), kernels=4, **LOSS)
row("F:poisson_nll_loss", *(lambda m, r=r, i=i: A(m.x(4, 9).abs() + 0.1, m.x(4, 9).abs(), i, False, 1e-3, r) for r in (0, 1, 2) for i in (True, False)), lambda m: A(m.x(4, 9), m.x(4, 9).abs() * 3, True, True, 1e-8, 1), lambda m: A(m.t(30), m.t(30), True, False, 1e-8, 0), kernels=6, **LOSS)
row("P:poisson_nll_loss P:soft_margin_loss P:hinge_embedding_loss", *reductions(lambda m: A(m.x(4, 9), m.mask(4, 9).to(m.dtype) * 2 - 1)), **LOSS)
row("F:cosine_embedding_loss", *(lambda m, r=r: A(m.x(4, 9), m.x(4, 9), PM(m, 4), 0.1, r) for r in (0, 1, 2)), lambda m: A(m.x(9), m.x(9), PM(m), -0.3, 1), lambda m: A(m.x(4, 18)[:, ::2], m.x(9, 4).t(), m.mask(4).to(i64) * 2 - 1, 0.0, 0), lambda m: A(m.x(40, 33), m.x(40, 33) * 0, m.x(40).round(), 0.1, 0),
    lambda m: A(m.t(5, 40), m.x(5, 40), PM(m, 5), 0.1, 0), lambda m: A(m.x(0, 9), m.x(0, 9), m.x(0), 0.1, 1), lambda m: A(m.x(4, 9), m.x(4, 9), m.x(9), 0.1, 1), lambda m: A(m.x(4, 9), m.x(4, 9), m.x(4, 9), 0.1, 1), lambda m: A(m.x(4, 9), m.x(1, 9), PM(m, 4), 0.1, 1), kernels=7, **LOSS)
row("F:triplet_margin_loss", *(lambda m, p=p, s=s, r=r: A(m.x(4, 9), m.x(4, 9), m.x(4, 9), 1.5, p, 1e-6, s, r) for p, s, r in ((2, False, 1), (2.0, True, 0), (1, True, 2), (1.0, False, 0))), lambda m: A(m.x(9), m.x(9), m.x(9), 1.0, 2, 1e-3, True, 0), lambda m: A(m.x(2, 3, 9), m.x(9, 3, 2).permute(2, 1, 0), m.x(2, 3, 9), 1.0, 2, 1e-6, False, 0),
    lambda m: A(m.t(5, 40), m.x(5, 40), m.x(5, 40), 1.0, 2, 1e-6, False, 0), lambda m: A(m.x(4, 9), m.x(4, 9), m.x(4, 9), 1.0, 3, 1e-6, False, 1), lambda m: A(m.x(4, 9), m.x(1, 9), m.x(4, 9), 1.0, 2, 1e-6, False, 1), lambda m: A(m.x(4, 9), m.x(9), m.x(4, 9), 1.0, 2, 1e-6, False, 1), lambda m: A(m.x(0, 9), m.x(0, 9), m.x(0, 9), 1.0, 2, 1e-6, False, 1), kernels=7, **LOSS)
row("N:multi_margin_loss", *(lambda m, p=p, w=w, r=r: A(m.x(6, 9), m.idx(9, 6), p, 0.7, m.x(9).abs() if w else None, r) for p, w, r in ((1, 0, 1), (2, 0, 0), (1, 1, 2), (2, 1, 0), (1, 0, 0))), lambda m: A(m.x(9), m.idx(9), 1, 1, None, 1), lambda m: A(m.x(9, 600).t(), m.idx(9, 1200)[::2], 2, -0.5, m.x(18)[::2], 1), lambda m: A(m.t(3, 40), m.idx(40, 3), 1, 1.0, None, 0),
    lambda m: A(m.x(6, 9), m.idx(9, 6) + 9, 1, 1, None, 1), lambda m: A(m.x(6, 9), m.idx(9, 6) - 9, 2, 1, None, 1), lambda m: A(m.x(6, 9), m.idx(9, 5), 1, 1, None, 1), lambda m: A(m.x(6, 9), m.idx(9, 6), 3, 1, None, 1), lambda m: A(m.x(6, 9), m.idx(9, 6), 1, 1, m.x(8), 1), lambda m: A(m.x(9), m.idx(9, 1), 1, 1, None, 1), kernels=8, **LOSS)
row("F:poisson_nll_loss", *(lambda m, r=r, i=i: A(m.x(4, 9).abs() + 0.1, m.x(4, 9).abs() * 4, i, True, 1e-3, r) for r in (0, 1, 2) for i in (True, False)), lambda m: A(m.t(30), m.t(30), True, True, 1e-8, 0), kernels=7, **LOSS)
row("P:cosine_embedding_loss", lambda m: A(m.x(4, 9), m.x(4, 9), m.mask(4).to(m.dtype) * 2 - 1), dtypes=FLOATS[:2], **SUMS)
row("P:margin_ranking_loss P:triplet_margin_loss", lambda m: A(m.x(4, 9), m.x(4, 9), m.x(4, 9)), dtypes=FLOATS[:2], **SUMS)
row("P:gaussian_nll_loss", lambda m: A(m.x(4, 9), m.x(4, 9), m.x(4, 9).abs()), dtypes=FLOATS[:2], **SUMS)
# In half precision eager rounds between their steps, and what overflows there is inf.
each("P:soft_margin_loss P:mse_loss P:kl_div P:binary_cross_entropy_with_logits", lambda m: A(m.x(4, 99) * 16, m.x(4, 99).sigmoid(), reduction="none"), dtypes=(f16, bf16), ulp=0)
row("P:binary_cross_entropy_with_logits", lambda m: A(m.x(4, 99) * 16, m.x(4, 99).sigmoid(), m.x(99), pos_weight=m.x(99).abs(), reduction="none"), dtypes=(f16, bf16), ulp=0)
row("P:kl_div", lambda m: A(m.x(4, 99), m.x(4, 99), reduction="none", log_target=True), dtypes=(f16, bf16), ulp=0)
each("P:smooth_l1_loss P:huber_loss", *reductions(lambda m: A(m.x(4, 99), m.x(4, 99))), dtypes=(f16, bf16), ulp=0)
row("P:smooth_l1_loss", lambda m: A(m.x(4, 99), m.x(4, 99), beta=0.7, reduction="none"), dtypes=(f16, bf16), ulp=0)
row("P:huber_loss", lambda m: A(m.x(4, 99), m.x(4, 99), delta=0.7, reduction="none"), dtypes=(f16, bf16), ulp=0)
row("P:margin_ranking_loss", lambda m: A(m.x(4, 99), m.x(4, 99), PM(m, 4, 99), 0.1, reduction="none"), dtypes=(f16, bf16), ulp=0)
row("P:cross_entropy", lambda m: A(m.x(40, 30), m.idx(30, 40), reduction="none"), lambda m: A(m.x(4, 30, 9), m.idx(30, 4, 9), reduction="none"), lambda m: A(m.x(9, 30), m.x(9, 30).softmax(-1), reduction="none"), dtypes=(f16, bf16), ulp=0)
row("P:multilabel_soft_margin_loss", lambda m: A(m.x(4, 9), m.mask(4, 9).to(m.dtype)), dtypes=FLOATS[:2], **SUMS)
row("P:multi_margin_loss", lambda m: A(m.x(4, 9), m.idx(9, 4)), dtypes=FLOATS[:2], **SUMS)

# ---- in place --------------------------------------------------------------------------------------------------------------
INTO = (lambda m: A(m.w(67), m.w(67)), lambda m: A(m.w(3, 7), m.w(7)), lambda m: A(m.w(5, 7).t(), 3), lambda m: A(m.w(4, 33)[:, ::2], m.w(17)), lambda m: A(m.w(9), 0.5), lambda m: A(m.t(9), m.t(9).to(m.other())),
        lambda m: A(cl(m.w(2, 5, 3, 4)), m.w(5, 1, 1)), lambda m: A(m.w(7), m.w(3, 7)), lambda m: A(m.w(3, 1).expand(3, 4), 1), lambda m: A(m.w(0, 3), m.w(3)))
SELF = (lambda m: A(m.x(67)), lambda m: A(m.x(5, 7).t()), lambda m: A(m.x(4, 33)[:, 1::2]), lambda m: A(m.x(3, 1).expand(3, 4)), lambda m: A(cl(m.x(2, 5, 3, 4))), lambda m: A(m.x()))
each("M:add_ M:sub_ M:mul_ O:iadd O:isub O:imul M:eq_ M:lt_ M:ge_ M:copy_", *INTO)
each("M:div_ O:itruediv M:atan2_", *INTO, **NEAR)
each("M:floor_divide_ M:remainder_ O:ifloordiv O:imod M:fmod_", lambda m: A(m.t(67), m.d(67)), lambda m: A(m.t(9), 3))
row("M:pow_ O:ipow", lambda m: A(m.p(67), 2), lambda m: A(m.p(9), m.n(9)), lambda m: A(m.p(9), 0.5), ulp=8)
each("M:bitwise_and_ M:bitwise_or_ M:bitwise_xor_ O:iand O:ior O:ixor M:logical_and_", *INTO, dtypes=INTS)
each("M:neg_ M:abs_ M:sign_ M:floor_ M:ceil_ M:round_ M:trunc_ M:relu_ F:relu_ M:zero_ M:logical_not_ M:nan_to_num_ M:square_", *SELF)
each("M:exp_ M:log1p_ M:sin_ M:tanh_ M:sigmoid_ M:erf_ M:rsqrt_ M:sqrt_ F:exp_ M:reciprocal_", *SELF, **NEAR)
row("M:fill_", *(lambda m, c=c: A(c(m)[0][0], 2) for c in SELF), lambda m: A(m.t(9), torch.tensor(1.5)), lambda m: A(m.t(9), m.t(2)))
row("M:clamp_ M:clip_", lambda m: A(m.t(67), -1, 1), lambda m: A(m.t(5, 7).t(), min=0), lambda m: A(m.t(9), m.t(9), None))
row("M:clamp_min_ M:clamp_max_", *INTO[:3])
row("M:masked_fill_", lambda m: A(m.t(5, 13), m.mask(13), -inf), lambda m: A(m.t(13, 5).t(), m.mask(5, 1), 2))
row("M:masked_scatter_", lambda m: A(m.t(4, 6), m.mask(4, 6), m.t(24)), *PACKED)
row("M:copy_", lambda m: A(m.t(4, 6), m.t(6)), lambda m: A(m.t(6, 4).t(), m.t(4, 6).to(m.other())))
row("M:scatter_reduce_", *REDUCED[:4], **SUMS)
row("M:lerp_ M:addcmul_ M:addcdiv_", lambda m: A(m.t(67), m.t(67), m.d(67)), **NEAR)
row("M:add_ M:sub_", lambda m: A(m.x(9), m.x(9), alpha=2), ulp=1)
row("M:addmm_", lambda m: A(m.x(4, 5), m.x(4, 6), m.x(6, 5)), **PRODUCT)
row("M:baddbmm_", lambda m: A(m.x(2, 4, 5), m.x(2, 4, 6), m.x(2, 6, 5)), **PRODUCT)
row("M:scatter_ M:scatter_add_", lambda m: A(m.x(4, 6), 1, m.idx(6, 4, 1), m.x(4, 1)), lambda m: A(m.x(4), 0, m.idx(4, 3), m.x(3)), **SUMS)
row("M:index_fill_", lambda m: A(m.t(4, 6), 0, m.idx(4, 2), 3))
row("M:index_copy_", lambda m: A(m.t(4, 6), 1, torch.tensor([2, 0]), m.t(4, 2)))
row("M:index_add_", lambda m: A(m.x(4, 6), 1, m.idx(6, 9), m.x(4, 9)), **SUMS)
row("M:index_put_", lambda m: A(m.t(4, 6), (torch.tensor([2, 0]),), m.t(6)), lambda m: A(m.t(4, 6), (m.mask(4, 6),), m.t()))
row("X:setitem", *(lambda m, i=i: A(m.t(4, 6), i, 2) for i in INDEX), lambda m: A(m.t(4, 6), m.mask(4, 6), 0.5), lambda m: A(m.t(4, 6), m.idx(4, 2), m.t(6)), lambda m: A(m.t(4, 6), (slice(None), 1), m.t(4)),
    lambda m: A(m.t(4, 6), 1, m.t(6).to(m.other())), lambda m: A(m.t(4, 6), 1, m.t(5)))
row("M:__setitem__", *(lambda m, i=i: A(m.t(4, 6), i, 2) for i in (0, (..., 0))))
row("O:setitem", *(lambda m, i=i: A(m.t(4, 6), i, 2) for i in (0, (..., 0), slice(1, 3))), lambda m: A(m.t(4, 6), m.mask(4, 6), 0.5), lambda m: A(m.t(4, 6), 9, 0.5))
row("X:delayed", *(lambda m, i=i: A(m.t(4, 6), i, 2) for i in (0, (..., 0), slice(1, 3))))
row("M:cumsum_ M:tril_ M:triu_", lambda m: A(m.x(4, 6), 0), **SUMS)
row("M:transpose_ M:swapaxes_", lambda m: A(m.t(2, 3), 0, 1))
row("M:unsqueeze_ M:squeeze_", lambda m: A(m.t(1, 3), 0))
row("M:t_", lambda m: A(m.t(2, 3)))
row("M:normal_ M:uniform_ M:bernoulli_ M:random_", lambda m: A(m.t(3, 4)), dtypes=FLOATS, random=True)
row("P:relu", lambda m: A(m.t(67), inplace=True), lambda m: A(m.t(5, 7).t(), True))
row("P:silu P:hardswish P:leaky_relu P:elu P:relu6 P:hardtanh P:mish", lambda m: A(m.t(67), inplace=True), **NEAR)
row("P:dropout", lambda m: A(m.t(67), 0.5, True, True), dtypes=FLOATS, random=True)

# ---- out= ------------------------------------------------------------------------------------------------------------------
OUT = (lambda m: A(m.x(3, 7), m.x(7), out=m.t(3, 7)), lambda m: A(m.x(7, 3).t(), m.x(3, 7), out=m.t(7, 3).t()), lambda m: A(m.x(3, 7), m.x(7), out=m.t(0, dtype=f32)), lambda m: A(m.x(9), m.x(9), out=m.t(9, dtype=f64)),
       lambda m: A(m.x(9), m.x(9), out=m.t(9, dtype=i64)), lambda m: A(m.x(9), 2, out=m.t(18)[::2]))
each("F:add F:mul F:sub F:maximum F:eq F:bitwise_and", *OUT)
each("F:div F:atan2", *OUT, **NEAR)
each("F:neg F:abs F:logical_not", lambda m: A(m.t(67), out=m.t(67)), lambda m: A(m.t(5, 7), out=m.t(7, 5).t()))
each("F:exp F:sigmoid F:tanh", lambda m: A(m.t(67), out=m.x(67)), lambda m: A(m.t(5, 7), out=m.x(7, 5).t()), **NEAR)
each("F:sum F:mean F:amax", lambda m: A(m.x(3, 7), 1, out=m.x(3)), **SUMS)
row("F:max F:sort", lambda m: A(m.x(3, 7), 1, out=(m.x(0), m.idx(1, 0))), dtypes=(f32, i64))
row("F:cat", lambda m: A([m.t(3), m.t(3)], out=m.t(6)))
row("F:stack", lambda m: A([m.t(3), m.t(3)], 0, out=m.t(2, 3)))
row("F:cat F:stack", lambda m: A([m.t(3), m.t(3)], out=m.t(7)), breaks=True)  # it is resized
row("F:matmul F:mm", lambda m: A(m.x(4, 6), m.x(6, 5), out=m.x(4, 5)), lambda m: A(m.x(4, 6), m.x(6, 5), out=m.x(5, 4).t()), **PRODUCT)
row("F:softmax F:cumsum", lambda m: A(m.x(4, 6), 1, out=m.x(4, 6)), dtypes=FLOATS, **SUMS)
row("F:arange F:zeros F:ones", lambda m: A(5, out=m.t(5)))
row("F:where", lambda m: A(m.mask(9), m.t(9), m.t(9), out=m.t(9)))
