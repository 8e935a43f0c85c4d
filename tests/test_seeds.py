"""Every code listing of the five source documents (tests/seeds/): with ccompile in place of torch.compile it gives what
eager gives, breaks where the document or today's Dynamo says, and its reader finds what the document promises."""

import inspect
import json
import os
import random

import ccompile
import conftest
import numpy
import pytest
import torch
from conftest import EAGER, alike, counters, no_worse

# to import a part adds its listings to LISTINGS
from seeds import (  # noqa: F401
    article,
    breaks,
    control,
    driving,
    exercises,
    mistakes,
    modes,
    monitoring,
    profiling,
    regions,
    regression,
)
from seeds.listing import LISTINGS, t
from torch import nn

DYNAMO = os.environ.get("CCOMPILE_SEEDS_DYNAMO", "0") not in ("", "0")
pytestmark = pytest.mark.skipif(EAGER, reason="compares compiled with eager runs")


def ran(listing, stance):
    """What the listing gives under a stance, from the same random streams."""
    ccompile.reset()
    torch.manual_seed(7)
    numpy.random.seed(7)
    random.seed(7)
    with ccompile.set_stance(stance):
        return listing.run()


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.name)
def test_gives_what_eager_gives(listing):
    if listing.needs:
        pytest.importorskip(listing.needs)
    before = counters()["recording"]
    eager = ran(listing, "force_eager")
    assert counters()["recording"] == before
    compiled = ran(listing, "default")
    assert (counters()["recording"] > before) == listing.recorded
    alike(eager, compiled, rtol=listing.rtol)


@pytest.mark.parametrize("listing", [one for one in LISTINGS if one.counted], ids=lambda listing: listing.name)
def test_breaks_where_it_must(listing):
    fn, args = listing.counted
    if DYNAMO:
        no_worse(fn, *args, expect=listing.breaks, graphs=listing.graphs, bare=listing.bare)
    else:
        assert conftest.breaks(fn, *args) == (listing.graphs, listing.breaks)


# ---- what the reader finds


def test_monitor_sees_what_recompiles():
    model = nn.Linear(4, 4)
    before = counters()["entry"]
    times = breaks.monitor_recompiles(model, [t(n, 4) for n in (2, 3, 5, 7, 2)])
    assert len(times) == 5 and min(times) > 0
    assert counters()["entry"] - before == 2  # of the first size, and a symbolic one


def test_regions_by_fx(capsys):
    parts = regions.visualize_compilation_regions(Logged(), t(2, 4))
    assert len(parts) == 2 and "found 2 regions" in capsys.readouterr().out


class Logged(nn.Module):
    def forward(self, x):
        return torch.relu(x) * torch.tanh(x).mean().item()


def test_tuner_of_exercise_4_8():
    metrics = exercises.PerformanceTuner(nn.Linear(4, 4)).profile_configuration({"mode": "max-autotune"}, [t(2, 4), t(3, 4)])
    assert metrics["graph_breaks"] == 0 and metrics["avg_exec_time"] > 0


def test_trace_of_the_profiler(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ccompile.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with torch.no_grad():
        model(t(2, 4))
        with conftest.replaying(100):
            profile = breaks.profile_with_breaks(model, t(2, 4))
    trace = json.loads((tmp_path / "trace_with_breaks.json").read_text())
    assert trace["traceEvents"] and profile.key_averages()


def test_profiled_training(tmp_path):
    model = nn.Linear(4, 4)
    compiled, optimizer = ccompile.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.clone()
    profiling.profiled_training(compiled, optimizer, [t(2, 4, seed=i) for i in range(10)], str(tmp_path))
    assert not torch.equal(model.weight, before)
    traces = sorted(tmp_path.glob("*.pt.trace.json"))
    assert len(traces) == 2  # repeat=2
    names = {event.get("name") for event in json.loads(traces[0].read_text())["traceEvents"]}
    assert {"forward", "backward", "gradient_sync"} <= names


def test_traces_and_debug_modes_are_accepted(tmp_path):
    profiling.trace_of_passes(str(tmp_path / "inductor_trace.log"))
    assert ccompile.config.trace.enabled and ccompile.config.debug
    ccompile.config.trace.enabled = ccompile.config.debug = False


def test_report_of_breaks(capsys):
    found = breaks.analyze_graph_breaks(lambda x: exercises.process(x, 0.5), t(4, 3))
    shown = capsys.readouterr().out
    assert f"graph breaks: {found.graph_break_count}" in shown and f"graphs: {len(found.graphs)}" in shown
    assert [one.reason for one in found.break_reasons] == ["tensor_value", "print"]
    source = inspect.getsourcelines(exercises.process)
    for one, line in zip(found.break_reasons, ("x.mean().item()", "print(f")):
        assert one.file == exercises.__file__ and line in source[0][one.line - source[1]]
        assert one.advice
    assert "placeholder" not in shown and "x" in shown  # the placeholders' names


def test_regions_of_a_model():
    found, count = regions.analyze_compilation_regions(mistakes.BadIf(), t(4, 16))
    assert count == 1 and [one["id"] for one in found] == [0, 1]
    # rand and >; linear and the sum. Placeholders: none; x, weight and bias. An output each.
    assert [one["memory_ops"] for one in found] == [1, 4]
    assert not any(one["has_control_flow"] for one in found)


def test_analyzer_of_exercise_4_6():
    report = exercises.GraphBreakAnalyzer().analyze(mistakes.LogInsideForward(), t(8, 16))
    assert report["total_breaks"] == 0  # the graphs less one: nothing is left to compile behind the break
    (graph,) = report["graphs"]
    assert graph["node_count"] >= 4 and graph["optimization_potential"] == "low"
    assert report["suggestions"] == []


def test_compiled_graph_as_text():
    graph = profiling.get_compiled_graph(mistakes.GoodVectorized(), t(3, 4))
    assert [node.op for node in graph.graph.nodes if node.op != "call_method"] == ["placeholder", "call_function", "call_function", "output"]
    assert "arange" in str(graph)


def test_debug_compilation(capsys):
    try:
        article.debug_compilation()
    finally:
        ccompile.set_logs()
    shown = capsys.readouterr().out
    assert "Graph Count: 1" in shown and "Graph Break Count: 0" in shown
    assert int(shown.rsplit("nodes of the exported graph: ", 1)[1]) > 7


def test_export_is_one_graph_or_an_error():
    with pytest.raises(ccompile.Unsupported):
        ccompile.export(mistakes.LogInsideForward())(t(8, 16))
    with pytest.raises(ValueError, match="no tensor op"):
        ccompile.export(lambda x: x, t(2))
    f = lambda x, adds: x + 1 if adds else x  # noqa: E731
    compiled = ccompile.compile(f, fullgraph=True)
    compiled(t(2), True)
    run = ccompile.export(f)
    assert len(run(t(2), True).ops) == 1
    with pytest.raises(ValueError, match="no tensor op"):
        run(t(2), False)
    with ccompile.config.patch(compile_after=5):
        assert len(ccompile.export(f, t(2), True).ops) == 1


def test_structured_log(caplog):
    with caplog.at_level("INFO", logger="model_inference"):
        monitoring.StructuredLogger("model_inference").log_inference(
            model_version="v2.1.0",
            input_shape=[1, 3, 224, 224],
            batch_size=1,
            latency_ms=15.2,
            gpu_memory_mb=512,
            compilation_status="cached",
            graph_breaks=0,
        )
    (record,) = caplog.records
    entry = json.loads(record.message)
    assert entry["compilation_status"] == "cached" and entry["graph_breaks"] == 0
