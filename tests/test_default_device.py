"""torch.set_default_device and `with torch.device(...)` are ambient state: guards know it, and compiled code obeys it."""

import ast
import contextlib
import pathlib
import threading

import ccompile
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._device import DeviceContext, _device_constructors, set_device


@contextlib.contextmanager
def default(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def nested(*devices):
    stack = contextlib.ExitStack()
    for device in devices:
        stack.enter_context(torch.device(device))
    return stack


AROUND = {
    "none": contextlib.nullcontext,
    "set-cpu": lambda: default("cpu"),
    "set-meta": lambda: default("meta"),
    "with-cpu": lambda: torch.device("cpu"),
    "with-meta": lambda: torch.device("meta"),
    "context-meta": lambda: DeviceContext("meta"),
    "meta-in-cpu": lambda: nested("cpu", "meta"),
    "cpu-in-meta": lambda: nested("meta", "cpu"),
}


def factories(x):
    return (torch.zeros(3), torch.ones(2, device="cpu"), torch.arange(4), torch.tensor([1.0, 2.0]), torch.zeros_like(x),
            torch.full((2,), 3.0, device=None), x.new_zeros(2), torch.eye(2))  # fmt: skip


def ops(x):
    y = F.softmax(F.gelu(x.T @ x), -1)
    return F.layer_norm(y, (4,)) + x.shape[0], y.sum(), F.dropout(y, 0.0, True), y.reshape(-1)


def asks(x):
    return torch.get_default_device(), x + 1


def block(x):
    with torch.device("meta"):
        inside = torch.empty(3)
    with torch.device("cpu") as device:
        return x + torch.ones(4), inside, device, torch.zeros(2)


def blocks(x):
    with torch.device("meta"):
        a = torch.zeros(2)
        with torch.device("cpu"):
            b = x * torch.ones(4)
        c = torch.get_default_device()
    return a, b, c, torch.arange(2)


@set_device("meta")
def decorated(x):
    return x * 2, torch.zeros(3)


def breaks(x):
    with torch.device("meta"):
        a = torch.zeros(2)
        if x.sum().item() > -1e9:
            b = torch.ones(3)
    return a, b, torch.relu(x), torch.zeros(1)


def raises_inside(x):
    try:
        with torch.device("meta"):
            a = torch.zeros(3)
            torch.ones(2, device="cpu") @ x.sum(0)[:3]
    except RuntimeError:
        return a, torch.zeros(2)


def made(x):
    layer = nn.Linear(4, 2)
    return layer.weight.shape, layer.weight.device, x + 1


@torch.library.custom_op("default_device::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x + len(str(torch.zeros(1).device))


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * len(str(torch.zeros(1).device))

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


def python_kernels(x):
    return op(x) * 2, Function.apply(x) + 1


MODEL = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.0), nn.Linear(4, 4))
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True).eval()
# the function, and whether it has no break
FUNCTIONS = [
    (factories, True), (ops, True), (asks, False), (block, True), (blocks, True), (decorated, True), (breaks, False),
    (raises_inside, False), (made, False), (python_kernels, False), (MODEL, True),
    (lambda x: ATTENTION(x[None], x[None], x[None])[0], False),
]  # fmt: skip


def plain(value):
    """What can be compared: values of tensors that have some, sizes and devices of all."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if not isinstance(value, torch.Tensor):
        return value
    text = (value.device, value.dtype, value.shape, value.stride(), value.requires_grad)
    return (*text, None if value.is_meta else [round(v, 4) for v in value.double().flatten().tolist()])


@pytest.mark.parametrize(("fn", "whole"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_values_devices_and_guards(fn, whole):
    x = torch.randn(3, 4)
    want = {}
    for name, around in AROUND.items():
        with around():
            want[name] = plain(fn(x))
    options = {"eager_if_slower": False, "recompile_limit": 32}
    compiled = ccompile.compile(fn, fullgraph=whole, options=options)
    for turn in range(4):
        before = ccompile.counters()
        for name, around in AROUND.items():
            with around():
                got = compiled(x)
                state = torch._C._len_torch_function_stack(), torch.get_default_device()
            assert plain(got) == want[name], name
            with around():
                assert state == (torch._C._len_torch_function_stack(), torch.get_default_device()), name
        assert torch._C._len_torch_function_stack() == 0
        if turn == 3:  # what was recorded for each device serves it
            assert ccompile.counters["recompile"] == before["recompile"]
            assert ccompile.counters["eager"] == before["eager"]
            assert ccompile.counters["hits"] - before["hits"] == len(AROUND)


def test_set_inside():
    def f(x, device):
        torch.set_default_device(device)
        y = torch.zeros(2)
        torch.set_default_device(None)
        return y, x + 1, torch.zeros(2)

    compiled, x = ccompile.compile(f, options={"eager_if_slower": False}), torch.randn(3)
    for _ in range(3):
        for device in ("cpu", "meta", "cpu"):
            assert plain(compiled(x, device)) == plain(f(x, device))


def test_gradients():
    x = torch.randn(3, 4)
    for around in AROUND.values():
        with around():
            MODEL.zero_grad()
            MODEL(x).sum().backward()
            want = [p.grad.clone() for p in MODEL.parameters()]
            compiled = ccompile.compile(MODEL)
            for _ in range(3):
                MODEL.zero_grad()
                compiled(x).sum().backward()
                torch.testing.assert_close([p.grad for p in MODEL.parameters()], want)


def test_an_exception_leaves_the_block():
    def f(x, n):
        with torch.device("meta"):
            torch.zeros(2)
            return x[:, :4].reshape(n, 4)

    compiled, x = ccompile.compile(f), torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, 3), x)
        with pytest.raises(RuntimeError, match="shape '\\[5, 4\\]' is invalid"):
            compiled(x, 5)
        assert torch._C._len_torch_function_stack() == 0


def test_the_device_of_an_argument():
    def f(device, x):
        with device:
            return torch.zeros(2), x + 1

    compiled, x = ccompile.compile(f), torch.randn(3)
    for _ in range(3):
        for device in ("cpu", "meta", "cpu"):
            assert plain(compiled(torch.device(device), x)) == plain(f(torch.device(device), x))


def test_other_function_modes_run_eagerly():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    compiled, x = ccompile.compile(ops), torch.randn(3, 4)
    with torch.device("cpu"), Mode():
        ops(x)
        want, seen[:] = len(seen), []
        compiled(x)
    assert len(seen) == want > 0
    assert "a torch-function mode is active" in [e.text for e in ccompile.events() if e.kind == "eager"][-1]


def test_default_devices_belong_to_threads():
    compiled, x, got = ccompile.compile(factories), torch.randn(3), {}

    def run(name):
        with AROUND[name]():
            for _ in range(5):
                got[name] = plain(compiled(x))

    want = {}
    for name, around in AROUND.items():
        with around():
            want[name] = plain(factories(x))
    threads = [threading.Thread(target=run, args=(name,)) for name in AROUND]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == want


def overridable(tree):
    """Functions that ask has_torch_function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(n, ast.Name) and n.id.startswith("has_torch_function") for n in ast.walk(node)
        ):
            yield node


