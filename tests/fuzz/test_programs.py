"""Random programs (programs.py), eager against compiled: values, exceptions, prints, mutated state, random streams.

CCOMPILE_FUZZ_EXAMPLES=N raises the number of programs; CCOMPILE_FUZZ_RANDOM=1 makes other ones in each run. A failure shows
the shrunk program. Numbers are float64, so that rounding hardly ever decides a branch.
"""

import os
import warnings

import hypothesis.strategies as st
import pytest
from conftest import same
from fuzz.programs import arguments, build, program
from hypothesis import HealthCheck, given, note, settings

EXAMPLES = int(os.environ.get("CCOMPILE_FUZZ_EXAMPLES", "2000"))
RANDOM = os.environ.get("CCOMPILE_FUZZ_RANDOM", "0") not in ("", "0")


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    derandomize=not RANDOM,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_programs(data):
    def pick(n):
        return data.draw(st.integers(0, n - 1), label="")

    text, make_args, no_grad = program(pick), arguments(pick), bool(pick(3))
    note(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recompile_limit: inputs vary on purpose
        same(build(text), make_args=make_args, build=True, calls=4, hit=False, raises=True, no_grad=no_grad)
