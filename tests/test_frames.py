"""The frame layer (csrc/py): a frame that is stepped, broken, handed over or rebuilt at any instruction behaves as in CPython.

Needs ccompile._frametest (CCOMPILE_TEST_EXT=frame) and no torch. "Behaves": result, exception (type, text, context,
traceback with lines and columns), what callees see of their callers, the log of side effects, frames that outlive the
call, recursion counters. H1..H17 are the hazards of owning a frame that the layer's comments refer to.
"""

import dis
import gc
import opcode
import re
import signal
import sys
import sysconfig
import threading
import types

import frame_cases as cases
import pytest

F = pytest.importorskip("ccompile._frametest")

LIMIT = 4000  # instructions of the target per case; none comes near
IDS = [f"{i}-{fn.__name__}" for i, (fn, _) in enumerate(cases.CASES)]
RECURSIVE = (cases.c_infinite, cases.c_recurse, cases.c_factorial)
EACH = pytest.mark.parametrize("index", range(len(cases.CASES)), ids=IDS)


def normal(value):
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def trace_of(exc):
    rows, tb = [], exc.__traceback__
    while tb:
        code = tb.tb_frame.f_code
        rows.append((code.co_name, tb.tb_lineno, cases.position(code, tb.tb_lasti), tb.tb_frame.f_lineno))
        tb = tb.tb_next
    while rows and rows[0][0] == "outcome":
        rows.pop(0)
    if len(rows) > 60:
        rows = rows[:3] + ["deep"]
    return rows


def chain_of(exc):
    seen = []
    while exc is not None and len(seen) < 10:
        seen.append((type(exc).__name__, normal(exc), trace_of(exc), exc.__suppress_context__))
        exc = exc.__cause__ or exc.__context__
    return seen


def outcome(how, fn, make):
    """Everything observable of a call; `how`: a C function that makes it, and what it is passed beside fn and args."""
    run, *more = how
    cases.LOG.clear()
    cases.KEEP.clear()
    args = make()
    try:
        result = ("value", normal(run(fn, args, *more)))
    except BaseException as e:
        result = ("raised", chain_of(e))
    kept = [
        (f.f_code.co_name, f.f_lineno, normal(sorted(f.f_locals)), f.f_back and f.f_back.f_code.co_name) for f in cases.KEEP
    ]
    cases.KEEP.clear()
    return result, normal(cases.LOG), kept


plainly = (F.call,)


def hooked(mode, k, target):
    return F.run, mode, k, target


def cool(fn):
    """Gives fn (and the callees) code objects that were never specialised."""
    for f in (fn, *cases.CALLEES):
        f.__code__ = f.__code__.replace()


def assert_same(got, want, what):
    if got != want:
        pytest.fail(f"{what}\n want {want}\n got  {got}")


def balanced():
    assert F.armed() == (0, False)
    assert F.hookless()


def sweep(index, mode, *, cold, target=None, stride=1):
    """Runs one case once for every k that the mode counts, until it is past the end; returns how often it fired."""
    fn, make = cases.CASES[index]
    run_cold = cold and not fn.__closure__
    if not run_cold:
        for _ in range(3 if fn is cases.c_infinite else 20):
            outcome(plainly, fn, make)
    want = outcome(plainly, fn, make)
    levels, fired = F.levels(), 0
    for k in range(0, LIMIT, stride):
        if run_cold:
            cool(fn)
        code = target.__code__ if target else fn.__code__
        got = outcome(hooked(mode, k, code), fn, make)
        stats = F.stats()
        assert_same(got, want, f"{fn.__name__}, k = {k}")
        assert F.levels() == levels
        assert stats["saved"] == 0
        if not stats["fired"]:
            break
        fired += 1
        if fn in RECURSIVE and k >= 12:
            break
    balanced()
    return fired


# ---------------------------------------------------------------- decoder


def code_objects():
    """All code objects of the cases and of some modules of the standard library."""
    lib = sysconfig.get_path("stdlib")
    for name in ("ast", "argparse", "asyncio/base_events", "dataclasses", "inspect", "contextlib", "typing", "test/test_grammar"):
        try:
            with open(f"{lib}/{name}.py", encoding="utf-8") as f:
                yield from nested(compile(f.read(), name, "exec"))
        except OSError:
            continue
    with open(cases.__file__, encoding="utf-8") as f:
        yield from nested(compile(f.read(), "cases", "exec"))
    yield from nested(cases.c_extended.__code__)


