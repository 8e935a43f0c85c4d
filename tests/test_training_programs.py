"""What autograd promises of training programs: each program below runs eagerly and with what it compiles compiled, and what it
returns must be alike. A program takes `compile` and returns what its user sees: results, gradients, hooks' calls, errors."""

import contextlib
import copy
import gc
import pickle
import threading
import warnings
import weakref

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import EAGER, alike
from torch import nn
from torch.utils.checkpoint import checkpoint

PROGRAMS = {}


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    runs = []
    for compiled in (False, True):
        ccompile.reset()
        torch.manual_seed(7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs.append(PROGRAMS[name](ccompile.compile if compiled else lambda f: f))
    alike(*runs, rtol=1e-4, atol=2e-5)


def leaves(dtype=torch.float32, seed=0, shapes=((2, 4, 6), (6, 6), (6,))):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(*shape, generator=g, dtype=torch.float64) * 0.5).to(dtype).requires_grad_() for shape in shapes]


def body(x, w, b):
    return torch.tanh(x @ w) * 2 + (x * b).exp()


def attempt(f):
    """What it returns, or its error without addresses and versions."""
    try:
        return f()
    except Exception as e:
        return type(e).__name__, str(e).split(":")[0].split(";")[0][:60]


def dense(t):
    """Strides of gradients may differ from eager's (docs/limits.md), but not those of .grad."""
    return torch.empty_like(t, memory_format=torch.contiguous_format).copy_(t) if isinstance(t, torch.Tensor) else t


def grad_of(*args, **kw):
    return [dense(g) for g in torch.autograd.grad(*args, **kw)]


def grads_of(y, args, **kw):
    return grad_of(y, args, torch.ones_like(y), **kw)


def warm(fn, *makers, n=3):
    for i in range(n):
        fn(*leaves(seed=i))


def net(*more):
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 6), nn.Tanh(), *more)


def three(f):
    """Three calls of a program's step."""
    return [attempt(lambda i=i: f(i)) for i in range(4)]


# ---- hooks -------------------------------------------------------------------------------------------------------
def order_of_hooks(compile, module, x):
    """The names of the parameters in the order in which hooks of both kinds see them."""
    seen, fn = [], compile(module)
    for name, p in module.named_parameters():
        p.register_hook(lambda g, name=name: seen.append(name))
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, p.grad.clone())))
    for _ in range(3):
        fn(x).square().sum().backward()
    return seen


@program
def hooks_of_many_parameters(compile):
    """The order in which they leave the engine's queue depends on their number."""
    layers = [[nn.Linear(3, 3, bias=i % 3 < 2), nn.Tanh()] for i in range(9)]
    return [order_of_hooks(compile, nn.Sequential(*sum(layers[:n], [])), leaves(shapes=[(2, 3)])[0].detach()) for n in range(1, 10)]


@program
def hooks_of_convolutions_and_norms(compile):
    layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.PReLU(), nn.Conv2d(2, 2, 1, bias=False), nn.GroupNorm(1, 2)
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3), nn.LayerNorm(3))
    return order_of_hooks(compile, module, leaves(shapes=[(2, 1, 4, 4)])[0].detach())


@program
def hooks_of_shared_parameters(compile):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer, self.norm = nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4)
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            h = self.norm(self.layer(self.table(x)).tanh()) * self.scale
            return self.layer(h) @ self.table.weight.T

    return order_of_hooks(compile, Shared(), torch.arange(5))


@program
def hook_order(compile):
    fn = compile(body)

    def step(i):
        x, w, b = leaves(seed=i)
        seen = []
        h = x * 2
        h.register_hook(lambda g: seen.append(("h", g.clone())))
        w.register_hook(lambda g: seen.append(("w", g.clone())))
        w.register_post_accumulate_grad_hook(lambda p: seen.append(("post w", p.grad.clone())))
        y = fn(h, w, b)
        y.register_hook(lambda g: seen.append(("y", g.clone())))
        y.sum().backward()
        seen.sort(key=lambda s: s[0])
        return seen, x.grad, w.grad, b.grad

    return three(step)


@program
def hooks_replace_gradients(compile):
    fn = compile(body)

    def step(i):
        x, w, b = leaves(seed=i)
        x.register_hook(lambda g: g * 3)
        y = fn(x, w, b)
        y.register_hook(lambda g: g.expand_as(g) * 0 + 2)
        y.register_hook(lambda g: torch.ones(()).expand_as(g))
        y.sum().backward()
        return x.grad, w.grad, b.grad

    return three(step)


@program
def a_hook_inside(compile):
    seen = []

    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        h.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        return (h * b).exp() + h

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        seen.clear()
        return grads_of(fn(*args), args), list(seen)

    return three(step)


