"""The hazards of owning a frame, H1..H17, that the comments of csrc/py refer to; nested regions; references.

Like tests/test_frames.py, this needs ccompile._frametest (CCOMPILE_TEST_EXT=frame) and no torch.
"""

import gc
import opcode
import resource
import signal
import sys
import threading
import types

import frame_cases as cases
import pytest
from frame_oracle import (  # noqa: F401
    F,
    assert_same,
    balanced,
    check,
    code_objects,
    hooked,
    ident,
    no_foreign_hook,
    outcome,
    plainly,
    trace_of,
)

# ---------------------------------------------------------------- hazards


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


def test_h10_the_stack_is_asked_for_once():
    """For the main thread glibc reads /proc/self/maps, which can't be opened here. Without its size 3.12 allows 1500 nested C calls."""

    def deep(n):
        return 0 if n == 0 else deep(n - 1) + 1

    assert F.run(deep, (1,)) == 1
    limit, (soft, hard) = sys.getrecursionlimit(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    sys.setrecursionlimit(4000)
    try:
        assert F.run(deep, (2000,)) == 2000
    finally:
        sys.setrecursionlimit(limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_h10_without_c_stack_cpython_goes_on():
    """Its own calls of Python functions take none."""

    def deep(n):
        return 0 if n == 0 else deep(n - 1) + 1

    limit, result = sys.getrecursionlimit(), []

    def in_thread():
        try:
            result.append(F.run(deep, (100_000,)))
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
    assert result == [100_000]


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
