"""No allocation that fails ends the process, changes a result or leaves something wrong behind: a sample of the trials of
tests/no_memory.py. `make test-no-memory` makes all of them."""

import os
import subprocess
import sys
from pathlib import Path

import core_library
import pytest

SCRIPT = Path(__file__).parent / "no_memory.py"


def good(*arguments):
    env = {key: value for key, value in os.environ.items() if key != "CCOMPILE_VERIFY"}
    done = subprocess.run([sys.executable, SCRIPT, *arguments], env=env, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("how, stride", [("again", 17), ("fork", 61)])
def test_calls(how, stride):
    assert " of " in good("--how", how, "--stride", str(stride), "--allocator", "python", "--allocator", "c")


@pytest.mark.slow
@pytest.mark.parametrize("how, stride", [("again", 41), ("fork", 149)])
def test_interrupted_calls(how, stride):
    assert " of " in good("--how", how, "--stride", str(stride), "--allocator", "interrupt")


@pytest.mark.slow
def test_graphs(tmp_path_factory):
    lib = core_library.built(tmp_path_factory)
    assert " of " in good("--core", str(lib), "--stride", "23")
