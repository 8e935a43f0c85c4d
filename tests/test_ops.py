"""Every torch callable of the op table, compiled against eager: dtypes, shapes, layouts, special values, errors, aliasing.

The rows are in op_table.py. All good cases of a row run in one compiled function, first recorded, then replayed on other
values of equal types; what eager refuses has to be refused with the same error."""

import contextlib
import itertools
import operator
import re
import warnings

import ccompile
import op_table
import op_table_host  # noqa: F401  adds its rows
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, Walk, counters, replaying, tensors
from op_table import A, Maker, bf16, f16, f32, f64, i32, resolve, u8

EPS = {d: torch.finfo(d).eps for d in op_table.FLOATS}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")   # of resized out=, of deprecated names
        yield


# ---- comparing -------------------------------------------------------------------------------------------------------
class Compare(Walk):
    """Walk with the tolerance of a row: bit for bit, or within units of the last place, or as near to f64 as eager is."""

    def __init__(self, ulp=0, norm=False, reference=None):
        super().__init__()
        self.ulp, self.norm, self.reference = ulp, norm, reference

    def values(self, a, b, path):
        if self.ulp == 0 or a.dtype not in EPS:
            same = (a == b) | (a != a) & (b != b)
            if a.dtype in EPS:
                same &= (a != 0) | (a.signbit() == b.signbit())
            if not same.all() and a.is_cuda and a.dtype in EPS:   # eager's kernels there round a * b + c once, and sum in any order
                size = a.to(f64).abs().nan_to_num(0, 0, 0).max()
                same |= (a != 0) & ((a.to(f64) - b.to(f64)).abs() <= 4 * EPS[a.dtype] * size)
            if not same.all():
                self.differs(a, b, same, path)
            return
        x, y = a.to(f64), b.to(f64)
        size = x.abs().nan_to_num(0, 0, 0).max() if (self.norm or a.is_cuda) and x.numel() else x.abs()
        near = (x == y) | (x != x) & (y != y) | ((x - y).abs() <= self.ulp * EPS[a.dtype] * size + torch.finfo(a.dtype).tiny)
        if not near.all() and self.reference is not None:
            near |= self.no_worse(x, y, a)
        if not near.all():
            self.differs(a, b, near, path)

    def no_worse(self, x, y, a):
        """Elements of y that are at most twice as far from the f64 result as eager's x, or as the worst of x for norms."""
        right = self.reference(a)
        if right is None or right.shape != x.shape:
            return torch.zeros_like(x, dtype=torch.bool)
        ours, eager = (y - right).abs(), (x - right).abs()
        if self.norm:
            eager = eager.nan_to_num(0, 0, 0).max()
        return (ours <= 2 * eager + EPS[a.dtype] * right.abs()) & right.isfinite()

    def differs(self, a, b, same, path):
        where = (~same).nonzero()[0].tolist()
        at = tuple(where)
        self.fail(path, f"{int((~same).sum())} of {a.numel()} differ ({a.dtype}), first at {where}: eager {a[at].item()!r}, compiled {b[at].item()!r}")

    def tensor(self, a, b, path):
        self.want(a.stride() == b.stride() or not a.numel(), path, "strides", a.stride(), b.stride())
        super().tensor(a, b, path)


def to_f64(value):
    if isinstance(value, torch.Tensor):
        return value.to(f64) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(to_f64(v) for v in value)
    if isinstance(value, dict):
        return {k: to_f64(v) for k, v in value.items()}
    return value


def reference(fn, given, eager):
    """From an eager tensor among (args, kwargs, result) to what f64 makes of it, computed when it is asked for."""
    found = {}

    def of(tensor):
        if not found:
            args, kwargs = to_f64(given())
            try:
                after = (args, kwargs, fn(*args, **kwargs))
            except Exception:   # it has no f64 form
                after = ()
            found[0] = None
            found.update((id(t), r.to(f64)) for t, r in zip(tensors(eager), tensors(after)))
        return found.get(id(tensor))

    return of


