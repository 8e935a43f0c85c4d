"""Models as people write them: vision, sequences, generation, graphs, audio, policies, losses; small, for tests.

WRITTEN: name -> (make model, call number -> (args, kwargs)), as in models_zoo.
"""

import math

import torch
import torch.nn.functional as F
from models_zoo import ids, t
from torch import nn


# ---- vision ----------------------------------------------------------------------------------------------------------
class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
                                 nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

        self.downs = nn.ModuleList([block(3, 8), block(8, 16)])
        self.middle = block(16, 32)
        self.ups = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)])
        self.merges = nn.ModuleList([block(32, 16), block(16, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.ups, self.merges):
            x = up(x)
            skip = skips.pop()
            if x.shape[-2:] != skip.shape[-2:]:
                x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = merge(torch.cat([skip, x], dim=1))
        return self.head(x)


class DenseNet(nn.Module):
    class Layer(nn.Module):
        def __init__(self, n, growth):
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(n), nn.Conv2d(n, growth, 3, padding=1, bias=False)

        def forward(self, features):
            return self.conv(F.relu(self.norm(torch.cat(features, 1))))

    def __init__(self, n=8, growth=4, layers=3):
        super().__init__()
        self.stem = nn.Conv2d(3, n, 3, padding=1)
        for i in range(layers):
            self.add_module(f"layer{i}", self.Layer(n + i * growth, growth))
        self.layers = layers
        self.head = nn.Linear(n + layers * growth, 5)

    def forward(self, x):
        features = [self.stem(x)]
        for i in range(self.layers):
            features.append(getattr(self, f"layer{i}")(features))
        out = F.adaptive_avg_pool2d(F.relu(torch.cat(features, 1), inplace=True), (1, 1))
        return self.head(torch.flatten(out, 1))


class EfficientBlock(nn.Module):
    """Inverted bottleneck with squeeze-and-excite and stochastic depth."""

    def __init__(self, n=8, expand=4, drop=0.2):
        super().__init__()
        m = n * expand
        self.expand = nn.Sequential(nn.Conv2d(n, m, 1, bias=False), nn.BatchNorm2d(m), nn.SiLU())
        self.depth = nn.Sequential(nn.Conv2d(m, m, 5, padding=2, groups=m, bias=False), nn.BatchNorm2d(m), nn.SiLU())
        self.squeeze, self.excite = nn.Conv2d(m, 2, 1), nn.Conv2d(2, m, 1)
        self.project = nn.Sequential(nn.Conv2d(m, n, 1, bias=False), nn.BatchNorm2d(n))
        self.drop = drop

    def forward(self, x):
        y = self.depth(self.expand(x))
        s = y.mean((2, 3), keepdim=True)
        y = y * self.excite(F.silu(self.squeeze(s))).sigmoid()
        y = self.project(y)
        if self.training and self.drop:
            keep = torch.rand(x.shape[0], 1, 1, 1, device=x.device) >= self.drop
            y = y.div(1 - self.drop) * keep
        return x + y


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(6, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(6, 4, 1), nn.Conv2d(4, 4, (1, 3), padding=(0, 1)), nn.Conv2d(4, 4, (3, 1), padding=(1, 0)))
        self.pool = nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), nn.Conv2d(6, 4, 1))
        self.aux = nn.Linear(12, 3)

    def forward(self, x):
        out = torch.cat([F.relu(b(x), inplace=True) for b in (self.one, self.three, self.pool)], 1)
        return {"out": out, "aux": self.aux(out.mean([2, 3]))}


