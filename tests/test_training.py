"""Compiled training: forward and backward of stages (csrc/eval/training.c, csrc/grad) against eager autograd.

FUNCTIONS holds pure functions of x [2, 4, 6], w [6, 6] and b [6]; each is compared with eager call by call: results, all
gradients, and for some of the outputs or inputs alone. Below, what autograd promises beyond values."""

import copy
import gc
import itertools
import weakref

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER, autograd_nodes, resident
from torch import nn

F32 = {"rtol": 1e-4, "atol": 2e-5}


def inputs(dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(*shape, generator=g, dtype=torch.float64) * 0.5).to(dtype).requires_grad_() for shape in ((2, 4, 6), (6, 6), (6,))]


def causal(q, k, v, **options):
    return F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), **options)


MASK = torch.ones(4, 4, dtype=torch.bool).tril()
FUNCTIONS = {
    "pointwise": lambda x, w, b: torch.tanh(x * b) * torch.sigmoid(x + 1) / (1 + x * x),
    "product": lambda x, w, b: torch.tanh(x @ w + b) * 2,
    "linear": lambda x, w, b: F.linear(F.gelu(F.linear(x, w, b)), w) * x,
    "linear_of_a_vector": lambda x, w, b: torch.tanh(F.linear(x[0, 0], w, b)) * 2 + b,
    "addmm": lambda x, w, b: torch.addmm(b, x[0], w).sin() * 2 + torch.addmm(b, x[1], w.t()),
    "matrix_and_vector": lambda x, w, b: (torch.tanh(x) @ b).exp() * 1.5,
    "vector_and_matrix": lambda x, w, b: ((b * 2) @ w).exp() * b,
    "vectors": lambda x, w, b: torch.dot(b * 2, x[0, 0].exp()) * b.sum(),
    "batches": lambda x, w, b: torch.bmm(x * b, (x * 2).transpose(1, 2)).tanh() * 3,
    "batch_by_broadcast": lambda x, w, b: torch.matmul((x * b).unsqueeze(1), (w * 2).expand(3, 6, 6)).sin(),
    "transposed_weight": lambda x, w, b: (x @ w.t()).relu() @ (w * 2).t() + b,
    "broadcast": lambda x, w, b: (x * b + w[0]) / (1 + b * b) + b.view(1, 1, 6) * x[:, :1],
    "scalar": lambda x, w, b: x * b.sum() + (w.mean() * 2).exp(),
    "shapes": lambda x, w, b: (x.transpose(1, 2).reshape(2, -1) * 3).sigmoid().view(4, 12) * 2,
    "permuted": lambda x, w, b: (x * b).permute(2, 0, 1).exp() * torch.sin(x).permute(2, 0, 1),
    "squeezed": lambda x, w, b: (x * b).unsqueeze(0).squeeze(0).unsqueeze(-1).cos().squeeze(-1) * 2,
    "expanded": lambda x, w, b: (b.expand(2, 4, 6) * x + b.view(1, 1, 6)).relu() * 2,
    "joined": lambda x, w, b: torch.cat([x * b, x + b, (x * 2).sin()], -1).exp() * 0.1,
    "stacked": lambda x, w, b: torch.stack([x * b, x.exp()], 1).sin() * 2,
    "split": lambda x, w, b: (lambda u, v: u * torch.sin(v) * b[:2])(*torch.split(x * b, [2, 4], -1)[0:1], (x * b)[..., 2:4]),
    "chunks": lambda x, w, b: (lambda u, v, z: u.sin() * v + z.exp() * 0)(*(x * b).chunk(3, -1)),
    "one_chunk": lambda x, w, b: (x * b).chunk(3, -1)[1].exp() * 2,
    "unbound": lambda x, w, b: (lambda u, v: u * v.sin())(*(x * b).unbind(0)) + 1,
    "selected": lambda x, w, b: (x * b)[:, 1] * 2 + (x + b)[:, 0, :].cos() * (x * 2)[:, -1],
    "sliced": lambda x, w, b: (x * b)[:, 1:3] * 2 + (x + b)[:, 0:2].cos() * (x * 2)[:, -2:],
    "where": lambda x, w, b: torch.where(x > 0, x * b, x.exp() * b) * 2,
    "masked": lambda x, w, b: (x * b).masked_fill(x > 0.3, -1.0).exp() * b,
    "softmax": lambda x, w, b: torch.softmax(x @ w, -1) * x + torch.softmax(x * b, 1),
    "log_softmax": lambda x, w, b: torch.log_softmax(x @ w, -1) * x,
    "layer_norm": lambda x, w, b: F.layer_norm(x @ w, (6,), b, b * 2) * x,
    "layer_norm_of_two_dims": lambda x, w, b: F.layer_norm(x * b, (4, 6)) * x.exp(),
    "rms_norm": lambda x, w, b: F.rms_norm(x @ w, (6,), b) * x,
    "reductions": lambda x, w, b: (x * b).sum(1) * x.mean((0, 1)) + (x * x).sum() + x.exp().mean(1, keepdim=True).squeeze(1),
    "extremes": lambda x, w, b: (x * b).amax(-1) * x.amin(-1) + (x * 2).logsumexp(-1),
    "variance": lambda x, w, b: (x * b).var(-1, keepdim=True) * x + x.std(1, keepdim=True) * (x * x).norm(dim=-1, keepdim=True),
    "attention": lambda x, w, b: causal(x * b, x @ w, x.exp() * 2) * 3,
    "attention_causal": lambda x, w, b: causal(x * b, x @ w, x.exp() * 2, is_causal=True, scale=0.7) * 3,
    "attention_masked": lambda x, w, b: causal(x * b, x @ w, x.exp() * 2, attn_mask=MASK) * 3,
    "attention_biased": lambda x, w, b: causal(x * b, x @ w, x.exp() * 2, attn_mask=MASK.to(x.dtype)) * 3,
    "attention_spelled_out": lambda x, w, b: torch.softmax((x @ w) @ (x * b).transpose(1, 2) / 2.4, -1) @ (x.exp() * 2),
    "cross_entropy": lambda x, w, b: F.cross_entropy((x @ w).view(8, 6) * 2, torch.tensor([0, 1, 2, 3, -100, 5, 1, 1])) * b,
    "cross_entropy_sum": lambda x, w, b: F.cross_entropy((x @ w).view(8, 6) * 2, torch.arange(8) % 6, reduction="sum") * 2,
    "cross_entropy_each": lambda x, w, b: F.cross_entropy((x @ w).view(8, 6) * 2, torch.arange(8) % 6, reduction="none") * x[0, 0, 0],
    "losses": lambda x, w, b: F.mse_loss(x * b, x.detach() + 1) + F.l1_loss(x @ w, x) + F.smooth_l1_loss(x * 3, x @ w),
    "cast": lambda x, w, b: ((x * b).float().exp() * 2).double() * x,
    "detached": lambda x, w, b: (x * b).detach() * x + (x * b * 2).exp(),
    "diamond": lambda x, w, b: (lambda h: h * h.sin() + h.exp() * (h @ w))(x * b),
    "used_twice": lambda x, w, b: (lambda h: h * h * h + h)(x * b + x),
    "unused_input": lambda x, w, b: (x * x).exp() * 2 + 1,
    "an_input_is_a_result": lambda x, w, b: (x, (x * b).exp() * 2),
    "a_result_feeds_another": lambda x, w, b: (lambda h: (h, (h.exp() * b + h).sin()))(torch.tanh(x @ w) * 2),
    "three_in_a_row": lambda x, w, b: (lambda h: (lambda i: (h, i, (i * w[0]).cos() * 2))((h * h + 1).log() * b))(x * b + x.exp()),
    "independent_results": lambda x, w, b: ((x @ w).relu() * 2 + 1, (x * b).exp() * 3 + x, [(b * b).sin() * w.sum(), 3]),
    "a_view_is_a_result": lambda x, w, b: (lambda h: (h.transpose(1, 2), h.view(-1)))((x * b).exp() * 2 + x),
    "integers": lambda x, w, b: ((x * b).exp() * 2, (x * b).argmax(-1), x > 0),
    "a_loop": lambda x, w, b: [x := torch.tanh(x @ w) + x * b for _ in range(4)][-1],
    "conditions": lambda x, w, b: ((x * b).exp() if x.shape[0] == 2 else x) * 3 + x * 2,
    "no_grad_inside": lambda x, w, b: quiet(x, w) * (x * b).exp() + x * 2 - b,
    "an_op_without_a_rule": lambda x, w, b: torch.cumsum((x * b).exp() * 2, 1).flip(1) * x + torch.kron(b * 2, b)[:6].sin() * b,
}


