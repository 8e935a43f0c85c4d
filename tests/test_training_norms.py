"""Batch norms in training, and instance norms with running statistics, without gradients: statistics, running averages and
counters are kernels, ops behind them fuse, and their memory is shared as in eager."""

import copy

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, counters
from torch import nn
from torch.nn import functional as F

T = torch.randn


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def plans(compiled):
    return "".join(s["plan_text"] for entry in compiled_of(compiled).report()["entries"] for s in entry["segments"])


def attempt(fn, *args):
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


def follow(module, *inputs, calls=3, between=lambda m, i: None):
    """The module compiled, and its twin in eager: results, buffers and their versions call by call."""
    twin, before = copy.deepcopy(module), counters().get("verify", 0)
    compiled = ccompile.compile(module)
    shift = [a._version - b._version for a, b in zip(module.buffers(), twin.buffers(), strict=True)]
    for i in range(calls):
        between(module, i)
        between(twin, i)
        for x in inputs:
            want, got = attempt(twin, x + i), attempt(compiled, x + i)
            if isinstance(want, tuple):
                assert got == want
                continue
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
            for (name, a), b, by in zip(module.named_buffers(), twin.buffers(), shift, strict=True):
                torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")
                assert a._version == b._version + by, name
    assert counters().get("verify", 0) == before
    return compiled


def lines(compiled):
    return [line.split(" drop")[0].split(" ", 1)[1] for line in plans(compiled).splitlines() if line[:1].isdigit()]


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


