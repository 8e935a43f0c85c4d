"""Models with the loops around them as people write them: detection, agents, solvers, recurrences, buffers; small, for tests.

LOOPS, with those of models_generate.py: name -> (make, call number -> (args, kwargs)), as in models_zoo. `make` runs once
for each of the two sides; its result may keep state between calls.
"""

import collections
import contextlib
import copy
import functools
import inspect
import math
import random
import typing

import torch
import torch.nn.functional as F
from models_generate import GENERATED, call, fn, make
from models_zoo import ids, t
from torch import nn


# ---- experts, points, detection --------------------------------------------------------------------------------------
class SparseExperts(nn.Module):
    """Mixtral's loop: each expert sees its own tokens only."""

    def __init__(self, d=8, n=3):
        super().__init__()
        self.gate, self.n = nn.Linear(d, n, bias=False), n
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(d, 16), nn.SiLU(), nn.Linear(16, d)) for _ in range(n)])

    def forward(self, x):
        flat = x.view(-1, x.shape[-1])
        weight, chosen = torch.topk(F.softmax(self.gate(flat), dim=1, dtype=torch.float), 2, dim=-1)
        weight = (weight / weight.sum(dim=-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, num_classes=self.n).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            k, at = torch.where(mask[i])
            if at.shape[0] == 0:
                continue
            out.index_add_(0, at, expert(flat[None, at].reshape(-1, x.shape[-1])) * weight[at, k, None])
        return out.view_as(x)


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k, self.conv, self.fc = k, nn.Sequential(nn.Conv1d(k, 8, 1), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, k * k)

    def forward(self, x):
        x = torch.max(self.conv(x), 2, keepdim=True)[0].view(-1, 8)
        eye = torch.eye(self.k, requires_grad=True).repeat(x.size(0), 1, 1)
        return self.fc(x).view(-1, self.k, self.k) + eye


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.tnet, self.feat = TNet(3), nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 1))
        self.head = nn.Linear(24, 4)

    @staticmethod
    def farthest(points, n):
        chosen = torch.zeros(points.shape[0], n, dtype=torch.long)
        distance, far = torch.full(points.shape[:2], 1e10), torch.zeros(points.shape[0], dtype=torch.long)
        rows = torch.arange(points.shape[0])
        for i in range(n):
            chosen[:, i] = far
            d = ((points - points[rows, far][:, None]) ** 2).sum(-1)
            distance = torch.minimum(distance, d)
            far = distance.max(-1)[1]
        return chosen

    def forward(self, points):
        at = self.farthest(points, 4)
        x = torch.bmm(points, self.tnet(points.transpose(2, 1)))
        per_point = self.feat[:3](x.transpose(2, 1))
        whole = torch.max(self.feat[3](per_point), 2, keepdim=True)[0].expand(-1, -1, points.shape[1])
        logits = self.head(torch.cat([whole, per_point], 1).transpose(1, 2))
        return torch.gather(logits, 1, at[..., None].expand(-1, -1, logits.shape[-1])), at


def box_iou(a, b):
    top, bottom = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (bottom - top).clamp(min=0).prod(-1)
    area = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])  # noqa: E731
    return inter / (area(a)[:, None] + area(b)[None] - inter + 1e-6)


def nms(boxes, scores, limit=0.3):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        i = order[0].item()
        keep.append(i)
        if order.numel() == 1:
            break
        order = order[1:][box_iou(boxes[i : i + 1], boxes[order[1:]])[0] <= limit]
    return keep