def quiet(x, w):
    with torch.no_grad():
        return torch.tanh(x @ w) * 2 + 1


def differentiable(results):
    return [r for r in torch.utils._pytree.tree_leaves(results) if isinstance(r, torch.Tensor) and r.requires_grad]


def gradients(results, args, weights, only=None):
    """Of a weighted sum of the results; `only`: of some."""
    results = differentiable(results)
    chosen = [(r, w) for i, (r, w) in enumerate(zip(results, weights, strict=True)) if only is None or i in only]
    return torch.autograd.grad(sum((r * w).sum() for r, w in chosen), args, allow_unused=True)


def close(got, want, what, tolerance):
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a is None) == (b is None), f"{what} {i}"
        if a is not None:
            torch.testing.assert_close(a, b, msg=lambda m, i=i: f"{what} {i}: {m}", **tolerance)


def stages(fn):
    """Lines of the plans that say which stages there are."""
    segments = [s for e in compiled_of(fn).report()["entries"] for s in e["segments"]]
    return [line for s in segments for line in s["plan_text"].splitlines() if line.startswith("stage ")]


def three_calls(fn, f, inputs, tolerance):
    """Compares results and gradients of calls with inputs(0), inputs(1), inputs(2) -> the last arguments, and weights of the results"""
    for i in range(3):
        args = inputs(i)
        want, got = f(*args), fn(*args)
        weights = [torch.randn(r.shape, dtype=r.dtype) for r in differentiable(want)]
        close(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), "result", tolerance)
        close(gradients(got, args, weights), gradients(want, args, weights), "gradient", tolerance)
    return args, weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name, dtype):
    if dtype == torch.float32 and name == "cast":
        pytest.skip("casts between float64 and float32")
    f, tolerance = FUNCTIONS[name], F32 if dtype == torch.float32 or name == "cast" else {"rtol": 1e-9, "atol": 1e-10}
    fn = ccompile.compile(f)
    args, weights = three_calls(fn, f, lambda i: inputs(dtype, seed=i), tolerance)
    for only in itertools.combinations(range(len(weights)), max(len(weights) - 1, 1)):
        close(gradients(fn(*args), args, weights, only), gradients(f(*args), args, weights, only), f"of results {only}: gradient", tolerance)
    for arg in args:
        close(gradients(fn(*args), [arg], weights), gradients(f(*args), [arg], weights), "alone: gradient", tolerance)
    if not EAGER and dtype == torch.float32:  # no library multiplies matrices in f64
        assert stages(fn), compiled_of(fn).report()["entries"]


