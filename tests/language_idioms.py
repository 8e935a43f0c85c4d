"""Common idioms of model code: configs, hooks, parametrisations, caches, modes, outputs of all kinds (see language_cases.py)."""

import collections
import copy
import dataclasses
import enum
import functools
import logging
import math
import typing
import warnings

import torch
import torch.nn.functional as F
from language_cases import case, made, t
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Config:
    dim: int = 3
    act: str = "relu"
    scale: float = 0.5
    layers: tuple = (2, 1)
    extra: dict = dataclasses.field(default_factory=dict)

    @property
    def total(self):
        return sum(self.layers)


class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"


@case
class ConfigModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config(act="gelu", extra={"bias": True})
        self.acts = {Act.RELU: F.relu, Act.GELU: F.gelu}
        self.fc = nn.Linear(3, 3)

    def forward(self, x, **kw):
        cfg = self.config
        y = self.fc(x) * cfg.scale
        y = self.acts[Act(cfg.act)](y)
        match Act(cfg.act):
            case Act.RELU:
                y = y + 1
            case Act.GELU:
                y = y - 1
        if cfg.extra.get("bias") and not kw:
            y = y + cfg.total
        return dataclasses.replace(cfg, dim=4), {"y": y, **dataclasses.asdict(cfg)}


@case
class KwargsForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ConfigModel()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.5)])
        self.heads = nn.ModuleDict({k: nn.Linear(3, 2) for k in ("a", "b")})
        self.eval()

    def block(self, i, x, *args, residual=True, **kw):
        y = self.blocks[i](x)
        return x + y if residual and kw.get("on", True) else y

    def forward(self, x, *args, names=("b", "a"), **kwargs):
        for i, _ in enumerate(self.blocks):
            x = self.block(i, x, *args, residual=i % 2 == 0, **kwargs)
        out = {n: self.heads[n](x) for n in names if n in self.heads}
        return out, (best := max(out)), [*out.values()][0].shape


