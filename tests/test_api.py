"""The Python API: what compile accepts and refuses, that a compiled module is a module, explain, disable, counters,
config, refused interpreters, and the command line. Other files test what the compiler does inside."""

import abc
import ast
import copy
import functools
import gc
import inspect
import io
import json
import os
import pathlib
import pickle
import re
import runpy
import subprocess
import sys
import tarfile
import threading
import types
import warnings
import weakref
from unittest import mock

import ccompile
import pytest
import torch
from ccompile import __main__ as command_line
from ccompile import _core, _setup, api, demo, demo_models, report
from torch import nn
from torch.nn.utils import prune

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def scaled(x, by=2.0):
    """Doc of scaled."""
    return torch.relu(x) * by


class Net(nn.Module):
    """Doc of Net."""

    def __init__(self, n=4):
        super().__init__()
        self.linear = nn.Linear(n, n)
        self.register_buffer("shift", torch.ones(n))
        self.scale = 2.0

    def forward(self, x, *, by=1.0):
        return torch.relu(self.linear(x)) * self.scale * by + self.shift


def x4():
    return torch.randn(3, 4)


def twice_equal(compiled, eager, *args, **kwargs):
    for _ in range(3):
        torch.testing.assert_close(compiled(*args, **kwargs), eager(*args, **kwargs))


# ---------------------------------------------------------------------- the surface


def test_everything_exported_exists():
    assert sorted(ccompile.__all__) == ccompile.__all__
    for name in ccompile.__all__:
        assert getattr(ccompile, name) is not None
    assert (pathlib.Path(ccompile.__file__).parent / "py.typed").exists()
    assert issubclass(ccompile.Unsupported, RuntimeError)


def test_stub_and_c_module_agree():
    tree = ast.parse((ROOT / "python/ccompile/_core.pyi").read_text())
    only_types = {n.name for n in tree.body if getattr(n, "name", "").endswith("Dict")}
    stub = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)} - only_types
    stub |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert stub == {name for name in dir(_core) if not name.startswith("_")}
    for cls in ("Compiled", "Disabled"):
        body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls).body
        for n in body:
            if isinstance(n, ast.FunctionDef):
                assert hasattr(getattr(_core, cls), n.name)


def test_signature_is_torch_compiles():
    ours = inspect.signature(ccompile.compile).parameters
    theirs = inspect.signature(torch.compile).parameters
    assert theirs.keys() <= ours.keys()  # an older torch lacks some
    for name, parameter in theirs.items():
        assert parameter.default == ours[name].default and parameter.kind == ours[name].kind


TYPED = """
import ccompile, torch

@ccompile.compile(fullgraph=True)
def f(x: int) -> int:
    return x

@ccompile.disable(reason="x")
def g(x: int) -> int:
    return x

@ccompile.disable
def h(x: int) -> int:
    return x

class Net(torch.nn.Module):
    size: int = 3

ccompile.config.freezing = True
with ccompile.disable():
    a: str = ccompile.compile(f)(1)
b: str = g(2)
c: str = h(3)
d: str = ccompile.compile(Net(), mode="reduce-overhead").size
"""


def test_type_checkers_know_each_argument_of_compile():
    assert list(ccompile.api._How.__annotations__) == list(inspect.signature(ccompile.compile).parameters)[1:]


