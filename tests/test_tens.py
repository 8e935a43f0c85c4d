"""tens/: tensors as descriptors, ambient state, what torch's callables do, and op bindings, each against torch itself."""

import builtins
import contextlib
import functools
import gc
import itertools
import math
import operator
import pathlib
import re
import subprocess
import sys
import sysconfig
import warnings

import op_table
import op_table_host  # noqa: F401  adds its rows
import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
C = torch._C
WRITES, RANDOM, EFFECT = 1, 2, 4


@pytest.fixture(scope="session")
def tens(tmp_path_factory):
    """The test extension: csrc/mod/tenstest.c with base, py, ir and tens; setup.py's when it is not older than the sources."""
    used = [f for part in ("base", "ir", "py", "tens") for f in (ROOT / "csrc" / part).glob("*.*")]
    newest = max(f.stat().st_mtime for f in [ROOT / "csrc/mod/tenstest.c", *used])
    try:
        import ccompile._tenstest as built
    except ImportError:
        pass
    else:
        if pathlib.Path(built.__file__).stat().st_mtime >= newest:
            return built
    out = tmp_path_factory.mktemp("tens")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    sources = [ROOT / "csrc/mod/tenstest.c"]
    for part in ("base", "py", "ir", "tens"):  # of py's frame files, only this version's has anything in it
        sources += sorted((ROOT / "csrc" / part).glob("*.c"))
    warn = "-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror".split()
    command = ["gcc", "-std=gnu11", "-O1", "-g", "-DCC_DEBUG=1", "-fPIC", "-shared", "-fvisibility=hidden", *warn]
    command += ["-isystem", sysconfig.get_paths()["include"], *map(str, sources)]
    command += ["-o", str(out / f"_tenstest{suffix}"), "-ldl", "-lm"]
    subprocess.run(command, check=True)
    sys.path.insert(0, str(out))
    try:
        import _tenstest as built
    finally:
        sys.path.remove(str(out))
    return built


@pytest.fixture(params=["shim", "fallback"])
def both(request, tens):
    """The extension as it is, and as it would be under a torch whose symbols we do not find."""
    tens.fallback(request.param == "fallback")
    yield tens
    tens.fallback(False)


# ---------------------------------------------------------------------------------------------- tensors


class Sub(torch.Tensor):
    pass


def changed_class():
    t = torch.randn(3)
    t.__class__ = Sub
    return t


def inference_tensor():
    with torch.inference_mode():
        return torch.randn(2, 3)


def requires_grad_view():
    return torch.randn(3, 4, requires_grad=True)[1:]


PLAIN = {
    "f32": lambda: torch.randn(4, 6),
    "t": lambda: torch.randn(4, 6).t(),
    "f64": lambda: torch.randn(4, 6, dtype=torch.float64),
    "f16": lambda: torch.randn(4, 6).half(),
    "bf16": lambda: torch.randn(4, 6).bfloat16(),
    "bool": lambda: torch.randn(4, 6) > 0,
    "u8": lambda: torch.ones(5, dtype=torch.uint8),
    "i8": lambda: torch.ones(5, dtype=torch.int8),
    "i16": lambda: torch.ones(5, dtype=torch.int16),
    "i32": lambda: torch.ones(5, dtype=torch.int32),
    "i64": lambda: torch.ones(5, dtype=torch.int64),
    "zero-dim": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0),
    "empty 3-d": lambda: torch.empty(2, 0, 3),
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "channels last": lambda: torch.randn(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "size-1 stride": lambda: torch.randn(4, 6)[:, :1],
    "offset": lambda: torch.randn(10)[3:],
    "8 dims": lambda: torch.randn(1, 2, 1, 2, 1, 2, 1, 2),
    "requires grad": lambda: torch.randn(3, requires_grad=True),
    "non-leaf": lambda: torch.randn(3, requires_grad=True) * 2,
    "grad view": requires_grad_view,
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.randn(3), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(torch.randn(3)),
    "storage of two": lambda: torch.randn(6).as_strided((2, 2), (1, 1)),
    "detached": lambda: torch.randn(3, requires_grad=True).detach(),
    "lazy clone": lambda: torch.randn(3)._lazy_clone(),
    "real of complex": lambda: torch.randn(3, dtype=torch.complex64).real,
}
SOFT = {   # foreign, but comparable
    "complex64": lambda: torch.randn(3, dtype=torch.complex64),
    "complex128": lambda: torch.randn(3, dtype=torch.complex128),
    "conj": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "neg": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "neg view": lambda: torch._neg_view(torch.randn(3)),
    "float8": lambda: torch.randn(3).to(torch.float8_e4m3fn),
    "u16": lambda: torch.ones(3, dtype=torch.uint16),
    "inference": inference_tensor,
}
HARD = {   # never matches anything
    "9 dims complex": lambda: torch.ones((1,) * 9, dtype=torch.complex64),
    "9 dims": lambda: torch.ones((1,) * 9),
    "meta": lambda: torch.empty(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "subclass": lambda: torch.randn(3).as_subclass(Sub),
    "changed class": changed_class,
    "zero tensor": lambda: torch._efficientzerotensor((3,)),
    "functional": lambda: torch._to_functional_tensor(torch.randn(3)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "mkldnn": lambda: torch.randn(3, 3).to_mkldnn(),
    "uninitialised": lambda: torch.nn.UninitializedParameter(),
    "fake": lambda: fake_mode().from_tensor(torch.randn(3)),
}
NOT_TENSORS = [None, 1, "x", [1.0], torch.float32, torch.Size([1]), torch.Tensor, object()]


@functools.lru_cache
def fake_mode():
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def make(table, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return table[name]()
        except (RuntimeError, NotImplementedError) as error:   # mkldnn or quantised engines may be absent
            pytest.skip(str(error)[:80])


def check_plain(tens, t):
    got = tens.read(t)
    assert got["ndim"] == t.dim()
    assert got["dtype"] == str(t.dtype).removeprefix("torch.")
    assert got["size"] == tuple(t.shape) and got["stride"] == t.stride()
    assert got["device"] == 1 and got["index"] == 0
    assert got["requires_grad"] == t.requires_grad
    assert tens.read(t, False)["requires_grad"] == 0
    assert got["data"] == (t.data_ptr() if t.numel() else 0)
    assert got["matchable"]


@pytest.mark.parametrize("name", PLAIN)
def test_read_plain(both, name):
    check_plain(both, make(PLAIN, name))
    with torch.no_grad():
        check_plain(both, make(PLAIN, name))
    with torch.inference_mode():
        check_plain(both, make(PLAIN, name))


@pytest.mark.parametrize("name", SOFT)
def test_read_soft(both, name):
    t = make(SOFT, name)
    got = both.read(t)
    assert got["ndim"] == -1 and got["matchable"] and got["data"] == 0
    assert both.match(t, t)


@pytest.mark.parametrize("name", HARD)
def test_read_hard(both, name):
    t = make(HARD, name)
    got = both.read(t)
    assert got["ndim"] == -1 and not got["matchable"] and got["data"] == 0
    assert not both.match(t, t)


def test_inference_tensor_is_plain_in_inference_mode(both):
    t = inference_tensor()
    with torch.inference_mode():
        check_plain(both, t)
        assert both.match(t, torch.randn(2, 3)) and both.match(torch.randn(2, 3), t)
    assert both.read(t)["ndim"] == -1


def test_functorch_wrappers_are_foreign(both):
    seen = []

    def look(x):
        seen.append(both.read(x))
        return x.sum()

    torch.vmap(look)(torch.randn(2, 3))
    torch.func.grad(look)(torch.randn(3))
    torch.func.jvp(look, (torch.randn(3),), (torch.ones(3),))
    assert len(seen) == 3
    assert all(s["ndim"] == -1 and not s["matchable"] for s in seen)


def test_not_tensors(both):
    for o in NOT_TENSORS:
        assert both.read(o)["ndim"] == -1
        assert not both.match(o, torch.randn(1))
        assert both.kinds(o)[:2] == (0, 0)


def test_kinds(tens):
    for name in PLAIN:
        assert tens.kinds(make(PLAIN, name)) == (1, 1, 0), name
    assert tens.kinds(torch.randn(2).as_subclass(Sub)) == (0, 1, 0)
    for o in (torch.float32, torch.device("cpu"), torch.strided, torch.preserve_format, torch.per_tensor_affine):
        assert tens.kinds(o) == (0, 0, 1)


def facts(t):
    """What a guard has to tell apart."""
    return (type(t), t.dtype, t.device, tuple(t.shape), t.stride(), t.requires_grad, t.is_neg(), t.is_conj(),
            t.is_inference())


def test_match_is_equality_of_facts(both):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        some = [f() for table in (PLAIN, SOFT) for f in table.values() for _ in range(2)]
    for a in some:
        for b in some:
            assert both.match(a, b) == (facts(a) == facts(b)), (facts(a), facts(b))


def test_match_without_grad(both):
    a, b = torch.randn(3), torch.randn(3, requires_grad=True)
    assert not both.match(a, b) and both.match(a, b, False)
    assert not both.match(torch.nn.Parameter(a), b, False)


def test_metadata_changes_are_seen(both):
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    assert both.match(a, b)
    b.t_()
    assert not both.match(a, b)
    b.t_()
    b.requires_grad_()
    assert not both.match(a, b)
    b.requires_grad_(False)
    b.data = torch.randn(4, 6, dtype=torch.float64)
    assert not both.match(a, b)
    b.__class__ = Sub
    assert not both.match(a, b)


@pytest.mark.parametrize("name", PLAIN)
def test_empty(both, name):
    like = make(PLAIN, name)
    t, data = both.empty(like)
    assert type(t) is torch.Tensor
    assert t.dtype == like.dtype and t.shape == like.shape and t.stride() == like.stride()
    assert not t.requires_grad and t.is_leaf and t._version == 0 and t.storage_offset() == 0
    assert data == t.data_ptr()
    t.resize_(3, 5)
    t.zero_()
    assert t._version > 0 and not t.is_inference()
    if t.dtype.is_floating_point:
        w = torch.ones_like(t, requires_grad=True)
        (t * w).sum().backward()
        assert w.grad is not None
        t.requires_grad_()
        (t * 2).sum().backward()
        assert t.grad.shape == t.shape


def test_empty_honours_inference_mode(both):
    with torch.inference_mode():
        t, _ = both.empty(torch.randn(3))
        assert t.is_inference()
    with torch.no_grad():
        t, _ = both.empty(torch.randn(3))
        assert not t.is_inference()


def test_empty_refuses_foreign(both):
    with pytest.raises(SystemError, match="only the host"):
        both.empty(torch.randn(3, dtype=torch.complex64))


def test_describe(tens):
    assert tens.describe(torch.randn(8, 64)) == "f32[8, 64] cpu"
    assert tens.describe(torch.randn(8, 64).t()) == "f32[64, 8] strides (1, 64) cpu"
    assert tens.describe(torch.tensor(1)) == "i64[] cpu"
    assert tens.describe(torch.randn(1, requires_grad=True)) == "f32[1] cpu requires_grad"
    assert tens.describe(torch.randn(2, 1, dtype=torch.complex64)) == \
        "tensor[2, 1] of a dtype that kernels don't support (such as complex)"
    assert "a kind without kernels" in tens.describe(torch.randn(2, 1).to_sparse())


def test_no_leaks(both):
    x, p = torch.randn(3, 4), torch.nn.Parameter(torch.randn(2))
    hard = torch.eye(3).to_sparse()
    things = (x, p, hard, torch.relu, torch.Tensor.view, torch.float32)

    def work():
        for t in (x, p, hard):
            both.read(t), both.match(t, t), both.attr(t, "shape"), both.attr(t, "relu"), both.attr(t, "no_such")
        both.empty(x)
        both.mode()
        both.call(torch.relu, (x,))
        both.bind(torch.clamp, (x,), {"max": 3.0})
        both.bind(torch.Tensor.to, (x, "cpu", torch.float64))
        both.bind(x.view, (2, -1))

    work()
    for _ in range(5):  # what other tests left may go while this one counts
        gc.collect()
        before = [sys.getrefcount(o) for o in things]
        blocks = sys.getallocatedblocks()
        for _ in range(200):
            work()
        gc.collect()
        assert [sys.getrefcount(o) for o in things] == before
        blocks = sys.getallocatedblocks() - blocks
        if abs(blocks) < 100:
            break
    else:
        pytest.fail(f"{blocks} blocks in 200 rounds")


# ---------------------------------------------------------------------------------------------- ambient state


@contextlib.contextmanager
def setting(get, put, value):
    old = get()
    put(value)
    try:
        yield
    finally:
        put(old)


def flag(name):
    return setting(getattr(C, f"_get_{name}"), getattr(C, f"_set_{name}"), not getattr(C, f"_get_{name}")())


def sdp(name):
    b = torch.backends.cuda
    return setting(getattr(b, f"{name}_sdp_enabled"), getattr(b, f"enable_{name}_sdp"), not getattr(b, f"{name}_sdp_enabled")())


def attribute(module, name, value):
    return setting(lambda: getattr(module, name), lambda v: setattr(module, name, v), value)


def autocast(device, dtype):
    return torch.autocast(device, dtype=dtype)


def autocast_device(device):
    return setting(lambda: torch.is_autocast_enabled(device), lambda v: torch.set_autocast_enabled(device, v), True)


def autocast_dtype(device, dtype):
    return setting(lambda: torch.get_autocast_dtype(device), lambda v: torch.set_autocast_dtype(device, v), dtype)


def fp32_precision(backend, op, value):
    return setting(lambda: C._get_fp32_precision_getter(backend, op),
                   lambda v: C._set_fp32_precision_setter(backend, op, v), value)


@contextlib.contextmanager
def medium_precision():
    with fp32_precision("cuda", "matmul", "none"), fp32_precision("mkldnn", "matmul", "none"):
        with setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"):
            yield


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def nested_devices(*devices):
    stack = contextlib.ExitStack()
    for device in devices:
        stack.enter_context(torch.device(device))
    return stack


def deterministic(on, warn_only):
    return setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1]), (on, warn_only))


