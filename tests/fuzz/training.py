"""Random training programs: a function f of tensors and of a small net is compiled, and steps drive it: backward passes through some of its
results, hooks, retain_graph, optimisers, writes between forward and backward, modes around it. Eager against compiled: values,
gradients, buffers, parameters, `_version`, hooks' calls, errors, random streams.

A program is a body (statements of f) and a few steps (statements of its driver, which is not compiled itself), both from the tables below.
A seed also decides whether f is a function or a module's forward, and of which sizes each step is.

Long runs, in tests/ (each program in a process that ends it after some time; a failure prints what reproduces it):

    python -m fuzz.training FROM TO [--seconds N] [--timeout N]
    python -m fuzz.training SEED --reduce       the shortest body and the fewest steps that fail in the same way
"""

import argparse
import functools
import random
import re
import typing

import ccompile
import torch
from conftest import Side, alike, tensors, verify_failures
from fuzz.functions import Lost, Writer, elsewhere, least, quiet, search

HEADER = """
import contextlib, functools
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def dense(t):
    # Gradients have strides of their own (docs/limits.md).
    return torch.empty_like(t, memory_format=torch.contiguous_format).copy_(t) if isinstance(t, torch.Tensor) else t


def attempt(f):
    try:
        return f()
    except Exception as e:
        return type(e).__name__, str(e).split(":")[0].split(";")[0][:60]


def make(compile, dtype):
    seen, kept = [], []

    def told(name, by=None):
        def hook(g, *rest):
            seen.append((name, dense(g.grad if g.is_leaf and g.requires_grad else g).detach().clone()))
            return None if by is None else g * by

        return hook

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.head, self.ln = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.LayerNorm(6)
            self.bn, self.bn2, self.drop = nn.BatchNorm1d(6), nn.BatchNorm2d(2), nn.Dropout(0.3)
            self.conv, self.emb = nn.Conv2d(1, 2, 3, padding=1), nn.Embedding(7, 6)
            self.mha, self.gru = nn.MultiheadAttention(6, 2, batch_first=True), nn.GRU(6, 6, batch_first=True)
            self.scale, self.frozen = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6) * 0.5, requires_grad=False)
            self.register_buffer("mean", torch.zeros(6))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, a):
            if self.training:
                self.steps += 1
                with torch.no_grad():
                    self.mean.mul_(0.9).add_(a.reshape(-1, 6).mean(0))
            return self.drop(self.ln(self.lin(a))) * self.scale

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, *args):
            return plain(*args)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 + ctx.saved_tensors[0] * 0.1

    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * torch.sigmoid(b)

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            s = torch.sigmoid(b)
            return g * s if ctx.needs_input_grad[0] else None, (g * a * s * (1 - s)) if ctx.needs_input_grad[1] else None

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, k):
            ctx.s, ctx.k = torch.tanh(a), k
            return ctx.s * k

        @staticmethod
        def backward(ctx, g):
            return g * (1 - ctx.s * ctx.s) * ctx.k, None

    class Centred(torch.autograd.Function):
        @staticmethod
        def forward(a):
            return a - a.mean(-1, keepdim=True)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g - g.mean(-1, keepdim=True) * 0.5 + ctx.saved_tensors[0] * 0.1

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return (a > 0.2718).to(a.dtype)

        @staticmethod
        def backward(ctx, g):
            return g.clamp(-1, 1)

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a)
            ctx.shape = b.shape
            return a @ b

        @staticmethod
        def backward(ctx, g):
            return None, (ctx.saved_tensors[0].t() @ g).reshape(ctx.shape)

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            s = torch.tanh(a)
            ctx.save_for_backward(s)
            return s, s * 2.5

        @staticmethod
        def backward(ctx, g, h):
            return (g + h * 2.5) * (1 - ctx.saved_tensors[0] ** 2)

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            keep = (a > 0.2718).to(a.dtype)
            ctx.mark_non_differentiable(keep)
            ctx.save_for_backward(keep)
            return keep, a * keep

        @staticmethod
        def backward(ctx, of_keep, g):
            return g * ctx.saved_tensors[0] * 1.5

    def twice(m, a, out):
        return out * 2

    def plus_one(m, a):
        return (a[0] + 1,)

    def thrice(m, given, wanted):
        return (given[0] * 3,)

    def halved(a):
        return a / 2

    HOOKS = {"twice": twice, "plus_one": plus_one, "thrice": thrice, "halved": halved}
    net = Net().to(dtype)
    params = list(net.parameters())
    state = {"net": net, "seen": seen, "kept": kept}

    def six(a):
        # [N, 6] of whatever there is
        a = a.to(params[0].dtype).flatten()
        return F.pad(a, (0, -a.numel() % 6)).view(-1, 6)

    def plain(x, y, n, flag):
"""
INDENT = 2
MOST_ELEMENTS = 4000
MOST_VALUE = 1e3