@pytest.mark.parametrize("name", ["product", "linear", "layer_norm", "diamond", "three_in_a_row", "softmax", "shapes"])
def test_second_derivatives(name):
    """create_graph=True: torch runs the stage's ops again, and what comes of it is differentiable."""
    f = FUNCTIONS[name]
    fn = ccompile.compile(f)
    for i in range(3):
        args = inputs(seed=i)
        both = []
        for g in (fn, f):
            loss = sum(r.square().sum() for r in differentiable(g(*args)))
            first = torch.autograd.grad(loss, args, create_graph=True, allow_unused=True)
            second = torch.autograd.grad(sum((a * a.detach().cos()).sum() for a in first if a is not None), args, allow_unused=True)
            both.append([a for a in (*first, *second)])
        close(*both, "derivative", {"rtol": 1e-8, "atol": 1e-9})


@pytest.mark.parametrize("kind", [list, tuple])
def test_second_derivatives_of_a_modules_own_list(kind):
    """The op takes the list itself, which may also change before the backward."""

    class Stacked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = kind(torch.nn.Parameter(torch.randn(3)) for _ in range(3))

        def forward(self, x):
            return (torch.stack(self.parts) * x).tanh().exp().sum()

    model = Stacked()
    compiled, parts = ccompile.compile(model), [*model.parts]
    for i in range(4):
        x, both = torch.randn(3), []
        for f in (model, compiled):
            y = f(x)
            model.parts = kind(reversed(parts)) if i == 1 else model.parts
            if kind is list and i == 2:
                model.parts.reverse()
            first = torch.autograd.grad(y, parts, create_graph=True)
            both.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), parts)])
            model.parts = kind(parts)
        close(*both, "derivative", {"rtol": 1e-5, "atol": 1e-6})


def test_gradcheck():
    fn = ccompile.compile(FUNCTIONS["linear"])
    args = inputs()
    for _ in range(2):
        fn(*args)
    assert torch.autograd.gradcheck(fn, args) and torch.autograd.gradgradcheck(fn, args)


@pytest.mark.skipif(EAGER, reason="of the compiler")
def test_hooks_of_saved_tensors_are_said_once():
    fn = ccompile.compile(FUNCTIONS["linear"])
    for _ in range(3):
        fn(*inputs(torch.float32))
    last = max(e.serial for e in ccompile.events())
    for _ in range(3):
        with torch.autograd.graph.save_on_cpu():
            fn(*inputs(torch.float32))
    assert [e.kind for e in ccompile.events(after=last) if "hooks of saved tensors" in e.text] == ["eager"]


@pytest.mark.skipif(EAGER, reason="of the compiler")
def test_gradients_of_gradients_in_every_call_run_op_by_op():
    """A stage would run its nodes twice for them. It comes back when nobody asks for them any more."""

    def f(x):
        return ((x * 2).tanh() * x).exp()

    def penalty(fn, x, twice):
        y = fn(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=twice)
        return torch.autograd.grad((g.square().sum() + y) if twice else fn(x).sum(), x)[0]

    def is_staged(y):
        return "CompiledStage" in type(y.grad_fn).__name__

    fn, staged, last = ccompile.compile(f), [], max((e.serial for e in ccompile.events()), default=0)
    for i, twice in enumerate([True] * 8 + [False] * 16):
        x = torch.linspace(-1, 1, 7).mul(i + 1).requires_grad_()
        torch.testing.assert_close(penalty(fn, x, twice), penalty(f, x, twice))
        staged.append(is_staged(fn(x)))
    assert not all(staged[:8]) and all(staged[-2:])
    assert [e.kind for e in ccompile.events(after=last) if "gradients of its gradients" in e.text] == ["eager"]


def test_many_parameters():
    """One stage, whatever the number of its inputs and saved tensors."""
    f = nn.Sequential(*(layer for _ in range(150) for layer in (nn.Linear(4, 4), nn.Tanh())))
    fn = ccompile.compile(copy.deepcopy(f))
    for i in range(3):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i))
        f.zero_grad(), fn.zero_grad()
        f(x).sum().backward(), fn(x).sum().backward()
        close([p.grad for p in fn.parameters()], [p.grad for p in f.parameters()], "gradient", F32)
    assert EAGER or len(stages(fn)) == 1


def saved_bytes(y, but):
    """Memory that y's graph keeps for its backward, without these tensors'."""
    found = {}
    for node in autograd_nodes(y):
        names = ["saved_tensors"] if hasattr(node, "saved_tensors") else [n for n in dir(node) if n.startswith("_saved_")]
        for t in torch.utils._pytree.tree_leaves([getattr(node, n) for n in names]):
            if isinstance(t, torch.Tensor):
                found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(size for at, size in found.items() if at not in {t.untyped_storage().data_ptr() for t in but})


def test_cheap_values_are_computed_again():
    """Results of GELU, LayerNorm and Dropout follow from what is saved before them."""
    make = lambda: (nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64), nn.LayerNorm(64))  # noqa: E731
    f = nn.Sequential(*make(), *make())
    fn, x = ccompile.compile(f), torch.randn(128, 64)
    for _ in range(3):
        y = fn(x)
    ours, eager = saved_bytes(y, [x, *f.parameters()]), saved_bytes(f(x), [x, *f.parameters()])
    assert EAGER or ours < 0.5 * eager, (ours, eager)


def test_large_parameters_cut_a_stage():
    """Gradients of the later layers are added up before the earlier ones are computed."""
    f = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(2000, 2000), nn.Tanh(), nn.Dropout(0.1))))
    fn, order = ccompile.compile(f), []
    for i, p in enumerate(f.parameters()):
        p.register_post_accumulate_grad_hook(lambda p, i=i: order.append(i))
    for i in range(3):
        x, grads = torch.randn(2, 2000), []
        for g in (f, fn):
            f.zero_grad()
            torch.manual_seed(i)
            order.clear()
            g(x).square().sum().backward()
            grads.append([p.grad.clone() for p in f.parameters()])
        close(*grads, "gradient", F32)
    assert EAGER or len(stages(fn)) >= 2
    assert EAGER or order.index(8) < order.index(0)


