"""Generative models as people write them: decoding with and without caches, beam search, diffusion; small, for tests.

GENERATED: name -> (make, call number -> (args, kwargs)), as in models_zoo. `make` runs once for each of the two sides; its
result may keep state between calls.
"""

import dataclasses
import math
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from models_zoo import ids, t
from torch import nn


# ---- nanoGPT ---------------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class GPTConfig:
    block_size: int = 12
    vocab_size: int = 17
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 8
    dropout: float = 0.0
    bias: bool = True


class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config, flash):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(config.dropout), nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout
        self.flash = flash and hasattr(torch.nn.functional, "scaled_dot_product_attention")
        if not self.flash:
            mask = torch.tril(torch.ones(config.block_size, config.block_size))
            self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, config, flash):
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(config.n_embd, bias=config.bias), LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config, flash)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config=None, flash=True):
        super().__init__()
        self.config = config = config or GPTConfig()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd), wpe=nn.Embedding(config.block_size, config.n_embd),
            drop=nn.Dropout(config.dropout), h=nn.ModuleList([Block(config, flash) for _ in range(config.n_layer)]),
            ln_f=LayerNorm(config.n_embd, bias=config.bias)))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        assert t <= self.config.block_size, f"Cannot forward sequence of length {t}, block size is only {self.config.block_size}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits, loss = self.lm_head(x[:, [-1], :]), None
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        for _ in range(max_new_tokens):
            idx_cond = idx if idx.size(1) <= self.config.block_size else idx[:, -self.config.block_size :]
            logits, _ = self(idx_cond)
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            probs = F.softmax(logits, dim=-1)
            idx_next = torch.multinomial(probs, num_samples=1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


class Generate(nn.Module):
    def __init__(self, flash=False):
        super().__init__()
        self.gpt = GPT(flash=flash)

    def forward(self, idx, n=2, **kw):
        return self.gpt.generate(idx, n, **kw)


# ---- decoding with caches --------------------------------------------------------------------------------------------
class CachedAttention(nn.Module):
    def __init__(self, d=8, heads=2, limit=10, grow=True):
        super().__init__()
        self.qkv, self.out, self.heads, self.limit, self.grow = nn.Linear(d, 3 * d), nn.Linear(d, d), heads, limit, grow

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, cache, pos):
        q, k, v = map(self.split, self.qkv(x).chunk(3, dim=-1))
        if self.grow:
            if cache is not None:
                k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
            cache = (k, v)
            mask = torch.ones(x.shape[1], k.shape[2], dtype=torch.bool).tril(k.shape[2] - x.shape[1])
        else:
            if cache is None:
                cache = tuple(torch.zeros(x.shape[0], self.heads, self.limit, k.shape[-1]) for _ in range(2))
            cache[0][:, :, pos : pos + x.shape[1]] = k
            cache[1][:, :, pos : pos + x.shape[1]] = v
            k, v = cache
            mask = torch.arange(self.limit)[None] <= torch.arange(pos, pos + x.shape[1])[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2)), cache


class Decoder(nn.Module):
    def __init__(self, vocab=13, d=8, layers=2, grow=True):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, d), nn.Linear(d, vocab)
        self.layers = nn.ModuleList([CachedAttention(d, grow=grow) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.RMSNorm(d) for _ in range(layers)])

    def forward(self, tokens, caches=None, pos=0):
        x = self.embed(tokens)
        caches = [None] * len(self.layers) if caches is None else caches
        fresh = []
        for layer, norm, cache in zip(self.layers, self.norms, caches, strict=True):
            y, cache = layer(norm(x), cache, pos)
            x = x + y
            fresh.append(cache)
        return self.head(x), fresh


class Greedy(nn.Module):
    """Prefill, then one token at a time until all have ended."""

    def __init__(self, grow=True, eos=3):
        super().__init__()
        self.model, self.eos = Decoder(grow=grow), eos

    def forward(self, prompt, limit=5):
        logits, caches = self.model(prompt)
        token = logits[:, -1].argmax(-1, keepdim=True)
        done = torch.zeros(prompt.shape[0], dtype=torch.bool)
        out = [token]
        for step in range(limit - 1):
            done = done | (token.squeeze(1) == self.eos)
            if done.all():
                break
            logits, caches = self.model(token, caches, pos=prompt.shape[1] + step)
            token = torch.where(done[:, None], self.eos, logits[:, -1].argmax(-1, keepdim=True))
            out.append(token)
        return torch.cat([prompt, *out], dim=1)