def test_torchs_functions_call_factories_as_attributes():
    """csrc/rec/override.c finds the factories that a function of torch calls by the attributes that its code reads."""
    names = {f.__name__ for f in _device_constructors()}
    root, found = pathlib.Path(torch.__file__).parent, 0
    for file in ("functional.py", "nn/functional.py", "_tensor.py", "nn/init.py"):
        for function in overridable(ast.parse((root / file).read_text())):
            found += 1
            called = {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            assert not called & (names - {"range"}), function.name
    assert found > 100


FACTORIES = {
    "given": "x + torch.zeros(x.shape, dtype=x.dtype, device=x.device)",
    "with another inside": "torch.cat([torch.ones(len(torch.arange(3, device=x.device)), device=x.device), x])",
    "only inside": "x + torch.zeros(torch.arange(4, device=x.device).shape)",
    "of the next call": "torch.zeros(4) + x.to(device=x.device)",
    "perhaps None": "x + torch.zeros(4, device=device)",
    "not last": "x + torch.zeros(4, device=x.device, dtype=x.dtype)",
    "handed on": "x + call(torch.zeros, device=x.device)",
    "kept": "(lambda zeros: x + zeros(4, device=x.device))(torch.zeros)",
}


@pytest.mark.parametrize("body", FACTORIES.values(), ids=FACTORIES)
def test_factories_with_a_device(body):
    """A function of torch's that a mode overrides (such as F.multi_head_attention_forward) runs without the mode, which
    the recorder replays only for code whose factories have a device of their own."""
    made = {"__name__": "torch.nn.functional"}
    exec(
        "import torch\nfrom torch.overrides import handle_torch_function, has_torch_function\n"
        "def call(factory, device): return factory(4)\n"
        "def overridden(x, device=None):\n"
        "    if has_torch_function((x,)):\n"
        "        return handle_torch_function(overridden, (x,), x, device=device)\n"
        f"    return {body}\n",
        made,
    )
    x = torch.ones(4)
    with torch.no_grad(), torch.device("meta"):
        expected, compiled = made["overridden"](x), ccompile.compile(made["overridden"])
        assert expected.device.type == "cpu"
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("batch_first", (False, True))
def test_attention_under_a_default_device(training, batch_first):
    attention = nn.MultiheadAttention(16, 4, batch_first=batch_first).train(training)
    x = torch.randn(2, 5, 16)
    with torch.device("cpu"):
        told = ccompile.explain(attention)(x, x, x)
        assert (told.graph_count, told.break_count) == (1, 0), str(told)
        for got, expected in zip(told.result, attention(x, x, x)):
            torch.testing.assert_close(got, expected)


def test_functions_of_torch_that_a_program_has_replaced(monkeypatch):
    """Under a mode, the old function hands the call to what its module names now: the new one, once more."""
    old = nn.functional.relu
    x, compiled = torch.zeros(2), ccompile.compile(lambda x: nn.functional.relu(x) * 1)
    of_old = ccompile.compile(lambda x: old(x) * 1)
    with torch.device("cpu"):
        for f in (compiled, of_old):
            assert f(x).tolist() == f(x).tolist() == [0, 0]
        monkeypatch.setattr(nn.functional, "relu", lambda x, inplace=False: old(x) + 1)
        for f, plain in ((compiled, nn.functional.relu), (of_old, old)):
            assert [f(x).tolist() for _ in range(3)] == [plain(x).tolist()] * 3