def filtered(x, w):
    out, y = torch.zeros_like(x), x[0]
    for i in range(x.shape[0]):
        y = torch.tanh(w * y + x[i]) * w
        out[i] = y
    return out


@pytest.mark.skipif(EAGER, reason="of the compiler")
def test_many_stages_of_a_long_graph_take_little_memory():
    """Each stage has tables of all values: a filter over 520 samples of audio (torchaudio's flanger) took 11 GB and more."""
    ccompile.reset()
    g = ccompile.compile(filtered)
    x, w = torch.randn(450, 4, dtype=torch.float64), torch.rand(4, dtype=torch.float64, requires_grad=True)
    want, had = torch.autograd.grad(filtered(x, w).sum(), w)[0], resident()
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(g(x, w).sum(), w)[0], want)
    assert resident() - had < 200 << 20
    assert any("small ones are left to torch" in e.text for e in ccompile.events() if e.kind == "fallback")


@pytest.mark.skipif(EAGER, reason="of the compiler")
def test_a_result_without_a_derivative_needs_no_backward():
    fn, args = ccompile.compile(lambda x, w, b: ((x * b).exp() * 2 + torch.sin(x @ w), (x * b).argmax(-1))), inputs(torch.float32)
    for _ in range(3):
        y, _ = fn(*args)
        y.sum().backward()
    (segment,) = [s for e in compiled_of(fn).report()["entries"] for s in e["segments"]]
    assert segment["plan_text"].count("backward:") == 1


PADDING = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
ATTENTION = {
    "plain": lambda m, q: m(q, q, q, need_weights=False)[0] * 2,
    "padded": lambda m, q: m(q, q, q, key_padding_mask=PADDING, need_weights=False)[0] * 2,
    "causal": lambda m, q: m(q, q, q, attn_mask=~MASK, need_weights=False)[0] * 2,
    "weights": lambda m, q: (lambda y, w: y * 2 + w.square().mean())(*m(q, q, q, key_padding_mask=PADDING)),
    "other keys": lambda m, q: m(q, q.flip(1) * 2, q.exp(), need_weights=False)[0] * 2,
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", ATTENTION)
def test_multihead_attention(name, batch_first):
    """What torch multiplies in a backward has other strides than what the plan's kernels read."""
    torch.manual_seed(0)
    f, m = ATTENTION[name], nn.MultiheadAttention(8, 4, batch_first=batch_first)
    fn = ccompile.compile(lambda q: f(m, q))
    for i in range(4):
        ends = []
        for call in (fn, lambda q: f(m, q)):
            q = torch.randn((3, 4, 8) if batch_first else (4, 3, 8), generator=torch.Generator().manual_seed(i), requires_grad=True)
            m.zero_grad()
            call(q).square().sum().backward()
            ends.append([q.grad, *(p.grad.clone() for p in m.parameters())])
        close(*ends, "gradient", F32)


IN_PLACE = {
    "activations": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 6), nn.LeakyReLU(0.1, True), nn.Linear(6, 3)),
    "more activations": lambda: nn.Sequential(nn.Linear(6, 8), nn.SiLU(True), nn.Linear(8, 6), nn.ELU(inplace=True), nn.Linear(6, 4), nn.Hardtanh(inplace=True)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU6(True), nn.MaxPool2d(2), nn.Conv2d(4, 3, 1), nn.Flatten()
    ),
    "a sum": lambda: Sum(),
}


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        h = self.two(F.relu_(self.one(x)))
        h += x
        return h.mul_(2).tanh_() * 3


@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_inside_a_stage(name):
    """One stage; results have eager's number of writes, gradients of gradients are eager's."""
    f = IN_PLACE[name]()
    fn = ccompile.compile(copy.deepcopy(f))
    for i in range(4):
        ends = []
        for m in (f, fn):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(i), requires_grad=True)
            y = m(x)
            (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=i % 2 == 1, retain_graph=True)
            (y.sum() + first.square().sum() if i % 2 else y.sum()).backward()
            ends.append((y._version, [y, first, x.grad, *(p.grad for p in m.parameters()), *m.buffers()]))
            m.zero_grad()
        assert ends[0][0] == ends[1][0]
        close(ends[1][1], ends[0][1], "value", {"rtol": 1e-3, "atol": 1e-3})
    assert EAGER or len(stages(fn)) == 1, stages(fn)


@pytest.mark.skipif(EAGER, reason="of the compiler")
@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda x, w, b: ((x * w[0]).exp().sin() * 2, (x * w[0] + 1).cos() * x), 2),
        (lambda x, w, b: (lambda h: ((h * b).sin() * 2 + h, (h * 2).cos() + h))((x * w[0]).exp().sin()), 3),
        (lambda x, w, b: (lambda h: ((h * b).sin() * 2 + h, (h * 2).cos() + h.detach()))((x * w[0]).exp().sin()), 3),
        (lambda x, w, b: torch.kron(((x[0] * b).exp().sin() * 2), (x[1] * 2 * w[0]).tanh() * 3).sum(), 1),
    ],
    ids=["nothing in common", "one trunk", "detached", "one result"],
)
def test_results_that_autograd_goes_through_apart(f, count):
    fn = ccompile.compile(f)
    for i in range(3):
        fn(*inputs(torch.float32, seed=i))
    assert len(stages(fn)) == count, stages(fn)


