"""Mutations: between two calls of a random program (programs.py) one thing that it may have read is another one, changed by code
that is not compiled: an attribute, an item, a length, a global, a class attribute, a closure's list. The next call does what
eager does: either a guard fails, or what was recorded holds.

Each program sees CALLS - 1 mutations, the same ones on both sides. CCOMPILE_FUZZ_MUTATIONS=N is the number of mutations a run.
"""

import ctypes
import os
import random
import warnings

import ccompile
import pytest
from conftest import same
from fuzz.programs import arguments, build, program

CALLS = 8
MUTATIONS = int(os.environ.get("CCOMPILE_FUZZ_MUTATIONS", "1050"))
NUMBERS = (0, 1, 2, 5, -1, 0.5, 2.5, -0.0, True, 7)
done = [0]


def mutate_list(items, pick):
    how = pick(4)
    if how == 0 and items:
        items[pick(len(items))] = NUMBERS[pick(len(NUMBERS))]
    elif how == 1 and len(items) > 1:
        items.pop(pick(len(items)))
    elif how == 2:
        items.append(NUMBERS[pick(len(NUMBERS))])
    else:
        items.reverse()


def mutate_dict(table, pick):
    keys = [key for key in table if isinstance(table[key], (int, float))]
    if keys and pick(3):
        table[keys[pick(len(keys))]] = NUMBERS[pick(len(NUMBERS))]
    elif "new" in table:
        del table["new"]
    else:
        table["new"] = NUMBERS[pick(len(NUMBERS))]


def mutate_box(box, pick):
    how = pick(5)
    if how == 0:
        box.v = NUMBERS[pick(len(NUMBERS))]
    elif how == 1:
        box.items = list(box.items) + [1.5]
    elif how == 2:
        type(box).kind = ("box", "tin")[pick(2)]
    elif how == 3:
        type(box).double = property((lambda self: self.v * 2, lambda self: self.v + 3)[pick(2)])
    else:
        box.alias = [NUMBERS[pick(len(NUMBERS))]]


def mutate_unseen(what, own):
    """A float in it, made by an earlier call of this, is another number in place: nothing that a guard reads has changed."""
    table = what if isinstance(what, (dict, list)) else vars(what)
    for key, v in list(table.items() if isinstance(table, dict) else enumerate(table)):
        if type(v) is not float:
            continue
        if any(v is o for o in own):
            ctypes.c_double.from_address(id(v) + object.__basicsize__).value += 1.5
        else:
            table[key] = float(repr(v))
            own.append(table[key])


def mutating(factory, seed, unseen=False):
    """The program, and one mutation of its state behind each call."""

    def make():
        fn, state = factory()
        rng = random.Random(seed)
        names, own = fn.__globals__, []

        @ccompile.disable
        def change():
            done[0] += 1
            if unseen:
                for what in state:
                    mutate_unseen(what, own)
                return
            what = state[rng.randrange(len(state))] if rng.randrange(6) else names
            if what is names:
                names["G"] = NUMBERS[rng.randrange(len(NUMBERS))]
            elif isinstance(what, list):
                mutate_list(what, rng.randrange)
            elif isinstance(what, dict):
                mutate_dict(what, rng.randrange)
            else:
                mutate_box(what, rng.randrange)

        def call(*args):
            try:
                return fn(*args)
            finally:
                change()

        return call, state

    return make


def check(seed, unseen=False):
    rng = random.Random(seed)
    text, make_args = program(rng.randrange), arguments(rng.randrange)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(
                mutating(build(text), seed, unseen),
                make_args=make_args,
                build=True,
                calls=CALLS,
                hit=False,
                raises=True,
                options={"dynamic": (None, True, False)[seed % 3]},
            )
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n{text}") from None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_mutations(part):
    before, seed = done[0], 10_000 * part
    while done[0] - before < 2 * MUTATIONS / 6:  # both sides mutate
        check(seed)
        seed += 1


def test_control_a_change_without_a_guard_is_found():
    """The same programs and comparisons, with changes that no guard sees: some must fail, else they prove nothing."""
    failed = 0
    for seed in range(20_000, 20_040):
        try:
            check(seed, unseen=True)
        except AssertionError:
            failed += 1
    assert failed > 0