class Speculative(nn.Module):
    """A draft proposes, the target accepts a prefix: lengths depend on data."""

    def __init__(self):
        super().__init__()
        self.draft, self.target = Decoder(layers=1), Decoder(layers=2)

    def forward(self, tokens, rounds=2, ahead=3):
        accepted = []
        for _ in range(rounds):
            guess = tokens
            for _ in range(ahead):
                guess = torch.cat([guess, self.draft(guess)[0][:, -1:].argmax(-1)], dim=1)
            best = self.target(guess)[0].argmax(-1)
            n = tokens.shape[1]
            hits = (best[:, n - 1 : -1] == guess[:, n:]).int().cumprod(dim=1).sum().item()
            accepted.append(hits)
            tokens = torch.cat([guess[:, : n + hits], best[:, n + hits - 1 : n + hits]], dim=1)
        return tokens, accepted


class BeamSearch(nn.Module):
    """An LSTM decoder with attention over the source, and beams as Python lists."""

    def __init__(self, vocab=11, d=8):
        super().__init__()
        self.embed, self.encoder = nn.Embedding(vocab, d), nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.bridge, self.cell = nn.Linear(2 * d, d), nn.LSTMCell(2 * d, d)
        self.score, self.out = nn.Linear(2 * d, d), nn.Linear(d, vocab)

    def step(self, token, state, memory):
        weight = torch.softmax((self.score(memory) * state[0].unsqueeze(1)).sum(-1), dim=-1)
        context = torch.bmm(weight.unsqueeze(1), self.bridge(memory)).squeeze(1)
        state = self.cell(torch.cat([self.embed(token), context], -1), state)
        return torch.log_softmax(self.out(state[0]), -1), state

    def forward(self, source, width=2, limit=4, eos=1):
        memory, h = self.encoder(self.embed(source))
        h = torch.tanh(self.bridge(torch.cat([h[0], h[1]], dim=-1)))
        beams, finished = [(0.0, [0], (h, torch.zeros_like(h)))], []
        for _ in range(limit):
            grown = []
            for score, tokens, state in beams:
                logp, state = self.step(torch.tensor([tokens[-1]]), state, memory)
                top = torch.topk(logp[0], width)
                for p, i in zip(top.values.tolist(), top.indices.tolist()):
                    grown.append((score + p, [*tokens, i], state))
            grown.sort(key=lambda beam: beam[0] / len(beam[1]), reverse=True)
            beams = []
            for beam in grown[:width]:
                (finished if beam[1][-1] == eos else beams).append(beam)
            if not beams:
                break
        best = max(finished + beams, key=lambda beam: beam[0])
        return best[1], best[2][0]


def ctc_greedy(logits, blank=0):
    out = []
    for path in logits.argmax(-1):
        last, text = None, []
        for token in path.tolist():
            if token != blank and token != last:
                text.append(token)
            last = token
        out.append(text)
    return out


def ctc_collapsed(logits, blank=0):
    best = logits.argmax(-1)
    keep = torch.cat([torch.ones_like(best[:, :1], dtype=torch.bool), best[:, 1:] != best[:, :-1]], 1) & (best != blank)
    return [row[mask] for row, mask in zip(best, keep)]


class Tacotron(nn.Module):
    """Frames until the stop token says so."""

    def __init__(self, d=8, mels=4):
        super().__init__()
        self.prenet = nn.Sequential(nn.Linear(mels, d), nn.ReLU(), nn.Dropout(0.5))
        self.cell, self.frame, self.stop = nn.GRUCell(2 * d, d), nn.Linear(2 * d, mels), nn.Linear(2 * d, 1)
        self.query, self.location = nn.Linear(d, d, bias=False), nn.Conv1d(2, d, 3, padding=1)
        self.energy, self.mels, self.limit = nn.Linear(d, 1), mels, 6

    def forward(self, memory):
        batch, n, d = memory.shape
        h, frame = memory.new_zeros(batch, d), memory.new_zeros(batch, self.mels)
        weight = total = memory.new_zeros(batch, n)
        frames, weights = [], []
        while True:
            seen = self.location(torch.stack([weight, total], 1)).transpose(1, 2)
            weight = F.softmax(self.energy(torch.tanh(self.query(h)[:, None] + seen + memory)).squeeze(-1), -1)
            total = total + weight
            context = torch.bmm(weight[:, None], memory)[:, 0]
            h = self.cell(torch.cat([self.prenet(frame), context], -1), h)
            both = torch.cat([h, context], -1)
            frame = self.frame(both)
            frames += [frame]
            weights += [weight]
            if torch.sigmoid(self.stop(both)).mean() > 0.52:
                break
            if len(frames) == self.limit:
                warnings.warn("reached max decoder steps", stacklevel=1)
                break
        return torch.stack(frames, 1), torch.stack(weights, 1)


