"""Steps of optimisers, compiled alone and in a whole training step: parameters, gradients, state and schedules are eager's,
a step is one graph in which the loops over a parameter are one kernel, and no number that varies compiles anything."""

import contextlib
import copy
import re

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, breaks, counters, dynamo_breaks, replaying
from torch import nn

OPTIMISERS = {
    "adam": ("Adam", {}),
    "adam, all of it": ("Adam", {"amsgrad": True, "maximize": True, "weight_decay": 0.1, "betas": (0.8, 0.99)}),
    "adamw": ("AdamW", {}),
    "adamw, amsgrad": ("AdamW", {"amsgrad": True, "weight_decay": 0.1}),
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "sgd, nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd, maximize": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop, centered": ("RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    "adagrad": ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
}
BOTH = pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
EACH = pytest.mark.parametrize("name", OPTIMISERS)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.LayerNorm(9), nn.Linear(9, 3))


@pytest.fixture(autouse=True)
def _unpatched(monkeypatch):
    """As where nobody has called torch.compile: from its first call on, Dynamo does not enter methods that make states."""
    for kind in {kind for kind, _ in OPTIMISERS.values()}:
        method = getattr(torch.optim, kind)._init_group
        while hasattr(method, "_torchdynamo_orig_callable"):
            method = method._torchdynamo_orig_callable
        monkeypatch.setattr(getattr(torch.optim, kind), "_init_group", method)


class Side:
    """A network, its optimiser, and the step that is called."""

    def __init__(self, name, compile, groups=1, **more):
        kind, options = OPTIMISERS[name]
        self.net = net()
        params = list(self.net.parameters())
        split = [{"params": params[i::groups]} for i in range(groups)]
        if groups > 1:
            split[1]["lr"] = 0.05
        self.optimiser = getattr(torch.optim, kind)(split, **options | more)
        self.step = compile(self.optimiser.step)

    def gradients(self, seed, none=()):
        generator = torch.Generator().manual_seed(seed)
        for i, p in enumerate(self.net.parameters()):
            g = torch.randn(p.shape, generator=generator)
            p.grad = None if i in none else g

    def left(self):
        """All that a step leaves, with the versions of what it writes."""
        tensors = [(p.detach(), p._version, p.grad) for p in self.net.parameters()]
        state = self.optimiser.state
        held = [sorted(state[p]) if p in state else None for p in self.net.parameters()]
        counts = [
            {key: v._version for key, v in state[p].items() if isinstance(v, torch.Tensor)} if p in state else None
            for p in self.net.parameters()
        ]
        return tensors, held, counts, self.optimiser.state_dict()


def sides(name, **more):
    return Side(name, lambda f: f, **more), Side(name, ccompile.compile, **more)


def equal(eager, ours, versions=True, rtol=2e-5, atol=1e-6):
    want, got = eager.left(), ours.left()
    torch.testing.assert_close(got[0], want[0], rtol=rtol, atol=atol)
    assert got[1] == want[1]
    assert not versions or got[2] == want[2]
    torch.testing.assert_close(got[3], want[3], rtol=rtol, atol=atol)


# ---- a step alone ----------------------------------------------------------------------------------------------------
@EACH
@BOTH
def test_steps_are_eagers(name, foreach):
    eager, ours = sides(name, foreach=foreach)
    for seed in range(5):
        for side in (eager, ours):
            side.gradients(seed)
            side.step()
        equal(eager, ours)


@EACH
def test_parameters_in_groups_and_without_gradients(name):
    eager, ours = sides(name, groups=2)
    for seed, none in enumerate([(1,), (1,), (), (), (0, 3), (0, 3), ()]):
        for side in (eager, ours):
            side.gradients(seed, none)
            side.step()
        equal(eager, ours)


@EACH
@BOTH
def test_state_survives_a_round_trip(name, foreach):
    eager, ours = sides(name, foreach=foreach)
    for seed in range(6):
        for side in (eager, ours):
            side.gradients(seed)
            side.step()
            if seed == 2:
                side.optimiser.load_state_dict(copy.deepcopy(side.optimiser.state_dict()))
    equal(eager, ours, versions=False)


