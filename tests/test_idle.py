"""Variables that nothing reads any more (csrc/rec/idle.c): what rebuilt frames show to callees, at breaks and in tracebacks
after a replay, and when the variables' contents are finalised."""

import inspect
import itertools
import sys

import ccompile
import pytest
import torch

LOG = []


@ccompile.disable
def brk(*_):
    pass


def plain(variables):
    """All but tensors: a variable whose tensor nobody reads is absent (docs/limits.md)."""
    return sorted((k, v) for k, v in variables.items() if not isinstance(v, (torch.Tensor, BaseException)))


@ccompile.disable
def look():
    frame = sys._getframe(1)
    while frame.f_code.co_filename != __file__:
        frame = frame.f_back
    return plain(frame.f_locals)


# ---- who looks at frames ---------------------------------------------------------------------------------------------


def one_up():
    return sys._getframe(1).f_locals["name"]


def by_inspect():
    return sorted(inspect.currentframe().f_back.f_locals)


def two_up():
    return by_name(2)


def by_name(depth):
    return sorted(sys._getframe(depth).f_locals)


def callee(x):
    name = "n"  # noqa: F841
    y = x + 1  # noqa: F841
    return one_up()


def callee_by_inspect(x):
    name, t = "n", (1, [2])  # noqa: F841
    y = x + 1  # noqa: F841
    return by_inspect()


def callees_callee(x):
    name, t = "n", (1, [2])  # noqa: F841
    y = x + 1  # noqa: F841
    first = two_up()
    brk()
    z = 5  # noqa: F841
    return first, two_up()


def the_break(x):
    name, t, d = "n", (1, [2]), {"k": "n"}  # noqa: F841
    y = x + 1  # noqa: F841
    brk()
    u = 5  # noqa: F841
    brk()
    v, t = 6.5, None  # noqa: F841
    return look()


def a_loop(x):
    name = "n"
    for i in range(3):
        w = i * 2
        brk()
        q = w + 1  # noqa: F841
    del name
    return look()


def replaced(x):
    a, b = [1], {"k": 1}
    brk()
    a = a + [2]
    c = b  # noqa: F841
    brk()
    b = None  # noqa: F841
    x = x + 1
    a = 7  # noqa: F841
    brk()
    return look(), float(x.sum())


def of_a_break(x):
    n = float(x.sum())
    m = n * 2  # noqa: F841
    brk()
    x = x + 1
    brk()
    return look()


# ---- tracebacks ------------------------------------------------------------------------------------------------------


def frames(error):
    found, tb = [], error.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == __file__:
            found.append((tb.tb_frame.f_code.co_name, tb.tb_lineno, plain(tb.tb_frame.f_locals)))
        tb = tb.tb_next
    return found


def raising(x):
    z, s, items = 7, "text", [1, "b"]  # noqa: F841
    brk()
    k = 8  # noqa: F841
    raise ValueError("e")


def between(x):
    o = "o"  # noqa: F841
    brk()
    p = 1.5  # noqa: F841
    return raising(x)


def caught(x):
    w = "w"  # noqa: F841
    try:
        between(x)
    except ValueError as error:
        return error.__traceback__.tb_next.tb_next.tb_frame.f_locals.get("z")


def caught_and_handed_on(x):
    try:
        between(x)
    except ValueError as error:
        return frames(error)


def leaves(x):
    w = "w"  # noqa: F841
    between(x)


def an_op_raises(x):
    w = "w"  # noqa: F841
    brk()
    y, n = x + 1, 3  # noqa: F841
    return y.reshape(5)


def an_item_is_missing(x):
    w, d = "w", {"k": 1}  # noqa: F841
    brk()
    n = 3  # noqa: F841
    return d["q"]


def of_a_parameter(x, n=3, *rest, key="k", **more):
    y = x + 1
    brk()
    z = y * 2
    brk()
    raise ValueError(float(z.sum()))


LOOKERS = [callee, callee_by_inspect, callees_callee, the_break, a_loop, replaced, of_a_break]
RAISERS = [caught, caught_and_handed_on, leaves, an_op_raises, an_item_is_missing, of_a_parameter]


def outcome(fn, x):
    try:
        return fn(x)
    except Exception as error:
        return frames(error)[1:], repr(error)


@pytest.mark.parametrize("fn", LOOKERS + RAISERS, ids=lambda f: f.__name__)
def test_frames_show_what_eager_shows(fn):
    call, x = ccompile.compile(fn), torch.ones(2)
    want = outcome(fn, x)
    for i in range(6):
        assert outcome(call, x) == want, i


# ---- what is finalised -----------------------------------------------------------------------------------------------


def logging(name):
    try:
        for i in range(5):
            LOG.append((name, i))
            yield i
    finally:
        LOG.append((name, "closed"))


def generator(x, flag):
    g = logging("a") if flag else None
    if flag:
        next(g)
    brk()
    LOG.append("x")
    brk()
    LOG.append("y")
    g = logging("b")
    next(g)
    LOG.append("z")


def generator_in_a_tuple(x, flag):
    t = (logging("a") if flag else iter([1, 2]), 1)
    next(t[0])
    brk()
    LOG.append("x")
    t = (logging("b"), 2)
    LOG.append("new")
    next(t[0])
    brk()
    LOG.append("y")


def generator_is_replaced(x, flag):
    g = logging("a")
    next(g)
    brk()
    if flag:
        g = logging("b")
        LOG.append("made")
    next(g)
    brk()
    LOG.append("end")
    next(g)


def in_a_loop(x, flag):
    g = None
    for i in range(3):
        if flag or i:
            g = logging(i)
            LOG.append("made")
            next(g)
        brk()
        LOG.append("behind")
    return g is None


def holding(flag):
    o = [logging("a")] if flag else [iter([1])]
    next(o[0])
    brk()
    LOG.append("inside")


def of_a_callee(x, flag):
    holding(flag)
    LOG.append("back")
    brk()
    LOG.append("end")


FINAL = [generator, generator_in_a_tuple, generator_is_replaced, in_a_loop, of_a_callee]


@pytest.mark.parametrize("fn", FINAL, ids=lambda f: f.__name__)
def test_finalised_when_eager_finalises(fn):
    x = torch.ones(2)
    for order in itertools.product((0, 1), repeat=4):
        call = ccompile.compile(fn)
        for i, flag in enumerate(order):
            seen = []
            for f in (fn, call):
                LOG.clear()
                f(x, flag)
                seen.append([*LOG, "returned"])
            assert seen[0] == seen[1], order[: i + 1]


def test_a_finaliser_that_runs_at_the_end_of_a_recording_is_no_part_of_it():
    """Its frame was taken for the root's, which stopped the process."""
    log = []

    class Noted:
        def __del__(self):
            log.append("gone")

    def fn(x):
        log.clear()
        held = [Noted()]
        ccompile.graph_break()
        del held
        log.append("end")
        return x + 1

    compiled = ccompile.compile(fn)
    for i in range(6):
        assert torch.equal(compiled(torch.full((2,), float(i))), torch.full((2,), i + 1.0))
        assert sorted(log) == ["end", "gone"]
