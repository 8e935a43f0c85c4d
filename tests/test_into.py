"""Writes to memory that existed before the call (KV caches, counters, arguments, buffers): kernels do them, and everything that
shares the memory sees them: views, other arguments, `_version`, frozen weights, autograd."""

import operator

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, counters

T = torch.randn


@pytest.fixture(autouse=True)
def _quiet():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def plans(compiled):
    return "".join(s["plan_text"] for entry in compiled_of(compiled).report()["entries"] for s in entry["segments"])


def attempt(fn, args):
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


def same(compiled, fn, make, seed=0, exact_version=True):
    """One call of both on equal arguments: results, arguments, bases of arguments, versions, errors."""
    sides = []
    for f in (fn, compiled):
        torch.manual_seed(seed)
        args = make()
        got = attempt(f, args)
        tensors = [t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
        memory = [t if t._base is None else t._base for t in tensors]
        counts = [] if any(t.is_inference() for t in tensors) else [t._version for t in tensors]
        sides.append((got, tensors + memory, counts if exact_version else [c > 0 for c in counts]))
    (want, want_memory, want_counts), (got, got_memory, got_counts) = sides
    if isinstance(want, tuple) and want and isinstance(want[0], type):
        assert got == want
    else:
        torch.testing.assert_close(got, want, equal_nan=True)
        for x, y in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got)):
            assert not isinstance(x, torch.Tensor) or x.stride() == y.stride()
    torch.testing.assert_close(got_memory, want_memory, equal_nan=True)
    assert got_counts == want_counts


def compare(fn, make, calls=3):
    compiled = ccompile.compile(fn)
    before = counters().get("verify", 0)
    for seed in range(calls):
        same(compiled, fn, make, seed)
    assert counters().get("verify", 0) == before
    return compiled


def kernels_only(compiled):
    assert EAGER or "host" not in plans(compiled), plans(compiled)


def positions():
    return torch.tensor([5, 6, 7])


def cache_copy(c, k, p):
    c.index_copy_(2, p, k * 2)
    return c.sum(-1)


def cache_set(c, k, p):
    c[:, :, p] = k.transpose(-1, -2).contiguous().transpose(-1, -2)
    return c * 2


def cache_slice(c, k, p):
    c[:, :, 2:5] = k
    return c[:, :, :5].mean(-1)


def cache_add(c, k, p):
    return c.index_add_(2, p, k, alpha=2).exp()


def both_caches(c, k, p):
    v = k + 1
    c[0].index_copy_(1, p, k[0])
    c[1].index_copy_(1, p, v[1])
    return (c[0] @ c[1].transpose(-1, -2)).softmax(-1)


@pytest.mark.parametrize("fn", [cache_copy, cache_set, cache_slice, cache_add, both_caches])
def test_caches(fn):
    first = compare(fn, lambda: (T(2, 4, 9, 8), T(2, 4, 3, 8), positions()))
    second = compare(fn, lambda: (T(2, 9, 4, 8).transpose(1, 2), T(2, 3, 4, 8).transpose(1, 2), positions().int()))
    if fn is not both_caches:   # the first write, to a view, can't be done again: so a wrong index of the second is for torch to find
        kernels_only(first)
        kernels_only(second)
    compare(fn, lambda: (T(2, 4, 9, 8).double(), T(2, 4, 3, 8), positions()))


def ema(b, x):
    return b.mul_(0.9).add_(x, alpha=0.1) * 2


def lerped(b, x):
    b.lerp_(x * 2, 0.25)
    return b.sum(), x + b


def replaced(b, x):
    b.copy_(x.sin())
    return b - 1


def cleared(b, x):
    y = b + x
    b.zero_()
    return y, b + 1


def activated(b, x):
    b += x
    return b.relu_().mul_(b)


def chosen(b, x):
    b.masked_fill_(x > 0, 3.0)
    b.clamp_(min=-0.5)
    return b * x


def region(b, x):
    b[1:, 2] = 7
    b[0] -= x[1]
    b[..., ::2].mul_(x[..., ::2])
    return b.sum(0)


