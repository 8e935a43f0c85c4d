"""Switching from torch.compile: its arguments and options, install(), stances, and the ways in which libraries call it."""

import copy
import io
import os
import pathlib
import pickle
import subprocess
import sys
import warnings

import ccompile
import pytest
import torch
from ccompile import _core, api, inductor
from ccompile.module import CompiledModule
from torch import nn

TORCHS = api._torch_compile
TORCHS_STANCE = torch.compiler.set_stance


@pytest.fixture(autouse=True)
def _clean():
    yield
    ccompile.uninstall()
    ccompile.set_stance("default")


def scaled(x, by=2.0):
    return torch.relu(x) * by


def broken(x):
    y = torch.relu(x) + 1
    if y.sum().item() > 1e9:
        return y
    return torch.sin(y) * 2


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def x4():
    return torch.randn(3, 4)


def kinds(kind):
    return [event.text for event in ccompile.events() if event.kind == kind]


# ---------------------------------------------------------------------- arguments

ARGUMENTS = [
    {"backend": None},
    {"backend": "ccompile"},
    {"name": "region"},
    {"recompile_limit": 3},
    {"isolate_recompiles": True},
    {"options": {"max_autotune": True, "triton.cudagraphs": False, "epilogue-fusion": True}},
    {"mode": "reduce-overhead", "options": {"shape_padding": True}},
    {"options": {"guard_filter_fn": lambda entries: [True for _ in entries]}},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda arguments: "-".join(arguments))
@pytest.mark.parametrize("make", [lambda: scaled, net], ids=["function", "module"])
def test_arguments_of_torch_compile(make, arguments):
    model, x = make(), x4()
    compiled = ccompile.compile(model, **arguments)
    before = ccompile.counters()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
    assert ccompile.counters["hits"] - before["hits"] == 2
    decorated = ccompile.compile(**arguments)(model)
    torch.testing.assert_close(decorated(x), model(x))


def test_another_backend_is_torchs():
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    x = x4()
    torch.testing.assert_close(ccompile.compile(scaled, backend=backend)(x), scaled(x))
    assert seen
    assert isinstance(ccompile.compile(net(), backend="eager"), torch._dynamo.OptimizedModule)
    with pytest.raises(Exception, match="ccompil"):
        ccompile.compile(scaled, backend="ccompil")(x)
    with pytest.raises(TypeError, match="takes dynamic=True, False or None"):
        ccompile.compile(scaled, backend="eager", dynamic={"x": {0: ccompile.Dim()}})
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"name": 3}, TypeError, "name must be a str"),
        ({"recompile_limit": "8"}, TypeError, "'recompile_limit' is int"),
        ({"recompile_limit": -1}, ValueError, r"must be in 0\.\.2147483647"),
        ({"recompile_limit": 2**32}, ValueError, r"argument 'recompile_limit' must be in 0\.\.2147483647 \(now 8\), not 4294967296"),
        ({"isolate_recompiles": 1}, TypeError, "isolate_recompiles must be True or False"),
        ({"shapes_spec": object()}, TypeError, "shapes_spec must be None"),
        ({"dynamic_shapes": object()}, TypeError, "dynamic_shapes must be None"),
        ({"options": {"freezingz": True}}, ValueError, "did you mean 'freezing'"),
        ({"options": {"triton.nonsense": True}}, ValueError, "unknown option"),
        ({"options": {"triton.cudagraphs": "x"}}, TypeError, "option 'triton.cudagraphs' must be True or False, not str: 'x'"),
        ({"options": {"max_autotune": 2}}, TypeError, "option 'max_autotune' must be True or False, not int: 2"),
        ({"options": {"epilogue-fusion": 5}}, TypeError, "option 'epilogue-fusion' must be True or False, not int: 5"),
    ],
)
def test_bad_arguments(arguments, error, text):
    for compiling in (lambda: ccompile.compile(scaled, **arguments), lambda: ccompile.compile(**arguments)):
        with pytest.raises(error, match=text):
            compiling()


