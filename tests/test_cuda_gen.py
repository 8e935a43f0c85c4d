"""Kernels printed as CUDA C: run on the CPU by tests/cuda/emulation.h, compared with eager, and compiled by NVRTC if it is installed.

A test first records all of its graphs, so that one program holds their kernels; equal texts are one kernel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent / "core"))
sys.path.insert(0, str(Path(__file__).parent / "cuda"))
import core_library  # noqa: E402
import harness  # noqa: E402
import kernels as cuda  # noqa: E402
import test_core as core  # noqa: E402
import test_grad_rows as grads  # noqa: E402
import test_reduce as reduce  # noqa: E402
import test_scan as scans  # noqa: E402
from harness import Graph  # noqa: E402

ARCHS = ("sm_80", "sm_90", "sm_100")
FEW = 32  # bytes that a thread may spill: ptxas 13.0 does, of a scan for sm_100
DTYPES = {str(d).split(".")[1]: d for d in core.FLOATS + core.INTS}


@pytest.fixture(scope="session")
def lib(tmp_path_factory):
    return grads.informed(harness.load(core_library.built(tmp_path_factory)))


@pytest.fixture
def batch(lib, tmp_path, monkeypatch):
    monkeypatch.setenv("CCOMPILE_BACKEND", "ref")  # no machine code for the CPU
    return Batch(lib, tmp_path)


class Batch:
    """Graphs whose kernels become one program."""

    def __init__(self, lib, folder):
        self.lib, self.folder = lib, folder
        self.cases, self.kernels, self.for_nvrtc = [], [], []

    def add(self, label, g, compare, tuning=None, nvrtc=True):
        """compare(got, want, value)"""
        g.compile()
        assert not g.stats().host_steps, f"{label}\n{g.plan_text()}"
        kernels, refused = cuda.kernels_of(g, tuning)
        assert not refused, f"{label}: {refused}"
        self.kernels += kernels
        self.for_nvrtc += kernels if nvrtc else []
        self.cases.append((label, g, compare))
        return kernels

    def run(self, archs=("sm_90",), spills=True):
        """In both orders of threads: the results are the same to the last bit."""
        so = cuda.emulated(cuda.program(self.lib, self.kernels), self.folder)
        first = {}
        for order in (0, 1):
            cuda.bind(self.lib, self.kernels, so, order)
            for i, (label, g, compare) in enumerate(self.cases):
                results = g.run()
                if order == 0:
                    for got, v in zip(results, g.outputs, strict=True):
                        want = g.eager[v]
                        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride()), label
                        try:
                            compare(got, want, v)
                        except AssertionError as e:
                            raise AssertionError(f"{label}\n{e}") from e
                    first[i] = results
                else:
                    for a, b in zip(first[i], results, strict=True):
                        assert torch.equal(bits_of(a), bits_of(b)), f"{label}: depends on the order of threads"
        library = cuda.nvrtc()
        for arch in archs if library and self.for_nvrtc else ():
            _, log = cuda.compiled(library, cuda.program(self.lib, self.for_nvrtc), arch)
            found = cuda.resources(log)
            assert len(found) >= len({k.name for k in self.for_nvrtc})
            assert not spills or all(spilled <= FEW for _, spilled, _ in found.values()), found
            assert all(registers <= 255 for registers, _, _ in found.values())


def bits_of(t):
    """To be compared bit by bit, NaN included."""
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return t.contiguous().view(-1).view(size)


def equal(got, want, _):
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------------------------------------ pointwise


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_rows(batch, dtype):
    """All rows of test_core, an element a thread; and some elements a thread, with a tail. Eager may refuse."""
    tried = 0
    for name in sorted(core.ROWS):
        for fn, kinds in core.ROWS[name]:
            for shape, tuning in (((5, 13), None), ((7, 11), (64, 4))):
                try:
                    g = core.record(batch.lib, name, fn, kinds, dtype, shape)
                except (RuntimeError, NotImplementedError, TypeError):
                    continue
                g.compile()
                if g.stats().host_steps:
                    continue
                # Compiling functions several times over takes NVRTC long: those of one element a thread will do.
                nvrtc = (tuning is None or name not in core.APPROXIMATE) and dtype not in (torch.int8, torch.int16, torch.int32)
                batch.add(name, g, lambda got, want, _, name=name: core.same(name, got, want), tuning, nvrtc)
                tried += 1
    assert tried > 150
    # f64 functions of libdevice are calls, around which values are spilled.
    batch.run(archs=ARCHS if dtype is torch.float32 else ("sm_90",), spills=dtype is not torch.float64)


def test_derivatives(batch):
    tried = 0
    for op, fn, kinds, operand in (p.values for p in grads.rows()):
        try:
            args, result, grad, want = grads.eager(op, fn, kinds, operand, torch.float32)
        except (RuntimeError, TypeError):
            continue
        g = None if want is None else grads.graph(batch.lib, op, fn, args, operand, result, grad, want)
        if g is None or (want.shape, want.dtype) != ((made := g.eager[g.outputs[0]]).shape, made.dtype):  # a sum or a cast follows
            continue
        batch.add(f"{op} {operand}", g, lambda got, want, _, op=op: grads.same(op, got, want))
        tried += 1
    assert tried > 300
    batch.run()


def test_casts(batch):
    for dtype in DTYPES.values():
        for to in DTYPES.values():
            x = core.tensor("t", dtype, (7, 6), 1)
            if dtype.is_floating_point and not to.is_floating_point and to is not torch.bool:
                x = x.nan_to_num(0, 3, -3).clamp(0 if to is torch.uint8 else -100, 100)  # the rest is undefined in C++
            for tuning in (None, (32, 2)):
                g = Graph(batch.lib)
                g.out(g.op("cast", lambda t, to=to: t.to(to, copy=True), g.input(x)))
                batch.add(f"{dtype} {to}", g, equal, tuning)
    batch.run()


def test_half_precision_of_all_values(batch):
    """Every bfloat16 and float16 to float32 and back, and floats around the halves of them: denormals, ties, overflow, NaN."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        x = bits.view(dtype)
        wide = x.float()
        near = torch.cat([wide, *(wide.view(torch.int32).add(d << s).view(torch.float32) for d in (-1, 1) for s in (0, 12, 15))])
        for source, to in ((x, torch.float32), (near, dtype)):
            g = Graph(batch.lib)
            g.out(g.op("cast", lambda t, to=to: t.to(to, copy=True), g.input(source)))
            batch.add(f"{dtype} {to}", g, equal)
    batch.run()


