"""The grammar of functions.py: texts of statements and expressions of torch code, in tables.

<name> in a text stands for a text of RULES[name]. Equal ones in one text are equal; digits tell them apart (<a> and <a2>). These are no
rules: <a> is a variable that holds a tensor, <v> a new variable for one, <w> new or not, <i> a new name, <n> a number from 0 to 4.
A line <block> stands for one to three statements, <body> for those of a function of its own; what they name is forgotten behind them.
"""

UNARY = """
<a> * <s>
<a> + <s>
<s> - <a>
<a> / 2
-<a>
<a> ** 2
<a>.tanh()
<a>.sigmoid()
torch.relu(<a>)
<a>.exp().clamp(max=5)
<a>.abs()
F.gelu(<a>)
F.silu(<a>)
<a>.softmax(-1)
<a>.log_softmax(-1)
<a>.sum(-1, keepdim=True)
<a>.sum(dim=(0, -1)) if <a>.dim() > 1 else <a>.sum()
<a>.mean(0)
<a>.amax(-1)
<a>.max(0)[0]
<a>.max(-1).values
<a>.var(-1, unbiased=False)
<a>.std()
<a>.norm()
<a>.cumsum(-1)
<a>.cummax(-1)[0]
<a>.prod(-1)
<a>.logsumexp(0)
<a>.pow(2).sum()
<a>.sort(-1)[0]
<a>.argsort(-1)
<a>.argmax(-1)
<a>.topk(1, -1)[0]
<a>.ne(0).sum()
<a>.any(-1)
<a>.isnan().any()
<a>.clamp(-1, <s>)
<a>.masked_fill(<a> < 0, <s>)
torch.where(<a> > 0, <a>, <s>)
F.layer_norm(<a>, <a>.shape[-1:])
F.normalize(<a>, dim=-1)
F.dropout(<a>, 0.5)
F.dropout(<a>, 0.5, training=S.flag)
F.pad(<a>, (1, 1))
F.interpolate(<a>.reshape(1, 1, -1), scale_factor=2)
F.max_pool1d(<a>.reshape(1, 1, -1), 2, ceil_mode=True)
F.one_hot(<a>.argmax(-1), num_classes=8)
torch.stack([<a>, <a> * <s>])
torch.cat([<a>, <a>], -1)
<a>.tril() if <a>.dim() > 1 else <a>
<a>.triu(1) if <a>.dim() > 1 else <a> + 1
<a>.repeat(2, *[1] * (<a>.dim() - 1))
<a>.roll(1, -1)
<a>.flip(0)
<a>.round()
<a> // 1
<a> % 1.5
<a>.nan_to_num()
"""

VIEWS = """
<a>.t()
<a>.mT if <a>.dim() > 1 else <a>
<a>.T
<a>.transpose(0, -1)
<a>.movedim(0, -1)
<a>.permute(*range(<a>.dim())[::-1])
<a>.reshape(-1)
<a>.flatten()
<a>.view(<a>.shape)
<a>.view(-1)
<a>.view(-1)[0]
<a>.unsqueeze(-1)
<a>.unsqueeze(0)
<a>.squeeze()
<a>.expand(2, *<a>.shape)
<a>.detach()
<a>.contiguous()
<a>.clone()
<a>.chunk(2, -1)[0]
<a>.split(2, 0)[-1]
<a>.unbind(0)[0]
<a>.diagonal()
<a>.narrow(0, 0, 1)
<a>.select(-1, 0)
<a>.unfold(-1, 1, 1)
<a>.as_strided(<a>.shape, <a>.stride())
<a>.view_as(<a>)
<a>.real
<a>.data
torch.as_tensor(<a>)
<a>.unflatten(0, (1, -1)) if <a>.dim() else <a>
<a>[0]
<a>[-1:]
<a>[1:]
<a>[:-1]
<a>[..., ::2]
<a>[..., 1:]
<a>[..., 0]
<a>[None]
<a>[:, None]
<a>[None, ..., None]
<a>[...]
<a>[()]
<a>[:<n>]
<a>[: S.n % 3 + 1]
<a>[n - 1:]
<a>[:, :n]
<a>[0:1, ..., -1]
"""

