"""The oracle of the behavioural tests: eager torch, and torch._dynamo.explain for break counts.

`same(fn, *args)` runs a function eagerly and compiled, call by call on equal copies, and compares everything a caller can
see: values, identity and aliasing of tensors, exceptions, prints, mutated arguments and state, random streams.
`breaks(fn, *args)` counts our breaks and `dynamo_breaks(fn, *args)` Dynamo's; `no_worse` compares the two.
`hits(call, n)` fails unless the calls replay compiled code, `leakless(call)` unless they leave nothing behind.

CCOMPILE_VERIFY=1 is on for the whole suite. With CCOMPILE_TEST_EAGER=1 compile() is the identity and counts are not
asserted, which checks the tests themselves without the product.
"""

import collections
import contextlib
import copy
import ctypes
import dataclasses
import gc
import hashlib
import io
import logging
import math
import os
import random
import re
import sys
import threading
import traceback
import types
import typing

import pytest

os.environ.setdefault("CCOMPILE_VERIFY", "1")
os.environ.setdefault("CCOMPILE_CACHE_DIR", "")  # each run compiles its kernels
EAGER = os.environ.get("CCOMPILE_TEST_EAGER", "0") not in ("", "0")
TESTS = os.path.dirname(os.path.abspath(__file__))
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)
sys.modules.setdefault("conftest", sys.modules[__name__])


class _Disable(contextlib.ContextDecorator):
    """What ccompile.disable is when nothing is compiled: usable bare, called, and in a with statement."""

    def __call__(self, fn=None, **_):
        return self if fn is None else fn

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def _stand_in():
    module = types.ModuleType("ccompile")

    def compile(model=None, **_):
        return model if model is not None else (lambda fn: fn)

    module.compile = compile
    module.explain = None
    module.disable = _Disable()
    module.reset = module.graph_break = lambda: None
    module.is_compiling = lambda: False
    module.counters = dict
    module.Unsupported = type("Unsupported", (RuntimeError,), {})
    return module


if EAGER:
    sys.modules["ccompile"] = _stand_in()

import ccompile  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402

if not EAGER and os.environ["CCOMPILE_VERIFY"] not in ("", "0"):
    ccompile.config.verify = True  # commands of fuzz/ import ccompile before this file

if os.environ.get("CCOMPILE_TEST_DEVICE") == "cuda":
    # What the tests make lies on the GPU. torch.set_default_device would be a torch-function mode, which tests count.
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    # cuDNN's default is TF32, where it has a kernel for it: with channels innermost it has others than without.
    torch.backends.cudnn.allow_tf32 = False

    @pytest.fixture(autouse=True)
    def _sound():
        """After an assert of a kernel, or a wrong access, all later calls of CUDA fail: the process ends where that happened. pytest-xdist
        makes a new one (make test-gpu)."""
        yield
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            sys.__stderr__.write(f"ccompile: the GPU is lost to this process: {error}\n")
            sys.__stderr__.flush()
            os._exit(3)

# "avx512", "avx2" or "base": what our own kernels may use, which CCOMPILE_CPU restricts. Torch's kernels are not restricted.
_WIDEST = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "base")
CPU = _WIDEST if _WIDEST == "base" else os.environ.get("CCOMPILE_CPU") or _WIDEST
NARROWED = CPU != _WIDEST
_MOST = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL"
ONEDNN_NARROWED = not _MOST.upper().startswith(("AVX512", "AVX10", "ALL", "DEFAULT"))  # torch's and ours
ONEDNN_WIDE = CPU == "avx512" and not ONEDNN_NARROWED  # ours runs its AVX-512 code


def by_torch(dtype):
    """The narrowest CPUs can't convert f16 to f32: kernels leave it to torch."""
    return CPU == "base" and str(dtype).split(".")[-1] == "float16"


logging.getLogger("torch.__trace").propagate = False  # dynamo's, or each failing test shows hundreds of its lines

