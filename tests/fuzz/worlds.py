"""Mutations of anything reachable: a program reads a small world (pieces.py), is recorded and replayed; then one thing is changed from
outside (set, deleted, replaced, of another class, aliased, no longer aliased, absent or present), and the next calls do what eager does.

A trial is a program and a few mutations, all drawn from one seed; both sides have a world of their own, made from the same source, in
which the same things are met in the same order. So a mutation is a place in that order and what is done there.

Long runs, in tests/ (trials run in processes that end after some time; a failure prints what reproduces it):

    python -m fuzz.worlds FROM TO [--seconds N] [--timeout N]
    python -m fuzz.worlds SEED --reduce       the shortest program and the fewest mutations that fail in the same way
"""

import abc
import argparse
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import sys
import textwrap
import threading
import types
import typing
import warnings
import weakref

import ccompile
import numpy
import torch
from conftest import Walk, outcome
from fuzz.functions import Lost, elsewhere, least, search
from fuzz.pieces import PHRASES, PIECES
from torch import nn

MUTATIONS = 4  # of a trial
IMPORTED = "mutated_module"
LIBRARIES = {
    m.__name__: m
    for m in (
        *(abc, ccompile, collections, contextlib, contextvars, copy, dataclasses, enum, functools, inspect, itertools, json),
        *(logging, math, numpy, operator, os, re, sys, threading, torch, warnings, weakref),
    )
}


def _phrases():
    """Statements; what begins with `except` belongs to the line before, and a case stands in the line of its match."""
    out = []
    for line in PHRASES.strip().splitlines():
        if line.startswith("except "):
            out[-1] += "\n" + line
        elif line.startswith("match "):
            out.append(line.replace(": case", ":\n    case", 1))
        else:
            out.append(line)
    return out


STATEMENTS = _phrases()


class Trial(typing.NamedTuple):
    body: list  # statements
    seeds: list  # of the mutations

    def __str__(self):
        return "\n".join([*self.body, f"mutations {self.seeds}"])


def drawn(seed):
    rng = random.Random(seed)
    body = [rng.choice(STATEMENTS) for _ in range(rng.randrange(2, 6))]
    return Trial(body, [rng.randrange(1 << 30) for _ in range(MUTATIONS)])


# ---- worlds ----------------------------------------------------------------------------------------------------------
def words(text):
    return re.findall(r"[^\W\d]\w*", text)


def pieces(body):
    """Names of the pieces that the statements need, in the order of PIECES: what a piece names comes before it."""
    wanted, rest = set(), words("\n".join(body))
    rest += ["mod"] if IMPORTED in rest else []
    while rest:
        name = rest.pop()
        if name in PIECES and name not in wanted:
            wanted.add(name)
            rest += words(PIECES[name])
    return [name for name in PIECES if name in wanted]


@functools.lru_cache(64)
def _code(text):
    return compile(text, "<world>", "exec")


def source(body):
    """The world, and f(x), which reads it."""
    made = [textwrap.dedent(PIECES[name]).strip() for name in pieces(body)]
    lines = [line for statement in body for line in statement.splitlines()]
    named = [line.split(";")[0] for line in lines if line.startswith("global ")]
    lines = [line[line.index(";") + 2 :] if line.startswith("global ") else line for line in lines]
    body = [*dict.fromkeys(named), "r = []", *lines, "return r, x"]
    return "\n".join([*made, "def f(x):", *(f"    {line}" for line in body)])


def module(**names):
    made = types.ModuleType(IMPORTED)
    vars(made).update(names)
    return made


class World:
    """One side's: its names, and f, compiled or not."""

    def __init__(self, body, compiled):
        self.names = {**LIBRARIES, "nn": nn, "F": nn.functional, "module": module, "__name__": "<world>"}
        before = set(self.names)
        exec(_code(source(body)), self.names)
        f = self.names["f"]
        self.own = [name for name in self.names if name not in before and name not in ("__builtins__", "brk")]
        self.call = ccompile.compile(f, options={"recompile_limit": 64}) if compiled else f

    def state(self):
        return {name: self.names.get(name) for name in self.own if not callable(self.names.get(name))}

    def run(self, i):
        if "mod" in self.own:
            sys.modules[IMPORTED] = self.names.get("mod")
        try:
            done = outcome(self.call, (torch.tensor([1.0, -2.0, 0.5]) * (i + 1),), state=self.state())
        finally:
            sys.modules.pop(IMPORTED, None)
        return done


def bare(text):
    """Without addresses, and without what was running when the stack overflowed: compiled code has other frames."""
    return re.sub(r"(maximum recursion depth exceeded).*", r"\1", re.sub(r"0x[0-9a-f]+", "0x", text))


