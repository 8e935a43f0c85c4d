"""compile, disable, counters and events. Checks arguments; _core does the work."""

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack, overload

import torch

from . import _core, config, dims, inductor, sharing
from .module import CompiledModule, called_by, wrap_module

F = TypeVar("F", bound=Callable[..., Any])

# The knobs that a mode sets; `options` override them.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"reuse_results": True, "cuda_graphs": True},
    "max-autotune": {"freezing": True, "cuda_graphs": True, "autotune": True},
    "max-autotune-no-cudagraphs": {"freezing": True, "autotune": True},
}
_torch_compile: Callable[..., Any] = torch.compile  # torch's own, whatever ccompile.install() puts in its place


made: list["_core.Compiled"] | None = None  # everything that is compiled, while script.py keeps it


class _How(TypedDict, total=False):
    """compile's keyword arguments, for type checkers."""

    fullgraph: bool
    dynamic: bool | Mapping[str, Mapping[int, Any]] | None
    backend: str | Callable[..., Any] | None
    mode: str | None
    options: dict[str, Any] | None
    name: str | None
    disable: bool
    recompile_limit: int | None
    isolate_recompiles: bool
    shapes_spec: None
    dynamic_shapes: None


@overload
def compile(model: F, **how: Unpack[_How]) -> F: ...
@overload
def compile(model: None = None, **how: Unpack[_How]) -> Callable[[F], F]: ...
def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | Mapping[str, Mapping[int, Any]] | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: None = None,
    dynamic_shapes: None = None,
) -> Any:
    """Compiles a callable or an nn.Module; takes what torch.compile takes. Works as a function, and as a decorator with
    or without arguments. Compilation happens on the first call, which records the call and returns what eager returns.

    fullgraph: a graph break or a give-up raises ccompile.Unsupported before the breaking instruction runs.
    dynamic:   None: a size becomes symbolic once it changes; True: immediately; False: never (one variant per shape);
               {argument: {dim: ccompile.Dim(min=, max=)}}: these immediately, others once they change.
    backend:   None or "ccompile"; any other goes to torch.compile with all arguments, and its result is returned.
    mode:      None or "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs".
    options:   knobs for this callable only (see ccompile.config). Of Inductor's options, those with a counterpart set
               it (max_autotune, triton.cudagraphs ...); each of the others is an `ignored` event.
    name:      what reports and events call it; default: its __qualname__, or the class of a module.
    disable:   returns the model unchanged.
    recompile_limit: the knob of that name.
    isolate_recompiles: the result has entries of its own; else it shares them with other results for the same callable
                (or functions with the same code and variables) and settings.
    shapes_spec, dynamic_shapes: None (torch 2.13's and 2.14's name for one thing); `dynamic` and mark_dynamic declare
                sizes.

    For an nn.Module the result is an instance of its class that shares its __dict__, so that parameters, buffers,
    hooks, state_dict keys and attributes are those of the original, which is `._orig_mod`; it is the original itself,
    compiled in place, if the class has state outside its __dict__ (`class M(nn.Module, list)`). For a class it is the
    class itself, whose instances' calls are compiled from then on.
    """
    if not (backend is None or isinstance(backend, str) or callable(backend)):
        raise TypeError(f"backend must be None, a str or a callable, not {type(backend).__name__}: {backend!r:.100}")
    if backend is not None and backend != "ccompile":
        given = {"fullgraph": fullgraph, "dynamic": dynamic, "mode": mode, "options": options, "disable": disable}
        newer = {"name": name, "recompile_limit": recompile_limit, "isolate_recompiles": isolate_recompiles or None}
        newer |= {"shapes_spec": shapes_spec, "dynamic_shapes": dynamic_shapes}
        return _compile_by_torch(model, backend, given, {key: v for key, v in newer.items() if v is not None})
    flags = {"fullgraph": fullgraph, "disable": disable, "isolate_recompiles": isolate_recompiles}
    settings = _check(flags, dynamic, mode, options)
    if recompile_limit is not None:
        settings["options"]["recompile_limit"] = config.check("argument", "recompile_limit", recompile_limit)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a str or None, not {type(name).__name__}: {name!r}")
    if name is not None:
        settings["name"] = name
    if isolate_recompiles:
        settings["isolate"] = True
    for key, spec in {"shapes_spec": shapes_spec, "dynamic_shapes": dynamic_shapes}.items():
        if spec is not None:
            raise TypeError(
                f"{key} must be None; declare sizes by dynamic={{argument: {{dim: ccompile.Dim(min=, max=)}}}}"
            )
    if model is None:
        return functools.partial(_compile, settings=settings, disable=disable)
    return _compile(model, settings=settings, disable=disable)