def fx_flag():
    """Object and name of torch.fx's tracing flag."""
    module = torch.fx._symbolic_trace
    return (module._is_fx_tracing_tls, "flag") if hasattr(module, "_is_fx_tracing_tls") else (module, "_is_fx_tracing_flag")


# name -> (context manager, rows that must change, whether the state is refused)
MODES = {
    "no_grad": (torch.no_grad, {"GRAD"}, False),
    "inference": (torch.inference_mode, {"GRAD", "INFERENCE"}, False),
    "autocast cpu": (lambda: autocast("cpu", torch.bfloat16), {"AUTOCAST_CPU"}, False),
    "autocast cpu half": (lambda: autocast("cpu", torch.float16), {"AUTOCAST_CPU", "AUTOCAST_CPU_DTYPE"}, False),
    "autocast cuda": (lambda: autocast_device("cuda"), {"AUTOCAST_CUDA"}, False),
    "autocast cuda dtype": (lambda: autocast_dtype("cuda", torch.bfloat16), {"AUTOCAST_CUDA_DTYPE"}, False),
    "autocast cache": (lambda: setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
                       {"AUTOCAST_CACHE"}, False),
    "default dtype": (lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
                      {"DEFAULT_DTYPE"}, False),
    "default device": (lambda: torch.device("cpu"), {"DEFAULT_DEVICE"}, False),
    "default devices": (lambda: nested_devices("cpu", "meta", "cuda:3"), {"DEFAULT_DEVICE"}, False),
    "too many default devices": (lambda: nested_devices(*["cpu"] * 5), {"DEFAULT_DEVICE", "FUNCTION_MODES"}, True),
    "function mode": (torch.overrides.BaseTorchFunctionMode, {"FUNCTION_MODES"}, True),
    "function subclass off": (C.DisableTorchFunctionSubclass, {"FUNCTION_STATE"}, False),
    "dispatch mode": (DispatchMode, {"DISPATCH_MODES"}, True),
    "fake mode": (lambda: fake_mode(), {"KEYS_INCLUDED"}, True),
    "python dispatcher": (lambda: torch._dispatch.python.enable_python_dispatcher(), {"KEYS_INCLUDED"}, True),
    "below autograd": (C._AutoDispatchBelowAutograd, {"KEYS_EXCLUDED"}, True),
    "forward ad": (torch.autograd.forward_ad.dual_level, {"FORWARD_AD"}, True),
    "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), {"ANOMALY"}, True),
    "symbolic trace": (lambda: attribute(*fx_flag(), True), {"FX"}, True),
    "compiling": (lambda: attribute(torch.compiler, "_is_compiling_flag", True), {"COMPILING"}, True),
    "exporting": (lambda: attribute(torch.compiler, "_is_exporting_flag", True), {"EXPORTING"}, True),
    "deterministic": (lambda: deterministic(True, False), {"DETERMINISTIC"}, False),
    "deterministic warn": (lambda: deterministic(True, True), {"DETERMINISTIC", "DETERMINISTIC_WARN"}, False),
    "fill": (lambda: flag("deterministic_fill_uninitialized_memory"), {"FILL_UNINITIALIZED"}, False),
    "precision": (lambda: medium_precision(), {"FP32_CUDA_MATMUL", "FP32_MKLDNN_MATMUL"}, False),
    **{f"fp32 {backend} {op}": (lambda b=backend, o=op, p=p: fp32_precision(b, o, p),
                                {f"FP32_{backend.upper()}_{op.upper()}"}, False)
       for backend, op, p in (("cuda", "conv", "ieee"), ("cuda", "rnn", "ieee"), ("cuda", "matmul", "tf32"),
                              ("mkldnn", "conv", "bf16"), ("mkldnn", "rnn", "bf16"), ("mkldnn", "matmul", "bf16"))},
    # what contradicts the old name: torch.get_float32_matmul_precision() raises
    "fp32 generic": (lambda: fp32_precision("generic", "all", "tf32"),
                     {"FP32_CUDA_MATMUL", "FP32_MKLDNN_CONV", "FP32_MKLDNN_RNN", "FP32_MKLDNN_MATMUL"}, False),
    "cudnn": (lambda: flag("cudnn_enabled"), {"CUDNN"}, False),
    "cudnn benchmark": (lambda: flag("cudnn_benchmark"), {"CUDNN_BENCHMARK"}, False),
    "cudnn deterministic": (lambda: flag("cudnn_deterministic"), {"CUDNN_DETERMINISTIC"}, False),
    "mkldnn": (lambda: flag("mkldnn_enabled"), {"MKLDNN"}, False),
    "mkldnn deterministic": (lambda: flag("mkldnn_deterministic"), {"MKLDNN_DETERMINISTIC"}, False),
    "sdp flash": (lambda: sdp("flash"), {"SDP_FLASH"}, False),
    "sdp efficient": (lambda: sdp("mem_efficient"), {"SDP_EFFICIENT"}, False),
    "sdp math": (lambda: sdp("math"), {"SDP_MATH"}, False),
    "sdp cudnn": (lambda: sdp("cudnn"), {"SDP_CUDNN"}, False),
    "sdp overrideable": (
        lambda: setting(torch._C._get_overrideable_sdp_enabled, torch._C._set_sdp_use_overrideable,
                        not torch._C._get_overrideable_sdp_enabled()), {"SDP_OVERRIDEABLE"}, False),
}
BY_CALL = {"FUNCTORCH", "TRACING"}                      # entered by a call, not by a context: tested below
NEEDS_OTHER_BUILD = {"DEFAULT_TYPE"}                    # only torch.set_default_tensor_type of another device changes it
TLS_ROWS = {"KEYS_INCLUDED", "KEYS_EXCLUDED"}           # read 0 in the fallback, where Python rows cover the same states


