"""Numbers that differ from call to call, in lists, tuples and dicts from outside: C code (zip, enumerate, dict.items ...) takes them
out one by one, and each is a symbol. Until the recording ends, the symbols lie in the container itself (csrc/rec/symsource.c).

Values are eager's, the container holds the same objects afterwards, and after a few calls nothing is recorded any more.
"""

import collections
import copy
import dataclasses
import itertools
import random

import ccompile
import pytest
import torch
from conftest import EAGER

T = [torch.full((2,), float(i)) for i in range(1, 7)]
CASES = {}
LATEST = 9  # the last call that may record


def case(make):
    CASES[make.__name__] = make
    return make


@ccompile.disable
def brk():
    pass


@dataclasses.dataclass
class Config:
    weights: list
    named: dict
    pair: tuple


def six(number):
    return [number() for _ in range(6)]


def table(number):
    return {k: number() for k in "abcd"}


def nested(number):
    return [six(number)[:3] for _ in range(3)]


def pairs(number):
    return [(number(), t, number()) for t in T[:4]]


def config(number):
    return Config(six(number), table(number), (number(), number()))


# ---- sequences -------------------------------------------------------------------------------------------------------
def looped(rs):
    out = []
    for i, (t, r) in enumerate(zip(T, rs)):
        out.append(t * r + i)
    return out


def worklist(rs):
    """What is appended in the loop is visited, too."""
    out = []
    for i, v in enumerate(rs):
        if i < 2:
            rs.append(v)
        out.append(T[0] * v)
    return out


def changed(rs):
    rs[0] = rs[1]
    rs[2] += 1
    return [T[0] * v for v in reversed(rs)]


def changed_while_iterating(rs):
    out = []
    for i, v in enumerate(rs):
        if i == 1:
            rs[4], rs[5] = rs[5], rs[4]
        out.append(T[0] * v)
    return out


def broken_loop(rs):
    s = 0.0
    for t, v in zip(T, rs):
        s += (t * v).sum().item()
    return s


def changed_in_broken_loop(rs):
    out = []
    for i, v in enumerate(rs):
        brk()
        if i == 1:
            rs[3] = 5
            rs.append(v)
        out.append(T[0] * v)
        if len(out) > 7:
            break
    return out


def raised(rs):
    out = []
    try:
        for t, v in zip(T, rs):
            out.append(t * v)
            if len(out) == 3:
                raise ValueError("enough")
    except ValueError as error:
        out.append(len(str(error)))
    return out


def returns(rs):
    out = [0.0]
    for r in reversed(rs):
        out.insert(0, r + 0.5 * out[0])
    return torch.tensor(out)


def rolling(rs):
    it = iter(rs)
    s = T[0] * next(it)
    for v in it:
        s = s * 0.5 + v
    return s


def kept(rs):
    held = list(zip(T, rs))
    brk()
    return [t * v for t, v in held], held[1][1]


