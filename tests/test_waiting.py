"""Generators that are suspended across a break: they are rebuilt before the code that follows, and adopted behind the break."""

import gc
import itertools

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, counters, leakless, replaying, same, together

CASES = {}


def case(fn=None, *, hit=True):
    """Four calls beside eager; hit: the last one replays. A class's instance is made once for each side."""

    def add(fn):
        CASES[fn.__name__] = (fn, hit)
        return fn

    return add if fn is None else add(fn)


def grown(x, n):
    scale, i = 0.5, 0
    for k in range(n):
        y = x * (k + 1) + scale
        i += 1
        yield y + i


def rows(x):
    return (x * k for k in range(3))


def look(v):
    return "up" if v.sum() > 0 else "down"


# ---- the break is in the loop, or in what the loop calls -------------------------------------------------------------
@case
def loop_body(x):
    out = []
    for v in grown(x, 3):
        print(end="")
        out.append(v * 2)
    return out


def inner(v, log):
    log.append(v.sum().item())
    w = v * 2
    log.append(w.mean().item())
    return w


@case
def waits_in_the_caller(x):
    """The caller's frame does not run between the two breaks of its callee: it keeps its generator."""
    log = []
    return [inner(v, log) for v in rows(x)], log


@case
def waits_beside_a_loop(x):
    one, out = rows(x), []
    for k in range(3):
        print(end="")
        out.append(next(one) + k)
    return out, next(one, None)


@case
def exhausted_before(x):
    it = rows(x)
    out = list(it)
    print(end="")
    return out, next(it, None), list(it)


@case
def begun_behind(x):
    it = grown(x, 2)
    print(end="")
    return list(it)


@case
def two_of_one_function(x):
    a, b = grown(x, 3), grown(x + 1, 3)
    out = [next(a)]
    print(end="")
    out.append(next(b))
    print(end="")
    return out, next(a), next(b), list(b), list(a)


@case
def one_in_another(x):
    def doubled(it):
        for v in it:
            yield v * 2

    out = []
    for v in doubled(doubled(grown(x, 3))):
        print(end="")
        out.append(v)
    return out


@case
def yield_from(x):
    def sub(n):
        z = x
        for _ in range(n):
            z = z + 1
            yield z
        return z.sum()

    def outer():
        yield (yield from sub(2))

    out = []
    for v in outer():
        print(end="")
        out.append(v)
    return out


@case
def tree(x):
    def walk(node):
        if isinstance(node, tuple):
            for child in node:
                yield from walk(child)
        else:
            yield node * 2

    out = []
    for v in walk((x, (x + 1, (x + 2,)), x * 3)):
        print(end="")
        out.append(v)
    return out


@case
def closures_beside(x):
    """Functions of this call, which only cells hold, behind a break."""

    def double(v):
        return v * 2

    def twice(v):
        return double(double(v))

    y = twice(x)
    print(end="")
    return twice(y) + double(x)


# ---- C code drains it ------------------------------------------------------------------------------------------------
@case
def drained(x):
    total = sum(v * 2 for v in rows(x))
    values = {name: v for name, v in zip("abc", rows(x))}
    return total, values, tuple(rows(x)), torch.stack(list(rows(x))), all(v.dim() == 2 for v in rows(x))


@case(hit=False)
def drained_looks(x):
    biggest = max(v.sum().item() for v in rows(x))
    return x * 2, biggest > 1e9, any(v.sum() > 0 for v in rows(x)), sorted(look(v) for v in rows(x))


@case
def drained_short(x):
    """any() stops early: what follows is not computed."""
    seen = []

    def noted():
        for k, v in enumerate(rows(x)):
            seen.append(k)
            yield v.abs().sum() > 0

    return any(noted()), seen


@case(hit=False)
def drained_raises(x):
    def bad():
        yield x.sum().item()
        raise ValueError(f"no {x.dim()}")

    return max(bad())


@case(hit=False)
def drained_empty(x):
    return max(v.sum().item() for v in rows(x) if v.dim() == 7)


@case
def drained_keys(x):
    parts = list(rows(x))
    return max(parts, key=lambda v: v.sum().item()), sorted(range(3), key=lambda k: -parts[k].sum().item())


@case(hit=False)
def joined(x):
    return ", ".join(f"{v.sum().item():.1f}" for v in rows(x))


# ---- its end ---------------------------------------------------------------------------------------------------------
def guarded(x, log):
    try:
        for k in range(3):
            yield x * k
    except GeneratorExit:
        log.append("exit")
        raise
    finally:
        log.append("finally")


@case
def left_in_try(x):
    log = []
    for v in guarded(x, log):
        print(end="")
        if v.dim() == 2:
            break
    log.append("behind")
    return v, log


@case
def dropped_in_try(x):
    log = []
    it = guarded(x, log)
    v = next(it)
    print(end="")
    del it
    log.append("dropped")
    return v * 2, log


@case
def drained_in_try(x):
    log = []
    out = []
    for v in guarded(x, log):
        print(end="")
        out.append(v)
    return out, log


@case
def returned_in_try(x):
    log = []
    for v in guarded(x, log):
        print(end="")
        return v, log


