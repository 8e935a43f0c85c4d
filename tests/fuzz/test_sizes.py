"""Random functions over sizes (sizes.py), ten calls of several sizes each: eager against compiled under dynamic=None, True and
False. No call is recorded twice for the same sizes and numbers, and symbols save recordings.

CCOMPILE_FUZZ_SIZES=N is the number of programs (drawing.py)."""

import warnings

import ccompile
import pytest
from conftest import EAGER, same
from fuzz.drawing import drawn
from fuzz.sizes import arguments, build, program
from hypothesis import note


def recordings():
    counted = ccompile.counters()
    return counted.get("recording", 0) + counted.get("recompile", 0)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True, False], ids=["none", "true", "false"])
def test_sizes(dynamic):
    needed, met = [], []

    @drawn("CCOMPILE_FUZZ_SIZES", 300)
    def run(pick):
        text = program(pick)
        make, distinct = arguments(pick)
        note(text)
        options = {"dynamic": dynamic, "options": {"recompile_limit": 64}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            past = same(build(text), make_args=make, calls=10, hit=False, raises=True, options=options)
        if not EAGER and all(outcome.error is None for outcome in past):  # a call that raises records again
            needed.append(recordings())  # same() has reset the counters
            met.append(distinct)
            assert needed[-1] <= 2 * distinct, f"{needed[-1]} recordings for {distinct} different calls"

    run()
    if not EAGER and dynamic is not False:
        assert sum(needed) < 0.8 * sum(met), f"{sum(needed)} recordings for {sum(met)} different calls"