SEQUENCES = {
    "looped": looped,
    "worklist": worklist,
    "changed": changed,
    "changed_while_iterating": changed_while_iterating,
    "broken_loop": broken_loop,
    "changed_in_broken_loop": changed_in_broken_loop,
    "raised": raised,
    "returns": returns,
    "rolling": rolling,
    "kept": kept,
    "comprehension": lambda rs: [t * r for t, r in zip(T, rs)],
    "sum_of_products": lambda rs: sum(t * r for t, r in zip(T, rs)),
    "shifted": lambda rs: [T[0] * a + b for a, b in zip(rs, rs[1:])],
    "unpacked": lambda rs: (lambda a, *b: T[0] * a + b[0] * len(b))(*rs),
    "transposed": lambda rs: torch.stack(next(zip(*[(t, r) for t, r in zip(T, rs)], strict=True))) * 2,
    "as_list": lambda rs: torch.tensor(list(rs)) * 2,
    "as_tuple": lambda rs: [T[0] * v for v in tuple(rs)],
    "joined": lambda rs: [T[0] * v for v in [*rs, 1.5] + list(rs[:2])],
    "dict_of": lambda rs: {k: T[0] * v for k, v in dict(zip("abcdef", rs, strict=True)).items()},
    "chained": lambda rs: [T[0] * v for v in itertools.chain(rs[:2], rs[3:])],
    "product": lambda rs: [T[0] * a + b for a, b in itertools.product(rs[:2], rs[3:])],
    "islice": lambda rs: [T[0] * v for v in itertools.islice(rs, 1, 4)],
    "accumulated": lambda rs: [T[0] * v for v in itertools.accumulate(rs)],
    "mapped": lambda rs: list(map(lambda t, r: t * r, T, rs)),
    "filtered": lambda rs: [T[0] * v for v in filter(lambda v: v > 0, rs)],
    "deque": lambda rs: [T[0] * v for v in collections.deque(rs)],
    "summed": lambda rs: T[0] * sum(rs),
    "largest": lambda rs: T[0] * max(rs),
    "sorted": lambda rs: T[0] * sorted(rs)[0],
    "sorted_pairs": lambda rs: torch.stack([t * r for t, r in sorted(zip(T, rs), key=lambda p: p[1])]),
}
MAPPINGS = {
    "items": lambda d: sum((T[0] * v for k, v in d.items()), torch.zeros(2)),
    "values": lambda d: [T[0] * v for v in d.values()],
    "sorted_items": lambda d: {k: T[0] * v for k, v in sorted(d.items())},
    "merged": lambda d: [T[0] * v for v in {**d, "z": 1}.values()],
    "copied": lambda d: T[0] * d.copy()["b"],
    "of_values": lambda d: torch.tensor(list(d.values())),
    "summed_values": lambda d: T[0] * sum(d.values()),
    "rewritten": lambda d: [d.__setitem__(k, v + 1) or T[0] * d[k] for k, v in d.items()],
}
OTHERS = {
    "rows": (nested, lambda m: [T[0] * a + b + c for a, b, c in m]),
    "columns": (nested, lambda m: [T[0] * a + b + c for a, b, c in zip(*m)]),
    "cells": (nested, lambda m: sum(T[0] * v for row in m for v in row)),
    "batch": (pairs, lambda b: torch.stack(list(zip(*b))[1]) * torch.tensor(list(zip(*b))[0])[:, None]),
    "batch_of_parts": (pairs, lambda b: (lambda r, t, n: torch.stack(t).sum() + torch.tensor(r).sum() + n[0])(*zip(*b))),
    "weights": (config, lambda c: [T[0] * w + i for i, w in enumerate(c.weights)]),
    "fields": (config, lambda c: [T[0] * v for v in [*c.weights, *c.named.values(), *c.pair]]),
}
for name, fn in SEQUENCES.items():
    CASES[name] = six, fn
    if not any(word in name for word in ("worklist", "chang", "joined")):
        CASES[name + "_tuple"] = (lambda number: tuple(six(number))), fn
for name, fn in MAPPINGS.items():
    CASES[name] = table, fn
CASES |= OTHERS


def parts(o):
    """All objects in it, in order."""
    if isinstance(o, list | tuple):
        return [p for v in o for p in parts(v)]
    if isinstance(o, dict):
        return [p for v in o.values() for p in parts(v)]
    return parts(list(vars(o).values())) if isinstance(o, Config) else [o]


@pytest.mark.parametrize("number", [random.random, lambda: random.randrange(-3, 1000)], ids=["float", "int"])
@pytest.mark.parametrize("name", CASES)
def test_numbers_that_differ(name, number):
    make, fn = CASES[name]
    random.seed(name)
    compiled, recorded = ccompile.compile(fn), []
    for _ in range(LATEST + 9):
        given = make(number)
        twin = copy.deepcopy(given)
        here, there = parts(given), parts(twin)
        before = sum(e.kind == "recording" for e in ccompile.events()) if not EAGER else 0
        torch.testing.assert_close(compiled(given), fn(twin), rtol=1e-6, atol=1e-6)
        if not EAGER:
            recorded.append(sum(e.kind == "recording" for e in ccompile.events()) - before)
        places = [next((i for i, h in enumerate(here) if h is v), None) for v in parts(given)]
        assert places == [next((i for i, h in enumerate(there) if h is v), None) for v in parts(twin)], "other objects"
    assert sum(recorded[LATEST + 4 :]) == 0, recorded


def test_an_exception_out_of_the_recording_restores_them():
    def fn(rs, at):
        for i, r in enumerate(rs):
            if i == at:
                raise KeyError(i)
            y = T[0] * r
        return y

    compiled = ccompile.compile(fn)
    for i in range(12):
        rs = [random.random() for _ in range(4)]
        had = list(rs)
        if i % 3 == 2:
            with pytest.raises(KeyError):
                compiled(rs, i % 4)
        else:
            assert torch.equal(compiled(rs, 9), T[0] * rs[-1])
        assert all(a is b for a, b in zip(rs, had, strict=True))