def test_fill_and_places(batch):
    for dtype in DTYPES.values():
        g = Graph(batch.lib)
        g.out(g.op("fill", lambda value, dtype=dtype: torch.full((3, 5), value, dtype=dtype), 1))
        batch.add("fill", g, equal)
    for shape, tuning in (((6, 9), None), ((4, 5, 16), (64, 4)), ((3, 7), (32, 2))):
        x = torch.randn(shape)
        for name, k in (("tril", 1), ("triu", -2)):
            for t in (x, x.transpose(-1, -2)):
                g = Graph(batch.lib)
                g.out(g.op(name, getattr(torch, name), g.input(t), k))
                batch.add(name, g, equal, tuning)
    batch.run()


def test_layouts(batch):
    """Strides, broadcasting and offsets, an element or several a thread; the results have the strides that eager gives."""
    base = core.tensor("t", torch.float32, (3, 6, 40), 1)
    layouts = {**harness.LAYOUTS, "whole": lambda t: t, "row": lambda t: t[:, :1], "number": lambda t: t[0, 0, 0]}
    for label, lay in layouts.items():
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.uint8):
            a = lay(base.nan_to_num(1, 2, 3).abs().to(dtype))
            for b in (a.clone(), a[..., :1] if a.dim() else a, a[:1] if a.dim() else a):
                for tuning in (None, (32, 4), (64, 8)):
                    g = Graph(batch.lib)
                    x, y = g.input(a), g.input(b)
                    s = g.op("maximum", torch.maximum, x, y)
                    g.out(s, g.op("gt", torch.gt, s, y))
                    batch.add(f"{label} {dtype} {tuning}", g, equal, tuning, dtype is torch.bfloat16)
    batch.run()


@pytest.mark.parametrize("shape", core.SHAPES, ids=str)
def test_shapes(batch, shape):
    for tuning in (None, (32, 4)):
        g = Graph(batch.lib)
        a, b = (g.input(core.tensor("t", torch.float32, shape, s)) for s in (1, 2))
        g.out(g.op("sub", torch.sub, g.op("mul", torch.mul, a, 3), b))
        batch.add(str(shape), g, equal, tuning)
    batch.run(archs=())


