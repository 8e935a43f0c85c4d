"""with, match, loops, branches, async, and code that inspects its own frame (see language_cases.py)."""

import asyncio
import contextlib
import inspect
import sys
import traceback
import types

import torch
import torch.nn.functional as F
from language_cases import SINCE_313, alternating, case, t
from language_errors import Oops
from torch import nn


# ---- with ------------------------------------------------------------------------------------------------------------
class Logged:
    def __init__(self, log, eats=()):
        self.log, self.eats = log, eats

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append((kind and kind.__name__, str(value), tb is None))
        return kind is not None and issubclass(kind, self.eats)


@case
def with_user_class(x):
    log = []
    with Logged(log) as a, Logged(log):
        y = x + len(a.log)
    return y, log


@case
def with_swallows(x):
    log = []
    with Logged(log, (KeyError,)):
        x = x + 1
        {}["k"]
        x = x + 100
    return x, log


@case(hit=False)
def with_does_not_swallow(x):
    with Logged([], (KeyError,)):
        x = x + 1
        [][0]


@case
def with_returns_inside(x):
    log = []

    def f():
        for i in range(3):
            with Logged(log):
                if i == 0:
                    continue
                if i == 1:
                    return x * i
        return x

    return f(), log


@case(hit=False)
def with_exit_raises(x):
    class Bad(Logged):
        def __exit__(self, *a):
            raise Oops("exit")

    try:
        with Bad([]):
            raise KeyError("body")
    except Oops as e:
        return x + 1, type(e.__context__).__name__


@case(hit=False)
def with_not_a_manager(x):
    try:
        with x.shape:
            pass
    except (TypeError, AttributeError) as e:
        return x, type(e).__name__


@case
def contextmanager_function(x):
    log = []

    @contextlib.contextmanager
    def scope(name):
        log.append(("in", name))
        try:
            yield name * 2
        except KeyError as e:
            log.append(("caught", e.args))
        finally:
            log.append(("out", name))

    with scope("a") as got:
        y = x * len(got)
    with scope("b"):
        raise KeyError("k")
    return y, log


@case(hit=False)
def contextmanager_reraises(x):
    @contextlib.contextmanager
    def scope():
        try:
            yield
        except ValueError as e:
            raise Oops("changed") from e

    with scope():
        x = x * 2
        raise ValueError("inner")


@case
def contextmanager_decorator(x):
    log = []

    @contextlib.contextmanager
    def scope():
        log.append("in")
        yield
        log.append("out")

    @scope()
    def f(v):
        log.append("body")
        return v * 2

    return f(x) + f(x), log


@case(hit=False)
def with_exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Logged(log))
        stack.callback(log.append, "callback")
        stack.enter_context(torch.no_grad())
        y = x * 2
    return y, log


@case
def with_suppress(x):
    with contextlib.suppress(ZeroDivisionError, KeyError):
        x = x + 1
        1 / 0
    return x


@case
def with_nullcontext(x):
    with contextlib.nullcontext(x) as v, contextlib.nullcontext():
        return v * 2


@case(hit=False)
def with_closing(x):
    log = []

    class Thing:
        def close(self):
            log.append("closed")

    with contextlib.closing(Thing()):
        y = x + 1
    return y, log


@case
def with_grad_modes(x):
    out = []
    with torch.no_grad():
        out.append(torch.is_grad_enabled())
        with torch.enable_grad():
            out.append(torch.is_grad_enabled())
            y = (x.clone().requires_grad_() * 2).sum()
            out.append(y.requires_grad)
    with torch.set_grad_enabled(True):
        out.append(torch.is_grad_enabled())
    return y.detach(), out, torch.is_grad_enabled()


@case
def with_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        a = torch.is_inference_mode_enabled()
    return y, a, y.is_inference(), torch.is_inference_mode_enabled()


@case
def with_autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            z = x @ x.t()
    return y, z, y.dtype


@case
def grad_mode_decorators(x):
    @torch.no_grad()
    def f(v):
        return v * 2, torch.is_grad_enabled()

    @torch.enable_grad()
    def g(v):
        return torch.is_grad_enabled()

    return f(x), g(x)


