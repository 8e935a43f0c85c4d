"""A compiled nn.Module is itself a module: an instance of a generated subclass that shares the original's __dict__.

    model ---- __dict__ { _parameters, _buffers, _modules, hooks, training, attributes } ---- compiled
      ^                                                                                          |
      +------------------------ slot _orig_mod, and slot __call__ = _core.Compiled(model) -------+

So all state of nn.Module is the original's, under the same names. Our own attributes are slots, outside the shared
__dict__. `__call__` is a slot, too: CPython's slot_tp_call reads it without a Python frame, so that a call of a
compiled module costs no more than one of a compiled function.

A method that is called through the compiled module gets the compiled module as `self`, so that the calls of `self(...)`
in it (in a `generate` or an `encode`) are compiled, too; `forward` gets the original. The two are therefore equal and
have one hash, and attributes are set, and classmethods called, on the original and its class."""

import _abc
import abc
import contextlib
import copy
import functools
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _core

# id of a class -> its subclass, which keeps the class alive. A metaclass may make classes equal that are not the same.
_classes: "weakref.WeakValueDictionary[int, type]" = weakref.WeakValueDictionary()


class _Signature:
    """Makes inspect.signature of a compiled module or its class return the original's."""

    def __get__(self, instance: Any, owner: type) -> Any:
        import inspect

        return inspect.signature(_original_class(owner) if instance is None else instance._orig_mod)


class _Class(type):
    """Metaclass of generated subclasses. What a method sets on type(self) is set on the class of the original, where
    forward looks for it."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name in ("_abc_impl", "__abstractmethods__"):  # by _abc_init
            super().__setattr__(name, value)
        else:
            setattr(_original_class(cls), name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(_original_class(cls), name)


class _OfOriginal:
    """An attribute that is looked up in the original, or in its class: slots, classmethods, methods that must not get a
    compiled module as self."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return getattr(_original_class(owner) if instance is None else instance._orig_mod, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance._orig_mod, self.name, value)

    def __delete__(self, instance: Any) -> None:
        delattr(instance._orig_mod, self.name)


class _Hook:
    """A function that was registered as a hook through a compiled module. A call runs the original, but the hook gets
    the module that it was registered on, as in eager, since programs look it up in tables that they made from
    compiled.modules()."""

    __slots__ = ("hook", "module")  # torch's wrappers of hooks update their own __dict__ with a hook's

    def __init__(self, hook: Callable[..., Any], module: Any) -> None:
        self.hook, self.module = hook, module

    def __call__(self, called: torch.nn.Module, *args: Any) -> Any:
        # a shallow copy of the original, or a replica, shares its hooks
        return self.hook(self.module if called is self.module._orig_mod else called, *args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return operator.getitem, ((self.hook,), 0)  # as a compiled module's

    def __deepcopy__(self, memo: dict) -> Any:
        return _Hook(copy.deepcopy(self.hook, memo), copy.deepcopy(self.module, memo))


_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, _core.Compiled, _core.Disabled)


