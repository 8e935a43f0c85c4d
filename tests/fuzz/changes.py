"""What a trial of worlds.py changes in a world: which objects can be reached, and what can be done to each kind of them."""

import abc
import collections
import contextlib
import contextvars
import functools
import itertools
import logging
import random
import types

import numpy
import torch
from torch import nn

IMPORTED = "mutated_module"


# What C code keeps in a class for itself: copyreg's and abc's caches hold what they please.
OWN_OF_C = ("__dict__", "__weakref__", "__doc__", "__slotnames__", "_abc_impl")
FIXED = (tuple, frozenset, types.MethodType, property, classmethod, staticmethod)
ITERATORS = (
    types.GeneratorType,
    type(iter([])),
    type(iter({})),
    type(iter({}.items())),
    zip,
    map,
    enumerate,
    itertools.count,
)
CACHED = type(functools.lru_cache(len))


class Given(dict):
    """The arguments of the calls, by name."""


def reachable(world):
    """What can be changed: mutable objects of the world, in an order that depends on nothing but the world's make."""
    seen, out, rest = set(), [], collections.deque([world.names])
    while rest:
        o = rest.popleft()
        if id(o) in seen:
            continue
        seen.add(id(o))
        if o is world.names:
            parts = [world.given, *(o.get(name) for name in world.own)]
        else:
            parts = inside(o)
        if parts is None:
            continue
        if not isinstance(o, FIXED):
            out.append(o)
        rest.extend(parts)
    return out


def made_here(cls):
    """By the world's source."""
    return own_names(cls).get("__module__") == "<world>"


def own_names(cls):
    """A class's dictionary; vars() would ask its metaclass, which may say anything by now."""
    return type.__dict__["__dict__"].__get__(cls)


def held(o):
    """(name, value) of its attributes; its own methods are not asked."""
    try:
        yield from object.__getattribute__(o, "__dict__").items()
    except AttributeError:
        pass
    for name in own_names(type(o)).get("__slots__", ()):
        try:
            yield name, object.__getattribute__(o, name)
        except AttributeError:
            pass


def inside(o):
    """What it holds; None: nothing in it is changed."""
    if isinstance(o, type):
        return [type(o), *(v for k, v in own_names(o).items() if k not in OWN_OF_C)] if made_here(o) else None
    if isinstance(o, types.FunctionType):
        return [*(o.__defaults__ or ()), *(o.__closure__ or ())] if o.__module__ == "<world>" else None
    if isinstance(o, types.MethodType):
        return [o.__func__, o.__self__]
    if isinstance(o, functools.partial):
        return [o.func, *o.args, o.keywords]
    if isinstance(o, types.CellType):
        return [o.cell_contents]
    if isinstance(o, (property, classmethod, staticmethod)):
        return [o.fget] if isinstance(o, property) else [o.__func__]
    if isinstance(o, types.ModuleType):
        return [v for k, v in vars(o).items() if k[:2] != "__"] if o.__name__ == IMPORTED else None
    if isinstance(o, torch.Tensor):
        return []
    if isinstance(o, dict):
        return [*dict.values(o), *([type(o)] if made_here(type(o)) else [])]
    if isinstance(o, (list, tuple, collections.deque)):
        return list(o)
    if isinstance(o, (set, frozenset, numpy.ndarray, contextvars.ContextVar, logging.Logger, CACHED, *ITERATORS)):
        return []
    if isinstance(o, torch.optim.Optimizer):
        return [v for _, v in held(o) if isinstance(v, (list, dict))]  # a mutation may have deleted either
    if made_here(type(o)) or isinstance(o, nn.Module):
        return [type(o), *(v for _, v in held(o))]
    return None


