"""mode="max-autotune": packs weights once, and again whenever their content changes."""

import copy
import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, alike, replaying, resident
from torch import nn


def make():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.SiLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.GELU(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10),
    ).eval()  # fmt: skip


def check(model, compiled, calls=2):
    with torch.no_grad():
        for i in range(calls):
            x = torch.randn(8, 3, 16, 16)
            alike(model(x), compiled(x), path=f"call {i}")


def in_place(model):
    for p in model.parameters():
        p.mul_(0.9)


def one_element(model):
    model[0].weight[1, 2, 0, 0] += 1
    model[-1].weight[3, 4] -= 2


def replaced(model):
    """Often at the address where the old ones were."""
    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                value = p.detach() * 1.1
                shape = p.shape
                module._parameters[name] = p = None
                module._parameters[name] = nn.Parameter(value.reshape(shape))
                del value
    gc.collect()


def loaded(model):
    model.load_state_dict({k: v * 0.7 if v.is_floating_point() else v for k, v in model.state_dict().items()})


def data_swapped(model):
    for p in model.parameters():
        p.data = p.data * 1.2


def trained(model):
    with torch.enable_grad():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 3, 16, 16)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


MUTATIONS = [in_place, one_element, replaced, loaded, data_swapped, trained]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda f: f.__name__)
def test_weights_change(mutate):
    model = make()
    compiled = ccompile.compile(model, mode="max-autotune")
    check(model, compiled, calls=3)
    for _ in range(3):
        with torch.no_grad():
            mutate(model)
        check(model, compiled)


def test_replays_and_equals_default():
    model = make()
    frozen, default = ccompile.compile(model, options={"freezing": True}), ccompile.compile(copy.deepcopy(model))
    check(model, frozen)
    with replaying(2):
        check(model, frozen)
    x = torch.randn(8, 3, 16, 16)
    with torch.no_grad():
        alike(default(x), frozen(x), path="both")


def uncounted(name):
    """Writes that leave `_version` as it is; each is given a parameter."""
    def data(p):
        p.data.mul_(-2)

    def through_numpy(p):
        array = p.detach().numpy()
        array *= -2

    def through_dlpack(p):
        torch.from_dlpack(p.detach()).mul_(-2)

    def one_element_of_data(p):
        p.data.view(-1)[p.numel() // 2] += 100

    def first_and_last(p):
        p.data.view(-1)[0] += 100
        p.data.view(-1)[-1] -= 100

    def swapped(p):
        """The same numbers in another order."""
        p.data.copy_(p.data.flip(0))

    def memmove(p):
        p.data.mul_(0)
        other = torch.randn_like(p)
        ctypes.memmove(p.data_ptr(), other.data_ptr(), other.numel() * other.element_size())

    def storage(p):
        p.untyped_storage().copy_(torch.randn_like(p).untyped_storage())

    def read_from_a_file(p):
        with tempfile.TemporaryFile() as f:
            f.write(torch.randn_like(p).numpy().tobytes())
            f.seek(0)
            f.readinto(memoryview(p.detach().numpy()).cast("B"))

    def data_of_old_memory(p):
        value = p.detach() * -1.5
        p.data = torch.empty(0)
        p.data = value

    def half_and_back(p):
        p.data = p.data.bfloat16()
        p.data = p.data.float()

    return {f.__name__: f for f in locals().copy().values() if callable(f)}[name]


def near(want, got):
    """Numbers grow here: relative to the largest."""
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()


UNCOUNTED = """data through_numpy through_dlpack one_element_of_data first_and_last swapped memmove storage read_from_a_file
    data_of_old_memory half_and_back""".split()


@pytest.mark.parametrize("n", [16, 130, 512])
@pytest.mark.parametrize("name", UNCOUNTED)
def test_writes_that_nobody_counts(name, n):
    """Weights of less than a page, of a few, and such whose pages the kernel watches."""
    model = nn.Sequential(nn.Linear(n, n), nn.Conv1d(1, 8, 3), nn.Flatten(), nn.Linear(8 * (n - 2), 24)).eval()
    compiled, write = ccompile.compile(model, mode="max-autotune"), uncounted(name)
    with torch.no_grad():
        for step in range(4):
            for _ in range(1 + 3 * (step % 2)):
                x = torch.randn(12, 1, n)
                near(model(x), compiled(x))
            for p in model.parameters():
                write(p)


@pytest.mark.parametrize("kind", ["fused", "foreach", "plain"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_optimizers(name, kind):
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **({} if kind == "plain" else {kind: True}))
    compiled = ccompile.compile(model, mode="max-autotune")
    with torch.no_grad():
        for step in range(3):
            for _ in range(3):
                x = torch.randn(8, 256)
                near(model(x), compiled(x))
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()


def converted(model):
    model.bfloat16()
    model.float()


def emptied(model):
    state = {k: v * 1.5 for k, v in model.state_dict().items()}
    model.to_empty(device="meta").to_empty(device="cpu").load_state_dict(state)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("convert", [converted, emptied, lambda m: m.double().float(), lambda m: m.half().float()])
def test_conversions_of_modules(convert, swap):
    """Memory, tensor object and version may all be what they were; nor does a tensor have weak references."""
    model = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 20)).eval()
    compiled = ccompile.compile(model, mode="max-autotune")
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        with torch.no_grad():
            for _ in range(3):
                for _ in range(3):
                    x = torch.randn(8, 300)
                    near(model(x), compiled(x))
                convert(model)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("around", [False, True])
