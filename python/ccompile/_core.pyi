"""The C module: what csrc/mod registers. The public API is in api.py and its siblings."""

from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TypedDict

class BreakDict(TypedDict):
    reason: str
    text: str
    advice: str
    file: str
    line: int
    site: int
    user_stack: list[tuple[str, int, str, str | None]]  # file, line, function, library
    rewrites: list[tuple[str, str]]

class InputDict(TypedDict):
    value: int
    source: str
    out: str

class NodeDict(TypedDict):
    op: str
    name: str
    method: bool
    sequence: bool  # the result is a sequence of the values
    target: str
    args: list[Any]  # constants, or [kind, what]: csrc/eval/listing.c
    kwargs: dict[str, Any]
    values: list[int]
    out: list[str]
    file: str | None
    line: int
    function: str | None
    first_line: int
    runs: list[list[int]]  # [plan, step]
    why: str | None

class StepDict(TypedDict):
    kind: str
    way: str | None
    why: str | None
    ops: list[str]
    ms: float
    source: str

class PlanDict(TypedDict, total=False):
    name: str
    steps: list[StepDict]
    block_bytes: int
    apart_bytes: int
    compile_ms: float
    passes_ms: float
    kernels_ms: float
    primitives_ms: float
    why: str  # there is no plan
    saved: int
    saved_bytes: int
    made_bytes: int

SegmentDict = TypedDict(
    "SegmentDict",
    {
        "id": int,
        "point": int,
        "start": str,
        "guards": list[str],
        "guard_steps": int,
        "nodes": list[NodeDict],
        "inputs": list[InputDict],
        "result": Any,
        "plans": list[PlanDict],
        "symbols": list[str],
        "shapes": int,
        "graph_text": str,
        "plan_text": str,
        "end": str,
        "break": BreakDict | None,
        "hits": int,
        "record_ms": float,
        "cuda_graphs": str,
    },
)

class EntryDict(TypedDict):
    root: str
    segments: list[SegmentDict]

class ReportDict(TypedDict):
    entries: list[EntryDict]
    breaks_seen: list[BreakDict]
    give_ups: list[BreakDict]
    calls: int
    hits: int
    recordings: int
    eager_calls: int
    handed: list[Compiled]
    last_guard_failure: str | None
    slower_than_eager: tuple[float, float] | None  # us per call, compiled and eager; it now runs eagerly

class MetricsDict(TypedDict):
    name: str
    calls: int
    hits: int
    eager_calls: int
    errors: int
    recordings: int
    recompiles: int
    breaks: int
    give_ups: int
    entries: int
    recording_ms: float
    compile_ms: float
    memory_bytes: int
    sum_ns: int
    max_ns: int
    buckets: list[tuple[int, int]]  # (upper bound in ns, calls)

class Unsupported(RuntimeError): ...

error_on_graph_break: ContextVar[bool]

class Compiled:
    _called: Callable[..., Any]
    _orig_fn: Callable[..., Any]
    __wrapped__: Callable[..., Any]
    __name__: str
    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        fullgraph: bool,
        dynamic: bool | dict[str, tuple[int, int, tuple[tuple[int, int, int], ...]]] | None,
        mode: str,
        options: dict[str, Any],
        name: str,
        lender: Compiled | None = None,
        through: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    def __copy__(self) -> Compiled: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled: ...
    def __reduce__(self) -> str | tuple[Any, ...]: ...
    def __set_name__(self, owner: type, name: str) -> None: ...
    def report(self) -> ReportDict: ...
    def metrics(self) -> MetricsDict: ...
    def reset_metrics(self) -> None: ...
    def reset(self) -> None: ...

class Disabled:
    _orig_fn: Callable[..., Any]
    __wrapped__: Callable[..., Any]
    def __init__(self, fn: Callable[..., Any], reason: str | None = None) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    def __copy__(self) -> Disabled: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Disabled: ...
    def __reduce__(self) -> str | tuple[Any, ...]: ...
    def __set_name__(self, owner: type, name: str) -> None: ...

def init(
    torch_module: ModuleType, *, llvmlite: str | None, onednn: str | None, nvrtc: str | None, compiler: str | None
) -> None: ...
def disable_push() -> None: ...
def disable_pop() -> None: ...
def raise_as(unsupported: type[Unsupported]) -> None: ...
def break_at(callable_or_type: object) -> None: ...
def note(text: str) -> None: ...
def stance() -> str: ...
def set_stance(stance: str | Callable[..., Any]) -> str | Callable[..., Any]: ...
def graph_break(msg: str = "") -> None: ...
def is_compiling() -> bool: ...
def skip_kernels(on: bool) -> None: ...
def set_lap_clock(clock: Callable[[str], int] | None) -> None: ...
def counters() -> dict[str, int]: ...
def reset() -> None: ...
def events(after: int = 0) -> list[tuple[int, str, int, str, int, str | None, int]]: ...
def event_kinds() -> dict[str, tuple[str, int]]: ...
def listen(
    listener: Callable[[tuple[int, str, int, str, int, str | None, int], str | None], None] | None, kinds: set[str]
) -> None: ...
def deliver() -> None: ...
def set_repro_writer(writer: object) -> None: ...
def time_calls(on: bool) -> None: ...
def all_compiled() -> list[Compiled]: ...
def timeline(path: str | None) -> None: ...
def describe() -> str: ...
def cached_files() -> list[tuple[str, bytes, bytes]]: ...
def add_cached_file(kind: str, key: bytes, image: bytes) -> bool: ...
def machine() -> str: ...
def set_config(name: str, value: bool | int | str) -> None: ...
def get_config() -> dict[str, bool | int | str]: ...
