"""CCOMPILE_REPRO: a graph that fails the self-check becomes a script that runs without the program: its ops as calls of
torch, its inputs by shape, dtype, stride and seed if it fails for such inputs, too, else saved beside it. The script
compares eager with ccompile, and is made as small as a few seconds allow."""

import logging
import math
import os
import re
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from . import _core

BUDGET = 5.0  # seconds of processor time for making a graph smaller
_log = logging.getLogger("ccompile.graph")

SCRIPT = '''"""{why} in segment {segment} of {root}, ccompile {version}, torch {torch_version}.

Compares what eager and compiled code give; exits with 1 if they differ."""

import sys

import torch

import ccompile


def graph({arguments}):
{body}
    return ({results},)


def inputs():
{inputs}


def main():
    torch.set_num_threads({threads})
    arguments = inputs()
    compiled = ccompile.compile(graph, options={knobs})
    with torch.no_grad():
        expected = graph(*arguments)
        compiled(*arguments)  # records, and gives what eager gives
        got = compiled(*arguments)
    wrong = 0
    for i, (a, b) in enumerate(zip(got, expected)):
        half = b.dtype in (torch.float16, torch.bfloat16)
        rtol, atol = (5e-2, 1e-1) if half else (1e-3, 1e-4)
        if b.is_floating_point() or b.is_complex():
            atol += 4e-6 * b.abs().max().nan_to_num(posinf=0).item() if b.numel() else 0
        same = torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        wrong += not same
        print("result", i, "is eager's" if same else f"differs: compiled\\n{{a}}\\neager\\n{{b}}")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
'''
_BINARY = {"add": "+", "and": "&", "floordiv": "//", "lshift": "<<", "matmul": "@", "mul": "*", "mod": "%", "or": "|"}
_BINARY |= {"pow": "**", "rshift": ">>", "sub": "-", "truediv": "/", "xor": "^"}
_UNARY = {"neg": "-", "invert": "~", "pos": "+"}
_COMPARE = {"__lt__": "<", "__le__": "<=", "__eq__": "==", "__ne__": "!=", "__gt__": ">", "__ge__": ">="}


class Value(int):
    """A graph value among operands."""

    def __repr__(self) -> str:
        return f"v{int(self)}"


class _Unwritable(Exception):
    """An operand or a callable has no text."""


class _Node(NamedTuple):
    reads: frozenset[int]
    makes: tuple[int, ...]
    text: str  # "v3 = torch.relu(v2)"


class _Graph(NamedTuple):
    nodes: tuple[_Node, ...]
    inputs: dict[int, torch.Tensor]
    outputs: tuple[int, ...]

    def live(self) -> "_Graph":
        """Without nodes and inputs that no output needs."""
        need, nodes = set(self.outputs), []
        for node in reversed(self.nodes):
            if need & set(node.makes):
                nodes.append(node)
                need |= node.reads
        return _Graph(tuple(reversed(nodes)), {v: t for v, t in self.inputs.items() if v in need}, self.outputs)


# ---------------------------------------------------------------------- text


def _names() -> dict[Any, str]:
    """callable of torch -> its path"""
    spaces: dict[str, Any] = {"torch": torch, "torch.nn.functional": torch.nn.functional, "torch.linalg": torch.linalg}
    spaces |= {"torch.special": torch.special, "torch.fft": torch.fft, "torch.Tensor": torch.Tensor}
    spaces |= {"torch._C._nn": torch._C._nn, "torch._C._VariableFunctions": torch._C._VariableFunctions}
    names: dict[Any, str] = {}
    for path, space in spaces.items():
        for name in dir(space):
            found = getattr(space, name, None)
            if callable(found) and not isinstance(found, type) and isinstance(found, Hashable):
                names.setdefault(found, f"{path}.{name}")
    return names


def _callable(target: Any, names: dict[Any, str]) -> str:
    if isinstance(target, Hashable) and target in names:
        return names[target]
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    owner = getattr(target, "__objclass__", None)
    if owner is not None and issubclass(torch.Tensor, owner):
        return f"torch.Tensor.{target.__name__}"
    raise _Unwritable(f"{target!r:.80} is no function of torch")