def test_swapped_tensors(around):
    model = nn.Linear(64, 64)
    compiled = ccompile.compile(model, mode="max-autotune")
    with torch.no_grad():
        for _ in range(3):
            with torch.autocast("cpu", enabled=around):
                for _ in range(3):
                    x = torch.randn(8, 64)
                    torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
            torch.utils.swap_tensors(model.weight, nn.Parameter(torch.randn(64, 64)))


def test_memory_that_others_may_write():
    """The kernel does not tell of another process's writes to shared memory."""
    model = nn.Linear(300, 300).share_memory()
    compiled = ccompile.compile(model, mode="max-autotune")
    other = multiprocessing.get_context("fork")
    with torch.no_grad():
        for step in range(3):
            for _ in range(4):
                x = torch.randn(8, 300)
                near(model(x), compiled(x))
            process = other.Process(target=lambda: model.weight.data.numpy().__imul__(-2))
            process.start()
            process.join()


def test_children_of_fork():
    """What the kernel tells is of one process."""
    model, threads = nn.Linear(300, 300).eval(), torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's do not live on in a child
    compiled = ccompile.compile(model, mode="max-autotune")
    x = torch.randn(8, 300)

    def call():
        with torch.no_grad():
            for _ in range(4):
                near(model(x), compiled(x))
            model.weight.data.mul_(-2)
            near(model(x), compiled(x))

    call()
    child = os.fork()
    if child == 0:
        try:
            call()
            call()
            os._exit(0)
        finally:
            os._exit(1)
    model.weight.data.mul_(3)
    call()
    torch.set_num_threads(threads)
    assert os.waitpid(child, 0)[1] == 0


def test_where_the_kernel_does_not_tell():
    """Then what is frozen is read in each call."""
    code = f"import test_freezing as t\nfor name in {UNCOUNTED}:\n    t.test_writes_that_nobody_counts(name, 130)"
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])
    env = {**os.environ, "CCOMPILE_WRITTEN": "0", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_activations_are_not_frozen():
    """Only parameters are: what stands in their place but changes with each call is not kept."""
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(64, 32))

        def forward(self, a, b):
            return torch.tanh(a @ b.t()) @ b @ self.w

    model = Product()
    compiled = ccompile.compile(model, mode="max-autotune")
    with torch.no_grad():
        for _ in range(4):
            a, b = torch.randn(32, 64), torch.randn(32, 64)
            alike(model(a, b), compiled(a, b), path="call", spread=1e-6)  # sums that cancel
    graph = compiled_of(compiled).report()["entries"][0]["segments"][0]["graph_text"]
    frozen = [line for line in graph.splitlines() if "frozen" in line]
    assert len(frozen) == 1 and "f32[64,32]" in frozen[0], graph


