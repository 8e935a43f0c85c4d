"""Every graph-break pattern trains: gradients through breaks, of arguments and parameters, equal eager's."""

import ccompile
import pytest
import torch
from break_patterns import PATTERNS
from conftest import same, tensors

SEEN = {}


def differentiable(args):
    return tuple(
        a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() and type(a) is torch.Tensor else a
        for a in args
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_gradients(name):
    p = PATTERNS[name]
    fn = p.fn() if isinstance(p.fn, type) else p.fn
    n = len(p.inputs)
    past = same(
        fn,
        make_args=lambda i: differentiable(p.inputs[i % n]),
        calls=2 * n,
        hit=False,
        no_grad=False,
        backward=True,
        raises=True,  # numpy() of what requires a gradient; a result without one
    )
    SEEN[name] = any(t.grad is not None for t in tensors(past[-1].args[0]))


def test_patterns_have_gradients():
    """The others raise in eager: numpy(), item() and backward() of what has none."""
    found = [SEEN[name] for name in PATTERNS if name in SEEN]
    assert sum(found) > len(found) * 0.5, [name for name in SEEN if not SEEN[name]]


def refused_after_product(x, y):
    try:
        z = x @ y
        x.relu_()
    except RuntimeError:
        z = y * 2
    return z + y


def refused_after_write(x, y):
    y.data.add_(1)
    try:
        x.relu_()
    except RuntimeError:
        y = y * 2
    return x @ y


def refused_after_draw(x, y):
    v = torch.nn.functional.dropout(y, 0.5)
    try:
        x.mul_(2)
    except RuntimeError:
        v = v * 2
    return x @ v + torch.rand(4)


def refused_after_its_own_draw(x, y):
    try:
        torch.nn.functional.dropout(x, 0.5, inplace=True)
    except RuntimeError:
        y = y * 2
    return x @ y


def refused_uncaught(x, y):
    v = x @ y
    return torch.nn.functional.dropout(x, 0.5, inplace=True) @ v


def refused_after_write_in_the_block(x, y):
    v = y * 2
    try:
        v.mul_(2)
        x.mul_(2)
    except RuntimeError:
        v = v * 3
    return x @ v


TARGETS = {  # how the tensor comes about that autograd lets code write, or not
    "result": lambda a: a * 1,
    "leaf": lambda a: a,
    "view of a leaf": lambda a: a.view(4, 4),
    "one of several views": lambda a: torch.stack([a, a]).mul(1).unbind()[0],
    "view made under no_grad": lambda a: torch.no_grad()(lambda b: b[:])(a * 1),
    "without gradient": lambda a: a.detach(),
}


@pytest.mark.parametrize(
    "fn",
    [
        refused_after_product,
        refused_after_write,
        refused_after_draw,
        refused_after_its_own_draw,
        refused_uncaught,
        refused_after_write_in_the_block,
    ],
)
@pytest.mark.parametrize("recorded", TARGETS)
def test_refused_writes_reach_handlers(fn, recorded):
    """A write recorded on one kind of tensor, replayed on one to which autograd refuses it: the handler runs, once."""
    a, b = torch.randn(4, 4), torch.randn(4, 4)

    def outcome(f, kind):
        x, y = TARGETS[kind](a.clone().requires_grad_()), b.clone()
        torch.manual_seed(0)
        try:
            r = f(x, y).detach()
        except RuntimeError as error:
            r = torch.tensor(list(str(error)[:40].encode()))
        return r, x.detach().clone(), y, torch.rand(2)

    for called in TARGETS:
        compiled = ccompile.compile(fn)
        for kind in (recorded, recorded, called, called, recorded):
            torch.testing.assert_close(outcome(compiled, kind), outcome(fn, kind), msg=f"{kind} after {recorded}")
