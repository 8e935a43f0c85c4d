"""einsum, factors of products (csrc/pass/contract.c), and dtype queries among other ops: what fuses into one step with
them, shared or written memory, changing sizes. op_table.py covers values by equation."""

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER, same

pytestmark = pytest.mark.skipif(EAGER, reason="needs the extension")


def t(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def steps(fn, *args, **close):
    """The plan's steps, without what they drop; and the values are eager's."""
    with torch.no_grad():
        compiled = ccompile.compile(fn)
        for _ in range(3):
            torch.testing.assert_close(compiled(*args), fn(*args), **close)
    plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
    return [" ".join(word.split("#")[0] for word in line.split(" drop")[0].split()[1:] if word != "narrowed") for line in plan.splitlines() if line[:1].isdigit()]


def scores_first(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q, k) * 0.25
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)


def heads_inside(q, k, v):
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v).reshape(q.shape[0], q.shape[1], -1) + 1


def masked(q, k, v):
    s = torch.einsum("bid,bjd->bij", q[0], k[0]) * 0.25
    return torch.einsum("bij,bjd->bid", s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -1e9).softmax(-1), v[0])


@pytest.mark.parametrize("fn, after", [(scores_first, []), (heads_inside, ["kernel add"])], ids=lambda x: getattr(x, "__name__", ""))
def test_attention_is_one_step(fn, after):
    assert steps(fn, t(2, 6, 6, 16), t(2, 6, 6, 16, seed=1), t(2, 6, 6, 16, seed=2)) == ["attention attend", *after]


def test_attention_with_a_mask():
    assert "attention attend" in steps(masked, t(2, 3, 6, 16), t(2, 3, 6, 16, seed=1), t(2, 3, 6, 16, seed=2))


def test_scores_that_are_read_again_stay():
    def fn(q, k, v):
        p = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", p, v), torch.einsum("bhqk,bkhd->bqhd", p.transpose(-1, -2), v)

    found = steps(fn, t(2, 6, 3, 16), t(2, 6, 3, 16, seed=1), t(2, 6, 3, 16, seed=2))
    assert sum(step.startswith("product") for step in found) == 3 and not any(step.startswith(("host", "attention")) for step in found)


def test_what_follows_a_product_joins_it():
    assert steps(lambda x, w: torch.sigmoid(torch.einsum("btd,hd->bth", x, w)), t(2, 8, 16), t(32, 16)) == ["product linear sigmoid"]
    assert steps(lambda x, y, z: torch.einsum("bij,bjk->bik", x, y) * 0.5 + z, t(2, 8, 16), t(2, 16, 4), t(2, 8, 4)) == ["product matmul mul add"]


ONE_COLUMN = {
    "linear": (["kernel relu dot", "kernel add add sigmoid"], lambda x, y: torch.sigmoid(F.linear(x.relu(), y[0, :1], y[0, 0, :1]) + 1), t(2, 8, 16), t(2, 16, 16)),
    "linear without a bias": (["kernel cos dot"], lambda x, y: F.linear(x.cos(), y[0, :1]), t(9, 16), t(2, 16, 16)),
    "linear by a vector": (["kernel cos dot"], lambda x, y: F.linear(x.cos(), y), t(2, 9, 16), t(16)),
    "matmul by a vector": (["kernel cos dot"], lambda x, y: x.cos() @ y, t(2, 3, 9, 16), t(16)),
    "batches that are broadcast": (["kernel cos", "product matmul", "kernel copy"], lambda x, y: x.cos() @ y, t(5, 1, 9, 16), t(4, 16, 1)),
    "a matrix seen turned": (["kernel cos", "kernel dot"], lambda x, y: x.cos().mT @ y, t(16, 9), t(16, 1)),
    "bmm": (["kernel cos dot"], lambda x, y: torch.bmm(x.cos(), y), t(4, 9, 16), t(4, 16, 1)),
}


@pytest.mark.parametrize("name", ONE_COLUMN)
def test_products_of_one_column(name):
    expected, fn, *args = ONE_COLUMN[name]
    assert steps(fn, *args) == expected


def test_one_row_and_one_column_is_a_product():
    assert steps(lambda x, w: x @ w, t(1, 16), t(16, 1)) == ["product matmul"]


def test_batches_are_made_in_the_shape_that_is_read():
    """A product of three dims, seen with four: the library writes the four."""

    def fn(p, v):
        return torch.bmm(p.softmax(-1), v).view(2, 3, 6, 8).permute(0, 2, 1, 3).relu()

    assert steps(fn, t(6, 6, 5), t(6, 5, 8)) == ["kernel softmax", "product bmm", "kernel relu"]


def test_a_view_of_a_product_of_the_host_stays():
    """f64 products are the host's, which makes no other shape: round after round of passes was tried before."""

    def fn(p, v):
        return torch.bmm(p.softmax(-1), v).view(2, 3, 6, 8).permute(0, 2, 1, 3).relu()

    assert steps(fn, t(6, 6, 5).double(), t(6, 5, 8).double()) == ["kernel softmax", "host bmm", "kernel relu"]


