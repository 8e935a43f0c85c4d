"""Kernels cached on disk (csrc/dev/disk.c, object.c, jit.c): the next process loads them without loading LLVM; files that are
damaged, or may be forged, are compiled again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EAGER

pytestmark = [pytest.mark.slow, pytest.mark.skipif(EAGER, reason="nothing is compiled")]

PROGRAM = """
import torch, ccompile
from ccompile import events

def fn(x, w):
    y = torch.tanh(x * 2 + 1).softmax(-1)
    return torch.nn.functional.gelu(y @ w).sum(0), torch.exp(-x).clamp(max=3.5), torch.log1p(x.abs()).double() * 1.25

x, w = torch.randn(33, 65, generator=torch.manual_seed(0)), torch.randn(65, 40, generator=torch.manual_seed(1))
compiled = ccompile.compile(fn)
with torch.no_grad():
    for _ in range(2):
        for a, b in zip(compiled(x, w), fn(x, w)):
            torch.testing.assert_close(a, b)
print("libllvmlite" in open("/proc/self/maps").read(), sum("kernel" in e for e in events()))
"""


def run(folder, **more):
    # LLVM in the process itself shows whether anything was compiled; objects are the same.
    env = {**os.environ, "CCOMPILE_CACHE_DIR": str(folder), "CCOMPILE_WORKER": "0", **more}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, kernels = done.stdout.split()
    assert int(kernels) > 0   # of the reference executor there are none
    return loaded == "True"


def test_the_next_process_does_without_llvm(tmp_path):
    assert run(tmp_path)
    kept = sorted((tmp_path / "kernel").iterdir())
    assert len(kept) > 1
    before = [p.stat().st_mtime_ns for p in kept]
    assert not run(tmp_path)
    assert [p.stat().st_mtime_ns for p in sorted((tmp_path / "kernel").iterdir())] == before
    assert run(tmp_path, CCOMPILE_CPU="avx2" if os.environ.get("CCOMPILE_CPU") == "base" else "base")   # for another CPU
    assert len(list((tmp_path / "kernel").iterdir())) > len(kept)


def spoilt(path, how):
    data = bytearray(path.read_bytes())
    elf = data.index(b"\x7fELF")
    if how == "cut":
        path.write_bytes(data[:-7])
    elif how == "changed":
        data[elf + 80] ^= 1
        path.write_bytes(data)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "others may write":
        path.chmod(0o666)
    else:
        path.unlink()
        path.symlink_to("/dev/null")


@pytest.mark.parametrize("how", ["cut", "changed", "empty", "others may write", "link"])
def test_what_is_spoilt_is_compiled_again(tmp_path, how):
    assert run(tmp_path)
    for path in (tmp_path / "kernel").iterdir():
        spoilt(path, how)
    assert run(tmp_path)
    assert not run(tmp_path)


def test_nothing_is_kept_where_that_is_not_wanted_or_not_possible(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in ("", tmp_path / "file" / "below", Path("/proc/none")):
        assert run(folder)
    assert not (tmp_path / "kernel").exists()


def test_the_oldest_files_go_when_there_are_too_many(tmp_path):
    """Each run's first kernel looks at the folder: with a limit of 1 MiB most of what is there has to go, by age."""
    folder = tmp_path / "kernel"
    folder.mkdir()
    own = [folder / f"{i:032x}" for i in range(40)]
    for i, path in enumerate(own):
        path.write_bytes(bytes(50000))
        os.utime(path, (i + 1, i + 1))
    left = folder / f"{99:032x}.123.4"   # by a process that died while it wrote
    left.write_bytes(bytes(50000))
    os.utime(left, (0, 0))
    foreign = folder / "notes"
    foreign.write_bytes(bytes(2_000_000))
    os.utime(foreign, (0, 0))
    assert run(tmp_path, CCOMPILE_CACHE_LIMIT="1")
    there = [path.exists() for path in own]
    assert foreign.exists() and not left.exists()
    assert not there[0] and there[-1] and there == sorted(there)
    kept = [p for p in folder.iterdir() if p not in own and p != foreign]
    assert kept and sum(p.stat().st_size for p in folder.iterdir() if p != foreign) <= 1 << 20
    assert not run(tmp_path, CCOMPILE_CACHE_LIMIT="1")   # what was written last is there


def test_a_limit_that_is_no_number_is_the_default(tmp_path):
    assert run(tmp_path, CCOMPILE_CACHE_LIMIT="1x")
    assert not run(tmp_path, CCOMPILE_CACHE_LIMIT="1x")


def test_the_first_call_of_mkls_vector_maths_is_one_threads():
    """Else a thread may read what another one is about to correct: its half of a tanh then has errors of 1e-4, in one process of many."""
    program = """
import ccompile, os, torch
x = torch.randn(33, 65)
for _ in range(20):
    if os.fork() == 0:
        torch.set_num_threads(2)
        torch.ones(200000) + 1  # the threads are there
        os._exit(bool((x.tanh() - x.double().tanh()).abs().max() > 1e-6))
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(20)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == str([0] * 20), done.stdout + done.stderr