def optimize(
    backend: str | Callable[..., Any] | None = None,
    *,
    nopython: bool = False,
    dynamic: bool | None = None,
    disable: bool = False,
) -> Callable[[F], F]:
    """A decorator; the twin of torch._dynamo.optimize, which older programs use. nopython is compile's fullgraph, and
    "inductor" means ccompile here."""
    chosen = None if backend == "inductor" else backend
    return functools.partial(compile, backend=chosen, fullgraph=nopython, dynamic=dynamic, disable=disable)


def _compile_by_torch(model: Any, backend: Any, settings: dict[str, Any], newer: dict[str, Any]) -> Any:
    """torch.compile; `newer` holds arguments that torch 2.10 lacks."""
    if isinstance(settings["dynamic"], Mapping):
        raise TypeError(f"backend {backend!r} of torch.compile takes dynamic=True, False or None, not a dict")
    return _torch_compile(model, backend=backend, **settings, **newer)


def _check(flags: dict[str, Any], dynamic: Any, mode: Any, options: Any) -> dict[str, Any]:
    """Checks the arguments and returns the keyword arguments for _core.Compiled."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {type(value).__name__}: {value!r}")
    fullgraph = flags["fullgraph"]
    if dynamic is not None and not isinstance(dynamic, bool | Mapping):
        raise TypeError(
            "dynamic must be True, False or None, or {argument: {dim: Dim}}, not "
            f"{type(dynamic).__name__}: {dynamic!r}"
        )
    if isinstance(dynamic, Mapping):
        dynamic = dims.declared(dynamic)
    if mode is not None and not isinstance(mode, str):
        raise TypeError(
            f"mode must be None or one of {', '.join(map(repr, MODES))}, not {type(mode).__name__}: {mode!r}"
        )
    if mode is not None and mode not in MODES:
        raise ValueError(config.unknown("mode", mode, list(MODES)))
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict of knobs or None, not {type(options).__name__}: {options!r}")
    mode = mode or "default"
    knobs = MODES[mode] | inductor.knobs(options or {})
    return {"fullgraph": fullgraph, "dynamic": dynamic, "mode": mode, "options": knobs}


def _compile(model: Any, *, settings: dict[str, Any], disable: bool = False) -> Any:
    if not callable(model) and not isinstance(model, classmethod):
        raise TypeError(_refusal(model, f"{type(model).__name__}, which is not callable"))
    if disable or isinstance(model, _core.Disabled) or isinstance(_call_of(type(model)), _core.Disabled):
        return model
    recompile = functools.partial(_compile, settings=settings)
    if isinstance(model, type):
        # else all classes that inherit nn.Module's __call__ would share its entries
        own = {"name": model.__qualname__, **settings, "isolate": True}
        return _compile_class(model, functools.partial(_compile, settings=own))
    if isinstance(model, CompiledModule):
        return model if isinstance(called_by(model), _core.Disabled) else recompile(model._orig_mod)
    if isinstance(model, torch.nn.Module):
        settings = _with_dims(model, settings)
        return wrap_module(model, recompile, functools.partial(_made, **{"name": type(model).__qualname__, **settings}))
    if isinstance(model, _core.Compiled):
        return recompile(model._orig_fn)
    if isinstance(model, functools.partial):
        inner = functools.partial(recompile(model.func), *model.args, **model.keywords)
        inner.__dict__.update(model.__dict__)
        return inner
    if isinstance(model, staticmethod | classmethod):
        return type(model)(recompile(model.__func__))
    if isinstance(model, types.MethodType) and type(model.__func__) is not types.FunctionType:  # such as a Compiled
        return types.MethodType(recompile(model.__func__), model.__self__)
    return _made(model, **{"name": _named(model), **_with_dims(model, settings)})


def _with_dims(model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, with the marks of dynamic={argument: ...} for this callable's parameters."""
    dynamic = settings["dynamic"]
    if not isinstance(dynamic, dict):
        return settings
    if not _runs_a_function(model):
        raise TypeError(f"dynamic={{argument: ...}} is for functions in Python; a call of {model!r:.100} runs none")
    return settings | {"dynamic": dims.of_call(model, dynamic)}


