"""`p.grad = v` in compiled code: no graph break, and everything that reads the gradient sees v."""

import ccompile
import ccompile.api
import pytest
import torch
from conftest import EAGER


def from_a_loss(m, x):
    loss = m(x).square().sum()
    parameters = [m.weight, m.bias]
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = g * 0.5
    return loss


def made(m, x):
    y = m(x)
    with torch.no_grad():
        for p in m.parameters():
            p.grad = torch.ones_like(p) * y.mean()
    return y


def read_again(m, x):
    with torch.no_grad():
        m.weight.grad = x.t() @ x
        m.weight.grad.mul_(2)
        m.bias.grad = m.weight.grad[0] + 1
        return m.weight.grad.sum() + m.bias.grad.sum()


def one_object_for_two(m, x):
    g = torch.zeros_like(m.bias) + x.sum().detach()
    m.bias.grad = g
    m.other.grad = g
    return m.bias.grad is g, m.other.grad is m.bias.grad


def then_dropped(m, x):
    m.bias.grad = x.sum(0).detach()
    before = m.bias.grad * 2
    m.bias.grad = None
    return before, m.bias.grad


def averaged(m, x):
    with torch.no_grad():
        for p in m.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad = p.grad * 0.5 + x.mean()
    return x * 2


def with_an_optimiser(m, x):
    with torch.no_grad():
        for p in m.parameters():
            p.grad = p * 0.1 + x.mean()
    m.optimiser.step()
    m.optimiser.zero_grad()
    return m(x)


FUNCTIONS = [from_a_loss, made, read_again, one_object_for_two, then_dropped, averaged, with_an_optimiser]
# autograd.grad runs the engine, and an optimiser's step counts
BREAKS = {from_a_loss: 1, with_an_optimiser: None}


def module():
    torch.manual_seed(0)
    m = torch.nn.Linear(4, 4)
    m.other = torch.nn.Parameter(torch.ones(4))
    m.optimiser = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
    return m


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_eager(fn):
    first, second = module(), module()
    compiled = ccompile.compile(lambda x: fn(second, x))
    for i in range(6):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(i))
        torch.testing.assert_close(compiled(x), fn(first, x))
        for p, q in zip(first.parameters(), second.parameters(), strict=True):
            torch.testing.assert_close(q, p)
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                torch.testing.assert_close(q.grad, p.grad)
                assert q.grad.requires_grad == p.grad.requires_grad
        assert (second.bias.grad is second.other.grad) == (first.bias.grad is first.other.grad)
    report = ccompile.api.compiled_of(compiled).report()
    breaks = BREAKS.get(fn, 0)
    assert EAGER or breaks is None or len(report["breaks_seen"]) == breaks, report["breaks_seen"]
    assert EAGER or report["hits"] >= 3


def test_two_parameters_or_one():
    """Recorded with two; the gradient of one is the other's when they are the same."""

    def fn(x, p, q):
        p.grad = x * 2
        return q.grad

    compiled = ccompile.compile(fn)
    x, p, q = torch.ones(3), *[torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for a, b in ((p, q), (p, q), (p, p), (p, q), (q, q)):
        p.grad = q.grad = None
        want = fn(x, a, b)
        p.grad = q.grad = None
        got = compiled(x, a, b)
        assert (got is None) == (want is None) and (want is None or torch.equal(got, want))


@pytest.mark.parametrize("value", ["torch.zeros(5)", "torch.zeros(3, dtype=torch.float64)", "3", "p"])
def test_what_torch_refuses(value):
    scope = {"torch": torch}
    exec(f"def fn(p, x):\n    y = x + 1\n    p.grad = {value}\n    return y\n", scope)
    fn, p, first = scope["fn"], torch.nn.Parameter(torch.ones(3)), None
    for f in (fn, compiled := ccompile.compile(fn)):
        for _ in range(3):
            with pytest.raises((RuntimeError, TypeError)) as e:
                f(p, torch.ones(3))
            text = str(e.value)
            assert p.grad is None
            if f is compiled:
                assert text == first
            first = text


def test_gradients_of_other_sizes():
    def fn(p, x):
        p.grad = x * 2
        return x + 1

    compiled = ccompile.compile(fn)
    p = torch.nn.Parameter(torch.ones(3))
    for n in (3, 3, 4, 3, 5, 3):
        x = torch.ones(n)
        if n == 3:
            assert torch.equal(compiled(p, x), x + 1) and torch.equal(p.grad, x * 2)
            continue
        with pytest.raises(RuntimeError, match="of size"):
            compiled(p, x)
        assert p.grad.shape == (3,)
