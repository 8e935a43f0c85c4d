"""Recorded graphs as torch.fx shows them: nodes with op, target, args and users; as fx text and as Python code."""

import builtins
import functools
import linecache
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _core


@dataclass(frozen=True)
class Op:
    """One recorded tensor op: where it stands in the user's code, and what runs it."""

    op: str  # row of the op table: "relu"; "host" for ops that only torch has
    name: str  # as called: "torch.relu", "mul"
    out: tuple[str, ...]  # types of its results: "f32[8, 64] cpu"
    file: str | None = None
    line: int = 0
    function: str | None = None
    first_line: int = 0  # of the function
    runs: tuple[tuple[int, int], ...] = ()  # (plan, step) pairs of Graph.plans
    why_torch: str | None = None  # why torch runs it; None: it does not
    number: bool = False  # computes a number or text that Python code goes on with, not a tensor

    @classmethod
    def of(cls, found: Any) -> "Op":
        runs = tuple(dict.fromkeys((plan, step) for plan, step in found["runs"]))
        place = found["file"], found["line"], found["function"], found["first_line"]
        return cls(found["op"], found["name"], tuple(found["out"]), *place, runs, found["why"], found["number"])


@dataclass(eq=False)
class Node:
    """A node as torch.fx has it."""

    op: str  # "placeholder", "call_function", "call_method", "output"
    name: str
    target: Any  # the function, the method's name, the placeholder's source, or "output"
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    users: dict["Node", None] = field(default_factory=dict)
    out: tuple[str, ...] = ()  # types of its results
    made_by: Op | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def all_input_nodes(self) -> list["Node"]:
        """The nodes among its arguments, each once."""
        return list(dict.fromkeys(_inside((self.args, self.kwargs))))

    def format_node(self) -> str:
        """fx's line for it."""
        if self.op == "output":
            return f"return {_percent(self.args[0])}"
        target = self.target if isinstance(self.target, str) else _path(self.target)
        head = f"%{self.name} : [num_users={len(self.users)}] = {self.op}[target={target}]"
        if self.op == "placeholder":
            return head
        keywords = ", ".join(f"{key}: {_percent(value)}" for key, value in self.kwargs.items())
        return f"{head}(args = {_percent(self.args)}, kwargs = {{{keywords}}})"


class Source(str):
    """An argument that is not a node: what was read from outside, or a symbol."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Builder:
    """Makes the nodes of one segment of a report."""

    def __init__(self, segment: Any, parameters: list[str]) -> None:
        self.nodes: list[Node] = []
        self.of_value: dict[int, Node] = {}
        self.taken: dict[str, int] = {}
        for given in segment["inputs"]:
            source = _readable(given["source"], parameters)
            node = self.add("placeholder", _plain(source), source, out=(given["out"],))
            self.of_value[given["value"]] = node
        for made in segment["nodes"]:
            self.add_op(made)
        result = self.argument(segment["result"])
        self.add("output", "output", "output", (result,))
        for node in self.nodes:
            for used in node.all_input_nodes:
                used.users[node] = None
        unread = [part for part in self.of_value.values() if part.made_by is None and part.op == "call_function"]
        for part in unread:
            if not part.users:
                self.nodes.remove(part)
                del part.all_input_nodes[0].users[part]

    def add(self, op: str, name: str, target: Any, args: tuple[Any, ...] = (), **rest: Any) -> Node:
        times = self.taken.get(name, 0)
        self.taken[name] = times + 1
        node = Node(op, f"{name}_{times}" if times else name, target, args, **rest)
        self.nodes.append(node)
        return node

    def add_op(self, made: Any) -> None:
        args = tuple(map(self.argument, made["args"]))
        kwargs = {key: self.argument(value) for key, value in made["kwargs"].items()}
        op = "call_method" if made["method"] else "call_function"
        target = made["target"] if made["method"] else _found(made["target"])
        name = _plain(made["target"].rpartition(".")[2])
        node = self.add(op, name, target, args, kwargs=kwargs, out=tuple(made["out"]), made_by=Op.of(made))
        if len(made["values"]) == 1 and not made["sequence"]:
            self.of_value[made["values"][0]] = node
            return
        for i, value in enumerate(made["values"]):
            self.of_value[value] = self.add("call_function", "getitem", operator.getitem, (node, i))

    def argument(self, given: Any) -> Any:
        if not isinstance(given, list):
            return given
        kind, what = given
        if kind == "value":
            return self.of_value[what]
        if kind == "text":
            return _objects().get(what, Source(what))
        parts = [self.argument(part) for part in what]
        if kind == "slice":
            return slice(*parts)
        if kind == "dict":
            return {str(key): value for key, value in zip(parts[::2], parts[1::2], strict=True)}
        return tuple(parts) if kind == "tuple" else parts


def nodes_of(segment: "_core.SegmentDict", parameters: list[str]) -> tuple[Node, ...]:
    """The nodes of a segment of a report, in fx's order: placeholders, calls, output. parameters: names for args[0],
    args[1] ..."""
    return tuple(_Builder(segment, parameters).nodes)


def fx_text(nodes: tuple[Node, ...]) -> str:
    """What print(torch.fx.Graph) shows."""
    return "\n    ".join(["graph():", *(node.format_node() for node in nodes)])


def code(nodes: tuple[Node, ...], readable: bool = False) -> str:
    """A Python function that computes what the nodes do; readable: with types, and the user's lines as comments."""
    inputs = [node for node in nodes if node.op == "placeholder"]
    lines = [f"def forward({', '.join(['self', *(node.name for node in inputs)])}):"]
    if readable:
        lines += [f"    # {node.name}: {node.target}, {node.out[0]}" for node in inputs]
    place = None
    for node in nodes:
        if node.op == "output":
            lines.append(f"    return {node.args[0]!r}")
        elif node.op != "placeholder":
            if readable and node.made_by is not None and _place(node.made_by) != place:
                place = _place(node.made_by)
                lines.append(f"    # {place}")
            kind = f': "{", ".join(node.out)}"' if readable and node.out else ""
            lines.append(f"    {node.name}{kind} = {_expression(node)}")
    return "\n".join(lines) + "\n"