def lines(text):
    return [line for line in text.strip("\n").splitlines() if line.strip()]


def blocks(text):
    return text.strip("\n").split("\n---\n")


def weighted(*pairs):
    return [text for text, weight in pairs for _ in range(weight)]


SCALARS = ["2", "0.5", "-1", "n", "1.5", "<a>.shape[-1]" ]
SMOOTH = """
<a> * <s>
<a> + <s>
<s> - <a>
<a> / 2
-<a>
<a>.tanh()
<a>.sigmoid()
<a>.sin()
<a>.cos() * <s>
torch.relu(<a>)
F.gelu(<a>)
F.silu(<a>)
F.elu(<a>)
F.softplus(<a>)
F.leaky_relu(<a>, 0.2)
F.hardswish(<a>)
<a>.tanh().exp()
<a>.square().clamp(max=9)
<a>.clamp(-1, 1)
(<a> * <a> + 1).sqrt()
(<a> * <a> + 1).log()
<a>.abs().add(0.5).rsqrt()
<a>.softmax(-1)
<a>.log_softmax(-1)
<a>.softmax(0)
<a>.sum(-1, keepdim=True)
<a>.sum(0)
<a>.mean()
<a>.mean(0, keepdim=True)
<a>.amax(-1)
<a>.max(-1).values
<a>.max(0)[0]
<a>.var(-1, unbiased=False)
<a>.logsumexp(-1)
<a>.cumsum(-1)
<a>.tanh().cumprod(-1)
<a>.tanh().prod(-1)
(<a> + 0.3).norm(dim=-1)
F.layer_norm(<a>, <a>.shape[-1:])
F.normalize(<a> + 0.1, dim=-1)
F.pad(<a>, (1, 1))
F.pad(<a>, (-1, 2))
torch.where(<a> > 0, <a>, <s>)
<a>.masked_fill(<a> > 0.3, -1.0)
<a>.sort(-1)[0]
<a>.topk(1, -1)[0]
<a>.gather(-1, <a>.argsort(-1))
<a>.flip(-1)
<a>.roll(1, 0)
<a>.tril() if <a>.dim() > 1 else <a>
<a>.repeat(2, *[1] * (<a>.dim() - 1))
torch.cat([<a>, <a> * 2], -1)
torch.stack([<a>, <a>.sin()])
torch.zeros_like(<a>).scatter_add(-1, <a>.argsort(-1), <a>)
torch.zeros_like(<a>).index_add(0, torch.arange(<a>.shape[0]), <a>)
<a>[torch.tensor([0, 0])]
<a>[..., torch.tensor([0, -1])]
<a>[<a>.detach() > 0]
Held.apply(<a>, 1.5)
Held.apply(<a>, n)
Centred.apply(six(<a>))
Sign.apply(<a>)
Pair.apply(<a>)[0]
Pair.apply(<a>)[1]
torch.stack(Pair.apply(<a>))
Marked.apply(<a>)[1]
torch.add(*Marked.apply(<a>))
Gated.apply(<a>, <a>)
<a>.index_select(0, torch.tensor([0]))
F.interpolate(<a>.reshape(1, 1, -1), scale_factor=2, mode="linear")
F.max_pool1d(<a>.reshape(1, 1, -1), 2, ceil_mode=True)
F.avg_pool1d(<a>.reshape(1, 1, -1), 2, ceil_mode=True)
Double.apply(<a>)
"""
VIEWS = """
<a>.mT if <a>.dim() > 1 else <a>
<a>.transpose(0, -1)
<a>.reshape(-1)
<a>.flatten()
<a>.view(<a>.shape)
<a>.unsqueeze(-1)
<a>.unsqueeze(0)
<a>.squeeze()
<a>.expand(2, *<a>.shape)
<a>.contiguous()
<a>.clone()
<a>.chunk(2, -1)[0]
<a>.split(1, 0)[-1]
<a>.unbind(0)[0]
<a>.diagonal()
<a>.narrow(0, 0, 1)
<a>[0]
<a>[1:]
<a>[..., ::2]
<a>[..., 0]
<a>[:, None]
<a>[:n]
<a>.view_as(<a>)
"""
CUT = """
<a>.detach()
<a>.data
<a>.detach().clone()
<a>.detach().requires_grad_()
(<a> > 0).to(<a>.dtype) * <a>
<a>.argmax(-1)
"""
PAIRS = """
<a> + <b>
<a> - <b>
<a> * <b>
<a> / (<b>.abs() + 1)
<a> * <b>.sum()
<a> * <b>.mean().tanh()
<a> @ <b>.mT
torch.maximum(<a>, <b>)
torch.where(<a> > <b>, <a>, <b>)
torch.lerp(<a>, <b>, 0.3)
torch.addcmul(<a>, <b>, <b>, value=0.5)
six(<a>) @ six(<b>).t()
Gated.apply(<a>, <b>)
Gated.apply(six(<a>), six(<b>)[:1].expand(six(<a>).shape))
Turned.apply(six(<a>).tanh(), six(<b>).t().contiguous())
six(<a>) * six(<b>).sum(0)
torch.cat([six(<a>), six(<b>)])
torch.cat([six(<a>), six(<b>)], 0).view(-1)
torch.stack([<a>, <b>], -1)
torch.einsum("ij,kj->ik", six(<a>), six(<b>))
F.mse_loss(<a>, <b>)
F.smooth_l1_loss(<a>, <b>)
F.binary_cross_entropy_with_logits(<a>, <b>.sigmoid().detach())
F.cosine_similarity(six(<a>) + 0.1, six(<b>)[:1] + 0.1)
"""
LOSSES = """
F.cross_entropy(six(<a>), six(<b>).argmax(-1))
F.nll_loss(six(<a>).log_softmax(-1), six(<b>).argmax(-1))
F.cross_entropy(six(<a>), six(<a>).argmin(-1), label_smoothing=0.1, reduction="sum") * 0.1
F.kl_div(six(<a>).log_softmax(-1), six(<a>).detach().sin().softmax(-1), reduction="batchmean")
"""
DRAWS = """
F.dropout(<a>, 0.5)
F.dropout(<a>, 0.3, training=flag)
F.dropout(<a>, 0.3, training=net.training)
<a> + torch.randn_like(<a>) * 0.1
<a> * torch.rand(<a>.shape).to(<a>.dtype)
<a> * torch.bernoulli(torch.full(<a>.shape, 0.5)).to(<a>.dtype)
F.alpha_dropout(<a>, 0.3, training=True)
"""
MODULES = """
net(six(<a>))
net.lin(six(<a>))
net.head(six(<a>))
net.lin(six(<a>)).relu_()
F.linear(six(<a>), net.lin.weight)
F.linear(six(<a>), net.head.weight.t(), net.scale)
net.ln(six(<a>))
net.bn(torch.cat([six(<a>), six(<a>) * 2 + 1]))
net.bn2(net.conv(six(<a>)[None, None]))
net.conv(six(<a>)[None, None])
F.max_pool2d(net.conv(six(<a>)[None, None]), 2, ceil_mode=True)
net.emb(six(<a>).detach().argmax(-1))
net.drop(<a>)
net.mha(six(<a>)[None], six(<a>)[None], six(<a>)[None], need_weights=flag)[0]
net.gru(six(<a>)[None])[0]
F.scaled_dot_product_attention(six(<a>)[None], six(<a>)[None], six(<a>)[None])
six(<a>) * net.scale
six(<a>) * net.frozen + net.mean
checkpoint(net, six(<a>), use_reentrant=False)
checkpoint(lambda a: a.sin() * net.scale, six(<a>), use_reentrant=False)
checkpoint(lambda a: F.dropout(net.lin(a), 0.3).tanh(), six(<a>), use_reentrant=flag)
"""
WRITES = """
<a>.add_(<s>)
<a>.mul_(<s>)
<a>.mul_(<b>)
<a> += <b>
<a> -= <b>.mean()
<a> *= 0.5
<a>[0] = <s>
<a>[0] = <b>.sum()
<a>[..., 0] += 1
<a>[..., -1].mul_(<b>.mean())
<a>[0].copy_(<a>[-1] * 2)
<a>.sin_()
<a>.relu_()
<a>.tanh_()
<a>.sigmoid_()
<a>.clamp_(-2, 2)
<a>.exp_().clamp_(max=3)
<a>.zero_()
<a>.copy_(<b>)
<a>.fill_(<s>)
<a>.masked_fill_(<a>.detach() > 0.5, 0.1)
<a>.index_fill_(0, torch.tensor([0]), 2.0)
<a>.detach().mul_(0.5)
<a>.data.add_(0.1)
<a>.requires_grad_()
F.relu(<a>, inplace=True)
F.dropout(<a>, 0.5, inplace=True)
<a>.view(-1)[1:].add_(<s>)
<a>.transpose(0, -1)[0].mul_(2)
<a>.t_()
net.mean.add_(six(<a>).detach().mean(0))
net.mean.copy_(six(<a>).mean(0).detach() * 0.5)
"""
HOOKS = """
<a>.register_hook(told("<a>")) if <a>.requires_grad else None
<a>.register_hook(told("<a>", 2)) if <a>.requires_grad else None
<a>.register_hook(lambda g: g * 0.5) if <a>.requires_grad else None
<a>.retain_grad() if <a>.requires_grad else None
"""
BREAKS = """
print(<a>.shape)
print(float(<a>.detach().sum()) > 0.2718)
seen.append(("item", <a>.sum().item()))
torch.manual_seed(n)
kept.append(<a>.detach())
kept[:] = [<a>]
seen.append(("flags", <a>.requires_grad, <a>.is_leaf, <a>._version))
net.lin.weight.requires_grad_(flag)
<a>.grad = None
"""
# Sums are compared with a number that none of them has by construction: rounding decides the sign of one that is 0 (of a norm's
# result).
LINES = """
<v> = <t>
<v2> = <v>.cos() * <b>.sum()
<v>.detach_()
---
if flag:
    <v> = <t>
else:
    <v> = <t>
---
if <a>.sum() > 0.2718:
    <v> = <t>
else:
    <v> = <b> * 1
---
if <a>.requires_grad:
    <v> = <t>
else:
    <v> = <b>.sin()
---
with torch.no_grad():
    <v> = <t>
---
with torch.no_grad():
    <write>
---
with torch.no_grad():
    <v> = <t>
    <write>
    with torch.enable_grad():
        <v2> = <t2>
---
with torch.inference_mode():
    <v> = <t>
<v> = <v>.clone()
---
torch.set_grad_enabled(flag)
<v> = <t>
torch.set_grad_enabled(True)
---
with torch.autocast("cpu", enabled=auto):
    <v> = <t>
    <v2> = <t2>
---
<v> = <t>
<v> += <b>
---
<v> = <t>
<v>.mul_(2)
<v2> = <v>.sin()
<v>.add_(1)
---
<v> = torch.empty_like(<a>)
<v>[:] = <a>
<v>.mul_(2)
---
<v> = torch.zeros_like(<a>)
<v>[0] = <a>[-1]
<v>[-1] += <a>[0]
---
<v> = <t>
<v2> = <v>.view(-1)
<v2>.mul_(0.5)
---
<v> = <t>
<v2> = <v>[0]
<v>.add_(1)
<v2>.sin_()
---
try:
    <v> = <t>
    <write>
except RuntimeError as e:
    seen.append(type(e).__name__)
    <v> = <a> * 2
---
<v> = <a>
for <i> in range(n):
    <v> = <v> * 0.5 + net.lin(six(<v>)).mean()
---
<v> = <a>
for <i> in range(n):
    <v> = net(six(<v>))
---
<v> = [<t>, <t2>]
<v> = <v>[0].sum() + <v>[1]
---
<v> = torch.autograd.grad((<t>).sum(), x, allow_unused=True)[0] if x.requires_grad else <b>
<v> = <b> if <v> is None else dense(<v>)
---
<v>, <v2> = six(<a>).chunk(2, -1)
<v> = <v> * <v2>.sigmoid()
---
<v>, <v2> = torch.split(six(<a>), [2, 4], -1)
---
<v>, <v2> = six(<a>).unbind(-1)[:2]
---
<v>, <v2> = six(<a>).sort(-1)
<v2> = <v2> * 0.1
"""
RETURNS = """
[<last>]
[<last>]
[<last>]
(<a>, <b>)
<a>
{'a': <a>, 'b': [<last>]}
[<a>, <a>, <b>.detach()]
[<a>, <a>.view(-1), x]
[<last>, <t>]
[<t>, <t2>]
"""
RULES = {
    "s": SCALARS,
    "t": weighted(("<smooth>", 10), ("<view>", 5), ("<pair>", 7), ("<module>", 7), ("<draw>", 2), ("<loss>", 1), ("<cut>", 1)),
    "smooth": lines(SMOOTH),
    "view": lines(VIEWS),
    "pair": lines(PAIRS),
    "module": lines(MODULES),
    "draw": lines(DRAWS),
    "loss": lines(LOSSES),
    "cut": lines(CUT),
    "write": lines(WRITES),
    "hook": lines(HOOKS),
    "break": lines(BREAKS),
    "statement": weighted(("<v> = <t>", 12), ("<w> = <t>", 2), ("<write>", 4), ("<hook>", 1), ("<break>", 1), ("<lines>", 5)),
    "lines": blocks(LINES),
    "nested": [],
    "return": lines(RETURNS),
}
# `outs`: the floating results that require gradients; `loss`: a scalar of some. What a program sees of a step is in `got`.
CALLS = """
out = f(x, y, n, flag)
out = f(x, y, n, flag)
out = f(x, y, n, flag)
with torch.no_grad(): out = f(x, y, n, flag)
with torch.autocast("cpu", enabled=auto): out = f(x, y, n, flag)
out = checkpoint(f, x, y, n, flag, use_reentrant=False)
out = f(x * 1, y, n, flag)
out = [f(x, y, n, flag), f(x, y, n, flag)]
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t): out = f(x, y, n, flag)
"""
BETWEEN = """
outs[-1].register_hook(told("out"))
outs[0].register_hook(told("out", 0.5))
outs[0].retain_grad(); kept[:] = outs[:1]
x.register_hook(told("x"))
params[0].register_hook(told("w", 3))
params[0].register_post_accumulate_grad_hook(told("post"))
outs[0].mul_(2)
outs[-1].data.zero_()
outs[-1].detach().add_(1)
with torch.no_grad(): params[0].mul_(1.1)
params[-1].data.mul_(0.9)
with torch.no_grad(): y.add_(1)
outs.append(outs[0] * 2)
outs.append(outs[0].sin() * outs[-1].sum())
del outs[1:]
outs.reverse()
opt.step()
kept.append(outs[0])
outs[:] = [o for o in outs if o.dim()] or outs
out = None
"""
BACKWARDS = """
total(outs).backward()
total(outs).backward()
total(outs).backward()
total(outs).backward(retain_graph=True); total(outs).backward()
total(outs).backward(); total(outs).backward()
total(outs[:1]).backward(retain_graph=True); total(outs[1:]).backward()
total(outs[1:]).backward(retain_graph=True); total(outs[:1]).backward()
total(outs[-1:]).backward()
total(outs[:1]).backward(inputs=params[:2])
got += map(dense, torch.autograd.grad(total(outs), live, allow_unused=True))
got += map(dense, torch.autograd.grad(total(outs), live[::2], allow_unused=True, retain_graph=True)); total(outs).backward()
got += map(dense, torch.autograd.grad(outs, live, [torch.ones_like(o) for o in outs], allow_unused=True))
got += map(dense, torch.autograd.grad(total(outs[-1:]), live, allow_unused=True, materialize_grads=True))
g = torch.autograd.grad(total(outs), live, allow_unused=True, create_graph=True); total([v for v in g if v is not None and v.requires_grad]).backward()
got += map(dense, torch.autograd.grad(total(outs), outs[:1], retain_graph=True)); total(outs).backward()
torch.autograd.backward(outs, [torch.full_like(o, 0.5) for o in outs])
"""
AFTER = """
opt.step(); opt.zero_grad()
opt.step(); opt.zero_grad()
opt.step(); opt.zero_grad(set_to_none=False)
nn.utils.clip_grad_norm_(params, 1.0); opt.step()
opt.zero_grad()
got.append(total(outs).detach())
net.eval()
net.train()
net.requires_grad_(not flag); net.requires_grad_(True)
net.lin.requires_grad_(flag)
params[0].grad = None
net.lin.weight = nn.Parameter(net.lin.weight.detach() * 0.5)
net.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in net.state_dict().items()})
kept.clear()
net.drop.p = 0.1
params[-1].grad.mul_(2)
torch.manual_seed(n)
net.lin._forward_hooks[0] = twice
net._forward_pre_hooks[0] = plus_one
net.ln._is_full_backward_hook, net.ln._backward_hooks[0] = True, thrice
for m in net.modules(): m._forward_hooks.clear(), m._forward_pre_hooks.clear(), m._backward_hooks.clear()
net.lin, net.head = net.head, net.lin
net.head.weight = net.lin.weight
net.lin = nn.Linear(6, 6).to(params[0].dtype)
net.scale.requires_grad_(not flag)
net.frozen.requires_grad_()
net.ln.eps = 0.1
net.bn.momentum = 0.5
net.bn.reset_running_stats()
net.bn.eval()
net.drop.eval()
net.scale.data = net.scale.data * 2
net.forward = halved
net.__dict__.pop("forward", None)
mode[0] = not mode[0]
mode[0] = True
"""
OPTIMISERS = """
torch.optim.SGD(params, lr=0.05)
torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01)
torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, foreach=True)
torch.optim.Adam(params, lr=0.01, eps=1e-2)
torch.optim.AdamW(params, lr=0.01, eps=1e-2, amsgrad=True)
torch.optim.AdamW(params, lr=0.01, eps=1e-2, foreach=False)
torch.optim.RMSprop(params, lr=0.01, eps=1e-2)
"""
DRIVER = """
    def total(ts):
        return sum((t * t).sum() * 0.1 + t.sum() for t in ts)

    def driven(at, x, y, n, flag):
        got, live = [], [t for t in (x, *params) if t.requires_grad]
        out = outs = None
        del seen[:]
        for statement in STEPS[at]:
            if statement.startswith(("outs", "total", "got", "g =", "torch.autograd")) and not outs:
                continue
            names = {**globals(), **LOCALS, **locals()}
            try:
                with torch.set_grad_enabled(mode[0]):
                    exec(statement, names)
            except Exception as e:
                text = str(e).split(":")[0].split(";")[0][:60]
                modified = "modified" in str(e) and "inplace" in str(e)  # torch has several texts for it
                modified = modified or "had read was written to" in str(e)  # ours where create_graph=True
                got.append((type(e).__name__, "modified" if modified else text))
            outs = names["outs"]
            if "out = " in statement:
                out = names["out"]
                outs = [t for t in tensors(out) if t.requires_grad and t.dtype.is_floating_point]
        failed = any(type(g) is tuple for g in got)  # docs/limits.md: what hooks had run before it failed, and what had a .grad
        for t in live if failed else ():
            t.grad = None
        if failed:
            del seen[:]
        seen.sort(key=lambda s: s[0] if isinstance(s, tuple) else s)
        return out, got, list(seen), [p.requires_grad for p in params]

    mode = [True]  # of gradients
    LOCALS = {**HOOKS, "f": f, "net": net, "params": params, "opt": opt, "mode": mode, "told": told, "kept": kept, "total": total}
    return driven, state
"""


