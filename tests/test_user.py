"""Code of the kind that users write gives what eager gives, and replays; state that it keeps follows."""

import collections

import ccompile
import pytest
import torch
from conftest import EAGER, alike, no_worse, replaying, same
from record_cases import t
from record_user import CASES, Trainer
from torch import nn


def build(name):
    fn = CASES[name].fn
    torch.manual_seed(5)
    return fn() if isinstance(fn, type) else fn


@pytest.mark.parametrize("name", CASES)
def test_equal(name):
    c = CASES[name]
    same(build(name), make_args=c.inputs, calls=5, hit=c.hit)


@pytest.mark.parametrize(
    "name", [n for n in CASES if isinstance(CASES[n].fn, type) and n not in ("KvCache", "PositionalEncoding", "RunningMean")]
)
def test_gradients(name):
    same(build(name), make_args=CASES[name].inputs, calls=3, no_grad=False, backward=True, hit=False)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_no_more_breaks_than_dynamo(name):
    made = CASES[name].inputs(0)
    args, kw = made if len(made) == 2 and isinstance(made[1], dict) else (made, {})
    no_worse(build(name), *args, **kw)


def test_state_from_call_to_call():
    def build():
        trainer = Trainer()
        return trainer.__call__, trainer

    same(build, make_args=lambda i: t(3, 4, seed=i), calls=7, build=True, hit=False)


def changing(make, change, calls=6):
    """fn reads a container that `change` alters between calls: nothing of it may be baked in."""

    eager, compiled = make(), make()
    ours = ccompile.compile(compiled[0])
    with torch.no_grad():
        for i in range(calls):
            x = t(3, 4, seed=i)
            alike(eager[0](x), ours(x.clone()), path=f"call {i}")
            change(eager[1], i)
            change(compiled[1], i)


def over(container, body):
    return lambda: (lambda c: ((lambda x: body(x, c)), c))(container())


CONTAINERS = {
    "deque-len": (over(lambda: collections.deque([1, 2]), lambda x, c: x * len(c)), lambda c, i: c.append(i)),
    "deque-item": (over(lambda: collections.deque([1, 2]), lambda x, c: x * c[-1]), lambda c, i: c.append(i)),
    "extend-from-outside": (
        over(lambda: [1.0, 2.0], lambda x, c: [].extend(c) or x * sum([*c])),
        lambda c, i: c.__setitem__(0, float(i)),
    ),
    "sorted-deep": (
        over(lambda: [[2, "b"], [1, "a"]], lambda x, c: (x, [k for _, k in sorted(c)])),
        lambda c, i: c[0].__setitem__(0, i % 3),
    ),
    "ordered-dict-order": (
        over(lambda: collections.OrderedDict(a=1, b=2), lambda x, c: (x, list(c))),
        lambda c, i: c.move_to_end("a", last=i % 2 == 0),
    ),
    "map-of-append": (over(list, lambda x, c: (x * 2, list(map(c.append, [1])), len(c))), lambda c, i: None),
    "default-dict": (
        over(lambda: collections.defaultdict(int), lambda x, c: (x, c["n"], dict(c))),
        lambda c, i: c.__setitem__("n", i) if i % 2 else c.clear(),
    ),
    "delete-key": (
        over(lambda: {"a": 1, "b": 2}, lambda x, c: (x, c.pop("a", None), sorted(c))),
        lambda c, i: c.__setitem__("a", i),
    ),
    "dict-of-lists": (
        over(lambda: {"a": [1, 2]}, lambda x, c: (c.setdefault("z", []).append(x), len(c["z"]), x * c["a"][-1], list(c))[1:]),
        lambda c, i: c["a"].append(i),
    ),
    "deque-window": (
        over(lambda: collections.deque(maxlen=2), lambda x, c: (c.append(x), torch.stack(list(c)), len(c))[1:]),
        lambda c, i: c.clear() if i == 3 else None,
    ),
    "set-of-numbers": (over(set, lambda x, c: (c.add(len(c)), x * len(c), sorted(c))[1:]), lambda c, i: None),
    "extend-sort-pop": (
        over(lambda: [3.0, 1.0], lambda x, c: (c.extend([2.0]), c.sort(), x * c.pop(), tuple(c))[2:]),
        lambda c, i: c.append(float(i)),
    ),
    "two-names": (
        over(lambda: [1.0], lambda x, c: (lambda d: (d.append(2.0), len(c), c is d, x * sum(d))[1:])(c)),
        lambda c, i: None,
    ),
    "default-dict-writes": (
        over(lambda: collections.defaultdict(int), lambda x, c: (c.__setitem__("a", 1), dict(c), c["b"], x, dict(c))[1:]),
        lambda c, i: c.clear(),
    ),
    "append-then-read": (over(list, lambda x, c: (c.append(1.0), x * sum(c))[1]), lambda c, i: c.clear() if i == 3 else None),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_that_change(name):
    changing(*CONTAINERS[name])


def test_shared_tensors_are_told_apart():
    """`t in seen` is a question of identity: a call whose tensors are shared otherwise must not replay."""

    def distinct(a, b):
        seen, n = set(), 0
        for v in (a, b):
            if v not in seen:
                seen.add(v)
                n += 1
        return a + b, n

    compiled = ccompile.compile(distinct)
    a, b = t(3), t(3, seed=1)
    with torch.no_grad():
        for args in ((a, b), (a, a), (b, a), (b, b), (a, b)):
            alike(distinct(*args), compiled(*args))


def test_numbers_inside_lists_are_not_baked_in():
    """A number read from a tensor that Python code looks at inside of a list."""

    def fn(x):
        k = x.sum().item()
        return x * max([k, 0.5]), min((k, 2.0), (1.0, 1.0))

    same(fn, make_args=lambda i: t(3, 4, seed=i), calls=4, hit=False)


def test_first_parameter_decides():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x.to(next(self.parameters()).dtype))

    net = Net()
    compiled = ccompile.compile(net)
    with torch.no_grad():
        for _ in range(2):
            alike(net(t(3, 4)), compiled(t(3, 4)))
        with replaying(1):
            compiled(t(3, 4))
        net.double()
        alike(net(t(3, 4)), compiled(t(3, 4)))