def test_every_mode_row_is_tested(tens):
    covered = set().union(*(rows for _, rows, _ in MODES.values())) | BY_CALL | NEEDS_OTHER_BUILD
    assert set(tens.mode()) == covered


@pytest.mark.parametrize("name", MODES)
def test_mode_rows(both, name, request):
    context, rows, refused = MODES[name]
    if not torch.backends.cuda.is_built():  # and has nothing that would read them
        rows = {row for row in rows if not row.startswith("FP32_CUDA")}
        if not rows:
            pytest.skip("this torch is built without CUDA")
    fallback = "fallback" in request.node.name
    if fallback and rows & TLS_ROWS:
        pytest.skip("only the thread's dispatch keys tell this one")
    before = both.mode()
    both.mode_save()
    assert both.mode_diff()[:2] == (1, None)
    assert both.mode_refuse() is None
    with context():
        inside, diff, refuse = both.mode(), both.mode_diff(), both.mode_refuse()
    changed = {k for k in before if before[k] != inside[k]}
    assert rows <= changed
    assert changed <= rows | TLS_ROWS | {"DISPATCH_MODES", "FILL_UNINITIALIZED"}
    assert diff[0] == 0 and diff[1]
    assert bool(refuse) == refused
    assert both.mode() == before and both.mode_refuse() is None


# what a setter that graphs may hold (SETS in torch.def) is called with; all others take a bool
SETTER_ARGS = {
    "set_autocast_enabled": [("cpu", True), ("cpu", False), ("cuda", True), ("cuda", False)],
    "set_autocast_dtype": [(d, dt) for d in ("cpu", "cuda") for dt in (torch.bfloat16, torch.float16)],
    "set_autocast_cpu_dtype": [(torch.float16,)],
    "set_autocast_gpu_dtype": [(torch.bfloat16,)],
}
SET_NO_ROW = {"autocast_increment_nesting", "autocast_decrement_nesting", "clear_autocast_cache"}


def setters():
    rows = re.findall(r"^SETS.*$", (ROOT / "csrc/tens/torch.def").read_text(), re.M)
    return sorted(set(re.findall(r'SETS\("(\w+)"\)', " ".join(rows))) - SET_NO_ROW)


@pytest.mark.parametrize("name", setters())
def test_what_graphs_set_is_put_back(both, name):
    before = both.mode()
    both.mode_save()
    changed = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for args in SETTER_ARGS.get(name, [(True,), (False,)]):
            getattr(C, name)(*args)
            changed |= {k for k, v in both.mode().items() if v != before[k]}
            both.mode_restore()
            assert both.mode() == before
    assert changed


def test_modes_by_call(both):
    for run, row in (
        (lambda f: torch.vmap(f)(torch.ones(2)), "FUNCTORCH"),
        (lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(2)), "FUNCTORCH"),
        (lambda f: torch.func.functionalize(f)(torch.ones(2)), "FUNCTORCH"),
        (lambda f: torch.jit.trace(f, torch.ones(2), check_trace=False), "TRACING"),
    ):
        seen = []

        def look(x, seen=seen):
            seen.append((both.mode(), both.mode_refuse()))
            return x * 2

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(look)
        assert seen[0][0][row] and seen[0][1]
        assert not both.mode()[row] and both.mode_refuse() is None


def test_mode_values(tens):
    tens.mode_save()
    assert tens.mode_diff()[2] == 1
    with torch.no_grad():
        assert tens.mode_diff()[2] == 0
    threads = torch.get_num_threads()
    assert tens.mode_diff()[3] == threads
    with setting(torch.get_num_threads, torch.set_num_threads, threads + 1):
        assert tens.mode_diff()[3] == threads + 1


def test_modes_are_per_thread(tens):
    import threading

    seen = []
    with torch.no_grad(), autocast("cpu", torch.bfloat16), DispatchMode():
        thread = threading.Thread(target=lambda: seen.append((tens.mode(), tens.mode_refuse())))
        thread.start()
        thread.join()
    inside, refuse = seen[0]
    assert inside["GRAD"] == 1 and inside["AUTOCAST_CPU"] == 0 and inside["DISPATCH_MODES"] == 0
    assert inside["KEYS_INCLUDED"] == inside["KEYS_EXCLUDED"] == 0 and refuse is None


# ---------------------------------------------------------------------------------------------- what callables do


def spaces():
    """Every C callable of torch's op namespaces, with its name."""
    owners = dict(VF=C._VariableFunctionsClass, nn=C._nn, linalg=C._linalg, fft=C._fft, special=C._special,
                  sparse=C._sparse, nested=C._nested, T=C.TensorBase)
    kinds = ("builtin_function_or_method", "method_descriptor", "wrapper_descriptor")
    for space, owner in owners.items():
        for name in sorted(vars(owner)):
            f = getattr(owner, name)
            if type(f).__name__ in kinds and name != "__new__":
                yield space, name, f


@functools.lru_cache
def master(seed):
    g = torch.Generator().manual_seed(seed)

    def f(*s):
        return torch.rand(s, generator=g) + 0.1

    return dict(n=f(4, 4) - 0.6, f=f(4, 4), f2=f(4, 4), v=f(4), b=f(4, 4) > 0.6, i=torch.randint(0, 3, (4, 4), generator=g),
                iv=torch.randint(0, 3, (4,), generator=g), f3=f(2, 3, 4), f4=f(1, 2, 6, 6), w4=f(2, 2, 3, 3), s=f())


# Arguments to try; strings stand for the tensors above.
PATTERNS = [
    (), ("f",), ("f", "f2"), ("f", 1), ("f", 0, 1), ("f", (4, 4)), ("f", "f2", "f"), ("v",), ("v", "v"), ("iv",), ("i", "i"),
    ("f", "i"), ("b",), ("b", "b"), ("f", "b"), ("f3",), ("f3", "f3"), ("f4", "w4"), ("f", 0, "i"), ("f", 0, "i", "f2"),
    ("f", 0, "iv"), (["f", "f2"],), (["f", "f2"], ["f", "f2"]), (["f", "f2"], 2.0), ("f", torch.float64), ((2, 3),), (3,),
    (0, 3), ((2, 3), 1.5), ("f4", (2, 2)), ("f4", [3, 3]), ("f", "v", "v"), ("f", "b", 1.0), ("b", "f", "f2"),
    ("f", 0.5, True), ("f", 0.5, False), ("f", 2, 0, 1), ("s",), ("v", 2), ("f4", "w4", None), ("f", "f2", "f", "f2"),
    ("f", "f", "v"), ("f", "v", "v", "v", "v", True, 0.1, 1e-5, True), ("f", "v", "v", "v", "v", False, 0.1, 1e-5, True),
    ("f4", "v2", "v2", "v2", "v2", True, 0.1, 1e-5, True), ("f", (4,)), ("f", "f2", 0.5),
    (["f", "f2"], ["f", "f2"], ["f", "f2"]), ("i", 3), ("f", 0, 1, 2), ("f3", (0, 1), (1, 2)), ("f", [0]), ("f", [0], [1]),
    ("f4", [7, 7], True), ("f4", [7, 7], None), ("f4", [1, 1, 1, 1]), ("f", "f2", 2, 0.0), (4, 2), (5, 1.0),
    ("n", 0.1, 0.3, True), ("n", "f2", 0.1, 0.3, True), ("f4", "f4", "f4", None, 0.5), ("f4", "f4", "f4"), ("f", 2, True),
]


def build(p, seed, made):
    """The arguments of one pattern element: fresh copies, but one name twice in a call is one tensor."""
    if isinstance(p, str):
        if p not in made:
            made[p] = (master(seed)["v"][:2] if p == "v2" else master(seed)[p]).clone()
        return made[p]
    return [build(q, seed, made) for q in p] if isinstance(p, list) else p


def arguments(pattern, seed):
    made = {}
    return tuple(build(p, seed, made) for p in pattern)


def flat(o):
    return sum(map(flat, o), []) if isinstance(o, (tuple, list)) else [o]


def tensors(o):
    return [t for t in flat(o) if isinstance(t, torch.Tensor)]


def attempt(f, args):
    """The result, or NotImplemented when these arguments do not fit."""
    try:
        return f(*args)
    except Exception:
        return NotImplemented


def described(result):
    return [(t.shape, t.stride(), t.dtype) for t in tensors(result) if t.layout == torch.strided]


