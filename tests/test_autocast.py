"""torch.autocast on the CPU, around and inside compiled functions: eager's dtypes, values within the rounding error of the low
precision, and library calls and kernels instead of torch's ops."""

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of
from conftest import by_torch
from torch import nn

BF16, F16 = torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def agree(got, want):
    if torch.is_tensor(want):
        assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
        loose = 3e-2 if want.is_floating_point() else 0
        torch.testing.assert_close(got, want, rtol=loose, atol=loose, equal_nan=True)
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want):
            agree(a, b)
    else:
        assert got == want


def state():
    return (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled())


def kinds(fn, *args, **kw):
    """Compiled against eager; -> the kinds of all steps but those that set state."""
    compiled = ccompile.compile(fn, **kw)
    before = state()
    for _ in range(3):
        agree(compiled(*args), fn(*args))
        assert state() == before
    plans = [s["plan_text"] for e in compiled_of(compiled).report()["entries"] for s in e["segments"]]
    lines = [line.split()[1:3] for plan in plans for line in plan.splitlines() if line[0].isdigit()]
    return [kind for kind, what in lines if not what.startswith("host#")]


class Block(nn.Module):
    def __init__(self, n=64, heads=4):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(n), nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down, self.heads = nn.Linear(n, 4 * n), nn.Linear(4 * n, n), heads

    def forward(self, x):
        b, s, n = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, n // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, n))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.two, self.head = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.one(x))), 2)
        return self.head((x + self.two(x)).mean((2, 3)))


MODELS = {
    "transformer": (lambda: Block(), lambda: randn(2, 9, 64)),
    "image": (lambda: Image(), lambda: randn(2, 3, 32, 30)),
    "prelu": (lambda: nn.Sequential(nn.Linear(16, 40), nn.PReLU(), nn.Linear(40, 8)), lambda: randn(5, 16)),
}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name, where, mode, dtype):
    torch.manual_seed(0)
    model, x = MODELS[name][0]().eval(), MODELS[name][1]()

    def inside(x):
        with torch.autocast("cpu", dtype=dtype):
            return model(x)

    if where == "inside":
        steps = kinds(inside, x, mode=mode)
    else:
        with torch.autocast("cpu", dtype=dtype):
            steps = kinds(model, x, mode=mode)
    assert "host" not in steps or by_torch(dtype)


OPS = {
    "linear": lambda x, y, i: F.linear(x, y),
    "linear of a view": lambda x, y, i: x @ y.t(),
    "matmul": lambda x, y, i: y @ x.t(),
    "bmm": lambda x, y, i: torch.bmm(x[None], y.t()[None]),
    "vector": lambda x, y, i: x @ y[0],
    "addmm": lambda x, y, i: torch.addmm(y[0, :12], x, y.t()),
    "baddbmm": lambda x, y, i: torch.baddbmm(x[None, :, :12], x[None], y.t()[None]),
    "twice": lambda x, y, i: F.linear(x, y) + F.linear(x, y * 2),
    "changed in between": lambda x, y, i: (F.linear(x, y), x.clone().mul_(2) @ y.t()),
    "attention": lambda x, y, i: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    "written attention": lambda x, y, i: torch.softmax(x @ y.t() / 4, -1) @ y,
    "softmax": lambda x, y, i: torch.softmax(F.linear(x, y), -1),
    "log_softmax": lambda x, y, i: torch.log_softmax(F.linear(x, y), -1),
    "layer_norm": lambda x, y, i: F.layer_norm(F.linear(x, y), (12,), y[0, :12], y[1, :12]),
    "cross_entropy": lambda x, y, i: F.cross_entropy(F.linear(x, y), i),
    "nll": lambda x, y, i: F.nll_loss(torch.log_softmax(F.linear(x, y), -1), i),
    "mse": lambda x, y, i: F.mse_loss(F.linear(x, y), x[:, :12]),
    "l1 of each": lambda x, y, i: F.l1_loss(F.linear(x, y), F.linear(x, y * 2), reduction="none"),
    "bce": lambda x, y, i: F.binary_cross_entropy_with_logits(F.linear(x, y), torch.sigmoid(x[:, :12])),
    "prod": lambda x, y, i: (F.linear(x, y) * 0.1 + 1).prod(-1),
    "pow": lambda x, y, i: F.linear(x, y) ** 2,
    "norm": lambda x, y, i: F.linear(x, y).norm(dim=-1),
    "sum": lambda x, y, i: F.linear(x, y).sum(-1),
    "cat": lambda x, y, i: torch.cat((F.linear(x, y), x), -1),
    "cat of one kind": lambda x, y, i: torch.cat((F.linear(x, y), F.linear(x, y)), -1),
    "stack": lambda x, y, i: torch.stack((F.linear(x, y), x[:, :12])),
    "mixed sum": lambda x, y, i: F.linear(x, y) + x[:, :12],
    "where": lambda x, y, i: torch.where(x[:, :12] > 0, F.linear(x, y), x[:, :12]),
    "cosine": lambda x, y, i: F.cosine_similarity(F.linear(x, y), x[:, :12]),
    "f64": lambda x, y, i: F.linear(x.double(), y.double()),
    "einsum": lambda x, y, i: torch.einsum("ij,kj->ik", x, y),
    "conv": lambda x, y, i: F.conv1d(x[None], y[:, :7, None], padding=1),
    "argmax": lambda x, y, i: (F.linear(x, y) * 0).argmax(-1),
}


