"""Guards: anything a call reads may change before the next one, which must then do what eager does.

A case is a function, its arguments and one mutation. It runs three times, is mutated, runs twice, is restored and runs twice
more; a second copy of the case runs eagerly through the same steps. A case whose mutation makes no difference to eager is
an error in the case itself, unless it says `silent`.
"""

import abc
import builtins
import contextlib
import contextvars
import datetime
import decimal
import operator
import os
import subprocess
import sys
import types

import ccompile
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import alike, outcome, replaying
from guard_cases import CASES, Case, case, linear, mlp, square, t


def run(build, compiled, record):
    """All steps of a case on one side. `record` gets each Outcome and its step."""
    ccompile.reset()
    torch.manual_seed(7)
    c = build()
    fn = ccompile.compile(c.fn) if compiled else c.fn

    def call(make, step, around=contextlib.nullcontext):
        made = make()
        args, kw = made if len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict) else (made, {})
        with torch.no_grad() if c.no_grad else contextlib.nullcontext(), around():
            out = outcome(fn, args, kw)
        record(step, out)

    with pytest.MonkeyPatch.context() as patch:
        for i in range(3):
            with replaying(1) if compiled and c.hit and i == 2 else contextlib.nullcontext():
                call(c.args, "before")
        try:
            if c.mutate:
                c.mutate(patch)
            for _ in range(2):
                call(c.after or c.args, "mutated", c.around or contextlib.nullcontext)
        finally:
            patch.undo()
            if c.undo:
                c.undo()
        for _ in range(2):
            call(c.args, "put back")
    return c


# ---- names and objects around the function ------------------------------------------------------------------------------
SCALE, TABLE, LOOKUP, FLAGS = 2.0, [1.0, 2.0], {"k": 3.0}, {1}
DTYPE = torch.float32
context_scale = contextvars.ContextVar("context_scale", default=1.0)
holder = types.ModuleType("holder")
holder.value = 2.0
nested = types.SimpleNamespace(inner=types.SimpleNamespace(value=1.0))


def helper(x):
    return x + 1


def other_helper(x):
    return x * 10


def read_globals(x):
    return helper(x) * SCALE + sum(TABLE) + LOOKUP["k"] + len(FLAGS) + holder.value + nested.inner.value


def uses_builtins(x):
    return x * abs(-3) + len([1, 2]) + max(1, 2)


def read_defaults(x, k=2.0, *, w=3.0):
    return x * k + w


def use_linear(x):
    return F.linear(x, torch.eye(4)) + torch.relu(x).tanh()


class Plain:
    value = 2.0


class Callable:
    def __call__(self, x):
        return x + 1


def environment(x):
    return x * 2 if os.environ.get("FLAG_OF_A_TEST") else x * 3


def factory(x):
    return x.double() + torch.ones(3) * torch.get_default_dtype().itemsize


def make_tensor(x):
    return torch.zeros(3), x.mean()


def grad_sensitive(x):
    return x * (2 if torch.is_grad_enabled() else 3)


def read_context(x):
    return x * context_scale.get()


@case
def global_float():
    return Case(read_globals, mutate=lambda p: p.setitem(globals(), "SCALE", 3.0))


@case
def global_type():
    return Case(read_globals, mutate=lambda p: p.setitem(globals(), "SCALE", t(4)))


@case
def global_function():
    return Case(read_globals, mutate=lambda p: p.setitem(globals(), "helper", other_helper))


@case
def global_function_code():
    return Case(read_globals, mutate=lambda p: p.setattr(helper, "__code__", other_helper.__code__))


@case
def global_list_content():
    return Case(read_globals, mutate=lambda p: TABLE.__setitem__(1, 7.0), undo=lambda: TABLE.__setitem__(1, 2.0))


@case
def global_list_replaced():
    return Case(read_globals, mutate=lambda p: p.setitem(globals(), "TABLE", [5.0]))


@case
def global_dict_content():
    return Case(read_globals, mutate=lambda p: p.setitem(LOOKUP, "k", 4.0))


@case
def global_set_content():
    return Case(read_globals, mutate=lambda p: FLAGS.add(2), undo=lambda: FLAGS.discard(2))


@case
def global_deleted():
    return Case(read_globals, mutate=lambda p: p.delitem(globals(), "SCALE"))


@case
def module_attribute():
    return Case(read_globals, mutate=lambda p: p.setattr(holder, "value", 5.0))


@case
def nested_attribute():
    return Case(read_globals, mutate=lambda p: p.setattr(nested.inner, "value", 5.0))


@case
def dtype_constant():
    return Case(lambda x: x.to(DTYPE), mutate=lambda p: p.setitem(globals(), "DTYPE", torch.float64))