def private(name):
    """torch's internals may be called with what crashes them: only their schemas are looked at."""
    return name[0] == "_" and name[:2] != "__" and not name.startswith("_foreach")


def judge(tens, f, args_of, told):
    """Calls f once and compares what it did with its class; -> list of complaints, or None when it refused the arguments."""
    args = args_of(1)
    c = tens.call(f, args)
    if c["cls"] in ("BREAK", "SET_STATE", "RESHAPES"):
        return None
    mine = tensors(args)
    copies, versions = [t.clone() for t in mine], [t._version for t in mine]
    torch.default_generator.set_state(told["state"])
    result = attempt(f, args)
    if result is NotImplemented:
        return None
    drew = not torch.equal(told["state"], torch.default_generator.get_state())
    wrote = any(t._version != v for t, v in zip(mine, versions)) or any(
        t.shape != u.shape or not torch.equal(t.nan_to_num() if t.is_floating_point() else t,
                                              u.nan_to_num() if u.is_floating_point() else u)
        for t, u in zip(mine, copies))
    told["W"] |= bool(c["flags"] & WRITES)
    told["R"] |= bool(c["flags"] & RANDOM)
    told["wrote"] |= wrote
    told["drew"] |= drew
    bad = []
    if wrote and not c["flags"] & WRITES:
        bad.append("writes")
    if drew and not c["flags"] & RANDOM:
        bad.append("draws")
    others = [o for o in flat(result) if o is not None and not isinstance(o, torch.Tensor)]
    if c["cls"] == "OP" and others:
        bad.append(f"OP returns {others}")
    if c["cls"] in ("META", "VALUE") and tensors(result):
        bad.append(f"{c['cls']} returns a tensor")
    if c["cls"] == "META" and repr(attempt(f, args_of(2))) != repr(result):
        bad.append("META depends on data")
    if c["cls"] == "OP" and not c["dynamic"] and tensors(result):
        for seed in (2, 3):
            again = attempt(f, args_of(seed))
            if again is not NotImplemented and described(again) != described(result):
                bad.append("shape depends on data")
    return bad


def test_classes_by_calling(tens):
    with torch.no_grad(), warnings.catch_warnings(), setting(torch.get_num_threads, torch.set_num_threads, 1):
        warnings.simplefilter("ignore")
        bad, called, total = call_all(tens)
    assert not bad
    assert called > 0.75 * total, (called, total)


def call_all(tens):
    bad, called, total = [], 0, 0
    state = torch.default_generator.get_state()
    for space, name, f in spaces():
        if private(name):
            continue
        total += 1
        told = dict(W=False, R=False, wrote=False, drew=False, state=state)
        fitted = 0
        for pattern in PATTERNS:
            if space == "T" and not (pattern and isinstance(pattern[0], str)):
                continue
            said = judge(tens, f, functools.partial(arguments, pattern), told)
            if said is not None:
                fitted += 1
                bad += [(space, name, pattern, s) for s in said]
        called += fitted > 0
        if fitted and told["W"] and not told["wrote"] and name != "requires_grad_":  # writes no memory
            bad.append((space, name, "flagged as writing, never wrote"))
        if fitted and told["R"] and not told["drew"]:
            bad.append((space, name, "flagged as random, never drew"))
    return bad, called, total


# Names whose class is UNKNOWN on purpose: they return tensors and numbers together.
UNKNOWN = {"_batch_norm_impl_index", "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention"}


def test_every_name_has_a_class(tens):
    missing = [f"{s}.{n}" for s, n, f in spaces() if tens.call(f, ())["cls"] in ("UNKNOWN", "NONE") and n not in UNKNOWN]
    assert not missing
    assert sum(1 for _ in spaces()) > 1500


@functools.lru_cache
def schemas():
    table = {}
    for s in C._jit_get_all_schemas():
        if s.name.startswith("aten::"):
            table.setdefault(s.name[6:], []).append(s)
    return table


def tags(schema):
    try:
        packet = getattr(torch.ops.aten, schema.name[6:])
        return {str(t).removeprefix("Tag.") for t in getattr(packet, schema.overload_name or "default").tags}
    except (AttributeError, RuntimeError):
        return set()


NOT_WRITERS = {"kthvalue", "max", "min", "median", "nanmedian", "mode", "sort", "topk", "svd", "qr", "geqrf", "xlogy",
               "triangular_solve", "as_strided", "linalg_eigh", "linalg_inv_ex", "linalg_svd", "linalg_cholesky_ex",
               "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd"}   # only their out= forms


def test_classes_agree_with_schemas(tens):
    bad = []
    for space, name, f in spaces():
        on = tens.call(f, (True,) * 9)   # every condition of a conditional flag holds
        c, cls = on["flags"], on["cls"]
        for s in schemas().get(name, ()):
            t = tags(s)
            where = (space, name, s.overload_name, cls)
            out = "out" in s.overload_name or any(a.is_out for a in s.arguments)
            if "inplace_view" in t and cls not in ("BREAK", "RESHAPES"):
                bad.append((*where, "changes metadata in place"))
            if s.is_mutable and not out and name not in NOT_WRITERS and cls not in ("BREAK", "RESHAPES") and not c & WRITES:
                bad.append((*where, "writes"))
            if "nondeterministic_seeded" in t and cls != "BREAK" and not c & RANDOM:
                bad.append((*where, "draws"))
            if "data_dependent_output" in t and cls not in ("VALUE", "BREAK"):
                bad.append((*where, "reads data into Python"))
            if "dynamic_output_shape" in t and cls == "OP" and not on["dynamic"] and name != "repeat_interleave":
                bad.append((*where, "shape depends on data"))
            if cls == "OP" and not out and space != "T" and not s.is_mutable:
                kinds = {str(r.type) for r in s.returns}
                numbers = kinds & {"bool", "int", "float"}
                if numbers and len(schemas()[name]) == 1:
                    bad.append((*where, f"returns {numbers}"))
        if name.endswith("_") and not name.endswith("__") and cls == "OP" and not c & WRITES:
            bad.append((space, name, cls, "named in place"))
    assert not bad


def test_conditional_classes(tens):
    x = torch.randn(4, 4)
    v = torch.ones(4)
    i = torch.tensor([1, 2])
    n = torch.tensor(2)

    def call(f, *args, **kw):
        c = tens.call(f, args, kw)
        return c["cls"], c["flags"], c["dynamic"]

    F, T = C._VariableFunctions, torch.Tensor
    assert call(F.dropout, x, 0.5, True) == ("OP", RANDOM, False)
    assert call(F.dropout, x, 0.5, train=False) == ("OP", 0, False)
    assert call(F.batch_norm, x, v, v, v, v, True, 0.1, 1e-5, True) == ("OP", WRITES, False)
    assert call(F.batch_norm, x, v, v, v, v, False, 0.1, 1e-5, True) == ("OP", 0, False)
    assert call(F.batch_norm, x, v, v, None, None, True, 0.1, 1e-5, True) == ("OP", 0, False)
    assert call(F.instance_norm, x, v, v, v, v, True, 0.1, 1e-5, True) == ("OP", WRITES, False)
    assert call(F.instance_norm, x, v, v, v, v, use_input_stats=False, momentum=0.1, eps=1e-5, cudnn_enabled=True) == ("OP", 0, False)
    assert call(C._nn.scaled_dot_product_attention, x, x, x) == ("OP", 0, False)
    assert call(C._nn.scaled_dot_product_attention, x, x, x, dropout_p=0.0) == ("OP", 0, False)
    assert call(C._nn.scaled_dot_product_attention, x, x, x, dropout_p=0.1) == ("OP", RANDOM, False)
    assert call(C._nn.scaled_dot_product_attention, x, x, x, None, 0.1) == ("OP", RANDOM, False)
    assert call(F.add, x, x, out=x) == ("OP", WRITES, False)
    assert call(F.add, x, x, out=None) == ("OP", 0, False)
    assert call(F.where, x > 0) == ("OP", 0, True)
    assert call(F.where, x > 0, x, x) == ("OP", 0, False)
    assert call(F.repeat_interleave, i) == ("OP", 0, True)
    assert call(F.repeat_interleave, x, 2, 0) == ("OP", 0, False)
    assert call(F.repeat_interleave, x, i, 0) == ("OP", 0, True)
    assert call(x.repeat_interleave, i) == ("OP", 0, True)
    assert call(T.__getitem__, x, x > 0) == ("OP", 0, True)
    assert call(T.__getitem__, x, (slice(None), x[0] > 0)) == ("OP", 0, True)
    assert call(T.__getitem__, x, slice(None, n)) == ("OP", 0, True)
    assert call(T.__getitem__, x, (0, slice(None, 2), None, ...)) == ("OP", 0, False)
    assert call(T.__getitem__, x, i) == ("OP", 0, False)
    assert call(T.__setitem__, x, 0, 1.0)[:2] == ("OP", WRITES)
    assert call(x.__setitem__, 0, 1.0)[:2] == ("OP", WRITES)
    assert call(x.__getitem__, x > 0) == ("OP", 0, True)
    assert call(x.__getitem__, 0) == ("OP", 0, False)
    assert call([1].__getitem__, 0)[0] == call("a".__add__, "b")[0] == "NONE"
    assert call(F.zeros, (2, 3)) == ("OP", 0, False)
    assert call(F.zeros, (2, n)) == ("OP", 0, True)
    assert call(F.zeros, size=(n,)) == ("OP", 0, True)
    assert call(F.arange, n) == ("OP", 0, True)
    assert call(x.view, n, -1) == ("OP", 0, True)
    assert call(x.view, 2, -1) == ("OP", 0, False)
    assert call(T.view, x, 2, -1) == ("OP", 0, False)
    assert call(x.type) == ("META", 0, False)
    assert call(T.type, x) == ("META", 0, False)
    assert call(x.type, torch.float64)[0] == "OP"
    assert call(F.tensor, [1, 2.0, (3, True)]) == ("OP", 0, False)
    assert call(F.tensor, x)[0] == "OP"
    assert call(F.as_tensor, bytearray(4))[0] == "BREAK"
    assert call(x.add_, 1) == ("OP", WRITES, False)
    assert call(T.add_, x, 1) == ("OP", WRITES, False)
    numpy = pytest.importorskip("numpy")
    assert call(F.tensor, numpy.ones(2))[0] == "BREAK"
    assert call(F.tensor, [numpy.ones(2)])[0] == "BREAK"


