"""CUDA without a GPU: compiles with NVRTC if it is installed, else, and for running, with tests/cuda's emulated driver."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "core"), str(HERE / "cuda")]
import core_library  # noqa: E402
import emulated  # noqa: E402
import harness  # noqa: E402
from harness import Graph  # noqa: E402

GPU, CPU = 2, 1
ARCHS = [80, 90, 100]
SOURCE = """
struct Arg { float *at; float by; int n; long long more[2]; };
extern "C" __global__ void scale(const Arg arg) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < arg.n) arg.at[i] *= arg.by;
}
"""
needs_nvrtc = pytest.mark.skipif(harness.nvrtc() is None, reason="NVRTC is not installed: pip install -e '.[test]'")


class Arg(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("by", ctypes.c_float), ("n", ctypes.c_int), ("rest", ctypes.c_char * 3984)]


@pytest.fixture(scope="session")
def core(tmp_path_factory):
    return core_library.built(tmp_path_factory)


@pytest.fixture(scope="session")
def cuda(tmp_path_factory):
    return emulated.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def fresh(core, tmp_path):
    """-> a function that loads the core as a new process would find it: libraries are looked for again."""
    loaded = []

    def load():
        loaded.append(core)
        return harness.load(Path(shutil.copy(core, tmp_path / f"core{len(loaded)}.so")))

    return load


@pytest.fixture
def emulation(cuda, fresh, monkeypatch, tmp_path):
    """The core on the emulated driver, and what was asked of that."""
    monkeypatch.setenv("CCOMPILE_CUDA_PATH", str(cuda))
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("CCOMPILE_EMULATED_LOG", str(tmp_path / "log"))
    return fresh


def asked(tmp_path, what):
    log = tmp_path / "log"
    return [line for line in (log.read_text().splitlines() if log.exists() else []) if line.startswith(what)]


def cubin(lib, source=SOURCE, arch=90):
    text = ctypes.create_string_buffer(300)
    return lib.t_cubin(source.encode(), arch, text, 300), text.value.decode()


def launch(lib, t, by=2.0, device=0, source=SOURCE, name="scale"):
    arg = Arg(t.data_ptr(), by, t.numel())
    text = ctypes.create_string_buffer(300)
    status = lib.t_cuda(device, source.encode(), name.encode(), -(-t.numel() // 32), 32, ctypes.byref(arg), text, 300)
    return status, text.value.decode()


# ------------------------------------------------------------------------------------------------ NVRTC
@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_nvrtc_makes_a_cubin(fresh, monkeypatch, arch):
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", "")
    size, text = cubin(fresh(), arch=arch)
    assert size > 500, text


@needs_nvrtc
def test_paths_of_libraries_are_copied(fresh, monkeypatch):
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", "")
    lib = fresh()
    paths = [path and ctypes.create_string_buffer(path.encode()) for path in (*harness.libraries(), harness.nvrtc())]
    lib.t_libraries(*paths)
    for path in filter(None, paths):
        ctypes.memset(path, ord("?"), len(path) - 1)
    size, text = cubin(lib)
    assert size > 500, text
    g = Graph(lib)
    x = g.input(torch.randn(8, 8))
    g.out(g.op("exp", torch.exp, g.op("matmul", torch.matmul, x, x))).compile()
    assert g.stats().kernels == 1, "LLVM is missing"
    torch.testing.assert_close(g.run()[0], g.eager[g.outputs[0]])


@needs_nvrtc
def test_nvrtc_says_what_is_wrong(fresh, monkeypatch):
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", "")
    size, text = cubin(fresh(), SOURCE.replace("arg.by", "arg.nothing"))
    assert size == -1 and "nothing" in text, text


@needs_nvrtc
def test_a_gpu_that_is_newer_than_nvrtc_gets_ptx_and_an_older_one_nothing(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", str(tmp_path))
    lib = fresh()
    size, text = cubin(lib, arch=990)
    assert size > 500, text
    (kept,) = (tmp_path / "cubin").iterdir()
    assert b".target sm_" in kept.read_bytes()
    size, text = cubin(lib, arch=20)
    assert size == -1 and "sm_20" in text


# ------------------------------------------------------------------------------------------------ what is kept on disk
def test_a_program_is_compiled_once(emulation, tmp_path):
    first, second = emulation(), emulation()
    assert cubin(first)[0] > 0 and cubin(second)[0] > 0
    assert len(asked(tmp_path, "compile")) == 1
    assert cubin(second, SOURCE + "\n")[0] > 0 and cubin(second, arch=80)[0] > 0
    assert len(asked(tmp_path, "compile")) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "byte", "long", "other"])
def test_a_damaged_file_is_compiled_again(emulation, tmp_path, damage):
    lib = emulation()
    size, _ = cubin(lib)
    (kept,) = (tmp_path / "kept/cubin").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes({"cut": whole[:-7], "empty": b"", "byte": whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], "long": whole + b"x",
                      "other": whole.replace(b"scale", b"scald")}[damage])  # fmt: skip
    assert cubin(lib)[0] == size
    assert kept.read_bytes() == whole and len(asked(tmp_path, "compile")) == 2
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]


def test_a_folder_that_cannot_be_written_is_no_error(emulation, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", str(tmp_path / "file/below"))
    assert cubin(emulation())[0] > 0


def test_nothing_is_kept_where_that_is_switched_off(emulation, tmp_path, monkeypatch):
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    lib = emulation()
    assert cubin(lib)[0] > 0 and cubin(lib)[0] > 0 and not (tmp_path / "xdg").exists()
    monkeypatch.delenv("CCOMPILE_CACHE_DIR")
    assert cubin(lib)[0] > 0 and len(list((tmp_path / "xdg/ccompile/cubin").iterdir())) == 1


# ------------------------------------------------------------------------------------------------ the driver
def test_a_kernel_runs(emulation):
    t = torch.arange(100.0)
    assert launch(emulation(), t, 3.0) == (0, "")
    assert torch.equal(t, torch.arange(100.0) * 3)


def test_errors_name_the_kernel(emulation):
    t, lib = torch.ones(3), emulation()
    status, text = launch(lib, t, name="missing")
    assert status == -1 and "missing" in text and "CUDA_ERROR_NOT_FOUND" in text
    status, text = launch(lib, torch.empty(0))   # a grid of no blocks
    assert status == -1 and "scale" in text and "CUDA_ERROR_INVALID_VALUE" in text
    status, text = launch(lib, t, device=5)
    assert status == -1 and "no device 5" in text


def test_without_a_driver(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CCOMPILE_CUDA_PATH", str(tmp_path))
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has one")
    status, text = launch(fresh(), torch.ones(3))
    assert status == -1 and "libcuda.so.1" in text and "CCOMPILE_CUDA_PATH" in text


# ------------------------------------------------------------------------------------------------ graphs on GPUs
class Gpu(Graph):
    """Its values lie on a GPU, as the core sees it; the emulated one's memory is the CPU's."""

    def __init__(self, lib, index=0):
        super().__init__(lib)
        self.gpu = index

    def cpu_input(self, t):
        before, self.gpu = self.gpu, None
        v = self.input(t)
        self.gpu = before
        return v

    def right(self):
        for got, v in zip(self.run(), self.outputs):
            torch.testing.assert_close(got, self.eager[v], equal_nan=True)
        return self


def launches(tmp_path):
    return [line.split(" ", 2)[2] for line in asked(tmp_path, "launch")]


def test_kernels_run_on_the_device_and_stream_of_the_tensors(emulation, tmp_path, monkeypatch):
    monkeypatch.setenv("CCOMPILE_EMULATED_DEVICES", "3")
    g = Gpu(emulation(), 2)
    x, y = g.input(torch.randn(9, 50)), g.input(torch.randn(50))
    g.out(g.op("gelu", torch.nn.functional.gelu, g.op("add", torch.add, x, y))).compile()
    assert (g.stats().kernels, g.stats().host_steps, g.stats().primitives) == (1, 0, 0)
    g.streams[2] = 7
    g.right()
    g.streams[2] = 8
    g.right()
    assert launches(tmp_path) == ["on 2 stream 7", "on 2 stream 8"]


def test_products_are_the_hosts_and_values_between_kernels_are_in_a_block(emulation):
    g = Gpu(emulation(), 0)
    x = g.input(torch.randn(40, 30) / 8)   # sums near 30: a sine of large ones shows how they were rounded
    a = g.op("exp", torch.exp, x)
    b = g.op("matmul", torch.matmul, a, g.op("transpose", lambda t, i, j: t.transpose(i, j), a, 0, 1))
    row = g.op("cos", torch.cos, g.input(torch.randn(40)))
    g.out(g.op("mul", torch.mul, g.op("sin", torch.sin, b), row), g.op("add", torch.add, row, 1)).compile()
    assert (g.stats().kernels, g.stats().host_steps, g.stats().primitives) == (3, 2, 0), g.plan_text()
    g.right()
    assert [device for device, _ in g.blocks] == [0] and g.blocks[0][1] >= 160, g.plan_text()


def test_tensors_of_the_cpu_among_a_gpus(emulation):
    g = Gpu(emulation())
    x = g.input(torch.randn(6, 5))
    number, vector = g.cpu_input(torch.tensor(1.5)), g.cpu_input(torch.randn(5))
    a = g.op("mul", torch.mul, x, number)   # as a number
    b = g.op("add", torch.add, x, vector)   # eager refuses it on a GPU, and may do so here
    g.out(g.op("neg", torch.neg, a), b).compile()
    assert (g.stats().kernels, g.stats().host_steps) == (1, 1), g.plan_text()
    g.right()
    assert g.called == [1]


def test_of_two_gpus_the_one_with_more_values_has_kernels(emulation, monkeypatch, tmp_path):
    monkeypatch.setenv("CCOMPILE_EMULATED_DEVICES", "2")
    g = Gpu(emulation(), 0)
    first = g.op("exp", torch.exp, g.input(torch.randn(5)))
    g.gpu = 1
    second = g.op("cos", torch.cos, g.op("sin", torch.sin, g.input(torch.randn(5))))
    g.out(first, second).compile()
    assert (g.stats().kernels, g.stats().host_steps) == (1, 1)
    g.right()
    assert g.called == [0] and launches(tmp_path) == ["on 1 stream 0"]


def test_without_a_driver_all_is_the_hosts(fresh, monkeypatch, tmp_path):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has one")
    g = Gpu(fresh())
    g.out(g.op("exp", torch.exp, g.input(torch.randn(5)))).compile()
    assert (g.stats().kernels, g.stats().host_steps) == (0, 1)
    g.right()


def test_equal_kernels_are_compiled_once_and_a_graphs_in_one_program(emulation, tmp_path):
    lib = emulation()
    for size in (5, 77, 2000):
        g = Gpu(lib)
        x = g.input(torch.randn(size))
        y = g.op("exp", torch.exp, x)
        z = g.op("matmul", torch.dot, y, y)
        g.out(g.op("sin", torch.sin, z), g.op("add", torch.add, z, z)).compile()
        g.right()
    assert len(asked(tmp_path, "compile")) <= 2   # of one element, and of many


def test_constants_that_differ_are_numbers_of_one_kernel(emulation, tmp_path):
    """Of graphs, and of a graph, that is one program still."""
    lib, w = emulation(), torch.eye(6)
    for values in ((0.3, 0.7, 1.9, 2.7), (1.3, 5.1, 3.3)):
        g = Gpu(lib)
        y, by = g.input(torch.randn(4, 6)), g.input(w)
        for value in values:
            y = g.op("add", torch.add, g.op("sigmoid", torch.sigmoid, g.op("matmul", torch.matmul, y, by)), value)
            y = g.op("mul", torch.mul, y, 5 - value)
        g.out(y).compile()
        assert g.stats().kernels == len(values)
        g.right()
    kept = list((tmp_path / "kept" / "cubin").iterdir())
    assert len(asked(tmp_path, "compile")) == len(kept) == 1
    # the first one's own, and the one of the others
    assert kept[0].read_bytes().count(b"__global__") == 2


def test_an_index_out_of_range_is_the_kernels_to_find(emulation):
    g = Gpu(emulation())
    table, index = g.input(torch.randn(10, 4)), g.input(torch.tensor([1, 9, 3]))
    g.out(g.op("embedding", lambda w, i: torch.nn.functional.embedding(i, w), table, index)).compile()
    if g.stats().kernels == 0:
        pytest.skip("embedding is no kernel")
    g.right()
    wrong = {**g.inputs, index.v: torch.tensor([1, 10, 3])}
    with pytest.raises(RuntimeError, match="CUDA"):
        g.run(wrong)


def test_threads_launch_at_the_same_time(emulation, tmp_path):
    import threading

    g = Gpu(emulation())
    x = g.input(torch.randn(64, 33))
    g.out(g.op("sigmoid", torch.sigmoid, g.op("mul", torch.mul, x, x))).compile()
    wrong = []

    def work():
        for _ in range(10):
            if not torch.allclose(g.run()[0], g.eager[g.outputs[0]], atol=1e-6):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and len(launches(tmp_path)) == 40


# ------------------------------------------------------------------------------------------------ max-autotune
def chain(lib, x, w, **options):
    g = Gpu(lib)
    a, b = g.input(x), g.input(w)
    y = g.op("mul", torch.mul, g.op("exp", torch.exp, a), b)
    return g.out(g.op("softmax", torch.softmax, y, 1)).compile(**options)


def threads(tmp_path):
    """Of the last launch."""
    return int(asked(tmp_path, "threads")[-1].split()[1])


def measured(tmp_path):
    return len(asked(tmp_path, "event")) > 0


@pytest.fixture
def tensors():
    return torch.randn(9, 700), torch.randn(700)


@pytest.mark.parametrize("best", [64, 1024])
def test_the_fastest_block_is_taken(emulation, tmp_path, monkeypatch, tensors, best):
    monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", f"{best}:0.5")
    lib = emulation()
    chain(lib, *tensors, autotune=True).right()
    assert threads(tmp_path) == best and measured(tmp_path)


def test_a_gain_that_may_be_noise_is_none(emulation, tmp_path, monkeypatch, tensors):
    chain(emulation(), *tensors).right()
    own = threads(tmp_path)
    others = ",".join(f"{n}:0.98" for n in (64, 128, 256, 512, 1024) if n != own)
    monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", others)
    chain(emulation(), *tensors, autotune=True).right()
    assert threads(tmp_path) == own and measured(tmp_path)


def test_nothing_is_measured_without_the_option(emulation, tmp_path, tensors):
    chain(emulation(), *tensors).right()
    assert not measured(tmp_path)


def test_vector_widths(emulation, tmp_path, monkeypatch):
    """The same threads, other numbers of blocks."""
    x = torch.randn(4096)
    for blocks, name in ((4, "4"), (8, "2"), (16, "1")):
        monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", f"256/{blocks}:0.5,256:0.9")
        monkeypatch.setenv("CCOMPILE_CACHE_DIR", str(tmp_path / name))
        g = Gpu(emulation())
        g.out(g.op("exp", torch.exp, g.input(x))).compile(autotune=True)
        g.right()
        assert asked(tmp_path, "grid")[-1] == f"grid {blocks}", name


def test_a_choice_serves_the_process_and_the_next_one(emulation, tmp_path, monkeypatch, tensors):
    monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", "128:0.5")
    lib = emulation()
    chain(lib, *tensors, autotune=True).right()
    log = tmp_path / "log"
    for other in (lib, emulation()):
        log.write_text("")
        chain(other, *tensors, autotune=True).right()
        assert threads(tmp_path) == 128 and not measured(tmp_path)
    log.write_text("")
    chain(lib, tensors[0][:, :690].contiguous(), tensors[1][:690].clone(), autotune=True).right()
    assert threads(tmp_path) == 128 and not measured(tmp_path), "a size of the same class"
    chain(lib, torch.randn(9, 90), torch.randn(90), autotune=True).right()
    assert measured(tmp_path), "another one"


def test_a_choice_on_disk_that_is_none(emulation, tmp_path, monkeypatch, tensors):
    monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", "128:0.5")
    chain(emulation(), *tensors, autotune=True).right()
    for kept in (tmp_path / "kept/tuning").iterdir():
        kept.write_bytes(kept.read_bytes()[:-3])
    (tmp_path / "log").write_text("")
    chain(emulation(), *tensors, autotune=True).right()
    assert threads(tmp_path) == 128 and measured(tmp_path)


def test_without_memory_to_measure_with(emulation, tmp_path, monkeypatch, tensors):
    chain(emulation(), *tensors).right()
    own = threads(tmp_path)
    monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", "64:0.1")
    monkeypatch.setenv("CCOMPILE_EMULATED_MEMORY", "100")
    chain(emulation(), *tensors, autotune=True).right()
    assert threads(tmp_path) == own and not measured(tmp_path)


@pytest.mark.parametrize("size, best", [((3, 5000), 64), ((600, 7), 1024)])
def test_tuned_kernels_give_what_eager_gives(emulation, monkeypatch, tmp_path, size, best):
    """Indices of the measured memory are all 0, and within bounds."""
    monkeypatch.setenv("CCOMPILE_EMULATED_TIMES", f"{best}:0.5")
    g = Gpu(emulation())
    x, table, index = g.input(torch.randn(size)), g.input(torch.randn(10, 4)), g.input(torch.tensor([1, 9, 3]))
    rows = g.op("embedding", lambda w, i: torch.nn.functional.embedding(i, w), table, index)
    turned = g.op("transpose", lambda t, i, j: t.transpose(i, j), x, 0, 1)
    across, down = (g.op("softmax", lambda t, dims, d=d: torch.softmax(t, d), x, -d) for d in (-1, -2))   # a bit a dim
    g.out(across, down, g.op("exp", torch.exp, turned), g.op("relu", torch.relu, rows)).compile(autotune=True)
    assert g.stats().kernels >= 4 and g.stats().host_steps == 0 and measured(tmp_path), g.plan_text()
    g.right()
