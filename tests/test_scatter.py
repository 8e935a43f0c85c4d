"""Writes at indices, to slices and under masks inside functions: x[..] = v, x[..] += v and the like on tensors
that the function made itself and on visible ones; and reads at indices within reductions. op_table.py has the single ops."""

import copy

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER, counters

T = torch.randn
nan = float("nan")


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def R(high, *shape):
    return torch.randint(0, high, shape)


def plans(compiled):
    return "".join(s["plan_text"] for entry in compiled_of(compiled).report()["entries"] for s in entry["segments"])


def compare(fn, *args, calls=3):
    """Results and what was written to arguments, in each call; -> the compiled function."""
    compiled = ccompile.compile(fn)
    before = counters().get("verify", 0)
    for _ in range(calls):
        a, b = copy.deepcopy(args), copy.deepcopy(args)
        want, got = fn(*a), compiled(*b)
        torch.testing.assert_close((got, b), (want, a), equal_nan=True)
        for x, y in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got)):
            assert x.stride() == y.stride()
    assert counters().get("verify", 0) == before
    return compiled


def interleave(x, y):
    out = torch.zeros(4, 6)
    out[:, ::2] = x
    out[:, 1::2] = y
    return out


def border(x):
    y = x.clone()
    y[..., :2, :] = 0
    y[..., -1] = 1.5
    y[:, :, 3:4] = y.new_zeros(1)
    return y


def boxes(b):
    b = b * 1
    b[..., 0::2] = b[..., 0::2].clamp(0, 1)
    b[..., 1::2] = b[..., 1::2].clamp(0, 0.5)
    return b


def parts(x, y):
    x = x + 0
    x[:, :2] += y
    x[1:, 2] *= 3
    x[0] -= 1
    return x


def twice(x):
    x = x.clone()
    x[:, 1:3] += x[:, 3:5]
    x[:, 3:5] = x[:, 1:3] * 2
    return x, x.sum()


def old_and_new(x, i, v):
    y = x * 2
    z = y.index_copy(0, i, v)
    return y + 1, z


def masks(x, m):
    y = x + 0
    y[m] = 0.0
    y[~m, 1:] = 3.0
    y[y > 2.5] = nan
    return y


def labels(x):
    ids = (x * 10).long()
    target = ids.clone()
    target[x > 0] = -100
    ids[x < 0] = 7
    return ids, target


def messages(x, e):
    out = torch.zeros_like(x).index_add_(0, e[1], x[e[0]])
    degree = x.new_zeros(x.shape[0]).index_add_(0, e[1], torch.ones(e.shape[1]))
    return out / degree.clamp(min=1).unsqueeze(-1)


def means(x, e):
    return torch.zeros(10, 6).scatter_reduce(0, e[1][:, None].expand(-1, 6), x[e[0]], "mean", include_self=False)


def softmax_of_segments(a, i):
    m = torch.full((10,), -float("inf")).scatter_reduce(0, i, a, "amax")
    e = (a - m[i]).exp()
    return e / torch.zeros(10).scatter_add_(0, i, e)[i]


def gate(g, i):
    return torch.zeros_like(g).scatter(1, i, g.softmax(-1).gather(1, i))


def regions(x, i, j):
    return x[:, i, 1:3], x[None, i], x[i, :, j], x[0, i, j], x[:, i[:, None], j], x[i, j, i], x[..., i[0, None], None]


def sides(x, i, v):
    x[i] = v
    x[0, 1] = 5.0
    return x * 2


def reorder(x, i, v):
    """The value is read before and behind it is written."""
    y = x * 2
    a = y.sum()
    y[i] = v
    b = y[0] * 1
    y[0] = a
    return a, b, y


def counted(x):
    c = torch.stack([torch.arange(6).view(2, 3), torch.arange(6).view(2, 3)], -1)
    c[..., 0] += 2
    c[..., 1] *= 3
    return c.sum(-1) + x


def shifted(x):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    y[:, 0] = 7
    return y