# Tolerances allow for fused maths (other rounding, FMA, another order of sums), not for another formula.
TOLERANCE = {
    torch.float64: (1e-7, 1e-9),
    torch.float32: (1e-4, 2e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (1e-3, 1e-3),
    torch.complex64: (1e-4, 2e-5),
    torch.complex128: (1e-7, 1e-9),
}
ATOMS = (
    int,
    str,
    bytes,
    bool,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.CodeType,
    slice,
    range,
)


# ---- comparing ---------------------------------------------------------------------------------------------------
def same_type(a, b):
    """A build=True factory makes its local classes once for each side; so is a world of fuzz/worlds.py made, and the class of a module
    with a parametrization."""
    (module, name), other = name_of(a), name_of(b)
    return a is b or (module, name) == other and ("<locals>" in name or module in ("<world>", "torch.nn.utils.parametrize"))


def name_of(cls):
    """Not by its metaclass, which may say anything by now."""
    return tuple(type.__dict__[which].__get__(cls) for which in ("__module__", "__qualname__"))


def listed(o):
    """Its items; None where it says that it has some and fails to give them (a cache of transformers' Mamba)."""
    try:
        return list(o)
    except AttributeError:
        return None


def told(t, what):
    """An attribute of a tensor; of a view that may not be written, and was, its error."""
    try:
        return getattr(t, what)
    except RuntimeError as error:
        return str(error)


def shown(o):
    """Its text; where that raises (an object that holds itself), its type."""
    try:
        return repr(o)
    except Exception as error:
        return f"<{type(o).__name__}, {type(error).__name__}>"


class Walk:
    """Compares two object graphs side by side, identities included.

    A mutable object met on one side must always meet the same partner on the other, so `f(x) is x`, two names of one
    list, a result cached on self and a view of an input are all part of the comparison. `versions`, a dict that several
    walks share: how often a tensor was written since the walk before (`_version`; where it began, a kernel may say).
    `spread`: in addition to atol, relative to a tensor's largest element, as sums that cancel are rounded by their terms.
    """

    def __init__(self, rtol=None, atol=None, versions=None, spread=0):
        self.rtol, self.atol, self.versions, self.spread = rtol, atol, versions, spread
        self.partner, self.owner, self.stores, self.alive = {}, {}, {}, []

    def fail(self, path, text):
        raise AssertionError(f"{path}: {text}")

    def want(self, ok, path, what, a, b):
        if not ok:
            self.fail(path, f"{what}: eager {shown(a)}, compiled {shown(b)}")

    def paired(self, a, b, path):
        """True when this pair was walked before."""
        seen, back = self.partner.get(id(a)), self.owner.get(id(b))
        if seen is None and back is None:
            self.partner[id(a)], self.owner[id(b)] = b, a
            self.alive += (a, b)
            return False
        if seen is not b or back is not a:
            self.fail(path, f"identity differs: a {type(a).__name__} is one object on one side and two on the other")
        return True

    def go(self, a, b, path="result"):
        self.want(same_type(type(a), type(b)), path, "type", type(a), type(b))
        if isinstance(a, float):
            rtol, atol = self.rtol or 1e-4, self.atol or 2e-5
            near = math.isclose(a, b, rel_tol=rtol, abs_tol=atol) or (math.isnan(a) and math.isnan(b))
            self.want(near, path, "value", a, b)
        elif isinstance(a, complex):
            self.want(abs(a - b) <= 2e-5 + 1e-4 * abs(a), path, "value", a, b)
        elif isinstance(a, torch.Tensor):
            if not self.paired(a, b, path):
                self.tensor(a, b, path)
        elif isinstance(a, type) and a is not b and same_type(a, b):
            if not self.paired(a, b, path):
                self.mutable(
                    *(
                        {
                            k: v
                            for k, v in vars(c).items()
                            if not k.startswith("__") and not callable(v) and not hasattr(v, "__get__")
                        }
                        for c in (a, b)
                    ),
                    path,
                )
        elif isinstance(a, numpy.generic):
            self.want(a == b or (a != a and b != b), path, "value", a, b)
        elif isinstance(a, ATOMS):
            self.want(a is b or a == b, path, "value", a, b)
        elif isinstance(a, (tuple, frozenset)):
            self.items(*((a, b) if isinstance(a, tuple) else (sorted(v, key=shown) for v in (a, b))), path)
        elif not self.paired(a, b, path):
            self.mutable(a, b, path)

    def mutable(self, a, b, path):
        if isinstance(a, dict):
            self.items(list(a), list(b), path + ".keys()")
            for (key, left), right in zip(a.items(), b.values()):
                self.go(left, right, f"{path}[{shown(key)}]")
        elif isinstance(a, set):
            self.items(sorted(a, key=shown), sorted(b, key=shown), path)
        elif isinstance(a, numpy.ndarray):
            numpy.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5, err_msg=path)
            self.want(a.dtype == b.dtype, path, "dtype", a.dtype, b.dtype)
        elif isinstance(a, types.FunctionType):
            self.want(a.__code__ is b.__code__, path, "code", a, b)
            self.go(a.__defaults__, b.__defaults__, path + ".__defaults__")
            self.items(*(tuple(c.cell_contents for c in f.__closure__ or ()) for f in (a, b)), path + ".__closure__")
        elif isinstance(a, types.MethodType):
            self.go(a.__func__, b.__func__, path + ".__func__")
            self.go(a.__self__, b.__self__, path + ".__self__")
        elif isinstance(a, (list, tuple)) or hasattr(a, "__iter__") and hasattr(a, "__len__"):
            items = listed(a)
            if items is not None:
                self.items(items, list(b), path)
        attributes = getattr(a, "__dict__", None)
        if attributes is not None and not isinstance(a, types.FunctionType):
            self.mutable(attributes, b.__dict__, path + ".__dict__")
        for kind in type(a).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__"):
                    missing = object()
                    left, right = getattr(a, name, missing), getattr(b, name, missing)
                    self.want((left is missing) == (right is missing), f"{path}.{name}", "slot set", left, right)
                    if left is not missing:
                        self.go(left, right, f"{path}.{name}")

    def items(self, a, b, path):
        self.want(len(a) == len(b), path, "length", len(a), len(b))
        for i, (left, right) in enumerate(zip(a, b)):
            self.go(left, right, f"{path}[{i}]")

    def tensor(self, a, b, path):
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            for what in ("dtype", "shape", "device", "layout", "requires_grad", "is_leaf"):
                left, right = told(a, what), told(b, what)
                self.want(left == right, f"{path}.{what}", what, left, right)
            for what in ("is_inference", "is_conj", "is_neg"):
                self.want(getattr(a, what)() == getattr(b, what)(), path, what, getattr(a, what)(), getattr(b, what)())
            if a.is_meta:
                return
            if a.layout == torch.strided:
                left = [s for s, n in zip(a.stride(), a.shape) if n > 1 and a.numel()]
                right = [s for s, n in zip(b.stride(), b.shape) if n > 1 and b.numel()]
                self.want(left == right, path, "strides", a.stride(), b.stride())
                self.storage(a, b, path)
            self.values(a, b, path)
            if self.versions is not None and not a.is_inference():
                self.version(a, b, path)
            if told(a, "is_leaf") is True:
                self.go(a.grad, b.grad, path + ".grad")

    def values(self, a, b, path):
        rtol, atol = TOLERANCE.get(a.dtype, (0, 0))
        if a.dtype in TOLERANCE:
            rtol, atol = max(self.rtol or 0, rtol), max(self.atol or 0, atol)
            if self.spread and a.numel() and a.layout == torch.strided:
                largest = float(a.abs().max())
                atol += self.spread * largest if math.isfinite(largest) else 0
        if a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        with torch.inference_mode():
            try:
                torch.testing.assert_close(
                    b.as_subclass(torch.Tensor), a.as_subclass(torch.Tensor), rtol=rtol, atol=atol, equal_nan=True
                )
            except AssertionError as error:
                self.fail(path, str(error).replace("\n", " "))

    def version(self, a, b, path):
        first = self.versions.setdefault(id(a), (a._version, b._version, a))
        self.want(a._version - first[0] == b._version - first[1], path, "writes", a._version - first[0], b._version - first[1])
        self.versions[id(a)] = a._version, b._version, a

    def storage(self, a, b, path):
        left, right = a.untyped_storage(), b.untyped_storage()
        if not left.nbytes() or not right.nbytes():
            return
        keys, first = (("eager", left.data_ptr()), ("compiled", right.data_ptr())), (a, b)
        seen = [self.stores.get(key) for key in keys]
        if seen == [None, None]:
            self.alive += first
            self.stores[keys[0]] = self.stores[keys[1]] = first
        elif seen[0] is not seen[1]:
            self.fail(path, "aliasing differs: memory shared with another tensor on one side only")
        else:
            shift = a.storage_offset() - seen[0][0].storage_offset(), b.storage_offset() - seen[0][1].storage_offset()
            self.want(shift[0] == shift[1], path, "offset into shared memory", *shift)


