"""The derivative rows of the op table (CC_OPGRAD): each as the one node of a graph, against autograd of the eager function that
tests the op's own row. Random data, and a grid of the points where derivatives have a kink, a pole or no value."""

from __future__ import annotations

import ctypes
import itertools
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent / "core"))
import core_library  # noqa: E402
import harness  # noqa: E402
import test_core  # noqa: E402
import test_reduce  # noqa: E402
from harness import Graph  # noqa: E402

SHAPE = (32, 40)
INF, NAN = float("inf"), float("nan")
KINKS = [0.0, -0.0, 0.3, -0.3, 0.5, -0.5, 0.7, -0.7, 1.0, -1.0, 2.0, 3.0, -3.0, 6.0, 20.0, 100.0, -100.0, INF, -INF, NAN, 1e-30, -1e-30]
# (op, operand) without a rule although autograd differentiates the function that tests the op
WITHOUT = {
    ("norm_eval", 3): "running statistics have no gradient",
    ("norm_eval", 4): "running statistics have no gradient",
    ("running", 0): "running statistics have no gradient",
    ("running", 1): "running statistics have no gradient",
    ("nll_whole", 2): "nll_loss, which eager calls as well, has no derivative for weights",
    ("nll_mean", 4): "nll_loss has no derivative for weights",
    **{(op, 0): "a rule of grad/rules.c" for op in ("cast", "cast_like", "copy")},
}
# Eager has an error of its own: it cancels; of celu it takes 1 / alpha in float.
LOSE = {"sinc": 1000, "celu": 1e9}
FINITE = {"norm_eval", "cosine_target"}  # the function that tests it adds other parts up: NaN for more infinite gradients


@pytest.fixture
def lib(core):
    return informed(core)


@pytest.fixture(scope="session")
def core(tmp_path_factory):
    return harness.load(core_library.built(tmp_path_factory))


# ------------------------------------------------------------------------------------------------ formulas of torch's versions


def formulas(lib):
    """(number, name) of each row of formula.def"""
    found = itertools.takewhile(lambda item: item[1], ((f, lib.t_formula_name(f)) for f in itertools.count()))
    return [(f, name.decode()) for f, name in found]


def points(lib, f):
    """the operands about which torch is asked: tensors and numbers"""
    columns = [[lib.t_formula_point(f, k, i) for i in range(64)] for k in range(lib.t_formula_operands(f))]
    return [torch.tensor(c) if k < lib.t_formula_tensors(f) else c[0] for k, c in enumerate(columns)]


def with_gradients(lib, f, name):
    """what torch itself gives there, for each tensor"""
    args = [a.requires_grad_() if torch.is_tensor(a) else a for a in points(lib, f)]
    return torch.autograd.grad(ASKED[name](*args).sum(), [a for a in args if torch.is_tensor(a)])


ASKED = {
    "clamp_number": torch.clamp, "clamp_tensor": torch.clamp, "min_number": torch.clamp_min, "min_tensor": torch.clamp_min,
    "max_number": torch.clamp_max, "max_tensor": torch.clamp_max, "fmin": torch.fmin, "fmax": torch.fmax,
}  # fmt: skip


def informed(lib):
    """The library, knowing which formulas this torch has (ir/formula.def)."""
    learn(lib, {name: with_gradients(lib, f, name) for f, name in formulas(lib)})
    return lib


def learn(lib, gradients):
    """gradients: by the name of a formula"""
    lib.t_formula_forget()
    for f, name in formulas(lib):
        grads = [g.contiguous() for g in gradients.get(name, ())]
        if grads:
            lib.t_formula_learn(f, (ctypes.c_void_p * 3)(*(g.data_ptr() for g in grads)))


def smaller(g, a, b):
    return torch.where(a > b, 0, torch.where(a == b, g / 2, g))


def both_of_clamp(g, x, b, c):
    half = lambda t: (x == t) & (b < c)  # noqa: E731
    return (
        torch.where((x < b) | (x > c), 0, torch.where(half(b) | half(c), g / 2, g)),
        torch.where((x < b) & (b <= c), g, torch.where(half(b), g / 2, 0)),
        torch.where((b > c) | ((x > c) & (b <= c)), g, torch.where(half(c), g / 2, 0)),
    )


