"""Functions whose sizes and numbers change between calls (test_dynamic.py), in all the ways that models use them.

A row is a function (or, with build=True, a factory that makes a fresh one with its state), a function from a size to
arguments, and the number of recordings that dynamic=None may need for all of SIZES.
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator

import ccompile
import torch
import torch.nn.functional as F
from torch import nn

SIZES = (6, 3, 9, 2, 7, 1, 4, 12, 5, 8, 0)


def T(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + 31 * sum(shape) + len(shape)))


@dataclasses.dataclass
class Row:
    fn: object
    make: object  # size -> argument or tuple of arguments
    most: int  # recordings under dynamic=None, for all sizes together
    build: bool = False
    backward: bool = False
    no_grad: bool = True


CASES = {}
MOST = 4  # static, symbolic, and one each for sizes 0 and 1


def add(name, fn, make=lambda n: T(n, 4), most=MOST, **options):
    assert name not in CASES, name
    CASES[name] = Row(fn, make, most, **options)


def case(make=lambda n: T(n, 4), most=MOST, **options):
    return lambda fn: add(fn.__name__.replace("_", "-"), fn, make, most, **options)


ANY = len(SIZES)  # one for each size: the size itself decides what happens

# ---- reading sizes ---------------------------------------------------------------------------------------------------
add("shape-0", lambda x: x * x.shape[0])
add("shape-negative", lambda x: x * x.shape[-2])
add("size", lambda x: (x.size(), x + x.size(0)))
add("size-negative", lambda x: x + x.size(-2))
add("size-keyword", lambda x: x + x.size(dim=0))
add("len", lambda x: x * len(x))
add("len-of-shape", lambda x: x * len(x.shape))
add("dunder-len", lambda x: x * x.__len__())
add("numel", lambda x: x / max(x.numel(), 1))
add("nelement", lambda x: x.nelement())
add("shape-numel", lambda x: x.sum() + x.shape.numel())
add("stride", lambda x: (x.stride(), x.t().stride(), x.t().stride(0)))
add("ndim", lambda x: x * x.ndim + x.dim())
add("nbytes", lambda x: (x.nbytes, x.itemsize, x.element_size()))
add("contiguous", lambda x: (x.is_contiguous(), x.t().is_contiguous(), x[:, :2].is_contiguous()))
add("unpack", lambda x: [a * b for a, b in [x.shape]][0])
add("unpack-star", lambda x: (lambda a, *rest: (a, rest))(*x.shape))
add("slice-of-shape", lambda x: (x.shape[:1], x.shape[1:], x.shape[::-1], x.shape[-1:]))
add("shape-plus-tuple", lambda x: (x.unsqueeze(-1).expand(x.shape + (3,)), (2,) + x.shape, x.shape + x.shape))
add("tuple-of-shape", lambda x: (tuple(x.shape), list(x.shape), [*x.shape], (*x.shape, 1)))
add("shape-times", lambda x: (x.shape * 2, [x.shape[0]] * 2, (x.shape[0],) * 2), most=ANY)
add("shape-comprehension", lambda x: torch.zeros([2 * s for s in x.shape]))
add("shape-generator", lambda x: torch.zeros(tuple(2 * s for s in x.shape)))
add("shape-dict", lambda x: {i: s for i, s in enumerate(x.shape)})
add("shape-set", lambda x: {s for s in x.shape}, most=ANY)
add("shape-repr", lambda x: (str(x.shape), repr(x.shape[0])), most=ANY)
add("shape-hash", lambda x: {x.shape: 1}[x.shape] + (hash(x.shape) == hash(x.shape)), most=ANY)
add("shape-count", lambda x: (x.shape.count(4), x.shape.index(4)), most=ANY)
add("getattr-shape", lambda x: x * getattr(x, "shape")[0] + getattr(x, "none", 2))  # noqa: B009
add("attrgetter", lambda x: x * operator.attrgetter("shape")(x)[0])
add("itemgetter", lambda x: x * operator.itemgetter(0)(x.shape))
add("operator-module", lambda x: x * operator.mul(x.shape[0], 2) + operator.add(x.shape[0], operator.floordiv(7, 2)))
add("operator-compare", lambda x: x * 2 if operator.gt(x.shape[0], 4) else x, most=5)
add("torch-numel", lambda x: (torch.numel(x), x.numel() == torch.numel(x)))
add("torch-size-made", lambda x: (torch.Size([x.shape[0], 2]), torch.Size(x.shape)))
add("broadcast-shapes", lambda x: torch.zeros(torch.broadcast_shapes(x.shape, (1, 4))))
add("shape-of-result", lambda x: (x @ x.t()).sum(0) / (x @ x.t()).shape[0] ** 2)
add("shape-of-intermediate", lambda x: torch.cat([x, x, x[:1]]).shape)
add("storage-offset", lambda x: x[1:].storage_offset() if len(x) else 0, most=2 * ANY)

# ---- comparing and arithmetic --------------------------------------------------------------------------------------
add("compare-int", lambda x: x * 2 if x.shape[0] > 4 else x - 1, most=5)
add("compare-chain", lambda x: x * 2 if 3 < x.shape[0] <= 7 else x - 1, most=7)
add("compare-shapes", lambda x: x * 2 if x.shape == x.t().shape else x - 1, most=6)
add("compare-tuple", lambda x: x * 2 if x.shape == (4, 4) else x - 1, most=6)
add("compare-list", lambda x: (list(x.shape) == [4, 4], x.shape != (3, 4), x.shape < (5, 5)), most=7)
add("compare-string", lambda x: x.shape[0] == "4")
add("shape-in-list", lambda x: x * 2 if x.shape in [(4, 4), (5, 4)] else x, most=ANY)
add("size-in-tuple", lambda x: x * 2 if x.shape[0] in (4, 5) else x, most=ANY)
add("size-in-set", lambda x: x * 2 if x.shape[0] in {4, 5} else x, most=ANY)
add("size-in-range", lambda x: x * 2 if x.shape[0] in range(3, 6) else x, most=ANY)
add("four-in-shape", lambda x: x * 2 if 4 in x.shape else x, most=ANY)
add("truth", lambda x: x.sum() if x.shape[0] else x.new_zeros(()))
add("truth-of-rest", lambda x: x * 2 if x.shape[0] % 2 else x - 1, most=5)
add("not", lambda x: (not x.shape[0], bool(x.shape[0] - 4)), most=5)
add("and-or", lambda x: x * ((x.shape[0] and 3) + (x.shape[0] - 1 or 5)))
add("min-max", lambda x: x[: min(x.shape[0], 5)] * max(x.shape[0], 4), most=8)
add("min-of-shape", lambda x: (min(x.shape), max(x.shape), min(x.shape[0], 3, 7)), most=8)
add("max-of-generator", lambda x: x * max(s for s in x.shape), most=ANY)
add("max-of-map", lambda x: x * max(map(int, x.shape)), most=ANY)
add("max-of-iterators", lambda x: (max(iter(x.shape)), min(reversed(x.shape)), max(enumerate(x.shape))), most=ANY)
add("max-of-chain", lambda x: max(itertools.chain(x.shape, (5,))), most=ANY)
add("max-of-zip", lambda x: max(zip(x.shape, (1, 2))), most=ANY)
add("max-with-key", lambda x: (max(x.shape, key=lambda s: -s), sorted(x.shape, key=lambda s: -s)), most=ANY)
add("sorted", lambda x: (sorted(x.shape), sorted([x.shape[0], 5])), most=ANY)
add("sorted-tensors", lambda x: [t.sum() for t in sorted([x, x[1:], x[:1]], key=lambda t: t.shape[0])], most=4 * ANY)
add("list-sort", lambda x: (lambda a: a.sort() or a)(list(x.shape)), most=ANY)
add("any-all", lambda x: (any(s > 5 for s in x.shape), all(s > 3 for s in x.shape), any(x.shape)), most=ANY)
add("sum", lambda x: x * sum(x.shape) + sum([x.shape[0], 2]) + sum(s * 2 for s in x.shape))
add("reduce", lambda x: x * functools.reduce(operator.mul, x.shape) + functools.reduce(lambda a, b: a + b, x.shape))
add("prod", lambda x: x.reshape(math.prod(x.shape)) / math.prod([2, x.shape[0] + 1]))
add("sqrt", lambda x: x / math.sqrt(x.shape[0] + 1) + math.ceil(x.shape[0] / 2) + math.floor(x.shape[0] / 3))
add("math", lambda x: (math.log(x.shape[0] + 1), math.gcd(x.shape[0], 4), math.isqrt(x.shape[0]), math.isclose(x.shape[0], 4)), most=6)
add("divmod", lambda x: (divmod(x.shape[0], 3), x.shape[0] // 2, x.shape[0] / 2, -x.shape[0] // 2, x.shape[0] % -3))
add("power", lambda x: (x.shape[0] ** 2, x.shape[0] ** 0.5, 2 ** x.shape[0], pow(x.shape[0], 2), pow(3, x.shape[0], 7)))
add("negative-power", lambda x: (x.shape[0] + 1) ** -2)
add("shift-and-bits", lambda x: (x.shape[0] << 2, x.shape[0] >> 1, x.shape[0] & 6, x.shape[0] | 1, x.shape[0] ^ 3, ~x.shape[0]))
add("abs-round", lambda x: (abs(3 - x.shape[0]), round(x.shape[0] / 3), round(x.shape[0] / 3, 1), -x.shape[0], +x.shape[0]))
add("int-float-bool", lambda x: (int(x.shape[0] * 1.5), float(x.shape[0]), bool(x.shape[0]), complex(x.shape[0])), most=ANY)
add("int-methods", lambda x: (x.shape[0].bit_length(), (x.shape[0] / 2).is_integer(), x.shape[0].__index__()), most=8)
add("isinstance", lambda x: x * isinstance(x.shape[0], int) + (type(x.shape[0]) is int) + isinstance(x.shape, tuple))
add("is", lambda x: (x.shape[0] is not None, x.shape is None, x.shape[0] is True))
add("string", lambda x: (str(x.shape[0]), f"{x.shape[0]}", f"{x.shape[0]:03d}", f"{x.shape}"), most=ANY)
add("format", lambda x: ("{}".format(x.shape[0]), "%d" % x.shape[0], format(x.shape[0], "x")), most=ANY)  # noqa: UP030, UP031, UP032
add("concatenate-string", lambda x: "n" + str(x.shape[0]) + "," + ",".join(map(str, x.shape)), most=ANY)
add("huge", lambda x: (x.shape[0] << 70, x.shape[0] * 10**30, (x.shape[0] << 70) > 2**72), most=6)
add("assert", lambda x: exec("assert True") or x if x.shape[1] == 4 and x.shape[0] >= 0 else None, most=ANY)
add("zero-division", lambda x: x * (12 // (x.shape[0] - 4)), most=ANY)
add("bool-arithmetic", lambda x: x * (True + x.shape[0]) + (x.shape[0] > 4), most=6)
add("walrus", lambda x: x * n if (n := x.shape[0]) > 4 else x + n, most=6)
add("ternary-max", lambda x: x[: (x.shape[0] if x.shape[0] < 5 else 5)], most=6)
add("ceil-division", lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-(-x.shape[0] // 4), 4, 4))

# ---- sizes as keys, indices, counts ------------------------------------------------------------------------------
add("dict-by-size", lambda x: x * {3: 2, 4: 3}.get(x.shape[0], 5), most=ANY)
add("dict-made-by-size", lambda x: {x.shape[0]: 1, 4: 2}, most=ANY)
add("dict-of-pairs", lambda x: dict([(x.shape[0], 1), (4, 2)]), most=ANY)
add("dict-of-zip", lambda x: dict(zip(x.shape, "ab")), most=ANY)
add("dict-from-keys", lambda x: dict.fromkeys(x.shape, 0), most=ANY)
add("set-of-generator", lambda x: set(s for s in x.shape), most=ANY)  # noqa: C401
add("frozenset", lambda x: len(frozenset(x.shape)), most=ANY)
add("counter-of-sizes", lambda x: collections.Counter(x.shape)[4], most=2 * ANY)
add("list-by-size", lambda x: x * list(range(20))[x.shape[0]], most=ANY)
add("string-by-size", lambda x: "abcdefghijklmnop"[x.shape[0]], most=ANY)
add("zeros-list", lambda x: x.new_tensor([0.5] * x.shape[0]).sum() + x.sum(), most=ANY)
add("range-list", lambda x: torch.tensor(list(range(x.shape[0]))), most=ANY)
add("range-object", lambda x: (range(x.shape[0]), range(0, x.shape[0], 2)), most=ANY)
add("for-range", lambda x: sum((x[i] * i for i in range(x.shape[0])), x.new_zeros(4)), most=ANY)
add("for-rows", lambda x: sum(list(x), x.new_zeros(4)), most=ANY)
add("for-enumerate", lambda x: [r * i for i, r in enumerate(x)], most=ANY)
add("for-zip", lambda x: [r * i for i, r in zip(range(x.shape[0]), x)], most=ANY)
add("for-split", lambda x: [p.sum() for p in x.split(3)], most=ANY)
add("slices", lambda x: (x[: x.shape[0] // 2], x[x.shape[0] // 2 :], x[-1:], x[:: max(1, x.shape[0] - 2)]), most=6)
add("slice-object", lambda x: x[slice(0, x.shape[0] - 1)])
add("list-slice", lambda x: [1, 2, 3, 4, 5][: x.shape[0]], most=ANY)
add("last-item", lambda x: x[x.shape[0] - 1] if len(x) else x)
add("slice-indices", lambda x: slice(1, None).indices(x.shape[0]), most=ANY)


@case(most=ANY)
def while_on_size(x):
    n, k = x.shape[0], 0
    while n > 1:
        n, k = n // 2, k + 1
    return x * k


@case(most=ANY)
def while_halving_tensor(x):
    while x.shape[0] > 2:
        x = x[::2] + x[: x[::2].shape[0]]
    return x


@case(most=ANY)
def for_else(x):
    for i in range(2, x.shape[0]):
        if x.shape[0] % i == 0:
            return x * i
    else:  # noqa: PLW0120
        return x - 1


@case(most=ANY)
def generator_over_size(x):
    def parts(t, n):
        for i in range(0, t.shape[0], n):
            yield t[i : i + n].sum(0)

    return list(parts(x, 3))


@case(most=ANY)
def match_shape(x):
    match x.shape:
        case (4, _):
            return x * 2
        case (n, 4) if n > 6:
            return x * n
        case _:
            return x


# ---- tensors made with sizes ----------------------------------------------------------------------------------------
add("view", lambda x: (x.view(-1), x.view(x.shape[0] * 2, 2), x.view(x.size(0), -1, 2)) if x.numel() else x)
add("view-star", lambda x: x.view(*x.shape, 1) + x.reshape(*x.shape[:-1], 4, 1))
add("reshape", lambda x: (x.t().reshape(-1), x.reshape(2, -1), x.reshape(x.shape[0] * 4)))
add("expand", lambda x: x.sum(0).expand(x.shape[0], 4) + x.new_ones(()).expand_as(x))
add("repeat", lambda x: x[:1].repeat(x.shape[0], 1) if len(x) else x)
add("tile", lambda x: x.tile(2, x.shape[0] + 1))
add("chunk", lambda x: x.chunk(2), most=6)
add("split", lambda x: x.split(x.shape[0] // 2 + 1), most=6)
add("split-sizes", lambda x: x.split([1, x.shape[0] - 1]), most=6)
add("unbind", lambda x: x.unbind(), most=ANY)
add("tensor-split", lambda x: x.tensor_split(3))
add("unfold", lambda x: x.unfold(1, 2, 1).sum(-1) * x.shape[0])
add("pad", lambda x: F.pad(x, (1, 2, 0, 16 - x.shape[0])))
add("pad-nothing", lambda x: F.pad(x, (0, 0, 0, max(0, 4 - x.shape[0]))), most=7)
add("narrow", lambda x: x.narrow(0, 0, x.shape[0] // 2))
add("select", lambda x: x.select(0, x.shape[0] // 2), most=6)   # of size 0 it raises: twice, then there is a break
add("arange", lambda x: x + torch.arange(x.shape[0]).unsqueeze(1))
add("arange-float", lambda x: x + torch.arange(0, x.shape[0] * 0.5, 0.5)[:, None])
add("linspace", lambda x: x + torch.linspace(0, 1, x.shape[0])[:, None])
add("zeros-ones", lambda x: torch.zeros(x.shape) + torch.ones(x.shape[0], 1) + torch.full((x.shape[0], 4), 2.0))
add("full-of-size", lambda x: torch.full((2,), x.shape[0]) + torch.full((2,), float(x.shape[0])))
add("new-zeros", lambda x: x.new_zeros(x.shape[0], 2) + x.new_full((1, 2), x.shape[0]) + x.new_empty(x.shape).zero_()[:, :2])
add("tensor-of-size", lambda x: (torch.tensor(x.shape[0]), torch.tensor([x.shape[0], 2.0]), torch.tensor(x.shape)))
add("causal-mask", lambda x: (x @ x.t()).masked_fill(torch.ones(x.shape[0], x.shape[0]).tril() == 0, -1.0))
add("triu", lambda x: torch.triu(torch.full((x.shape[0], x.shape[0]), -2.0), diagonal=1) @ x)
add("mask-buffer", lambda x, m: (x @ x.t()).where(m[: x.shape[0], : x.shape[0]], 0), lambda n: (T(n, 4), T(12, 12) > 0))
add("one-hot", lambda x: F.one_hot(torch.arange(x.shape[0]) % 3, max(x.shape[0], 3)), most=6)
add("eye", lambda x: torch.eye(x.shape[0]) @ x)
add("interpolate", lambda x: F.interpolate(x, size=(x.shape[-2] + 1, 6)), lambda n: T(1, 2, n + 1, 4))
add("interpolate-scale", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda n: T(1, 2, n + 1, 4))
add("adaptive-pool", lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2 + 1, None)), lambda n: T(1, 2, n + 1, 4))
add("conv", lambda x, w: F.conv2d(x, w, padding=1) + x.shape[-1], lambda n: (T(1, 2, n + 1, n + 2), T(2, 2, 3, 3)))
add("attention", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[2] > 1), lambda n: T(1, 2, n, 8), most=5)
add("softmax", lambda x: torch.softmax(x @ x.t() / math.sqrt(x.size(-1)), -1) @ x)
add("layer-norm", lambda x: F.layer_norm(x, x.shape[-1:]) + F.layer_norm(x, (4,)))
add("layer-norm-all", lambda x: F.layer_norm(x, x.shape))
add("normalize", lambda x: (x - x.mean(0)) / (x.var(0, unbiased=False) + x.shape[0]))
add("flatten", lambda x: (x.flatten(), x.unflatten(1, (2, 2)), x.flatten(0, -1).unflatten(0, (x.shape[0], 4))))
add("permute-heads", lambda x: x.view(x.size(0), 2, 2).transpose(0, 1).contiguous().view(2, -1))
add("squeeze", lambda x: x[:, : x.shape[0] - 2].squeeze(), most=ANY)
add("squeeze-dim", lambda x: x[: x.shape[0] // 2].squeeze(0), most=6)
add("cat-stack", lambda x: (torch.cat([x, x[:2]]), torch.stack([x, x]).shape, torch.cat([x, x], 1).shape[1]))
add("gather", lambda x: x.gather(0, torch.arange(x.shape[0]).flip(0)[:, None].expand(-1, 4)))
add("index-copy", lambda x: torch.zeros(12, 4).index_copy(0, torch.arange(x.shape[0]), x))
add("topk", lambda x: x.flatten().topk(max(1, x.shape[0] // 2)).values if len(x) else x, most=6)
add("cumsum", lambda x: x.cumsum(0) / torch.arange(1, x.shape[0] + 1)[:, None])
add("roll-flip", lambda x: x.roll(x.shape[0] // 2, 0).flip(0))
add("einsum", lambda x: torch.einsum("ij,kj->ik", x, x) / x.shape[0] if len(x) else x)
add("meshgrid", lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(4), indexing="ij"))
add("nonzero", lambda x: (x > 0).nonzero().shape, most=2 * ANY)
add("masked-select", lambda x: x[x > 0] * x.shape[0])
add("to-list", lambda x: torch.arange(x.shape[0]).tolist(), most=2 * ANY)
add("bmm", lambda x: torch.bmm(x.expand(2, *x.shape), x.t().expand(2, *x.t().shape)))
add("linear", lambda x, w: F.linear(x, w) * x.shape[0], lambda n: (T(n, 4), T(3, 4)))
add("rotary", lambda x: torch.outer(torch.arange(x.shape[0]).float(), 1 / 10 ** (torch.arange(0, 4, 2) / 4)).cos())
add("to-contiguous", lambda x: x.contiguous(), lambda n: T(n, 4) if n % 2 else T(4, n).t(), most=6)
add("write-to-contiguous", lambda x: (x.contiguous().add_(1), x)[0], lambda n: T(n, 4) if n % 2 else T(4, n).t(), most=6)
add("contiguous-is-itself", lambda x: x.contiguous() is x, lambda n: T(n, 4) if n % 2 else T(4, n).t(), most=6)
add("reshape-is-view", lambda x: (x.reshape(-1).add_(1), x)[0], lambda n: T(n, 4) if n % 2 else T(4, n).t(), most=6)
add("sum-to-size", lambda x: x.sum_to_size(x.shape[0], 4) + x.sum_to_size(1, 4))
add("channels-last", lambda x: (x * 2, x.is_contiguous(memory_format=torch.channels_last), x.stride()),
    lambda n: T(2, 3, n, 4).to(memory_format=torch.channels_last if n % 2 else torch.contiguous_format), most=8)
add("to-channels-last", lambda x: x.contiguous(memory_format=torch.channels_last) + 1,
    lambda n: T(2, 3, n, 4).to(memory_format=torch.channels_last if n % 2 else torch.contiguous_format), most=8)
add("strided-input", lambda x: (x + 1, x.stride(0), x.reshape(-1)), lambda n: T(n, 8)[:, :: 1 + n % 2][:, :4], most=6)
add("expanded-input", lambda x: x * 2 + x.stride(0), lambda n: T(1, 4).expand(n, 4) if n % 2 else T(n, 4), most=6)

# ---- several inputs ----------------------------------------------------------------------------------------------------
add("two-equal", lambda x, y: (x + y) * y.shape[0], lambda n: (T(n, 4), T(n, 4, seed=1)))
add("two-apart", lambda x, y: x.sum(0) * y.shape[0] + y.sum(0) * x.shape[0], lambda n: (T(n, 4), T(13 - n, 4)), most=6)
add("broadcast", lambda x, y: x + y, lambda n: (T(n, 4), T(n if n % 3 else 1, 4)), most=7)
add("broadcast-outer", lambda x, y: x[:, None] * y[None], lambda n: (T(n), T(7 * n % 11)), most=8)
add("matmul", lambda x, y: x @ y, lambda n: (T(n, n + 1), T(n + 1, 2)))
add("same-twice", lambda x, y: (x + y, x is y), lambda n: (lambda t: (t, t) if n % 2 else (t, t.clone()))(T(n, 4)), most=8)
add("same-if-equal", lambda x, y: x * 2 if x.shape == y.shape else y, lambda n: (T(n, 4), T(n - n % 2, 4)), most=8)
add("list-of-tensors", lambda xs: torch.cat(xs).sum(0) / len(xs), lambda n: [T(n, 4) for _ in range(n % 3 + 1)], most=ANY)
add("list-of-sizes", lambda xs: [x * x.shape[0] for x in xs], lambda n: [T(n, 4), T(n + 2, 3)])
add("dict-of-tensors", lambda d: {k: v * v.shape[0] for k, v in d.items()}, lambda n: {"a": T(n, 4), "b": T(2, n)})
add("keyword", lambda x, *, y=None: x + (y.shape[0] if y is not None else 1), lambda n: ((T(n, 4),), {"y": T(n + 1)}))
add("varargs", lambda *xs: sum(x.sum() * x.shape[0] for x in xs), lambda n: (T(n, 4), T(n, 2), T(3)))
add("max-of-several", lambda *xs: max(x.shape[0] for x in xs), lambda n: (T(n, 4), T(5)), most=ANY)
add("max-of-lens", lambda *xs: max(map(len, xs)), lambda n: (T(n, 4), T(5)), most=ANY)
add("pad-to-longest", lambda *xs: [F.pad(x, (0, max(t.size(0) for t in xs) - x.size(0))) for x in xs],
    lambda n: (T(n), T(5)), most=ANY)
add("two-dims", lambda x: x.view(x.shape[0], -1) * x.shape[1], lambda n: T(n, n + 3), most=6)   # as above
add("three-dims", lambda x: x.transpose(0, 2).reshape(x.shape[2], -1) + x.shape[0], lambda n: T(n, n % 4 + 2, n + 3))
add("other-rank", lambda x: x * x.shape[0] + x.dim(), lambda n: T(n, 4) if n % 2 else T(n), most=8)
add("other-dtype", lambda x: x * x.shape[0], lambda n: T(n, 4) if n % 2 else T(n, 4).double(), most=8)

# ---- numbers ------------------------------------------------------------------------------------------------------------
add("int-argument", lambda x, k: x * k + k, lambda n: (T(3), n), most=3)
add("int-loose", lambda x, k: (x * 2, k + 1, [k]), lambda n: (T(3), n), most=2)
add("int-as-dim", lambda x, d: x.sum(d), lambda n: (T(2, 3, 4), n % 3), most=3)
add("int-as-negative-dim", lambda x, d: x.softmax(-d), lambda n: (T(2, 3, 4), n % 3 + 1), most=3)
add("int-as-k", lambda x, k: x.topk(k).indices, lambda n: (T(12), n), most=3)
add("int-as-index", lambda x, k: x[k] + x[:k].sum(0), lambda n: (T(13, 4), n), most=3)
add("int-as-list-index", lambda x, k: x * [1, 2, 3][k % 3], lambda n: (T(3), n), most=ANY)
add("int-negative", lambda x, k: x * abs(k) + (k if k < 0 else 1), lambda n: (T(3), n - 5), most=6)
add("int-huge", lambda x, k: (x, k + 1, k % 7), lambda n: (T(3), 10**20 * n), most=5)
add("int-huge-node", lambda x, k: x * (k % 7), lambda n: (T(3), 10**20 * n), most=ANY)
add("bool-or-int", lambda x, k: x * k, lambda n: (T(3), n > 4 if n % 2 else n), most=ANY)
add("int-or-float", lambda x, k: x * k, lambda n: (T(3), n / 2 if n % 2 else n), most=5)
add("float-argument", lambda x, lr: x - lr * x.sum(), lambda n: (T(3), 0.1 * n), most=2)
add("float-nan", lambda x, v: (x, v, v != v, v == 0.0), lambda n: (T(3), (math.nan, -0.0, 0.0, math.inf, 1.5)[n % 5]), most=7)
add("float-branch", lambda x, v: x * v if v > 0.5 else x, lambda n: (T(3), n / 10), most=5)
add("float-to-int", lambda x, v: x.new_zeros(int(v)), lambda n: (T(3), n + 0.5), most=6)
add("two-ints-same", lambda x, a, b: x * a + b, lambda n: (T(3), 3, n), most=4)
add("ints-swapped", lambda x, a, b: (x + a, b), lambda n: (T(3), n, 9 - n), most=5)
add("ints-equal-once", lambda x, a, b, c, d: (x + a, b, c, d), lambda n: (T(3), 3, n, 3 + n % 2, n // 2), most=9)
add("int-keywords", lambda x, k=1, n=2: (x + k, n), lambda n: ((T(3),), {"n": n, "k": 3} if n % 2 else {"k": 3, "n": n}), most=6)
add("int-keyword-only", lambda x, *, k=1: x + k, lambda n: ((T(3),), {"k": n}), most=3)
add("int-in-tuple", lambda x, t: x * t[0] + t[1], lambda n: (T(3), (n, 2)), most=4)
add("int-in-list", lambda x, t: x * min(t) + max(t), lambda n: (T(3), [n, 5]), most=ANY + 4)  # min and max become breaks
add("int-in-dict", lambda x, d: x * d["n"], lambda n: (T(3), {"n": n, "m": 3}), most=3)
add("range-of-int", lambda x, n: [x * i for i in range(n)], lambda n: (T(3), n), most=ANY)
add("size-of-int", lambda x, n: (torch.zeros(n, 3) + x, n), lambda n: (T(3), n), most=3)
add("int-and-size", lambda x, n: x.view(n, -1) * (n == x.shape[0]), lambda n: (T(n + 1, 4), n + 1), most=4)
add("dropout-rate", lambda x, p: F.dropout(x, p) * 2, lambda n: (T(5), n / 20), most=4)

# ---- random numbers, writes, exceptions ----------------------------------------------------------------------------------
TRAIN = {"no_grad": False, "backward": True}


def P(n, *shape):
    return T(n, *shape).requires_grad_()


add("dropout-then-branch", lambda x: (lambda y: y * 2 if y.shape[0] > 4 else y)(F.dropout(x)), most=5)
add("dropout-then-split", lambda x: [p.sum() for p in F.dropout(x).split(3)], most=ANY)
add("dropout-then-squeeze", lambda x: F.dropout(x[: x.shape[0] // 2]).squeeze(), most=6)
add("dropout-then-heads", lambda x: [h.sum() for h in F.dropout(x).chunk(2, -1)])
add("dropout-then-sqrt", lambda x: F.dropout(x) / math.sqrt(F.dropout(x).size(0) + 1))
add("random-sizes", lambda x: torch.randn(x.shape[0], 2) + torch.rand(x.size())[:, :2] + torch.randint(5, (x.shape[0], 1)))
add("random-then-loop", lambda x: [torch.rand(i + 1) for i in range((x + torch.rand(1)).shape[0])], most=ANY)
add("randperm", lambda x: x[torch.randperm(x.shape[0])])
add("write-then-branch", lambda x: (x.add_(1), x * 2 if x.shape[0] > 4 else x)[1], most=5)
add("write-then-rows", lambda x: (x.mul_(2), list(x))[1], most=ANY)
add("write-then-split", lambda x: (x.mul_(2), x.split(3))[1], most=ANY)
add("write-then-squeeze", lambda x: (x.mul_(2), x[: x.shape[0] // 2].squeeze())[1], most=6)
add("write-then-contiguous", lambda x: (x.t().mul_(2), x.contiguous().add_(1), x)[2], lambda n: T(n, 4) if n % 2 else T(4, n).t(), most=6)
add("write-twice-then-branch", lambda x, y: (x.add_(y), y.sub_(1), (x + y)[: x.shape[0] // 2].squeeze(0), x)[2:],
    lambda n: (T(n, 4), T(n, 4, seed=3)), most=6)
add("write-rows", lambda x: x.copy_(x.flip(0)).narrow(0, 0, x.shape[0] // 2).zero_())
add("set-item", lambda x: operator.setitem(x, slice(0, x.shape[0] // 2), 0.0) or x, most=7)
add("scatter-into", lambda x, c: c[:, : x.shape[0]].copy_(x.t()).sum() + c.sum(), lambda n: (T(n, 4), T(4, 12)))
add("resize-in-place", lambda x: (x.unsqueeze_(0), x.shape, x + x.shape[1])[1:], most=2 * ANY)
add("transpose-in-place", lambda x: (x.t_(), x.shape, x + x.shape[1])[1:], most=2 * ANY)
add("out-argument", lambda x, o: torch.add(x, 1, out=o) * o.shape[0], lambda n: (T(n, 4), T(n, 4, seed=2)))
add("out-resized", lambda x, o: (torch.mm(x, x.t(), out=o) + 1, o.shape, o * 2), lambda n: (T(n, 4), T(0)), most=2 * MOST + 1)
add("out-grown-pair", lambda x: (lambda v, i: (torch.max(x, 1, out=(v, i)).values, v + 1, i, v.shape))(torch.empty(6), torch.empty(6, dtype=torch.long)),
    lambda n: T(n, 4), most=ANY + 2)


def averages_of_weights():
    """In-place ops on lists give a list of the same tensors."""
    ours, theirs = [torch.zeros(3), torch.zeros(2)], [torch.ones(3), torch.ones(2)]

    def step(x):
        given = torch._foreach_lerp_(ours, theirs, 0.1)
        return x * 2, given[1] is ours[1], torch._foreach_add(ours, 1)

    return step, ours


add("foreach-in-place", averages_of_weights, build=True)


@case(most=2 * ANY)
def try_view(x):
    try:
        return x.view(2, -1, 4)
    except RuntimeError as e:
        return x, str(e)


@case(most=2 * ANY)
def try_view_behind_dropout(x):
    y = F.dropout(x)
    try:
        return y.view(2, -1, 4)
    except RuntimeError:
        return y * 2


@case(most=ANY)
def try_division(x):
    try:
        k = 12 // (x.shape[0] - 4)
    except ZeroDivisionError:
        k = 100
    return x * k


@case(most=ANY)
def try_division_behind_dropout(x):
    y = F.dropout(x)
    try:
        k = 12 // (y.shape[0] - 4)
    except ZeroDivisionError:
        k = 100
    return y * k


@case(most=ANY)
def raise_by_size(x):
    if x.shape[0] == 4:
        raise ValueError(f"bad size {x.shape[0]}")
    return x * 2


@case(most=ANY)
def fails_for_odd(x):
    return x.view(2, x.shape[0] // 2, 4)


@case(lambda n: (T(n, 4), []), most=ANY)
def log_and_fail(x, log):
    log.append(x.shape[0])
    y = x * 2
    log.append(y.view(2, -1).shape)
    return y


@case(most=ANY)
def finally_by_size(x):
    out = []
    try:
        out.append(12 // (x.shape[0] - 4))
    finally:
        out.append(x.shape[0])
    return x, out


# ---- breaks ---------------------------------------------------------------------------------------------------------------
@case(most=4 * ANY)
def print_between(x):
    n = x.shape[0]
    print("n", n)
    return x * n + x.shape[0]


@case(most=4 * ANY)
def item_between(x):
    n = x.shape[0]
    s = (x * n).sum().item()
    return x * s + n if n > 4 else x * n


@case(most=4 * ANY)
def break_in_callee(x):
    def inner(t):
        k = t.shape[0] * 2
        ccompile.graph_break()
        return t * k, t.shape[0]

    y, n = inner(x + 1)
    return y * n, x.shape


@case(most=6 * ANY)
def break_in_loop(x):
    out = []
    for i in range(3):
        ccompile.graph_break()
        out.append(x.shape[0] * i)
    return x, out


@case(lambda n: (T(n, 4), n / 3), most=4 * ANY)
def break_with_numbers(x, lr):
    a = lr * 2
    ccompile.graph_break()
    return x * a + lr


# ---- state -----------------------------------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self, train=False):
        super().__init__()
        torch.manual_seed(3)
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.3)
        self.n, self.seen, self.sizes, self.last = 0, [], {}, None
        self.register_buffer("cache", torch.zeros(1, 4))
        self.train(train)


def net(forward, train=False):
    kind = type("Built", (Net,), {"forward": forward})

    def build():
        m = kind(train)
        return m, m

    return build


def stateful(name, make=lambda n: T(n, 4), most=MOST, train=False, **options):
    return lambda forward: add(name, net(forward, train), make, most, build=True, **options)


@stateful("counter", most=5)
def _(self, x):
    self.n += 1
    return self.fc(x) * 2


@stateful("counter-branch", most=9)
def _(self, x):
    self.n += 1
    return self.fc(x) if self.n % 3 == 0 else x * self.n


@stateful("counter-fixed-size", make=lambda n: T(3, 4), most=3)
def _(self, x):
    self.n += 1
    return self.fc(x) * self.n


@stateful("counter-limit", make=lambda n: T(3, 4), most=5)
def _(self, x):
    self.n = self.n + 1 if self.n < 20 else 0
    return self.fc(x) + self.n, self.n


@stateful("size-stored")
def _(self, x):
    self.n = x.shape[0]
    self.last = x.shape
    return self.fc(x) * self.n


@stateful("size-remembered", most=2 * ANY)
def _(self, x):
    changed = self.last is not None and self.last != x.shape
    self.last = x.shape
    return self.fc(x), changed


@stateful("size-of-last-call", most=2 * ANY)
def _(self, x):
    old, self.n = self.n, x.shape[0]
    return x * old + self.n


@stateful("sizes-in-list", most=4 * ANY)
def _(self, x):
    self.seen.append(x.shape[0])
    return self.fc(x)


@stateful("sizes-in-dict", most=4 * ANY)
def _(self, x):
    self.sizes[x.shape[0]] = self.sizes.get(x.shape[0], 0) + 1
    return self.fc(x)


@stateful("cache-grows", make=lambda n: T(1, 4), most=4)
def _(self, x):
    self.cache = torch.cat([self.cache, x])
    return torch.softmax(x @ self.cache.t(), -1) @ self.cache, self.cache.shape[0]


@stateful("cache-limited", make=lambda n: T(n % 3 + 1, 4), most=8)
def _(self, x):
    self.cache = torch.cat([self.cache, x])[-10:]
    return self.cache.sum(0) / self.cache.shape[0]


@stateful("cache-in-list", make=lambda n: T(1, 4), most=6)
def _(self, x):
    if not self.seen:
        self.seen.append(x)
    else:
        self.seen[0] = torch.cat([self.seen[0], x])
    return self.seen[0].mean(0), self.seen[0].shape


@stateful("static-cache", make=lambda n: (T(1, 4), n % 5), most=6)
def _(self, x, pos):
    if self.last is None:
        self.last = torch.zeros(8, 4)
    self.last[pos : pos + 1] = x
    return self.last[: pos + 1].sum(0)


@stateful("number-list", make=lambda n: T(3, 4), most=2 * ANY)
def _(self, x):
    if not self.seen:
        self.seen += [3, 5]
    self.seen[0] = (self.seen[0] + 3) % 7
    return x * min(self.seen) + self.seen[0]


@stateful("norms", most=4)
def _(self, x):
    return self.norm(self.drop(torch.relu(self.fc(x)))) + x.shape[0]


@stateful("training", make=lambda n: P(n, 4), train=True, **TRAIN)
def _(self, x):
    h = self.drop(torch.relu(self.fc(x)))
    return self.norm(h) * h.shape[0], h.view(h.size(0), 2, 2).transpose(0, 1)


@stateful("training-heads", make=lambda n: P(2, n, 4), train=True, **TRAIN)
def _(self, x):
    b, t, c = x.size()
    q, k = self.drop(self.fc(x)).split(2, dim=2)
    att = (q @ k.transpose(1, 2)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(torch.ones(t, t).tril() == 0, float("-inf")).softmax(-1)
    return self.drop(att) @ k.contiguous().view(b, t, c // 2)


add("gradients", lambda x, w: (x @ w).relu() / x.shape[0], lambda n: (P(n, 4), P(4, 3)), **TRAIN)
add("gradients-branch", lambda x: x * 2 if x.shape[0] > 4 else x.sum(0), lambda n: P(n, 4), most=5, **TRAIN)
add("gradients-in-place", lambda x: (x * 2).add_(x.shape[0]).mul_(x), lambda n: P(n, 4), **TRAIN)
add("gradients-split", lambda x: [p.sum() for p in F.dropout(x).split(3)], lambda n: P(n, 4), most=ANY, **TRAIN)


@case(most=2 * ANY)
def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
    return y.float() / x.shape[0]


@dataclasses.dataclass
class Config:
    rows: int
    shape: tuple


@case()
def dataclass_of_sizes(x):
    c = Config(x.shape[0], tuple(x.shape))
    return x.view(c.shape) * c.rows, dataclasses.replace(c, rows=c.rows + 1)


@case(most=6)
def dataclass_compared(x):
    return x * 2 if Config(x.shape[0], ()) == Config(4, ()) else x


class Sized:
    def __init__(self, t):
        self.t = t

    def __len__(self):
        return self.t.shape[0]

    def __bool__(self):
        return self.t.shape[0] > 4

    def __getitem__(self, i):
        return self.t.shape[i]

    def __index__(self):
        return self.t.shape[0]

    def __hash__(self):
        return self.t.shape[0]

    def __eq__(self, other):
        return isinstance(other, Sized) and self.t.shape[0] == other.t.shape[0]

    def __lt__(self, other):
        return self.t.shape[0] < other.t.shape[0]

    @property
    def rows(self):
        return self.t.shape[0]


add("object-len", lambda x: x * len(Sized(x)), most=ANY)
add("object-bool", lambda x: x * 2 if Sized(x) else x, most=ANY)
add("object-item", lambda x: x * Sized(x)[0])
add("object-index", lambda x: [1, 2, 3, 4, 5, 6, 7][Sized(x)], most=2 * ANY)
add("object-hash", lambda x: {Sized(x): 1, Sized(x[:3]): 2}.get(Sized(x[:4])), most=3 * ANY)
add("object-less", lambda x: (max(Sized(x), Sized(T(5))).t * 2, Sized(x) < Sized(T(4))), most=2 * ANY)
add("object-property", lambda x: x.new_zeros(Sized(x).rows) + Sized(x).rows)
add("object-range", lambda x: [i for i in range(len(Sized(x)))], most=ANY)  # noqa: C416

TABLE = {"limit": 4, "shape": (4, 4), "allowed": [(4, 4), (5, 4)]}


def outside(fn, *tables):
    """The same, in a world that changes between calls where the function does not see it."""

    def build():
        table, count = dict(TABLE, allowed=list(TABLE["allowed"])), [0]

        @ccompile.disable
        def step():
            count[0] += 1
            table["limit"] = 4 + count[0] // 8
            table["shape"] = (4 + count[0] // 11, 4)
            table["allowed"][0] = (4 + count[0] // 9, 4)

        def call(x):
            result = fn(x, table)
            step()
            return result

        return call

    return build


def world(name, fn, most=5 * ANY):
    add(name, outside(fn), most=most, build=True)


world("limit-outside", lambda x, t: x * 2 if x.shape[0] > t["limit"] else x)
world("shape-outside", lambda x, t: x * 2 if x.shape == t["shape"] else x)
world("shapes-outside", lambda x, t: x * 2 if x.shape in t["allowed"] else x)
world("list-outside", lambda x, t: x * 2 if [tuple(x.shape), (5, 4)] == t["allowed"] else x)
world("min-outside", lambda x, t: x * min(x.shape[0], t["limit"]) + max(t["shape"][0], x.shape[0]))
world("max-of-outside", lambda x, t: x * max(x.shape, t["shape"])[0])
world("index-outside", lambda x, t: t["shape"].index(x.shape[1]) + (t["allowed"].count(tuple(x.shape)) + x))
world("zip-outside", lambda x, t: [a * b for a, b in zip(x.shape, t["shape"])])


# ---- callees, closures, globals ---------------------------------------------------------------------------------------------
def helper(t, n=None, *rest, scale=1, **more):
    n = t.shape[0] if n is None else n
    return t * n * scale + sum(rest) + sum(more.values())


add("callee", lambda x: helper(x) + helper(x, x.shape[1], x.shape[0], scale=x.shape[0], extra=x.shape[0]))
add("callee-star", lambda x: helper(x, *x.shape, **{"scale": x.shape[0], "more": 2}))
add("partial", lambda x: functools.partial(helper, x, x.shape[0])(scale=x.shape[0]))
add("closure", lambda x: (lambda n: lambda t: t * n)(x.shape[0])(x))
add("default-of-lambda", lambda x: (lambda t, n=x.shape[0]: t * n)(x))
add("function-returned", lambda x: (lambda n: lambda: n)(x.shape[0])() + x)
add("recursive", lambda x: (f := lambda t, n: t if n <= 0 else f(t + 1, n - 3))(x, x.shape[0]), most=ANY)
add("cached", lambda x: x * cached(x.shape[0]), most=ANY)
COUNT = 0


@functools.lru_cache
def cached(n):
    return n * 2


@case(most=MOST + 2)
def global_written(x):
    global COUNT
    COUNT = x.shape[0]
    return x * COUNT


@case()
def nonlocal_written(x):
    n = 0

    def add_rows(t):
        nonlocal n
        n += t.shape[0]

    add_rows(x)
    add_rows(x[:1])
    return x * n


@case(most=ANY)
def named_tuple_of_sizes(x):
    p = Point(*x.shape)
    return x * p.rows + p[1], p._replace(rows=p.rows + 1)


Point = collections.namedtuple("Point", "rows columns")


@case()
def deque_of_sizes(x):
    d = collections.deque(x.shape, maxlen=2)
    d.append(x.shape[0] + 1)
    return x * d[0], list(d)


@case(most=ANY)
def list_changed(x):
    s = list(x.shape)
    s[0] += 1
    s.append(2)
    s.insert(0, s.pop())
    return torch.zeros(s)


@case(most=ANY)
def default_dict_of_sizes(x):
    d = collections.defaultdict(int)
    for s in (*x.shape, 4):
        d[s] += 1
    return dict(d)


# ---- numbers in dicts and lists that vary, under C functions ---------------------------------------------------------
def numbers(n):
    """A dict of floats, and an int beside them."""
    return {"a": n + 0.5, "b": 2.25, "c": n}


def keyed(n):
    return {("a", 1): n + 0.5, ("b", (2, None)): 2.25}


def row_of_numbers(name, fn, of=numbers, most=MOST):
    add("numbers-" + name, fn, lambda n: (T(3, 4), of(n)), most)


row_of_numbers("looked-up", lambda x, d: [x * d[k] for k in d])
row_of_numbers("unpacked-keys", lambda x, d: (lambda a, b, c: x * d[a] + d[c])(*d))
row_of_numbers("by-tuples", lambda x, d: [x * v for v in d.values()], keyed)
row_of_numbers("looked-up-by-tuples", lambda x, d: [x * d[k] + len(k) for k in d], keyed)
row_of_numbers("items-by-tuples", lambda x, d: {k: x * v for k, v in d.items()}, keyed)
row_of_numbers("sum", lambda x, d: x * sum([d["a"], d["b"]]))
row_of_numbers("sum-of-values", lambda x, d: x * sum(d.values()))
row_of_numbers("sum-of-generator", lambda x, d: x * sum(v * 2 for k, v in d.items() if k != "c"))
row_of_numbers("sum-of-list", lambda x, v: x * (sum(v) / len(v)), lambda n: [n + 0.5, 0.1, n * 0.2])
row_of_numbers("sum-from", lambda x, d: (x * sum([d["b"]], d["a"]), sum([0.5], start=d["c"])))
row_of_numbers("sum-with-tensors", lambda x, d: sum([x * d["a"], d["a"], x]))
row_of_numbers("sum-returned", lambda x, d: (x, sum(d.values()), sum([0.1, 0.2, d["a"]])))
row_of_numbers("sum-tested", lambda x, d: x * 2 if sum(d.values()) > 12 else x - 1, most=MOST + 1)
row_of_numbers("largest-of-generator", lambda x, d: x * max(d[k] for k in d))
row_of_numbers("least-of-values", lambda x, d: x * min(d.values()), most=MOST + 1)
row_of_numbers("largest-of-map", lambda x, v: x * max(map(abs, v)), lambda n: [n + 0.5, -3.25])
row_of_numbers("mapped", lambda x, v: [x * p for p in map(pow, v, [2, 3])], lambda n: [n + 0.5, 1.5])
row_of_numbers("sum-of-map", lambda x, v: x * sum(map(float, v)), lambda n: [n, 2])
row_of_numbers("sum-of-zip", lambda x, v: x * sum(a * b for a, b in zip(v, [2.0, 3.0])), lambda n: [n + 0.5, 2.5])
row_of_numbers("sum-of-islice", lambda x, v: x * sum(itertools.islice(v, 2)), lambda n: [n + 0.5, 2.5, n * 2.0])
row_of_numbers("sum-of-reversed", lambda x, v: x * sum(reversed(v)), lambda n: [n + 0.5, 2.5])


def row(n):
    """A list of which two numbers vary."""
    return [n + 0.5, 2.25, n * 3]


@case(lambda n: (T(3, 4), row(n)))
def numbers_in_a_loop(x, v):
    for p in v:
        x = x * p
    return x


@case(lambda n: (T(3, 4), {"op": "mul", "by": n + 0.5}))
def numbers_matched(x, d):
    match d:
        case {"op": "mul", "by": p}:
            return x * p
    return x


@dataclasses.dataclass
class Scaling:
    by: float
    less: int


@case(lambda n: (T(3, 4), Scaling(n + 0.5, n)))
def numbers_of_a_class_matched(x, s):
    match s:
        case Scaling(by=100.0):
            return x
        case Scaling(a, less=b):
            return x * a - b
    return x


row_of_numbers("listed", lambda x, v: [x * p for p in v], row)
row_of_numbers("squares-summed", lambda x, v: x * sum(p * p for p in v), row)
row_of_numbers("largest", lambda x, v: x * max(v) + min(v), row)
row_of_numbers("largest-returned", lambda x, v: (x, max(v), max(p * 2 for p in v)), row)
row_of_numbers("reduced", lambda x, v: x * functools.reduce(operator.mul, v), row)
row_of_numbers("filtered", lambda x, v: x * sum(filter(lambda p: p > -1, v)), row)
row_of_numbers("starred", lambda x, v: (lambda a, *rest: x * a + rest[0] * rest[1])(*v), row)
row_of_numbers("counted", lambda x, v: x * v.count(2.25), row)


@case(lambda n: (T(3, 4), row(n)))
def numbers_unpacked_with_a_star(x, v):
    a, *rest = v
    return x * a + rest[0] * rest[1], rest


# Each order of the numbers is recorded once, unless C code gives the numbers themselves.
row_of_numbers("sorted", lambda x, v: [x * p for p in sorted(v)], row, most=2)
row_of_numbers("sorted-backwards", lambda x, v: (x, sorted(v, reverse=True), sorted(p * 2 for p in v)), row, most=2)
row_of_numbers("sorted-by-key", lambda x, v: [x * p for p in sorted(v, key=lambda p: -p)], row)
row_of_numbers("sorted-by-size", lambda x, v: (x * sorted(v, key=abs)[0], sorted(v, key=operator.neg)), row)
row_of_numbers("sorted-items", lambda x, d: [x * v for _, v in sorted(d.items())], most=2)
row_of_numbers("largest-by-key", lambda x, v: x * max(v, key=lambda p: -p) + min(v, key=abs), row)
row_of_numbers("largest-item", lambda x, d: x * max(d.items(), key=lambda kv: kv[1])[1])
row_of_numbers("largest-by-value", lambda x, d: (max(d, key=d.get), min(d, key=d.get), x), most=MOST + 1)


@case(lambda n: (T(3, 4), row(n)), most=2)
def numbers_sorted_in_place(x, v):
    own = [*v]
    own.sort()
    return x * own[1], own


# The key function of list.sort() sees an empty list, and may not change it; that of max() may add items.
@case(lambda n: (T(3, 4), row(n)), most=ANY)
def numbers_sorted_in_place_by_key(x, v):
    own = [*v]
    own.sort(key=lambda p: -p if len(own) == 0 else p)
    try:
        own.sort(key=lambda p: own.append(p) or p)
    except ValueError as e:
        return x * own[0], own, str(e)


@case(lambda n: (T(3, 4), row(n)), most=ANY)
def numbers_added_by_a_key(x, v):
    own = [*v]
    return x * max(own, key=lambda p: (len(own) < 8 and own.append(p + 1)) or p), own