def test_result_in_another_order_is_not_taken_for_its_product():
    """The sizes agree, and what follows may not be done in the product's order."""
    x, w, z = t(2, 4, 4, 8), t(2, 5, 4, 8), t(2, 4, 4, 5)
    for fn in (lambda x, w, z: torch.sigmoid(torch.einsum("bqhd,bkhd->bqhk", x, w)), lambda x, w, z: torch.einsum("bqhd,bkhd->bqhk", x, w) + z,
               lambda x, w, z: torch.einsum("bqhd,bkhd->bqhk", x, w).view(-1) if w.shape[2] == 1 else torch.einsum("bqhd,bkhd->bqhk", x, w).reshape(8, -1) * 2):
        steps(fn, x, w, z)
        same(fn, x, w, z)


def test_only_a_row_of_it_is_wanted():
    """pass/narrow.c may not make only a part of what an einsum looks at through a window."""
    def fn(x, w, u):
        y = torch.nn.functional.linear(x, w)
        return torch.einsum("btd,hd->bht", y, u), (y + 1)[:, 0] * 2

    assert not any(step.startswith("host") for step in steps(fn, t(2, 6, 16), t(16, 16), t(4, 16)))


def test_only_a_row_of_what_is_cast_is_wanted():
    """The tensor that says the dtype has other sizes and is not read. The result is f64, but has f32's rounding: BLAS libraries differ."""
    def fn(x, w, like):
        return torch.nn.functional.linear(x, w).type_as(like)[:, 5] * 2

    assert not any(step.startswith("host") for step in steps(fn, t(2, 6, 16), t(16, 16), t(2, 3, 16).double(), rtol=1.3e-6, atol=1e-5))


def written_view(x):
    y = torch.einsum("ij->ji", x)
    x.add_(1)
    z = torch.einsum("ii->i", x)
    z.mul_(2)
    return y, z, y * 1


def written_result(x, w):
    y = torch.einsum("ij,kj->ki", x, w)
    y += 1
    y[0] = 3
    x.mul_(2)
    return y, torch.einsum("ij,kj->ki", x, w), torch.einsum("ij->i", x).add_(1)


def written_between(x, w):
    h = x * 2
    y = torch.einsum("ij,kj->ik", h, w)
    h.add_(1)
    return y, torch.einsum("ij,kj->ik", h, w), h


@pytest.mark.parametrize("fn", [written_view, written_result, written_between])
def test_writes(fn):
    for seed in (0, 1):
        with torch.no_grad():
            same(fn, *([t(4, 4, seed=seed)] if fn is written_view else [t(4, 5, seed=seed), t(3, 5, seed=seed)]), calls=3)


def test_scaled_sums_join_their_product():
    q, k = t(2, 8, 16), t(2, 9, 16, seed=1)
    assert steps(lambda q, k: torch.baddbmm(torch.empty(2, 8, 9), q, k.transpose(1, 2), beta=0, alpha=0.25), q, k)[-1:] == ["product matmul mul"]
    assert steps(lambda x, q, k: torch.baddbmm(x, q, k.transpose(1, 2)), t(2, 8, 9), q, k) == ["product matmul add"]
    assert steps(lambda x, q, k: torch.sigmoid(torch.addmm(x, q[0], k[0].t(), beta=0.5, alpha=2)), t(9), q, k) == ["product matmul mul", "kernel add sigmoid"]


def test_beta_of_zero_does_not_look():
    x = torch.full((4, 5), float("nan"))
    for fn in (lambda x, a, b: torch.addmm(x, a, b, beta=0), lambda x, a, b: torch.addmv(x[:, 0], a, b[:, 0], beta=0, alpha=2),
               lambda x, a, b: torch.addr(x, a[:, 0], b[0], beta=0), lambda x, a, b: torch.baddbmm(x[None], a[None], b[None], beta=0, alpha=3)):
        steps(fn, x, t(4, 6), t(6, 5))


def test_sizes_change():
    def fn(q, k):
        return torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1), torch.einsum("...i,i->...", q, k[0, 0, 0])

    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for b, n, m in ((2, 5, 5), (3, 5, 7), (1, 9, 4), (2, 1, 3), (2, 6, 0), (4, 8, 8)):
            args = t(b, n, 3, 8), t(b, max(m, 1), 3, 8)
            for ours, eager in zip(compiled(*args), fn(*args), strict=True):
                torch.testing.assert_close(ours, eager)
                assert ours.stride() == eager.stride()


def test_gradients():
    def fn(x, w):
        return torch.einsum("bij,kj->bki", x, w).sum(-1)

    x, w = t(2, 3, 4).requires_grad_(), t(5, 4).requires_grad_()
    compiled = ccompile.compile(fn)
    for _ in range(3):
        ours, eager = (torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (compiled, fn))
        torch.testing.assert_close(ours, eager)


def test_autocast():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.einsum("bij,bjk->bik", x, w)

    with torch.no_grad():
        compiled, args = ccompile.compile(fn), (t(2, 3, 4), t(2, 4, 5))
        for _ in range(3):
            torch.testing.assert_close(compiled(*args), fn(*args))