@case
def closed_behind(x):
    log = []
    it = guarded(x, log)
    a = next(it)
    print(end="")
    it.close()
    print(end="")
    return a, log, next(it, None)


@case(hit=False)
def thrown_into(x):
    def catching():
        try:
            yield x
        except KeyError as error:
            yield x * len(error.args[0])

    it = catching()
    a = next(it)
    print(end="")
    return a, it.throw(KeyError("abc")), next(it, None)


@case
def sent_into(x):
    def summed():
        total = x
        while True:
            got = yield total
            if got is None:
                return
            total = total + got

    it = summed()
    out = [next(it)]
    for k in range(3):
        print(end="")
        out.append(it.send(k + 1))
    return out


@case(hit=False)
def raises_behind(x):
    def bad():
        yield x
        yield x + torch.ones(7)

    out = []
    for v in bad():
        print(end="")
        out.append(v)
    return out


class Noisy:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


@case
def holds_what_is_finalised(x):
    log = []

    def held():
        noisy = Noisy(log)
        yield x
        noisy.log.append("still")
        yield x * 2

    out = []
    for v in held():
        print(end="")
        out.append(v)
    log.append("behind")
    return out, log


# ---- others hold it, or see it ---------------------------------------------------------------------------------------
@case
def in_a_list(x):
    both = [rows(x), grown(x, 2)]
    a = next(both[0])
    print(end="")
    return a, next(both[1]), list(both[0]), list(both[1])


@case
def two_names(x):
    a = b = rows(x)
    first = next(a)
    print(end="")
    return first, next(b), next(a), next(b, None), a is b


@case
def with_list_inside(x):
    def keeping():
        kept = []
        for k in range(3):
            kept.append(x * k)
            yield kept[-1], len(kept)
        yield sum(kept), len(kept)

    out = []
    for v, n in keeping():
        print(end="")
        out.append(v * n)
    return out


@case
def shared_list(x):
    shared = []

    def filling():
        for k in range(3):
            shared.append(k)
            yield x * len(shared)

    out = []
    for v in filling():
        print(end="")
        shared.append("caller")
        out.append(v)
    return out, shared


@case
def looked_into(x):
    it = grown(x, 2)
    v = next(it)
    print(end="")
    return v, it.gi_running, it.gi_code.co_name, it.__name__, it.gi_frame.f_lineno, next(it)


@case
def itertools_around(x):
    out = []
    for k, v in enumerate(itertools.chain(rows(x), grown(x, 2))):
        print(end="")
        out.append(v + k)
    return out


@pytest.mark.parametrize("name", CASES)
def test_equal(name):
    fn, hit = CASES[name]
    same(fn, make_args=lambda i: torch.linspace(-1 - i, 2, 6).reshape(2, 3), calls=4, hit=hit, trace=True, raises=True)


@pytest.mark.skipif(EAGER, reason="needs the product")
@pytest.mark.parametrize("name", ["loop_body", "waits_in_the_caller", "yield_from", "tree", "closures_beside", "sent_into"])
def test_settles(name):
    """The second call, at the latest, records the last of it: what each call makes anew is not guarded to be the same object."""
    fn = ccompile.compile(CASES[name][0])
    for i in range(2):
        fn(torch.full((2, 3), float(i)))
    with replaying(2):
        fn(torch.full((2, 3), 3.0))
        fn(torch.full((2, 3), 4.0))


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_drained_is_one_graph():
    fn = ccompile.compile(CASES["drained"][0])
    before = counters()
    fn(torch.ones(2, 3))
    after = counters()
    assert after["give_up"] == before["give_up"] and after["graph_break"] == before["graph_break"]
    assert len(compiled_of(fn).report()["entries"][0]["segments"]) == 1


def test_returned():
    """It is the caller's then, suspended where eager's is."""

    def fn(x):
        it = grown(x, 3)
        return next(it), it

    compiled = ccompile.compile(fn)
    for i in range(4):
        x = torch.full((2,), float(i))
        (a, it), (b, other) = fn(x), compiled(x)
        torch.testing.assert_close([a, *it], [b, *other])
        assert it.gi_frame is None and other.gi_frame is None


def test_held_outside():
    """Somebody else holds it as well, and goes on with it."""

    def fn(x, kept):
        it = grown(x, 3)
        kept.append(it)
        a = next(it)
        print(end="")
        return a + 1, next(it)

    compiled = ccompile.compile(fn)
    for i in range(4):
        x, left, right = torch.full((2,), float(i)), [], []
        torch.testing.assert_close(fn(x, left), compiled(x, right))
        torch.testing.assert_close(list(left[0]), list(right[0]))


def test_threads():
    fn = CASES["waits_in_the_caller"][0]
    compiled = ccompile.compile(fn)

    def work(k):
        for i in range(10):
            x = torch.full((2, 3), float(k + i))
            torch.testing.assert_close(fn(x), compiled(x))

    together(4, work)


@pytest.mark.parametrize("name", ["loop_body", "yield_from", "left_in_try"])
def test_nothing_is_left(name):
    compiled, x = ccompile.compile(CASES[name][0]), torch.ones(2, 3)
    leakless(lambda: compiled(x), calls=600, warm=100)
    gc.collect()