# ---- what autograd promises --------------------------------------------------------------------------------------
def body(x, w, b):
    return torch.tanh(x @ w) * 2 + (x * b).exp()


@pytest.fixture
def both():
    fn = ccompile.compile(body)
    args = inputs()
    for _ in range(3):
        fn(*args)
    return fn, body, args


def outcome(call):
    """What a call returns, or its error without addresses and versions."""
    try:
        return call()
    except RuntimeError as e:
        return str(e).split(":")[0].split(";")[0]


def test_retain_graph(both):
    fn, f, args = both

    def twice(g):
        loss = g(*args).sum()
        first = torch.autograd.grad(loss, args, retain_graph=True)
        second = torch.autograd.grad(loss, args)
        close(first, second, "gradient", {"rtol": 0, "atol": 0})
        return outcome(lambda: torch.autograd.grad(loss, args))

    assert twice(fn) == twice(f) and "second time" in twice(fn)


@pytest.mark.parametrize("written", ["x", "w", "b", "result"])
@pytest.mark.parametrize("name", ["product", "pointwise", "linear", "broadcast", "unused_input", "reductions"])
def test_writes_before_backward(name, written):
    """A write to a tensor that eager has saved raises, and only that."""
    f = FUNCTIONS[name]
    fn = ccompile.compile(f)
    for _ in range(3):
        fn(*inputs())

    def run(g):
        args = inputs()
        y = g(*args)
        with torch.no_grad():
            (y if written == "result" else dict(zip("xwb", args))[written]).mul_(2)
        return outcome(lambda: torch.autograd.grad(y.sum(), args, allow_unused=True))

    got, want = run(fn), run(f)
    if isinstance(want, str) or isinstance(got, str):
        assert got == want
    else:
        close(got, want, "gradient", {"rtol": 1e-9, "atol": 1e-10})


def test_hooks(both):
    fn, f, args = both

    def run(g):
        seen, y = [], None
        handles = [a.register_hook(lambda grad, i=i: (seen.append((i, grad.clone())), grad * 2)[1]) for i, a in enumerate(args)]
        y = g(*args)
        y.register_hook(lambda grad: seen.append(("y", grad.clone())))
        y.retain_grad()
        grads = torch.autograd.grad(y.sum(), args, retain_graph=True)
        y.sum().backward()
        for h in handles:
            h.remove()
        grads += tuple(a.grad for a in args) + (y.grad,)
        for a in args:
            a.grad = None
        return grads, sorted(((str(k), v) for k, v in seen), key=lambda kv: kv[0])

    (got, seen), (want, expected) = run(fn), run(f)
    close(got, want, "gradient", F32)
    assert [k for k, _ in seen] == [k for k, _ in expected]
    close([v for _, v in seen], [v for _, v in expected], "hook", F32)


def test_gradient_of_a_result_with_respect_to_another():
    """y is computed from h, and both are results: autograd knows how."""
    f = FUNCTIONS["a_result_feeds_another"]
    fn = ccompile.compile(f)
    for i in range(3):
        args = inputs(seed=i)
        grads = []
        for g in (fn, f):
            h, y = g(*args)
            doubled = []
            h.register_hook(lambda grad: doubled.append(grad.clone()) or grad * 2)
            grads.append([*torch.autograd.grad(y.sum(), [h, *args], retain_graph=True), *doubled])
        close(*grads, "gradient", {"rtol": 1e-9, "atol": 1e-10})


def test_parameters_accumulate():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6), nn.Tanh())
    twin = copy.deepcopy(net)
    fn = ccompile.compile(net)
    for step in range(4):
        x = torch.randn(5, 6)
        for m in (fn, twin):
            m(x).square().sum().backward()
            if step == 1:
                m(x * 2).sum().backward()
        close([p.grad for p in net.parameters()], [p.grad for p in twin.parameters()], "gradient", F32)
        if step == 2:
            net.zero_grad(set_to_none=False), twin.zero_grad(set_to_none=False)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_steps_of_an_optimizer(optimizer):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 4))
    twin = copy.deepcopy(net)
    fn = ccompile.compile(net)
    ours, theirs = optimizer(net.parameters(), lr=1e-2), optimizer(twin.parameters(), lr=1e-2)
    x, y = torch.randn(32, 6), torch.randint(0, 4, (32,))
    for step in range(20):
        for m, o in ((fn, ours), (twin, theirs)):
            torch.manual_seed(step)
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()
    close(net.parameters(), twin.parameters(), "parameter", {"rtol": 1e-3, "atol": 1e-4})


