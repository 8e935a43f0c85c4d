"""Random functions of torch code, as people write it: modules with state, views and writes, breaks, blocks, objects, exceptions,
called with changing sizes, layouts and numbers while their state is changed between calls. Eager against compiled.

`program(pick)` makes one from the tables of phrases.py, statement by statement: one that raises when the function is tried is
mostly left out. pick(n) is any source of integers below n. The text defines make(), which gives (fn, state); fn takes
(x, y, n, k, flag): two tensors, two numbers and a bool.

Long runs, in tests/ (each program in a process that ends it after some time; a failure prints what reproduces it):

    python -m fuzz.functions FROM TO [--seconds N] [--dynamic none|true|false] [--limit ENTRIES] [--timeout N]
    python -m fuzz.functions SEED --reduce       the shortest program and the fewest calls that fail in the same way
"""

import argparse
import contextlib
import functools
import io
import linecache
import os
import random
import re
import select
import signal
import time
import traceback
import typing
import warnings

import ccompile
import torch
from conftest import same, tensors, verify_failures
from fuzz.phrases import EVENTS, RULES

HEADER = """
import collections, contextlib, copy, dataclasses, functools, io, itertools, math, operator, typing
import torch
import torch.nn.functional as F
from torch import nn

G = 1.5


def make():
    def h1(a):
        return a * 2 + a.mean()

    def h2(a, n):
        for i in range(n):
            a = a * 0.5 + i
        return a

    def more(a, *rest, by=2.0, **named):
        for r in rest:
            a = a + r
        return a * by + len(named)

    def rows(a):
        try:
            for i in range(min(a.shape[0], 3)):
                yield a[i]
        finally:
            L.append(a.dim())

    def gen(a):
        return sum(z * (i + 1) for i, z in enumerate(rows(a)))

    def closed(a):
        nonlocal count
        count += 1
        return a + count

    def four(a):
        a = a.flatten().to(S.net.lin.weight.dtype)
        return F.pad(a, (0, -a.numel() % 4)).view(-1, 4)

    @contextlib.contextmanager
    def around(what):
        what.n += 1
        try:
            yield what
        finally:
            what.n += 10

    class Held:
        def __init__(self, state, eats=False):
            self.state, self.eats = state, eats

        def __enter__(self):
            self.state.hist.append("in")
            return self

        def __exit__(self, kind, value, tb):
            self.state.hist.append("out" if kind is None else kind.__name__)
            return self.eats

    class Point(typing.NamedTuple):
        x: object
        y: object

    @dataclasses.dataclass
    class Pair:
        of: object
        by: object = 1

        def total(self):
            return self.of * self.by

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.ln, self.gn = nn.Linear(4, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4)
            self.bn, self.bn2, self.drop = nn.BatchNorm1d(4), nn.BatchNorm2d(1), nn.Dropout(0.3)
            self.emb, self.conv = nn.Embedding(7, 4), nn.Conv1d(1, 2, 3, padding=1)
            self.gru, self.lstm = nn.GRU(4, 3, batch_first=True), nn.LSTM(4, 3, batch_first=True)
            self.mha = nn.MultiheadAttention(4, 2, batch_first=True)
            self.many = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])
            self.seq = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2))
            self.scale = nn.Parameter(torch.ones(4))
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, a, by=1.0):
            if self.training:
                self.steps += 1
                self.mean = self.mean * 0.9 + a.detach().mean(0)
            return self.drop(self.lin(a)) * self.scale * by

    class State:
        kind, shared = "k", []

        def __init__(self):
            self.n, self.c, self.flag, self.s = 0, 1.5, False, ""
            self.w, self.w2, self.buf, self.out = torch.tensor(0.5), torch.tensor(-1.0), torch.zeros(3), torch.zeros(2)
            self.idx, self.net = torch.tensor([1]), Net()
            self.hist, self.d, self.register, self.seen = [], {}, {}, set()
            self.order, self.counts = collections.deque(maxlen=3), collections.Counter()
            self.groups, self.named = collections.defaultdict(list), collections.OrderedDict(first=torch.ones(3))
            self.pair, self.point = Pair(torch.ones(3), 1), Point(0.5, torch.zeros(1))
            self.rates, self.table = [0.5, 1.5, 2], {"a": 0.5, "b": 2}

        @property
        def double(self):
            return self.c * 2

        def grow(self, a, by=1):
            self.n += by
            return a * self.n

        def __call__(self, a):
            return a + self.w

        def fail(self, a):
            self.n += 1
            raise ValueError(self.s)

        def call(self, *args):
            self.n += 1
            return f(*args)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = S.net

        def forward(self, *args):
            return f(*args)

    S, L, count = State(), [], 0

    def f(x, y, n, k, flag):
        nonlocal count
        global G
"""
INDENT = 2
ROOTS = ("f", "f", "f", "S.call", "Root()", "functools.partial(f)")
DTYPES = (torch.float32,) * 5 + (torch.float64, torch.float64, torch.int64, torch.complex64, torch.bfloat16)
RECENT = 6  # variables that statements use and the function returns
TRIED = ((2, 3), (4, 3))
MOST_ELEMENTS = 4000  # of what it returns


