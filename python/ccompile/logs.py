"""Logs: the core's events through Python's logging, in loggers `ccompile.<topic>`.

`set_logs(breaks=True)` and CCOMPILE_LOGS=breaks choose topics. Records carry the place in the user's code as pathname
and lineno, and as attributes `kind` (as in ccompile.counters), `detail` (further lines or None), `serial` and `ms`
(how long it took, or None)."""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from . import _core, config

# What each topic shows, and what it shows in addition at debug level
TOPICS: dict[str, tuple[str, str]] = {
    "graph": ("the ops of each recorded graph; failures of the self-check", "each graph after all passes"),
    "guards": ("the guards of each recorded graph", "the guard that failed, for each call that no entry fits"),
    "recompiles": ("recordings, with the reason for each after the first; dropped entries", "new sets of sizes"),
    "breaks": ("graph breaks, recordings that gave up, and calls that run eagerly: why and where", ""),
    "kernels": ("kernels and library calls as they are compiled", "the source of each kernel: LLVM IR or CUDA C"),
    "fusion": ("which ops each kernel and library call performs", ""),
    "schedule": ("the steps of each compiled graph in order, and the memory that they use", ""),
    "perf": ("what keeps code from being faster: ops left to torch, missing libraries, settings without effect", ""),
}
# Names of TORCH_LOGS and torch._logging.set_logs -> topics here, with + for debug level; (): nothing here corresponds
TORCHS: dict[str, tuple[str, ...]] = {
    "aot": ("graph",),
    "aot_graphs": ("+graph",),
    "aot_joint_graph": ("+graph",),
    "autotuning": ("perf",),
    "bytecode": (),
    "cudagraphs": ("perf",),
    "ddp_graphs": (),
    "distributed": (),
    "dynamic": ("+recompiles",),
    "dynamo": ("graph", "guards", "recompiles", "breaks"),
    "export": (),
    "graph_breaks": ("breaks",),
    "graph_code": ("graph",),
    "graph_sizes": ("graph",),
    "inductor": ("kernels", "fusion", "schedule", "perf"),
    "inductor_metrics": ("perf",),
    "ir_post_fusion": ("fusion",),
    "ir_pre_fusion": ("+graph",),
    "kernel_code": ("+kernels",),
    "onnx": (),
    "output_code": ("+kernels",),
    "perf_hints": ("perf",),
    "post_grad_graphs": ("+graph",),
    "pre_grad_graphs": ("graph",),
    "recompiles_verbose": ("+recompiles", "+guards"),
    "trace_bytecode": (),
    "trace_call": (),
    "trace_source": (),
    "verbose_guards": ("+guards",),
}
FORMATS = ("text", "json")
_log = logging.getLogger("ccompile")
_kinds: dict[str, tuple[str, int]] = _core.event_kinds()
_handlers: list[logging.Handler] = []


class _Stderr(logging.StreamHandler):
    """Prints to stderr unless the program has set up logging of its own, which then gets the records."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers:
            self.stream = sys.stderr  # the current one: programs replace it
            super().emit(record)


class _File(logging.Handler):
    """Appends to a file, or to `ccompile-<pid>.log` (.jsonl) in a folder, which is another one after a fork."""

    def __init__(self, out: str, ending: str) -> None:
        super().__init__()
        self.out, self.ending, self.folder = out, ending, os.path.isdir(out) or out.endswith(os.sep)
        if self.folder:
            os.makedirs(out, exist_ok=True)
        self._pid, self._stream = os.getpid(), self._open()

    def _open(self) -> Any:
        path = os.path.join(self.out, f"ccompile-{os.getpid()}.{self.ending}") if self.folder else self.out
        return open(path, "a", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.folder and os.getpid() != self._pid:
                self._pid, self._stream = os.getpid(), self._open()
            self._stream.write(self.format(record) + "\n")
            self._stream.flush()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Text(logging.Formatter):
    """`[breaks] graph_break at model.py:12: forward: ...`, then the detail, indented."""

    def format(self, record: logging.LogRecord) -> str:
        place = f" at {record.pathname}:{record.lineno}" if record.lineno else ""
        detail = getattr(record, "detail", None) or ""
        lines = [f"[{record.name}] {getattr(record, 'kind', record.levelname)}{place}: {record.getMessage()}"]
        return "\n".join([*lines, *(f"    {line}" for line in detail.splitlines())])


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": record.created,
            "pid": record.process,
            "level": record.levelname,
            "topic": record.name.removeprefix("ccompile."),
            "message": record.getMessage(),
            "file": record.pathname or None,
            "line": record.lineno or None,
        }
        row |= {name: getattr(record, name, None) for name in ("kind", "serial", "ms", "detail")}
        return json.dumps(row)


def _levels(names: Mapping[str, bool | int | None]) -> dict[str, int]:
    """topic -> level, from topics and torch's names with True, False or None (both: off), or a level of logging's."""
    levels: dict[str, int] = {}
    for name, value in names.items():
        if name not in TOPICS and name not in TORCHS and name != "all":
            raise ValueError(config.unknown("log", name, ["all", *TOPICS]))
        if value is not None and not isinstance(value, int):
            raise TypeError(f"log {name!r} is True, False or a level such as logging.DEBUG, not {value!r}")
        chosen = tuple(TOPICS) if name == "all" else (name,) if name in TOPICS else TORCHS[name]
        if value is None or value is False:
            for topic in chosen:
                _drop(levels, topic)
            continue
        if not chosen:
            _core.note(f"log {name!r}: a log of torch.compile's that nothing here corresponds to")
        for topic in chosen:
            level = logging.INFO if value is True else value
            levels[topic.lstrip("+")] = min(level, logging.DEBUG if topic[0] == "+" else level)
    return levels


def _drop(levels: dict[str, int], topic: str) -> None:
    """Ends a topic, or with + what it shows at debug level."""
    if topic[0] != "+":
        levels.pop(topic, None)
    elif topic[1:] in levels:
        levels[topic[1:]] = max(levels[topic[1:]], logging.INFO)


def parse(text: str) -> dict[str, bool | int]:
    """Arguments of set_logs, from the value of CCOMPILE_LOGS: "breaks,+guards", "all,-kernels"."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    return {name.lstrip("+-"): {"+": logging.DEBUG, "-": False}.get(name[0], True) for name in names}