def test_options_of_inductor():
    ccompile.reset()
    assert inductor.knobs({"max_autotune": True}) == {"autotune": True, "freezing": True}
    assert inductor.knobs({"triton.cudagraphs": True, "freezing": False}) == {"cuda_graphs": True, "freezing": False}
    assert kinds("ignored") == []
    assert inductor.knobs({"epilogue_fusion": True, "triton.unique_kernel_names": True}) == {}
    first, second = kinds("ignored")
    assert "'epilogue_fusion'" in first and "'triton.unique_kernel_names'" in second
    assert ccompile.counters["ignored"] == 2


def test_names_of_inductors_options_are_inductors_own():
    from torch._inductor import list_options

    # list_options also lists imported names and what compile_threads and its like compute
    theirs = {name for name in list_options() if name.islower() and not name.startswith("_")}
    assert len(theirs & inductor._options().keys()) > 0.9 * len(theirs)


def test_name_is_what_events_and_reports_call_it():
    ccompile.reset()
    x = x4()
    ccompile.compile(scaled, name="the region")(x)
    assert kinds("entry")[0].startswith("the region: ")
    ccompile.compile(Block())(x)
    assert kinds("entry")[1].startswith("Block: ")


# ---------------------------------------------------------------------- callables


def test_callables_in_c():
    x = x4()
    for fn, args in (
        (torch.sin, (x,)),
        (torch.Tensor.relu, (x,)),
        (x.add, (x,)),
        (torch.ops.aten.mul, (x, 2.0)),
        (torch.nn.functional.linear, (x, torch.ones(2, 4))),
        (len, ([1, 2],)),
    ):
        compiled = ccompile.compile(fn)
        for _ in range(3):
            assert str(compiled(*args)) == str(fn(*args))
    before = ccompile.counters["hits"]
    compiled = ccompile.compile(torch.sin)
    assert compiled.__wrapped__ is torch.sin and compiled.__name__ == "sin"
    compiled(x), compiled(x)
    assert ccompile.counters["hits"] == before + 1
    out = torch.empty(3, 4)
    assert compiled(x, out=out) is out


def test_a_class_compiles_the_calls_of_its_instances():
    @ccompile.compile
    class Decorated(Block):
        pass

    @ccompile.compile(fullgraph=True)
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.by

    assert isinstance(Decorated, type) and Block.__call__ is nn.Module.__call__
    a, b, x = Decorated(), Decorated(), x4()
    before = ccompile.counters["hits"]
    for module in (a, b, a, b):
        torch.testing.assert_close(module(x), module.forward(x))
    for scale in (Scale(2.0), Scale(3.0), Scale(2.0)):
        torch.testing.assert_close(scale(x), x * scale.by)
    assert ccompile.counters["hits"] >= before + 3
    assert a.state_dict().keys() == Block().state_dict().keys()
    with pytest.raises(TypeError, match="a class without a __call__ in Python"):
        ccompile.compile(int)


def test_compiled_classes_do_not_share_entries():
    """Those that inherit nn.Module's __call__ run one function."""
    x, models = x4(), []
    for i in range(24):  # each name twice
        kind = type(f"Kind{i // 2}", (nn.Module,), {"forward": lambda self, x, i=i: x + i})
        models.append(ccompile.compile(kind)())
    before = ccompile.counters["hits"]
    for _ in range(3):
        for i, model in enumerate(models):
            torch.testing.assert_close(model(x), x + i)
    assert ccompile.counters["hits"] == before + 48
    assert {"Kind0", "Kind1"} <= {found.name for found in ccompile.metrics.snapshot()}


def test_graph_module_is_recompiled():
    traced = torch.fx.symbolic_trace(Block())
    compiled, x = ccompile.compile(traced), x4()
    for module in (compiled, traced):
        torch.testing.assert_close(compiled(x), traced(x))
        for node in module.graph.nodes:
            if node.target is torch.relu:
                node.target = torch.sin
            elif node.target is torch.sin:
                node.target = torch.cos
        module.recompile()
        want = traced.forward(x)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), want)
    assert "cos" in compiled.code
    assert isinstance(copy.deepcopy(compiled), CompiledModule)


