"""Builds the core half as a shared library and drives it from torch; running torch eagerly records the graphs."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "-std=gnu11 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Wshadow -Wstrict-prototypes "
    "-Wmissing-prototypes -Wvla -Werror -DCC_DEBUG=2"
).split()
COMPILER = shlex.split(os.environ.get("CC", "cc"))
DIRS = ("base", "ir", "pass", "grad", "loop", "gen", "dev", "run")
PASSES = re.findall(r"^CC_PASS\((\w+),", (ROOT / "csrc/pass/pass.def").read_text(), flags=re.M)
WRITES, RANDOM, EFFECT = 1, 2, 4
NONE, VALUE, INT, FLOAT, BOOL, NUMBER = range(6)
# Memory layouts of a tensor of three dims (the last two at least 5 and 37).
LAYOUTS = {
    "transposed": lambda t: t.transpose(-1, -2),
    "sliced": lambda t: t[..., 1::2],
    "offset": lambda t: t[:, 1:, 3:],
    "permuted": lambda t: t.permute(2, 0, 1),
    "expanded": lambda t: t[:, :1].expand(-1, 5, -1),
    "column": lambda t: t[:, :, :1],
    "channels_last": lambda t: t.movedim(-1, 1),
}
c = ctypes


class Operand(c.Structure):
    _fields_ = [("kind", c.c_int), ("value", c.c_int32), ("i", c.c_int64), ("f", c.c_double)]


class Options(c.Structure):
    _fields_ = [("host_only", c.c_bool), ("no_llvm", c.c_bool), ("no_dnnl", c.c_bool), ("default_dtype", c.c_uint8),
                ("autotune", c.c_bool), ("measures", c.c_bool), ("ordered", c.c_bool), ("fills", c.c_bool),
                ("convolves", c.c_bool), ("no_library", c.c_bool)]  # fmt: skip


class Stats(c.Structure):
    _fields_ = [
        *((name, c.c_int) for name in "steps host_steps kernels primitives fused_nodes launches".split()),
        *((name, c.c_double) for name in "compile_ms passes_ms kernels_ms primitives_ms".split()),
        *((name, c.c_int64) for name in "block_bytes apart_bytes".split()),
    ]


class Type(c.Structure):
    _fields_ = [
        ("dtype", c.c_uint8),
        ("ndim", c.c_int8),
        ("device", c.c_uint8),
        ("device_index", c.c_uint8),
        ("requires_grad", c.c_uint8),
        ("size", c.c_int64 * 8),
        ("stride", c.c_int64 * 8),
    ]


class Val(c.Structure):
    _fields_ = [("type", Type), ("def_", c.c_int32), ("frozen", c.c_uint8), ("is_output", c.c_uint8)]


class OpInfo(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("kind", c.c_int),
        ("operand", c.c_void_p),
        ("promote", c.c_char_p),
        ("expr", c.c_char_p),
        ("doc", c.c_char_p),
    ]


DATA = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_int)
CALL = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int)
VERSION = c.CFUNCTYPE(c.c_uint64, c.c_void_p, c.c_int)
WRITING = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_int, c.c_bool)
NUMBER_OF = c.CFUNCTYPE(c.c_double, c.c_void_p, c.c_int)
STREAM = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.POINTER(c.c_void_p))
DRAW = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_double, c.c_void_p, c.c_int64)
BLOCK = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_int, c.c_int64, c.POINTER(c.c_void_p))
UNBLOCK = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)
DROP = c.CFUNCTYPE(None, c.c_void_p, c.c_int)


class Host(c.Structure):
    _fields_ = [("ctx", c.c_void_p), ("data", DATA), ("make", DATA), ("call", CALL), ("draw", DRAW), ("convolve", CALL), ("version", VERSION), ("writing", WRITING), ("number", NUMBER_OF),
                ("stream", STREAM), ("block", BLOCK), ("unblock", UNBLOCK), ("drop", DROP)]  # fmt: skip


def sources() -> list[Path]:
    found = [p for d in DIRS for p in sorted((ROOT / "csrc" / d).glob("*.c")) if p.name != "compiler.c"]
    return [*found, ROOT / "tests/core/coretest.c"]


def compile_one(source: Path, out: Path, text: str | None = None) -> None:
    """text: in place of the file, beside which its headers are found."""
    where = ["-x", "c", "-", "-w"] if text is not None else [str(source)]
    subprocess.run([*COMPILER, *FLAGS, "-c", *where, "-o", str(out)], input=text, text=True, check=True, cwd=source.parent)


def compile_all(folder: Path) -> dict[Path, Path]:
    """-> the object of each source"""
    objects = {p: folder / f"{p.parent.name}-{p.stem}.o" for p in sources()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda item: compile_one(*item), objects.items()))
    return objects


def link(objects: Iterable[Path], out: Path) -> Path:
    subprocess.run([*COMPILER, "-shared", "-o", str(out), *map(str, objects), "-lm", "-ldl", "-lpthread"], check=True)
    return out


def build(folder: Path) -> Path:
    return link(compile_all(folder).values(), folder / "core.so")


def nvrtc() -> str | None:
    """Path of NVRTC, of any version, from NVIDIA's wheels."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    found = [p for folder in spec.submodule_search_locations for p in Path(folder).glob("*/lib/libnvrtc.so.*")] if spec else []
    return str(sorted(found)[-1]) if found else None


