"""torch's modes inside and around compiled code, beyond language_contexts.py."""

import contextlib

import ccompile
import language_contexts
import pytest
import torch
from conftest import EAGER, alike, explained, outcome, same
from language_cases import t
from torch import nn

AROUND = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def seen(outcome):
    return getattr(outcome, "value", None), outcome.error, getattr(outcome, "text", ""), outcome.printed, outcome.modes


NAMES = [n for n in vars(language_contexts) if n.startswith(("inference_", "grad_", "no_grad_v"))]


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(("inference_kept", "inference_tensor_from"))])
def test_callers_in_each_mode(name):
    """One compiled function, called in turn outside and inside of the modes; each has recordings of its own."""
    fn = getattr(language_contexts, name)
    compiled = ccompile.compile(fn)
    for i in range(9):
        for around in AROUND.values():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            with around():
                eager = outcome(fn, (t(2, 3, seed=i),))
                ours = outcome(compiled, (t(2, 3, seed=i),))
            alike(seen(eager), seen(ours), path=f"call {i} {around}")
            assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled())


@pytest.mark.parametrize("around", AROUND)
def test_inference_tensors_among_arguments(around):
    """The same call with tensors of both kinds, in turn."""

    def fn(x, y):
        with torch.inference_mode():
            a = x * y
            v = x.view(-1)
        b = x + y
        w = x.t()
        return a, v, b, w, [o.is_inference() for o in (a, v, b, w)]

    compiled = ccompile.compile(fn)
    for i in range(12):
        args = [t(2, 3, seed=i), t(2, 3, seed=i + 50)]
        with torch.inference_mode():
            inferred = [a.clone() for a in args]
        given = [inferred[k] if i >> k & 1 else args[k] for k in range(2)]
        with AROUND[around]():
            alike(fn(*given), compiled(*given), path=f"call {i}")


@pytest.mark.parametrize("inside", [False, True])
def test_a_replay_that_fails_leaves_the_modes(inside):
    """An index that is out of range only in a later call."""

    def fn(x, at):
        with torch.no_grad(), torch.inference_mode():
            y = x * 2
            if inside:
                print("break")
            z = torch.gather(y, 0, at)
        return z + 1

    compiled = ccompile.compile(fn)
    for i, bad in enumerate([0, 0, 0, 1, 0, 1, 0]):
        at = torch.full((1, 3), 7 if bad else i % 2)
        eager, ours = (outcome(f, (t(2, 3, seed=i), at)) for f in (fn, compiled))
        alike(seen(eager), seen(ours), path=f"call {i}")
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@pytest.mark.skipif(EAGER, reason="needs the product")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_blocks_without_grad_have_kernels(mode):
    """Parameters require grad and the caller has grad mode on; inside of the block autograd sees nothing all the same."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8))

    @mode()
    def fn(x):
        return net(x) * 2

    same(fn, make_args=lambda i: (t(4, 8, seed=i),), no_grad=False)
    (graph,) = explained(fn, t(4, 8)).graphs
    steps = [line.split()[1] for line in graph.plan.splitlines()]
    assert set(steps) - {"host"}, graph.plan


def test_after_torch_compile():
    """Dynamo's hook stays installed; asking whether it is idle must not lose an exception that is on its way."""

    @contextlib.contextmanager
    def block():
        print("in")
        yield
        print("out")

    def fn(x):
        with block():
            return x + 1

    def raises(x):
        with torch.inference_mode():
            y = x + 1
        return y * language_contexts.WEIGHT[:2]

    def theirs(x):
        raise ValueError(x.sum())

    try:
        with contextlib.suppress(Exception):
            torch.compile(theirs, backend="eager")(t(2, 3))
        for f in (fn, raises):
            same(f, make_args=lambda i: (t(2, 3, seed=i),), raises=True, hit=False)
    finally:
        torch._dynamo.reset()


BLOCKS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_off": lambda: torch.autocast("cpu", enabled=False),
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "sdpa": lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    "cudnn": lambda: torch.backends.cudnn.flags(enabled=False),
}


def ambient():
    return (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(), torch.backends.cuda.flash_sdp_enabled(), torch.backends.cudnn.enabled)


def open_at_a_break(block, x, w):
    """A new size may fail a guard behind the block's start, and then a break comes before its end."""
    with block():
        y = x.expand(2, *x.shape) * 2
        if torch.cat([x, x]).shape[0] > 8:
            y = y + 1
        if (y > 0.3).sum() > 2:
            y = y - 1
    return y, x @ w, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def raising_behind_a_break(block, x, w):
    """What fails is done again from the break, inside of the block."""
    with block():
        if (x > 0.3).sum() > 2:
            x = x + 1
        y = x @ w
        try:
            y = y + x[:3, :2]
        except RuntimeError:
            y = y @ w.t()
    return y, x @ w, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@pytest.mark.parametrize("fn", [open_at_a_break, raising_behind_a_break])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("around", ["none", "autocast"])
def test_a_call_done_in_another_way_begins_in_its_modes(fn, block, around):
    """Blocks that are open where a graph ends or begins: it fails half-way, and another one does the call."""
    sizes, w = [3, 4, 3, 5, 6, 7, 3, 8, 2, 5], t(4, 4)
    compiled = ccompile.compile(fn)
    for i, n in enumerate(sizes):
        x = t(n, 4, seed=i)
        with torch.no_grad(), BLOCKS[around]() if around in BLOCKS else contextlib.nullcontext():
            before = ambient()
            depth = torch.autocast_increment_nesting()
            eager, ours = outcome(fn, (BLOCKS[block], x, w)), outcome(compiled, (BLOCKS[block], x, w))
            assert depth == torch.autocast_increment_nesting() - 1
            torch.autocast_decrement_nesting()
            torch.autocast_decrement_nesting()
            alike(seen(eager), seen(ours), path=f"call {i}, {n} rows")
            assert before == ambient()


