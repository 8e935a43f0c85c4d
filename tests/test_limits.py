"""Behaviour at limits: entries beyond recompile_limit, plans beyond shape_limit, threads that make first calls at once."""

import threading
import types
import warnings

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="needs the product")


def scaled(x, k):
    return x * 2 if k == "a" else x * len(k) + ord(k[0])


def run(compiled, fn, kinds, x):
    for kind in kinds:
        assert torch.equal(compiled(x, kind), fn(x, kind))
    return compiled_of(compiled).report()


def quiet(**options):
    warnings.simplefilter("ignore", RuntimeWarning)
    return ccompile.compile(scaled, dynamic=False, options=options)


def test_a_variant_that_recurs_takes_the_place_of_one_that_does_not():
    compiled, x = quiet(recompile_limit=2), torch.ones(3)
    run(compiled, scaled, ["a", "bb"], x)
    before = run(compiled, scaled, ["ccc"] * 60, x)
    after = run(compiled, scaled, ["ccc"] * 20, x)
    assert after["hits"] == before["hits"] + 20 and len(after["entries"]) == 2
    assert run(compiled, scaled, ["bb"], x)["hits"] == after["hits"] + 1  # the entry used longest ago went


def test_variants_that_all_come_by_turns_are_not_recorded_again_and_again():
    compiled, x = quiet(recompile_limit=3), torch.ones(3)
    names = [chr(97 + i) * (i + 1) for i in range(20)]
    report = run(compiled, scaled, names * 50, x)
    assert len(report["entries"]) <= 4 * 3 and report["recordings"] <= 4 * 3 + 8