class ShuffleUnit(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(n // 2, n // 2, 1), nn.BatchNorm2d(n // 2), nn.ReLU(True),
                                    nn.Conv2d(n // 2, n // 2, 3, padding=1, groups=n // 2), nn.BatchNorm2d(n // 2))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        out = torch.cat((a, self.branch(b)), dim=1)
        batch, n, h, w = out.size()
        return out.view(batch, 2, n // 2, h, w).transpose(1, 2).contiguous().view(batch, n, h, w)


class ASPP(nn.Module):
    """DeepLab's head: dilated branches and a pooled one, brought to one size."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=d, dilation=d) for d in (1, 2, 4)])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.ReLU())
        self.project = nn.Sequential(nn.Conv2d(16, 4, 1), nn.Dropout(0.5))

    def forward(self, x):
        size = x.shape[-2:]
        out = [conv(x) for conv in self.convs]
        out.append(F.interpolate(self.pool(x), size=size, mode="bilinear", align_corners=False))
        return F.interpolate(self.project(torch.cat(out, dim=1)), scale_factor=2, mode="nearest")


class PatchMixer(nn.Module):
    def __init__(self, d=16, n=16):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, stride=4)
        self.tokens = nn.Sequential(nn.Linear(n, 8), nn.GELU(), nn.Linear(8, n))
        self.channels = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.norms[1](x))).mean(1)


class SpatialTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.where = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
        self.register_buffer("start", torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x):
        theta = (self.where(x) * 0.1 + self.start).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)


class Detector(nn.Module):
    """Anchors, box decoding and intersection over union."""

    def __init__(self):
        super().__init__()
        self.conv, self.boxes, self.scores = nn.Conv2d(3, 8, 3, padding=1, stride=4), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        f = F.relu(self.conv(x))
        h, w = f.shape[-2:]
        ys, xs = torch.meshgrid(torch.arange(h) * 4.0, torch.arange(w) * 4.0, indexing="ij")
        centre = torch.stack((xs, ys), -1).reshape(-1, 1, 2)
        raw = self.boxes(f).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 2, 4)
        size = raw[..., 2:].clamp(max=math.log(1000 / 16)).exp() * 8
        mid = raw[..., :2] * 8 + centre
        boxes = torch.cat((mid - size / 2, mid + size / 2), -1).flatten(1, 2)
        scores = self.scores(f).permute(0, 2, 3, 1).flatten(1).sigmoid()
        top, at = scores.topk(5, dim=1)
        boxes = boxes.gather(1, at[..., None].expand(-1, -1, 4))
        low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
        high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
        inter = (high - low).clamp(min=0).prod(-1)
        area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
        return boxes, top, inter / (area[:, :, None] + area[:, None] - inter + 1e-6)


# ---- generation ------------------------------------------------------------------------------------------------------
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.Tanh())
        self.mean, self.logvar = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16), nn.Sigmoid())

    def reparameterise(self, mean, logvar):
        std = torch.exp(0.5 * logvar)
        return mean + torch.randn_like(std) * std

    def forward(self, x):
        h = self.encoder(x)
        mean, logvar = self.mean(h), self.logvar(h)
        out = self.decoder(self.reparameterise(mean, logvar))
        kl = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
        return out, F.binary_cross_entropy(out, torch.sigmoid(x), reduction="sum") + kl


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
                                  nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
                                  nn.ConvTranspose2d(8, 3, 3, 2, 1, output_padding=1), nn.Tanh())

    def forward(self, z):
        return self.main(z[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2, inplace=True),
                                  nn.Conv2d(8, 16, 4, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4))

    def forward(self, x):
        return self.main(x).view(-1, 1).squeeze(1)


def timestep_embedding(steps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32) / half)
    args = steps[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class DiffusionBlock(nn.Module):
    def __init__(self, n=8, emb=16):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(4, n), nn.Conv2d(n, n, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(4, n), nn.Conv2d(n, n, 3, padding=1)
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(emb, 2 * n))
        self.qkv, self.out = nn.Conv1d(n, 3 * n, 1), nn.Conv1d(n, n, 1)
        self.emb = emb

    def forward(self, x, steps):
        scale, shift = self.time(timestep_embedding(steps, self.emb))[:, :, None, None].chunk(2, dim=1)
        h = self.c1(F.silu(self.n1(x)))
        h = x + self.c2(F.silu(self.n2(h) * (1 + scale) + shift))
        b, c, height, width = h.shape
        q, k, v = self.qkv(h.reshape(b, c, -1)).chunk(3, dim=1)
        weight = torch.einsum("bct,bcs->bts", q, k) / math.sqrt(c)
        a = torch.einsum("bts,bcs->bct", weight.softmax(-1), v)
        return h + self.out(a).reshape(b, c, height, width)


class NeRF(nn.Module):
    def __init__(self, freqs=4):
        super().__init__()
        self.freqs = freqs
        self.layers = nn.ModuleList([nn.Linear(3 + 6 * freqs, 16), nn.Linear(16, 16), nn.Linear(16 + 3 + 6 * freqs, 16)])
        self.rgb, self.sigma = nn.Linear(16, 3), nn.Linear(16, 1)

    def encode(self, x):
        out = [x]
        for i in range(self.freqs):
            for fn in (torch.sin, torch.cos):
                out.append(fn(2.0**i * x))
        return torch.cat(out, -1)

    def forward(self, points, depths):
        x = h = self.encode(points)
        for i, layer in enumerate(self.layers):
            if i == 2:
                h = torch.cat([h, x], -1)
            h = F.relu(layer(h))
        rgb, sigma = torch.sigmoid(self.rgb(h)), F.relu(self.sigma(h))[..., 0]
        delta = torch.cat([depths[..., 1:] - depths[..., :-1], torch.full_like(depths[..., :1], 1e10)], -1)
        alpha = 1 - torch.exp(-sigma * delta)
        weights = alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha + 1e-10], -1), -1)[..., :-1]
        return (weights[..., None] * rgb).sum(-2), (weights * depths).sum(-1)


class Coupling(nn.Module):
    """A RealNVP flow with its log determinant."""

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList([nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6)) for _ in range(4)])

    def forward(self, x):
        logdet = x.new_zeros(x.shape[0])
        for i, net in enumerate(self.nets):
            a, b = x.split(3, dim=1) if i % 2 == 0 else reversed(x.split(3, dim=1))
            scale, shift = net(a).chunk(2, dim=-1)
            b = b * torch.exp(torch.tanh(scale)) + shift
            logdet = logdet + torch.tanh(scale).sum(-1)
            x = torch.cat([a, b], 1)
        prior = torch.distributions.Normal(torch.zeros(6), torch.ones(6))
        return x, prior.log_prob(x).sum(-1) + logdet


class VectorQuantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(16, 4)

    def forward(self, x):
        flat = x.reshape(-1, 4)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.weight.t() + self.codes.weight.pow(2).sum(1)
        at = distance.argmin(1)
        quantised = self.codes(at).view_as(x)
        loss = F.mse_loss(quantised.detach(), x) + 0.25 * F.mse_loss(quantised, x.detach())
        used = F.one_hot(at, 16).float().mean(0)
        return x + (quantised - x).detach(), loss, torch.exp(-(used * torch.log(used + 1e-10)).sum())


# ---- sequences -------------------------------------------------------------------------------------------------------
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 12, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens, state=None):
        out, (h, c) = self.lstm(self.embed(tokens), state)
        return self.head(out), h, c


class PackedGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(50, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        out, h = self.gru(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=tokens.shape[1])
        return out, h[-1]


class Seq2Seq(nn.Module):
    """Encoder, additive attention, and a decoder cell in a Python loop."""

    def __init__(self, d=12):
        super().__init__()
        self.embed, self.encoder = nn.Embedding(30, d), nn.GRU(d, d, batch_first=True)
        self.cell, self.score = nn.GRUCell(2 * d, d), nn.Linear(2 * d, 1)
        self.out = nn.Linear(2 * d, 30)

    def forward(self, source, target, mask=None):
        memory, h = self.encoder(self.embed(source))
        h, outputs = h[0], []
        for step in range(target.size(1)):
            pairs = torch.cat([memory, h.unsqueeze(1).expand(-1, memory.size(1), -1)], -1)
            score = self.score(torch.tanh(pairs)).squeeze(-1)
            if mask is not None:
                score = score.masked_fill(~mask, float("-inf"))
            context = torch.bmm(score.softmax(-1).unsqueeze(1), memory).squeeze(1)
            h = self.cell(torch.cat([self.embed(target[:, step]), context], -1), h)
            outputs.append(self.out(torch.cat([h, context], -1)))
        return torch.stack(outputs, dim=1)


class PositionalTransformer(nn.Module):
    """torch.nn.Transformer with masks, as in the tutorials."""

    def __init__(self, d=16):
        super().__init__()
        self.source, self.target = nn.Embedding(30, d), nn.Embedding(30, d)
        self.transformer = nn.Transformer(d, 4, 2, 2, 32, batch_first=True)
        self.head = nn.Linear(d, 30)
        position = torch.arange(32).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(32, d)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, source, target):
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        pad = source == 0
        s = self.source(source) * math.sqrt(16) + self.pe[: source.size(1)]
        y = self.target(target) * math.sqrt(16) + self.pe[: target.size(1)]
        return self.head(self.transformer(s, y, tgt_mask=causal, src_key_padding_mask=pad, memory_key_padding_mask=pad))


class MaskedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=True)
        self.cross = nn.MultiheadAttention(16, 2, kdim=8, vdim=8)

    def forward(self, x, memory, mask):
        y, weights = self.attend(x, x, x, attn_mask=mask, need_weights=True, average_attn_weights=False)
        z, _ = self.cross(y.transpose(0, 1), memory, memory)
        return z, weights


class WaveNet(nn.Module):
    def __init__(self, n=8, layers=4):
        super().__init__()
        self.start, self.end = nn.Conv1d(1, n, 1), nn.Conv1d(n, 4, 1)
        self.filters = nn.ModuleList([nn.Conv1d(n, n, 2, dilation=2**i) for i in range(layers)])
        self.gates = nn.ModuleList([nn.Conv1d(n, n, 2, dilation=2**i) for i in range(layers)])
        self.skips = nn.ModuleList([nn.Conv1d(n, n, 1) for _ in range(layers)])

    def forward(self, x):
        x, total = self.start(x), 0
        for f, g, s in zip(self.filters, self.gates, self.skips):
            padded = F.pad(x, (f.dilation[0], 0))
            y = torch.tanh(f(padded)) * torch.sigmoid(g(padded))
            total = total + s(y)
            x = x + y
        return self.end(F.relu(total))


class Spectrogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("mel", torch.rand(10, 17))
        self.conv = nn.Conv1d(10, 4, 3)

    def forward(self, wave):
        spectrum = torch.stft(wave, 32, hop_length=16, window=self.window, return_complex=True)
        power = spectrum.abs().pow(2)
        db = 10 * torch.log10(torch.clamp(self.mel @ power, min=1e-10))
        return self.conv((db - db.mean(-1, keepdim=True)) / (db.std(-1, keepdim=True) + 1e-5))


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(40, 8, mode="mean"), nn.Linear(8, 3)

    def forward(self, text, offsets):
        return self.head(self.bag(text, offsets))


class CharCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 8)
        self.convs = nn.ModuleList([nn.Conv1d(8, 6, k) for k in (2, 3, 4)])
        self.highway = nn.ModuleList([nn.Linear(18, 36) for _ in range(2)])

    def forward(self, x):
        x = self.embed(x).transpose(1, 2)
        x = torch.cat([F.relu(conv(x)).max(dim=-1)[0] for conv in self.convs], dim=-1)
        for layer in self.highway:
            new, gate = layer(x).chunk(2, -1)
            gate = torch.sigmoid(gate)
            x = gate * F.relu(new) + (1 - gate) * x
        return x


class CRF(nn.Module):
    """Forward algorithm and Viterbi scores of a conditional random field."""

    def __init__(self, n=4):
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(n, n))

    def forward(self, emissions, tags):
        alpha = best = emissions[:, 0]
        score = emissions[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for i in range(1, emissions.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, dim=1) + emissions[:, i]
            best, _ = (best.unsqueeze(2) + self.transitions).max(dim=1)
            best = best + emissions[:, i]
            score = score + self.transitions[tags[:, i - 1], tags[:, i]] + emissions[:, i].gather(1, tags[:, i : i + 1]).squeeze(1)
        return torch.logsumexp(alpha, 1) - score, best.max(1).values


class BeamStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, beams, scores):
        logp = F.log_softmax(self.head(self.embed(beams[:, -1])), -1)
        total = (scores[:, None] + logp).view(-1)
        scores, at = total.topk(beams.shape[0])
        return torch.cat([beams[torch.div(at, 20, rounding_mode="floor")], (at % 20)[:, None]], 1), scores


# ---- graphs, tables, recommendation ----------------------------------------------------------------------------------
class GraphNet(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.message, self.update = nn.Linear(2 * d, d), nn.GRUCell(d, d)
        self.attend = nn.Linear(2 * d, 1)

    def forward(self, x, edges):
        source, target = edges
        for _ in range(2):
            pair = torch.cat([x[source], x[target]], -1)
            score = F.leaky_relu(self.attend(pair)).squeeze(-1)
            top = torch.full((x.size(0),), -1e9).scatter_reduce(0, target, score, "amax", include_self=False)
            weight = torch.exp(score - top[target])
            norm = torch.zeros(x.size(0)).index_add_(0, target, weight)
            message = self.message(pair) * (weight / (norm[target] + 1e-9)).unsqueeze(-1)
            total = torch.zeros_like(x).index_add(0, target, message)
            degree = torch.zeros(x.size(0)).scatter_add_(0, target, torch.ones(target.shape))
            x = self.update(total / degree.clamp(min=1).unsqueeze(-1), x)
        return x


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)])

    def forward(self, x, adjacency):
        a = adjacency + torch.eye(adjacency.size(0))
        d = a.sum(1).pow(-0.5)
        a = d[:, None] * a * d[None]
        for layer in self.layers[:-1]:
            x = F.elu(a @ layer(x))
        return F.log_softmax(a @ self.layers[-1](x), dim=1)


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleDict({name: nn.Embedding(n, 4) for name, n in [("user", 10), ("item", 20)]})
        self.mlp = nn.Sequential(nn.Linear(11, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        fields = torch.stack([self.embeddings[name](batch[name]) for name in sorted(self.embeddings)], 1)
        pairs = 0.5 * (fields.sum(1).pow(2) - fields.pow(2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(pairs + self.mlp(torch.cat([fields.flatten(1), batch["dense"]], 1))).squeeze(-1)


class Experts(nn.Module):
    """Top-2 gating, computed for all experts and masked."""

    def __init__(self, d=8, n=4):
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, d)) for _ in range(n)])

    def forward(self, x):
        weight, at = self.gate(x).softmax(-1).topk(2, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        dense = torch.zeros(x.shape[0], len(self.experts)).scatter_(1, at, weight)
        return sum(dense[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)), dense.mean(0)


class LoRA(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(8, 2))
        self.extra = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

    def forward(self, x):
        return self.extra(F.linear(x, self.base.weight + self.up @ self.down, self.base.bias))


# ---- policies --------------------------------------------------------------------------------------------------------
class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, state, action):
        h = torch.tanh(self.body(state))
        policy = torch.distributions.Categorical(logits=self.actor(h))
        return policy.log_prob(action), policy.entropy(), self.critic(h).squeeze(-1), policy.probs


class Gaussian(nn.Module):
    """Soft actor-critic's squashed policy: draws with reparameterisation."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, state):
        mean, log_std = self.net(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        draw = normal.rsample()
        action = torch.tanh(draw)
        return action, (normal.log_prob(draw) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1)


class DuelingQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.value, self.advantage = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, state, action, reward, following, done, gamma=0.99):
        def q(s):
            h = F.relu(self.body(s))
            a = self.advantage(h)
            return self.value(h) + a - a.mean(dim=1, keepdim=True)

        now = q(state).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            target = reward + gamma * q(following).max(1)[0] * (1 - done.float())
        return F.smooth_l1_loss(now, target)


def advantages(rewards, values, gamma=0.99, lam=0.95):
    out, last = [], 0.0
    for i in reversed(range(rewards.shape[0])):
        following = values[i + 1] if i + 1 < values.shape[0] else torch.zeros_like(values[i])
        last = rewards[i] + gamma * following - values[i] + gamma * lam * last
        out.insert(0, last)
    out = torch.stack(out)
    return (out - out.mean()) / (out.std() + 1e-8)


# ---- losses and solvers ----------------------------------------------------------------------------------------------
def losses(x, y, classes, mask):
    return {
        "cross": F.cross_entropy(x, classes, label_smoothing=0.1, weight=torch.ones(5)),
        "nll": F.nll_loss(F.log_softmax(x, 1), classes, ignore_index=2),
        "kl": F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"),
        "bce": F.binary_cross_entropy_with_logits(x, mask.float(), pos_weight=torch.full((5,), 2.0)),
        "huber": F.huber_loss(x, y, delta=0.5),
        "cosine": F.cosine_embedding_loss(x, y, torch.ones(x.shape[0])),
        "triplet": F.triplet_margin_loss(x, y, y.flip(0)),
        "margin": F.multi_margin_loss(x, classes),
        "masked": (x * mask).sum() / mask.sum().clamp(min=1),
        "focal": ((1 - torch.exp(-F.cross_entropy(x, classes, reduction="none"))) ** 2).mean(),
        "dice": 1 - 2 * (x.sigmoid() * mask).sum() / (x.sigmoid().sum() + mask.sum() + 1e-6),
    }


class CTC(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.loss = nn.LSTM(6, 5), nn.CTCLoss(zero_infinity=True)

    def forward(self, x, targets, lengths, target_lengths):
        out, _ = self.net(x)
        return self.loss(out.log_softmax(2), targets, lengths, target_lengths)


def contrastive(a, b, temperature=0.07):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    logits = a @ b.T / temperature
    labels = torch.arange(logits.size(0))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class ODE(nn.Module):
    """Runge-Kutta steps through a vector field."""

    def __init__(self):
        super().__init__()
        self.field = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x, steps=3):
        h, path = 1.0 / steps, [x]
        for _ in range(steps):
            k1 = self.field(x)
            k2 = self.field(x + h / 2 * k1)
            k3 = self.field(x + h / 2 * k2)
            k4 = self.field(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(x)
        return torch.stack(path)


def kalman(x, p, z):
    f = torch.tensor([[1.0, 0.1], [0.0, 1.0]])
    h = torch.tensor([[1.0, 0.0]])
    x, p = f @ x, f @ p @ f.T + 0.01 * torch.eye(2)
    s = h @ p @ h.T + 0.1
    k = p @ h.T @ torch.linalg.inv(s)
    return x + k @ (z - h @ x), (torch.eye(2) - k @ h) @ p


def sinkhorn(cost):
    u, v = torch.zeros(cost.shape[0]), torch.zeros(cost.shape[1])
    for _ in range(5):
        u = -torch.logsumexp(v[None] - cost, 1)
        v = -torch.logsumexp(u[:, None] - cost, 0)
    return torch.exp(u[:, None] + v[None] - cost)


def gram_schmidt(x):
    out = []
    for row in x:
        for basis in out:
            row = row - (row @ basis) * basis
        out.append(row / row.norm())
    return torch.stack(out)


def call(make):
    return lambda i: (make(i), {})


def edges(i):
    return torch.randint(0, 6, (2, 14), generator=torch.Generator(torch.empty(0).device).manual_seed(i))


def fn(function):
    return lambda: function


WRITTEN = {
    "unet": (UNet, call(lambda i: (t(2, 3, 16, 16, seed=i),))),
    "unet-odd": (UNet, call(lambda i: (t(1, 3, 18, 14, seed=i),))),
    "densenet": (DenseNet, call(lambda i: (t(2, 3, 8, 8, seed=i),))),
    "efficient": (EfficientBlock, call(lambda i: (t(2, 8, 6, 6, seed=i),))),
    "inception": (Inception, call(lambda i: (t(2, 6, 7, 7, seed=i),))),
    "shuffle": (ShuffleUnit, call(lambda i: (t(2, 8, 5, 5, seed=i),))),
    "aspp": (ASPP, call(lambda i: (t(1, 4, 9, 9, seed=i),))),
    "mixer": (PatchMixer, call(lambda i: (t(2, 3, 16, 16, seed=i),))),
    "spatial-transformer": (SpatialTransformer, call(lambda i: (t(2, 1, 8, 8, seed=i),))),
    "detector": (Detector, call(lambda i: (t(2, 3, 16, 16, seed=i),))),
    "vae": (VAE, call(lambda i: (t(3, 16, seed=i),))),
    "generator": (Generator, call(lambda i: (t(2, 8, seed=i),))),
    "discriminator": (Discriminator, call(lambda i: (t(2, 3, 16, 16, seed=i),))),
    "diffusion": (DiffusionBlock, call(lambda i: (t(2, 8, 6, 6, seed=i), ids(2, seed=i)))),
    "nerf": (NeRF, call(lambda i: (t(4, 5, 3, seed=i), t(4, 5, seed=i).abs().cumsum(-1)))),
    "flow": (Coupling, call(lambda i: (t(5, 6, seed=i),))),
    "quantiser": (VectorQuantiser, call(lambda i: (t(3, 5, 4, seed=i),))),
    "tagger": (Tagger, call(lambda i: (ids(2, 7, seed=i, top=50),))),
    "tagger-state": (Tagger, call(lambda i: (ids(2, 7, seed=i, top=50), (t(4, 2, 12, seed=i), t(4, 2, 12, seed=i + 9))))),
    "packed-gru": (PackedGRU, call(lambda i: (ids(3, 6, seed=i, top=50), torch.tensor([6, 3, 4], device="cpu")))),
    "seq2seq": (Seq2Seq, call(lambda i: (ids(2, 6, seed=i, top=30), ids(2, 4, seed=i + 5, top=30)))),
    "seq2seq-mask": (Seq2Seq, call(lambda i: (ids(2, 6, seed=i, top=30), ids(2, 4, seed=i + 5, top=30), torch.arange(6).expand(2, 6) < 5))),
    "nn-transformer": (PositionalTransformer, call(lambda i: (ids(2, 6, seed=i, top=30).clamp(1), ids(2, 5, seed=i, top=30)))),
    "nn-attention": (MaskedAttention, call(lambda i: (t(2, 5, 16, seed=i), t(3, 2, 8, seed=i), torch.ones(5, 5).triu(1).bool()))),
    "wavenet": (WaveNet, call(lambda i: (t(2, 1, 20, seed=i),))),
    "spectrogram": (Spectrogram, call(lambda i: (t(2, 160, seed=i),))),
    "bag": (BagOfWords, call(lambda i: (ids(9, seed=i, top=40), torch.tensor([0, 4, 6])))),
    "char-cnn": (CharCNN, call(lambda i: (ids(2, 9, seed=i, top=40),))),
    "crf": (CRF, call(lambda i: (t(2, 5, 4, seed=i), ids(2, 5, seed=i, top=4)))),
    "beam": (BeamStep, call(lambda i: (ids(3, 4, seed=i, top=20), t(3, seed=i)))),
    "graph": (GraphNet, call(lambda i: (t(6, 8, seed=i), edges(i)))),
    "gcn": (GCN, call(lambda i: (t(5, 6, seed=i), (t(5, 5, seed=i) > 0).float()))),
    "deep-fm": (DeepFM, call(lambda i: ({"user": ids(4, seed=i, top=10), "item": ids(4, seed=i, top=20), "dense": t(4, 3, seed=i)},))),
    "experts": (Experts, call(lambda i: (t(6, 8, seed=i),))),
    "lora": (LoRA, call(lambda i: (t(3, 8, seed=i),))),
    "actor-critic": (ActorCritic, call(lambda i: (t(3, 4, seed=i), ids(3, seed=i, top=3)))),
    "gaussian-policy": (Gaussian, call(lambda i: (t(3, 4, seed=i),))),
    "dueling-q": (DuelingQ, call(lambda i: (t(3, 4, seed=i), ids(3, seed=i, top=3), t(3, seed=i), t(3, 4, seed=i + 1), ids(3, seed=i, top=2)))),
    "advantages": (fn(advantages), call(lambda i: (t(5, seed=i), t(5, seed=i + 1)))),
    "losses": (fn(losses), call(lambda i: (t(4, 5, seed=i), t(4, 5, seed=i + 3), torch.tensor([0, 1, 3, 4]), t(4, 5, seed=i) > 0))),
    "ctc": (CTC, call(lambda i: (t(8, 2, 6, seed=i), ids(2, 3, seed=i, top=4) + 1, torch.tensor([8, 7]), torch.tensor([3, 2])))),
    "contrastive": (fn(contrastive), call(lambda i: (t(4, 8, seed=i), t(4, 8, seed=i + 1)))),
    "ode": (ODE, call(lambda i: (t(4, 3, seed=i),))),
    "kalman": (fn(kalman), call(lambda i: (t(2, 1, seed=i), torch.eye(2) * (1 + i), t(1, 1, seed=i)))),
    "sinkhorn": (fn(sinkhorn), call(lambda i: (t(4, 5, seed=i).abs(),))),
    "gram-schmidt": (fn(gram_schmidt), call(lambda i: (t(3, 6, seed=i),))),
}