@program
def retain_grad_inside(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        h.retain_grad()
        return (h * b).exp() + h, h

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        y, h = fn(*args)
        y.sum().backward()
        return h.grad, [a.grad for a in args]

    return three(step)


@program
def module_full_backward_hooks(compile):
    seen = []
    m = net()
    for i, layer in enumerate(m):
        layer.register_full_backward_hook(lambda mod, gi, go, i=i: seen.append((i, "after", [*gi], [*go])))
        layer.register_full_backward_pre_hook(lambda mod, go, i=i: seen.append((i, "before", [*go])))
    fn = compile(m)

    def step(i):
        seen.clear()
        x = leaves(seed=i)[0]
        fn(x).square().sum().backward()
        out = x.grad, [p.grad.clone() for p in m.parameters()], copy.copy(seen)
        m.zero_grad()
        return out

    return three(step)


@program
def module_hooks_outside(compile):
    seen = []
    m = net()
    fn = compile(m)
    m.register_full_backward_hook(lambda mod, gi, go: seen.append(([*gi], [*go])))
    m.register_forward_hook(lambda mod, args, out: out * 2)

    def step(i):
        seen.clear()
        x = leaves(seed=i)[0]
        fn(x).square().sum().backward()
        out = x.grad, [p.grad.clone() for p in m.parameters()], copy.copy(seen)
        m.zero_grad()
        return out

    return three(step)


@program
def a_hook_raises(compile):
    fn = compile(body)
    bad = [False]

    def raising(g):
        if bad[0]:
            raise ValueError("in a hook")

    def step(i):
        x, w, b = leaves(seed=i)
        bad[0] = i == 2
        h = x * 2
        h.register_hook(raising)
        y = fn(h, w, b)
        first = attempt(lambda: y.sum().backward(retain_graph=True))
        bad[0] = False
        y.sum().backward()
        return first, x.grad, w.grad, b.grad

    return three(step)


@program
def a_hook_runs_a_backward(compile):
    fn = compile(body)

    def step(i):
        x, w, b = leaves(seed=i)
        u = leaves(seed=i + 10)
        inner = []

        def hook(g):
            inner.extend(torch.autograd.grad(fn(*u).sum(), u))

        y = fn(x, w, b)
        y.register_hook(hook)
        y.sum().backward()
        return x.grad, w.grad, b.grad, inner

    return three(step)


@program
def a_hook_compiled(compile):
    hook = compile(lambda g: torch.tanh(g) * 2 + g)
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        args[0].register_hook(hook)
        return grads_of(fn(*args), args)

    return three(step)


@program
def nodes_of_the_graph(compile):
    """register_prehook on grad_fn, multi-grad hooks."""
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        seen = []
        torch.autograd.graph.register_multi_grad_hook(args, lambda gs: seen.append([*gs]))
        y = fn(*args) * 1
        y.grad_fn.register_prehook(lambda g: (g[0] * 3,))
        y.sum().backward()
        return seen, [a.grad for a in args]

    return three(step)


# ---- graphs kept and dropped -------------------------------------------------------------------------------------
@program
def allow_unused(compile):
    fn = compile(lambda x, w, b: (x.exp() * 2 + x.sin(), (x * b).tanh() * 3 + b))

    def step(i):
        args = leaves(seed=i)
        one, two = fn(*args)
        return (
            attempt(lambda: torch.autograd.grad(one.sum(), args, retain_graph=True)),
            torch.autograd.grad(one.sum(), args, retain_graph=True, allow_unused=True),
            torch.autograd.grad(two.sum(), args, retain_graph=True, allow_unused=True),
            torch.autograd.grad(one.sum(), args, retain_graph=True, materialize_grads=True),
            torch.autograd.grad(one.sum() * two.sum(), args[2:]),
            attempt(lambda: torch.autograd.grad(two.sum(), args, allow_unused=True)),
        )

    return three(step)


@program
def freed_one_by_one(compile):
    """A backward through one result, then through another: raises only if they share a node that saves tensors."""
    fs = {
        "disjoint": lambda x, w, b: ((x * 2).sin() * 3 + 1, (w * 2).cos() * 3 + 1),
        "one leaf": lambda x, w, b: ((x * b).sin() * 3 + 1, (w * b).cos() * 3 + 1),
        "one sum": lambda x, w, b: (lambda h: (h.sin() * 3 * b, h.cos() * 3 * b))(x + b + 1),
        "one exp": lambda x, w, b: (lambda h: (h.sin() * 3 * b, h.cos() * 3 * b))((x * 2 + b).exp()),
        "one view": lambda x, w, b: (lambda h: (h.sin() * 3 * 2, h.cos() * 3 * 2))((x + b).view(8, 6)),
        "detached": lambda x, w, b: (lambda h: (h.sin() * 3 * b, (h.detach() * w[0]).exp().sin() * 2))((x * 2 + b).exp()),
        "nothing saved": lambda x, w, b: ((x * 2 + 1 - b).sum() * 3, (x - b + 1) * 2),
        "joined": lambda x, w, b: (torch.cat([x, x * 2]).sum(0) * 3 - b, (x - b + 1) * 2),
        "one of the other": lambda x, w, b: (lambda h: (h, h.sin() * b * 2))((x * 2 + b).exp() + 1),
        "three": lambda x, w, b: (lambda h, k: (h.sin() * 2 + k.cos(), h.cos() * 3 + 1, k.sin() * 2 + 1))((x * b).exp(), (x * w[0]).exp()),
        "means": lambda x, w, b: ((x * 2).mean(1) * 3 - b, x.sum(1) * 2 + b),
        "linear": lambda x, w, b: (F.linear(x, w, b) * 2 + 1, (b * 3 - 1) * 2),
    }
    out = []
    for name, f in fs.items():
        fn = compile(f)
        for i in range(3):
            for order in ((0, 1), (1, 0), (0, 0), (1, 1)) + (((2, 1), (1, 2, 0)) if name == "three" else ()):
                args = leaves(seed=i)
                y = fn(*args)
                errors = [attempt(lambda k=k, y=y: y[k].sum().backward()) for k in order]
                # where one raises, what was added up before it depends on the order of nodes
                out.append((name, order, errors, [a.grad for a in args] if not any(errors) else None))
    return out


@program
def nothing_is_freed(compile):
    """A second backward raises only if something was saved."""
    fs = {
        "sums": lambda x, w, b: (x + 1 - b) - x,
        "factors": lambda x, w, b: x * 2 * 3 - b,
        "views": lambda x, w, b: (x.transpose(1, 2).reshape(8, 6) + b) - 1,
        "joins": lambda x, w, b: torch.stack([x, x + b]) + torch.cat([x - 1, b.expand(2, 4, 6)]).sum(),
        "means": lambda x, w, b: (x.mean(1) - b).sum(0) + b,
        "exp": lambda x, w, b: (x + 2).exp() + b,
        "product": lambda x, w, b: (x + 1) @ (w.detach() + 2) + b,
    }
    out = []
    for name, f in fs.items():
        fn = compile(f)
        for i in range(3):
            args = leaves(seed=i)
            y = fn(*args).sum()
            errors = [attempt(lambda y=y: y.backward()) for _ in range(2)]
            out.append((name, errors, [a.grad for a in args] if not any(errors) else None))
    return out


@program
def hooks_of_another_result(compile):
    """A backward through one result calls no hook of another."""
    fn = compile(lambda x, w, b: (lambda h: (h.sin() * b, h.cos() * 3 + b, h.exp() + b))(torch.tanh(x @ w) * b))

    def step(i):
        args = leaves(seed=i)
        y, seen = fn(*args), []
        for k in range(3):
            y[k].register_hook(lambda g, k=k: seen.append(k) or g * 2)
            y[k].retain_grad()
        (y[i % 3].sum() + y[2].sum()).backward()
        return sorted(seen), [r.grad for r in y], [a.grad for a in args]

    return three(step)


@program
def actor_and_critic(compile):
    """Two losses of which one reads the other's network detached; each has its own backward and optimiser."""
    actor, critic = (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, n)) for n in (3, 1))
    optimisers = [torch.optim.SGD(m.parameters(), 0.1) for m in (actor, critic)]

    def losses(state, action, reward):
        value = critic(state).squeeze(-1)
        chosen = torch.log_softmax(actor(state), -1).gather(1, action[:, None]).squeeze(1)
        return -(chosen * (reward - value.detach())).mean(), F.mse_loss(value, reward)

    fn = compile(losses)

    def step(i):
        g = torch.Generator().manual_seed(i)
        both = fn(torch.randn(5, 6, generator=g), torch.randint(0, 3, (5,), generator=g), torch.randn(5, generator=g))
        for loss, optimiser in zip(both, optimisers):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return both, [p.grad.clone() for m in (actor, critic) for p in m.parameters()]

    return three(step)


@program
def hooks_of_the_other_head(compile):
    """A backward through one head calls no hook of the other's parameters and inputs."""
    trunk = nn.Linear(6, 8)
    heads = [nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, n), nn.Sigmoid()) for n in (3, 2)]
    every = nn.ModuleList([trunk, *heads])
    seen = []
    for name, p in every.named_parameters():
        p.register_hook(lambda g, name=name: seen.append(name) or g.clamp(-1, 1))

    def f(x, z):
        h = F.gelu(trunk(x)) * 1.5
        return heads[0](h), heads[1](h * z)

    fn = compile(f)

    def step(i):
        seen.clear()
        x, z = leaves(seed=i, shapes=((3, 6), (3, 8)))
        q = z.exp()
        q.register_hook(lambda g: seen.append("q") or g * 2)
        y = fn(x, q)
        y[i % 2].sum().backward()
        out = sorted(seen), attempt(lambda: q.sum().backward()), x.grad, z.grad, [p.grad for p in every.parameters()]
        every.zero_grad()
        return out

    return three(step)


@program
def a_loss_of_two_players(compile):
    """Generator and critic in one compiled step."""
    made, judge = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)), nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    one, two = torch.optim.SGD(made.parameters(), 0.1), torch.optim.SGD(judge.parameters(), 0.1)

    @compile
    def train(real, z):
        two.zero_grad()
        fake = made(z)
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss.backward()
        two.step()
        one.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        one.step()
        return loss.detach()

    def step(i):
        g = torch.Generator().manual_seed(i)
        return train(torch.randn(5, 6, generator=g), torch.randn(5, 4, generator=g)), [p.detach().clone() for m in (made, judge) for p in m.parameters()]

    return three(step)


@program
def batched_gradients(compile):
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        y = fn(*args)
        v = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(i))
        return torch.autograd.grad(y, args, v, is_grads_batched=True)

    return three(step)


@program
def functional_jacobian(compile):
    fn = compile(lambda x: (x * x).sin() * 2 + x.exp())

    def step(i):
        x = leaves(seed=i)[2].detach()
        return (
            torch.autograd.functional.jacobian(fn, x),
            torch.autograd.functional.jacobian(fn, x, vectorize=True),
            torch.autograd.functional.hessian(lambda v: fn(v).sum(), x),
            torch.autograd.functional.jvp(fn, x, torch.ones_like(x)),
            torch.autograd.functional.vjp(fn, x, torch.ones_like(x)),
        )

    return three(step)


@program
def func_transforms(compile):
    fn = compile(lambda x: (x * x).sin() * 2 + x.exp())

    def step(i):
        x = leaves(seed=i)[2].detach()
        return (
            torch.func.jvp(fn, (x,), (torch.ones_like(x),)),
            torch.func.vjp(fn, x)[1](torch.ones_like(x)),
            torch.func.grad(lambda v: fn(v).sum())(x),
            torch.func.jacrev(fn)(x),
            torch.func.hessian(lambda v: fn(v).sum())(x),
            torch.vmap(fn)(torch.stack([x, x * 2])),
            torch.func.vmap(torch.func.grad(lambda v: fn(v).sum()))(torch.stack([x, x * 2])),
        )

    return three(step)


@program
def forward_ad(compile):
    import torch.autograd.forward_ad as fwAD

    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        with fwAD.dual_level():
            d = fwAD.make_dual(args[0], torch.ones_like(args[0]))
            y = fn(d, *args[1:])
            return fwAD.unpack_dual(y)

    return three(step)