class Program(typing.NamedTuple):
    body: list  # lines of f
    dtype: torch.dtype
    auto: bool  # autocast is enabled where a statement asks for it
    root: str
    optimiser: str
    compiled: bool  # the optimiser's step, too
    dynamic: object
    steps: list  # (statements, arguments)

    def __str__(self):
        return "\n".join([*self.body, *map(str, self[1:-1]), *map(str, self.steps)])


class Given(typing.NamedTuple):
    """Arguments of a step: x and y are made of them."""

    rows: int
    deep: bool
    leaf: int  # of x: 0: no gradient, 1: leaf, 2: not a leaf
    other: bool  # y requires a gradient
    layout: int
    n: int
    flag: bool


def source(p):
    return "\n".join([
        HEADER.rstrip(),
        *p.body,
        f"    f = compile({p.root}, dynamic={p.dynamic})",
        f"    opt = {p.optimiser}",
        "    opt.step = compile(opt.step)" if p.compiled else "",
        "    state['opt'] = opt.state",
        DRIVER,
    ])


@functools.lru_cache(4)
def _code(text):
    """One for both sides: functions are compared by their code."""
    return compile(text, "<training>", "exec")


def build(p, wrap):
    code = _code(source(p))

    def factory():
        space = {"__name__": "program", "tensors": tensors, "STEPS": [list(s) for s, _ in p.steps], "auto": p.auto}
        exec(code, space)
        return space["make"](wrap, p.dtype)

    return factory


