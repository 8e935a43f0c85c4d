"""Random chains of two to six ops over random shapes, dtypes and layouts, compiled against eager: fusion, views, in-place writes.

Results of exact ops only (one rounding each, comparisons, integers, copies) must be equal bit for bit, which reveals a
contracted or reordered pair of ops (except the sign of a zero, which eager's maximum takes from either operand). Others may
differ as much as eager itself differs from f64, plus some roundings of the coarsest dtype in the chain. Discontinuous ops
(floor, comparisons) only get exact operands. CCOMPILE_CHAINS=N runs N chains, different ones in each run; the default is a
fixed set of 100."""

import collections
import contextlib
import math
import os
import warnings

import ccompile
import torch
import torch.nn.functional as F
from conftest import Walk, replaying
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from op_table import FLOATS, INTS, Maker, b1, bf16, f16, f32, f64, i32, i64, u8
from test_ops import attempt, shown, verified

NUMBERS = (2, 0.37, -1.5, 3, True, -2, 0.5, 7)
CASTS = (f32, bf16, f64, f16)
Op = collections.namedtuple("Op", "name fn tensors exact jumps writes")
OPS = []
STATE = {"f64": False}  # the reference run: floats stay f64


def op(name, fn, tensors=1, exact=False, jumps=False, writes=False):
    """fn(p, *tensors), p a small int. exact: one rounding or none; jumps: not continuous; writes: its first tensor."""
    OPS.append(Op(name, fn, tensors, exact, jumps, writes))


def n(p):
    return NUMBERS[p % len(NUMBERS)]


def dim(p, x):
    return p % x.dim() if x.dim() else 0


def cast(p, x):
    dtype = CASTS[p % 4]
    return x.to(f64 if STATE["f64"] and dtype in FLOATS else dtype)


for name in "add sub mul minimum maximum".split():
    op(name, lambda p, x, y, f=getattr(torch, name): f(x, y), 2, exact=True)
op("div", lambda p, x, y: x / (y.abs() + 1), 2, exact=False)
for name in "add sub mul div rsub".split():
    op(name + " number", lambda p, x, f=getattr(torch, name): f(x, n(p)), exact=True)
for name in "neg abs square relu".split():
    op(name, lambda p, x, f=getattr(torch, name): f(x), exact=True)
for name in "floor ceil round trunc sign frac isnan logical_not".split():
    op(name, lambda p, x, f=getattr(torch, name): f(x), exact=True, jumps=True)
for name in "sin cos tanh sigmoid erf atan".split():
    op(name, lambda p, x, f=getattr(torch, name): f(x))
op("gelu", lambda p, x: F.gelu(x.clamp(-9, 9)))  # eager's tail is coarse
for name in "silu mish softplus elu logsigmoid hardswish selu".split():
    op(name, lambda p, x, f=getattr(F, name): f(x))
op("exp", lambda p, x: torch.exp(-x.abs()))
op("log1p", lambda p, x: torch.log1p(x.abs()))
op("sqrt", lambda p, x: (x.abs() + 1).sqrt())
op("rsqrt", lambda p, x: torch.rsqrt(x.abs() + 1))
op("clamp", lambda p, x: x.clamp(-1 - p % 3, 2), exact=True)
op("leaky_relu", lambda p, x: F.leaky_relu(x, 0.1), exact=True)
for name in "lt ge eq ne".split():
    op(name, lambda p, x, y, f=getattr(torch, name): f(x, y), 2, exact=True, jumps=True)
    op(name + " number", lambda p, x, f=getattr(torch, name): f(x, n(p)), exact=True, jumps=True)
op("where", lambda p, x, y, m: torch.where(m > 0, x, y), 3, exact=True, jumps=True)
op("masked_fill", lambda p, x, m: x.masked_fill(m > 0.5, n(p)), 2, exact=True, jumps=True)
for name in "logical_and bitwise_xor bitwise_or".split():
    op(name, lambda p, x, y, f=getattr(torch, name): f(x, y), 2, exact=True, jumps=True)
