"""Dicts with tensors as keys (optimizer.state[p]): a lookup hashes the tensor's address, which reads no data, so there is no
break; a guard covers the value found, or its absence."""

import collections
import copy
import types

import ccompile
import pytest
import torch
from conftest import EAGER, alike, breaks, replaying
from torch import nn


def world():
    keys = [torch.ones(2), torch.zeros(2), nn.Parameter(torch.ones(2))]
    table = {keys[0]: {"n": 1, "buf": torch.ones(2)}, keys[2]: {"n": 2, "buf": torch.full((2,), 3.0)}}
    return types.SimpleNamespace(keys=keys, table=table, spare={"n": 7, "buf": torch.full((2,), 9.0)})


def item(x, w):
    return x * w.table[w.keys[0]]["buf"] + w.table[w.keys[2]]["n"]


def contains(x, w):
    return x, [k in w.table for k in w.keys], w.keys[1] not in w.table


def get(x, w):
    return x, [w.table.get(k) for k in w.keys], w.table.get(w.keys[1], 5)


def caught(x, w):
    try:
        return x * w.table[w.keys[0]]["n"]
    except KeyError:
        return x


def written(x, w):
    for k in w.keys:
        if k in w.table:
            w.table[k]["n"] += 1
            w.table[k]["buf"].mul_(x)
    return w.table[w.keys[2]]["n"]


def replace(w):
    w.table[w.keys[0]] = w.spare


def delete(w):
    w.table.pop(w.keys[0], None)


def add(w):
    w.table[w.keys[1]] = {"n": 3, "buf": torch.ones(2)}


def swap(w):
    w.keys[0], w.keys[2] = w.keys[2], w.keys[0]


def other(w):
    w.keys[0] = torch.ones(2)
    w.table[w.keys[0]] = {"n": 4, "buf": torch.full((2,), 4.0)}


def gone(w):
    """The key is freed, and another tensor may get its address."""
    delete(w)
    w.keys[0] = None
    w.keys[0] = torch.ones(2)


def same_item(w):
    w.table[w.keys[0]] = w.table[w.keys[2]]


def another_dict(w):
    w.table = copy.copy(w.table)
    w.table[w.keys[0]] = w.spare


def ordered(w):
    w.table = collections.OrderedDict(w.table)


def default(w):
    w.table = collections.defaultdict(dict, w.table)


def shape(w):
    w.table[w.keys[0]]["buf"] = torch.ones(2, 2)


def clear(w):
    w.table.clear()


CHANGES = (replace, delete, add, swap, other, gone, same_item, another_dict, ordered, default, shape, clear)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fn", (item, contains, get, caught, written), ids=lambda f: f.__name__)
def test_changes_are_seen(fn, change):
    eager, ours, compiled = world(), world(), ccompile.compile(fn)

    def outcome(f, w, i):
        try:
            return f(torch.full((2,), i + 1.0), w)
        except KeyError:
            return "KeyError"

    with torch.no_grad():
        for i in range(12):  # memos of guards are made behind some of the calls
            alike((outcome(fn, eager, i), eager.table), (outcome(compiled, ours, i), ours.table), path=f"call {i}")
            if i in (4, 9):
                change(eager)
                change(ours)


@pytest.mark.skipif(EAGER, reason="needs the product")
@pytest.mark.parametrize("fn", (item, contains, get, caught, written), ids=lambda f: f.__name__)
def test_no_break(fn):
    w, x = world(), torch.ones(2)
    assert breaks(fn, x, w).breaks == 0
    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for _ in range(3):
            compiled(x, w)
        with replaying(5):
            for _ in range(5):
                compiled(x, w)


def test_a_missing_key_of_a_defaultdict_is_made():
    def fn(x, table, key):
        table[key]["n"] = table[key].get("n", 0) + 1
        return x * table[key]["n"]

    def run(f):
        table, out = collections.defaultdict(dict), []
        keys = [torch.ones(2), torch.zeros(2)]
        for i in range(8):
            out.append(f(torch.ones(2), table, keys[i // 2 % 2]))
        return out, [table[k] for k in keys]

    alike(run(fn), run(ccompile.compile(fn)))


@pytest.mark.skipif(EAGER, reason="needs the product")
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_a_step_of_an_optimizer_breaks_where_dynamo_does_or_less(kind):
    """Two breaks are written in Optimizer itself (_use_grad_for_differentiable); Dynamo, once it has run, disables _init_group."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    more = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **more)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    optimizer.step()
    ccompile.reset()
    disabled = hasattr(type(optimizer)._init_group, "_torchdynamo_disable")
    report = ccompile.explain(optimizer.step)()
    assert report.break_count <= 2 + disabled, str(report)
