"""Random programs (programs.py), eager against compiled: values, exceptions, prints, mutated state, random streams.

CCOMPILE_FUZZ_EXAMPLES=N is the number of programs (drawing.py). A failure shows the shrunk program. Numbers are float64, so
that rounding hardly ever decides a branch.
"""

import warnings

import pytest
from conftest import same
from fuzz.drawing import drawn
from fuzz.programs import arguments, build, program
from hypothesis import note


@pytest.mark.slow
@drawn("CCOMPILE_FUZZ_EXAMPLES", 1200)
def test_programs(pick):
    text, make_args, no_grad = program(pick), arguments(pick), bool(pick(3))
    note(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recompile_limit: inputs vary on purpose
        same(build(text), make_args=make_args, build=True, calls=4, hit=False, raises=True, no_grad=no_grad)
