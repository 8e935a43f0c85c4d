"""Functions of torch.compiler and torch._dynamo inside compiled code, and their twins."""

import hashlib
import io
import os
import pathlib
import subprocess
import sys

import ccompile
import pytest
import torch
from ccompile import artifacts
from torch import nn


@pytest.fixture(autouse=True)
def _clean():
    yield
    ccompile.uninstall()
    ccompile.set_stance("default")


def x4():
    return torch.randn(3, 4)


def broken(x):
    y = torch.relu(x) + 1
    if y.sum().item() > 1e9:
        return y
    return torch.sin(y) * 2


# ---------------------------------------------------------------------- inside compiled code


def asks_compiling(x):
    return x + 1, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), torch.compiler.is_exporting()


def asks_dynamo(x):
    return x + 1, torch._dynamo.is_compiling(), torch._dynamo.external_utils.is_compiling()


@torch.compiler.disable
def disabled(x):
    return x * 2


@torch._dynamo.disable(recursive=False)
def disabled_here(x):
    return torch.relu(x) * 2


@torch._dynamo.allow_in_graph
def allowed(x):
    return x * 3


@torch._dynamo.assume_constant_result
def constant():
    return 5


@torch.compiler.nested_compile_region
def region(x):
    return torch.sin(x)


def marks(x):
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    torch._dynamo.mark_static(x, 1)
    return x * 2


def patches(x):
    with torch._dynamo.config.patch(suppress_errors=True):
        return x * 2


def resets(x):
    y = x * 2
    torch._dynamo.reset()
    return y + 1


def stances(x):
    with torch.compiler.set_stance("force_eager"):
        return x * 2


def errors(x):
    with torch._dynamo.error_on_graph_break(False):
        return x * 2


INSIDE = [
    lambda x: disabled(x) + 1, lambda x: disabled_here(x) + 1, lambda x: allowed(x) + constant(), marks, patches, resets, stances,
    errors, lambda x: region(x) + 1, lambda x: torch._dynamo.graph_break() or x + 1,
    lambda x: torch.compiler.cudagraph_mark_step_begin() or x + 1,
]  # fmt: skip


@pytest.mark.parametrize("fn", INSIDE, ids=[getattr(fn, "__name__", "lambda") + str(i) for i, fn in enumerate(INSIDE)])
@pytest.mark.parametrize("installed", [False, True])
def test_torchs_functions_inside_compiled_code(fn, installed):
    x = x4()
    want = fn(x)
    if installed:
        ccompile.install()
    compiled = torch.compile(fn) if installed else ccompile.compile(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), want)
    torch._dynamo.reset()


@pytest.mark.parametrize(("fn", "answers"), [(asks_compiling, [True, True, False]), (asks_dynamo, [True, True])])
def test_compiled_code_is_compiling(fn, answers):
    compiled, x = ccompile.compile(fn), x4()
    for _ in range(3):
        assert list(compiled(x)[1:]) == answers
    assert not any(fn(x)[1:])


def test_export_gives_the_original_or_says_no():
    model, x = nn.Linear(4, 4), x4()
    compiled = ccompile.compile(model)
    exported = torch.export.export(compiled._orig_mod, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))
    with ccompile.installed():
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


# ---------------------------------------------------------------------- error_on_graph_break


def test_error_on_graph_break():
    x = x4()
    with ccompile.error_on_graph_break(True), pytest.raises(ccompile.Unsupported, match=r"error_on_graph_break\(True\), but"):
        ccompile.compile(broken, isolate_recompiles=True)(x)
    compiled = ccompile.compile(broken)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), broken(x))
    with ccompile.error_on_graph_break(True):  # what has been recorded before is not affected
        torch.testing.assert_close(compiled(x), broken(x))
    assert ccompile._core.error_on_graph_break.get() is False