def alike(eager, compiled, rtol=None, atol=None, path="result", versions=None, spread=0):
    Walk(rtol, atol, versions, spread).go(eager, compiled, path)


# Autograd's error for a saved tensor that was modified says how it was viewed, and by which node it was made (docs/limits.md).
SAVED_TENSOR = re.compile(r"(?<=by an inplace operation: )(\[[\w.]+ )\[[\d, ]*\]\](, which is output \d+ of \w+,)?")


# ---- running -----------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Outcome:
    """All that one call did. `args` is the caller's own arguments as the call left them."""

    text: str = ""  # of the error; compared first, since it says most
    error: object = None
    value: object = None
    chain: tuple = ()
    lines: tuple = ()
    printed: str = ""
    random: str = ""
    modes: tuple = ()
    args: object = None
    state: object = None


def _streams(new=None):
    """Reads the random streams, or puts them back."""
    if new is not None:
        torch.set_rng_state(new[0])
        numpy.random.set_state(new[1])
        random.setstate(new[2])
        if len(new) > 3:
            torch.cuda.set_rng_state(new[3])
    gpu = (torch.cuda.get_rng_state(),) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    return torch.get_rng_state(), numpy.random.get_state(), random.getstate(), *gpu


def _digest(streams):
    text = bytes(streams[0].tolist()) + streams[1][1].tobytes() + repr(streams[1][2:] + streams[2]).encode()
    text += b"".join(bytes(gpu.tolist()) for gpu in streams[3:])
    return hashlib.sha1(text).hexdigest()