OWN = [(interleave, T(4, 3), T(4, 3)), (border, T(2, 3, 5, 6)), (boxes, T(9, 4)), (parts, T(3, 4), T(2)), (twice, T(3, 6)), (old_and_new, T(5, 4), torch.tensor([3, 1]), T(2, 4)),
       (masks, T(6, 5), torch.tensor([True, False, True, True, False, True])), (labels, T(4, 9)), (messages, T(10, 6), R(10, 2, 40)), (means, T(10, 6), R(10, 2, 40)),
       (softmax_of_segments, T(40), R(10, 40)), (gate, T(5, 8), R(8, 5, 2)), (regions, T(4, 4, 4), torch.tensor([1, -1, 0]), torch.tensor([2, 2, -4])),
       (reorder, T(4, 5), torch.tensor([1, 2]), T(2, 5)), (shifted, T(3, 7)), (counted, T(2, 3))]


@pytest.mark.parametrize("case", OWN, ids=lambda case: case[0].__name__)
def test_own_values(case):
    compiled = compare(*case)
    assert EAGER or "host" not in plans(compiled), plans(compiled)


def cache_at(c, k, p):
    c[:, :, p] = k
    return c.mean()


def cache_slice(c, k, p):
    c[:, :, 5:8] = k
    return c[:, :, :8] * 2


@pytest.mark.parametrize("fn", [lambda c, k, p: c.index_copy_(2, p, k).sum(), cache_at, cache_slice, lambda c, k, p: sides(c[0, 0], p, k[0, 0])])
def test_writes_to_arguments_are_seen(fn):
    compare(fn, T(2, 4, 9, 8), T(2, 4, 3, 8), torch.tensor([5, 6, 7]))


def test_large_results_lie_where_they_are_changed():
    """Versions of one tensor have one memory: that of the result."""

    def fn(x, i, v):
        y = x + 1
        y[i] = v
        y.index_add_(0, i, v)
        y[:, :5] = 0
        return y

    compiled = compare(fn, T(300, 70), torch.randperm(300)[:40], T(40, 70))
    assert EAGER or "memory" not in plans(compiled)


@pytest.mark.parametrize("fn", [lambda x, i, v: (x * 2).index_add_(0, i, v), lambda x, i, v: x.index_copy(0, i, v) + 1, lambda x, i, v: x.scatter(0, i[:, None].expand(-1, 4), v),
                                lambda x, i, v: x[i, None, 1:], lambda x, i, v: x.index_put((i,), v, True), lambda x, i, v: x.gather(0, i[:, None]) * 2])
def test_indices_out_of_range_raise_as_in_eager(fn):
    compiled = ccompile.compile(fn)
    x, good, v = T(5, 4), torch.tensor([0, 3, 3]), T(3, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, good, v), fn(x, good, v))
    bad = torch.tensor([0, 3, 9])
    with pytest.raises(Exception) as want:
        fn(x, bad, v)
    before = x.clone()
    with pytest.raises(type(want.value)) as got:
        compiled(x, bad, v)
    assert str(got.value) == str(want.value)
    assert x.equal(before)
    torch.testing.assert_close(compiled(x, good, v), fn(x, good, v))


def read_and_replaced(read, write):
    def fn(x, i, v):
        y = read(x, i)
        write(y)
        return y, y * 2

    return fn


@pytest.mark.parametrize("write", [lambda y: y.zero_(), lambda y: y.fill_(2.5), lambda y: y.copy_(y.new_ones(()))])
@pytest.mark.parametrize("read", [lambda x, i: F.embedding(i, x), lambda x, i: x[i], lambda x, i: x.gather(0, i[:, None]), lambda x, i: x.take(i),
                                  lambda x, i: (x * 2).index_select(0, i + 0)])
def test_reads_that_only_check_their_indices(read, write):
    """What they have read is overwritten, and nothing else reads it."""
    fn = read_and_replaced(read, write)
    compiled = compare(fn, T(5, 4), torch.tensor([0, 3, 3]), T(3, 4))
    with pytest.raises(Exception, match="out of (range|bounds)"):
        compiled(T(5, 4), torch.tensor([0, 3, 99]), T(3, 4))