def arguments(given, dtype, seed, nudge=0.0):
    g = torch.Generator().manual_seed(seed)

    def make(leaf):
        shape = (given.rows, 2, 6) if given.deep else (given.rows, 6)
        t = torch.randn(shape[::-1] if given.layout == 1 else shape, generator=g, dtype=torch.float64).mul(0.7 * (1 + nudge)).to(dtype)
        t = t.permute(*range(t.dim())[::-1]) if given.layout == 1 else t
        t = torch.cat([t, t])[::2] if given.layout == 2 else t
        return t.requires_grad_() if leaf else t

    x, y = make(given.leaf == 1), make(given.other)
    return x.requires_grad_() * 1 if given.leaf == 2 else x, y


def plain(fn, **_):
    return fn


def works(p):
    """Does its function run, and stay small?"""
    try:
        with quiet(), torch.random.fork_rng():
            torch.manual_seed(0)
            p = p._replace(steps=[(["out = f(x, y, n, flag)", "total(outs).backward()"], None)])
            fn, _ = build(p, plain)()
            for rows in (2, 4):
                out, got, *_ = fn(0, *arguments(Given(rows, False, 2, True, 0, 2, True), p.dtype, 0), 2, True)
                found = [t for t in tensors(out)]
                if got or any(t.numel() and not t.detach().abs().max() < MOST_VALUE for t in found):
                    return False
                if sum(t.numel() for t in found) > MOST_ELEMENTS:
                    return False
    except Exception:
        return False
    return True


