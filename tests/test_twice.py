"""The same tensor given for two parameters, after a call with two tensors and before one: what is written through one name is read
through the other."""

import ccompile
import pytest
import torch


def requires(a, b, x):
    a.requires_grad_()
    return x + 1 if b.requires_grad else x - 1


def requires_set(a, b, x):
    a.requires_grad = True
    return x + 1 if b.requires_grad else x - 1


def facts(a, b, x):
    a.requires_grad_()
    return b.is_leaf, b.requires_grad, b.grad_fn is None


def ops(a, b, x):
    a.requires_grad_()
    view = b.view(-1)
    return view.requires_grad, (view * 2).requires_grad, (b * 2).sum()


def in_block(a, b, x):
    with torch.no_grad():
        a.requires_grad_()
        a.mul_(2)
    return b * 1


def taken_back(a, b, x):
    a.requires_grad_()
    a.requires_grad_(False)
    return b.requires_grad, b * 2


def all_of_them(a, b, x):
    for t in (a, b, x):
        if not t.requires_grad:
            t.requires_grad_()
    return a * b * x


def gradient_set(a, b, x):
    a.grad = x
    return x + 1 if b.grad is not None else x - 1


def gradient_dropped(a, b, x):
    b.grad = None
    return a.grad is None, x + 1


def gradient_replaced(a, b, x):
    a.grad = x * 2
    b.grad = None
    return a.grad is None


def attribute(a, b, x):
    a.mark = 1
    b.mark = 2
    return a.mark, hasattr(b, "mark"), x + 1


def written(a, b, x):
    before = a._version
    a.add_(1)
    return x + b + (b._version - before)


def data(a, b, x):
    a.data.add_(1)
    return b * 2


def detached(a, b, x):
    a.detach_()
    a.requires_grad_()
    return [b.requires_grad], b + x


def transposed(a, b, x):
    a.t_()
    return x + 1 if b.shape[0] == 3 else x - 1


def unsqueezed(a, b, x):
    a.unsqueeze_(0)
    return b.dim(), b + 1


CASES = [requires, requires_set, facts, ops, in_block, taken_back, all_of_them, gradient_set, gradient_dropped, gradient_replaced,
         attribute, written, data, detached, transposed, unsqueezed]  # fmt: skip


def told(fn, twice):
    a = torch.arange(6.0).reshape(2, 3).clone()
    b, x = a if twice else torch.ones(2, 3), torch.zeros(2, 3)
    for t in (a, b):
        t.grad = torch.full((2, 3), 5.0) if "gradient" in fn.__name__ else None

    def flat(r):
        return [flat(i) for i in r] if isinstance(r, tuple | list) else state(r) if isinstance(r, torch.Tensor) else r

    def state(t):
        grad = None if not t.is_leaf or t.grad is None else t.grad.tolist()
        return t.detach().tolist(), t.requires_grad, t._version, grad, getattr(t, "mark", None)

    return flat(fn(a, b, x)), state(a), state(b)


@pytest.mark.parametrize("order", [(0, 0, 1, 1, 0), (1, 1, 0, 0, 1)], ids=["two-first", "one-first"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_equal(fn, order):
    compiled = ccompile.compile(fn)
    compiled.__name__ = fn.__name__
    for twice in order:
        assert told(compiled, twice) == told(fn, twice)
