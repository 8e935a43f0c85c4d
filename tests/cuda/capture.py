"""CUDA graphs (csrc/eval/capture.c) without a GPU: kernels are the emulated driver's, and so are captures of plans that hold kernels
alone. For plans with steps of torch's a dispatch mode writes those down between the launches, and a replay does them again into
the same memory. What torch.cuda.CUDAGraph is asked for, and in which order, is looked at with a torch.cuda that is made up.

tests/test_cuda_suites.py runs this in a process of its own: libraries are looked for once in a process."""

import contextlib
import ctypes
import gc
import re
import sys
import weakref
from pathlib import Path

import ccompile
import pytest
import torch
from ccompile import graphs
from ccompile.api import compiled_of
from ccompile.report import report
from conftest import EAGER, together
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parent))
import emulated  # noqa: E402

pytestmark = [
    pytest.mark.skipif(EAGER, reason="nothing is compiled"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this process' driver is the GPU's: tests/test_gpu.py"),
]


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    folder = emulated.build(tmp_path_factory.mktemp("cuda"))
    return folder, ctypes.CDLL(str(folder / "libcuda.so.1"))


class Kernels:
    """A capture by the emulated driver: as torch's, but for steps of torch's."""

    host_steps = False
    driver = None
    made = weakref.WeakSet()

    def __init__(self):
        self.made.add(self)

    def begin(self):
        self.driver.emulated_begin()

    def end(self):
        graph, n = self.driver.emulated_end(), self.driver.emulated_captured()

        def replay():
            assert self.driver.emulated_replay(graph, 0, n) == 0

        return replay

    def abort(self):
        self.driver.emulated_end()


class Written(TorchDispatchMode):
    """What torch does, with the number of kernels that were launched before it."""

    def __init__(self, launched):
        super().__init__()
        self.launched, self.done = launched, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        writes = func._schema.is_mutable and func.__name__.split(".")[0].endswith("_")   # waits for the replay
        result = args[0] if writes else func(*args, **(kwargs or {}))
        self.done.append((self.launched(), func, args, kwargs or {}, result))
        return result


def again(func, args, kwargs, result):
    if func.is_view or "empty" in func._schema.name:
        return
    new = func(*args, **kwargs)
    if not func._schema.is_mutable:
        for old, value in zip(tree_leaves(result), tree_leaves(new), strict=True):
            old.copy_(value)


class Everything(Kernels):
    host_steps = True

    def begin(self):
        super().begin()
        self.random = torch.get_rng_state()   # a capture draws nothing
        self.mode = Written(self.driver.emulated_captured)
        self.mode.__enter__()

    def end(self):
        self.mode.__exit__(None, None, None)
        torch.set_rng_state(self.random)
        graph, n, done = self.driver.emulated_end(), self.driver.emulated_captured(), self.mode.done

        def replay():
            at = 0
            for before, *step in done:
                assert self.driver.emulated_replay(graph, at, before) == 0
                again(*step)
                at = before
            assert self.driver.emulated_replay(graph, at, n) == 0

        return replay

    def abort(self):
        self.mode.__exit__(None, None, None)
        torch.set_rng_state(self.random)
        super().abort()


@pytest.fixture
def gpu(driver, monkeypatch, tmp_path):
    """Graphs of the CPU's tensors are for the emulated GPU, and what captures is `gpu.door`."""
    folder, library = driver
    monkeypatch.setenv("CCOMPILE_CUDA_PATH", str(folder))
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("CCOMPILE_BACKEND", "cuda")

    class Gpu:
        door = Kernels

        @property
        def open_graphs(self):
            gc.collect()
            return len(Kernels.made)

    Kernels.driver = library
    Kernels.made = weakref.WeakSet()
    gpu = Gpu()
    monkeypatch.setattr(graphs, "open", lambda device, forced: gpu.door())
    with torch.no_grad():
        yield gpu


@pytest.fixture
def whole(gpu):
    gpu.door = Everything
    return gpu


def segments(fn):
    return [s for e in compiled_of(fn).report()["entries"] for s in e["segments"]]


def count(fn):
    """(graphs, replays) of the first segment, of the sizes of its last call."""
    text = segments(fn)[0]["cuda_graphs"]
    found = re.fullmatch(r"(\d+) CUDA graphs?, (\d+) replays?", text)
    assert found, text
    return int(found[1]), int(found[2])


def reason(fn):
    return segments(fn)[0]["cuda_graphs"]


def softmaxes(x, w):
    """Four kernels, as each reduces what the one before has made along the other dim."""
    for d in (0, 1, 0, 1):
        x = torch.softmax(x * w, d)
    return x


def compiled(fn=softmaxes, calls=3, args=None):
    """Compiled, and captured."""
    made = ccompile.compile(fn, mode="reduce-overhead", isolate_recompiles=True)
    args = args or (torch.randn(5, 7), torch.randn(7))
    for _ in range(calls):
        torch.testing.assert_close(made(*args), fn(*args))
    return made


# ------------------------------------------------------------------------------------------------ inputs
def test_captured_after_a_plain_run(gpu):
    fn, args = ccompile.compile(softmaxes, mode="reduce-overhead"), (torch.randn(5, 7), torch.randn(7))
    for counts in ((0, 0), (0, 0), (1, 1), (1, 2), (1, 3)):
        torch.testing.assert_close(fn(*args), softmaxes(*args))
        assert count(fn) == counts
    assert "kernel" in segments(fn)[0]["plan_text"] and "host" not in segments(fn)[0]["plan_text"]


def test_other_values_at_the_same_address(gpu):
    x, w = torch.randn(5, 7), torch.randn(7)
    fn = compiled(args=(x, w))
    for i in range(4):
        x.fill_(float(i)).add_(torch.randn(5, 7))
        torch.testing.assert_close(fn(x, w), softmaxes(x, w))
    assert count(fn) == (1, 5)


def test_other_inputs_are_copied(gpu):
    x, w = torch.randn(5, 7), torch.randn(7)
    fn, kept = compiled(args=(x, w)), []
    for _ in range(6):
        kept.append(torch.randn(5, 7))
        torch.testing.assert_close(fn(kept[-1], w), softmaxes(kept[-1], w))
    torch.testing.assert_close(fn(x, w), softmaxes(x, w))
    assert count(fn) == (1, 8) and gpu.open_graphs == 1
    assert "1 of 2 inputs copied" in [e.text for e in ccompile.events() if e.kind == "cuda_graph"][-1]


@pytest.mark.parametrize("make", [lambda: torch.randn(7, 5).t(), lambda: torch.randn(5, 11)[:, 2:9], lambda: torch.randn(9, 7)[3:8]])
def test_strides_of_copied_inputs(gpu, make):
    w = torch.randn(7)
    fn = compiled(args=(make(), w))
    for _ in range(4):
        x = make()
        torch.testing.assert_close(fn(x, w), softmaxes(x, w))
    assert count(fn)[0] == 1 and count(fn)[1] >= 4


def test_an_input_that_repeats_its_elements_and_moves(gpu):
    fn, w = ccompile.compile(softmaxes, mode="reduce-overhead"), torch.randn(7)
    kept = [torch.randn(1, 7).expand(5, 7) for _ in range(5)]
    for x in kept:
        torch.testing.assert_close(fn(x, w), softmaxes(x, w))
    assert "repeats its elements" in reason(fn)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(7))
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x):
        return softmaxes(x, self.w) * self.scale