# ---------------------------------------------------------------------- install


def test_install_and_uninstall():
    ccompile.install()
    ccompile.install()
    assert torch.compile is not TORCHS
    x = x4()
    assert isinstance(torch.compile(scaled), _core.Compiled)
    assert isinstance(torch.compile(scaled, backend="inductor", mode="max-autotune"), _core.Compiled)
    assert isinstance(torch.compiler.compile(scaled), _core.Compiled)
    ccompile.uninstall()
    ccompile.uninstall()
    assert torch.compile is TORCHS
    with ccompile.installed():
        with ccompile.installed():
            compiled = torch.compile(net())
        assert torch.compile is not TORCHS
        assert isinstance(compiled, CompiledModule) and not isinstance(compiled, torch._dynamo.OptimizedModule)
    assert torch.compile is TORCHS
    torch.testing.assert_close(compiled(x), compiled._orig_mod(x))


def test_installed_puts_back_what_others_have_wrapped():
    ccompile.install()
    ours = torch.compile
    torch.compile = wrapper = lambda model, **arguments: ours(model, **arguments)
    try:
        with ccompile.installed():
            assert isinstance(torch.compile(net()), CompiledModule)
        assert torch.compile is wrapper and torch.compiler.set_stance is not TORCHS_STANCE
        assert isinstance(torch.compile(net()), CompiledModule)
    finally:
        ccompile.uninstall()
    assert torch.compile is TORCHS and torch.compiler.set_stance is TORCHS_STANCE


def test_keys_of_distributed_checkpoints():
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compiled = ccompile.compile(model)
    compiled(x4()).sum().backward()
    optimizer.step()
    states, moments = get_state_dict(compiled, optimizer)
    assert list(states) == list(model.state_dict()) == list(moments["state"])


def test_installed_leaves_other_backends_to_torch():
    with ccompile.installed():
        assert isinstance(torch.compile(net(), backend="eager"), torch._dynamo.OptimizedModule)
        torch.compiler.set_default_backend("eager")
        try:
            assert isinstance(torch.compile(net()), torch._dynamo.OptimizedModule)
        finally:
            torch.compiler.set_default_backend("inductor")
        assert isinstance(torch.compile(net()), CompiledModule)


@pytest.mark.parametrize(
    "arguments",
    [{"mode": "lite"}, {"fullgraph": None}, {"fullgraph": 0}, {"disable": None}, {"isolate_recompiles": None}, {"isolate_recompiles": 1}],
    ids=str,
)
def test_installed_takes_what_torch_takes(arguments):
    x = x4()
    ccompile.reset()
    with ccompile.installed():
        compiled = torch.compile(broken, **arguments)
        decorated = torch.compile(**arguments)(broken)
    for call in (compiled, decorated):
        torch.testing.assert_close(call(x), broken(x))
        assert isinstance(call, _core.Compiled)
    assert ["mode 'lite'" in text for text in kinds("ignored")] == ([True, True] if "mode" in arguments else [])


def test_installed_reads_flags_as_torch_does():
    with ccompile.installed():
        assert torch.compile(scaled, disable=1) is scaled
        with pytest.raises(ccompile.Unsupported):
            torch.compile(broken, fullgraph=1)(x4())


def test_installed_raises_what_is_dynamos_too():
    import torch._dynamo.exc

    x = x4()
    with ccompile.installed():
        compiled = torch.compile(broken, fullgraph=True)
        for _ in range(2):
            with pytest.raises(torch._dynamo.exc.Unsupported, match="fullgraph=True, but Tensor.item") as raised:
                compiled(x)
    error = raised.value
    assert isinstance(error, ccompile.Unsupported) and isinstance(error, RuntimeError)
    assert error.msg == str(error) and not error.skip_frame and error.__cause__ is None
    assert type(error).__qualname__ == "Unsupported" and type(error).__module__ == "ccompile"
    assert type(pickle.loads(pickle.dumps(error))) is ccompile.Unsupported
    with pytest.raises(ccompile.Unsupported) as raised:
        compiled(x)
    assert type(raised.value) is ccompile.Unsupported


