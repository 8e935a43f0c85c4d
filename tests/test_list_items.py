"""Lists whose items a function reads, writes by place and looks through (csrc/rec/ev_item.c, symsource.c): counters in a list,
sums of what was written, two names for one list. Results and lists are eager's, also behind the call that records."""

import random

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER


def counter(x, n, m, k):
    n[0] += 1
    return x * n[0]


def counter_from_the_end(x, n, m, k):
    n[-1] += 1
    return x * n[-1] + n[2]


def written_twice(x, n, m, k):
    n[0] += k
    n[0] *= 2
    return x + n[0]


def under_two_names(x, n, m, k):
    n[0] += 1
    n[-3] += 1
    return x * n[0] + n[-3]


def others(x, n, m, k):
    n[0] = k
    return x * n[0] + n[1] + m[2]


def summed(x, n, m, k):
    n[1] = k * 2
    m[0] = n[1] + n[2]
    return x * n[1] + m[0]


def rate_of_count(x, n, m, k):
    n[0] += 1
    m[1] = 0.1 * n[0]
    return x * m[1]


SETTLING = [counter, counter_from_the_end, written_twice, under_two_names, others, summed, rate_of_count]


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize("start", [0, 0.5])
@pytest.mark.parametrize("fn", SETTLING)
def test_recordings_end(fn, start):
    compiled, sides = ccompile.compile(fn, isolate_recompiles=True), [[[start, 1.5, 2], [4, 5.5, 6]] for _ in range(2)]
    for i in range(16):
        out = [f(torch.ones(2), *side, i + start) for f, side in zip((fn, compiled), sides)]
        torch.testing.assert_close(*out)
        assert repr(sides[0]) == repr(sides[1])
        if i == 8:
            recorded = compiled_of(compiled).report()["recordings"]
    assert compiled_of(compiled).report()["recordings"] == recorded


LOOKED_AT = {
    "max": lambda n: max(n),
    "sum": lambda n: sum(n),
    "sorted": lambda n: sorted(n),
    "text": lambda n: str(n),
    "equal": lambda n: n == [1, 2, 6],
    "contains": lambda n: 6 in n,
    "index": lambda n: n.index(n[2]),
    "tuple": lambda n: tuple(n),
    "min of items": lambda n: min(*n),
    "tensor": lambda n: torch.tensor(n),
    "format": lambda n: f"{n}",
}


@pytest.mark.parametrize("moved", [lambda n: [*n], tuple, list, enumerate], ids=["display", "tuple", "list", "enumerate"])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_items_that_were_moved_before_they_are_read(name, moved):
    def fn(x, n):
        moved(n)
        return x + 1, LOOKED_AT[name](n)

    compiled = ccompile.compile(fn)
    for k in (3, 4, 6, 10, 14, 26, 2, 7.5, 9):
        assert repr(compiled(torch.ones(2), [1, 2, k])) == repr(fn(torch.ones(2), [1, 2, k]))


def test_the_result_of_an_event_that_ends_the_recording_is_no_copy():
    def fn(x, m, k):
        m[0] = k * 2
        m.append(max(m))
        return x

    compiled, m = ccompile.compile(fn), [0, 1, 2]
    for k in (2, 3, 4, 5, 4, 7):
        m[1] = k + 1
        compiled(torch.ones(2), m, k)
        assert all(v is v + 1 - 1 for v in m), m  # CPython has one object for each small int


def drawn(draw):
    """A function of x, lists n and m, numbers k and i, line by line."""

    def place():
        return draw.choice(["0", "1", "2", "-1", "-2", "-3", "i"])

    def value():
        a = draw.choice("nm")
        at = place()
        return draw.choice(
            [f"{a}[{at}]", f"{a}[{at}] + 1", f"{a}[{at}] * 2", "3", "k", "k + 0.5", "x.size(0)", "i", f"len({a})", f"sum({a})"]
            + [f"max({a})", f"{a}[0:2][0]", f"[*{a}][-1]", "k * 2"]
        )

    def line():
        a, b = draw.choice("nm"), draw.choice("nm")
        return draw.choice(
            [f"{a}[{place()}] {draw.choice(['=', '=', '+=', '*='])} {value()}"] * 6
            + [f"r.append({value()})", f"r.append({value()})", f"y = y * {value()}", f"{a}.append({value()})", f"{a}.pop()"]
            + [f"print({a}[{place()}])", f"r.append({value()} in {a})", f"r.extend(v for v in {a})", f"{a}.sort()"]
            + [f"{a}[0], {a}[1] = {a}[1], {a}[0]", f"r.append(tuple({a}))", f"{a}[1:] = [{value()}, {value()}]"]
            + [f"{a}.reverse()", f"r.append({a} == {b})", f"if {value()} > 2: {a}[0] = {value()}"]
        )

    lines = [line() for _ in range(draw.randrange(3, 9))]
    return "def f(x, n, m, k, i):\n y, r = x, []\n try:\n  " + "\n  ".join(lines) + "\n except (IndexError, ValueError) as e:\n  r.append(e)\n return y, r"


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_drawn_functions(first, capsys):
    for seed in range(first, first + 50):
        draw = random.Random(seed)
        text, scope = drawn(draw), {}
        exec(text, scope)
        ccompile.reset()
        fns = scope["f"], ccompile.compile(scope["f"])
        sides = [[[1, 2, 3], [4, 5.5, 6]] for _ in fns]
        for call in range(9):
            k, i, x = draw.choice([call, call * 0.5, 2]), draw.choice([0, 1, call % 3]), torch.arange(2.0 + call % 2)
            change = draw.random()
            told = []
            for fn, side in zip(fns, sides):
                if change < 0.15 or any(abs(v) > 1e6 for one in side for v in one):
                    side[:] = [[call, call + 1, call + 2], [4, 5.5, 6]]
                elif change < 0.3:
                    side[1] = side[0]
                y, r = fn(x, *side, k, i)
                told.append(repr((y.tolist(), r, side, capsys.readouterr().out)))
            assert told[0] == told[1], f"seed {seed}, call {call}\n{text}"
