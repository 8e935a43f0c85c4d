"""Pictures of recorded graphs: DOT text for graphviz, and SVG by a layered layout of our own.

The layout: a node stands one layer below the lowest of its arguments; an edge over several layers gets a bend in each;
a few sweeps order each layer by the mean place of its neighbours, and a few more pull nodes towards that place."""

import html
import itertools
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field

from .nodes import Node, Op
from .report import Explanation, Graph

# what runs an op -> (fill, border) in DOT; the page's style sheet has its own for each
COLOURS = {
    "input": ("#f3f4f6", "#6b7280"),
    "output": ("#f3f4f6", "#6b7280"),
    "kernel": ("#dcfce7", "#15803d"),
    "library": ("#dbeafe", "#1d4ed8"),
    "torch": ("#ffedd5", "#c2410c"),
    "none": ("#ffffff", "#9ca3af"),
    "break": ("#fee2e2", "#b91c1c"),
}


def node_kind(graph: Graph, node: Node) -> str:
    """A key of COLOURS."""
    if node.op in ("placeholder", "output"):
        return "input" if node.op == "placeholder" else "output"
    return "none" if node.made_by is None else runner(graph, node.made_by)


def runner(graph: Graph, op: Op) -> str:
    """What runs the op, or most of it: a key of COLOURS. "none": nothing does, as it is a part of something else."""
    kinds = {graph.plans[plan]["steps"][step]["kind"] for plan, step in op.runs}
    if op.why_torch is not None and kinds <= {"torch"}:
        return "torch"
    return "library" if kinds - {"torch", "kernel"} else "kernel" if "kernel" in kinds else "none"


def label(node: Node) -> tuple[str, str]:
    """Its name and the type of its result, without strides and device."""
    kind, closed, _ = (node.out[0] if node.out else "").partition("]")
    kind = kind.partition(" ")[0] if not closed else f"{kind}]"
    if node.op == "placeholder":
        return str(node.target), kind
    return ("result" if node.op == "output" else node.name), kind


# ---------------------------------------------------------------------- DOT


def to_dot(told: Explanation) -> str:
    """The graphs as clusters, with the breaks between them."""
    lines = [
        "digraph explanation {",
        '  graph [fontname="Helvetica", compound=true, nodesep=0.25, ranksep=0.35];',
        '  node [fontname="Helvetica", fontsize=10, shape=box, style="rounded,filled", height=0.3];',
        '  edge [color="#6b7280", arrowsize=0.6];',
    ]
    for i, graph in enumerate(told.graphs):
        lines += [f"  subgraph cluster_{i} {{", f"    label={_quoted(f'graph {i + 1}: {graph.summary}')};"]
        lines += [f"    {line}" for line in _dot_graph(graph, f"g{i}_")]
        lines.append("  }")
    for i, broken in enumerate(told.break_reasons):
        fill, border = COLOURS["break"]
        text = f"break {i + 1}: {broken.text}\nline {broken.line} of {broken.function}"
        lines.append(f'  break_{i} [label={_quoted(text)}, fillcolor="{fill}", color="{border}", shape=octagon];')
        if i < len(told.graphs):
            lines.append(f"  g{i}_{told.graphs[i].nodes[-1].name} -> break_{i} [style=dashed];")
        if i + 1 < len(told.graphs):
            lines.append(f"  break_{i} -> g{i + 1}_{told.graphs[i + 1].nodes[0].name} [style=dashed];")
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(told: Explanation) -> str:
    """graphviz's picture of `to_dot`."""
    if shutil.which("dot") is None:
        raise RuntimeError("to_svg needs graphviz's program dot, which is not on the path; to_html draws without it")
    made = subprocess.run(["dot", "-Tsvg"], input=to_dot(told), capture_output=True, text=True, check=True)
    return made.stdout


def _dot_graph(graph: Graph, prefix: str) -> Iterable[str]:
    for node in graph.nodes:
        fill, border = COLOURS[node_kind(graph, node)]
        text = _quoted("\n".join(filter(None, label(node))))
        yield f'{prefix}{node.name} [label={text}, fillcolor="{fill}", color="{border}"];'
        for used in node.all_input_nodes:
            yield f"{prefix}{used.name} -> {prefix}{node.name};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


# ---------------------------------------------------------------------- SVG

BOX_HEIGHT, LAYER, GAP, MARGIN = 38, 66, 18, 14


@dataclass(eq=False)
class _Box:
    """A node, or a bend of an edge."""

    node: Node | None
    width: float
    layer: int = 0
    x: float = 0.0  # of its middle
    above: list["_Box"] = field(default_factory=list)
    below: list["_Box"] = field(default_factory=list)

    @property
    def y(self) -> float:
        return MARGIN + self.layer * LAYER


def to_inline_svg(graph: Graph, title: str) -> str:
    """The graph without its weights: inputs that are attributes are named in their users' tooltips."""
    layers, edges = layout(graph)
    boxes = [box for layer in layers for box in layer]
    left = min(box.x - box.width / 2 for box in boxes) - MARGIN
    width = max(box.x + box.width / 2 for box in boxes) + MARGIN - left
    height = len(layers) * LAYER - LAYER + BOX_HEIGHT + 2 * MARGIN
    parts = [
        f'<svg role="img" aria-label="{html.escape(title)}" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{left:.0f} 0 {width:.0f} {height:.0f}">'
    ]
    parts += [f'<path class="edge" d="{_curve(points)}"/>' for points in edges]
    parts += [_svg_box(graph, box, box.node) for box in boxes if box.node is not None]
    return "\n".join([*parts, "</svg>"])