def test_type_checkers_see_through_decorators(tmp_path):
    """The only errors are the assignments of an int to a str."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "typed.py").write_text(TYPED)
    wrong = [str(at) for at, line in enumerate(TYPED.splitlines(), 1) if ": str = " in line]
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(tmp_path / "typed.py")]
    told, problem, _status = api.run(options)
    assert re.findall(r"typed\.py:(\d+): error: .*variable has type \"str\"", told) == wrong, told + problem
    assert f"Found {len(wrong)} errors" in told


@pytest.mark.parametrize("base", [object, nn.Module])
def test_a_class_is_disabled_in_place(base):
    @ccompile.disable(reason="mine")
    class Plus(base):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def __call__(self, x):
            return x + self.by

    plus = Plus(3.0)
    told = ccompile.explain(lambda x: plus(x * 2) * 2)(torch.ones(3))
    assert torch.equal(told.result, torch.full((3,), 10.0)) and isinstance(plus, Plus)
    assert told.graph_count == 2 and told.break_count == 1 and ccompile.explain(plus)(torch.ones(3)).graph_count == 0


def test_arguments_of_torchs_twins():
    told = ccompile.explain(lambda x: (x + 1, ccompile.graph_break(msg="here"))[0])(torch.ones(2))
    assert told.break_reasons[0].text == "graph_break() was called: here"
    assert ccompile.graph_break(msg="eager") is None
    x = torch.ones(4)
    ccompile.mark_dynamic(x, 0, hint_override=3, specialize_on=[lambda n: n == 8])
    assert [event.text.split(" has no effect")[0] for event in ccompile.events()[-2:]] == [
        "mark_dynamic: hint_override",
        "mark_dynamic: specialize_on",
    ]
    assert ccompile.allow_in_graph([scaled, torch.relu]) == [scaled, torch.relu]
    with pytest.raises(TypeError, match="takes a callable, not int"):
        ccompile.allow_in_graph([scaled, 3])
    assert set(ccompile.list_backends()) < set(ccompile.list_backends(exclude_tags=None))
    assert set(ccompile.list_backends(())) == set(ccompile.list_backends(exclude_tags=None))


def test_readme_table_names_what_exists():
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"`ccompile\.(\w+)", text):
        assert hasattr(ccompile, name), name


# ---------------------------------------------------------------------- functions


def test_function_call_form():
    f = ccompile.compile(scaled)
    twice_equal(f, scaled, x4())
    twice_equal(f, scaled, x4(), by=3.0)
    assert f.__wrapped__ is scaled
    assert f.__name__ in ("scaled", scaled.__qualname__)
    assert f.__doc__ == scaled.__doc__ and f.__module__ == scaled.__module__


def test_decorator_with_and_without_arguments():
    @ccompile.compile
    def one(x):
        return x + 1

    @ccompile.compile(fullgraph=True, dynamic=False, mode="reduce-overhead")
    def two(x):
        return x + 2

    @ccompile.compile()
    def three(x):
        return x + 3

    x = x4()
    for f, n in ((one, 1), (two, 2), (three, 3)):
        assert isinstance(f, _core.Compiled)
        twice_equal(f, lambda v, n=n: v + n, x)


@pytest.mark.parametrize("mode", [None, *api.MODES])
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_every_mode_runs(mode, dynamic):
    twice_equal(ccompile.compile(scaled, mode=mode, dynamic=dynamic), scaled, x4())


def test_methods_of_all_kinds():
    class Thing:
        def __init__(self, by):
            self.by = by

        @ccompile.compile
        def plain(self, x):
            return x * self.by

        @ccompile.compile
        @staticmethod
        def still(x):
            return x + 1

        @staticmethod
        @ccompile.compile
        def still_too(x):
            return x + 2

        @classmethod
        @ccompile.compile
        def of_class(cls, x):
            return x, cls

        @property
        @ccompile.compile
        def doubled(self):
            return torch.full((2,), self.by) * 2

        def later(self, x):
            return x - self.by

    a, b, x = Thing(2.0), Thing(3.0), x4()
    for thing in (a, b, a):
        assert torch.equal(thing.plain(x), x * thing.by)
        assert torch.equal(Thing.plain(thing, x), x * thing.by)
        assert torch.equal(thing.still(x), x + 1) and torch.equal(Thing.still_too(x), x + 2)
        assert thing.of_class(x)[1] is Thing
        assert torch.equal(thing.doubled, torch.full((2,), thing.by * 2))
        assert torch.equal(ccompile.compile(thing.later)(x), x - thing.by)
        assert torch.equal(ccompile.compile(thing.plain, fullgraph=True)(x), x * thing.by)
    assert inspect.ismethod(a.plain) and a.plain.__self__ is a


class Static(nn.Module):
    @staticmethod
    def __call__(x):
        return x + 1


class Cached(nn.Module):
    @functools.lru_cache  # noqa: B019
    def __call__(self, x):
        return x + 1


class Decorated(nn.Module):
    @ccompile.compile
    def __call__(self, x):
        return x + 1


@ccompile.compile
class InPlace(nn.Module):
    def forward(self, x):
        return x + 1


@ccompile.compile
class StaticInPlace:
    @staticmethod
    def __call__(x):
        return x + 1


class ByPartialMethod:
    def add(self, by, x):
        return x + by

    __call__ = functools.partialmethod(add, 1)


@pytest.mark.parametrize("cls", [Static, Cached, Decorated, InPlace, StaticInPlace, ByPartialMethod])
def test_objects_whose_call_is_no_plain_function(cls):
    thing, x = cls(), x4()
    compiled = ccompile.compile(thing)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x + 1)
    assert api.compiled_of(compiled).report()["recordings"] >= (cls is not Cached)
    torch.testing.assert_close(copy.deepcopy(compiled)(x), x + 1)
    torch.testing.assert_close(ccompile.compile(lambda x: compiled(x) * 2)(x), (x + 1) * 2)
    with pytest.raises(TypeError, match="is for functions in Python"):
        ccompile.compile(thing, dynamic={"x": {0: None}})


def test_a_copy_has_state_of_its_own():
    class Counts:
        def __init__(self):
            self.calls = 0

        @functools.lru_cache  # noqa: B019
        def __call__(self, x):
            self.calls += 1
            return x + self.calls

    counts = Counts()
    compiled = ccompile.compile(counts)
    twin, x = copy.deepcopy(compiled), x4()
    torch.testing.assert_close(twin(x), x + 1)
    assert counts.calls == 0
    torch.testing.assert_close(compiled(x), x + 1)


@pytest.mark.parametrize("wrap", [ccompile.compile, ccompile.disable])
def test_class_attributes_bind_as_their_originals(wrap):
    x = x4()

    class Uses:
        builtin = wrap(torch.relu)
        method = wrap(x.add)
        called = wrap(Called())
        descriptor = wrap(torch.Tensor.size)
        function = wrap(lambda self, x: (self, x))

        def all(self, x):
            return self.builtin(x) + self.method(x) + self.called(x)

    uses = Uses()
    torch.testing.assert_close(uses.builtin(x), torch.relu(x))
    torch.testing.assert_close(uses.method(x), x + x)
    torch.testing.assert_close(uses.called(x), x * 2)
    assert uses.function(x)[0] is uses and Uses.function(1, 2) == (1, 2)
    assert inspect.ismethod(uses.descriptor)
    twice_equal(ccompile.compile(uses.all), lambda x: torch.relu(x) + 4 * x, x)


@pytest.mark.parametrize("wrap", [ccompile.compile, ccompile.disable])
def test_attributes_of_a_function_are_the_wrappers(wrap):
    def tagged(x):
        return x + 1

    tagged.tag = 1
    assert wrap(tagged).tag == 1 and wrap(tagged).__wrapped__ is tagged
    assert wrap(functools.wraps(scaled)(tagged)).__wrapped__.__wrapped__ is scaled

    class Abstract(abc.ABC):
        @wrap
        @abc.abstractmethod
        def f(self): ...

        @wrap
        def __init_subclass__(cls):
            cls.made_by = Abstract

        @wrap
        def __class_getitem__(cls, item):
            return cls, item

    class Concrete(Abstract):
        def f(self):
            return 1

    with pytest.raises(TypeError, match="abstract"):
        Abstract()
    assert Concrete().f() == 1 and Concrete.made_by is Abstract and Concrete[3] == (Concrete, 3)

    @wrap
    @functools.singledispatch
    def dispatches(x):
        return x + 1

    dispatches.register(int)(lambda x: x + 100)
    assert dispatches(1) == 101

    optimiser = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, 1)
    optimiser.step = wrap(optimiser.step)
    optimiser.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def test_partial_stays_a_partial():
    p = functools.partial(scaled, by=5.0)
    p.note = "kept"
    c = ccompile.compile(p)
    assert isinstance(c, functools.partial) and c.keywords == {"by": 5.0} and c.note == "kept"
    assert isinstance(c.func, _core.Compiled)
    twice_equal(c, p, x4())
    assert not isinstance(p.func, _core.Compiled)
    nested = ccompile.compile(functools.partial(functools.partial(Net(), by=3.0)))
    assert isinstance(nested(x4()), torch.Tensor)


def test_callable_object_lambda_and_closure():
    class Scale:
        def __init__(self):
            self.by = 3.0

        def __call__(self, x):
            return x * self.by

    scale, k, x = Scale(), 4.0, x4()
    compiled = ccompile.compile(scale)
    twice_equal(compiled, scale, x)
    scale.by = 5.0
    twice_equal(compiled, scale, x)
    twice_equal(ccompile.compile(lambda v: v + k), lambda v: v + k, x)


def test_arguments_bind_as_python_binds_them():
    def f(a, /, b, *rest, c=1.0, **more):
        return a + b + sum(rest) + c + sum(more.values())

    c, x = ccompile.compile(f), x4()
    twice_equal(c, f, x, 1.0)
    twice_equal(c, f, x, b=x, c=2.0, d=x)
    twice_equal(c, f, x, x, x, x, e=3.0)
    for args, kwargs in (((), {}), ((x,), {}), ((x, x), {"b": x}), ((), {"a": x, "b": x})):
        with pytest.raises(TypeError) as eager:
            f(*args, **kwargs)
        with pytest.raises(TypeError) as compiled:
            c(*args, **kwargs)
        assert str(compiled.value) == str(eager.value)


def test_exceptions_pass_through():
    def f(x, fail):
        y = x + 1
        if fail:
            raise KeyError("mine")
        return y

    c = ccompile.compile(f)
    for fail in (False, True, False, True):
        if fail:
            with pytest.raises(KeyError, match="mine"):
                c(x4(), True)
        else:
            twice_equal(c, f, x4(), False)


def test_compiled_again_takes_the_new_options():
    f = ccompile.compile(scaled)
    g = ccompile.compile(f, fullgraph=True)
    assert g is not f and g.__wrapped__ is scaled
    m = ccompile.compile(Net())
    n = ccompile.compile(m, mode="reduce-overhead")
    assert n is not m and n._orig_mod is m._orig_mod and type(n) is type(m)
    p = ccompile.compile(ccompile.compile(functools.partial(scaled, by=1.0)))
    assert p.func.__wrapped__ is scaled


def test_disable_argument_returns_the_thing_itself():
    m = Net()
    assert ccompile.compile(scaled, disable=True) is scaled
    assert ccompile.compile(m, disable=True) is m
    assert ccompile.compile(disable=True)(scaled) is scaled


# ---------------------------------------------------------------------- refusals

ALLOWED_MODES = "'default', 'max-autotune', 'max-autotune-no-cudagraphs', 'reduce-overhead'"


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"mode": "reduce_overhead"}, ValueError, f"did you mean 'reduce-overhead'? Allowed: {ALLOWED_MODES}"),
        ({"mode": "fast"}, ValueError, f"unknown mode 'fast'. Allowed: {ALLOWED_MODES}"),
        ({"mode": 3}, TypeError, "mode must be None or one of 'default'"),
        ({"fullgraph": 1}, TypeError, "fullgraph must be True or False, not int: 1"),
        ({"fullgraph": None}, TypeError, "fullgraph must be True or False"),
        (
            {"dynamic": "yes"},
            TypeError,
            "dynamic must be True, False or None, or {argument: {dim: Dim}}, not str: 'yes'",
        ),
        ({"dynamic": 0}, TypeError, "dynamic must be True, False or None"),
        ({"disable": "no"}, TypeError, "disable must be True or False"),
        ({"options": ["verify"]}, TypeError, "options must be a dict"),
        ({"options": {3: True}}, TypeError, "option names are str, not int"),
        (
            {"options": {"recompile_limit": -1}},
            ValueError,
            "'recompile_limit' must be in 0..2147483647 (now 8), not -1",
        ),
        ({"options": {"memory_limit": 2**31}}, ValueError, "must be in 0..2147483647 (now 0), not 2147483648"),
        ({"options": {"no_such_knob": True}}, ValueError, "unknown option 'no_such_knob'. Allowed: "),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, error, says):
    for use in (lambda: ccompile.compile(scaled, **settings), lambda: ccompile.compile(**settings)):
        with pytest.raises(error) as raised:
            use()
        assert says in str(raised.value)


def test_options_are_the_knobs():
    name, value = next(iter(ccompile.config.table().items()))
    twice_equal(ccompile.compile(scaled, options={name: value}), scaled, x4())
    with pytest.raises(TypeError, match=re.escape(f"option {name!r} is {type(value).__name__}")):
        ccompile.compile(scaled, options={name: object()})
    with pytest.raises(ValueError, match=f"did you mean {name!r}"):
        ccompile.compile(scaled, options={name + "z": value})


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (int, "a class without a __call__ in Python"),
        (3, "int, which is not callable"),
        ("model", "str, which is not callable"),
    ],
    ids=["class", "int", "str"],
)
def test_what_cannot_be_compiled_is_refused_at_once(thing, says):
    with pytest.raises(TypeError) as raised:
        ccompile.compile(thing)
    assert says in str(raised.value)
    assert "takes a callable, an nn.Module, a functools.partial" in str(raised.value)


# ---------------------------------------------------------------------- modules


def test_module_is_a_module_of_its_class():
    m = Net()
    c = ccompile.compile(m)
    assert isinstance(c, Net) and isinstance(c, nn.Module) and c is not m
    assert type(c).__name__ == "Net" and type(c).__qualname__ == Net.__qualname__
    assert type(c).__module__ == Net.__module__ and c.__doc__ == Net.__doc__
    assert repr(c) == repr(m) and str(inspect.signature(c.forward)) == str(inspect.signature(m.forward))
    assert str(inspect.signature(c)) == str(inspect.signature(m))
    assert c._orig_mod is m and c.__dict__ is m.__dict__
    assert type(ccompile.compile(Net())) is type(c)
    twice_equal(c, m, x4())
    twice_equal(c, m, x4(), by=2.0)


def test_state_is_shared_in_both_directions():
    m = Net()
    c = ccompile.compile(m)
    assert list(c.state_dict()) == list(m.state_dict()) == ["shift", "linear.weight", "linear.bias"]
    assert [n for n, _ in c.named_parameters()] == [n for n, _ in m.named_parameters()]
    assert all(a is b for a, b in zip(c.parameters(), m.parameters(), strict=True))
    assert [n for n, _ in c.named_modules()] == ["", "linear"]
    x = x4()
    c(x)
    c.scale = 7.0
    assert m.scale == 7.0
    twice_equal(c, m, x)
    m.linear = nn.Linear(4, 4)
    assert c.linear is m.linear
    twice_equal(c, m, x)
    c.extra = nn.Parameter(torch.zeros(1))
    assert m.extra is c.extra and "extra" in m.state_dict()
    del c.extra
    assert not hasattr(m, "extra")
    c.load_state_dict({k: torch.zeros_like(v) for k, v in c.state_dict().items()})
    assert not m.linear.weight.any()
    twice_equal(c, m, x)
    assert not {"_orig_mod", "_ccompile_copy", "__call__"} & set(m.__dict__)


def test_train_eval_to_and_chained_calls():
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    c = ccompile.compile(m)
    x = x4()
    assert c.eval() is c and not m.training and not m[1].training
    twice_equal(c, m, x)
    assert c.train() is c and m.training
    torch.manual_seed(0)
    trained = c(x)
    m2 = copy.deepcopy(m)
    assert trained.shape == x.shape and m2[2].num_batches_tracked == 1
    assert c.eval() is c
    assert c.to(torch.float64) is c and m[0].weight.dtype is torch.float64
    twice_equal(c, m, x.double())
    assert c.float() is c and c.requires_grad_(False) is c and not m[0].weight.requires_grad
    twice_equal(c, m, x)
    assert len(c) == 3 and c[0] is m[0] and [type(s) for s in c] == [type(s) for s in m]


def test_hooks_registered_on_either_run_once_and_see_what_they_were_registered_on():
    m = Net()
    c = ccompile.compile(m)
    x, seen = x4(), []
    c(x)
    one = c.register_forward_hook(lambda mod, args, out: seen.append(mod) or out + 1)
    two = m.register_forward_pre_hook(lambda mod, args: seen.append(mod) or (args[0] * 2,))
    expected = torch.relu(m.linear(x * 2)) * 2.0 + m.shift + 1
    for _ in range(3):
        seen.clear()
        torch.testing.assert_close(c(x), expected)
        assert len(seen) == 2 and seen[0] is m and seen[1] is c
    one.remove()
    two.remove()
    twice_equal(c, m, x)
    assert not seen[2:]


def count_in_pre(net):
    def hook(mod, args):
        mod.scale += 1.0

    return net.register_forward_pre_hook(hook)


def count_behind(net):
    def hook(mod, args, kwargs, out):
        mod.scale += kwargs["by"]
        return out * mod.scale

    return net.register_forward_hook(hook, prepend=True, with_kwargs=True, always_call=True)


def rebind_a_buffer(net):
    def hook(mod, args, out):
        mod.shift = mod.shift + out.detach().mean(0)

    return net.register_forward_hook(hook)


def scale_gradients(net):
    net.register_full_backward_pre_hook(lambda mod, grads: (grads[0] * mod.scale,))
    return net.register_full_backward_hook(lambda mod, inputs, grads: (inputs[0] * mod.scale,))


@pytest.mark.parametrize("register", [count_in_pre, count_behind, rebind_a_buffer, scale_gradients])
def test_hooks_on_a_compiled_module_do_what_they_do_in_eager(register):
    def outcomes(net):
        names = {mod: name or "root" for name, mod in net.named_modules()}
        seen = []
        handles = [net.register_forward_hook(lambda mod, args, out: seen.append(names[mod])), register(net)]
        out = []
        with torch.enable_grad():
            for i in range(6):
                x = torch.full((3, 4), i / 4.0, requires_grad=True)
                net(x, by=0.5).sum().backward()
                out += [x.grad, net.scale, net.shift.clone()]
        for handle in handles:
            handle.remove()
        return [*out, net(x, by=2.0)], seen

    m = Net()
    expected, names = outcomes(copy.deepcopy(m))
    got, seen = outcomes(ccompile.compile(m))
    torch.testing.assert_close(got, expected)
    assert seen == names == ["root"] * 6


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_objects_of_torch_among_the_hooks_are_found_again():
    x = torch.linspace(-1, 1, 8).view(2, 4)
    for add, remove in (
        (lambda c: prune.l1_unstructured(c, "weight", 0.5), lambda c: prune.remove(c, "weight")),
        (nn.utils.weight_norm, nn.utils.remove_weight_norm),
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    ):
        torch.manual_seed(0)
        m = nn.Linear(4, 4).eval()
        c, results = ccompile.compile(copy.deepcopy(m)), []
        for module in (m, c):
            torch.manual_seed(1)
            add(module)
            results.append([module(x) for _ in range(3)])
            remove(module)
            results[-1] += [module(x), *sorted(dict(module.named_parameters()))]
        torch.testing.assert_close(results[1][:4], results[0][:4])
        assert results[1][4:] == results[0][4:] == ["bias", "weight"]


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
@pytest.mark.parametrize(
    "made", [lambda f: f, ccompile.disable, ccompile.compile], ids=["plain", "disabled", "compiled"]
)
def test_hooks_of_any_make_get_the_compiled_module(made):
    m, seen = nn.Linear(4, 4), []
    c = ccompile.compile(m)
    c.register_forward_hook(made(lambda mod, args, out: seen.append(mod)))
    c.register_backward_hook(made(lambda mod, inputs, grads: seen.append(mod)))
    with torch.enable_grad():
        for _ in range(3):
            c(x4()).sum().backward()
    assert len(seen) == 6 and all(mod is c for mod in seen)


def test_hooks_on_loading_outlive_the_compiled_module():
    m, seen = Nothing(), []
    c = ccompile.compile(m)
    c.register_load_state_dict_pre_hook(lambda mod, *args: seen.append(mod._orig_mod))
    c.register_load_state_dict_post_hook(lambda mod, keys: seen.append(mod))
    del c
    gc.collect()
    m.load_state_dict(m.state_dict())
    assert len(seen) == 2 and seen[0] is seen[1] is m


def test_hooks_of_a_compiled_module_are_copied_and_pickled():
    m = Nothing()
    c = ccompile.compile(m)
    c.register_forward_hook(hooked)
    assert c() is c
    for copied in (copy.deepcopy(c), copy.deepcopy(nn.ModuleList([c]))[0]):
        assert type(copied) is type(c) and copied is not c and copied() is copied
    original = copy.deepcopy(m)
    assert original()._orig_mod is original
    for shallow in (copy.copy(m), copy.copy(c)):  # shares the original's hooks
        assert shallow() is getattr(shallow, "_orig_mod", shallow)
    loaded = pickle.loads(pickle.dumps(c))
    assert type(loaded) is Nothing and next(iter(loaded._forward_hooks.values())) is hooked


class Nothing(nn.Module):
    def forward(self):
        return torch.ones(1)


def hooked(mod, args, out):
    return mod


def test_forward_itself_stays_eager():
    m = Net()
    c = ccompile.compile(m)
    before = ccompile.counters()["recording"]
    assert torch.equal(c.forward(x4() * 0), m.forward(x4() * 0))
    assert ccompile.counters()["recording"] == before


def test_nested_in_other_modules():
    inner = Net()
    outer = nn.Sequential(ccompile.compile(inner), nn.Linear(4, 2))
    assert len(list(outer.parameters())) == 4
    assert list(outer.state_dict())[:2] == ["0.shift", "0.linear.weight"]
    plain = nn.Sequential(inner, outer[1])
    twice_equal(outer, plain, x4())
    twice_equal(ccompile.compile(outer), plain, x4())
    both = nn.ModuleList([inner, ccompile.compile(inner)])
    assert len(list(both.parameters())) == 2


def test_pickle_and_save_give_the_original_class():
    m = Net()
    c = ccompile.compile(m)
    x = x4()
    for thing in (c, nn.Sequential(c)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            back = pickle.loads(pickle.dumps(thing, protocol))
            inner = back[0] if isinstance(back, nn.Sequential) else back
            assert type(inner) is Net
            torch.testing.assert_close(inner(x), m(x))
    file = io.BytesIO()
    torch.save(c, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Net
    file = io.BytesIO()
    torch.save(c.state_dict(), file)
    file.seek(0)
    Net().load_state_dict(torch.load(file))


def test_copies_are_compiled_copies():
    m = Net()
    c = ccompile.compile(m, fullgraph=True)
    d = copy.deepcopy(c)
    assert type(d) is type(c) and d._orig_mod is not m and type(d._orig_mod) is Net
    assert d.linear.weight is not c.linear.weight and d.__dict__ is d._orig_mod.__dict__
    d.linear.weight.zero_()
    assert m.linear.weight.any()
    twice_equal(d, d._orig_mod, x4())
    s = copy.copy(c)
    assert type(s) is type(c) and s.linear is c.linear and s.__dict__ is not c.__dict__
    nested = copy.deepcopy(nn.Sequential(c))
    assert nested[0]._orig_mod is not m and len(nested.state_dict()) == 3


@ccompile.compile
def by_name(x):
    return x * 2


def plain(x):
    return x + 2


class Called:
    def __init__(self):
        self.k = 2.0

    def __call__(self, x):
        return x * self.k


def copies_and_pickles(f, other):
    """As functions do: f, a decorated function, by its name; other, which wraps `plain`, as the original."""
    assert copy.copy(f) is copy.deepcopy(f) is pickle.loads(pickle.dumps(f)) is f
    assert copy.deepcopy([other])[0] is other and pickle.loads(pickle.dumps(other)) is plain
    model = nn.Sequential(nn.Linear(4, 4))
    model.act = f
    assert copy.deepcopy(model).act is f and pickle.loads(pickle.dumps(model)).act is f


def test_compiled_functions_copy_and_pickle_as_functions_do():
    copies_and_pickles(by_name, ccompile.compile(plain))
    called = ccompile.compile(Called(), fullgraph=True)
    twin = copy.deepcopy(called)
    assert type(twin) is type(called) and twin.__wrapped__ is not called.__wrapped__
    called.__wrapped__.k = 3.0
    x = x4()
    torch.testing.assert_close(called(x) * 2, twin(x) * 3)
    assert type(pickle.loads(pickle.dumps(called))) is Called


@ccompile.disable
def disabled_by_name(x):
    return x - 1


def test_disabled_functions_copy_and_pickle_as_functions_do():
    copies_and_pickles(disabled_by_name, ccompile.disable(plain))
    called = ccompile.disable(Called(), reason="mine")
    twin = copy.deepcopy(called)
    assert type(twin) is _core.Disabled and twin.reason == "mine" and twin.__wrapped__ is not called.__wrapped__
    called.__wrapped__.k = 3.0
    x = x4()
    torch.testing.assert_close(called(x) * 2, twin(x) * 3)
    assert type(pickle.loads(pickle.dumps(called))) is Called


@pytest.mark.parametrize("wrap", [ccompile.compile, ccompile.disable])
def test_code_in_C_copies_and_pickles_as_itself(wrap):
    f = wrap(nn.functional.gelu)
    assert copy.copy(f) is copy.deepcopy(f) is f and pickle.loads(pickle.dumps(f)) is nn.functional.gelu
    assert not isinstance(f, types.FunctionType) and f.__name__ == "gelu" and ccompile.disable(f)._orig_fn is f._orig_fn
    twice_equal(f, nn.functional.gelu, x4())


def test_a_compiled_function_can_be_dressed_as_another():
    def outer(x):
        """Of outer."""

    dressed = functools.wraps(outer)(ccompile.compile(plain))
    assert (dressed.__doc__, dressed.__name__, dressed.__wrapped__) == ("Of outer.", "outer", outer)
    twice_equal(dressed, plain, x4())
    assert api.compiled_of(ccompile.compile(dressed))._orig_fn is plain


def test_new_instance_of_its_class_is_a_plain_module():
    c = ccompile.compile(Net())
    fresh = type(c)(n=8)
    assert type(fresh) is Net and fresh.linear.in_features == 8


def test_data_parallel_replica():
    m = Net()
    replica = ccompile.compile(m)._replicate_for_data_parallel()
    assert type(replica) is Net and replica.__dict__ is not m.__dict__


def test_lifetime():
    class Local(nn.Module):
        def forward(self, x):
            return x + 1

    m = Local()
    c = ccompile.compile(m)
    c(x4())
    dead, dead_class = weakref.ref(c), weakref.ref(type(c))
    del c
    gc.collect()
    assert dead() is None
    assert torch.equal(m(torch.zeros(1)), torch.ones(1))
    gone, gone_class = weakref.ref(m), weakref.ref(Local)
    del m, Local
    gc.collect()
    assert gone() is None
    gc.collect()
    assert dead_class() is None and gone_class() is None


class Slotted(nn.Module):
    __slots__ = ("hidden",)

    def __init__(self):
        super().__init__()
        self.hidden = 3.0

    def forward(self, x):
        return x * self.hidden


class OwnCall(nn.Module):
    def __call__(self, x, twice=False):
        y = super().__call__(x)
        return y * 2 if twice else y

    def forward(self, x):
        return x + 1


class OwnAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def __setattr__(self, name, value):
        if name.startswith("forbidden") or name in ("_orig_mod", "__dict__"):
            raise RuntimeError("set on me")
        super().__setattr__(name, value)

    def forward(self, x):
        return self.inner(x) * self.in_features


class GetAttribute(nn.Module):
    def __getattribute__(self, name):
        if name == "virtual":
            return 5.0
        return super().__getattribute__(name)

    def forward(self, x):
        return x * self.virtual


class Mixin:
    def __init__(self, *args, by=3.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.by = by


class Mixed(Mixin, nn.Linear, abc.ABC):
    def forward(self, x):
        return super().forward(x) * self.by


class Registering(nn.Module):
    known = []

    def __init_subclass__(cls, *, key, **kwargs):
        super().__init_subclass__(**kwargs)
        Registering.known.append(key)


class Registered(Registering, key="one"):
    def forward(self, x):
        return x - 1


class OwnNew(nn.Module):
    def __new__(cls, tag):
        made = super().__new__(cls)
        object.__setattr__(made, "tag", tag)
        return made

    def __init__(self, tag):
        super().__init__()

    def forward(self, x):
        return x + len(self.tag)


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.by_meta = 2.0
        return made


class WithMeta(nn.Module, metaclass=Meta):
    def forward(self, x):
        return x * self.by_meta


MODULES = {
    "slots": Slotted,
    "own __call__": OwnCall,
    "own __getattr__ and __setattr__": OwnAttributes,
    "own __getattribute__": GetAttribute,
    "multiple inheritance": lambda: Mixed(4, 4),
    "registering base": Registered,
    "own __new__": lambda: OwnNew("tag"),
    "metaclass": WithMeta,
    "Sequential": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "Linear": lambda: nn.Linear(4, 4),
    "lazy": lambda: nn.LazyLinear(4),
    "parametrized child": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
    "traced": lambda: torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4)),
    "fx": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
    "generic": lambda: nn.Identity(),
}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_modules_of_every_make(kind):
    m = MODULES[kind]().eval()
    c = ccompile.compile(m)
    assert isinstance(c, type(m)) and repr(c) == repr(m)
    x = x4()
    c(x)
    twice_equal(c, m, x)
    assert list(c.state_dict()) == list(m.state_dict())
    assert weakref.ref(c)() is c
    c.note = "n"
    assert m.note == "n"


def test_slots_are_the_originals():
    m = Slotted()
    c = ccompile.compile(m)
    twice_equal(c, m, x4())
    c.hidden = 9.0
    assert m.hidden == 9.0
    twice_equal(c, m, x4())
    del m.hidden
    with pytest.raises(AttributeError):
        _ = c.hidden


def test_own_call_and_setattr_are_kept():
    m = OwnCall()
    c = ccompile.compile(m)
    twice_equal(c, m, x4(), twice=True)
    twice_equal(c, m, x4())
    guarded = ccompile.compile(OwnAttributes())
    with pytest.raises(RuntimeError, match="set on me"):
        guarded.forbidden = 1
    assert guarded.out_features == 4
    assert Registering.known.count("one") == 1 and len(Registering.known) == 1
    assert type(WithMeta()).__name__ == "WithMeta"


def test_module_whose_state_is_elsewhere_is_compiled_in_place():
    class Both(nn.Module, list):
        def forward(self, x):
            return x * len(self)

    x = x4()
    for wrap, hits in ((ccompile.compile, 2), (ccompile.disable, 0)):
        m = Both()
        before = ccompile.counters["hits"]
        assert wrap(m) is m
        m.append(3)
        for _ in range(3):
            assert torch.equal(m(x), x)
        assert ccompile.counters["hits"] == before + hits
        m.append(4)
        twice_equal(m, m.forward, x)


class Keeper(nn.Module):
    """Its methods keep state outside of the instance, where forward finds it."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def keep(self, value):
        self.table[self] = value

    @classmethod
    def set_mode(cls, mode):
        cls.mode = mode
        return cls

    def count(self):
        type(self).counted += 1

    def uncount(self):
        del type(self).counted

    def forward(self, x):
        return x * self.table.get(self, 100) * self.mode + self.counted


