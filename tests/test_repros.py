"""Programs that once gave wrong results or crashed the process (tests/repro) do what eager does: alone, together, in all modes.

Each exits with 0 if compiled code does what eager does. OPEN lists those that are not fixed yet; the fix deletes the name.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
HERE = pathlib.Path(__file__).parent / "repro"
NAMES = sorted(p.stem for p in HERE.glob("*.py") if p.stem != "run")
OPEN = set()
MODES = ("default", "reduce-overhead", "max-autotune")



def results(mode, how, names, cache):
    """name -> (exit status, output) of each, from one process of run.py."""
    here = pathlib.Path(__file__).parent.parent / "python"
    # As a user has it: the suite's CCOMPILE_VERIFY would set wrong kernels aside.
    env = {key: value for key, value in os.environ.items() if not key.startswith("CCOMPILE_")}
    env.update(PYTHONPATH=os.pathsep.join([*filter(None, [env.get("PYTHONPATH")]), str(here)]), CCOMPILE_CACHE_DIR=str(cache))
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), mode, how, *names],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    parts = re.split(r"^RESULT (\S+) (-?\d+)\n", done.stdout, flags=re.M)
    found = {name: (int(status), text) for text, name, status in zip(parts[0::3], parts[1::3], parts[2::3])}
    for name in names:  # the process was lost in the first one that is missing
        found.setdefault(name, (done.returncode or 1, parts[-1]))
    return found


@pytest.fixture(scope="module", params=MODES)
def alone(request, tmp_path_factory):
    return results(request.param, "alone", NAMES, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("name", NAMES)
def test_alone(alone, name, request):
    if name in OPEN:
        request.applymarker(pytest.mark.xfail(strict=True))
    status, text = alone[name]
    assert status == 0, text[-2000:]


@pytest.mark.parametrize("mode", MODES)
def test_together(mode, tmp_path):
    names = [n for n in NAMES if n not in OPEN]
    found = results(mode, "together", names, tmp_path)
    assert not {name: text[-500:] for name, (status, text) in found.items() if status}
