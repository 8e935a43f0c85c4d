"""Behaviour that needs a real GPU: streams, devices, memory, errors. `make test-gpu` runs this and, on the GPU, the suites that
compare with eager; tests/test_cuda_*.py cover what can be tested without one."""

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
needs_two = pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="one GPU only")


def chain(x, w):
    return F.softmax(x * torch.sigmoid(x) + w, -1), F.layer_norm(x, (x.shape[-1],), w, w)


def plans(fn):
    return [s["plan_text"] for e in compiled_of(fn).report()["entries"] for s in e["segments"]]


def check(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.device == b.device and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@torch.no_grad()
def test_kernels_run_on_the_gpu():
    fn = ccompile.compile(chain)
    for _ in range(3):
        x, w = torch.randn(65, 513, device="cuda"), torch.randn(513, device="cuda")
        check(fn(x, w), chain(x, w))
    assert all("kernel" in text and "host" not in text for text in plans(fn)), plans(fn)


@torch.no_grad()
def test_streams_side_by_side():
    """A value is only right if its kernels are on the stream that made their operands."""
    fn = ccompile.compile(chain)
    streams, x, w = [torch.cuda.Stream() for _ in range(4)], torch.randn(4096, 1024, device="cuda"), torch.randn(1024, device="cuda")
    fn(x, w)
    torch.cuda.synchronize()
    for _ in range(5):
        out = []
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)   # cycles: whoever does not wait is early
                own = x * (i + 1)
                out.append((fn(own, w), own))
        torch.cuda.synchronize()
        for got, own in out:
            check(got, chain(own, w))


@needs_two
@torch.no_grad()
def test_the_current_device_stays():
    fn = ccompile.compile(chain)
    with torch.cuda.device(1):
        x, w = torch.randn(9, 33, device="cuda:0"), torch.randn(33, device="cuda:0")
        for _ in range(3):
            check(fn(x, w), chain(x, w))
            assert torch.cuda.current_device() == 1


@needs_two
@torch.no_grad()
def test_each_gpu_has_its_own_entry():
    fn = ccompile.compile(chain)
    for i in (0, 1, 0, 1):
        x, w = torch.randn(9, 33, device=f"cuda:{i}"), torch.randn(33, device=f"cuda:{i}")
        check(fn(x, w), chain(x, w))


@needs_two
@torch.no_grad()
def test_tensors_made_on_the_current_gpu():
    def make(x):
        return x.to("cuda").sin(), torch.arange(5, device="cuda") + 1, torch.ones(3).cuda()

    fn = ccompile.compile(make)
    for i in (0, 1, 0, 1, 1, 0):
        with torch.cuda.device(i):
            got = fn(torch.randn(4))
            assert [y.device.index for y in got] == [i] * 3


@torch.no_grad()
def test_a_number_on_the_cpu_among_tensors_of_the_gpu():
    def scale(x, by):
        return torch.tanh(x * by)

    fn = ccompile.compile(scale)
    for by in (1.5, -2.0, 0.25):
        x, number = torch.randn(100, device="cuda"), torch.tensor(by, device="cpu")
        check([fn(x, number)], [scale(x, number)])


@torch.no_grad()
def test_threads():
    from concurrent.futures import ThreadPoolExecutor

    fn = ccompile.compile(chain)
    w = torch.randn(257, device="cuda")

    def work(i):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((31, 257), float(i), device="cuda")
            got = fn(x, w)
            torch.cuda.current_stream().synchronize()
            check(got, chain(x, w))

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64], ids=str)
@torch.no_grad()
def test_many_that_meet_in_one_place(dtype):
    """Whole numbers, so that sums are exact in any order: atomics of each dtype lose none of them."""

    def meet(x, rows, at, s):
        return x.index_add(0, rows, s), x.scatter_add(0, at, s), x.scatter_reduce(0, at, s, "amax"), x.scatter_reduce(0, at, s, "amin", include_self=False)

    fn = ccompile.compile(meet)
    for _ in range(3):
        x, s = torch.zeros(3, 65, device="cuda", dtype=dtype), torch.randint(-2, 3, (300, 65), device="cuda").to(dtype)
        rows, at = torch.randint(0, 3, (300,), device="cuda"), torch.randint(0, 3, (300, 65), device="cuda")
        for got, want in zip(fn(x, rows, at, s), meet(x, rows, at, s), strict=True):
            assert torch.equal(got, want)
    assert all("put_at" in text and "host" not in text for text in plans(fn)), plans(fn)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@torch.no_grad()
def test_writes_to_what_others_see(mode):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(8)
            self.register_buffer("cache", torch.zeros(2, 16, 8))

        def forward(self, x, at):
            y = torch.relu(self.norm(x))
            self.cache.index_copy_(1, at, y.mean((2, 3))[:2, None])
            self.cache[:, 3:5] *= 0.5
            return torch.softmax(self.cache, 1).sum(), y

    mine, theirs = Model().cuda(), Model().cuda()
    fn = ccompile.compile(mine, mode=mode)
    for i in range(8):
        x, at = torch.randn(4, 8, 5, 5, device="cuda"), torch.tensor([i], device="cuda")
        check(fn(x, at), theirs(x, at))
        for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_first_call_inside_of_a_capture():
    """Loading a program does not end somebody else's capture. (Looking whether results are eager's would.)"""
    fn = ccompile.compile(lambda x: torch.softmax(x * 2.375, 0), options={"verify": False})
    x = torch.randn(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.softmax(x, 0)
    with torch.cuda.graph(graph):
        y = fn(x)
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x * 2.375, 0))


