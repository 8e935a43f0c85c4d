"""The compiler process (csrc/dev/worker.c, compiler.c): LLVM is not in the user's process, which sees no child, descriptor or
signal of it. If it is missing, dead or a foreign program, LLVM is loaded into the process itself. Each test runs in a process of
its own, with an empty cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import ccompile
import pytest
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")

HEAD = """
    import ccompile, os, signal, subprocess, sys, time, torch
    from pathlib import Path
    torch.set_grad_enabled(False)
    x = torch.randn(8, 40)
    made = [0]

    def check():
        "A kernel that was not compiled before gives what eager gives."
        made[0] += 1
        source = "lambda x: " + "(" * made[0] + "x.sin()" + " * 1.5 + x.cos())" * made[0]
        fn = eval(source)
        compiled = ccompile.compile(fn)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), fn(x))

    def kernels():
        return sum(e.kind == "kernel" for e in ccompile.events())

    def fallbacks():
        return [e.text for e in ccompile.events() if e.kind == "fallback"]

    def mapped():
        return "libllvmlite" in open("/proc/self/maps").read()

    def servers():
        "Processes of the compiler that we started: the other ends of our sockets can't be told, but their files can."
        mine = os.path.join(os.path.dirname(ccompile.__file__), "_compiler")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                same = os.path.samefile(folder / "exe", mine) and MARK.encode() in (folder / "environ").read_bytes()
            except OSError:
                continue
            if same:
                found.append(int(folder.name))
        return found
"""


def alone(code: str, mark: str = "", **more: str) -> str:
    """What a fresh process prints; `mark` stands in the environment, by which it knows its compilers."""
    mark = f"CCOMPILE_TEST_MARK={os.getpid()}-{id(code)}-{mark}"
    name, value = mark.split("=")
    env = {**os.environ, "CCOMPILE_CACHE_DIR": "", name: value, **more}
    program = f"MARK = {mark!r}\n" + dedent(HEAD) + dedent(code)
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_llvm_is_in_no_users_process():
    alone("""
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            check()
        assert kernels() >= 3 and not mapped() and not fallbacks(), fallbacks()
        assert len(servers()) == 1
        assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    """)


def test_it_is_no_child_and_ends_with_us():
    out = alone("""
        signals = []
        signal.signal(signal.SIGCHLD, lambda *_: signals.append(1))
        check()
        try:
            os.wait()
            raise SystemExit("there was a child")
        except ChildProcessError:
            pass
        assert len(signals) <= 1
        assert os.getsid(servers()[0]) != os.getsid(0)   # keys of the terminal don't reach it
        print(*servers())
    """)
    pid = int(out)
    for _ in range(200):
        if not os.path.exists(f"/proc/{pid}"):
            break
        subprocess.run(["sleep", "0.05"])
    assert not os.path.exists(f"/proc/{pid}") or "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize("fn", ["x % 1 == 0", "torch.fmod(x, 1.5)", "torch.lgamma(x)", "torch.special.digamma(x)", "torch.erfinv(x / 9)"])
def test_kernels_with_functions_of_their_own(fn):
    """No tables for unwinding: an object with them can't be loaded."""
    alone(f"""
        fn = lambda x: {fn}
        compiled = ccompile.compile(fn)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), fn(x), equal_nan=True)
        assert not mapped() and not fallbacks(), fallbacks()
    """)


def test_ignored_children_and_interrupted_calls():
    alone("""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        check()
        ticks = []
        signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        for _ in range(4):
            check()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert ticks and kernels() >= 5 and not mapped() and not fallbacks(), fallbacks()
    """)


def test_another_is_started_when_one_was_killed():
    alone("""
        check()
        first = servers()
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        check()
        assert len(servers()) == 1 and servers() != first
        assert kernels() >= 2 and not mapped() and not fallbacks(), fallbacks()
    """)


