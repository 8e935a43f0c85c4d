"""Metrics of compiled functions: calls, hits, recompilations, graph breaks, compile time, memory, and the latency of
calls.

    ccompile.metrics.enable()            # from now on calls are timed; the other metrics are always kept
    for region in ccompile.metrics.snapshot():
        print(region)
    ccompile.metrics.serve(9464)         # for Prometheus
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from . import _core
from .api import compiled_of

# Upper bounds of the buckets that Prometheus sees, in seconds
BOUNDS = tuple(m * 10.0**e for e in range(-6, 1) for m in (1, 2.5, 5)) + (10.0,)


@dataclass(frozen=True)
class Latency:
    """The time of calls, counted in buckets that are 1/16 of a power of two wide."""

    buckets: tuple[tuple[int, int], ...]  # (upper bound in ns, calls), ascending
    sum_ns: int = 0
    max_ns: int = 0

    @property
    def count(self) -> int:
        return sum(n for _, n in self.buckets)

    @property
    def mean_ms(self) -> float:
        """Milliseconds; 0 without calls, as are percentiles."""
        return self.sum_ns / max(self.count, 1) / 1e6

    @property
    def max_ms(self) -> float:
        return self.max_ns / 1e6

    def percentile(self, percent: float) -> float:
        """The time in ms that `percent` % of the calls did not exceed, at most 1/16 too high. Raises ValueError unless
        0 < percent <= 100."""
        if not 0 < percent <= 100:
            raise ValueError(f"percent must be above 0 and at most 100, not {percent!r}")
        need, seen = percent / 100 * self.count, 0
        for above, n in self.buckets:
            seen += n
            if seen >= need:
                return min(above, self.max_ns) / 1e6
        return 0.0

    @property
    def p50_ms(self) -> float:
        return self.percentile(50)

    @property
    def p95_ms(self) -> float:
        return self.percentile(95)

    @property
    def p99_ms(self) -> float:
        return self.percentile(99)

    def __add__(self, other: "Latency") -> "Latency":
        counts = dict(self.buckets)
        for above, n in other.buckets:
            counts[above] = counts.get(above, 0) + n
        return Latency(tuple(sorted(counts.items())), self.sum_ns + other.sum_ns, max(self.max_ns, other.max_ns))


@dataclass(frozen=True)
class Region:
    """What happened to a compiled function since the last reset; functions of one name count as one."""

    name: str
    calls: int  # those inside another compiled call belong to that one
    hits: int  # calls that an entry served
    eager_calls: int
    errors: int  # calls that raised, while enabled
    recordings: int  # calls that were recorded, from their beginning or after a break
    recompiles: int  # recordings of calls that no entry fitted
    breaks: int  # graph breaks that were recorded
    give_ups: int
    entries: int  # now
    recording_ms: float  # total time of calls that were recorded from their beginning
    compile_ms: float  # the part of it, and of later calls, that made plans and kernels
    memory_bytes: int  # what a call needs at most for values between its kernels
    latency: Latency  # of the calls while enabled

    @property
    def hit_rate(self) -> float:
        """hits / calls; 1 without calls."""
        return self.hits / self.calls if self.calls else 1.0

    def __str__(self) -> str:
        counts = f"{self.calls} calls, {self.hit_rate:.1%} hits, {self.recompiles} recompiles, {self.breaks} breaks"
        times = f"P50 {self.latency.p50_ms:.3f} ms, P95 {self.latency.p95_ms:.3f} ms, P99 {self.latency.p99_ms:.3f} ms"
        work = f"compiled in {self.compile_ms:.1f} ms, {self.memory_bytes} bytes"
        return f"{self.name}: {counts}; {times if self.latency.count else 'not timed'}; {work}"

    def __add__(self, other: "Region") -> "Region":
        """The sum for two functions of one name."""
        rest = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "name"}
        return Region(self.name, **rest | {"memory_bytes": max(self.memory_bytes, other.memory_bytes)})


def _region(compiled: _core.Compiled) -> Region:
    row: dict[str, Any] = dict(compiled.metrics())
    latency = Latency(tuple(row.pop("buckets")), row.pop("sum_ns"), row.pop("max_ns"))
    return Region(**row, latency=latency)


def enable(on: bool = True) -> None:
    """Times every call of a compiled function from now on, or no longer (70 ns a call)."""
    _core.time_calls(on)


def snapshot() -> list[Region]:
    """The functions that were called since the last reset, the slowest in total first."""
    regions: dict[str, Region] = {}
    for compiled in _core.all_compiled():
        region = _region(compiled)
        regions[region.name] = regions[region.name] + region if region.name in regions else region
    return sorted((r for r in regions.values() if r.calls), key=lambda r: (-r.latency.sum_ns, r.name))


def reset() -> None:
    """Counts and times begin at 0. What is compiled stays (ccompile.reset() drops that)."""
    for compiled in _core.all_compiled():
        compiled.reset_metrics()


@dataclass(frozen=True)
class Call:
    """One call of monitor_recompiles."""

    input: Any
    ms: float  # the whole call
    compile_ms: float  # the part that made plans and kernels
    recorded: bool
    why: str | None  # what differed from earlier calls, if it was recorded again

    def __str__(self) -> str:
        what = f"recorded ({self.why or 'first call'})" if self.recorded else "hit"
        return f"{self.ms:9.3f} ms, {self.compile_ms:8.3f} ms of them compiling: {what}"


def monitor_recompiles(model: Callable[..., Any], inputs: Iterable[Any]) -> list[Call]:
    """Calls what ccompile.compile returned with each input, a tuple of arguments or a single one. Says for each call
    how long it took, whether it was recorded, and why. Raises TypeError if the model is not compiled."""
    compiled, calls = compiled_of(model), []
    for given in inputs:
        before, start = compiled.metrics(), time.perf_counter()
        model(*given) if isinstance(given, tuple) else model(given)
        ms, after = (time.perf_counter() - start) * 1e3, compiled.metrics()
        recorded = after["recordings"] > before["recordings"]
        why = compiled.report()["last_guard_failure"] if after["recompiles"] > before["recompiles"] else None
        calls.append(Call(given, ms, after["compile_ms"] - before["compile_ms"], recorded, why))
    return calls


class Collector:
    """A collector for a registry of prometheus_client, `registry.register(Collector())`: what `snapshot` returns, with
    the label `region`, and the process's events by kind. Raises ImportError if prometheus_client is missing."""

    def __init__(self) -> None:
        self._families = _prometheus().core

    def collect(self) -> Iterator[Any]:
        counter, gauge = self._families.CounterMetricFamily, self._families.GaugeMetricFamily
        regions = snapshot()
        rows: tuple[tuple[str, Any, str, Callable[[Region], float]], ...] = (
            ("calls", counter, "calls of the compiled function", lambda r: r.calls),
            ("hits", counter, "calls that an entry served", lambda r: r.hits),
            ("eager_calls", counter, "calls that ran eagerly", lambda r: r.eager_calls),
            ("errors", counter, "calls that raised", lambda r: r.errors),
            ("recompiles", counter, "recordings of calls that no entry fitted", lambda r: r.recompiles),
            ("graph_breaks", counter, "graph breaks that were recorded", lambda r: r.breaks),
            ("compile_seconds", counter, "time of making plans and kernels", lambda r: r.compile_ms / 1e3),
            ("hit_ratio", gauge, "hits / calls", lambda r: r.hit_rate),
            ("entries", gauge, "variants that are compiled now", lambda r: r.entries),
            ("memory_bytes", gauge, "memory of values between kernels", lambda r: r.memory_bytes),
        )
        for name, kind, text, value in rows:
            family = kind(f"ccompile_{name}", text, labels=["region"])
            for region in regions:
                family.add_metric([region.name], value(region))
            yield family
        times = self._families.HistogramMetricFamily("ccompile_call_seconds", "time of calls", labels=["region"])
        for region in regions:
            times.add_metric([region.name], _bounded(region.latency), region.latency.sum_ns / 1e9)
        yield times
        events = counter("ccompile_events", "events of the process", labels=["kind"])
        for kind_name in _core.event_kinds():
            events.add_metric([kind_name], _core.counters()[kind_name])
        yield events


