"""What a measurement depends on: the processor, its vector extensions, versions, threads."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from . import _core

_FLAGS = re.compile(r"avx\w*|fma|f16c|amx\w*")


def describe() -> dict[str, Any]:
    """cpu (the processor's name), cpu_model (family-model-stepping, as different processors share a name), flags
    (vector extensions), processors, threads (torch's), versions, and what _core has found."""
    from . import __version__

    info = _cpuinfo()
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cpu_model": "-".join(info[key] for key in ("cpu family", "model", "stepping") if key in info),
        "flags": sorted(set(_FLAGS.findall(info.get("flags", "")))),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "ccompile": __version__,
        "torch": torch.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "back_ends": _core.describe(),
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; {} where there is none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().split("\n\n")[0].splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