def _registers(name: str) -> Callable[..., Any]:
    """The method of nn.Module that registers a hook, for compiled modules."""

    def register(self: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # torch.nn.utils.prune and its like find objects of their own among the hooks, by class
        hook = _Hook(hook, self) if isinstance(hook, _FUNCTIONS) else hook
        # torch keeps some hooks with a weak reference to their module, which must live as long as the original
        return getattr(self._orig_mod, name)(hook, *args, **kwargs)

    return functools.update_wrapper(register, getattr(torch.nn.Module, name))


class CompiledModule:
    """First base of every generated subclass: whatever a compiled module does differently from its original."""

    __slots__ = ("__weakref__",)  # here, so that the layouts of subclasses are alike and _follow can change the class
    _orig_mod: Any
    _ccompile_copy: Callable[[Any], Any]
    _ccompile_steps: dict[str, Any]
    __signature__ = _Signature()
    # The original's current class, which may change (a parametrization; a lazy module once it is initialised): _follow.
    __class__ = property(lambda self: type(self._orig_mod))  # type: ignore[assignment]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Does not call super(): a user's class that registers its subclasses must not see ours."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # type(compiled)(...) creates a module of the original's class; only wrap_module creates compiled ones.
        return _original_class(cls)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super(CompiledModule, self).__getattr__(name)  # type: ignore[misc]  # noqa: UP008 (no cell: see above)
        except AttributeError:
            if type(self._orig_mod) is _original_class(type(self)):
                raise
        return getattr(self if _follow(self) else self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_orig_mod":
            setattr(self._orig_mod, name, value)
            _follow(self)  # __class__ may have been set
        elif value is not self._orig_mod:  # nn.Module would register it as a child
            raise AttributeError("_orig_mod is fixed: call ccompile.compile for another module")

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __hash__(self) -> int:
        return hash(self._orig_mod)

    def __eq__(self, other: object) -> bool:
        return self._orig_mod == (other._orig_mod if isinstance(other, CompiledModule) else other)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickles as the original, in a form that loads without ccompile.
        return operator.getitem, ((self._orig_mod,), 0)

    def __copy__(self) -> Any:
        return self._ccompile_copy(copy.copy(self._orig_mod))

    def __deepcopy__(self, memo: dict) -> Any:
        original = copy.deepcopy(self._orig_mod, memo)
        known = memo.get(id(self))  # one of its hooks has been registered through self
        return self._ccompile_copy(original) if known is None else known

    _replicate_for_data_parallel = _OfOriginal("_replicate_for_data_parallel")
    register_backward_hook = _registers("register_backward_hook")
    register_forward_hook = _registers("register_forward_hook")
    register_forward_pre_hook = _registers("register_forward_pre_hook")
    register_full_backward_hook = _registers("register_full_backward_hook")
    register_full_backward_pre_hook = _registers("register_full_backward_pre_hook")
    register_load_state_dict_pre_hook = _registers("register_load_state_dict_pre_hook")


def called_by(module: CompiledModule) -> Any:
    """The _core.Compiled or _core.Disabled that a call of the module runs."""
    return getattr(module, "__call__")  # noqa: B004, B009 (a slot of the instance)


def wrap_module(model: torch.nn.Module, rewrap: Callable[[Any], Any], make: Callable[[Any], Any]) -> torch.nn.Module:
    """A module that shares the model's __dict__ and is called through make(model). `rewrap` wraps a copy of the model
    in the same way. A model with state outside its __dict__, which can't be shared, is compiled in place."""
    try:
        self: Any = object.__new__(_subclass(type(model)))
    except TypeError:  # it is a list, too, or the like
        model._compiled_call_impl = make(model._call_impl)  # as model.compile() does
        return model
    object.__setattr__(self, "__dict__", model.__dict__)
    _set(self, "_orig_mod", model)
    _set(self, "_ccompile_copy", rewrap)
    _set(self, "_ccompile_steps", {})
    _set(self, "__call__", make(model))
    return self


def _subclass(cls: type) -> type:
    sub = _classes.get(id(cls))
    if sub is None:
        namespace: dict[str, Any] = {
            "__slots__": ("__call__", "_ccompile_copy", "_ccompile_steps", "_orig_mod"),
            "__doc__": cls.__doc__,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            **{name: _OfOriginal(name) for name in _originals(cls)},
            **{name: _Step(name) for name in _steps(cls)},
        }
        meta = type(cls)
        ours = _Class if meta is type else type(meta.__name__, (_Class, meta), {})
        # type's own __new__: a user's metaclass may register, refuse or change the classes that it makes
        sub = type.__new__(ours, cls.__name__, (CompiledModule, cls), namespace)
        if isinstance(sub, abc.ABCMeta):
            _abc._abc_init(sub)  # else isinstance would keep its verdicts for the two classes in one place
        _classes[id(cls)] = sub
    return sub


def _follow(self: Any) -> bool:
    """Gives a compiled module the class that belongs to its original's, if that has changed: whether it has done so."""
    cls = type(self._orig_mod)
    if cls is not _original_class(type(self)):
        with contextlib.suppress(TypeError):  # slots of the user's make the layouts differ
            vars(object)["__class__"].__set__(self, _subclass(cls))
            return True
    return False


class _Step:
    """A method that a library calls in place of the module, compiled as the module is."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return getattr(_original_class(owner), self.name)
        steps = instance._ccompile_steps
        if self.name not in steps:
            steps[self.name] = instance._ccompile_copy(getattr(instance._orig_mod, self.name))
        return steps[self.name]


def _steps(cls: type) -> tuple[str, ...]:
    """What Lightning's Trainer calls of a module; it compiles these of what torch.compile returns, too."""
    lightning = any(base.__name__ == "LightningModule" and "lightning" in base.__module__ for base in cls.__mro__)
    return ("training_step", "validation_step", "test_step", "predict_step") if lightning else ()


# Methods of GraphModule and of Dynamo's lazy one that write forward and __call__ to type(self), which must be the
# original's class
_WRITE_THEIR_CLASS = ("recompile", "real_recompile")


def _originals(cls: type) -> list[str]:
    """The names of attributes that are the original's or its class's."""
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        members.update(vars(base))
    writes = _WRITE_THEIR_CLASS if issubclass(cls, torch.fx.GraphModule) else ()
    return [n for n, m in members.items() if n in writes or isinstance(m, types.MemberDescriptorType | classmethod)]


def _set(self: Any, slot: str, value: Any) -> None:
    """Sets a slot, bypassing any __setattr__ of the user's class."""
    for cls in type(self).__mro__:
        if isinstance(cls.__dict__.get(slot), types.MemberDescriptorType):
            cls.__dict__[slot].__set__(self, value)
            return
    raise AttributeError(slot)


def _original_class(cls: type) -> type:
    return cls.__mro__[cls.__mro__.index(CompiledModule) + 1]
