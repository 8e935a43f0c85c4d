"""Every torch callable of the op table, compiled against eager: dtypes, shapes, layouts, special values, errors, aliasing.

The rows are in op_table.py. All good cases of a row run in one compiled function, first recorded, then replayed on other
values of equal types; what eager refuses has to be refused with the same error."""

import contextlib
import os
import warnings

import ccompile
import op_table
import pytest
import torch
from conftest import EAGER, Walk, counters, replaying, tensors
from op_table import A, Maker, bf16, f16, f32, f64, i32, i64, resolve, u8

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
            if not same.all():
                self.differs(a, b, same, path)
            return
        x, y = a.to(f64), b.to(f64)
        size = x.abs().nan_to_num(0, 0, 0).max() if self.norm and x.numel() else x.abs()
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


def cases_of(row):
    found = []
    for name, dtype, make in row.chosen():
        try:
            made = make(Maker(dtype, 1))
        except (RuntimeError, NotImplementedError, TypeError, KeyError):
            continue   # operands that this dtype does not have
        assert isinstance(made, tuple) and len(made) == 2
        found.append(Case(row, name, dtype, make))
    return found


def run_good(row, cases):
    for group in [[case] for case in cases] if row.random else [cases]:
        compiled = ccompile.compile(lambda batch: [fn(*args, **kwargs) for fn, args, kwargs in batch])
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


NOT_ALL = op_table.Row(["F:add"], [])


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
