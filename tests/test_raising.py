"""Functions that raise in some calls: the caller gets eager's exception, and after some of them the instruction that raises is
a graph break, so that calls that raise run compiled code up to there (csrc/rec/rec.c, cc_rec_break_at_raise).

PYTEST_DONT_REWRITE: one of the functions is about a plain assert."""

import contextlib
import traceback

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, alike, replaying


class Refused(Exception):
    def __init__(self, n, x):
        super().__init__(f"refused {n}")
        self.n, self.x = n, x


class Log:
    def __init__(self):
        self.seen, self.calls, self.last = [], 0, None


def by_shape(x, n, log):
    for _ in range(4):
        x = x.sin() * 1.01
    if x.shape[-1] != 4:
        raise ValueError(f"expected 4, got {x.shape[-1]}")
    return x


def by_number(x, n, log):
    y = x * 2
    log.calls += 1
    if n % 2:
        raise ValueError("odd")
    return y + log.calls


def asserted(x, n, log):
    y = x + n
    assert n % 2 == 0, f"{n} is odd"
    return y


def helper(x, n, log):
    log.seen.append(n)
    return by_number(x + 1, n, log) * 3


def checked(x, n):
    if n % 2:
        raise Refused(n % 4, x * 2)
    return x


def with_state(x, n, log):
    log.last = x * 3
    x.add_(1)
    return checked(x, n) + log.last


def in_block(x, n, log):
    with torch.no_grad():
        y = x * 2
        if n % 2:
            raise KeyError("block")
    return y


def in_finally(x, n, log):
    try:
        y = x * 2
        if n % 2:
            raise KeyError("tried")
    finally:
        log.seen.append(n % 2)
    return y


def chained(x, n, log):
    y = x * 2
    try:
        if n % 2:
            raise KeyError("inner")
    except KeyError as e:
        raise RuntimeError("outer") from e
    return y


def by_c_code(x, n, log):
    y = x * 2
    return y + {0: 1}[n % 2]


def by_tensor(x, n, log):
    y = x * 2
    if x.sum() < 0:
        raise ArithmeticError("negative")
    return y


def also_caught(x, n, log):
    with contextlib.suppress(Refused):
        checked(x, n % 3)
    return checked(x * 2, n)


def in_block_by_torch(x, n, log):
    with torch.no_grad():
        return (x * 2).view(2, 4)


def in_finally_by_python(x, n, log):
    y = x * 2
    try:
        return y + [None, 1][n % 2 - 1]
    finally:
        log.seen.append(n % 2)


CASES = [in_block_by_torch, in_finally_by_python]
CASES += [by_shape, by_number, asserted, helper, with_state, in_block, in_finally, chained, by_c_code, by_tensor, also_caught]


def attempt(fn, x, n, log):
    try:
        return fn(x, n, log), log, x
    except Exception as e:
        frames = [(f.name, f.lineno) for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__][1:]
        return type(e), str(e), vars(e), frames, type(e.__cause__), type(e.__context__), log, x


def given(i):
    return torch.full((2, 4 + i % 2), 1.0 - 2 * (i % 2)), i


@pytest.mark.parametrize("fn", CASES)
def test_exceptions_are_those_of_eager(fn):
    compiled, logs = ccompile.compile(fn, isolate_recompiles=True), (Log(), Log())
    for i in range(24):
        alike(attempt(fn, *given(i), logs[0]), attempt(compiled, *given(i), logs[1]), path=f"call {i}")


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("fn", [in_block, in_finally, in_block_by_torch, in_finally_by_python])
def test_recordings_of_what_a_with_or_finally_raises_again_end(fn):
    compiled, log = ccompile.compile(fn, isolate_recompiles=True), Log()
    for i in range(40):
        attempt(compiled, *given(i), log)
    assert compiled_of(compiled).report()["recordings"] < 10


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("fn", [by_shape, by_number, asserted, helper, with_state, by_tensor])
def test_calls_that_raise_are_replayed(fn):
    compiled, log = ccompile.compile(fn, isolate_recompiles=True), Log()
    for i in range(24):
        attempt(compiled, *given(i), log)
    recorded = compiled_of(compiled).report()["recordings"]
    with replaying(6):
        for i in range(24, 30):
            attempt(compiled, *given(i), log)
    assert compiled_of(compiled).report()["recordings"] == recorded


@pytest.mark.parametrize("fn", [by_shape, by_number, asserted])
def test_a_whole_graph_raises_what_the_function_raises(fn):
    compiled, logs = ccompile.compile(fn, fullgraph=True), (Log(), Log())
    for i in range(16):
        alike(attempt(fn, *given(i), logs[0])[:2], attempt(compiled, *given(i), logs[1])[:2], path=f"call {i}")


def test_an_exception_behind_a_write_to_a_class():
    """CPython's lookup in a class whose version has changed clears an exception that is being raised."""

    class Base:
        rate = 1

    class Derived(Base):
        pass

    def fn(x, o):
        x.sum().item()
        Derived.rate = o.rate * 2
        raise KeyError("rate")

    for f in (fn, ccompile.compile(fn)):
        if "rate" in vars(Derived):
            del Derived.rate
        for _ in range(4):
            with pytest.raises(KeyError, match="rate"):
                f(torch.ones(2), Derived())
        assert Derived.rate == 16


GOOD, BAD = torch.eye(3), torch.full((3, 3), float("nan"))
UNREAD = {  # an op, whose result nobody reads, that raises if it is given BAD
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "inv": lambda x: torch.linalg.inv(x.nan_to_num()),
    "solve": lambda x: torch.linalg.solve(x.nan_to_num(), torch.ones(3)),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x),
    "svd": lambda x: torch.linalg.svd(x),
    "histc": lambda x: torch.histc(x),
    "quantile": lambda x: torch.quantile(x.nan_to_num(), x[0].sum().nan_to_num(2)),
    "assert": lambda x: torch._assert_async(x[0, 0] == 1),
    "assert_of_aten": lambda x: torch.ops.aten._assert_async(x[0, 0] == 1),
    "assert_of_an_overload": lambda x: torch.ops.aten._assert_async.msg(x[0, 0] == 1, "not 1"),
    "inv_of_aten": lambda x: torch.ops.aten.linalg_inv(x.nan_to_num()),
    "bincount": lambda x: torch.bincount((x.nan_to_num(-1)[0]).to(torch.int8)),
}


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", UNREAD)
def test_an_op_that_nobody_reads_raises(name, grad):
    def f(x):
        try:
            UNREAD[name](x)
            return (x * 2).sum()
        except Exception as error:  # what the op raises is no matter
            return type(error).__name__

    fn = ccompile.compile(f)
    for x in (GOOD, GOOD, GOOD, GOOD, BAD, GOOD, BAD):
        x = x.clone().requires_grad_(grad)
        want, got = f(x), fn(x)
        assert got == want
    assert isinstance(want, str), "eager accepts it"
