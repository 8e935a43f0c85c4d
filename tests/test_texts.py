"""Texts made of numbers that change in every call (f"step {i}: {loss:.3f}"), and numpy scalars that a break leaves: both are
moved without a guard on their value, and become constants where something reads them."""

import collections
import math
import operator

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER

numpy = pytest.importorskip("numpy")
CALLS = 14
FEW = 8  # recordings of a function whose calls differ in a number only, behind two breaks at most


class Log:
    def __init__(self):
        self.lines, self.rows, self.last = [], {}, None

    def add(self, **values):
        self.rows.update(values)
        self.lines.append(sorted(values))


def step_line(x, i, log):
    y = x * 2
    total = y.sum().item()
    if i % 2 == 0:
        log.lines.append(f"step {i}: {total:.3f}")
    return y


def count_line(x, i, log):
    log.lines.append(f"{i:04d}")
    return x * 2


def short_line(x, i, log):
    log.lines.append(f"{i % 10}")
    return x * 2


def line_before_break(x, i, log):
    log.lines.append(f"{i}")
    log.last = x.sum().item()
    return x * 2


def line_across_break(x, i, log):
    line = f"{i}|{i + 1}"
    log.last = x.sum().item()
    log.lines.append(line)
    return x * 2, line


def formats(x, i, log):
    total = x.sum().item()
    line = "step " + str(i) + ": " + str(round(total))
    log.lines += [line, "%d %.2f" % (i, total), "%s-%s" % (i, "a"), f"{i!r:>6}", repr(i), "{}".format(i)]
    return x * 2, {"line": line}


def rate(x, i, log):
    lr = 0.1 / (i + 1)
    log.lines.append(f"lr {lr:.2e}")
    return x * lr


def numpy_logged(x, i, log):
    m = x.numpy().mean()
    y = torch.relu(x) + 1
    log.add(mean=m, n=1)
    return y * 2


def numpy_kept(x, i, log):
    m = x.numpy().max()
    y = x * 2
    log.last = y.sum().item()
    return y, m


def numpy_to_float(x, i, log):
    return x * float(numpy.clip(x.numpy().mean(), -1, 1))


def numpy_identity(x, i, log):
    m = x.numpy().max()
    best = m
    log.last = x.sum().item()
    return x + 1, best is m, m is best


def numpy_in_list(x, i, log):
    m = x.numpy().max()
    both = [m, m, 1]
    log.last = x.sum().item()
    return x + 1, both, both[0] is both[1]


def numpy_branch(x, i, log):
    m = x.numpy().mean()
    y = x + 1
    return y * 2 if m > 0.1 else y


def numpy_written(x, i, log):
    m = x.numpy().mean()
    log.last = x.sum().item()
    return f"{m:.3f}", {m: 1}, [m] * 2, math.sqrt(abs(m)), x * m


MOVED = [step_line, count_line, line_before_break, line_across_break, formats, rate]
MOVED += [numpy_logged, numpy_kept, numpy_to_float, numpy_identity]
READ = [short_line, numpy_in_list, numpy_branch, numpy_written]


def run(fn, call):
    log, out = Log(), []
    for i in range(CALLS):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(i))
        out.append(call(x, i, log))
    return out, vars(log)


@pytest.mark.parametrize("fn", MOVED + READ, ids=lambda fn: fn.__name__)
def test_as_eager(fn):
    compiled = ccompile.compile(fn)
    (got, kept), (want, wanted) = run(fn, compiled), run(fn, fn)
    check(got, want)
    assert kept.keys() == wanted.keys()
    check(list(kept.values()), list(wanted.values()))
    assert EAGER or fn not in MOVED or compiled_of(compiled).report()["recordings"] <= FEW