def _bounded(latency: Latency) -> list[tuple[str, float]]:
    """Cumulative counts by the BOUNDS; a bucket counts where its upper bound lies."""
    bounds = [above / 1e9 for above, _ in latency.buckets]
    totals = [0]
    for _, n in latency.buckets:
        totals.append(totals[-1] + n)
    rows = [(f"{bound:g}", float(totals[bisect_right(bounds, bound)])) for bound in BOUNDS]
    return [*rows, ("+Inf", float(totals[-1]))]


@dataclass(frozen=True)
class Server:
    """An endpoint for Prometheus."""

    port: int
    _server: Any

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve(port: int = 9464, address: str = "127.0.0.1") -> Server:
    """Switches metrics on and answers Prometheus at http://address:port/metrics, from a thread of its own, until
    `close()`. Port 0 takes a free one, which the result names. Raises ImportError if prometheus_client is missing,
    OSError if the port is taken, ValueError if it is not in 0..65535."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"port must be an int in 0..65535 (0: a free one), not {port!r:.100}")
    prometheus = _prometheus()
    registry = prometheus.CollectorRegistry()
    registry.register(Collector())
    server, _ = prometheus.start_http_server(port, address, registry)
    enable()
    return Server(server.server_port, server)


def _prometheus() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise ImportError(
            "ccompile.metrics serves through prometheus_client: pip install 'ccompile[metrics]'"
        ) from None
    return prometheus_client