@program
def functional_call(compile):
    m = net()
    fn = compile(lambda ps, x: torch.func.functional_call(m, ps, (x,)).square().mean())

    def step(i):
        x = leaves(seed=i)[0]
        ps = {k: (v.detach() * (1 + i)).requires_grad_() for k, v in m.named_parameters()}
        loss = fn(ps, x)
        return loss, torch.autograd.grad(loss, [x, *ps.values()])

    return three(step)


@program
def double_backward(compile):
    fn = compile(body)

    def step(i):
        args = leaves(torch.float64, seed=i)
        first = torch.autograd.grad(fn(*args).square().sum(), args, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), args, create_graph=True)
        third = torch.autograd.grad(sum(g.sin().sum() for g in second), args)
        return first, second, third

    return three(step)


@program
def gradient_penalty(compile):
    m = net()
    fn = compile(m)

    def step(i):
        x = leaves(seed=i)[0]
        y = fn(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.square().mean() + (g.norm(2, -1) - 1).square().mean()).backward()
        out = [p.grad.clone() for p in m.parameters()], x.grad
        m.zero_grad()
        return out

    return three(step)


@program
def create_graph_accumulates(compile):
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        fn(*args).sum().backward(create_graph=True)
        out = [(a.grad.requires_grad, a.grad.detach().clone()) for a in args]
        for a in args:
            a.grad = None
        return out

    return three(step)


@program
def a_step_compiled(compile):
    m = net()
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def train(x):
        opt.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        opt.step()
        return loss.detach()

    fn = compile(train)
    return [fn(leaves(seed=i)[0].detach()) for i in range(5)], [*m.parameters()]


@program
def gradients_inside(compile):
    def f(x, w, b):
        y = (torch.tanh(x @ w) * b).exp()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + g * 2 + g.sin()

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        return grads_of(fn(*args), args)

    return three(step)


@program
def outputs_dropped(compile):
    fn = compile(lambda x, w, b: (torch.tanh(x @ w) * 2, (x * b).exp() + 1, x.sum() * b))

    def step(i):
        args = leaves(seed=i)
        out = list(fn(*args))
        y = out[i % 3]
        out.clear()
        gc.collect()
        return grad_of(y.sum(), args, allow_unused=True)

    return three(step)


@program
def gradients_of_another_layout(compile):
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        y = fn(*args)
        g = torch.randn(6, 4, 2, generator=torch.Generator().manual_seed(i)).permute(2, 1, 0)
        out = [grad_of(y, args, v, retain_graph=True) for v in (g, g[..., :1].expand(2, 4, 6), torch.zeros(()).expand(2, 4, 6))]
        return out, attempt(lambda: grad_of(y, args, g.double())), attempt(lambda: torch.autograd.grad(y, args, g[:1]))

    return three(step)


@program
def strides_of_gradients(compile):
    """.grad has the parameter's strides, and is nobody else's memory."""
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.Sigmoid()).to(memory_format=torch.channels_last)
    fn = compile(m)

    def step(i):
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(i)).to(memory_format=torch.channels_last).requires_grad_()
        y = fn(x)
        y.square().sum().backward()
        out = y.stride(), x.grad, [p.grad for p in m.parameters()]
        m.zero_grad()
        return out

    return three(step)


@program
def gradients_are_not_shared(compile):
    fn = compile(lambda x, w, b: (x + b).sin() + (x + b).cos() * 2)

    def step(i):
        x, w, b = leaves(seed=i, shapes=((6,), (6,), (6,)))
        y = fn(x, w, b)
        g = torch.ones(6)
        y.backward(g)
        x.grad.mul_(5)
        return x.grad, b.grad, g

    return three(step)


@program
def the_seed_is_not_written(compile):
    fn = compile(lambda x, y: ((x + y) * 1 + 0, x.sin() * y.cos()))

    def step(i):
        x, y = leaves(seed=i, shapes=((6,), (6,)))
        g = torch.ones(6), torch.ones(6)
        one, two = fn(x, y)
        torch.autograd.backward([one, two], g)
        x.grad += 1
        y.grad *= 2
        one, two = fn(x, y)
        torch.autograd.backward([one, two], g)
        return x.grad, y.grad, g

    return three(step)