def layouts():
    """(what is written, what is read)"""
    yield lambda: (T(5, 7), T(5, 7))
    yield lambda: (T(7, 5).t(), T(5, 7))
    yield lambda: (T(5, 14)[:, ::2], T(5, 1).expand(5, 7))
    yield lambda: (T(9, 5, 7)[3], T(7, 5).t())
    yield lambda: (T(5, 7), T(5, 7).bfloat16())
    yield lambda: (T(5, 7).bfloat16(), T(5, 7).bfloat16())
    yield lambda: (T(5, 7, dtype=torch.float64), T(5, 7, dtype=torch.float64))
    yield lambda: (T(2, 5, 7).to(torch.float16)[1], T(5, 7).to(torch.float16))


@pytest.mark.parametrize("make", list(layouts()), ids=range(8))
@pytest.mark.parametrize("fn", [ema, lerped, replaced, cleared, activated, chosen, region])
def test_arguments(fn, make):
    compare(fn, make)


@pytest.mark.parametrize("fn", [ema, replaced, cleared, activated, chosen, region])
def test_no_host_step_is_left(fn):
    kernels_only(compare(fn, lambda: (T(40, 70), T(40, 70))))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers(dtype):
    def fn(n, m):
        n |= m
        n[1:2] = 1
        n.copy_(n & m)
        return n.sum(), n

    compare(fn, lambda: (torch.randint(0, 2, (6,)).to(dtype), torch.randint(0, 2, (6,)).to(dtype)))


def test_special_values_and_sizes():
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-42, 3.0])
    compare(lambda b, x: b.mul_(x).add_(1), lambda: (special.clone(), special.flip(0)))
    compare(lambda b, x: b.mul_(x).add_(1), lambda: (T(0, 3), T(0, 3)))
    compare(lambda b, x: b.mul_(x).add_(1), lambda: (T(()), T(())))
    compare(lambda b, x: b.add_(x), lambda: (T(3, 1, 4), T(2, 3, 1, 4)[0]))
    compare(lambda b, x: b.add_(x), lambda: (T(3, 4), T(4)))


def test_counters_and_buffers_of_modules():
    class Running(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.tensor(0))
            self.register_buffer("mean", torch.zeros(8))
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            self.count += 1
            y = self.linear(x)
            self.mean += (y.mean(0) - self.mean) / self.count
            return y - self.mean

    torch.manual_seed(0)
    eager = Running()
    torch.manual_seed(0)
    compiled = ccompile.compile(Running())
    for _ in range(4):
        x = T(5, 8)
        torch.testing.assert_close(compiled(x), eager(x))
    assert compiled.count == 4
    torch.testing.assert_close(compiled.mean, eager.mean)


# ---- shared memory ---------------------------------------------------------------------------------------------------
def scaled(b, x):
    b.mul_(x)
    return b + x


def shared(kind):
    base = T(12, 7)
    return {
        "apart": lambda: (base[:5], base[6:11]),
        "rows": lambda: (base[:5], base[4:9]),
        "one": lambda: (base[:5], base[:5]),
        "strided": lambda: (base[:, ::2], base[:, 1::2]),
        "shifted": lambda: (base[:, 1:], base[:, :-1]),
        "turned": lambda: (base[:7, :7], base[:7, :7].t()),
    }[kind]()


@pytest.mark.parametrize("kind", ["apart", "rows", "one", "strided", "shifted", "turned"])
@pytest.mark.parametrize("fn", [scaled, lambda b, x: (b.copy_(x), x * 2), lambda b, x: (b.__setitem__(slice(1, 3), x[1:3]), b + x)])
def test_arguments_that_overlap(fn, kind):
    """Recorded with arguments that lie apart, then given ones that do not; recorded so; and back."""
    for kinds in (["like", kind, "like"], [kind, kind, "like"]):
        compiled = ccompile.compile(fn)
        for seed, now in enumerate(kinds):
            def make(now=now):
                if now != "like":
                    return shared(now)
                return tuple(torch.empty(12, 7).normal_().as_strided(t.shape, t.stride()) if t.stride() == (7, 1) else T(t.shape[::-1]).t()
                             if t.stride(0) < t.stride(1) else T(12, 7)[:, ::2][:, :t.shape[1]] for t in shared(kind))

            same(compiled, fn, make, seed)