def test_frozen_parameters():
    """requires_grad_(False) of some, and of all but the input."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6), nn.Tanh())
    twin = copy.deepcopy(net)
    fn = ccompile.compile(net)
    for frozen in ([], [0], [0, 2], [2], []):
        for m in (net, twin):
            m.zero_grad()
            for i, p in enumerate(m):
                p.requires_grad_(i not in frozen)
        for _ in range(2):
            xs = [torch.ones(3, 6, requires_grad=True) for _ in range(2)]
            for m, x in zip((fn, twin), xs):
                m(x).sum().backward()
            close([xs[0].grad, *(p.grad for p in net.parameters())], [xs[1].grad, *(p.grad for p in twin.parameters())], "gradient", F32)


def test_results_die():
    fn = ccompile.compile(body)
    args = inputs()

    def step():
        y = fn(*args)
        torch.autograd.grad(y.sum(), args)
        return weakref.ref(y)

    gc.disable()
    try:
        assert [step()() for _ in range(5)] == [None] * 5
    finally:
        gc.enable()


def test_no_grad_and_grad_mode():
    fn = ccompile.compile(body)
    args = inputs()
    for _ in range(3):
        with torch.no_grad():
            assert not fn(*args).requires_grad
        assert fn(*args).requires_grad
        assert not fn(*(a.detach() for a in args)).requires_grad
        with torch.inference_mode():
            fn(*args)


def test_sizes_vary():
    fn = ccompile.compile(FUNCTIONS["layer_norm"])
    w, b = inputs()[1:]
    for n in (2, 3, 5, 7, 3, 9, 5, 4, 7):
        x = torch.randn(n, 4, 6, dtype=torch.float64, requires_grad=True)
        close(*(torch.autograd.grad(g(x, w, b).sum(), (x, w, b)) for g in (fn, FUNCTIONS["layer_norm"])), "gradient", F32)


def test_reset_before_backward():
    """A node of autograd's graph keeps what it needs."""
    fn = ccompile.compile(body)
    args = inputs()
    for _ in range(3):
        y = fn(*args)
    ccompile.reset()
    close(torch.autograd.grad(y.sum(), args), torch.autograd.grad(body(*args).sum(), args), "gradient", F32)


def test_the_knob():
    fn = ccompile.compile(body, options={"training": False})
    args = inputs()
    for _ in range(3):
        close(*(torch.autograd.grad(g(*args).sum(), args) for g in (fn, body)), "gradient", F32)
    if not EAGER:
        assert not stages(fn)


# ---- dropout -----------------------------------------------------------------------------------------------------
def attend(x, p=0.3):
    q = x.view(2, 2, 4, 3)
    return F.scaled_dot_product_attention(q, q * 2, q.exp(), dropout_p=p) * 2


DROPS = {
    "dropout": lambda x, w, b: F.dropout(F.gelu(x @ w), 0.3) * b + F.dropout(x, 0.1),
    "dropout_of_a_view": lambda x, w, b: F.dropout((x * b).transpose(1, 2), 0.5).exp() * 2,
    "dropout_of_channels": lambda x, w, b: F.dropout2d((x * b).unsqueeze(-1), 0.4).exp() * F.dropout1d(x @ w.relu(), 0.3).unsqueeze(-1).sum(1, keepdim=True).sum(),
    "dropout_of_channels_last": lambda x, w, b: F.dropout2d((x * b).unsqueeze(-1).repeat(1, 1, 1, 2).contiguous(memory_format=torch.channels_last), 0.4).exp() * 2,
    "nothing_dropped": lambda x, w, b: F.dropout(x * b, 0.0).exp() + F.dropout(x, 0.4, training=False),
    "all_dropped": lambda x, w, b: F.dropout(x * b, 1.0).exp() + x,
    "attention": lambda x, w, b: attend(x * b),
    "attention_causal": lambda x, w, b: causal(x * b, x @ w, x.exp(), dropout_p=0.2, is_causal=True) * 2,
    "attention_masked": lambda x, w, b: causal(x * b, x @ w, x.exp(), attn_mask=MASK, dropout_p=0.2) * 2,
    "rand_like": lambda x, w, b: (x * b + torch.rand_like(x)).exp() * F.dropout(x, 0.2),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("name", DROPS)
def test_eagers_stream_of_random_numbers(name, dtype):
    f, tolerance = DROPS[name], F32 if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    fn = ccompile.compile(f)
    for i in range(4):
        args = inputs(dtype, seed=i)
        runs = []
        for g in (fn, f):
            torch.manual_seed(i)
            y = g(*args)
            first = torch.autograd.grad(y.square().sum(), args, create_graph=i == 3, allow_unused=True)
            more = torch.autograd.grad(sum(d.square().sum() for d in first if d is not None), args, allow_unused=True) if i == 3 else ()
            runs.append([y, *first, *more, torch.rand(3)])
        close(*runs, "value", tolerance)
        assert torch.equal(runs[0][-1], runs[1][-1])


@pytest.mark.parametrize("before", [0, 1, 2, 311, 312, 623, 624, 625, 1247])
@pytest.mark.parametrize("n", [4096, 4097, 5000, 100003])
def test_many_random_numbers(n, before):
    """Large draws are not torch's (csrc/dev/mersenne.c): the words that they take from the generator are, wherever its block begins."""
    def f(x):
        return torch.tanh(F.dropout(x * 2, 0.37) + x) * 3

    fn, x = ccompile.compile(f), torch.randn(n, requires_grad=True)
    for i in range(3):
        ends = []
        for g in (fn, f):
            torch.manual_seed(i)
            for _ in range(before):
                torch.rand(())  # one word
            y = g(x)
            ends.append((y, torch.autograd.grad(y.sum(), x)[0], torch.get_rng_state(), torch.randn(5)))
        assert torch.equal(ends[0][2], ends[1][2]) and torch.equal(ends[0][3], ends[1][3])
        close(ends[0][:2], ends[1][:2], "value", F32)


def test_a_stage_drops_its_inputs_when_autograd_does():
    """After backward without retain_graph; and a second one says what eager's says."""
    fn = ccompile.compile(lambda x, w: torch.tanh(x @ w) * 2 + x)
    w = torch.randn(6, 6, requires_grad=True)

    def run(keep):
        x = torch.randn(4, 6, requires_grad=True) * 1
        y = fn(x, w)
        y.sum().backward(retain_graph=keep)
        return y, weakref.ref(x)

    for _ in range(3):
        run(False)
    run(True)
    y, x = run(False)
    assert x() is None
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), w, create_graph=True)


def forgotten(fn, how, calls):
    """Drops what the function was compiled to, by `how`."""
    if how == "reset":
        ccompile.reset()
    for i in range(60 if how != "reset" else 0):
        calls(fn, 7 + i if how == "shapes" else 4 + i % 7, "a" if how == "shapes" else "b")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