GATHERED = """
<a>[<a> > 0.1]
<a>[(<a> > 0).any(-1)]
<a>[[0]]
<a>[[0, -1]]
<a>[torch.tensor([0, 0])]
<a>[torch.tensor([0]), ..., 0]
<a>[:, torch.tensor([0, 1])]
<a>[..., [True] * <a>.shape[-1]]
<a>[torch.tensor(0)]
<a>[S.idx % <a>.shape[0]]
<a>.index_select(0, torch.tensor([0]))
<a>.gather(-1, torch.zeros_like(<a>, dtype=torch.long))
<a>.take(torch.tensor([0, -1]))
torch.take_along_dim(<a>, <a>.argsort(-1), -1)
<a>.masked_select(<a> < 1)
(<a> > 0.1).nonzero()
<a>.unique()
torch.bincount(<a>.flatten().abs().long() % 5)
"""

CASTS = """
<a>.double()
<a>.float()
<a>.half()
<a>.half().float()
<a>.bfloat16()
<a>.to(torch.float64)
<a>.long()
<a>.long().float()
<a>.int() * <s>
<a>.bool()
<a>.bool().float()
<a>.to(torch.complex64)
<a>.to(torch.uint8)
(<a> > <s>).float()
(<a> > <s>)
<a>.type_as(<b>)
<a>.to(<b>.dtype)
<a>.to(<b>)
<a>.long() + <b>
<a>.bool() & <b>.bool()
~<a>.bool()
<a>.to(torch.complex64).abs()
torch.view_as_real(<a>.to(torch.complex64))
torch.complex(<a>.float(), <a>.float()).conj()
torch.result_type(<a>, <b>) == <a>.dtype and <a> or <a>
torch.promote_types(<a>.dtype, <b>.dtype).itemsize * <a>
"""

BINARY = """
<a> + <b>
<a> * <b>
<a> - <b>
<a> / (<b>.abs() + 1)
<a> > <b>
torch.maximum(<a>, <b>)
torch.where(<a> > <b>, <a>, <b>)
torch.atan2(<a>, <b>)
torch.lerp(<a>, <b>, 0.5)
torch.addcmul(<a>, <b>, <b>)
<a>.add(<b>, alpha=<s>)
(<a> == <b>).float()
<a>.mean() * <b>
<a>.sum() + <b>
<a>.mean(-1) * <b>.numel()
<a> @ <b>
<a> @ <b>.t()
F.linear(<a>, <b>)
torch.outer(<a>.reshape(-1), <b>.reshape(-1))
torch.einsum("i,j->ij", <a>.flatten(), <b>.flatten())
torch.cat([<a>, <b>])
torch.cat([<a>.reshape(-1), <b>.reshape(-1)])
torch.stack([<a>.sum(), <b>.sum()])
<a>.expand_as(<b>)
<a>.reshape(<b>.shape)
<a>.view_as(<b>)
torch.broadcast_to(<a>, <b>.shape)
torch.broadcast_tensors(<a>, <b>)[0]
<a>.reshape(-1)[:1] + <b>
<a>.reshape(-1)[: <b>.shape[0]]
<a>.reshape(-1)[<b>.shape[0] - 1]
F.mse_loss(<a>, <b>)
F.cross_entropy(<a>, <b>.argmax(-1))
"""

MADE = """
torch.zeros_like(<a>)
torch.full_like(<a>, <s>)
torch.rand_like(<a>)
torch.randn(<a>.shape[0], 2)
torch.randperm(3)
torch.ones(<a>.shape[0])
torch.zeros(0, 3)
torch.empty(0)
torch.tensor(<s>)
torch.tensor([<s>, 1.0])
torch.tensor([<a>.shape[0], <n>])
torch.arange(<a>.shape[-1]) * <s>
torch.linspace(0, 1, <a>.shape[-1])
torch.eye(<a>.shape[-1])
torch.full((2, <n>), <s>)
<a>.new_zeros(<a>.shape)
<a>.new_tensor([<n>, 2])
<a>.new_full((2,), <s>)
torch.bernoulli(<a>.sigmoid())
torch.multinomial(<a>.flatten().abs() + 0.1, 2)
torch.zeros(3).scatter_add(0, torch.tensor([0, 2]), torch.ones(2))
"""