def test_state_and_other_callables(tens):
    def cls(f, *args):
        return tens.call(f, args)["cls"]

    x = torch.randn(3)
    for f in (torch.is_grad_enabled, torch.is_inference_mode_enabled, C._get_tracing_state, C._is_tracing,
              C._get_cudnn_enabled, torch.is_autocast_enabled, torch.get_default_dtype, C._len_torch_function_stack):
        assert cls(f) == "STATE", f
    for f in (C._set_grad_enabled, torch.set_autocast_enabled, C.clear_autocast_cache):
        assert cls(f) == "SET_STATE", f
    assert cls(C._log_api_usage_once, "x") == "DROP"
    assert cls(C._has_torch_function_unary, x) == cls(C._has_torch_function_variadic, x) == "META"
    for f in (x.item, x.tolist, torch.Tensor.__bool__, x.__float__, torch.equal, torch.is_nonzero, x.numpy):
        assert cls(f, x) == "VALUE", f
    for f in (x.resize_, x.set_, x.data_ptr, torch.from_numpy, torch.set_num_threads,
              torch.default_generator.initial_seed, torch.autograd.Variable._execution_engine.run_backward, x.untyped_storage().data_ptr):
        c = tens.call(f, ())
        assert c["cls"] == "BREAK" and c["why"], f
    for f in (x.t_, x.unsqueeze_, x.squeeze_, x.detach_):
        c = tens.call(f, ())
        assert c["cls"] == "RESHAPES" and c["why"], f
    assert cls(torch._assert_async, x) == "ASSERT" and cls(torch.Generator) == "MAKE"
    for f in (torch.default_generator.manual_seed, torch.Generator().get_state, torch.Generator().set_state):
        c = tens.call(f, ())
        assert (c["cls"], c["flags"]) == ("OP", RANDOM), f
    assert cls(torch.Size([1, 2]).numel) == "META"
    for f in (len, abs, "x".join, dict.get, torch.nn.functional.relu, torch.Tensor.split, lambda: 0, 3):
        assert cls(f, x) == "NONE", f
    assert cls(torch.Tensor, x) == cls(torch.LongTensor, x) == "BREAK"  # the result shares x's memory
    assert cls(torch.Tensor, 2, 3) == cls(torch.LongTensor, [1, 2]) == "OP"
    c = tens.call(torch.ops.aten.add.Tensor._op, (x, x))
    assert c["cls"] == "UNKNOWN" and c["flags"] == WRITES | RANDOM | EFFECT
    assert tens.call(C._VariableFunctions.relu, (x,))["name"] == "torch.relu"
    assert tens.call(torch.Tensor.relu, (x,))["name"] == tens.call(x.relu, ())["name"] == "Tensor.relu"


def test_attributes(tens):
    x, w = torch.randn(3, 4), torch.randn(3, requires_grad=True)
    bad = []
    for name, d in vars(C.TensorBase).items():
        if type(d).__name__ != "getset_descriptor":
            continue
        c = tens.attr(x, name)
        if c["cls"] not in ("META", "OP", "BREAK", "HELD") or (c["cls"] in ("BREAK", "HELD")) != bool(c["why"]):
            bad.append((name, c))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                values = [getattr(t, name) for t in (x, torch.rand(3, 4))]
            except Exception:
                continue
        if c["cls"] == "META" and (isinstance(values[0], torch.Tensor) or repr(values[0]) != repr(values[1])):
            bad.append((name, "META", values))
        if c["cls"] == "OP" and not isinstance(values[0], torch.Tensor):
            bad.append((name, "OP", values))
    assert not bad
    for name in ("is_leaf", "grad_fn"):
        assert tens.attr(x, name)["cls"] == "META" and tens.attr(w, name)["cls"] == "BREAK"
    assert tens.attr(w, "requires_grad")["cls"] == "META"
    for name in ("relu", "__add__", "size", "split", "is_shared", "backward"):
        assert tens.attr(x, name)["cls"] == "META", name
    assert tens.attr(x, "foo")["cls"] == tens.attr(x, "__dict__")["cls"] == "UNKNOWN"
    x.foo, x.relu = 1, abs
    assert tens.attr(x, "foo")["cls"] == tens.attr(x, "relu")["cls"] == "UNKNOWN"
    assert tens.attr(x, "shape")["cls"] == "META"
    assert tens.attr(x, "".join(["sha", "pe"]))["cls"] == "META"   # not interned
    assert tens.attr(x, "__cuda_array_interface__")["cls"] == "NONE"
    assert tens.attr(torch.randn(1).as_subclass(Sub), "shape")["cls"] == "UNKNOWN"


# ---------------------------------------------------------------------------------------------- bindings

F, M, N = C._VariableFunctions, torch.Tensor, C._nn


def dims(mask, x):
    """The dims that a mask names, whose bit 0 is the last one."""
    return [d for d in range(x.dim()) if mask >> (x.dim() - 1 - d) & 1]


def sizes(s):
    """view_as and its like have a tensor that says the shape."""
    return s[0].shape if torch.is_tensor(s[0]) else s


def reshaped(a, s, f):
    """flatten has a row in common with it; its operands are the first and the last dim."""
    return a.flatten(*s) if not torch.is_tensor(s[0]) and s in ((0, -1), (1, -1)) else f(a, sizes(s))


def by_dims(f):
    return lambda x, mask, *rest: f(x, dims(mask, x), *rest)


def by_shape(f):
    return lambda x, mask, *rest: f(x, x.shape[x.dim() - mask.bit_length():], *rest)


# op -> how its operands make the result; ops not listed are torch functions of the same name
REPLAY = {
    "add": lambda a, b, c=1: torch.add(torch.as_tensor(a), b, alpha=c),
    "sub": lambda a, b, c=1: torch.sub(a, b, alpha=c) if torch.is_tensor(a) else torch.rsub(b, a, alpha=c),
    "rsub": lambda a, b, c=1: torch.rsub(a, b, alpha=c),
    "div_floor": lambda a, b: torch.floor_divide(a, b),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "relu6": torch.nn.functional.relu6, "leaky_relu": N.leaky_relu, "elu": N.elu, "gelu": N.gelu,
    "gelu_tanh": lambda a: N.gelu(a, approximate="tanh"), "silu": N.silu, "mish": N.mish, "softplus": N.softplus,
    "hardtanh": N.hardtanh, "hardsigmoid": N.hardsigmoid, "hardswish": N.hardswish, "logsigmoid": N.log_sigmoid,
    "reshape": lambda a, *s: reshaped(a, s, torch.Tensor.reshape),
    "cat": lambda *a: F.cat(a[:-1], a[-1]), "stack": lambda *a: F.stack(a[:-1], a[-1]),
    "lshift": F.bitwise_left_shift, "rshift": F.bitwise_right_shift, "linear": N.linear,
    "attention": lambda q, k, v, m, c, s, g: N.scaled_dot_product_attention(q, k, v, m, 0.0, c, scale=s, enable_gqa=g),
    **{op: by_dims(getattr(F, op)) for op in "sum mean any all logsumexp".split()},
    **{op: by_dims(lambda x, d, whole=0, f=getattr(F, op): f(x, d)) for op in "amax amin".split()},
    **{op: by_dims(lambda x, d, f=getattr(F, op): f(x, *d)) for op in "softmax log_softmax".split()},
    "prod": by_dims(lambda x, d: F.prod(x, *d) if len(d) == 1 else F.prod(x)),
    "var": by_dims(lambda x, d, c=1: F.var(x, d, correction=c)), "std": by_dims(lambda x, d, c=1: F.std(x, d, correction=c)),
    "norm": lambda x, b, mask: torch.linalg.vector_norm(x, b, dims(mask, x)),
    "layer_norm": by_shape(F.layer_norm), "rms_norm": by_shape(F.rms_norm),
    "addcmul": lambda a, b, c, d=1: torch.addcmul(a, b, c, value=d),
    "addcdiv": lambda a, b, c, d=1: torch.addcdiv(a, b, c, value=d),
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b, "bitwise_xor": lambda a, b: a ^ b,
    "mul": lambda a, b: a * b, "copy": torch.clone,
    "view": lambda a, *s: reshaped(a, s, torch.Tensor.view),
    "permute": lambda a, *d: a.permute(*d) if d else a.t(),
    "expand": lambda a, *s: a.expand(*sizes(s)), "slice": torch.narrow,
    "conv": lambda x, w, b, *i: replay_conv(x, w, b, *lists(x, i, 3)),
    "conv_transpose": lambda x, w, b, *i: replay_conv_transpose(x, w, b, i),
    "max_pool": lambda x, *i: replay_pool(getattr(F, f"max_pool{x.dim() - 2}d"), *lists(x, i, 4)),
    "avg_pool": lambda x, *i: replay_pool(getattr(torch.nn.functional, f"avg_pool{x.dim() - 2}d"), *lists(x, i, 3)),
    "pad": lambda x, *p: torch.nn.functional.pad(x, p[:-1], value=p[-1]),
    "adaptive_avg_pool": lambda x, *i: getattr(torch.nn.functional, f"adaptive_avg_pool{x.dim() - 2}d")(x, i),
    "batch_norm": lambda x, w, b, m, v, e: F.batch_norm(x, w, b, m, v, False, 0.0, e, False),
}


