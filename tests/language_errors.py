"""Exceptions, warnings, assertions (see language_cases.py)."""

import functools
import sys
import traceback
import warnings

import torch
from language_cases import Seen, alternating, case, made


class Oops(Exception):
    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


# ---- exceptions ------------------------------------------------------------------------------------------------------
@case
def try_else_finally(x):
    log = []
    for v in (1, 0):
        try:
            x = x * (1 // v)
        except ZeroDivisionError as e:
            log.append(str(e))
        else:
            log.append("else")
        finally:
            log.append("finally")
    return x, log


@case
def messages_of_what_calls_back(x):
    out = []
    for f in (sum, sorted, max, functools.partial(functools.reduce, lambda a, b: a + b)):
        for of in (3, property(), [], [1, "a"]):
            try:
                out.append(f(of))
            except (TypeError, ValueError) as e:
                out.append(str(e))
    return x + len(out), out


@case
def try_order_of_handlers(x):
    out = []
    for e in (KeyError("k"), IndexError(1), ValueError(), Oops("o", 3)):
        try:
            raise e
        except LookupError as c:
            out.append(("lookup", type(c).__name__, c.args))
        except (ValueError, TypeError):
            out.append("value")
        except Exception as c:
            out.append(c.code)
    return x + len(out), out


@case
def try_nested(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b")
        finally:
            x = x + 1
    except ValueError as e:
        return x, str(e), type(e.__context__).__name__, e.__cause__, e.__suppress_context__


@case(hit=False)
def raise_from(x):
    y = x * 2
    try:
        {}["missing"]
    except KeyError as e:
        raise Oops("wrapped", code=len(y)) from e


@case(hit=False)
def raise_from_none(x):
    try:
        [].pop()
    except IndexError:
        raise Oops("hidden") from None


@case(hit=False)
def raise_in_handler(x):
    try:
        raise ValueError("first")
    except ValueError:
        y = x + 1
        raise KeyError("second")


@case
def raise_class_and_bare(x):
    try:
        try:
            raise Oops
        except TypeError as e:
            raise
    except TypeError as e:
        return x, str(e).replace("Oops.", "")


@case
def reraise_after_cleanup(x):
    log = []

    def f(v):
        try:
            return v @ v
        except RuntimeError:
            log.append("cleanup")
            raise

    try:
        f(x)
    except RuntimeError:
        return x + 1, log


@case(hit=False)
def reraise_outside(x):
    def f():
        raise ValueError(3)

    try:
        f()
    except ValueError as e:
        kept = e
    x = x + 1
    raise kept


@case(hit=False)
def raise_nothing_active(x):
    try:
        raise
    except RuntimeError as e:
        return x, str(e)


@case(hit=False)
def raise_not_exception(x):
    try:
        raise "text"
    except TypeError as e:
        return x, str(e)


@case
def exception_from_callee(x):
    def inner(v):
        return v.reshape(7, 7)

    def middle(v):
        return inner(v + 1)

    return middle(x)


@case
def exception_from_callee_caught(x):
    def inner(v):
        raise Oops("deep", v.shape[0])

    def middle(v):
        try:
            inner(v)
        except Oops as e:
            e.args = (*e.args, "more")
            raise

    try:
        middle(x)
    except Oops as e:
        return x * e.code, e.args, e.code


@made
def exception_kept():
    """An exception that outlives the call: its type, arguments and traceback are those of eager."""
    kept = []

    def check(v):
        raise Oops("too many", v.shape[0])

    def f(x):
        try:
            check(x + 1)
        except Oops as e:
            kept[:] = [e]
        return x * 2

    return f, Seen(
        lambda: [
            (s.name, s.lineno) for e in kept for s in traceback.extract_tb(e.__traceback__) if s.filename == __file__
        ]
    )


@case
def exception_traceback_read(x):
    def f(v):
        raise Oops("for its lines")

    try:
        f(x * 2)
    except Oops as e:
        tb = e.__traceback__
        frames = traceback.extract_tb(tb)
    return x + 1, [(fr.name, fr.lineno) for fr in frames if "torch" not in fr.filename]


@case
def exception_formatted(x):
    try:
        [][x.shape[0]]
    except IndexError:
        text = traceback.format_exc()
    return x * 2, text.splitlines()[-1], "exception_formatted" in text


@case
def exception_name_deleted(x):
    e = 1
    try:
        raise ValueError
    except ValueError as e:
        pass
    try:
        return e
    except UnboundLocalError:
        return x * 2


@case
def exception_with_notes(x):
    try:
        raise ValueError("v")
    except ValueError as e:
        e.add_note("noted")
        return x, e.__notes__


@case(hit=False)
def exception_group(x):
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2), ValueError(3)])
    except* ValueError as eg:
        out.append([e.args for e in eg.exceptions])
    except* KeyError as eg:
        out.append(len(eg.exceptions))
    return x * len(out), out