def test_what_meets_in_one_place_comes_in_order():
    """The last one stays, also where threads share the work. (Eager's own index_copy of 32768 elements and more leaves it open.)"""
    x, v, i = T(7, 9), T(5000, 9), R(7, 5000, 9)
    compiled = ccompile.compile(lambda x, i, v: (x.scatter(0, i, v), x.index_copy(0, i[:3000, 0], v[:3000])))
    for _ in range(2):
        scattered, copied = compiled(x, i, v)
    for row in range(7):
        assert copied[row].equal(v[(i[:3000, 0] == row).nonzero().max()])
        for column in range(9):
            assert scattered[row, column] == v[(i[:, column] == row).nonzero().max(), column]


def test_views_that_outlive_a_write_see_it():
    def fn(x):
        y = x * 2
        v = y[0]
        y[0, 1] = 7.0
        w = v + 1
        v += 1
        return w, y, v

    compare(fn, T(3, 4))


def test_sizes_that_change():
    def fn(x, i):
        y = torch.zeros_like(x)
        y[:, : x.shape[1] // 2] = 1.0
        y[i] += x[i]
        return y

    compiled = ccompile.compile(fn)
    for n in (4, 6, 9, 12, 7):
        x, i = T(5, n), torch.tensor([0, 3])
        torch.testing.assert_close(compiled(x, i), fn(x, i))


def test_what_is_read_stays_until_it_is_read():
    """A read at indices may not have the memory of what it reads, though that dies there."""
    turned = torch.arange(63, -1, -1).expand(4, 64, 64).contiguous()
    compare(lambda x, i: torch.gather(x @ x.mT, -1, i), torch.randn(4, 64, 64), turned)
    compare(lambda x, i: torch.take_along_dim(x @ x.mT, i, 1), torch.randn(4, 64, 64), turned)
    a, b = torch.arange(3, -1, -1)[:, None, None], torch.arange(63, -1, -1)[:, None]
    compare(lambda x, a, b: (x @ x.mT)[a, b, b.mT], torch.randn(4, 64, 64), a, b)
    compare(lambda x, i: (x @ x.mT)[i], torch.randn(64, 64), turned[0, 0])


def row_beyond(x, i):
    """The index is known behind a reduction only."""
    best = x.sum(1, keepdim=True).gt(0).long()
    return (x.gather(1, best.expand(x.shape)) + x).sum(1)


READS = {
    "norm": lambda x, i: F.layer_norm(F.embedding(i, x) + x[0], x.shape[1:], x[1]),
    "softmax of two": lambda x, i: (x[i] - x[i.flip(0)]).softmax(-1),
    "from the end": lambda x, i: x[i - 4].std(-1),
    "several dims": lambda x, i: x.view(8, -1, 5).mT[i].square().sum((1, 2)),
    "dims apart": lambda x, i: x.view(8, 5, -1)[i].exp().sum(1),
    "of a slice": lambda x, i: x[:, 3:][i].amax(1),
    "of columns": lambda x, i: x.t()[i].mean(1),
    "by each": lambda x, i: x.gather(1, i[:8, None].expand(8, 5)).prod(1),
    "columns": lambda x, i: x[i].amin(0),
    "scan": lambda x, i: x[i].cumsum(-1),
    "all": lambda x, i: (x[i] * x[i[:1]]).sum(),
    "index of a sum": row_beyond,
    "long": lambda x, i: x.repeat(1, 500)[i[:2]].sum(1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", READS)
def test_reads_at_indices_within_reductions(name, dtype):
    near = 2.0**-5 if dtype.itemsize == 2 else 1e-4
    for width in (5, 35, 320):
        x, i = T(8, width).to(dtype), R(5, 30)
        compiled, want = ccompile.compile(READS[name]), READS[name](x, i)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, i), want, rtol=near, atol=near * float(want.abs().max()))
        torchs = name == "by each" and dtype.itemsize == 2  # eager rounds after each factor
        assert EAGER or torchs or "host" not in plans(compiled)
