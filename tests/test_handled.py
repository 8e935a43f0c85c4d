"""Exceptions that are alive at a graph break: in a variable, a container, another exception, or only as the one being handled.
What code behind the break reads from them (arguments, text, context) is this call's."""

import contextlib
import sys
import traceback

import ccompile
import pytest
import torch


class Coded(Exception):
    def __init__(self, k):
        super().__init__(f"k={k}")
        self.k = k

    def __str__(self):
        return f"Coded({self.k})"


class Told:
    def __init__(self, t):
        self.t = t

    def __str__(self):
        return f"Told{self.t.tolist()}"


def text_of_handled(x, k):
    try:
        raise ValueError(k)
    except ValueError:
        x.tolist()
        return str(sys.exc_info()[1])


def parts_of_handled(x, k):
    try:
        raise ValueError([k])
    except ValueError:
        print(end="")
        name = sys.exc_info()[0].__name__
        print(end="")
        return name, sys.exc_info()[1].args[0]


def attribute_of_handled(x, k):
    try:
        raise Coded(k)
    except Coded:
        x.tolist()
        return str(sys.exc_info()[1]), sys.exc_info()[1].k


def errno_of_handled(x, k):
    try:
        raise OSError(k, "x")
    except OSError:
        x.tolist()
        return str(sys.exc_info()[1]), sys.exc_info()[1].errno


def made_by_c_code(x, k):
    try:
        int(f"z{k}")
    except ValueError:
        x.tolist()
        return str(sys.exc_info()[1])


def formatted(x, k):
    try:
        return {}[k]
    except KeyError:
        x.tolist()
        return traceback.format_exc().splitlines()[-1]


def context(x, k):
    try:
        raise ValueError(k)
    except ValueError:
        x.tolist()
        try:
            raise KeyError(k)
        except KeyError as e:
            return repr(e.__context__), repr(e), e.__suppress_context__


def cause(x, k):
    try:
        raise ValueError(k) from KeyError(k + 1)
    except ValueError:
        x.tolist()
        e = sys.exc_info()[1]
        return str(e.__cause__), e.__cause__.args


def raised_again(x, k):
    try:
        raise ValueError(k)
    except ValueError:
        try:
            x.tolist()
            raise
        except ValueError as e:
            return str(e)


def raised_by_suppress(x, k):
    with contextlib.suppress(ValueError):
        try:
            raise ValueError(k)
        except ValueError:
            x.tolist()
            raise
    return x + 1


def through_finally(x, k):
    try:
        try:
            raise ValueError(k)
        except KeyError:
            pass
        finally:
            x.tolist()
            y = x + k
    except Exception as e:
        return str(e), y


def in_a_loop(x, k):
    out = []
    for i in range(3):
        try:
            raise (ValueError, KeyError)[i % 2](k + i)
        except Exception:
            x.tolist()
            out.append(repr(sys.exc_info()[1]))
    return out


def handled_by_caller(x, k):
    try:
        raise ValueError(k)
    except ValueError:
        return callee(x)


def callee(x):
    x.tolist()
    return sys.exc_info()[1] and sys.exc_info()[1].args


def two_handled(x, k):
    try:
        raise ValueError(k)
    except ValueError:
        try:
            x.tolist()
            raise KeyError(k + 1)
        except KeyError:
            x.tolist()
            inner = repr(sys.exc_info()[1])
        x.tolist()
        return inner, repr(sys.exc_info()[1])


def thrown_into_generator(x, k):
    def gen():
        try:
            yield 1
        except ValueError:
            x.tolist()
            yield repr(sys.exc_info()[1])

    it = gen()
    next(it)
    return it.throw(ValueError(k))


def named(x, k):
    try:
        raise ValueError(k)
    except ValueError as e:
        x.tolist()
        kept = e
    return kept.args, str(kept), kept.__traceback__.tb_lineno > 0


def raised_later(x, k):
    try:
        raise ValueError(k)
    except ValueError as e:
        error = e
    x.tolist()
    try:
        raise error
    except ValueError as e:
        return str(e), e is error


def within_another(x, k):
    e = ValueError(KeyError(k))
    x.tolist()
    return str(e)


def within_containers(x, k):
    e = {"a": (ValueError(k),)}
    x.tolist()
    return str(e), e["a"][0].args


def in_a_list(x, k):
    e = [ValueError(k)]
    x.tolist()
    return str(e)


def grouped(x, k):
    errors = []
    for i in range(2):
        try:
            raise ValueError(k, i)
        except ValueError as e:
            errors.append(e)
    x.tolist()
    group = ExceptionGroup("g", errors)
    x.tolist()
    try:
        raise group
    except* ValueError as g:
        told = repr(g), [e.args for e in g.exceptions]
    return told


def split_group(x, k):
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(k), KeyError(k)])
    except* ValueError as e:
        out.append(repr(e))
    except* KeyError as e:
        out.append(str(e.exceptions[0]))
    return out


def raises(k):
    raise KeyError(k)


def through_one_finally(k):
    try:
        raises(k)
    finally:
        print(end="")