# ---- writes ------------------------------------------------------------------------------------------------------
@program
def in_place_inside(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        h.mul_(b)
        h[0] = h[1] * 2
        h.add_(x).sin_()
        h[..., 1] += 3
        return h.exp() * b

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        return grads_of(fn(*args), args)

    return three(step)


@program
def in_place_inside_of_what_is_saved(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w)
        y = h.exp() * 2 + h.sin()
        h.mul_(b)
        return y + h

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        return attempt(lambda: grads_of(fn(*args), args))

    return three(step)


@program
def in_place_on_what_is_saved(compile):
    """Raises where eager raises: what an op has saved is written to."""

    def saved_result(x, w, b):
        h = (x * b).exp()
        return h.mul_(2) + 1

    def saved_operand(x, w, b):
        h = x * b
        k = h.sin() * 2
        h.add_(1)
        return k + h

    def its_own_operand(x, w, b):
        h = x * b + 1
        h.mul_(h)
        return h.sin() * 2

    def written_twice(x, w, b):
        h = (x * b + 1).relu_()
        h.mul_(2)
        return h.sin() * 2

    def not_saved(x, w, b):
        h = F.linear(x, w, b).relu_()
        k = F.linear(h.clone(), w).add_(x).tanh_()
        k -= 1
        return k + h

    def behind_no_grad(x, w, b):
        h = x * b + 1
        with torch.no_grad():
            h.mul_(2)
        return h.sin() * 2 + h.relu_()

    def hooked(x, w, b):
        h = F.linear(x, w, b)
        h.register_hook(lambda g: g * 3)
        h.relu_().mul_(b.detach())
        return h + x * 2 + 1

    out = []
    for f in (saved_result, saved_operand, its_own_operand, written_twice, not_saved, behind_no_grad, hooked):
        fn = compile(f)
        for i in range(4):
            args = leaves(seed=i)
            y = fn(*args)
            out.append((f.__name__, y, y._version, attempt(lambda args=args, y=y: grads_of(y, args, allow_unused=True))))
    return out


@program
def in_place_on_views(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        v = h.view(-1, 6)
        v[1:3].mul_(b)
        h.transpose(1, 2)[:, 0].add_(1)
        return v.exp() * 2 + h.view(-1, 6)

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        return grads_of(fn(*args), args)

    return three(step)


@program
def in_place_on_inputs(compile):
    def f(x, w, b):
        y = (x * b).sin() + 1
        x.mul_(2)
        return y * x.exp() + x

    fn = compile(f)

    def step(i):
        x, w, b = leaves(seed=i)
        h = x.clone()
        return attempt(lambda: grads_of(fn(h, w, b), (x, b))), h, attempt(lambda: fn(x, w, b))

    return three(step)


@program
def in_place_on_a_result(compile):
    fn = compile(lambda x, w, b: (lambda h: (h, h.sin() * 2 + x))(torch.exp(x * b) + x))

    def step(i):
        args = leaves(seed=i)
        h, y = fn(*args)
        h.mul_(2)
        return attempt(lambda: grads_of(h, args, retain_graph=True, allow_unused=True)), attempt(lambda: grads_of(y, args, allow_unused=True))

    return three(step)


@program
def in_place_on_results_saved(compile):
    """exp, tanh, sigmoid, softmax save their results, sin its input, mul by a number nothing."""

    def step(i):
        out = []
        for f in (
            lambda x, w, b: ((x * 2 + b).exp(), 1),
            lambda x, w, b: torch.softmax(x * 2 + b, -1),
            lambda x, w, b: torch.sigmoid(x * b + 2) * 3,
            lambda x, w, b: (x * b + 2).relu(),
            lambda x, w, b: (x.sin() + b) * 2,
            lambda x, w, b: F.layer_norm(x * 2 + 1, (6,), b, b),
            lambda x, w, b: (x * b).sum(-1).sqrt().exp(),
            lambda x, w, b: (x * b + 1).abs().pow(2.5),
            lambda x, w, b: F.dropout(x * b + 1, 0.5).sin() + 1,
            lambda x, w, b: F.linear((x * 2).sin(), w, b),
        ):
            fn = compile(f)
            for k in range(3):
                args = leaves(seed=k)
                torch.manual_seed(k)
                y = fn(*args)
                y = y[0] if isinstance(y, tuple) else y
                y.mul_(2)
                out.append(attempt(lambda args=args, y=y: grads_of(y, args, allow_unused=True)))
        return out

    return [step(0)]


@program
def writes_through_data_and_no_grad(compile):
    fn = compile(body)

    def step(i):
        out = []
        for how in range(4):
            args = leaves(seed=i)
            y = fn(*args)
            with torch.no_grad():
                if how == 0:
                    args[1].data.mul_(2)
                elif how == 1:
                    args[0].detach().mul_(2)
                elif how == 2:
                    y.data.zero_()
                elif how == 3:
                    args[2].copy_(args[2])
            out.append(attempt(lambda args=args, y=y: grads_of(y, args)))
        return out

    return three(step)


@program
def writes_through_data_inside(compile):
    """What was read before has kept its values, and autograd what it saved, which may be the memory that was written."""

    def parameter(x, w, b):
        y = (x * 2).sin().exp() * b
        x.data.add_(0.1)
        return y @ w

    def view(x, w, b):
        y = (x * 2).sin().exp() * b
        x.transpose(0, 1)[1:].data.add_(0.1)
        return y @ w

    def result(x, w, b):
        y = (x * 2).exp()
        z = y.sin().exp() * b
        y.data.mul_(0.5)
        return z @ w

    def copied(x, w, b):
        z = x.transpose(0, 1).reshape(-1, 6).sin().exp() * b
        x.data.add_(0.1)
        return z @ w

    def twice(y, args):
        first = torch.autograd.grad(y.square().sum(), args, create_graph=True)
        return [dense(g) for g in first], grad_of(sum(g.square().sum() for g in first), args)

    def step(fn, i, differentiate):
        args = leaves(seed=i)
        return attempt(lambda: differentiate(fn(*args), args))

    both = (grads_of, twice)
    fs = (parameter, view, result, copied)
    return [[step(fn, i, how) for i in range(3)] for f in fs for how in both for fn in [compile(lambda *args, f=f: f(*args))]]


@program
def an_optimizer_between(compile):
    """A step between forward and backward raises as in eager."""
    m = net()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    fn = compile(m)

    def step(i):
        x = leaves(seed=i)[0]
        y = fn(x).square().sum()
        y.backward(retain_graph=True)
        opt.step()
        return attempt(lambda: y.backward()), x.grad

    return three(step)


@program
def results_that_nothing_reads_under_a_checkpoint(compile):
    """Eager saves tensors for them, too; a recomputation that saves fewer than the forward raises."""

    def f(x, w, b):
        F.layer_norm(x, x.shape[-1:])
        (x @ w).exp()
        return (x * b).sin() * 2

    fn = compile(f)

    def step(i):
        args = leaves(seed=i, shapes=((2 + i, 4, 6), (6, 6), (6,)))
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
            y = fn(*args)
        return grads_of(y, args, allow_unused=True), sorted(saved), grads_of(checkpoint(fn, *args, use_reentrant=False), args, allow_unused=True)

    plain = [grads_of(fn(*(a := leaves(seed=i, shapes=((8 + i, 4, 6), (6, 6), (6,))))), a, allow_unused=True) for i in range(3)]
    return plain, [attempt(lambda i=i: step(i)) for i in (0, 0, 1, 1, 2, 2)]


@program
def a_function_that_saves_last_under_a_checkpoint(compile):
    """The checkpoint's hook stops its second run by an exception, which leaves the autograd.Function that saved."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 + ctx.saved_tensors[0] * 0.1

    fn = compile(lambda x, w, b: [x, (w * w.sum(0)).sin(), Double.apply(x)])

    def step(i):
        args = leaves(seed=i)
        first, _, last = checkpoint(fn, args[0], args[1].detach(), args[2], use_reentrant=False)
        return grad_of([first, last], args[:1], [torch.ones_like(first)] * 2)

    return three(step)


@program
def writes_to_results_of_a_checkpoint(compile):
    """Its backward reads what it computes again, so they are no error, but for ops behind it that have saved the result."""
    inner = lambda x, w, b: ((x @ w).sigmoid() * b).tanh()  # noqa: E731
    outer = lambda *args: checkpoint(inner, *args, use_reentrant=False)  # noqa: E731

    def in_place(x, w, b):
        return outer(x, w, b).mul_(2).cos().sum() * 2

    def by_a_view(x, w, b):
        y = outer(x, w, b)
        y.view(-1)[1:].mul_(2)
        return y.cos().sum() * 2

    def read_before(x, w, b):
        y = outer(x, w, b)
        z = y.sin().sum()
        y.mul_(2)
        return y.sum() + z

    def in_place_inside(x, w, b):
        return checkpoint(lambda *args: (inner(*args) * 2).relu_().tanh(), x, w, b, use_reentrant=False).add_(1).sum() * 2

    def result(x, w, b):
        return outer(x, w, b)

    def step(fn, i, wanted):
        args = leaves(seed=i)
        y = fn(*args)
        if y.dim():
            y.detach().mul_(2)
        return attempt(lambda: grad_of(y, [args[k] for k in wanted], torch.ones_like(y)))

    fs = (in_place, by_a_view, read_before, in_place_inside, result)
    wanted = ((0, 1, 2), (0, 1, 2), (2,), (0,), (0, 1, 2))
    return [[step(fn, i, w) for i, w in enumerate(wanted)] for f in fs for fn in [compile(lambda *args, f=f: f(*args))]]


@program
def weights_written_that_no_derivative_reads(compile):
    """Of an input without a gradient only the weight's or the bias' is computed; eager has saved the weight, and raises."""
    x, k = torch.randn(2, 6, 4, 4), torch.randn(6, 6, 3, 3)
    fs = (
        (lambda x, w, b: F.layer_norm(x.transpose(1, -1), (6,), w, b), torch.ones(6)),
        (lambda x, w, b: F.group_norm(x, 2, w, b), torch.ones(6)),
        (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), torch.ones(6)),
        (lambda x, w, b: F.conv2d(x, w, b), k),
        (lambda x, w, b: F.conv_transpose2d(x, w, b), k),
        (lambda x, w, b: F.linear(x, w[:, :4, 0, 0], b), k),
        (lambda x, w, b: F.prelu(x, w) + b.view(6, 1, 1), torch.ones(6)),
    )
    out = []
    for f, weight in fs:
        for trained in (True, False):
            fn = compile(lambda x, w, b, f=f: (f(x, w, b) * 2).sin().exp())
            for i in range(3):
                w, b = weight.clone().requires_grad_(trained), torch.full((6,), 0.5, requires_grad=True)
                y = fn(x + i, w, b)
                with torch.no_grad():
                    w.add_(1)
                out.append(attempt(lambda w=w, b=b, y=y: (y.sum().backward(), w.grad, b.grad)))
    return out


def empty_then_written(x, w, b):
    h = torch.empty_like(x.detach())
    h[:] = x * b
    h.masked_fill_(x > 0.2, 3.0)
    h += b
    return (h.sin() * 2 + h.exp()).tanh()


def zeros_by_parts(x, w, b):
    h = torch.zeros(2, 4, 6)
    h[0] = x[0] * 2
    h.add_(x)
    return (h.sin() * 2 + h.exp()).tanh()


def a_view_of_what_is_written(x, w, b):
    h = torch.ones(2, 4, 6).exp() * 2 + 1
    v = h[0]
    k = v.cos() * 2 + 1
    h.mul_(x)
    return (v.sin() * 2 + v.exp() * k).tanh()


def a_base_of_what_is_written(x, w, b):
    h = torch.ones(2, 4, 6).exp() * 2 + 1
    h.view(-1).mul_(x.view(-1))
    h[1].detach().zero_()
    return (h.sin() * 2 + h.exp()).tanh()


def indices_written(x, w, b):
    h = torch.zeros(6, 6)
    h.index_add_(0, torch.tensor([0, 2]), w[:2] * 2)
    h.index_copy_(0, torch.tensor([1]), w[3:4].sin())
    h.scatter_(1, torch.zeros(6, 1, dtype=torch.long), b.view(6, 1) * 2)
    return (h.sin() * 2 + h.exp()).tanh()


def detached_in_place(x, w, b):
    h = (x * 2).sin() * b
    k = h.exp() * 2 + b
    h.detach_()
    return (h.sin() * 2 + h.exp() * w[0]).tanh() + k


def given_out(x, w, b):
    h = torch.ones(2, 4, 6).exp() * 2 + 1
    out = torch.empty(2, 4, 6)
    with torch.no_grad():
        torch.mul(h, x, out=out)
    return (out * x.sin() * 2 + h.exp()).tanh()


@program
def writes_that_make_gradients(compile):
    """A tensor that needs no gradient does after a write of one that does."""
    out = []
    fs = empty_then_written, zeros_by_parts, a_view_of_what_is_written, a_base_of_what_is_written, indices_written
    for f in (*fs, detached_in_place, given_out):
        fn = compile(f)
        for i in range(4):
            args = leaves(seed=i)
            out.append(grads_of(fn(*args), args, allow_unused=True))
    return out


@program
def a_buffer_that_gradients_reach(compile):
    """State that a call writes, which requires a gradient from then on."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(6, 6)
            self.register_buffer("h", torch.zeros(2, 6))

        def forward(self, x):
            self.h.mul_(0.5)
            self.h += torch.tanh(self.lin(x)) * 2
            return self.h.sin() * 2 + self.h.exp()

    m = Net()
    fn = compile(m)
    out = []
    for i in range(6):
        y = fn(torch.randn(2, 6, generator=torch.Generator().manual_seed(i)))
        if i % 2:
            y.sum().backward()
            m.h.detach_()
            out.append([p.grad.clone() for p in m.parameters()])
    return out


# ---- modes inside ------------------------------------------------------------------------------------------------
@program
def modes_inside(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        with torch.no_grad():
            k = (h * b).exp() + 1
            with torch.enable_grad():
                m = (h * b).sin() * 3 + w[0]
        torch.set_grad_enabled(False)
        n = h * 3 + x.exp()
        torch.set_grad_enabled(True)
        return h * k + m, n, k.requires_grad, m.requires_grad, n.requires_grad

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        y, n, *flags = fn(*args)
        return grads_of(y, args), n, flags

    return three(step)


@program
def inference_mode_inside(compile):
    def f(x, w, b):
        with torch.inference_mode():
            k = (x @ w).tanh() * 2 + 1
        return k, (x * b).exp() * 2 + x

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        k, y = fn(*args)
        return k.is_inference(), attempt(lambda: (x := args[0]) * k), grads_of(y, args, allow_unused=True)

    return three(step)


@program
def detach_inside(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        d = h.detach()
        e = h.data * 2
        return (h * d + e * b).sin() + d, d, h

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        y, d, h = fn(*args)
        return grads_of(y, args), d.requires_grad, d._base is None, d.data_ptr() == h.data_ptr()

    return three(step)


@program
def detach_and_write(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        y = h.exp() + 1
        d = h.detach()
        d.zero_()
        return y * 2 + h.sin()

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        return attempt(lambda: grads_of(fn(*args), args, allow_unused=True))

    return three(step)


@program
def requires_grad_inside(compile):
    def f(x, w):
        h = (x.detach() * 2).sin()
        h.requires_grad_()
        y = torch.tanh(h @ w) * 2 + h
        return y, h

    fn = compile(f)

    def step(i):
        x, w, b = leaves(seed=i)
        y, h = fn(x, w)
        return torch.autograd.grad(y.sum(), (h, w)), h.is_leaf

    return three(step)


@program
def requires_grad_of_an_input_inside(compile):
    def f(x, w):
        x.requires_grad_(True)
        return torch.tanh(x @ w) * 2 + x.exp()

    fn = compile(f)

    def step(i):
        x, w, b = leaves(seed=i)
        x = x.detach()
        y = fn(x, w)
        y.sum().backward()
        return x.grad, w.grad

    return three(step)


@program
def requires_grad_toggled(compile):
    m = net()
    fn = compile(m)
    out = []
    for i in range(8):
        for k, p in enumerate(m.parameters()):
            p.requires_grad_(bool(i >> (k % 3) & 1))
        m.zero_grad()
        x = leaves(seed=i)[0].detach().requires_grad_(i % 2 == 0)
        y = fn(x)
        if y.requires_grad:
            y.square().sum().backward()
        out.append((x.grad, [p.grad for p in m.parameters()]))
    return out


@program
def anomaly_mode(compile):
    fn = compile(body)
    bad = compile(lambda x, w, b: (x * 0).sqrt() * b + x.sin() * 2)

    def step(i):
        args = leaves(seed=i)
        with torch.autograd.detect_anomaly(check_nan=True):
            y = fn(*args)
            z = bad(*args)
            return grads_of(y, args), attempt(lambda: grads_of(z * 2, args, allow_unused=True))

    return three(step)


@program
def anomaly_mode_of_the_backward(compile):
    bad = compile(lambda x, w, b: (x * 0).sqrt() * b + x.sin() * 2)

    def step(i):
        args = leaves(seed=i)
        z = bad(*args)
        with torch.autograd.set_detect_anomaly(True):
            r = attempt(lambda: grads_of(z * 2, args, allow_unused=True))
            return r[0] if isinstance(r[0], str) else r

    return three(step)


# ---- saved tensors -----------------------------------------------------------------------------------------------
@program
def saved_tensors_hooks_around(compile):
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        packed, unpacked = [], []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(tuple(t.shape)) or t.clone(), lambda t: unpacked.append(tuple(t.shape)) or t
        ):
            y = fn(*args)
        return grads_of(y, args), sorted(packed), sorted(unpacked)

    plain = three(lambda i: grads_of(fn(*(a := leaves(seed=i))), a))
    return plain, three(step), three(lambda i: grads_of(fn(*(a := leaves(seed=i))), a))


@program
def saved_tensors_hooks_inside(compile):
    packed = []

    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(tuple(t.shape)) or t, lambda t: t * 1):
            k = (h * b).exp().sin() * h
        return k * b + x.exp()

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        packed.clear()
        return grads_of(fn(*args), args), sorted(packed)

    return three(step)


@program
def save_on_cpu(compile):
    fn = compile(body)

    def inner(x, w, b):
        with torch.autograd.graph.save_on_cpu():
            return torch.tanh(x @ w) * 2 + (x * b).exp()

    inside = compile(inner)

    def step(i):
        args = leaves(seed=i)
        with torch.autograd.graph.save_on_cpu():
            y = fn(*args)
        return grads_of(y, args), grads_of(inside(*args), args)

    return three(step)


@program
def pack_hooks_that_raise(compile):
    fn = compile(body)

    def refuse(t):
        raise RuntimeError("nothing is saved here")

    def step(i):
        args = leaves(seed=i)
        with torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t):
            first = attempt(lambda: fn(*args))
        with torch.autograd.graph.disable_saved_tensors_hooks("none of them"):
            return first, grads_of(fn(*args), args)

    return three(step)


@program
def saved_and_written(compile):
    """allow_mutation_on_saved_tensors clones what is written."""
    fn = compile(body)

    def step(i):
        x, w, b = leaves(seed=i)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            h = x * 1
            y = fn(h, w, b)
            h.mul_(3)
            return grads_of(y, (x, w, b))

    return three(step)


def checkpointed(compile, reentrant, where):
    calls = []

    def f(x, w, b):
        calls.append(0)
        return F.dropout(torch.tanh(x @ w) * 2, 0.3) + (x * b).exp()

    if where == "around":
        inner = compile(f)
        fn = lambda *a: checkpoint(inner, *a, use_reentrant=reentrant)  # noqa: E731
    else:
        fn = compile(lambda x, w, b: checkpoint(f, x, w, b, use_reentrant=reentrant) * 2 + x.sin())

    def step(i):
        args = leaves(seed=i)
        torch.manual_seed(i)
        y = fn(*args)
        y.sum().backward()
        n = len(calls)
        calls.clear()
        return y, [a.grad for a in args], n, torch.rand(2)

    return three(step)


for _r in (False, True):
    for _w in ("around", "inside"):
        PROGRAMS[f"checkpoint_{_w}_{'reentrant' if _r else 'not_reentrant'}"] = lambda compile, r=_r, w=_w: checkpointed(compile, r, w)


@program
def checkpoint_in_a_model(compile):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.n, self.d = nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.2)

        def forward(self, x):
            return x + self.d(F.gelu(self.a(self.n(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            for b in self.blocks:
                x = checkpoint(b, x, use_reentrant=False)
            return x

    m = Net()
    fn = compile(m)

    def step(i):
        x = leaves(seed=i)[0]
        torch.manual_seed(i)
        fn(x).square().sum().backward()
        out = x.grad, [p.grad for p in m.parameters()], torch.rand(2)
        m.zero_grad()
        return out

    return three(step)


@program
def checkpoint_recomputes_in_another_mode(compile):
    """The recomputation saves as many tensors as the forward did."""
    fn = compile(body)
    for i in range(3):
        fn(*leaves(seed=i)).sum().backward()

    def step(i):
        args = leaves(seed=i)
        y = checkpoint(fn, *args, use_reentrant=False)
        z = checkpoint(lambda *a: fn(*a) * 2, *args, use_reentrant=False, determinism_check="default")
        (g,) = torch.autograd.grad((y * z).sum(), args[0], retain_graph=True)
        return g, attempt(lambda: grads_of(y, args, create_graph=True))

    return three(step)


# ---- Functions ---------------------------------------------------------------------------------------------------
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x * ctx.k, None


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1, 1) * 2


class Twin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        y = x.round()
        ctx.mark_non_differentiable(y)
        return x * 2, y

    @staticmethod
    def backward(ctx, g, _):
        return None if g is None else g * 5


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


@program
def custom_functions(compile):
    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        h = Cube.apply(h, 0.3) * b + Straight.apply(h * b).sin()
        u, v = Twin.apply(h * 2)
        k = Dirty.apply(u * 3 + v)
        return k.sin() * 2 + v

    fn = compile(f)

    def step(i):
        args = leaves(seed=i)
        return grads_of(fn(*args), args)

    return three(step)


@program
def a_compiled_function_in_a_function(compile):
    inner = compile(lambda x, w: torch.tanh(x @ w) * 2 + x.exp())

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return inner(x, w)

        @staticmethod
        def backward(ctx, g):
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                return torch.autograd.grad(inner(x, w), (x, w), g)

    def step(i):
        x, w, b = leaves(seed=i)
        return grads_of(Own.apply(x, w), (x, w))

    return three(step)


# ---- parameters --------------------------------------------------------------------------------------------------
@program
def shared_parameters(compile):
    a = nn.Linear(6, 6)
    m = nn.Sequential(a, nn.GELU(), a, nn.Tanh(), a)
    fn = compile(m)

    def step(i):
        x = leaves(seed=i)[0]
        fn(x).square().sum().backward()
        out = x.grad, [p.grad.clone() for p in m.parameters()]
        return out

    return three(step)


@program
def tied_weights(compile):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.n, self.out = nn.Embedding(10, 6), nn.LayerNorm(6), nn.Linear(6, 10, bias=False)
            self.out.weight = self.e.weight

        def forward(self, i):
            return self.out(F.gelu(self.n(self.e(i))) * 2)

    m = Tied()
    fn = compile(m)

    def step(i):
        ids = torch.randint(0, 10, (2, 5), generator=torch.Generator().manual_seed(i))
        F.cross_entropy(fn(ids).view(-1, 10), ids.view(-1)).backward()
        return [p.grad.clone() for p in m.parameters()]

    return three(step)


@program
def parametrized(compile):
    m = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.GELU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
        nn.Tanh(),
        nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)),
    )
    fn = compile(m)

    def step(i):
        x = leaves(seed=i)[0]
        fn(x).square().sum().backward()
        out = x.grad, [p.grad.clone() for p in m.parameters()]
        with torch.no_grad():
            for p in m.parameters():
                p.sub_(p.grad * 0.01)
        m.zero_grad()
        return out

    return three(step)


@program
def a_view_of_a_parameter(compile):
    lin = nn.Linear(6, 6)
    fn = compile(lambda x, v: torch.tanh(lin(x)) * 2 + v * x.exp())

    def step(i):
        x = leaves(seed=i)[0]
        y = fn(x, lin.weight[1])
        y.sum().backward()
        out = [p.grad.clone() for p in lin.parameters()], x.grad
        lin.zero_grad()
        z = fn(x, lin.weight.detach()[1])
        z.sum().backward()
        out += tuple(p.grad.clone() for p in lin.parameters())
        lin.zero_grad()
        return out

    return three(step)


@program
def the_same_tensor_twice(compile):
    fn = compile(lambda x, y, z: torch.tanh(x @ y) * 2 + (x * z).exp())

    def step(i):
        w = leaves(seed=i)[1]
        y = fn(w, w, w)
        z = fn(w, w.t(), w)
        return grads_of(y, [w]), grads_of(z, [w]), grads_of(fn(w, w.detach(), w), [w])

    return three(step)


# ---- tensors of other kinds --------------------------------------------------------------------------------------
@program
def layouts(compile):
    fn = compile(lambda x, y: (torch.sin(x * y) + x.exp() * 2) * y)

    def step(i):
        base = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(i))
        out = []
        for x in (
            base.to(memory_format=torch.channels_last),
            base.permute(2, 0, 3, 1),
            base[:, :, ::2, 1:],
            base[:1].expand(4, 3, 5, 5),
            base[:, :1, :1].expand(4, 3, 5, 5),
            base.as_strided((4, 3, 2, 2), (75, 25, 1, 1)),
            base[:, :0],
            base[0, 0, 0, 0],
            base.flatten()[::3],
        ):
            x = x.detach().requires_grad_()
            y = x.detach().clone().mul_(0.5).requires_grad_()
            r = fn(x, y)
            out.append((r, grads_of(r, (x, y)), grads_of(fn(x, x), [x])))
        return out

    return three(step)