def attempt(fn, args, kwargs):
    """(result, None), or (None, (type, text) of the error)."""
    try:
        return fn(*args, **kwargs), None
    except Exception as error:
        return None, (type(error), str(error))


def shown(value):
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}" + ("" if value.is_contiguous() else f" strides {value.stride()}")
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(shown, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}={shown(v)}" for k, v in value.items()) + "}"
    return repr(value)


@contextlib.contextmanager
def verified():
    """No plan of the block was found to differ from eager (it would be replaced, and nothing else would show it)."""
    before = counters().get("verify", 0)
    yield
    assert counters().get("verify", 0) == before, "\n".join(e.text for e in ccompile.events() if e.kind == "verify")


# ---- rows ------------------------------------------------------------------------------------------------------------
class Case:
    def __init__(self, row, name, dtype, make):
        self.row, self.name, self.fn = row, name, resolve(name)
        self.given = lambda seed: make(Maker(dtype, seed))
        self.eager = {}
        for seed in (1, 2):
            args, kwargs = self.given(seed)
            torch.manual_seed(seed)
            result, error = attempt(self.fn, args, kwargs)
            self.eager[seed] = (args, kwargs, result), error
        self.text = f"{name} on {shown(self.given(1))}"

    def good(self):
        return not any(error for _, error in self.eager.values())

    def compare(self, seed, args, kwargs, result):
        eager = self.eager[seed][0]
        Compare(self.row.ulp, self.row.norm, reference(self.fn, lambda: self.given(seed), eager)).go(
            eager, (args, kwargs, result), f"{self.text}, call {seed}"
        )


# What eager's kernels on a GPU find by an assert, which leaves the process without its GPU.
ASSERTS = re.compile(r"out of bounds|index (-?\d+ is )?out of range|tried to access index|target out of range|class values must|should be between 0 and 1", re.I)


def asserts(name, dtype, make):
    """On a GPU. What is wrong is looked for on the CPU."""
    if not torch.empty(0).is_cuda:
        return False
    torch.set_default_tensor_type(torch.FloatTensor)
    try:
        errors = [attempt(resolve(name), *make(Maker(dtype, seed)))[1] for seed in (1, 2)]
    finally:
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
    return any(error and ASSERTS.search(error[1]) for error in errors)


def cases_of(row):
    found = []
    for name, dtype, make in row.chosen():
        try:
            made = None if asserts(name, dtype, make) else make(Maker(dtype, 1))
        except (RuntimeError, NotImplementedError, TypeError, KeyError):
            continue   # operands that this dtype does not have
        if made is None:
            continue
        assert isinstance(made, tuple) and len(made) == 2
        found.append(Case(row, name, dtype, make))
    return found


def run_good(row, cases):
    for group in [[case] for case in cases] if row.random else [cases]:
        compiled = ccompile.compile(
            lambda batch: [fn(*args, **kwargs) for fn, args, kwargs in batch], isolate_recompiles=True
        )
        for seed in (1, 2):
            batch = [(case.fn, *case.given(seed)) for case in group]
            torch.manual_seed(seed)
            with replaying(1) if seed == 2 and not row.breaks else contextlib.nullcontext():
                results = compiled(batch)
            for case, (_, args, kwargs), result in zip(group, batch, results):
                case.compare(seed, args, kwargs, result)


@pytest.mark.parametrize("row", op_table.ROWS, ids=lambda row: row.names[0])
def test_row(row):
    cases = cases_of(row)
    good = [case for case in cases if case.good()]
    for name in row.names:
        assert any(case.name == name for case in good), f"no case of {name} is one that eager takes: {[c.eager[1][1] for c in cases if c.name == name]}"
    with verified():
        run_good(row, good)
        for case in cases:
            if not case.good():
                run_bad(case)


