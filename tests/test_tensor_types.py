"""torch.Tensor(...), torch.LongTensor(...) and their kin: recorded, unless they share memory with an operand."""

import ccompile
import pytest
import torch
from ccompile.api import compiled_of

NUMBERS = [1.0, 2.0, 3.0]


def one(x):
    return x + torch.Tensor([2])


def whole(x):
    return x + torch.LongTensor([1, 2, 3])


def floats(x):
    return (x * torch.FloatTensor([1.5, 2, 0.5])).sin()


def doubles(x):
    return x * torch.DoubleTensor((1.5, 2, 0.5))


def bools(x):
    return x * torch.BoolTensor([True, False, True]) + torch.ByteTensor([1])


def halves(x):
    return x + torch.HalfTensor([1]) + torch.BFloat16Tensor([2])


def small(x):
    return x + torch.IntTensor([1]) + torch.ShortTensor([2]) - torch.CharTensor([-3])


def nested(x):
    return x + torch.Tensor([[1, 2, 3], [4, 5, 6]])


def none(x):
    return torch.cat([x.flatten(), torch.Tensor()]), torch.FloatTensor().shape


def sizes(x):
    return x + torch.Tensor(2, 3).fill_(1), torch.LongTensor(4).zero_(), torch.Tensor(2, 0).sum()


def size_object(x):
    return torch.Tensor(x.shape).zero_() + x, torch.Tensor(x.size()).shape


def of_sizes(x):
    return x / torch.Tensor([x.shape[0], 2, x.shape[-1]])


def outer_list(x):
    return x * torch.Tensor(NUMBERS)


def tuple_given(x):
    return torch.Tensor((1, 2, 3)) - x


def by_device(x):
    return x + torch.Tensor([1], device="cpu")


def class_of(x):
    return x + x.__class__([3])


ALL = [one, whole, floats, doubles, bools, halves, small, nested, none, sizes, size_object, of_sizes, outer_list,
       tuple_given, by_device, class_of]


def same(got, want):
    if isinstance(want, tuple) and not isinstance(want, torch.Size):
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
        assert got.dtype == want.dtype and got.stride() == want.stride() and got.requires_grad == want.requires_grad
    else:
        assert got == want


@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_recorded(f):
    g = ccompile.compile(f)
    for i in range(4):
        x = torch.arange(3.0) + i
        same(g(x), f(x))
    report = compiled_of(g).report()
    assert report["breaks_seen"] == [] and report["recordings"] == 1


@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_other_sizes_and_gradients(f):
    rows = f in (one, none, size_object, of_sizes, by_device, class_of)
    g = ccompile.compile(f)
    for i in range(8):
        x = (torch.arange(3.0 * (i + 1)).view(i + 1, 3) if rows else torch.arange(3.0)).requires_grad_(i % 2 == 1)
        same(g(x), f(x))


def test_the_default_dtype_is_a_guard():
    g = ccompile.compile(one)
    x = torch.ones(3)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert g(x).dtype == one(x).dtype == dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_numbers_of_a_list_are_data():
    g = ccompile.compile(outer_list)
    try:
        for i in range(6):
            NUMBERS[:] = [i, 2.5 * i, 1]
            same(g(torch.ones(3)), outer_list(torch.ones(3)))
    finally:
        NUMBERS[:] = [1.0, 2.0, 3.0]
    assert compiled_of(g).report()["recordings"] <= 3


def test_each_call_makes_its_own():
    def f(x):
        t = torch.Tensor([1, 2, 3])
        t += x
        return t

    g = ccompile.compile(f)
    got = [g(torch.ones(3)) for _ in range(3)]
    for t in got:
        same(t, torch.tensor([2.0, 3, 4]))
    assert len({t.data_ptr() for t in got}) == 3


def test_aliases():
    """torch.Tensor(tensor) shares its memory: a break."""

    def f(x):
        t = torch.Tensor(x)
        x.add_(1)
        return t * 2, t

    g = ccompile.compile(f)
    for _ in range(3):
        x, y = torch.ones(3), torch.ones(3)
        a, b = g(x), f(y)
        same(a, b)
        assert a[1].data_ptr() == x.data_ptr()
    (found,) = compiled_of(g).report()["breaks_seen"]
    assert "shares memory" in found["text"]


@pytest.mark.parametrize("data", ["text", [1, "a"], {1: 2}, 2.5, None], ids=str)
def test_what_raises(data):
    def f(x):
        return x + torch.Tensor(data)

    g = ccompile.compile(f)
    for _ in range(3):
        with pytest.raises(Exception) as want:
            f(torch.ones(3))
        with pytest.raises(type(want.value)) as got:
            g(torch.ones(3))
        assert str(got.value) == str(want.value)


def test_arrays():
    numpy = pytest.importorskip("numpy")
    a = numpy.arange(3.0)

    def f(x):
        return x + torch.Tensor(a)

    g = ccompile.compile(f)
    for i in range(4):
        a[0] = i
        same(g(torch.ones(3)), f(torch.ones(3)))


def test_a_draw_inside():
    import random

    def f(x):
        return x * torch.Tensor([random.random(), 1, x.sum().item()])

    g = ccompile.compile(f)
    random.seed(1)
    got = [g(torch.ones(3)) for _ in range(5)]
    random.seed(1)
    same(tuple(got), tuple(f(torch.ones(3)) for _ in range(5)))