def _svg_box(graph: Graph, box: _Box, node: Node) -> str:
    name, kind = label(node)
    more = [repr(node.target) if node.op == "call_method" else "", *map(str, node.out)]
    more += [f"{used.target}" for used in node.all_input_nodes if is_weight(used)]
    if node.made_by is not None:
        more.append(f"line {node.made_by.line} of {node.made_by.function}")
        more.append(f"runs through torch: {node.made_by.why_torch}" if node.made_by.why_torch else "")
    tip = html.escape("\n".join([name, *filter(None, more)]))
    x, y = box.x - box.width / 2, box.y
    below = f'<text class="type" x="{box.x:.1f}" y="{y + 30:.1f}">{html.escape(_cut(kind))}</text>' if kind else ""
    return (
        f'<g class="node {node_kind(graph, node)}"><title>{tip}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<text x="{box.x:.1f}" y="{y + (16 if kind else 23):.1f}">{html.escape(_cut(name))}</text>{below}</g>'
    )


def is_weight(node: Node) -> bool:
    return node.op == "placeholder" and "." in str(node.target)


def _cut(text: str, most: int = 28) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def layout(graph: Graph) -> tuple[list[list[_Box]], list[list[tuple[float, float]]]]:
    """Layers of boxes, and the points of each edge."""
    shown = [node for node in graph.nodes if not is_weight(node)]
    box = {node: _Box(node, 22 + 7.0 * max(len(_cut(part)) for part in label(node))) for node in shown}
    for node in shown:
        used = [box[one] for one in node.all_input_nodes if one in box]
        box[node].layer = max((one.layer + 1 for one in used), default=0)
    for node in reversed(shown):  # inputs stand right above their first user
        users = [box[user].layer for user in node.users]
        if users and not any(one in box for one in node.all_input_nodes):
            box[node].layer = min(users) - 1
    layers: list[list[_Box]] = [[] for _ in range(1 + max(one.layer for one in box.values()))]
    chains = [_chain(box[used], box[node], layers) for node in shown for used in node.all_input_nodes if used in box]
    for one in box.values():
        layers[one.layer].append(one)
    _order(layers)
    _place(layers)
    return layers, [_points(chain) for chain in chains]


def _points(chain: list[_Box]) -> list[tuple[float, float]]:
    """From the lower edge of the first box to the upper edge of the last one; a bend is as high as a box."""
    first, *bends, last = chain
    between = [(bend.x, y) for bend in bends for y in (bend.y, bend.y + BOX_HEIGHT)]
    return [(first.x, first.y + BOX_HEIGHT), *between, (last.x, last.y)]


def _chain(upper: _Box, lower: _Box, layers: list[list[_Box]]) -> list[_Box]:
    """The edge's boxes, from upper to lower, with a bend in each layer between."""
    chain = [upper]
    for layer in range(upper.layer + 1, lower.layer):
        bend = _Box(None, 2.0, layer)
        layers[layer].append(bend)
        chain.append(bend)
    chain.append(lower)
    for one, other in itertools.pairwise(chain):
        one.below.append(other)
        other.above.append(one)
    return chain


def _mean(boxes: list[_Box], default: float) -> float:
    return sum(box.x for box in boxes) / len(boxes) if boxes else default


def _order(layers: list[list[_Box]], sweeps: int = 8) -> None:
    """Orders each layer; until _place, a box's x is its position."""
    for layer in layers:
        for i, box in enumerate(layer):
            box.x = float(i)
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            layer.sort(key=lambda box: _mean(box.above if down else box.below, box.x))
            for i, box in enumerate(layer):
                box.x = float(i)


def _place(layers: list[list[_Box]], sweeps: int = 24) -> None:
    for layer in layers:
        x = -sum(box.width + GAP for box in layer) / 2
        for box in layer:
            box.x = x + box.width / 2
            x += box.width + GAP
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            near = [_mean((box.above if down else box.below) or box.above + box.below, box.x) for box in layer]
            # The mean of the closest places from the left and from the right keeps the gaps that both keep.
            right, left = _packed(layer, near), _packed(layer[::-1], [-x for x in near[::-1]])[::-1]
            for box, a, b in zip(layer, right, left, strict=True):
                box.x = (a - b) / 2


def _packed(layer: list[_Box], near: list[float]) -> list[float]:
    """The places nearest to `near` that are not left of them and do not overlap."""
    places: list[float] = []
    for i, (box, x) in enumerate(zip(layer, near, strict=True)):
        if i:
            x = max(x, places[-1] + (layer[i - 1].width + box.width) / 2 + GAP)
        places.append(x)
    return places


def _curve(points: list[tuple[float, float]]) -> str:
    """A smooth path through the points; each part leaves and arrives vertically."""
    (x, y), *rest = points
    path = [f"M{x:.1f} {y:.1f}"]
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        path.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(path)
