"""What tensors of one type, shape and requires_grad may still differ in: whether they are leaves, views, inference tensors,
and how often they were written. Each function runs on a drawn series of such tensors."""

import itertools
import types

import ccompile
import pytest
import torch
import torch.nn.functional as F


def leaf():
    return torch.ones(3).requires_grad_()


def computed():
    return torch.ones(3).requires_grad_() * 2


def view_without_grad():
    base = leaf()
    with torch.no_grad():
        return base[:]


def detached():
    return leaf().detach()


def parameter():
    return torch.nn.Parameter(torch.ones(3))


def called(x, flag):
    try:
        x.requires_grad_(flag)
    except RuntimeError as e:
        return str(e)
    return x.requires_grad, (x * 2).requires_grad


def assigned(x, flag):
    try:
        x.requires_grad = flag
    except RuntimeError as e:
        return str(e)
    return x.requires_grad, (x * 2).requires_grad


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("fn", [called, assigned])
def test_requires_grad_is_set(fn, flag):
    kinds = (leaf, computed, view_without_grad, detached, parameter)
    for first, second in itertools.permutations(kinds, 2):
        ccompile.reset()
        compiled = ccompile.compile(fn)
        for kind in (first, first, first, second, first, second):
            assert compiled(kind(), flag) == fn(kind(), flag), (first.__name__, second.__name__)


def written(n):
    t = torch.ones(3, 4)
    for _ in range(n):
        t.add_(1)
    return t


def last_reference(s, given):
    x = s.t
    s.t = None
    x = x.detach()
    return x


def taken_out(s, given):
    return [s.t, 1].pop(0).detach()


def replaced(s, given):
    x = s.t
    s.t = x.clone().mul_(2)
    return x.view(-1)


def written_here(s, given):
    z = s.t + 1
    z *= 2
    z[0] = 5
    return z


def turned(s, given):
    w = s.t * 2
    w.t_()
    return w


@pytest.mark.parametrize("fn", [last_reference, taken_out, replaced, written_here, turned], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_writes_are_counted(fn, dtype):
    """`given` is not read: an inference tensor and one with the negative bit, whose memory no guard describes."""
    with torch.inference_mode():
        inference = torch.ones(3)
    for given in (None, inference, torch._neg_view(torch.ones(3))):
        ccompile.reset()
        counts = []
        for f in (fn, ccompile.compile(fn)):
            s, run = types.SimpleNamespace(t=None), []
            for n in (3, 0, 2, 5, 1):
                s.t = t = written(n).to(dtype)
                run.append((f(s, given)._version, t._version))
                del t
                s.t = written(n).to(dtype)
                run.append((f(s, given)._version, s.t is None or s.t._version))
            counts.append(run)
        assert counts[1] == counts[0]


COMPOSED = {
    "a linear layer of one row": lambda x, w: F.linear(x[0], w),
    "a product with one row": lambda x, w: x[0] @ w.t(),
    "one_hot": lambda x, w: F.one_hot(x.argmax(1), 4),
    "clone": lambda x, w: x.clone(),
    "one dimension of a convolution": lambda x, w: F.conv1d(x[None], w[None]),
    "inner": lambda x, w: torch.inner(x, w),
}


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("needs", ["x", "w", "both"])
def test_versions_of_what_torch_composes(name, needs):
    """Eager writes to some results in place. A stage of compiled training has the ops beside them, too."""
    counts = []
    for f in (fn := lambda x, w: (x.cos() + 1, COMPOSED[name](x, w), w.sin() * 2), ccompile.compile(fn)):
        for _ in range(3):
            x, w = (torch.randn(4, 4).requires_grad_(needs in (key, "both")) for key in "xw")
            counts.append([t._version for t in f(x, w)])
    assert counts[3:] == counts[:3]