def through_two(k):
    try:
        through_one_finally(k)
    finally:
        print(end="")


def noted(k):
    try:
        raises(k)
    except KeyError:
        print(end="")
        raise


def entries(e):
    return [(t.name, t.lineno) for t in traceback.extract_tb(e.__traceback__)]


def traceback_through_finally(x, k):
    try:
        through_one_finally(k)
    except KeyError as e:
        return x + 1, entries(e)


def traceback_through_two(x, k):
    try:
        try:
            through_two(k)
        finally:
            print(end="")
    except KeyError as e:
        return x + 1, entries(e)


def traceback_of_what_is_raised_again(x, k):
    try:
        noted(k)
    except KeyError as e:
        caught = e
    return x + 1, entries(caught)


def traceback_of_the_cause(x, k):
    try:
        try:
            noted(k)
        except KeyError as e:
            raise ValueError(k) from e
    except ValueError as e:
        return x + 1, entries(e), entries(e.__cause__), entries(e.__context__)


def number_of_a_tensor(x, k):
    try:
        raise ValueError((x * k).sum().item())
    except ValueError as e:
        return repr(e)


def asserted_number_of_a_tensor(x, k):
    try:
        raise AssertionError((x * k).sum().item(), "a")
    except AssertionError as e:
        return str(e), e.args


def display_behind_a_break_in_a_method(x, k):
    str(Told(x))
    return [*enumerate((x * k).tolist())]


def tuple_display_behind_a_break_in_a_method(x, k):
    f"{Told(x)}"
    return (*map(max, [1, 2], (x * k).tolist()),)


FUNCTIONS = [f for f in list(globals().values()) if callable(f) and getattr(f, "__code__", None) and f.__code__.co_varnames[:2] == ("x", "k")]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_numbers_in_exceptions(fn):
    compiled = ccompile.compile(fn)
    for k in (2, 1, 3.5, 3, 2, 7, 1, 7.5):
        assert repr(compiled(torch.ones(2), k)) == repr(fn(torch.ones(2), k)), k


def test_functions_are_found():
    assert len(FUNCTIONS) > 25


@pytest.mark.parametrize("reads", ["sys.exc_info()[1].args", "repr(sys.exception())"])
def test_what_the_caller_handles(reads):
    """A compiled function that is called in a handler."""
    scope = {"sys": sys}
    exec(f"def fn(x):\n    y = x + 1\n    return y, {reads}\n", scope)
    compiled = ccompile.compile(scope["fn"])
    for k in (2, 1, 3, 2, 5):
        try:
            raise ValueError(k)
        except ValueError:
            assert repr(compiled(torch.ones(1))) == repr(scope["fn"](torch.ones(1)))


def raises_in_a_handler(k):
    try:
        raises(k)
    except KeyError:
        raise IndexError(k)


def ends_in_finally(k):
    try:
        raises_in_a_handler(k)
    finally:
        print(end="")


def ends_in_a_handler(k):
    try:
        raises_in_a_handler(k)
    except IndexError as e:
        print(end="")
        raise ValueError(k) from e


def ends_in_with(k):
    with contextlib.redirect_stdout(None):
        raises_in_a_handler(k)


def ends_in_two(k):
    try:
        ends_in_a_handler(k)
    finally:
        print(end="")


def chain(e):
    """Names of the functions in the tracebacks of an exception and of its contexts, without the caller's."""
    lines = []
    while e is not None:
        lines.append((type(e), [t.name for t in traceback.extract_tb(e.__traceback__) if t.name != "leaves"]))
        e = e.__context__
    return lines


def leaves(fn, k):
    try:
        fn(k)
    except LookupError as e:
        return chain(e)
    except ValueError as e:
        return chain(e), e.__cause__ is e.__context__


@pytest.mark.parametrize("fn", [ends_in_finally, ends_in_a_handler, ends_in_with, ends_in_two], ids=lambda f: f.__name__)
def test_tracebacks_of_exceptions_raised_in_handlers(fn):
    """The compiled function's own entry, too, behind its graph break; in replays, and with other numbers."""
    compiled = ccompile.compile(fn)
    for k in (2, 2, 2, 1, 2, 3, 3.5):
        assert leaves(compiled, k) == leaves(fn, k), k
    assert ccompile.api.compiled_of(compiled).report()["hits"]


@pytest.mark.parametrize("value", ["5", "'text'", "[5]", "x"])
def test_a_deleted_variable_of_a_frame_that_a_traceback_keeps(value):
    """The call of an int is a break: CPython raises, so that the traceback holds the frame itself."""
    made = {}
    exec(
        "def fn(x, o):\n"
        f"    n = {value}\n"
        "    try:\n"
        "        1()\n"
        "    except TypeError as e:\n"
        "        o.append(e)\n"
        "    del n\n"
        "    return x + 1\n",
        made,
    )
    compiled = ccompile.compile(made["fn"])
    for _ in range(4):
        kept = []
        compiled(torch.ones(2), kept)
        assert "n" not in kept[0].__traceback__.tb_frame.f_locals
