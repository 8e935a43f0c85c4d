"""The visible behaviour of a call, for comparing the frame layer (csrc/py) with CPython: result, exception (type, text, context,
traceback with lines and columns), what callees see of their callers, the log of side effects, frames that outlive the call.
"""

import re
import sys
import sysconfig
import types

import frame_cases as cases
import pytest

F = pytest.importorskip("ccompile._frametest")


@pytest.fixture(autouse=True, scope="module")
def no_foreign_hook():
    """F.run refuses to run under Dynamo's hook, which torch._dynamo.explain leaves installed where it raises (tests of other files)."""
    dynamo = sys.modules.get("torch._C._dynamo.eval_frame")
    callback = dynamo.set_eval_frame(None) if dynamo else None
    F.foreign(False)  # Dynamo installs it again when it needs it
    yield
    if dynamo:
        dynamo.set_eval_frame(callback)


def normal(value):
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def trace_of(exc):
    rows, tb = [], exc.__traceback__
    while tb:
        code = tb.tb_frame.f_code
        rows.append((code.co_name, tb.tb_lineno, cases.position(code, tb.tb_lasti), tb.tb_frame.f_lineno))
        tb = tb.tb_next
    while rows and rows[0][0] == "outcome":
        rows.pop(0)
    if len(rows) > 60:
        rows = rows[:3] + ["deep"]
    return rows


def chain_of(exc):
    seen = []
    while exc is not None and len(seen) < 10:
        seen.append((type(exc).__name__, normal(exc), trace_of(exc), exc.__suppress_context__))
        exc = exc.__cause__ or exc.__context__
    return seen


def outcome(how, fn, make):
    """Everything observable of a call; `how`: a C function that makes it, and what it is passed beside fn and args."""
    run, *more = how
    cases.LOG.clear()
    cases.KEEP.clear()
    args = make()
    try:
        result = ("value", normal(run(fn, args, *more)))
    except BaseException as e:
        result = ("raised", chain_of(e))
    kept = [
        (f.f_code.co_name, f.f_lineno, normal(sorted(f.f_locals)), f.f_back and f.f_back.f_code.co_name) for f in cases.KEEP
    ]
    cases.KEEP.clear()
    return result, normal(cases.LOG), kept


plainly = (F.call,)


def hooked(mode, k, target):
    return F.run, mode, k, target


def cool(fn):
    """Gives fn (and the callees) code objects that were never specialised."""
    for f in (fn, *cases.CALLEES):
        f.__code__ = f.__code__.replace()


def assert_same(got, want, what):
    if got != want:
        pytest.fail(f"{what}\n want {want}\n got  {got}")


def balanced():
    assert F.armed() == (0, False)
    assert F.hookless()


def check(fn, *args, mode=F.OBSERVE, k=0):
    want = outcome(plainly, fn, lambda: args)
    got = outcome(hooked(mode, k, None), fn, lambda: args)
    assert_same(got, want, fn.__name__)
    balanced()


def ident(x):
    return x


def code_objects():
    """All code objects of the cases and of some modules of the standard library."""
    lib = sysconfig.get_path("stdlib")
    for name in ("ast", "argparse", "asyncio/base_events", "dataclasses", "inspect", "contextlib", "typing", "test/test_grammar"):
        try:
            with open(f"{lib}/{name}.py", encoding="utf-8") as f:
                yield from nested(compile(f.read(), name, "exec"))
        except OSError:
            continue
    with open(cases.__file__, encoding="utf-8") as f:
        yield from nested(compile(f.read(), "cases", "exec"))
    yield from nested(cases.c_extended.__code__)


def nested(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested(const)
