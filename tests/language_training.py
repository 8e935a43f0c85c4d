"""Training steps inside compiled functions, and the idioms around them (see language_cases.py)."""

import copy
import functools
import typing

import torch
from language_cases import Seen, case, made, t
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def seeded():
    torch.manual_seed(11)
    return Net()


# ---- backward and optimizers -----------------------------------------------------------------------------------------
@made
def train_step():
    net = seeded()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        with torch.enable_grad():
            loss = ((net(x) - x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), norm

    return step, net


@made
def train_step_by_hand():
    net = seeded()

    def step(x):
        with torch.enable_grad():
            loss = ((net(x) - x) ** 2).mean()
            loss.backward()
        for p in net.parameters():
            p.sub_(0.1 * p.grad)
            p.grad.zero_()
        return loss.detach()

    return step, net


@made
def gradients_read():
    net = seeded()
    net.a(t(2, 3)).sum().backward()

    def f(x):
        return x * 2, [None if p.grad is None else p.grad * 2 for p in net.parameters()], x.grad

    return f, net


@made(hit=False)
def gradient_appears():
    net, calls = seeded(), []

    def f(x):
        calls.append(1)
        if len(calls) == 3:
            with torch.enable_grad():
                net(x).sum().backward()
        return x * 2 if net.a.weight.grad is None else x + net.a.weight.grad.sum()

    return f, net


@case
def gradient_penalty(x):
    with torch.enable_grad():
        z = (x * 0.5).requires_grad_()
        (g,) = torch.autograd.grad(z.sin().sum(), z, create_graph=True)
        return ((g.norm(2, dim=1) - 1) ** 2).mean().detach()


@made(hit=False)
def hook_on_a_tensor():
    net, seen = seeded(), []

    def f(x):
        with torch.enable_grad():
            y = net(x)
            y.register_hook(lambda g: seen.append(g.sum()))
            y.sum().backward()
        return y.detach()

    return f, [net, seen]


# ---- loops over what a module holds, with breaks in them -------------------------------------------------------------
@made(over=2)  # Dynamo unrolls the loop and counts the first print
def parameters_printed():
    net = seeded()

    def f(x):
        for p in net.parameters():
            print(tuple(p.shape), float(p.sum()) > 0)
        return net(x)

    return f, net


@made(hit=False, over=2)
def parameters_compared():
    net = seeded()
    other = copy.deepcopy(net)

    def f(x):
        for a, b in zip(net.parameters(), other.parameters()):
            if (a - b).abs().max() > 0.5:
                a.copy_(b)
            a.add_(0.2)
        return x + 1

    return f, [net, other]


# ---- profiler ranges -------------------------------------------------------------------------------------------------
@torch.profiler.record_function("whole")
def labelled(x):
    return x * 3


@case
def profiler_ranges(x):
    with torch.profiler.record_function("part") as label:
        y = x * 2
    with torch.autograd.profiler.record_function("rest"):
        return labelled(y) + 1, label is None


# ---- what is alive at a break, or returned ---------------------------------------------------------------------------
@case
def annotations_of_a_local_function(x):
    def f(a: typing.List[int], b: "typing.Optional[torch.Tensor]" = None, *c: typing.Dict[str, typing.Tuple[int, ...]]) -> typing.Any:
        """Text."""
        return a

    print("between")
    return x * 2, f.__annotations__, f.__doc__, typing.get_args(typing.Optional[int]), f


@case
def wrapper_returned(x):
    @functools.wraps(seeded)
    def wrapper(*args: int):
        return args

    wrapper.__doc__ = "other"
    wrapper.__module__ = "elsewhere"
    wrapper.tag = 3
    return wrapper, wrapper.__wrapped__, x + 1


@case
def frozenset_of_tensors(x):
    return frozenset([x * 2]), frozenset([1, 2])


@case
def tuples_as_keys(x):
    d = {(0, 1): x + 1, None: 1, (2, ("a", 3.5)): 2}
    print(len(d))
    return d, d[0, 1] * 2


@case
def sparse_alive_at_a_break(x):
    s = x.to_sparse()
    y = x * 2
    print("between")
    return s, y, s


@functools.lru_cache(maxsize=None)
def spread(key, n):
    return tuple(range(key[0] + n))


@case(inputs=lambda i: (t(2, 3, seed=i), (1 + i % 2, 2)))
def cached_by_a_tuple(x, key):
    return x + sum(spread(key, 3)) + len(spread((1, (2, "a")), 1))


@case
def profiler_ranges_around_breaks(x):
    with torch.profiler.record_function("part"):
        y = x * 2
        print("inside")
        return labelled(y) + 1


@case(hit=False, over=2)  # the loader's own iterators and queues
def loop_over_a_loader(x):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.arange(2)), batch_size=1)
    return [rows * 2 + k for rows, k in loader]


