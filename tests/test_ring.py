"""mode="reduce-overhead": reuses the memory of results, but never while anything can still see it."""

import ctypes
import gc
import multiprocessing
import weakref

import ccompile
import numpy
import pytest
import torch
from ccompile.api import compiled_of
from conftest import alike, together
from torch import nn

N = 64


def affine(x):
    return x * 2 + 1


def results(compiled):
    """(made, reused) of the first entry."""
    segment = compiled_of(compiled).report()["entries"][0]["segments"][0]
    return segment["results_made"], segment["results_reused"]


@pytest.fixture
def fn():
    """Compiled, and past its recording."""
    compiled = ccompile.compile(affine, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.zeros(N))
    return compiled


def churn(compiled, calls=20):
    """Calls whose results die: what may be used again is."""
    with torch.no_grad():
        for i in range(calls):
            x = torch.full((N,), float(100 + i))
            assert torch.equal(compiled(x), affine(x))


def test_memory_is_used_again(fn):
    made, reused = results(fn)
    churn(fn, 50)
    after = results(fn)
    assert after[0] - made <= 1 and after[1] - reused >= 49


def test_the_last_result_is_kept_by_the_caller(fn):
    with torch.no_grad():
        y = fn(torch.zeros(N))
        made, _ = results(fn)
        for i in range(50):
            before, old = y, float(y[0])
            y = fn(torch.full((N,), float(i)))
            assert float(before[0]) == old and float(y[0]) == 2 * i + 1
    assert results(fn)[0] - made <= 2


def test_default_mode_allocates():
    compiled = ccompile.compile(affine)
    for _ in range(5):
        compiled(torch.zeros(N))
    assert results(compiled) == (0, 0)


def test_option_and_knob():
    compiled = ccompile.compile(affine, options={"reuse_results": True})
    with ccompile.config.patch(reuse_results=True):
        patched = ccompile.compile(lambda x: x + 3)
    for _ in range(5):
        compiled(torch.zeros(N)), patched(torch.zeros(N))
    assert results(compiled)[1] >= 3 and results(patched)[1] >= 3


# ---- what keeps memory ----------------------------------------------------------------------------------------------
def held_by_dlpack(y):
    return torch.utils.dlpack.to_dlpack(y)


def held_by_autograd(y):
    w = torch.ones(N, requires_grad=True)
    with torch.enable_grad():
        return (w * y).sum()


HOLDERS = {
    "tensor": lambda y: y,
    "view": lambda y: y[3:9],
    "strided": lambda y: y.as_strided((4,), (2,), 1),
    "view of a view": lambda y: y.view(8, 8).t()[2],
    "detached": lambda y: y.detach(),
    "alias": lambda y: torch.empty(0).set_(y),
    "data": lambda y: y.data,
    "numpy": lambda y: y.numpy(),
    "part of numpy": lambda y: y.numpy()[5:7],
    "array interface": lambda y: numpy.asarray(y)[::2],
    "memoryview": lambda y: memoryview(y.numpy()),
    "dlpack": held_by_dlpack,
    "numpy by dlpack": lambda y: numpy.from_dlpack(y),
    "storage": lambda y: y.untyped_storage(),
    "typed storage": lambda y: y.storage(),
    "parameter": lambda y: nn.Parameter(y),
    "list": lambda y: [[y]],
    "cycle": lambda y: (lambda c: (c.append(c), c)[1])([y[1:]]),
    "saved for backward": held_by_autograd,
    "dtype view": lambda y: y.view(torch.int32)[:3],
    "in a frame": lambda y: (lambda: (yield y))(),
}


def bytes_at(address):
    return bytes((ctypes.c_char * (4 * N)).from_address(address))


@pytest.mark.parametrize("how", HOLDERS)
def test_memory_is_not_used_while_held(fn, how):
    """Whatever the kind of reference: the bytes stay."""
    with torch.no_grad():
        y = fn(torch.arange(float(N)))
        address, before = y.data_ptr(), bytes_at(y.data_ptr())
        holder = HOLDERS[how](y)
        if how == "in a frame":
            next(holder)
        del y
        churn(fn)
        assert bytes_at(address) == before
        del holder
        gc.collect()
        made, _ = results(fn)
        churn(fn)
        assert results(fn)[0] - made <= 5


def test_gradient_sees_what_was_saved(fn):
    w = torch.randn(N, requires_grad=True)
    x = torch.randn(N)
    with torch.no_grad():
        y = fn(x)
    loss = (w * y).sum()
    del y
    churn(fn)
    loss.backward()
    assert torch.equal(w.grad, affine(x))


