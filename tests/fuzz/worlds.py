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
import builtins
import collections
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import enum
import functools
import inspect
import itertools
import json
import logging
import math
import multiprocessing
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
from fuzz import states
from fuzz.changes import IMPORTED, Change, Given, held, made_here
from fuzz.functions import Lost, elsewhere, least, search
from fuzz.pieces import PHRASES, PIECES
from torch import nn

MUTATIONS = 4  # of a trial
HOMES = ("argument", "default", "cell")  # of names that are no globals of f
LIBRARIES = {
    m.__name__: m
    for m in (
        *(
            abc,
            ccompile,
            collections,
            contextlib,
            contextvars,
            copy,
            dataclasses,
            decimal,
            enum,
            functools,
            inspect,
            itertools,
            json,
        ),
        *(logging, math, numpy, operator, os, random, re, sys, threading, torch, warnings, weakref),
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
    homes: list  # (name, where f finds it)

    def __str__(self):
        return "\n".join([*self.body, f"mutations {self.seeds}", f"homes {self.homes}"])


def drawn(seed):
    rng = random.Random(seed)
    body = [rng.choice(STATEMENTS) for _ in range(rng.randrange(2, 6))]
    seeds = [rng.randrange(1 << 30) for _ in range(MUTATIONS)]
    names = [name for name in PIECES if name in words("\n".join(body)) and name != "brk"]
    return Trial(body, seeds, [(name, rng.choice(HOMES)) for name in names if rng.randrange(4) == 0])


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


def living(trial):
    """name -> its home, of the statements that are left; what a statement declares global is one."""
    named = words("\n".join(line for line in trial.body if line.startswith("global ")))
    return {name: home for name, home in trial.homes if name in words("\n".join(trial.body)) and name not in named}


def source(trial):
    """The world, and f(x), which reads it."""
    made = [textwrap.dedent(PIECES[name]).strip() for name in pieces(trial.body)]
    lines = [line for statement in trial.body for line in statement.splitlines()]
    named = [line.split(";")[0] for line in lines if line.startswith("global ")]
    lines = [line[line.index(";") + 2 :] if line.startswith("global ") else line for line in lines]
    homes = living(trial)
    takes = ["x", *(n for n in homes if homes[n] == "argument"), *(f"{n}={n}" for n in homes if homes[n] == "default")]
    f = [
        f"def f({', '.join(takes)}):",
        *(f"    {line}" for line in [*dict.fromkeys(named), "r = []", *lines, "return r, x"]),
    ]
    cells = ", ".join(n for n in homes if homes[n] == "cell")
    if cells:
        f = [f"def make_f({cells}):", *(f"    {line}" for line in [*f, "return f"]), f"f = make_f({cells})"]
    return "\n".join([*made, *f])


def module(**names):
    made = types.ModuleType(IMPORTED)
    vars(made).update(names)
    return made


def past(x, world):
    """A view of two of the world's own: what the call writes to the one shows in the other."""
    w = world.names.get("w")
    return w[:] if type(w) is torch.Tensor and w.dim() else x


# What the call is given for x, made of a new tensor of three numbers.
GIVEN = (
    *(lambda x, world: x,) * 3,
    lambda x, world: x.double(),
    lambda x, world: x.expand(2, 3),
    lambda x, world: x.repeat(2, 1),
    lambda x, world: x.clone().requires_grad_(),
    lambda x, world: torch.stack([x, x], -1)[:, 0],
    lambda x, world: x.int(),
    lambda x, world: x > 0,
    lambda x, world: x[0],
    lambda x, world: x[:1],
    lambda x, world: x[:0],
    lambda x, world: nn.Parameter(x),
    lambda x, world: x.to(torch.complex64).conj(),
    lambda x, world: x.bfloat16(),
    lambda x, world: world.names.get("w"),
    past,
    lambda x, world: 2.5,
    lambda x, world: x.repeat(2),
)


class World:
    """One side's: its names, and f, compiled or not."""

    def __init__(self, trial, compiled):
        self.names = {
            **LIBRARIES,
            "nn": nn,
            "F": nn.functional,
            "module": module,
            "__name__": "<world>",
            "at_break": self.at_break,
        }
        self.names["__builtins__"] = dict(vars(builtins))  # of its own
        before = set(self.names)
        exec(_code(source(trial)), self.names)
        f = self.names["f"]
        self.own = [name for name in self.names if name not in before and name not in ("__builtins__", "brk")]
        self.given = Given({name: self.names[name] for name, home in living(trial).items() if home == "argument"})
        self.x = 0  # of GIVEN
        self.pending = None  # what the next break does
        self.call = ccompile.compile(f, options={"recompile_limit": 64}) if compiled else f

    def at_break(self):
        change, self.pending = self.pending, None
        if change is not None:
            change()

    def state(self):
        return {name: self.names.get(name) for name in self.own if not callable(self.names.get(name))}

    def run(self, i, way):
        if "mod" in self.own:
            sys.modules[IMPORTED] = self.names.get("mod")
        try:
            torch.manual_seed(i), random.seed(i)
            with torch.no_grad():
                x = GIVEN[self.x % len(GIVEN)](torch.tensor([1.0, -2.0, 0.5]) * (i + 1), self)
            call = self.call if way is None else functools.partial(way, self.call)
            done = outcome(call, (x,), dict(self.given), state=self.state())
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
        elif made_here(type(a)) and isinstance(a, (int, str)):  # its class may say anything of equality
            own = int if isinstance(a, int) else str
            self.want(
                type(a).__name__ == type(b).__name__ and own.__eq__(a, b),
                path,
                "value",
                own.__repr__(a),
                own.__repr__(b),
            )
            if not self.paired(a, b, path):
                self.raw(a, b, path)
        elif isinstance(a, types.ModuleType) and a is not b and a.__name__ == IMPORTED == b.__name__:
            if not self.paired(a, b, path):
                self.mutable(vars(a), vars(b), path)
        else:
            super().go(a, b, path)

    def mutable(self, a, b, path):
        if isinstance(a, set):
            self.items(list(a), list(b), path)  # iteration's order is part of it
        elif made_here(type(a)) or isinstance(a, nn.Module):
            self.raw(a, b, path)
        else:
            super().mutable(a, b, path)

    def raw(self, a, b, path):
        """Asks nothing of the object's own methods, which may be any by now."""
        if isinstance(a, dict):
            self.items(list(dict.items(a)), list(dict.items(b)), path)
        left, right = ({n: v for n, v in held(o)} for o in (a, b))
        self.mutable(left, right, path + ".__dict__")


# ---- trials ----------------------------------------------------------------------------------------------------------
def agreed(did):
    assert did[0] == did[1], f"the worlds differ: {did}"
    return did[0]


def check(trial):
    """Raises AssertionError where compiled calls differ; gives what was done."""
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, ours = World(trial, False), World(trial, True)
        names = sorted({w for w in words("\n".join(trial.body)) if w not in LIBRARIES} | {"zz", "v", "late"})
        calls = 0

        def both(n, way=None):
            nonlocal calls
            for _ in range(n):
                one, two = eager.run(calls, way), ours.run(calls, way)
                try:
                    Exact().go(one, two, f"call {calls}")
                except AssertionError as error:
                    raise AssertionError(f"behind {said or 'nothing'}: {error}") from None
                calls += 1

        both(3)
        changes = []
        for seed in trial.seeds:
            rng = random.Random(seed)
            how = rng.randrange(16)
            if how < 3:
                what, way = states.drawn(rng)
                said.append(what)
                both(2, way)
            elif how < 6 and changes:
                said.append([change.undo() for change in changes][0])
                changes = []
            elif how < 9:  # in the middle of the call
                changes, did = [], []
                for world in (eager, ours):
                    world.pending = functools.partial(
                        lambda world: did.append(Change(world, seed, names).apply()), world
                    )
                both(1)
                for world in (eager, ours):
                    world.at_break()  # no break was met
                said.append(f"at a break {agreed(did)}")
            else:
                changes = [Change(world, seed, names) for world in (eager, ours)]
                said.append(agreed([change.apply() for change in changes]))
            both(2)
    return said


mutations = multiprocessing.Value("q")  # mutations, by the processes of all trials


def failure(trial):
    try:
        ccompile.reset()
        said = check(trial)
        with mutations:
            mutations.value += sum(not what.endswith("undone") and " refused" not in what for what in said)
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
        for field in ("seeds", "homes", "body"):
            rows = least(getattr(trial, field), lambda rows: told(trial._replace(**{field: rows})) != "")
            trial = trial._replace(**{field: rows})
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
        failed, end = search(
            args.first, args.last or args.first + 1, lambda seed: failure(drawn(seed)), args.seconds, args.timeout
        )
        programs = {tuple(drawn(seed).body) for seed in range(args.first, end)}
        print(
            f"{end - args.first} trials of {len(programs)} programs, {mutations.value} mutations, {failed} differences"
        )
        sys.exit(failed > 0)


if __name__ == "__main__":
    main()