SIZED = """
<a> * <a>.numel()
<a> / <a>.size(-1)
<a> + <a>.shape[0]
<a> * len(L)
<a> * k
<a> + n
<a> * S.c
<a> * S.w
S.buf + <a>.mean()
<a> + G
<a> * S.pair.by
<a> + S.pair.of
<a> * S.point.x
<a> + len(S.d)
[<a> * v for _, v in zip("ab", S.rates)][-1]
sum(<a> * v for v in S.rates[-3:])
<a> + list(S.table.values())[0]
<a> * sum(S.rates)
{k: <a> + v for k, v in S.table.items()}["b"]
<a> * max(enumerate(S.rates))[1]
<a> * sum(L)
<a> * math.sqrt(abs(<s>))
<a> + float(f"{S.n}.5")
<a> * int("3" * (S.n % 2 + 1))
<a> + (S.n << 1 | 1)
<a> * (1 if flag else S.c)
<a> + divmod(<a>.numel(), 3)[1]
<a> * max(<a>.shape[0], n, 2)
<a> * (len(str(n)) + "ab".count("a"))
"""

MODULES = """
S.net.lin(four(<a>))
S.net.bn(four(<a>))
S.net.bn(torch.cat([four(<a>), four(<a>)]))
S.net.bn2(four(<a>)[None, None])
S.net.ln(four(<a>))
S.net.gn(four(<a>))
S.net.drop(<a>)
S.net.emb(<a>.long().abs() % 7)
S.net.conv(four(<a>)[:, None])
S.net.gru(four(<a>)[None])[0]
S.net.lstm(four(<a>)[None])[1][0]
S.net.mha(four(<a>)[None], four(<a>)[None], four(<a>)[None])[0]
S.net.mha(four(<a>)[None], four(<a>)[None], four(<a>)[None], need_weights=True)[1]
S.net.many[<a>.dim() % 2](four(<a>))
S.net.seq(four(<a>))
S.net(four(<a>))
S.net(four(<a>), by=<s>)
F.linear(four(<a>), S.net.lin.weight)
F.batch_norm(four(<a>), S.net.bn.running_mean, S.net.bn.running_var)
F.embedding(<a>.long().abs() % 7, S.net.emb.weight)
F.scaled_dot_product_attention(four(<a>)[None], four(<a>)[None], four(<a>)[None])
four(<a>) * S.net.scale + S.net.mean
four(<a>) + S.net.steps
sum(p.sum() for p in S.net.lin.parameters()) + <a>
torch.stack([p.norm() for n_, p in S.net.named_parameters() if "bias" in n_])
"""

CALLED = """
h1(<a>)
h2(<a>, <n>)
h2(<a>, n=<n>)
more(<a>)
more(<a>, <b>, <s>)
more(*[<a>, <b>], by=<s>)
more(<a>, **{"by": <s>, "z": <b>})
closed(<a>)
S.grow(<a>)
S.grow(<a>, by=<s>)
S.double + <a>
S(<a>)
Pair(<a>, <s>).total()
Pair(of=<a>).of
(lambda q, r=<s>: q * r)(<a>)
functools.partial(more, <a>)(<b>)
functools.reduce(operator.add, [<a>, <a> * 2, <b>])
gen(<a>)
sum(z.sum() for z in [<a>, <a> * 2])
next(z for z in (<a>, <b>) if z.dim() > 0)
torch.stack([z * 2 for z in <a>])
torch.cat([z.flatten() for z in (<a>, <b>) if z.numel() > 1])
[z + i for i, z in enumerate([<a>, <b>])][-1]
{i: z for i, z in enumerate([<a>, <b>])}[1]
dict(p=<a>, q=<b>)["q"]
list(map(lambda z: z + 1, [<a>, <b>]))[0]
max([<a>, <b>], key=lambda z: z.dim())
sorted([<a>, <b>], key=lambda z: -z.numel())[0]
(<a> if S.flag else <b>)
(<a>, <b>)[n > 1]
[<a>, *[<b>]][-1]
[*zip([<a>], [<b>])][0][1]
(<v> := <a> * 2) + <v>
getattr(<a>, "abs")()
operator.add(<a>, <s>)
torch.Tensor.add(<a>, <s>)
S.register.get(<n>, <a>)
getattr(S, "last", <a>)
next(iter(S.named.values())) * <a>
copy.copy(<a>)
copy.deepcopy(<a>.detach())
"""

