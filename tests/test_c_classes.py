"""Methods that C code made and that belong to mutable classes (pybind11, Cython): no frame shows what they read, so what
they gave while a call was recorded must not be given again. Properties whose getter is C code, and C types' own methods."""

import ctypes
import functools
import operator

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER
from torch._C._dynamo.guards import GuardDebugInfo  # a class made by pybind11 with plain members

X = torch.arange(1.0, 4.0)


def follows(fn, values, change=None):
    """Calls with each value twice, and, if given, once more after `change(value)`: compiled as in eager."""
    compiled = ccompile.compile(fn, isolate_recompiles=True)
    for value in (*values, *values):
        assert torch.equal(compiled(X, value), fn(X, value))
    if change is not None:
        change(values[0])
        assert torch.equal(compiled(X, values[0]), fn(X, values[0]))
    return compiled


# ------------------------------------------------------------------------------------------------ pybind11
LISTS = {
    "len": lambda x, s: x * len(s),
    "item": lambda x, s: x * s[0],
    "iter": lambda x, s: x * sum([v for v in s]),
    "in": lambda x, s: x * (7 if 3 in s else 2),
    "truth": lambda x, s: x * (7 if s else 2),
    "text": lambda x, s: x * len(str(s)),
    "format": lambda x, s: x * len(f"{s}"),
    "list": lambda x, s: x * sum(list(s)),
    "sum": lambda x, s: x * sum(s),
    "sorted": lambda x, s: x * sorted(s)[0],
    "unpack": lambda x, s: x * [*s][0],
    "max": lambda x, s: x * max(s),
    "enumerate": lambda x, s: x * sum([i * v for i, v in enumerate(s)]),
    "method": lambda x, s: x * s.count(3),
}


@pytest.mark.parametrize("what", LISTS)
def test_pybind_list(what):
    lists = [torch._C.ScriptList(v) for v in ([2, 3], [5], [3, 3, 1])]
    follows(LISTS[what], lists, lambda s: s.append(1))


def test_pybind_members():
    infos = [GuardDebugInfo(result, ["code"], executed) for result, executed in ((True, 3), (False, 5))]
    follows(lambda x, o: x + 1 if o.result else x - 1, infos)
    follows(lambda x, o: x * o.num_guards_executed, infos)
    follows(lambda x, o: x * getattr(o, "num_guards_executed"), infos)


# ------------------------------------------------------------------------------------------------ special methods
instance_method = ctypes.pythonapi.PyInstanceMethod_New
instance_method.restype, instance_method.argtypes = ctypes.py_object, [ctypes.py_object]
SPECIAL = {
    "__len__": lambda x, o: x * len(o),
    "__bool__": lambda x, o: x * (2 if o else 3),
    "__int__": lambda x, o: x * int(o),
    "__index__": lambda x, o: x * [5, 7, 9][o],
    "__abs__": lambda x, o: x * abs(o),
    "__neg__": lambda x, o: x * -o,
    "__hash__": lambda x, o: x * hash(o),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("inherits", [False, True])
def test_special_methods_in_c(name, inherits):
    kind = type("Kind", (), {name: instance_method(operator.attrgetter("n"))})
    if inherits:
        kind = type("Derived", (kind,), {})
    objects = [kind(), kind()]
    objects[0].n, objects[1].n = (True, False) if name == "__bool__" else (1, 2)
    follows(SPECIAL[name], objects)


# ------------------------------------------------------------------------------------------------ properties
class Caller:
    def __call__(self, o):
        return o.n + 1


class Holder:
    plain = property(operator.attrgetter("n"))
    deep = property(operator.attrgetter("inner.n"))
    item = property(operator.itemgetter(1))
    called = property(operator.methodcaller("scaled", 3))
    part = property(functools.partial(lambda k, o: o.n * k, 2))
    length = property(len)
    number = property(int)
    object_called = property(Caller())

    def __init__(self, n):
        self.n, self.inner = n, self

    def __getitem__(self, i):
        return self.n + i

    def __len__(self):
        return self.n

    def __int__(self):
        return self.n

    def scaled(self, k):
        return self.n * k


class Module(torch.nn.Module):
    """__getattr__ would answer where the getter raises AttributeError."""

    weight = property(operator.attrgetter("n"))


READS = {
    "plain": lambda x, o: x * o.plain,
    "deep": lambda x, o: x * o.deep,
    "item": lambda x, o: x * o.item,
    "called": lambda x, o: x * o.called,
    "part": lambda x, o: x * o.part,
    "length": lambda x, o: x * o.length,
    "number": lambda x, o: x * o.number,
    "object_called": lambda x, o: x * o.object_called,
    "getattr": lambda x, o: x * getattr(o, "plain"),
}


class Derived(Holder):
    pass


@pytest.mark.parametrize("what", READS)
def test_properties_with_getters_in_c(what):
    def change(o):
        o.n = 5

    compiled = follows(READS[what], [Holder(2), Holder(3)], change)
    if what in ("plain", "deep", "item", "called", "part") and not EAGER:
        assert compiled_of(compiled).report()["breaks_seen"] == []
    follows(lambda x, o: x * super(Derived, o).plain, [Derived(2), Derived(3)], change)


def test_property_of_a_module():
    modules = [Module(), Module()]
    modules[0].n, modules[1].n = 2, 3
    follows(lambda x, o: x * o.weight, modules)


def test_getter_that_raises():
    def fn(x, o):
        try:
            return x * o.plain
        except AttributeError:
            return x - 1

    empty = Holder(1)
    del empty.n
    follows(fn, [Holder(2), empty])


def write(self, v):
    self.n = v + 1


class Written:
    value = property(operator.attrgetter("n"), instance_method(write), instance_method(lambda self: write(self, -1)))


def test_setters_in_c():
    """No frame shows what they write."""

    def store(x, o):
        o.value = 4
        return x * o.value

    def delete(x, o):
        del o.value
        return x + o.value

    for fn in (store, delete, lambda x, o: [setattr(o, "value", 6), x * o.n][1]):
        compiled = ccompile.compile(fn)
        for _ in range(3):
            ours, eager = Written(), Written()
            assert torch.equal(compiled(X, ours), fn(X, eager)) and ours.n == eager.n