def test_parameters_written_in_place(gpu):
    net = Net()
    fn = ccompile.compile(net, mode="reduce-overhead")
    for i in range(8):
        x = torch.randn(5, 7)
        if i == 4:
            net.w.mul_(-2)
        if i == 5:
            net.load_state_dict(Net().state_dict())
        if i == 6:
            net.w.grad = torch.randn(7)
            torch.optim.SGD(net.parameters(), lr=1.0).step()
        torch.testing.assert_close(fn(x), net._orig_mod(x) if hasattr(net, "_orig_mod") else net(x))
    assert count(fn)[0] == 1 and count(fn)[1] >= 6 and gpu.open_graphs == 1


def test_parameters_that_are_replaced(gpu):
    net = Net()
    fn, kept = ccompile.compile(net, mode="reduce-overhead"), []
    for i in range(9):
        x = torch.randn(5, 7)
        kept.append(x)
        if i == 5:
            kept.append(net.w)
            net.load_state_dict(Net().state_dict(), assign=True)
        torch.testing.assert_close(fn(x), net(x))
    captures = [e.text for e in ccompile.events() if e.kind == "cuda_graph" and "captured" in e.text]
    assert "2 of 3 inputs copied" in captures[-1] and gpu.open_graphs == 1   # x and the buffer: a parameter stays in place
    assert count(fn) == (1, 7)