def check(got, want):
    assert type(got) is type(want)
    if isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif isinstance(got, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            check(a, b)
    elif isinstance(got, dict):
        check(list(got.items()), list(want.items()))
    elif isinstance(got, (float, numpy.floating)):
        assert math.isclose(got, want, rel_tol=1e-5, abs_tol=1e-6)
    else:
        assert got == want


TABLE = {f"k{i}": i + 1.0 for i in range(3)}


class Attributes:
    k0, k1, k2 = 1.0, 2.0, 3.0


READERS = {
    "key": lambda x, text: x * TABLE[text],
    "attribute": lambda x, text: x * getattr(Attributes, text),
    "get": lambda x, text: x * TABLE.get(text, 0.0),
    "in": lambda x, text: x + (text in TABLE),
    "compare": lambda x, text: x + 1 if text == "k1" else x,
    "truth": lambda x, text: x + 1 if text else x,
    "length": lambda x, text: x * len(text),
    "method": lambda x, text: x + text.startswith("k1"),
    "items": lambda x, text: x + sum(ord(c) for c in text),
    "unpacked": lambda x, text: x + len([*text]),
    "item": lambda x, text: x * int(text[-1]),
    "slice": lambda x, text: x * int(text[1:]),
    "display": lambda x, text: x + len({text, "k0", "k1"}),
    "dict": lambda x, text: x + len({text: 0, "k2": 1}),
    "tuple key": lambda x, text: x + {("k0", 1): 2}.get((text, 1), 0),
    "set": lambda x, text: x + len(set([text, "k0"])),
    "sorted": lambda x, text: x + sorted([text, "k1"]).index("k1"),
    "counter": lambda x, text: x + collections.Counter([text, "k0"])["k0"],
    "join": lambda x, text: x + len("-".join([text, text])),
    "call": lambda x, text: x + TABLE.__getitem__(text),
    "keyword": lambda x, text: x + (lambda **kw: kw.get("k1", 5))(**{text: 2}),
    "dtype": lambda x, text: x.to(getattr(torch, {"k0": "float64"}.get(text, "float32"))),
    "match": lambda x, text: x + matched(text),
    "error": lambda x, text: x + raised(text),
    "equation": lambda x, text: torch.einsum({"k0": "ij->ji"}.get(text, "ij->ij"), x),
    "set.add": lambda x, text: x + len(added(text)),
    "set.update": lambda x, text: x + len(updated({"k0"}, [text, "k1"])),
    "dict.update": lambda x, text: x + len(updated({"k0": 1}, [(text, 2)])),
    "setdefault": lambda x, text: x + {"k0": 5}.setdefault(text, 2),
    "pairs": lambda x, text: x + dict([(text, 1), ("k0", 4)])["k0"],
    "comprehension": lambda x, text: x + len({k for k in [text, "k1", "k2"]}),
    "unpacking": lambda x, text: x + TABLE[[name for name, _ in [(text, 1)]][0]],
    "replace": lambda x, text: x + int(text.replace("k", "")),
    "split": lambda x, text: x + int(f"{text},{text}".split(",")[1][1]),
    "same": lambda x, text: x + (text is text),
}


def added(text):
    names = {"k0", "k1"}
    names.add(text)
    return names


def updated(names, more):
    names.update(more)
    return names


def matched(text):
    match text:
        case "k0":
            return 1
        case "k1":
            return 2
    return 3


def raised(text):
    try:
        raise KeyError(text)
    except KeyError as e:
        return int(e.args[0][-1])


@pytest.mark.parametrize("behind", [False, True], ids=["symbol", "left by a break"])
@pytest.mark.parametrize("name", READERS)
def test_what_reads_a_text_sees_its_value(name, behind):
    """Texts of few values, each read in another way."""
    read = READERS[name]

    def fn(x, i, log):
        if behind:
            log.last = f"k{int(x[0, 0].item()) % 3}"
            text = log.last
            print(end="")
            return read(x * 2, text)
        return read(x * 2, f"k{i % 3}")

    def results(call):
        return [call(torch.full((2, 2), float(i)), i, Log()) for i in range(12)]

    for got, want in zip(results(ccompile.compile(fn)), results(fn), strict=True):
        torch.testing.assert_close(got, want)


IDENTITIES = {
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
    "operator.is_": operator.is_,
    "operator.is_not": operator.is_not,
    "id": lambda a, b: id(a) == id(b),
    "ids": lambda a, b: len({id(a), id(b)}),
    "equal": lambda a, b: (a == b, a in [b], [a].index(b)),
}
MADE = {
    "float": lambda i: float(str(i + 0.5)),
    "numpy": lambda i: numpy.float32(i),
    "text": lambda i: "".join(["te", str(i)]),
    "int": lambda i: int(str(1000 + i)),
}


@pytest.mark.parametrize("same", IDENTITIES)
@pytest.mark.parametrize("kind", MADE)
def test_identities_behind_a_break(kind, same):
    state, same, make = Log(), IDENTITIES[same], MADE[kind]

    def fn(x):
        m, n = state.last
        print(end="")
        return x + 1, same(m, n)

    def results(call):
        out = []
        for i in range(10):
            one = make(i)
            state.last = (one, one) if i % 2 else (one, make(i))
            out.append(call(torch.ones(1))[1])
        return out

    assert results(ccompile.compile(fn)) == results(fn)


# ---- lists that grow -----------------------------------------------------------------------------------------------------
def last_behind_break(x, i, log):
    log.lines.append(x.mean())
    log.last = x.sum().item()
    return log.lines[-1] * 2


def last_three(x, i, log):
    log.lines.append(x.mean())
    print(end="")
    return sum(log.lines[-3:]) * x


def numbers(x, i, log):
    log.lines.append(i * 0.5)
    return x * (sum(log.lines[-3:]) / len(log.lines[-3:]))


def extended(x, i, log):
    log.lines += [x.sum(), i]
    return x + 1


def extended_by_tuple(x, i, log):
    log.lines += (x.sum(),)
    log.last = x.sum().item()
    return x + 1


def first_and_last(x, i, log):
    log.lines.append(x.mean())
    print(end="")
    return log.lines[0] - log.lines[-1], log.lines[0] is log.lines[-1]


def last_replaced(x, i, log):
    if i == 0:
        log.lines.extend([x.sum(), x.mean()])
    print(end="")
    log.lines[-1] = log.lines[-1] * 0.5 + x.mean()
    if i == 6:
        log.lines.insert(0, x.max())
    return log.lines[-1] + log.lines[-2]


def too_short(x, i, log):
    if i > 4:
        log.lines.append(x.mean())
    print(end="")
    try:
        return x + log.lines[-2]
    except IndexError as e:
        return str(e)


def itself(x, i, log):
    log.lines.append(x.mean())
    if i < 4:
        log.lines += log.lines
    return x + log.lines[-1]


GROWING = [last_behind_break, last_three, extended, extended_by_tuple]


@pytest.mark.parametrize(
    "fn", [*GROWING, numbers, first_and_last, last_replaced, too_short, itself], ids=lambda fn: fn.__name__
)
def test_a_list_that_grows(fn):
    """What is read from its end, and what is added there, does not depend on its length."""
    compiled = ccompile.compile(fn)
    (got, kept), (want, wanted) = run(fn, compiled), run(fn, fn)
    check(got, want)
    check(list(kept.values()), list(wanted.values()))
    assert EAGER or fn not in GROWING or compiled_of(compiled).report()["recordings"] <= FEW