WRITES = """
<a>.mul_(<s>)
<a>.add_(1)
<a>.sub_(<b>)
<a>.zero_()
<a>.fill_(<s>)
<a>.tanh_()
<a>.relu_()
<a>.clamp_(-2, 2)
<a>.copy_(<b>)
<a>.normal_()
<a>.div_(<a>.abs().max() + 1)
<a> += <b>
<a> *= <s>
<a> -= <a>.mean()
<a>[0] = <s>
<a>[0] = <b>[0]
<a>[..., 0] += 1
<a>[...] = <s>
<a>[:, 1:] = <b>[:, :1]
<a>[-1:].copy_(<b>[-1:])
<a>[<a> > 0.1] = <s>
<a>[<a> > 0.1] *= 0.5
<a>[torch.tensor([0])] = <s>
<a>[[0, -1]] = <s>
<a>[None, ..., 0] = <s>
<a>[:1], <a>[-1:] = <a>[-1:].clone(), <a>[:1].clone()
<a>.masked_fill_(<a> < 0, <s>)
<a>.index_add_(0, torch.tensor([0]), <a>[:1])
<a>.index_fill_(0, torch.tensor([0]), <s>)
<a>.index_copy_(0, torch.tensor([0]), <a>[-1:])
<a>.scatter_(-1, torch.zeros_like(<a>, dtype=torch.long), <s>)
<a>.put_(torch.tensor([0]), torch.tensor([<s>]))
<a>.t().mul_(2)
<a>.view(-1)[::2].add_(1)
<a>.narrow(0, 0, 1).mul_(3)
<a>.diagonal().zero_()
<a>.unbind(0)[0].mul_(2)
<a>.chunk(2, -1)[0].add_(1)
<a>.reshape(-1).add_(1)
<a>.flatten().mul_(2)
<a>.contiguous().add_(1)
<a>.detach().add_(1)
<a>.expand(2, *<a>.shape)[0].add_(1)
<a>.data.mul_(0.5)
<a>.unsqueeze_(0)
<a>.squeeze_()
<a>.t_()
<a>.transpose_(0, -1)
<a>.swapaxes_(0, -1)
F.relu(<a>, inplace=True)
F.dropout(<a>, 0.5, inplace=True)
torch.add(<a>, 1, out=<a>)
torch.mul(<a>, <b>, out=<a>)
torch.sum(<a>, -1, out=S.out)
torch.exp(<a>.clamp(max=2), out=torch.empty(0))
torch.cat([<a>.flatten()[:2], S.w[None]], out=S.out)
<a>.requires_grad_()
<a>.detach_()
<a>.set_(<b>.detach())
<a>.resize_(<a>.shape)
"""