def test_error_on_graph_break_inside():
    @ccompile.error_on_graph_break(True)
    def strict(x):
        """Doc."""
        return broken(x)

    def lenient(x):
        with ccompile.error_on_graph_break(False):
            return broken(x)

    @ccompile.error_on_graph_break(True)
    def outer(x, inner):
        return inner(x) + 1

    def before(x):
        x = broken(x)
        with ccompile.error_on_graph_break(True):
            x = x + 1
        return broken(x)

    x = x4()
    assert strict.__doc__ == "Doc."
    torch.testing.assert_close(strict(x), broken(x))
    for fn, args in ((strict, (x,)), (outer, (x, broken))):
        for _ in range(2):
            with pytest.raises(ccompile.Unsupported, match="Tensor.item"):
                ccompile.compile(fn)(*args)
    for fn, args in ((lenient, (x,)), (outer, (x, lenient)), (before, (x,))):
        compiled = ccompile.compile(fn, options={"eager_if_slower": False})
        before_calls = ccompile.counters["eager"]
        for _ in range(3):
            torch.testing.assert_close(compiled(*args), fn(*args))
        assert ccompile.counters["eager"] == before_calls
        assert ccompile._core.error_on_graph_break.get() is False
    with pytest.raises(ccompile.Unsupported, match="fullgraph=True, but"):
        ccompile.compile(lenient, fullgraph=True)(x)


@pytest.mark.parametrize("value", [None, 1, "yes", broken])
def test_error_on_graph_break_takes_a_bool(value):
    with pytest.raises(TypeError, match="error_on_graph_break takes True or False, not"):
        ccompile.error_on_graph_break(value)


# ---------------------------------------------------------------------- install


def test_installed_twins():
    theirs = torch._dynamo.reset, torch.compiler.reset, torch._dynamo.error_on_graph_break, torch.compiler.save_cache_artifacts
    ccompile.install()
    assert torch._dynamo.error_on_graph_break is ccompile.error_on_graph_break
    assert torch.compiler.save_cache_artifacts is ccompile.save_cache_artifacts
    compiled, x = torch.compile(broken), x4()
    for reset in (torch._dynamo.reset, torch.compiler.reset):
        compiled(x)
        assert ccompile.counters["calls"] > 0
        reset()
        assert ccompile.counters["calls"] == 0
    ccompile.uninstall()
    assert theirs == (torch._dynamo.reset, torch.compiler.reset, torch._dynamo.error_on_graph_break,
                      torch.compiler.save_cache_artifacts)  # fmt: skip


def test_wrappers_of_other_libraries(monkeypatch):
    noted, theirs = [], torch.compile

    def wrapper(inner):
        return lambda *args, **kwargs: noted.append(kwargs) or inner(*args, **kwargs)

    monkeypatch.setattr(torch, "compile", wrapper(theirs))  # one that was there before
    before = torch.compile
    with ccompile.installed():
        torch.compile(broken)
        torch.compile = wrapper(torch.compile)  # and one that is put around ours
        compiled = torch.compile(broken, mode="default")
        torch.compile(broken)
        assert noted == [{"mode": "default"}, {}] and isinstance(compiled, ccompile._core.Compiled)
    assert torch.compile is before


def test_limit_of_dynamos_config():
    with ccompile.installed(), torch._dynamo.config.patch(recompile_limit=2):
        compiled = torch.compile(lambda x, n: x * n, dynamic=False)
    with pytest.warns(RuntimeWarning, match=r"has reached recompile_limit \(2\)"):
        for n in range(2, 12):
            torch.testing.assert_close(compiled(torch.ones(2), n), torch.full((2,), float(n)))


def test_what_libraries_ask():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = ccompile.compile(model)
    assert not isinstance(compiled, torch._dynamo.OptimizedModule)
    assert not isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule)
    assert hasattr(compiled, "_orig_mod") and compiled._orig_mod is model and not hasattr(model, "_orig_mod")
    assert compiled._compiled_call_impl is None
    compiled._orig_mod = model  # accelerate, after it has taken it
    with pytest.raises(AttributeError, match="_orig_mod is fixed"):
        compiled._orig_mod = nn.Linear(4, 4)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert isinstance(torch._dynamo.utils.counters["stats"], dict)