def lists(x, ints, n):
    """x, then `n` lists of as many ints as x has spatial dims, then the rest."""
    dims = x.dim() - 2
    return x, *(ints[dims * k : dims * (k + 1)] for k in range(n)), *ints[dims * n :]


def replay_conv(x, w, b, x_again, stride, padding, dilation, groups):
    return getattr(F, f"conv{x.dim() - 2}d")(x, w, b, stride, "same" if padding[0] < 0 else padding, dilation, groups)


def replay_conv_transpose(x, w, b, ints):
    x, stride, padding, more, groups, *dilation = lists(x, ints, 3)
    return getattr(F, f"conv_transpose{x.dim() - 2}d")(x, w, b, stride, padding, more, groups, dilation)


def replay_pool(f, x, kernel, stride, *rest):
    rest = rest[:-1] if f.__name__ == "avg_pool1d" else rest   # it has no divisor
    return f(x, kernel, stride if all(stride) else kernel, *rest)


def recurrent():
    """Of one layer and two, with biases and without."""
    x, kw = torch.randn(5, 2, 4), {"bidirectional": True}
    for op, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        f = getattr(F, op)
        h = torch.randn(2, 2, 3)
        hx = (h, torch.randn(2, 2, 3)) if op == "lstm" else h
        weights = [torch.randn(gates * 3, 4), torch.randn(gates * 3, 3), torch.randn(gates * 3), torch.randn(gates * 3)]
        below = [torch.randn(gates * 3, 3) for _ in range(2)]
        yield op, f, (x, hx, 2 * weights, True, 1, 0.5, False, True, False), {}
        yield op, f, (x.transpose(0, 1), hx, [*weights[:2], *below], False, 2, 0.0, False), {"bidirectional": False, "batch_first": True}
        yield op, f, (x, hx, 2 * weights, True, 1, 0, False), {**kw, "batch_first": False}


def replay_recurrent(op, *operands):
    numbers = operands[-4:]
    states = 2 if op == "lstm" else 1
    hx = operands[1:3] if op == "lstm" else operands[1]
    return getattr(F, op)(operands[0], hx, operands[1 + states : -4], *numbers[:2], 0.0, False, *numbers[2:])


def images():
    """Calls with lists of ints in all their forms."""
    for n, size in ((1, (12,)), (2, (9, 8)), (3, (5, 6, 7))):
        x, w, b = torch.randn(2, 4, *size), torch.randn(6, 4, *[3] * n), torch.randn(6)
        conv, back, pool = (getattr(F, f"{f}{n}d") for f in ("conv", "conv_transpose", "max_pool"))
        yield from (("conv", conv, (x, w), {}), ("conv", conv, (x, w, b, 2, 1), {}), ("conv", conv, (x, w, None, (2,) * n, [1] * n), {}),
                    ("conv", conv, (x, w[:, :2]), {"groups": 2, "dilation": 2, "padding": (2,)}),
                    ("conv_transpose", back, (x, w.transpose(0, 1)), {}),
                    ("conv_transpose", back, (x, w[:4], None, 2, 1, 1, 2), {"dilation": 2}),
                    ("max_pool", pool, (x, 2), {}), ("max_pool", pool, (x, [3] * n, 2, 1, 1, True), {}), ("max_pool", pool, (x, 3), {"stride": None}),
                    ("max_pool", pool, (x, 2), {"stride": (), "dilation": 2}))
        if n < 3:
            yield from (("conv", conv, (x, w), {"padding": "same"}), ("conv", conv, (x, w, b, 2, "valid"), {}))
        avg = F.avg_pool1d if n == 1 else getattr(N, f"avg_pool{n}d")
        yield from (("avg_pool", avg, (x, 2), {}), ("avg_pool", avg, (x, 3, 2, 1, True, False), {}), ("avg_pool", avg, (x, [2] * n, None), {}) if n > 1 else
                    ("avg_pool", avg, (x, 2, (2,)), {}))
        yield "adaptive_avg_pool", F.adaptive_avg_pool1d if n == 1 else getattr(N, f"adaptive_avg_pool{n}d"), (x, [2] * n), {}
        m, v = torch.randn(4), torch.rand(4) + 0.5
        yield "batch_norm", F.batch_norm, (x, None, m, m, v, False, 0.1, 1e-3, True), {}
    x = torch.randn(1, 2, 4, 4)
    yield from (("pad", N.pad, (x, (1, 2)), {}), ("pad", N.pad, (x, [0, 1, 2, -1], "constant", 3.5), {}), ("pad", N.pad, (x, (1, 1), "constant", 0), {}))
    yield "avg_pool", N.avg_pool2d, (torch.randn(1, 2, 4, 4), 2), {"divisor_override": 3}