def test_large(batch):
    """Chosen by the printer: several elements a thread, many blocks, threads that loop; a short last dim."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int8):
        for shape, other in (((300007,), (1,)), ((512, 1024), (1024,)), ((512, 1024), (512, 1)), ((100000, 3), (3,)), ((2, 64, 56, 56), (64, 1, 1))):
            g = Graph(batch.lib)
            x, y = (g.input(torch.randint(-9, 9, s).to(dtype)) for s in (shape, other))
            g.out(g.op("mul", torch.mul, g.op("add", torch.add, x, y), x))
            batch.add(f"{dtype} {shape}", g, equal)
    batch.run(archs=ARCHS)
    assert "cc_load<8>" in "".join(k.text for k in batch.kernels)


def test_loads_are_wide(lib, monkeypatch):
    """16 bytes by one instruction, and what stays in registers is in no local memory: as PTX, where NVRTC is installed."""
    library = cuda.nvrtc()
    if not library:
        pytest.skip("no NVRTC: nvidia-cuda-nvrtc-cu12 is not installed")
    monkeypatch.setenv("CCOMPILE_BACKEND", "ref")
    for dtype, load in ((torch.float32, "ld.global.v4"), (torch.bfloat16, "ld.global.v4"), (torch.float64, "ld.global.v2")):
        for name in ("exp", "softmax"):
            g = Graph(lib)
            x = g.input(torch.randn(600, 1024).to(dtype))
            g.out(g.op(name, torch.exp, x) if name == "exp" else reduce.add(g, name, x, 1))
            g.compile()
            kernels, _ = cuda.kernels_of(g)
            ptx, _ = cuda.compiled(library, cuda.program(lib, kernels), "compute_80")
            assert load in ptx.decode() and load.replace("ld", "st") in ptx.decode(), ptx.decode()
            _, log = cuda.compiled(library, cuda.program(lib, kernels), "sm_80")
            assert all(spilled == stack == 0 for _, spilled, stack in cuda.resources(log).values())


def test_memory_that_is_not_aligned(batch):
    """Views may begin anywhere: the kernel looks at its pointers."""
    for begin in (0, 1, 2, 4):
        g = Graph(batch.lib)
        x = torch.randn(70008)[begin : begin + 70000]
        g.out(g.op("neg", torch.neg, g.input(x)))
        (kernel,) = batch.add(str(begin), g, equal, (0, 4))
        assert "cc_load<4>" in kernel.text
    batch.run(archs=())
    assert len({k.name for k in batch.kernels}) == 1


def test_wide_indices(batch):
    """Beyond 2^31 elements (of which few exist)."""
    for shape, stride in (((2, 64), (2**31, 1)), ((64, 2), (1, 2**31))):
        rows = torch.empty(2**31 + 64, dtype=torch.int8).as_strided(shape, stride)
        rows.copy_(torch.randint(-9, 9, rows.shape))
        for tuning in (None, (32, 8)):
            g = Graph(batch.lib)
            x = g.input(rows)
            y = g.op("add", torch.add, x, x)
            g.out(y, reduce.add(g, "amax", y, 1))
            for k in batch.add(str(tuning), g, equal, tuning):
                assert "unsigned long long n;" in k.text
    batch.run(archs=("sm_80",))


def test_one_text_for_all_sizes(lib, monkeypatch):
    monkeypatch.setenv("CCOMPILE_BACKEND", "ref")

    def texts(*shape):
        g = Graph(lib)
        x, w = g.input(torch.randn(*shape)), g.input(torch.randn(shape[-1]))
        y = g.op("mul", torch.mul, x, w)
        g.out(y, reduce.add(g, "softmax", y, -1))
        g.compile()
        return [k.text for k in cuda.kernels_of(g)[0]]

    assert texts(900, 600) == texts(1000, 640)
    assert texts(5, 7) == texts(3, 6)


# ------------------------------------------------------------------------------------------------ indices and numbers


def take_graph(lib, x, i):
    g = Graph(lib)
    g.out(g.op("mul", torch.mul, g.op("embedding", lambda w, at: F.embedding(at, w), g.input(x), g.input(i)), 2))
    return g


def test_indices(batch):
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        for i in (torch.randint(0, 50, (6, 5)), torch.randint(0, 50, (7,)), torch.randint(0, 50, (4, 3), dtype=torch.int32)):
            for width in (64, 13):
                x = torch.randn(50, width).to(dtype)
                for tuning in (None, (32, 4)):
                    batch.add(f"embedding {i.shape}", take_graph(batch.lib, x, i), equal, tuning)
                    for dim in (0, 1):
                        g = Graph(batch.lib)
                        at = i.flatten() % x.shape[dim]
                        g.out(g.op("index_select", torch.index_select, g.input(x), dim, g.input(at)))
                        batch.add("index_select", g, equal, tuning)
                        g = Graph(batch.lib)
                        at = (i % 13).reshape(i.shape[0], -1)
                        g.out(g.op("gather", torch.gather, g.input(x), dim, g.input(at.long())))
                        batch.add("gather", g, equal, tuning)
                        g = Graph(batch.lib)
                        r = g.op("index_select", torch.index_select, g.input(x), dim, g.input(i.flatten() % x.shape[dim]))
                        g.out(reduce.add(g, "amax", r, 1))
                        batch.add("reduced", g, equal, tuning)
    batch.run()


def test_an_index_out_of_range_fails_the_kernel(batch, capfd):
    x, i = torch.randn(50, 64), torch.randint(0, 50, (6,))
    graphs = [take_graph(batch.lib, x, i) for _ in range(2)]
    for g, tuning in zip(graphs, (None, (32, 4)), strict=True):
        batch.add("embedding", g, equal, tuning)
    batch.run(archs=())
    for g in graphs:
        for wrong in (50, -1, 2**40):
            i[2] = wrong
            with pytest.raises(RuntimeError, match="CUDA error 710"):  # cudaErrorAssert, as eager's
                g.run()
        i[2] = 49
        (got,) = g.run()
        equal(got, F.embedding(i, x) * 2, None)
    assert "an index is out of range" in capfd.readouterr().err


def test_numbers_of_the_host(batch):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        g = Graph(batch.lib)
        x = g.input(torch.randn(5, 12).to(dtype))
        g.out(g.op("add", torch.add, g.op("mul", torch.mul, x, g.number(0.1)), g.number(2.0)))
        batch.add(str(dtype), g, equal)
    batch.run()
    for _, g, _ in batch.cases:
        g.numbers[:] = [1 / 3, -7.0]
        (got,) = g.run()
        (x,) = g.inputs.values()
        equal(got, x * (1 / 3) + -7.0, None)


# ------------------------------------------------------------------------------------------------ reductions


def near(scale):
    return lambda got, want, _: reduce.near(got, want, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, *reduce.INTS], ids=str)
def test_reductions(batch, dtype):
    shapes = (((5, 37), 1, False), ((5, 37), 0, True), ((4, 6, 70), 1, False), ((3, 4, 21), None, False), ((3, 4, 21), (0, 2), True),
              ((2, 6, 5, 8), (1, 3), False), ((6, 512), -1, False), ((3, 6000), 1, False), ((900, 6), 0, False))  # fmt: skip
    for name in sorted(reduce.OPS):
        for shape, d, keep in shapes:
            if name in reduce.ONE_DIM and not isinstance(d, int):
                continue
            if name.endswith("_norm"):
                d = {1: -1, 0: -2}.get(d, -1)
            x = reduce.sample(shape, dtype)
            if name == "prod" and dtype.is_floating_point:
                if dtype.itemsize == 2:
                    continue  # eager rounds each product
                x = 1 + x.sign() / 256
            for tuning in (None, (64, 4)):
                g = Graph(batch.lib)
                try:
                    g.out(reduce.add(g, name, g.input(x), d, keep))
                except (RuntimeError, NotImplementedError):
                    continue  # eager refuses
                g.compile()
                if g.stats().host_steps:
                    continue
                big = x.double().abs().sum().item() if name == "sum" else 1.0
                if name == "rms_norm" and dtype.itemsize == 2:
                    big = 4.0  # eager rounds what lies in between
                nvrtc = dtype in (torch.float32, torch.bfloat16, torch.int64) or (dtype is torch.float64 and not tuning)
                batch.add(f"{name} {shape} {d} {tuning}", g, near(big), tuning, nvrtc)
    assert len(batch.cases) > 60
    batch.run(spills=dtype is not torch.float64)


def test_reductions_of_all_layouts(batch):
    for dtype in (torch.float32, torch.uint8, torch.bfloat16):
        names = ("amax", "sum", "softmax") if dtype.is_floating_point else ("amax", "sum", "all")
        for layout, lay in reduce.LAYOUTS.items():
            x = lay(reduce.sample((3, 5, 40), dtype))
            for d in (*range(x.dim()), (0, x.dim() - 1)):
                for name in names:
                    if name == "softmax" and not isinstance(d, int):
                        continue
                    g = Graph(batch.lib)
                    g.out(reduce.add(g, name, g.input(x), d))
                    batch.add(f"{name} {layout} {d}", g, near(30))
    batch.run()


def test_reductions_of_all_sizes(batch):
    """Short rows by a part of a warp, longer ones by a warp, in registers or not, by blocks, cut into pieces; columns."""
    for shape in ((200, 1), (100, 3), (65, 16), (9, 33), (3000, 65), (2100, 256), (2100, 1000), (130, 1000), (70, 4100), (3, 4100), (2, 30000), (1, 100001),
                  (1, 40007), (1, 150001), (2, 80000), (33, 17000)):  # fmt: skip
        x = torch.randn(shape)
        for name in ("sum", "softmax", "var", "layer_norm"):
            if name in ("softmax", "var") and shape[1] == 1:
                continue
            for t, d in ((x, 1), (x.t().contiguous(), 0)):
                if name == "layer_norm" and d == 0:
                    continue
                g = Graph(batch.lib)
                g.out(reduce.add(g, name, g.input(t), -1 if name == "layer_norm" else d))
                batch.add(f"{name} {tuple(t.shape)} {d}", g, near(1000 if name == "sum" else 1))
    batch.run()
    text = "".join(k.text for k in batch.kernels)
    for what in ("h0[h]", "__syncthreads", "workspace", "other = cc_other", "#pragma unroll 4"):
        assert what in text


def test_patterns(batch):
    """Several reductions and what is around them in one kernel."""
    for pattern in (reduce.llama, reduce.by_hand, reduce.masked, reduce.residual, reduce.first_dim, reduce.moments, reduce.behind, reduce.standardise):
        for shape in ((6, 40), (2, 3, 40), (700, 40)):
            for tuning in (None, (64, 4)):
                g = Graph(batch.lib)
                g.out(*pattern(g, g.input(torch.randn(shape)), g.input(torch.rand(40))))
                batch.add(pattern.__name__, g, near(10), tuning)
    batch.run(archs=ARCHS)


def test_inverse_roots(batch):
    """1 / sqrt(x) is one instruction in f32; not where the root is what stays in registers, and x is gone."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for tuning in (None, (64, 4)):
            g = Graph(batch.lib)
            g.out(g.op("mul", torch.mul, g.op("rsqrt", torch.rsqrt, g.input(torch.rand(70, 40).to(dtype) + 0.1)), 3))
            (kernel,) = batch.add(f"point {dtype}", g, near(10), tuning)
            assert ("rsqrtf(" in kernel.text) == (dtype is not torch.float64)
            g = Graph(batch.lib)
            root = g.op("sqrt", torch.sqrt, g.input(torch.rand(70, 40).to(dtype) + 0.1))
            total = reduce.add(g, "sum", root, 1, True)
            g.out(g.op("mul", torch.mul, total, g.op("div", torch.div, 1.0, root)))
            (kernel,) = batch.add(f"rows {dtype}", g, near(10), tuning)
            assert "rsqrtf(" not in kernel.text or dtype is not torch.float64
    batch.run()


