"""csrc/eval/pace.c: functions with breaks, without kernels, or with new sizes in most calls are timed against eager, and
run eagerly if they are slower. The test supplies the clock: `laps` gives the duration of a timed call, eager or not."""

import random

import ccompile
import pytest
import torch
from ccompile import _core
from ccompile.api import compiled_of
from ccompile.report import report as report_of
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="counts")
TIMED = {"verify": False}  # the suite's CCOMPILE_VERIFY=1 is for tests of results: nothing is timed under it
SETTLED = 400  # calls after which clear pairs have told


@pytest.fixture
def laps():
    yield lambda clock: _core.set_lap_clock(lambda kind: clock(kind == "eager"))
    _core.set_lap_clock(None)


def breaks(x, log):
    y = x + 1
    log.append("call")
    ccompile.graph_break()
    return y * 2


def no_kernels(x, log):
    log.append("call")
    return x


def kernels_only(x, log):
    log.append("call")
    return torch.relu(x + 1) * 2


def run(fn, calls, **settings):
    settings = {"options": TIMED, **settings}
    compiled, log, x = ccompile.compile(fn, isolate_recompiles=True, **settings), [], torch.arange(6.0)
    want = fn(x, [])
    for _ in range(calls):
        assert torch.equal(compiled(x, log), want)
    assert len(log) == calls
    return compiled


def is_slow(compiled):
    return compiled_of(compiled).report()["slower_than_eager"] is not None


def eager_calls(compiled):
    return compiled_of(compiled).report()["eager_calls"]


@pytest.mark.parametrize("fn", [breaks, no_kernels])
def test_what_is_slower_runs_eagerly(fn, laps):
    laps(lambda eager: 100_000 if eager else 150_000)
    compiled = run(fn, SETTLED)
    report = compiled_of(compiled).report()
    assert report["slower_than_eager"] == (150.0, 100.0)
    assert report["eager_calls"] > SETTLED - 100 and report["recordings"] <= 4
    (event,) = [e.text for e in ccompile.events() if e.kind == "eager"]
    assert event == f"{fn.__name__}: slower than eager (150 us per call, eager 100 us): runs eagerly"
    assert "Slower than eager (150 us per call, eager 100 us): runs eagerly" in str(report_of(compiled))


@pytest.mark.parametrize("fn", [breaks, no_kernels])
def test_what_is_faster_stays(fn, laps):
    laps(lambda eager: 150 if eager else 100)
    compiled = run(fn, SETTLED)
    assert not is_slow(compiled) and eager_calls(compiled) == 4  # pairs that all differ by a fifth need no more


@pytest.mark.parametrize(("sizes", "slow"), [(400, True), (3, False)])
def test_sizes_that_rarely_recur_are_timed(sizes, slow, laps):
    """Torch runs the nodes of a call with new sizes, which takes longer than eager; otherwise the kernels are not timed."""
    laps(lambda eager: 100_000 if eager else 150_000)
    compiled, x = ccompile.compile(lambda x, i: torch.relu(x[i : 2 * i + 1]) * 2, options=TIMED), torch.arange(1000.0)
    for i in range(SETTLED):
        assert torch.equal(compiled(x, i % sizes + 2), torch.relu(x[i % sizes + 2 : 2 * (i % sizes) + 5]) * 2)
    assert is_slow(compiled) == slow


def at_random(seed, ratio, preempted):
    """Compiled laps take `ratio` times as long as eager ones; both vary by a third, and one of some is interrupted."""
    draw = random.Random(seed)

    def clock(eager):
        time = (1000 if eager else 1000 * ratio) * draw.uniform(1, 1.33)
        return int(time + (draw.uniform(1, 20) * 1000 if draw.random() < preempted else 0))

    return clock


@pytest.mark.parametrize("preempted", [0, 0.1, 0.3])
@pytest.mark.parametrize(("ratio", "slow"), [(0.5, False), (0.9, False), (1.5, True), (3, True)])
def test_noise_decides_nothing(ratio, slow, preempted, laps):
    for seed in range(20):
        laps(at_random(seed, ratio, preempted))
        assert is_slow(run(no_kernels, 2000)) == slow, seed


def test_callers_that_alternate_decide_nothing(laps):
    """Every other call is a long one, compiled or not: which call is an eager lap is drawn."""
    calls = []

    def alternates(x):
        calls.append(x)
        return x

    laps(lambda eager: 1000 if len(calls) % 2 else 100_000)
    compiled = ccompile.compile(alternates, options=TIMED)
    for i in range(3000):
        compiled(i % 2)
    assert not is_slow(compiled)


def test_it_is_doubted_once(laps):
    told = []

    def clock(eager):
        told.append(eager)
        return 100 if eager or len(told) > 12 else 150

    laps(clock)
    assert not is_slow(run(breaks, SETTLED)) and len(told) > 12


def test_what_is_faster_again_is_compiled_again(laps):
    told = []

    def clock(eager):
        told.append(eager)
        return 100 if eager == (len(told) < 100) else 200  # the first verdict falls within 24 laps

    laps(clock)
    compiled = run(breaks, 300)
    assert is_slow(compiled)
    told.extend([None] * 100)
    log, x = [], torch.ones(2)
    before = compiled_of(compiled).report()["hits"]
    for _ in range(6000):
        compiled(x, log)
    assert not is_slow(compiled) and compiled_of(compiled).report()["hits"] > before + 1000
    assert [e.text.split(":")[-1] for e in ccompile.events() if e.kind == "eager"] == [
        " runs eagerly",
        " runs compiled again",
    ]