METHODS = {
    "__len__": (lambda s: 0, lambda s: 3),
    "__bool__": (lambda s: False, lambda s: True),
    "__iter__": (lambda s: iter([7]), lambda s: iter(())),
    "__getitem__": (lambda s, k: 9, lambda s, k: [8][k]),
    "__contains__": (lambda s, k: False, lambda s, k: True),
    "__call__": (lambda s, *a: 6, lambda s, *a, **k: len(a)),
    "__eq__": (lambda s, o: False, lambda s, o: True),
    "__hash__": (lambda s: 1, None),
    "__lt__": (lambda s, o: False, lambda s, o: True),
    "__add__": (lambda s, o: 11, lambda s, o: NotImplemented),
    "__radd__": (lambda s, o: 12, lambda s, o: 13),
    "__neg__": (lambda s: 14, lambda s: 15),
    "__int__": (lambda s: 16, lambda s: 17),
    "__index__": (lambda s: 1, lambda s: 0),
    "__float__": (lambda s: 18.0, lambda s: 19.0),
    "__floor__": (lambda s: 20, lambda s: 21),
    "__str__": (lambda s: "str", lambda s: "other"),
    "__repr__": (lambda s: "repr", lambda s: "another"),
    "__format__": (lambda s, spec: "format", lambda s, spec: spec),
    "__enter__": (lambda s: 22, lambda s: 23),
    "__exit__": (lambda s, *a: True, lambda s, *a: False),
    "__getattr__": (lambda s, n: 24, lambda s, n: n),
    "__getattribute__": (lambda s, n: object.__getattribute__(s, n), lambda s, n: 25),
    "__setattr__": (lambda s, n, v: object.__setattr__(s, n, v), lambda s, n, v: None),
    "__get__": (lambda s, o, t=None: 26, lambda s, o, t=None: 27),
    "__set__": (lambda s, o, v: None, lambda s, o, v: None),
    "__missing__": (lambda s, k: 28, lambda s, k: 29),
    "__instancecheck__": (lambda s, o: False, lambda s, o: True),
    "__class_getitem__": (classmethod(lambda s, k: 30), None),
    "__reversed__": (lambda s: iter([31]), None),
    "__delattr__": (lambda s, n: None, object.__delattr__),
    "__setitem__": (lambda s, k, v: None, None),
    "__mul__": (lambda s, o: 35, lambda s, o: NotImplemented),
    "__rmul__": (lambda s, o: 36, lambda s, o: NotImplemented),
    "__torch_function__": (
        classmethod(lambda c, f, t, a=(), k=None: 37),
        classmethod(lambda c, f, t, a=(), k=None: NotImplemented),
    ),
    "__next__": (lambda s: 38, None),
    "__abs__": (lambda s: 39, lambda s: 40),
    "__init__": (lambda s, *a, **k: None, lambda s: None),
    "__new__": (lambda c, *a, **k: object.__new__(c), lambda c, *a: 41),
    "__del__": (lambda s: None, lambda s: None),
    "__subclasscheck__": (lambda s, o: False, lambda s, o: True),
    "__dir__": (lambda s: ["v"], lambda s: []),
    "__copy__": (lambda s: 42, lambda s: s),
    "__deepcopy__": (lambda s, memo: 43, lambda s, memo: s),
    "__reduce_ex__": (lambda s, n: "key", lambda s, n: (int, (44,))),
    "__match_args__": (("b", "a"), ()),
    "__set_name__": (lambda s, o, n: None, None),
    "__init_subclass__": (classmethod(lambda c, **k: None), None),
    "__class__": (property(lambda s: int), property(lambda s: type(s))),
}
CONSTANTS = (
    0,
    1,
    True,
    2,
    1.0,
    -0.0,
    0.5,
    "v",
    "a",
    "",
    None,
    (1, 2),
    (),
    float("nan"),
    KeyError,
    (KeyError,),
    -1,
    300,
)


class Hidden:
    """A descriptor."""

    def __get__(self, of, cls=None):
        return 32


def state_of(o, world):
    """What undo() puts back: content, or name -> value."""
    if o is world.names:
        return {name: o[name] for name in o if name != "__builtins__"}
    if isinstance(o, (list, set, dict, collections.deque)):
        return dict(dict.items(o)) if isinstance(o, dict) else list(o)
    if isinstance(o, type):
        return {k: v for k, v in own_names(o).items() if k not in OWN_OF_C}
    if isinstance(o, types.FunctionType):
        return {k: getattr(o, k) for k in ("__defaults__", "__kwdefaults__", "__code__", "__name__", "__doc__")}
    if isinstance(o, types.CellType):
        return {"cell_contents": o.cell_contents}
    if isinstance(o, torch.Tensor):
        return {"requires_grad": o.requires_grad, "grad": o.grad}
    if not hasattr(o, "__dict__") and not made_here(type(o)):
        return {}
    return {**dict(held(o)), "__class__": type(o)}