@pytest.mark.parametrize("name", ["sum", "amax", "amin", "var", "logsumexp", "softmax", "any"])
def test_special_values(batch, name):
    inf, nan = float("inf"), float("nan")
    for width in (5, 40, 130, 5000):
        rows = [[inf], [-inf], [nan], [inf, -inf], [nan, inf], [-inf] * width, [inf] * width, [nan] * width, [-0.0] * width]
        x = torch.randn(len(rows), width)
        for r, values in enumerate(rows):
            x[r, width - len(values) :] = torch.tensor(values)
        for t, d in ((x, 1), (x.t().contiguous(), 0)):
            g = Graph(batch.lib)
            g.out(reduce.add(g, name, g.input(t), d))
            batch.add(f"{name} {width} {d}", g, near(1))
    batch.run(archs=())


# ------------------------------------------------------------------------------------------------ scans


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_scans(batch, dtype):
    """By lanes, parts of a warp, warps, blocks that go along the row; down columns; over and over."""
    for name in sorted(scans.SCANS):
        for shape, d in (*scans.SHAPES, ((70, 3), 1), ((2, 9000), 1), ((300, 40), 1), ((2100, 40), 0)):
            x = reduce.sample(shape, dtype)
            if name == "cumprod" and dtype.is_floating_point:
                x = 1 + x.sign() / 4096
            for t in (x, x[..., ::2]) if x.dim() else (x,):
                g = Graph(batch.lib)
                try:
                    g.out(scans.scan(g, name, g.input(t), d))
                except (RuntimeError, NotImplementedError):
                    continue  # eager refuses
                nvrtc = dtype in (torch.float32, torch.uint8)
                batch.add(f"{name} {shape} {d}", g, lambda got, want, _: reduce.near(got, want, scale_of(want)), None, nvrtc)
    if batch.cases:
        batch.run()