def test_after_fork_each_has_its_own():
    alone("""
        check()
        first = servers()
        pid = os.fork()
        if pid == 0:
            try:
                check()
                os._exit(0 if len(set(servers()) - set(first)) == 1 and kernels() >= 2 and not mapped() else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        check()
        assert set(first) <= set(servers()) and kernels() >= 2 and not mapped()
    """)


def test_a_descriptor_that_became_somebody_elses_is_not_touched():
    alone("""
        import socket
        check()
        ours = [int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}").startswith("socket:")]
        a, b = socket.socketpair()
        for fd in ours:
            os.dup2(a.fileno(), fd)
        check()
        b.setblocking(False)
        try:
            raise SystemExit(f"was written: {b.recv(10)!r}")
        except BlockingIOError:
            pass
        for fd in ours:
            os.fstat(fd)   # nor closed
        assert kernels() >= 2 and not fallbacks() and not mapped()
    """)


def test_closed_standard_files():
    alone("""
        for fd in (0, 1):
            os.close(fd)
        check()
        check()
        assert kernels() >= 2 and not fallbacks() and not mapped()
    """)


def test_descriptors_of_ours_do_not_stay_open_in_it():
    """Whoever reads a pipe to its end must not wait for the compiler, too."""
    alone("""
        r, w = os.pipe()
        os.set_inheritable(w, True)
        check()
        os.close(w)
        assert os.read(r, 1) == b""
        assert servers()
    """)


def write_program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


MISSING = {
    "switched off": "0",
    "missing": "missing",
    "no program": "text",
    "says nothing": "silent",
    "says something else": "chatty",
}


@pytest.mark.parametrize("how", MISSING)
def test_without_it_llvm_is_loaded_here(how, tmp_path):
    path = tmp_path / "program"
    if how == "no program":
        path.write_text("not one")
    elif how == "says nothing":
        write_program(path, "#!/bin/sh\nexit 0\n")
    elif how == "says something else":
        write_program(path, "#!/bin/sh\necho hello, what is it that you want from me >&0\n")
    alone(
        f"""
        check()
        check()
        assert kernels() >= 2 and mapped()
        assert len(fallbacks()) == {int(how != "switched off")}, fallbacks()
        assert all("LLVM is loaded into this process" in text for text in fallbacks())
        """,
        CCOMPILE_WORKER="0" if how == "switched off" else str(path),
    )


def test_a_text_that_kills_it_is_a_fallback(tmp_path):
    """The program greets, and dies of the first text: twice, then the nodes are torch's, and LLVM is not tried in here."""
    greet = write_program(
        tmp_path / "program",
        f"#!{sys.executable}\n"
        "import os, struct\n"
        "if os.fork(): os._exit(0)\n"
        f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n"
        "os.write(0, struct.pack('<QQQQ', 0x334b524f57434343, 0, 0, 0))\n"
        "os.read(0, 24)\n"
        "os._exit(1)\n",
    )
    alone(
        """
        fn = lambda x: x.sin() * 2 + x.cos()
        big = torch.randn(200, 300)
        compiled = ccompile.compile(fn)
        for _ in range(2):
            torch.testing.assert_close(compiled(big), fn(big))
        assert not mapped() and kernels() == 0
        assert any("died twice" in text for text in fallbacks()), fallbacks()
        """,
        CCOMPILE_WORKER=greet,
    )
    assert len((tmp_path / "starts").read_text()) == 2


def test_it_compiles_for_the_narrowed_cpu():
    """What it is told is what _core read when it was loaded, and not what stands in the environment later."""
    alone(
        """
        os.environ["CCOMPILE_CPU"] = "avx512"
        check()
        assert kernels() and not mapped()
        """,
        CCOMPILE_CPU="base",
    )


def test_program_by_hand():
    program = Path(ccompile.__file__).with_name("_compiler")
    assert os.access(program, os.X_OK)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 2 and "ccompile" in done.stderr