def _user_lines(error):
    """(function, line) of each traceback entry in a test file."""
    return tuple(
        (f.name, f.lineno)
        for f in traceback.extract_tb(error.__traceback__)
        if os.path.dirname(f.filename) == TESTS and os.path.basename(f.filename) != "conftest.py"
    )


def _chain(error):
    out = []
    while error is not None and len(out) < 8:
        out.append(type(error).__name__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return tuple(out)


def outcome(fn, args=(), kwargs=None, state=None, backward=False, trace=False):
    """One call, observed."""
    out, text = Outcome(args=(args, kwargs or {}), state=state), io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            out.value = fn(*args, **(kwargs or {}))
            if backward:
                loss = sum(t.float().sum() for t in tensors(out.value) if t.requires_grad)
                loss.backward(retain_graph=backward == "again")
        except Exception as error:
            out.error, out.text, out.chain = type(error), SAVED_TENSOR.sub(r"\1sizes]", str(error)), _chain(error)
            out.lines = _user_lines(error) if trace else ()
    out.printed = text.getvalue()
    out.modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
    )
    out.random = _digest(_streams())
    return out


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def _given(made):
    """make_args may return one value, a tuple of arguments, or (args, kwargs)."""
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict):
        return made
    return (made if isinstance(made, tuple) else (made,)), {}


class Side:
    """One of the two runs: its own copy of the callable and its state, and its own random streams."""

    def __init__(self, fn, build, compiled, options):
        torch.manual_seed(7)
        numpy.random.seed(7)
        random.seed(7)
        self.state = None
        if build:
            fn = fn()
            if isinstance(fn, tuple):
                fn, self.state = fn
        elif isinstance(fn, torch.nn.Module):
            fn = copy.deepcopy(fn)
        if self.state is None and isinstance(fn, torch.nn.Module):
            self.state = fn
        self.fn = ccompile.compile(fn, **options) if compiled else fn
        self.streams = _streams()
        self.past = []

    def run(self, given, **kw):
        _streams(self.streams)
        out = outcome(self.fn, *given, state=self.state, **kw)
        self.streams = _streams()
        self.past.append(out)
        return out


