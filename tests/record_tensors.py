"""Tensor features for test_record.py's table: shapes, views, in-place writes, random numbers, state of modules."""

import torch
import torch.nn.functional as F
from record_cases import feature, t, two
from torch import nn


# ---- tensors: shapes, views, in-place ------------------------------------------------------------------------------------
def shapes(i):
    return (t(*[(3, 4), (5, 4), (2, 4), (5, 4)][i % 4], seed=i),)


@feature(inputs=shapes)
def shape_arithmetic(x):
    n, m = x.shape
    half = (n * m) // 2 + n % 2
    return x.reshape(-1)[:half], x.view(m, n) * (n / m), torch.zeros(n + 1, m * 2), n * m == x.numel(), x.size()


@feature(inputs=shapes)
def shapes_in_outputs(x):
    return x.shape, x.size(0), list(x.shape), x.stride(), {"n": x.shape[0]}, f"{tuple(x.shape)}"


@feature(inputs=lambda i: (t(4, 6, seed=i),))
def slicing(x):
    return (
        x[1:3],
        x[:, ::2],
        x[..., -1],
        x[None, 0],
        x[1][2],
        x[[0, 2]],
        x[x.size(0) - 1, 1:],
        x[-1:, :, None],
        x[torch.tensor([1, 0]), 2],
    )


@feature
def in_place_on_input(x):
    x.add_(1)
    x[0] = 5
    x *= 2
    return x.sum()


@feature
def in_place_on_intermediate(x):
    y = x.clone()
    y += 1
    y[:, 0] = 0
    y[1].mul_(3)
    y.clamp_(min=-0.5)
    return y, x


@feature
def in_place_through_view(x):
    v = x.view(-1)
    before = x * 1
    v[::2].fill_(7)
    return before, x + 0, v


@feature
def views_returned(x):
    return x[0], x.t(), x.view(-1), x[:, 1:], x.unsqueeze(0), x.detach()


@feature
def outputs_alias(x):
    y = x * 2
    return y, y[0], y.view(-1), y.t()


@feature
def output_is_input(x):
    return x, x.contiguous(), x.to(torch.float32), F.dropout(x, 0.5, training=False)


@feature(inputs=two)
def out_argument(x, y):
    z = torch.empty_like(x)
    torch.mul(x, y, out=z)
    torch.add(x, 1, out=y)
    return z, y


@feature
def set_item_variants(x):
    y = torch.zeros_like(x)
    y[x > 0] = 1.0
    y[1, 2] = x[0, 0]
    y[:, 3] += x[:, 3]
    return y


@feature
def type_changes(x):
    return x.double(), x.to(torch.bfloat16).float(), x.int(), x.bool(), x > 0, x.half() + 1, x.long() // 2


@feature
def constructors(x):
    return (
        torch.arange(4) * x,
        torch.tensor([1.0, 2.0]),
        torch.full_like(x, 3),
        torch.ones(2, dtype=torch.int64),
        torch.eye(3) @ x,
        x.new_tensor([1, 2]),
        torch.linspace(0, 1, 3),
        torch.scalar_tensor(2.0),
    )


@feature
def multiple_results(x):
    values, indices = x.max(dim=1)
    top = x.topk(2)
    q, r = torch.split(x, 2, dim=1)
    return values, indices, top.values, top, x.sort(), q + r, x.unbind(0), torch.var_mean(x), x.chunk(2)


@feature
def python_scalars(x):
    return (
        x + 1,
        2 - x,
        x**2,
        2**x,
        x / 3,
        7 // (x.abs() + 1),
        x % 2,
        -x,
        abs(x),
        +x,
        ~(x > 0),
        x @ x.t(),
        1.5 > x,
        True + x,
    )


@feature(inputs=lambda i: (t(3, 4, seed=i), 2 + i % 2, 0.5 * (i % 2)))
def scalar_arguments(x, n, f):
    for _ in range(n):
        x = x * f + n
    return x, n + f


@feature(inputs=lambda i: (t(3, 4, seed=i), {"w": t(4, seed=i), "rest": [t(4, seed=i + 1), 2.0]}))
def nested_arguments(x, tree):
    return x * tree["w"] + tree["rest"][0] * tree["rest"][1], tree["rest"], tree


@feature(inputs=lambda i: ((t(3, 4, seed=i),), {"scale": 2.0, "other": t(4, seed=i)}))
def keyword_arguments(x, *args, scale=1.0, **kw):
    return x * scale + kw["other"], args, kw, list(kw)


@feature
def delete_names(x):
    y = x + 1
    del x
    try:
        return x  # noqa: F821
    except UnboundLocalError as error:
        return y, str(error)


@feature
def einsum_and_friends(x):
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.cat([x, x], 1),
        torch.stack([x, x + 1]),
        F.softmax(x, -1),
        F.layer_norm(x, (4,)),
        F.gelu(x),
        torch.where(x > 0, x, -x),
        x.masked_fill(x > 0, 0.0),
        x.cumsum(0),
        F.pad(x, (1, 1)),
        x.norm(),
        x.std(0),
    )


# ---- random numbers and state ----------------------------------------------------------------------------------------
@feature
def random_ops(x):
    return (
        x + torch.rand(4),
        torch.randn_like(x),
        torch.bernoulli(torch.full((3,), 0.5)),
        torch.randperm(5),
        torch.randint(0, 9, (2,)),
    )


@feature
def random_order(x):
    a = torch.rand(3)
    b = F.dropout(x, 0.5)
    return b, torch.rand(3), a, x.uniform_()


@feature
class DropoutTrain(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4), nn.Dropout(0.1))

    def forward(self, x):
        return self.net(x)


@feature
class BatchNormTrain(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())

    def forward(self, x):
        return self.net(x), self.net[1].num_batches_tracked + 0


@feature
class BufferMutated(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("counter", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.counter += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x * self.counter - self.mean


@feature
class BufferReplaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x):
        self.state = self.state * 0.5 + x.sum(0)
        return x + self.state


@feature(hit=False)
class PythonCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.counter = 0

    def forward(self, x):
        self.counter += 1
        return x * self.counter


@feature(hit=False)
class ListOnSelf(nn.Module):
    def __init__(self):
        super().__init__()
        self.history, self.limit = [], 2

    def forward(self, x):
        self.history.append(x.mean(0))
        if len(self.history) > self.limit:
            self.history.pop(0)
        return torch.stack(self.history).mean(0)


@feature
class CachedTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.arange(4.0) * 2
        return x + self.cache, self.cache


@feature
class LastValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None
        self.stats = {"calls": 0.0}

    def forward(self, x):
        self.last = x * 2
        self.stats["shape"] = tuple(x.shape)
        return self.last + 1


@feature
class LazyPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.by_length = {}

    def forward(self, x):
        n = x.size(0)
        if n not in self.by_length:
            self.by_length[n] = torch.arange(n).unsqueeze(1)
        return x + self.by_length[n]


@feature
def tensor_of_tensors(x):
    ends = [x.sum(), x.mean()]
    made = torch.tensor(ends)
    ends.append(made)
    return made * 2, torch.tensor((x.argmax(), x.argmin())), torch.tensor([x.double().sum()]), ends