@pytest.mark.parametrize("table", [dict, weakref.WeakKeyDictionary])
@pytest.mark.parametrize("bases", [(Keeper,), (Keeper, abc.ABC)])
def test_methods_of_a_compiled_module_find_the_originals_state(bases, table):
    base = type("Base", (bases[-1],), {"counted": 7})
    kind = type("Kind", (*bases[:-1], base), {"mode": 1, "counted": 0})
    m = kind(table())
    c, x = ccompile.compile(m), x4()
    twice_equal(c, lambda x: x * 100, x)
    c.keep(2)
    assert c.set_mode(3) is kind is type(c).set_mode(3)
    c.count()
    twice_equal(c, lambda x: x * 6 + 1, x)
    assert kind.counted == 1 and kind.mode == 3
    c.uncount()
    assert torch.equal(c(x), x * 6 + (7 if bases[1:] else base.counted))
    assert c == m and m == c and not c != m and c in [m] and {m: 1}[c] == 1 and c != kind(table())
    assert c == ccompile.compile(m) and c != 3


def test_metaclasses_do_not_see_the_classes_of_compiled_modules():
    made = []

    class Registry(type):
        def __new__(cls, name, bases, namespace, *, key):
            made.append(key)
            return super().__new__(cls, name, bases, namespace)

        def __init__(cls, name, bases, namespace, *, key):
            super().__init__(name, bases, namespace)

        def __setattr__(cls, name, value):
            made.append(name)
            super().__setattr__(name, value)

    class Alike(type):
        def __eq__(cls, other):
            return isinstance(other, Alike)

        def __hash__(cls):
            return 3

    class Registered(nn.Module, metaclass=Registry, key="one"):
        def count(self):
            type(self).counted = 1

        def __call__(self, x):
            return x + 1

    class Plus(nn.Module, metaclass=Alike):
        def __call__(self, x):
            return x + 2

    class Minus(nn.Module, metaclass=Alike):
        def __call__(self, x):
            return x - 2

        def unlike(self):
            return 1

    x, m = x4(), Registered()
    c = ccompile.compile(m)
    twice_equal(c, m, x)
    c.count()
    assert made == ["one", "counted"] and Registered.counted == 1
    plus, minus = ccompile.compile(Plus()), ccompile.compile(Minus())
    assert minus.unlike() == 1 and not hasattr(plus, "unlike")

    class Base(nn.Module, abc.ABC):
        @abc.abstractmethod
        def forward(self, x): ...

    class Derived(Base):
        def forward(self, x):
            return x

    class Further(Derived):
        pass

    c = ccompile.compile(Derived())
    assert isinstance(c, Base) and isinstance(c, type(c)) and not isinstance(Further(), type(c))
    assert isinstance(Further(), Derived) and not isinstance(c, Further)


