"""Functions and modules as torch users write them: a table for test_user.py."""

import collections
import dataclasses
import functools
import itertools
import math
import operator

import torch
import torch.nn.functional as F
from record_cases import Feature, t, two
from torch import nn

CASES = {}


def case(fn=None, *, inputs=None, hit=True):
    """Registers fn under its own name; without `inputs` it is called with one 3x4 tensor."""

    def add(fn):
        CASES[fn.__name__.replace("_", "-")] = Feature(fn, inputs or (lambda i: (t(3, 4, seed=i),)), hit)
        return fn

    return add if fn is None else add(fn)


# ---- modules ---------------------------------------------------------------------------------------------------------
@case(inputs=lambda i: (t(1, 2, 4, seed=i),))
class KvCache(nn.Module):
    """Keys and values of past steps, appended in each call up to a window."""

    def __init__(self):
        super().__init__()
        self.proj, self.cache, self.window = nn.Linear(4, 12), {"k": None, "v": None}, 4

    def forward(self, x):
        q, k, v = self.proj(x).chunk(3, dim=-1)
        if self.cache["k"] is not None:
            k = torch.cat([self.cache["k"], k], dim=1)[:, -self.window :]
            v = torch.cat([self.cache["v"], v], dim=1)[:, -self.window :]
        self.cache["k"], self.cache["v"] = k, v
        return F.scaled_dot_product_attention(q, k, v)


@case
class Heads(nn.Module):
    """A dict of heads, and the loss of those that are wanted."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, n) for name, n in (("cls", 3), ("box", 4), ("aux", 1))})
        self.weights = {"cls": 1.0, "box": 0.5}

    def forward(self, x):
        out = {name: head(x) for name, head in self.heads.items()}
        loss = sum(self.weights.get(name, 0.1) * v.square().mean() for name, v in out.items())
        return {**out, "loss": loss}


@case
class NestedBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleDict(
            {f"stage{i}": nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(i + 1)]) for i in range(2)}
        )

    def forward(self, x):
        features = []
        for name, blocks in self.stages.items():
            for i, block in enumerate(blocks):
                x = x + block(x) if name.endswith("1") and i else block(x)
            features.append(x)
        return features[-1], features


@case(inputs=lambda i: (t(2, 5, 8, seed=i),))
class PositionalEncoding(nn.Module):
    def __init__(self, d=8, longest=16):
        super().__init__()
        position = torch.arange(longest).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(1, longest, d)
        pe[0, :, 0::2], pe[0, :, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


@dataclasses.dataclass
class Config:
    width: int = 8
    heads: int = 2
    scale: float = 0.5
    act: str = "gelu"
    extra: dict = dataclasses.field(default_factory=dict)

    @property
    def head_dim(self):
        return self.width // self.heads


@case(inputs=lambda i: (t(2, 5, 8, seed=i),))
class ConfiguredAttention(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.config = config or Config(extra={"causal": True})
        self.qkv = nn.Linear(self.config.width, 3 * self.config.width)

    def forward(self, x):
        b, n, _ = x.shape
        c = self.config
        q, k, v = self.qkv(x).view(b, n, 3, c.heads, c.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * c.scale / math.sqrt(c.head_dim)
        if c.extra.get("causal"):
            mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c.width)
        return getattr(F, c.act)(out)


@case
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        shared = self.encode.weight is self.decode.weight
        return self.decode(torch.tanh(self.encode(x))), shared, len(list(self.parameters()))


@case
class OutputHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.seen = nn.Linear(4, 4), {}
        self.body.register_forward_hook(self.keep)

    def keep(self, module, args, out):
        self.seen["body"] = out
        return out.clamp(min=0)

    def forward(self, x):
        y = self.body(x)
        return y, self.seen["body"]


@case
class Wrapper(nn.Module):
    """Forwards unknown attributes to what it wraps."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, *args, **kw):
        return self.inner(*args, **kw) + self.bias * self.out_features