# name -> the gradients by the formulas of torch 2.13 and of 2.14 (derivatives.yaml), given that of the result and the operands
OF_TORCH = {
    "clamp_number": (lambda g, x, b, c: (g.where((x >= b) & (x <= c), 0),), lambda g, x, b, c: (g.where((x > b) & (x < c), 0),)),
    "clamp_tensor": (lambda g, x, b, c: (g.where((x >= b) & (x <= c), 0), g.where((x < b) & (b < c), 0), g.where((c < b) | (x > c), 0)), both_of_clamp),
    "min_number": (lambda g, x, b: (g.where(x >= b, 0),), lambda g, x, b: (g.where(x > b, 0),)),
    "min_tensor": (lambda g, x, b: (g.where(x >= b, 0), g.where(x < b, 0)), lambda g, x, b: (smaller(g, -x, -b), smaller(g, -b, -x))),
    "max_number": (lambda g, x, b: (g.where(x <= b, 0),), lambda g, x, b: (g.where(x < b, 0),)),
    "max_tensor": (lambda g, x, b: (g.where(x <= b, 0), g.where(x > b, 0)), lambda g, x, b: (smaller(g, x, b), smaller(g, b, x))),
    "fmin": (lambda g, x, b: (g.where((x <= b) | b.isnan(), 0), g.where(~((x <= b) | b.isnan()), 0)), lambda g, x, b: (smaller(g, x, b), smaller(g, b, x))),
    "fmax": (lambda g, x, b: (g.where((x >= b) | b.isnan(), 0), g.where(~((x >= b) | b.isnan()), 0)), lambda g, x, b: (smaller(g, -x, -b), smaller(g, -b, -x))),
}  # fmt: skip