def test_module_compile_in_place():
    """nn.Module.compile() keeps torch.compile's result in _compiled_call_impl: per block in accelerate's
    compile_regions, diffusers' compile_repeated_blocks and timm."""
    model, x = Stack(), x4()
    want, keys = model(x), list(model.state_dict())
    with ccompile.installed():
        for block in model.blocks:
            block.compile(mode="reduce-overhead")
    before = ccompile.counters()
    for _ in range(3):
        torch.testing.assert_close(model(x), want)
    assert ccompile.counters["hits"] - before["hits"] == 6
    assert list(model.state_dict()) == keys
    model.train()
    model(x).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    eager = Stack()
    eager.load_state_dict(model.state_dict())
    eager(x).sum().backward()
    torch.testing.assert_close(grads, [p.grad for p in eager.parameters()])
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), want)
    assert copy.deepcopy(model).blocks[0]._compiled_call_impl is None  # as with torch's
    assert pickle.loads(pickle.dumps(model)).blocks[0]._compiled_call_impl is None
    outer = ccompile.compile(model)  # a compiled model of compiled blocks is one graph
    for _ in range(3):
        torch.testing.assert_close(outer(x), want)
    assert ccompile.explain(model)(x).graph_count == 1


class LightningModule(nn.Module):
    """Lightning's class, as far as ours look at it."""

    __module__ = "lightning.pytorch.core.module"

    def training_step(self, batch, index):
        raise NotImplementedError


class Lit(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, index):
        return self.net(batch).sum() + index


def test_steps_that_lightning_calls():
    """Its Trainer calls these instead of the module."""
    model, x = Lit(), x4()
    compiled = ccompile.compile(model)
    assert type(compiled).training_step is Lit.training_step
    before = ccompile.counters()
    for index in (0, 0, 0):
        torch.testing.assert_close(compiled.training_step(x, index), model.training_step(x, index))
    assert ccompile.counters["hits"] - before["hits"] == 2
    assert compiled.training_step.__name__ == "training_step"
    assert copy.deepcopy(compiled).training_step(x, 1).requires_grad
    model.training_step = lambda batch, index: index
    assert compiled.training_step(x, 5) == 5
    assert not hasattr(ccompile.compile(Block()), "training_step")


def test_orig_mod_is_fixed():
    model = Block()
    compiled = ccompile.compile(model)
    with pytest.raises(AttributeError, match="_orig_mod is fixed"):
        compiled._orig_mod = Block()
    compiled.linear = nn.Linear(4, 4)
    assert compiled._orig_mod is model and model.linear is compiled.linear
    assert [name for name, _ in compiled.named_children()] == ["linear"]


def test_a_compiled_function_that_calls_torch_compile():
    def f(x):
        return torch.compile(scaled)(x) + 1

    x = x4()
    with ccompile.installed():
        compiled = torch.compile(f)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), scaled(x) + 1)


def test_reset_through_torch():
    compiled, x = ccompile.compile(scaled), x4()
    compiled(x), compiled(x)
    with ccompile.installed():
        torch.compiler.reset()
    assert ccompile.counters["calls"] == 0
    compiled(x)
    assert ccompile.counters["recording"] == 1