class Exact(Walk):
    """Python's own numbers have to be equal in type, sign and digits: no kernel computes them."""

    def go(self, a, b, path="result"):
        if type(a) is type(b) is str:
            self.want(bare(a) == bare(b), path, "value", a, b)
        elif type(a) is type(b) and isinstance(a, (float, complex, numpy.generic)):
            self.want(repr(a) == repr(b), path, "value", a, b)
        elif isinstance(a, types.ModuleType) and a is not b and a.__name__ == IMPORTED == b.__name__:
            if not self.paired(a, b, path):
                self.mutable(vars(a), vars(b), path)
        else:
            super().go(a, b, path)

    def mutable(self, a, b, path):
        if isinstance(a, set):
            self.items(list(a), list(b), path)  # iteration's order is part of it
        elif made_here(type(a)) and not isinstance(a, nn.Module):
            self.raw(a, b, path)
        else:
            super().mutable(a, b, path)

    def raw(self, a, b, path):
        """Asks nothing of the object's own methods, which may be any by now."""
        if isinstance(a, dict):
            self.items(list(dict.items(a)), list(dict.items(b)), path)
        left, right = ({n: v for n, v in held(o)} for o in (a, b))
        self.mutable(left, right, path + ".__dict__")


# ---- mutations -------------------------------------------------------------------------------------------------------
# What C code keeps in a class for itself: copyreg's and abc's caches hold what they please.
OWN_OF_C = ("__dict__", "__weakref__", "__doc__", "__slotnames__", "_abc_impl")
FIXED = (tuple, frozenset, types.MethodType, functools.partial, property, classmethod, staticmethod)


def reachable(world):
    """What can be changed: mutable objects of the world, in an order that depends on nothing but the world's make."""
    seen, out, rest = set(), [], collections.deque([world.names])
    while rest:
        o = rest.popleft()
        if id(o) in seen:
            continue
        seen.add(id(o))
        if o is world.names:
            parts = [o.get(name) for name in world.own]
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
    return vars(cls).get("__module__") == "<world>"


def held(o):
    """(name, value) of its attributes; its own methods are not asked."""
    try:
        yield from object.__getattribute__(o, "__dict__").items()
    except AttributeError:
        pass
    for name in vars(type(o)).get("__slots__", ()):
        try:
            yield name, object.__getattribute__(o, name)
        except AttributeError:
            pass


def inside(o):
    """What it holds; None: nothing in it is changed."""
    if isinstance(o, type):
        return [v for k, v in vars(o).items() if k not in OWN_OF_C] if made_here(o) else None
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
    if isinstance(o, (set, frozenset)):
        return []
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
}
CONSTANTS = (0, 1, True, 2, 1.0, -0.0, 0.5, "v", "a", "", None, (1, 2), (), float("nan"), KeyError, (KeyError,), -1, 300)


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
        return {k: v for k, v in vars(o).items() if k not in OWN_OF_C}
    if isinstance(o, types.FunctionType):
        return {k: getattr(o, k) for k in ("__defaults__", "__kwdefaults__", "__code__", "__name__", "__doc__")}
    if isinstance(o, types.CellType):
        return {"cell_contents": o.cell_contents}
    if isinstance(o, torch.Tensor):
        return {"requires_grad": o.requires_grad}
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
        with contextlib.suppress(TypeError, AttributeError):  # refused on both sides
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
            name = self.key(list(vars(o)) if isinstance(o, type) else [k for k, _ in held(o)])
            # the hash of a frozen dataclass is that of its fields: an object's is its address, which differs between the sides
            value = self.rng.choice(CONSTANTS) if hasattr(type(o), "__dataclass_params__") else self.value()
            type.__setattr__(o, name, value) if isinstance(o, type) else object.__setattr__(o, name, value)
        return name

    def _delete(self, o):
        if o is self.world.names:
            name = self.key([k for k in self.world.own if k in o])
            del o[name]
        else:
            name = self.key(list(vars(o)) if isinstance(o, type) else [k for k, _ in held(o)])
            type.__delattr__(o, name) if isinstance(o, type) else object.__delattr__(o, name)
        return name

    def _class(self, o):
        """Another class; of an object that is a class, another base."""
        others = [c for c in self.objects if isinstance(c, type) and type(c) is type(type(o))]
        o.__class__ = self.rng.choice(others)
        return o.__class__.__name__

    def _method(self, o):
        has = [name for name in METHODS if name in vars(o)]
        name = self.rng.choice(has if has and self.rng.randrange(2) else list(METHODS))
        if name in vars(o) and self.rng.randrange(3) == 0:
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
        others = [f for f in self.objects if isinstance(f, types.FunctionType) and len(f.__code__.co_freevars) == len(o.__code__.co_freevars)]
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
        o.data = self.rng.choice((torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(1), torch.ones(2, 3), o.data.clone()))
        return tuple(o.shape)

    def _grad(self, o):
        o.requires_grad_(not o.requires_grad)
        return o.requires_grad

    def _mode(self, o):
        o.train(not o.training)
        return o.training

    def _hook(self, o):
        made = o.register_forward_hook(lambda m, a, out: out + 1 if isinstance(out, torch.Tensor) else out)
        o._forward_hooks[len(o._forward_hooks)] = o._forward_hooks.pop(made.id)  # the process counts ids, for both sides
        return ""

    def _half(self, o):
        o.double()
        return ""