BAD = [
    (lambda: ccompile.compile(broken, backend=3), TypeError, "backend must be None, a str or a callable, not int"),
    (lambda: ccompile.optimize(3)(broken), TypeError, "backend must be"),
    (lambda: ccompile.compile(len, dynamic={"x": {0: None}}), TypeError, "is for functions in Python"),
    (lambda: ccompile.compile(nn.ReLU(), dynamic={"x": {0: None}}), ValueError, "the parameters are: input"),
    (lambda: ccompile.events("last"), TypeError, "after must be the serial of an event"),
    (lambda: ccompile.events(-1), ValueError, "after must be 0 or more"),
    (lambda: ccompile.bucketed(broken, 0, sizes=["a"]), ValueError, "sizes must be a sequence of ints above 0"),
    (lambda: ccompile.bucketed(broken, 0, sizes=3), ValueError, "sizes must be a sequence"),
    (lambda: ccompile.bucketed(broken, 0, width=2, value="a"), TypeError, "value must be a number"),
    (lambda: ccompile.bucketed(broken, 0, width=2, crop=3), TypeError, "crop must be True or False"),
    (lambda: ccompile.set_stance(skip_guard_eval_unsafe=3), TypeError, "skip_guard_eval_unsafe must be True or False"),
    (lambda: ccompile.set_stance([]), TypeError, r"stance must be a str, not list: \[\]"),
    (lambda: ccompile.set_stance(None), TypeError, "stance must be a str, not NoneType"),
    (lambda: ccompile.set_stance(force_backend=[]), TypeError, r"force_backend must be a str, a function or None, not list: \[\]"),
    (lambda: ccompile.mark_dynamic(torch.ones(2), None), TypeError, "dim must be an int or several, not NoneType: None"),
    (lambda: ccompile.mark_dynamic(torch.ones(2), 0.0), TypeError, "dim must be an int or several, not float: 0.0"),
    (lambda: ccompile.mark_static(torch.ones(2), 0.0), TypeError, "dim must be an int or several, not float: 0.0"),
    (lambda: ccompile.DeadlineLadder([("a", broken)], 5), TypeError, r"of \(name, model, expected ms\); one is \('a', <function"),
    (lambda: ccompile.DeadlineLadder(5, 5), TypeError, "models must be a sequence .*, not int: 5"),
    (lambda: ccompile.DeadlineLadder([], 5), ValueError, "a ladder needs a model; models must be a sequence of"),
    (lambda: setattr(ccompile.DeadlineLadder([("a", broken, 1)], 5), "deadline_ms", -1), ValueError, "deadline_ms must be a number of ms above 0, not -1"),
    (lambda: ccompile.analyze_costs(broken, 5), TypeError, "inputs must be an iterable of arguments or tuples of them, not int: 5"),
    (lambda: ccompile.metrics.serve(port=-1), ValueError, r"port must be an int in 0\.\.65535 \(0: a free one\), not -1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_dynamic_by_name_for_callable_objects():
    class Scale:
        def __call__(self, x):
            return x * 2

    with pytest.raises(ValueError, match="dynamic names 'y'; the parameters are: x"):
        ccompile.compile(Scale(), dynamic={"y": {0: ccompile.Dim()}})
    compiled = ccompile.compile(Scale(), dynamic={"x": {0: ccompile.Dim()}})
    for n in range(2, 6):
        torch.testing.assert_close(compiled(torch.ones(n, 2)), torch.full((n, 2), 2.0))
    assert len(compiled.report()["entries"]) == 1


# ---------------------------------------------------------------------- artifacts

PROGRAM = """
import sys, torch, ccompile
if sys.argv[2] == "load":
    with open(sys.argv[1], "rb") as file:
        print(*ccompile.load_cache_artifacts(file.read()))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).eval()
x = torch.randn(8, 64)
with torch.no_grad():
    torch.testing.assert_close(ccompile.compile(model)(x), model(x))
print(ccompile._core.describe().count("LLVM"))
if sys.argv[2] == "save":
    data, info = ccompile.save_cache_artifacts()
    with open(sys.argv[1], "wb") as file:
        file.write(data)
    print(*info)
"""


def run(tmp_path, cache, what):
    environment = os.environ | {"CCOMPILE_CACHE_DIR": str(tmp_path / cache), "CCOMPILE_VERIFY": "0",
                                "PYTHONPATH": str(pathlib.Path(ccompile.__file__).parent.parent)}  # fmt: skip
    out = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "artifacts"), what], env=environment,
                         capture_output=True, text=True, check=True)  # fmt: skip
    return out.stdout.split()