STATE = """
S.n += 1
S.c = S.c + <s>
S.c *= 0.5
S.w = <a>.detach().mean()
S.w2, S.w = S.w, S.w2
S.flag = not S.flag
S.hist.append(<a>.shape[0])
S.hist.append(<a>.detach().sum())
del S.hist[:-2]
S.hist[:1] = [<s>]
S.hist.insert(0, <n>)
S.rates[0] += 1
S.rates.append(k)
S.rates[:] = [v * 0.5 for v in S.rates[-4:]]
S.rates.reverse()
S.table["b"], S.table["a"] = S.table["a"], <s>
S.hist = [a - b for a, b in zip(S.rates, S.rates[1:])]
S.d[<n>] = S.d.get(<n>, 0) + 1
S.d[<a>.dim()] = <s>
S.d.pop(<n>, None)
S.d |= {"k": <n>}
S.d.setdefault("t", <a>.detach())
S.seen.add(<a>.shape[0])
S.seen.discard(<n>)
S.seen |= {<n>, "x"}
S.order.append(<n>)
S.order.appendleft(<a>.dim())
S.counts[<a>.dim()] += 1
S.counts.update([<n>, <n>])
S.groups[<n> % 2].append(<a>.detach())
S.named["last"] = <a>.detach()
S.named.move_to_end(next(iter(S.named)))
S.buf.add_(<a>.detach().mean())
S.buf = S.buf * 0.9 + <a>.detach().mean()
S.buf[S.n % 3] = <a>.detach().mean()
S.last = <a>
S.__dict__.pop("last", None)
setattr(S, "z%d" % <n>, <a>.shape)
S.t = (<a>.detach(), <n>)
S.register[<n>] = <a>
S.pair = Pair(<a>.detach(), <s>)
S.pair.by = <s>
S.pair = dataclasses.replace(S.pair, by=S.pair.by + 1)
S.point = Point(<s>, <a>.detach())
S.point = S.point._replace(x=<s>)
S.s = f"{S.n}:{tuple(<a>.shape)}:{S.c:.2f}"
S.s += "%d" % <n>
S.s = S.s[-3:].upper().join(["a", "b"])
State.shared.append(<n>)
State.kind = "k%d" % <n>
S.net.mean.mul_(0.9).add_(four(<a>).detach().mean(0), alpha=0.1)
S.net.steps += 1
S.net.extra = <a>.detach()
S.net.lin.weight.data.mul_(0.9)
S.net.drop.p = 0.1 * <n>
S.net.bn.momentum = 0.2
S.net.train(S.flag)
S.net.eval()
S.net.drop.train()
S.idx = torch.tensor([<n>])
L.append(<n>)
L.append(<s>)
L.extend(<a>.shape)
L.sort(key=str)
L[:] = L[-3:]
if len(L) > 3: L.clear()
torch.manual_seed(<n>)
G = G + 1
G = <s>
count += 1
print(<a>.shape)
print(S.n, len(L), sep="-")
print(f"{type(k).__name__} {S.c:.3f} {tuple(<a>.stride())}")
"""

NUMBERS = """
k = k + 1
k = min(k, 5)
k = <a>.shape[0] + k
k = k * 0.5
k = -k if S.flag else k
k = abs(k) ** 0.5
k = round(k, 1)
k = n // 2 + k % 3
k, n = n, k
k = (k, n)[flag]
k = float("1.5") + len("abc")
k = math.floor(k) + math.pi
k = int(k) ^ 1
k = True
k = hash("x") % 1 + 0.5
k = sum(range(<a>.shape[0]))
k = <a>.dim() and k
k = len({1, n, <a>.shape[0]})
n = n + <a>.dim()
n = n % 3
n, *_ = *<a>.shape, 1
n = <a>.numel()
n = int(k)
flag = not flag
flag = <c>
k = G
k = count
"""

BREAKS = """
k = <a>.sum().item() * 0.1
k = float(<a>.reshape(-1)[0])
k = round(<a>.mean().item(), 2)
k = int(<a>.abs().sum() + 0.1) % 4
k = bool((<a> > 0.1).any())
k = len((<a> > 0.1).nonzero())
k = float(<a>.detach().numpy().sum()) * 0.1
k = max(<a>.flatten().tolist()[:2], default=0.5)
n = int(<a>.argmax()) + 1
S.v = <a>.tolist()[:1] if <a>.dim() else 0
print((<a> > 0.2).sum() > 1)
print(f"{<a>.sum().item() + 0.003:.1f}")
ccompile.graph_break()
k = asked(<s>)
<v> = asked(<a>)
k = asked(k) if <c> else k
L.append(int(<a>.sum() > 0.1))
S.d[int((<a> > 0.1).sum())] = <s>
S.hist.append(<a>.sum().item())
"""