def step(pick, one, args):
    out = [one(lines(CALLS))]
    out += [one(lines(BETWEEN)) for _ in range(pick(3))]
    out.append(one(lines(BACKWARDS)))
    out += [one(lines(AFTER)) for _ in range(pick(3))]
    return out, args


SAVED_FOR_SIZES = ("index_add(", ".gather(", "avg_pool")


def usual(statements, body):
    """Without what docs/limits.md lists as different: writes between forward and backward to what a checkpoint in f has read or to what
    eager saves for its sizes only, and second derivatives where f has written to what it had read."""
    written = ("opt.step()", "with torch.no_grad(): params[0].mul_(1.1)", "with torch.no_grad(): y.add_(1)")
    without = written if any("checkpoint(" in line for line in body) else ()
    if any(op in line for line in body for op in SAVED_FOR_SIZES):
        without += ("with torch.no_grad(): y.add_(1)", "outs[0].mul_(2)", "outs[-1].detach().add_(1)")
    if any(".detach().mul_(" in line for line in body):
        without += tuple(s for s in statements if "create_graph" in s)
    return [s for s in statements if s not in without]


def usual_body(body):
    """The same for f itself: writes that autograd does not see, and a checkpoint that may have read what they change."""
    if not any("checkpoint(" in line for line in body):
        return body
    return [re.sub(r"^(\s+)\w+\.(detach\(\)\.mul_\(0\.5\)|data\.add_\(0\.1\))$", r"\1pass", line) for line in body]


