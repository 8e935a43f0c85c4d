"""Kernels cached on disk (csrc/dev/disk.c, object.c, jit.c): the next process loads them without loading LLVM; files that are
damaged, or may be forged, are compiled again."""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from ccompile import _core
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
print("libllvmlite" in open("/proc/self/maps").read(), sum("kernel" in e for e in events()),
      sum(e.kind == "ignored" for e in events()))
"""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def start(folder, **more):
    # LLVM in the process itself shows whether anything was compiled; objects are the same.
    env = {**os.environ, "CCOMPILE_CACHE_DIR": str(folder), "CCOMPILE_WORKER": "0", **more}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, kernels, ignored = done.stdout.split()
    assert int(kernels) > 0   # of the reference executor there are none
    return loaded == "True", int(ignored)


def run(folder, **more):
    return start(folder, **more)[0]


def test_the_next_process_does_without_llvm(tmp_path):
    assert run(tmp_path)
    kept = sorted((tmp_path / "kernel").iterdir())
    assert len(kept) > 1
    before = [p.stat().st_mtime_ns for p in kept]
    assert not run(tmp_path)
    assert [p.stat().st_mtime_ns for p in sorted((tmp_path / "kernel").iterdir())] == before
    assert run(tmp_path, CCOMPILE_CPU="avx2" if os.environ.get("CCOMPILE_CPU") == "base" else "base")   # for another CPU
    assert len(list((tmp_path / "kernel").iterdir())) > len(kept)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def change(path, at=-2):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_is_spoilt_is_compiled_again(tmp_path):
    assert run(tmp_path)
    first, *others = sorted((tmp_path / "kernel").iterdir())
    change(first, first.read_bytes().index(b"\x7fELF") + 80)
    for path in others:
        path.chmod(0o606)
    assert start(tmp_path) == (True, 1)
    assert start(tmp_path) == (False, 0)
    (tmp_path / "kernel").chmod(0o777)
    assert start(tmp_path) == (True, 1)


# ------------------------------------------------------------------ files and folders that are not to be trusted: disk.c, in here


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with three entries."""
    monkeypatch.setenv("CCOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    for key in (b"a", b"b", b"c"):
        assert put(key)
    return tmp_path / "cache/kernel"


def put(key):
    """False: the entry can neither be read nor written."""
    return _core.add_cached_file("kernel", key, b"image of " + key)


def seen(folder):
    found = {p.name: p.lstat() for p in folder.iterdir()}
    return {name: (st.st_ino, st.st_mtime_ns, st.st_mode, st.st_uid) for name, st in found.items()}


def link(path):
    path.unlink()
    path.symlink_to("/dev/null")


def link_to_itself(path):
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def exchange(path):
    """A valid entry, with another key."""
    other = max(p for p in path.parent.iterdir() if p != path)
    path.write_bytes(other.read_bytes())


SPOIL = {
    "cut": cut, "changed": change, "another key": lambda path: change(path, 32), "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"0"), "huge": lambda path: os.truncate(path, 1 << 40),
    "others may write": lambda path: path.chmod(0o602), "the group may write": lambda path: path.chmod(0o620),
    "another user's": lambda path: os.chown(path, 65534, 65534),
    "link to a device": link, "link to the file itself": link_to_itself, "pipe": pipe, "exchanged": exchange,
}  # fmt: skip


def rows(table):
    return [pytest.param(how, marks=ROOT_ONLY if "user" in how else ()) for how in table]


@pytest.mark.parametrize("how", rows(SPOIL))
def test_an_entry_that_is_not_to_be_trusted_is_replaced(cache, how):
    before = seen(cache)
    for path in [min(cache.iterdir())] if how == "exchanged" else [*cache.iterdir()]:
        SPOIL[how](path)
    spoilt = {name for name, file in seen(cache).items() if file != before[name]}
    assert spoilt and all(put(key) for key in (b"a", b"b", b"c"))
    after = seen(cache)
    assert {name for name, file in after.items() if file[0] != before[name][0]} == spoilt   # others were only read
    assert all(mode == 0o100600 for _, _, mode, _ in after.values())


def behind_a_link(folder):
    """Who may write the folder above can lead ours to another one of the user's, with names like ours in it."""
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


OPEN = {
    "others may write": lambda folder: folder.chmod(0o703),
    "all may write, in the manner of /tmp": lambda folder: folder.chmod(0o1777),
    "the group may write": lambda folder: folder.chmod(0o770),
    "a link": behind_a_link,
    "another user's": lambda folder: os.chown(folder, 65534, 65534),
}


@pytest.mark.parametrize("how", rows(OPEN))
def test_a_folder_that_others_may_write_is_not_used(cache, how, monkeypatch):
    """Nothing is read from it, written to it, or deleted in it, though it is beyond its limit."""
    monkeypatch.setenv("CCOMPILE_CACHE_LIMIT", "0")
    OPEN[how](cache)
    before = seen(cache)
    assert not put(b"a") and not put(b"d")
    assert seen(cache) == before
    cache.parent.chmod(0o777)   # of no use to them: our folder in it is ours
    if how not in ("a link", "another user's"):
        cache.chmod(0o700)
        monkeypatch.delenv("CCOMPILE_CACHE_LIMIT")
        assert put(b"a") and seen(cache) == before | {name: file for name, file in seen(cache).items() if name in before}


@ROOT_ONLY
@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME"])
def test_root_leaves_nothing_in_another_users_home(tmp_path, name, monkeypatch):
    for unset in ("CCOMPILE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(unset, raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    os.chown(tmp_path, 65534, 65534)
    assert not put(b"a") and not [*tmp_path.iterdir()]
    os.chown(tmp_path, 0, 0)
    assert put(b"a") and [*tmp_path.iterdir()]


def test_a_full_disk(cache):
    """Writes fail after 60 bytes of a file."""
    before = seen(cache)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, hard))
    try:
        assert not put(b"d" * 100) and put(b"a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert seen(cache) == before
    assert put(b"d" * 100)


@contextlib.contextmanager
def without_privileges():
    """Root's permissions in this thread become those that modes give."""
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    saved = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, saved) == 0
    less = (ctypes.c_uint32 * 6)(*saved)
    less[0] &= ~0b110   # the effective CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, saved) == 0


def test_a_folder_that_is_read_only(cache):
    before = seen(cache)
    cache.chmod(0o500)
    with without_privileges():
        assert put(b"a") and not put(b"d")
        min(cache.iterdir()).chmod(0)
        assert not all(put(key) for key in (b"a", b"b", b"c"))
        cache.chmod(0)
        assert not put(b"a")
        cache.chmod(0o700)
    assert seen(cache).keys() == before.keys()


def test_processes_that_write_at_once(cache):
    """Each writes the same 200 entries while the limit deletes old ones; what they find is whole."""
    code = """
from ccompile import _core
for i in range(200):
    key, image = b"%d" % (i % 50), b"%d" % (i % 50) * 10000
    _core.add_cached_file("kernel", key, image)
print(sum(image != key * 10000 for _, key, image in _core.cached_files()))
"""
    env = {**os.environ, "CCOMPILE_CACHE_LIMIT": "1"}
    started = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [one.communicate()[0].strip() for one in started] == ["0"] * 3
    assert all(len(name) == 32 for name in seen(cache))


# ------------------------------------------------------------------


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