def _place(op: Op) -> str:
    source = linecache.getline(op.file or "", op.line).strip()
    return f"File: {op.file}:{op.line} in {op.function}, code: {source}"


_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    operator.eq: "==", operator.ne: "!=", operator.lshift: "<<", operator.rshift: ">>",
}  # fmt: skip


def _expression(node: Node) -> str:
    args = list(map(repr, node.args))
    if node.target in _INFIX and len(args) == 2:
        return f" {_INFIX[node.target]} ".join(args)
    if node.target is operator.getitem and len(args) == 2:
        return f"{args[0]}[{args[1]}]"
    args += [f"{key} = {value!r}" for key, value in node.kwargs.items()]
    if node.op == "call_method":
        return f"{args[0]}.{node.target}({', '.join(args[1:])})"
    target = node.target if isinstance(node.target, str) else _path(node.target)
    return f"{target}({', '.join(args)})"


def _inside(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _inside(part)
    elif isinstance(value, dict):
        yield from _inside(list(value.values()))
    elif isinstance(value, slice):
        yield from _inside((value.start, value.stop, value.step))


def _percent(value: Any) -> str:
    """fx marks nodes by a percent sign."""
    if isinstance(value, Node):
        return f"%{value.name}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_percent, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_percent, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_percent(part)}' for key, part in value.items())}}}"
    if isinstance(value, slice):
        return f"slice({_percent(value.start)}, {_percent(value.stop)}, {_percent(value.step)})"
    return repr(value)


def _readable(source: str, parameters: list[str]) -> str:
    """The path of a value as the user would write it: self.fc.weight for self.__dict__['_modules']['fc'] ..."""
    source = re.sub(r"\.__dict__\['_(?:modules|parameters|buffers)'\]\['(\w+)'\]", r".\1", source)
    source = re.sub(r"\.__dict__(?:\['(\w+)'\]|\.get\('(\w+)'\))", lambda m: f".{m[1] or m[2]}", source)
    given = re.match(r"args\[(\d+)\]", source)
    if given and int(given[1]) < len(parameters):
        source = parameters[int(given[1])] + source[given.end() :]
    return source


def _plain(text: str) -> str:
    """The text as a name."""
    name = re.sub(r"\W+", "_", text).strip("_").lower() or "value"
    return f"_{name}" if name[0].isdigit() else name


@functools.cache
def _objects() -> dict[str, Any]:
    """Constants that reports give as text."""
    kinds = torch.dtype, torch.layout, torch.memory_format
    return {"Ellipsis": ...} | {repr(value): value for value in vars(torch).values() if isinstance(value, kinds)}


_ROOTS = {"torch": torch, "operator": operator, "builtins": builtins}


def _found(path: str) -> Callable[..., Any] | str:
    """The function of that path; the path, if it cannot be found."""
    head, *rest = path.split(".")
    found: Any = _ROOTS.get(head)
    for part in rest:
        found = getattr(found, part, None)
    return found if callable(found) else path


def _path(function: Any) -> str:
    module = getattr(function, "__module__", None) or "torch"
    return f"{'operator' if module == '_operator' else module}.{getattr(function, '__name__', function)}"