def by_formula(name, version):
    """The function about which torch is asked, with the derivative of that version of torch."""
    class By(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.save_for_backward(*(a for a in args if torch.is_tensor(a)))
            ctx.numbers = [a for a in args if not torch.is_tensor(a)]
            return ASKED[name](*args)

        @staticmethod
        def backward(ctx, g):
            return (*OF_TORCH[name][version](g, *ctx.saved_tensors, *ctx.numbers), *[None] * len(ctx.numbers))

    return By.apply


def composed(version):
    """(op, function of what it is composed of, what its operands are)"""
    positive = lambda x: by_formula("min_number", version)(x, 0)  # noqa: E731
    hinged = lambda a, b, c: torch.where(b != 1, positive(c - a), 0) + torch.where(b != -1, a, 0)  # noqa: E731
    ranked = lambda a, b, c, d: positive(-c * (a - b) + d)  # noqa: E731
    yield from (("hinge_embedding_loss", hinged, ("u", "u", 0.5)), ("margin_ranking_loss", ranked, ("u", "u", "u", 0.5)))
    for loss, fn, kinds in (("hinge_embedding_loss", hinged, ("u", "u", 0.5, 3)), ("margin_ranking_loss", ranked, ("u", "u", "u", 0.5, 3))):
        yield f"{loss}_mean", lambda *a, fn=fn: fn(*a[:-1]).mean(), kinds
        yield f"{loss}_sum", lambda *a, fn=fn: fn(*a[:-1]).sum(), kinds
    yield "beyond", lambda a, b, c: positive(c + a - b), ("u", "u", 0.5)
    yield "cosine_target", cosines(positive), ("t", "t", 1, "y", 0.3)


def cosines(positive):
    def loss(x, y, _, target, margin):
        norms = ((x * x).sum(1, True) + 1e-12) * ((y * y).sum(1, True) + 1e-12)
        cosine = (x * y).sum(1, True) / norms.sqrt()
        return torch.where(target == 1, 1 - cosine, 0) + torch.where(target == -1, positive(cosine - margin), 0)

    return loss


def by_formulas():
    """each row of an op that has two formulas, by either of them"""
    of = {"min": "clamp_min", "max": "clamp_max", "clamp": "clamp", "fmin": "fmin", "fmax": "fmax"}
    numbers = {"clamp": (-0.5, 0.7), "min": (0.3,), "max": (0.3,)}
    for version, is_from in enumerate(("2.13", "2.14")):
        for name in OF_TORCH:
            op = name.split("_")[0]
            kinds = ("t", *numbers[op]) if name.endswith("number") else "ttt" if op == "clamp" else "tt"
            for i in range(sum(k == "t" for k in kinds)):
                yield pytest.param(of[op], by_formula(name, version), kinds, i, version, id=f"{name}-{'abc'[i]}-{is_from}")
        for op, fn, kinds in composed(version):
            for i in range(2 + ("ranking" in op) - ("hinge" in op)):
                yield pytest.param(op, fn, kinds, i, version, id=f"{op}-{'abc'[i]}-{is_from}")


@pytest.mark.parametrize("op,fn,kinds,operand,version", list(by_formulas()))
def test_formula(core, monkeypatch, op, fn, kinds, operand, version):
    """Each formula, whichever this torch has."""
    grads = {name: OF_TORCH[name][version](torch.ones(64), *points(core, f)) for f, name in formulas(core)}
    learn(core, grads)
    args, result, grad, want = eager(op, fn, kinds, operand, torch.float32)
    g = graph(core, op, fn, args, operand, result, grad, want)
    for backend in ("llvm", "ref"):
        monkeypatch.setenv("CCOMPILE_BACKEND", backend)
        (got,) = g.compile().run()
        assert not g.called, g.plan_text()
        same(op, got.sum_to_size(want.shape), want)


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_formula_that_is_not_known(core, name):
    """A gradient that neither formula gives, or two answers that differ: the op has no derivative."""
    f = next(f for f, n in formulas(core) if n == name)
    grads = [OF_TORCH[name][version](torch.ones(64), *points(core, f)) for version in (0, 1)]
    wrong = (*grads[0][:-1], torch.where(torch.arange(64) == 1, 0.125, grads[0][-1]))
    op = next(p.values for p in by_formulas() if p.id.startswith(f"{name}-a"))[0]
    args = [torch.ones(2) if k < core.t_formula_tensors(f) else 0.25 for k in range(core.t_formula_operands(f))]
    g = Graph(core)
    g.op(op, lambda *_: torch.ones(2), *[g.input(a) if torch.is_tensor(a) else a for a in args])
    rows = []
    for given in ([], [grads[0]], [grads[0]] * 2, [grads[1]], [grads[1]] * 2, [wrong], grads, [grads[1], grads[0], grads[0]]):
        core.t_formula_forget()
        for each in given:
            core.t_formula_learn(f, (ctypes.c_void_p * 3)(*(t.data_ptr() for t in each)))
        rows.append(core.t_formula_grad(g.g, 0, 0))
    assert rows[0] == rows[1] == rows[2] and rows[3] == rows[4] and 0 != rows[0] != rows[3] != 0
    assert rows[5:] == [0, 0, 0]


def functions():
    """(op, function, what the operands are) of each row"""
    loss = test_core.loss
    share = [loss(F.binary_cross_entropy, "s", "s"), loss(F.binary_cross_entropy, "s", "s", weight="u")]
    more = {"bce_each": share, "masked_fill": [(torch.masked_fill, "tmz")], "clamp": [(torch.clamp, ("t", "t", None))]}
    for op, cases in sorted(test_core.ROWS.items()):
        for fn, kinds in [*cases, *more.get(op, [])]:
            yield op, fn, kinds
            if "_loss" in op or op.split("_")[0] in ("bce", "kl", "poisson"):
                dims = (*kinds, (1 << len(SHAPE)) - 1)
                yield f"{op}_mean", lambda *a, fn=fn: fn(*a[:-1]).mean(), dims
                yield f"{op}_sum", lambda *a, fn=fn: fn(*a[:-1]).sum(), dims


def reductions():
    """the same of ops that reduce; results keep the reduced dims"""
    for d in (1, 0, None):
        dims = test_reduce.bits(2, d)
        for op in "sum mean amax amin logsumexp prod softmax log_softmax var std".split():
            if d is not None or "softmax" not in op:
                # eager's derivative of prod asks for a zero anywhere in the tensor; that decides what infinities become
                yield op, lambda x, _, f=test_reduce.OPS[op], d=d: f(x, d, True), ("f" if op == "prod" else "t", dims)
        for op in ("var", "std"):
            yield op, lambda x, _, c, f=getattr(torch, op), d=d: f(x, d, correction=c, keepdim=True), ("t", dims, 0)
        for order in (2, 1, 0, INF, -INF, 0.5, 1.5, 3):
            yield "norm", lambda x, o, _, d=d: torch.linalg.vector_norm(x, o, d, True), ("t", order, dims)
        for op in ("nansum", "nanmean"):
            yield op, lambda x, _, f=getattr(torch, op), d=d: f(x, d, True), ("t", dims)
        for op in ("dot", "vecdot"):
            yield op, lambda x, y, _, d=d: (x * y).sum(d, True), ("t", "t", dims)
        yield "batch_mean", lambda x, _, d=d: x.mean(d, True), ("t", dims)
    for fn, op in ((torch.max, "amax"), (torch.min, "amin")):
        for kind in "tf":   # with NaNs and without
            yield op, lambda x, *_, f=fn: f(x), (kind, 3, 1)
    yield "dist", lambda x, y, _: torch.dist(x, y), ("t", "t", 3)
    for op, p in (("pairwise_distance", 2.0), ("pairwise_l1", 1.0)):
        yield op, lambda x, y, e, _, p=p: F.pairwise_distance(x, y, p, e, True), ("t", "t", 1e-3, 1)
    for d in (1, 0):
        yield "cosine_similarity", lambda x, y, _, e, d=d: F.cosine_similarity(x, y, d, e).unsqueeze(d), ("t", "t", 2 - d, 1e-3)
    yield "batch_centre", lambda x, _, m: m.sign() + x.mean(0, True), ("t", 2, "r")
    yield "batch_spread", lambda x, _, m: (x - m).square().mean(0, True), ("t", 2, "r")
    for w, b in (("w", "w"), (None, None)):
        yield "layer_norm", lambda x, _, w, b, e: F.layer_norm(x, x.shape[-1:], w, b, e), ("t", 1, w, b, 1e-3)
        yield "rms_norm", lambda x, _, w, e: F.rms_norm(x, x.shape[-1:], w, e), ("t", 1, w, 1e-3)
    yield "rms_norm", lambda x, _: F.rms_norm(x, x.shape[-1:]), ("t", 1)
    yield from class_losses()


def class_losses():
    """as pass/losses.c splits them: the loss of each row"""
    def rowwise(fn):
        return lambda x, _, at, step, t, classes, *more: fn(x, t[:, 0], *more[1:]).unsqueeze(1)

    picked = ("t", 1, lambda x: x[:, :1], 1, "c", SHAPE[1], None)
    yield "nll", rowwise(lambda x, t: F.cross_entropy(x, t, reduction="none")), picked
    for op, p in (("class_margin", 1), ("class_margin_square", 2)):
        yield op, rowwise(lambda x, t, m, p=p: F.multi_margin_loss(x, t, p, m, reduction="none")), (*picked, 0.7)
    yield ("cosine_target", lambda x, y, _, t, m: F.cosine_embedding_loss(x, y, t[:, 0], m, reduction="none").unsqueeze(1),
           ("t", "t", 1, "y", 0.3))  # fmt: skip
    yield "nll_class", lambda x, _, t: F.nll_loss(x, t[:, 0], reduction="none").unsqueeze(1), ("t", 1, "c")
    yield "nll_whole", lambda x, _: -x.log_softmax(1).sum(1, True), ("t", 1)
    yield "nll_whole", lambda x, _, w: -(x.log_softmax(1) * w).sum(1, True), ("t", 1, "w")
    yield "nll_soft", lambda x, _, t: F.cross_entropy(x, t, reduction="none").unsqueeze(1), ("t", 1, "s")
    yield ("nll_soft", lambda x, _, t, w, keep, spread: -(x.log_softmax(1) * (t * keep + spread) * w).sum(1, True),
           ("t", 1, "s", "w", 0.9, 0.1 / SHAPE[1]))  # fmt: skip
    for w in (None, "t"):
        yield "nll_mean", lambda a, _, t, n, w=None: mean_unless(a, t == n, w), ("t", 3, "i", 2, w)


def mean_unless(a, ignored, w):
    weights = torch.ones_like(a) if w is None else w
    return a.masked_fill(ignored, 0).sum() / weights.masked_fill(ignored, 0).sum()


def rows():
    """the same for each operand that may have a derivative"""
    for case, (op, fn, kinds) in enumerate([*functions(), *reductions()]):
        for i, kind in enumerate(kinds):
            if isinstance(kind, str) and kind not in "micy":
                yield pytest.param(op, fn, kinds, i, id=f"{op}-{'abcdefghij'[i]}-{case}")


def data(kind, dtype, i):
    """s: in [0, 1], f: 0, or +-[0.5, 1.5], z: 0-dim, w: a row, r: the same with two dims, c: a class of each row, y: 1 or -1 for each, as in test_core else. Random; the first rows and columns cross the kinks of the first two operands."""
    if kind == "z":
        return torch.tensor(0.7, dtype=dtype)
    if kind == "y":
        return (torch.arange(SHAPE[0]) % 2 * 2 - 1).to(dtype).unsqueeze(1)
    if kind == "c":
        return torch.randint(0, SHAPE[1], (SHAPE[0], 1), generator=torch.Generator().manual_seed(i))
    if kind in ("w", "r"):
        return data("u", dtype, i)[-1 if kind == "w" else slice(-1, None)]
    if kind == "s":
        t = torch.rand(SHAPE, generator=torch.Generator().manual_seed(i), dtype=torch.float64).to(dtype)
        t[0, :4] = torch.tensor([0, 1, 1e-30, 0.5], dtype=torch.float64).to(dtype).roll(i)
        return t
    if kind == "f":
        t = data("t", dtype, i)
        return t.nan_to_num(1, 1, -1).sign() * (0.5 + 1 / (1 + t.nan_to_num(1, 1, 1).abs()))
    t = test_core.tensor(kind, dtype, SHAPE, i)
    if kind in "mi":
        return t
    kinks, n = torch.tensor(KINKS, dtype=torch.float64).to(dtype), len(KINKS)
    t = torch.where(t.isfinite() & (t.abs() > 1e-20), t, 0.4)
    t[:n, :n] = kinks[:, None] if i == 0 else kinks[None, :] if i == 1 else kinks.roll(i)[None, :]
    return t


def upstream(like, finite):
    g = torch.randn(like.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64).to(like.dtype)
    if like.numel() > 20 and not finite:
        g.view(-1)[-6:] = torch.tensor([0.0, 0.0, INF, -INF, NAN, NAN])
    return g


def eager(op, fn, kinds, operand, dtype, through=None):
    """-> operands, result, its gradient, the operand's gradient (None: there is none); through: computes in this dtype"""
    args = [data(k, dtype, i) if isinstance(k, str) else k for i, k in enumerate(kinds)]
    args = [a(args[0]) if callable(a) else a for a in args]
    taken = [a.to(through) if through and torch.is_tensor(a) and a.dtype is dtype else a for a in args]
    taken[operand] = taken[operand].clone().requires_grad_()
    result = fn(*taken)
    if not result.requires_grad:
        return args, result, None, None
    grad = upstream(result.detach().to(dtype) if through else result, op in FINITE)
    try:
        (want,) = torch.autograd.grad(result, taken[operand], grad.to(result.dtype), allow_unused=True)
    except RuntimeError:  # not implemented
        want = None
    return args, result.detach(), grad, want


def graph(lib, op, fn, args, operand, result, grad, want):
    """-> a graph of the derivative; None: the row has none"""
    if op == "clamp" and None in (*args, *[None] * (3 - len(args))):  # grad/rules.c does the same
        op, operand = ("clamp_min", operand) if args[1] is not None else ("clamp_max", min(operand, 1))
        args = [a for a in args if a is not None]
    at = ctypes.c_int()
    if not lib.t_grad(op.encode(), operand, ctypes.byref(at)):
        return None
    if op.endswith(("_mean", "_sum")):  # the dims are the last operand
        args = [*args[:-1], *[None] * (at.value - len(args)), args[-1]]
    forward = Graph(lib)
    forward.op(op, lambda *_: result, *[forward.input(a) if torch.is_tensor(a) else a for a in args])
    row = lib.t_formula_grad(forward.g, 0, operand)
    shape = torch.broadcast_shapes(*[a.shape for a in args if torch.is_tensor(a)])
    wide = (1,) * (len(shape) - grad.dim())
    given = [*args, *[None] * (at.value - len(args)), grad.view(*wide, *grad.shape), result.view(*wide, *result.shape)]
    g = Graph(lib)
    reads = [lib.t_grad_reads(forward.g, 0, row, i) for i in range(len(given))]
    if g.lib.t_op(row).contents.kind == 1 and not any(r and torch.is_tensor(x) and x.shape == shape for r, x in zip(reads, given, strict=True)):
        given[at.value] = grad.expand(shape)
    ops = [(g.input(x) if torch.is_tensor(x) else x) if read else None for x, read in zip(given, reads, strict=True)]
    g.out(g.op(lib.t_op(row).contents.name.decode(), lambda *_: want.to(grad.dtype).expand(shape).contiguous(), *ops))
    return g


def as_exact(got, want, exact, eps):
    """Element by element near to eager's, or to what eager gives in f32, or as near to that as eager's."""
    def near(x, y):
        return (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= 8 * eps * y.abs() + eps * 5e-2)

    got, want, exact = got.double(), want.double(), exact.to(want.dtype).double()
    good = near(got, want) | near(got, exact) | ((got - exact).abs() <= 2 * (want - exact).abs())
    assert good.all(), [x[~good][:8].tolist() for x in (got, want, exact)]


def same(op, got, want):
    eps = torch.finfo(want.dtype).eps * (LOSE.get(op, 1) if op != "celu" or want.dtype is torch.float64 else 1)
    torch.testing.assert_close(got, want, rtol=32 * eps, atol=128 * eps, equal_nan=True)


@pytest.mark.parametrize("dtype", test_core.FLOATS, ids=lambda d: str(d).split(".")[1])
@pytest.mark.parametrize("op,fn,kinds,operand", rows())
def test_row(lib, monkeypatch, op, fn, kinds, operand, dtype):
    half = dtype in (torch.bfloat16, torch.float16)
    try:
        args, result, grad, want = eager(op, fn, kinds, operand, dtype)
    except (RuntimeError, NotImplementedError, TypeError):
        pytest.skip("eager refuses")
    if want is None:
        pytest.skip("no derivative")
    g = graph(lib, op, fn, args, operand, result, grad, want)
    if g is None:
        assert (op, operand) in WITHOUT, f"{op} has no derivative for operand {operand}"
        pytest.skip(WITHOUT[op, operand])
    status, text = g.check()
    assert status == 0, text
    for backend in ("llvm", "ref"):
        monkeypatch.setenv("CCOMPILE_BACKEND", backend)
        (got,) = g.compile().run()
        if g.called and half and op == "softshrink":  # its number has other bits in this dtype
            continue
        assert not g.called, g.plan_text()
        got = got.to(want.dtype).sum_to_size(want.shape)
        if half:
            as_exact(got, want, eager(op, fn, kinds, operand, dtype, torch.float32)[3], 2.0**-8 if dtype is torch.bfloat16 else 2.0**-11)
        else:
            same(op, got, want)


NO_DERIVATIVE = {
    **dict.fromkeys("fill fill_like arange linspace eye".split(), "reads no tensor"),
    **dict.fromkeys("any all count_nonzero div_floor heaviside hot rprod".split(), "autograd refuses, or the result is no float"),
    **dict.fromkeys("take take_both".split(), "scatters"),
    **dict.fromkeys("so_far_max so_far_min".split(), "scatters, with the indices of cummax"),
    **dict.fromkeys("cumsum cumprod logcumsumexp".split(), "scans from the other end"),
    "running": "running statistics have no gradient",
    **dict.fromkeys("cast cast_like copy".split(), "a rule of grad/rules.c"),
    **dict.fromkeys("batch_dx batch_dw".split(), "a derivative itself"),
}


def test_each_expression_has_a_derivative_or_a_reason(lib):
    at = ctypes.c_int()
    for row in (lib.t_op(i).contents for i in range(1, lib.t_op_rows())):
        if not row.expr or b"_grad_" in row.name or row.promote[:3] in (b"cmp", b"tes", b"int"):
            continue
        derived = any(lib.t_grad(row.name, i, ctypes.byref(at)) for i in range(10))
        assert derived != (row.name.decode() in NO_DERIVATIVE), row.name


def test_each_derivative_is_tested(lib):
    tested = {f"{p.values[0]}_grad_{'abcdefghij'[p.values[3]]}" for p in rows()}
    tested |= {f"{p.values[0]}_grad_{n if n in OF_TORCH else 'min_number'}_{'abc'[p.values[3]]}" for p in by_formulas() for n in [p.id.split("-")[0]]}
    names = {lib.t_op(i).contents.name.decode() for i in range(1, lib.t_op_rows())}
    untested = {n for n in names if "_grad_" in n} - tested
    assert untested <= {"dropped_grad_a"}, untested  # test_training.py
