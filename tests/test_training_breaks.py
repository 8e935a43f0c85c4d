"""Every graph-break pattern trains: gradients through breaks, of arguments and parameters, equal eager's."""

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