@torch.no_grad()
def test_memory_is_torchs_and_given_back():
    def deep(x):
        for _ in range(8):
            x = torch.softmax(x @ x, -1)
        return x

    fn, x = ccompile.compile(deep), torch.randn(1024, 1024, device="cuda") / 32
    peaks = []
    for call in (deep, fn, fn):
        call(x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(x)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert torch.cuda.memory_allocated() == before
    assert peaks[2] <= peaks[0] * 1.05 + 4096, peaks


def graph_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                               torch.nn.Linear(64, 8)).cuda().eval()  # fmt: skip


def of_graphs(fn):
    return compiled_of(fn).report()["entries"][0]["segments"][0]["cuda_graphs"]


@torch.no_grad()
def test_graphs_replay_other_inputs_and_spare_results():
    model = graph_model()
    fn, kept = ccompile.compile(model, mode="reduce-overhead"), []
    for i in range(20):
        x = torch.randn(16, 64, device="cuda")
        if i == 10:
            model[0].weight.mul_(-1)
        kept.append((x, fn(x), model(x)))
    for _, got, want in kept:
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    assert of_graphs(fn).startswith("1 CUDA graph, ") and "0 replays" not in of_graphs(fn), of_graphs(fn)


@torch.no_grad()
def test_graphs_of_several_streams():
    model = graph_model()
    fn, streams = ccompile.compile(model, mode="reduce-overhead"), [torch.cuda.Stream() for _ in range(6)]
    for _ in range(6):
        out = []
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                x = torch.full((16, 64), float(i), device="cuda")
                out.append((x, fn(x)))
        torch.cuda.synchronize()
        for x, got in out:
            torch.testing.assert_close(got, model(x), rtol=1e-3, atol=1e-4)
    assert of_graphs(fn).startswith("4 CUDA graphs, "), of_graphs(fn)


@torch.no_grad()
def test_a_graph_of_a_step_that_waits():
    """torch and its allocator go on as before, and later graphs are captured."""
    first, last = graph_model(), graph_model()

    def waits(x):
        y = first(x)
        return last(y @ torch.linalg.inv(y.T @ y + torch.eye(8, device="cuda")) @ torch.ones(8, 64, device="cuda"))

    fn = ccompile.compile(waits, mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(16, 64, device="cuda")
        torch.testing.assert_close(fn(x), waits(x), rtol=1e-2, atol=1e-2)
    other = ccompile.compile(first, mode="reduce-overhead")
    for _ in range(5):
        torch.testing.assert_close(other(x), first(x), rtol=1e-3, atol=1e-4)
    assert of_graphs(other).startswith("1 CUDA graph, "), of_graphs(other)


@torch.no_grad()
def test_graphs_draw_eagers_random_numbers():
    model = torch.nn.Sequential(graph_model(), torch.nn.Dropout(), torch.nn.Linear(8, 8), torch.nn.Dropout(0.25)).cuda()
    fn = ccompile.compile(model, mode="reduce-overhead")
    for i in range(8):
        x = torch.randn(16, 64, device="cuda")
        if i % 2:
            torch.manual_seed(i)
        before = torch.cuda.get_rng_state()
        got, after = fn(x), torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)
        torch.testing.assert_close(got, model(x), rtol=1e-3, atol=1e-4)
        assert torch.equal(after, torch.cuda.get_rng_state())
    assert of_graphs(fn).startswith("1 CUDA graph, "), of_graphs(fn)


@torch.no_grad()
def test_graphs_give_their_memory_back():
    model, x = graph_model(), torch.randn(1024, 64, device="cuda")
    model(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    fn = ccompile.compile(model, mode="reduce-overhead")
    for _ in range(5):
        fn(x)
    assert of_graphs(fn).startswith("1 CUDA graph, "), of_graphs(fn)
    ccompile.reset()
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() <= before


@torch.no_grad()
def test_autotune_gives_what_eager_gives():
    fn = ccompile.compile(chain, mode="max-autotune")
    for _ in range(5):
        x, w = torch.randn(65, 513, device="cuda"), torch.randn(513, device="cuda")
        check(fn(x, w), chain(x, w))
    assert any("CUDA kernel of" in e.text for e in ccompile.events() if e.kind == "choice")


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_autocast(dtype, mode):
    model, x = graph_model(), torch.randn(8, 64, device="cuda")
    fn = ccompile.compile(model, mode=mode)
    for _ in range(3):   # blocks, each with casts of its own
        with torch.autocast("cuda", dtype):
            for _ in range(3):
                got, want = fn(x), model(x)
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        model[0].weight.mul_(-0.5)
    assert mode is None or of_graphs(fn).startswith("1 CUDA graph, "), of_graphs(fn)