@case(hit=False)
def exception_group_unmatched(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError:
        x = x + 1


@case
def finally_returns(x):
    def f():
        try:
            return x + 1
        finally:
            return x + 2

    def g():
        for _ in range(2):
            try:
                raise ValueError
            finally:
                continue
        return x

    def h():
        while True:
            try:
                return 1
            finally:
                break
        return 2

    return f(), g(), h()


@case
def finally_runs_before_caller(x):
    log = []

    def f():
        try:
            log.append("try")
            return log.append("value")
        finally:
            log.append("finally")

    f()
    log.append("after")
    return x, log


@case(hit=False)
def assert_with_message(x):
    assert x.dim() == 2, "never"
    y = x * 2
    assert y.shape[0] == 7, f"rows {y.shape[0]}"
    return y


@case(inputs=alternating, hit=False)
def assert_on_values(x):
    assert x.sum() > 0, f"sum is {x.sum().item():.1f}"
    return x * 2


@case(inputs=alternating, hit=False)
def raise_on_value(x):
    y = x * 2
    if (y < 0).any():
        raise Oops("negative", code=int(y.sum()))
    return y


@case(inputs=alternating)
def raise_on_value_in_callee(x):
    def check(v):
        if v.min() < 0:
            raise ValueError(f"min {v.min().item():.1f}")
        return v

    try:
        return check(x) + 1
    except ValueError as e:
        return x - 1, str(e)


@case
def exception_across_break(x):
    try:
        y = x * 2
        print("in try")
        y = y.reshape(5)
    except RuntimeError:
        return x + 1
    finally:
        print("finally")


@case(hit=False)
def exception_in_handler_with_break(x):
    try:
        raise KeyError("a")
    except KeyError as e:
        n = x.sum().item()
        try:
            raise ValueError(round(n, 2)) from e
        except ValueError as v:
            return x * n, v.__cause__.args, type(v.__context__).__name__


@case
def exception_active_in_callee(x):
    def current():
        return sys.exc_info()[0], str(sys.exc_info()[1])

    before = current()
    try:
        raise ValueError("active")
    except ValueError:
        inside = current()
    return x, before, inside, current()


@made
def exception_before_effects():
    log = []

    def f(x):
        log.append("before")
        y = x.sin()
        log.append("between")
        y.reshape(5)
        log.append("never")

    return f, log


@made(hit=False)
def exception_in_effects_order():
    state = {"n": 0}

    def f(x):
        state["n"] += 1
        try:
            state["a"] = x.sum()
            state["missing"]
        except KeyError:
            state["b"] = list(state)
        finally:
            state.pop("a")
        return x * 2

    return f, state


@case
def stop_iteration_caught(x):
    it = iter([x])
    out = []
    while True:
        try:
            out.append(next(it))
        except StopIteration:
            break
    return out


@case
def key_error_as_default(x):
    d = {"a": x}
    out = []
    for k in "ab":
        try:
            out.append(d[k])
        except KeyError as e:
            out.append(e.args[0])
    return out


@case
def attribute_error_as_default(x):
    out = []
    for o in (x, 3, "s"):
        try:
            out.append(o.shape)
        except AttributeError as e:
            out.append((e.name, type(e.obj).__name__, str(e)))
    return x + 1, out


@case(hit=False)
def type_errors(x):
    out = []
    for f in (lambda: 1 + "a", lambda: len(3), lambda: x + "a", lambda: None[0], lambda: [] < {}, lambda: (1)(2)):
        try:
            f()
        except TypeError as e:
            out.append(str(e)[:40])
    return x, out


@case(hit=False)
def torch_errors(x):
    out = []
    for f in (
        lambda: x @ x,
        lambda: x.view(4),
        lambda: torch.cat([]),
        lambda: x[5],
        lambda: x.nothing,
        lambda: x.sum(9),
    ):
        try:
            f()
        except (RuntimeError, IndexError, AttributeError, ValueError) as e:
            out.append((type(e).__name__, str(e)[:25]))
    return x * len(out), out


@case
def warnings_caught(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning)
        y = x * 2
    return y, [str(w.message) for w in seen]


@case
def warning_as_error(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("now an error")
        except UserWarning as e:
            return x, str(e)


@made
def division_of_floats_in_a_try_block():
    """Only divisions of integers raise depending on data."""
    seen = torch.zeros(200)

    def fn(x):
        y = torch.nn.functional.dropout(x, 0.5)
        seen.add_(1)
        try:
            z = torch.div(x, x * 0, out=torch.empty(2, 3))
            return y, z, torch.fmod(x, x - x), torch.floor_divide(x, 0.5), x % 0.0
        except RuntimeError:
            return y

    return fn, Seen(lambda: [seen])


@case(
    inputs=lambda i: (torch.ones(3, dtype=torch.int64), torch.tensor([1, 0 if i == 2 else 1, 2]), torch.zeros(200)),
    hit=False,
)
def division_of_integers_in_a_try_block(x, y, seen):
    seen.add_(1)
    try:
        return torch.floor_divide(x, y), x % y
    except RuntimeError as error:
        return x, str(error)