PROGRAM = """
import torch, sys
import ccompile
@torch.compile
def f(x):
    return torch.sin(x) + 1
x = torch.ones(4)
for _ in range(3): f(x)
print(ccompile.counters["hits"], "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_installed_by_the_environment(value):
    code = PROGRAM if value == "1" else "import torch, ccompile; print(torch.compile.__module__)"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"CCOMPILE_INSTALL": value, "PYTHONPATH": str(pathlib.Path(ccompile.__file__).parent.parent)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout.split() == (["2", "False"] if value == "1" else ["torch"])


# ---------------------------------------------------------------------- stances


def setters():
    yield ccompile.set_stance
    ccompile.install()
    yield torch.compiler.set_stance
    ccompile.uninstall()


def calls(compiled, x):
    before = ccompile.counters()
    compiled(x)
    return {name: n - before[name] for name, n in ccompile.counters().items() if n != before[name]}


def test_force_eager():
    x = x4()
    for set_stance in setters():
        compiled = ccompile.compile(scaled)
        compiled(x)
        with set_stance("force_eager"):
            torch.testing.assert_close(compiled(x), scaled(x))
            assert calls(compiled, x) == {"calls": 1}
            assert calls(ccompile.compile(broken), x) == {"calls": 1}
        assert calls(compiled, x)["hits"] == 1

        @set_stance("force_eager")
        def outside(compiled=compiled):
            """Doc."""
            return calls(compiled, x)

        assert calls(compiled, x)["hits"] == 1  # a decorator sets it for its calls only
        assert outside() == {"calls": 1} and outside.__doc__ == "Doc."
        assert calls(compiled, x)["hits"] == 1
        set_stance("force_eager")
        assert calls(compiled, x) == {"calls": 1}
        set_stance()
        assert calls(compiled, x)["hits"] == 1


def test_eager_on_recompile():
    for fn in (scaled, broken):
        compiled, x, y = ccompile.compile(fn, options={"eager_if_slower": False}), x4(), torch.randn(5, 6, 7)
        compiled(x)
        with ccompile.set_stance("eager_on_recompile"):
            assert calls(compiled, x)["hits"] == 1
            torch.testing.assert_close(compiled(y), fn(y))
            assert calls(compiled, y).keys() <= {"calls", "hits", "misses", "eager", "guard_failure"}
            assert calls(ccompile.compile(fn), x) == {"calls": 1, "misses": 1}
        assert calls(compiled, y)["recompile"] == 1


def test_eager_on_recompile_behind_a_break():
    def f(x):
        if x.sum().item() > 0:
            return torch.relu(x) + 1
        return torch.sin(x) + 2

    compiled, x = ccompile.compile(f, options={"eager_if_slower": False}), torch.ones(4)
    compiled(x)
    with ccompile.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(-x), f(-x))
        assert "recording" not in calls(compiled, -x)
    assert calls(compiled, -x)["recording"] == 1


def test_fail_on_recompile():
    compiled, x = ccompile.compile(scaled), x4()
    with (
        ccompile.set_stance("fail_on_recompile"),
        pytest.raises(RuntimeError, match="scaled would have to be compiled.*Nothing"),
    ):
        compiled(x)
    compiled(x)
    with ccompile.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(x), scaled(x))
        with pytest.raises(RuntimeError, match=r"stance is 'fail_on_recompile'\. What differs: .*f64"):
            compiled(x.double())
    torch.testing.assert_close(compiled(x.double()), scaled(x.double()))


def test_fail_on_recompile_behind_a_break_leaves_through_handlers():
    log = []

    def f(x):
        try:
            with torch.autocast("cpu", enabled=False):
                if x.sum().item() > 0:
                    return torch.relu(x) + 1
                return torch.sin(x) + 2
        finally:
            log.append("left")

    compiled, x = ccompile.compile(f, options={"eager_if_slower": False}), torch.ones(4)
    compiled(x)
    with ccompile.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(x), f(x))
        with pytest.raises(RuntimeError, match="behind a graph break, but the stance is 'fail_on_recompile'"):
            compiled(-x)
    assert log == ["left"] * 4 and not torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(compiled(-x), f(-x))


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_eager_then_compile(stance):
    compiled, x = ccompile.compile(scaled), x4()
    with ccompile.set_stance(stance):
        assert calls(compiled, x) == {"calls": 1}
        assert calls(compiled, x)["recording"] == 1
        assert calls(compiled, x)["hits"] == 1


def test_stances_nest_and_survive_exceptions():
    compiled, x = ccompile.compile(scaled), x4()
    compiled(x)
    with pytest.raises(KeyError), ccompile.set_stance("force_eager"):
        with ccompile.set_stance("default"):
            assert calls(compiled, x)["hits"] == 1
        assert calls(compiled, x) == {"calls": 1}
        raise KeyError
    assert calls(compiled, x)["hits"] == 1


@pytest.mark.parametrize("module", [ccompile, torch.compiler])
def test_a_stance_serves_any_number_of_times(module):
    import torch._dynamo.eval_frame as theirs

    now = _core.stance if module is ccompile else lambda: theirs._stance.stance
    stance = module.set_stance("force_eager")
    f, g = stance(now), stance(now)
    assert (f(), g(), f(), now()) == ("force_eager", "force_eager", "force_eager", "default")
    for _ in range(2):
        with stance:
            assert now() == "force_eager"
        assert now() == "default"

    @module.set_stance("force_eager")
    def generates():
        yield now()
        yield now()

    made = generates()
    assert (next(made), now(), next(made), now()) == ("force_eager", "default", "force_eager", "default")


def test_a_decorated_function_inside_compiled_code():
    inner = ccompile.compile(scaled)
    eager = ccompile.set_stance("force_eager")(inner)
    compiled, x = ccompile.compile(lambda x: eager(x) + 1), x4()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), scaled(x) + 1)
        assert _core.stance() == "default"


def test_set_stance_inside_compiled_code_is_a_break():
    inner = ccompile.compile(scaled)

    def f(x):
        with ccompile.set_stance("force_eager"):
            return inner(x) + 1

    compiled, x = ccompile.compile(f), x4()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), scaled(x) + 1)
    assert calls(inner, x).get("hits", 0) + calls(inner, x).get("hits", 0) >= 1


def test_bad_stances():
    with pytest.raises(ValueError, match="did you mean 'force_eager'"):
        ccompile.set_stance("force_eagr")
    with pytest.raises(ValueError, match="for stance 'default' only"):
        ccompile.set_stance("force_eager", force_backend="eager")
    with pytest.raises(ValueError, match="unknown force_backend"):
        ccompile.set_stance(force_backend="nonsense")
    compiled, x = ccompile.compile(scaled), x4()
    with ccompile.set_stance(force_backend="eager"):
        assert calls(compiled, x) == {"calls": 1}
    ccompile.reset()
    with warnings.catch_warnings(), ccompile.set_stance("default", skip_guard_eval_unsafe=True):
        assert "guards are always checked" in kinds("ignored")[0]


def test_force_backend_with_a_function():
    """As torch's: what is called is compiled by torch.compile with it, also what a graph break separates."""
    graphs = []

    def doubled(x):
        return torch.relu(x) * 2

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def outer(x):
        y = inner(x)
        torch._dynamo.graph_break()
        return inner(y) + 1

    x = x4()
    for set_stance in setters():
        torch._dynamo.reset()
        inner = ccompile.compile(doubled)
        compiled, module = ccompile.compile(outer), ccompile.compile(net())
        with set_stance(force_backend=backend):
            torch.testing.assert_close(compiled(x), doubled(doubled(x)) + 1)
            assert len(graphs) >= 2
            torch.testing.assert_close(module(torch.ones(2, 4)), module._orig_mod(torch.ones(2, 4)))
            graphs.clear()
            for _ in range(3):
                assert "recording" not in calls(compiled, x)
            assert graphs == []
            with set_stance("force_eager"):
                torch.testing.assert_close(inner(x + 1), doubled(x + 1))
            inner(torch.ones(2, 3, dtype=torch.float64))
            assert len(graphs) == 1
        assert calls(compiled, x).get("recording", 0) >= 1

        @set_stance(force_backend="aot_eager")
        def within(compiled=inner):
            return calls(compiled, x)

        assert within() == {"calls": 1}
        graphs.clear()
    assert ccompile._core.stance() == "default"