CONDITIONS = """
<a>.shape[0] > <n>
<a>.shape[0] > n
<a>.dim() > 1
<a>.numel() > 6
<a>.shape[-1] == 3
<a>.shape == <b>.shape
<a>.is_contiguous()
<a>.stride(-1) == 1
<a>.requires_grad
<a>.grad_fn is None
<a>.dtype == torch.float32
<a>.is_floating_point()
<a> is <b>
<a>.data_ptr() == <b>.data_ptr()
(<a> > 0.3).sum() > 2
torch.any(<a> > 1)
<a>.sum().item() > 0.1
S.w.item() > 0.123
torch.equal(<a>, <b>)
(<i> := <a>.shape[0]) % 2
S.n % 2
S.n in S.d
S.flag and flag
flag
n > 1
k > 1
0 < k <= 2
isinstance(k, float)
type(k) is bool
len(L) > 1
L
not S.seen
<n> in S.seen
"k" in S.d or n
hasattr(S, "last")
S.pair.by == 1
S.point.x > 1
S.net.training
torch.is_grad_enabled()
torch.get_default_dtype() is torch.float32
State.kind == "k1"
S.s.startswith("1")
any(z.dim() > 1 for z in (<a>, <b>))
all(i < 3 for i in <a>.shape)
callable(S) and isinstance(S, State)
G > 2
count % 2
"""

LOOPS = """
<i> in range(<n>)
<i> in range(min(<a>.shape[0], 4))
<i> in range(min(n, 3))
<i>, z in enumerate([<a>, <b>])
z in <a>.unbind(0)[:3] if <a>.dim() else ()
z in <a>[:2]
<i> in L[-2:]
<i>, z in zip(range(3), (<a>, <b>))
<i> in list(S.d)[:2]
<i>, <i2> in list(S.d.items())[:2]
<i> in sorted(map(str, S.seen))[:2]
<i> in itertools.chain([1], (2,))
<i>, <i2> in enumerate(S.rates[:3])
<i>, <i2> in zip(S.rates[-3:], reversed(S.rates))
<i>, <i2> in S.table.items()
<i> in itertools.islice(S.rates, 2)
<i> in (<a>.dim(), <s>)
<i> in reversed(range(<n>))
z in rows(<a>)
<i>, p in [*S.net.lin.named_parameters()]
"""

CONTEXTS = """
torch.no_grad()
torch.enable_grad()
torch.set_grad_enabled(n > 1)
torch.inference_mode(S.flag)
torch.autocast("cpu", dtype=torch.bfloat16)
torch.autocast("cpu", enabled=False)
torch.random.fork_rng()
around(S)
contextlib.suppress(ValueError)
contextlib.suppress(RuntimeError, IndexError)
contextlib.nullcontext()
Held(S) as held
Held(S, True)
torch.no_grad(), Held(S)
contextlib.redirect_stdout(io.StringIO())
"""

RAISES = """
raise ValueError(str(<a>.shape))
raise KeyError(<n>) from None
<a>.view(97)
<a> @ torch.ones(11, 13)
<a>[50]
<a>[torch.tensor([77])]
<a>.expand(3, 97, 5)
torch.cat([<a>, torch.ones(1, 1, 1, 1)])
torch.tensor([1.0]).requires_grad_().add_(1)
L[99]
S.d["missing"]
S.missing
1 / (n - n)
int("x")
assert <a>.dim() > 1
assert <c>, "no"
if <c>: raise RuntimeError("r")
next(iter(()))
S.fail(<a>)
"""

STATEMENTS = """
<v> = <t>
<w> = <t>
<write>
<state>
<number>
<break>
"""

RETURNS = """
[<last>]
(<last>,)
{"r": [<last>], "k": k}
Point(k, [<last>])
Pair([<last>], n)
[<last>, S.last if hasattr(S, "last") else None]
(<last>, <a>.t() if <a>.dim() < 3 else k, <a>.shape)
(z for z in [<last>]).__next__()
[<last>, S]
"""