def test_parameters_that_are_replaced_in_each_call(gpu):
    net = Net()
    fn, kept = ccompile.compile(net, mode="reduce-overhead"), []
    x = torch.randn(5, 7)
    for _ in range(14):
        kept.append(net.w)
        net.w = nn.Parameter(torch.randn(7))
        torch.testing.assert_close(fn(x), net(x))
    assert "again and again" in reason(fn) and gpu.open_graphs == 0


# ------------------------------------------------------------------------------------------------ results
def test_results_that_are_kept(gpu):
    """No replay changes what an earlier one gave, however it is referred to."""
    w = torch.randn(7)
    fn, kept = compiled(args=(torch.randn(5, 7), w)), []
    for i in range(12):
        x = torch.randn(5, 7)
        y = fn(x, w)
        kept.append(((y, y[1:3], y.detach(), y.numpy())[i % 4], (lambda e: (e, e[1:3], e, e)[i % 4])(softmaxes(x, w))))
        del y
    for got, want in kept:
        torch.testing.assert_close(torch.as_tensor(got), want)
    assert count(fn)[1] >= 12


def test_results_are_ordinary_tensors(gpu):
    fn, args = compiled(), (torch.randn(5, 7), torch.randn(7))
    for _ in range(3):
        y = fn(*args)
        assert y._base is None and y._version == 0 and y.is_contiguous() and not y.requires_grad
        y.resize_(100).fill_(3)
        torch.testing.assert_close(fn(*args), softmaxes(*args))


def test_a_result_is_the_next_input(gpu):
    w = torch.randn(7)
    fn = compiled(args=(torch.randn(5, 7), w))
    got = want = torch.randn(5, 7)
    for _ in range(6):
        got, want = fn(got, w), softmaxes(want, w)
        torch.testing.assert_close(got, want)
    assert count(fn)[1] >= 6


def test_views_of_results_and_inputs(whole):
    def several(x, w):
        y = softmaxes(x, w)
        return y, y[1:3, ::2], y.t(), x[2:], x.t(), softmaxes(x, w)[:, :3]

    fn = ccompile.compile(several, mode="reduce-overhead")
    w = torch.randn(7)
    for _ in range(6):
        x = torch.randn(6, 7)[1:]
        for got, want in zip(fn(x, w), several(x, w), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
        y, part, turned, behind, other, _ = fn(x, w)
        y.zero_()
        assert not part.any() and not turned.any() and part._version == y._version
        x.fill_(5)
        assert bool((behind == 5).all()) and bool((other == 5).all())
    assert count(fn)[1] >= 8


# ------------------------------------------------------------------------------------------------ steps of torch's
def mlp():
    return nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm, self.out = nn.Linear(8, 24), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], 2, 4).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