def test_original_that_becomes_another_class():
    m = nn.Linear(4, 4)
    c, x = ccompile.compile(m), x4()
    assert c.__class__ is nn.Linear and type(c) is not nn.Linear
    c(x)
    nn.utils.parametrizations.weight_norm(c)
    assert list(m.state_dict()) == list(c.state_dict()) and "weight" not in m.state_dict()
    torch.testing.assert_close(c.weight, m.weight)
    assert repr(c) == repr(m) and isinstance(c, type(m))
    twice_equal(c, m, x)
    with pytest.raises(AttributeError, match="nothing"):
        _ = c.nothing
    lazy = ccompile.compile(nn.LazyLinear(4))
    lazy(x)
    assert lazy.__class__ is nn.Linear and type(lazy._orig_mod) is nn.Linear
    twice_equal(lazy, lazy._orig_mod, x)


class First(nn.Module):
    def forward(self, x):
        return x

    def told(self):
        return "first"


class Second(First):
    def told(self):
        return "second"

    def __len__(self):
        return 2

    @property
    def number(self):
        return self._number

    @number.setter
    def number(self, value):
        self._number = value + 1

    @number.deleter
    def number(self):
        self._number = 0


class SlottedFirst(First):
    __slots__ = ("hidden",)


class SlottedSecond(Second, SlottedFirst):
    pass