def test_tied_and_transposed_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(40, 24))

        def forward(self, x):
            return torch.relu(x @ self.w) @ self.w.t() + nn.functional.linear(x, self.w[:, :8].t())[:, :1]

    model = Tied()
    compiled = ccompile.compile(model, mode="max-autotune")
    for _ in range(3):
        with torch.no_grad():
            for _ in range(2):
                x = torch.randn(16, 40)
                alike(model(x), compiled(x), path="call")
            model.w.add_(0.1)


class Twice(nn.Module):
    """Layers that are called more than once, by each of the libraries and loops that pack weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.product = nn.Conv1d(16, 16, 3, padding=1), nn.Linear(16, 16)
        self.image, self.gru = nn.Conv2d(16, 16, 3, padding=1), nn.GRU(16, 16, batch_first=True)

    def forward(self, x):
        for _ in range(2):
            x = self.image(x[:, :, None])[:, :, 0].relu()
            x = self.conv(x).relu()
            x = self.gru(self.product(x.mT).relu())[0].mT
        return x


@pytest.mark.parametrize("mutate", MUTATIONS[:1] + MUTATIONS[4:5], ids=lambda f: f.__name__)
def test_copies_that_are_shared(mutate):
    """By layers that are called twice, by the plans of other sizes and by another compiled function."""
    model = Twice().eval()
    compiled, other = (ccompile.compile(model, mode="max-autotune") for _ in range(2))
    with torch.no_grad():
        for round in range(3):
            for n in (20, 24, 40, 24):
                x = torch.randn(4, 16, n)
                for _ in range(2):
                    alike(model(x), compiled(x), path=f"round {round} of {n}")
                alike(model(x), other(x), path=f"round {round} of {n}, the other")
            mutate(model)


@pytest.mark.skipif(EAGER, reason="nothing is packed")
def test_sizes_share_what_is_packed():
    """One copy for all lengths."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).eval()  # 8 MiB
    before = resident()
    compiled = ccompile.compile(model, mode="max-autotune")
    with torch.no_grad():
        for n in range(33, 49):
            for _ in range(2):
                compiled(torch.randn(n, 1024))
    assert resident() - before < 64 << 20  # 16 copies would be 128


def test_inference_mode_has_no_versions():
    with torch.inference_mode():
        model = nn.Linear(64, 64).eval()
        compiled = ccompile.compile(model, mode="max-autotune")
        for k in (1.0, 0.5):
            model.weight.mul_(k)
            for _ in range(2):
                x = torch.randn(32, 64)
                alike(model(x), compiled(x), path=f"factor {k}")


def test_threads_with_changing_weights():
    """Each thread sees one of the versions, never a mixture."""
    model = nn.Linear(128, 128, bias=False).eval()
    compiled = ccompile.compile(model, mode="max-autotune")
    x = torch.randn(64, 128)
    wrong = []
    with torch.no_grad():
        base = model.weight.clone()
        compiled(x)
        compiled(x)
        want = model(x)
    stop = threading.Event()

    def call():
        with torch.no_grad():
            while not stop.is_set():
                ratio = compiled(x) / want
                if not torch.allclose(ratio, ratio.mean().expand_as(ratio), rtol=1e-2):
                    wrong.append(ratio)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for t in threads:
        t.start()
    for k in range(1, 60):
        with torch.no_grad():
            model.weight = nn.Parameter(base * k)
    stop.set()
    for t in threads:
        t.join()
    assert not wrong
