"""torch.utils.checkpoint with gradients: compiled where its backward would compute again what the forward did, a break where the
function does more; what eager gives in every case, and as little memory."""

import contextlib
import functools
import types
import warnings

import ccompile
import pytest
import torch
import torch.nn.functional as F
from conftest import alike, autograd_nodes
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

check = functools.partial(checkpoint, use_reentrant=False)
CASES = {}


def case(breaks=0):
    """breaks: places that break"""

    def add(make):
        CASES[make.__name__] = make, breaks
        return make

    return add


class Block(nn.Module):
    def __init__(self, n=8, dropout=0.25):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n), nn.Dropout(dropout)

    def forward(self, x, scale=1.0):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x))))) * scale


class Blocks(nn.Module):
    """call(block, x): how a block is called"""

    def __init__(self, call=check, n=3, block=Block):
        super().__init__()
        self.blocks, self.call, self.head = nn.ModuleList(block() for _ in range(n)), call, nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x)


@case()
def blocks():
    return Blocks()


@case()
def arguments():
    return Blocks(lambda block, x: check(block, x, scale=0.5, preserve_rng_state=True))


@case()
def partial_of_a_method():
    return Blocks(lambda block, x: check(functools.partial(block.__call__, scale=2.0), x))


@case()
def nested():
    return Blocks(lambda block, x: check(lambda y: check(block, y).sin(), x))


@case()
def several_results():
    class Pair(Block):
        def forward(self, x):
            y = super().forward(x)
            return y, {"mean": y.mean(-1, keepdim=True)}

    def call(block, x):
        y, more = check(block, x)
        return y * more["mean"]

    return Blocks(call, block=Pair)


@case()
def result_read_twice():
    def call(block, x):
        y = check(block, x)
        return y + y.tanh() * x

    return Blocks(call)


@case()
def views_in_and_out():
    return Blocks(lambda block, x: check(lambda y: block(y.transpose(0, 1)).transpose(0, 1)[:, :2], x.view(3, 2, 8)).reshape(2, 3, 8))


@case()
def in_place_on_its_own():
    return Blocks(lambda block, x: check(lambda y: block(y).mul_(2).relu_(), x))


@case()
def attention():
    class Attention(Block):
        def forward(self, x):
            q = x.unflatten(-1, (2, 4)).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, q, q.sin(), dropout_p=0.2, is_causal=True)
            return super().forward(y.transpose(1, 2).flatten(2))

    return Blocks(block=Attention)


@case()
def convolutions():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv1d(3, 3, 3, padding=1), nn.GroupNorm(1, 3)

        def forward(self, x):
            return F.silu(self.norm(self.conv(x)))

    return Blocks(block=Conv)


@case()
def frozen_parts():
    model = Blocks()
    model.blocks[1].requires_grad_(False)
    model.blocks[0].up.weight.requires_grad_(False)
    return model


@case()
def autocast():
    class Cast(Blocks):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    return Cast()


@case()
def no_grad_inside():
    def call(block, x):
        def run(y):
            with torch.no_grad():
                scale = y.abs().mean()
            return block(y) / scale

        return check(run, x)

    return Blocks(call)


@case()
def without_gradients():
    class Without(Blocks):
        def forward(self, x):
            with torch.no_grad():
                y = super().forward(x)
            return self.head(x) + y

    return Without()


@case()
def sequential():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[Block() for _ in range(4)])

        def forward(self, x):
            return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)

    return Sequence()


@case(breaks=1)
def reentrant():
    return Blocks(lambda block, x: checkpoint(block, x, use_reentrant=True))


@case(breaks=1)
def other_arguments():
    return Blocks(lambda block, x: check(block, x, context_fn=lambda: (contextlib.nullcontext(), contextlib.nullcontext())))


@case(breaks=1)
def random_numbers_drawn_anew():
    return Blocks(lambda block, x: check(block, x, preserve_rng_state=False), block=lambda: Block(dropout=0.0))


@case(breaks=1)
def counter():
    """The backward counts, too."""

    class Counts(Block):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    return Blocks(block=Counts)


@case(breaks=1)
def running_statistics():
    """Each call updates them twice: in its forward and in its backward."""

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(x).sin()

    return Blocks(block=Norm)


@case(breaks=1)
def appends_to_a_list():
    class Lists(Blocks):
        def __init__(self):
            super().__init__(self.add)
            self.seen = []

        def add(self, block, x):
            def run(y):
                self.seen.append(y.shape[0])
                return block(y)

            return check(run, x)

    return Lists()


@case(breaks=1)
def variable_of_the_loop():
    """The backward of all but the last block runs the last one: a well-known mistake, which eager does not notice."""

    class Late(Blocks):
        def forward(self, x):
            for block in self.blocks:
                x = check(lambda y: block(y), x)  # noqa: B023
            return self.head(x)

    return Late(block=lambda: Block(dropout=0.0))