def same(
    fn,
    *args,
    calls=3,
    no_grad=True,
    rtol=None,
    atol=None,
    make_args=None,
    own=False,
    build=False,
    hit=True,
    backward=False,
    versions=False,
    trace=False,
    raises=False,
    options=None,
    **kw,
):
    """Asserts that `calls` compiled calls are what eager calls are, and returns the eager outcomes.

    fn         a function or module (copied for each side); with build=True a factory called once for each side, that
               returns the callable or (callable, state), where state is compared after each call as well
    make_args  call number -> argument, tuple of arguments or (args, kwargs); without it `args` and `kw` are used, and float
               tensors get other values in each call, since equal data would hide a baked-in result
    own        make_args(i, side) makes the arguments of each side, of its state and of what it gave before; nothing is copied
    hit        the last call must replay compiled code without recording
    backward   also runs backward() from all outputs and so compares gradients; "again": outputs may share graphs between calls
    versions   also compares how often each tensor was written (`_version`)
    trace      also compares the traceback's lines in test files
    raises     some of the calls raise; without it an exception in eager is a mistake in the test
    options    keyword arguments of compile()
    """
    ccompile.reset()
    eager, compiled = Side(fn, build, False, {}), Side(fn, build, True, options or {})
    written = {} if versions else None
    for i in range(calls):
        given = None if own else copy.deepcopy(_given(make_args(i)) if make_args else (args, kw))
        if make_args is None and i:
            with torch.no_grad():
                for t in tensors(given):
                    if t.is_floating_point() and t._is_view() is False:
                        t.mul_(1 + i / 8).add_(i / 16)
        with torch.no_grad() if no_grad else contextlib.nullcontext():
            one = eager.run(make_args(i, eager) if own else copy.deepcopy(given), backward=backward, trace=trace)
            assert raises or one.error is None, f"eager raises {one.error}: {one.text}"
            with replaying(1) if hit and i == calls - 1 else contextlib.nullcontext():
                two = compiled.run(make_args(i, compiled) if own else copy.deepcopy(given), backward=backward, trace=trace)
        alike(one, two, rtol, atol, f"call {i}", written)
    # Once more over all calls: results of earlier calls must not change, and what is shared between calls stays shared.
    alike(eager.past, compiled.past, rtol, atol, "all calls")
    return eager.past


def together(n, work):
    """work(0) .. work(n - 1), each in a thread of its own and all at once, under no_grad; raises what the first of them raised."""
    start, wrong = threading.Barrier(n), []

    def run(k):
        start.wait()
        try:
            with torch.no_grad():
                work(k)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


# ---- counting ----------------------------------------------------------------------------------------------------
class Counts(typing.NamedTuple):
    graphs: int
    breaks: int


def counters():
    return dict(ccompile.counters())


@contextlib.contextmanager
def replaying(n=1):
    """The block makes n compiled calls, and each of them replays: nothing is recorded, nothing falls back to eager."""
    before = counters()
    yield
    if EAGER:
        return
    after = counters()
    grown = {key: after[key] - before.get(key, 0) for key in after}
    assert grown["hits"] >= n, f"{grown['hits']} of {n} calls replayed compiled code; counters grew by {grown}"
    for key in ("recording", "eager", "give_up"):
        assert grown[key] == 0, f"{key} grew by {grown[key]} while calls should replay; counters grew by {grown}"


def hits(call, n=2):
    """Makes n calls that must all replay, and returns the last result."""
    with replaying(n):
        for _ in range(n):
            result = call()
    return result


def explained(fn, *args, **kw):
    """ccompile.explain on copies, under no_grad; None when the product is absent."""
    return None if EAGER else _told(ccompile.explain, fn, args, kw)


def recorded(fn, *args, **kw):
    """The same for a single call, which explain repeats where the recording gave up."""

    def once(fn):
        compiled = ccompile.compile(fn, isolate_recompiles=True)

        def run(*args, **kw):
            compiled(*args, **kw)
            return ccompile.report.report(compiled)

        return run

    return _told(once, fn, args, kw)