def nested(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested(const)


def test_decode_covers_every_unit_and_jumps_to_instructions():
    for code in code_objects():
        unit = 0
        for insn in F.decode(code):
            assert insn["at"] == unit <= insn["real"] < insn["next"]
            unit = insn["next"]
            if insn["op"].startswith("JUMP") or insn["op"] == "NEXT":
                assert insn["target"] >= 0
            assert insn["depth"] <= code.co_stacksize
        assert unit == len(code.co_code) // 2


def test_decode_jumps_where_dis_says():
    skip = 0 if "END_FOR" not in opcode.opmap else 1 if "KW_NAMES" in opcode.opmap else 2
    for code in code_objects():
        insns = F.decode(code)
        at = {insn["at"]: i for i, insn in enumerate(insns)}
        by_real = {insn["real"]: insn for insn in insns}
        for d in dis.get_instructions(code):
            jumps = d.opcode in dis.hasjrel or d.opcode in dis.hasjabs
            insn = by_real.get(d.offset // 2)
            if jumps and insn:
                extra = skip if d.opname == "FOR_ITER" else 0
                assert insn["target"] == at[d.argval // 2] + extra, (code, d)


def raw_depth_change(code, insn, by_unit, jump):
    change = 0
    for unit in range(insn["at"], insn["real"] + 1):
        d = by_unit.get(unit)
        if d and d.opname not in ("CACHE", "EXTENDED_ARG"):
            arg = d.arg if d.opcode >= dis.HAVE_ARGUMENT or d.arg is not None else None
            change += dis.stack_effect(d.opcode, arg, jump=jump)
    return change


def test_depths_are_sums_of_stack_effects():
    for code in code_objects():
        insns = F.decode(code)
        by_unit = {d.offset // 2: d for d in dis.get_instructions(code)}
        assert insns[0]["depth"] == 0
        for insn, following in zip(insns, insns[1:]):
            name = by_unit[insn["real"]].opname
            if insn["depth"] < 0 or insn["flags"] & 2:
                continue
            if name != "RETURN_GENERATOR":
                assert following["depth"] == insn["depth"] + raw_depth_change(code, insn, by_unit, False)
            if insn["target"] >= 0 and name != "FOR_ITER":
                assert insns[insn["target"]]["depth"] == insn["depth"] + raw_depth_change(code, insn, by_unit, True)


def test_golden_decode():
    def sample(xs, k=1):
        for x in xs:
            if x:
                print(x, end=k)

    rows = [(i["op"], i["depth"]) for i in F.decode(sample.__code__) if i["op"] not in ("HAND", "NOP", "JUMP_BACK") and i["depth"] >= 0]
    ops = [op for op, _ in rows]
    assert ops[:5] == ["RESUME", "LOAD_FAST", "ITER", "NEXT", "STORE_FAST"]
    call = next(i for i in F.decode(sample.__code__) if i["op"] == "CALL")
    assert call["arg"] == 2
    assert call["aux"] >= 0 or call["flags"] & 64  # keyword names: a constant, or on the stack
    if "KW_NAMES" in opcode.opmap:
        raw = sample.__code__.co_code
        assert raw[2 * call["at"]] == opcode.opmap["KW_NAMES"]
        assert raw[2 * call["real"]] == opcode.opmap["CALL"]
    assert ("ITER", 1) in rows
    assert ("NEXT", 1) in rows


def test_decode_is_the_same_when_specialised():
    before = [F.decode(c) for c in (cases.c_for.__code__.replace(), cases.c_calls.__code__.replace())]
    for _ in range(100):
        cases.c_for([1, 2, 3])
        outcome(plainly, cases.c_calls, lambda: (3, 4))
    assert before == [F.decode(cases.c_for.__code__), F.decode(cases.c_calls.__code__)]


def test_every_opcode_is_known_or_handed_over():
    names = {insn["op"] for code in code_objects() for insn in F.decode(code)}
    assert {"CALL", "ATTR", "GLOBAL", "WITH", "RAISE", "RERAISE", "MATCH_CLASS", "UNPACK_EX", "SUSPEND"} <= names


# ---------------------------------------------------------------- liveness


def test_liveness():
    def sample(a, b, c):
        d = a + b
        try:
            e = ident(d)
        except KeyError:
            return c
        return e

    code = sample.__code__
    names = code.co_varnames
    insns, live = F.decode(code), F.live(code)
    at = {names[i]: [pc for pc, row in enumerate(live) if i in row] for i in range(len(names))}
    assert max(at["a"]) <= max(at["b"]) < max(at["c"])
    call = next(pc for pc, i in enumerate(insns) if i["op"] == "CALL")
    assert names.index("c") in live[call], "read in the handler"
    assert names.index("a") not in live[call]
    assert all(names.index("e") not in row for pc, row in enumerate(live) if insns[pc]["line"] < 4 + code.co_firstlineno - 1)


def ident(x):
    return x


def test_liveness_of_cells_and_frame_readers():
    def cell(a):
        return lambda: a

    def reader(a, b):
        b = 1
        return locals()

    assert all(0 in row for row in F.live(cell.__code__))
    assert all({0, 1} <= set(row) for row in F.live(reader.__code__))


def test_what_is_read_is_live():
    for code in code_objects():
        live = F.live(code)
        for pc, insn in enumerate(F.decode(code)):
            if insn["op"] in ("LOAD_FAST", "LOAD_FAST_2", "DELETE_FAST"):
                assert insn["arg"] in live[pc]


# ---------------------------------------------------------------- every instruction


@EACH
def test_hand_over_at_every_instruction_cold(index):
    assert sweep(index, F.STEP_GIVE_UP, cold=True) > 0


@EACH
def test_hand_over_at_every_instruction_specialised(index):
    sweep(index, F.STEP_GIVE_UP, cold=False)


@EACH
def test_observe_from_every_instruction(index):
    sweep(index, F.STEP_OBSERVE, cold=False)


@EACH
def test_put_slots_back_at_every_instruction(index):
    sweep(index, F.STEP_REPUT, cold=False)


@EACH
def test_observer_dies_at_every_instruction(index):
    sweep(index, F.STEP_DEAD, cold=False, stride=3)


@EACH
def test_break_at_every_event(index):
    sweep(index, F.BREAK_AT, cold=False)


@EACH
def test_give_up_before_every_event(index):
    sweep(index, F.GIVE_UP_BEFORE, cold=False)


@EACH
def test_give_up_after_every_event(index):
    sweep(index, F.GIVE_UP_AFTER, cold=False)


@EACH
@pytest.mark.parametrize("mode", [F.OBSERVE, F.PASS, F.BREAK_ALL, F.DONE], ids=["observe", "pass", "break", "done"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_whole_call(index, mode, everywhere):
    fn, make = cases.CASES[index]
    want = outcome(plainly, fn, make)
    levels = F.levels()
    got = outcome(hooked(mode, 0, None if everywhere else fn.__code__), fn, make)
    assert_same(got, want, fn.__name__)
    assert F.levels() == levels
    balanced()


@pytest.mark.parametrize("seed", range(40))
def test_random_breaks_and_hand_overs(seed):
    for fn, make in cases.CASES:
        want = outcome(plainly, fn, make)
        assert_same(outcome(hooked(F.RANDOM, seed, None), fn, make), want, fn.__name__)
    balanced()


@pytest.mark.parametrize("callee", cases.CALLEES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", [F.STEP_GIVE_UP, F.BREAK_AT, F.GIVE_UP_AFTER, F.REBUILD])
def test_nested_callee(callee, mode):
    index = next(i for i, (fn, _) in enumerate(cases.CASES) if fn is cases.c_calls)
    assert sweep(index, mode, cold=False, target=callee) > 3


def outer_caller(a, b):
    r = middle(a, b)
    return r, where_of(a)


def middle(a, b):
    x = [a]
    try:
        y = cases.leaf(a, b)
    except KeyError:
        y = 0
    return x, y


def where_of(a):
    return cases.where(a)


def test_rebuild_two_frames_at_every_instruction():
    make = lambda: (1, 5)  # noqa: E731
    want = outcome(plainly, outer_caller, make)
    for k in range(LIMIT):
        got = outcome(hooked(F.REBUILD_CALLER, k, cases.leaf.__code__), outer_caller, make)
        stats = F.stats()
        assert_same(got, want, f"k = {k}")
        if not stats["fired"]:
            break
        assert stats["rewinds"] == 2 and stats["leaves"][4] == 2 and stats["saved"] == 0
    assert k > 20
    balanced()


def test_rebuild_passes_exceptions_to_the_caller():
    def callee(a, *rest, k, **more):
        x = a
        cases.boom(x)

    def caller(a):
        try:
            return callee(a, k=1)
        except KeyError as e:
            return trace_of(e)

    want = outcome(plainly, caller, lambda: (1,))
    for k in range(LIMIT):
        got = outcome(hooked(F.REBUILD, k, callee.__code__), caller, lambda: (1,))
        assert_same(got, want, f"k = {k}")
        if not F.stats()["fired"]:
            break
    assert k > 5


# ---------------------------------------------------------------- events


COUNTED = {
    "BINOP": "BINOP", "CALL": "CALL", "ATTR": "ATTR", "SUBSCR": "SUBSCR", "COMPARE": "COMPARE", "ITER": "ITER",
    "NEXT": "NEXT", "GLOBAL": "GLOBAL", "STORE_SUBSCR": "STORE_SUBSCR", "STORE_ATTR": "STORE_ATTR", "CONST": "CONST",
    "CONTAINS": "CONTAINS", "UNARY": "UNARY", "UNPACK": "UNPACK", "LOAD_DEREF": "DEREF", "CALL_EX": "CALL_EX",
    "BUILD_TUPLE": "BUILD", "BUILD_LIST": "BUILD", "BUILD_MAP": "BUILD", "BUILD_SET": "BUILD", "BUILD_SLICE": "BUILD",
    "BUILD_STRING": "BUILD", "BUILD_CONST_MAP": "BUILD", "MAKE_CELL": "CELL", "LIST_APPEND": "UPDATE", "MAP_ADD": "UPDATE",
    "SET_ADD": "UPDATE", "LIST_EXTEND": "UPDATE", "FORMAT": "FORMAT", "STORE_DEREF": "STORE_DEREF", "UNPACK_EX": "UNPACK",
    "DICT_MERGE": "UPDATE", "DICT_UPDATE": "UPDATE", "SET_UPDATE": "UPDATE", "DELETE_SUBSCR": "STORE_SUBSCR",
    "DELETE_ATTR": "STORE_ATTR", "SLICE": "SUBSCR", "STORE_SLICE": "STORE_SUBSCR", "RETURN_CONST": "CONST",
    "CONVERT": "FORMAT", "IMPORT_NAME": "IMPORT", "WITH": "WITH",
}  # fmt: skip
# More than one event an instruction, or sometimes none.
INEXACT = (cases.c_raise_forms, cases.c_raise_after_try2, cases.c_raise_bad_class, cases.c_coroutine)


def executed(fn, make, code):
    """How often each instruction of `code` is executed by fn(*args), by CPython's own opcode tracing."""
    counts, insns, before = {}, {}, []
    for insn in F.decode(code):
        insns[insn["at"]] = insns[insn["real"]] = insn

    def tracer(frame, event, arg):
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        insn = insns.get(frame.f_lasti // 2)
        if event == "opcode" and insn:
            # Prefixes are traced too, the opcode behind them only in some versions.
            if not (before and before[-1] is insn and frame.f_lasti // 2 == insn["real"] != insn["at"]):
                counts[insn["op"]] = counts.get(insn["op"], 0) + 1
            before[:] = [insn]
        return tracer

    for _ in range(2):  # 3.13 instruments the code while it is traced for the first time: too late for its beginning
        counts.clear()
        args = make()
        sys.settrace(tracer)
        try:
            fn(*args)
        except BaseException:
            pass
        finally:
            sys.settrace(None)
    return counts


@EACH
def test_no_event_is_lost(index):
    fn, make = cases.CASES[index]
    if fn in INEXACT or fn in RECURSIVE:
        pytest.skip("several events an instruction")
    counts = executed(fn, make, fn.__code__)
    outcome(hooked(F.OBSERVE, 0, fn.__code__), fn, make)
    stats = F.stats()
    if stats["leaves"][3]:
        pytest.skip("handed over (an instruction that only CPython performs)")
    want = {}
    for op, n in counts.items():
        if op in COUNTED and op != "WITH":
            want[COUNTED[op]] = want.get(COUNTED[op], 0) + n
    extra = {"CALL": sum(counts.get(op, 0) for op in ("WITH", "WITH_EXCEPT", "SUPER_ATTR")),
             "ATTR": sum(counts.get(op, 0) for op in ("IMPORT_FROM", "SUPER_ATTR"))}
    for kind, n in extra.items():
        if n:
            want[kind] = want.get(kind, 0) + n
    got = {kind: n for kind, n in stats["target"].items() if kind in want}
    assert got == want


def test_before_and_after_are_paired():
    for fn, make in cases.CASES:
        if fn is cases.c_import:
            continue  # gives up inside an event: CPython words the ImportError
        outcome(hooked(F.OBSERVE, 0, None), fn, make)
        stats = F.stats()
        alone = {"CONST", "FUNCTION", "CELL", "CLOSURE", "ASSERTION", "BUILD", "WITH", "RAISE", "IS"}
        for kind, n in stats["before"].items():
            if kind not in alone:
                assert n == stats["after"][kind], (fn.__name__, kind)


def test_leaves_are_told():
    assert F.run(cases.c_factorial, (5,)) == 120
    stats = F.stats()
    assert stats["enters"] == sum(stats["leaves"]) == stats["leaves"][0] == 5
    with pytest.raises(KeyError):
        F.run(cases.boom, ())
    assert F.stats()["leaves"][:2] == (0, 1)
    F.run(lambda: list(x for x in (1, 2)), ())
    assert F.stats()["leaves"][2] >= 3  # generator made, and two values


def test_frames_that_are_thrown_into_are_observed():
    def gen():
        try:
            yield 1
        except ValueError:
            x = 1
            yield x + x

    def drive():
        g = gen()
        return next(g), g.throw(ValueError)

    assert F.run(drive, (), F.OBSERVE, 0, gen.__code__) == (1, 2)
    assert F.stats()["target"]["BINOP"] == 1


# ---------------------------------------------------------------- hazards


def check(fn, *args, mode=F.OBSERVE, k=0):
    want = outcome(plainly, fn, lambda: args)
    got = outcome(hooked(mode, k, None), fn, lambda: args)
    assert_same(got, want, fn.__name__)
    balanced()


def test_h1_first_instruction_of_a_protected_range():
    for fn in (cases.c_with_unpack, cases.c_first_in_try):
        check(fn, object() if fn is cases.c_first_in_try else 1)
        check(fn, object() if fn is cases.c_first_in_try else 1, mode=F.BREAK_ALL)


def test_h2_keyword_names_stay_with_their_call():
    if "KW_NAMES" not in opcode.opmap:
        pytest.skip("names are on the stack")
    leads = {opcode.opmap[name] for name in ("KW_NAMES", "PRECALL") if name in opcode.opmap}
    merged = 0
    for code in code_objects():
        for insn in F.decode(code):
            if insn["op"] == "CALL" and insn["aux"] >= 0:
                assert code.co_code[2 * insn["at"]] in leads | {opcode.opmap["EXTENDED_ARG"]}
                merged += 1
    assert merged > 100


def test_h3_extended_arguments():
    ext = opcode.opmap["EXTENDED_ARG"]
    code = cases.c_extended.__code__
    starts = [insn for insn in F.decode(code) if code.co_code[2 * insn["at"]] == ext]
    assert starts and all(insn["real"] > insn["at"] for insn in starts)


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring came with 3.12")
def test_h4_decode_is_the_same_when_instrumented():
    before = F.decode(traced_target.__code__.replace())
    sys.monitoring.use_tool_id(2, "test")
    sys.monitoring.set_events(2, sys.monitoring.events.INSTRUCTION)
    traced_target(1)
    try:
        fresh = traced_target.__code__.replace()
        assert F.decode(traced_target.__code__) == F.decode(fresh) == before
    finally:
        sys.monitoring.set_events(2, 0)
        sys.monitoring.free_tool_id(2)


def test_h6_finalizers_see_the_frame():
    seen = []

    class Dying:
        def __del__(self):
            seen.append(sys._getframe(1).f_code.co_name)

    def drops():
        x = Dying()
        x = Dying()
        del x
        [Dying()]
        return Dying()

    drops()
    want = list(seen)
    seen.clear()
    F.run(drops, ())
    assert seen == want


def traced_target(a):
    b = a + 1
    c = [b, a]
    for i in c:
        b += i
    return c


def with_tracer(set_hook, run):
    events = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name == "traced_target":
            events.append((event, frame.f_lineno))
            return tracer

    set_hook(tracer)
    try:
        run()
    finally:
        set_hook(None)
    return events


@pytest.mark.parametrize("which", ["settrace", "setprofile"])
def test_h7_tracer_active_at_entry(which):
    set_hook = getattr(sys, which)
    want = with_tracer(set_hook, lambda: traced_target(1))
    got = with_tracer(set_hook, lambda: F.run(traced_target, (1,)))
    assert got == want and want
    assert F.stats()["enters"] == 0
    assert not F.traced()


def switches_tracing_on(a):
    b = a + 1
    seen = start_tracing()
    c = traced_target(b)
    for i in (1, 2):
        b += i
    try:
        cases.boom()
    except KeyError:
        b = -b
    sys.settrace(None)
    return b, c, seen


def start_tracing():
    seen = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name in ("switches_tracing_on", "traced_target"):
            seen.append((frame.f_code.co_name, event, frame.f_lineno))
            return tracer

    sys.settrace(tracer)
    sys._getframe(1).f_trace = tracer
    return seen


def raises_while_tracing_starts(a):
    seen = []
    try:
        tracing_boom(seen)
    except KeyError as e:
        seen.append(e.__traceback__.tb_lineno)
    sys.settrace(None)
    return seen


def tracing_boom(seen):
    def tracer(frame, event, arg):
        if frame.f_code.co_name == "raises_while_tracing_starts":
            seen.append((event, frame.f_lineno))
            return tracer

    sys.settrace(tracer)
    sys._getframe(1).f_trace = tracer
    raise KeyError


@pytest.mark.parametrize("fn", [switches_tracing_on, raises_while_tracing_starts])
def test_h7_tracer_switched_on_by_a_callee(fn):
    want = outcome(plainly, fn, lambda: (1,))
    for mode in (F.OBSERVE, F.BREAK_ALL):
        assert_same(outcome(hooked(mode, 0, None), fn, lambda: (1,)), want, "traced")
    for k in range(200):
        got = outcome(hooked(F.STEP_GIVE_UP, k, fn.__code__), fn, lambda: (1,))
        assert_same(got, want, f"k = {k}")
        if not F.stats()["fired"]:
            break
    sys.settrace(None)


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring came with 3.12")
@pytest.mark.parametrize("local", [False, True])
def test_h7_monitoring(local):
    monitoring = sys.monitoring
    events = monitoring.events
    mask = events.LINE | events.PY_START | events.PY_RETURN | events.INSTRUCTION
    code = traced_target.__code__

    def watch(run):
        seen = []
        monitoring.use_tool_id(2, "test")
        for name in ("LINE", "PY_START", "PY_RETURN", "INSTRUCTION"):

            def callback(c, *a, name=name):
                if c is code:
                    seen.append((name, a[:1]))

            monitoring.register_callback(2, getattr(events, name), callback)
        monitoring.set_local_events(2, code, mask) if local else monitoring.set_events(2, mask)
        try:
            run()
        finally:
            monitoring.set_local_events(2, code, 0) if local else monitoring.set_events(2, 0)
            monitoring.free_tool_id(2)
        return seen

    want = watch(lambda: traced_target(1))
    got = watch(lambda: F.run(traced_target, (1,)))
    assert got == want and want


def test_h8_stale_instrumentation_is_harmless():
    sys.settrace(lambda *a: None)
    traced_target(1)
    sys.settrace(None)
    check(traced_target, 1)


def test_h9_frames_that_never_warm_up_run():
    for _ in range(50):
        assert F.run(cases.c_locals, (1, 2), F.STEP_GIVE_UP, 3, cases.c_locals.__code__) == (3, 6, 5)


def test_h10_deep_recursion():
    def deep(n):
        return 0 if n == 0 else deep(n - 1) + 1

    limit = sys.getrecursionlimit()
    assert F.run(deep, (limit - 150,)) == limit - 150
    levels = F.levels()
    with pytest.raises(RecursionError):
        F.run(deep, (limit * 3,))
    assert F.levels() == levels
    balanced()


def test_h10_no_c_stack_is_an_exception():
    def deep(n):
        return 0 if n == 0 else deep(n - 1) + 1

    limit, result = sys.getrecursionlimit(), []

    def in_thread():
        try:
            F.run(deep, (100_000,))
        except RecursionError:
            result.append("recursion")

    size = threading.stack_size(1 << 20)
    try:
        sys.setrecursionlimit(200_000)
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    assert result == ["recursion"]


def test_h11_exception_survives_finalizers():
    class Clears:
        def __del__(self):
            try:
                raise ValueError
            except ValueError:
                pass

    def fails(x):
        y = [Clears()]  # noqa: F841
        return ident((Clears(), x.nothing, Clears()))

    check(fails, 5)
    check(fails, 5, mode=F.BREAK_ALL)


def test_h12_signals_are_handled_in_a_loop():
    got = []

    def spin():
        n = 0
        while not got:
            n += 1
        return n

    old = signal.signal(signal.SIGALRM, lambda *a: got.append(sys._getframe(1).f_code.co_name))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert F.run(spin, ()) > 0
    finally:
        signal.signal(signal.SIGALRM, old)
    assert got == ["spin"]


def test_h12_signal_handlers_may_raise():
    class Alarm(Exception):
        pass

    def handler(*a):
        raise Alarm

    def spin():
        try:
            while True:
                pass
        except Alarm as e:
            return trace_of(e)[0][0]

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert F.run(spin, ()) == "spin"
    finally:
        signal.signal(signal.SIGALRM, old)


def test_h12_other_threads_get_the_lock():
    stop, ticks = [], []

    def other():
        while not stop:
            ticks.append(1)
        ticks.append("end")

    def spin():
        n = 0
        while len(ticks) < 1000:
            n += 1
        return n

    thread = threading.Thread(target=other)
    thread.start()
    try:
        F.run(spin, ())
    finally:
        stop.append(1)
        thread.join(20)
    assert ticks[-1] == "end"


def test_h12_asynchronous_exceptions():
    import ctypes

    caught, ready = [], []

    def spin():
        ready.append(threading.get_ident())
        try:
            while True:
                pass
        except ZeroDivisionError as e:
            caught.append(trace_of(e)[-1][0])

    thread = threading.Thread(target=lambda: F.run(spin, ()))
    thread.start()
    while not ready:
        pass
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ready[0]), ctypes.py_object(ZeroDivisionError))
    thread.join(20)
    assert caught == ["spin"]


def test_h12_collections_happen():
    class Node:
        pass

    def make(n):
        before = gc.get_stats()[0]["collections"]
        for _ in range(n):
            a = Node()
            a.me = a
        return gc.get_stats()[0]["collections"] - before

    assert F.run(make, (20_000,)) >= 5


def test_h13_code_objects_die():
    for _ in range(3):
        space = {}
        exec("def f(a):\n return a + 1", space)
        assert F.run(space["f"], (1,)) == 2
        del space
        gc.collect()


def test_h14_foreign_hook_is_refused():
    F.foreign(True)
    try:
        with pytest.raises(RuntimeError, match="another frame evaluation hook.*_frametest"):
            F.run(ident, (1,))
    finally:
        F.foreign(False)
    balanced()
    assert F.run(ident, (1,)) == 1


def test_h14_foreign_hook_that_comes_later_keeps_its_place():
    def body():
        F.foreign(True)
        return ident(1), ident(2)

    try:
        for mode in (F.OBSERVE, F.BREAK_ALL):
            assert F.run(body, (), mode) == (1, 2)
            assert not F.hookless()
            F.foreign(False)
    finally:
        F.foreign(False)
    balanced()


def test_h15_rebuild_that_cannot_begin():
    limit = sys.getrecursionlimit()

    def deep(n):
        return cases.leaf(1, n) if n == 0 else deep(n - 1)

    def depth():
        f, n = sys._getframe(), 0
        while f:
            f, n = f.f_back, n + 1
        return n

    for k in (0, 3):
        with pytest.raises(RecursionError):
            F.run(deep, (limit - depth() + 40,), F.REBUILD, k, cases.leaf.__code__)
    balanced()


def test_h17_code_without_fast_locals_is_passed():
    assert F.run(exec, ("x = 1\nclass A:\n  y = x\n", {})) is None
    assert F.stats()["enters"] == 0

    class Mapping(dict):
        pass

    f = types.FunctionType(ident.__code__, Mapping(ident.__globals__))
    assert F.run(f, (1,)) == 1
    assert F.stats()["enters"] == 0


# ---------------------------------------------------------------- hook, references, objects


def test_regions_nest():
    def inner():
        return F.armed(), F.run(F.armed, ()), F.armed()

    assert F.run(inner, ()) == ((1, True), (2, True), (1, True))
    assert F.run(lambda: F.run(lambda: F.run(ident, (3,)), ()), ()) == 3
    balanced()
    with pytest.raises(KeyError):
        F.run(lambda: F.run(cases.boom, ()), ())
    balanced()


def test_pause_removes_the_hook():
    seen = []

    def look():
        seen.append(F.hookless())

    def body():
        look()

    F.run(body, ())
    F.run(body, (), F.BREAK_ALL, 0, body.__code__)
    assert seen == [False, True]


def test_other_threads_are_not_observed():
    def work():
        thread = threading.Thread(target=cases.c_for, args=([1, 2],))
        thread.start()
        thread.join()

    F.run(work, ())
    codes = F.stats()["enters"]
    assert codes > 0
    balanced()


WATCHED = [None, True, 1, (), "", cases.ident, cases.where, cases.boom, cases.leaf, cases.looping, cases.Base, KeyError, len]


@pytest.fixture
def frozen_heap():
    """Collections look at what the test makes only (torch alone brings several hundred thousand objects)."""
    if "torch" not in sys.modules:
        yield
        return
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("mode", [F.OBSERVE, F.STEP_GIVE_UP, F.STEP_REPUT, F.BREAK_AT, F.GIVE_UP_AFTER, F.DONE])
def test_references_are_balanced(mode, frozen_heap):
    skip = (cases.c_infinite, cases.c_extended, cases.c_import, cases.c_functions)
    for fn, make in cases.CASES:
        if fn in skip:
            continue
        watched = [*WATCHED, fn, fn.__code__, *(fn.__closure__ or ()), *fn.__code__.co_consts]

        def rounds():
            for k in range(40):
                outcome(hooked(mode, k, fn.__code__), fn, make)
            gc.collect()

        rounds()
        for attempt in range(10):  # the interpreter's own caches fill up, slowly on 3.13
            blocks, counts = sys.getallocatedblocks(), [sys.getrefcount(o) for o in watched]
            rounds()
            blocks = sys.getallocatedblocks() - blocks
            grown = [(o, sys.getrefcount(o) - n) for o, n in zip(watched, counts) if sys.getrefcount(o) - n > 8]
            if blocks < 36 and not grown:  # less than one a round
                break
        else:
            pytest.fail(f"{fn.__name__}: {blocks} blocks, {grown}")


def test_objects_that_guards_read():
    class Plain:
        def __init__(self):
            self.x = 1

    o = Plain()
    d, version, type_version, init = F.objects(o)
    assert d is o.__dict__ and init is Plain.__init__ and type_version > 0
    assert F.objects(o)[2] == type_version
    o.x = 2
    if version:
        assert F.objects(o)[1] != version
    Plain.y = 1
    assert F.objects(o)[2] != type_version
    assert F.objects(5)[0] is None
    assert F.objects(cases.Slotted(1, 2))[0] is None