def libraries() -> tuple[str | None, str | None]:
    """llvmlite's and oneDNN's, where the package finds them."""
    from ccompile import _setup

    return _setup.find_llvmlite(), _setup.find_onednn()


def load(path: Path) -> c.CDLL:
    lib = c.CDLL(str(path))
    p = c.c_void_p
    for name, res, args in [
        ("t_graph_new", p, []),
        ("t_graph_free", None, [p]),
        ("t_input", c.c_int, [p, c.c_int, c.c_int, p, p]),
        ("t_node", c.c_int, [p, c.c_char_p, c.c_uint, c.c_int, p, c.c_int, c.c_int, c.c_int, p, p]),
        ("t_output", None, [p, c.c_int]),
        ("t_val", c.POINTER(Val), [p, c.c_int]),
        ("t_operand_at", c.POINTER(Operand), [p, c.c_int]),
        ("t_infer", c.c_bool, [p, c.c_int, p, c.POINTER(Type)]),
        ("t_check", c.c_int, [p, c.c_char_p, c.c_int]),
        ("t_compile", p, [p, p, c.c_char_p, c.c_int]),
        ("t_exec", c.c_int, [p, p, p, c.c_char_p, c.c_int]),
        ("t_free", None, [p]),
        ("t_map", c.c_int64, [p, c.c_int, p]),
        ("t_stats", None, [p, p]),
        ("t_graph_text", p, [p]),
        ("t_graph_read", p, [c.c_char_p, c.c_char_p, c.c_int]),
        ("t_plan_text", p, [p]),
        ("t_describe", p, []),
        ("t_release", None, [p]),
        ("t_libraries", None, [c.c_char_p, c.c_char_p, c.c_char_p]),
        ("t_place", c.c_int, [p, c.c_int, c.c_int, c.c_int]),
        ("t_cubin", c.c_int64, [c.c_char_p, c.c_int, c.c_char_p, c.c_int]),
        ("t_cuda", c.c_int, [c.c_int, c.c_char_p, c.c_char_p, c.c_int, c.c_int, p, c.c_char_p, c.c_int]),
        ("t_threads", None, [c.c_int]),
        ("t_dtype", c.c_int, [c.c_char_p]),
        ("t_events", c.c_uint64, [c.c_int]),
        ("t_keep", c.c_bool, []),
        ("t_last_event", c.c_int, [c.c_char_p, c.c_int]),
        ("t_op", c.POINTER(OpInfo), [c.c_int]),
        ("t_op_rows", c.c_int, []),
        ("t_grad", c.c_int, [c.c_char_p, c.c_int, p]),
        ("t_formula_grad", c.c_int, [p, c.c_int, c.c_int]),
        ("t_formula_tensors", c.c_int, [c.c_int]),
        ("t_formula_operands", c.c_int, [c.c_int]),
        ("t_formula_name", c.c_char_p, [c.c_int]),
        ("t_formula_point", c.c_double, [c.c_int, c.c_int, c.c_int]),
        ("t_formula_learn", None, [c.c_int, p]),
        ("t_formula_forget", None, []),
        ("t_grad_reads", c.c_bool, [p, c.c_int, c.c_int, c.c_int]),
        ("t_op_init", c.c_int, [c.c_char_p, c.c_int]),
        ("t_bench", c.c_double, [p, p, c.c_int]),
        ("t_steps", c.c_int, [p]),
        ("t_is_kernel", c.c_bool, [p, c.c_int]),
        ("t_loop_text", p, [p, c.c_int]),
        ("t_cuda_prelude", p, []),
        ("t_cuda_text", p, [p, c.c_int, p, c.c_char_p]),
        ("t_cuda_launch", None, [p, c.c_int, p, c.c_int, p]),
        ("t_cuda_bind", None, [p, c.c_int, p, c.c_int, p, p, c.c_int]),
    ]:
        fn = getattr(lib, name)
        fn.restype, fn.argtypes = res, args
    llvm, dnnl = libraries()
    cuda = nvrtc()
    lib.t_libraries(llvm and llvm.encode(), dnnl and dnnl.encode(), cuda and cuda.encode())
    lib.t_threads(torch.get_num_threads())
    return lib


