"""Prints the kernels of recorded graphs as CUDA C, and makes them run on the CPU (emulation.h), or compiles them by NVRTC."""

from __future__ import annotations

import ctypes
import glob
import hashlib
import os
import re
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
PARTS = 4
PROCESSORS = 4  # few, so that small tensors have several blocks and waves
c = ctypes


class Tuning(c.Structure):
    _fields_ = [("threads", c.c_int), ("vector", c.c_int)]


class Part(c.Structure):
    _fields_ = [("grid", c.c_int64), ("threads", c.c_int), ("shared", c.c_int)]


class Launch(c.Structure):
    _fields_ = [("n", c.c_int), ("part", Part * PARTS), ("workspace", c.c_int64), ("tuning", Tuning)]


class Kernel:
    def __init__(self, plan, step, tuning, text):
        self.plan, self.step, self.tuning, self.text = plan, step, tuning, text
        self.name = "k" + hashlib.sha1(text.encode()).hexdigest()[:12]
        self.program = text.replace("KERNEL", self.name)


def kernels_of(g, tuning=None):
    """Of the steps of a graph's plan that are kernels: (kernels, reasons of those that are refused)."""
    kernels, refused = [], []
    tuning = tuning and Tuning(*tuning)
    for step in range(g.lib.t_steps(g.plan)):
        if not g.lib.t_is_kernel(g.plan, step):
            continue
        text = g.text(g.lib.t_cuda_text(g.plan, step, tuning and c.byref(tuning), b"KERNEL"))
        if text.startswith("!"):
            refused.append(text[1:])
        else:
            kernels.append(Kernel(g.plan, step, tuning, text))
    return kernels, refused


def program(lib, kernels):
    """Equal texts are one kernel."""
    pointer = lib.t_cuda_prelude()
    prelude = c.string_at(pointer).decode()
    lib.t_release(pointer)
    return prelude + "".join({k.name: k.program for k in kernels}.values())


def emulated(source, folder, name="program", flags=("-O0",)):
    path, out = folder / f"{name}.cu", folder / f"{name}.so"
    path.write_text(source)
    cxx = os.environ.get("CXX", "g++")
    command = [cxx, "-x", "c++", "-std=c++17", *flags, "-shared", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas"]
    subprocess.run([*command, "-include", str(HERE / "emulation.h"), str(path), "-o", str(out)], check=True)
    return c.CDLL(str(out))


def bind(lib, kernels, so, order=0, processors=PROCESSORS):
    """The plans' steps run these kernels from here on."""
    for k in kernels:
        tuning = k.tuning and c.byref(k.tuning)
        names = [f"{k.name}_{i}" for i in range(PARTS)]
        parts = (c.c_void_p * PARTS)(*(c.cast(getattr(so, n), c.c_void_p) if f" {n}(" in k.program else None for n in names))
        lib.t_cuda_bind(k.plan, k.step, tuning, processors, c.cast(so.cc_emulation_launch, c.c_void_p), parts, order)


# ------------------------------------------------------------------------------------------------ NVRTC


def nvrtc():
    """The library, from the package that has it; None: not installed."""
    folder = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = sorted(glob.glob(str(folder / "*" / "lib" / "libnvrtc.so.*")))
    return c.CDLL(found[-1]) if found else None


def compiled(library, source, arch, name="program.cu"):
    """(machine code, or PTX for "compute_90", log); the log has ptxas' figures of each kernel."""
    handle, size = c.c_void_p(), c.c_size_t()
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--fmad=false", "--ptxas-options=-v"]
    flags = (c.c_char_p * len(options))(*(o.encode() for o in options))
    assert library.nvrtcCreateProgram(c.byref(handle), source.encode(), name.encode(), 0, None, None) == 0
    status = library.nvrtcCompileProgram(handle, len(options), flags)
    library.nvrtcGetProgramLogSize(handle, c.byref(size))
    log = c.create_string_buffer(size.value + 1)
    library.nvrtcGetProgramLog(handle, log)
    log = log.value.decode(errors="replace")
    assert status == 0, log
    what = "PTX" if arch.startswith("compute") else "CUBIN"
    getattr(library, f"nvrtcGet{what}Size")(handle, c.byref(size))
    code = c.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(handle, code)
    library.nvrtcDestroyProgram(c.byref(handle))
    return code.raw, log


def resources(log):
    """kernel -> (registers, bytes spilled, bytes of its stack)"""
    found = {}
    for name, text in re.findall(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", log, flags=re.S):
        registers = re.search(r"Used (\d+) registers", text)
        spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", text)
        found[name] = (int(registers[1]) if registers else 0, int(spills[2]) if spills else 0, int(spills[1]) if spills else 0)
    return found