def drawn(seed):
    pick = random.Random(seed).randrange
    writer = Writer(pick, RULES)
    p = Program(
        [],
        writer.one((torch.float64, torch.float32)),
        pick(3) == 0,
        writer.one(("plain", "plain", "Root()", "functools.partial(plain)")),
        writer.one(lines(OPTIMISERS)),
        pick(3) == 0,
        writer.one((None, None, True, False)),
        [],
    )
    for _ in range(2 + pick(8)):
        before = list(writer.variables)
        trial = [*p.body, *writer.statement(INDENT, 0)]
        if works(p._replace(body=[*trial, f"        return [{writer.last()}]"])) or pick(30) == 0:
            p = p._replace(body=trial)
        else:
            writer.variables = before
    end = writer.fill(writer.one(RULES["return"]), {}, [])
    p = p._replace(body=[*usual_body(p.body), f"        return {end}"])
    sizes = [writer.one((1, 2, 3, 4, 5)) for _ in range((1, 2, 4)[pick(3)])]

    def given():
        usual = pick(3) > 0
        return Given(
            writer.one(sizes),
            not usual and pick(3) == 0,
            1 if usual else pick(3),
            not usual and pick(2) == 0,
            0 if usual else pick(3),
            2 if usual else 1 + pick(3),
            usual or pick(2) == 0,
        )

    kinds = [usual(step(pick, writer.one, None)[0], p.body) for _ in range(1 + pick(3))]
    return p._replace(steps=[(writer.one(kinds), given()) for _ in range(6)])