@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("name", OPS)
def test_op(name, where):
    args = randn(7, 24), randn(12, 24, seed=1) * 0.3, torch.arange(7) % 12
    op = OPS[name]
    if where == "around":
        with torch.autocast("cpu", dtype=BF16):
            kinds(op, *args)
        return

    def fn(*args):
        with torch.autocast("cpu", dtype=BF16):
            return op(*args)

    kinds(fn, *args)


def nested(x, w):
    with torch.autocast("cpu", dtype=BF16):
        a = F.linear(x, w)
        with torch.autocast("cpu", enabled=False):
            b = F.linear(x, w)
            with torch.autocast("cpu", dtype=F16):
                c = F.linear(x, w)
        d = F.linear(b, w.t() @ w)
    return a, b, c, d, F.linear(x, w)


def uncached(x, w):
    with torch.autocast("cpu", dtype=BF16, cache_enabled=False):
        return F.linear(F.linear(x, w), w), torch.is_autocast_cache_enabled()


@torch.autocast("cpu", dtype=BF16)
def decorated(x, w):
    return F.linear(x, w)


def asks(x, w):
    with torch.autocast("cpu", dtype=BF16):
        y = F.linear(x, w)
        if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == BF16:
            y = y + 1
        return y, torch.is_autocast_enabled("cpu")


def with_break(x, w):
    with torch.autocast("cpu", dtype=BF16):
        y = F.linear(x, w)
        print(end="")
        ccompile_break(y)
        y = F.linear(y, w)
    return y, F.linear(x, w)


def ccompile_break(y):
    return float(y.sum()) > 0


def written(x, w):
    with torch.autocast("cpu", dtype=BF16):
        y = F.linear(x, w)
        x = x.clone()
        a = F.linear(x, w)
        x.add_(1)
        return y, a, F.linear(x, w)


def raises(x, w):
    try:
        with torch.autocast("cpu", dtype=BF16):
            F.linear(x, w[:, :3])
    except RuntimeError:
        pass
    return F.linear(x, w), torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    "fn", [nested, uncached, decorated, asks, with_break, written, raises], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("around", [False, True])
def test_region(fn, around):
    x, w = randn(5, 16), randn(16, 16, seed=1) * 0.2
    with torch.autocast("cpu", dtype=BF16, enabled=around):
        kinds(fn, x, w)


def test_state_of_other_devices_is_guarded():
    compiled = ccompile.compile(lambda x: (x + 1, torch.is_autocast_enabled("xpu"), torch.get_autocast_dtype("mps")))
    before, answers = torch.get_autocast_dtype("mps"), []
    try:
        for on, dtype in ((False, F16), (True, F16), (True, BF16), (False, BF16)) * 2:
            torch.set_autocast_enabled("xpu", on)
            torch.set_autocast_dtype("mps", dtype)
            answers.append(compiled(randn(2))[1:] == (on, dtype))
    finally:
        torch.set_autocast_enabled("xpu", False)
        torch.set_autocast_dtype("mps", before)
    assert all(answers)


def test_state_of_other_devices_is_read_after_it_is_set():
    def fn(x):
        before = torch.is_autocast_enabled("xpu")
        torch.set_autocast_enabled("xpu", True)
        inside = torch.is_autocast_enabled("xpu")
        torch.set_autocast_enabled("xpu", False)
        return x + 1, before, inside, torch.is_autocast_enabled("xpu")

    compiled = ccompile.compile(fn)
    assert [compiled(randn(2))[1:] for _ in range(3)] == [(False, True, False)] * 3


