"""Runs test files on several CPythons and prints a table of what passed. `make matrix` calls it.

    python tests/matrix.py [--versions 3.11 3.12 ...] [--files all | core | test_x ...] [--shard I/N]

An interpreter is used as it is if it can import torch, llvmlite and pytest (Debian's packages); otherwise an environment
.venv-matrix-VERSION is made for it, once, with what pyproject.toml names. A version whose interpreter is not found is a
column of dashes. Each file runs in a process of its own. `core` is what CI runs on all versions; a shard is every N-th
file from the I-th on, so that one run of N takes a bounded time.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CORE = (
    *("test_frames", "test_frame_hazards", "test_language", "test_breaks", "test_guards", "test_soundness"),
    *("test_record", "test_models", "test_written", "test_training"),
)
NEEDED = "import sys, torch, llvmlite, pytest, hypothesis, setuptools; sys.exit(sys.version_info[:2] != {version})"
HEADERS = "import os, sysconfig as s; assert os.path.exists(os.path.join(s.get_path('include'), 'Python.h'))"
COUNTED = ("passed", "failed", "error", "skipped")


def works(python: str, code: str) -> bool:
    try:
        return subprocess.run([python, "-c", code], capture_output=True, cwd="/").returncode == 0
    except OSError:
        return False


def candidates(version: str) -> list[str]:
    """Interpreters of a version that have headers: this one, those on PATH, pyenv's."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    names = [sys.executable, f"python{version}", *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python"))]
    right = f"import sys; assert sys.version_info[:2] == {as_tuple(version)}; {HEADERS}"
    return [name for name in names if works(name, right)]


def as_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def environment(version: str) -> str | None:
    """A python of this version with everything that the tests need; None: there is no such interpreter."""
    needed = NEEDED.format(version=as_tuple(version))
    own = ROOT / f".venv-matrix-{version}/bin/python"
    pythons = candidates(version)
    for python in (str(own), *pythons):
        if works(python, needed):
            return python
    if not pythons:
        return None
    print(f"CPython {version}: making {own.parent.parent.name}", flush=True)
    torch = re.search(r"^TORCH \?= (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    pip = [str(own), "-m", "pip", "install", "-q"]
    for command in (
        [pythons[-1], "-m", "venv", str(own.parent.parent)],
        [*pip, "setuptools>=77", "wheel", f"torch=={torch}"],
        [*pip, "-e", ".[dev]", "--no-build-isolation"],
    ):
        subprocess.run(command, check=True, cwd=ROOT)
    return str(own)


def build(python: str, version: str) -> Path:
    """Compiles the package for this interpreter into a folder of its own, with what it says about itself (entry points)."""
    folder = ROOT / f"build/matrix-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "CCOMPILE_TEST_EXT": "1"}
    command = [python, "setup.py", "-q", "build", "--build-lib", str(folder), "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, env=env)
    return folder


def run(python: str, built: Path, file: str) -> dict[str, int]:
    """Runs one file and counts its results; prints the output if anything failed."""
    env = {**os.environ, "PYTHONPATH": str(built), "OMP_WAIT_POLICY": "passive"}
    command = [python, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", f"tests/{file}.py"]
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    last = done.stdout.strip().rpartition("\n")[2]
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}
    if done.returncode not in (0, 5):  # 5: it has no test for this machine
        counts.setdefault("failed", 1)  # the process died
        print(done.stdout, flush=True)
    return counts


def cell(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "–"
    named = [f"{counts[what]} {what}" for what in COUNTED if counts.get(what)]
    return ", ".join(named) or "no tests"


def table(versions: list[str], rows: dict[str, dict[str, dict[str, int]]]) -> str:
    lines = ["| file | " + " | ".join(versions) + " |", "| --- " * (len(versions) + 1) + "|"]
    for file, by_version in rows.items():
        lines.append(f"| {file} | " + " | ".join(cell(by_version.get(v)) for v in versions) + " |")
    totals = []
    for v in versions:
        ran = [by_version[v] for by_version in rows.values() if v in by_version]
        totals.append(cell({what: sum(c.get(what, 0) for c in ran) for what in COUNTED} if ran else None))
    return "\n".join([*lines, "| all | " + " | ".join(totals) + " |"])


def chosen(names: list[str], shard: str) -> list[str]:
    found = sorted(path.stem for path in (ROOT / "tests").glob("test_*.py"))
    files = found if names == ["all"] else [*CORE] if names == ["core"] else names
    unknown = set(files) - set(found)
    if unknown:
        raise SystemExit(f"no such test file: {', '.join(sorted(unknown))}; allowed: all, core, {', '.join(found)}")
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise SystemExit(f"--shard {shard}: expected I/N with 1 <= I <= N")
    return files[int(match[1]) - 1 :: int(match[2])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=list(VERSIONS))
    parser.add_argument("--files", nargs="+", default=["core"], metavar="FILE")
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    args = parser.parse_args()
    rows: dict[str, dict[str, dict[str, int]]] = {file: {} for file in chosen(args.files, args.shard)}
    for version in args.versions:
        python = environment(version)
        if python is None:
            print(f"CPython {version}: found no interpreter with headers", flush=True)
            continue
        built = build(python, version)
        for file, by_version in rows.items():
            by_version[version] = run(python, built, file)
            print(f"CPython {version}: {file}: {cell(by_version[version])}", flush=True)
    print(table(args.versions, rows))
    return any(c.get("failed") or c.get("error") for by_version in rows.values() for c in by_version.values())


if __name__ == "__main__":
    sys.exit(main())