def cases():
    torch.manual_seed(0)
    x, y, p = torch.randn(4, 6), torch.randn(4, 6), torch.rand(4, 6) + 0.5
    i, j = torch.randint(1, 9, (4, 6)), torch.randint(1, 5, (4, 6))
    b, d = x > 0, y > 0
    yield from (("add", F.add, (x, y), {}), ("add", F.add, (x, 2), {"alpha": 3}), ("add", M.add, (x, 1.5), {}),
                ("add", F.add, (x,), {"other": y}), ("add", F.add, (), {"input": x, "other": y, "alpha": 2}),
                ("add", x.__add__, (y,), {}), ("add", x.__radd__, (2,), {}), ("add", F.add, (x, i), {}),
                ("sub", F.sub, (x, y), {"alpha": 0.5}), ("sub", M.subtract, (x, 2), {}), ("rsub", F.rsub, (x, 2), {}),
                ("rsub", F.rsub, (x, y), {"alpha": 2}), ("mul", F.mul, (x, True), {}), ("mul", x.__rmul__, (3,), {}),
                ("div", F.div, (x, p), {}), ("div", F.div, (i, 2), {"rounding_mode": None}), ("div", M.true_divide, (i, j), {}),
                ("div_floor", F.div, (x, p), {"rounding_mode": "floor"}), ("div_floor", F.floor_divide, (i, 2), {}),
                ("div_trunc", M.div, (x, p), {"rounding_mode": "trunc"}), ("remainder", F.remainder, (x, 0.3), {}),
                ("fmod", F.fmod, (x, 0.3), {}), ("pow", F.pow, (2, x), {}), ("pow", M.pow, (p, 2), {}), ("pow", F.pow, (p, x), {}))
    for op in ("neg abs sign sqrt rsqrt reciprocal square exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh "
               "cosh tanh erf erfc sigmoid relu selu celu floor ceil round trunc frac isnan isinf isfinite logical_not").split():
        if hasattr(F, op):
            yield op, getattr(F, op), (x,), {}
            yield op, getattr(F, op), (), {"input": p}
        if hasattr(M, op):
            yield op, getattr(M, op), (p,), {}
            yield op, getattr(p, op), (), {}
    for alias, op in dict(negative="neg", absolute="abs", arcsin="asin", arccos="acos", arctan="atan", fix="trunc").items():
        yield op, getattr(F, alias), (x,), {}
    for s, op in dict(expit="sigmoid", exp2="exp2", expm1="expm1", log1p="log1p", erf="erf", erfc="erfc").items():
        yield op, getattr(C._special, "special_" + s), (p,), {}
    for op in ("atan2", "hypot", "xlogy", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge"):
        yield op, getattr(F, op), (p, y), {}
        yield op, getattr(M, op), (p, y), {}
    yield from (("maximum", F.max, (x, y), {}), ("minimum", M.min, (x, y), {}), ("eq", F.eq, (x, 0), {}), ("lt", x.__lt__, (0,), {}),
                ("ge", F.greater_equal, (x, y), {}), ("relu6", N.relu6, (x * 5,), {}), ("leaky_relu", N.leaky_relu, (x,), {}),
                ("leaky_relu", N.leaky_relu, (x, 0.2), {}), ("elu", N.elu, (x,), {}), ("elu", N.elu, (x, 2.0), {}),
                ("elu", N.elu, (x, 1.5, 1.2, 0.7), {}), ("gelu", N.gelu, (x,), {}), ("gelu", N.gelu, (x,), {"approximate": "none"}),
                ("gelu_tanh", N.gelu, (x,), {"approximate": "tanh"}), ("silu", N.silu, (x,), {}), ("mish", N.mish, (x,), {}),
                ("softplus", N.softplus, (x,), {}), ("softplus", N.softplus, (x, 2, 0.5), {}), ("celu", F.celu, (x, 0.5), {}),
                ("hardtanh", N.hardtanh, (x,), {}), ("hardtanh", N.hardtanh, (x, -0.5, 1.0), {}),
                ("hardtanh", N.hardtanh, (x,), {"max_val": 0.25}), ("hardsigmoid", N.hardsigmoid, (x,), {}),
                ("hardswish", N.hardswish, (x,), {}), ("logsigmoid", N.log_sigmoid, (x,), {}), ("threshold", F.threshold, (x, 0.1, 20.0), {}),
                ("clamp", F.clamp, (x, -0.5, 0.5), {}), ("clamp", F.clamp, (x,), {"max": 0.0}), ("clamp", M.clip, (x, 0), {}),
                ("clamp", F.clamp, (x, y), {}), ("clamp", F.clamp, (x, None, y), {}), ("clamp_min", F.clamp_min, (x, 0.0), {}),
                ("clamp_max", M.clamp_max, (x, y), {}), ("where", F.where, (b, x, y), {}), ("where", F.where, (b, 1.0, y), {}),
                ("where", F.where, (b, x, 0), {}), ("masked_fill", M.masked_fill, (x, b, -math.inf), {}),
                ("masked_fill", F.masked_fill, (x, b, torch.tensor(2.0)), {}), ("lerp", F.lerp, (x, y, 0.3), {}),
                ("lerp", M.lerp, (x, y, p), {}), ("addcmul", F.addcmul, (x, y, p), {"value": 0.5}), ("addcmul", F.addcmul, (x, y, p), {}),
                ("addcdiv", M.addcdiv, (x, y, p), {}), ("nan_to_num", F.nan_to_num, (x, 1.0), {}), ("nan_to_num", M.nan_to_num, (x,), {}),
                ("round", F.round, (x,), {"decimals": 0}))
    for op in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"):
        yield op, getattr(F, op), (b, d), {}
        yield op, getattr(M, op), (i, j), {}
    yield from (("bitwise_and", i.__and__, (1,), {}), ("bitwise_or", i.__ror__, (4,), {}), ("bitwise_not", F.bitwise_not, (i,), {}),
                ("bitwise_not", b.__invert__, (), {}), ("lshift", F.bitwise_left_shift, (i, 2), {}), ("rshift", i.__rshift__, (1,), {}))
    a, w, bias, e = torch.randn(3, 4, 6), torch.randn(5, 6), torch.randn(5), torch.randn(3, 6, 2)
    yield from (("linear", N.linear, (a, w), {}), ("linear", N.linear, (a, w, bias), {}), ("linear", N.linear, (a, w, None), {}),
                ("linear", N.linear, (a, w), {"bias": bias}), ("matmul", F.matmul, (a, e), {}), ("matmul", a.__matmul__, (e,), {}),
                ("mm", F.mm, (x, w.t()), {}), ("mm", M.mm, (x, w.t()), {}), ("bmm", F.bmm, (a, e), {}),
                ("addmm", F.addmm, (bias, x, w.t()), {}), ("addmm", F.addmm, (bias, x, w.t()), {"beta": 1, "alpha": 1.0}),
                ("softmax", F.softmax, (a, -1), {}), ("softmax", M.softmax, (a,), {"dim": 1}),
                ("log_softmax", F.log_softmax, (a, 0), {"dtype": None}), ("log_softmax", M.log_softmax, (a, -2), {}),
                ("layer_norm", F.layer_norm, (a, (6,), w[0], w[1], 1e-5, True), {}), ("layer_norm", F.layer_norm, (a, [4, 6]), {}),
                ("rms_norm", F.rms_norm, (a, (6,), w[0]), {}), ("rms_norm", F.rms_norm, (a, (4, 6), None, 1e-3), {}))
    for op in "sum mean amax amin any all var std".split():
        yield from ((op, getattr(F, op), (a,), {}), (op, getattr(M, op), (a, 1), {}), (op, getattr(F, op), (a, (0, -1)), {}),
                    (op, getattr(F, op), (a,), {"dim": [2], "keepdim": False}))
    yield from (("sum", F.sum, (a, 0), {"dtype": None}), ("amax", F.max, (a,), {}), ("amin", M.min, (a,), {}),
                ("max_dim", F.max, (a, 1), {}), ("min_dim", M.min, (a,), {"dim": -1, "keepdim": True}), ("sum", F.sum, (a[0, 0, 0],), {}),
                ("sum", F.sum, (a[0, 0, 0], 0), {}), ("any", M.any, (b, 0), {}), ("var", F.var, (a, 1), {"correction": 0}),
                ("var", F.var, (a, 1, False), {}), ("std", F.std, (a, (0, 1), True), {}), ("std", M.std, (a,), {"correction": 2}),
                ("prod", F.prod, (a,), {}), ("prod", F.prod, (a, 1), {}), ("logsumexp", F.logsumexp, (a, 1), {}),
                ("norm", torch.linalg.vector_norm, (a,), {}), ("norm", torch.linalg.vector_norm, (a, 1, (0, 2)), {}))
    attention, heads = N.scaled_dot_product_attention, a[:, None]
    yield from (("attention", attention, (heads, heads, heads), {}), ("attention", attention, (a, a, a, None, 0.0, True), {"scale": 0.3}),
                ("attention", attention, (heads, heads, heads), {"attn_mask": torch.zeros(4, 4), "enable_gqa": True}))
    yield from (("copy", M.clone, (x,), {}), ("copy", F.clone, (x,), {"memory_format": torch.preserve_format}),
                ("copy", x.t().contiguous, (), {}), ("view", x.view, (2, -1), {}), ("view", x.view, ((2, 12),), {}),
                ("view", x.view, (-1,), {}), ("view", M.reshape, (x, (3, 8)), {}), ("view", F.reshape, (x, (3, 8)), {}),
                ("view", F.flatten, (a,), {"start_dim": 1}), ("reshape", a.mT.reshape, (3, -1), {}), ("reshape", F.reshape, (a.mT, (18, 4)), {}),
                ("reshape", F.flatten, (a.mT, 1), {}), ("view", M.flatten, (a,), {}), ("transpose", a.transpose, (1, 2), {}),
                ("transpose", F.transpose, (a,), {"dim0": 0, "dim1": -1}), ("permute", a.permute, (2, 0, 1), {}), ("permute", x.t, (), {}), ("permute", F.t, (w,), {}),
                ("view", x.view_as, (torch.empty(2, 12),), {}), ("reshape", a.mT.reshape_as, (torch.empty(18, 4),), {}), ("expand", bias.expand_as, (torch.empty(2, 5),), {}),
                ("permute", F.permute, (a, (2, 0, 1)), {}), ("expand", bias.expand, (2, 5), {}), ("expand", bias.expand, (2, -1), {}),
                ("unsqueeze", F.unsqueeze, (x, 0), {}), ("squeeze", a[:1].squeeze, (0,), {}), ("select", x.select, (0, 2), {}),
                ("cat", F.cat, ([x, y],), {}), ("cat", F.concat, ((x, y), -1), {}), ("cat", F.concatenate, ([x],), {"dim": 1}),
                ("stack", F.stack, ([x, y],), {}), ("stack", F.stack, ((x, y, x),), {"dim": -2}),
                ("detach", M.detach, (x,), {}), ("slice", F.narrow, (x, 1, 2, 3), {}), ("slice", M.narrow, (x, 0, -1, 1), {}),
                ("split", F.split, (a, 2, 2), {}), ("split", F.split_with_sizes, (a, [1, 3], 1), {}),
                ("split", M.split_with_sizes, (a, [1, 2]), {}), ("split", F.chunk, (a, 2), {"dim": -1}), ("unbind", F.unbind, (a,), {}),
                ("unbind", M.unbind, (a, 1), {}))
    yield from images()
    yield from recurrent()


def same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(
        a.nan_to_num() if a.is_floating_point() else a, b.nan_to_num() if b.is_floating_point() else b)


def offsets(op, x, *operands):
    """Where ops.def says that the results of these rows begin, in elements; split's depend on what comes before."""
    if op == "slice":
        return [sum(x.stride(d) * (at % x.shape[d]) for d, at in zip(operands[::2], operands[1::2]))]
    return [k * x.stride(*operands) for k in range(x.shape[operands[0]])] if op == "unbind" else None


def test_bound_operands_replay(tens):
    seen, count = set(), 0
    for op, f, args, kw in cases():
        got = tens.bind(f, args, kw)
        where = (op, getattr(f, "__name__", f), [a if not torch.is_tensor(a) else a.shape for a in args], kw)
        assert got is not None and got[0] == op, (where, got)
        if op in ("max_dim", "min_dim"):   # kernels only take their values
            seen.add(op)
            x, mask = got[1]
            least = {"max_dim": F.amax, "min_dim": F.amin}[op](x, dims(mask, x))
            assert torch.equal(least, f(*args, **{**kw, "keepdim": False})[0])
            continue
        if op in ("slice", "split", "unbind"):
            seen.add(op)
            results = f(*args, **kw)
            results = results if isinstance(results, (tuple, list)) else [results]
            begin = offsets(op, *got[1])
            assert begin is None or [r.storage_offset() for r in results] == begin, where
            continue
        replay = REPLAY.get(op) or getattr(F, op)
        if op in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            replay = functools.partial(replay_recurrent, op)
        result = replay(*got[1])
        if op == "copy":   # its strides are the recorded result's
            result = result.contiguous()
        assert same(result, f(*args, **kw)), where
        seen.add(op)
        count += 1
    assert seen <= {r[0] for r in tens.bind_rows()}   # the others: test_every_row_is_bound
    assert count > 200


def test_every_row_is_bound(tens):
    """By a case of op_table.py: test_ops.py compares what it compiles to with eager."""
    seen = set()
    for row in op_table.ROWS:
        for name, case in itertools.product(row.names, row.cases):
            try:
                args, kwargs = case(op_table.Maker(row.dtypes[0], 1))
            except (RuntimeError, NotImplementedError, TypeError, KeyError):
                continue   # operands that this dtype does not have
            got = tens.bind(op_table.resolve(name), args, kwargs)
            seen |= {got[0]} if got else set()
    assert seen == {r[0] for r in tens.bind_rows()} - {"attention_dropout", "layers_dropout"}  # these: test_training*.py


def test_what_recurrent_rows_leave(tens):
    """Packed sequences; what dropout draws is a row of its own."""
    x, h, w = torch.randn(5, 4), torch.zeros(1, 2, 3), [torch.randn(12, 4), torch.randn(12, 3)]
    assert tens.bind(F.lstm, (x, torch.tensor([2, 2, 1]), (h, h), w, False, 1, 0.0, False, False)) is None
    for p, training, op in ((0.0, False, "lstm"), (0.5, False, "lstm"), (0.0, True, "lstm"), (0.5, True, "layers_dropout")):
        assert tens.bind(F.lstm, (x[:, None], (h, h), w, False, 1, p, training, False, False))[0] == op


def test_keepdim_and_dtype_are_no_operands(tens):
    x = torch.randn(4, 6)
    for f, args, kw, mask in ((F.sum, (x, 0, True), {}, 2), (F.sum, (x, (0, 1)), {"keepdim": True}, 3), (F.mean, (x,), {"dtype": torch.float64}, 3),
                              (F.softmax, (x, 1), {"dtype": torch.float64}, 1), (F.var, (x, 1, True, True), {}, 1)):
        assert tens.bind(f, args, kw)[1] == [x, mask]


def test_cast_binds(tens):
    x = torch.randn(4, 6)
    for name in "float double half bfloat16 int long short char byte bool".split():
        assert tens.bind(getattr(x, name), ()) == ("cast", [x])
    for args, kw in (((torch.float64,), {}), (("cpu", torch.float64), {}), ((torch.device("cpu"), torch.float64), {}),
                     ((), {"dtype": torch.float64}), ((), {"dtype": torch.float64, "device": "cpu"}),
                     ((torch.float64,), {"non_blocking": True}), ((torch.float64, False, False), {})):
        op, operands = tens.bind(x.to, args, kw)
        assert op == "cast" and operands[0] is x and len(operands) == 1
    assert tens.bind(x.to, (x.double(),))[0] == tens.bind(x.type_as, (x.double(),))[0] == "cast_like"
    for args, kw in ((("cpu",), {}), (("meta", torch.float64), {}), ((x, False, True), {}), ((torch.float64,), {"copy": True}), ((), {})):
        assert tens.bind(x.to, args, kw) is None


def test_fill_binds(tens):
    x = torch.randn(4, 6)
    f32 = torch.float32
    for f, args, kw, value in ((F.zeros, (2, 3), {}, 0), (F.zeros, ((2, 3),), {"dtype": f32, "device": "cpu"}, 0), (F.ones, (2,), {}, 1),
                               (F.full, ((2, 3), 1.5), {}, 1.5), (F.full, ((2,), True), {}, True), (F.full_like, (x, 2), {}, 2),
                               (F.zeros_like, (x,), {"dtype": f32}, 0), (F.ones_like, (x,), {}, 1), (x.new_zeros, (2, 3), {}, 0),
                               (x.new_ones, ((2, 3),), {}, 1), (x.new_full, ((2,), 7.0), {}, 7.0), (M.new_zeros, (x, 2), {}, 0)):
        op, operands = tens.bind(f, args, kw)
        assert op in ("fill", "fill_like") and operands[-1] == value and type(operands[-1]) is type(value)
        assert (f(*args, **kw) == value).all()
    assert tens.bind(F.zeros, (2,), {"requires_grad": True}) is None
    assert tens.bind(F.full, ((2,), torch.tensor(1.0))) is None
    assert tens.bind(F.zeros, ((2, torch.tensor(3)),)) is None


OPERATORS = "add and floordiv lshift matmul mul mod or pow rshift sub truediv xor".split()   # CcBinop's order


def test_operator_binds(tens):
    import operator

    x, y, i, j = torch.randn(4, 4), torch.rand(4, 4) + 0.5, torch.randint(1, 9, (4, 4)), torch.randint(1, 4, (4, 4))
    for number, name in enumerate(OPERATORS):
        f = getattr(operator, name + "_" if name in ("and", "or") else name)
        integer = name in ("and", "or", "xor", "lshift", "rshift")
        a, b = (i, j) if integer else (y, y)
        pairs = [(a, b), (a, 2), (2, b)] + ([] if integer else [(a, 0.5)])
        if name == "matmul":
            pairs = [(a, b)]
        for left, right in pairs:
            got = tens.bind_binop(number, left, right)
            if name == "truediv" and not torch.is_tensor(left):
                assert got is None   # torch computes a reciprocal and a product
                continue
            op, operands = got
            replay = REPLAY.get(op) or getattr(F, op)
            assert same(replay(*operands), f(left, right)), (name, left, right)
        in_place = tens.bind_binop(number, a, b, True)   # the same op: the node says that it writes
        assert in_place is None if name == "matmul" else in_place == tens.bind_binop(number, a, b)
        assert tens.bind_binop(number, 2, b, True) == tens.bind_binop(number, 2, b)   # total = 0; total += x
        for other in (None, "x", [1], 2**70, 1j, torch.randn(2).as_subclass(Sub)):
            assert tens.bind_binop(number, a, other) is None
    for number, name in enumerate("lt le eq ne gt ge".split()):
        for left, right in ((x, y), (x, 0), (0, x), (0.5, x)):
            op, operands = tens.bind_compare(number, left, right)
            assert same(getattr(F, op)(*operands), getattr(operator, name)(left, right))
        assert tens.bind_compare(number, x, None) is None and tens.bind_compare(number, 1, 2) is None
    assert tens.bind_unary("-", x)[0] == "neg" and tens.bind_unary("~", i)[0] == "bitwise_not"
    assert tens.bind_unary("+", x) is None and tens.bind_unary("-", 3) is None


def test_unbound_calls(tens):
    x, i = torch.randn(4, 6), torch.tensor([1, 2])
    for f, args, kw in ((F.add, (x, x), {"out": x}), (F.max, (x, x, 1), {}), (F.sum, (x, 2), {}), (F.sum, (x, (0, x)), {}), (F.layer_norm, (x, (2, 4, 6)), {}), (F.where, (x > 0,), {}),
                        (F.round, (x,), {"decimals": 2}), (x.view, (torch.int32,), {}),
                        (F.add, (x, "a"), {}), (F.add, (x, 1j), {}), (F.add, (x, 2**70), {}),
                        (F.add, (x, x), {"alpha": x}), (F.add, (x,), {}), (F.add, (x, x, x, x), {}), (x.addmm_, (x, x), {}),
                        (F.relu, (x.as_subclass(Sub),), {}), (F.relu, (3,), {}), (len, (x,), {}),
                        (F.add, (x, x), {"wrong": 1}), (F.add, (x, x), {"input": x}), (F.full, ((2, 2), "x"), {}),
                        (F.div, (x, x), {"rounding_mode": "up"}), (F.narrow, (x, 0, i[0], 1), {}), (N.gelu, (x,), {"approximate": "?"})):
        assert tens.bind(f, args, kw) is None, (f, args, kw)
    image, weight = torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3)
    for f, args, kw in ((F.conv2d, (image, weight), {"stride": (1, 1, 1)}), (F.conv2d, (image, weight), {"stride": 1.0}),
                        (F.conv2d, (image, weight), {"padding": "?"}), (F.conv2d, (image, weight, 1), {"groups": None}),
                        (F.max_pool2d, (image, ()), {}), (F.max_pool2d, (image, (2, True)), {}), (N.adaptive_avg_pool2d, (image, (None, 1)), {}),
                        (F.batch_norm, (image, None, None, None, None, False, 0.1, 1e-5, True), {})):
        assert tens.bind(f, args, kw) is None, (f, args, kw)


def test_in_place_forms(tens):
    """A pointwise op's name with '_' behind it binds to the same row."""
    x = torch.rand(4, 6)
    for op, f, args in (("relu", F.relu_, (x,)), ("relu", x.relu_, ()), ("add", x.add_, (x,)), ("mul", x.mul_, (2,)), ("relu6", N.relu6_, (x,)),
                        ("leaky_relu", N.leaky_relu_, (x, 0.2)), ("silu", N.silu_, (x,)), ("clamp", x.clamp_, (0, 1)), ("div", x.div_, (x,))):
        assert tens.bind(f, args)[0] == op


def test_bind_rows_have_ops(tens):
    rows = tens.bind_rows()
    assert [r for r in rows if not r[1]] == []
    missing = [(op, c) for op, _, names in rows for c in names.split() for space in c.split(":")[0]
               if not hasattr({"F": F, "M": M, "N": N, "S": C._special, "L": C._linalg, "O": operator, "B": builtins}[space], {"S": "special_", "L": "linalg_"}.get(space, "") + c.split(":")[1])]
    assert missing == []


def test_init_time(tens):
    assert tens.init_ms > 0
