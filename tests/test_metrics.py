"""ccompile.metrics: counters of compiled functions, latencies, the recompile monitor, Prometheus."""

import statistics
import sys
import threading
import urllib.request

import ccompile
import pytest
import torch
from ccompile import metrics
from ccompile.api import compiled_of
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")


@pytest.fixture(autouse=True)
def switched_off():
    metrics.enable(False)
    metrics.reset()
    yield
    metrics.enable(False)


def region(name):
    (found,) = [region for region in metrics.snapshot() if region.name == name]
    return found


def named(name, fn=lambda x: (x + 1).relu() * 2):
    return ccompile.compile(fn, name=name)


def test_counts():
    f = named("counted", lambda x: ((x + 1).relu() @ x).sin() * 2)
    with torch.no_grad():
        for n in (3, 3, 4, 5, 5):
            f(torch.ones(n, n))
    got = region("counted")
    assert (got.calls, got.hits, got.recordings, got.recompiles) == (5, 3, 2, 1)
    assert (got.eager_calls, got.breaks, got.give_ups, got.errors) == (0, 0, 0, 0)
    assert got.entries == 2 and got.hit_rate == 3 / 5
    assert 0 < got.compile_ms and 0 < got.recording_ms
    assert got.memory_bytes >= 5 * 5 * 4, "a value between the product and the kernel"
    assert got.latency.count == 0 and "not timed" in str(got)


def test_breaks_give_ups_and_eager_calls():
    def breaks(x):
        y = x + 1
        ccompile.graph_break()
        return y * 2

    f = named("breaks", breaks)
    for _ in range(3):
        f(torch.ones(3))
    assert (region("breaks").breaks, region("breaks").calls) == (1, 3)
    with ccompile.set_stance("force_eager"):
        f(torch.ones(3))
    assert region("breaks").eager_calls == 1


def test_latency_only_while_enabled():
    f, x = named("timed"), torch.ones(3)
    f(x)
    metrics.enable()
    for _ in range(10):
        f(x)
    metrics.enable(False)
    f(x)
    got = region("timed")
    assert (got.calls, got.latency.count) == (12, 10)
    assert 0 < got.latency.p50_ms <= got.latency.p95_ms <= got.latency.p99_ms <= got.latency.max_ms
    assert "P50" in str(got)


def test_errors_are_counted_and_timed():
    def fails(x):
        return x @ torch.ones(5)

    f = named("fails", fails)
    metrics.enable()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            f(torch.ones(3))
    assert (region("fails").errors, region("fails").latency.count) == (3, 3)


def test_nested_calls_belong_to_the_outer_one():
    inner = named("inner")
    outer = named("outer", lambda x: inner(x) + 1)
    metrics.enable()
    outer(torch.ones(3))
    assert [r.name for r in metrics.snapshot()] == ["outer"]


def test_functions_of_one_name_are_one_region():
    first, second = named("same"), named("same", lambda x: x - 1)
    metrics.enable()
    first(torch.ones(3))
    first(torch.ones(3))
    second(torch.ones(3))
    got = region("same")
    assert (got.calls, got.hits, got.entries, got.latency.count) == (3, 1, 2, 3)


def test_a_function_that_is_compiled_again():
    """Calls of both count as the first one's, whose entries both use, and are counted once."""

    def fn(x):
        return (x + 1).relu()

    first, second = named("again", fn), named("again", fn)
    calls = metrics.monitor_recompiles(second, [torch.ones(2), torch.ones(2), torch.ones(3)])
    assert [call.recorded for call in calls] == [True, False, True]
    first(torch.ones(3))
    assert (region("again").calls, region("again").hits) == (4, 2)
    assert compiled_of(second).metrics() == compiled_of(first).metrics()
    compiled_of(second).reset_metrics()
    assert "again" not in {r.name for r in metrics.snapshot()}


def test_reset_keeps_what_is_compiled():
    f, x = named("reset"), torch.ones(3)
    metrics.enable()
    f(x)
    metrics.reset()
    assert "reset" not in {r.name for r in metrics.snapshot()}
    f(x)
    got = region("reset")
    assert (got.calls, got.hits, got.recordings, got.compile_ms, got.latency.count) == (1, 1, 0, 0, 1)
    ccompile.reset()
    f(x)
    assert region("reset").recordings == 1


def test_what_is_gone_is_not_counted():
    named("gone")(torch.ones(3))
    import gc

    gc.collect()
    assert "gone" not in {r.name for r in metrics.snapshot()}


