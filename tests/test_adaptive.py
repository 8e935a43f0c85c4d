"""Adaptive running: compile_after, memory_limit, analyze_costs, DeadlineLadder. docs/adaptive.md describes them."""

import functools
import math

import ccompile
import pytest
import torch
from ccompile import costs, ladder
from conftest import EAGER
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")


def scaled(x):
    return torch.relu(x) * 2 + 1


def broken(x):
    y = torch.relu(x) * 2
    ccompile.graph_break()
    return y.sin() + 1


def broken_in_branches(x):
    y = torch.relu(x) * 2
    return y + 1 if y.sum().item() > 4 else y - 1


def recorded(fn, calls):
    """Whether each call was recorded."""
    found = []
    compiled = costs.compiled_of(fn)
    for x in calls:
        before = compiled.metrics()["recordings"]
        fn(x)
        found.append(compiled.metrics()["recordings"] > before)
    return found


# ---- compile_after


@pytest.mark.parametrize("fn", (scaled, broken, nn.Linear(4, 4)), ids=("function", "breaks", "module"))
@pytest.mark.parametrize("after", (0, 1, 3))
def test_compile_after(fn, after):
    compiled = ccompile.compile(fn, options={"compile_after": after}, isolate_recompiles=True)
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert recorded(compiled, [x] * (after + 3)) == [False] * after + [True, False, False]
        torch.testing.assert_close(compiled(x), fn(x))
    assert costs.compiled_of(compiled).metrics()["eager_calls"] == after


def test_compile_after_holds_for_each_recording():
    """Three sizes: one that is frequent, others that come once."""
    compiled = ccompile.compile(scaled, options={"compile_after": 2}, isolate_recompiles=True, dynamic=False)
    sizes = (4, 4, 4, 4, 5, 4, 6, 4, 4, 7)
    before = ccompile.counters()["eager"]
    assert [i for i, new in enumerate(recorded(compiled, [torch.ones(n) for n in sizes])) if new] == [2, 9]
    assert ccompile.counters()["eager"] - before == 2  # one for each row of calls


def test_compile_after_holds_behind_a_break():
    high, low = torch.ones(8), torch.ones(1)
    compiled = ccompile.compile(broken_in_branches, options={"compile_after": 2}, isolate_recompiles=True)
    assert recorded(compiled, [high] * 3) == [False, False, True]
    assert recorded(compiled, [high, -high, -high, high, -high, -high]) == [False, False, False, False, True, False]
    for x in (high, low, -high):
        torch.testing.assert_close(compiled(x), broken_in_branches(x))


def test_compile_after_for_everything():
    with ccompile.config.patch(compile_after=1):
        compiled = ccompile.compile(scaled, isolate_recompiles=True)
    assert recorded(compiled, [torch.ones(3)] * 3) == [False, True, False]


def test_precompile_and_explain_do_not_wait():
    compiled = ccompile.compile(scaled, options={"compile_after": 9}, isolate_recompiles=True)
    (done,) = ccompile.precompile(compiled, [torch.ones(5)])
    assert done.recorded
    assert recorded(compiled, [torch.ones(5), torch.ones(5, 5)]) == [False, False]
    with ccompile.config.patch(compile_after=9):
        assert ccompile.explain(scaled)(torch.ones(5)).graph_count == 1


# ---- memory_limit


def test_memory_limit():
    compiled = ccompile.compile(scaled, options={"memory_limit": 1}, isolate_recompiles=True)
    before = ccompile.events()[-1].serial if ccompile.events() else 0
    assert not any(recorded(compiled, [torch.ones(3)] * 3))
    told = [event.text for event in ccompile.events(before) if event.kind == "eager"]
    assert len(told) == 1 and "memory_limit" in told[0] and "1 MiB" in told[0]
    ccompile.precompile(compiled, [torch.ones(3)])
    hits = costs.compiled_of(compiled).metrics()["hits"]
    torch.testing.assert_close(compiled(torch.ones(3)), scaled(torch.ones(3)))  # what is compiled stays so
    assert costs.compiled_of(compiled).metrics()["hits"] == hits + 1


def test_memory_limit_that_is_not_reached():
    compiled = ccompile.compile(scaled, options={"memory_limit": 1 << 24}, isolate_recompiles=True)
    assert recorded(compiled, [torch.ones(3)] * 2) == [True, False]


# ---- analyze_costs


def cost(compiled, eager=10.0, cold=100.0, warm=()):
    return ccompile.Cost("[4]", cold, warm, (eager,) * 3, (compiled,) * 3)


@pytest.mark.parametrize(
    ("one", "speedup", "compile_ms", "calls"),
    [
        (cost(5.0), 2.0, 90.0, 18.0),
        (cost(5.0, warm=(25.0, 15.0)), 2.0, 110.0, 22.0),
        (cost(5.0, cold=8.0), 2.0, 0.0, 0.0),
        (cost(10.0), 1.0, 90.0, math.inf),
        (cost(20.0), 0.5, 90.0, math.inf),
    ],
)
def test_break_even(one, speedup, compile_ms, calls):
    assert (one.speedup, one.compile_ms, one.break_even_calls) == (speedup, compile_ms, calls)
    assert ("never pays" if math.isinf(calls) else f"pays after {calls:.0f} calls") in str(one)