def files(folder):
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def test_artifacts_serve_another_machine(tmp_path):
    saved = run(tmp_path, "first", "save")[1:]
    assert int(saved[0]) > 0
    assert run(tmp_path, "second", "load")[:3] == saved
    assert files(tmp_path / "first") == files(tmp_path / "second")  # the second process has compiled nothing of its own
    data = (tmp_path / "artifacts").read_bytes()
    for damaged in (data[:-1], data[:60], data[: len(data) // 2] + b"x" + data[len(data) // 2 + 1 :], data + b"0"):
        with pytest.raises(ValueError, match="damaged"):
            ccompile.load_cache_artifacts(damaged)
    with pytest.raises(ValueError, match="another format"):
        ccompile.load_cache_artifacts(data.replace(b"artifacts 1\n", b"artifacts 9\n", 1))


def test_artifacts_of_another_machine_are_refused(monkeypatch):
    rows = [("kernel", b"key", b"image"), ("verdict", b"k", b"1")]
    monkeypatch.setattr(artifacts._core, "cached_files", lambda: rows)
    data, info = ccompile.save_cache_artifacts()
    assert info == (1, 1, 0) and artifacts._parse(data) == rows
    added = []
    monkeypatch.setattr(artifacts._core, "add_cached_file", lambda *row: bool(added.append(row)))
    with pytest.raises(RuntimeError, match="can't be added to the cache"):
        ccompile.load_cache_artifacts(data)
    added.clear()
    monkeypatch.setattr(artifacts._core, "machine", lambda: "another")
    with pytest.raises(ValueError, match="are for another CPU: .*, not another"):
        ccompile.load_cache_artifacts(data)
    assert not added


@pytest.mark.parametrize(
    "head", [b"", b"[]", b"{}", b'{"files": [], "made for": 3}', b'{"files": [["kernel", -1, 1]], "made for": {}}',
             b'{"files": [["kernel"]], "made for": {}}', b"\xff", b'{"files": [["kernel", Infinity, 1]], "made for": {}}',
             b"[" * 100_000],
)  # fmt: skip
def test_heads_that_are_none(head):
    body = len(head).to_bytes(8, "little") + head
    data = artifacts._MAGIC + artifacts._VERSION + hashlib.sha256(body).digest() + body
    with pytest.raises(ValueError, match="these artifacts are damaged: their head"):
        ccompile.load_cache_artifacts(data)


@pytest.mark.parametrize("value", [None, "text", bytearray(b"x"), io.BytesIO()])
def test_artifacts_are_bytes(value):
    with pytest.raises(TypeError, match="takes the bytes that save_cache_artifacts returned"):
        ccompile.load_cache_artifacts(value)


def test_foreign_bytes_are_no_artifacts():
    for value in (b"", b"junk", b"\x80\x04K\x01."):
        with pytest.raises(ValueError, match="not artifacts of ccompile"):
            ccompile.load_cache_artifacts(value)
    assert ccompile._core.add_cached_file("nonsense", b"k", b"v") is False
