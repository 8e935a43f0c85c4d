"""explain: runs a callable on a fresh Compiled and reports what was compiled, what runs it, and where it broke, why,
and what to do about it."""

import contextlib
import inspect
import linecache
import os
import re
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import _core
from .api import compile, compiled_of, disabled_of, events
from .nodes import Node, Op, code, fx_text, nodes_of

# A recording that gives up leaves a mark, and the next one breaks there. So many calls follow the first one until a
# recording sticks.
REPEATS = 4


@dataclass(frozen=True)
class BreakReason:
    """One graph break or give-up: where the trace ended, and why."""

    reason: str  # id of the row in breaks.def
    text: str  # the sentence for this occurrence
    file: str | None  # the innermost place in the user's code
    line: int
    advice: str = ""
    user_stack: tuple[tuple[str, int, str], ...] = ()  # (file, line, function), outermost first
    libraries: tuple[str | None, ...] = ()  # of each frame: "torch", "ccompile", or None: the user's
    rewrites: tuple[tuple[str, str], ...] = ()  # code that breaks for this reason, and what to write instead

    @classmethod
    def of(cls, found: Any) -> "BreakReason":
        stack = tuple((str(file), int(line), str(function)) for file, line, function, _ in found["user_stack"])
        libraries = tuple(library for _, _, _, library in found["user_stack"])
        pairs = [(before, after) for before, after in found["rewrites"]]
        word = _statement(linecache.getline(found["file"] or "", found["line"]))
        fitting = [pair for pair in pairs if word == next(filter(None, map(_statement, pair[0].split("\n"))), "")]
        place = found["file"], found["line"]
        return cls(found["reason"], found["text"], *place, found["advice"], stack, libraries, tuple(fitting or pairs))

    @property
    def function(self) -> str:
        """The function at `file` and `line`."""
        frames = list(zip(self.user_stack, self.libraries, strict=True))
        mine = [frame for frame, library in frames if library is None] or list(self.user_stack)
        return mine[-1][2] if mine else ""

    def __str__(self) -> str:
        lines = [self.head, *self._frames()]
        if self.advice:
            lines.append(f"  what to do: {self.advice}")
        for before, after in self.rewrites:
            lines += ["  for example, instead of", *_indented(before), "  write", *_indented(after)]
        return "\n".join(lines)

    @property
    def head(self) -> str:
        return f"{self.text} [{self.reason}]"

    def _frames(self) -> list[str]:
        """The frames, innermost first; neighbours in a library are one line."""
        lines: list[str] = []
        folded: list[str] = []
        for (file, line, function), library in zip(reversed(self.user_stack), reversed(self.libraries), strict=True):
            if library is not None:
                folded.append(library)
                continue
            lines += _fold(folded)
            lines.append(f"  at {short_path(file)}:{line}" + (f" in {function}" if function else ""))
            source = linecache.getline(file, line).strip()
            if source:
                lines.append(f"       {source}")
        return lines + _fold(folded)


@dataclass(frozen=True)
class Graph:
    """The ops between two breaks, and how they were compiled. Reads like the torch.fx.GraphModule of torch's explain:
    `nodes`, `graph`, `code` and `print_readable`; print it for fx's text."""

    root: str
    start: str  # file:line of its first instruction
    end: str  # "return", "break" or "exit"
    ops: tuple[Op, ...]
    nodes: tuple[Node, ...]
    guards: tuple[str, ...]
    text: str  # as the compiler prints it
    plan: str  # the same
    plans: tuple[dict[str, Any], ...]  # steps, memory and times of each plan; a training graph has some per stage
    hits: int
    cuda_graphs: str  # their state; "": nothing runs on a GPU, or the mode does not use them
    record_ms: float  # with the ops that ran meanwhile

    @classmethod
    def of(cls, root: str, segment: Any, parameters: list[str]) -> "Graph":
        ops = tuple(op for op in map(Op.of, segment["nodes"]) if not op.number)
        start = segment["start"]
        if is_torchs(start) and ops and ops[0].file is not None:
            start = f"{ops[0].file}:{ops[0].line}"
        return cls(
            root,
            start,
            segment["end"],
            ops,
            nodes_of(segment, parameters),
            tuple(segment["guards"]),
            segment["graph_text"],
            segment["plan_text"],
            tuple(segment["plans"]),
            segment["hits"],
            segment["cuda_graphs"],
            segment["record_ms"],
        )

    @property
    def graph(self) -> "Graph":
        """Itself: torch's explain gives GraphModules, which have their nodes in `graph`."""
        return self

    @property
    def code(self) -> str:
        """A Python function that computes what the graph does."""
        return code(self.nodes)

    @property
    def summary(self) -> str:
        return f"{self.root} from {short_path(self.start)}: {many(len(self.ops), 'op')}, ends in {self.end}"

    @property
    def torch_ops(self) -> list[tuple[Op, str]]:
        """The ops that run through torch, and why."""
        return [(op, op.why_torch) for op in self.ops if op.why_torch is not None]

    @property
    def kernels(self) -> list[tuple[str, str, str]]:
        """(plan, name, source) of each kernel and library call; there is a source with CCOMPILE_DUMP=kernels."""
        return [
            (plan["name"], kernel_name(step), step["source"])
            for plan in self.plans
            for step in plan["steps"]
            if step["kind"] != "torch"
        ]

    def print_readable(self, print_output: bool = True) -> str:
        """`code` with types and the user's lines; prints it, and returns it."""
        text = code(self.nodes, readable=True)
        if print_output:
            print(text)
        return text

    def __str__(self) -> str:
        return fx_text(self.nodes)