def test_entries_that_are_used_do_not_count():
    """Up to four times as many as recompile_limit."""
    compiled, x = ccompile.compile(scaled, dynamic=False, options={"recompile_limit": 3}), torch.ones(3)
    names = [chr(97 + i) * (i + 1) for i in range(13)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = run(compiled, scaled, [name for name in names[:12] for _ in range(9)], x)
    assert len(report["entries"]) == 12 and report["eager_calls"] == 0
    with pytest.warns(RuntimeWarning, match="recompile_limit"):
        run(compiled, scaled, names[12:], x)
    assert run(compiled, scaled, names, x)["hits"] == report["hits"] + 12


def test_entries_that_a_later_one_serves_do_not_count():
    """Each kind is recorded with its first size, then with a symbol in its place."""

    def fn(x, kind):
        return x * len(kind) + 1

    compiled = ccompile.compile(fn, options={"recompile_limit": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (4, 5, 6, 7, 8, 9, 10, 11, 12, 13):
            for kind in ("a", "bb"):
                assert torch.equal(compiled(torch.ones(rows, 2), kind), fn(torch.ones(rows, 2), kind))
    report = compiled_of(compiled).report()
    assert report["eager_calls"] == 0 and report["recordings"] == len(report["entries"]) <= 4


def test_the_warning_tells_of_other_arguments():
    compiled = ccompile.compile(lambda x, *more: x + len(more), dynamic=False, options={"recompile_limit": 2})
    x = torch.ones(3)
    with pytest.warns(RuntimeWarning, match="What differed last: the number of arguments, or their names"):
        for n in range(3):
            assert torch.equal(compiled(x, *[1] * n), x + n)


def test_the_warning_names_what_differed_and_the_knob():
    compiled = ccompile.compile(lambda x: x + 1, dynamic=False, options={"recompile_limit": 2})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(2, 9):
            compiled(torch.ones(n, 3))
    (text,) = [str(w.message) for w in seen if "recompile_limit" in str(w.message)]
    assert "argument 0 is f32[3, 3] cpu; now f32[4, 3] cpu" in text and 'options={"recompile_limit": 16}' in text, text


def test_a_limit_of_0_compiles_nothing():
    compiled = ccompile.compile(lambda x: x + 1, options={"recompile_limit": 0})
    with pytest.warns(RuntimeWarning) as seen:
        for n in range(2, 5):
            assert torch.equal(compiled(torch.ones(n)), torch.ones(n) + 1)
    (text,) = [str(w.message) for w in seen]
    assert "has reached recompile_limit (0); nothing is compiled, and all calls run eagerly. More entries: " in text
    report = compiled_of(compiled).report()
    assert report["recordings"] == 0 and report["eager_calls"] == 3
    assert "recompile_limit is 0: calls that no entry fits run eagerly" in ccompile.events()[-1].text


def test_the_warning_never_becomes_an_error_of_the_call(caplog):
    compiled, x = ccompile.compile(lambda x: x + 1, dynamic=False, options={"recompile_limit": 1}), torch.ones(3)
    compiled(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(x), x + 1)
    (record,) = caplog.records
    assert record.name == "ccompile" and "has reached recompile_limit (1)" in record.getMessage()
    assert record.pathname == __file__
    assert torch.equal(compiled(x), x + 1)


def test_one_thread_records_and_the_others_run_eagerly():
    inside, go_on = threading.Event(), threading.Event()
    recorder = []

    def fn(x):
        if threading.get_ident() in recorder:
            inside.set()
            go_on.wait(60)
        return x * 2 + 1

    compiled, results = ccompile.compile(fn), {}

    def first():
        recorder.append(threading.get_ident())
        results[0] = compiled(torch.ones(2))

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    for n in range(3, 12):  # other sizes, while the first call is being recorded
        results[n] = compiled(torch.ones(n))
    report = compiled_of(compiled).report()
    go_on.set()
    thread.join()
    assert report["recordings"] == 1 and report["eager_calls"] == 9
    assert all(torch.equal(r, torch.ones(n or 2) * 2 + 1) for n, r in results.items())
    recorder.clear()
    for n in range(3, 12):
        compiled(torch.ones(n))
    assert compiled_of(compiled).report()["recordings"] <= 4  # symbols serve the rest
    assert compiled_of(compiled).report()["eager_calls"] == 9


def test_plans_that_are_wanted_again_raise_the_limit():
    compiled = ccompile.compile(lambda x: (x * 2).sum(0), dynamic=True, options={"shape_limit": 8})
    sizes = list(range(2, 26))
    for n in sizes * 12:
        assert torch.equal(compiled(torch.ones(n, 2)), (torch.ones(n, 2) * 2).sum(0))
    before = ccompile.counters["new_shape"]
    for n in sizes * 2:
        compiled(torch.ones(n, 2))
    assert ccompile.counters["new_shape"] == before
    assert compiled_of(compiled).report()["entries"][0]["segments"][0]["shapes"] <= 32


def test_plans_that_are_not_wanted_again_do_not():
    compiled = ccompile.compile(lambda x: (x * 2).sum(0), dynamic=True, options={"shape_limit": 8})
    for n in range(2, 200):
        compiled(torch.ones(n, 2))
    assert compiled_of(compiled).report()["entries"][0]["segments"][0]["shapes"] == 8


def test_a_plan_that_a_call_has_found_stays(monkeypatch):
    """Another thread has calls of other sizes, which drop plans, while the call saves the generator's state."""

    def fn(x, i):
        try:
            y = torch.dropout(x, 0.5, True)
            return y[i * 1].exp() + 1
        except IndexError:
            return x

    i, state = torch.arange(3), torch.get_rng_state
    compiled = ccompile.compile(fn, dynamic=True, options={"shape_limit": 1, "eager_if_slower": False})

    def call_others():
        for n in range(50, 70):
            compiled(torch.ones(n, 4), i)

    def busy():
        monkeypatch.undo()
        thread, now = threading.Thread(target=call_others), state()
        thread.start()
        thread.join()
        torch.set_rng_state(now)
        return now

    for n in range(5, 40):
        for _ in range(3):
            monkeypatch.setattr(torch, "get_rng_state", busy)
            before, got = state(), compiled(torch.ones(n, 7), i)
            torch.set_rng_state(before)
            torch.testing.assert_close(got, fn(torch.ones(n, 7), i))


GO_ON, INSIDE = threading.Event(), threading.Event()


@torch.library.custom_op("ccompile_limits::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    if threading.current_thread() is not threading.main_thread():
        INSIDE.set()
        GO_ON.wait(60)
    return x.clone()


@pytest.mark.filterwarnings("ignore:ccompile.*recompile_limit")
def test_an_entry_that_another_thread_runs_is_not_replaced():
    """The text of what differs may run the user's __repr__: there another thread begins to run the entry to be replaced."""

    def fn(x, k):
        return waits(x * 2).sin() * (1 if k is None else len(k))

    class Item:
        def __repr__(self):
            if not threads:
                threads.append(threading.Thread(target=lambda: results.append(compiled(x, None))))
                threads[0].start()
                INSIDE.wait(60)
            return "item"

    compiled, x, results, threads = ccompile.compile(fn, options={"recompile_limit": 1, "eager_if_slower": False}), torch.ones(3), [], [None]
    for _ in range(3):
        compiled(x, None)
    for i in range(200):
        if i == 20:  # past the warning
            threads.clear()
        assert torch.equal(compiled(x, [Item()]), fn(x, [1]))
    for n in range(10):
        compiled(torch.ones(n + 4), (1, 2))
    GO_ON.set()
    for thread in threads:
        thread.join()
    assert all(torch.equal(r, fn(x, None)) for r in results)


def test_dynamos_graph_break_is_called_what_it_is():
    def fn(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    compiled = ccompile.compile(fn)
    assert torch.equal(compiled(torch.ones(3)), fn(torch.ones(3)))
    (broken,) = ccompile.explain(fn)(torch.ones(3)).break_reasons
    assert broken.reason == "user" and "graph_break() was called" in broken.text


def test_a_full_resume_point_rests_and_comes_back():
    """Variants that never recur are not compared with all that were recorded, in each call; one that recurs is used again."""
    state = types.SimpleNamespace(kind="a")

    def fn(x):
        total = (x * 2).sum().item()
        return x * len(state.kind) + total

    options = {"loop_limit": 3, "eager_if_slower": False}
    compiled, x = ccompile.compile(fn, options=options), torch.ones(3)

    def hits_of(kinds):
        before = sum(s["hits"] for s in compiled_of(compiled).report()["entries"][0]["segments"][1:])
        for state.kind in kinds:
            assert torch.equal(compiled(x), fn(x))
        return sum(s["hits"] for s in compiled_of(compiled).report()["entries"][0]["segments"][1:]) - before

    compiled(x)
    hits_of("b" * i for i in range(60))
    assert hits_of(["b"] * 32) >= 16
    assert hits_of(["b", "new"] * 16) == 16  # now and then one that does not fit


def test_what_differs_is_whether_it_requires_a_gradient():
    compiled = ccompile.compile(scaled)
    compiled(torch.ones(2, 2), "a")
    seen = len(ccompile.events())
    compiled(torch.ones(2, 2, requires_grad=True), "a")
    (text,) = [e.text for e in ccompile.events()[seen:] if e.kind == "recompile"]
    assert "argument 0 is f32[2, 2] cpu; now f32[2, 2] cpu requires_grad" in text, text