@case
def builtin_patched():
    return Case(uses_builtins, mutate=lambda p: p.setattr(builtins, "abs", lambda v: 11))


@case
def builtin_shadowed():
    return Case(uses_builtins, mutate=lambda p: p.setitem(globals(), "max", lambda *v: 17))


@case
def functional_patched():
    return Case(use_linear, mutate=lambda p: p.setattr(F, "linear", lambda x, w, b=None: x + 100))


@case
def functional_patched_below_module():
    return Case(linear(), mutate=lambda p: p.setattr(F, "linear", lambda x, w, b=None: x + 100))


@case
def torch_function_patched():
    return Case(use_linear, mutate=lambda p: p.setattr(torch, "relu", lambda x: x - 50))


@case
def tensor_method_patched():
    return Case(use_linear, mutate=lambda p: p.setattr(torch.Tensor, "tanh", lambda self: self * 9, raising=False))


def stored_into(x):
    y = x.clone()
    y[0] = 5.0
    return y * 1


def unpacked(x):
    first, *_ = x
    return first * 2


# method of torch.Tensor -> functions that call it by C code, and what the method is made
TENSOR_SPECIALS = {
    "__iter__": (
        (lambda x: [v * 2 for v in x], unpacked, lambda x: [*x][0] * 2, lambda x: list(x)[0] * 2, lambda x: sum(x)),
        lambda s: iter([s + 7]),
    ),
    "__reversed__": ((lambda x: [v * 2 for v in reversed(x)],), lambda s: iter([s + 7])),
    "__abs__": ((lambda x: abs(x) + 1, lambda x: operator.abs(x) + 1), lambda s: s + 7),
    "__rsub__": ((lambda x: operator.sub(1, x),), lambda s, v: s + 7),
    "__pow__": ((lambda x: pow(x, 2),), lambda s, v: s + 7),
    "__getitem__": ((lambda x: x[0] * 2, lambda x: x[1:] * 2, lambda x: operator.getitem(x, 0) * 2), lambda s, i: s + 7),
    "__setitem__": ((stored_into,), lambda s, i, v: None),
}


def tensor_special_patched(fn, name, method):
    return lambda: Case(fn, mutate=lambda p: p.setattr(torch.Tensor, name, method))


SPECIALS = {
    f"tensor-{name}-{i}": tensor_special_patched(fn, name, method)
    for name, (fns, method) in TENSOR_SPECIALS.items()
    for i, fn in enumerate(fns)
}


@case
def positional_default():
    return Case(read_defaults, mutate=lambda p: p.setattr(read_defaults, "__defaults__", (9.0,)))


@case
def keyword_default():
    return Case(read_defaults, mutate=lambda p: p.setattr(read_defaults, "__kwdefaults__", {"w": 9.0}))


@case
def keyword_default_in_place():
    return Case(read_defaults, mutate=lambda p: p.setitem(read_defaults.__kwdefaults__, "w", 7.0))


@case
def root_code_replaced():
    def root(x):
        return x + 1

    return Case(root, mutate=lambda p: p.setattr(root, "__code__", other_helper.__code__))


@case
def closure_cell():
    value = 2.0

    def fn(x):
        return x * value

    def rebind(new):
        nonlocal value
        value = new

    return Case(fn, mutate=lambda p: rebind(5.0), undo=lambda: rebind(2.0))


@case
def closure_cell_function():
    def inner(x):
        return x + 1

    def fn(x):
        return inner(x) * 2

    def rebind(new):
        nonlocal inner
        inner = new

    first = inner
    return Case(fn, mutate=lambda p: rebind(torch.tanh), undo=lambda: rebind(first))


@case
def closure_list():
    log = [2.0]
    return Case(lambda x: x * log[0] + len(log), mutate=lambda p: log.append(1.0), undo=log.pop)


@case
def object_class_changed():
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x * 5

    o = A()
    return Case(lambda x: o.go(x), mutate=lambda p: p.setattr(o, "__class__", B))


@case
def object_attribute_shadows_method():
    o = Callable()
    o.__dict__["unused"] = 1
    return Case(lambda x: o.__call__(x), mutate=lambda p: p.setattr(o, "__call__", torch.tanh, raising=False))


@case
def class_call_patched():
    o = Callable()
    return Case(lambda x: o(x), mutate=lambda p: p.setattr(Callable, "__call__", lambda self, x: x * 4))


@case
def class_attribute_added_in_subclass():
    class Child(Plain):
        pass

    o = Child()
    return Case(lambda x: x * o.value, mutate=lambda p: p.setattr(Child, "value", 8.0, raising=False))


@case
def class_bases_changed():
    class A:
        value = 2.0

    class B:
        value = 3.0

    class C(A):
        pass

    return Case(
        lambda x: x * C().value,
        mutate=lambda p: setattr(C, "__bases__", (B,)),
        undo=lambda: setattr(C, "__bases__", (A,)),
    )