def _operand(o: Any) -> str:
    """Source that evaluates to an equal object; raises _Unwritable."""
    if isinstance(o, float) and not isinstance(o, Value) and not math.isfinite(o):
        return f'float("{o}")'
    if isinstance(o, tuple | list):
        items = ", ".join(map(_operand, o))
        return f"[{items}]" if isinstance(o, list) else f"({items}{',' if len(o) == 1 else ''})"
    if type(o) is dict:
        return "{" + ", ".join(f"{_operand(k)}: {_operand(v)}" for k, v in o.items()) + "}"
    if isinstance(o, slice):
        return f"slice({_operand(o.start)}, {_operand(o.stop)}, {_operand(o.step)})"
    if isinstance(o, torch.device):
        return f"torch.{o!r}"
    if o is ... or o is None or type(o) in (bool, int, float, complex, str, Value):
        return "..." if o is ... else repr(o)
    if isinstance(o, torch.dtype | torch.layout | torch.memory_format):
        return str(o)
    raise _Unwritable(f"{o!r:.80} is an operand")


def _values(o: Any) -> set[int]:
    if isinstance(o, Value):
        return {int(o)}
    parts = o if isinstance(o, tuple | list) else [*o, *o.values()] if isinstance(o, dict) else ()
    if isinstance(o, slice):
        parts = (o.start, o.stop, o.step)
    return set().union(*map(_values, parts)) if parts else set()


def _expression(form: str, target: Any, name: str, operands: tuple, keywords: Any, names: dict[Any, str]) -> str:
    texts = [_operand(o) for o in operands]
    if form == "call":
        plain = len(texts) - len(keywords or ())
        pairs = [f"{key}={text}" for key, text in zip(keywords or (), texts[plain:], strict=True)]
        return f"{_callable(target, names)}({', '.join([*texts[:plain], *pairs])})"
    if form == "binary":
        return f"{texts[0]} {_BINARY[name]} {texts[1]}"
    if form == "unary":
        return f"{_UNARY[name]}{texts[0]}"
    if form == "compare":
        return f"{texts[0]} {_COMPARE[name]} {texts[1]}"
    if form == "getitem":
        return f"{texts[0]}[{texts[1]}]"
    if form == "getattr":
        return f"{texts[0]}.{target}"
    raise _Unwritable(f"{name} is an operation of another kind")


def _graph(description: dict[str, Any]) -> _Graph:
    names, nodes = _names(), []
    for form, target, name, operands, keywords, first, n, sequence in description["nodes"]:
        makes = tuple(range(first, first + n))
        left = ", ".join(f"v{v}" for v in makes) + ("," if sequence and n == 1 else "")
        text = f"{left} = {_expression(form, target, name, operands, keywords, names)}"
        nodes.append(_Node(frozenset(_values(operands)), makes, text))
    return _Graph(tuple(nodes), dict(description["inputs"]), tuple(description["outputs"]))


def _recipe(tensor: torch.Tensor) -> str:
    """A tensor of this shape, dtype and strides, with arbitrary values."""
    size, stride = tuple(tensor.shape), tensor.stride()
    length = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if tensor.numel() else 0
    if tensor.is_floating_point() or tensor.is_complex():
        made = f"torch.randn({length}, dtype={tensor.dtype})"
    else:
        made = f"torch.randint(0, {2 if tensor.dtype is torch.bool else 8}, ({length},)).to({tensor.dtype})"
    return f"{made}.as_strided({size}, {stride})"


def _script(graph: _Graph, description: dict[str, Any], saved: str | None) -> str:
    """The script's text; saved: the file with the values of its inputs, None: they are made from a seed."""
    from . import __version__

    recipes = "".join(f"        {_recipe(t)},\n" for t in graph.inputs.values())
    fresh = f"    torch.manual_seed(0)\n    return [\n{recipes}    ]"
    loaded = f'    return torch.load(__file__.removesuffix(".py") + ".pt")  # {saved}'
    own = {k: v for k, v in description["knobs"].items() if k != "verify" and v != _core.get_config()[k]}
    return SCRIPT.format(
        why=description["why"],
        segment=description["segment"],
        root=description["root"],
        version=__version__,
        torch_version=torch.__version__,
        arguments=", ".join(f"v{v}" for v in graph.inputs),
        body="\n".join(f"    {node.text}" for node in graph.nodes),
        results=", ".join(f"v{v}" for v in graph.outputs),
        inputs=fresh if saved is None else loaded,
        threads=torch.get_num_threads(),
        knobs={**own, "verify": False},
    )