def scale_of(want):
    return max(10, want.abs().nan_to_num(0, 0, 0).max().item()) if want.dtype.is_floating_point and want.numel() else 1


def test_scans_and_what_is_around_them(batch):
    for pattern in (scans.twice, scans.around, scans.of_softmax, scans.reduced, scans.many, scans.down):
        for shape in ((6, 40), (12, 131), (3, 2000)):
            g = Graph(batch.lib)
            g.out(*pattern(g, g.input(torch.randn(shape) / 4)))
            batch.add(f"{pattern.__name__} {shape}", g, lambda got, want, _: reduce.near(got, want, scale_of(want)))
    batch.run(archs=ARCHS)
    assert "scan" in "".join(k.text for k in batch.kernels)


def test_scans_of_special_values(batch):
    inf, nan = float("inf"), float("nan")
    for width in (5, 40, 130, 1500):
        rows = [[inf], [-inf], [nan], [inf, -inf], [-inf, -inf, 1], [nan, inf], [-inf] * width, [inf] * width, [0.0, inf], [-0.0] * width]
        x = 1 + torch.randn(len(rows), width).sign() / 64
        for r, values in enumerate(rows):
            x[r, width // 2 :][: len(values)] = torch.tensor(values)[: width - width // 2]
        for name in sorted(scans.SCANS):
            for t, d in ((x, 1), (x.t().contiguous(), 0)):
                g = Graph(batch.lib)
                g.out(scans.scan(g, name, g.input(t), d))
                batch.add(f"{name} {width} {d}", g, lambda got, want, _: reduce.near(got, want, scale_of(want)))
    batch.run(archs=())


# ------------------------------------------------------------------------------------------------ elements from elsewhere

MODES = {"pad_reflect": "reflect", "pad_replicate": "replicate", "pad_circular": "circular"}


def pads_of(name):
    def pad(x, *pads):
        if name != "pad":
            return F.pad(x, pads, MODES[name])
        return F.pad(x, pads[:-1], "constant", pads[-1])

    return pad


def moved():
    """(row, function, operands behind x, shape of x): nothing is computed."""
    for pads in ((1, 2), (0, 2, 3, 0), (-1, 2, 1, -2), (0, 0)):
        yield "pad", pads_of("pad"), (*pads, 3), (2, 3, 5, 6)
    for name in MODES:
        for pads, shape in (((1, 2), (2, 3, 5)), ((4, 0, 0, 3), (2, 3, 4, 6)), ((1, 0, 2, 1, 0, 2), (2, 3, 4, 5, 6))):
            yield name, pads_of(name), pads, shape
    yield "roll", lambda x, *a: torch.roll(x, a[:2], a[2:]), (1, -7, 0, 2), (3, 4, 5)
    yield "roll", lambda x, by, d: torch.roll(x, by, d), (3, 1), (3, 4, 16)
    yield "roll", lambda x, by: torch.roll(x, by), (-8,), (3, 4, 5)


NEAREST = [("upsample_nearest", F.interpolate, (7, 3), None), ("upsample_nearest", F.interpolate, None, (1.5, 3.0)),
           ("upsample_exact", lambda x, **k: F.interpolate(x, mode="nearest-exact", **k), (4, 11), None)]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.float64], ids=str)