@program
def broadcasting(compile):
    fn = compile(lambda x, y: (torch.sin(x * y) + x.exp() * 2) / (y * y + 1))

    def step(i):
        out = []
        for a, b in (((), (3,)), ((1, 3), (4, 1)), ((2, 1, 3), (3,)), ((1,), (1, 1, 1)), ((0,), (1,)), ((2, 0), (1, 0)), ((), ())):
            x, y = leaves(seed=i, shapes=(a, b))
            out.append(grads_of(fn(x, y), (x, y)))
        return out

    return three(step)


@program
def dtypes(compile):
    fn = compile(lambda x, y: (torch.sin(x * y) + x.exp() * 2) * y + x)

    def step(i):
        out = []
        kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        for a in kinds:
            for b in (*kinds, torch.int64, torch.bool):
                x, y = leaves(seed=i, shapes=((4, 3), (3,)))
                x = x.detach().to(a).requires_grad_()
                y = (y.detach() * 3).to(b)
                y.requires_grad_(b.is_floating_point)
                r = fn(x, y)
                out.append((r, r.dtype, torch.autograd.grad(r.sum(), [t for t in (x, y) if t.requires_grad])))
        return out

    return three(step)


@program
def complex_numbers(compile):
    fn = compile(lambda x, y: (torch.sin(x * y) + x.exp() * 2) * y + x)

    def step(i):
        x, y = leaves(seed=i, shapes=((4, 3), (3,)))
        z = torch.complex(x, x * 2)
        r = fn(z, y)
        return torch.autograd.grad(torch.view_as_real(r).sum(), (x, y)), torch.autograd.grad(fn(x, z.detach()).abs().sum(), (x,))

    return three(step)


