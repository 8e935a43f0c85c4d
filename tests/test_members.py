"""Attributes in __slots__: a trace that has written one reads it, and the others, without a break."""

import dataclasses

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER


class Slotted:
    __slots__ = ("count", "extra", "mean")

    def __init__(self):
        self.mean, self.count = torch.ones(3), 0


@dataclasses.dataclass(slots=True)
class Data:
    mean: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(3))
    count: int = 0
    extra: object = None


class Derived(Slotted):
    def __init__(self):
        super().__init__()
        self.other = 2


def running(x, o):
    o.mean = o.mean * 0.9 + x
    o.count += 1
    return o.mean * o.count


def swapped(x, o):
    o.mean, o.extra = x, o.mean
    return o.mean - o.extra, o.extra is o.mean


def through_none(x, o):
    o.mean = None
    gone = o.mean is None
    o.mean = x
    return gone, o.mean + 1


def deleted(x, o):
    o.extra = x
    before = o.extra + 1
    del o.extra
    try:
        return o.extra
    except AttributeError as e:
        return before, str(e).split("'")[-2], hasattr(o, "extra")


def in_place(x, o):
    o.mean += x
    o.mean.mul_(2)
    return o.mean.sum() + o.count


def twice(x, o):
    o.count = 1
    first = o.mean * o.count
    o.count = 2.5
    return first + o.mean * o.count


def behind_break(x, o):
    o.mean = o.mean + x
    y = o.mean * 2
    print(end="")
    o.count += 1
    return y + o.mean + o.count


WHOLE = [running, swapped, through_none, deleted, in_place, twice]


@pytest.mark.parametrize("cls", [Slotted, Data, Derived])
@pytest.mark.parametrize("fn", [*WHOLE, behind_break], ids=lambda fn: fn.__name__)
def test_written_slots(fn, cls):
    compiled, ours, theirs = ccompile.compile(fn), cls(), cls()
    for i in range(8):
        x = torch.full((3,), float(i))
        torch.testing.assert_close(flat(compiled(x, ours)), flat(fn(x, theirs)))
        torch.testing.assert_close(flat((ours.mean, ours.count)), flat((theirs.mean, theirs.count)))
    report = compiled_of(compiled).report()
    assert EAGER or report["recordings"] <= 4
    breaks = [s["break"] for entry in report["entries"] for s in entry["segments"] if s["break"]]
    assert EAGER or bool(breaks) == (fn is behind_break)


def flat(value):
    values = value if type(value) is tuple else (value,)
    return [torch.as_tensor(len(v) if isinstance(v, str) else v, dtype=torch.float32) for v in values]


def test_two_names_for_one_object():
    def fn(x, a, b):
        a.mean = x
        b.mean = b.mean + 1
        return a.mean * 1, b.count

    def results(call):
        out = []
        for i in range(9):
            a = Slotted()
            out.append(call(torch.full((3,), float(i)), a, a if i % 3 == 2 else Slotted())[0])
        return torch.stack(out)

    torch.testing.assert_close(results(ccompile.compile(fn)), results(fn))
