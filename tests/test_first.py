"""First calls: a break in a helper method, in a slice or a `with` block is recorded at once, without giving up; code
around breaks (functions made in the call, torch.inference_mode) does not prevent later calls from replaying."""

import threading

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, explained, hits, same
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="needs the product")
LOCK = threading.Lock()


def t(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Helpers(nn.Module):
    """A bound method is called: nn.Module has __getattr__, so CPython never calls the function itself with self before it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def pick(self, y, *, scale=1.0):
        if y.sum() > 0:
            return y * scale
        return self.other(y, 2)

    def other(self, y, n):
        return y * y.mean().item() + n

    def forward(self, x):
        return self.pick(self.linear(x), scale=3.0) + 1


def sliced_by_tensor(x, n):
    y = x * 2
    z = y[: n + 1, 1:] + 1
    y[n:] = 0
    return y, z


def with_lock(x):
    y = x + 1
    with LOCK:
        y = y * 2
    return y - 3


def unique_values(x):
    values, where = (x * 10).round().unique(return_inverse=True)
    found = torch.nonzero(x > 0, as_tuple=True)
    return values * 2, where, x[found] + 1


def split_by_data(x):
    kept = x[x > 0]
    return [v * 2 for v in kept], torch.stack(list((kept + 1).unbind())).sum()


CASES = {
    "helpers": (Helpers, lambda i: (t(2, 4, seed=i),)),
    "sliced": (lambda: sliced_by_tensor, lambda i: (t(5, 3, seed=i), torch.tensor(i % 3))),
    "lock": (lambda: with_lock, lambda i: (t(3, seed=i),)),
    "unique": (lambda: unique_values, lambda i: (t(6, seed=i),)),
    "split": (lambda: split_by_data, lambda i: (t(6, seed=i % 2),)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_call_records(name):
    make, args = CASES[name]
    same(make if isinstance(make, type) else make(), make_args=args, calls=6, hit=False, build=isinstance(make, type))
    compiled = ccompile.compile(make())
    with torch.no_grad():
        compiled(*args(0))
    report = compiled_of(compiled).report()
    assert report["give_ups"] == [] and len(report["entries"]) == 1


def scaled(x):
    """Each call makes its functions anew, and they are alive at breaks."""
    n, total = x.shape[0], []

    def scale(y, by=2.0):
        total.append(n)
        return y * by + len(total)

    y = scale(x)
    if y.sum() > 0:
        y = y + 1
    z = [v * 2 for v in scale(y, 3.0).sum(0).tolist()]
    return scale(y), z, [(lambda v, k=k: v + k)(y) for k in total]


@torch.inference_mode()
def inferred(x):
    y = x * 2
    with torch.inference_mode(False):
        y = torch.relu(torch.ones(3)) + 1
    return x * 3, y


class Caching(nn.Module):
    """Keys are tuples that are made anew."""

    def __init__(self):
        super().__init__()
        self.cache = {}

    def rows(self, n, kind):
        if (n, kind) not in self.cache:
            self.cache[n, kind] = torch.arange(n) * len(kind)
        self.cache[n] = self.cache[n, kind] + 1
        return self.cache[n, kind] + self.cache.get((n, kind)), (n, "other") in self.cache, self.cache[n]

    def forward(self, x, kind):
        return x + self.rows(x.shape[0], kind)[0], self.rows(x.shape[0], kind)


@pytest.mark.parametrize("fn", [scaled, inferred])
def test_later_calls_replay(fn):
    same(fn, make_args=lambda i: (t(3, 2, seed=i),), calls=6, hit=False)
    same(fn, make_args=lambda i: (t(3, 2, seed=i),), calls=4, no_grad=False, hit=False)
    compiled, args = ccompile.compile(fn), [(t(3, 2, seed=i),) for i in range(4)]
    with torch.no_grad():
        for given in args * 2:
            compiled(*given)
        for given in args:
            hits(lambda given=given: compiled(*given), 1)


def test_inference_mode_is_no_break():
    assert explained(inferred, t(3)).break_reasons == []


class Counted:
    """What len() asks reads a tensor's data: the first recording gives up, later ones break at len()."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return int(self.x.sum())


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_explain_repeats_a_call_that_gave_up_and_says_what():
    calls = []

    def fn(x):
        n = len(Counted(x))
        calls.append(n)
        return x * n

    report = ccompile.explain(fn)(torch.ones(3))
    assert calls == [3, 3] and (report.graph_count, report.break_count, len(report.give_ups)) == (1, 1, 1)
    assert "later calls break there instead" in str(report)
    compiled = ccompile.compile(fn)
    for _ in range(2):
        compiled(torch.ones(3))
    assert torch.equal(hits(lambda: compiled(torch.ones(3))), torch.full((3,), 3.0))


def test_caches_with_tuples_for_keys():
    same(Caching, build=True, make_args=lambda i: (t(3 + i % 2, seed=i), "ab"[: 1 + i // 4]), calls=8, hit=False)
    report = explained(Caching(), t(3), "ab")
    assert (report.graph_count, report.break_count, report.give_ups) == (1, 0, [])


def test_a_function_as_a_key_is_told_apart():
    seen = {}

    def count(x):
        def key():
            return x

        if x.sum() > 100:
            x = x + 1
        seen[key] = seen.get(key, 0) + 1
        return x * seen[key], len(seen)

    compiled = ccompile.compile(count)
    for i in range(5):
        y, n = compiled(torch.ones(2))
        assert n == i + 1 and y.tolist() == [1.0, 1.0]


class Moved(nn.Module):
    """Module._apply breaks in a loop over a dict of parameters, whose pairs nobody saw being made: the break has to go further out."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = x * 2
        self.linear = self.linear.to(self.linear.weight.dtype)
        return self.linear(y) + 1


def test_a_break_that_is_impossible_goes_further_out():
    model, x = Moved(), t(2, 4)
    compiled = ccompile.compile(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(hits(lambda: compiled(x)), model(x))
    assert len(compiled_of(compiled).report()["entries"]) == 1