@program
def numbers_that_change(compile):
    fn = compile(lambda x, k, n: (x * k).sin() ** n + x / (k + 1) * 2)
    out = []
    for i, (k, n) in enumerate([(1.0, 2), (0.5, 2), (2.5, 3), (2, 3), (0.0, 2), (-1.5, 1), (float("inf"), 2), (3.7, 2)]):
        (x,) = leaves(seed=i, shapes=((4, 3),))
        out.append(grads_of(fn(x, k, n), [x]))
    return out


@program
def shapes_that_change(compile):
    def f(x, w, b):
        h = F.layer_norm(x @ w, (6,), b)
        return torch.softmax(h @ h.transpose(-1, -2) / h.shape[1], -1) @ x + x.sum() / x.numel()

    fn = compile(f)
    out = []
    for i, n in enumerate((4, 4, 5, 7, 1, 9, 4, 2, 7, 12, 0, 3)):
        args = leaves(seed=i, shapes=((2, n, 6), (6, 6), (6,)))
        out.append(grads_of(fn(*args), args))
    return out


@program
def a_frozen_input_and_labels(compile):
    m = net(nn.Linear(6, 5))
    fn = compile(lambda x, t, w: F.cross_entropy(m(x), t, weight=w, label_smoothing=0.1) + F.nll_loss(F.log_softmax(m(x), -1), t))

    def step(i):
        g = torch.Generator().manual_seed(i)
        x, t = torch.randn(7, 6, generator=g), torch.randint(0, 5, (7,), generator=g)
        fn(x, t, torch.rand(5, generator=g)).backward()
        out = [p.grad.clone() for p in m.parameters()]
        m.zero_grad()
        return out

    return three(step)