@pytest.mark.filterwarnings("ignore:ccompile.*recompile_limit")
@pytest.mark.parametrize("how", ["reset", "shapes", "entries"])
@pytest.mark.parametrize("inner", [torch.sin, Cube.apply, lambda h: F.dropout(h, 0.5)], ids=["sin", "custom", "dropout"])
def test_second_derivatives_of_what_was_dropped(inner, how):
    """A backward whose forward has run gives eager's gradients, and gradients of these, whatever was dropped meanwhile."""

    def f(x, w, kind):
        return (inner((x * 2).tanh()).exp() * w).tanh().sum() * len(kind)

    def call(fn, n, kind):
        torch.manual_seed(n)
        x, w = torch.randn(n, requires_grad=True), torch.randn((), requires_grad=True)
        return fn(x, w, kind), x, w

    options = {"shape_limit": 1} if how == "shapes" else {"recompile_limit": 1, "eager_if_slower": False}
    compiled, ends = ccompile.compile(f, dynamic=how == "shapes", options=options), []
    for fn in (f, compiled):
        for n in (3, 4, 5, 6, 3, 3, 3, 3):
            y, x, w = call(fn, n, "a")
        forgotten(fn, how, call)
        first = torch.autograd.grad(y, [x, w], create_graph=True)
        forgotten(fn, how, call)
        ends.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), [x, w])])
    close(ends[1], ends[0], how, F32)


def written(kind):
    def f(x, w, b):
        z = torch.zeros(4, 6, dtype=x.dtype)
        h = torch.tanh(x[0] @ w) * 2
        if kind == "whole":
            z.add_(h)
        elif kind == "view":
            z[1:3].copy_(h[:2])
        elif kind == "index":
            z.scatter_(1, torch.arange(6).flip(0).expand(4, 6), h)
        else:
            z.add_(1).mul_(h).add_(x[1])
        return (z.exp() * b).sum(0) * 2, z[2] * 3

    return f


@pytest.mark.parametrize("kind", ["whole", "view", "index", "twice"])
def test_a_tensor_made_inside_is_written(kind):
    """It requires no gradient where it is made, and does once something that requires one was written to it."""
    f = written(kind)
    fn = ccompile.compile(f)
    for i in range(3):
        args = inputs(seed=i)
        want, got = f(*args), fn(*args)
        weights = [torch.randn(r.shape, dtype=r.dtype) for r in differentiable(want)]
        close(gradients(got, args, weights), gradients(want, args, weights), "gradient", {"rtol": 1e-9, "atol": 1e-10})


