"""The frame layer (csrc/py): a frame that is stepped, broken, handed over or rebuilt at any instruction behaves as in CPython.

Needs ccompile._frametest (CCOMPILE_TEST_EXT=frame) and no torch. Compares frame_oracle.outcome and recursion counters.
"""

import dis
import opcode
import sys

import frame_cases as cases
import pytest
from frame_oracle import (  # noqa: F401
    F,
    assert_same,
    balanced,
    code_objects,
    cool,
    hooked,
    ident,
    no_foreign_hook,
    outcome,
    plainly,
    trace_of,
)

LIMIT = 4000  # instructions of the target per case; none comes near
IDS = [f"{i}-{fn.__name__}" for i, (fn, _) in enumerate(cases.CASES)]
RECURSIVE = (cases.c_infinite, cases.c_recurse, cases.c_factorial)
EACH = pytest.mark.parametrize("index", range(len(cases.CASES)), ids=IDS)


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


def inner(insn):
    """The end of the comparison before it, which 3.13 has no instruction for."""
    return insn["op"] == "TO_BOOL" and insn["flags"] & 32


def test_decode_covers_every_unit_and_jumps_to_instructions():
    for code in code_objects():
        unit, before = 0, None
        for insn in F.decode(code):
            if inner(insn):
                assert before["op"] == "COMPARE" and all(insn[k] == before[k] for k in ("at", "real", "next"))
                continue
            before = insn
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
            jumps = (d.opcode in dis.hasjrel or d.opcode in dis.hasjabs) and d.opname != "END_ASYNC_FOR"
            insn = by_real.get(d.offset // 2)
            if jumps and insn:
                extra = skip if d.opname == "FOR_ITER" else 0
                assert insn["target"] == at[d.argval // 2] + extra, (code, d)


def raw_depth_change(code, insn, by_unit, jump):
    change = 0
    if inner(insn):
        return 0
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


def test_liveness_of_cells_and_frame_readers():
    def cell(a):
        return lambda: a

    def reader(a, b):
        b = 1
        return locals()

    assert all(0 in row for row in F.live(cell.__code__))
    assert all({0, 1} <= set(row) for row in F.live(reader.__code__))


def test_liveness_where_addresses_are_read():
    """Where code can tell whether an object still exists, every local stays live to the end of the function."""
    readers = (
        lambda a, b: id(a) == id(b),
        lambda a, b: a.data_ptr() == b.data_ptr(),
        lambda a, b: a.grad_fn._raw_saved_self.register_hooks(b, b),
        lambda a, b: a._cdata + b._cdata,
    )
    for reader in readers:
        assert all({0, 1} <= set(row) for row in F.live(reader.__code__)), reader.__code__.co_names
    assert 0 not in F.live((lambda a, b: a.idle() == b.data()).__code__)[-1]


def test_every_local_is_live_where_the_frame_is_handed_over():
    """CPython may do anything with the frame there: it may raise, yield, or show its locals."""
    seen = 0
    for code in code_objects():
        for insn, live in zip(F.decode(code), F.live(code)):
            if insn["op"] in ("HAND", "HAND_STOP"):
                seen += 1
                assert set(range(code.co_nlocals)) <= set(live)
    assert seen > 0


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
    "CONVERT": "FORMAT", "IMPORT_NAME": "IMPORT", "WITH": "WITH", "SMALL_INT": "CONST", "COMMON": "CONST",
}  # fmt: skip
# More than one event an instruction, or sometimes none.
INEXACT = (cases.c_raise_forms, cases.c_raise_after_try2, cases.c_raise_bad_class, cases.c_coroutine)


def executed(fn, make, code):
    """How often each instruction of `code` is executed by fn(*args), by CPython's own opcode tracing."""
    counts, insns, before = {}, {}, []
    for insn in F.decode(code):
        if not inner(insn):
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
        alone = {"CONST", "FUNCTION", "CELL", "CLOSURE", "BUILD", "WITH", "RAISE", "IS", "EXC_MATCH"}
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