# Statements of several lines. Those with a block are not made inside of two others.
BLOCKS = '''
if <c>:
    <block>
---
if <c>:
    <block>
else:
    <block>
---
if <c>:
    <block>
elif <c2>:
    <block>
else:
    <block>
---
for <loop>:
    <block>
---
for <loop>:
    <block>
    if <c>:
        break
    <block>
else:
    <block>
---
for <loop>:
    if <c>:
        continue
    <block>
---
<i> = 0
while <i> < <n>:
    <i> += 1
    <block>
---
<i> = 0
while <c> and <i> < 3:
    <i> += 1
    <block>
---
try:
    <block>
    <raise>
except (ValueError, RuntimeError, LookupError, AssertionError, AttributeError, ArithmeticError, TypeError) as e:
    S.err = type(e).__name__
---
try:
    <raise>
except Exception as e:
    S.err = str(e)[:40]
    <block>
---
try:
    <block>
    if <c>:
        <raise>
except Exception:
    <block>
else:
    <block>
finally:
    <block>
---
try:
    <block>
finally:
    <block>
---
try:
    try:
        <raise>
    finally:
        <block>
except Exception as e:
    S.err = [type(e).__name__, type(e.__context__).__name__]
---
with <with>:
    <block>
---
with <with>:
    <block>
    <v> = <t>
---
with contextlib.suppress(Exception):
    <block>
    <raise>
---
match <a>.shape:
    case [<i>]:
        <block>
    case [<i2>, 3]:
        <block>
    case [<i3>, <i4>] if <i4> > 2:
        <block>
    case _:
        <block>
---
match {"k": n, "t": <a>}:
    case {"k": 1}:
        <block>
    case {"k": int(<i>), **rest} if <i> > 2:
        <block>
---
match S.point:
    case Point(x=0.5):
        <block>
    case Point(<i>, _):
        <block>
---
def <i>(q, by=<s>):
    <body>
    return q * by
<v> = <i>(<a>)
---
def <i>(q, *rest, by=<n>, **named):
    nonlocal k
    k = k + len(rest) + len(named)
    <body>
    return q + by
<v> = <i>(<a>, <b>, z=<s>)
---
def <i>(q):
    <body>
    yield q
    <body>
    yield q * 2
<v> = sum(<i>(<a>))
---
def <i>(q, left):
    return q if left <= 0 else <i>(q * 0.5 + left, left - 1)
<v> = <i>(<a>, <n>)
---
class <i>:
    def __init__(self, of):
        self.of = of

    def __add__(self, other):
        return self.of + other

    @property
    def half(self):
        return self.of * 0.5
<v> = <i>(<a>) + <b>
<v2> = <i>(<a>).half
---
<v>, <v2> = <a>, <b> * 2
---
<v>, *<i> = <a>.unbind(0)
---
(<v>, <i>), <v2> = (<a>, <s>), <b>
---
<v> = <v2> = <a> * <s>
---
<v>, <v2> = <a>.max(-1)
---
<v>, <v2> = torch.split(<a>, [1, <a>.shape[-1] - 1], -1)
---
<v>, <v2> = torch.frexp(<a>)
---
<v> = <a> * 1
del <v>
---
<v> = <a>[0]
<v>.add_(<s>)
<v2> = <v>.view(-1)[:1].mul_(2)
---
<v> = <a>.view(-1)
<v>[0] = <s>
<v2> = <v>[::2]
<v2> += <a>.numel()
---
<v> = <a>.clone()
<v2> = <v>.t()
<v>.add_(1)
<v2>.mul_(<s>)
---
<v> = [<a> * i for i in range(2)]
<v> = <v>[1] + len(<v>)
---
<v> = {"p": <a>, "q": [<b>]}
<v>["q"].append(<v>["p"] * 2)
<v> = <v>["q"][-1]
---
held = [<a>]
held[0] = held[0] + 1
held += [<b>]
<v> = held.pop(0)
---
<v> = torch.empty_like(<a>)
torch.mul(<a>, <s>, out=<v>)
---
<v> = torch.zeros(5, <a>.shape[-1])
<v>[:<a>.shape[0]] = <a>
<v>[<n>].add_(1)
---
<v> = <a>.detach().clone().requires_grad_()
with torch.enable_grad():
    (<v> * <v>).sum().backward()
<v2> = <v>.grad
---
with torch.enable_grad():
    <v> = <a>.detach().requires_grad_()
    <v2>, = torch.autograd.grad((<v> ** 3).sum(), <v>)
---
<i> = lambda q, r=<s>: q * r + k
k = 2.5
<v> = <i>(<a>)
---
<v> = <a>
for <i> in range(3):
    <v> = <v> * 0.5 + <i>
---
assert <a> is not None, f"{<a>.shape}"
<v> = <a>.mul(<s>)
---
torch.set_default_dtype(torch.float64)
<v> = torch.ones(2) * <a>.sum()
torch.set_default_dtype(torch.float32)
---
before = torch.is_grad_enabled()
torch.set_grad_enabled(S.flag)
<v> = <a> * 2
torch.set_grad_enabled(before)
---
if <c>:
    return <a>, k
---
if <c>:
    <raise>
'''