SCALED = {
    "batch_norm": lambda: nn.BatchNorm1d(6),
    "batch_norm_eval": lambda: nn.BatchNorm1d(6).eval(),
    "layer_norm": lambda: nn.LayerNorm(6),
    "group_norm": lambda: nn.GroupNorm(2, 6),
    "prelu": lambda: nn.PReLU(6),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_weight_that_only_its_write_tells_of(name):
    """The input needs no gradient, so no derivative reads the weight; a write to it raises as in eager, which saves it."""
    outcomes = []
    for wrap in (lambda f: f, ccompile.compile):
        torch.manual_seed(0)
        m = SCALED[name]().double()
        fn = wrap(lambda x, m=m: (m(x * 2 + 1) * 3 + 1) * x.sin())
        for i in range(4):
            y = fn(torch.randn(4, 6, dtype=torch.float64))
            if i % 2:
                with torch.no_grad():
                    m.weight.mul_(1.1)
            try:
                y.sum().backward()
                outcomes.append(m.weight.grad.clone())
            except RuntimeError as error:
                outcomes.append("modified by an inplace operation" in str(error))
            m.zero_grad()
    torch.testing.assert_close(outcomes[4:], outcomes[:4])


REFUSED = {
    "operator": lambda x, w: x // 2,
    "operator_of_a_number": lambda x, w: 3 // (x.abs() + 1),
    "floor_divide": lambda x, w: torch.floor_divide(x, w),
    "remainder_of_a_number": lambda x, w: 7.5 % (x.abs() + 1),
    "div_floor": lambda x, w: torch.div(x, w, rounding_mode="floor"),
    "div_trunc": lambda x, w: x.divide(2, rounding_mode="trunc"),
    "heaviside": lambda x, w: torch.heaviside(x, w),
    "nextafter": lambda x, w: torch.nextafter(x, w),
    "igamma": lambda x, w: torch.igamma(x.abs() + 1, w.abs() + 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ops_without_a_derivative_of_eagers(name):
    """The backward raises as eager's, whatever else of the function it goes through first; other results have gradients."""

    def fn(x, w):
        return (REFUSED[name]((x * 2).sin(), w * 0.5) * 3 + x.cos()).tanh(), (x * w).exp() * 2

    compiled, outcomes = ccompile.compile(fn), []
    for f in (fn, compiled):
        for i in range(3):
            x, w = inputs(torch.float32, seed=i)[1], inputs(torch.float32, seed=i + 1)[1]
            y, z = f(x, w)
            for wanted in (z, y):
                try:
                    wanted.sum().backward()
                    outcomes.append((x.grad.clone(), w.grad.clone()))
                except RuntimeError as error:
                    outcomes.append(str(error))
    torch.testing.assert_close([o for o in outcomes[6:] if not isinstance(o, str)], [o for o in outcomes[:6] if not isinstance(o, str)], **F32)
    assert [o for o in outcomes[6:] if isinstance(o, str)] == [o for o in outcomes[:6] if isinstance(o, str)]


VIEWED = {
    "view": lambda x: x.view(-1),
    "flattened": lambda x: torch.flatten(x)[1:],
    "turned": lambda x: x.t()[0],
    "split": lambda x: x.split(1)[0].unbind(-1)[1],
    "copied": lambda x: x.t().reshape(-1),
    "detached": lambda x: x.detach()[0],
}


@pytest.mark.parametrize("order", ["111000", "000111", "010101"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", VIEWED)
def test_views_made_without_grad_mode(name, dynamic, order):
    """One of a leaf requires a gradient, but not one of a leaf that is itself a view of something that requires none."""

    def fn(x, w):
        with torch.no_grad():
            v = VIEWED[name](x)
        return (v * 2).sin() * v, v.sum() * w

    compiled = ccompile.compile(fn, dynamic=dynamic)
    for i, viewed in enumerate(order):
        seen = []
        for f in (fn, compiled):
            torch.manual_seed(i)
            x, w = torch.randn(2 + i % 4, 3), torch.ones(1, requires_grad=True)
            x = (torch.cat([x, x])[: len(x)] if viewed == "1" else x).requires_grad_()
            y, z = f(x, w)
            z.sum().backward()
            seen.append(([y.detach(), z.detach(), w.grad], y.requires_grad, z.requires_grad, x.grad))
        torch.testing.assert_close(seen[0][0], seen[1][0])
        assert seen[0][1:] == seen[1][1:]
    assert EAGER or not [e for e in ccompile.events() if e.kind == "verify" and "rules gave" in e.text]


READ_AGAIN = {  # derivatives that read the op's result
    "tanh": torch.tanh,
    "exp": torch.exp,
    "softmax": lambda h: h.softmax(-1),
    "power": lambda h: (h.abs() + 1) ** h,
    "norm": lambda h: (h + 0.3).norm(dim=-1),
    "cumprod": lambda h: (h + 2).cumprod(-1),
    "in_place": lambda h: (h * 1).sigmoid_(),
    "two": lambda h: (h.tanh(), h.exp()),
    "view": lambda h: h.tanh().t(),
    "with_its_view": lambda h: (lambda t: (t, t[0]))(h.sigmoid()),
    "operand": lambda h: h.sin() * 2,
}


def hooked(y, first, x):
    seen = []
    y.register_hook(lambda g: (seen.append(g.detach().clone()), g * 2)[1])
    first().square().sum().backward()
    return [*seen, x.grad]


def retained(y, first, x):
    y.retain_grad()
    first().square().sum().backward()
    return [y.grad, x.grad]


def asked(y, first, x):
    return torch.autograd.grad(first().square().sum(), [y, x])


def three_times(y, first, x):
    seen = []
    y.register_hook(lambda g: (seen.append(g.detach().clone()), g * 0.5)[1])
    (second,) = torch.autograd.grad((first() * x).sum(), x, create_graph=True)
    second.square().sum().backward()
    return [*seen, x.grad]


def failed_once(y, first, x):
    g = first()
    handle = x.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        g.square().sum().backward(retain_graph=True)
    handle.remove()
    return torch.autograd.grad(g.square().sum(), [y, x])


@pytest.mark.parametrize("how", [hooked, retained, asked, three_times, failed_once])
@pytest.mark.parametrize("name", READ_AGAIN)
def test_second_derivatives_go_through_results(name, how):
    """create_graph=True: what eager computes from a result is seen, and changed, by the result's hooks."""

    def f(x):
        return READ_AGAIN[name]((x * 2).sin() * x + 0.1 * x)

    fn = ccompile.compile(f)
    for i in range(3):
        both = []
        for g in (f, fn):
            x = inputs(seed=i)[1]
            ys = differentiable(g(x))
            loss = sum(y.square().sum() for y in ys)
            both.append(list(how(ys[0], lambda loss=loss, x=x: torch.autograd.grad(loss, x, create_graph=True)[0], x)))
        close(*both, "derivative", {"rtol": 1e-8, "atol": 1e-9})


OF_CONSTANTS = {
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "group norm": lambda x: F.group_norm(x, 2),
    "RMS norm": lambda x: F.rms_norm(x, (4,)),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "tanh": lambda x: x.tanh() * 2,
}


@pytest.mark.parametrize("name", OF_CONSTANTS)
@pytest.mark.parametrize("where", ["inside", "a result"])
def test_a_write_to_what_has_no_gradient(name, where):
    """A running state that is normalised, used and updated: eager has saved the norm's result only, and gives the gradient."""

    def fn(w, x):
        h = x + 1
        loss = (OF_CONSTANTS[name](h if where == "a result" else x) * w).sum()
        if where == "inside":
            x.mul_(0.9).add_(0.5)
        return h, loss

    found = []
    for f in (fn, ccompile.compile(fn)):
        for i in range(4):
            w, x = torch.linspace(-1, 1, 4).requires_grad_(), torch.arange(12.0).view(3, 4).mul(0.1 * i).sin()
            h, loss = f(w, x)
            if where == "a result":
                h.add_(1)
            loss.backward()
            found.append((loss, w.grad, x))
    for got, want in zip(found[4:], found[:4], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_sparse_gradient_arrives():
    """That of a table of embeddings which the function computes."""

    def f(p):
        return -(p * 2) * 3 * 0.5

    fn, index = ccompile.compile(f), torch.tensor([1, 3, 1])
    for _ in range(4):
        got = []
        for call in (f, fn):
            p = torch.ones(5, 3, requires_grad=True)
            F.embedding(index, call(p), sparse=True).sum().backward()
            got.append(p.grad)
        assert got[0].layout == got[1].layout == torch.sparse_coo
        assert got[0].to_dense().equal(got[1].to_dense())