@EACH
@BOTH
def test_a_learning_rate_is_no_constant(name, foreach):
    """A schedule changes it before each step: after the second value it compiles nothing and replays."""
    eager, ours = sides(name, foreach=foreach)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(side.optimiser, 0.9) for side in (eager, ours)]
    for seed in range(10):
        before = counters()
        for side, schedule in zip((eager, ours), schedules):
            side.gradients(seed)
            side.step()
            schedule.step()
        equal(eager, ours)
        if seed >= 5 and not EAGER:
            after = counters()
            assert all(after[what] == before[what] for what in ("recording", "recompile", "kernel", "eager"))


@pytest.mark.skipif(EAGER, reason="needs the product")
@EACH
@BOTH
def test_a_step_breaks_no_more_often_than_dynamos(name, foreach):
    side = Side(name, lambda f: f, foreach=foreach)
    for seed in range(2):
        side.gradients(seed)
        side.step()
    assert breaks(side.optimiser.step).breaks <= dynamo_breaks(side.optimiser.step).breaks


@pytest.mark.skipif(EAGER, reason="needs the product")
@EACH
@BOTH
def test_a_parameter_takes_two_kernels(name, foreach):
    """One over its elements, one over numbers that eager computes from the count of steps; torch runs nothing."""
    side = Side(name, ccompile.compile, foreach=foreach)
    for seed in range(4):
        side.gradients(seed)
        side.step()
    report = compiled_of(side.step).report()
    last = max((s for e in report["entries"] for s in e["segments"]), key=lambda s: (s["hits"] > 0, len(s["nodes"])))
    steps = [line for line in last["plan_text"].splitlines() if re.match(r"\d", line)]
    kernels = [line for line in steps if " kernel " in line]
    most = 5 if "amsgrad" in OPTIMISERS[name][1] else 2  # torch.maximum(..., out=...) is torch's
    assert len(kernels) <= most * len(list(side.net.parameters())) + foreach  # Adam stacks step sizes
    hosts = [str(last["nodes"][int(n)]) for s in steps for n in re.findall(r"host#(\d+)", s)]
    assert all("set_grad" in host or (most > 2 and "maximum" in host) for host in hosts)


def test_more_parameters_than_variants_of_a_loop():
    """The first step makes each parameter's state in an iteration of its own; the later ones are still one graph."""
    many = [[nn.Parameter(torch.full((3,), float(i))) for i in range(80)] for _ in range(2)]
    optimisers = [torch.optim.Adam(params) for params in many]
    steps = [optimisers[0].step, ccompile.compile(optimisers[1].step)]
    for k in range(5):
        for params, step in zip(many, steps):
            for p in params:
                p.grad = torch.full((3,), k - 1.5)
            with replaying() if k > 3 and step is steps[1] else contextlib.nullcontext():
                step()
    torch.testing.assert_close(many[1], many[0])


def test_hooks_of_an_optimiser():
    told = []
    eager, ours = sides("adam")
    for side in (eager, ours):
        side.optimiser.register_step_pre_hook(lambda opt, args, kwargs: told.append("before"))
        side.optimiser.register_step_post_hook(lambda opt, args, kwargs: told.append(len(opt.state)))
    for seed in range(4):
        for side in (eager, ours):
            side.gradients(seed)
            side.step()
    assert told == ["before", 8] * 8
    equal(eager, ours)


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_a_learning_rate_that_is_a_tensor(kind):
    eager, ours = [Side("adam", compile) for compile in (lambda f: f, ccompile.compile)]
    for side, compile in ((eager, lambda f: f), (ours, ccompile.compile)):
        side.optimiser = getattr(torch.optim, kind)(side.net.parameters(), lr=torch.tensor(0.1), foreach=False)
        side.step = compile(side.optimiser.step)
    for seed in range(5):
        for side in (eager, ours):
            side.gradients(seed)
            side.step()
            side.optimiser.param_groups[0]["lr"].mul_(0.9)
    equal(eager, ours, rtol=1e-4, atol=1e-5)


