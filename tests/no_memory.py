"""Allocations that fail: the n-th one of some calls that record, compile and replay, and of compiling graphs.

Each call has to give what eager gives, or to raise MemoryError (or what torch raises instead where eager has no memory);
then the same function has to give what eager gives. A trial is one n. Whose allocations fail (ALLOCATORS): those of
CPython's allocators, whoever asks them, or those that ccompile._core makes of the C library. With `interrupt` the n-th one of
CPython's succeeds, and from then on a SIGINT is pending, so KeyboardInterrupt is raised wherever signals are looked for next:
in recording, compiling or replaying, in code of the program, of torch or of ours. Trials are made in one
process (HOW), one after the other, each with all that was compiled forgotten, or each in a fork of a process that has
compiled nothing. Graphs are those of tests/core/passes, compiled by the core library alone.

    python tests/no_memory.py [PROGRAM ...] [--allocator c] [--how fork] [--first 1] [--last 2000] [--stride 1]
    python tests/no_memory.py --core LIBRARY
"""

import argparse
import ctypes
import faulthandler
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
LIMIT_S = 120  # of one trial
ALLOCATORS, HOW = ("python", "c", "interrupt"), ("fork", "again")
# What torch raises where there is no memory, beside MemoryError (THPVariable_Wrap).
TORCHS = "Failed to allocate a Tensor object"

# ------------------------------------------------------------------ programs: (compiled, eager, calls, states of both)


def programs():
    import ccompile
    import torch
    from torch import nn

    def stateless():
        return (), ()

    def pointwise():
        def f(x, y):
            return torch.relu(x * 2 + 1).sigmoid() * y, (x - y).abs().sqrt().sum(1)

        calls = [(torch.randn(8, 16), torch.randn(8, 16)) for _ in range(3)]
        return f, f, calls, stateless

    def linear():
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8), nn.Softmax(-1)).eval()
        return model, model, [(torch.randn(4, 16),) for _ in range(3)], stateless

    @ccompile.disable
    def unseen(log):
        log.append("unseen")

    class Counting:
        def __init__(self):
            self.calls, self.log, self.last = 0, [], {}

        def state(self):
            return self.calls, list(self.log), {**self.last}

    def effects():
        def make():
            c = Counting()

            def f(x, key="k"):
                c.calls += 1
                y = x * 2
                c.log.append(f"{key} {c.calls}")
                unseen(c.log)
                total = (y + 1).sum().item()
                try:
                    c.last["absent"]
                except KeyError:
                    c.last[key] = total
                rows = [row * i for i, row in enumerate(y)]
                if total > 0:
                    y += 1
                return sorted(rows, key=lambda r: r.shape), {"y": y, "total": total}

            return f, c

        f, c = make()
        eager, e = make()

        def states():
            a, b = c.state(), e.state()
            c.__init__(), e.__init__()
            return a, b

        return f, eager, [(torch.ones(3, 4) * i,) for i in (1, 1, -1)], states

    def dynamic():
        def f(x, n):
            return (x.view(-1, 2) * n).softmax(0), x.shape[0] * n

        return f, f, [(torch.randn(n, 4), n) for n in (3, 5, 6, 9)], stateless

    def convolution():
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                              nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(72, 4)).eval()
        return model, model, [(torch.randn(2, 3, 10, 10),) for _ in range(3)], stateless

    def mixed():
        lstm = nn.LSTM(6, 8, batch_first=True)
        query = nn.MultiheadAttention(8, 2, batch_first=True)
        table = nn.Embedding(12, 6)

        def counts(x):
            for i in range(3):
                yield x * i

        def f(tokens, x):
            h, (last, _) = lstm(table(tokens))
            a, _ = query(h, h, h, need_weights=False)
            x = x.clone()
            x[:, 1:] += 1
            x.index_add_(0, tokens[0] % x.shape[0], torch.ones(5, 3))
            for c in counts(a):
                h = torch.cat([h, c], 1)
            return h.mean(1), last, x, f"{tokens.shape[1]}"

        return f, f, [(torch.arange(10).view(2, 5) + i, torch.zeros(4, 3)) for i in range(3)], stateless

    frozen = "max-autotune-no-cudagraphs"
    modes = {linear: ("default", frozen), convolution: ("default", frozen), pointwise: ("default", "reduce-overhead")}
    made = (pointwise, linear, effects, dynamic, convolution, mixed)
    return {f.__name__: (f, modes.get(f, ("default",))) for f in made}


# ------------------------------------------------------------------ the process of trials


def alike(a, b):
    import torch

    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    return type(a) is type(b) and (a == b or abs(a - b) < 1e-4 * abs(b))