def _made(fn: Callable[..., Any], **settings: Any) -> "_core.Compiled":
    compiled = sharing.make(fn, through=None if _runs_a_function(fn) else _through, **settings)
    if made is not None:
        made.append(compiled)
    return compiled


def _call_of(cls: type) -> Any:
    """The class's __call__ if it runs Python code; else None."""
    called = getattr(cls, "__call__", None)  # noqa: B004
    return called if isinstance(called, types.FunctionType | _core.Compiled | _core.Disabled) else None


def _runs_a_function(fn: Any) -> bool:
    """Whether a call runs a Python function as it is: fn, or the __call__ of its class; not code in C, nor a __call__
    that is a staticmethod, compiled, or wrapped in C code (functools.lru_cache)."""
    if isinstance(fn, types.FunctionType | types.MethodType):
        return True
    return type(_written_in(type(fn), "__call__")) is types.FunctionType


def _written_in(cls: type, name: str) -> Any:
    """The class's attribute as its definition has it, not bound; None: it has none."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _through(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What a call of `fn`, which runs no function as it is, is recorded as: frames are what can be recorded."""
    compiled = _written_in(type(fn), "__call__")
    if isinstance(compiled, _core.Compiled):
        return types.MethodType(compiled._orig_fn, fn)

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


def _compile_class(cls: type, recompile: Callable[[Any], Any]) -> type:
    """Compiles the class's __call__ in place, as torch.compile does, so that calls of its instances are compiled."""
    if _call_of(cls) is None:
        raise TypeError(_refusal(cls, "a class without a __call__ in Python: compile one of its methods"))
    setattr(cls, "__call__", recompile(_written_in(cls, "__call__")))  # noqa: B010
    return cls


def _named(fn: Any) -> str:
    """Its __qualname__; of a module's own call, which nn.Module.compile() compiles, the module's class."""
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, torch.nn.Module) and fn.__name__ in ("_call_impl", "_wrapped_call_impl"):
        fn = type(owner)
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__qualname__


def _refusal(thing: object, what: str) -> str:
    return (
        "ccompile.compile takes a callable, an nn.Module, a functools.partial of these, or a class that defines "
        f"__call__ in Python; this is {what} ({thing!r:.100})"
    )


def compiled_of(thing: Any) -> _core.Compiled:
    """The _core.Compiled behind a result of `compile`, which may be a module, a partial, a method, or the Compiled."""
    found = _behind(thing)
    if not isinstance(found, _core.Compiled):
        raise TypeError(f"not something that ccompile.compile returned: {found!r:.100}")
    return found


def is_compiled(thing: Any) -> bool:
    """Whether compiled_of finds something."""
    return isinstance(_behind(thing), _core.Compiled)


def disabled_of(thing: Any) -> _core.Disabled | None:
    """The _core.Disabled behind a result of `disable`, or of `compile` for such a result; None: it is not disabled."""
    found = _behind(thing)
    return found if isinstance(found, _core.Disabled) else None


def _behind(thing: Any) -> Any:
    """What a call of a module, a partial or a method runs in the end."""
    while True:
        if isinstance(thing, CompiledModule):
            thing = called_by(thing)
        elif isinstance(thing, functools.partial):
            thing = thing.func
        elif isinstance(thing, types.MethodType | staticmethod | classmethod):
            thing = thing.__func__
        else:
            called = _call_of(type(thing))
            return called if isinstance(called, _core.Disabled) else thing


