"""The process survives: whatever could end it (a C++ exception that reaches C code, no memory, a small stack) is provoked in
processes of their own, which must end as the same program does without ccompile."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
HEAD = """
import sys
import torch, ccompile
EAGER = len(sys.argv) > 1
compile = (lambda fn: fn) if EAGER else ccompile.compile
"""


def run(program, *args):
    env = {key: value for key, value in os.environ.items() if key != "CCOMPILE_VERIFY"}
    path = os.pathsep.join([*filter(None, [env.get("PYTHONPATH")]), str(ROOT / "python")])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", HEAD + program, *args], text=True, timeout=300,
                          env={**env, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stdout, done.stderr


def survives(program):
    """It ends with 0, and prints what it prints without ccompile."""
    status, out, err = run(program)
    assert status == 0, (status, out[-2000:], err[-2000:])
    assert run(program, "eager")[:2] == (status, out)


# ------------------------------------------------------------------ torch's C++ exceptions


PLACES = ("", "cuda.matmul.", "cudnn.", "cudnn.conv.", "cudnn.rnn.", "mkldnn.", "mkldnn.matmul.", "mkldnn.conv.", "mkldnn.rnn.")
PRECISION = [f"torch.backends.{place}fp32_precision = '{v}'" for place in PLACES for v in ("ieee", "tf32", "bf16")]


def test_precisions_that_contradict_each_other():
    survives(f"""
@compile
def f(x, w):
    return torch.relu(x @ w) + 1
x, w = torch.eye(4), torch.arange(16.).reshape(4, 4)
for old in ("highest", "high", "medium"):
    for line in {PRECISION!r}:
        torch.set_float32_matmul_precision(old)
        try:
            exec(line)
        except RuntimeError:  # a back-end that has no such precision
            continue
        for _ in range(2):
            print(line, f(x, w).tolist())
""")


def test_precisions_are_read_and_set_inside():
    survives("""
@compile
def f(x):
    y = x + 1
    try:
        return y, torch.get_float32_matmul_precision()
    except RuntimeError as e:
        return y * 2, type(e).__name__
@compile
def g(x):
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if before != "bf16" else "ieee"
    return x * 3, before, torch.backends.mkldnn.matmul.fp32_precision
x = torch.ones(3)
for _ in range(6):
    print(f(x), g(x))
""")


def test_each_mangled_name_has_a_reason_why_it_does_not_throw():
    """Who calls another function of torch's C++ says in tsym.c why no exception can meet our frames."""
    words = set(re.findall(r"\w{6,}", (ROOT / "csrc/tens/tsym.c").read_text().split("*/")[0]))
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        for name in re.findall(r'"(_Z\w+)"', path.read_text()):
            assert any(f"{len(word)}{word}" in name for word in words), f"{name} in {path.name}"


# ------------------------------------------------------------------ sizes that are no numbers


def test_nested_tensors_of_other_sizes():
    survives("""
@compile
def binary(a, b):
    if a.shape == b.shape:
        return a + b
    return a.sin()
@compile
def behind(a):
    shape = a.shape
    print(a.dim())
    return a * 2, len(shape), shape[0], shape[-1]
@compile
def argument(shape):
    return len(shape), shape[0], shape[-1]
def make(sizes, d):
    a = torch.nested.nested_tensor([torch.arange(float(s * d)).reshape(s, d) for s in sizes], layout=torch.jagged)
    return a, torch.nested.nested_tensor_from_jagged(a.values() + 1, a.offsets())
for sizes, d in (((2, 3, 4), 5), ((3, 4, 5), 4), ((1, 2), 4), ((3, 4, 5), 7), ((6, 2, 2), 5)):
    for _ in range(3):
        a, b = make(sizes, d)
        c, _ = make(sizes, d)
        print(binary(a, b).values().tolist(), binary(a, c).values().tolist())
        y, *facts = behind(a)
        print(y.values().tolist(), facts, argument(a.shape))
""")


# ------------------------------------------------------------------ small stacks


def test_threads_with_small_stacks():
    survives("""
import threading
@ccompile.disable
def brk():
    pass
def plain(x):
    return (x * 2 + 1).tolist()
def broken(x):
    y = x * 2
    brk()
    return (y + 1).tolist()
def deep(x, n=150):
    return x + 1 if n == 0 else deep(x, n - 1) * 1.5
def inner(x, n):
    if n == 0:
        brk()
        return x + 1
    return inner(x, n - 1) + 1
def broken_below(x):
    return inner(x, 12).tolist()
def raises(x):
    try:
        return raises(x + 1)
    except RecursionError:
        return 1
def keyed(x):
    return [t.tolist() for t in sorted([x, x - 1, x + 1], key=lambda t: deep(t, 40).sum().item())]
functions = [compile(f) for f in (plain, broken, deep, broken_below, keyed)]
x = torch.arange(3.)
for size in (160, 192, 256, 320, 384, 512, 1024):
    threading.stack_size(size << 10)
    def work():
        for f in functions:
            for _ in range(3):
                try:
                    print(size, f.__name__, f(x), flush=True)
                except BaseException as e:
                    print(size, f.__name__, repr(e), flush=True)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
for f in functions:
    print(f(x))
if not EAGER:  # where there is room, calls are compiled
    n = ccompile.counters["hits"]
    functions[0](x)
    assert ccompile.counters["hits"] == n + 1
""")