class Shim:
    """tests/no_memory.c, which is preloaded; `code` is in the name of the library whose allocations are counted."""

    def __init__(self, code):
        self.lib = ctypes.CDLL(None)
        self.lib.failing_arm.argtypes = ctypes.c_long, ctypes.c_long
        self.lib.failing_disarm.restype = ctypes.c_long
        with open("/proc/self/maps") as maps:
            lines = [line.split()[0] for line in maps if code in line and " r-xp " in line]
        self.lib.failing_code(*[ctypes.c_size_t(int(address, 16)) for address in lines[0].split("-")])
        names = "PyMem_GetAllocator", "PyMem_SetAllocator"
        self.allocators = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names]

    def arm(self, allocator, n):
        self.python = allocator != "c"
        interrupt = ctypes.cast(ctypes.pythonapi.PyErr_SetInterruptEx, ctypes.c_void_p)
        self.lib.failing_interrupts(interrupt if allocator == "interrupt" else None)
        if self.python:
            self.lib.failing_python(True, *self.allocators)
        self.lib.failing_arm(n, n + 1)

    def disarm(self):
        """-> how many allocations there were"""
        seen = self.lib.failing_disarm()
        if self.python:
            self.lib.failing_python(False, *self.allocators)
        return seen


def held():
    """Bytes that malloc has given out, which are what a trial leaves behind."""

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c mapped d e used f g".split()]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Info
    gc.collect()
    now = libc.mallinfo2()
    return now.used + now.mapped


FIRST, HALF = 5, 13  # trials: what the first ones keep for good is there; about half of the least number of them


class Calls:
    """Trials of one program."""

    leak = 4096  # bytes that a trial may leave behind, in the mean

    def __init__(self, shim, name, mode, allocator):
        self.shim, self.mode, self.allocator = shim, mode, allocator
        self.make = programs()[name][0]

    def run(self, f, calls, n=0):
        """What each call gives; under a failing n-th allocation where there is an n."""
        out = [None] * len(calls)
        i = interrupts = 0
        try:
            if n:
                self.shim.arm(self.allocator, n)
            for args in calls:
                try:
                    out[i] = f(*args)
                except BaseException as e:
                    out[i] = e
                i += 1
        except MemoryError:  # of this function
            pass
        except KeyboardInterrupt:
            interrupts += 1
        if n:
            try:
                self.seen = self.shim.disarm()
            except KeyboardInterrupt:  # it was still pending
                interrupts += 1
                self.seen = self.shim.disarm()
            self.interrupts = interrupts + sum(isinstance(a, KeyboardInterrupt) for a in out)
        return out[:i]

    def look(self, where, got, want, states, failing=False):
        for a, b in zip(got, want):
            no_memory = isinstance(a, MemoryError) or (isinstance(a, RuntimeError) and TORCHS in str(a))
            interrupted = self.allocator == "interrupt" and isinstance(a, KeyboardInterrupt)
            if isinstance(a, BaseException) and not ((no_memory or interrupted) and failing):
                raise AssertionError(f"{where}: {a!r}") from a
            assert isinstance(a, BaseException) or alike(a, b), f"{where}: {a!r} is not {b!r}"
        ours, eagers = states()
        if any(isinstance(a, BaseException) for a in got) or len(got) < len(want):
            assert ours[:1] <= eagers[:1], f"{where}: state {ours} is more than {eagers}"
        else:
            assert ours == eagers, f"{where}: state {ours} is not {eagers}"

    def trial(self, n):
        """False: there were less than n allocations. Raises AssertionError."""
        import ccompile
        import torch

        torch.manual_seed(0)
        f, eager, calls, states = self.make()
        with torch.no_grad():
            want = self.run(eager, calls)
            compiled = ccompile.compile(f, mode=self.mode)
            self.look("call", self.run(compiled, calls, n), want, states, failing=True)
            if self.allocator == "interrupt" and self.seen >= n:
                assert self.interrupts == 1, f"{self.interrupts} KeyboardInterrupts came of one SIGINT"
            for _ in range(2):
                want = self.run(eager, calls)
                self.look("afterwards", self.run(compiled, calls), want, states)
        ccompile.reset()
        return self.seen >= n


class Graphs:
    """Trials of compiling one graph: a plan or an error, and afterwards the plan that there was before."""

    leak = 1 << 15  # kernels stay: of a plan to which something was missing there are others

    def __init__(self, shim, lib, text):
        self.shim, self.lib = shim, lib
        self.why = ctypes.create_string_buffer(300)
        self.graph = lib.t_graph_read(text.encode(), self.why, 300)
        assert self.graph, self.why.value
        self.want = self.plan()

    def plan(self, n=0):
        if n:
            self.shim.arm("c", n)
        plan = self.lib.t_compile(self.graph, None, self.why, 300)
        if n:
            self.seen = self.shim.disarm()
        if not plan:
            return None
        text = self.lib.t_plan_text(plan)
        out = ctypes.string_at(text).decode()
        self.lib.t_release(text)
        self.lib.t_free(plan)
        return out

    def trial(self, n):
        assert self.lib.t_keep()
        self.why.value = b""
        assert self.plan(n) is not None or self.why.value, "no plan, and no error"
        assert self.plan() == self.want, "another plan afterwards"
        return self.seen >= n