class YOLO(nn.Module):
    anchors = ((1.0, 2.0), (2.0, 1.0))

    def __init__(self, classes=3):
        super().__init__()
        self.no = 5 + classes
        self.stem, self.head = nn.Conv2d(3, 8, 4, stride=4), nn.Conv2d(8, self.no * len(self.anchors), 1)
        self.grid = None

    def _make_grid(self, ny, nx):
        y, x = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
        return torch.stack((x, y), 2).view(1, 1, ny, nx, 2).float()

    def decode(self, x):
        b, _, ny, nx = x.shape
        x = x.view(b, len(self.anchors), self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        if self.grid is None or self.grid.shape[2:4] != x.shape[2:4]:
            self.grid = self._make_grid(ny, nx)
        y = x.sigmoid()
        size = torch.tensor(self.anchors).view(1, -1, 1, 1, 2)
        xy, wh = (y[..., :2] * 2 - 0.5 + self.grid) * 4, (y[..., 2:4] * 2) ** 2 * size * 4
        return torch.cat((xy - wh / 2, xy + wh / 2, y[..., 4:]), -1).view(b, -1, self.no)

    def forward(self, x, conf=0.25):
        out = []
        for image in self.decode(self.head(F.silu(self.stem(x)))):
            image = image[image[:, 4] > conf]
            if not image.shape[0]:
                out.append(torch.zeros((0, 6)))
                continue
            score, label = (image[:, 5:] * image[:, 4:5]).max(1)
            keep = nms(image[:, :4] + label[:, None] * 100.0, score)
            out.append(torch.cat([image[keep, :4], score[keep, None], label[keep, None].float()], 1)[:5])
        return out


def assign(cost):
    """A small Hungarian method in Python."""
    rows = range(len(cost))
    best, chosen = math.inf, ()

    def search(row, taken, total):
        nonlocal best, chosen
        if total >= best:
            return
        if row == len(cost):
            best, chosen = total, taken
            return
        for column in range(len(cost[row])):
            if column not in taken:
                search(row + 1, (*taken, column), total + cost[row][column])

    search(0, (), 0.0)
    return list(rows), list(chosen)


class DETR(nn.Module):
    def __init__(self, d=8, queries=4, classes=3):
        super().__init__()
        self.backbone, self.queries = nn.Conv2d(3, d, 4, stride=4), nn.Parameter(torch.rand(queries, d))
        self.row, self.col = nn.Parameter(torch.rand(8, d // 2)), nn.Parameter(torch.rand(8, d // 2))
        self.transformer = nn.Transformer(d, 2, 1, 1, 16, dropout=0.0)
        self.classes, self.boxes = nn.Linear(d, classes + 1), nn.Linear(d, 4)

    def forward(self, x, targets=None):
        h = self.backbone(x)
        H, W = h.shape[-2:]
        pos = torch.cat([self.col[:W].unsqueeze(0).repeat(H, 1, 1), self.row[:H].unsqueeze(1).repeat(1, W, 1)], -1).flatten(0, 1).unsqueeze(1)
        h = self.transformer(pos + 0.1 * h.flatten(2).permute(2, 0, 1), self.queries.unsqueeze(1).repeat(1, x.shape[0], 1)).transpose(0, 1)
        out = {"logits": self.classes(h), "boxes": self.boxes(h).sigmoid()}
        if targets is not None:
            out["matches"] = []
            for logits, boxes, (labels, wanted) in zip(out["logits"], out["boxes"], targets):
                cost = torch.cdist(boxes, wanted, p=1) - logits.softmax(-1)[:, labels]
                out["matches"].append(assign(cost.t().tolist())[1])
        return out


# ---- agents ----------------------------------------------------------------------------------------------------------
Transition = collections.namedtuple("Transition", ("state", "action", "following", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = collections.deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


class DQNAgent(nn.Module):
    """PyTorch's tutorial: epsilon-greedy actions, a replay memory, a target that follows softly."""

    def __init__(self):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.target = copy.deepcopy(self.policy)
        self.memory, self.steps = ReplayMemory(6), 0

    def select(self, state):
        eps = 0.05 + 0.85 * math.exp(-1.0 * self.steps / 3)
        self.steps += 1
        if random.random() > eps:
            return self.policy(state).max(1).indices.view(1, 1)
        return torch.tensor([[random.randrange(2)]], dtype=torch.long)

    def forward(self, state):
        action = self.select(state)
        self.memory.push(state, action, state * 0.9 if self.steps % 3 else None, torch.tensor([float(self.steps)]))
        if len(self.memory) < 4:
            return action, None
        batch = Transition(*zip(*self.memory.sample(4)))
        mask = torch.tensor(tuple(map(lambda s: s is not None, batch.following)), dtype=torch.bool)
        final = torch.cat([s for s in batch.following if s is not None])
        q = self.policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
        values = torch.zeros(4)
        with torch.no_grad():
            values[mask] = self.target(final).max(1).values
        loss = F.smooth_l1_loss(q, (values * 0.99 + torch.cat(batch.reward)).unsqueeze(1))
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.policy.parameters()):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        return action, loss


class RolloutBuffer:
    def __init__(self):
        self.actions, self.states, self.logprobs, self.values = [], [], [], []

    def clear(self):
        for items in (self.actions, self.states, self.logprobs, self.values):
            del items[:]


class PPO(nn.Module):
    def __init__(self, continuous):
        super().__init__()
        self.continuous = continuous
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), *([] if continuous else [nn.Softmax(dim=-1)]))
        self.critic, self.buffer = nn.Linear(4, 1), RolloutBuffer()
        self.action_var = torch.full((3,), 0.36)

    def act(self, state):
        if self.continuous:
            dist = torch.distributions.MultivariateNormal(self.actor(state), torch.diag(self.action_var).unsqueeze(0))
        else:
            dist = torch.distributions.Categorical(self.actor(state))
        action = dist.sample()
        return action.detach(), dist.log_prob(action).detach(), self.critic(state).detach()

    def forward(self, state):
        action, logprob, value = self.act(state)
        self.buffer.states.append(state)
        self.buffer.actions.append(action)
        self.buffer.logprobs.append(logprob)
        self.buffer.values.append(value)
        if len(self.buffer.actions) == 4:
            old = torch.squeeze(torch.stack(self.buffer.values, dim=0))
            self.buffer.clear()
            return action, old
        return action if self.continuous else action.item(), None


# ---- physics and signals ---------------------------------------------------------------------------------------------
def rk45(y, end=1.0, tol=1e-2):
    """Adaptive steps: accepted or not by the data."""
    def f(s, y):
        return torch.stack([y[1], -torch.sin(y[0]) - 0.1 * y[1] * math.cos(s)])

    s, h, path = 0.0, 0.25, [y]
    while s < end:
        h = min(h, end - s)
        k1 = f(s, y)
        k2 = f(s + h / 2, y + h / 2 * k1)
        k3 = f(s + 3 * h / 4, y + 3 * h / 4 * k2)
        new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
        error = (new - (y + h * (7 / 24 * k1 + 1 / 4 * k2 + 1 / 3 * k3 + 1 / 8 * f(s + h, new)))).abs().max().item()
        if error <= tol:
            s, y = s + h, new
            path.append(y)
        h *= min(2.0, max(0.5, 0.9 * (tol / (error + 1e-12)) ** (1 / 3)))
    return torch.stack(path)


def nbody(x, v, m, steps=3, dt=0.01):
    def acceleration(x):
        d = x[None] - x[:, None]
        inverse = (d.pow(2).sum(-1) + 0.01).pow(-1.5)
        return (d * (m[None] * inverse)[..., None]).sum(1)

    a, energies = acceleration(x), []
    for _ in range(steps):
        v = v + 0.5 * dt * a
        x = x + dt * v
        a = acceleration(x)
        v = v + 0.5 * dt * a
        energies.append(0.5 * (m * v.pow(2).sum(-1)).sum())
    return x, v, torch.stack(energies)


class KalmanFilter:
    def __init__(self):
        self.x, self.P = torch.zeros(2, 1), torch.eye(2)
        self.F, self.H = torch.tensor([[1.0, 0.1], [0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
        self.history = []

    def predict(self):
        self.x = self.F @ self.x
        self.P = self.F @ self.P @ self.F.T + 0.01 * torch.eye(2)

    def update(self, z):
        y = z - self.H @ self.x
        S = self.H @ self.P @ self.H.T + 0.1
        K = self.P @ self.H.T @ torch.inverse(S)
        self.x = self.x + K @ y
        self.P = (torch.eye(2) - K @ self.H) @ self.P
        self.history.append(self.x.clone())

    def __call__(self, zs):
        for z in zs:
            self.predict()
            if not torch.isnan(z).any():
                self.update(z.view(1, 1))
        self.history = self.history[-3:]
        return torch.cat(self.history, 1), len(self.history)


class SpectralConv(nn.Module):
    """A Fourier neural operator's layer."""

    def __init__(self, n=4, modes=3):
        super().__init__()
        self.modes, self.weight = modes, nn.Parameter(torch.rand(n, n, modes, dtype=torch.cfloat))
        self.pointwise = nn.Conv1d(n, n, 1)

    def forward(self, x):
        ft = torch.fft.rfft(x)
        out = torch.zeros(x.shape[0], x.shape[1], x.size(-1) // 2 + 1, dtype=torch.cfloat)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", ft[:, :, : self.modes], self.weight)
        return F.gelu(torch.fft.irfft(out, n=x.size(-1)) + self.pointwise(x))


class Siren(nn.Module):
    class Sine(nn.Module):
        def __init__(self, n, m, first=False, omega=30.0):
            super().__init__()
            self.omega, self.linear = omega, nn.Linear(n, m)
            with torch.no_grad():
                bound = 1 / n if first else math.sqrt(6 / n) / omega
                self.linear.weight.uniform_(-bound, bound)

        def forward(self, x):
            return torch.sin(self.omega * self.linear(x))

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(self.Sine(2, 8, True), self.Sine(8, 8), nn.Linear(8, 1))

    def forward(self, coords):
        coords = coords.clone().detach().requires_grad_(True)
        return self.net(coords), coords


class RadianceField(nn.Module):
    def __init__(self, freqs=2):
        super().__init__()
        self.embed = [fn for f in 2.0 ** torch.linspace(0, freqs - 1, freqs)
                      for fn in (lambda x, f=f: torch.sin(x * f), lambda x, f=f: torch.cos(x * f))]
        self.net = nn.Sequential(nn.Linear(3 + 6 * freqs, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, origins, directions, near=0.5, far=2.0, n=6, chunk=2, perturb=True):
        rendered = []
        for i in range(0, origins.shape[0], chunk):
            o, d = origins[i : i + chunk], directions[i : i + chunk]
            z = torch.linspace(near, far, n).expand(o.shape[0], n)
            if perturb:
                mids = 0.5 * (z[..., 1:] + z[..., :-1])
                upper, lower = torch.cat([mids, z[..., -1:]], -1), torch.cat([z[..., :1], mids], -1)
                z = lower + (upper - lower) * torch.rand(z.shape)
            points = o[..., None, :] + d[..., None, :] * z[..., :, None]
            raw = self.net(torch.cat([points] + [fn(points) for fn in self.embed], -1))
            dists = torch.cat([z[..., 1:] - z[..., :-1], torch.tensor([1e10]).expand(z[..., :1].shape)], -1) * d.norm(dim=-1, keepdim=True)
            alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
            weights = alpha * torch.cumprod(torch.cat([torch.ones((alpha.shape[0], 1)), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
            rendered.append({"rgb": (weights[..., None] * raw[..., :3].sigmoid()).sum(-2), "depth": (weights * z).sum(-1)})
        return {k: torch.cat([r[k] for r in rendered], 0) for k in rendered[0]}


class RealNVP(nn.Module):
    def __init__(self, d=4, layers=3):
        super().__init__()
        self.masks = [torch.arange(d) % 2 == i % 2 for i in range(layers)]
        make = lambda out: nn.Sequential(nn.Linear(d, 8), nn.LeakyReLU(), nn.Linear(8, d), out)  # noqa: E731
        self.s, self.t = nn.ModuleList([make(nn.Tanh()) for _ in range(layers)]), nn.ModuleList([make(nn.Identity()) for _ in range(layers)])
        self.prior = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(d), torch.ones(d)), 1)

    def g(self, z):
        x = z
        for i in range(len(self.t)):
            mask = self.masks[i].float()
            kept = x * mask
            s, t = self.s[i](kept) * (1 - mask), self.t[i](kept) * (1 - mask)
            x = kept + (1 - mask) * (x * torch.exp(s) + t)
        return x

    def f(self, x):
        log_det, z = x.new_zeros(x.shape[0]), x
        for i in reversed(range(len(self.t))):
            mask = self.masks[i].float()
            kept = mask * z
            s, t = self.s[i](kept) * (1 - mask), self.t[i](kept) * (1 - mask)
            z = (1 - mask) * (z - t) * torch.exp(-s) + kept
            log_det -= s.sum(dim=1)
        return z, log_det

    def forward(self, x):
        z, log_det = self.f(x)
        return self.prior.log_prob(z) + log_det, self.g(z), self.g(self.prior.sample((2,)))


# ---- recurrences -----------------------------------------------------------------------------------------------------
class Mamba(nn.Module):
    """A selective scan as a loop; with a state it steps."""

    def __init__(self, d=4, n=3, conv=3):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.conv = nn.Conv1d(d, d, conv, groups=d, padding=conv - 1)
        self.x_proj, self.dt_proj = nn.Linear(d, 1 + 2 * n), nn.Linear(1, d)
        self.A_log, self.D, self.n = nn.Parameter(torch.log(torch.arange(1, n + 1).float()).repeat(d, 1)), nn.Parameter(torch.ones(d)), n

    def forward(self, x, state=None):
        length = x.shape[1]
        h, z = self.in_proj(x).chunk(2, dim=-1)
        h = F.silu(self.conv(h.transpose(1, 2))[..., :length].transpose(1, 2))
        dt, B, C = self.x_proj(h).split([1, self.n, self.n], dim=-1)
        dt, A = F.softplus(self.dt_proj(dt)), -torch.exp(self.A_log)
        dA, dBu = torch.exp(dt[..., None] * A), dt[..., None] * B[:, :, None] * h[..., None]
        state = torch.zeros(x.shape[0], h.shape[-1], self.n) if state is None else state
        ys = []
        for i in range(length):
            state = dA[:, i] * state + dBu[:, i]
            ys.append(torch.einsum("bdn,bn->bd", state, C[:, i]))
        return self.out_proj((torch.stack(ys, dim=1) + h * self.D) * F.silu(z)), state


class S4D(nn.Module):
    def __init__(self, d=3, n=4):
        super().__init__()
        self.log_dt, self.C = nn.Parameter(torch.rand(d) - 3), nn.Parameter(torch.randn(d, n // 2, 2))
        self.log_A, self.A_imag, self.D = nn.Parameter(torch.log(0.5 * torch.ones(d, n // 2))), nn.Parameter(math.pi * torch.arange(n // 2).repeat(d, 1).float()), nn.Parameter(torch.randn(d))

    def forward(self, u):
        L = u.size(-1)
        dt, C, A = torch.exp(self.log_dt), torch.view_as_complex(self.C), -torch.exp(self.log_A) + 1j * self.A_imag
        dtA = A * dt.unsqueeze(-1)
        K = dtA.unsqueeze(-1) * torch.arange(L)
        C = C * (torch.exp(dtA) - 1.0) / A
        K = 2 * torch.einsum("hn,hnl->hl", C, torch.exp(K)).real
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * L) * torch.fft.rfft(K, n=2 * L), n=2 * L)[..., :L]
        return F.gelu(y + u * self.D.unsqueeze(-1))


class RWKV(nn.Module):
    def __init__(self, d=4, layers=2):
        super().__init__()
        self.w = nn.ParameterDict({f"{k}{i}": nn.Parameter(torch.randn(d) * 0.3) for i in range(layers) for k in ("decay", "first", "mix")})
        self.kvr = nn.ModuleList([nn.Linear(d, 3 * d, bias=False) for _ in range(layers)])
        self.layers, self.d = layers, d

    def time_mixing(self, x, state, i):
        mix = torch.sigmoid(self.w[f"mix{i}"])
        mixed = x * mix + state[5 * i] * (1 - mix)
        state[5 * i] = x
        k, v, r = self.kvr[i](mixed).chunk(3)
        aa, bb, pp = state[5 * i + 1], state[5 * i + 2], state[5 * i + 3]
        ww = self.w[f"first{i}"] + k
        qq = torch.maximum(pp, ww)
        e1, e2 = torch.exp(pp - qq), torch.exp(ww - qq)
        out = torch.sigmoid(r) * (e1 * aa + e2 * v) / (e1 * bb + e2)
        ww = pp - torch.exp(self.w[f"decay{i}"])
        qq = torch.maximum(ww, k)
        e1, e2 = torch.exp(ww - qq), torch.exp(k - qq)
        state[5 * i + 1], state[5 * i + 2], state[5 * i + 3] = e1 * aa + e2 * v, e1 * bb + e2, qq
        return out

    def forward(self, xs, state=None):
        if state is None:
            state = torch.zeros(self.layers * 5, self.d)
            for i in range(self.layers):
                state[5 * i + 3] = -1e30
        for x in xs:
            for i in range(self.layers):
                x = x + self.time_mixing(F.layer_norm(x, (self.d,)), state, i)
        return x, state


class Retention(nn.Module):
    """The parallel form, and the recurrent one for single steps."""

    def __init__(self, d=8, heads=2):
        super().__init__()
        self.q, self.k, self.v, self.heads = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), heads
        self.norm = nn.GroupNorm(heads, d)
        self.register_buffer("gamma", 1 - torch.exp2(-5 - torch.arange(heads).float()))

    def forward(self, x, past=None):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if past is None:
            n = torch.arange(x.shape[1])
            decay = torch.where(n[:, None] >= n, self.gamma[:, None, None] ** (n[:, None] - n).clamp(min=0), 0.0)
            y = (q @ k.transpose(-1, -2) * decay) @ v
            state = (k.transpose(-1, -2) * decay[:, -1][:, None]) @ v
        else:
            state = self.gamma[:, None, None] * past + k.transpose(-1, -2) @ v
            y = q @ state
        y = y.transpose(1, 2).flatten(2)
        return self.norm(y.flatten(0, 1)).view_as(y), state

    def both(self, x):
        y, state = self(x[:, :-1])
        return y, *self(x[:, -1:], state)


# ---- adapters, quantisation, averages --------------------------------------------------------------------------------
class LoRALinear(nn.Linear):
    def __init__(self, n, m, r=2, alpha=4):
        super().__init__(n, m)
        self.A, self.B, self.scaling, self.merged = nn.Parameter(torch.randn(r, n)), nn.Parameter(torch.randn(m, r) * 0.1), alpha / r, False
        self.weight.requires_grad = False

    def merge(self, on):
        if on != self.merged:
            self.weight.data += (1 if on else -1) * (self.B @ self.A) * self.scaling
            self.merged = on

    def forward(self, x):
        out = F.linear(x, self.weight, bias=self.bias)
        return out if self.merged else out + (x @ self.A.transpose(0, 1) @ self.B.transpose(0, 1)) * self.scaling


class Merging(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(LoRALinear(4, 8), nn.ReLU(), LoRALinear(8, 2))

    def forward(self, x, merged):
        for layer in self.net.modules():
            if isinstance(layer, LoRALinear):
                layer.merge(merged)
        return self.net(x)


class FakeQuant(nn.Module):
    """Observes in training, rounds in inference; the straight-through trick."""

    def __init__(self, bits=8):
        super().__init__()
        self.lo, self.hi = 0, 2**bits - 1
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))
        self.register_buffer("observing", torch.tensor([1], dtype=torch.uint8))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.observing[0] == 1:
            self.low.copy_(torch.minimum(self.low, x.detach().min()))
            self.high.copy_(torch.maximum(self.high, x.detach().max()))
            if self.calls >= 3:
                self.observing[0] = 0
        scale = ((self.high - self.low) / (self.hi - self.lo)).clamp(min=1e-8)
        zero = (self.lo - torch.round(self.low / scale)).clamp(self.lo, self.hi)
        q = torch.clamp(torch.round(x / scale) + zero, self.lo, self.hi)
        return x + ((q - zero) * scale - x).detach()


class QuantNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.qa, self.b, self.qb = nn.Linear(4, 8), FakeQuant(), nn.Linear(8, 2), FakeQuant(4)

    def forward(self, x):
        x = self.qa(F.relu(self.a(x)))
        return self.qb(F.linear(x, torch.fake_quantize_per_tensor_affine(self.b.weight, 0.05, 0, -128, 127), self.b.bias))


class EMA(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.decay, self.n = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), 0.9, 0
        self.shadow = {k: v.clone() for k, v in self.model.state_dict().items()}

    @contextlib.contextmanager
    def average(self):
        backup = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.model.load_state_dict(self.shadow)
        try:
            yield self.model
        finally:
            self.model.load_state_dict(backup)

    @torch.no_grad()
    def update(self):
        self.n += 1
        decay = min(self.decay, (1 + self.n) / (10 + self.n))
        for k, v in self.model.state_dict().items():
            if v.dtype.is_floating_point:
                self.shadow[k].mul_(decay).add_(v, alpha=1 - decay)
            else:
                self.shadow[k].copy_(v)

    def forward(self, x):
        y = self.model(x)
        self.update()
        with self.average() as model:
            return y, model(x)


# ---- how programs are put together -----------------------------------------------------------------------------------
REGISTRY: dict[str, typing.Callable] = {}


def register_model(fn):
    REGISTRY[fn.__name__] = fn
    return fn


def create_model(name, **kw):
    fn = REGISTRY[name]
    kw = {k: v for k, v in kw.items() if k in inspect.signature(fn).parameters}
    return fn(**kw)


class ConvNormAct(nn.Sequential):
    def __init__(self, n, m, act_layer=nn.ReLU, **kw):
        super().__init__(collections.OrderedDict(conv=nn.Conv2d(n, m, 3, padding=1, bias=False, **kw), norm=nn.BatchNorm2d(m), act=act_layer(inplace=True)))


class TimmLike(nn.Module):
    def __init__(self, width=8, act="relu", pool="avg", drop_rate=0.0, num_classes=5):
        super().__init__()
        layer = functools.partial(ConvNormAct, act_layer={"relu": nn.ReLU, "silu": nn.SiLU}[act])
        self.stem, self.stages = layer(3, width, stride=2), nn.Sequential(*[layer(width, width) for _ in range(2)])
        self.pool, self.drop_rate, self.fc = pool, drop_rate, nn.Linear(width, num_classes)

    def forward_features(self, x):
        return self.stages(self.stem(x))

    def forward_head(self, x, pre_logits: bool = False):
        x = {"avg": lambda v: v.mean((2, 3)), "max": lambda v: v.amax((2, 3)), "catavgmax": lambda v: (v.mean((2, 3)) + v.amax((2, 3))) / 2}[self.pool](x)
        x = F.dropout(x, self.drop_rate, training=self.training) if self.drop_rate else x
        return x if pre_logits else self.fc(x)

    def forward(self, x):
        return self.forward_head(self.forward_features(x))


@register_model
def tiny(pretrained=False, **kw):
    return TimmLike(width=8, **kw)


class Tokenizer:
    def __init__(self, corpus):
        self.vocab = {w: i for i, w in enumerate(["<pad>", "<unk>", *sorted(set(corpus.split()))])}

    def __call__(self, texts, padding=True):
        rows = [[self.vocab.get(w, 1) for w in text.lower().split()] for text in texts]
        n = max(map(len, rows))
        mask = [[1] * len(r) + [0] * (n - len(r)) for r in rows]
        return {"input_ids": torch.tensor([r + [0] * (n - len(r)) for r in rows]), "attention_mask": torch.tensor(mask)}


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokenizer, self.labels = Tokenizer("a good bad film plot was the very"), ["neg", "pos"]
        self.embed, self.fc = nn.Embedding(len(self.tokenizer.vocab), 8, padding_idx=0), nn.Linear(8, 2)

    def encode(self, input_ids, attention_mask):
        x = self.embed(input_ids) * attention_mask.unsqueeze(-1)
        return self.fc(x.sum(1) / attention_mask.sum(1, keepdim=True))

    def forward(self, texts):
        p = self.encode(**self.tokenizer(texts)).softmax(-1)
        return [{"label": self.labels[i], "score": round(float(row[i]), 3)} for row, i in zip(p, p.argmax(-1).tolist())]


class LightningLike(nn.Module):
    def __init__(self, lr=0.1):
        super().__init__()
        self.net, self.hparams, self._logged, self.global_step = nn.Linear(4, 3), {"lr": lr}, collections.defaultdict(list), 0
        self.register_buffer("correct", torch.tensor(0))
        self.register_buffer("seen", torch.tensor(0))

    def log(self, name, value, prog_bar=False):
        self._logged[name].append(value.detach() if isinstance(value, torch.Tensor) else value)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.correct += (logits.argmax(-1) == y).sum()
        self.seen += y.numel()
        self.log("loss", loss)
        self.log("acc", self.correct / self.seen, prog_bar=True)
        return {"loss": loss, "step": self.global_step}

    def forward(self, *batch):
        out = self.training_step(batch, self.global_step)
        self.global_step += 1
        return out


# ---- the table -------------------------------------------------------------------------------------------------------
def boxes(i):
    low = t(2, 2, seed=i).sigmoid() / 2
    return [(torch.tensor([0, 2]), torch.cat([low, low + 0.3], 1)), (torch.tensor([1]), t(1, 4, seed=i + 1).sigmoid())]


def observations(i):
    z = t(4, seed=i)
    z[i % 4] = float("nan")
    return z


TEXTS = ("A good film", "the plot was bad bad", "very very good", "what a film")

LOOPS = GENERATED | {
    "sparse-experts": (SparseExperts, call(lambda i: (t(2, 4, 8, seed=i),))),
    "pointnet": (PointNet, call(lambda i: (t(2, 7, 3, seed=i),))),
    "yolo": (YOLO, call(lambda i: (t(2, 3, 12, 12, seed=i),))),
    "nms": (fn(nms), call(lambda i: (torch.cat([t(5, 2, seed=i), t(5, 2, seed=i) + 1], 1), t(5, seed=i + 1)))),
    "detr": (DETR, lambda i: ((t(2, 3, 12, 12, seed=i), boxes(i) if i % 2 else None), {})),
    "dqn": (DQNAgent, call(lambda i: (t(1, 4, seed=i),))),
    "ppo": (make(PPO, False), call(lambda i: (t(1, 4, seed=i),))),
    "ppo-continuous": (make(PPO, True), call(lambda i: (t(1, 4, seed=i),))),
    "rk45": (fn(rk45), call(lambda i: (t(2, seed=i),))),
    "nbody": (fn(nbody), call(lambda i: (t(4, 2, seed=i), t(4, 2, seed=i + 1), t(4, seed=i).abs()))),
    "kalman-filter": (KalmanFilter, call(lambda i: (observations(i),))),
    "spectral": (SpectralConv, call(lambda i: (t(2, 4, 10, seed=i),))),
    "siren": (Siren, call(lambda i: (t(5, 2, seed=i),))),
    "radiance": (RadianceField, call(lambda i: (t(4, 3, seed=i), t(4, 3, seed=i + 1)))),
    "real-nvp": (RealNVP, call(lambda i: (t(3, 4, seed=i),))),
    "mamba": (Mamba, lambda i: ((t(2, 5, 4, seed=i), t(2, 4, 3, seed=i) if i % 2 else None), {})),
    "s4d": (S4D, call(lambda i: (t(2, 3, 8, seed=i),))),
    "rwkv": (RWKV, call(lambda i: (t(3, 4, seed=i),))),
    "retention": (lambda: Retention().both, call(lambda i: (t(2, 4, 8, seed=i),))),
    "lora-merging": (Merging, lambda i: ((t(3, 4, seed=i), i % 3 == 1), {})),
    "fake-quant": (QuantNet, call(lambda i: (t(3, 4, seed=i),))),
    "ema": (EMA, call(lambda i: (t(3, 4, seed=i),))),
    "registry": (lambda: create_model("tiny", pretrained=True, other=1), call(lambda i: (t(2, 3, 8, 8, seed=i),))),
    "text": (TextClassifier, lambda i: (([TEXTS[i % 4], TEXTS[(i + 1) % 4]],), {})),
    "lightning": (LightningLike, call(lambda i: (t(3, 4, seed=i), ids(3, seed=i, top=3)))),
}