class Program(typing.NamedTuple):
    text: str
    dtype: torch.dtype
    grad: bool


class Writer:
    """Puts texts together; knows which variables there are."""

    def __init__(self, pick, rules=RULES):
        self.pick, self.rules, self.variables, self.names = pick, rules, ["x", "y"], 0

    def one(self, items):
        return items[self.pick(len(items))]

    def fresh(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def special(self, rule, made):
        """What stands for <a>, <v>, <w>, <i>, <n>, <last>; None: it is a rule."""
        if rule in "ab":
            return self.one(self.variables[-RECENT:])
        if rule == "w" and self.pick(2):
            return self.one(self.variables)
        if rule in "vw":
            made.append(self.fresh("v"))
            return made[-1]
        return {"i": lambda: self.fresh("i"), "n": lambda: str(self.pick(5)), "last": self.last}.get(rule, lambda: None)()

    def last(self):
        return ", ".join(self.variables[-RECENT:])

    def fill(self, line, known, made):
        def place(match):
            name = match[1]
            if name not in known:
                rule = name.rstrip("0123456789")
                known[name] = self.special(rule, made)
                if known[name] is None:
                    known[name] = self.fill(self.one(self.rules[rule]), {}, made)
            return known[name]

        return re.sub(r"<(\w+)>", place, line)

    def statement(self, indent, depth):
        """Its lines."""
        text = self.one(self.rules["statement"])
        while text in ("<lines>", "<nested>"):
            text = self.one(self.rules[text[1:-1] if depth < 2 else "lines"])
        out, known, made = [], {}, []
        for line in text.split("\n"):
            bare = line.strip()
            inner = indent + (len(line) - len(line.lstrip())) // 4
            if bare in ("<block>", "<body>"):
                out += self.block(inner, depth + 1, made, ["q"] if bare == "<body>" else [])
            else:
                out.append("    " * inner + self.fill(bare, known, made))
        self.variables += made
        return out

    def block(self, indent, depth, made, more):
        before, self.variables = self.variables, self.variables + made + more
        out = [line for _ in range(1 + self.pick(3)) for line in self.statement(indent, depth)]
        self.variables = before
        return out

    def text(self, kept, root):
        end = self.fill(self.one(self.rules["return"]), {}, [])
        return f"{kept}        return {end}\n    return {root}, {{'S': S, 'L': L, 'count': lambda: count, 'G': lambda: G, 'given': []}}\n"


def base(shape, dtype, generator):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


@contextlib.contextmanager
def quiet():
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_default_dtype(before[0])
            torch.set_grad_enabled(before[1])


def works(program):
    """Does it run, and stay small?"""
    try:
        with quiet(), torch.set_grad_enabled(program.grad), torch.random.fork_rng():
            torch.manual_seed(0)
            fn, _ = build(program)()
            for shape in TRIED:
                x, y = (base(shape, program.dtype, None) for _ in range(2))
                if program.grad and x.is_floating_point():
                    x = x.requires_grad_() * 1
                if sum(t.numel() for t in tensors(fn(x, y, 2, 1.5, True))) > MOST_ELEMENTS:
                    return False
    except Exception:
        return False
    return True


def program(pick):
    writer, kept = Writer(pick), HEADER
    dtype, grad, root = writer.one(DTYPES), bool(pick(2)), writer.one(ROOTS)
    for _ in range(4 + pick(14)):
        before = list(writer.variables)
        trial = kept + "\n".join(writer.statement(INDENT, 0)) + "\n"
        if works(Program(trial + f"        return [{writer.last()}]\n    return f, S\n", dtype, grad)) or pick(30) == 0:
            kept = trial
        else:
            writer.variables = before
    return Program(writer.text(kept, root), dtype, grad)


def build(program):
    """A factory of (fn, state), for conftest.same(build=True): each side gets a namespace of its own."""
    name = f"<program {hash(program.text)}>"
    linecache.cache[name] = len(program.text), None, program.text.splitlines(True), name
    code = compile(program.text, name, "exec")

    def factory():
        space = {"__name__": "program", "ccompile": ccompile, "asked": ccompile.disable(lambda v: v)}
        exec(code, space)
        return space["make"]()

    return factory


# ---- calls -----------------------------------------------------------------------------------------------------------
SIZES = ((2, 3), (2, 3), (2, 3), (4, 3), (4, 3), (3, 5), (1, 3), (2, 1), (5, 4), (6, 2), (7, 3), (3, 7), (0, 3), (2, 0))
CALLS = 12


class Call(typing.NamedTuple):
    shape: tuple
    layout: str
    n: int
    k: object
    flag: bool
    leaf: bool
    event: str  # what happens before it


# How the tensors of a call lie, and what they share: (shape, make(shape), state, results of calls before) -> (x, y).
LAYOUTS = {
    "plain": lambda shape, make, state, past: (make(shape), make(shape)),
    "turned": lambda shape, make, state, past: (make(shape[::-1]).t(), make(shape)),
    "stepped": lambda shape, make, state, past: (make((shape[0], shape[1] * 2))[:, ::2], make(shape)),
    "offset": lambda shape, make, state, past: (make((shape[0] + 1, shape[1]))[1:], make(shape)),
    "one": lambda shape, make, state, past: (make(shape),) * 2,
    "row": lambda shape, make, state, past: (lambda x: (x, x[:1]))(make(shape)),
    "rows": lambda shape, make, state, past: (lambda big: (big[:-1], big[1:]))(make((shape[0] + 1, shape[1]))),
    "turned too": lambda shape, make, state, past: (lambda x: (x, x.t()))(make(shape)),
    "state": lambda shape, make, state, past: (make(shape), state["S"].buf),
    "weight": lambda shape, make, state, past: (make(shape), state["S"].net.lin.weight.detach()),
    "before": lambda shape, make, state, past: (make(shape), next((t.detach() for p in past for t in tensors(p.value)), make(shape))),
    "scalar": lambda shape, make, state, past: (make(shape), make(())),
    "double": lambda shape, make, state, past: (make(shape), make(shape).double()),
    "whole": lambda shape, make, state, past: (make(shape), make(shape).real.long()),
    "mask": lambda shape, make, state, past: (make(shape), make(shape).real > 0),
    "vector": lambda shape, make, state, past: (make(shape[-1:]), make(shape[-1:])),
    "deep": lambda shape, make, state, past: (make((2, *shape)), make((2, *shape))),
}
USUAL = ("plain",) * 10


def calls(pick):
    """Some programs see few sizes and no changes between calls, others see many."""

    def one(items):
        return items[pick(len(items))]

    sizes = [one(SIZES) for _ in range((2, 4, len(SIZES))[pick(3)])]
    layouts = USUAL[:1] if pick(3) == 0 else USUAL + tuple(LAYOUTS)
    events = [] if pick(2) else EVENTS
    made = []
    for _ in range(CALLS):
        event = one(events) if events and pick(3) == 0 else ""
        made.append(Call(one(sizes), one(layouts), one((1, 2, 2, 3)), one((1.5, 1.5, 2.5, 2)), bool(pick(2)), bool(pick(3)), event))
    return made + made[-3:] * 2


@functools.cache
def compiled(event):
    """Both sides get functions of the same code."""
    return compile(event, "<event>", "exec")


def giving(program, calls):
    """make_args for conftest.same(own=True)."""

    def make_args(i, side):
        call, state = calls[i], side.state
        torch.set_default_dtype(torch.float32)
        if call.event:
            with torch.enable_grad(), contextlib.suppress(Exception):
                exec(compiled(call.event), {"torch": torch, **state})
        generator = torch.Generator().manual_seed(i)
        x, y = LAYOUTS[call.layout](call.shape, lambda shape: base(shape, program.dtype, generator), state, side.past)
        if program.grad and call.leaf and x.is_floating_point():
            with torch.enable_grad():
                state["given"].append(x.requires_grad_())
                x = x * 1
        return (x, y, call.n, call.k, call.flag), {}

    return make_args


def check(program, calls, dynamic=None, limit=64):
    """Raises AssertionError where compiled calls differ from eager ones."""
    ccompile.reset()
    wrong, half = verify_failures(), program.dtype is torch.bfloat16  # what is computed of halves is only as near as they are
    with quiet():
        same(
            build(program),
            make_args=giving(program, calls),
            own=True,
            build=True,
            calls=len(calls),
            hit=False,
            raises=True,
            no_grad=not program.grad,
            backward="again" if program.grad else False,
            versions=True,
            rtol=3e-2 if half else 2e-3,
            atol=3e-2 if half else 2e-4,
            options={"dynamic": dynamic, "options": {"recompile_limit": limit}},
        )
    assert verify_failures() == wrong, "verify: " + next(e.text for e in reversed(ccompile.events()) if e.kind == "verify")


def drawn(seed):
    """The program of a seed, and its calls."""
    return program(random.Random(seed).randrange), calls(random.Random(~seed).randrange)


# ---- long runs -------------------------------------------------------------------------------------------------------
class Lost(Exception):
    """The process of a program ended, or was ended."""


def elsewhere(work, timeout):
    """Runs work(say) in a process of its own and gives what it says; Lost where it says nothing for so many seconds, or dies."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            work(lambda text: os.write(write, text.encode() + b"\0"))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    rest, ended = b"", False
    try:
        while select.select([read], [], [], timeout)[0]:
            more = os.read(read, 1 << 16)
            if not more:
                ended = True
                break
            *said, rest = (rest + more).split(b"\0")
            yield from (text.decode() for text in said)
    finally:
        os.close(read)
        if not ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if not ended or status:
        raise Lost(f"died: {os.waitstatus_to_exitcode(status)}" if ended else f"no end after {timeout} s")


def failure(program, calls, options):
    """What is wrong with it, or nothing."""
    try:
        check(program, calls, *options)
    except Exception as error:
        return f"{'' if isinstance(error, AssertionError) else type(error).__name__ + ' '}{error}" or "?"
    return ""


def lost(work, timeout):
    try:
        list(elsewhere(work, timeout))
    except Lost:
        return True
    return False


def search(first, last, wrong, seconds, timeout, eagerly=None):
    """Prints what wrong(seed) tells of each, run in processes that end after some time, and gives how many failed, and the seed behind the last one.
    eagerly(seed): runs the program in eager, which may end the process, too."""
    end, seed, failed = time.time() + seconds, first, 0

    def work(say):
        for at in range(seed, last):
            if time.time() > end:
                break
            say(f"@{at}")
            say(wrong(at))

    while seed < last and time.time() < end:
        try:
            for text in elsewhere(work, timeout):
                if text.startswith("@"):
                    seed = int(text[1:])
                elif text:
                    failed += 1
                    print(f"seed {seed}: {text[:400]}", flush=True)
            seed += 1
            break
        except Lost as error:
            fault = eagerly is not None and lost(lambda say: eagerly(seed), timeout)  # noqa: B023
            failed += not fault
            print(f"seed {seed}: {error}{', and so does eager: a fault of torch' * fault}", flush=True)
            seed += 1
    print(f"{failed} of the programs {first} to {seed - 1} fail; --reduce shortens one")
    return failed, seed


def failure_elsewhere(program, calls, options, timeout):
    try:
        return "".join(elsewhere(lambda say: say(failure(program, calls, options)), timeout))
    except Lost as error:
        return str(error)


def least(rows, fails):
    """Rows of which none can be left out; of texts, no first line of a block either."""
    again = True
    while again:
        again = False
        for n in (8, 4, 2, 1):
            for i in range(len(rows) - n, -1, -1):
                less = rows[:i] + rows[i + n :]
                if len(rows) >= i + n and fails(less):
                    rows, again = less, True
        for i in range(len(rows) - 1, -1, -1):
            if isinstance(rows[i], str) and rows[i].endswith(":"):
                deep = len(rows[i]) - len(rows[i].lstrip())
                inside = next((j for j in range(i + 1, len(rows)) if len(rows[j]) - len(rows[j].lstrip()) <= deep), len(rows))
                less = rows[:i] + [line[4:] for line in rows[i + 1 : inside]] + rows[inside:]
                if fails(less):
                    rows, again = less, True
    return rows


def reduce(program, calls, options, timeout):
    def kind(text):
        return re.sub(r"call \d+|all calls|\[\d+\]|\d+", "", text)[:24]

    def with_body(body):
        return program._replace(text="\n".join([HEADER, *body, *end, ""]))

    def fails(program, calls):
        try:
            compile(program.text, "", "exec")
        except SyntaxError:
            return False
        return kind(failure_elsewhere(program, calls, options, timeout)) == wanted

    *body, made, returned = program.text.removeprefix(HEADER).splitlines()
    end = [made, returned]
    wanted = kind(failure_elsewhere(program, calls, options, timeout))
    if wanted:
        calls = least(calls, lambda calls: fails(program, calls))
        body = least(body, lambda body: fails(with_body(body), calls))
        calls = least(calls, lambda calls: fails(with_body(body), calls))
    print(*body, *end, program.dtype, f"grad {program.grad}", *calls, sep="\n")
    print(failure_elsewhere(with_body(body), calls, options, timeout))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--dynamic", choices=("none", "true", "false"), default="none")
    parser.add_argument("--limit", type=int, default=64, help="recompile_limit")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a program may take")
    parser.add_argument("--reduce", action="store_true")
    args = parser.parse_args()
    options = {"none": None, "true": True, "false": False}[args.dynamic], args.limit
    torch.set_num_threads(1)
    if args.reduce:
        reduce(*drawn(args.first), options, args.timeout)
    else:
        last = args.last or args.first + 1
        search(args.first, last, lambda seed: failure(*drawn(seed), options), args.seconds, args.timeout)


if __name__ == "__main__":
    main()