@case(breaks=1)
def a_break_inside():
    def call(block, x):
        return check(lambda y: block(y) * y.detach().mean().item(), x)

    return Blocks(call, n=1)


def steps(model, fn, n=4):
    """Results, gradients, state and random numbers of some steps."""
    found = []
    for i in range(n):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(2, 3, 8, generator=g).requires_grad_(i != 2)
        torch.manual_seed(i)
        y = fn(x)
        y.square().sum().backward()
        found += [y, x.grad, [p.grad for p in model.parameters()], torch.rand(2)]
        found.append([getattr(m, "calls", None) for m in model.modules()] + list(getattr(model, "seen", [])))
        found.append({k: b.clone() for k, b in model.named_buffers()})
        model.zero_grad()
    return found


def made(name):
    torch.manual_seed(0)
    return CASES[name][0]().train()


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, model = made(name), made(name)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if name == "autocast" else {"rtol": 1e-4, "atol": 2e-5}
        alike(steps(eager, eager), steps(model, ccompile.compile(model)), **tolerance)


@pytest.mark.parametrize("name", CASES)
def test_breaks(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = made(name)
        assert ccompile.explain(model)(torch.randn(2, 3, 8, requires_grad=True)).break_count == CASES[name][1]


def test_backward_twice_and_parts_of_it():
    model = made("blocks")
    fn = ccompile.compile(model)

    def run(f):
        out = []
        for i in range(3):
            x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(i)).requires_grad_()
            torch.manual_seed(i)
            y = f(x)
            out.append(torch.autograd.grad(y.sum(), x, retain_graph=True))
            out.append(torch.autograd.grad(y.square().sum(), [model.blocks[1].up.weight], retain_graph=True))
            (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=i == 1)
            out.append(g)
            if i == 1:
                out.append(torch.autograd.grad(g.square().sum(), model.head.weight))
        return out

    alike(run(model), run(fn), rtol=1e-4, atol=2e-5)


def saved(result, but):
    """Bytes of the tensors that a result's graph keeps for its backward, without those in `but`."""
    known, seen = {t.untyped_storage().data_ptr() for t in but}, {}
    for node in autograd_nodes(result):
        for t in getattr(node, "saved_tensors", ()):
            if t is not None and t.untyped_storage().data_ptr() not in known:
                seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(seen.values())


@pytest.mark.parametrize("write", ["h.add_(1)", "h.t_()", "h[0] = 0", "h = h.view(-1); h.mul_(2)"])
@pytest.mark.parametrize("options", [{}, {"training": False}], ids=["", "without training"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_result_is_written(write, options, dtype):
    """Also where torch runs the ops (a linear layer of float64): their backward must not read what is written."""
    scope = {"torch": torch, "lin": torch.nn.Linear(6, 6).to(dtype)}
    inside = "torch.nn.functional.dropout(lin(a), 0.3).tanh()"
    exec(
        f"def fn(x):\n    h = torch.utils.checkpoint.checkpoint(lambda a: {inside}, x, use_reentrant=False)\n"
        f"    {write}\n    return (h + 0.1).sin().sum()\n",
        scope,
    )
    fn, compiled = scope["fn"], ccompile.compile(scope["fn"], options=options)
    for i in range(4):
        found = []
        for f in (fn, compiled):
            torch.manual_seed(i)
            x = torch.randn(3, 6, dtype=dtype, requires_grad=True)
            y = f(x)
            y.backward()
            found.append((y.detach(), x.grad))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_saves_memory(dropout):
    """Of each block its input (4 bytes an element) and its mask (1 byte); without checkpoints about ten times as much."""

    def bytes_of(call):
        torch.manual_seed(0)
        model = Blocks(call, n=6, block=lambda: Block(dropout=dropout)).train()
        fn = ccompile.compile(model)
        x = torch.randn(64, 32, 8, requires_grad=True)
        for _ in range(2):
            fn(x).sum().backward()
        return saved(fn(x), [x, *model.parameters()]), x.numel()

    whole, _ = bytes_of(lambda block, x: block(x))
    some, n = bytes_of(check)
    assert some <= 6 * n * (4 + (dropout > 0)) + 4 * n * 4, (some, n)
    assert some < 0.4 * whole


def test_reason(tmp_path):
    model = made("counter")
    text = str(ccompile.explain(model)(torch.randn(2, 3, 8, requires_grad=True)))
    assert "runs its function again in the backward: the function does more than compute" in text
    model = made("variable_of_the_loop")
    text = str(ccompile.explain(model)(torch.randn(2, 3, 8, requires_grad=True)))
    assert "a variable that the function reads changes later" in text


def counts_in_a_list(x):
    seen = [0]

    def fn(x):
        seen[0] += 1
        return x.sin().cos()

    return checkpoint(fn, x, use_reentrant=False), seen


def counts_in_a_variable(x):
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x.sin().cos()

    return checkpoint(fn, x, use_reentrant=False), lambda: n


def logs(x):
    seen = []

    def fn(x):
        seen.append("called")
        return x.sin().cos()

    return checkpoint(fn, x, use_reentrant=False), seen


def takes_from_an_iterator(x):
    numbers = iter(range(5))

    def fn(x):
        return x.sin().cos() * next(numbers)

    return checkpoint(fn, x, use_reentrant=False), numbers


def sets_an_attribute(x):
    o = types.SimpleNamespace(n=0)

    def fn(x):
        o.n += 1
        return x.sin().cos()

    return checkpoint(fn, x, use_reentrant=False), o


def keeps_a_list_inside(x):
    def fn(x):
        parts = []
        for i in range(3):
            parts.append((x * i).sin())
        return torch.stack(parts).sum(0)

    return checkpoint(fn, x, use_reentrant=False), 0


@pytest.mark.parametrize(
    "fn",
    [counts_in_a_list, counts_in_a_variable, logs, takes_from_an_iterator, sets_an_attribute, keeps_a_list_inside],
)
def test_objects_made_in_the_call_are_written_again_by_the_backward(fn):
    """torch calls the function again in the backward."""

    def after(call, x):
        x.grad = None
        y, kept = call(x)
        y.sum().backward()
        kept = kept() if callable(kept) else kept
        kept = list(kept) if isinstance(kept, type(iter(range(1)))) else kept
        return kept, y.detach().clone(), x.grad.clone()

    x = torch.linspace(0.1, 1, 4, requires_grad=True)
    expected = after(fn, x)
    compiled = ccompile.compile(fn)
    for _ in range(5):
        found = after(compiled, x)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:])
    if fn is keeps_a_list_inside:
        assert ccompile.explain(fn)(x).graph_break_count == 0