def test_models(whole):
    for model, size in ((mlp(), (3, 7)), (Attention().eval(), (2, 5, 8)),
                        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)).eval(),
                         (2, 2, 8, 8))):  # fmt: skip
        fn, kept = ccompile.compile(model, mode="reduce-overhead"), []
        for _ in range(6):
            kept.append(torch.randn(size))
            torch.testing.assert_close(fn(kept[-1]), model(kept[-1]), rtol=1e-4, atol=1e-5)
        assert count(fn)[0] == 1 and count(fn)[1] >= 3 and "host" in segments(fn)[0]["plan_text"]


def test_a_driver_that_captures_kernels_only(gpu):
    fn, model = ccompile.compile(mlp(), mode="reduce-overhead"), None
    for _ in range(4):
        x = torch.randn(3, 7)
        model = fn._orig_mod
        torch.testing.assert_close(fn(x), model(x), rtol=1e-4, atol=1e-5)
    assert "can't be captured here" in reason(fn)


def test_shapes(whole):
    model = mlp()
    fn = ccompile.compile(model, mode="reduce-overhead", dynamic=True)
    for i in range(18):
        x = torch.randn(2 + i % 3, 7)
        torch.testing.assert_close(fn(x), model(x), rtol=1e-4, atol=1e-5)
    assert whole.open_graphs == 3 and count(fn)[0] == 1 and count(fn)[1] >= 3


