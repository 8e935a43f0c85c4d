"""Special methods of a class that are C functions, as in `__getattr__ = dict.__getitem__` (csrc/rec/ev_dunder.c): CPython
calls them inside its slots, without a frame. What they read is guarded, what they write is written in each call."""

import collections
import operator
import traceback
import types

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, alike


class Attributes(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__

    def grow(self):
        self.n = self.get("n", 0) + 1
        return self.n

    @property
    def half(self):
        return self.lr / 2

    @property
    def lacking(self):
        raise AttributeError("lacking")


class Lenient(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__


def kind(base, **hooks):
    return type("Kind", (base,), hooks)


def holder(**hooks):
    """An object with a dict `d`, to which the hooks are bound."""
    d = {"lr": 0.0}
    o = kind(object, **{name: staticmethod(getattr(d, of)) for name, of in hooks.items()})()
    object.__setattr__(o, "d", d)
    return o


def module():
    m = types.ModuleType("m")
    m.d = {"lr": 0.0}
    m.__getattr__ = m.d.__getitem__
    return m


def described(**hooks):
    """An object whose class has such a descriptor `p`."""
    descriptor = kind(dict, **hooks)()
    o = kind(object, p=descriptor)()
    descriptor[o] = 0.0
    o.d = descriptor
    return o


class Meta(type):
    __getitem__ = type.__getattribute__


def by_class():
    return Meta("ByClass", (), {"lr": 0.0})


def store(o, x, k):
    o.step += 1
    o.k = k
    return x * o.step + o.k


def store_by_call(o, x, k):
    setattr(o, "step", o.step + 1)  # noqa: B010
    o.__setattr__("k", k)
    return x * o.step


def read(o, x, k):
    return x * o.lr


def read_by_call(o, x, k):
    return x * getattr(o, "lr"), getattr(o, "no", 5)  # noqa: B009


def ask(o, x, k):
    return x * getattr(o, "lr", 3), getattr(o, "no", k), hasattr(o, "lr"), hasattr(o, "no")


def missing(o, x, k):
    try:
        return x * o.nothing
    except KeyError as e:
        return x * k, str(e), len(o)


def delete(o, x, k):
    o["q"] = k
    del o.q
    return x * k, len(o)


def nested(o, x, k):
    o.model.depth = k
    o.seen = Attributes(n=k)
    return x * o.model.depth + o.seen.n + o.model.width


def behind_break(o, x, k):
    o.first = k
    if x.sum() > 0:
        o.second = o.first + 1
    return x * o.second, list(o.items())


def item(o, x, k):
    return x * o["lr"]


def set_item(o, x, k):
    o["lr"] = k
    return x * o["lr"], len(o)


def count(o, x, k):
    o.append("a")
    return x * o.a


def remove(o, x, k):
    o.append("q")
    del o.q
    return x * k, len(o)


def through_descriptor(o, x, k):
    o.p = k
    return x * k, list(o.d.values())


def written_descriptor(o, x, k):
    o.d[o] = k
    return x * o.p


def of_descriptor(o, x, k):
    return x * o.p


def delete_by_descriptor(o, x, k):
    o.p = k
    del o.p
    return x * k, len(o.d)


def inherited():
    """An object that reads a descriptor of its base by super()."""
    base = kind(object, p=kind(dict, __get__=dict.get)())

    class Derived(base):
        def read(self):
            return super().p

    o = Derived()
    o.d = vars(base)["p"]
    o.d[o] = 0.0
    return o


def iterate(o, x, k):
    o.append(k)
    return [x * v for v in o][-1]


CASES = {
    "store": (lambda: Attributes(step=0), store),
    "store, lenient": (lambda: Lenient(step=0), store),
    "store, by call": (lambda: Attributes(step=0), store_by_call),
    "store, ordered": (
        lambda: kind(collections.OrderedDict, __setattr__=collections.OrderedDict.__setitem__)(k=0),
        lambda o, x, k: setattr(o, "k", k),
    ),
    "read": (lambda: Attributes(lr=0.0), read),
    "read, lenient": (lambda: Lenient(lr=0.0), read),
    "read, ordered": (
        lambda: kind(collections.OrderedDict, __getattr__=collections.OrderedDict.__getitem__)(lr=0.0),
        read,
    ),
    "read, by getattr": (lambda: Lenient(lr=0.0), read_by_call),
    "read, Python's __getattribute__": (
        lambda: kind(dict, __getattr__=dict.get, __getattribute__=lambda s, n: dict.__getattribute__(s, n))(lr=0.0),
        read,
    ),
    "read, Python's __getattr__": (
        lambda: kind(dict, __getattribute__=dict.get, __getattr__=lambda s, n: 5)(lr=0.0),
        read,
    ),
    "read, __getattribute__": (lambda: kind(dict, __getattribute__=dict.get)(lr=0.0), read),
    "read, bound": (lambda: holder(__getattr__="__getitem__"), read),
    "read, module": (module, read),
    "asked, lenient": (lambda: Lenient(lr=0.0), ask),
    "property": (lambda: Attributes(lr=0.0), lambda o, x, k: x * o.half),
    "property that lacks": (lambda: Attributes(lr=0.0, lacking=2.0), lambda o, x, k: x * o.lacking),
    "method": (Attributes, lambda o, x, k: x * o.grow()),
    "missing": (lambda: Attributes(lr=0.0), missing),
    "missing, raises": (lambda: Attributes(lr=0.0), lambda o, x, k: o.nothing),
    "delete": (Attributes, delete),
    "delete, missing": (Attributes, lambda o, x, k: delattr(o, "nothing")),
    "nested": (lambda: Attributes(model=Attributes(depth=1, width=2)), nested),
    "behind a break": (lambda: Attributes(second=0), behind_break),
    "list.count": (lambda: kind(list, __getattr__=list.count)("ab"), count),
    "list.remove": (lambda: kind(list, __delattr__=list.remove)(), remove),
    "only __delattr__ in Python": (
        lambda: kind(object, __delattr__=lambda s, n: None, k=0)(),
        lambda o, x, k: (setattr(o, "k", k), x * o.k),
    ),
    "descriptor, set": (lambda: described(__set__=dict.__setitem__), through_descriptor),
    "descriptor, delete": (lambda: described(__set__=lambda s, o, v: dict.__setitem__(s, o, v), __delete__=dict.__delitem__), delete_by_descriptor),
    "descriptor, by super()": (inherited, lambda o, x, k: x * o.read()),
    "setattr without a value": (lambda: Attributes(a=1), lambda o, x, k: setattr(o, "a")),
    "delattr with a value": (lambda: Attributes(a=1), lambda o, x, k: delattr(o, "a", k)),
    "getattr of too many": (lambda: Lenient(a=1), lambda o, x, k: getattr(o, "a", 1, k)),
    "hasattr of too many": (lambda: Lenient(a=1), lambda o, x, k: hasattr(o, "a", k)),
    "a name that is no string": (lambda: Attributes(a=1), lambda o, x, k: setattr(o, 5, k)),
    "descriptor, get": (lambda: described(__get__=dict.get), written_descriptor),
    "descriptor, of outside": (lambda: described(__get__=dict.get), of_descriptor),
    "descriptor, of the class": (lambda: described(__get__=lambda s, o, t: s), lambda o, x, k: x * len(type(o).p)),
    "item, by attribute": (lambda: kind(object, __getitem__=object.__getattribute__, lr=0.0)(), item),
    "item, of a class": (by_class, item),
    "item, get": (lambda: kind(dict, __getitem__=dict.get)(lr=1.0), item),
    "item, setdefault": (lambda: kind(dict, __setitem__=dict.setdefault)(), set_item),
    "item, pop": (lambda: kind(dict, __getitem__=dict.pop)(), lambda o, x, k: (o.update(lr=k), x * o["lr"], len(o))),
    "iter": (lambda: kind(list, __iter__=list.__reversed__)([1, 2]), iterate),
    "len": (lambda: kind(list, __len__=list.__sizeof__)([1]), lambda o, x, k: (o.append(k), x * len(o))),
    "call": (lambda: kind(dict, __call__=dict.get)(lr=0.0), lambda o, x, k: x * o("lr")),
    "contains": (lambda: kind(dict, __contains__=dict.get)(lr=0.0), lambda o, x, k: x * ("lr" in o)),
    "eq": (
        lambda: kind(list, __eq__=list.__contains__, __hash__=None)([1]),
        lambda o, x, k: (o.append(k), x * (o == 3)),
    ),
    "add": (lambda: kind(dict, __add__=dict.get)(lr=1.0), lambda o, x, k: x * (o + "lr")),
    "neg": (lambda: kind(dict, __neg__=dict.__len__)(lr=1.0), lambda o, x, k: (dict.__setitem__(o, k, 1), x * -o)),
    "bool": (lambda: kind(list, __bool__=operator.truth)([1]), lambda o, x, k: x),
}


def change(o, k):
    """Changes what the hooks read, from outside."""
    if isinstance(o, dict):
        dict.__setitem__(o, "lr", k)
    elif hasattr(o, "d") and isinstance(o.d, dict):
        o.d["lr"] = k
        if any("p" in vars(c) for c in type(o).__mro__):
            o.d[o] = k
    elif hasattr(o, "lr"):
        o.lr = k


def contents(o):
    if isinstance(o, dict):
        return list(dict.items(o))
    return o[:] if isinstance(o, list) else None


def attempt(fn, o, x, k):
    try:
        return fn(o, x, k), contents(o)
    except Exception as e:
        return type(e), str(e), [s.name for s in traceback.extract_tb(e.__traceback__)][1:], e.__context__, contents(o)


@pytest.mark.parametrize("case", CASES)
def test_calls_are_as_in_eager(case):
    make, fn = CASES[case]
    eager, own, compiled = make(), make(), ccompile.compile(fn)
    for i in range(8):
        k, x = float(i), torch.full((2,), i - 3.5)
        change(eager, k)
        change(own, k)
        alike(attempt(fn, eager, x, k), attempt(compiled, own, x, k), path=f"call {i}")


@pytest.mark.skipif(EAGER, reason="counts recordings")
@pytest.mark.parametrize(
    "case", ["store", "store, lenient", "read", "read, lenient", "property", "method", "nested", "asked, lenient"]
)
def test_no_break_and_no_recording_for_each_value(case):
    make, fn = CASES[case]
    o, compiled = make(), ccompile.compile(fn, isolate_recompiles=True)
    for i in range(12):
        change(o, float(i))
        compiled(o, torch.ones(2), float(i))
    told = compiled_of(compiled).report()
    assert told["breaks_seen"] == []
    assert told["recordings"] <= 3


def test_a_hook_that_is_replaced():
    cls = kind(dict, __getattr__=dict.__getitem__)
    o = cls(lr=2.0)
    compiled = ccompile.compile(read)
    for _ in range(3):
        assert compiled(o, torch.ones(1), 0).item() == 2
    cls.__getattr__ = lambda s, name: 7.0
    assert compiled(o, torch.ones(1), 0).item() == 7
    cls.__getattr__ = dict.setdefault
    assert compiled(o, torch.ones(1), 0).item() == 2
    o.lr = 9.0  # the instance's own
    assert compiled(o, torch.ones(1), 0).item() == 9