@case
def descriptor_added():
    class A:
        pass

    o = A()
    o.value = 2.0
    return Case(
        lambda x: x * o.value, mutate=lambda p: p.setattr(A, "value", property(lambda self: 6.0), raising=False)
    )


@case
def operator_on_class():
    class A:
        def __add__(self, x):
            return x + 1

    o = A()
    return Case(lambda x: o + x, mutate=lambda p: p.setattr(A, "__add__", lambda self, x: x * 6))


@case
def length_of_object():
    class A:
        def __len__(self):
            return 2

    o = A()
    return Case(lambda x: x * (len(o) if o else 9), mutate=lambda p: p.setattr(A, "__len__", lambda self: 0))


@case
def abc_registration():
    class Kind(abc.ABC):
        pass

    class Thing:
        pass

    thing = Thing()
    # register() can't be undone, so "put back" compares the registered state once more.
    return Case(lambda x: x * (2 if isinstance(thing, Kind) else 3), mutate=lambda p: Kind.register(Thing))


@case
def environment_variable():
    return Case(environment, mutate=lambda p: p.setenv("FLAG_OF_A_TEST", "1"))


@case
def context_variable():
    tokens = []
    return Case(
        read_context,
        mutate=lambda p: tokens.append(context_scale.set(4.0)),
        undo=lambda: context_scale.reset(tokens.pop()),
    )


# ---- ambient state of torch ---------------------------------------------------------------------------------------------
class CountingMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, fn, kinds, args=(), kwargs=None):
        out = fn(*args, **(kwargs or {}))
        return out + 1 if fn in (torch.relu, F.relu) else out


class ShiftingDispatch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, fn, kinds, args=(), kwargs=None):
        out = fn(*args, **(kwargs or {}))
        return out + 1 if fn is torch.ops.aten.relu.default else out


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def threads(n):
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def relu_only(x):
    return torch.relu(x) * 2


CASES.update(
    {
        "grad-mode": lambda: Case(grad_sensitive, around=torch.enable_grad, args=lambda: (t(3).requires_grad_(),)),
        "grad-mode-of-result": lambda: Case(linear(), around=torch.enable_grad),
        "no-grad-after-grad": lambda: Case(linear(), around=torch.no_grad, no_grad=False),
        "inference-mode": lambda: Case(
            lambda x: (x * 2, torch.is_inference_mode_enabled()), around=torch.inference_mode
        ),
        "inference-mode-of-result": lambda: Case(lambda x: (x * 2).is_inference(), around=torch.inference_mode),
        "autocast": lambda: Case(linear(), around=lambda: torch.autocast("cpu", torch.bfloat16)),
        "autocast-of-matmul": lambda: Case(lambda x: x @ x.t(), around=lambda: torch.autocast("cpu", torch.bfloat16)),
        "autocast-flag": lambda: Case(
            lambda x: x * (2 if torch.is_autocast_enabled("cpu") else 3),
            around=lambda: torch.autocast("cpu", torch.bfloat16),
        ),
        "default-dtype": lambda: Case(factory, args=lambda: (t(3),), around=lambda: default_dtype(torch.float64)),
        "default-dtype-of-factory": lambda: Case(make_tensor, around=lambda: default_dtype(torch.float64)),
        "default-device": lambda: Case(make_tensor, around=lambda: torch.device("meta")),
        "torch-function-mode": lambda: Case(relu_only, around=CountingMode),
        "torch-function-mode-in-module": lambda: Case(mlp(), around=CountingMode),
        "dispatch-mode": lambda: Case(relu_only, around=ShiftingDispatch),
        "threads": lambda: Case(lambda x: (x * 2, torch.get_num_threads()), around=lambda: threads(1)),
        "threads-only": lambda: Case(square, around=lambda: threads(1), silent=True),
        "deterministic": lambda: Case(
            lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3), around=deterministic
        ),
    }
)


def written(x, i):
    y = x.clone()
    y[i] = 2.0
    return y * x


def bounded_before_a_break(x, n):
    i = slice(1, n)
    k = int(x.sum() * 0)
    return x[i] + k, x[:n, : int(x.sum() * 0) + 2] * 2