def test_threads():
    f, x = named("threads"), torch.ones(3)
    f(x)
    metrics.enable()
    threads = [threading.Thread(target=lambda: [f(x) for _ in range(200)]) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert region("threads").latency.count == 800


# ---------------------------------------------------------------------- percentiles


@pytest.mark.parametrize("scale", [1, 7, 1000, 10**6, 10**9])
def test_percentiles_are_those_of_the_times(scale):
    """The buckets of the core, given times that it has measured: as statistics.quantiles, to 1/16."""
    import random

    random.seed(scale)
    times = sorted(int(scale * random.lognormvariate(0, 1)) + 1 for _ in range(2000))
    latency = metrics.Latency((), 0, 0)
    for ns in times:
        latency += metrics.Latency(((above(ns), 1),), ns, ns)
    assert latency.count == 2000 and latency.max_ns == times[-1]
    assert latency.mean_ms == pytest.approx(statistics.fmean(times) / 1e6)
    for percent in (1, 50, 95, 99, 100):
        exact = times[max(0, -(-2000 * percent // 100) - 1)] / 1e6
        assert exact <= latency.percentile(percent) <= exact * (1 + 1 / 16) + 1e-6


def above(ns):
    """The bound of the bucket for ns, as csrc/base/histogram.c has it."""
    return ns + 1 if ns < 16 else ((ns >> (ns.bit_length() - 5)) + 1) << (ns.bit_length() - 5)


def test_the_cores_buckets():
    """Each bound of a measured time is one of the above, and its bucket is at most 1/16 wide."""
    f, x = named("buckets"), torch.ones(3)
    metrics.enable()
    for _ in range(300):
        f(x)
    latency = region("buckets").latency
    assert [bound for bound, _ in latency.buckets] == sorted({bound for bound, _ in latency.buckets})
    assert all(bound == above(bound - 1) for bound, _ in latency.buckets)
    assert sum((bound - bound / 16) * n for bound, n in latency.buckets) <= latency.sum_ns + 300
    assert latency.sum_ns <= sum(bound * n for bound, n in latency.buckets)


@pytest.mark.parametrize("percent", [0, -1, 100.1, float("nan")])
def test_percentiles_that_do_not_exist(percent):
    with pytest.raises(ValueError, match="percent must be above 0 and at most 100"):
        metrics.Latency(()).percentile(percent)


# ---------------------------------------------------------------------- recompile monitor


def test_monitor_recompiles():
    f = named("monitored")
    calls = metrics.monitor_recompiles(f, [torch.ones(2), (torch.ones(2),), torch.ones(3), torch.ones(4)])
    assert [call.recorded for call in calls] == [True, False, True, False]
    assert [call.why is not None for call in calls] == [False, False, True, False]
    assert "now f32[3]" in calls[2].why and "f32[2]" in calls[2].why
    assert calls[0].ms >= calls[0].compile_ms > 0 and calls[1].compile_ms == 0
    assert str(calls[0]).endswith("recorded (first call)") and str(calls[1]).endswith("hit")
    with pytest.raises(TypeError, match="not something that ccompile.compile returned"):
        metrics.monitor_recompiles(torch.sin, [torch.ones(2)])


# ---------------------------------------------------------------------- Prometheus


def samples(text):
    """name{labels} -> value, by the client's own parser."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_serve():
    f, x = named('served "by" \\name'), torch.ones(3)
    server = metrics.serve(0)
    try:
        for _ in range(20):
            f(x)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
            got = samples(answer.read().decode())
    finally:
        server.close()
    name, seen = f.__name__, region('served "by" \\name')
    label = 'served "by" \\name'
    assert got["ccompile_calls_total", label] == 20 and got["ccompile_hits_total", label] == 19
    assert got["ccompile_hit_ratio", label] == 0.95 and got["ccompile_entries", label] == 1
    assert got["ccompile_compile_seconds_total", label] == pytest.approx(seen.compile_ms / 1e3)
    assert got["ccompile_call_seconds_count", label] == 20
    assert got["ccompile_call_seconds_sum", label] == pytest.approx(seen.latency.sum_ns / 1e9)
    buckets = {key[1:]: value for key, value in got.items() if key[0] == "ccompile_call_seconds_bucket" and label in key}
    counts = [value for _, value in sorted((min(map(bound, key)), value) for key, value in buckets.items())]
    assert counts == sorted(counts) and counts[-1] == 20 and len(counts) == len(metrics.BOUNDS) + 1
    assert got["ccompile_events_total", "graph_break"] == ccompile.counters["graph_break"]


def bound(text):
    try:
        return float(text)
    except ValueError:
        return float("inf")


def test_a_taken_port():
    server = metrics.serve(0)
    try:
        with pytest.raises(OSError):
            metrics.serve(server.port)
    finally:
        server.close()


def test_without_prometheus_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install 'ccompile\[metrics\]'"):
        metrics.serve(0)
    with pytest.raises(ImportError, match="prometheus_client"):
        metrics.Collector()
