"""explain: runs a callable once on a fresh Compiled and reports what was compiled, and where it broke, why, and what to
do about it."""

import linecache
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import _core
from .api import compile, compiled_of


@dataclass(frozen=True)
class BreakReason:
    """One graph break or give-up: where the trace ended, and why."""

    reason: str  # id of the row in breaks.def
    text: str  # the sentence for this occurrence
    file: str
    line: int
    advice: str = ""
    user_stack: tuple[tuple[str, int, str], ...] = ()  # (file, line, function), outermost first

    @classmethod
    def of(cls, found: Any) -> "BreakReason":
        stack = tuple((str(file), int(line), str(function)) for file, line, function in found["user_stack"])
        return cls(found["reason"], found["text"], found["file"], found["line"], found["advice"], stack)

    @property
    def function(self) -> str:
        return self.user_stack[-1][2] if self.user_stack else ""

    def __str__(self) -> str:
        lines = [f"{self.text} [{self.reason}]"]
        stack = self.user_stack or ((self.file, self.line, ""),)
        for file, line, function in stack:
            source = linecache.getline(file, line).strip()
            lines.append(f"  at {_short(file)}:{line}" + (f" in {function}" if function else ""))
            if source:
                lines.append(f"       {source}")
        if self.advice:
            lines.append(f"  what to do: {self.advice}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Op:
    op: str
    name: str
    out: tuple[str, ...]  # types of its results: "f32[8, 64] cpu"

    @property
    def target(self) -> str:
        """torch.fx's name for `op`."""
        return self.op


@dataclass(frozen=True)
class Graph:
    """The ops between two breaks, and how they were compiled."""

    root: str
    start: str  # file:line of its first instruction
    end: str  # "return", "break" or "exit"
    ops: tuple[Op, ...]
    guards: tuple[str, ...]
    text: str
    plan: str
    hits: int
    cuda_graphs: str  # their state; "": nothing runs on a GPU, or the mode does not use them

    @property
    def nodes(self) -> tuple[Op, ...]:
        """torch.fx's name for `ops`."""
        return self.ops

    def __str__(self) -> str:
        return f"{self.root} from {_short(self.start)}: {_many(len(self.ops), 'op')}, ends in {self.end}"


@dataclass
class Explanation:
    """The result of `explain`; print it. It counts as torch._dynamo.explain does: places where a graph with at least
    one op begins, and places where the call broke (a break in a loop counts once)."""

    name: str
    graphs: list[Graph] = field(default_factory=list)
    break_reasons: list[BreakReason] = field(default_factory=list)
    give_ups: list[BreakReason] = field(default_factory=list)
    last_guard_failure: str | None = None
    slower_than_eager: tuple[float, float] | None = None  # us per call, compiled and eager; it now runs eagerly
    result: Any = field(default=None, repr=False)  # result of the explained call

    @classmethod
    def of(cls, name: str, report: Any, result: Any = None) -> "Explanation":
        """Builds it from the dict that Compiled.report() returns."""
        # Variants of one place (other sizes, branches or loop iterations) count as one graph.
        places = {
            (entry["root"], segment["point"]): (entry, segment)
            for entry in reversed(report["entries"])
            for segment in reversed(entry["segments"])
            if segment["nodes"]
        }
        graphs = [
            Graph(
                entry["root"],
                segment["start"],
                segment["end"],
                tuple(Op(node["op"], node["name"], tuple(node["out"])) for node in segment["nodes"]),
                tuple(segment["guards"]),
                segment["graph_text"],
                segment["plan_text"],
                segment["hits"],
                segment["cuda_graphs"],
            )
            for entry, segment in reversed(places.values())
        ]
        breaks = [BreakReason.of(found) for found in report["breaks_seen"]]
        give_ups = [BreakReason.of(found) for found in report["give_ups"]]
        return cls(name, graphs, breaks, give_ups, report["last_guard_failure"], report["slower_than_eager"], result)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        return sum(len(graph.ops) for graph in self.graphs)

    @property
    def ops_per_graph(self) -> list[list[str]]:
        return [[op.op for op in graph.ops] for graph in self.graphs]

    @property
    def out_guards(self) -> list[str]:
        return [guard for graph in self.graphs for guard in graph.guards]

    def __str__(self) -> str:
        counts = [
            _many(self.graph_count, "graph"),
            _many(self.graph_break_count, "graph break"),
            _many(self.op_count, "op"),
        ]
        if self.give_ups:
            counts.append(_many(len(self.give_ups), "give-up"))
        parts = [f"{self.name}: {', '.join(counts)}"]
        # the lines that torch._dynamo.explain prints, which scripts look for
        parts += [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
        ]
        if self.slower_than_eager is not None:
            ours, eager = self.slower_than_eager
            parts.append(f"Slower than eager ({ours:.0f} us per call, eager {eager:.0f} us): runs eagerly")
        given_up = "Given up (CPython ran the rest; if possible, the next call breaks there instead)"
        for title, found in (("Graph breaks", self.break_reasons), (given_up, self.give_ups)):
            if found:
                parts.append(f"\n{title}\n" + "\n".join(_numbered(i, str(one)) for i, one in _folded(found)))
        if self.graphs:
            parts.append("\nGraphs")
            for i, graph in enumerate(self.graphs, 1):
                parts.append(
                    _numbered(str(i), "\n".join([str(graph), *_table(graph.ops), *filter(None, [graph.cuda_graphs])]))
                )
        return "\n".join(parts)

    def print_guards(self) -> None:
        """Prints one line per guard, by graph."""
        for i, graph in enumerate(self.graphs, 1):
            print(f"graph {i}: {_many(len(graph.guards), 'guard')}")
            for guard in graph.guards:
                print(f"  {guard}")


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """explain(fn)(*args, **kwargs) runs fn once, with its side effects, and returns an Explanation of how it was
    compiled. explain(fn, *args, **kwargs) does the same for at least one argument."""
    if isinstance(fn, type):  # compile would change it
        raise TypeError(f"ccompile.explain takes an instance or a method, not a class: {fn!r:.100}")
    fresh = compile(fn, isolate_recompiles=True)
    compiled = compiled_of(fresh)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        compiled.reset()
        result = fresh(*args, **kwargs)
        return Explanation.of(compiled.__name__, compiled.report(), result)

    return run(*args, **kwargs) if args or kwargs else run


def report(compiled: Any) -> Explanation:
    """Explains a compiled callable that has already run: its current entries, and the breaks of its last recording."""
    behind: _core.Compiled = compiled_of(compiled)
    return Explanation.of(behind.__name__, behind.report())


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _short(path: str) -> str:
    """The path relative to the working directory, if that is shorter."""
    if not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def _numbered(i: str, text: str) -> str:
    head, *rest = text.split("\n")
    return "\n".join([f"{i:>4}. {head}", *(f"      {line}" for line in rest)])


def _folded(found: list[BreakReason]) -> list[tuple[str, str]]:
    """(number, text) pairs; equal neighbours are merged, as "2-6"."""
    groups: list[list[int]] = []
    for i, one in enumerate(found):
        if groups and found[groups[-1][0]] == one:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [
        (str(g[0] + 1) if len(g) == 1 else f"{g[0] + 1}-{g[-1] + 1}", str(found[g[0]]))
        for g in groups
    ]  # fmt: skip


def _table(ops: tuple[Op, ...], most: int = 40) -> list[str]:
    width = max(len(op.name) for op in ops)
    lines = [f"{op.name:<{width}}  {', '.join(op.out)}".rstrip() for op in ops[:most]]
    if len(ops) > most:
        lines.append(f"... and {_many(len(ops) - most, 'op')} more")
    return lines