@pytest.mark.parametrize("through", [lambda c: c, lambda c: c._orig_mod], ids=["compiled", "original"])
@pytest.mark.parametrize("kinds", [(First, Second), (SlottedFirst, SlottedSecond)], ids=["plain", "slots"])
def test_class_of_the_original_that_is_replaced(kinds, through):
    m = kinds[0]()
    c, x = ccompile.compile(m), x4()
    twice_equal(c, m, x)
    through(c).__class__ = kinds[1]
    c.number = 3
    assert m.number == c.number == 4 and isinstance(c, Second) and weakref.ref(c)() is c
    if kinds[0] is First:
        assert c.told() == "second" and len(c) == 2
    del c.number
    assert m.number == 0
    assert c._orig_mod is m and c.train() is c
    twice_equal(c, m, x)


class Half(nn.Module):
    def forward(self, weight):
        return weight * 2

    def right_inverse(self, weight):
        return weight / 2


@pytest.mark.parametrize("through", [lambda c: c, lambda c: c._orig_mod], ids=["compiled", "original"])
def test_assigning_a_parametrized_weight(through):
    m = nn.Linear(4, 4)
    c, x = ccompile.compile(m), x4()
    c(x)
    nn.utils.parametrize.register_parametrization(through(c), "weight", Half())
    c.weight = torch.full((4, 4), 3.0)
    assert "weight" not in m.__dict__ and m.parametrizations.weight.original[0, 0] == 1.5
    twice_equal(c, m, x)
    torch.testing.assert_close(c(x), x.sum(1, keepdim=True) * 3 + m.bias)


class Twofold:
    def __call__(self, x):
        return x * 2


class Threefold:
    def __call__(self, x):
        return x * 3


@pytest.mark.parametrize("module", [False, True])
def test_call_of_an_objects_class_that_is_replaced(module):
    base = nn.Module if module else object
    kinds = [type(kind.__name__, (base,), {"__call__": vars(kind)["__call__"]}) for kind in (Twofold, Threefold)]
    kinds.append(type("InC", (base,), {"__call__": staticmethod(torch.exp)}))
    o, x = kinds[0](), x4()
    c = ccompile.compile(o)
    for kind in (*kinds, kinds[0], kinds[2], kinds[1]):
        o.__class__ = kind
        before = ccompile.counters["hits"]
        twice_equal(c, o, x)
        assert ccompile.counters["hits"] == before + 2 * (kind is not kinds[2])
    kinds[1].__call__ = kinds[0].__call__
    twice_equal(c, lambda x: x * 2, x)


def test_call_that_is_replaced_while_it_runs():
    class Swaps:
        def __call__(self, x, inner=None):
            y = x * 2
            if inner:
                self.__class__ = Threefold
                y = y + inner(x)
            return y

    o, x = Swaps(), x4()
    c = ccompile.compile(o)
    for _ in range(3):
        torch.testing.assert_close(c(x, c), x * 5)
        twice_equal(c, lambda x: x * 3, x)
        o.__class__ = Swaps


