"""A few of CPython's own test methods, compiled by `make test-cpython`."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
RUN = pathlib.Path(__file__).parent / "cpython" / "run.py"
NAMES = [
    "test_long.LongTest.test_small_ints",
    "test_long.LongTest.test_from_bytes_small",
    "test_float.GeneralFloatCases.test_float_containment",
    "test_ordered_dict.CPythonOrderedDictTests.test_popitem",
    "test_range.RangeTest.test_range",
    "test_tuple.TupleTest.test_constructors",
    "test_operator.COperatorTestCase.test_getitem",
    "test_functools.TestPartialC.test_repr",
    "test_iterlen.TestListReversed.test_mutation",
    "test_exception_hierarchy.ExplicitSubclassingTest",
]


@pytest.mark.skipif(importlib.util.find_spec("test.test_long") is None, reason="this CPython came without its tests")
def test_a_few():
    names = NAMES[::2] if os.environ.get("CI") else NAMES
    done = subprocess.run(
        [sys.executable, str(RUN), "-j", "2", "-v", "--calls", "2", *names], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "0 differ compiled" in done.stdout
