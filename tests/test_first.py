"""First calls: a break in a helper method, in a slice or a `with` block is recorded at once, without giving up."""

import threading

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, same
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
    same(make, build=True, make_args=args, calls=6, hit=False)
    compiled = ccompile.compile(make())
    with torch.no_grad():
        compiled(*args(0))
    report = compiled_of(compiled).report()
    assert report["give_ups"] == [] and len(report["entries"]) == 1