MODULES = {
    "1d": (lambda: nn.BatchNorm1d(7), T(5, 7)),
    "1d of sequences": (lambda: nn.BatchNorm1d(7), T(5, 7, 9)),
    "2d": (lambda: nn.BatchNorm2d(6), T(4, 6, 5, 3)),
    "channels last": (lambda: nn.BatchNorm2d(6), last(T(4, 6, 50, 31))),
    "few channels": (lambda: nn.BatchNorm2d(3), T(4, 3, 64, 63)),
    "3d": (lambda: nn.BatchNorm3d(6), T(2, 6, 5, 3, 4)),
    "momentum": (lambda: nn.BatchNorm2d(6, momentum=0.7, eps=0.1), T(4, 6, 5, 3)),
    "not affine": (lambda: nn.BatchNorm2d(6, affine=False), T(4, 6, 5, 3)),
    "no running statistics": (lambda: nn.BatchNorm2d(6, track_running_stats=False), T(4, 6, 5, 3)),
    "double": (lambda: nn.BatchNorm2d(6).double(), T(4, 6, 5, 3).double()),
    "instances": (lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True), T(4, 6, 5, 3)),
    "instances of sequences": (lambda: nn.InstanceNorm1d(6, track_running_stats=True), T(3, 6, 50)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    make, x = MODULES[name]
    compiled = follow(make().train(), x)
    assert EAGER or "host" not in plans(compiled), plans(compiled)
    follow(make().eval(), x)


def test_cumulative_average():
    follow(nn.BatchNorm2d(6, momentum=None), T(4, 6, 5, 3))


def test_momentum_changes():
    compiled = follow(nn.BatchNorm2d(6), T(4, 6, 5, 3), calls=6, between=lambda m, i: setattr(m, "momentum", 0.1 + 0.1 * i))
    assert EAGER or len(compiled_of(compiled).report()["entries"]) == 2


def test_train_and_eval_in_turn():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    follow(net, T(2, 3, 9, 9), calls=6, between=lambda m, i: m.train(i % 3 != 2))


def test_one_value_for_each_channel():
    follow(nn.BatchNorm1d(4), T(1, 4))
    follow(nn.InstanceNorm1d(4, track_running_stats=True), T(3, 4, 1))


def test_gradients_are_eagers():
    """In f64: the gradient of the bias before a norm is mathematically 0, and rounding of either kind is as good."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()).double()
    twin = copy.deepcopy(net)
    compiled = ccompile.compile(net)
    with torch.enable_grad():
        for _ in range(3):
            x = T(5, 4).double()
            compiled(x).square().sum().backward()
            twin(x).square().sum().backward()
    for a, b in zip([*net.buffers(), *(p.grad for p in net.parameters())], [*twin.buffers(), *(p.grad for p in twin.parameters())], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_rounding_of_large_gradients_is_no_fault():
    """The bias before a norm has the gradient 0, which is what rounding leaves of large terms; the self-check knows that
    (conftest.py fails a test in which it says that a gradient was wrong)."""
    compiled = ccompile.compile(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    with torch.enable_grad():
        for _ in range(3):
            y = compiled(T(2, 3, 9, 9))
            y.backward(1e7 * torch.randn_like(y))


class Residual(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.one, self.two = (nn.Sequential(nn.Conv2d(n, n, k, padding=k // 2, bias=False), nn.BatchNorm2d(n)) for k in (3, 1))

    def forward(self, x):
        return F.relu(self.one(x) + self.two(x))


@pytest.mark.skipif(EAGER, reason="needs the extension")
def test_writes_are_no_barriers():
    """Both norms, their sum and relu are one kernel, though counters and running statistics are written in between."""
    compiled = follow(nn.Sequential(Residual(8), Residual(8)), T(2, 8, 9, 9))
    fused = [line for line in lines(compiled) if "relu" in line]
    assert len(fused) == 2 and all(line.count("norm_by") == 2 for line in fused), plans(compiled)
    compiled = follow(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), last(T(4, 8, 40, 40)))
    assert any("norm_by" in line and "relu" in line for line in lines(compiled)), plans(compiled)


def test_shared_statistics():
    """One norm twice in a call: its second run begins with what the first has left."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(6)

        def forward(self, x):
            return self.norm(torch.relu(self.norm(x) + self.norm.running_mean[:, None, None]))

    follow(Twice(), T(4, 6, 5, 3))


@pytest.mark.parametrize("at", [0, 1])
def test_statistics_that_share_memory(at):
    """With the input, or a later operand: known only by their addresses in the call."""

    def fn(x, mean, var, other):
        y = F.relu(F.batch_norm(x, mean, var, None, None, True, 0.5))
        return y + other[:, None], y * 2

    for shared in (False, True):
        compiled = ccompile.compile(fn)
        for overlap in (shared, not shared, shared):
            sides = []
            for f in (fn, compiled):
                torch.manual_seed(1)
                x, mean, var, other = T(6, 4), T(4), T(4).abs(), T(4)
                memory = T(8)
                if overlap and at == 0:
                    mean = x[2]
                if overlap and at == 1:
                    other, var = memory[1:5], memory[2:6]
                sides.append((fn(x, mean, var, other[:1].expand(6)) if f is fn else compiled(x, mean, var, other[:1].expand(6)), x, mean, var, other))
            torch.testing.assert_close(sides[1], sides[0])


def test_failure_behind_a_write():
    """What raises behind the statistics leaves them written once, as in eager."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.table = nn.BatchNorm1d(4), nn.Embedding(5, 4)

        def forward(self, x):
            y = self.norm(x)
            return F.relu(y) + self.table(self.index)

    net = Net()
    net.index = torch.tensor([1, 2, 3])
    twin, compiled, x = copy.deepcopy(net), ccompile.compile(net), T(3, 4)
    for bad in (False, False, True, False):
        for m in (net, twin):
            m.index = torch.tensor([1, 7 if bad else 2, 3])
        want, got = attempt(twin, x), attempt(compiled, x)
        if bad:
            assert isinstance(want, tuple) and got == want
        else:
            torch.testing.assert_close(got, want)
        for a, b in zip(net.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_statistics_that_share_memory():
    """Five running means in one element: torch writes it five times. Its threads would race for it, so there is one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        compiled = ccompile.compile(F.batch_norm)
        x, start = T(3, 5, 2), (T(1), T(5).abs())
        for _ in range(3):
            sides = []
            for fn in (F.batch_norm, compiled):
                mean, var = (t.clone() for t in start)
                sides.append((fn(x, mean.expand(5), var, training=True), mean, var))
            torch.testing.assert_close(*sides)
        assert EAGER or "host" in plans(compiled)
    finally:
        torch.set_num_threads(threads)