@pytest.mark.skipif(EAGER, reason="needs the extension")
@pytest.mark.parametrize("row", [row for row in op_table.ROWS if row.kernels], ids=lambda row: row.names[0])
def test_kernels(row):
    """What has a row in csrc/ir/ops.def is no step of the host."""
    for number, make in enumerate(row.cases[: row.kernels]):
        fn, (args, kwargs) = resolve(row.names[0]), make(Maker(row.dtypes[0], 1))
        compiled = ccompile.compile(lambda a, k, fn=fn: fn(*a, **k))
        for _ in range(2):
            compiled(args, kwargs)
        plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
        assert "host" not in plan, f"case {number} of {row.names[0]}:\n{plan}"


def run_bad(case):
    for seed in (1, 2):
        compiled = ccompile.compile(lambda fn, args, kwargs: fn(*args, **kwargs))
        (args, kwargs), (eager, expected) = case.given(seed), case.eager[seed]
        _, error = attempt(compiled, (case.fn, args, kwargs), {})
        assert error == expected, f"{case.text}: eager raises {expected}, compiled {error}"
        if expected:
            eager, kwargs = ({k: v for k, v in d.items() if k != "out"} for d in (eager[1], kwargs))   # it may be resized, not filled
            Compare().go((case.eager[seed][0][0], eager), (args, kwargs), f"{case.text}, arguments after the error")


def bound_names():
    """All callables of csrc/tens/binds.def."""
    from ccompile import _tenstest

    return sorted({f"{space}:{name.partition(':')[2]}" for _, _, names in _tenstest.bind_rows() for name in names.split() for space in name.partition(":")[0]})


@pytest.mark.skipif(EAGER, reason="needs the extension")
def test_every_bound_callable_has_a_row():
    rows = {name for row in op_table.ROWS for name in row.names}
    missing = [name for name in bound_names() if name not in rows]
    assert not missing, f"add to tests/op_table.py what binds.def names: {' '.join(missing)}"


@pytest.mark.skipif(EAGER, reason="needs the extension")
def test_wrong_arguments():
    """Each bound callable, called with nothing and with a keyword that it does not have: eager's error."""
    for name in bound_names():
        fn, x = resolve(name), torch.ones(3)
        for args, kwargs in (A(), A(x, wrong_keyword=1), A("text"), A(x, x, x, x, x, x, x, x)):
            _, expected = attempt(fn, args, kwargs)
            if expected:
                _, error = attempt(ccompile.compile(lambda f, a, k: f(*a, **k)), (fn, args, kwargs), {})
                assert error == expected, (name, args, kwargs)


# ---- several ops: aliasing -------------------------------------------------------------------------------------------
PROGRAMS = []


def program(*shapes, dtype=f32):
    def add(fn):
        PROGRAMS.append(pytest.param(fn, shapes, dtype, id=fn.__name__))
        return fn

    return add


@program((4, 6))
def view_shares_with_input(x):
    return x.view(-1), x.t(), x[1:, ::2], x.detach(), x.unsqueeze(0)


@program((4, 6))
def views_share_with_each_other(x):
    y = x * 2
    return y, y.view(6, 4), y[1], y.flatten(), y.transpose(0, 1)


@program((4, 6))
def reshape_copies_or_not(x):
    return x.reshape(24), x.t().reshape(24), x.contiguous(), x.t().contiguous(), x.expand(4, 6), x.float(), x.to(f32)


@program((4, 6))
def write_through_view(x):
    y = x + 1
    y.view(-1)[3:9].mul_(2)
    return y, y.sum()


@program((4, 6))
def write_base_after_view(x):
    y = x + 1
    v = y.t()
    w = v * 2
    y.add_(10)
    return v, w, v + 1


@program((4, 6))
def write_input_through_view(x):
    v = x[:, 2:4]
    v.zero_()
    return x * 2, v


@program((4, 6))
def read_before_and_after(x):
    a = x + 1
    x.mul_(3)
    b = x + 1
    x += b
    return a, b, x