# Indices from outside, whose content decides sizes and places of results.
INDICES = {
    "slice": (slice(0, 3), slice(0, 4)),
    "slice-start": (slice(0, 3), slice(1, 4)),
    "slice-step": (slice(None), slice(None, None, 2)),
    "tuple": ((slice(1, 3), 0), (slice(1, 4), 0)),
    "tuple-of-numbers": ((0, 1), (2, 1)),
    "list": ([0, 2], [0, 2, 1]),
    "mask": ([True, False, False, False], [True, False, True, False]),
    "list-in-tuple": ((slice(None), [0, 2]), (slice(None), [0, 2, 1])),
    "array": (np.arange(2), np.arange(3)),
    "array-in-tuple": ((0, np.arange(2)), (0, np.arange(3))),
}
INDEXED = {
    "read": lambda x, i: x[i] + 1,
    "read-of-list": lambda x, i: x[[i][0]].exp(),
    "called": lambda x, i: operator.getitem(x, i) * x.__getitem__(i),
    "written": written,
}
CASES.update(
    {
        f"index-{kind}-{how}": lambda fn=fn, i=i, j=j: Case(fn, args=lambda: (t(4, 4), i), after=lambda: (t(4, 4), j))
        for kind, (i, j) in INDICES.items()
        for how, fn in INDEXED.items()
    }
)
CASES["index-slice-before-a-break"] = lambda: Case(
    bounded_before_a_break, args=lambda: (t(4, 4), 3), after=lambda: (t(4, 4), 4)
)


def put(d, key):
    d[key] = 3
    return d


# Objects whose classes in C hash and compare what is in them: (one, another).
HASHED = {
    "date": (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    "decimal": (decimal.Decimal(1), decimal.Decimal(2)),
    "frozenset": (frozenset([1]), frozenset([2])),
    "tuple": ((1, decimal.Decimal(1)), (1, decimal.Decimal(2))),
    "frozenset-of-dates": (frozenset([datetime.date(2020, 1, 1)]), frozenset([datetime.date(2020, 1, 2)])),
    "date-of-numpy": (np.datetime64(1, "D"), np.datetime64(2, "D")),
}
MEETING = {
    "item": lambda x, k, o: x * {k: 1, o: 2}[o],
    "set": lambda x, k, o: x + len({k, o}),
    "dict": lambda x, k, o: x + len({k: 1, o: 2}),
    "made": lambda x, k, o: x + len(set([k, o])) + len(dict([(k, 1), (o, 2)])) + len(dict.fromkeys([k, o])),
    "put": lambda x, k, o: x * put({o: 1}, k)[o],
    "union": lambda x, k, o: x + len({k} | {o}) + len({k} - {o}),
    "comprehension": lambda x, k, o: x + len({v for v in (k, o)}) + len({v: 1 for v in (k, o)}),
    "found": lambda x, k, o: x + (k in {o}) + [k, o].index(o),
}
CASES.update(
    {
        f"hashed-{kind}-{how}": lambda fn=fn, one=one, two=two, how=how: Case(
            fn, args=lambda: (t(3), one, two), after=lambda: (t(3), two, two), hit=how not in ("put", "union")
        )
        for kind, (one, two) in HASHED.items()
        for how, fn in MEETING.items()
    }
)


@pytest.mark.parametrize("name", CASES)
def test_mutation(name):
    mutated(CASES[name])


def test_special_methods_of_tensors():
    """In a process of its own: CPython never clears sq_item of a class whose __getitem__ was once set, and torch.tensor([x[0], x[1]])
    then takes tensors without dims for sequences."""
    paths = [os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])]
    program = "import test_guards as t; [(print(name), t.mutated(make)) for name, make in t.SPECIALS.items()]"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def mutated(make):
    steps, eager, compiled = [], [], []
    c = run(make, False, lambda step, out: (steps.append(step), eager.append(out)))
    assert not any(out.error for step, out in zip(steps, eager) if step != "mutated"), eager[0].text
    if not c.silent:
        with pytest.raises(AssertionError):
            alike(eager[2], eager[3], path="the mutation has no effect in eager, so this case proves nothing")

    def check(step, out):
        alike(eager[len(compiled)], out, path=f"{step}, call {len(compiled)}")
        compiled.append(out)

    run(make, True, check)
    assert len(compiled) == len(eager) == 7


@pytest.mark.parametrize("name", ["weight-in-place", "scalar-value", "input-shape", "global-float", "train-eval"])
def test_variants_are_kept(name):
    """Going back and forth between two states that were both seen replays; it does not record again each time."""
    ccompile.reset()
    c = CASES[name]()
    fn = ccompile.compile(c.fn)

    def check(args):
        torch.manual_seed(3)
        eager = c.fn(*args)
        torch.manual_seed(3)
        alike(eager, fn(*args))

    def turn():
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            check(c.args())
            if c.mutate:
                c.mutate(patch)
            check((c.after or c.args)())
        if c.undo:
            c.undo()

    for _ in range(3):
        turn()
    with replaying(2):
        turn()


def test_table_is_complete():
    assert len(CASES) >= 45
    assert all(isinstance(make(), Case) for make in CASES.values())
