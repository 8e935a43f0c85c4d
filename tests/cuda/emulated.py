"""CUDA without a GPU: builds driver.cc as NVRTC and the driver into a folder, for CCOMPILE_CUDA_PATH."""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++17", "-O0", "-fPIC", "-w"]   # of programs, as driver.cc compiles them


def compiler():
    return os.environ.get("CXX") or "c++"


def build(folder):
    """-> the folder. emulation.h is compiled beforehand, as it stands before each program."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    subprocess.run([compiler(), "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden",
                    "-o", str(library), str(HERE / "driver.cc"), "-ldl"], check=True)  # fmt: skip
    shutil.copy(library, folder / "libnvrtc.so.12")
    builtins = "libnvrtc-builtins.so.12.99"
    subprocess.run([compiler(), "-shared", f"-Wl,-soname,{builtins}", "-x", "c++", "/dev/null", "-o", str(folder / builtins)], check=True)
    shutil.copy(HERE / "emulation.h", folder)
    header = folder / "emulation.h"
    subprocess.run([compiler(), *FLAGS, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    return folder


def environment(folder, **more):
    """Of a process that is to use it."""
    return {**os.environ, "CCOMPILE_CUDA_PATH": str(folder), "CCOMPILE_CACHE_DIR": str(Path(folder) / "cache"), **more}