def test_functional_call_and_weight_averaging():
    m = Net()
    c, x = ccompile.compile(m), x4()
    zeros = {name: torch.zeros_like(p) for name, p in m.named_parameters()}
    c(x)
    for _ in range(2):
        torch.testing.assert_close(torch.func.functional_call(c, zeros, (x,)), m.shift.expand(3, 4))
        twice_equal(c, m, x)
    average = torch.optim.swa_utils.AveragedModel(c)
    torch.testing.assert_close(average(x), m(x))
    assert average.module.linear.weight is not m.linear.weight


def test_gradients_through_a_compiled_module():
    m = Net()
    c = ccompile.compile(m)
    x = x4()
    with torch.enable_grad():
        for _ in range(3):
            m.zero_grad()
            m(x).sum().backward()
            expected = m.linear.weight.grad.clone()
            c.zero_grad()
            c(x).sum().backward()
            torch.testing.assert_close(m.linear.weight.grad, expected)


# ---------------------------------------------------------------------- fullgraph, breaks, explain


def breaking(x):
    y = x.relu() + 1
    if y.sum().item() > 0:
        return y * 2
    return y - 1


BREAK_LINE = inspect.getsourcelines(breaking)[1] + 2


def test_fullgraph_raises_before_the_breaking_instruction():
    ran = []

    def f(x):
        y = x + 1
        ran.append("before")
        y.tolist()
        ran.append("after")
        return y

    line = inspect.getsourcelines(f)[1] + 3
    with pytest.raises(ccompile.Unsupported) as raised:
        ccompile.compile(f, fullgraph=True)(x4())
    assert pathlib.Path(__file__).name in str(raised.value) and f":{line}" in str(raised.value)
    assert "after" not in ran
    ran.clear()
    ccompile.compile(f)(x4())
    assert ran == ["before", "after"]


def test_explain_counts_and_reasons():
    x = torch.ones(4)
    told = ccompile.explain(breaking)(x)
    assert isinstance(told, ccompile.Explanation)
    assert torch.equal(told.result, breaking(x))
    assert (told.graph_count, told.break_count) == (2, 1)
    assert told.node_count == 4 and told.op_count == sum(map(len, told.ops_per_graph)) == 2  # two are methods
    (reason,) = told.break_reasons
    assert isinstance(reason, ccompile.BreakReason)
    assert reason.file == __file__ and reason.line == BREAK_LINE
    assert reason.user_stack[-1][1:] == (BREAK_LINE, "breaking")
    assert reason.reason and reason.text and reason.advice
    text = str(told)
    for part in (
        "breaking: 2 graphs, 1 graph break, 4 ops",
        f"test_api.py:{BREAK_LINE}",
        "y.sum().item()",
        reason.advice,
    ):
        assert part in text
    assert told.out_guards and not told.give_ups


def test_explain_of_everything_compile_takes():
    x = x4()
    for thing in (scaled, Net(), ccompile.compile(scaled), ccompile.compile(Net()), functools.partial(scaled, by=3.0)):
        told = ccompile.explain(thing)(x)
        assert (told.graph_count, told.break_count) == (1, 0), told
        assert told.op_count >= 2 and "1 graph, 0 graph breaks" in str(told)
        again = ccompile.explain(thing)(x)
        assert again.op_count == told.op_count
    with pytest.raises(TypeError, match="takes a callable"):
        ccompile.explain(3)


def test_explain_leaves_the_compiled_thing_alone():
    f = ccompile.compile(scaled)
    f(x4())
    before = f.report()["recordings"]
    ccompile.explain(f)(x4())
    assert f.report()["recordings"] == before == 1


def test_report_of_what_has_run():
    f = ccompile.compile(breaking)
    for _ in range(3):
        f(torch.ones(4))
    told = report.report(f)
    assert (told.graph_count, told.break_count) == (2, 1)
    raw = f.report()
    assert raw["calls"] == 3 and raw["recordings"] == 1 and raw["hits"] == 2 and raw["eager_calls"] == 0
    json.dumps(raw)
    f.reset()
    assert f.report()["entries"] == []


def test_graph_break():
    def f(x):
        y = x + 1
        ccompile.graph_break()
        return y * 2

    told = ccompile.explain(f)(x4())
    assert (told.graph_count, told.break_count) == (2, 1)
    assert ccompile.graph_break() is None
    with pytest.raises(ccompile.Unsupported):
        ccompile.compile(f, fullgraph=True)(x4())


def test_is_compiling():
    def f(x):
        return x + 1 if ccompile.is_compiling() else x - 1

    assert ccompile.is_compiling() is False
    c, x = ccompile.compile(f), x4()
    for _ in range(3):
        assert torch.equal(c(x), x + 1)
    assert torch.equal(f(x), x - 1)
    assert not ccompile.is_compiling()


# ---------------------------------------------------------------------- disable


def test_disabled_function_is_a_break_and_runs_eagerly():
    def probe(x):
        return x * 2 if ccompile.is_compiling() else x * 3

    forms = [ccompile.disable(probe), ccompile.disable()(probe), ccompile.disable(reason="why not")(probe)]
    for inner in forms:

        def f(x, inner=inner):
            return inner(x + 1) + 1

        c, x = ccompile.compile(f), x4()
        for _ in range(3):
            torch.testing.assert_close(c(x), (x + 1) * 3 + 1)
        told = ccompile.explain(f)(x)
        assert told.break_count == 1 and told.graph_count == 2
        assert inner.__wrapped__ is probe
    assert "why not" in told.break_reasons[0].text


def test_disable_as_context_manager():
    def f(x):
        return x * 2 if ccompile.is_compiling() else x * 3

    c, x = ccompile.compile(f), x4()
    with ccompile.disable():
        assert torch.equal(c(x), x * 3)
        with ccompile.disable():
            assert torch.equal(c(x), x * 3)
        assert torch.equal(c(x), x * 3)
    assert torch.equal(c(x), x * 2)
    with pytest.raises(KeyError):
        with ccompile.disable():
            raise KeyError
    assert torch.equal(c(x), x * 2)


def test_disable_methods_modules_and_refusals():
    class Thing:
        @ccompile.disable
        def method(self, x):
            return x, self

        @ccompile.disable
        @staticmethod
        def still(x):
            return x

    thing, x = Thing(), x4()
    assert thing.method(x)[1] is thing and thing.still(x) is x
    m = Net()
    d = ccompile.disable(m)
    assert isinstance(d, Net) and d._orig_mod is m and list(d.state_dict()) == list(m.state_dict())
    twice_equal(d, m, x)
    assert ccompile.compile(d) is d
    assert ccompile.compile(ccompile.disable(scaled)).__wrapped__ is scaled
    assert ccompile.disable(ccompile.compile(scaled)).__wrapped__ is scaled
    for wrong, says in (
        (3, "takes a function, a method, a module or a class"),
        (int, "a class with a __call__ in Python"),
    ):
        with pytest.raises(TypeError, match=says):
            ccompile.disable(wrong)
    with pytest.raises(TypeError, match="recursive must be True or False"):
        ccompile.disable(scaled, 3)
    assert ccompile.disable(recursive=False)(scaled).__wrapped__ is scaled
    assert "recursive=False" in ccompile.events()[-1].text
    with pytest.raises(TypeError, match="reason must be a str"):
        ccompile.disable(reason=3)


# ---------------------------------------------------------------------- counters, events, reset, config


def test_counters_are_a_live_mapping():
    c = ccompile.counters
    assert set(c) >= {"recording", "entry", "graph_break", "give_up", "eager", "guard_failure", "recompile", "kernel"}
    assert set(c) >= {"primitive", "fallback", "verify", "missing_library", "entry_dropped", "calls", "hits", "misses"}
    assert len(c) == len(c()) and dict(c) == c() and "hits" in c and "no such" not in c
    before = c()
    f = ccompile.compile(scaled)
    x = x4()
    for _ in range(5):
        f(x)
    assert c["calls"] - before["calls"] == 5 and c["hits"] - before["hits"] == 4
    assert c["misses"] - before["misses"] == 1 and c["recording"] - before["recording"] == 1
    with pytest.raises(KeyError):
        c["no such"]
    with pytest.raises(TypeError):
        c["hits"] = 0


def test_events_in_order():
    f = ccompile.compile(breaking)
    last = max((event.serial for event in ccompile.events()), default=0)
    f(torch.ones(4))
    new = ccompile.events(after=last)
    assert new and all(event.serial > last for event in new)
    assert [event.serial for event in new] == sorted(event.serial for event in new)
    assert {"recording", "graph_break"} <= {event.kind for event in new} <= set(ccompile.counters)
    assert all(isinstance(event.text, str) and event.time_ns > 0 for event in new)