@case
def with_break_inside(x):
    log = []
    with Logged(log), torch.no_grad():
        y = x * 2
        print("inside")
        y = y + len(log)
    return y, log


@case(inputs=alternating)
def with_branch_inside(x):
    log = []
    with Logged(log, (Oops,)):
        if x.sum() < 0:
            raise Oops("negative")
        x = x + 1
    return x, log


@case(over=1)  # a graph has one default dtype
def with_default_dtype(x):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        y = torch.ones(2) * 2
    finally:
        torch.set_default_dtype(before)
    return x + y.sum(), y


@case(hit=False)
def with_rng_fork(x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        a = torch.rand(2)
    return x + a.sum(), torch.rand(1)


# ---- match -----------------------------------------------------------------------------------------------------------
class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def matched(v):
    match v:
        case None | False:
            return "nothing"
        case int(n) if n > 10:
            return "large", n
        case 1 | 2 as n:
            return "small", n
        case -1.5:
            return "float"
        case str() as s:
            return "text", s
        case []:
            return "empty"
        case [a]:
            return "one", a
        case [1, *rest, 9]:
            return "between", rest
        case (a, (b, c)):
            return "nested", a, b, c
        case {"kind": "a", **rest}:
            return "kind", rest
        case {"kind": k}:
            return "other kind", k
        case {}:
            return "dict"
        case Point(int(), y):
            return "on axis", y
        case Point(x=px, y=py):
            return "point", px, py
        case types.SimpleNamespace(v=w):
            return "space", w
        case torch.float32:
            return "dtype"
        case _:
            return "other", type(v).__name__


@case
def match_values(x):
    return x, [matched(v) for v in (None, False, 11, 2, -1.5, "s", 7, b"")]


@case
def match_sequences(x):
    return [matched(v) for v in ([], [x], [1, x, 3, 9], (x, (1, 2)), [1, 2, 3, 4], (1, [2, x]))]


@case
def match_mappings(x):
    return [matched(v) for v in ({"kind": "a", "v": x}, {"kind": "b"}, {}, {"other": x})]


@case
def match_classes(x):
    return [matched(v) for v in (Point(0, x), Point(x, 1), types.SimpleNamespace(v=x), torch.float32, torch.int8)]


@case
def match_tensor_shape(x):
    match x.shape:
        case (n, 3):
            y = x * n
        case _:
            y = x
    match x.dim(), y.dtype:
        case 2, torch.float32:
            return y + 1
    return y


@case
def match_on_type(x):
    out = []
    for v in (x, nn.ReLU(), 3, [x]):
        match v:
            case torch.Tensor():
                out.append(v + 1)
            case nn.Module():
                out.append(v(x))
            case [torch.Tensor() as first, *_]:
                out.append(first)
            case other:
                out.append(other)
    return out


@case
def match_no_case(x):
    match 7:
        case 3:
            x = x + 1
    return x * 2


@case
def match_too_many_positional(x):
    try:
        match Point(1, 2):
            case Point(a, b, c):
                return a
    except TypeError as e:
        return x, str(e)


# ---- loops and branches ----------------------------------------------------------------------------------------------
@case
def loop_else(x):
    out = []
    for n in (3, 0):
        for i in range(n):
            if i == 1:
                break
        else:
            out.append("no break")
    while n < 2:
        n += 1
    else:
        out.append(n)
    return x * n, out


@case
def loop_early_return(x):
    for i in range(10):
        x = x * 0.5
        if i == 3:
            return x, i
    return x


@case
def loop_nested_breaks(x):
    n = 0
    for i in range(4):
        for j in range(4):
            if j > i:
                break
            if (i + j) % 2:
                continue
            n += 1
            x = x + j
    return x, n


@case
def loop_while_numbers(x):
    n, steps = 27, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return x * steps


@case(inputs=lambda i: (torch.full((2, 3), 1.0 + i % 2),))
def loop_while_tensor(x):
    n = 0
    while x.sum() < 50:
        x = x * 2
        n += 1
    return x, n


@case(inputs=alternating)
def branch_on_tensor(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    else:
        y = y - 1
    return y * 3


@case(inputs=alternating)
def branch_early_return(x):
    if x.max() < 0:
        return -x
    for row in x:
        if row.sum() < 0:
            return row
    return x * 2


@case(inputs=alternating, over=1)  # Dynamo leaves the rest of the frame to eager after its first break
def branch_by_sign_and_bool(x):
    flag = bool((x > 0).all())
    return x * (2 if flag else 3), flag, not x.sum() > 0, (x.sum() > 0) is True


@case(hit=False)
def numbers_of_tensor(x):
    y = x.round()
    return y * int(y.sum()) + float(y[0, 0]), y.sum().item(), y.tolist()[0][:2]


@case(inputs=lambda i: (torch.tensor([1 + i % 2, 2, 3]),), hit=False)
def index_by_tensor_value(n):
    table = ["a", "b", "c", "d"]
    out = [table[i] for i in n.tolist()]
    return n + 1, out, table[n[0]], list(range(n[1]))


@case(inputs=lambda i: (torch.tensor(i % 3), t(3)))
def loop_times_tensor(n, x):
    for i in range(int(n)):
        x = x + i
    return x


@case
def break_innermost(x):
    def innermost(v):
        w = v * 2
        print("innermost")
        return w + 1

    def middle(v):
        return innermost(v + 1) * 2

    return middle(x - 1) + 3


# ---- what runs eagerly -----------------------------------------------------------------------------------------------
@case
def async_function(x):
    async def leaf(v):
        await asyncio.sleep(0)
        return v * 2

    async def main():
        a = await leaf(x)
        b, c = await asyncio.gather(leaf(x + 1), leaf(x + 2))
        return a + b + c

    return asyncio.run(main())


@case
def async_generator(x):
    async def gen():
        for i in range(3):
            yield x * i

    async def main():
        return [v async for v in gen()], sum([v.sum() async for v in gen() if v.sum() < 1e9])

    return asyncio.run(main())


@case(hit=False)
def async_with(x):
    log = []

    class Manager:
        async def __aenter__(self):
            log.append("in")
            return x

        async def __aexit__(self, *a):
            log.append("out")

    async def main():
        async with Manager() as v:
            return v * 2

    return asyncio.run(main()), log


@case(hit=False)
def coroutine_by_hand(x):
    class Pause:
        def __await__(self):
            got = yield "paused"
            return got

    async def f(v):
        return v * await Pause()

    c = f(x)
    first = c.send(None)
    try:
        c.send(3)
    except StopIteration as e:
        return first, e.value


# ---- frames ----------------------------------------------------------------------------------------------------------
def here():
    """Name and line of every user frame, innermost first."""
    f, out = sys._getframe(1), []
    while f is not None and "language_flow" in f.f_code.co_filename:
        out.append((f.f_code.co_name, f.f_lineno))
        f = f.f_back
    return out


@case(over=3)  # sys._getframe and what is read from frames
def frames_walked(x):
    def inner(v):
        return v * 2, here()

    def outer(v):
        return inner(v + 1)

    return outer(x)


@case(hit=False)
def frames_extracted(x):
    def inner():
        return [(f.name, f.lineno) for f in traceback.extract_stack() if "language_flow" in f.filename]

    return x * 2, inner(), inner()


@case(over=4 + SINCE_313)  # locals() and what is read from frames; f_locals is an object of a kind of its own
def frames_locals(x):
    a, b = 1, x + 1
    seen = sorted(locals())
    f = sys._getframe()
    return b, seen, f.f_lineno, sorted(f.f_locals), f.f_code.co_name


@case(hit=False)
def frames_of_caller(x):
    def name():
        return inspect.currentframe().f_back.f_code.co_name, inspect.stack()[1].function

    return x, name()


@case
def locals_and_globals(x):
    y = x + 1
    return y, sorted(locals()), "torch" in globals(), "F" in globals(), F.relu(y)


@case
def eval_and_exec(x):
    space = {"x": x}
    exec("y = x * 2", space)
    return eval("y + 1", space), eval("x * 3")