def unseen(p):
    """Does a step write what autograd does not see? The self-check, which runs stages again on their inputs, would compute with it."""
    return any(".data." in statement for statements, _ in p.steps for statement in statements)


def tolerances(p):
    near = (5e-2, 0.2) if p.auto else (1e-5, 1e-6) if p.dtype is torch.float64 and not p.compiled else (2e-3, 2e-4)
    return near, 2**-8 if p.auto else 0  # bf16: second derivatives of eager are off by 1 % of the largest element


def check(p):
    """Raises AssertionError where compiled steps differ from eager ones."""
    ccompile.reset()
    wrong = verify_failures()
    near, spread = tolerances(p)
    with quiet(), ccompile.config.patch(verify=ccompile.config.verify and not unseen(p) and not p.auto):
        sides = [Side(build(p, wrap), True, False, {}) for wrap in (plain, ccompile.compile)]
        written = {}
        for i, (_, given) in enumerate(p.steps):
            told = [s.run(((i, *arguments(given, p.dtype, i), given.n, given.flag), {})) for s in sides]
            alike(*told, *near, f"step {i}", written, spread)
    alike(sides[0].past, sides[1].past, *near, "all steps", spread=spread)
    assert verify_failures() == wrong, "verify: " + next(e.text for e in reversed(ccompile.events()) if e.kind == "verify")