def run_child(lib: c.CDLL, environment: dict[str, str], file: str, chosen: str) -> None:
    """Runs a test file's chosen tests in a child process with this environment, on the library built here."""
    if os.environ.get("CCOMPILE_CORE_CHILD"):
        pytest.skip("this is the child")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--noconftest", "-p", "no:cacheprovider", file, "-k", chosen],
        env={**os.environ, **environment, "CCOMPILE_CORE_CHILD": "1", "CCOMPILE_CORE_LIB": lib._name},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def i64s(values):
    return (c.c_int64 * max(len(values), 1))(*values)


class Graph:
    """A graph recorded by execution: `op` calls the torch function and adds the node."""

    def __init__(self, lib):
        self.lib = lib
        self.g = lib.t_graph_new()
        self.calls = []  # node -> (function, operands)
        self.eager = {}  # value -> eager's tensor
        self.inputs = {}  # value -> tensor
        self.plan = None
        self.outputs = []
        self.numbers = []  # current values of the host's numbers
        self.gpu = None  # index of the GPU for new values; None: the CPU
        self.streams = {}  # GPU -> its current stream
        self.blocks = []  # (GPU, bytes) of each allocated block

    def __del__(self):
        if self.plan:
            self.lib.t_free(self.plan)
        self.lib.t_graph_free(self.g)

    def text(self, pointer):
        out = c.string_at(pointer).decode()
        self.lib.t_release(pointer)
        return out

    def __str__(self):
        return self.text(self.lib.t_graph_text(self.g))

    def plan_text(self):
        return self.text(self.lib.t_plan_text(self.plan))

    def describe(self, t):
        dt = self.lib.t_dtype(str(t.dtype).split(".")[1].encode())
        return dt, t.dim(), i64s(t.shape), i64s(t.stride())

    def placed(self, v):
        return v if self.gpu is None else self.lib.t_place(self.g, v, 2, self.gpu)

    def input(self, t):
        v = self.placed(self.lib.t_input(self.g, *self.describe(t)))
        self.eager[v] = self.inputs[v] = t
        return V(self, v)

    def number(self, x):
        """A host number; a test may change `numbers` before each run."""
        self.numbers.append(x)
        return Number(len(self.numbers) - 1)

    def perform(self, fn, operands, live):
        return fn(*[live[o.v] if isinstance(o, V) else self.numbers[o.i] if isinstance(o, Number) else o for o in operands])

    def op(self, name, fn, *operands, flags=0, result=None):
        """operands: V, numbers or None, in the op row's order; fn receives tensors in place of V."""
        ops = (Operand * max(len(operands), 1))()
        for i, o in enumerate(operands):
            if isinstance(o, V):
                ops[i].kind, ops[i].value = VALUE, o.v
            elif isinstance(o, Number):
                ops[i].kind, ops[i].value = NUMBER, o.i
            elif o is None:
                ops[i].kind = NONE
            elif isinstance(o, bool):
                ops[i].kind, ops[i].i = BOOL, int(o)
            elif isinstance(o, int):
                ops[i].kind, ops[i].i = INT, o
            else:
                ops[i].kind, ops[i].f = FLOAT, o
        r = self.perform(fn, operands, self.eager)
        v = self.lib.t_node(
            self.g, name.encode(), flags, len(self.calls), ops, len(operands), *self.describe(r)
        )
        self.placed(v)
        self.calls.append((fn, operands, v))
        self.eager[v] = r
        return V(self, v)

    def out(self, *values):
        for x in values:
            self.lib.t_output(self.g, x.v)
            self.outputs.append(x.v)
        return self

    def check(self):
        text = c.create_string_buffer(300)
        status = self.lib.t_check(self.g, text, 300)
        return status, text.value.decode()

    def compile(self, **options):
        options.setdefault("default_dtype", self.lib.t_dtype(b"float32"))
        text = c.create_string_buffer(300)
        o = Options(**options)
        if self.plan:
            self.lib.t_free(self.plan)
        self.plan = self.lib.t_compile(self.g, c.byref(o), text, 300)
        assert self.plan, text.value.decode()
        return self

    def stats(self):
        s = Stats()
        self.lib.t_stats(self.plan, c.byref(s))
        return s

    def run(self, inputs=None):
        """Runs the plan -> outputs. self.dropped lists dropped values, self.called nodes that the host ran, self.written
        writes to existing memory: (value, node)."""
        live = dict(self.inputs if inputs is None else inputs)
        self.dropped, self.called, self.made, self.written = [], [], [], []
        errors = []

        def guard(default):
            def wrap(fn):
                def inner(*args):
                    try:
                        return fn(*args)
                    except Exception as e:  # ctypes would print and ignore it
                        errors.append(e)
                        return default

                return inner

            return wrap

        @guard(0)
        def data(_, v):
            return live[v].data_ptr() or 64

        @guard(0)
        def make(_, v):
            t = self.eager[v]
            live[v] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
            self.made.append(v)
            return live[v].data_ptr() or 64

        @guard(-1)
        def call(_, node):
            fn, operands, v = self.calls[node]
            self.called.append(node)
            live[v] = self.perform(fn, operands, live)
            return 0

        @guard(None)
        def drop(_, v):
            self.dropped.append(v)
            del live[v]

        @guard(0)
        def version(_, v):
            return live[v]._version

        held = {}

        @guard(-1)
        def writing(_, v, node, counted):
            self.written.append((v if counted else -1, node))
            return 0

        @guard(-1)
        def stream(_, device, out):
            out[0] = self.streams.get(device, 0)
            return 0

        @guard(0)
        def block(_, device, size, out):
            self.blocks.append((device, size))
            t = torch.full((size,), 0xFF, dtype=torch.uint8)
            out[0] = t.data_ptr()
            held[t.data_ptr()] = t
            return t.data_ptr()

        @guard(None)
        def unblock(_, at):
            del held[at]

        @guard(0.0)
        def number(_, i):
            return self.numbers[i]

        host = Host(None, DATA(data), DATA(make), CALL(call), DRAW(), CALL(), VERSION(version), WRITING(writing), NUMBER_OF(number),
                    STREAM(stream), BLOCK(block), UNBLOCK(unblock), DROP(drop))  # fmt: skip
        text = c.create_string_buffer(300)
        step = c.c_int(-1)
        status = self.lib.t_exec(self.plan, c.byref(host), c.byref(step), text, 300)
        self.steps_done = step.value
        assert not held
        if errors:
            raise errors[0]
        if status < 0:
            raise RuntimeError(text.value.decode())
        return [live[v] for v in self.outputs]

    def bench(self, runs=1000):
        tensors = {v: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for v, t in self.eager.items()}
        tensors.update(self.inputs)
        data = (c.c_void_p * (max(tensors) + 1))()
        for v, t in tensors.items():
            data[v] = t.data_ptr()
        return self.lib.t_bench(self.plan, data, runs)


class Number:
    def __init__(self, i):
        self.i = i


class V:
    def __init__(self, graph, v):
        self.graph, self.v = graph, v
