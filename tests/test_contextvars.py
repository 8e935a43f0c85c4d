"""Context variables: what a variable holds, or that it holds nothing, is guarded; reads behind set() and reset() see what eager
sees. Each call runs in a new context that `enter` prepares, so calls differ in what the variables hold."""

import contextlib
import contextvars
import re
import types

import ccompile
import pytest
import torch
from conftest import EAGER, alike, explained, outcome, replaying

number = contextvars.ContextVar("number", default=1)
bare = contextvars.ContextVar("bare")  # has no default
kept = types.SimpleNamespace(token=None)


@contextlib.contextmanager
def scope(v):
    token = number.set(v)
    try:
        yield
    finally:
        number.reset(token)


# ---- what each call's context holds -------------------------------------------------------------------------------------
def nothing(i):
    pass


def some(i):
    """Set in every other call."""
    if i % 2:
        number.set(i)
        bare.set(i)


def older(i):
    """Set before the call, and set again: the token is the call's."""
    some(i)
    kept.token = number.set(20)


def used(i):
    older(i)
    if i == 3:
        number.reset(kept.token)


def without(i):
    if i % 2:
        bare.set(i)
    kept.token = bare.set(20)


# ---- functions ----------------------------------------------------------------------------------------------------------
def default_of_the_call(x):
    return x * number.get(5)


def own_default(x):
    return x * number.get()


def no_default(x):
    return x * bare.get()


def no_default_but_the_calls(x):
    return x * bare.get(3)


def set_and_reset(x):
    token = number.set(7)
    y = x * number.get()
    number.reset(token)
    return y + number.get()


def nested(x):
    outer = number.set(7)
    inner = number.set(8)
    y = x * number.get()
    number.reset(inner)
    y = y * number.get()
    number.reset(outer)
    return y + number.get()


def read_first(x):
    y = x * number.get()
    token = number.set(7)
    y = y + number.get()
    number.reset(token)
    return y + number.get()


def reset_twice(x):
    token = number.set(5)
    number.reset(token)
    try:
        number.reset(token)
    except RuntimeError:
        return x * number.get()
    return x


def unset_again(x):
    token = bare.set(7)
    y = x * bare.get()
    bare.reset(token)
    try:
        return y + bare.get()
    except LookupError:
        return y - 1


def managers(x):
    with scope(3):
        y = x * number.get()
        with scope(4):
            y = y * number.get()
        y = y + number.get()
    return y - number.get()


def around_a_break(x):
    with scope(3):
        y = x * number.get()
        if y.sum().item() > 0:
            y = y + 1
        with scope(4):
            y = y * number.get()
        y = y + number.get()
    return y - number.get()


def finally_resets(x):
    token = number.set(3)
    try:
        raise ValueError
    except ValueError:
        y = x * number.get()
    finally:
        number.reset(token)
    return y * number.get()


def counts(x):
    number.set(number.get() + 1)
    return x * number.get()


def resets_the_callers(x):
    y = x * number.get()
    number.reset(kept.token)
    return y + number.get()


def unsets_the_callers(x):
    bare.reset(kept.token)
    return x + bare.get(4)


def old_value(x):
    token = number.set(3)
    if token.old_value is not contextvars.Token.MISSING:
        x = x * token.old_value
    number.reset(token)
    return x


CASES = [
    (fn, enter) for fn in (default_of_the_call, own_default, no_default_but_the_calls) for enter in (nothing, some)
]
CASES += [(fn, some) for fn in (no_default, set_and_reset, nested, read_first, reset_twice, unset_again, managers)]
CASES += [(fn, some) for fn in (around_a_break, finally_resets, counts, old_value)]
CASES += [(resets_the_callers, older), (resets_the_callers, used), (unsets_the_callers, without)]


def calls(fn, enter, n=6):
    def call(i):
        enter(i)
        with torch.no_grad():
            out = outcome(fn, (torch.full((2,), 1.0 + i),))
        out.text = out.text and re.sub("0x[0-9a-f]+", "", out.text)  # a message names the token
        return out, number.get(), bare.get("nothing")

    return [contextvars.copy_context().run(call, i) for i in range(n)]


@pytest.mark.parametrize(("fn", "enter"), CASES, ids=lambda f: f.__name__)
def test_like_eager(fn, enter):
    alike(calls(fn, enter), calls(ccompile.compile(fn), enter))


@pytest.mark.parametrize("fn", [set_and_reset, nested, read_first, managers, default_of_the_call, own_default])
def test_other_values_replay(fn):
    """What differs from call to call becomes a symbol, or is not read at all."""
    compiled = ccompile.compile(fn)

    def enter(i):
        number.set(i + 10)

    alike(calls(fn, enter), calls(compiled, enter))
    with replaying(6):
        calls(compiled, enter)
    told = explained(fn, torch.ones(2))
    assert EAGER or told.graph_break_count == 0


def test_a_value_that_nobody_reads_is_no_guard():
    """set() and reset() around a computation: what the variable held does not matter."""

    def fn(x):
        with scope("inner"):
            return x * 2

    compiled = ccompile.compile(fn)
    calls(compiled, nothing, 2)
    with replaying(6):
        calls(compiled, lambda i: number.set(f"outer {i}"))