@program
def scaled_autocast(compile):
    m = net(nn.Linear(6, 5))
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    fn = compile(m)
    out = []
    for i in range(5):
        g = torch.Generator().manual_seed(i)
        x, t = torch.randn(7, 6, generator=g), torch.randint(0, 5, (7,), generator=g)
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = fn(x)
            loss = F.cross_entropy(y, t)
        if i == 3:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        out.append((y.dtype, loss.detach().float().round(decimals=1), scaler.get_scale()))
    return out, [p.detach().to(torch.bfloat16) for p in m.parameters()]


@program
def autocast_inside(compile):
    lin = nn.Linear(6, 6)

    def f(x, b):
        with torch.autocast("cpu", torch.bfloat16):
            h = torch.tanh(lin(x)) * 2
            k = torch.softmax(h @ h.transpose(-1, -2), -1)
        return (k @ h.float()).sin() * b + x

    fn = compile(f)

    def step(i):
        x, w, b = leaves(seed=i)
        y = fn(x, b)
        return [g.to(torch.bfloat16) for g in grads_of(y, (x, b, lin.weight, lin.bias))]

    return three(step)


@program
def second_derivatives_under_autocast(compile):
    """The backward is outside of the block, and repeats what was cast."""
    lin = nn.Linear(6, 6)
    fn = compile(lambda x: torch.tanh(lin(x) * 2 + 1) * torch.softmax(lin(x * 2), -1))

    def step(i):
        x = leaves(seed=i)[0]
        with torch.autocast("cpu", torch.bfloat16):
            y = fn(x)
        first = torch.autograd.grad(y.float().sum(), [x, *lin.parameters()], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [x, *lin.parameters()])
        return [y, *(g.to(torch.bfloat16) for g in (*first, *second))]

    return three(step)


@program
def second_derivatives_without_the_inputs(compile):
    """Inputs that nothing but the graph knows: some are saved, some are kept, some do not matter."""
    out = []
    for f in (
        lambda x, y: ((x + y) * 2 - 1).sum() * y.mean(),
        lambda x, y: (x + y).exp() * 2 + 1,
        lambda x, y: (x * 2 + 1).tanh() + y * 3 - x,
        lambda x, y: torch.cat([x * 2, y + 1]).sigmoid().sum(),
        lambda x, y: (x - y).relu().square() + y,
    ):
        fn = compile(f)
        for i in range(3):
            leaf = leaves(torch.float64, seed=i)[0]
            z = fn(leaf.square(), leaf.exp())
            (first,) = torch.autograd.grad(z.sum(), leaf, create_graph=True)
            out.append((first, *grad_of(first.square().sum(), [leaf])))
    return out


@program
def modes_around_a_backward(compile):
    """A mode sees the ops of the backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    names = []
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        y = fn(*args).sum()
        names.clear()
        with Seen():
            grads = grad_of(y, args)
        return grads, sum(n.startswith(("mm", "bmm", "tanh_backward")) for n in names) > 0

    return three(step)


@program
def memory_after_backward(compile):
    """A result that outlives its backward holds nothing."""

    def f(x, y):
        return (x - y).relu().sum() * 2 + (y * 3).exp().sum()

    fn = compile(f)

    def step(i):
        leaf = leaves(seed=i)[0]
        x, y = leaf * 2, leaf * 3
        refs = [weakref.ref(x), weakref.ref(y)]
        z = fn(x, y)
        del x, y
        z.backward()
        return [r() is None for r in refs], leaf.grad

    gc.disable()
    try:
        return three(step)
    finally:
        gc.enable()


@program
def subclasses(compile):
    class Tagged(torch.Tensor):
        pass

    fn = compile(body)

    def step(i):
        x, w, b = leaves(seed=i)
        t = x.as_subclass(Tagged)
        y = fn(t, w, b)
        return type(y).__name__, [g.as_subclass(torch.Tensor) for g in torch.autograd.grad(y.sum().as_subclass(torch.Tensor), (x, w, b))]

    return three(step)


@program
def buffers_and_batch_norm(compile):
    m = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=None), nn.Sigmoid())
    fn = compile(m)
    out = []
    for i in range(8):
        (m.train if i % 4 != 3 else m.eval)()
        x = leaves(seed=i, shapes=((9, 6),))[0]
        fn(x).square().sum().backward()
        out.append((x.grad, [p.grad for p in m.parameters()], [b.clone() for b in m.buffers()]))
        m.zero_grad()
    return out


# ---- threads, memory, copies -------------------------------------------------------------------------------------
@program
def backward_in_another_thread(compile):
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        y = fn(*args)
        t = threading.Thread(target=lambda: y.sum().backward())
        t.start()
        t.join()
        return [a.grad for a in args]

    return three(step)


@program
def threads_that_train(compile):
    m = net()
    fn = compile(m)
    out = [None] * 4

    def work(k):
        out[k] = []
        for i in range(12):
            x = leaves(seed=i * 4 + k)[0]
            y = fn(x)
            out[k].append(torch.autograd.grad(y.square().sum(), [x, *m.parameters()]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


@program
def lifetimes(compile):
    """Each is alive as long as in eager: at the end of the forward, after backward, after the result has died."""

    def f(x, w, b):
        h = torch.tanh(x @ w) * 2
        return (h * b).exp(), h.sin() + 1

    fn = compile(f)

    def step(i):
        args = [a * 1 for a in leaves(seed=i)]
        refs = [weakref.ref(a) for a in args]
        y, z = fn(*args)
        refs += [weakref.ref(y), weakref.ref(z)]
        one = [r() is not None for r in refs]
        del args
        two = [r() is not None for r in refs[3:]]
        (y.sum() + z.sum()).backward()
        three = [r() is not None for r in refs]
        del y, z
        return one, two, three, [r() is not None for r in refs]

    gc.disable()
    try:
        return three(step)
    finally:
        gc.enable()


@program
def inputs_die_after_backward(compile):
    """What a result still holds after backward: nothing of the graph."""
    fn = compile(lambda x: (x * 2).sin() * 3 + x.cos())

    def step(i):
        leaf = leaves(seed=i)[0]
        h = leaf * 2
        ref = weakref.ref(h)
        y = fn(h)
        s = y.sum()
        s.backward()
        del h
        return ref() is None

    gc.disable()
    try:
        return three(step)
    finally:
        gc.enable()


@program
def inputs_not_saved_die(compile):
    """A sum's operands are not saved."""
    fn = compile(lambda x, y: ((x + y) * 2 - 1).sum() * 3)

    def step(i):
        leaf = leaves(seed=i)[0]
        h, k = leaf * 2, leaf * 3
        refs = [weakref.ref(h), weakref.ref(k)]
        y = fn(h, k)
        del h, k
        out = [r() is None for r in refs]
        y.backward()
        return out, leaf.grad

    gc.disable()
    try:
        return three(step)
    finally:
        gc.enable()


@program
def copies_after_training(compile):
    m = net()
    fn = compile(m)

    def step(i):
        x = leaves(seed=i)[0]
        fn(x).square().sum().backward()
        twin = copy.deepcopy(fn)
        other = pickle.loads(pickle.dumps(m))
        out = [p.grad.clone() for p in m.parameters()]
        twin(x.detach()).sum().backward()
        other(x.detach()).sum().backward()
        out += [p.grad.clone() for p in twin.parameters()] + [p.grad for p in other.parameters()]
        m.zero_grad()
        return out

    return three(step)


@program
def deepcopy_of_results(compile):
    fn = compile(body)

    def step(i):
        args = leaves(seed=i)
        y = fn(*args)
        return attempt(lambda: copy.deepcopy(y)), attempt(lambda: pickle.loads(pickle.dumps(y)).requires_grad), attempt(lambda: y.numpy())

    return three(step)


@program
def accumulated(compile):
    m = net()
    fn = compile(m)
    grads = []
    for i in range(6):
        fn(leaves(seed=i)[0].detach()).square().mean().backward()
        if i % 3 == 2:
            grads.append([p.grad.clone() for p in m.parameters()])
            m.zero_grad(set_to_none=i % 2 == 0)
    return grads