C = Change
ATTRIBUTES = [C._set, C._set, C._delete]
KINDS = {
    type: [C._set, C._delete, C._method, C._method, C._method, C._base, C._name],
    nn.Module: [*ATTRIBUTES, C._mode, C._hook, C._half, C._class],
    torch.Tensor: [C._write, C._data, C._grad],
    types.FunctionType: [C._defaults, C._kwdefaults, C._code, C._mark],
    types.CellType: [C._cell],
    types.ModuleType: [*ATTRIBUTES, C._set],
    collections.deque: [C._item, C._append, C._pop, C._reverse, C._copy],
    list: [C._item, C._append, C._pop, C._reverse, C._clear, C._copy],
    dict: [C._put, C._put, C._drop, C._reorder, C._copy, C._clear],
    set: [C._add, C._discard, C._retype, C._clear, C._copy],
    None: [*ATTRIBUTES, C._class],
}
NAMES = [C._set, C._set, C._set, C._delete]  # of the world's own


@contextlib.contextmanager
def torch_state(rng):
    """A switch of torch's or of the process, turned for both sides."""
    how = rng.randrange(8)
    if how == 0:
        with torch.no_grad():
            yield "no_grad"
    elif how == 1:
        with torch.inference_mode():
            yield "inference_mode"
    elif how == 2:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield "autocast"
    elif how == 3:
        torch.set_default_dtype(torch.float64)
        try:
            yield "default dtype"
        finally:
            torch.set_default_dtype(torch.float32)
    elif how == 4:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + 100)
        try:
            yield "recursion limit"
        finally:
            sys.setrecursionlimit(before)
    elif how == 5:
        os.environ["MUTATED"] = "set"
        try:
            yield "environ"
        finally:
            del os.environ["MUTATED"]
    elif how == 6:
        here = os.getcwd()
        os.chdir("/")
        try:
            yield "cwd"
        finally:
            os.chdir(here)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield "warnings"


# ---- trials ----------------------------------------------------------------------------------------------------------
def check(trial):
    """Raises AssertionError where compiled calls differ; gives what was done."""
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, ours = World(trial.body, False), World(trial.body, True)
        names = sorted({w for w in words("\n".join(trial.body)) if w not in LIBRARIES} | {"zz", "v", "late"})
        calls = 0

        def both(n):
            nonlocal calls
            for _ in range(n):
                one, two = eager.run(calls), ours.run(calls)
                try:
                    Exact().go(one, two, f"call {calls}")
                except AssertionError as error:
                    raise AssertionError(f"behind {said or 'nothing'}: {error}") from None
                calls += 1

        both(3)
        changes = []
        for seed in trial.seeds:
            rng = random.Random(seed)
            how = rng.randrange(12)
            if how == 0:
                with torch_state(rng) as what:
                    said.append(what)
                    both(2)
            elif how < 4 and changes:
                said.append([change.undo() for change in changes][0])
                changes = []
            else:
                changes = [Change(world, seed, names) for world in (eager, ours)]
                did = [change.apply() for change in changes]
                assert did[0] == did[1], f"the worlds differ: {did}"
                said.append(did[0])
            both(2)
    return said


def failure(trial):
    try:
        ccompile.reset()
        check(trial)
    except Exception as error:
        return f"{'' if isinstance(error, AssertionError) else type(error).__name__ + ' '}{error}" or "?"
    return ""


def reduce(trial, timeout):
    def told(trial):
        try:
            return "".join(elsewhere(lambda say: say(failure(trial)), timeout))
        except Lost as error:
            return str(error)

    if told(trial):
        trial = Trial(trial.body, least(trial.seeds, lambda seeds: told(Trial(trial.body, seeds)) != ""))
        trial = Trial(least(trial.body, lambda body: told(Trial(body, trial.seeds)) != ""), trial.seeds)
    print(trial, told(trial), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--timeout", type=float, default=60, help="seconds a trial may take")
    parser.add_argument("--reduce", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.reduce:
        reduce(drawn(args.first), args.timeout)
    else:
        last = args.last or args.first + 1
        sys.exit(search(args.first, last, lambda seed: failure(drawn(seed)), args.seconds, args.timeout) > 0)


if __name__ == "__main__":
    main()
