"""Other libraries under ccompile.install(): the programs of benchmarks/libraries.py give what they give in eager, their checkpoints
have eager's keys, further steps replay, and there are no more graph breaks than Dynamo has (the rows' numbers).

`make test-libraries` installs all the libraries and runs the costly rows, too (CCOMPILE_LIBRARIES=all)."""

import contextlib
import logging
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from conftest import EAGER, alike, replaying

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import libraries
import zoo

pytestmark = pytest.mark.skipif(EAGER, reason="needs the product")
ALL = os.environ.get("CCOMPILE_LIBRARIES") == "all"
STEPS = 6  # lengths of texts change in cycles of three: both recordings of a size are over after them


def need(row):
    """Skips the test if the row's library is not installed."""
    if row.costly and not ALL:
        pytest.skip("costly: CCOMPILE_LIBRARIES=all runs it")
    try:
        libraries.need(row.library)
    except ImportError as error:
        pytest.skip(f"{row.library} is not installed ({error}): make test-libraries installs it")


@contextlib.contextmanager
def quiet():
    """The libraries' own warnings and progress bars say nothing about ours."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def stepped(use, i):
    torch.manual_seed(i)
    return use.step(i)


@pytest.mark.parametrize("name", libraries.PROGRAMS)
def test_program(name):
    row, made, uses = libraries.PROGRAMS[name], [], []
    need(row)
    sides = (libraries.eager, lambda: libraries.ours(made))
    with quiet():
        for side in sides:
            torch.manual_seed(7)
            with side():
                uses.append(row.make())
        eager, ours = uses

        def compare(i):
            with libraries.eager():
                expected = stepped(eager, i)
            with libraries.ours(made), replaying(1) if i >= STEPS and row.settles else contextlib.nullcontext():
                alike(expected, stepped(ours, i), row.tolerance, row.tolerance, path=f"step {i}")

        for i in range(STEPS + 1):
            compare(i)
        _, breaks = zoo.met(lambda: compare(STEPS), *made)
        with libraries.eager():
            expected = eager.state()
        with libraries.ours():
            alike(expected, ours.state(), row.tolerance, row.tolerance, path="state")
    assert made, "nothing was compiled"
    assert breaks <= row.breaks, f"{breaks} breaks: see explain()"