@program
def backward_after_many_forwards(compile):
    fn = compile(body)
    args = leaves()
    ys = [fn(args[0] * i, *args[1:]) for i in range(6)]
    for y in reversed(ys):
        y.sum().backward()
    return [a.grad for a in args]


@program
def two_compiled_in_a_row(compile):
    one, two = compile(net()), compile(net())
    ps = [*one.parameters(), *two.parameters()]

    def step(i):
        x = leaves(seed=i)[0]
        return torch.autograd.grad(two(one(x) + x).square().sum(), [x, *ps])

    return three(step)


@program
def nested_compiled(compile):
    inner = compile(net())
    outer = compile(lambda x: inner(x).sin() * 2 + inner(x * 2).exp())

    def step(i):
        x = leaves(seed=i)[0]
        return torch.autograd.grad(outer(x).sum(), [x, *inner.parameters()])

    return three(step)


@program
def recurrent(compile):
    m = nn.LSTM(6, 5, 2, batch_first=True)
    head = nn.Linear(5, 3)
    fn = compile(lambda x: torch.tanh(head(m(x)[0])) * 2 + 1)
    ps = [*m.parameters(), *head.parameters()]

    def step(i):
        x = leaves(seed=i)[0]
        return torch.autograd.grad(fn(x).square().sum(), [x, *ps])

    return three(step)


@program
def truncated_backpropagation(compile):
    cell = nn.GRUCell(6, 6)
    fn = compile(lambda x, h: torch.tanh(cell(x, h)) * 2 + h)
    h, out = torch.zeros(2, 6), []
    for i in range(6):
        h = fn(torch.randn(2, 6, generator=torch.Generator().manual_seed(i)), h)
        if i % 3 == 2:
            h.sum().backward()
            out.append([p.grad.clone() for p in cell.parameters()])
            h = h.detach()
    return out


@program
def views_of_results_and_their_writes(compile):
    fn = compile(lambda x, w, b: (lambda h: (h, h.t(), h[1:], h.view(-1)))(torch.tanh(x[0] @ w) * b + 1))

    def step(i):
        args = leaves(seed=i)
        h, t, s, v = fn(*args)
        t.mul_(2)
        flags = [r._base is h for r in (t, s, v)], h._is_view()
        return flags, attempt(lambda: grads_of(h, args, retain_graph=True)), attempt(lambda: grads_of(s, args, retain_graph=True)), h._version

    return three(step)


@program
def chunks_and_writes(compile):
    fn = compile(lambda x, w, b: [*((x * b).sin() * 2).chunk(2, -1), *((x * 2).exp() + b).unbind(0)])

    def step(i):
        args = leaves(seed=i)
        out = fn(*args)
        return (
            [r._is_view() for r in out],
            attempt(lambda: out[0].mul_(2)),
            attempt(lambda: torch.autograd.grad(sum(r.sum() for r in out[2:]), args, allow_unused=True)),
        )

    return three(step)


@program
def leaf_flags(compile):
    fn = compile(lambda x, w, b: (torch.tanh(x @ w) * 2, (x > 0), x.argmax(), x, x.detach().exp() * 2 + 1, [w * b]))

    def step(i):
        out = fn(*leaves(seed=i))
        flat = [*out[:-1], *out[-1]]
        return [(r.requires_grad, r.is_leaf, r.grad_fn is None, r._version) for r in flat]

    return three(step)


@program
def results_that_a_write_made_differentiable(compile):
    """Made without a gradient, last written with something that has one, and returned beside another stage."""
    makers = [torch.zeros_like, lambda x: x.detach().roll(1, 0), lambda x: (x.detach() * 2).tanh()]
    writes = [
        lambda h, x: h.add_(x),
        lambda h, x: h.mul_(2).mul_(x),
        lambda h, x: h.copy_(x),
        lambda h, x: h[0].copy_(x[0]),
        lambda h, x: h.view(-1).add_(x.reshape(-1)),
        lambda h, x: h.requires_grad_(),
    ]
    out = []
    for make in makers:
        for write in writes:

            def f(x, w, b, make=make, write=write):
                h = make(x)
                write(h, x)
                return h, (x * 2).tanh() * b

            fn = compile(f)
            for i in range(3):
                args = leaves(seed=i)
                h, k = fn(*args)
                out.append((h, k, h._version, grads_of(h * 2 + k, args, allow_unused=True)))
    return out


@program
def results_that_the_caller_writes(compile):
    """Of ops of which torch runs some, and gives views."""
    ops = [
        lambda x, w, b: torch.einsum("bij,kj->bik", x.tanh(), w),
        lambda x, w, b: F.linear(x.tanh() * 2, w, b),
        lambda x, w, b: torch.tensordot((x * b).tanh(), w, 1),
        lambda x, w, b: (x.tanh() * b) @ w,
        lambda x, w, b: F.conv1d(x.tanh() * b, w[:4, :4, None].tanh()),
        lambda x, w, b: F.avg_pool1d((x * 2).tanh() * b, 2),
        lambda x, w, b: F.max_pool1d((x * 2).tanh() * b, 2),
        lambda x, w, b: F.instance_norm((x * 2).tanh() * b),
        lambda x, w, b: F.interpolate((x * 2).tanh() * b, scale_factor=2, mode="linear"),
        lambda x, w, b: F.pad((x * 2).tanh() * b, (1, 1)),
        lambda x, w, b: ((x * 2).tanh() * b).sort(-1)[0],
    ]
    if torch.__version__ < (2, 14):  # newer ones save the result for these sizes, too, so eager raises
        ops.append(lambda x, w, b: F.scaled_dot_product_attention(x.tanh(), x * b, x))
    out = []
    for f in ops:
        fn = compile(f)
        for i in range(3):
            args = leaves(torch.float64, i)
            y = fn(*args)
            y.mul_(2)
            out.append((y, y._version, grads_of(y.sin(), args, allow_unused=True)))
    return out


@contextlib.contextmanager
def group(rank, world, path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def distributed_steps(compile, around, rank):
    """Steps of DistributedDataParallel around a compiled model, or of a compiled one around a model."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    m = net()
    ddp = compile(DistributedDataParallel(m)) if around else DistributedDataParallel(compile(m))
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for i in range(4):
        opt.zero_grad()
        ddp(leaves(seed=i * 2 + rank)[0].detach()).square().mean().backward()
        opt.step()
    with ddp.no_sync():
        ddp(leaves(seed=9)[0].detach()).square().mean().backward()
    return [p.detach() for p in m.parameters()], [p.grad for p in m.parameters()]


@pytest.mark.parametrize("around", [False, True])
def test_distributed_one_process(tmp_path, around):
    runs = []
    for i, compile in enumerate((lambda f: f, ccompile.compile)):
        with group(0, 1, tmp_path / str(i)):
            runs.append(distributed_steps(compile, around, 0))
    alike(*runs, rtol=1e-4, atol=2e-5)


def rank_of_two(rank, path, compiled, around, out):
    with group(rank, 2, path):
        torch.set_num_threads(1)
        torch.save(distributed_steps(ccompile.compile if compiled else lambda f: f, around, rank), f"{out}{rank}")


@pytest.mark.slow
def test_distributed_two_processes(tmp_path):
    runs = []
    for compiled, around in ((False, False), (True, False), (True, True)):
        name = f"{compiled}{around}"
        arguments = (str(tmp_path / f"group{name}"), compiled, around, str(tmp_path / f"out{name}."))
        torch.multiprocessing.spawn(rank_of_two, arguments, 2)
        runs.append([torch.load(tmp_path / f"out{name}.{rank}") for rank in range(2)])
    alike(runs[0], runs[1], rtol=1e-4, atol=2e-5)
    alike(runs[0], runs[2], rtol=1e-4, atol=2e-5)


def test_a_closure_that_is_called_plainly_and_wrapped():
    """As an optimiser in two steps (SAM) calls it: functools.wraps asks the second closure for its dict."""

    def fn(x, w):
        def closure():
            loss = (x @ w).sin().mean()
            loss.backward()
            return loss

        first = closure()
        with torch.no_grad():
            second = torch.enable_grad()(closure)()
        return first.item(), second.item(), w.grad.clone()

    compiled = ccompile.compile(fn)
    for i in range(8):
        x, (v, w) = torch.randn(3, 4), (torch.full((4, 2), i + 0.5, requires_grad=True) for _ in range(2))
        torch.testing.assert_close(compiled(x, v), fn(x, w), rtol=1e-5, atol=1e-6)
    assert EAGER or compiled_of(compiled).report()["recordings"] <= 2
