"""Sizes and numbers that change between calls: each row of dynamic_cases.py runs over its sizes in several orders, under
dynamic=None, True and False, and does what eager does; under None with no more recordings than its row says."""

import random
import warnings

import ccompile
import pytest
from conftest import EAGER, same
from dynamic_cases import CASES, SIZES

ROUNDS = 3


def sizes_of(seed):
    """All sizes, ROUNDS times, each time in another order."""
    order = random.Random(seed)
    return [n for _ in range(ROUNDS) for n in order.sample(SIZES, len(SIZES))]


@pytest.mark.parametrize("dynamic", [None, True, False], ids=["none", "true", "false"])
@pytest.mark.parametrize("name", CASES)
def test_sizes(name, dynamic):
    row, sizes = CASES[name], sizes_of(name)
    before = ccompile.counters()["recording"] + ccompile.counters().get("recompile", 0) if not EAGER else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(
            row.fn,
            make_args=lambda i: row.make(sizes[i]),
            build=row.build,
            backward=row.backward,
            no_grad=row.no_grad,
            calls=len(sizes),
            hit=False,
            raises=True,
            options={"dynamic": dynamic, "options": {"recompile_limit": 64}},
        )
    if dynamic is None and not EAGER:
        recorded = ccompile.counters()["recording"] + ccompile.counters()["recompile"] - before
        assert recorded <= row.most, f"{recorded} recordings"
