"""The HTML report: one file without scripts and without anything from elsewhere."""

import importlib.resources
import inspect
import linecache
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from . import drawing
from .nodes import Op
from .report import BreakReason, Explanation, Graph, is_torchs, kernel_name, many, short_path, size_text

RUNNERS = {
    "kernel": "fused kernel",
    "library": "library call",
    "torch": "through torch",
    "none": "part of another op, or not needed",
}
LONG = 60  # lines; of a longer function, or one of torch, the marked lines are shown, with so many lines around them:
AROUND = 3


def write(tellings: list[Explanation], path: str | os.PathLike[str], title: str) -> None:
    """Writes the report on some compiled functions."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(_page(tellings, title))


def _page(tellings: list[Explanation], title: str) -> str:
    style = importlib.resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body><main>",
        f'<h1>{escape(title)}</h1><p class="soft">What ccompile compiled, what runs it, and where it broke.</p>',
    ]
    if len(tellings) > 1:
        links = [f'<a href="#region-{i}">{escape(told.name)}</a>' for i, told in enumerate(tellings, 1)]
        parts.append(f'<nav aria-label="compiled functions">{"".join(links)}</nav>')
    if not tellings:
        parts.append("<p>Nothing was compiled.</p>")
    for i, told in enumerate(tellings, 1):
        heading = f"<h2>{escape(told.name)}</h2>" if len(tellings) > 1 else ""
        parts.append(f'<section id="region-{i}">{heading}{_region(told)}</section>')
    return "\n".join([*parts, "</main></body></html>\n"])


def _region(told: Explanation) -> str:
    parts = [_cards(told)]
    if told.why_nothing is not None:
        parts.append(f"<p>Nothing was recorded: {escape(told.why_nothing)}.</p>")
    if told.slower_than_eager is not None:
        ours, eager = told.slower_than_eager
        parts.append(f"<p>Slower than eager ({ours:.0f} us per call, eager {eager:.0f} us), so it runs eagerly.</p>")
    parts.append(_sources(told))
    away = [one for one in _given_up(told) + told.break_reasons if _place(one) is None]
    if away:
        parts.append(
            "<h2>Breaks without source</h2>" + "".join(f'<div class="panel">{_why(one)}</div>' for one in away)
        )
    if told.graphs:
        parts.append("<h2>Graphs</h2>")
        parts += [_graph(graph, i) for i, graph in enumerate(told.graphs, 1)]
        parts.append(_times(told))
    return "\n".join(parts)


def _cards(told: Explanation) -> str:
    steps = [step for graph in told.graphs for plan in graph.plans for step in plan["steps"]]
    kinds = Counter(step["kind"] if step["kind"] in ("kernel", "torch") else "library" for step in steps)
    torchs = sum(drawing.runner(graph, op) == "torch" for graph in told.graphs for op in graph.ops)
    given_up = len(_given_up(told))
    memory = sum(plan.get("block_bytes", 0) for graph in told.graphs for plan in graph.plans)
    cards = [
        (told.graph_count, "graphs", "good" if told.graph_count else "bad"),
        (told.break_count, "graph breaks", "bad" if told.break_count else "good"),
        *([(given_up, "give-ups", "bad")] if given_up else []),
        (told.node_count, "tensor ops", ""),
        (torchs, "of them through torch", "warm" if torchs else "good"),
        (kinds["kernel"], "fused kernels", ""),
        (kinds["library"], "library calls", ""),
        (sum(len(graph.guards) for graph in told.graphs), "guards", ""),
        (size_text(memory), "intermediate results", ""),
    ]
    items = [f'<li class="{kind}"><b>{n}</b><span>{what}</span></li>' for n, what, kind in cards]
    return f'<ul class="cards">{"".join(items)}</ul>'


# ---------------------------------------------------------------------- source


@dataclass
class _Line:
    ops: list[tuple[int, Op, str]] = field(default_factory=list)  # number of the graph, the op, what runs it
    why: list[tuple[str, BreakReason]] = field(default_factory=list)  # "graph break 1", and the reason


def _given_up(told: Explanation) -> list[BreakReason]:
    """Give-ups at which no later recording broke."""
    broken = {(one.file, one.line) for one in told.break_reasons}
    return [one for one in dict.fromkeys(told.give_ups) if (one.file, one.line) not in broken]


def _sources(told: Explanation) -> str:
    """The functions that the recording went through, with their lines marked."""
    functions: dict[tuple[str, int, int], dict[int, _Line]] = {}
    names: dict[tuple[str, int, int], str] = {}

    def line_at(file: str | None, line: int, name: str) -> _Line | None:
        place = _block(file, line)
        if place is None:
            return None
        names.setdefault(place, name)
        return functions.setdefault(place, {}).setdefault(line, _Line())

    for i, graph in enumerate(told.graphs, 1):
        for op in graph.ops:
            at = line_at(op.file, op.line, op.function or "")
            if at is not None:
                at.ops.append((i, op, drawing.runner(graph, op)))
    numbered = [(f"graph break {i}", one) for i, one in enumerate(told.break_reasons, 1)]
    for title, one in numbered + [("given up", one) for one in _given_up(told)]:
        at = line_at(one.file, one.line, one.function)
        if at is not None:
            at.why.append((title, one))
    if not functions:
        return ""
    legend = (
        '<p class="legend"><span class="tag kernel">✓ compiled</span><span class="tag torch">↷ through torch</span>'
        '<span class="tag none">no tensor ops</span><span class="tag broken">✗ breaks, or given up</span></p>'
    )
    block = {place: _function(place, names[place], functions[place]) for place in sorted(functions)}
    mine = [text for place, text in block.items() if not is_torchs(place[0])]
    theirs = [text for place, text in block.items() if is_torchs(place[0])]
    if theirs:
        mine.append(_detail(f"{many(len(theirs), 'function')} of torch", "".join(theirs), is_open=not mine))
    return f"<h2>Source</h2>{legend}{''.join(mine)}"


def _block(file: str | None, line: int) -> tuple[str, int, int] | None:
    """The file, and the first and last line, of the innermost function around a line; None: there is no source."""
    lines = linecache.getlines(file) if file else []
    if not 0 < line <= len(lines):
        return None
    for first in range(line, 0, -1):
        text = lines[first - 1].lstrip()
        if text.startswith(("def ", "async def ", "@")) or (first == line and "lambda" in text):
            try:
                last = first + len(inspect.getblock(lines[first - 1 :])) - 1
            except (SyntaxError, IndentationError):
                continue
            if first <= line <= last:
                return str(file), first, last
    return str(file), max(1, line - AROUND), min(len(lines), line + AROUND)


def _place(one: BreakReason) -> tuple[str, int, int] | None:
    return _block(one.file, one.line)


def _function(place: tuple[str, int, int], name: str, marks: dict[int, _Line]) -> str:
    file, first, last = place
    shown = list(range(first, last + 1))
    if last - first >= LONG or is_torchs(file):
        near = {line + by for line in marks for by in range(-AROUND, AROUND + 1)} | {first}
        shown = sorted(line for line in near if first <= line <= last)
    rows, before = [], first - 1
    for line in shown:
        if line > before + 1:
            rows.append(f'<div class="fold">⋯ {many(line - before - 1, "line")}</div>')
        rows.append(_source_line(file, line, marks.get(line)))
        before = line
    if before < last:
        rows.append(f'<div class="fold">⋯ {many(last - before, "line")}</div>')
    return (
        f'<section class="source"><header><b>{escape(name)}</b> <span class="soft">{escape(short_path(file))}, '
        f'lines {first} to {last}</span></header><div class="scroll" tabindex="0" role="region" '
        f'aria-label="source of {escape(name)}"><div class="lines">{"".join(rows)}</div></div></section>'
    )


def _source_line(file: str, line: int, mark: _Line | None) -> str:
    text = escape(linecache.getline(file, line).rstrip("\n"))
    kind, sign, what = "", "", ""
    if mark is not None and mark.why:
        kind, sign, what = "broken", "✗", ", ".join(title for title, _ in mark.why)
    elif mark is not None:
        torchs = [op for _, op, by in mark.ops if by == "torch"]
        kind, sign = ("torch", "↷") if len(torchs) == len(mark.ops) else ("compiled", "✓")
        graphs = ", ".join(map(str, sorted({i for i, _, _ in mark.ops})))
        what = f"{many(len(mark.ops), 'op')}, graph {graphs}" + (f", {len(torchs)} through torch" if torchs else "")
    row = (
        f'<div class="line {kind}"><span class="number">{line}</span><span class="mark">{sign}</span>'
        f'<span class="code">{text}</span><span class="what">{escape(what)}</span></div>'
    )
    notes = [f'<div class="note broken"><div>{_why(one)}</div></div>' for _, one in (mark.why if mark else ())]
    return row + "".join(notes)


def _why(one: BreakReason) -> str:
    """Why it broke, and what to write instead."""
    parts = [f"<p><b>{escape(one.text)}</b> <code>{escape(one.reason)}</code></p>"]
    if one.advice:
        parts.append(f"<p>What to do: {escape(one.advice)}.</p>")
    for before, after in one.rewrites:
        parts.append(
            f'<div class="pair">{_figure("before", "instead of", before)}{_figure("after", "write", after)}</div>'
        )
    if len(one.user_stack) > 1:
        frames = "\n".join(f"{short_path(file)}:{line} in {function}" for file, line, function in one.user_stack)
        parts.append(f"<details><summary>{len(one.user_stack)} frames</summary>{_pre(frames, 'frames')}</details>")
    return "".join(parts)


def _figure(kind: str, caption: str, text: str) -> str:
    return f'<figure class="{kind}"><figcaption>{caption}</figcaption>{_pre(text, caption)}</figure>'


def _pre(text: str, what: str) -> str:
    return f'<pre tabindex="0" aria-label="{escape(what)}">{escape(text)}</pre>'


# ---------------------------------------------------------------------- graphs


def _graph(graph: Graph, number: int) -> str:
    title = f"Graph {number}: {many(len(graph.ops), 'op')} from {short_path(graph.start)}, ends in {graph.end}"
    tags = "".join(f'<span class="tag {kind}">{text}</span>' for kind, text in RUNNERS.items())
    picture = drawing.to_inline_svg(graph, title)
    parts = [
        f"<h3>{escape(title)}</h3>",
        f'<p class="legend">{tags}</p>',
        f'<div class="scroll picture" tabindex="0" role="region" aria-label="graph {number}">{picture}</div>',
        _detail("Ops, and what runs them", _ops(graph)),
        _detail("Code", _pre(graph.print_readable(print_output=False), "code of the graph")),
        _detail("As torch.fx prints it", _pre(str(graph), "fx text")),
        _detail(many(len(graph.guards), "guard"), _pre("\n".join(graph.guards), "guards")) if graph.guards else "",
        _detail("Kernels, library calls and memory", _plans(graph), is_open=True),
    ]
    if graph.cuda_graphs:
        parts.append(f"<p>{escape(graph.cuda_graphs)}</p>")
    return f'<section class="panel">{"".join(parts)}</section>'


def _detail(title: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary><div>{content}</div></details>"


def _table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells are HTML; those of columns whose title ends in a space are figures."""
    classes = [' class="figure"' if title.endswith(" ") else "" for title in head]
    top = "".join(f"<th{kind}>{escape(title)}</th>" for title, kind in zip(head, classes, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, classes, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _ops(graph: Graph) -> str:
    rows = []
    for node in graph.nodes:
        op = node.made_by
        if op is None:
            continue
        kind = drawing.runner(graph, op)
        runs = [f"{graph.plans[plan]['name']} {step}" for plan, step in op.runs]
        what = "; ".join(filter(None, [", ".join(runs), op.why_torch]))
        place = f"{os.path.basename(op.file)}:{op.line}" if op.file else ""
        rows.append(
            (
                f"<code>{escape(op.name)}</code>",
                f"<code>{escape(', '.join(op.out))}</code>",
                escape(place),
                f'<span class="tag {kind}">{RUNNERS[kind]}</span> {escape(what)}',
            )
        )
    return _table(["op", "result", "line", "what runs it"], rows)


def _plans(graph: Graph) -> str:
    parts = []
    for plan in graph.plans:
        if "why" in plan:
            parts.append(f"<p>{escape(plan['name'])}: {escape(plan['why'])}</p>")
            continue
        timed = any(step["ms"] for step in plan["steps"])
        rows = [_step(i, step, timed) for i, step in enumerate(plan["steps"])]
        head = ["step ", "kind", "ops", *(["ms "] if timed else [])]
        parts.append(f"<h3>{escape(plan['name'])}</h3>{_memory(plan)}{_table(head, rows)}")
    parts += [_detail(f"Source of {name}", _pre(source, name)) for _, name, source in graph.kernels if source]
    return "".join(parts)


def _step(i: int, step: dict, timed: bool) -> tuple[str, ...]:
    kind = step["kind"] if step["kind"] in ("kernel", "torch") else "library"
    ops = ", ".join(f"{op} ×{n}" if n > 1 else op for op, n in Counter(step["ops"]).items())
    text = kernel_name(step) if kind == "library" else RUNNERS[kind]
    cells = str(i), f'<span class="tag {kind}">{escape(text)}</span>', f"<code>{escape(ops)}</code>"
    if step["why"]:
        cells = (*cells[:2], f"{cells[2]} {escape(step['why'])}")
    return (*cells, f"{step['ms']:.3f}") if timed else cells


def _memory(plan: dict) -> str:
    block, apart = plan["block_bytes"], plan["apart_bytes"]
    text = [
        f"Intermediate results take {size_text(block)}" + (f" instead of {size_text(apart)}" if apart > block else "")
    ]
    if "saved" in plan:
        text.append(
            f"{many(plan['saved'], 'tensor')} saved for the backward, {size_text(plan['saved_bytes'])}, "
            f"of which {size_text(plan['made_bytes'])} are not parameters or inputs"
        )
    return f'<p class="soft">{escape("; ".join(text))}.</p>'


def _times(told: Explanation) -> str:
    most = max(told.phases.values()) or 1.0
    rows = [
        (
            name,
            f"{ms:.1f}",
            f'<div class="bars"><div class="bar" style="width:{100 * max(ms, 0) / most:.1f}%"></div></div>',
        )
        for name, ms in told.phases.items()
    ]
    note = "Recording includes the ops that ran meanwhile; kernels are found on disk or compiled by LLVM."
    return f'<h2>Time</h2>{_table(["phase", "ms ", ""], rows)}<p class="soft">{note}</p>'