class _Disable:
    """Runs a callable or block eagerly, with everything that it calls: `@ccompile.disable`,
    `@ccompile.disable(reason="...")`, `ccompile.disable(fn)`, or `with ccompile.disable():`. In compiled code a call of
    a disabled function is a graph break. Of a class, the calls of its instances are
    disabled, in place.

    recursive: torch's; with False, which would compile what the function calls, an `ignored` event."""

    reason: str | None

    def __new__(cls, fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
        if not isinstance(recursive, bool):
            raise TypeError(f"recursive must be True or False, not {type(recursive).__name__}: {recursive!r:.100}")
        if not recursive:
            _core.note("disable: recursive=False: what the function calls runs eagerly, too")
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"reason must be a str or None, not {type(reason).__name__}: {reason!r}")
        self = super().__new__(cls)
        self.reason = reason
        return self if fn is None else self(fn)

    def __call__(self, fn: F) -> F:
        return self._disabled(fn)

    def _disabled(self, fn: Any) -> Any:
        if isinstance(fn, type):
            return self._disabled_class(fn)
        if not (callable(fn) or isinstance(fn, classmethod)):
            raise TypeError(f"ccompile.disable takes a function, a method, a module or a class, not {fn!r:.100}")
        if isinstance(fn, staticmethod | classmethod):
            return type(fn)(self(fn.__func__))
        if isinstance(fn, CompiledModule):
            fn = fn._orig_mod
        if isinstance(fn, torch.nn.Module):
            return wrap_module(fn, self, functools.partial(_core.Disabled, reason=self.reason))
        if isinstance(fn, _core.Compiled | _core.Disabled):
            fn = fn._orig_fn
        return _core.Disabled(fn, self.reason)

    def _disabled_class(self, cls: Any) -> Any:
        if _call_of(cls) is None:
            raise TypeError(f"ccompile.disable takes a class with a __call__ in Python; {cls!r:.100} has none")
        cls.__call__ = self(_written_in(cls, "__call__"))
        return cls

    def __enter__(self) -> "_Disable":
        _core.disable_push()
        return self

    def __exit__(self, *exc: object) -> None:
        _core.disable_pop()


if TYPE_CHECKING:  # a type checker takes a class for what its calls make

    @overload
    def disable(fn: F, recursive: bool = True, *, reason: str | None = None) -> F: ...
    @overload
    def disable(fn: None = None, recursive: bool = True, *, reason: str | None = None) -> _Disable: ...
    def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any: ...

else:
    disable = _Disable
    disable.__name__ = disable.__qualname__ = "disable"

_core.break_at(disable)


class Event(NamedTuple):
    serial: int
    kind: str
    time_ns: int  # CLOCK_MONOTONIC
    text: str
    start_ns: int  # less than time_ns if the event took time
    file: str | None  # of the user's code, for graph breaks and give-ups
    line: int  # 0: unknown


def events(after: int = 0) -> list[Event]:
    """Recent events (recordings, breaks, guard failures ...), oldest first; only those after serial `after`."""
    if isinstance(after, bool) or not isinstance(after, int):
        raise TypeError(f"after must be the serial of an event, an int, not {type(after).__name__}: {after!r:.100}")
    if after < 0:
        raise ValueError(f"after must be 0 or more, not {after}")
    return [Event(*event) for event in _core.events(after)]


class Counters(Mapping[str, int]):
    """A live view of the process's counters: events by kind, calls, hits and misses."""

    def __getitem__(self, name: str) -> int:
        return _core.counters()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_core.counters())

    def __len__(self) -> int:
        return len(_core.counters())

    def __call__(self) -> dict[str, int]:
        """A copy, for computing differences."""
        return dict(_core.counters())

    def __repr__(self) -> str:
        return f"counters({_core.counters()})"


counters = Counters()