def test_moves(batch, dtype):
    torch.manual_seed(0)
    for name, fn, operands, shape in moved():
        for lay in (lambda t: t, lambda t: t.transpose(1, -1), lambda t: t[..., ::2]):
            base = torch.randint(0, 9, (*shape[:-1], 2 * shape[-1])).to(dtype)
            x = lay(base)[..., : shape[-1]]
            if name == "roll" and len(operands) == 1:
                x = x.contiguous()  # torch's
            for tuning in (None, (64, 4)):
                g = Graph(batch.lib)
                try:
                    g.out(g.op(name, fn, g.input(x), *operands))
                except RuntimeError:
                    continue  # this layout's dims are too small for it
                batch.add(f"{name} {operands} {tuple(x.shape)} {x.stride()}", g, equal, tuning, dtype in (torch.float32, torch.bfloat16))
    for name, fn, size, factors in NEAREST if dtype.is_floating_point else ():
        for x in (torch.randn(2, 3, 5, 4), torch.randn(2, 8, 5, 4).to(memory_format=torch.channels_last)):
            g = Graph(batch.lib)
            call = lambda t, *_, fn=fn, size=size, factors=factors: fn(t, size=size) if size else fn(t, scale_factor=factors)  # noqa: E731
            g.out(g.op(name, call, g.input(x.to(dtype)), *(factors or ())))
            batch.add(f"{name} {size} {factors}", g, equal)
    assert len(batch.cases) > 60
    batch.run(archs=ARCHS if dtype is torch.float32 else ("sm_90",))


def test_joins(batch):
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int16):
        for shape, sizes, d in (((3, 4, 5), (1, 2, 4), 1), ((3, 4, 5), (5, 0, 7), 2), ((2, 16), (3, 3), 0), ((600, 64), (500, 7, 1), 0), ((9,), (1,) * 16, 0)):
            pieces = [torch.randint(0, 9, (*shape[:d], n, *shape[d + 1 :])).to(dtype) for n in sizes]
            if d and len(shape) > 1:
                pieces[-1] = pieces[-1].transpose(0, 1).contiguous().transpose(0, 1)
            for tuning in (None, (64, 8)):
                g = Graph(batch.lib)
                y = g.op("cat", lambda *a: torch.cat(a[:-1], a[-1]), *map(g.input, pieces), d)
                g.out(y, g.op("ne", torch.ne, y, 3))
                batch.add(f"cat {shape} {sizes} {d}", g, equal, tuning)
                g = Graph(batch.lib)
                like = [torch.randint(0, 9, shape).to(dtype) for _ in range(3)]
                g.out(g.op("stack", lambda *a: torch.stack(a[:-1], a[-1]), *map(g.input, like), d))
                batch.add(f"stack {shape} {d}", g, equal, tuning)
    batch.run()


def test_a_join_of_new_sizes_is_the_same_kernel(lib, monkeypatch):
    """As keys and values that grow by one token in each call are."""
    monkeypatch.setenv("CCOMPILE_BACKEND", "ref")

    def texts(n):
        g = Graph(lib)
        g.out(g.op("cat", lambda *a: torch.cat(a[:-1], a[-1]), g.input(torch.randn(2, 8, n, 64)), g.input(torch.randn(2, 8, 1, 64)), 2))
        g.compile()
        return [k.text for k in cuda.kernels_of(g)[0]]

    assert texts(70) == texts(71) == texts(95)