def test_analyze_costs():
    calls = []

    def f(x, y):
        calls.append(x.shape)
        return scaled(x) + y

    x = torch.ones(2, 3)
    found = ccompile.analyze_costs(f, [(x, x), (torch.ones(4, 3), 1.0)], calls=5)
    assert [one.input for one in found] == ["[2, 3], [2, 3]", "[4, 3], 1.0"]
    for one in found:
        assert len(one.eager) == len(one.compiled) == 5 and 1 <= 1 + len(one.warm_ms) <= costs.WARM_MOST
        assert min(one.eager) > 0 and one.compile_ms >= 0
    assert len(calls) >= 2 * (5 + 5 + 3)


def test_analyze_costs_compiles_whatever_compile_after_says():
    before = ccompile.counters()["recording"]
    with ccompile.config.patch(compile_after=50):
        ccompile.analyze_costs(scaled, [torch.ones(2, 3)], calls=1)
    assert ccompile.counters()["recording"] > before


@pytest.mark.parametrize("calls", (0, -1, True, 2.0))
def test_analyze_costs_takes_a_number_of_calls(calls):
    with pytest.raises(ValueError, match="calls must be an int above 0"):
        ccompile.analyze_costs(scaled, [torch.ones(3)], calls=calls)


@pytest.mark.parametrize(("percent", "want"), [(1, 1), (50, 2), (75, 3), (76, 4), (100, 4)])
def test_percentile(percent, want):
    assert costs.percentile([3, 1, 4, 2], percent) == want


# ---- DeadlineLadder


@pytest.fixture
def clock(monkeypatch):
    """The ladder's clock, which only the models of the test move."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(ladder, "time", made)
    return made


def taking(clock, name, times):
    """A model that takes times[name] ms by this clock."""

    @ccompile.disable
    def model(x):
        clock.now += times[name] / 1e3
        return x + 1

    return model


def test_the_best_model_in_time(clock):
    times = {"full": 60, "medium": 25, "fast": 10}
    models = [(name, taking(clock, name, times), ms) for name, ms in times.items()]
    steps = ccompile.DeadlineLadder(models, deadline_ms=50)
    assert steps(torch.zeros(2))[1:] == ("medium", pytest.approx(25))
    for deadline, name in ((70, "full"), (66, "medium"), (28, "medium"), (27, "fast"), (1, "fast")):
        steps.deadline_ms = deadline
        assert steps(torch.zeros(2)).name == name
    assert steps.stats() == {"full": 1, "medium": 3, "fast": 2}


def test_measured_times_count(clock):
    times = {"full": 20, "fast": 10}
    models = [("full", taking(clock, "full", times), 500), ("fast", taking(clock, "fast", times), 1)]
    steps = ccompile.DeadlineLadder(models, deadline_ms=50)
    assert steps(torch.zeros(2)).name == "fast"  # so it is said
    steps.precompile([torch.zeros(2)])
    assert steps(torch.zeros(2)).name == "full"  # so it is measured
    times["full"] = 80
    ran = [steps(torch.zeros(2)).name for _ in range(ladder.KEPT)]
    late = ran.index("fast")
    assert late <= 4 and set(ran[late:]) == {"fast"}, "P95 of 64 calls: a few late ones decide"


def test_a_model_that_was_late_is_tried_again(clock):
    times = {"full": 20, "fast": 10}
    steps = ccompile.DeadlineLadder([(name, taking(clock, name, times), ms) for name, ms in times.items()], 50)
    times["full"] = 80
    for _ in range(ladder.ENOUGH):
        steps(torch.zeros(2))
    times["full"] = 20
    assert steps(torch.zeros(2)).name == "fast"
    ran = [steps(torch.zeros(2)).name for _ in range(10 * ladder.FORGETS)]
    assert "full" in ran


def test_nothing_is_compiled_within_a_deadline():
    model = nn.Linear(4, 4)
    steps = ccompile.DeadlineLadder([("only", model, 1e6)], deadline_ms=1e9)
    partial = functools.partial(ccompile.disable(lambda x, k: x + k), k=2)
    assert ccompile.DeadlineLadder([("eager", partial, 60)], 50).precompile([torch.ones(2)]) == {"eager": []}
    with torch.no_grad():
        before = ccompile.counters()["recording"]
        for n in (2, 2, 3):
            torch.testing.assert_close(steps(torch.ones(n, 4)).result, model(torch.ones(n, 4)))
        assert ccompile.counters()["recording"] == before
        made = steps.precompile([(2, 4)])
        assert [one.recorded for one in made["only"]] == [True]
        hits = ccompile.counters()["hits"]
        torch.testing.assert_close(steps(torch.ones(2, 4)).result, model(torch.ones(2, 4)))
        assert ccompile.counters()["hits"] == hits + 1


@pytest.mark.parametrize(
    ("models", "deadline", "text"),
    [
        ([], 50, "needs a model"),
        ([("a", scaled, 1), ("a", scaled, 2)], 50, "a name of its own"),
        ([("a", scaled, 0)], 50, "the time of 'a' must be a number of ms above 0"),
        ([("a", scaled, True)], 50, "the time of 'a'"),
        ([("a", scaled, 1)], -1, "deadline_ms must be"),
        ([("a", scaled, 1)], float("nan"), "deadline_ms must be"),
    ],
)
def test_bad_ladders(models, deadline, text):
    with pytest.raises(ValueError, match=text):
        ccompile.DeadlineLadder(models, deadline)