@case(inputs=lambda i: ((t(3, 4, seed=i),), {"mask": t(3, 1, seed=i) > 0, "scale": 2.0}))
class OptionalArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), None

    def forward(self, x, mask=None, *, scale=None, bias=None, **more):
        x = self.fc(x)
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        if scale is not None:
            x = x * scale
        if bias is not None:
            x = x + bias
        return x if self.norm is None else self.norm(x), sorted(more)


@case
class Counting(nn.Module):
    """Counts its calls and keeps statistics, as logging code does."""

    def __init__(self):
        super().__init__()
        self.fc, self.stats = nn.Linear(4, 4), collections.defaultdict(float)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        self.stats["last"] = 1.5
        y = self.fc(x)
        return y / self.steps, dict(self.stats)


@case
class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


@case
class GatedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            w = (weights * (chosen == i)).sum(-1, keepdim=True)
            out = out + w * expert(x)
        return out / weights.sum(-1, keepdim=True)


@case
class LayerTable(nn.Module):
    """Layers chosen by a table of lambdas and by string."""

    ACT = {"relu": F.relu, "leaky": lambda v: F.leaky_relu(v, 0.2), "swish": lambda v: v * torch.sigmoid(v)}

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.acts = ["relu", "leaky", "swish"]

    def forward(self, x):
        for layer, act in zip(self.layers, self.acts):
            x = self.ACT[act](layer(x))
        return x


@case
class FrozenPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            h = self.a(x)
        n = sum(p.numel() for p in self.parameters() if p.requires_grad)
        return self.b(h.detach()), n


# ---- functions -------------------------------------------------------------------------------------------------------
NET = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@case
def zip_over_parameters(x):
    scale = [0.1, 0.2, 0.3, 0.4]
    norms = [p.norm() * k for p, k in zip(NET.parameters(), scale)]
    return x * torch.stack(norms).sum(), {n: tuple(p.shape) for n, p in NET.named_parameters()}