def breaking(x):
    print("a break")
    return x + 1


def then_unbinds(x, b):
    with torch.inference_mode():
        z = breaking(x)
    return x.unbind(0)[0] * 2, z


def then_raises(x, b):
    with torch.inference_mode():
        z = breaking(x)
    return (x * 2) @ b, z


def then_raises_behind_a_write(x, b):
    y = x * 1
    with torch.inference_mode():
        z = breaking(y)
    b.add_(1)
    return (x * 2) @ b, z


def then_raises_and_catches(x, b):
    try:
        with torch.inference_mode():
            z = breaking(x)
        b.add_(1)
        return (x * 2) @ b, z
    except RuntimeError:
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), x * 2


def in_no_grad(x, b):
    with torch.no_grad():
        with torch.inference_mode():
            z = breaking(x)
        w = x.unbind(0)[-1] * 2
    return z, w, x * 3


def then_no_grad(x, b):
    with torch.inference_mode():
        z = breaking(x)
    with torch.no_grad():
        w = x.unbind(0)[-1] * 2
    return z, w, x * 3


def one_in_another(x, b):
    with torch.inference_mode():
        with torch.inference_mode(False):
            z = breaking(x)
        w = x.unbind(0)[-1] * 2
    return z, w, x * 3, torch.is_inference_mode_enabled()


def decorated(x, b):
    z = torch.inference_mode()(breaking)(x)
    return x.unbind(0)[-1] * 2, z


def switched_off(x, b):
    with torch.inference_mode(False):
        z = breaking(x)
    return x.unbind(0)[-1] * 2, z


def raises_on_a_device(x, b):
    with torch.device("meta"):
        breaking(x)
        b.add_(1)
        return (x * 2) @ b, torch.ones(2)


def raises_on_a_device_and_catches(x, b):
    try:
        with torch.device("meta"):
            breaking(x)
            with torch.device("cpu"):
                b.add_(1)
                return (x * 2) @ b, torch.ones(2)
    except RuntimeError:
        return x * 3, torch.ones(2)


@torch.library.custom_op("ccompile_tests::narrow_only", mutates_args=())
def narrow_only(b: torch.Tensor) -> torch.Tensor:
    if b.shape[0] > 4:
        raise RuntimeError("too wide")
    return b + 1


@narrow_only.register_fake
def _(b):
    return torch.empty_like(b)


def an_op_raises_on_a_device(x, b):
    with torch.device("cpu"):
        breaking(x)
        return narrow_only(b) * 2, x * 3


def an_op_raises_in_inference_mode(x, b):
    with torch.inference_mode():
        breaking(x)
        return narrow_only(b) * 2, x * 3


LEAVING = (then_unbinds, then_raises, then_raises_behind_a_write, then_raises_and_catches, in_no_grad, then_no_grad,
           one_in_another, decorated, switched_off, raises_on_a_device, raises_on_a_device_and_catches,
           an_op_raises_on_a_device, an_op_raises_in_inference_mode)  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", LEAVING)
def test_a_replay_that_has_left_a_block_fails(fn, dynamic):
    """unbind() gives another number of results than recorded, or the product or a custom op raises, in or behind a block
    that was entered before the segment began: what runs instead leaves the block, once."""

    def kinds(r):
        return [(v, v.device, v.requires_grad, v.is_inference(), v.is_leaf) if isinstance(v, torch.Tensor) else v for v in r]

    compiled = ccompile.compile(fn, dynamic=dynamic)
    for rows, width, grad in [(3, 4, 1)] * 3 + [(5, 4, 1), (6, 4, 1), (3, 9, 1), (5, 9, 1), (3, 4, 1), (2, 9, 1), (7, 4, 0), (4, 9, 0)]:
        found = []
        for f in (fn, compiled):
            x, b = torch.arange(rows * 4.0).view(rows, 4).requires_grad_(), torch.ones(width, 4)
            with torch.set_grad_enabled(bool(grad)):
                got = outcome(f, (x, b))
                found.append((kinds(got.value) if got.error is None else got.error, got.modes, b))
            assert torch._C._len_torch_function_stack() == 0
        alike(*found)


@torch.library.custom_op("ccompile_tests::interruptible", mutates_args=())
def interruptible(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 100:
        raise KeyboardInterrupt
    return x + 1


@interruptible.register_fake
def _(x):
    return torch.empty_like(x)


def on_a_device(x):
    with torch.device("cpu"):
        breaking(x)
        return interruptible(x) * 2


def on_two_devices(x):
    with torch.device("meta"):
        breaking(x)
        with torch.device("cpu"):
            y = interruptible(x) * 2
        return y, torch.ones(2)


def behind_a_device(x):
    with torch.device("meta"):
        breaking(x)
        with torch.device("cpu"):
            y = x * 2
    return interruptible(y)


def in_inference_mode(x):
    with torch.inference_mode():
        breaking(x)
        return interruptible(x) * 2


@pytest.mark.parametrize("fn", [on_a_device, on_two_devices, behind_a_device, in_inference_mode])
def test_an_interrupt_leaves_the_blocks(fn):
    """It may come at any op, which is not repeated."""
    compiled = ccompile.compile(fn)
    for i in range(8):
        x = torch.full((3,), 99.0 if i in (3, 5) else 1.0).requires_grad_()
        with pytest.raises(KeyboardInterrupt) if i in (3, 5) else contextlib.nullcontext():
            compiled(x)
        left = torch._C._len_torch_function_stack(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        assert left == (0, True, False), (i, left)