@program((4, 6), (4, 6))
def swap_in_place(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return t


@program((4, 6))
def copy_onto_itself_turned(x):
    x[1:].copy_(x[:-1].clone())
    x[:, 1:] = x[:, :-1]
    return x.t().clone()


@program((6, 6))
def overlapping_add(x):
    y = x.clone()
    y[1:] += y[:-1].clone()
    return y


@program((4, 6))
def split_and_write(x):
    a, b, c = (x * 1).split(2, dim=1)
    a.add_(b)
    b.mul_(c)
    return a, b, c


@program((4, 6))
def chunk_of_input_returned(x):
    a, b = x.chunk(2)
    return b, a + b


@program((1, 6))
def expanded_is_read_after_write(x):
    e = x.expand(4, 6)
    r = e * 2
    x.add_(1)
    return e, r, e * 2


@program((4, 6), (3,))
def setitem_pieces(x, y):
    out = torch.zeros(4, 6)
    out[:, :3] = y
    out[1, 3:] = y * 2
    out[out > 1] = -1
    out[..., -1] += x[..., 0]
    return out


@program((4, 6))
def same_tensor_twice(x):
    y = x.relu()
    return y, y, [y, x], {"x": x}


@program((4, 6))
def out_is_an_operand(x):
    y = x.clone()
    torch.add(y, y.flip(0), out=y)
    torch.mul(x, 2, out=x)
    return y, x


@program((4, 6))
def out_is_a_view(x):
    buffer = torch.zeros(8, 6)
    torch.sin(x, out=buffer[2:6])
    torch.cos(x, out=buffer[4:])
    return buffer


@program((4, 6))
def in_place_chain(x):
    return x.clone().add_(1).mul_(2).clamp_(-3, 3).sqrt_().nan_to_num_()


@program((4, 6), dtype=i32)
def integers_in_place(x):
    y = x.clone()
    y //= 3
    y <<= 2
    y ^= x
    y[y % 2 == 0] = 7
    return y, ~x


@program((2, 3, 4, 5))
def layouts_meet(x):
    y = x.contiguous(memory_format=torch.channels_last)
    return y + x, y * y, y + x[:, :1], (y + 1).mean((2, 3)), y.sum(1), torch.cat([x, y], 1), y.to(memory_format=torch.contiguous_format), torch.relu(y)


@program((3, 4), (4,))
def dead_write_is_kept(x, y):
    x.add_(y)
    z = y.view(2, 2)
    z += 1


@program((5,))
def zero_dim_is_not_promoted(x):
    s = x.sum()
    return x.to(bf16) * s, x.to(torch.int32) + s, x.to(f16) / s.to(f64), s + 1, s * True, x.to(u8) + 1, x.to(u8) * 1.5


@program((4, 6))
def views_of_views_written(x):
    y = x + 0
    v = y[1:3].t()[2:5].unsqueeze(-1).squeeze(-1)
    v[0, 0] = 100
    v.t().add_(1)
    return y, v, y.as_strided((2, 2), (6, 1), 7)


@program((4, 6))
def result_written_by_caller_shape(x):
    return x[0], x.narrow(1, 1, 2), torch.atleast_2d(x), x.real, x.mT, x.data


@program((4, 6))
def write_by_name(x):
    v = x[:, 1:3]
    v.__setitem__((..., 0), 7)   # the slot that dict and list have, too
    y = x * 2
    torch.Tensor.__setitem__(y, 0, 1)
    return y, y.__getitem__(0) + 1


@program((300, 257))
def large_is_split_among_threads(x):
    y = x.sin() * x[:, :1]
    y.t().mul_(2)
    return y, y.sum(0), (y > 0.5) | (x < 0), x.t() + y.t()


@pytest.mark.parametrize("fn,shapes,dtype", PROGRAMS)
def test_aliasing(fn, shapes, dtype):
    """What shares memory in eager does so compiled: outputs and inputs are compared, written, and compared again."""
    compiled, past = ccompile.compile(fn), []
    for seed in (1, 2, 3):
        sides = []
        for f in (fn, compiled):
            m = Maker(dtype, seed)
            args = [m.x(*shape) for shape in shapes]
            with verified(), replaying(1) if f is compiled and seed == 3 else contextlib.nullcontext():
                sides.append((args, f(*args)))
        past.append(sides)
        Compare(4, True).go(*sides, f"call {seed}")
    for one, two in past:   # earlier results are still theirs
        Compare(4, True).go(one, two, "all calls")
    for k in range(len(list(tensors(past[-1][0])))):
        for side in past[-1]:
            written = list(tensors(side))[k]
            if written.numel() < 2 or 0 not in written.stride():
                written.fill_(k % 100)
        Compare(4, True).go(*past[-1], f"after a write to tensor {k}")


@pytest.mark.parametrize("fn", [torch.mul, torch.div, torch.floor_divide])
def test_half_with_wide_scalar_tensor(fn):
    for dtype, number in itertools.product((bf16, f16), (torch.tensor(0.37), torch.tensor(100001), torch.tensor([100001]))):
        compiled, x = ccompile.compile(lambda a, b: fn(a, b)), Maker(dtype, 1).x(999)
        with verified():
            for _ in range(2):
                Compare().go(fn(x, number), compiled(x, number))


HALF_NUMBERS = {
    "7.3 // x": lambda x: 7.3 // x,
    "floor_divide": lambda x: torch.floor_divide(7.3, x),
    "7.3 * x": lambda x: 7.3 * x,
    "mul": lambda x: torch.mul(7.3, x),
    "operator": lambda x: operator.mul(7.3, x),
    "__rmul__": lambda x: x.__rmul__(7.3),
}


@pytest.mark.parametrize("name", HALF_NUMBERS)
def test_half_with_a_number_first(name):
    """torch rounds the number to the half type, unless Python has put it behind the tensor."""
    fn = HALF_NUMBERS[name]
    for dtype in (bf16, f16):
        compiled, x = ccompile.compile(lambda x: fn(x)), Maker(dtype, 1).d(999)
        with verified():
            for _ in range(2):
                Compare().go(fn(x), compiled(x))


@pytest.mark.parametrize("values", [[300.0, 300.0, 0.001, 0.001], [0.97 + i % 7 * 0.01 for i in range(300)]])
def test_half_products(values):
    """torch rounds after each factor."""
    for dtype, d in itertools.product((bf16, f16), (None, 0)):
        compiled, x = ccompile.compile(lambda x: (x.prod() if d is None else x.prod(d)) * 2), torch.tensor(values, dtype=dtype)  # noqa: B023
        with verified():
            for _ in range(3):
                Compare().go((x.prod() if d is None else x.prod(d)) * 2, compiled(x))


@pytest.mark.parametrize("fn", [torch.sum, torch.mean, torch.nansum])
def test_the_dtype_of_a_sum(fn):
    for dtype, x in itertools.product((bf16, f16), (torch.tensor([[70000.0, -69000.0]]), torch.tensor([[100001, -100000]]))):
        compiled = ccompile.compile(lambda x: fn(x, 1, dtype=dtype))  # noqa: B023
        with verified():
            for _ in range(2):
                Compare().go(fn(x, 1, dtype=dtype), compiled(x))


# ---- what counts and what indexes, by every back-end -----------------------------------------------------------------
PLACES = [
    lambda x, i: x.argmax(-1) + x.argmin(0, keepdim=True)[:, :1].sum(),
    lambda x, i: (x.sum(1) * torch.arange(3, 3 + x.shape[0]), x.t().tril(2) + 1, (x + 1).triu(-3)[2]),
    lambda x, i: (x * torch.eye(x.shape[0], x.shape[1]), x[0] * torch.linspace(-1, 1, x.shape[1])),
    lambda x, i: (torch.nn.functional.embedding(i, x) * 2, x.index_select(1, i[0]) + 1, x[i - 5] - 1, x[:, i[1]].sum(1)),
    lambda x, i: ((x * 3).gather(0, i[:2, :5].contiguous()).sin(), x.t()[i].mean(-1), torch.softmax(x[i[0]], -1)),
    lambda x, i: (x[:, i.t()].to(bf16) * 2, x.to(f64)[i].sum((0, 2)), (x > 0)[i].any(1), x[:, 1::2][i[0]] + 1),
    lambda x, i: (x[i, i - 5] * 2, x[i[:, :1], i[0]].exp(), x.expand(3, *x.shape)[:, i, i[:1]], torch.nn.functional.one_hot(i, 6) * 2),
    lambda x, i: (torch.nn.functional.cross_entropy(x[:4, :5] * 2, i[:, 0], ignore_index=2), (x * 2).max(1), x.t().min(0)[1]),
]


@pytest.mark.parametrize("backend", ["llvm", "ref"])
@pytest.mark.parametrize("fn", PLACES, ids=range(len(PLACES)))
@pytest.mark.parametrize("shape", [(7, 37), (16, 5), (5, 300)])
def test_places_and_indices(fn, shape, backend, monkeypatch):
    if backend == "ref":
        monkeypatch.setenv("CCOMPILE_BACKEND", "ref")
    compiled = ccompile.compile(fn)
    for seed in (1, 2):
        m = Maker(f32, seed)
        x, i = m.x(*shape), m.idx(5, 4, 9)
        with verified(), replaying(1) if seed == 2 else contextlib.nullcontext():
            Compare(16, True).go(fn(x, i), compiled(x, i))
    plan = compiled_of(compiled).report()["entries"][0]["segments"][0]["plan_text"]
    assert "host" not in plan or "select" in plan, plan


@pytest.mark.parametrize("shape", [(1, 2), (1, 1), (3, 1), (1, 40)])
def test_an_index_into_one_element(shape):
    """The vector loop has one step, in which what does not change along it stands in lanes all the same."""
    fns = [lambda x, i: x.gather(-1, i.unsqueeze(-1)).squeeze(-1), lambda x, i: torch.nn.functional.embedding(i, x.t()) * 2, lambda x, i: x[i - 1] + 1]
    for fn in fns:
        compiled = ccompile.compile(fn)
        for seed in (1, 2):
            x, i = Maker(f32, seed).x(*shape), torch.zeros(shape[0], dtype=torch.long)
            with verified(), replaying(1) if seed == 2 else contextlib.nullcontext():
                Compare(4, True).go(fn(x, i), compiled(x, i))
    assert not [e.text for e in ccompile.events() if e.kind == "fallback"]


# ---- errors that depend on data --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fn,good,bad",
    [
        (lambda i, x: x.relu()[i] + 1, 3, 9),
        (lambda i, x: torch.nn.functional.embedding(i, x) * 2, 3, 9),
        (lambda i, x: (x * 2).gather(1, i[:, None].expand(2, 5)).sin(), 1, 7),
        (lambda i, x: x.index_select(0, i).exp(), 0, -9),
        (lambda i, x: torch.nn.functional.cross_entropy(x[:2] * 2, i), 4, 11),
        (lambda i, x: torch.nn.functional.one_hot(i, 5) + 1, 4, 5),
        (lambda i, x: torch.linalg.inv(x[:, :4] * (i[0] - 2)) + 1, 3, 2),
    ],
    ids="getitem embedding gather index_select cross_entropy one_hot inv".split(),
)
def test_error_in_a_replay(fn, good, bad):
    compiled, x = ccompile.compile(fn), Maker(f32, 1).x(4, 5)
    for value in (good, good, bad, good, bad, good):
        i = torch.tensor([value, 1])
        result, expected = attempt(fn, (i, x), {})
        got, error = attempt(compiled, (i, x), {})
        assert error == expected
        if not expected:
            Compare(4).go(result, got)
