"""Writes as kernels of a GPU, on the emulated driver: caches, counters, running statistics and arguments that the caller sees, against eager.
tests/test_cuda_suites.py runs this in a process of its own, as a back-end is chosen once."""

import copy

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER, replaying
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")
T = torch.randn


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def same(fn, *args, host=0):
    """Compiled gives what eager gives, and leaves what it leaves in the arguments and the module, with so many steps of torch's. -> the plan"""
    mine, theirs = (copy.deepcopy(fn), fn) if isinstance(fn, nn.Module) else (fn, fn)
    compiled = ccompile.compile(mine)
    a, b = copy.deepcopy(args), copy.deepcopy(args)
    for call in range(4):
        if call == 3:
            with replaying():
                got = compiled(*a)
        else:
            got = compiled(*a)
        torch.testing.assert_close(got, theirs(*b))
        torch.testing.assert_close(a, b)
    if isinstance(fn, nn.Module):
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
    text = "".join(s["plan_text"] for e in compiled_of(compiled).report()["entries"] for s in e["segments"])
    assert text.count(" host ") == host, text
    return text


class StaticCache(nn.Module):
    """As transformers' StaticCache: keys of a step are written at their position."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(2, 3, 16, 8))

    def forward(self, k, v, at):
        for cache, new in ((self.keys, k), (self.values, v)):
            if self.how == "index_copy":
                cache.index_copy_(2, at, new * 2)
            elif self.how == "index":
                cache[:, :, at] = new * 2
            else:
                cache[:, :, 4:5] = new * 2
        return self.keys + 1, self.values.sum(-1)


@pytest.mark.parametrize("how", ["index_copy", "index", "slice"])
def test_caches(how):
    text = same(StaticCache(how), T(2, 3, 1, 8), T(2, 3, 1, 8), torch.tensor([4]))
    assert text.count("put_at") == (0 if how == "slice" else 2)


@pytest.mark.parametrize("layer, shape", [(nn.BatchNorm1d(6), (8, 6)), (nn.BatchNorm2d(6), (3, 6, 5, 4)),
                                          (nn.InstanceNorm2d(6, track_running_stats=True), (3, 6, 5, 4))], ids=str)  # fmt: skip
def test_running_statistics(layer, shape):
    text = same(nn.Sequential(layer, nn.ReLU()).train(), T(shape))
    assert "running" in text


def test_counters_and_arguments():
    def step(x, n, mask):
        n.add_(1)
        x.mul_(0.5)[1:3] += 1
        x[:, 2] = x[:, 0] * 2
        x[mask] = -1.0
        x.clamp_(-3, 3)
        return x.sum(), n * 2

    same(step, T(5, 7), torch.tensor(0), T(5, 7) > 1)


class Experts(nn.Module):
    """A mixture of experts without sizes that depend on data: each expert adds the rows that chose it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(T(4, 8, 8))

    def forward(self, x, rows):
        out = torch.zeros_like(x)
        for i in range(4):
            out.index_add_(0, rows[i], torch.tanh(x[rows[i]] * self.w[i, 0]))
        return out


def test_experts():
    text = same(Experts(), T(6, 8), torch.randint(0, 6, (4, 3)))
    assert text.count("put_at") == 4


def test_messages_of_a_graph():
    """As torch_geometric scatters: sums, counts and the greatest of what comes over the edges."""

    def layer(x, edges):
        source, target = edges
        messages = F.relu(x[source])
        zeros = torch.zeros_like(x)
        at = target[:, None].expand_as(messages)
        count = torch.zeros(x.shape[0]).scatter_add_(0, target, torch.ones(target.shape[0]))
        greatest = zeros.scatter_reduce(0, at, messages, "amax", include_self=False)
        return zeros.scatter_add(0, at, messages) / count.clamp(min=1)[:, None] + greatest

    text = same(layer, T(7, 5), torch.randint(0, 7, (2, 20)))
    assert text.count("put_at") == 4   # the greatest of new elements alone: two


def test_reads_at_indices_behind_writes():
    def step(cache, table, i, at):
        cache.index_copy_(0, at, table[i])
        return cache[i]

    same(step, T(9, 4), T(9, 4), torch.tensor([1, 8]), torch.tensor([0, 3]))


def test_deterministic_algorithms():
    def sums(x, i, s):
        return x.index_add(0, i, s), x.index_fill(0, i, 2.0)

    args = T(5, 7), torch.tensor([0, 2, 2]), T(3, 7)
    assert same(sums, *args).count("put_at") == 2
    torch.use_deterministic_algorithms(True)
    try:
        assert same(sums, *args, host=1).count("put_at") == 1
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_index_out_of_range():
    """Eager's error, and what eager leaves."""
    fn = ccompile.compile(lambda x, i, s: x.index_add_(0, i, s))
    x, i, s = T(5, 7), torch.tensor([0, 2, 2]), T(3, 7)
    for _ in range(2):
        fn(x, i, s)
    want = x.clone()
    i[1] = 5
    for f, at in ((fn, x), (lambda x, i, s: x.index_add_(0, i, s), want)):
        with pytest.raises(RuntimeError, match="index 5 is out of bounds"):
            f(at, i, s)
    torch.testing.assert_close(x, want)
    i[1] = 4
    with replaying():
        fn(x, i, s)


def test_shares():
    """Not a write: a float that a kernel checks, as it checks an index."""
    text = same(lambda x, y: (F.binary_cross_entropy(torch.sigmoid(x), y), F.binary_cross_entropy(y, y, reduction="none")), T(9, 8), torch.rand(9, 8))
    assert "bce_each" in text
    fn = ccompile.compile(lambda x, y: F.binary_cross_entropy(x, y))
    for _ in range(2):
        fn(torch.rand(9, 8), torch.rand(9, 8))
    for bad in (1.5, -1e-3, float("nan")):
        x = torch.rand(9, 8)
        x[8, 7] = bad
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            fn(x, torch.rand(9, 8))


def test_arguments_that_share_memory():
    """Eager does it."""

    def step(x, y):
        x.mul_(2)
        return y + 1

    fn = ccompile.compile(step)
    base = T(6, 4)
    for _ in range(2):
        fn(base[:3], base[3:])
    mine, theirs = base.clone(), base.clone()
    torch.testing.assert_close(fn(mine[1:4], mine[2:5]), step(theirs[1:4], theirs[2:5]))
    torch.testing.assert_close(mine, theirs)