def series(options):
    """(name, how, trials made by a function) of all that is asked for."""
    if options.core:
        import torch  # noqa: F401  (its libgomp)

        sys.path.insert(0, str(ROOT / "tests/core"))
        import harness

        lib = harness.load(options.core)
        shim = Shim(os.path.basename(options.core))
        for file in sorted((ROOT / "tests/core/passes").glob("*.txt")):
            text = file.read_text().partition("---")[0].partition("\n")[2]
            yield file.stem, "again", lambda text=text: Graphs(shim, lib, text)
        return
    import ccompile  # noqa: F401
    import torch

    torch.set_num_threads(1)
    shim = Shim("/_core.")
    known = programs()
    for how in options.how:
        for name in options.program or known:
            for mode in known[name][1]:
                for allocator in options.allocator:
                    what = f"{name}, {mode}, {allocator}'s"
                    yield what, how, lambda row=(name, mode, allocator): Calls(shim, *row)


def in_fork(trials, n, say, name):
    """trials.trial(n) there; False as there."""
    pid = os.fork()
    if not pid:
        more = tell(trials, n, say, name)
        os._exit(0 if more else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        say(f"bad\t{name}\t{n}\tdied of signal {-status}")
    return status != 1


def tell(trials, n, say, name):
    signal.alarm(LIMIT_S)
    try:
        return trials.trial(n)
    except AssertionError as e:
        say(f"bad\t{name}\t{n}\t" + " ".join(str(e)[:1000].split()))
        return True


def child(options):
    """Writes lines to file descriptor `options.pipe`: what it begins, what was bad, how many allocations there were."""
    faulthandler.enable()
    wait = options.after.split("\t") if options.after else None

    def say(text):
        os.write(options.pipe, (text + "\n").encode())

    for i, (what, how, make) in enumerate(series(options)):
        name = f"{what} {how}"
        first = options.first + (i * 7919 % options.stride)
        if wait and wait[0] != name:
            continue
        if wait:
            first = int(wait[1]) + options.stride
            wait = None
        trials, marks, made, n = make(), [], 0, first
        for n in range(first, options.last + 1, options.stride):
            say(f"at\t{name}\t{n}")
            if not (in_fork(trials, n, say, name) if how == "fork" else tell(trials, n, say, name)):
                break
            made += 1
            if how == "again" and made in (FIRST, HALF):
                gc.collect()
                gc.freeze()
                marks.append(held())
        say(f"tried\t{name}\t{made} of {n} allocations")
        if made > 20 and len(marks) == 2:
            halves = (marks[1] - marks[0]) // (HALF - FIRST), (held() - marks[1]) // (made - HALF)
            if min(halves) > trials.leak:  # a table that grows once is in one of them
                say(f"bad\t{name}\t0\t{min(halves)} bytes are left behind by a trial")
    say("done")


# ------------------------------------------------------------------ the process that watches it


def watch(options, argv, shim):
    """-> how many trials were bad. A process that died is begun again behind the trial that it died of."""
    bad, after = 0, ""
    while after is not None:
        r, w = os.pipe()
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "python")])
        env = {**os.environ, "PYTHONPATH": path, "LD_PRELOAD": shim}
        command = [sys.executable, "-W", "ignore", __file__, *argv, "--pipe", str(w), "--after", after]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, env=env, pass_fds=[w], stderr=errors)
            os.close(w)
            after, last = None, ""
            with os.fdopen(r) as lines:
                for line in lines:
                    last = line.rstrip("\n")
                    kind, *rest = last.split("\t")
                    bad += kind == "bad"
                    after = "\t".join(rest) if kind == "at" else after
                    if kind in ("bad", "tried"):
                        print(*rest, sep=": ", flush=True)
            status = process.wait()
            if last == "done":
                return bad
            errors.seek(0)
            print(errors.read()[-3000:])
        print(f"{after}: died, {status}", flush=True)
        bad += 1
    return bad


def main(argv):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="*", help="all, if none is named")
    parser.add_argument("--allocator", choices=ALLOCATORS, action="append", help=f"default: {ALLOCATORS}")
    parser.add_argument("--how", choices=HOW, action="append", help=f"default: {HOW}")
    parser.add_argument("--core", help="the core library as tests/core/harness.py builds it: compile graphs")
    for name, value in (("first", 1), ("last", 2000), ("stride", 1), ("pipe", -1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--after", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.allocator, options.how = options.allocator or ALLOCATORS, options.how or HOW
    if options.pipe >= 0:
        return child(options)
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        shim = os.path.join(folder, "no_memory.so")
        flags = ["-O2", "-shared", "-fPIC", "-fno-builtin"]
        cc = os.environ.get("CC", "cc").split()
        subprocess.run([*cc, *flags, "-o", shim, str(ROOT / "tests/no_memory.c")], check=True)
        bad = watch(options, argv, shim)
    print(f"{bad} bad trials, {time.time() - begun:.0f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