def test_segments_around_a_break(whole):
    a, b = mlp(), nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 7), nn.Softmax(0), nn.Softmax(1)).eval()

    def two(x):
        y = a(x)
        ccompile.graph_break()
        return b(y), y

    fn, kept = ccompile.compile(two, mode="reduce-overhead"), []
    for _ in range(7):
        kept.append(torch.randn(3, 7))
        for got, want in zip(fn(kept[-1]), two(kept[-1]), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert whole.open_graphs == 2 and all("1 CUDA graph," in s["cuda_graphs"] for s in segments(fn))


def test_state_that_a_segment_leaves_set(whole):
    model = mlp()

    def within(x):
        with torch.enable_grad():
            x = x * 2
            with torch.no_grad():
                y = model(x)
            ccompile.graph_break()
            return y + 1, torch.is_grad_enabled()

    fn, x = ccompile.compile(within, mode="reduce-overhead"), torch.randn(3, 7)
    for _ in range(6):
        (got, on), (want, _) = fn(x), within(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert on and not torch.is_grad_enabled()
    assert "1 CUDA graph," in reason(fn)


def test_casts_of_autocast(whole):
    """What autocast has cast a parameter to before is no part of the graph: it ends with the block, and the parameter may change."""
    model, x = mlp(), torch.randn(3, 7)
    fn, calls = ccompile.compile(model, mode="reduce-overhead"), 0
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                torch.testing.assert_close(fn(x), model(x), rtol=2e-2, atol=2e-2)
                calls += 1
            assert torch.is_autocast_cache_enabled()
        model[0].weight.mul_(-1.5)
        model[5].weight.add_(1)
    assert count(fn) == (1, calls - 2)


class Cache(nn.Module):
    """Writes a buffer at a place that is an input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(7, 7)
        self.register_buffer("rows", torch.zeros(4, 7))

    def forward(self, x, at):
        self.rows.index_copy_(0, at, torch.tanh(self.linear(x)))
        return torch.softmax(self.rows, 0).sum(1)


def test_writes_to_what_stays(whole):
    model, other = Cache(), Cache()
    other.load_state_dict(model.state_dict())
    fn, kept = ccompile.compile(model, mode="reduce-overhead"), []
    for i in range(9):
        x, at = torch.randn(1, 7), torch.tensor([i % 4])
        kept += [x, at]
        version = model.rows._version
        torch.testing.assert_close(fn(x, at), other(x, at))
        torch.testing.assert_close(model.rows, other.rows)
        assert model.rows._version > version
    assert count(fn)[0] == 1 and count(fn)[1] >= 5


def test_a_copied_input_in_written_memory(whole):
    """What is copied before the graph would not be what the graph has written."""

    def write(rows, row, w):
        rows.mul_(2)
        return torch.softmax(torch.softmax(row @ w, 0) @ w, 0)

    fn, w = ccompile.compile(write, mode="reduce-overhead"), torch.randn(7, 7)
    got, want = (torch.ones(6, 7),) * 2
    got, want = got.clone(), want.clone()
    for i in range(10):
        torch.testing.assert_close(fn(got, got[i % 6], w), write(want, want[i % 6], w))
        torch.testing.assert_close(got, want)


def test_writes_to_an_input_that_moves(whole):
    def write(x, w):
        x.mul_(2)
        return softmaxes(x, w)

    fn, w, kept = ccompile.compile(write, mode="reduce-overhead"), torch.randn(7), []
    for _ in range(6):
        x = torch.randn(5, 7)
        y = x.clone()
        kept.append(x)
        torch.testing.assert_close(fn(x, w), write(y, w))
        torch.testing.assert_close(x, y)
    assert "writes an input that is elsewhere" in reason(fn) and whole.open_graphs == 0


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(7)
        self.register_buffer("rows", torch.zeros(4, 7))

    def forward(self, x, at):
        self.rows.index_add_(0, at, torch.softmax(x, 1))   # first: for tensors of the CPU all indices are looked at before writes
        self.rows[1:3] *= 0.5
        return torch.softmax(self.rows, 1) + torch.softmax(self.norm(x), 0).sum()


def test_kernels_that_write_what_stays(gpu):
    model, other = Statistics(), Statistics()
    other.load_state_dict(model.state_dict())
    fn, kept = ccompile.compile(model, mode="reduce-overhead"), []
    for i in range(9):
        x, at = torch.randn(5, 7), torch.randint(0, 4, (5,))
        kept += [x, at]
        versions = model.rows._version, model.norm.num_batches_tracked._version, model.norm.running_mean._version
        torch.testing.assert_close(fn(x, at), other(x, at))
        torch.testing.assert_close(model.state_dict(), other.state_dict())
        assert model.rows._version > versions[0] and model.norm.num_batches_tracked._version > versions[1]
        assert model.norm.running_mean._version == versions[2]   # which torch does not count, either
    assert "host" not in segments(fn)[0]["plan_text"] and count(fn) == (1, 7)


def test_a_kernel_that_writes_an_input_that_moves(gpu):
    def write(x, w):
        x.mul_(2)
        return softmaxes(x, w)

    fn, w, kept = ccompile.compile(write, mode="reduce-overhead"), torch.randn(7), []
    for _ in range(6):
        x = torch.randn(5, 7)
        y = x.clone()
        kept.append(x)
        torch.testing.assert_close(fn(x, w), write(y, w))
        torch.testing.assert_close(x, y)
    assert "a kernel writes an input that is elsewhere" in reason(fn) and gpu.open_graphs == 0


# ------------------------------------------------------------------------------------------------ what is not captured
def test_random_numbers(whole):
    """Each replay draws eager's, from the seed and the place that the generator is at."""

    def noisy(x, w):
        y = softmaxes(torch.dropout(x, 0.5, True), w) + torch.rand_like(x)
        return y, torch.rand_like(y) < torch.sigmoid(y), torch.empty_like(x).normal_()

    fn, w = ccompile.compile(noisy, mode="reduce-overhead"), torch.randn(7)
    for i in range(8):
        x, ends = torch.randn(5, 7), []
        if i % 2:
            torch.manual_seed(i)
        before = torch.get_rng_state()
        for f in (fn, noisy):
            torch.set_rng_state(before)
            ends.append((f(x, w), torch.get_rng_state()))
        torch.testing.assert_close(*ends)
    assert count(fn)[0] == 1 and count(fn)[1] >= 5


def test_random_numbers_of_another_generator(whole):
    """Which torch does not know of in a capture."""
    generator = torch.Generator()
    fn = ccompile.compile(lambda x, w: softmaxes(x + torch.rand(5, 7, generator=generator), w), mode="reduce-overhead")
    for i in range(5):
        generator.manual_seed(i)
        got, x = fn(torch.ones(5, 7), torch.ones(7)), torch.ones(5, 7)
        generator.manual_seed(i)
        torch.testing.assert_close(got, softmaxes(x + torch.rand(5, 7, generator=generator), torch.ones(7)))
    assert all("no CUDA graph" in s["cuda_graphs"] for s in segments(fn))


def test_a_seed(whole):
    """It is set when torch is asked to, not when a graph is replayed."""

    def seeded(x, w):
        torch.manual_seed(3)
        return softmaxes(x + torch.rand_like(x), w)

    fn, w = ccompile.compile(seeded, mode="reduce-overhead"), torch.randn(7)
    for _ in range(5):
        x = torch.randn(5, 7)
        torch.testing.assert_close(fn(x, w), seeded(x, w))
    assert all("no CUDA graph" in s["cuda_graphs"] for s in segments(fn))


def test_sizes_that_depend_on_data(whole):
    fn = ccompile.compile(lambda x, w: softmaxes(x, w)[torch.nonzero(x[0] > 0)[:, 0] * 0], mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(5, 7)
        fn(x, torch.ones(7))
    assert all("0 replays" in s["cuda_graphs"] or "no CUDA graph" in s["cuda_graphs"] for s in segments(fn) if "nonzero" in s["plan_text"])


def test_numbers_of_each_call(whole):
    fn, x, w = ccompile.compile(lambda x, w, by: softmaxes(x, w) * by, mode="reduce-overhead"), torch.randn(5, 7), torch.randn(7)
    for i in range(8):
        torch.testing.assert_close(fn(x, w, 0.5 + i), softmaxes(x, w) * (0.5 + i))
    assert any("varies between calls" in s["cuda_graphs"] for s in segments(fn))


def test_few_steps(gpu):
    fn = ccompile.compile(lambda x: torch.softmax(x * 2, 0), mode="reduce-overhead")
    for _ in range(4):
        fn(torch.randn(5, 7))
    assert "few steps" in reason(fn)


def test_steps_of_torch_are_worth_more(whole):
    """Two products and what is between them; a view is nothing."""
    model, x = nn.Sequential(nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 7)), torch.randn(3, 7)
    fn, flat = ccompile.compile(model, mode="reduce-overhead"), ccompile.compile(lambda x: model[0](x).view(-1)[1:].unsqueeze(1), mode="reduce-overhead")
    for _ in range(4):
        torch.testing.assert_close(fn(x), model(x))
        flat(x)
    assert count(fn) == (1, 2) and "few steps" in reason(flat)


def test_too_much_to_copy(gpu):
    fn = ccompile.compile(softmaxes, mode="reduce-overhead")
    x, w = torch.randn(2049, 1 << 10), torch.randn(1 << 10)
    for x in (x, x.clone(), x * 2):
        torch.testing.assert_close(fn(x, w).sum(), softmaxes(x, w).sum())
    assert "launches that are saved" in reason(fn) and gpu.open_graphs == 0


def test_a_step_that_cannot_be_captured(whole):
    """CUDA says so only then."""
    x, w, model = torch.randn(5, 7), torch.randn(7), nn.Linear(7, 7)
    fn = ccompile.compile(lambda x, w: softmaxes(model(x), w), mode="reduce-overhead")

    class Refuses(Everything):
        def begin(self):
            super().begin()
            done = self.mode.done

            class List(list):
                def append(self, step):
                    if len(done) > 0:
                        raise RuntimeError("operation not permitted when stream is capturing")
                    done.append(step)

            self.mode.done = List()

    whole.door = Refuses
    for _ in range(5):
        torch.testing.assert_close(fn(x, w), softmaxes(model(x), w))
    assert "operation not permitted when stream is capturing" in reason(fn) and whole.open_graphs == 0


def test_autograd(gpu):
    fn, x = ccompile.compile(softmaxes, mode="reduce-overhead"), torch.randn(5, 7, requires_grad=True)
    with torch.enable_grad():
        for _ in range(4):
            y = fn(x, torch.ones(7))
            y[0, 0].backward()
            assert x.grad is not None
    assert gpu.open_graphs == 0


def test_inside_of_a_capture(gpu, monkeypatch):
    """The current stream is being captured by somebody else: kernels are launched, and so captured."""
    fn, args = compiled(), (torch.randn(5, 7), torch.randn(7))
    before = count(fn)
    monkeypatch.setattr(graphs, "is_capturing", lambda device: True)
    torch.testing.assert_close(fn(*args), softmaxes(*args))
    assert count(fn) == before


def test_compiled_inside_of_a_capture(gpu, monkeypatch):
    """Loading a program allocates memory, which ends a capture unless the thread says that it may be."""
    fn = ccompile.compile(lambda x: torch.softmax(x * 2.375, 0), options={"verify": False})   # nothing runs before the replay
    x = torch.randn(5, 7)
    monkeypatch.setattr(graphs, "is_capturing", lambda device: True)
    Kernels.driver.emulated_begin()
    kept = [fn(x), fn(x)]
    before = Kernels.driver.emulated_captured()
    y = fn(x)
    graph, n = Kernels.driver.emulated_end(), Kernels.driver.emulated_captured()
    assert kept and n > before and segments(fn)[0]["plan_text"].count("kernel") == 1   # no memory of a call that is over
    assert Kernels.driver.emulated_replay(graph, before, n) == 0
    torch.testing.assert_close(y, torch.softmax(x * 2.375, 0))


def test_default_mode_has_none(gpu):
    fn = ccompile.compile(softmaxes)
    for _ in range(4):
        fn(torch.randn(5, 7), torch.randn(7))
    assert reason(fn) == ""


# ------------------------------------------------------------------------------------------------ life, threads
def test_graphs_die_with_what_they_are_of(gpu):
    fn = compiled()
    assert gpu.open_graphs == 1
    y = fn(torch.ones(5, 7), torch.ones(7))
    want = softmaxes(torch.ones(5, 7), torch.ones(7))
    del fn
    assert gpu.open_graphs == 0
    torch.testing.assert_close(y, want)
    fn = compiled()
    assert gpu.open_graphs == 1
    ccompile.reset()
    assert gpu.open_graphs == 0


def test_threads(gpu):
    w = torch.randn(7)
    fn = compiled(args=(torch.randn(5, 7), w))

    def work(k):
        with torch.no_grad():
            for i in range(40):
                x = torch.full((5, 7), float(i + k)).add_(torch.arange(7.0))
                torch.testing.assert_close(fn(x, w), softmaxes(x, w))

    together(3, work)  # who finds the graph busy runs the plan
    work(0)  # this thread may have to capture it again
    replays = count(fn)[1]
    work(0)
    assert count(fn)[1] == replays + 40


def test_explain_says_so(gpu):
    fn = compiled()
    assert "1 CUDA graph, " in str(report(fn))


def test_max_autotune(gpu, monkeypatch, tmp_path):
    """The mode measures, and has graphs as well."""
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", "64:0.5")
    after = ccompile.events()[-1].serial if ccompile.events() else 0
    x = torch.randn(11, 300)
    for mode, counts in (("max-autotune-no-cudagraphs", None), ("max-autotune", (1, 2))):
        fn = ccompile.compile(lambda x: softmaxes(x, 3.0), mode=mode)
        for _ in range(4):
            torch.testing.assert_close(fn(x), softmaxes(x, 3.0))
        assert count(fn) == counts if counts else reason(fn) == ""
    assert any("blocks of 64 threads" in e.text for e in ccompile.events(after) if e.kind == "choice")


# ------------------------------------------------------------------------------------------------ what torch is asked for
@pytest.fixture
def told(monkeypatch):
    """A torch.cuda that only writes down what is asked of it."""
    order = []

    class Asked(contextlib.AbstractContextManager):
        def __init__(self, name, *args, **kwargs):
            self.name = " ".join([name, *(str(a) for a in args if isinstance(a, int | str)), *kwargs.get("capture_error_mode", "").split()])
            self.kwargs = kwargs

        def __enter__(self):
            order.append(f"{self.name} begins")

        def __exit__(self, *_):
            order.append(f"{self.name} ends")
            if self.name.startswith("graph") and "fails" in order:
                raise RuntimeError("operation failed due to a previous error during capture")

    class Graph:
        def replay(self):
            order.append("replay")

        def capture_begin(self, capture_error_mode):
            order.append(f"capture {capture_error_mode} begins")

        def capture_end(self):
            order.append("capture ends")

    class Number:
        def zero_(self):
            order.append("zero")

    def note(name, status=None):
        def f(*args):
            order.append(name)
            if status:
                raise status

        return f

    monkeypatch.setattr(torch, "empty", lambda n, device: Number())
    for name in ("device", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *args, name=name, **kwargs: Asked(name, *args, **kwargs))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"side{device}")
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(graphs.TorchCapture, "_side", {})
    monkeypatch.setattr(graphs.TorchCapture, "_invalid", [])
    for name in ("_cuda_clearCublasWorkspaces", "_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, note(name[6:]), raising=False)
    return order


def test_nobody_captures_where_cuda_has_not_begun(monkeypatch):
    """A CUDA build of torch asks for a driver even to say which GPU is current."""

    def driver():
        raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", driver, raising=False)
    assert graphs.is_capturing(0) is False


BEGIN = ["device 3 begins", "clearCublasWorkspaces", "stream side3 begins", "graph thread_local begins"]
END = ["graph thread_local ends", "stream side3 ends", "clearCublasWorkspaces", "device 3 ends"]
# The allocator leaves the graph's pool; a capture that comes to its end frees the generator.
INVALID = ["endAllocateToPool", "releasePool", "device 3 begins", "stream side3 begins", "capture thread_local begins", "zero", "capture ends",
           "stream side3 ends", "device 3 ends"]  # fmt: skip


def test_the_order_of_a_capture(told):
    capture = graphs.TorchCapture(3)
    capture.begin()
    assert told == BEGIN
    replay = capture.end()
    assert told == BEGIN + END
    replay()
    assert told.pop() == "replay"


def test_the_order_of_a_capture_that_fails(told):
    """The stream is the one it was, and so are the allocator and the generator. The graph is kept, as torch still asks it."""
    capture = graphs.TorchCapture(3)
    capture.begin()
    told.append("fails")
    capture.abort()
    assert told == [*BEGIN, "fails", *END, *INVALID] and graphs.TorchCapture._invalid == [capture.graph]


def test_a_capture_that_fails_because_the_gpu_is_gone(told, monkeypatch):
    """No later error takes the place of the first one."""

    def gone(*_, **__):
        raise RuntimeError("CUDA error: device-side assert triggered")

    capture = graphs.TorchCapture(3)
    capture.begin()
    told.append("fails")
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", gone)
    monkeypatch.setattr(torch, "empty", gone)
    with pytest.raises(RuntimeError, match="previous error"):
        capture.end()


def test_a_capture_that_fails_at_its_end(told):
    capture = graphs.TorchCapture(3)
    capture.begin()
    told.append("fails")
    with pytest.raises(RuntimeError, match="previous error"):
        capture.end()
    assert told[-len(INVALID):] == INVALID


def test_a_step_that_fails_in_a_capture_that_is_valid(told):
    capture = graphs.TorchCapture(3)
    capture.begin()
    capture.abort()
    assert told == BEGIN + END and not graphs.TorchCapture._invalid
