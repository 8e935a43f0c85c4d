"""Views that only kernels read are no steps, and results never depend on that: offsets, strides, aliasing, memory plan."""

import contextlib
import subprocess
import sys

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, alike, breaks, same
from hypothesis import given, settings
from hypothesis import strategies as st


def plan_of(compiled):
    return compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]


def steps_of(compiled):
    return [line.split()[1] for line in plan_of(compiled).splitlines() if line[:1].isdigit()]


def check(f, *args, calls=3):
    """Equal on all calls, inputs untouched; -> the compiled function."""
    compiled = ccompile.compile(f)
    before = [a.clone() for a in args]
    for _ in range(calls):
        alike(f(*args), compiled(*args), path="a call")
    for a, b in zip(args, before):
        assert torch.equal(a, b)
    return compiled


INDEX = st.one_of(
    st.integers(-2, 1),
    st.builds(slice, st.none() | st.integers(-4, 4), st.none() | st.integers(-4, 4), st.none() | st.integers(1, 3)),
    st.none(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(INDEX, max_size=4), st.integers(0, 4), st.permutations(range(3)))
def test_basic_indexing(key, ellipsis_at, order):
    x = torch.randn(2, 3, 5).permute(*order)
    key = (*key[:ellipsis_at], ..., *key[ellipsis_at:])
    try:
        x[key]
    except IndexError:
        return
    compiled = check(lambda t: t[key] * 2 + 1, x, calls=2)
    assert "host" not in steps_of(compiled), plan_of(compiled)


VIEWS = {
    "view": lambda t: t.view(6, 20),
    "reshape": lambda t: t.reshape(2, 3, 4, 5),
    "flatten": lambda t: t.flatten(1),
    "transpose": lambda t: t.transpose(0, 1),
    "permute": lambda t: t.permute(2, 0, 1),
    "T of a matrix": lambda t: t[0].T,
    "t of a matrix": lambda t: t[:, 2].t(),
    "mT": lambda t: t.mT,
    "view_as": lambda t: t.view_as(t.new_empty(6, 20)),
    "expand_as": lambda t: t[:, :, :1].expand_as(t),
    "select": lambda t: t.select(1, -2),
    "narrow": lambda t: t.narrow(2, 1, 3),
    "negative start": lambda t: t.narrow(1, -3, 2),
    "slice": lambda t: t[1:, 2:5, 1::2],
    "ints and None": lambda t: t[-1, None, :, 3],
    "ellipsis": lambda t: t[..., -1],
    "chunk": lambda t: t.chunk(3, dim=1)[2],
    "split": lambda t: torch.split(t, [1, 4, 1], dim=1)[1],
    "uneven split": lambda t: t.split(4, dim=2)[-1],
    "unbind": lambda t: t.unbind(1)[3],
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t[:, :1].squeeze(1),
    "expand": lambda t: t[:, :, :1].expand(-1, -1, 7),
    "detach": lambda t: t.detach(),
    "chain": lambda t: t.permute(2, 0, 1)[3:, 1].unsqueeze(0).transpose(1, 2)[0, 2:],
    "reshape of a transpose": lambda t: t.transpose(0, 1).reshape(6, 20),
    "reshape that copies": lambda t: t.transpose(1, 2).reshape(20, 6),
    "flatten that copies": lambda t: t.permute(2, 1, 0).flatten(),
    "of itself": lambda t: t.view(4, 6, 5).view(4, 6, 5).detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_folds(name):
    """Of an input and of a result: kernels only."""
    view = VIEWS[name]
    x = torch.randn(4, 6, 5)
    for f in (lambda t: torch.sin(view(t)), lambda t: view(t * 2).exp() + 1):
        compiled = check(f, x)
        assert set(steps_of(compiled)) == {"kernel"}, plan_of(compiled)


@pytest.mark.parametrize("name", VIEWS)
def test_as_output(name):
    """A view that leaves the graph is a tensor that shares its memory."""
    view = VIEWS[name]
    x = torch.randn(4, 6, 5)
    compiled = check(lambda t: (view(t), view(t * 2)), x)
    twin = x.clone()
    compiled(x)[0].zero_()
    view(twin).zero_()
    assert torch.equal(x, twin)


@pytest.mark.parametrize("name", VIEWS)
def test_read_by_host(name):
    """The host needs tensors: flip has no row."""
    view = VIEWS[name]
    check(lambda t: (view(t * 2).flip(0) + 1, view(t).sigmoid()), torch.randn(4, 6, 5))


def test_square_transpose_of_a_dying_value():
    """y = a + a.T may not be written over a."""
    def f(x):
        a = x * 2
        return (a + a.t()).sin().flip(0)

    check(f, torch.randn(40, 40))


def test_transpose_is_not_fused_with_its_source():
    def f(x):
        a = x.exp()
        return a.t() * a + a.t().contiguous()

    check(f, torch.randn(33, 33))


def test_writes_are_seen_through_views():
    def f(x, y):
        head = x[:, :3]
        before = head * 2
        x.add_(y)
        after = head * 2
        return before, after, x[0].sin()

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    compiled = ccompile.compile(f)
    for _ in range(3):
        want, got = x.clone(), x.clone()
        alike(f(want, y), compiled(got, y), path="results")
        assert torch.equal(want, got)


def test_products_of_views():
    """q, k, v of one product: everything in between is strides."""
    w = torch.randn(96, 32) / 6

    def f(x):
        q, k, v = (torch.nn.functional.linear(x, w)).view(2, 10, 3, 4, 8).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-2, -1)
        return (s.softmax(-1) @ v).transpose(1, 2).reshape(2, 10, 32) + 1

    compiled = check(f, torch.randn(2, 10, 32))
    assert "host" not in steps_of(compiled), plan_of(compiled)


def test_memory_plan_reuses():
    """A chain of products needs the room of two values, not of ten."""
    ws = [torch.randn(64, 64) / 8 for _ in range(10)]

    def f(x):
        for w in ws:
            x = torch.tanh(x @ w) @ w
        return x + 1

    compiled = check(f, torch.randn(256, 64))
    memory = int(plan_of(compiled).split("memory: ")[1].split()[0])
    assert memory < 3 * (256 * 64 * 4 + 4096), plan_of(compiled)


def test_big_and_small_calls_share_the_block():
    f = ccompile.compile(lambda x: (torch.sin(x).t() @ x).exp().t() * 2)
    g = ccompile.compile(lambda x: torch.cos(x).t().exp() + 1)
    for n in (8, 300, 3, 500, 7):
        x = torch.randn(n, n) / n
        alike((torch.sin(x).t() @ x).exp().t() * 2, f(x), path=f"{n}")
        alike(torch.cos(x).t().exp() + 1, g(x), path=f"{n}")


def parts(dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(2, n, 5, generator=g) * 9).to(dtype) for n in (3, 1, 0, 4)]