# ---------------------------------------------------------------------- torch's back-end, names and settings


def test_backend_of_torch_compile():
    """The entry point torch_dynamo_backends."""
    model, x = net(), x4()
    ccompile.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(model, backend="ccompile", mode="reduce-overhead")
        for n in (3, 3, 5, 6, 7):
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert sum("ccompile.install() or" in str(w.message) for w in caught) == 1
    assert ccompile.counters["hits"] >= 1
    assert "ccompile" in torch.compiler.list_backends()
    compiled(x).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(grads, [p.grad for p in model.parameters()])
    torch._dynamo.reset()


def test_twins_of_torch_compilers_functions():
    x = x4()

    @ccompile.allow_in_graph
    def allowed(x):
        return x * 2

    @ccompile.assume_constant_result
    def constant():
        return 3

    @ccompile.nested_compile_region
    def region(x):
        return torch.relu(x)

    @ccompile.nested_compile_region()
    def region_too(x):
        return torch.sin(x)

    @ccompile.substitute_in_graph(sorted, skip_signature_check=True)
    def ordered(values):
        return sorted(values)

    def f(x):
        ccompile.cudagraph_mark_step_begin()
        return region(allowed(x)) + region_too(x) * constant() + ordered([3, 1])[0]

    told = ccompile.explain(f)(x)
    assert (told.graph_count, told.graph_break_count) == (1, 0), told
    assert "Graph Count: 1\nGraph Break Count: 0\nOp Count: " in str(told)
    compiled = ccompile.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))
    ccompile.maybe_mark_dynamic(x, 0)
    assert {"ccompile", "inductor"} <= set(ccompile.list_backends())
    for twin in (ccompile.allow_in_graph, ccompile.assume_constant_result, ccompile.nested_compile_region):
        with pytest.raises(TypeError, match="takes a callable, not int"):
            twin(3)


