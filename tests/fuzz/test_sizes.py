"""Random functions over sizes (sizes.py), ten calls of several sizes each: eager against compiled under dynamic=None, True and
False. No call is recorded twice for the same sizes and numbers, and symbols save recordings.

CCOMPILE_FUZZ_SIZES=N is the number of programs; CCOMPILE_FUZZ_RANDOM=1 makes other ones in each run."""

import os
import warnings

import ccompile
import hypothesis.strategies as st
import pytest
from conftest import EAGER, same
from fuzz.sizes import arguments, build, program
from hypothesis import HealthCheck, given, note, settings

EXAMPLES = int(os.environ.get("CCOMPILE_FUZZ_SIZES", "300"))
RANDOM = os.environ.get("CCOMPILE_FUZZ_RANDOM", "0") not in ("", "0")


def recordings():
    counted = ccompile.counters()
    return counted.get("recording", 0) + counted.get("recompile", 0)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True, False], ids=["none", "true", "false"])
def test_sizes(dynamic):
    needed, met = [], []

    @settings(
        max_examples=EXAMPLES,
        derandomize=not RANDOM,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data):
        def pick(n):
            return data.draw(st.integers(0, n - 1), label="")

        text = program(pick)
        make, distinct = arguments(pick)
        note(text)
        before = recordings()
        options = {"dynamic": dynamic, "options": {"recompile_limit": 64}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(build(text), make_args=make, calls=10, hit=False, raises=True, options=options)
        if not EAGER:
            needed.append(recordings() - before)
            met.append(distinct)
            assert needed[-1] <= 2 * distinct, f"{needed[-1]} recordings for {distinct} different calls"

    run()
    if not EAGER and dynamic is not False:
        assert sum(needed) < 0.8 * sum(met), f"{sum(needed)} recordings for {sum(met)} different calls"