def lines(text):
    return [line for line in text.splitlines() if line.strip()]


def weighted(*rows):
    """(text, how often)"""
    return [text for text, times in rows for _ in range(times)]


RULES = {
    "unary": lines(UNARY),
    "view": lines(VIEWS),
    "gathered": lines(GATHERED),
    "cast": lines(CASTS),
    "binary": lines(BINARY),
    "made": lines(MADE),
    "sized": lines(SIZED),
    "module": lines(MODULES),
    "called": lines(CALLED),
    "t": weighted(
        ("<unary>", 5),
        ("<view>", 4),
        ("<gathered>", 1),
        ("<cast>", 1),
        ("<binary>", 3),
        ("<made>", 1),
        ("<sized>", 2),
        ("<module>", 2),
        ("<called>", 2),
    ),
    "b": ["<a>"],
    "s": ["2.0", "0.5", "-1.5", "3", "2", "k", "k", "S.c", "n"],
    "c": lines(CONDITIONS),
    "loop": lines(LOOPS),
    "with": lines(CONTEXTS),
    "raise": lines(RAISES),
    "write": lines(WRITES),
    "state": lines(STATE),
    "number": lines(NUMBERS),
    "break": lines(BREAKS),
    "statement": weighted(
        ("<v> = <t>", 9), ("<w> = <t>", 2), ("<write>", 4), ("<state>", 3), ("<number>", 1), ("<break>", 2), ("<lines>", 3), ("<nested>", 5)
    ),
    "lines": [text for text in BLOCKS.strip("\n").split("\n---\n") if "<block>" not in text and "<body>" not in text],
    "nested": [text for text in BLOCKS.strip("\n").split("\n---\n") if "<block>" in text or "<body>" in text],
    "return": lines(RETURNS),
}

# What happens between two calls, on both sides: not compiled.
EVENTS = lines("""
S.net.train(not S.net.training)
S.net.eval()
S.net.drop.eval()
S.net.bn.reset_running_stats()
torch.optim.SGD(S.net.parameters(), lr=0.1).step()
S.net.zero_grad()
S.net.requires_grad_(S.flag)
S.net.lin.weight.data.mul_(0.5)
S.net.lin.weight = torch.nn.Parameter(torch.ones(4, 4))
S.net.lin.bias = None
S.net.scale.data = torch.full((4,), 2.0)
S.net.mean = torch.ones(4)
S.net.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in S.net.state_dict().items()})
S.net.seq[2] = torch.nn.Tanh()
S.net.lin._forward_hooks["twice"] = lambda m, a, out: out * 2
S.net.double().float()
S.c = 3
S.c = 0.25
S.n += 3
S.flag = not S.flag
S.w = torch.tensor(2.0)
S.w = torch.tensor(2.0, dtype=torch.float64)
S.w.fill_(-1)
S.buf = torch.zeros(3) + S.n
S.buf = torch.ones(5)
S.buf.mul_(2)
S.out = torch.zeros(0)
S.idx = torch.tensor([0, 1])
S.hist.clear()
S.d.clear()
S.d[1] = 7
S.rates[:] = [v * 1.25 for v in S.rates]
S.rates[1] = 4
S.rates = [0.25, 3, 1.5, 1]
S.table["a"] += 1
S.table = {"a": 3, "b": 0.25}
S.seen.add(2)
S.register.clear()
S.named["first"] = torch.zeros(2, 3)
S.pair.by = 3
S.pair = type(S.pair)(torch.zeros(3), 1)
S.point = type(S.point)(2, torch.ones(1))
S.__dict__.pop("last", None)
S.last = torch.ones(2, 3)
type(S).kind = "k1"
type(S).double = property(lambda self: self.c + 1)
type(S).__call__ = lambda self, a: a - self.w
L.append(1)
L.clear()
L[:] = [0.5, 2]
torch.set_default_dtype(torch.float64)
""")