@case
class HooksAll(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.feats = {}
        self.a.register_forward_hook(self.keep)
        self.b.register_forward_pre_hook(lambda m, args, kw: ((args[0] * 2,), kw), with_kwargs=True)
        self.register_forward_hook(lambda m, i, o: (o, len(m.feats)))

    def keep(self, module, args, out):
        self.feats["a"] = out.detach()

    def forward(self, x):
        return self.b(self.a(x)) + self.feats["a"]


@case
def functional_call_twice(x):
    m = nn.Linear(3, 3)
    with torch.no_grad():
        m.weight.fill_(0.5)
        m.bias.zero_()
    return torch.func.functional_call(m, {"weight": x[:1].expand(3, 3), "bias": x[0]}, (x,)), m(x)


@case
class FunctionalOther(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        params = {k: v * 0.5 for k, v in self.net.named_parameters()}
        return torch.func.functional_call(self.net, params, (x,)), self.net(x)


class Sym(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).mT


@case
class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        parametrize.register_parametrization(self.fc, "weight", Sym())
        self.wn = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        self.sn = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).eval()

    def forward(self, x):
        return self.fc(x), self.wn(x), self.sn(x), parametrize.is_parametrized(self.fc)


@case
class TrainEval(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn, self.drop, self.n = nn.BatchNorm1d(3), nn.Dropout(0.5), 0

    def forward(self, x):
        self.n += 1
        self.train(self.n % 2 == 0)
        return self.bn(x) if self.training else self.bn(x) * 2, self.training


@case
class EMA(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(3))
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("o", None)

    def forward(self, x):
        self.m.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.n += 1
        if self.o is None:
            self.o = x.sum(0)
        else:
            self.o = self.o + 1
        return x - self.m, int(self.n) if False else self.n * 1


@case(over=1)  # _base: the view's base has no name in a replay
def views_in_place(x):
    y = x.clone()
    v = y.view(-1)
    w = y[0]
    tt = y.t()
    v[0] = 5
    w.mul_(2)
    tt[1] += 1
    y[:, 1:].zero_()
    y[y > 1] = 0.5
    return y, v, w, tt, v._base is y


@case
def aliases_out(x):
    y = x.view(3, 2)
    z = x
    return z, y, x[0], (x, [x]), x.detach(), x is z, x.contiguous() is x, x.to(torch.float32) is x


class Out(typing.NamedTuple):
    a: torch.Tensor
    b: typing.Any = None


@dataclasses.dataclass
class DOut:
    a: torch.Tensor
    b: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.c = self.a * 2


@case
def tuples_out(x):
    d = DOut(x + 1)
    d.b.append(x)
    o = Out(a=x * 2)
    a, b = o
    return o._replace(b=d), d, o._asdict(), a, [f.name for f in dataclasses.fields(d)]


@case
def idiom_complex(x):
    z = torch.complex(x, x * 2)
    w = torch.view_as_complex(torch.stack([x, x], -1)) * 1j
    return (
        z * w,
        z.abs(),
        z.angle(),
        torch.view_as_real(z + (1 + 2j)),
        z.conj(),
        z.real,
        torch.fft.fft(x).imag,
        torch.polar(x.abs(), x),
    )


@case(hit=False)
def idiom_sparse(x):
    s = (x * (x > 0)).to_sparse()
    return torch.sparse.mm(s, x.t()), s.to_dense(), s.is_sparse


@case
def idiom_seeded(x):
    torch.manual_seed(3)
    a = torch.rand(2, 3)
    b = torch.randn_like(x)
    c = F.dropout(x, 0.5, True)
    d = torch.randint(0, 9, (2,))
    e = torch.randperm(4)
    return a, b, c, d, e, torch.bernoulli(torch.full((3,), 0.5))


@case(over=1)  # a generator is made, and seeded, with no op before that: Dynamo counts one
def generator_arg(x):
    g = torch.Generator().manual_seed(5)
    return torch.rand(2, generator=g) + x.sum(), torch.randn(2, generator=g)


@case
def try_finally_return(x):
    log = []

    def f(v):
        try:
            if v.dim() > 1:
                return v * 2
            raise ValueError("d")
        except ValueError as e:
            log.append(str(e))
            return v
        finally:
            log.append("f")

    return f(x), f(x[0]), log


@case
def with_modes(x):
    with torch.no_grad():
        a = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            c = x @ x.t()
    with torch.inference_mode():
        d = x + 1

    @torch.no_grad()
    def g(v):
        return v * 3

    return a, b, c, d, g(x), b.dtype, torch.is_grad_enabled()


@case
class Recursive(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.child = Recursive(depth - 1) if depth else None

    def forward(self, x, d=0):
        x = self.fc(x).tanh()
        return self.child(x, d + 1) if self.child is not None else (x, d)


@case(over=3)  # Dynamo drops warnings and logging; here they are given, which is a break
def warn_and_log(x):
    warnings.warn("careful", UserWarning, stacklevel=2)
    logging.getLogger("p").info("shape %s", x.shape)
    logging.getLogger("p").debug(f"x {x.shape}")
    return x * 2


@case
def idiom_asserts(x):
    assert x.dim() == 2, f"bad {x.shape}"
    assert isinstance(x, torch.Tensor) and x.dtype in (torch.float32, torch.float64)
    assert (x == x).all(), "nan"
    torch._assert(x.shape[0] == 2, "two")
    return x + 1


@case
def idiom_isinstance(x):
    def go(v):
        if v is None:
            return 0
        if isinstance(v, (list, tuple)):
            return type(v)(go(i) for i in v)
        if isinstance(v, dict):
            return {k: go(u) for k, u in v.items()}
        if isinstance(v, (int, float)) and not isinstance(v, bool):
            return v * 2
        if torch.is_tensor(v):
            return v * 2
        return v

    return go([x, (1, 2.5), {"k": x, "n": None, "b": True}, "s"])


@case
class CallOverride(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self._k = 2

    def __call__(self, x, *a, **k):
        return super().__call__(x, *a, **k) + 1

    @property
    def k(self):
        return self._k * 1.5

    @k.setter
    def k(self, v):
        self._k = v

    @functools.cached_property
    def big(self):
        return self.fc.weight.sum() * 2

    @staticmethod
    def st(v):
        return v * 2

    @classmethod
    def cm(cls, v):
        return v + len(cls.__name__)

    def __getattr__(self, name):
        if name == "magic":
            return 7
        return super().__getattr__(name)

    def forward(self, x):
        self.k = 3 if self._k == 2 else 2
        return self.fc(x) * self.k + self.big + self.st(x) + self.cm(x) + self.magic


@case
def walrus_star(x):
    if (n := x.shape[0]) > 1:
        y = x * n
    first, *rest = [x + i for i in range(3)]
    *a, b = rest
    d = {**{"a": 1}, "b": 2, **{"a": 3}}
    f = lambda *args, k=1, **kw: (sum(args), k, sorted(kw))
    return y, f(first, *a, k=n, **d), [*rest, *a], {i: v for i, v in zip("xy", rest)}, {len(r) for r in rest}


@made
def deep_copied():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    n = copy.deepcopy(m)
    return lambda x: (m(x), n(x))


@case(over=1)  # a graph has one default dtype
def set_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(2)
    torch.set_default_dtype(torch.float32)
    return y, torch.ones(2), x.double() + y.sum()


@case
def dict_modules(x):
    layers = collections.OrderedDict(a=nn.Identity(), b=nn.ReLU())
    m = nn.Sequential(layers)
    return m(x), [n for n, _ in m.named_children()], m.a(x), list(layers), layers.popitem()[0]


@case
class SelfCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}
        self.hits = 0

    def mask(self, n, device):
        key = (n, str(device))
        if key not in self.cache:
            self.cache[key] = torch.ones(n, n).tril()
        else:
            self.hits += 1
        return self.cache[key]

    def forward(self, x):
        return x @ self.mask(x.shape[1], x.device), self.hits


@case(hit=False)  # the cache grows for three calls
class KVCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Linear(3, 3)
        self.past = []

    def forward(self, x):
        self.past.append(self.k(x))
        self.past = self.past[-3:]
        k = torch.cat(self.past, 0)
        return F.softmax(x @ k.t(), -1) @ k, len(self.past)


@case
def idiom_partials(x):
    f = functools.partial(F.layer_norm, normalized_shape=(3,), eps=1e-3)
    g = functools.partial(lambda a, b, c=0: a * b + c, x, c=1)
    return f(x), g(2), g(b=3), functools.reduce(lambda a, h: h(a), [torch.sin, f], x), f.keywords


@case(over=1)  # str.format of a tensor may print its data
def idiom_strings(x):
    s = f"{x.shape} {x.dtype} {x.device} {len(x):>3} {x.dim()!r} {tuple(x.size())}"
    return (
        x * 2,
        s,
        "%d-%s" % (x.shape[0], x.dtype),
        "{0} {1.shape}".format(x.dim(), x),
        ",".join(map(str, x.shape)),
        repr(x.shape),
        str(x.dtype).split(".")[-1],
    )


@case
def idiom_generators(x):
    def g(n):
        try:
            for i in range(n):
                r = yield x * i
                if r is not None:
                    yield r
        finally:
            done.append(1)

    done = []
    it = g(3)
    a = next(it)
    b = it.send(x)
    l = list(it)
    return a, b, l, done, sum(v.sum() for v in g(2)), [*g(1)], dict(enumerate(g(1)))


@case
def shape_loops(x):
    out = []
    for i in range(0, x.size(1), 2):
        out.append(x[:, i : i + 2].sum())
    b, *r = x.shape
    y = x.reshape(b, -1, 1).expand(-1, -1, 2).flatten(1)
    return (
        torch.stack(out),
        y,
        math.prod(r),
        x.new_zeros(b, *r),
        x.shape.numel(),
        torch.zeros(x.shape),
        x.view(*x.shape, 1),
        [x.shape[-1]] * 2,
    )


@case
def mutate_args_dict(x):
    d = {"x": x, "n": [1]}

    def f(d, key="y"):
        d[key] = d.pop("x") * 2
        d["n"] += [2]
        d.setdefault("z", []).append(3)
        return d

    return f(d), d


@case
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(5, 3)
        self.o = nn.Linear(3, 5, bias=False)
        self.o.weight = self.e.weight

    def forward(self, x):
        i = x.argmax(-1)
        return self.o(self.e(i)), self.o.weight is self.e.weight, F.cross_entropy(self.o(x), i, label_smoothing=0.1)


@case
class LSTMs(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.c = nn.GRUCell(3, 4)
        self.h = None

    def forward(self, x):
        o, (h, c) = self.l(x[None])
        self.h = self.c(x, self.h)
        return o, h, c, self.h


@case
def idiom_packed(x):
    p = nn.utils.rnn.pack_padded_sequence(x[None].expand(2, 2, 3), [2, 1], batch_first=True)
    return p.data, nn.utils.rnn.pad_packed_sequence(p)[0], nn.utils.rnn.pad_sequence([x, x[:1]])


@case
class Custom(nn.Module):
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a.exp()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].exp()

    def forward(self, x):
        return Custom.Fn.apply(x) + 1


@case
def einops_like(x):
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.einsum("ij->j", x),
        x[None, ..., None],
        x[..., :-1],
        x[[1, 0]],
        x[:, [0, 2]],
        x[torch.arange(2), 1],
        x[x.argmax(0)],
        x.gather(1, x.argsort(1)),
        x.unsqueeze(0).repeat(2, 1, 1)[1, ::1],
    )


@case
def idiom_scalars(x):
    return (
        x * torch.tensor(2.0),
        x + torch.tensor(1, dtype=torch.int64),
        x / 3,
        2**x,
        x // 0.5,
        x % 0.3,
        -x,
        ~(x > 0),
        (x > 0) & (x < 1),
        x.float().half().float(),
        x.int() / 2,
        True + x,
        divmod(x, 2)[0],
    )


@torch.compiler.disable
def hidden(x):
    return x * x.sum().item()


@case
def disabled_by_torch(x):
    return hidden(x + 1) * 2


@case(over=2)  # torch disables Dynamo around it: two calls that are made whole
def checkpointed(x):
    return checkpoint(lambda v: v.sin() * 2, x, use_reentrant=False) + 1


@case
def dyn_break(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


@case(hit=False)
def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        a = torch.rand(2)
    return a, torch.rand(2), x


# ---- seeds -----------------------------------------------------------------------------------------------------------
@case
def seeded_twice(x):
    torch.manual_seed(3)
    a = torch.rand(2, 3) + x
    torch.manual_seed(7)
    return a, torch.randn(2), torch.nn.functional.dropout(x, 0.5)


@case(inputs=lambda i: (t(2, 3, seed=i), i))
def seeded_by_step(x, i):
    g = torch.manual_seed(i)
    return torch.rand(2, 3) * x, g is torch.default_generator


@case
def seed_too_large(x):
    try:
        torch.manual_seed(1 << 70)
    except (RuntimeError, ValueError, OverflowError) as error:
        return x + 1, str(error)[:40]


# ---- what is computed once and kept ----------------------------------------------------------------------------------
@made
def kept_by_size_and_device():
    cache = {}

    def positions(n, device, dtype):
        key = n, device, dtype
        if key not in cache:
            cache[key] = torch.arange(n, device=device, dtype=dtype)
        return cache[key]

    return (lambda x: x * positions(x.shape[-1], x.device, x.dtype)), cache


@made
def kept_by_shape():
    cache = {}

    def mask(x):
        key = x.shape, x.dtype, None, True
        m = cache.get(key)
        if m is None:
            m = cache[key] = torch.ones(x.shape).tril()
        return m

    return (lambda x: x.masked_fill(mask(x) == 0, 0.0)), cache


@made(hit=False)
def kept_by_growing_size():
    cache, n = {}, [2]

    def fn(x):
        n[0] += 1
        y, key = torch.ones(2, n[0]), (n[0], x.device)
        if key not in cache:
            cache[key] = torch.arange(n[0])
        return y * cache[key] * x.sum()

    return fn, (cache, n)