def test_threads_recurse_while_another_one_records():
    """While some region listens, a frame of any thread takes C stack: those of threads that lack it are left to CPython."""
    survives("""
import threading
torch.set_num_threads(1)
sys.setrecursionlimit(100000)
def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)
@ccompile.disable
def brk():
    pass
def work(n, rounds):
    while not ended:
        assert deep(n) == n
        rounds.append(1)
for size, n in ((256 << 10, 900), (0, 60000)):
    threading.stack_size(size)
    rounds, ended = [], False
    thread = threading.Thread(target=work, args=(n, rounds))
    thread.start()
    for i in range(40):
        @compile
        def f(x):
            for k in range(150):
                x = x * 0.5 + k
            brk()
            return x + i
        for _ in range(3):
            y = f(torch.ones(3))
        print(y.tolist())
        assert y.tolist() == f(torch.ones(3)).tolist()
    ended = True
    thread.join()
    print(len(rounds) > 0)
""")


# ------------------------------------------------------------------ no memory (tests/test_no_memory.py tries it)


ABORTS = {"base/err.c": 2, "base/mem.c": 1}   # assertions and verifiers of debug builds; no memory, and no reserve left


def test_the_process_is_ended_only_where_the_impossible_has_happened():
    """Where memory may be missing it is cc_mem_get, cc_mem_text, cc_mem_grow, CC_RETRY_ALLOC or cc_obj_intern, which never give NULL, or an
    error."""
    count = {str(p.relative_to(ROOT / "csrc")): len(re.findall(r"\babort\(\)", p.read_text())) for p in (ROOT / "csrc").glob("*/*.c")}
    assert {path: n for path, n in count.items() if n} == ABORTS
    copies = [str(p.relative_to(ROOT / "csrc")) for p in (ROOT / "csrc").glob("*/*.c") if re.search(r"\bstrn?dup\(", p.read_text())]
    assert copies == [], "cc_mem_text copies a text, and never gives NULL"


# ------------------------------------------------------------------ calls that other code makes at any point


COLLECTS = """
import gc
errors, active, ran = [], False, 0
def calls(function, want):
    global active, ran
    if active:
        active, ran = False, ran + 1
        try:
            assert torch.equal(function(torch.zeros(2)), want)
        except BaseException as e:
            errors.append(repr(e))
        active = True
def often(f, x, n):
    global active
    call, want = compile(f), f(x)
    for _ in range(4):
        call(x)
    gc.set_threshold(1, 1, 1)
    active = True
    for i in range(n):
        kept = [(i,)] * (i % 7)
        try:
            assert torch.equal(call(x), want)
        except BaseException as e:
            errors.append(repr(e))
    active = False
    gc.set_threshold(700, 10, 10)
    print(errors[:1], ran > 0)
"""


def test_a_collection_calls_the_function_whose_frame_is_made():
    """While the values of the frame are made, which takes memory for cells and tuples."""
    survives(COLLECTS + """
def f(x):
    k = x.shape[0]
    pair = [(x,), (k,)]
    g = lambda: k + len(pair)
    y = x + 1
    print(end="")
    return y * g()
gc.callbacks.append(lambda phase, info: phase == "start" and calls(f, torch.full((2,), 4.)))
often(f, torch.ones(2), 3000)
""")


def test_a_collection_calls_the_function_whose_frame_is_awaited():
    """While CPython makes the call's arguments, by a function of its own and as the callback itself."""
    survives(COLLECTS + """
def h(x, *, k=3, last=24, **more):
    y = x + k
    print(end="")
    return y * 2 + last
def direct(phase, info=None):
    if info is not None:
        return
    y = phase + 1
    print(end="")
    return y * 2
gc.callbacks.append(lambda phase, info: phase == "start" and calls(h, torch.full((2,), 30.)))
gc.callbacks.append(direct)
often(lambda x: h(x + 1, k=7) + direct(x), torch.ones(2), 3000)
""")


def test_the_first_call_is_made_while_the_interpreter_shuts_down():
    survives("""
@compile
def f(x):
    y = x * 2 + 1
    print(end="")
    return y.relu().sum()
class Last:
    def __init__(self):
        self.f, self.x = f, torch.ones(5)
    def __del__(self):
        for _ in range(3):
            print(self.f(self.x).item(), flush=True)
last = Last()
""")