@BOTH
@pytest.mark.parametrize("others", [0, 12])
def test_parameters_that_share_memory(foreach, others):
    """Kernels of two parameters must not be one where one's write is the other's read. Many parameters are compared by
    address, few in pairs."""
    memory = [torch.arange(12.0 + 8 * others) for _ in range(2)]
    params = [[nn.Parameter(m[at : at + 8]) for at in (0, 4, *range(12, 12 + 8 * others, 8))] for m in memory]
    optimisers = [torch.optim.SGD(p, lr=0.5, momentum=0.9, weight_decay=0.1, foreach=foreach) for p in params]
    steps = [optimisers[0].step, ccompile.compile(optimisers[1].step)]
    for k in range(4):
        for p, step in zip(params, steps):
            for each in p[1:]:
                each.grad = torch.full((8,), float(k))
            p[0].grad = p[1].detach()
            step()
    torch.testing.assert_close(memory[1], memory[0])


# ---- a whole training step -------------------------------------------------------------------------------------------
@EACH
@pytest.mark.parametrize("to_none", [True, False])
def test_a_whole_training_step(name, to_none):
    kept = []
    for compile in (lambda f: f, ccompile.compile):
        side = Side(name, lambda f: f)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(side.optimiser, 20)

        def train(x, y, side=side, schedule=schedule):
            side.optimiser.zero_grad(set_to_none=to_none)
            loss = nn.functional.mse_loss(side.net(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(side.net.parameters(), 0.5)
            side.optimiser.step()
            schedule.step()
            return loss.detach(), norm

        fn = compile(train)
        torch.manual_seed(1)
        kept.append(([fn(torch.randn(5, 6), torch.randn(5, 3)) for _ in range(8)], side.left()))
    torch.testing.assert_close(kept[1][0], kept[0][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(kept[1][1][0], kept[0][1][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(kept[1][1][3], kept[0][1][3], rtol=1e-4, atol=1e-5)


def zero_at(place, side, **how):
    """A step whose only break is the backward: at a break, some gradients are there, others are not."""

    def train(x):
        if place == "first":
            side.optimiser.zero_grad(**how)
        loss = side.net(x).square().mean()
        if place == "behind the forward":
            side.optimiser.zero_grad(**how)
        loss.backward()
        side.optimiser.step()
        if place == "last":
            side.optimiser.zero_grad(**how)
        return loss.detach()

    return train


@BOTH
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("place", ["first", "behind the forward", "last"])
def test_zero_grad_is_no_break(place, to_none, foreach):
    """Also where gradients are held elsewhere, are absent, were made by create_graph, or appear between calls."""
    kept = []
    for compile in (lambda f: f, ccompile.compile):
        side = Side("sgd, momentum", lambda f: f, foreach=foreach)
        params = [*side.net.parameters()]
        params[0].requires_grad_(False)
        step, seen = compile(zero_at(place, side, set_to_none=to_none)), []
        for k in range(8):
            held = [p.grad for p in params]
            if k == 4:
                params[1].grad = None
            if k == 5:
                params[2].grad = (params[2] * 2).sum() * torch.ones_like(params[2])
            if k == 6:
                params[0].grad = torch.ones_like(params[0])
            torch.manual_seed(k)
            seen.append((step(torch.randn(5, 6)), [p.grad is h for p, h in zip(params, held)]))
            seen.append([None if g is None else g.detach().clone() for g in (*held, *(p.grad for p in params))])
        kept.append((seen, [p.detach() for p in params]))
    torch.testing.assert_close(kept[1], kept[0])
    if not EAGER:
        told = ccompile.explain(zero_at(place, side, set_to_none=to_none), torch.randn(5, 6))
        assert [r.reason for r in told.break_reasons] == ["library"]