# ---------------------------------------------------------------------- minimising


def _run(graph: _Graph, description: dict[str, Any], given: list[torch.Tensor] | None) -> bool:
    """Whether the script fails with these inputs; None: with its own."""
    names: dict[str, Any] = {"__name__": "repro"}
    exec(_script(graph, description, None), names)
    names["print"] = lambda *_: None
    if given is not None:
        names["inputs"] = lambda: given
    threads = torch.get_num_threads()
    try:
        return bool(names["main"]())
    except Exception:
        return False  # another error than the one at hand
    finally:
        torch.set_num_threads(threads)


def _eager(graph: _Graph) -> dict[int, torch.Tensor]:
    """All values of an eager run."""
    names: dict[str, Any] = {"torch": torch} | {f"v{v}": t for v, t in graph.inputs.items()}
    with torch.no_grad():
        exec("\n".join(node.text for node in graph.nodes), names)
    return {int(name[1:]): v for name, v in names.items() if re.fullmatch(r"v\d+", name)}


def _window(graph: _Graph, values: dict[int, torch.Tensor], first: int, last: int) -> _Graph:
    """Nodes [first, last], with eager's values as inputs and all results as outputs."""
    nodes = graph.nodes[first : last + 1]
    made = {v for node in nodes for v in node.makes}
    inputs = {v: values[v] for node in nodes for v in sorted(node.reads) if v not in made}
    outputs = tuple(v for v in sorted(made) if isinstance(values[v], torch.Tensor))
    return _Graph(nodes, inputs, outputs)


def _least(low: int, high: int, fails: Callable[[int], bool]) -> int:
    """The least of low..high that fails, if everything above it does; high is known to."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle + 1, high)
    return high


def _minimise(graph: _Graph, fails: Callable[[_Graph], bool]) -> _Graph:
    """A part of the graph that fails, too: few nodes, as far as time allows."""
    end = time.process_time() + BUDGET
    values = _eager(graph)

    def tries(part: _Graph) -> bool:
        return time.process_time() < end and bool(part.outputs) and fails(part)

    for v in graph.outputs:
        one = graph._replace(outputs=(v,)).live()
        if len(graph.outputs) > 1 and tries(one):
            graph = one
            break
    n = len(graph.nodes) - 1
    last = _least(0, n, lambda k: tries(_window(graph, values, 0, k)))
    first = n - _least(n - last, n, lambda k: tries(_window(graph, values, n - k, last)))
    part = _window(graph, values, first, last)
    of_last = part._replace(outputs=tuple(v for v in part.outputs if v in part.nodes[-1].makes)).live()
    return next((smaller for smaller in (of_last, part) if tries(smaller)), graph)


# ---------------------------------------------------------------------- writing


class Writer:
    """Writes scripts into a folder; the core's repro.c gives it descriptions."""

    Value = Value

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder, self.written = folder, 0

    def write(self, description: dict[str, Any]) -> None:
        where = f"segment {description['segment']} of {description['root']}"
        try:
            whole = _graph(description)
        except _Unwritable as why:
            _log.warning("no script reproduces %s: %s", where, why)
            return

        def fails(graph: _Graph) -> bool:
            return _run(graph, description, list(graph.inputs.values()))

        graph = _minimise(whole.live(), fails) if fails(whole.live()) else whole.live()
        self.written += 1
        name = re.sub(r"\W+", "-", description["root"]).strip("-")[:40]
        path = os.path.join(self.folder, f"ccompile-{os.getpid()}-{self.written}-{name}.py")
        saved = None
        if not _run(graph, description, None):  # it depends on values
            saved = path.removesuffix(".py") + ".pt"
            torch.save(list(graph.inputs.values()), saved)
        with open(path, "w", encoding="utf-8") as file:
            file.write(_script(graph, description, saved and os.path.basename(saved)))
        _log.warning("%s reproduces %s: %s", path, where, description["why"])


def from_environment() -> None:
    """CCOMPILE_REPRO: the folder for scripts; switches the self-check on."""
    folder = os.environ.get("CCOMPILE_REPRO", "")
    if folder:
        _core.set_config("verify", True)
        _core.set_repro_writer(Writer(folder))
