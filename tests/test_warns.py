"""warnings.warn() in compiled code: a break only where the warning is shown; shown, raised and registered as in eager."""

import importlib.util
import sys
import warnings

import ccompile
import pytest
import torch
import torch.nn.functional as F
from ccompile.api import compiled_of

X = torch.linspace(-1, 1, 9).view(3, 3)


def softmax(x):
    return F.softmax(x) + 1


def log_softmax(x):
    return F.log_softmax(x)


def grid_sample(x):
    return F.grid_sample(x[None, None], torch.zeros(1, 3, 3, 2))


def affine_grid(x):
    return F.affine_grid(torch.eye(2, 3)[None], [1, 1, 3, 3]) * 2 + x.sum()


def mse(x):
    return F.mse_loss(x, x[0])


def reduced(x):
    return F.l1_loss(x, x * 2, reduce=True)


def own(x):
    warnings.warn("own")
    return x + 1


def deprecated(x):
    warnings.warn("old", category=DeprecationWarning, stacklevel=1)
    return x + 1


def helper():
    warnings.warn("of the caller", FutureWarning, 2)


def calls_helper(x):
    helper()
    return x * 2


def looped(x):
    for i in range(3):
        x = F.softmax(x)
        helper()
    return x


def two_texts(x):
    warnings.warn(f"rank {x.ndim}")
    warnings.warn("second")
    return x - 1


ALL = [softmax, log_softmax, grid_sample, affine_grid, mse, reduced, own, deprecated, calls_helper, looped, two_texts]

ACTIONS = ["default", "ignore", "always", "module", "once"]


def heard(f, calls, *filters):
    """What each call shows, under these filters and with an empty registry."""
    registry = f.__globals__.get("__warningregistry__")
    if registry is not None:
        registry.clear()
    out = []
    with warnings.catch_warnings(record=True) as log:
        warnings.resetwarnings()
        for args, kwargs in filters:
            warnings.filterwarnings(*args, **kwargs)
        for _ in range(calls):
            log.clear()
            y = f(X)
            out.append((y, [(str(w.message), w.category, w.filename, w.lineno) for w in log]))
    return out


def same(got, want):
    for (y, shown), (z, wanted) in zip(got, want, strict=True):
        torch.testing.assert_close(y, z)
        assert shown == wanted


def compiled(f):
    """Compiled, and with its globals: heard() clears their registry."""
    g = ccompile.compile(f)

    def call(x):
        return g(x)

    return g, call


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_shown_as_in_eager(f, action):
    filters = [((action,), {})]
    want = heard(f, 4, *filters)
    g, call = compiled(f)
    for _ in range(2):
        same(heard(call, 4, *filters), want)


@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_no_break_when_silent(f):
    g, call = compiled(f)
    for action, recordings in (("ignore", 1), ("default", 5)):  # the latter: at most, as each warning may be a break at first
        ccompile.reset()
        before = compiled_of(g).report()["recordings"]
        heard(call, 6, ((action,), {}))
        report = compiled_of(g).report()
        assert report["breaks_seen"] == [] and report["recordings"] - before <= recordings


def test_a_break_says_what_is_shown():
    g, call = compiled(own)
    heard(call, 3, (("always",), {}))
    (found,) = compiled_of(g).report()["breaks_seen"]
    assert found["reason"] == "warns" and "own" in found["text"]


def test_filters_that_change():
    """By category, text, module and line, from one call to the next."""
    g, call = compiled(own)
    line = own.__code__.co_firstlineno + 1
    lists = [
        [],
        [(("ignore",), {"message": "ow"})],
        [(("ignore",), {"message": "other"})],
        [(("ignore",), {"category": DeprecationWarning})],
        [(("ignore",), {"category": UserWarning})],
        [(("ignore",), {"module": own.__module__})],
        [(("ignore",), {"module": "torch"})],
        [(("ignore",), {"lineno": line})],
        [(("ignore",), {"lineno": line + 1})],
        [(("ignore",), {}), (("always",), {"message": "own"})],
        [(("always",), {"message": "own"}), (("ignore",), {})],
    ]
    for filters in lists + lists[::-1]:
        same(heard(call, 2, *filters), heard(own, 2, *filters))


def test_an_assigned_list_of_filters(monkeypatch):
    g, call = compiled(own)
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("ignore")
        for _ in range(2):
            call(X)
        warnings.filters = [("always", None, Warning, None, 0)]  # no version counts this
        for _ in range(3):
            call(X)
    assert len(log) == 3


def test_errors_are_raised():
    g, call = compiled(softmax)
    heard(call, 3, (("default",), {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="Implicit dimension"):
                call(X)


def test_a_handler_catches_the_error():
    def f(x):
        try:
            return F.softmax(x)
        except UserWarning:
            return x * 3

    g, call = compiled(f)
    for action in ("default", "error", "ignore", "error", "default"):
        filters = [((action,), {})]
        same(heard(call, 2, *filters), heard(f, 2, *filters))


def test_recorded_inside():
    def f(x):
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            y = F.softmax(x)
            return y, len(log)

    g = ccompile.compile(f)
    for _ in range(4):
        assert g(X)[1] == 1


def test_modules_of_others(tmp_path):
    """The registry is that of the module that the warning is attributed to."""
    (tmp_path / "other_warner.py").write_text("import warnings\ndef helper():\n    warnings.warn('inside')\n"
                                              "def outside():\n    warnings.warn('outside', stacklevel=2)\n")
    spec = importlib.util.spec_from_file_location("other_warner", tmp_path / "other_warner.py")
    module = sys.modules["other_warner"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def f(x):
        module.helper()
        module.outside()
        return x + 2

    def calls(f):
        module.__dict__.pop("__warningregistry__", None)
        return heard(f, 2, (("default",), {})) + heard(f, 2, (("always",), {"module": "other_warner"}))

    g, call = compiled(f)
    same(calls(call), calls(f))
    same(calls(call), calls(f))


def test_outside_of_the_compiled_function():
    """Attributed to the caller, which is not part of the compiled function: a break."""

    def f(x):
        warnings.warn("far", stacklevel=2)
        return x + 1

    g = ccompile.compile(f)

    def caller(x):
        return g(x)

    def eager(x):
        return f(x)

    got, want = heard(caller, 3, (("default",), {})), heard(eager, 3, (("default",), {}))
    assert [len(shown) for _, shown in got] == [len(shown) for _, shown in want] == [1, 0, 0]


def test_no_reference_cycle_keeps_globals():
    import gc
    import types
    import weakref

    module = types.ModuleType("short_lived")
    exec(compile("import warnings\ndef f(x):\n    warnings.warn('x')\n    return x + 1\n", __file__, "exec"), module.__dict__)

    class Mark:
        pass

    module.mark = Mark()
    gone = weakref.ref(module.mark)
    g = ccompile.compile(module.f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            g(X)
    del module, g
    gc.collect()
    assert gone() is None