def test_hooks_of_the_user_see_what_is_saved():
    """An entry that was made without them does not serve under them."""
    model = made("blocks")
    fn = ccompile.compile(model)
    x = torch.randn(2, 3, 8, requires_grad=True)
    for _ in range(3):
        fn(x).sum().backward()

    def run(f):
        seen = []
        for _ in range(2):
            torch.manual_seed(0)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(tuple(t.shape)), t)[1], lambda t: t):
                y = f(x)
            model.zero_grad()
            y.sum().backward()
        return sorted(seen), [p.grad for p in model.parameters()]

    alike(run(model), run(fn), rtol=1e-4, atol=2e-5)


def test_the_self_check_saves_nothing():
    """Around a compiled function, too, checkpoint raises if a call saves another number of tensors than its second run."""

    def shown(x):
        with torch.no_grad():
            y = x.view_as(x)
        print("a break")
        return y + 1

    fn = ccompile.compile(shown)
    with ccompile.config.patch(verify=True):
        for _ in range(3):
            x, saved = torch.randn(3, requires_grad=True), []
            with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t):
                fn(x).sum().backward()
            assert not saved


def test_transformers():
    """gradient_checkpointing_enable() also makes the embeddings' results require gradients."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=1, **sizes)

    def run(compiled):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        fn = ccompile.compile(model) if compiled else model
        found = []
        for i in range(3):
            ids = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(i))
            loss = fn(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            found += [loss, [p.grad.clone() for p in model.parameters()]]
            model.zero_grad()
        if compiled:
            assert ccompile.explain(model)(input_ids=ids, labels=ids, use_cache=False).break_count == 0
        return found

    alike(run(False), run(True), rtol=1e-3, atol=1e-5)


def test_the_backward_of_the_recording_call_takes_the_path_of_its_forward():
    """Transformers' mixtures of experts choose their products by torch.compiler.is_compiling(); torch raises if the second run of the
    function saves other tensors than the first."""

    class Asking(Block):
        def forward(self, x):
            return super().forward(x * 2.0 if torch.compiler.is_compiling() else x.sin().exp())

    torch.manual_seed(0)
    model = Blocks(block=Asking)
    fn, doubled = ccompile.compile(model), ccompile.compile(Blocks(lambda block, x: block(x), block=Asking))
    doubled.load_state_dict(model.state_dict())
    found = []
    for f in (fn, doubled):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            torch.manual_seed(2)
            y = f(x)
            y.sum().backward()
            found.append([y, *[p.grad.clone() for p in f.parameters()]])
            assert not torch.compiler.is_compiling()
            f.zero_grad()
    for got, want in zip(found[:3], found[3:], strict=True):
        alike(got, want, rtol=1e-3, atol=1e-5)