def test_hundreds_of_results(fn):
    with torch.no_grad():
        kept = [(i, fn(torch.full((N,), float(i)))) for i in range(300)]
        views = [(i, y[1:3]) for i, y in kept[::3]]
    assert len({y.data_ptr() for _, y in kept}) == 300
    assert all(bool((y == 2 * i + 1).all()) for i, y in kept)
    kept.clear()
    churn(fn, 50)
    assert all(bool((y == 2 * i + 1).all()) for i, y in views)


def test_results_fed_back(fn):
    """A result is an argument while the next one is made, and may be both."""
    with torch.no_grad():
        y = torch.zeros(N)
        for _ in range(20):
            y = fn(y)
        assert torch.equal(y, torch.full((N,), float(2**20 - 1)))
        assert torch.equal(fn(fn(fn(torch.ones(N)))), torch.full((N,), 15.0))


def test_results_in_a_container_that_the_function_reads():
    def step(state, x):
        return [state[0] + x, state[1] * 0.5 + state[0]]

    compiled = ccompile.compile(step, mode="reduce-overhead")
    state, want = [torch.zeros(N), torch.ones(N)], [torch.zeros(N), torch.ones(N)]
    with torch.no_grad():
        for i in range(30):
            x = torch.full((N,), float(i))
            state, want = compiled(state, x), step(want, x)
            assert all(map(torch.equal, state, want))
    assert results(compiled)[1] > 20


