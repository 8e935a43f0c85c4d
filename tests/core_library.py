"""The library that many files test, built once in a run: pytest-xdist's workers share it."""

import fcntl
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "core"))
import harness  # noqa: E402


def built(tmp_path_factory):
    """-> the core half as a library. The first process that needs it builds it, and others wait; a child run takes its parent's."""
    ready = os.environ.get("CCOMPILE_CORE_LIB")
    if ready:
        return Path(ready)
    run = tmp_path_factory.getbasetemp()
    if run.name.startswith("popen-"):  # a worker's, inside the run's
        run = run.parent
    folder = run / "core"
    with open(run / "core.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "core.so").exists():  # linked last
            folder.mkdir(exist_ok=True)
            harness.build(folder)
    return folder / "core.so"