UNTIMED = {
    "knob": (breaks, {"options": {"verify": False, "eager_if_slower": False}}),
    "verify": (breaks, {"options": {"verify": True}}),
    "fullgraph": (no_kernels, {"fullgraph": True}),
    "kernels and no break": (kernels_only, {}),
}


@pytest.mark.parametrize("name", UNTIMED)
def test_not_timed(name, laps):
    fn, settings = UNTIMED[name]
    laps(lambda eager: 100 if eager else 150)
    compiled = run(fn, SETTLED, **settings)
    assert not is_slow(compiled) and eager_calls(compiled) == 0


def test_not_timed_where_results_have_to_be_the_same_bits(laps):
    laps(lambda eager: 100 if eager else 150)
    torch.use_deterministic_algorithms(True)
    try:
        compiled = run(breaks, SETTLED)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not is_slow(compiled) and eager_calls(compiled) == 0


def raises(x, told):
    ccompile.graph_break()
    raise ValueError(x)


def records(x, told):
    """Each call of it that is not eager is recorded."""
    ccompile.graph_break()
    return x * len(told)


def recurses(x, told):
    ccompile.graph_break()
    return told[0](0, told) if x else 0


@pytest.mark.parametrize("fn", [raises, records, recurses])
def test_these_are_no_laps(fn, laps):
    """Calls that raise, record, or meet other calls of the function."""
    told = []
    laps(lambda eager: told.append(eager) or (100 if eager else 150))
    compiled = ccompile.compile(fn, dynamic=False, options=TIMED | {"recompile_limit": 1000, "loop_limit": 1000})
    seen = [compiled]
    for _ in range(200):
        seen.append(None)
        try:
            compiled(1, seen)
        except ValueError:
            assert fn is raises
    assert not is_slow(compiled)
    assert len(told) < 16 and len(set(told)) <= 1  # of the two, one never came to be a lap


def test_reset_forgets(laps):
    laps(lambda eager: 100 if eager else 150)
    compiled = run(breaks, SETTLED)
    assert is_slow(compiled)
    compiled_of(compiled).reset()
    assert not is_slow(compiled)
    before = eager_calls(compiled)
    compiled(torch.ones(2), [])
    assert eager_calls(compiled) == before


@pytest.mark.parametrize("backward", [False, True])
def test_without_a_backward_gradients_are_no_reason(backward, laps):
    """A call that autograd records is timed until a backward has run, which may be what is faster."""
    laps(lambda eager: 100 if eager else 150)
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)

    def scores(x):
        y = (layer(x).tanh() * 3).exp()
        ccompile.graph_break()
        return y * 2 + y.sin()

    compiled = ccompile.compile(scores, options=TIMED)
    for _ in range(SETTLED):
        y = compiled(x)
        if backward:
            y.sum().backward()
    assert is_slow(compiled) != backward


@pytest.mark.parametrize("slower", [True, False])
def test_a_whole_training_step_is_timed(slower, laps):
    """Its backward runs inside the call, so the call's time tells."""
    laps(lambda eager: 100 if eager == slower else 150)
    layer = torch.nn.Linear(4, 1)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01)

    def step(x):
        optimiser.zero_grad()
        loss = (layer(x).tanh() * 3).square().mean()
        loss.backward()
        ccompile.graph_break()
        optimiser.step()
        return loss.detach()

    compiled = ccompile.compile(step, options=TIMED)
    for _ in range(SETTLED):
        compiled(torch.ones(2, 4))
    assert is_slow(compiled) == slower and eager_calls(compiled) > 0


def test_one_backward_outside_the_call_ends_the_timing(laps):
    laps(lambda eager: 100 if eager else 150)
    layer, kept = torch.nn.Linear(4, 1), []

    def step(x, inside):
        loss = (layer(x).tanh() * 3).square().mean()
        if inside:
            loss.backward()
        ccompile.graph_break()
        kept.append(loss)

    compiled = ccompile.compile(step, options=TIMED)
    for i in range(SETTLED):
        compiled(torch.ones(2, 4), i % 3 > 0)
        if i % 3 == 0:
            kept.pop().backward()
    assert not is_slow(compiled)


def test_an_optimiser_that_reads_its_state_is_eagers(laps):
    """compile(opt.step) of an optimiser with several breaks a parameter: parameters are eager's to the bit, in whichever
    way a step was made."""
    laps(lambda eager: 100 if eager else 300)

    def train(compile):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        optimiser = torch.optim.ASGD(model.parameters(), lr=0.1, foreach=False)
        step = compile(optimiser.step)
        for i in range(120):
            optimiser.zero_grad()
            model(torch.ones(3, 4) * (i % 3)).square().mean().backward()
            step()
        return [p.detach().clone() for p in model.parameters()], step

    got, step = train(lambda f: ccompile.compile(f, options=TIMED))
    assert is_slow(step)
    for a, b in zip(got, train(lambda f: f)[0]):
        torch.testing.assert_close(a, b)