# ---- diffusion -------------------------------------------------------------------------------------------------------
class TimeEmbedding(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.dim, self.mlp = dim, nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, step):
        half = self.dim // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half).to(step.device)
        args = step[:, None].float() * freqs[None]
        return self.mlp(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))


class ResBlock(nn.Module):
    def __init__(self, n, m, emb=8):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, n), nn.Conv2d(n, m, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, m), nn.Conv2d(m, m, 3, padding=1)
        self.emb, self.skip = nn.Linear(emb, 2 * m), nn.Conv2d(n, m, 1) if n != m else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class AttentionBlock(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.GroupNorm(4, n), nn.Conv1d(n, 3 * n, 1), nn.Conv1d(n, n, 1)

    def forward(self, x):
        b, c, *spatial = x.shape
        flat = x.reshape(b, c, -1)
        q, k, v = self.qkv(self.norm(flat)).chunk(3, 1)
        scale = 1 / math.sqrt(math.sqrt(c))
        weight = torch.einsum("bct,bcs->bts", q * scale, k * scale).softmax(-1)
        return (flat + self.proj(torch.einsum("bts,bcs->bct", weight, v))).reshape(b, c, *spatial)


class TimestepSequential(nn.Sequential):
    def forward(self, x, emb):
        for layer in self:
            x = layer(x, emb) if isinstance(layer, ResBlock) else layer(x)
        return x


class DiffusionUNet(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.time = TimeEmbedding()
        self.input_blocks = nn.ModuleList([TimestepSequential(nn.Conv2d(3, n, 3, padding=1)), TimestepSequential(ResBlock(n, n)),
                                           TimestepSequential(nn.Conv2d(n, n, 3, stride=2, padding=1)),
                                           TimestepSequential(ResBlock(n, 2 * n), AttentionBlock(2 * n))])
        self.middle = TimestepSequential(ResBlock(2 * n, 2 * n), AttentionBlock(2 * n), ResBlock(2 * n, 2 * n))
        self.output_blocks = nn.ModuleList([TimestepSequential(ResBlock(4 * n, n)),
                                            TimestepSequential(ResBlock(2 * n, n), nn.Upsample(scale_factor=2, mode="nearest")),
                                            TimestepSequential(ResBlock(2 * n, n)), TimestepSequential(ResBlock(2 * n, n))])
        self.out = nn.Sequential(nn.GroupNorm(4, n), nn.SiLU(), nn.Conv2d(n, 3, 3, padding=1))

    def forward(self, x, timesteps):
        hs, emb = [], self.time(timesteps)
        h = x
        for module in self.input_blocks:
            h = module(h, emb)
            hs.append(h)
        h = self.middle(h, emb)
        for module in self.output_blocks:
            h = module(torch.cat([h, hs.pop()], dim=1), emb)
        return self.out(h)


class DDIM(nn.Module):
    def __init__(self, steps=20):
        super().__init__()
        self.net = DiffusionUNet()
        betas = torch.linspace(1e-4, 0.02, steps)
        self.register_buffer("alphas", torch.cumprod(1 - betas, 0))
        self.steps = steps

    @torch.inference_mode()
    def forward(self, x, n=2, eta=0.5):
        times = [round((self.steps - 1) * i / (n - 1)) for i in reversed(range(n))]
        for now, following in zip(times, [*times[1:], -1]):
            eps = self.net(x, torch.full((x.shape[0],), now, dtype=torch.long))
            a, b = self.alphas[now], self.alphas[following] if following >= 0 else torch.tensor(1.0)
            clean = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
            sigma = eta * ((1 - b) / (1 - a) * (1 - a / b)).sqrt()
            x = b.sqrt() * clean + (1 - b - sigma**2).sqrt() * eps
            if following >= 0:
                x = x + sigma * torch.randn_like(x)
        return x


class DDPMScheduler:
    """As diffusers has them: a config, numpy times, a step that returns an object."""

    @dataclasses.dataclass
    class Output:
        prev_sample: torch.Tensor
        pred_original_sample: torch.Tensor | None = None

    def __init__(self, num_train_timesteps=20, variance_type="fixed_small", prediction_type="epsilon"):
        self.config = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        self.betas = torch.linspace(1e-4, 0.02, num_train_timesteps)
        self.alphas = 1.0 - self.betas
        self.alphas_cumprod = torch.cumprod(self.alphas, dim=0)
        self.timesteps = torch.from_numpy(np.arange(0, num_train_timesteps)[::-1].copy())

    def __len__(self):
        return self.config["num_train_timesteps"]

    def _get_variance(self, step):
        a, b = self.alphas_cumprod[step], self.alphas_cumprod[step - 1] if step > 0 else torch.tensor(1.0)
        variance = torch.clamp((1 - b) / (1 - a) * (1 - a / b), min=1e-20)
        if self.config["variance_type"] == "fixed_small_log":
            variance = torch.exp(0.5 * torch.log(variance))
        return variance

    def step(self, model_output, timestep, sample, return_dict=True):
        step = int(timestep)
        a, b = self.alphas_cumprod[step], self.alphas_cumprod[step - 1] if step > 0 else torch.tensor(1.0)
        alpha = a / b
        if self.config["prediction_type"] == "epsilon":
            original = (sample - (1 - a) ** 0.5 * model_output) / a**0.5
        elif self.config["prediction_type"] == "v_prediction":
            original = a**0.5 * sample - (1 - a) ** 0.5 * model_output
        else:
            raise ValueError(f"prediction_type {self.config['prediction_type']}")
        original = original.clamp(-1, 1)
        mean = (b**0.5 * (1 - alpha)) / (1 - a) * original + alpha**0.5 * (1 - b) / (1 - a) * sample
        if step > 0:
            mean = mean + self._get_variance(step) ** 0.5 * torch.randn(sample.shape)
        return self.Output(mean, original) if return_dict else (mean,)

    def add_noise(self, x, noise, timesteps):
        root = self.alphas_cumprod[timesteps] ** 0.5
        while len(root.shape) < len(x.shape):
            root = root.unsqueeze(-1)
        return root * x + (1 - root**2) ** 0.5 * noise


class DDPM(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.scheduler = DiffusionUNet(), DDPMScheduler()

    def forward(self, x):
        x = self.scheduler.add_noise(x, torch.randn_like(x), torch.tensor([len(self.scheduler) - 1] * x.shape[0]))
        for step in self.scheduler.timesteps[-2:]:
            x = self.scheduler.step(self.net(x, step.expand(x.shape[0])), step, x).prev_sample
        return x


# ---- the table -------------------------------------------------------------------------------------------------------
def call(make, **kw):
    return lambda i: (make(i), kw)


def make(cls, *args, **kw):
    return lambda: cls(*args, **kw)


def fn(function):
    return lambda: function


GENERATED = {
    "gpt": (GPT, lambda i: ((ids(2, 6 + i % 2, seed=i, top=17), ids(2, 6 + i % 2, seed=i + 1, top=17)) if i % 3 else (ids(2, 6, seed=i, top=17),), {})),
    "gpt-generate": (Generate, call(lambda i: (ids(2, 3, seed=i, top=17),), temperature=0.8, top_k=5)),
    "gpt-generate-flash": (make(Generate, True), call(lambda i: (ids(1, 10, seed=i, top=17),))),
    "greedy-growing": (Greedy, call(lambda i: (ids(2, 3, seed=i, top=13),))),
    "greedy-static": (make(Greedy, grow=False), call(lambda i: (ids(2, 3, seed=i, top=13),))),
    "speculative": (Speculative, call(lambda i: (ids(1, 3, seed=i, top=13),))),
    "beam-search": (BeamSearch, call(lambda i: (ids(1, 4, seed=i, top=11),))),
    "ctc-greedy": (fn(ctc_greedy), call(lambda i: (t(2, 6, 4, seed=i),))),
    "ctc-collapsed": (fn(ctc_collapsed), call(lambda i: (t(2, 6, 4, seed=i),))),
    "tacotron": (Tacotron, call(lambda i: (t(2, 3, 8, seed=i),))),
    "ddim": (DDIM, call(lambda i: (t(1, 3, 8, 8, seed=i),))),
    "ddpm": (DDPM, call(lambda i: (t(1, 3, 8, 8, seed=i),))),
}