op("remainder", lambda p, x: x % (3, 0.7, -2)[p % 3], exact=True, jumps=True)
op("floordiv", lambda p, x: x // (3, 0.7, -2)[p % 3], exact=True, jumps=True)
op("to int", lambda p, x: x.clamp(0, 100).nan_to_num(0).to((i64, i32, u8, b1)[p % 4]), exact=True, jumps=True)
op("cast", cast, exact=True)
op("lerp", lambda p, x, y: torch.lerp(x, y, 0.3), 2)
op("addcmul", lambda p, x, y, z: torch.addcmul(x, y, z, value=0.5), 3)
# views and copies
op("t", lambda p, x: x.transpose(0, -1), exact=True)
op("flatten", lambda p, x: x.flatten(), exact=True)
op("reshape", lambda p, x: x.reshape(-1, 1) if p % 2 else x.reshape(1, -1), exact=True)
op("unsqueeze", lambda p, x: x.unsqueeze(dim(p, x)), exact=True)
op("select", lambda p, x: x.select(dim(p, x), p % x.shape[dim(p, x)]), exact=True)
op("slice", lambda p, x: x[..., p % 3 :: 2], exact=True)
op("expand", lambda p, x: x[:1].expand(3, *x.shape[1:]), exact=True)
op("chunk", lambda p, x: x.chunk(2, dim(p, x)), exact=True)
op("contiguous", lambda p, x: x.contiguous(), exact=True)
op("channels last", lambda p, x: x.contiguous(memory_format=torch.channels_last), exact=True)
op("permute", lambda p, x: x.permute(*range(1, x.dim()), 0) if x.dim() else x.permute(), exact=True)
op("reshape any", lambda p, x: x.transpose(0, -1).reshape(x.shape[0], -1), exact=True)
op("split", lambda p, x: x.split(1 + p % 3 + x.shape[dim(p, x)] // 9, dim(p, x)), exact=True)
op("unbind", lambda p, x: x[:4].unbind(dim(p, x) if x.shape[dim(p, x)] < 8 else 0), exact=True)
op("repeat", lambda p, x: x.repeat(2, *[1] * (x.dim() - 1)), exact=True)
op("clone", lambda p, x: x.clone(), exact=True)
op("cat", lambda p, x, y: torch.cat([x, y], dim(p, x)), 2, exact=True)
op("stack", lambda p, x, y: torch.stack([x, y], p % 2), 2, exact=True)
op("flip", lambda p, x: x.flip(dim(p, x)), exact=True)
op("pad", lambda p, x: F.pad(x, (1, p % 3), value=n(p)), exact=True)
op("tril", lambda p, x: x.tril(), exact=True)
op("like", lambda p, x: torch.full_like(x, n(p)) + x, exact=True)
# reductions, norms, products
op("sum", lambda p, x: x.sum(dim(p, x), keepdim=p % 2 == 1))
op("mean", lambda p, x: x.mean(dim(p, x), keepdim=p % 2 == 0))
op("sum all", lambda p, x: x.sum())
op("amax", lambda p, x: x.amax(dim(p, x), keepdim=p % 2 == 1), exact=True)
op("argmax", lambda p, x: x.argmax(dim(p, x)), exact=True, jumps=True)
op("var", lambda p, x: x.var(dim(p, x), correction=0))
op("softmax", lambda p, x: x.softmax(dim(p, x)))
op("log_softmax", lambda p, x: x.log_softmax(-1))
op("layer_norm", lambda p, x: F.layer_norm(x, x.shape[-1:], eps=0.1))
op("cumsum", lambda p, x: x.cumsum(dim(p, x)))
op("matmul", lambda p, x, y: x @ y.mT, 2)
op("linear", lambda p, x, y: F.linear(x, y), 2)
op("scores", lambda p, x, y, z: (x @ y.mT * 0.3).softmax(-1) @ z, 3)
op("self attention", lambda p, x: F.scaled_dot_product_attention(x, x, x, is_causal=p % 2 == 1))
op("heads", lambda p, x: (x.unsqueeze(1) @ x.unsqueeze(1).mT).softmax(-1) @ x.unsqueeze(1))
op("conv2d", lambda p, x: F.conv2d(x, x[:2, :, : 1 + p % 3, :2], stride=1 + p % 2, padding=p % 3))
op("depthwise", lambda p, x: F.conv2d(x, x[:1, :, :2, :2].transpose(0, 1), padding=1, groups=x.shape[1]))
op("max_pool2d", lambda p, x: F.max_pool2d(x, 2, stride=1, padding=p % 2), exact=True)
op("avg_pool2d", lambda p, x: F.avg_pool2d(x, 2, stride=1 + p % 2, padding=p % 2))
op("adaptive_avg_pool2d", lambda p, x: F.adaptive_avg_pool2d(x, 1 + p % 3))
op("batch_norm", lambda p, x: F.batch_norm(x, x.detach()[0, :, 0, 0], x.detach()[0, :, -1, -1].abs() + 1, eps=0.1))
op("group_norm", lambda p, x: F.group_norm(x, 1, eps=0.1))
op("max of dim", lambda p, x: x.max(dim(p, x))[0], exact=True)
op("norm", lambda p, x: x.norm(dim=-1, keepdim=True) + 1)
op("logsumexp", lambda p, x: x.logsumexp(dim(p, x)))
op("std", lambda p, x: (x.var(-1, keepdim=True, correction=0) + 1).sqrt())
op("prod of few", lambda p, x: (x.sigmoid() + 0.5)[..., :3].prod(-1))
op("all", lambda p, x: (x > 0).any(dim(p, x)) ^ (x > -1).all(dim(p, x)), exact=True, jumps=True)
op("gram", lambda p, x: x.mT @ x)
# in place
for name in "add_ mul_ sub_ copy_".split():
    op(name, lambda p, x, y, f=getattr(torch.Tensor, name): f(x, y), 2, exact=True, writes=True)
for name in "add_ mul_ fill_ clamp_min_".split():
    op(name + " number", lambda p, x, f=getattr(torch.Tensor, name): f(x, n(p)), exact=True, writes=True)
for name in "relu_ neg_ zero_".split():
    op(name, lambda p, x, f=getattr(torch.Tensor, name): f(x), exact=True, writes=True)
op("sigmoid_", lambda p, x: x.sigmoid_(), writes=True)
op("setitem", lambda p, x: x.__setitem__((..., 0), n(p)), exact=True, writes=True)
op("setitem tensor", lambda p, x, y: x[..., :1].copy_(y[..., :1]), 2, exact=True, writes=True)
op("iadd part", lambda p, x: x[..., 1:].add_(n(p)), exact=True, writes=True)


# ---- chains ----------------------------------------------------------------------------------------------------------
SHAPES = ((4, 6), (3, 5, 7), (33,), (2, 3, 4, 5), (2, 130), (1, 17), (), (0, 3), (64, 65), (2, 3, 37, 16), (130, 257))
LAYOUTS = (
    lambda m, s: m.x(*s),
    lambda m, s: m.x(*s[::-1]).permute(tuple(range(len(s))[::-1])),
    lambda m, s: m.x(*s[:-1], s[-1] * 2)[..., ::2] if s else m.x(),
    lambda m, s: m.x(*(1 if i == 0 else k for i, k in enumerate(s))),  # broadcasts
    lambda m, s: m.x(*s[1:]),
    lambda m, s: m.t(*s),  # with inf, nan, -0, denormals
    lambda m, s: m.x(),
)
DTYPES = (f32, f32, f32, bf16, f64, f16, i64, i32, u8, b1)
digit = st.integers(0, 7)
inputs_of = st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, len(LAYOUTS) - 1)), min_size=1, max_size=3)
steps_of = st.lists(st.tuples(st.sampled_from(OPS), digit, st.tuples(digit, digit, digit)), min_size=5, max_size=9)