def test_several_results_and_views_of_them():
    def several(x):
        y = x * 3
        return y, y[2:4], y.view(8, 8), x + 1

    compiled = ccompile.compile(several, mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for i in range(40):
            x = torch.randn(N)
            got, want = compiled(x), several(x)
            alike(want, got, path=f"call {i}")
            assert got[1]._base is None or got[1].data_ptr() == got[0].data_ptr() + 8
            kept.append((got[i % 4], want[i % 4]))
    for got, want in kept:
        assert torch.equal(got, want)


# ---- what a user does to a result -----------------------------------------------------------------------------------
def test_a_result_is_an_ordinary_tensor(fn):
    with torch.no_grad():
        for _ in range(5):
            y = fn(torch.ones(N))
            assert y._base is None and not y._is_view() and y._version == 0 and y.is_leaf and not y.requires_grad
            assert y.grad is None and y.storage_offset() == 0 and y.is_contiguous() and not y.__dict__
            y.add_(1).mul_(2)
            assert y._version == 2 and bool((y == 8).all())
            y.requires_grad_()
            y.tag = "mine"


def test_weak_references_die(fn):
    with torch.no_grad():
        y = fn(torch.ones(N))
        tensor = weakref.ref(y)
        del y
        assert tensor() is None
        churn(fn)


def grow(y):
    return y.resize_(5 * N).fill_(7)


def shrink(y):
    return y.resize_(3).fill_(7)


def resize_storage(y):
    y.untyped_storage().resize_(8 * N)
    return y.fill_(7)


def empty_storage(y):
    y.untyped_storage().resize_(0)
    return y.resize_(0)


def bytes_of_storage(y):
    torch.ops.inductor.resize_storage_bytes_(y, 0)
    torch.ops.inductor.resize_storage_bytes_(y, 2 * N)
    return y.as_strided_((4,), (1,), 0).fill_(7)


def change_data(y):
    y.data = torch.full((5,), 7.0)
    return y


def set_other(y):
    return y.set_(torch.full((5,), 7.0))


def transpose(y):
    return y.unsqueeze_(0).t_().fill_(7)


def share(y):
    return y.share_memory_().fill_(7)


def copy_on_write(y):
    return torch._lazy_clone(y), torch._lazy_clone(y)


TREATMENT = [grow, shrink, resize_storage, empty_storage, bytes_of_storage, change_data, set_other, transpose, share,
             copy_on_write]  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("treat", TREATMENT)
def test_results_that_users_change(fn, treat, keep):
    with torch.no_grad():
        for i in range(6):
            want = treat(affine(torch.full((N,), float(i))))
            got = treat(fn(torch.full((N,), float(i))))
            alike(want, got, path="treated")
            if not keep:
                del got
            churn(fn)
            if keep:
                alike(want, got, path="after other calls")


def test_writes_into_a_kept_result_stay(fn):
    with torch.no_grad():
        y = fn(torch.zeros(N))
        part = y[:4].fill_(9)
        y.numpy()[5] = -1
        del y
        churn(fn)
        assert bool((part == 9).all()) and float(part.as_strided((1,), (1,), 5)) == -1


def test_shared_with_a_process(fn):
    """A result that another process may write into is not used again."""
    context = multiprocessing.get_context("fork")
    with torch.no_grad():
        y = fn(torch.ones(N)).share_memory_()
        address = y.data_ptr()
        process = context.Process(target=y.fill_, args=(-5.0,))
        process.start()
        process.join()
        assert bool((y == -5).all())
        del y
        seen = [fn(torch.ones(N)) for _ in range(10)]
        assert address not in {s.data_ptr() for s in seen}


# ---- modes, shapes, threads, life -----------------------------------------------------------------------------------
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(guard):
    compiled = ccompile.compile(affine, mode="reduce-overhead")
    for _ in range(6):
        with guard():
            x = torch.randn(N)
            got, want = compiled(x), affine(x)
            assert torch.equal(want, got)
            assert got.is_inference() == want.is_inference() and got.requires_grad == want.requires_grad
    assert results(compiled)[1] >= 3


def test_grad_modes_in_turn():
    """One function, one entry for each mode."""
    compiled = ccompile.compile(affine, mode="reduce-overhead")
    for i in range(12):
        with (torch.no_grad, torch.inference_mode)[i % 2]():
            x = torch.randn(N)
            got, want = compiled(x), affine(x)
            alike(want, got, path="call")
            assert got.is_inference() == want.is_inference()


def test_under_autograd():
    compiled = ccompile.compile(lambda x: (x * 2).sin(), mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(N, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.allclose(x.grad, 2 * (2 * x).cos())


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5, 7), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_shapes_and_dtypes(shape, dtype):
    def f(x):
        return x | True if dtype == torch.bool else x + 1

    compiled = ccompile.compile(f, mode="reduce-overhead")
    kept = []
    for i in range(8):
        x = (torch.randn(shape) * 10).to(dtype)
        got, want = compiled(x), f(x)
        alike(want, got, path=f"call {i}")
        kept.append((want, got) if i % 2 else None)
    for pair in kept:
        if pair:
            alike(*pair, path="kept")


def test_strides_are_eagers():
    compiled = ccompile.compile(affine, mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(4, 6, 5).permute(2, 0, 1)
        alike(affine(x), compiled(x), path="call")
        del x


def test_models_with_host_steps_and_breaks():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x):
            x = torch.relu(self.a(x))
            y = torch.cumsum(x, 0) + 1
            if float(y[0, 0]) > 1e9:
                return y
            return self.b(y), torch.sort(x)[0]

    model = Model().eval()
    compiled = ccompile.compile(model, mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for i in range(10):
            x = torch.randn(8, 16)
            got, want = compiled(x), model(x)
            alike(want, got, path=f"call {i}")
            kept.append((want, got))
    for want, got in kept:
        alike(want, got, path="kept")


def test_threads(fn):
    """Threads hand results to one another; each is what it was when it was made."""
    boxes = [[] for _ in range(4)]

    def work(k):
        for i in range(300):
            y = fn(torch.full((N,), float(1000 * k + i)))
            boxes[(k + i) % 4].append((1000 * k + i, y if i % 3 else y[5:]))
            mine = boxes[k]
            while len(mine) > 5:
                value, old = mine.pop(0)
                assert bool((old == 2 * value + 1).all()), value

    together(4, work)
    assert all(bool((y == 2 * value + 1).all()) for box in boxes for value, y in box)


def test_reset_gives_the_memory_back():
    """Of a result that lives on, too: its own reference is the last one."""
    compiled = ccompile.compile(affine, mode="reduce-overhead")
    big = torch.zeros(4 << 20)
    with torch.no_grad():
        kept = compiled(big)
        for _ in range(4):
            kept = compiled(big)
        spare = compiled(big)
        address = kept.untyped_storage()._cdata
        del spare
        held = torch._C._storage_Use_Count(address)
        ccompile.reset()
        assert torch._C._storage_Use_Count(address) == held - 1
        assert bool((kept == 1).all())
        address = kept.data_ptr()
        assert compiled(big).data_ptr() != address


def test_rings_are_bounded():
    """Results of more than a ring may hold are allocated."""
    compiled = ccompile.compile(affine, mode="reduce-overhead")
    x = torch.zeros(17 << 20, dtype=torch.int64)
    with torch.no_grad():
        compiled(x)
        kept = [compiled(x) for _ in range(3)]
        made, _ = results(compiled)
        address = [y.untyped_storage()._cdata for y in kept]
        counts = [torch._C._storage_Use_Count(a) for a in address]
    assert made == 3 and sorted(counts) == [min(counts), min(counts), min(counts) + 1]