def key(*parts):
    """(operands of a key, the key); a part is an int, a slice, None, ... for all of a dim, or True for a mask."""
    operands, index = [], []
    for part in parts:
        if part is None:
            operands += [0]
        elif part is ...:
            operands += [1]
        elif isinstance(part, tuple):
            first, length, step = part
            operands += [2, first, length, step]
            part = slice(first, first + (length - 1) * step + 1, step)
        elif part is not True:
            operands += [3, part]
        index.append(slice(None) if part is ... else part)
    return operands, index


def put(x, value, index):
    x = x.clone()
    x[tuple(index)] = value
    return x


KEYS = [(..., (1, 2, 1)), ((0, 2, 2), 3), (None, 0), (..., ..., (1, 2, 1)), (2, (1, 2, 3)), (), (..., (2, 4, 1))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_writes(batch, dtype):
    """To slices and under masks, of tensors that are broadcast, and of numbers."""
    torch.manual_seed(0)
    for parts in KEYS:
        operands, index = key(*parts)
        x = torch.randint(0, 9, (4, 6, 3)).to(dtype)
        shape = x[tuple(index)].shape
        for value in (torch.randint(0, 9, shape), torch.randint(0, 9, shape[-1:]), torch.tensor(5), 3):
            for t in (x, x.permute(1, 0, 2).contiguous().permute(1, 0, 2)):
                g = Graph(batch.lib)
                v = g.input(value.to(dtype)) if isinstance(value, torch.Tensor) else bool(value) if dtype is torch.bool else value
                g.out(g.op("put", lambda x, v, *_, i=index: put(x, v, i), g.input(t), v, *operands))
                batch.add(f"put {parts} {value}", g, equal)
    for dims, before in ((2, ()), (3, ()), (1, (...,)), (1, (2,))):
        x = torch.randint(0, 9, (4, 6, 3)).to(dtype)
        mask = torch.rand(x.shape[len(before) :][:dims]) > 0.5
        operands, index = key(*before)
        for number in (1, torch.tensor(0)):
            g = Graph(batch.lib)
            v = g.input(number.to(dtype)) if isinstance(number, torch.Tensor) else bool(number) if dtype is torch.bool else number
            g.out(g.op("put", lambda x, v, *a, i=index: put(x, v, [*i, a[-1]]), g.input(x), v, *operands, 4, g.input(mask)))
            batch.add(f"mask {dims} {before}", g, equal, None)
    x = torch.randint(0, 9, (4, 6, 3)).to(dtype)
    for d, i in ((0, 2), (1, -1), (2, 0)):
        g = Graph(batch.lib)
        g.out(g.op("select_scatter", torch.select_scatter, g.input(x), g.input(x.select(d, 0).clone()), d, i))
        batch.add(f"select_scatter {d}", g, equal)
    batch.run()


def pools():
    """(row, function, operands behind x, shape of x)."""
    for k, s, p, dil, ceil, shape in (((3, 3), (2, 2), (1, 1), (1, 1), False, (2, 3, 9, 10)), ((2, 3), (0, 0), (1, 0), (1, 1), True, (2, 3, 8, 10)), ((3, 3), (2, 1), (1, 1), (2, 3), True, (1, 8, 10, 11)), ((3,), (0,), (0,), (1,), False, (2, 3, 11)), ((2, 2, 2), (2, 1, 2), (1, 0, 1), (1, 1, 1), True, (1, 2, 5, 4, 7))):
        n = len(k)
        fn = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        yield "max_pool", lambda x, *_, fn=fn, a=(k, None if not s[0] else s, p, dil, ceil): fn(x, *a), (*k, *s, *p, *dil, ceil), shape
        yield "max_pool_at", lambda x, *_, fn=fn, a=(k, None if not s[0] else s, p, dil, ceil): fn(x, *a, return_indices=True)[1], (*k, *s, *p, *dil, ceil), shape
        for count in (False, True):
            avg = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
            yield "avg_pool", lambda x, *_, fn=avg, a=(k, None if not s[0] else s, p, ceil, count): fn(x, *a), (*k, *s, *p, ceil, count, None), shape
    yield "avg_pool", lambda x, *_: F.avg_pool2d(x, (2, 3), divisor_override=5), (2, 3, 0, 0, 0, 0, False, True, 5), (2, 3, 6, 7)
    for size, shape in (((3, 4), (2, 3, 10, 11)), ((5, 5), (2, 3, 10, 5)), ((7, 7), (2, 3, 5, 10)), ((4,), (3, 2, 11)), ((2, 3, 2), (1, 2, 4, 5, 3))):
        n = len(size)
        yield "adaptive_avg_pool", lambda x, *_, n=n, size=size: (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[n - 1](x, size), size, shape
        most = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[n - 1]
        yield "adaptive_max_pool", lambda x, *_, fn=most, size=size: fn(x, size), size, shape
        yield "adaptive_max_pool_at", lambda x, *_, fn=most, size=size: fn(x, size, return_indices=True)[1], size, shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_pools(batch, dtype):
    """Rounded, so that there are equal elements; with NaN and infinities."""
    torch.manual_seed(0)
    for name, fn, operands, shape in pools():
        x = (torch.randn(shape) * 2).round().to(dtype)
        special = x.clone()
        special.view(-1)[::7] = torch.tensor([float("nan"), float("inf"), -0.0, float("-inf")], dtype=dtype).repeat(x.numel())[: len(special.view(-1)[::7])]
        last = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
        for t in (x, last) if "avg" in name else (x, last, special, torch.full_like(x, float("-inf"))):
            g = Graph(batch.lib)
            try:
                g.out(g.op(name, fn, g.input(t), *operands))
            except NotImplementedError:
                continue  # eager's avg_pool3d of half precision, on a CPU
            batch.add(f"{name} {operands} {shape} {t.stride()}", g, near(4), None, dtype in (torch.float32, torch.float16))
    assert len(batch.cases) > 90
    batch.run(archs=ARCHS if dtype is torch.float32 else ("sm_90",))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_resampling(batch, dtype):
    torch.manual_seed(0)
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}
    for shape, size, factors in (((2, 3, 7), (12,), None), ((2, 3, 6, 5), (13, 3), None), ((2, 3, 6, 5), None, (2.0, 1.7)), ((2, 8, 6, 5), (6, 9), None), ((1, 2, 3, 4, 5), (4, 5, 7), None)):
        for name in ("upsample_linear", "upsample_cubic") if len(shape) == 4 else ("upsample_linear",):
            mode = "bicubic" if name == "upsample_cubic" else linear[len(shape)]
            for corners in (False, True):
                x = torch.randn(shape, dtype=dtype)
                for t in (x, x.to(memory_format=torch.channels_last) if x.dim() == 4 else x):
                    g = Graph(batch.lib)
                    call = lambda t, *_, m=mode, c=corners, s=size, f=factors: F.interpolate(t, s, f, m, c)  # noqa: E731
                    g.out(g.op(name, call, g.input(t), corners, *(factors or ())))
                    batch.add(f"{name} {shape} {size} {factors} {corners}", g, near(8))
    batch.run(archs=ARCHS if dtype is torch.float32 else ("sm_90",))


# ------------------------------------------------------------------------------------------------ the emulation itself

BROKEN = {
    "shuffle": ("if (threadIdx.x < 7) arg.out[0] = __shfl_xor_sync(0xffffffffu, 1, 1);", "lanes are missing at a shuffle"),
    "barrier": ("if (threadIdx.x < 32) __syncthreads();", "threads are missing at __syncthreads()"),
    "mask": ("arg.out[0] = __shfl_xor_sync(1u, 1, 1);", "a warp's mask is not full"),
    "trap": ("if (blockIdx.x == 1) __trap();", "trap"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_emulation_finds_what_hangs_a_gpu(what, tmp_path, capfd):
    import ctypes

    body, message = BROKEN[what]
    source = f'struct A {{ int *out; long long a, b; }};\nextern "C" __global__ void broken(const A arg) {{ {body} }}\n'
    so = cuda.emulated(source, tmp_path)
    out = (ctypes.c_int * 4)()
    argument = (ctypes.c_int64 * 3)(ctypes.addressof(out), 0, 0)
    launch = so.cc_emulation_launch
    launch.argtypes = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    assert launch(ctypes.cast(so.broken, ctypes.c_void_p), 2, 64, 0, argument, 24, 0) == 719
    assert message in capfd.readouterr().err


def test_emulation_finds_a_race(tmp_path):
    """Threads that read what others write without a barrier get something else in the other order."""
    import ctypes

    source = """struct A { int *out; long long a, b; };
    extern "C" __global__ void race(const A arg) {
        __shared__ int x[64];
        x[threadIdx.x] = 1 + threadIdx.x;
        arg.out[threadIdx.x] = x[63 - threadIdx.x];
    }
    """
    so = cuda.emulated(source, tmp_path)
    results = []
    for order in (0, 1):
        out = (ctypes.c_int * 64)()
        argument = (ctypes.c_int64 * 3)(ctypes.addressof(out), 0, 0)
        so.cc_emulation_launch.argtypes = [ctypes.c_void_p, ctypes.c_longlong, *[ctypes.c_int] * 2, ctypes.c_void_p, *[ctypes.c_int] * 2]
        assert so.cc_emulation_launch(ctypes.cast(so.race, ctypes.c_void_p), 1, 64, 0, argument, 24, order) == 0
        results.append(list(out))
    assert results[0] != results[1]