CONCATS = {
    "cat": lambda a, b, c, d: torch.cat([a, b, c, d], dim=1),
    "cat, last dim": lambda a, b, c, d: torch.cat((a[:, :1], b, d[:, 2:3]), -1),
    "cat of views": lambda a, b, c, d: torch.cat([a[:, ::2], a.flip(1)[:, :1], d[:, 1:]], 1),
    "cat of transposes": lambda a, b, c, d: torch.cat([a.transpose(0, 2), d.transpose(0, 2)], dim=1),
    "cat of expanded": lambda a, b, c, d: torch.cat([b.expand(-1, 3, -1), a], dim=0),
    "cat of one": lambda a, b, c, d: torch.cat([a]),
    "cat with an old empty": lambda a, b, c, d: torch.cat([torch.zeros(0).to(a.dtype), a]),
    "stack": lambda a, b, c, d: torch.stack([a, a * 2, a - 1], dim=2),
    "stack first": lambda a, b, c, d: torch.stack((d, d)),
    "stack last": lambda a, b, c, d: torch.stack((d[..., 0], d[..., 1]), dim=-1),
    "rotate half": lambda a, b, c, d: torch.cat((-d[..., 2:], d[..., :2]), dim=-1),
    "scalars": lambda a, b, c, d: torch.stack([a.flatten()[1], b.flatten()[2]]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONCATS)
def test_concat(name, dtype):
    if dtype is torch.bool and name in ("rotate half", "stack"):
        pytest.skip("no arithmetic of bools")
    f = CONCATS[name]
    compiled = check(lambda *p: f(*p).logical_not(), *parts(dtype))
    check(f, *parts(dtype))
    if "old" not in name and "views" not in name:
        assert "host" not in steps_of(compiled), plan_of(compiled)


def test_concat_of_two_dtypes_and_errors():
    check(lambda a, b: torch.cat([a, b]) + 1, torch.randn(3), torch.arange(4))
    f = ccompile.compile(lambda a, b: torch.cat([a, b], dim=1))
    f(torch.randn(2, 3), torch.randn(2, 5))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        f(torch.randn(2, 3), torch.randn(3, 5))


def test_concat_without_llvm():
    a, b = torch.randn(30, 4), torch.randn(7, 4)
    with ccompile.config.patch(backend_llvm=False):
        f = ccompile.compile(lambda a, b: torch.cat([a * 2, b]).sin())
        for _ in range(3):
            alike(torch.cat([a * 2, b]).sin(), f(a, b), path="a call")


RESET = """
import ccompile, torch

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

x, w = torch.randn(2560, 64), torch.randn(64, 4096) / 8
f = ccompile.compile(lambda a: torch.exp(a @ w).sum())
for _ in range(3):
    f(x)
before = resident()
ccompile.reset()
print(before - resident())
"""


def test_reset_gives_memory_back():
    """The block that waits for the next call is 40 MB here. In a process of its own: another one's heap may keep it."""
    done = subprocess.run([sys.executable, "-c", RESET], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20 << 20


# Whole tiles are vectors squared, 8 to 32 elements: sizes around them, less than one, batches, and what is left of rows.
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64", "int16", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(16, 16), (15, 40), (31, 70), (64, 33), (3, 40, 65), (2, 130, 17), (2, 3, 33, 48)])
def test_transposed_operands(dtype, shape):
    dtype = getattr(torch, dtype)
    x, y = (torch.randint(0, 100, s).to(dtype) for s in (shape, (*shape[:-2], shape[-1], shape[-2])))
    row, column = y[..., :1, :].clone(), y[..., :1].clone()
    check(lambda x: x.mT.contiguous(), x)
    check(lambda x, y: x.mT + y, x, y)
    check(lambda x, y, r, c: (x.mT * r + y.flip(-1)) * c, x, y, row, column)
    check(lambda x, y: x.mT.double() * y[..., :1], x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_of_images(dtype):
    x = torch.randn(2, 20, 9, 11).to(dtype)
    last = x.contiguous(memory_format=torch.channels_last)
    check(lambda x: x.contiguous(memory_format=torch.channels_last), x)
    check(lambda x: x.contiguous(), last)
    check(lambda x, y: (x + y, y + x), x, last)
    check(lambda x: x.permute(3, 2, 1, 0).contiguous(), x)


# Rows of less than a vector, enough of them that they are made in pieces.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7])
def test_short_rows(width, dtype):
    x = torch.randint(0, 100, (5001, width)).to(dtype)
    row, column = x[7].clone(), x[:, :1].clone()
    check(lambda x, r, c: (x + r) * c, x, row, column)
    check(lambda x: (x.flip(0), x.flip(1), x[:, 1:].contiguous()), x)
    check(lambda x, c: (torch.cat((x, c, x), 1), torch.stack((x, x), 1), torch.nn.functional.pad(x, (2, 1))), x, column)
    check(lambda x, i: torch.nn.functional.embedding(i, x), x, torch.arange(5000, -1, -1))


# ---- sizes and strides changed in place: the tensor stands for a view, and is none -----------------------------------
def saved_before(x, w):
    loss = (x * w).sum()
    x.unsqueeze_(0)
    return loss, x


def saved_after(x, w):
    x.unsqueeze_(0)
    return (x * w).sum(), x


def reshaped_wrongly(x, w):
    with contextlib.suppress(IndexError):
        x.unsqueeze_(7)
    return x * w, x.shape


@pytest.mark.parametrize("fn", [saved_before, saved_after, reshaped_wrongly], ids=lambda f: f.__name__)
def test_reshaped_in_place_under_autograd(fn):
    """Of what autograd has saved before, the backward raises."""
    outcomes = same(
        lambda x, w: fn(x > 0, w) if fn is saved_after else fn(x * 2, w),
        make_args=lambda i: (torch.randn(3) + i, torch.randn(3).requires_grad_()),
        no_grad=False,
        backward=True,
        raises=True,
        hit=False,
    )
    assert all((o.error is RuntimeError) == (fn is saved_before) for o in outcomes)


def test_reshaped_in_place_is_no_view():
    """Later code may write to it under grad mode."""
    compiled = ccompile.compile(lambda x: (x * 2).unsqueeze_(0))
    with torch.no_grad():
        results = [compiled(torch.ones(3)) for _ in range(3)]
    for y in results:
        assert not y._is_view()
        y.mul_(torch.ones(3, requires_grad=True)).sum().backward()


def truncated(x, w):
    """Truncated back-propagation through time."""
    h, loss = torch.zeros(3), 0
    for _ in range(3):
        h = torch.tanh(h * w + x)
        loss = loss + h.sum()
        h.detach_()
    return loss, h, h.requires_grad


def detached_and_written(x, w):
    y = (x * w).exp()
    y.detach_()
    y.mul_(2)
    return (y * w).sum(), y


def detached_view(x, w):
    y = (x * w)[1:]
    try:
        y.detach_()
    except RuntimeError as error:
        return y.sum(), str(error)


@pytest.mark.parametrize("fn", [truncated, detached_and_written, detached_view], ids=lambda f: f.__name__)
def test_detached_in_place(fn):
    def make_args(i):
        return torch.randn(3) + i, torch.randn(3).requires_grad_()

    same(fn, make_args=make_args, calls=4, no_grad=False, backward=True, hit=False)
    if not EAGER:
        assert breaks(fn, *make_args(0)).breaks == (fn is detached_view)
