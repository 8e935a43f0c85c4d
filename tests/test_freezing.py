"""mode="max-autotune": weights are packed once, and again whenever torch counts a write or another tensor stands there."""

import copy
import gc
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


def test_packed_weights_are_used():
    """A write that torch does not count does not show: that is what freezing means, and default mode sees it."""
    model = nn.Linear(256, 256).eval()
    frozen, default = ccompile.compile(model, mode="max-autotune"), ccompile.compile(model)
    x = torch.randn(64, 256)
    with torch.no_grad():
        before = model(x)
        for _ in range(3):
            frozen(x), default(x)
        model.weight.data.mul_(2)
        model.bias.data.mul_(2)
        after = model(x)
        alike(after, default(x), path="default")
        assert not torch.allclose(frozen(x), after, rtol=1e-2)
        model.weight.mul_(0.5)
        model.bias.mul_(0.5)
        alike(before, frozen(x), path="counted again")


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
            alike(model(a, b), compiled(a, b), path="call")
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