def _told(explain, fn, args, kw):
    ccompile.reset()
    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(fn)
    args, kw = copy.deepcopy((args, kw))
    torch.manual_seed(7)
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        return explain(fn)(*args, **kw)


def breaks(fn, *args, **kw):
    """Our (graphs, breaks) for one call; None when the product is absent."""
    report = explained(fn, *args, **kw)
    return report and Counts(report.graph_count, report.break_count)


_dynamo_cache = {}


@contextlib.contextmanager
def _hook_kept():
    """Puts the frame evaluation hook back: dynamo leaves its own behind when a compilation raises."""
    get, put = (
        ctypes.pythonapi._PyInterpreterState_GetEvalFrameFunc,
        ctypes.pythonapi._PyInterpreterState_SetEvalFrameFunc,
    )
    state = ctypes.pythonapi.PyInterpreterState_Get
    state.restype = get.restype = ctypes.c_void_p
    get.argtypes, put.argtypes, put.restype = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_void_p], None
    before = get(state())
    try:
        yield
    finally:
        if get(state()) != before:
            put(state(), before)


def dynamo_breaks(fn, *args, key=None, **kw):
    """torch._dynamo.explain's (graphs, breaks) for one call. `key` names a pattern that several tests ask about."""
    if key is None or key not in _dynamo_cache:
        import torch._dynamo as dynamo

        if isinstance(fn, torch.nn.Module):
            fn = copy.deepcopy(fn)
        args, kw = copy.deepcopy((args, kw))
        dynamo.reset()
        torch.manual_seed(7)
        try:
            with (
                _hook_kept(),
                torch.no_grad(),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                report = dynamo.explain(fn)(*args, **kw)
        except dynamo.exc.TorchDynamoException:
            return Counts(0, 0)  # it fails where eager does not: nothing to compare with
        finally:
            dynamo.reset()
        # Its graph_break_count is graphs - 1; a break behind the last graph is only in its list of reasons.
        counts = Counts(report.graph_count, max(report.graph_break_count, len(report.break_reasons)))
        if key is None:
            return counts
        _dynamo_cache[key] = counts
    return _dynamo_cache[key]


# Cases in which Dynamo breaks no more since torch 2.14, which traces through ops that raise and through max(..., key=...) of
# containers of tensors.
LEARNED = ("try-tensor-error", "fallbacks", "grouped")


def learned(name):
    """How many breaks of ours this torch's Dynamo does without in a case of test_record.py or test_user.py."""
    return name in LEARNED and torch.__version__ >= (2, 14)


def no_worse(fn, *args, key=None, expect=None, graphs=None, most=None, bare=0, **kw):
    """Our graphs and breaks against dynamo's (never more) and against what the source documents say.

    expect, graphs: exact counts; most: an upper bound that the pattern itself implies. Where dynamo captured nothing at all
    (it skipped the frame, so it has no break to count either), only these apply. bare: breaks with no op between them and
    the break before, which dynamo does not list.
    """
    ours = breaks(fn, *args, **kw)
    if ours is None:
        return
    theirs = dynamo_breaks(fn, *args, key=key, **kw)
    if theirs.graphs:
        # What dynamo leaves eager behind its last break is no graph of its; ours go on there, on both sides of a branch.
        assert ours.graphs <= max(theirs.graphs, 2 * ours.breaks + 1), f"graphs: ours {ours}, dynamo's {theirs}"
        assert ours.breaks <= theirs.breaks + bare, f"breaks: ours {ours}, dynamo's {theirs}"
    if expect is not None:
        assert ours.breaks == expect, f"breaks: ours {ours}, expected {expect}"
    if most is not None:
        assert ours.breaks <= most, f"breaks: ours {ours}, at most {most} expected"
    if graphs is not None:
        assert ours.graphs == graphs, f"graphs: ours {ours}, expected {graphs}"


# ---- leaks -------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def small_pages():
    """No page of this process becomes a huge one meanwhile.

    Else the kernel (khugepaged) fills up, minutes later and whatever runs then, each 2 MiB of the heap where a large
    tensor has been and one page is still in use: 5 MB in half a minute after 40 tensors. Nobody holds that memory.
    """
    libc, disable = ctypes.CDLL(None), 41  # PR_SET_THP_DISABLE
    libc.prctl(disable, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(disable, 0, 0, 0, 0)


def resident():
    """Resident anonymous memory in bytes: pages of libraries come and go as the kernel likes."""
    with open("/proc/self/statm") as file:
        _, resident_pages, shared = map(int, file.read().split()[:3])
    return (resident_pages - shared) * os.sysconf("SC_PAGE_SIZE")


class MallInfo(ctypes.Structure):
    """What glibc's mallinfo2 tells."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def in_use():
    """Bytes that malloc has given out: what grows with them is a leak, what grows without is the allocator's."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = MallInfo
    now = libc.mallinfo2()
    return now.uordblks + now.hblkhd


def collect():
    """Until nothing is left: what a first collection frees can be what held further garbage (fake tensors of Dynamo: storages)."""
    for _ in range(10):
        if not gc.collect():
            return


@small_pages()
def leakless(call, *watched, calls=20_000, warm=2_000, rss=8 << 20):
    """Makes `calls` calls: no Python block, no reference to `watched` and at most `rss` resident bytes may remain.

    One in a hundred is allowed for, since others (pytest, caches) hold None and 1.0 as well; a leak is one a call.
    """
    for _ in range(warm):
        call()
    collect()
    refs, blocks, used, before = [sys.getrefcount(o) for o in watched], sys.getallocatedblocks(), in_use(), resident()
    for _ in range(calls):
        call()
    collect()
    after, grown, size = [sys.getrefcount(o) for o in watched], sys.getallocatedblocks() - blocks, resident() - before
    assert all(abs(a - b) <= calls // 100 for a, b in zip(after, refs)), (
        f"reference counts {refs} became {after} in {calls} calls"
    )
    assert grown < 200 + calls // 1000, f"{grown} Python blocks remain after {calls} calls"
    used = in_use() - used
    assert size < rss, f"{size} resident bytes remain after {calls} calls; malloc gave out {used} more"


# ---- pytest ------------------------------------------------------------------------------------------------------
def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


def pytest_collection_modifyitems(config, items):
    """Workers of pytest-xdist get files with slow tests first, then those with many, so that none has a long file left at the end."""
    if hasattr(config, "workerinput"):
        slow = {t.path for t in items if t.get_closest_marker("slow")}
        tests = collections.Counter(t.path for t in items)
        items.sort(key=lambda t: (t.path not in slow, -tests[t.path], t.path))


def verify_failures():
    return ccompile.counters().get("verify", 0) if ccompile else 0


@pytest.fixture(autouse=True)
def _clean():
    """Each test starts from nothing compiled and leaves torch's ambient state as it was."""
    torch.manual_seed(7)
    numpy.random.seed(7)
    random.seed(7)
    reset = ccompile.reset if ccompile else lambda: None
    reset()
    before = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
    failures = verify_failures()
    seen = ccompile.events()[-1:] if failures else []
    yield
    after = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
    texts = []
    if verify_failures() != failures:  # reset() counts from 0 again
        texts = [e.text for e in ccompile.events(seen[0].serial if seen else 0) if e.kind == "verify"]
    reset()
    assert before == after, "the test changed ambient state"
    if texts:  # the whole suite is the oracle of csrc/ir/infer.def and of csrc/guard/memo.c
        wrong = (": rules gave ", "a memo passed although", ": the gradient of input ")
        assert not [text for text in texts if any(w in text for w in wrong)]


for _helper in (same, alike, breaks, dynamo_breaks, no_worse, explained, hits, replaying, leakless):
    # Also as fixtures, for files that would rather not import conftest.
    globals()["_" + _helper.__name__] = pytest.fixture(name=_helper.__name__, scope="session")(
        lambda _helper=_helper: _helper
    )


def autograd_nodes(result):
    """The nodes of autograd's graph behind a tensor, each once."""
    todo, seen = [result.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [n for n, _ in node.next_functions]
        yield node