def averaged(b, x):
    """Two running averages, one of which reads the other before, between and after its writes."""
    b.mul_(0.9).add_(x, alpha=0.1)
    y = b.sqrt()
    b.add_(1)
    x.mul_(b)
    z = b + y
    b.copy_(x + z)
    x.add_(b.sum())
    return y, z


def turned(b, x):
    """Reads of other elements keep their place: they are loops of their own."""
    b.add_(1)
    x.mul_(b.t())
    b.mul_(x.t())
    y = b[:1] * x
    b.sub_(y)
    return b.sum(0)


@pytest.mark.parametrize("kind", ["apart", "rows", "one", "strided", "shifted", "turned"])
@pytest.mark.parametrize("fn", [averaged, turned])
def test_writes_that_kernels_share(fn, kind):
    def square():
        memory = T(96).abs() + 1
        return {
            "apart": lambda: (memory[:16].view(4, 4), memory[48:64].view(4, 4)),
            "rows": lambda: (memory[:32].view(8, 4)[:4], memory[:32].view(8, 4)[4:]),
            "one": lambda: (memory[:16].view(4, 4),) * 2,
            "strided": lambda: (memory[:32:2].view(4, 4), memory[1:33:2].view(4, 4)),
            "shifted": lambda: (memory[:16].view(4, 4), memory[2:18].view(4, 4)),
            "turned": lambda: (memory[:16].view(4, 4), memory[:16].view(4, 4).t()),
        }[kind]()

    compare(fn, square)


def test_several_writes_are_one_loop():
    def step(p, m, v, g):
        m.lerp_(g, 0.1)
        v.mul_(0.9).addcmul_(g, g, value=0.1)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.5)

    def make():
        return T(7, 9), T(7, 9), T(7, 9).abs() + 1, T(7, 9)

    compare(step, make)
    compiled = ccompile.compile(step)
    compiled(*make())
    if not EAGER:
        assert plans(compiled).count(" kernel ") == 1 and " host " not in plans(compiled)


def test_views_made_before_and_behind():
    def fn(x, y):
        v, w = x[1], x.t()
        x.add_(y)
        u = v * 2
        v.zero_()
        return u, w + 1, x.sum(), x[1:]

    compare(fn, lambda: (T(6, 7), T(6, 7)))


def test_outputs_that_are_written_arguments():
    def fn(x, y):
        z = x.mul_(2)
        x[0] = y[0]
        return z, x, x.view(-1)[3:]

    x, y = T(6, 7), T(6, 7)
    compiled = ccompile.compile(fn)
    for _ in range(3):
        z, same_x, part = compiled(x, y)
        assert z is x and same_x is x and part.data_ptr() == x.data_ptr() + 12
    compare(fn, lambda: (T(6, 7), T(6, 7)))


def test_slices_that_are_put_back_count_twice():
    def fn(x, y, n):
        x[1:3] += y
        x[:, 2] *= n
        x[0].add_(1)
        return x * 2

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        compare(fn, lambda dtype=dtype: (T(4, 5, dtype=dtype), T(2, 5, dtype=dtype), 3))
    compare(fn, lambda: (T(4, 5), T(5), 0.5))


def test_shifting_within_one_tensor_is_left_to_torch():
    def fn(x):
        x[:, :-1] = x[:, 1:].clone()
        x[:, -1] = 0
        x[1:].add_(x[:1])
        return x * 2

    compare(fn, lambda: (T(6, 7),))


def test_what_torch_refuses():
    for fn in (lambda x, y: x.add_(y), lambda x, y: x.copy_(y), lambda x, y: operator.setitem(x, 0, y)):
        compare(fn, lambda: (T(3).expand(4, 3), T(4, 3)))
        compare(fn, lambda: (T(4, 3), T(4, 5)))


# ---- failing in between ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("before", ["nothing", "again", "final"])
def test_an_index_out_of_range_in_a_replay(before):
    def fn(n, c, k, p):
        if before == "again":
            n += 1
        if before == "final":
            c.mul_(2)
        c.index_copy_(0, p, k)
        c.index_add_(0, p, k)
        return c * n

    compiled = ccompile.compile(fn)
    good, bad = torch.tensor([0, 3]), torch.tensor([0, 9])
    for p in (good, good, bad, good, bad, good):
        same(compiled, fn, lambda p=p: (torch.tensor([1.0]), T(5, 4), T(2, 4), p), exact_version=False)