# ------------------------------------------------------------------ forks while another thread records


FORKS = """
import os, threading
torch.set_num_threads(1)
def fork(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    print(os.waitpid(pid, 0)[1])
"""


def test_the_child_of_a_fork_keeps_no_hook():
    """Recursion of pure Python takes no C stack."""
    survives(FORKS + """
sys.setrecursionlimit(1000000)
def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)
started, a = [], torch.ones(600, 600)
@compile
def slow(x):
    started.append(1)
    for _ in range(60):
        x = x @ a
    return x
thread = threading.Thread(target=slow, args=(a,))
thread.start()
while not started:
    pass
fork(lambda: deep(60000) == 60000)
thread.join()
""")


def test_the_child_of_a_fork_compiles_what_another_thread_was_recording():
    survives(FORKS + """
gate, entered = threading.Event(), threading.Event()
@compile
def f(x):
    x = x * 2
    entered.set()
    gate.wait()
    return x + 1
thread = threading.Thread(target=f, args=(torch.ones(3),))
thread.start()
entered.wait()
def hits(n):
    gate.set()
    x = torch.ones(3)
    for _ in range(n):
        assert f(x).tolist() == [3.0, 3.0, 3.0]
    return EAGER or f.metrics()["hits"] > 0
def child():
    if not hits(6):
        return False
    if not EAGER:
        ccompile.reset()
        assert f.metrics()["entries"] == 0
    return hits(6)
fork(child)
gate.set()
thread.join()
""")


# ------------------------------------------------------------------ greenlets


SWITCHES = """
import greenlet
hub = greenlet.getcurrent()
def f(x):
    y = x + 1
    hub.switch()
    return y * 2
def plain(x):
    return x * 3 + 1
f, plain = compile(f), compile(plain)
"""


@pytest.mark.skipif(importlib.util.find_spec("greenlet") is None, reason="greenlet is not installed")
def test_greenlets_that_are_switched_at_breaks():
    survives(SWITCHES + """
def run(i):
    print(f(torch.full((2,), float(i))), plain(torch.ones(2)))
for x in (torch.ones(2), torch.ones(2)):
    print(plain(x))
for _ in range(4):
    started = [greenlet.greenlet(run) for _ in range(3)]
    for i, g in enumerate(started):
        g.switch(i)
    for g in started:
        g.switch()
""")


def test_inside_greenlets_calls_with_breaks_run_eagerly():
    """A stand-in for the module says which greenlet runs."""
    survives("""
import types
class greenlet:
    parent = None
    now = None
    @staticmethod
    def getcurrent():
        return greenlet.now
main, other = greenlet(), greenlet()
greenlet.now, other.parent = main, main
sys.modules["greenlet._greenlet"] = types.ModuleType("greenlet._greenlet")
sys.modules["greenlet._greenlet"].greenlet = greenlet
@compile
def broken(x):
    y = x + 1
    print(end="")
    return y * 2
@compile
def plain(x):
    return x * 3 + 1
def done(f, n):
    before = {} if EAGER else f.metrics()
    for _ in range(n):
        print(f(torch.ones(2)).tolist())
    return (0, 0) if EAGER else tuple(f.metrics()[key] - before[key] for key in ("recordings", "eager_calls"))
for current in (other, main, other):
    greenlet.now = current
    counts = [done(f, 3) for f in (broken, plain)]
    if not EAGER and current is main:
        assert counts == [(1, 0), (1, 0)], counts
    elif not EAGER:
        assert counts[0] == (0, 3) and counts[1][0] == 0, counts
if not EAGER:
    assert counts[1] == (0, 0), counts
""")


# ------------------------------------------------------------------ audit hooks


def test_audit_hooks_hear_what_eager_raises():
    """Reading a generator's or a function's attributes tells audit hooks: the recorder and guards read fields instead."""
    survives("""
seen, listening = [], False
def hook(event, args):
    if listening:
        seen.append((event, args[-1] if event == "object.__getattr__" else None))
def gen(x):
    try:
        for i in range(3):
            yield x * i
    finally:
        x.add_(0)
def outer(x):
    yield from gen(x)
def abandons(x):
    total = 0
    for v in outer(x):
        total = total + v
        break
    other = gen(x)
    next(other)
    del other
    return total + sum(outer(x))
def breaks(x):
    g = gen(x)
    a = next(g)
    print(a.sum().item())
    return a + next(g)
def reads(x, scale=2):
    return x * len(reads.__code__.co_name) * reads.__defaults__[0]
sys.addaudithook(hook)
for fn in (abandons, breaks, reads):
    call = compile(fn)
    for _ in range(4):
        seen.clear()
        listening = True
        y = call(torch.ones(2))
        listening = False
        print(y.tolist(), seen)
""")
