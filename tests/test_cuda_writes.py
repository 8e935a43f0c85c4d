"""Writes at indices as CUDA kernels (pass/writes.c, loop/put.c): the reference executor and tests/cuda/emulation.h against eager, and NVRTC.

Values that collide in one element combine exactly here (small whole numbers, powers of two), so the order of threads must not matter.
tests/cuda/writes.py is about functions whose writes are visible outside."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "core"))
from harness import Graph  # noqa: E402
from test_cuda_gen import ARCHS, batch, equal, lib  # noqa: E402, F401  fixtures

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SUMMED = (*FLOATS, torch.int32, torch.int64)
ALL = (*SUMMED, torch.int16, torch.int8, torch.uint8, torch.bool)
HOW = {"sum": 1, "prod": 2, "amax": 4, "amin": 5}


def whole(shape, dtype, low=-4, high=5):
    """Whole numbers: sums of them are exact in any order."""
    return torch.randint(0 if dtype in (torch.uint8, torch.bool) else low, high, shape).to(dtype)


def placed(g, t):
    return g.input(t) if isinstance(t, torch.Tensor) else t


def add(batch, name, fn, *operands, tuning=None):  # noqa: F811
    g = Graph(batch.lib)
    g.out(g.op(name, fn, *(placed(g, o) for o in operands)))
    kernels = batch.add(f"{name} {[tuple(o.shape) if isinstance(o, torch.Tensor) else o for o in operands]}", g, equal, tuning)
    assert "host" not in g.plan_text()
    torch.testing.assert_close(g.run()[0], g.eager[g.outputs[0]], rtol=0, atol=0, equal_nan=True)   # the reference executor
    return kernels


def scatter(x, dim, index, source, _, how):
    return x.scatter(dim, index, source)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_set(batch, dtype):  # noqa: F811
    torch.manual_seed(0)
    x = whole((5, 6), dtype)
    order = torch.rand(5, 6).argsort(1)   # no place twice: which of several stays is open
    for tuning in (None, (64, 2)):
        add(batch, "scatter", scatter, x, 1, order, whole((5, 6), dtype), True, 0, tuning=tuning)
    add(batch, "scatter", scatter, x, -1, order[:3, :4], whole((5, 6), dtype), True, 0)
    add(batch, "scatter", scatter, x, 0, torch.rand(5, 6).argsort(0)[:2], 1, True, 0)
    add(batch, "scatter", scatter, x.t(), 0, order.t(), whole((6, 5), dtype), True, 0)
    at = torch.tensor([3, 0])
    add(batch, "index_copy", torch.index_copy, x, 0, at, whole((2, 6), dtype))
    add(batch, "index_copy", torch.index_copy, x, 1, at, whole((2, 5), dtype).t())
    add(batch, "index_copy", torch.index_copy, x, 1, torch.tensor(4), whole((5, 1), dtype))
    add(batch, "index_fill", torch.index_fill, x, 1, torch.tensor([2, -1, 2]), 1)
    put = lambda x, i, v, a: x.index_put((i,), v, bool(a))  # noqa: E731
    add(batch, "index_put", put, x, torch.tensor([-1, 2]), whole((2, 6), dtype), False)
    add(batch, "index_put", put, x, torch.tensor([-1, 2]), whole((6,), dtype), False)
    both = lambda x, i, j, v, a: x.index_put((i, j), v, bool(a))  # noqa: E731
    add(batch, "index_put", both, x, torch.tensor([[0], [-2]]), torch.tensor([1, -1, 0]), whole((2, 3), dtype), False)
    add(batch, "index_put", both, whole((5, 6, 3), dtype), torch.tensor([0, -2]), torch.tensor([1, -1]), whole((2, 1), dtype), False)
    add(batch, "slice_scatter", lambda x, y, *a: torch.slice_scatter(x, y, *a), x, whole((5, 2), dtype), 1, 1, 5, 2)
    add(batch, "diagonal_scatter", lambda x, y, *a: torch.diagonal_scatter(x, y, *a), x, whole((4,), dtype), 2, 0, 1)
    batch.run(archs=ARCHS if dtype in (torch.float32, torch.bfloat16) else ("sm_90",))


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
def test_several_meet_in_one_place(batch, dtype):  # noqa: F811
    torch.manual_seed(0)
    x, index, source = whole((5, 7), dtype), torch.randint(0, 5, (9, 7)), whole((9, 7), dtype)
    for name, how in HOW.items():
        values = torch.pow(2.0, torch.randint(0, 2, (9, 7))).to(dtype) if name == "prod" else source
        for own in (True, False):
            call = lambda x, d, i, s, own, _, name=name: x.scatter_reduce(d, i, s, name, include_self=own)  # noqa: E731
            for tuning in (None, (64, 4)) if own else (None,):
                add(batch, "scatter", call, x, 0, index, values, own, how, tuning=tuning)
            add(batch, "scatter", call, x.t(), 1, index.t(), values.t(), own, how)
    add(batch, "scatter", lambda x, d, i, s, *_: x.scatter(d, i, s, reduce="add"), x, 0, index, 3, True, 1)
    rows = torch.tensor([0, 3, 3, 3, 1])
    add(batch, "index_add", lambda x, d, i, s, a: torch.index_add(x, d, i, s, alpha=a), x, 0, rows, whole((5, 7), dtype), 1)
    add(batch, "index_add", lambda x, d, i, s, a: torch.index_add(x, d, i, s, alpha=a), x, 1, rows, whole((5, 5), dtype), 1)
    if dtype not in (torch.bfloat16, torch.float16):
        add(batch, "index_add", lambda x, d, i, s, a: torch.index_add(x, d, i, s, alpha=a), x, 0, rows, whole((5, 7), dtype), 2)
    if not dtype.is_floating_point:
        add(batch, "index_put", lambda x, i, v, a: x.index_put((i,), v, bool(a)), x, rows - 5 * (rows == 1), whole((5, 7), dtype), True)
    batch.run(archs=ARCHS)


def test_nan_and_infinities_that_meet(batch):  # noqa: F811
    nan, inf = float("nan"), float("inf")
    x, index = torch.tensor([1.0, nan, -inf, inf, 0.0]), torch.tensor([0, 0, 1, 2, 3, 4, 4])
    for name in ("amax", "amin", "sum"):
        call = lambda x, d, i, s, own, _, name=name: x.scatter_reduce(d, i, s, name, include_self=own)  # noqa: E731
        add(batch, "scatter", call, x, 0, index, torch.tensor([nan, 2.0, 3.0, inf, -inf, 5.0, -5.0]), True, HOW[name])
    batch.run()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_rows_are_stored_16_bytes_at_a_time(batch, dtype):  # noqa: F811
    """Where an index is the same for a row, and rows begin at multiples; elsewhere one by one."""
    x, rows = torch.randn(40, 520).to(dtype), torch.randperm(40)[:33]
    vector = 8 if dtype is torch.bfloat16 else 4
    wide = add(batch, "index_copy", torch.index_copy, x, 0, rows, torch.randn(33, 520).to(dtype), tuning=(64, vector))
    narrow = add(batch, "index_copy", torch.index_copy, x[:, 1:], 0, rows, torch.randn(33, 519).to(dtype), tuning=(64, vector))
    assert any(f"cc_store<{vector}>(p3 + t" in k.text for k in wide) and not any("cc_store" in k.text for k in narrow[1:])
    batch.run()


def test_what_is_left_to_torch(lib, monkeypatch):  # noqa: F811
    """Sums of floats that torch's kernels make in an order of their own, means, and packed elements; with deterministic algorithms all
    that threads would leave open."""
    monkeypatch.setenv("CCOMPILE_BACKEND", "ref")
    rows, x = torch.tensor([0, 0, 1]), torch.randn(4, 5)

    def plan(name, fn, *operands, **options):
        g = Graph(lib)
        g.out(g.op(name, fn, *(placed(g, o) for o in operands)))
        return g.compile(no_dnnl=True, **options).plan_text()

    adds = lambda x, i, v, a: x.index_put((i,), v, bool(a))  # noqa: E731
    sums = lambda x, d, i, s, a: torch.index_add(x, d, i, s)  # noqa: E731
    assert "put_at" not in plan("index_put", adds, x, rows, torch.randn(3, 5), True)
    assert "put_at" in plan("index_put", adds, x.long(), rows, torch.ones(3, 5).long(), True)
    mean = lambda x, d, i, s, *_: x.scatter_reduce(d, i, s, "mean")  # noqa: E731
    assert "put_at" not in plan("scatter", mean, x, 0, rows[:, None].expand(3, 5).contiguous(), torch.randn(3, 5), True, 3)
    for ordered in (False, True):
        assert ("put_at" in plan("index_add", sums, x, 0, rows, torch.randn(3, 5), 1, ordered=ordered)) == (not ordered)
        assert ("put_at" in plan("index_copy", torch.index_copy, x, 0, rows, torch.randn(3, 5), ordered=ordered)) == (not ordered)
        assert "put_at" in plan("index_add", sums, x.long(), 0, rows, torch.ones(3, 5).long(), 1, ordered=ordered)
        assert "put_at" in plan("index_fill", torch.index_fill, x, 0, rows, 2.5, ordered=ordered)


@pytest.mark.parametrize("bad", [-1, 4])
def test_an_index_out_of_range(batch, bad):  # noqa: F811
    """The reference executor looks before it writes anything."""
    g = Graph(batch.lib)
    rows = torch.tensor([0, 1])
    g.out(g.op("index_add", lambda x, d, i, s, a: torch.index_add(x, d, i, s), g.input(torch.randn(4, 5)), 0, g.input(rows), g.input(torch.randn(2, 5)), 1))
    g.compile()
    rows[1] = bad
    with pytest.raises(RuntimeError, match="out of range"):
        g.run()