EXPLODED = 1e5


def unstable(p):
    """Do parameters explode, or do eager steps differ as much from eager ones whose arguments differ by a rounding error or two? Then nothing is
    known of compiled ones."""
    near, spread = tolerances(p)
    nudges = 0.0, 2**-8 if p.auto else 2 * torch.finfo(p.dtype).eps
    try:
        with quiet():
            sides = [Side(build(p, plain), True, False, {}) for _ in nudges]
            for i, (_, given) in enumerate(p.steps):
                told = [
                    side.run(((i, *arguments(given, p.dtype, i, nudge), given.n, given.flag), {}))
                    for side, nudge in zip(sides, nudges, strict=True)
                ]
                if not all(w.detach().abs().max() < EXPLODED for w in sides[0].state["net"].parameters()):
                    return True
                alike(*told, *near, f"step {i}", spread=spread)
    except AssertionError as error:
        return "not close" in str(error)
    return False


def eagerly(p):
    with quiet():
        side = Side(build(p, plain), True, False, {})
        for i, (_, given) in enumerate(p.steps):
            side.run(((i, *arguments(given, p.dtype, i), given.n, given.flag), {}))


# ---- long runs -------------------------------------------------------------------------------------------------------
def failure(p):
    """What is wrong with it, or nothing."""
    try:
        check(p)
    except Exception as error:
        if "not close" in str(error) and unstable(p):
            return ""
        return f"{'' if isinstance(error, AssertionError) else type(error).__name__ + ' '}{error}" or "?"
    return ""


def failure_elsewhere(p, timeout):
    try:
        return "".join(elsewhere(lambda say: say(failure(p)), timeout))
    except Lost as error:
        return str(error)


def reduce(p, timeout):
    def kind(text):
        return re.sub(r"\d+", "", re.sub(r"step \d+|all steps|\[\d+\]", "", text))[:24]

    def fails(p):
        try:
            compile(source(p), "", "exec")
        except SyntaxError:
            return False
        return kind(failure_elsewhere(p, timeout)) == wanted

    wanted = kind(failure_elsewhere(p, timeout))
    if wanted:
        p = p._replace(steps=least(p.steps, lambda steps: fails(p._replace(steps=steps))))
        *body, end = p.body
        body = least(body, lambda body: fails(p._replace(body=[*body, end])))
        p = p._replace(body=[*body, end])
        for i in range(len(p.steps)):

            def with_step(statements, i=i):
                return p._replace(steps=[*p.steps[:i], (statements, p.steps[i][1]), *p.steps[i + 1 :]])

            p = with_step(least(list(p.steps[i][0]), lambda s: fails(with_step(s))))  # noqa: B023
        for plainer in ({"root": "plain"}, {"dynamic": None}, {"compiled": False}, {"auto": False}, {"optimiser": lines(OPTIMISERS)[0]}):
            p = p._replace(**plainer) if fails(p._replace(**plainer)) else p
    print(p, failure_elsewhere(p, timeout), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--timeout", type=float, default=60, help="seconds a program may take")
    parser.add_argument("--reduce", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.reduce:
        reduce(drawn(args.first), args.timeout)
    else:
        last = args.last or args.first + 1
        search(args.first, last, lambda seed: failure(drawn(seed)), args.seconds, args.timeout, lambda seed: eagerly(drawn(seed)))


if __name__ == "__main__":
    main()