@dataclass
class Explanation:
    """The result of `explain`; print it. graph_count, graph_break_count, op_count and ops_per_graph count as
    torch._dynamo.explain does: graphs with at least one op on tensors (variants of one place count once), graphs - 1,
    and calls of functions but not of methods. break_count and node_count are ours: places where the call broke, tensor
    ops."""

    name: str
    graphs: list[Graph] = field(default_factory=list)
    break_reasons: list[BreakReason] = field(default_factory=list)
    give_ups: list[BreakReason] = field(default_factory=list)
    last_guard_failure: str | None = None
    slower_than_eager: tuple[float, float] | None = None  # us per call, compiled and eager; it now runs eagerly
    result: Any = field(default=None, repr=False)  # result of the explained call
    repeats: int = 0  # calls after the first one, until no recording gave up
    inner: list["Explanation"] = field(default_factory=list)  # functions that torch keeps, compiled on their own
    why_nothing: str | None = None  # why the explained call was not recorded, if it was not

    @classmethod
    def of(cls, compiled: "_core.Compiled", result: Any = None, repeats: int = 0) -> "Explanation":
        """Explains what the Compiled has recorded so far."""
        report = compiled.report()
        # Variants of one place (other sizes, branches or loop iterations) count as one graph. Places have the order in
        # which calls first came to them; the beginning is 0.
        places = {
            (entry["root"], segment["point"]): (entry, segment)
            for entry in reversed(report["entries"])
            for segment in reversed(entry["segments"])
            if not all(node["number"] for node in segment["nodes"])
        }
        parameters = _parameters(compiled)
        listed = [places[at] for at in sorted(places, key=lambda at: at[1])]
        graphs = [Graph.of(entry["root"], segment, parameters) for entry, segment in listed]
        breaks = [BreakReason.of(found) for found in report["breaks_seen"]]
        give_ups = [BreakReason.of(found) for found in report["give_ups"]]
        state = report["last_guard_failure"], report["slower_than_eager"]
        inner = [cls.of(one) for one in report["handed"]]
        return cls(compiled.__name__, graphs, breaks, give_ups, *state, result, repeats, inner)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return max(self.graph_count - 1, 0)

    @property
    def break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        return sum(map(len, self.ops_per_graph))

    @property
    def node_count(self) -> int:
        return sum(len(graph.ops) for graph in self.graphs)

    @property
    def ops_per_graph(self) -> list[list[Any]]:
        return [
            [n.target for n in graph.nodes if n.op == "call_function" and not (n.made_by and n.made_by.number)]
            for graph in self.graphs
        ]

    @property
    def out_guards(self) -> list[str]:
        return [guard for graph in self.graphs for guard in graph.guards]

    @property
    def phases(self) -> dict[str, float]:
        """Milliseconds by phase: recording (with the ops that ran meanwhile), passes, kernels, primitives (library
        calls), and the rest of planning. Kernels are found on disk, or LLVM compiles them in a process of its own."""
        plans = [plan for graph in self.graphs for plan in graph.plans if plan["steps"]]
        spent = {name: sum(plan[f"{name}_ms"] for plan in plans) for name in ("passes", "kernels", "primitives")}
        whole = sum(plan["compile_ms"] for plan in plans)
        recording = sum(graph.record_ms for graph in self.graphs)
        return {"recording": recording, **spent, "planning": whole - sum(spent.values())}

    @property
    def compile_times(self) -> str:
        """`phases` as a table."""
        return "\n".join(["Phase, ms", *(f"{name}, {ms:.2f}" for name, ms in self.phases.items())])

    @property
    def head(self) -> str:
        """One line: the name and our counts."""
        counts = [
            many(self.graph_count, "graph"),
            many(self.break_count, "graph break"),
            many(self.node_count, "op"),
        ]
        if self.give_ups:
            counts.append(many(len(self.give_ups), "give-up"))
        return f"{self.name}: {', '.join(counts)}"

    def __str__(self) -> str:
        parts = [f"{self.head}; as torch._dynamo.explain counts:"]
        parts += [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
        ]
        if self.why_nothing is not None:
            parts.append(f"Nothing was recorded: {self.why_nothing}")
        if self.slower_than_eager is not None:
            ours, eager = self.slower_than_eager
            parts.append(f"Slower than eager ({ours:.0f} us per call, eager {eager:.0f} us): runs eagerly")
        if self.break_reasons:
            parts.append("\nGraph breaks")
            parts += [_numbered(i, str(one)) for i, one in _grouped(self.break_reasons)]
        if self.give_ups:
            parts.append("\nGiven up (CPython ran the rest of that call; if possible, later calls break there instead)")
            parts += [_numbered(i, self._given_up(one)) for i, one in _grouped(self.give_ups)]
        if self.graphs:
            parts.append("\nGraphs")
            parts += [_numbered(str(i), _described(graph)) for i, graph in enumerate(self.graphs, 1)]
            parts.append("\nTime: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in self.phases.items()))
        if self.inner:
            parts.append("\nCompiled on their own, because torch keeps them (details: .inner)")
            parts += [_numbered(str(i), one.head) for i, one in enumerate(self.inner, 1)]
        return "\n".join(parts)

    def _given_up(self, one: BreakReason) -> str:
        """Its text; only the head if a later recording broke there."""
        for i, broken in enumerate(self.break_reasons, 1):
            if (one.file, one.line) == (broken.file, broken.line):
                return f"{one.head}, now graph break {i}"
        return str(one)

    def to_dot(self) -> str:
        """The graphs and the breaks between them in graphviz's language."""
        from . import drawing

        return drawing.to_dot(self)

    def to_svg(self) -> str:
        """graphviz's picture of `to_dot`. RuntimeError without graphviz."""
        from . import drawing

        return drawing.to_svg(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one HTML file without scripts and without anything from elsewhere."""
        from . import page

        page.write([self, *self.inner], path, f"{self.name}: ccompile report")

    def print_guards(self) -> None:
        """Prints one line per guard, by graph."""
        for i, graph in enumerate(self.graphs, 1):
            print(f"graph {i}: {many(len(graph.guards), 'guard')}")
            for guard in graph.guards:
                print(f"  {guard}")


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """explain(fn)(*args, **kwargs) runs fn, with its side effects, and returns an Explanation of how it was compiled.
    Where the recording gives up, the call is repeated, up to four times, until one sticks, as later calls would do;
    a repeat that raises is the last one. explain(fn, *args, **kwargs) does the same for at least one argument. What is
    disabled, or runs eagerly for another reason, has no graphs; `why_nothing` says why."""
    if isinstance(fn, type):  # compile would change it
        raise TypeError(f"ccompile.explain takes an instance or a method, not a class: {fn!r:.100}")
    fresh = compile(fn, isolate_recompiles=True, options={"compile_after": 0})
    disabled = disabled_of(fresh)
    run = _explains(fresh) if disabled is None else _explains_nothing(fresh, disabled)
    return run(*args, **kwargs) if args or kwargs else run


def _explains(fresh: Callable[..., Any]) -> Callable[..., Explanation]:
    compiled = compiled_of(fresh)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        compiled.reset()
        before = max((event.serial for event in events()), default=0)
        result = fresh(*args, **kwargs)
        why = None if compiled.report()["recordings"] else _why_nothing(compiled, before)
        repeats = known = 0
        while repeats < REPEATS and len(compiled.report()["give_ups"]) > known:
            known = len(compiled.report()["give_ups"])
            repeats += 1
            try:
                fresh(*args, **kwargs)
            except Exception:  # eager's own, for state that the first call has changed
                break
        return replace(Explanation.of(compiled, result, repeats), why_nothing=why)

    return run


def _explains_nothing(fn: Callable[..., Any], disabled: _core.Disabled) -> Callable[..., Explanation]:
    name = getattr(disabled, "__qualname__", type(fn).__qualname__)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        return Explanation(name, result=fn(*args, **kwargs), why_nothing=f"{name} is disabled")

    return run


def _why_nothing(compiled: _core.Compiled, before: int) -> str:
    """Why a call ran eagerly; `before`: the serial of the last event before it."""
    if not compiled.report()["calls"]:
        return "the call is inside ccompile.disable(), or inside a recording"
    if _core.stance() != "default":
        return f"the stance is {_core.stance()!r} (ccompile.set_stance)"
    told = [event.text for event in events(before) if event.kind == "eager"]
    return told[-1].removeprefix(f"{compiled.__name__}: ") if told else "the call ran eagerly"


def export(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """export(fn)(*args, **kwargs) runs fn once and returns its one Graph, for programs that read the graph of
    torch._dynamo.export; it cannot be run. export(fn, *args, **kwargs) does the same for at least one argument. Raises
    Unsupported if fn has a graph break, and ValueError if it has no tensor op."""
    whole = compile(fn, fullgraph=True, isolate_recompiles=True, options={"compile_after": 0})

    def run(*args: Any, **kwargs: Any) -> Graph:
        compiled_of(whole).reset()
        whole(*args, **kwargs)
        found = report(whole)
        if not found.graphs:
            raise ValueError(f"ccompile.export: {found.name} has no tensor op")
        return found.graphs[0]

    return run(*args, **kwargs) if args or kwargs else run


def report(compiled: Any) -> Explanation:
    """Explains a compiled callable that has already run: its current entries, and the breaks of its last recording."""
    return Explanation.of(compiled_of(compiled))


def many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def kernel_name(step: Any) -> str:
    """The name of a plan's step: what computes which ops."""
    ops = list(dict.fromkeys(step["ops"]))
    return f"{step['kind']} {'_'.join(ops[:4])}" + (f"_and_{len(ops) - 4}_more" if len(ops) > 4 else "")


def size_text(n: float) -> str:
    """A number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def plan_lines(graph: Graph) -> list[str]:
    """What each plan of the graph consists of, and its memory."""
    lines = []
    for plan in graph.plans:
        if "why" in plan:
            lines.append(f"{plan['name']}: {plan['why']}")
            continue
        kinds = [step["kind"] for step in plan["steps"]]
        counts = [many(kinds.count("kernel"), "kernel"), many(kinds.count("torch"), "torch call")]
        counts.insert(1, many(len(kinds) - kinds.count("kernel") - kinds.count("torch"), "library call"))
        memory = f"{size_text(plan['block_bytes'])} of intermediate results ({size_text(plan['apart_bytes'])} unshared)"
        saved = f", saves {many(plan['saved'], 'tensor')} ({size_text(plan['saved_bytes'])})" if "saved" in plan else ""
        lines.append(f"{plan['name']}: {', '.join(counts)}, {memory}{saved}")
    return lines


def _described(graph: Graph) -> str:
    lines = [graph.summary, *_table(graph.ops), *plan_lines(graph), *filter(None, [graph.cuda_graphs])]
    whys: dict[str, list[str]] = {}
    for op, why in graph.torch_ops:
        whys.setdefault(why, []).append(op.name)
    for why, names in whys.items():
        listed = [f"{name} (x{n})" if n > 1 else name for name, n in Counter(names).items()]
        lines.append(f"through torch: {', '.join(listed)}: {why}")
    return "\n".join(lines)


def _parameters(compiled: "_core.Compiled") -> list[str]:
    """Names for the items of *args: a module's `__call__` passes them to `forward`."""
    fn = compiled._orig_fn
    owner: Any = fn.__self__ if isinstance(fn, types.MethodType) else fn
    if not isinstance(owner, torch.nn.Module):
        return []
    with contextlib.suppress(TypeError, ValueError):
        return list(inspect.signature(owner.forward).parameters)
    return []


_TORCH = os.path.dirname(torch.__file__) + os.sep


def is_torchs(place: str) -> bool:
    return place.startswith(_TORCH)


def short_path(path: str) -> str:
    """The path relative to the working directory, if that is shorter; torch's own from "torch" on."""
    if is_torchs(path):
        return os.path.join("torch", path[len(_TORCH) :])
    if not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def _statement(line: str) -> str:
    """The keyword of a branch or loop at the line; "": none."""
    found = re.match(r"\s*(?:el)?(if|while|for)\b", line)
    return found[1] if found else ""


def _indented(text: str) -> list[str]:
    return [f"      {line}" for line in text.split("\n")]


def _fold(folded: list[str]) -> list[str]:
    """One line for frames in libraries; empties the list."""
    lines = [f"  ... {many(len(folded), 'frame')} in {folded[0]}"] if folded else []
    folded.clear()
    return lines


def _numbered(i: str, text: str) -> str:
    head, *rest = text.split("\n")
    return "\n".join([f"{i:>4}. {head}", *(f"      {line}" for line in rest)])


def _grouped(found: list[BreakReason]) -> list[tuple[str, BreakReason]]:
    """Numbered; equal neighbours are merged, as "2-6"."""
    groups: list[list[int]] = []
    for i, one in enumerate(found):
        if groups and found[groups[-1][0]] == one:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [(str(g[0] + 1) if len(g) == 1 else f"{g[0] + 1}-{g[-1] + 1}", found[g[0]]) for g in groups]


def _table(ops: tuple[Op, ...], most: int = 40) -> list[str]:
    width = max(len(op.name) for op in ops)
    lines = [f"{op.name:<{width}}  {', '.join(op.out)}".rstrip() for op in ops[:most]]
    if len(ops) > most:
        lines.append(f"... and {many(len(ops) - most, 'op')} more")
    return lines