def setter(o):
    """(put(name, value), drop(name)) of what state_of tells of it, past its own methods."""
    if isinstance(o, dict):
        return o.__setitem__, o.__delitem__
    own = type if isinstance(o, type) else object
    if isinstance(o, (types.FunctionType, types.CellType, torch.Tensor)):
        return functools.partial(setattr, o), functools.partial(delattr, o)
    return functools.partial(own.__setattr__, o), functools.partial(own.__delattr__, o)


class Change:
    """One mutation of a world. The same `seed` does the same on either side."""

    def __init__(self, world, seed, words):
        self.world, self.rng, self.words = world, random.Random(seed), words
        self.objects = reachable(world)
        self.before = None  # what was changed, and its state

    def value(self):
        how = self.rng.randrange(10)
        if how < 5:
            return self.rng.choice(CONSTANTS)
        if how == 5:
            return [1, "a"]
        if how == 6:
            return property(lambda s: 33)
        if how == 7:
            return Hidden() if self.rng.randrange(2) else (lambda *a, **k: 34)
        return self.rng.choice(self.objects[1:] or [None])

    def apply(self):
        """What was done, for the reader."""
        o = self.rng.choice(self.objects)
        kind = next(k for k in KINDS if k is None or issubclass(type(o), k))
        how = self.rng.choice(NAMES if o is self.world.names else KINDS[kind])
        self.before = o, state_of(o, self.world)
        where = "names" if o is self.world.names else type(o).__name__ if not isinstance(o, type) else o.__name__
        try:
            return f"{where}: {how.__name__[1:]} {how(self, o)}"
        except (TypeError, AttributeError, ValueError, IndexError, KeyError, RuntimeError) as error:
            return f"{where}: {how.__name__[1:]} refused, {type(error).__name__}"

    def undo(self):
        """All that the object held is as it was: what was absent is absent again."""
        o, before = self.before
        now = state_of(o, self.world)
        # Refused on both sides: a gradient, say, whose tensor has another size by now, as the program or another name resized it.
        with contextlib.suppress(TypeError, AttributeError, RuntimeError):
            if isinstance(o, (list, set, collections.deque)):
                o.clear()
                o.update(before) if isinstance(o, set) else o.extend(before)
            elif isinstance(o, dict) and o is not self.world.names:
                own = dict if made_here(type(o)) else type(o)  # an OrderedDict has its order beside the dict
                own.clear(o)
                own.update(o, before)
            else:
                put, drop = setter(o)
                for name in now:
                    if name not in before:
                        drop(name)
                for name, value in before.items():
                    if name not in now or now[name] is not value:
                        put(name, value)
        return "undone"

    # ---- names and attributes: each is a key of a dict, or said by setattr and delattr
    def key(self, keys):
        keys = [k for k in keys if not (isinstance(k, str) and (k[:2] == "__" or k in OWN_OF_C))]
        return self.rng.choice(keys + [self.rng.choice(self.words)] if self.rng.randrange(4) == 0 or not keys else keys)

    def _set(self, o):
        if o is self.world.names:
            name = self.key(self.world.own)
            o[name] = self.value()
        else:
            name = self.key(list(own_names(o)) if isinstance(o, type) else [k for k, _ in held(o)])
            # the hash of a frozen dataclass is that of its fields: an object's is its address, which differs between the sides
            value = self.rng.choice(CONSTANTS) if hasattr(type(o), "__dataclass_params__") else self.value()
            type.__setattr__(o, name, value) if isinstance(o, type) else object.__setattr__(o, name, value)
        return name

    def _delete(self, o):
        if o is self.world.names:
            name = self.key([k for k in self.world.own if k in o])
            del o[name]
        else:
            name = self.key(list(own_names(o)) if isinstance(o, type) else [k for k, _ in held(o)])
            type.__delattr__(o, name) if isinstance(o, type) else object.__delattr__(o, name)
        return name

    def _class(self, o):
        """Another class; of an object that is a class, another base."""
        others = [c for c in self.objects if isinstance(c, type) and type(c) is type(type(o))]
        o.__class__ = self.rng.choice(others)
        return o.__class__.__name__

    def _method(self, o):
        has = [name for name in METHODS if name in own_names(o)]
        name = self.rng.choice(has if has and self.rng.randrange(2) else list(METHODS))
        if name in own_names(o) and self.rng.randrange(3) == 0:
            delattr(o, name)
            return f"del {name}"
        setattr(o, name, self.rng.choice(METHODS[name]))
        return name

    def _base(self, o):
        others = [c for c in self.objects if isinstance(c, type) and c is not o and not issubclass(c, o)]
        o.__bases__ = (self.rng.choice(others),)
        return o.__bases__[0].__name__

    def _name(self, o):
        o.__name__ = o.__qualname__ = self.rng.choice(("New", "Newer"))
        return o.__name__

    # ---- containers
    def _put(self, o):
        key = self.rng.choice([*o, *self.words, 1, 0]) if o else self.rng.choice(self.words)
        o[key] = self.value()
        return repr(key) if isinstance(key, (str, int)) else "key"

    def _drop(self, o):
        del o[self.rng.choice(list(o))]
        return ""

    def _reorder(self, o):
        key = self.rng.choice(list(o))
        o[key] = o.pop(key)
        return repr(key) if isinstance(key, (str, int)) else "key"

    def _clear(self, o):
        o.clear()
        return ""

    def _item(self, o):
        i = self.rng.randrange(len(o))
        o[i] = self.value()
        return i

    def _append(self, o):
        o.append(self.value())
        return ""

    def _pop(self, o):
        o.pop()
        return ""

    def _reverse(self, o):
        o.reverse()
        return ""

    def _copy(self, o):
        """Wherever a name, an attribute or an item was this object, one place holds an equal copy."""
        for holder in self.objects:
            held = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
            if isinstance(held, dict):
                for key, v in held.items():
                    if v is o:
                        held[key] = type(o)(o)
                        return key
            if isinstance(holder, list):
                for i, v in enumerate(holder):
                    if v is o:
                        holder[i] = type(o)(o)
                        return i
        return "nowhere"

    def _add(self, o):
        o.add(self.rng.choice([c for c in CONSTANTS if c == c]))
        return ""

    def _discard(self, o):
        o.discard(self.rng.choice(sorted(o, key=repr)))
        return ""

    def _retype(self, o):
        """1 becomes 1.0: the set is equal to what it was."""
        found = [v for v in sorted(o, key=repr) if isinstance(v, (int, float))]
        v = self.rng.choice(found)
        o.discard(v)
        o.add(float(v) if isinstance(v, int) else v)
        return repr(v)

    # ---- functions, cells, tensors, modules
    def _defaults(self, o):
        o.__defaults__ = self.rng.choice((None, (5,), (5, 6), (2.5,)))
        return o.__defaults__

    def _kwdefaults(self, o):
        o.__kwdefaults__ = self.rng.choice((None, {"b": 9}))
        return o.__kwdefaults__

    def _code(self, o):
        others = [
            f
            for f in self.objects
            if isinstance(f, types.FunctionType) and len(f.__code__.co_freevars) == len(o.__code__.co_freevars)
        ]
        o.__code__ = self.rng.choice(others).__code__
        return o.__code__.co_name

    def _mark(self, o):
        name = self.rng.choice(("mark", "__name__", "__doc__"))
        setattr(o, name, "marked")
        return name

    def _cell(self, o):
        o.cell_contents = self.value()
        return ""

    def _write(self, o):
        with torch.no_grad():
            o.mul_(2).add_(1)
        return ""

    def _data(self, o):
        o.data = self.rng.choice(
            (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(1), torch.ones(2, 3), o.data.clone())
        )
        return tuple(o.shape)

    def _grad(self, o):
        o.requires_grad_(not o.requires_grad)
        return o.requires_grad

    def _wrapped(self, o):
        o.__wrapped__ = self.rng.choice([f for f in self.objects if isinstance(f, types.FunctionType)])
        return o.__wrapped__.__name__

    def _register(self, o):
        """Of a function by type: another type; of an abstract class: another virtual subclass."""
        if isinstance(o, abc.ABCMeta):
            o.register(self.rng.choice([c for c in self.objects if isinstance(c, type) and c is not o]))
        else:
            o.register(self.rng.choice((str, int, float, object)))(lambda v: "registered")
        return ""

    def _strides(self, o):
        o.data = self.rng.choice(
            (o.data.repeat(2)[::2], o.data[:1].expand(o.shape), o.data.flip(0), o.data.unsqueeze(0))
        )
        return o.stride()

    def _alias(self, o):
        """It lies where another one lies."""
        other = self.rng.choice([t for t in self.objects if isinstance(t, torch.Tensor)])
        o.data = other.data
        return tuple(o.shape)

    def _gradient(self, o):
        o.grad = self.rng.choice((None, torch.ones_like(o)))
        return o.grad is None

    def _tensor_hook(self, o):
        o.register_hook(lambda g: g * 2)
        return ""

    def _attribute(self, o):
        o.extra = self.rng.choice(CONSTANTS)
        return ""

    # ---- arguments
    def _pass(self, o):
        name = self.rng.choice(list(o))
        o[name] = self.value() if self.rng.randrange(3) else o[self.rng.choice(list(o))]
        return name

    def _x(self, o):
        self.world.x = self.rng.randrange(1 << 10)
        return self.world.x

    def _builtin(self, o):
        known = o["__builtins__"]
        name = self.rng.choice([w for w in self.words if w in known])
        was = known.pop(name)
        if self.rng.randrange(3):
            known[name] = (lambda *a, **k: was(*a, **k)) if self.rng.randrange(2) else (lambda *a, **k: 45)
        return name

    # ---- what C code keeps
    def _next(self, o):
        next(o, None)
        return ""

    def _fill(self, o):
        o[self.rng.randrange(len(o))] = self.rng.choice((0.0, -0.0, 5.0, float("nan")))
        return ""

    def _shape(self, o):
        o.shape = self.rng.choice(((2, 2), (4, 1), (4,)))
        return o.shape

    def _read_only(self, o):
        o.setflags(write=not o.flags.writeable)
        return o.flags.writeable

    def _variable(self, o):
        o.set(self.value())
        return ""

    def _level(self, o):
        o.setLevel(self.rng.choice((10, 30, 50)))
        return o.level

    def _forget(self, o):
        o.cache_clear()
        return ""

    def _remember(self, o):
        o(self.rng.randrange(4))
        return ""

    def _partial(self, o):
        func, args, keywords, own = o.__reduce__()[2]
        other = self.rng.choice([f for f in self.objects if isinstance(f, types.FunctionType)])
        o.__setstate__(
            self.rng.choice(((func, (8,), keywords, own), (func, args, {"b": 9}, own), (other, args, keywords, own)))
        )
        return o.func.__name__

    def _rotate(self, o):
        o.rotate(1)
        return ""

    def _mode(self, o):
        o.train(not o.training)
        return o.training

    def _hook(self, o):
        made = o.register_forward_hook(lambda m, a, out: out + 1 if isinstance(out, torch.Tensor) else out)
        o._forward_hooks[len(o._forward_hooks)] = o._forward_hooks.pop(
            made.id
        )  # the process counts ids, for both sides
        return ""

    def _pre_hook(self, o):
        made = o.register_forward_pre_hook(lambda m, a: tuple(v * 2 if isinstance(v, torch.Tensor) else v for v in a))
        o._forward_pre_hooks[len(o._forward_pre_hooks)] = o._forward_pre_hooks.pop(made.id)
        return ""

    def _backward_hook(self, o):
        made = o.register_full_backward_hook(lambda m, a, b: None)
        o._backward_hooks[len(o._backward_hooks)] = o._backward_hooks.pop(made.id)
        return ""

    def child(self, o, kept):
        return self.rng.choice([*kept, self.rng.choice(self.words), "extra"])

    def _parameter(self, o):
        name = self.child(o, o._parameters)
        made = (nn.Parameter(torch.full((3,), 1.5)), nn.Parameter(torch.ones(3, 3), requires_grad=False), None)
        setattr(o, name, self.rng.choice(made))
        return name

    def _buffer(self, o):
        name = self.child(o, o._buffers)
        o.register_buffer(
            name, self.rng.choice((torch.full((3,), 2.0), torch.ones(1), None)), persistent=bool(self.rng.randrange(2))
        )
        return name

    def _child(self, o):
        name = self.child(o, o._modules)
        others = [
            m
            for m in self.objects
            if isinstance(m, nn.Module) and not any(m is n for n in o.modules()) and o not in list(m.modules())
        ]
        setattr(o, name, self.rng.choice([*others, nn.ReLU(), nn.Identity(), nn.Tanh()]))
        return name

    def _without(self, o):
        name = self.child(o, [*o._parameters, *o._buffers, *o._modules])
        delattr(o, name)
        return name

    def _freeze(self, o):
        o.requires_grad_(bool(self.rng.randrange(2)))
        return ""

    def _load(self, o):
        o.load_state_dict(
            {k: torch.full_like(v, 0.25) for k, v in o.state_dict().items()}, assign=bool(self.rng.randrange(2))
        )
        return ""

    def _tie(self, o):
        others = [m for m in self.objects if isinstance(m, nn.Module) and m._parameters]
        name, other = self.rng.choice(list(o._parameters)), self.rng.choice(others)
        setattr(o, name, other._parameters[self.rng.choice(list(other._parameters))])
        return name

    def _forward(self, o):
        o.forward = lambda x: x * 3
        return ""

    def _parametrize(self, o):
        name = self.rng.choice(list(o._parameters))
        nn.utils.parametrize.register_parametrization(o, name, nn.Tanh())
        return name

    def _plain(self, o):
        name = self.rng.choice(list(o.parametrizations))
        nn.utils.parametrize.remove_parametrizations(o, name)
        return name

    def _half(self, o):
        o.double()
        return ""


