"""A few of CPython's own test methods, compiled by `make test-cpython`, and tests written as PyTorch's tests of Dynamo are."""

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


OF_DYNAMO = """
import torch
import torch._dynamo.test_case
from torch._dynamo.exc import NoSuchErrorOfAnotherRelease
from torch._dynamo.testing import CompileCounter, needsAnotherRelease


class Tests(torch._dynamo.test_case.TestCase):
    def test_equal(self):
        counter, k = CompileCounter(), 3
        fn = torch.compile(lambda x: x.relu() + k, backend=counter, fullgraph=True)
        self.assertEqual(fn(torch.arange(-2.0, 3)), torch.tensor([3.0, 3, 3, 4, 5]))
        self.assertEqual(counter.frame_count, 1)

    @needsAnotherRelease
    def test_standard(self):
        torch._dynamo.testing.standard_test(self, lambda a, b: a @ b, 2, expected_ops=1)

    def test_different(self):
        @torch._dynamo.optimize("eager")
        def fn(x):
            return x + torch.compiler.is_compiling()

        self.assertEqual(fn(torch.zeros(2)), torch.zeros(2))

    def test_wrong(self):
        self.assertEqual(torch.compile(torch.sin)(torch.zeros(1)), torch.ones(1))
"""


def test_tests_of_dynamo(tmp_path):
    (tmp_path / "test_of_dynamo.py").write_text(OF_DYNAMO)
    command = [sys.executable, str(RUN), "-j", "1", "--calls", "2", "--dynamo", "--folder", str(tmp_path), "test_of_dynamo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 methods pass plainly" in done.stdout and "0 never replayed; 1 differ compiled" in done.stdout
    assert "FAILS test_of_dynamo.Tests.test_different" in done.stdout