def test_modes_have_plans_of_their_own():
    model, x = Block().eval(), randn(2, 9, 64)
    compiled = ccompile.compile(model)
    for _ in range(2):
        for on, dtype in ((False, BF16), (True, BF16), (True, F16)):
            with torch.autocast("cpu", dtype=dtype, enabled=on):
                agree(compiled(x), model(x))


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_parameters_may_change(mode):
    """Each call casts what the parameters are then; eager does in an autocast of its own."""
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Conv1d(3, 16, 3)).eval(), randn(2, 3, 64)

    def fn(x):
        with torch.autocast("cpu", dtype=BF16):
            return model(x)

    compiled = ccompile.compile(fn, mode=mode)
    for step in range(6):
        agree(compiled(x), fn(x))
        if step % 2:
            model[0].weight.mul_(-2)
            model[1].weight.add_(1)


def test_block_over_several_calls():
    """As in eager, a parameter is cast once in a block: what is written past autograd's counter shows in the next one."""
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Conv1d(3, 16, 3)).eval(), randn(2, 3, 64)
    compiled = ccompile.compile(model)
    for _ in range(3):
        with torch.autocast("cpu", dtype=BF16):
            results = [(compiled(x), model(x)) for _ in range(3)]
            for layer in model:
                layer.weight.data.mul_(-1.5)
            results += [(compiled(x), model(x)) for _ in range(2)]
        for got, expected in results:
            agree(got, expected)


def test_block_in_each_call():
    """Nothing is kept from one block to the next, though nothing counts what is written to the parameter."""
    model, x = nn.Linear(64, 64), randn(5, 64)
    compiled = ccompile.compile(model)
    for _ in range(4):
        with torch.autocast("cpu", dtype=BF16):
            agree(compiled(x), model(x))
        model.weight.data.mul_(-1.5)


def held(model, compile):
    fn, results = compile(model), []
    for _ in range(3):
        with torch.autocast("cpu", dtype=BF16):
            for _ in range(4):
                results.append(fn(randn(5, 64)))
                model.weight.mul_(1.5)
    return results


def nested_in_one(model, compile):
    fn, results = compile(model), []
    for _ in range(2):
        with torch.autocast("cpu", dtype=BF16):
            for _ in range(4):
                with torch.autocast("cpu", dtype=BF16):
                    results.append(fn(randn(5, 64)))
                    model.weight.add_(1)
    return results


def cleared(model, compile):
    fn, results = compile(model), []
    with torch.autocast("cpu", dtype=BF16):
        for step in range(9):
            results.append(fn(randn(5, 64)))
            model.weight.mul_(-1.5)
            if step % 3 == 2:
                torch.clear_autocast_cache()
    return results


def data_set(model, compile):
    fn, results = compile(model), []
    for _ in range(3):
        with torch.autocast("cpu", dtype=BF16):
            for _ in range(3):
                results.append(fn(randn(5, 64)))
                model.weight.data = model.weight.data * 1.5
    return results


def another_parameter(model, compile):
    fn, results = compile(model), []
    for _ in range(2):
        with torch.autocast("cpu", dtype=BF16):
            for _ in range(4):
                results.append(fn(randn(5, 64)))
                model.weight = nn.Parameter(model.weight * 1.5)
    return results


def without_gradients(model, compile):
    return held(model.requires_grad_(False), compile)


def without_a_cache(model, compile):
    fn, results = compile(model), []
    with torch.autocast("cpu", dtype=BF16, cache_enabled=False):
        for _ in range(4):
            results.append(fn(randn(5, 64)))
            model.weight.mul_(1.5)
    return results


def two_functions(model, compile):
    first, second, results = compile(model), compile(lambda x: model(x).relu()), []
    for _ in range(3):
        with torch.autocast("cpu", dtype=BF16):
            for fn in (first, second, first):
                results.append(fn(randn(5, 64)))
                model.weight.mul_(1.5)
    return results


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize(
    "run", [held, nested_in_one, cleared, data_set, another_parameter, without_gradients, without_a_cache, two_functions],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_writes_in_an_open_block(run, mode):
    """Eager keeps what it has cast, however old that is, until the block ends."""
    kinds = []
    for compile in (lambda f: f, lambda f: ccompile.compile(f, mode=mode)):
        torch.manual_seed(0)
        kinds.append(run(nn.Linear(64, 64), compile))
    for want, got in zip(*kinds):
        assert (got - want).abs().max() <= 2e-2 * want.abs().max()


def test_training_stays_with_torch():
    """With gradients nothing is compiled, and they are eager's."""
    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)), randn(5, 16)

    def fn(x):
        with torch.autocast("cpu", dtype=BF16):
            return model(x).float().pow(2).mean()

    grads = []
    for run in (fn, ccompile.compile(fn)):
        with torch.enable_grad():
            for _ in range(2):
                model.zero_grad()
                run(x).backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads):
        assert torch.equal(a, b)