# ---- gradients that are dropped --------------------------------------------------------------------------------------
@made
def gradients_dropped():
    net = seeded()

    def f(x):
        for p in net.parameters():
            p.grad = None
        with torch.enable_grad():
            net(x).pow(2).sum().backward()
        return [p.grad * 1 for p in net.parameters()]

    return f, list(net.parameters())


@made
def gradients_dropped_by_module():
    net = seeded()

    def f(x):
        net.zero_grad()
        gone = [p.grad is None for p in net.parameters()]
        with torch.enable_grad():
            net(x).pow(2).sum().backward()
        return gone

    return f, list(net.parameters())


@made(hit=False)
def gradient_read_and_dropped():
    p, calls = torch.nn.Parameter(torch.ones(2, 3)), []

    def f(x):
        calls.append(1)
        g = p.grad
        y = x * 2 if g is None else x * g.sum()
        p.grad = None
        gone = p.grad is None
        if len(calls) % 2:
            with torch.enable_grad():
                (p * x).sum().backward()
        return y, g, gone, p.grad is None

    return f, [p, calls]


@case(inputs=lambda i: (t(2, 3, seed=i).requires_grad_(i % 2 == 1),))
def gradient_of_an_argument_dropped(x):
    before = x.grad
    x.grad = None
    return before, x.grad, (x * 2).detach()


@case(over=1)  # a tensor that a node made
def gradient_of_no_leaf_dropped(x):
    y = x * 2
    y.grad = None
    return y + 1


# ---- requires_grad ---------------------------------------------------------------------------------------------------
@case
def requires_grad_of_results(x):
    y = (x * 2 + 1).relu()
    twin = (x * 2 + 1).relu()
    y.requires_grad_()
    z, w = y.sin() * 3, torch.zeros(3).requires_grad_()
    with torch.enable_grad():
        v = y * w
    return y, twin, z, v, z.requires_grad, v.requires_grad, twin.requires_grad


@case(inputs=lambda i: (t(2, 3, seed=i).requires_grad_(i % 2 == 0),))
def requires_grad_toggled(x):
    before = x.requires_grad
    x.requires_grad_(not before)
    return before, x.requires_grad, (x * 2).requires_grad, x


@case
def requires_grad_attribute(x):
    y = x.clone()
    y.requires_grad = True
    with torch.enable_grad():
        z = (y * 2).sum()
        z.backward()
    setattr(y, "requires_grad", False)
    return y, z.requires_grad, y.grad


@case(hit=False)
def requires_grad_refused(x):
    texts = []
    with torch.enable_grad():
        y = x.clone().requires_grad_() * 2
        for refused in (lambda: y.requires_grad_(False), lambda: torch.arange(3).requires_grad_()):
            try:
                refused()
            except RuntimeError as error:
                texts.append(str(error))
        try:
            y.requires_grad = False
        except RuntimeError as error:
            texts.append(str(error))
    return texts


@made
def requires_grad_of_modules():
    net, calls = seeded(), []

    def f(x):
        calls.append(1)
        net.requires_grad_(False)
        with torch.enable_grad():
            y = net(x)
            for p in net.parameters():
                p.requires_grad = True
            z = net(x)
        return y.requires_grad, z.requires_grad, y

    return f, list(net.parameters())


@case
def adversarial_step(x):
    w = torch.ones(3, 2)
    with torch.enable_grad():
        a = x.clone().detach().requires_grad_(True)
        torch.nn.functional.cross_entropy(a @ w, torch.tensor([0, 1])).backward()
    return (x + 0.1 * a.grad.sign()).clamp(-1, 1)


def averaged(**options):
    """A model and its average, whose update reads in two places whether it is the first one."""
    model = nn.Linear(3, 2)
    average = torch.optim.swa_utils.AveragedModel(model, **options)

    def fn(x):
        with torch.no_grad():
            model.weight.add_(x.mean())
        average.update_parameters(model)
        return average(x)

    return fn, Seen(lambda: [*model.state_dict().values(), *average.state_dict().values()])


@made(over=1)
def averaged_model():
    return averaged()


@made(over=1)  # each list of parameters and buffers is a chain of two generators, alive at the first break
def averaged_model_with_buffers():
    return averaged(avg_fn=lambda p, q, n: 0.9 * p + 0.1 * q, use_buffers=True)