C = Change
ATTRIBUTES = [C._set, C._set, C._delete]
KINDS = {
    Given: [C._pass, C._pass, C._drop, C._reorder],
    type: [C._set, C._delete, C._method, C._method, C._method, C._base, C._name, C._register],
    nn.Module: [
        *(
            *ATTRIBUTES,
            C._mode,
            C._hook,
            C._half,
            C._class,
            C._pre_hook,
            C._backward_hook,
            C._parameter,
            C._buffer,
            C._child,
        ),
        *(C._without, C._freeze, C._load, C._tie, C._forward, C._parametrize, C._plain),
    ],
    torch.Tensor: [C._write, C._data, C._grad, C._strides, C._alias, C._gradient, C._tensor_hook, C._attribute],
    types.FunctionType: [C._defaults, C._kwdefaults, C._code, C._mark, C._wrapped, C._register],
    types.CellType: [C._cell],
    types.ModuleType: [*ATTRIBUTES, C._set],
    functools.partial: [C._partial],
    contextvars.ContextVar: [C._variable],
    logging.Logger: [C._level],
    numpy.ndarray: [C._fill, C._shape, C._read_only],
    CACHED: [C._forget, C._remember],
    ITERATORS: [C._next],
    collections.deque: [C._item, C._append, C._pop, C._reverse, C._copy, C._rotate],
    list: [C._item, C._append, C._pop, C._reverse, C._clear, C._copy],
    dict: [C._put, C._put, C._drop, C._reorder, C._copy, C._clear],
    set: [C._add, C._discard, C._retype, C._clear, C._copy],
    None: [*ATTRIBUTES, C._class],
}
NAMES = [C._set, C._set, C._set, C._delete, C._x, C._x, C._builtin]  # of the world's own