def test_explaining_a_class_leaves_it_alone():
    with pytest.raises(TypeError, match="takes an instance or a method, not a class"):
        ccompile.explain(Block)
    assert "__call__" not in vars(Block)


def test_optimize_is_dynamos():
    x = x4()

    @ccompile.optimize("inductor")
    def f(x):
        return torch.relu(x) + 1

    torch.testing.assert_close(f(x), torch.relu(x) + 1)
    assert isinstance(f, _core.Compiled)
    with pytest.raises(ccompile.Unsupported):
        ccompile.optimize(nopython=True)(broken)(x)
    assert ccompile.optimize(disable=True)(scaled) is scaled


def test_settings_of_torch_compile():
    ccompile.reset()
    assert ccompile.config.verbose is False
    ccompile.config.verbose = True
    ccompile.config.trace.log_file = "./inductor_trace.log"
    assert ccompile.config.verbose is True and ccompile.config.trace.log_file == "./inductor_trace.log"
    verbose, trace = kinds("ignored")
    assert verbose.startswith("config.verbose = True") and trace.startswith("config.trace.log_file = './ind")
    with ccompile.config.patch(verbose=False, max_autotune=True, cache_size_limit=3, verify=True):
        assert (ccompile.config.verbose, ccompile.config.freezing, ccompile.config.recompile_limit) == (False, True, 3)
        assert ccompile.config.max_autotune is True and ccompile.config.verify
    assert (ccompile.config.freezing, ccompile.config.autotune, ccompile.config.recompile_limit) == (False, False, 8)
    assert ccompile.config.verbose is True
    ccompile.config.verbose = False
    with pytest.raises(AttributeError, match="unknown knob 'verbos'"):
        _ = ccompile.config.verbos
    with pytest.raises(TypeError, match="'recompile_limit' is int"):
        ccompile.config.cache_size_limit = "many"
    with pytest.raises(ValueError, match="unknown knob"), ccompile.config.patch(verbos=True):
        pass