def set_logs(*, out: str | os.PathLike[str] | None = None, format: str = "text", **topics: bool | int | None) -> None:
    """Chooses what is logged from now on; replaces earlier choices, and set_logs() ends logging.

    topics: `graph`, `guards`, `recompiles`, `breaks`, `kernels`, `fusion`, `schedule`, `perf` or `all`: True, or a
            level of logging's (logging.DEBUG shows more), or False. Names of torch._logging.set_logs are understood;
            one without a counterpart is an `ignored` event.
    out:    a file to append to, or a folder, which gets a file for each process; None: stderr, unless the program has
            set up logging itself.
    format: "text", or "json" for JSON lines.

    Raises ValueError for a name that does not exist, TypeError for a value of another type, OSError if `out` can't be
    opened.
    """
    if format not in FORMATS:
        raise ValueError(config.unknown("format", format, list(FORMATS)))
    if out is not None and not isinstance(out, str | os.PathLike):
        raise TypeError(f"out is a path or None, not {out!r}")
    levels = _levels(topics)
    handler: logging.Handler | None = None
    if levels:
        handler = _Stderr() if out is None else _File(os.fspath(out), "jsonl" if format == "json" else "log")
        handler.setFormatter(_Json() if format == "json" else _Text())
    _core.deliver()
    for old in _handlers:
        _log.removeHandler(old)
        old.close()
    _handlers[:] = [handler] if handler else []
    for topic in TOPICS:
        logging.getLogger(f"ccompile.{topic}").setLevel(levels.get(topic, logging.NOTSET))
    if handler:
        _log.addHandler(handler)
    wanted = {kind for kind, (topic, level) in _kinds.items() if level >= levels.get(topic, logging.CRITICAL + 1)}
    _core.listen(_tell if wanted else None, wanted)


def _tell(event: tuple[int, str, int, str, int, str | None, int], detail: str | None) -> None:
    serial, kind, time_ns, text, start_ns, file, line = event
    topic, level = _kinds[kind]
    logger = logging.getLogger(f"ccompile.{topic}")
    ms = (time_ns - start_ns) / 1e6 if time_ns > start_ns else None
    extra = {"kind": kind, "serial": serial, "ms": ms, "detail": detail or None}
    record = logger.makeRecord(logger.name, level, file or "", line, text, (), None, None, extra)
    record.created = time.time() - (time.monotonic_ns() - time_ns) / 1e9
    logger.handle(record)


def from_environment() -> None:
    """CCOMPILE_LOGS, CCOMPILE_LOGS_OUT and CCOMPILE_LOGS_FORMAT; without CCOMPILE_LOGS, the names of TORCH_LOGS that
    have a counterpart."""
    ours, torchs = os.environ.get("CCOMPILE_LOGS", ""), os.environ.get("TORCH_LOGS", "")
    topics = parse(ours) if ours else {name: value for name, value in parse(torchs).items() if TORCHS.get(name)}
    topics |= {} if ours else {name: value for name, value in parse(torchs).items() if name in TOPICS}
    out = os.environ.get("CCOMPILE_LOGS_OUT") or None
    format = os.environ.get("CCOMPILE_LOGS_FORMAT", "")
    if topics:
        set_logs(out=out, format=format if format in FORMATS else "text", **topics)
