"""How the tests of random programs draw: what Hypothesis is told, the same for all of them.

CCOMPILE_FUZZ_RANDOM=1 makes other programs in each run."""

import os

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

RANDOM = os.environ.get("CCOMPILE_FUZZ_RANDOM", "0") not in ("", "0")


def drawn(variable, programs):
    """Decorates a test that takes pick(n), which draws an integer below n; runs it with as many programs as the environment
    variable says, or so many."""

    def decorate(test):
        @settings(
            max_examples=int(os.environ.get(variable, str(programs))),
            derandomize=not RANDOM,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def run(data):
            test(lambda n: data.draw(st.integers(0, n - 1), label=""))

        run.__name__ = run.__qualname__ = test.__name__
        return run

    return decorate