# ---------------------------------------------------------------------- profilers and tracers


def profiled_by_cprofile(run):
    import cProfile

    with cProfile.Profile():
        run()


def profiled_by_setprofile(run):
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        run()
    finally:
        sys.setprofile(None)
    assert seen.count("call") + seen.count("c_call") > 0


def profiled_by_torch(run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
        run()
    assert len(profiler.events()) > 0


@pytest.mark.parametrize("profiled", [profiled_by_cprofile, profiled_by_setprofile, profiled_by_torch])
@pytest.mark.parametrize("grad", [False, True])
def test_profilers_see_compiled_code(profiled, grad):
    model, x = Stack(), x4()
    compiled = ccompile.compile(model)
    want, got = model(x), []
    with torch.set_grad_enabled(grad):
        compiled(x), compiled(x)
        before = ccompile.counters()
        profiled(lambda: got.extend(compiled(x) for _ in range(10)))
    assert ccompile.counters["hits"] - before["hits"] == 10
    for y in got:
        torch.testing.assert_close(y, want)
        assert y.requires_grad == grad


@pytest.mark.filterwarnings("ignore:ccompile. .* runs eagerly")
@pytest.mark.parametrize("profiled", [profiled_by_cprofile, profiled_by_setprofile, profiled_by_torch])
def test_what_profilers_cannot_see_compiled_runs_eagerly_and_says_so(profiled):
    x, got = x4(), []
    for fn, warm in ((scaled, 0), (broken, 3)):
        compiled = ccompile.compile(fn)
        for _ in range(warm):
            compiled(x)
        before = ccompile.counters()
        profiled(lambda compiled=compiled: got.append(compiled(x)))
        assert ccompile.counters["eager"] - before["eager"] == 1
        assert ccompile.counters["recording"] == before["recording"]
        assert "a profiler is active" in kinds("eager")[-1]
        torch.testing.assert_close(got[-1], fn(x))
        compiled(x), compiled(x)
        assert ccompile.counters["hits"] > before["hits"]


TRACED = """
import sys, warnings, torch, ccompile
def f(x):
    return torch.relu(x) + 1
compiled, x, lines = ccompile.compile(f), torch.ones(4), []
compiled(x), compiled(x)
def trace(frame, event, arg):
    if frame.f_code is f.__code__: lines.append(event)
    return trace
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    sys.settrace(trace)
    compiled(x); compiled(x)
    sys.settrace(None)
print(lines.count("line"), len(caught), ccompile.counters["eager"], ccompile.counters["hits"])
print(caught[0].message)
compiled(x)
print(ccompile.counters["hits"])
"""


def test_tracers_see_every_line_and_one_warning_says_so():
    out = subprocess.run(
        [sys.executable, "-c", TRACED],
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(ccompile.__file__).parent.parent)},
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert out[0].split() == ["2", "1", "2", "1"] and out[2] == "2"
    assert "f runs eagerly: a tracer, debugger or coverage tool is active" in out[1]


WARNED = """
import sys, warnings
import torch, ccompile
def f(x):
    return x + 1
warnings.simplefilter("error")
x, compiled = torch.ones(1), ccompile.compile(f)
if sys.argv[1] == "backend":
    compiled = torch.compile(f, backend="ccompile")
if sys.argv[1] == "tracer":
    sys.settrace(lambda *a: None)
print(compiled(x).item(), compiled(x).item())
"""


@pytest.mark.parametrize(("what", "says"), [("tracer", "f runs eagerly: a tracer"), ("backend", "keeps Dynamo's tracing")])
def test_warnings_that_the_program_makes_errors_are_logged(what, says):
    done = subprocess.run(
        [sys.executable, "-c", WARNED, what],
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(ccompile.__file__).parent.parent)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "2.0 2.0\n", done.stderr
    assert says in done.stderr and "Error" not in done.stderr