def made(shape, inputs, seed):
    return [LAYOUTS[layout](Maker(dtype, seed * 10 + i), shape) for i, (dtype, layout) in enumerate(inputs)]


def keep(pool, result):
    pool.extend(result if isinstance(result, (tuple, list)) else () if result is None else (result,))


def run(steps, pool, returned):
    pool = list(pool)
    for fn, p, operands in steps:
        result = fn(p, *[pool[i] for i in operands])
        if isinstance(result, (tuple, list)):
            pool.extend(result)
        elif result is not None:
            pool.append(result)
    return [pool[i] for i in returned]


def planned(shape, inputs, wanted):
    """The steps that eager takes, with their operands' places, and which values are exact at the end.

    Newer values are likelier operands: a chain then is one."""
    pool = made(shape, inputs, 1)
    exact, steps = [True] * len(pool), []
    for op, p, places in wanted:
        operands = [len(pool) - 1 - places[0] % min(len(pool), 2), *(len(pool) - 1 - k % len(pool) for k in places[1:])][: op.tensors]
        sure = all(exact[i] for i in operands)
        if len(steps) == 6 or op.jumps and not sure or any(pool[i].numel() > 1 << 17 for i in operands):
            continue
        result, error = attempt(op.fn, (p, *[pool[i] for i in operands]), {})
        if error:
            continue
        # Sums of integers are exact, means and functions of them are not.
        whole = isinstance(result, torch.Tensor) and result.dtype in INTS
        steps.append((op, p, tuple(operands)))
        if op.writes:
            if not (sure and op.exact):
                store = pool[operands[0]].untyped_storage().data_ptr()
                exact = [e and t.untyped_storage().data_ptr() != store for e, t in zip(exact, pool)]
            sure = exact[operands[0]]
        keep(pool, result)
        exact += [sure and (op.exact or whole)] * (len(pool) - len(exact))
    return steps, pool, exact