def test_reset_forgets_what_was_compiled():
    f, x = ccompile.compile(scaled), x4()
    f(x)
    f(x)
    ccompile.reset()
    assert f.report()["entries"] == []
    twice_equal(f, scaled, x)
    assert len(f.report()["entries"]) == 1


HELD_BY_ITS_ENTRIES = """
import gc, sys, torch, ccompile

gc.disable()

def make():
    def helper(x):
        print(end="")
        return x + (1 if f else 2)

    f = ccompile.compile(lambda h, x: h(x) * 2)
    for _ in range(4):
        f(helper, torch.ones(3))
    return f

others = [ccompile.compile(lambda x: x.sin())]
make()
others.append(ccompile.compile(lambda x: x.cos()))
ccompile.reset()
ccompile.reset()
print(*(f(torch.zeros(1)).item() for f in others))
"""


def test_reset_of_what_only_its_own_entries_hold():
    """Freed memory is overwritten at once (PYTHONMALLOC=debug): whoever reads it crashes."""
    env = {**os.environ, "PYTHONMALLOC": "debug"}
    done = subprocess.run(
        [sys.executable, "-c", HELD_BY_ITS_ENTRIES], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["0.0", "1.0"], done.stderr


def test_config_reads_sets_and_patches():
    config = ccompile.config
    table = config.table()
    assert table and all(isinstance(v, bool | int | str) for v in table.values())
    assert set(table) <= set(dir(config))
    name = next(n for n, v in table.items() if type(v) is int)
    before = getattr(config, name)
    with config.patch(**{name: before + 1}):
        assert getattr(config, name) == before + 1
    assert getattr(config, name) == before
    setattr(config, name, before)
    for wrong, error in ((name + "z", ValueError), ("nothing_like_it", ValueError)):
        with pytest.raises(error, match="Allowed: "):
            setattr(config, wrong, 1)
        with pytest.raises(AttributeError, match="Allowed: "):
            getattr(config, wrong)
    with pytest.raises(TypeError, match="knob"):
        setattr(config, name, "text")
    for wrong in (-1, 2**31, 2**32 + 5):
        with pytest.raises(
            ValueError, match=rf"knob {name!r} must be in 0\.\.2147483647 \(now {before}\), not {wrong}"
        ):
            setattr(config, name, wrong)
    assert getattr(config, name) == before
    with pytest.raises(ValueError):
        with config.patch(nothing_like_it=1):
            pass
    for knob, value in ((name, before + 1), ("cache_size_limit", 3), ("verbose", True)):
        was = getattr(config, knob)
        with mock.patch.object(config, knob, value):
            assert getattr(config, knob) == value
        assert getattr(config, knob) == was
    delattr(config, name)
    assert not hasattr(config, name)
    setattr(config, name, before)
    with pytest.raises(AttributeError, match="Allowed: "):
        del config.nothing_like_it


def test_threads_share_a_compiled_function():
    f, x = ccompile.compile(scaled), x4()
    expected, wrong = scaled(x), []

    def work():
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(f(x), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---------------------------------------------------------------------- set-up and the command line


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (("cpython", (3, 10)), "supports CPython 3.11 to 3.14; this is CPython 3.10"),
        (("cpython", (3, 15)), "this is CPython 3.15"),
        (("pypy", (3, 11)), "it owns CPython's frames. This is pypy"),
        (("cpython", (3, 14), False), "does not support free-threaded CPython"),
        (("cpython", (3, 11)), None),
        (("cpython", (3, 14), True), None),
    ],
)
def test_interpreters_that_are_not_served(found, says):
    told = _setup.refusal(*found)
    assert (told is None) if says is None else (says in told)


def test_torch_versions():
    assert "needs torch 2.10 or later" in _setup.torch_refusal("2.9.1+cpu")
    assert "this is torch 1.13.0" in _setup.torch_refusal("1.13.0")
    assert all(_setup.torch_refusal(v) is None for v in ("2.10.0", "2.13.0+cpu", "3.0.0a0+git1", "private"))


# sysconfig fails under another platform's name
ELSEWHERE = "import sysconfig; sysconfig.get_config_var = lambda name: None"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("sys.version_info = (3, 10, 0, 'final', 0)", "ccompile supports CPython 3.11 to 3.14"),
        ("sys.version_info = (3, 15, 0, 'final', 0)", "ccompile supports CPython 3.11 to 3.14"),
        ("sys.version_info = (3, 16, 0, 'alpha', 1)", "ccompile supports CPython 3.11 to 3.14"),
        ("import sysconfig; sysconfig.get_config_var = lambda name: 1", "does not support free-threaded builds"),
        (f"{ELSEWHERE}; sys.platform = 'win32'", "ccompile supports x86-64 Linux; this is win32 on x86_64."),
        (f"{ELSEWHERE}; sys.platform = 'darwin'; platform.machine = lambda: 'arm64'", "this is darwin on arm64."),
        ("platform.machine = lambda: 'aarch64'", "this is linux on aarch64."),
        (
            "sys.implementation = types.SimpleNamespace(**{**vars(sys.implementation), 'name': 'pypy'})",
            "ccompile needs CPython",
        ),
    ],
)
def test_setup_refuses_at_build(change, says):
    code = f"import runpy, sys, types, platform; {change}; runpy.run_path({str(ROOT / 'setup.py')!r}, run_name='x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr


def test_an_sdist_builds_on_each_version(tmp_path):
    """It holds what builds for other interpreters need, too; setup.py names this one's files only."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path), "sdist", "-d", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "CCOMPILE_TEST_EXT": "0"}
    )
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        *ROOT.glob("csrc/*/*.*"),
        ROOT / "setup.py",
        ROOT / "pyproject.toml",
        ROOT / "LICENSE",
        ROOT / "README.md",
    }
    assert not {str(path.relative_to(ROOT)) for path in needed} - packed
    assert not {name for name in packed if name.endswith((".so", ".o")) or name.startswith("tests/")}


def test_versions_that_pip_accepts():
    text = (ROOT / "pyproject.toml").read_text()
    first, last = _setup.SUPPORTED[0], _setup.SUPPORTED[-1]
    assert f'requires-python = ">=3.{first[1]},<3.{last[1] + 1}"' in text
    named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text)
    assert named == [str(minor) for _, minor in _setup.SUPPORTED]


def test_import_loads_no_library():
    code = (
        "import torch, sys; read = lambda: open('/proc/self/maps').read(); before = read(); had = set(sys.modules);"
        "import ccompile; maps = read();"
        "assert all(n in before or n not in maps for n in ('libllvmlite', 'libdnnl.so'));"  # a distribution's torch has libdnnl.so
        "assert not {'llvmlite', 'torch._dynamo', 'transformers'} & (set(sys.modules) - had)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_oneDNN_can_be_named(monkeypatch):
    monkeypatch.setenv("CCOMPILE_ONEDNN", "somewhere/libdnnl.so")
    assert _setup.find_onednn() == "somewhere/libdnnl.so"
    monkeypatch.setenv("CCOMPILE_ONEDNN", "")
    assert _setup.find_onednn() is None


def test_command_line(capsys, tmp_path, monkeypatch):
    assert command_line.main([]) == 2 and "usage" in capsys.readouterr().err
    assert command_line.main(["--help"]) == 0 and "explain" in capsys.readouterr().out
    assert command_line.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert torch.__version__ in out and _core.describe() in out
    assert command_line.main(["explain", "SimpleNet"]) == 0
    assert "SimpleNet: 1 graph, 0 graph breaks" in capsys.readouterr().out
    (tmp_path / "mine_helper.py").write_text("bias = 1\n")
    (tmp_path / "mine.py").write_text("def f(x, y):\n    return (x + y).relu()\n\nimport mine_helper\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ["explain", f"{tmp_path}/mine.py:f", "--input", "2x3", "--input", "3:float64", "--guards"]
    assert command_line.main(arguments) == 0
    out = capsys.readouterr().out
    assert "f: 1 graph, 0 graph breaks, 2 ops" in out and "guards" in out
    for wrong, text in (
        (["explain", "nothing"], "'nothing' is not MODULE:NAME"),
        (["explain", f"{tmp_path}/none.py:f"], "no such file"),
        (["explain", "nothing.at.all:f"], "no such module: nothing"),
        (["explain", "math:nothing"], "math has no 'nothing'"),
        (["explain", "torch.nn:ReLU", "--input", "3xy"], "'3xy' must be sizes"),
        (
            ["explain", f"{tmp_path}/mine.py:f"],
            r"mine.py:f, called with no arguments \(--input 8x64 passes one\), raised TypeError: f\(\) missing 2",
        ),
        (
            ["explain", f"{tmp_path}/mine.py:f", "--input", "2x3", "--input", "4"],
            "mine.py:f, called with 2x3, 4, raised RuntimeError at .*mine.py:2: The size of tensor a",
        ),
        (["demo", "nothing"], None),
    ):
        with pytest.raises(SystemExit, match=text):
            command_line.main(wrong)


def test_demo_row_and_table(capsys):
    assert command_line.main(["demo", "SimpleNet", "--seconds", "0.01", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["model"] == "SimpleNet" and row["max_error"] < 1e-4
    assert (row["graphs"], row["breaks"], row["give_ups"]) == (1, 0, 0)
    lines = demo.table([row]).splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1
    slow = {**row, "speedup": 0.5, "first_ms": row["eager_ms"] + 301, "give_ups": 1}
    assert len(demo.misses([slow])) == 3 and not demo.misses([{**row, "speedup": 9.0, "first_ms": 1.0}])


def test_demo_measures_errors_honestly():
    a, b = torch.tensor([1.0, float("nan"), float("inf")]), torch.tensor([1.5, float("nan"), float("inf")])
    assert demo.largest_error([a], (a,)) == 0 and demo.largest_error({"x": b}, {"x": a}) == 0.5
    assert demo.largest_error(a, a[:2]) == demo.largest_error([], [a]) == float("inf")
    assert demo.largest_error(torch.zeros(3), a) == float("inf")
    assert demo.largest_error(torch.tensor([True]), torch.tensor([False])) == 1


@pytest.mark.parametrize("name", [n for n, w in demo_models.WORKLOADS.items() if not w.what.startswith("transformers")])
def test_workloads_build_and_say_their_shape(name):
    workload = demo_models.WORKLOADS[name]
    args, _kwargs = workload.inputs()
    assert "x".join(map(str, args[0].shape)) == workload.what
    assert callable(demo_models.build(workload))


def test_overhead_benchmark(capsys, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["bench_overhead.py", "x + 1", "--seconds", "0.01"])
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "benchmarks/bench_overhead.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    row = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and row["workload"] == "x + 1" and row["ccompile_error"] == 0
    assert row["ccompile_reduce_error"] == 0 and row["ccompile_reduce_ns"] > 0
    assert row["ccompile_over_ns"] == pytest.approx(row["ccompile_ns"] - row["eager_ns"], abs=1)


def test_model_benchmark():
    """Its smallest workload, against nobody: the rows and the tables that it makes of them."""
    command = [
        sys.executable,
        str(ROOT / "benchmarks/bench_models.py"),
        "SimpleNet b1",
        "--compilers",
        "ccompile",
        "--seconds",
        "0.05",
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    row = json.loads(line)
    assert (row["workload"], row["compiler"], row["input"], row["threads"]) == ("SimpleNet b1", "ccompile", "1x512", 2)
    assert row["ms"] > 0 and row["speedup"] == pytest.approx(row["eager_ms"] / row["ms"]) and row["blocks"] >= 5
    assert row["error"] < 1e-5 and row["first_extra_ms"] > 0 and min(row["peak_mib"], row["eager_peak_mib"]) > 50
    bench = runpy.run_path(str(ROOT / "benchmarks/bench_models.py"))
    peer = {**row, "compiler": "openvino", "speedup": row["speedup"] / 2}
    text = bench["told"](
        [row, {"workload": "SimpleNet b1", "compiler": "inductor", "failed": "E: x"}, peer],
        ["ccompile", "inductor", "openvino"],
    )
    assert "| SimpleNet b1 | 1x512 |" in text and "1 of 1 workloads, geomean 2.00" in text
    failed = [
        {"workload": "w", "compiler": "inductor", "failed": "E: x"},
        {"compiler": "onnxruntime", "missing": "not installed: onnx"},
    ]
    assert bench["notes"](failed, True) == ["onnxruntime: not installed: onnx", "inductor failed on w: E: x"]
    assert len(bench["notes"](failed, False)) == 2


def test_step_benchmark():
    pytest.importorskip("transformers")
    command = [sys.executable, str(ROOT / "benchmarks/bench_steps.py"), "small Llama", "--calls", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["workload"] == "small Llama" and row["ms"] == pytest.approx(sum(row["kinds"].values()))
    assert 0 < sum(row["host"].values()) < 1 and {"product", "kernel"} <= set(row["kinds"])


SETTINGS = """
import torch, ccompile
x, f = torch.ones(8, 8), ccompile.compile(lambda x: (x @ x).relu() + 1)
f(x), f(x)
print("\\n".join(event.text for event in ccompile.events() if event.kind == "ignored"))
"""
WRONG_SETTINGS = {
    "CCOMPILE_BACKEND": ("llvm", "CCOMPILE_BACKEND is 'llvm', which nothing here knows; allowed: ref, cuda"),
    "CCOMPILE_CPU": ("sse", "CCOMPILE_CPU is 'sse', which nothing here knows; allowed: base, avx2, avx512"),
    "CCOMPILE_DUMP": ("all", "CCOMPILE_DUMP is 'all', which nothing here knows; allowed: kernels, graph"),
    "CCOMPILE_INSTALL": ("yes", "CCOMPILE_INSTALL is 'yes', which nothing here knows; allowed: 0, 1"),
    "CCOMPILE_LOGS_FORMAT": ("xml", "CCOMPILE_LOGS_FORMAT is 'xml', which nothing here knows; allowed: text, json"),
    "CCOMPILE_SKIP_PASSES": ("out", "unknown pass 'out'"),
    "CCOMPILE_VERIFY": ("no", "CCOMPILE_VERIFY is 'no', which nothing here knows; allowed: 0, 1"),
    "CCOMPILE_WAY": ("owm", "CCOMPILE_WAY is 'owm', which nothing here knows; allowed: own, onednn, blas"),
    "CCOMPILE_CACHE_LIMIT": ("1x", "CCOMPILE_CACHE_LIMIT is '1x', not a number of MiB in 0..2147483647"),
}


def ignored_settings(settings):
    env = {k: v for k, v in os.environ.items() if k not in WRONG_SETTINGS} | {"CCOMPILE_CPU": "base"} | settings
    done = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True, env=env, check=True)
    return done.stdout.splitlines()


def test_values_of_environment_variables_that_nobody_knows_are_told(tmp_path):
    lines = ignored_settings(
        {name: value for name, (value, _) in WRONG_SETTINGS.items()} | {"CCOMPILE_CACHE_DIR": str(tmp_path)}
    )
    assert len(lines) == len(WRONG_SETTINGS)
    for _, text in WRONG_SETTINGS.values():
        assert any(line.startswith(text) for line in lines), (text, lines)
    (tmp_path / "file").touch()
    (line,) = ignored_settings({"CCOMPILE_WAY": "direct", "CCOMPILE_CACHE_DIR": str(tmp_path / "file" / "folder")})
    assert f"the cache {tmp_path}/file/folder/" in line and "can't be used (Not a directory)" in line


def test_compiled_types_are_what_they_say():
    assert isinstance(ccompile.compile(scaled), _core.Compiled)
    assert isinstance(ccompile.disable(scaled), _core.Disabled)
    assert isinstance(ccompile.compile(Net()).__call__, _core.Compiled)
    assert isinstance(vars(type(ccompile.compile(Net())))["__call__"], types.MemberDescriptorType)


class Halved(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @ccompile.disable
    def helper(self, x):
        return self.linear(x) * 0.5

    def forward(self, x):
        return self.helper(x) + 1


@ccompile.disable
def halved(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


@pytest.mark.filterwarnings("ignore")
def test_torchscript_finds_the_source_of_a_disabled_function():
    """As it does behind torch.compiler.disable: the wrapper has what torch.jit.script asks a function for."""
    m, x = Halved(), x4()
    torch.testing.assert_close(torch.jit.script(m)(x), m(x))
    torch.testing.assert_close(torch.jit.script(halved)(x), x * 0.5)
    assert isinstance(halved, types.FunctionType) and not isinstance(ccompile.disable(torch.relu), types.FunctionType)
    assert inspect.getsourcefile(halved) == __file__ and "x * 0.5" in inspect.getsource(halved)


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_a_disabled_function_with_defaults():
    """Dynamo calls what torch.compiler.disable has made: its guards refused the defaults of the wrapper."""
    inner = ccompile.disable(lambda x, by=3: x * by)
    torch._dynamo.reset()
    outer = torch.compile(lambda x: inner(x) + 1, backend="eager")
    x = x4()
    for _ in range(2):
        torch.testing.assert_close(outer(x), x * 3 + 1)