def test_a_later_node_that_fails():
    def fn(x, w, i):
        x.add_(1)
        y = w[i]
        return y * x.mean()

    compiled = ccompile.compile(fn)
    for i in ([1, 2], [0, 3], [1, 7], [2, 2]):
        same(compiled, fn, lambda i=i: (T(200), T(4, 3), torch.tensor(i)))


# ---- who counts writes -----------------------------------------------------------------------------------------------
def test_frozen_weights_follow_their_writes():
    linear = torch.nn.Linear(16, 16)

    def fn(x, g):
        y = linear(x)
        linear.weight.sub_(g, alpha=0.5)
        return y, linear(x)

    compiled = ccompile.compile(fn, mode="max-autotune")
    for _ in range(4):
        x, g = T(3, 16), T(16, 16)
        saved = linear.weight.clone()
        got, weight = compiled(x, g), linear.weight.clone()
        linear.weight.copy_(saved)
        torch.testing.assert_close(got, fn(x, g))
        torch.testing.assert_close(weight, linear.weight)


def test_backward_sees_that_a_saved_tensor_changed():
    compiled = ccompile.compile(lambda x: x.mul_(2))
    for _ in range(3):
        x, w = T(4), T(4, requires_grad=True)
        with torch.enable_grad():
            y = (w * x).sum()
        compiled(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_inference_tensors():
    compiled = ccompile.compile(lambda x: x.mul_(2) + 1)
    with torch.inference_mode():
        made = T(4)
        for _ in range(3):
            want = made * 2
            compiled(made)
            assert made.equal(want)
    for _ in range(2):
        compiled(T(4))
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(made)


def test_sizes_that_change():
    def fn(b, x):
        b[:, : x.shape[1]] = x
        b.mul_(2)
        return b[:, : x.shape[1]] + x

    compiled = ccompile.compile(fn)
    for n in (4, 6, 9, 12, 7, 9):
        same(compiled, fn, lambda n=n: (T(5, 16), T(5, n)))


def test_padding_before_a_write_is_not_moved_behind_it():
    def fn(x, w):
        y = torch.nn.functional.pad(x, (1, 1, 1, 1))
        x.mul_(3)
        return torch.conv2d(y, w)

    compare(fn, lambda: (T(2, 3, 8, 8), T(4, 3, 3, 3)))


def test_threads_write_different_tensors():
    from concurrent.futures import ThreadPoolExecutor

    compiled = ccompile.compile(ema)
    compiled(T(500), T(500))

    def work(seed):
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(50):
                b, x = torch.randn(500, generator=g), torch.randn(500, generator=g)
                c = b.clone()
                torch.testing.assert_close(compiled(b, x), ema(c, x))
                torch.testing.assert_close(b, c)
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))


@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_of_an_undone_run_are_not_counted(dynamic):
    """squeeze() gives another number of dims for two rows: what ran before is undone, and the call recorded again."""

    def make():
        mean, var, weight, count, rows, large = torch.zeros(3), torch.ones(3), torch.ones(3), torch.tensor(0), torch.zeros(3), torch.zeros(100)

        def batch(x):
            return torch.nn.functional.batch_norm(x, mean, var, weight, training=True), x[1:].squeeze(0) * 2

        def counted(x):
            count.add_(1)
            rows.mul_(2).add_(x[0])
            return x[1:].squeeze(0) * 2

        def rewritten(x):
            large.fill_(2)
            return x[1:].squeeze(0) * 2

        return (batch, counted, rewritten), (mean, var, weight, count, rows, large)

    for k in range(3):
        (fns, want), (ours, got) = make(), make()
        compiled = ccompile.compile(ours[k], dynamic=dynamic)
        with torch.no_grad():
            for n in (4, 5, 6, 2, 5, 2, 7, 2, 3):
                x = torch.randn(n, 3)
                torch.testing.assert_close(compiled(x), fns[k](x))
                torch.testing.assert_close(got, want)
                assert [t._version for t in got] == [t._version for t in want], (fns[k].__name__, n)