def check(x, y, reference, eps, size, sure, where):
    Walk().want((x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride()), where, "type", shown(x), shown(y))
    same = (x == y) | (x != x) & (y != y)
    if x.dtype in FLOATS:
        if not sure:
            r, a, b = reference.to(f64), x.to(f64), y.to(f64)
            usual = r.isfinite() & a.isfinite()
            off = (a - r)[usual].abs().max() if usual.any() else 0
            same |= usual & ((a - b).abs() <= 4 * off + 32 * eps * size) | ~usual
    elif not sure:
        return   # an integer sum of something that is not exact
    if not same.all():
        at = tuple((~same).nonzero()[0].tolist())
        raise AssertionError(f"{where}: {int((~same).sum())} of {x.numel()} differ ({'exact' if sure else 'near'}), at {at}: eager {x[at].item()!r}, compiled {y[at].item()!r}")


COUNT = int(os.environ.get("CCOMPILE_CHAINS", "0"))


@settings(
    max_examples=COUNT or 100,
    deadline=None,
    database=None,
    derandomize=not COUNT,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),   # explaining traces: nothing would be compiled
)
@given(st.sampled_from(SHAPES), inputs_of, steps_of, st.integers(0, 2**10 - 1))
def test_chains(shape, inputs, wanted, mask):
    ccompile.reset()
    with torch.no_grad(), warnings.catch_warnings(), verified():
        warnings.simplefilter("ignore")
        steps, pool, exact = planned(shape, inputs, wanted)
        if not steps:
            return
        returned = [i for i in range(len(inputs), len(pool)) if mask >> i % 10 & 1 or i == len(pool) - 1]
        text = f"{[shown(t) for t in made(shape, inputs, 1)]} {[(op.name, p, *operands) for op, p, operands in steps]} -> {returned}"
        calls = [(op.fn, p, operands) for op, p, operands in steps]
        compiled = ccompile.compile(run)
        floats = [t for t in pool if t.dtype in FLOATS]
        eps = max((torch.finfo(t.dtype).eps for t in floats), default=0)
        for seed in (1, 2):
            before = [made(shape, inputs, seed) for _ in range(3)]
            wide = [t.to(f64) if t.dtype in FLOATS else t for t in before[2]]
            eager, error = attempt(run, (calls, before[0], returned), {})
            with replaying(1) if seed == 2 and not error else contextlib.nullcontext():
                got, refused = attempt(compiled, (calls, before[1], returned), {})
            assert error == refused, f"{text}: eager raises {error}, compiled {refused}"
            if error:
                return
            STATE["f64"] = True
            right, failed = attempt(run, (calls, wide, returned), {})
            STATE["f64"] = False
            if failed:   # f64 does not mix with what the chain has
                right = eager
            every = before[0] + eager
            size = max([1.0, *(float(t.to(f64).abs().nan_to_num(0, 0, 0).max()) for t in floats + every if t.dtype in FLOATS and t.numel())])
            size = size if math.isfinite(size) else 1.0
            for i, (x, y, r) in enumerate(zip(every, before[1] + got, wide + right)):
                place = i if i < len(inputs) else returned[i - len(inputs)]
                check(x, y, r, eps, size, exact[place], f"{text}, call {seed}, value {place}")


def test_view_before_a_refused_product():
    x, w = Maker(f32, 1).x(4, 6), Maker(f32, 2).x(1, 6)

    def fn(x, w):
        y = F.linear(x, w.reshape(-1, 6))
        return y + y

    compiled = ccompile.compile(fn)
    with torch.no_grad(), verified():
        for _ in range(2):
            torch.testing.assert_close(compiled(x, w), fn(x, w))