@case(inputs=lambda i: (t(2, 6, 4, seed=i),))
def rearrange(x):
    b, n, d = x.shape
    h = x.reshape(b, n // 2, 2, d).permute(0, 2, 1, 3).flatten(0, 1)
    return h.unflatten(0, (b, 2)).transpose(1, 2).contiguous().view(b, n, d), h.unsqueeze(-1).expand(-1, -1, -1, 2)


@case
def padding_masks(x):
    lengths = [4, 2, 3]
    mask = torch.zeros(3, 4, dtype=torch.bool)
    for i, n in enumerate(lengths):
        mask[i, :n] = True
    filled = x.masked_fill(~mask, 0)
    return filled.sum(1) / mask.sum(1), F.pad(x, (0, 1), value=1.0), nn.utils.rnn.pad_sequence([x[0], x[1, :2]], True)


@case
def beam_search(x):
    beams = [([], 0.0)]
    for step in range(2):
        grown = []
        for tokens, score in beams:
            for k in range(3):
                grown.append((tokens + [k], score + (step + 1) * k % 3))
        beams = sorted(grown, key=lambda b: -b[1])[:2]
    return x[torch.tensor([b[0][-1] for b in beams])], beams


@case(inputs=two)
def functional_with_keywords(x, y):
    return (
        F.softmax(x, dim=-1, dtype=torch.float64),
        F.layer_norm(x, normalized_shape=(4,), eps=1e-3),
        F.cross_entropy(input=x, target=y.argmax(1), label_smoothing=0.1, reduction="none"),
        F.interpolate(x[None, None], scale_factor=2, mode="nearest"),
        F.mse_loss(x, target=y, reduction="sum"),
        F.one_hot(y.argmax(1), num_classes=5),
    )


@case
def vectors_of_parameters(x):
    flat = nn.utils.parameters_to_vector(NET.parameters())
    return x * flat.sum(), flat.shape


@case
def views_in_place(x):
    y = x.clone()
    y[0] += 1
    y[:, 1].mul_(2)
    y[1:, 2:].zero_()
    rows = list(y)
    rows[2].add_(5)
    y.view(-1)[3] = 7
    return y, rows[0]


def tree_map(fn, tree):
    if isinstance(tree, dict):
        return {k: tree_map(fn, v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(fn, v) for v in tree)
    return fn(tree)


@case
def nested_structures(x):
    return tree_map(lambda v: v * 2 if torch.is_tensor(v) else v, {"a": [x, (x + 1, 3)], "b": {"c": x.t(), "d": None}})


@case
def fallbacks(x):
    out = []
    for name in ("fast_path", "relu"):
        try:
            out.append(getattr(F, name)(x))
        except AttributeError as error:
            out.append(type(error).__name__)
    try:
        x.view(5, 5)
    except RuntimeError:
        out.append(x.sum())
    return out


def sublayer(x, *args, norm=None, **kw):
    return F.linear(x, *args, **kw) if norm is None else norm(F.linear(x, *args, **kw))


@case
def argument_forwarding(x):
    w, b = torch.eye(4), torch.ones(4)
    return sublayer(x, w), sublayer(x, w, b), sublayer(x, w, bias=b, norm=torch.sigmoid)


@functools.lru_cache(maxsize=None)
def table(n):
    return tuple(i * i for i in range(n))


@case
def cached_helper(x):
    return x * sum(table(4))


@case
def windows(x):
    pairs = [a * b for a, b in itertools.combinations(x.unbind(0), 2)]
    steps = [x[:, i : i + 2].sum() for i in range(0, x.shape[1] - 1)]
    return torch.stack(pairs), torch.stack(steps), list(map(operator.neg, [1, 2]))


@case
def rotary(x):
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[0]).float(), 1.0 / 100 ** (torch.arange(half) / half))
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Box:
    def __init__(self, corner, size):
        self.corner, self.size = corner, size

    @property
    def area(self):
        return self.size.abs().prod(-1)

    @classmethod
    def from_tensor(cls, v):
        return cls(*v.split(2, dim=-1))

    def __and__(self, other):
        return Box(torch.maximum(self.corner, other.corner), torch.minimum(self.size, other.size))

    def __iter__(self):
        return iter((self.corner, self.size))


@case(inputs=two)
def value_objects(x, y):
    a, b = Box.from_tensor(x), Box.from_tensor(y)
    corner, size = a & b
    return (a & b).area / (a.area + b.area + 1e-6), corner, size, a


@case
def deque_of_states(x):
    states = collections.deque(maxlen=3)
    for i in range(5):
        states.append(x * i)
        if len(states) == 3:
            states.popleft()
    return torch.stack(list(states)), len(states), states[-1]


@case
def grouped(x):
    groups = collections.defaultdict(list)
    for i, row in enumerate(x):
        groups["even" if i % 2 == 0 else "odd"].append(row)
    return {k: torch.stack(v).mean(0) for k, v in groups.items()}, max(groups, key=lambda k: len(groups[k]))


@case
def simple_optimizer_step(x):
    w = torch.ones(4, 2)
    m = torch.zeros_like(w)
    for lr in (0.1, 0.01):
        g = x.t() @ (x @ w)
        m.mul_(0.9).add_(g, alpha=0.1)
        w = w - lr * m / (m.norm() + 1e-8)
    return w, m


# ---- state outside: what is written, and read again ------------------------------------------------------------------
class Trainer:
    """State that changes from call to call in ways that a replay must follow."""

    def __init__(self):
        self.history, self.totals, self.order = [], {"n": 0}, [[2, "b"], [1, "a"]]

    def __call__(self, x):
        self.totals["n"] = self.totals["n"] + 1
        self.history.append(self.totals["n"])
        del self.history[:-2]
        y = x * len(self.history)
        self.order[0][0] = self.totals["n"] % 3
        return y, sorted(self.order), list(self.history), dict(self.totals)
