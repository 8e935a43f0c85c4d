"""Runs at import: checks that this interpreter and torch are supported, locates libraries, and calls _core.init.

Takes a few ms besides torch's own import, since it only locates libraries and loads none."""

import os
import platform
import sys

SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))
TORCH = (2, 10)


def load() -> None:
    """Checks the environment and initialises _core. Raises an ImportError that says what is supported."""
    problem = refusal(sys.implementation.name, sys.version_info[:2], getattr(sys, "_is_gil_enabled", lambda: True)())
    if problem:
        raise ImportError(problem)

    import torch

    problem = torch_refusal(torch.__version__)
    if problem:
        raise ImportError(problem)
    try:
        from . import _core
    except ImportError as error:
        if "_core" not in str(error) or ("partially initialized" not in str(error) and "No module" not in str(error)):
            raise
        raise ImportError(
            "ccompile._core is not built for this interpreter: run `pip install -e . --no-build-isolation` "
            "in ccompile's source folder"
        ) from error
    _core.init(
        torch,
        llvmlite=find_llvmlite(),
        onednn=find_onednn(),
        nvrtc=find_nvrtc(torch.version.cuda),
        compiler=os.path.join(os.path.dirname(os.path.abspath(_core.__file__)), "_compiler"),
    )
    ask_mkl(torch)


def ask_mkl(torch) -> None:
    """Makes MKL's vector math detect the CPU in a single thread, because that detection has a race.

    The first call runs mkl_vml_serv_cpu_detect, which stores the raw CPU type before it translates it to an index of
    code variants. If two threads make the first call at once, as torch.tanh does for 2145 elements, one of them may use
    the raw number as the index and run a variant of low accuracy once: on Intel CPUs with AVX-512 that of VML_EP, with
    errors of 1e-4."""
    with torch.no_grad():
        torch.zeros(1, dtype=torch.float32, device="cpu").tanh()


def refusal(implementation: str, version: tuple, gil: bool = True) -> str | None:
    """Why this interpreter is not supported; None: it is."""
    if implementation != "cpython":
        return f"ccompile needs CPython 3.11 to 3.14: it owns CPython's frames. This is {implementation}."
    if tuple(version) not in SUPPORTED:
        return f"ccompile supports CPython 3.11 to 3.14; this is CPython {version[0]}.{version[1]}."
    if not gil:
        return "ccompile does not support free-threaded CPython yet; run it with the GIL."
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"ccompile supports x86-64 Linux; this is {sys.platform} on {platform.machine()}."
    return None


def torch_refusal(version: str) -> str | None:
    """Why this torch is not supported; None: it is. A version that can't be parsed (a private build) is accepted."""
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return None
    if (major, minor) < TORCH:
        return f"ccompile needs torch 2.10 or later (DLPack's C exchange API); this is torch {version}."
    return None


def find_llvmlite() -> str | None:
    """Path of libllvmlite.so, found without importing llvmlite; None: not installed. Paths of libraries are absolute:
    an entry of sys.path need not be, and the library is loaded later, perhaps from another working directory."""
    import importlib.util

    try:
        spec = importlib.util.find_spec("llvmlite")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.abspath(os.path.join(folder, "binding", "libllvmlite.so"))
        if os.path.exists(path):
            return path
    return None


def find_nvrtc(cuda: str | None) -> str | None:
    """Path of NVRTC for torch's CUDA version, from NVIDIA's wheels; None: _core searches elsewhere."""
    import importlib.util

    major = (cuda or "").split(".")[0]
    try:
        spec = importlib.util.find_spec("nvidia") if major else None
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for package in (f"cu{major}", "cuda_nvrtc"):
            path = os.path.abspath(os.path.join(folder, package, "lib", f"libnvrtc.so.{major}"))
            if os.path.exists(path):
                return path
    return None


def find_onednn() -> str | None:
    """Path or name of oneDNN 3.x: from CCOMPILE_ONEDNN, this environment or the wheel; else the system's name."""
    named = os.environ.get("CCOMPILE_ONEDNN")
    if named is not None:
        return named or None
    path = os.path.join(sys.prefix, "lib", "libdnnl.so.3")
    if os.path.exists(path):
        return path
    from importlib import metadata

    try:
        files = metadata.distribution("onednn-cpu-gomp").files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "libdnnl.so.3":
            return os.path.abspath(file.locate())
    return find_packaged("libdnnl.so.3")


def find_packaged(name: str) -> str:
    """A library's path if its package names the file after the minor version, as Debian's oneDNN; else the name."""
    folder = os.path.join("/usr/lib", getattr(sys.implementation, "_multiarch", ""))
    found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    versions = [file for file in found if file.startswith(name + ".")]
    return os.path.join(folder, versions[-1]) if versions and name not in found else name
