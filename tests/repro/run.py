"""Runs reproducers in one mode of ccompile.compile: `python run.py MODE alone|together NAME...`.

alone: each in a process of its own (forked behind the imports, before torch has any thread); together: one behind the other in one
process, in which each finds what the ones before have left. Prints a line `RESULT name status` for each, behind its own output; a
negative status is the signal that ended it.
"""

import os
import pathlib
import runpy
import sys
import traceback

import ccompile

HERE = pathlib.Path(__file__).parent


def run(name):
    """Exit status of the script, in this process."""
    try:
        runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def forked(name):
    child = os.fork()
    if not child:
        status = run(name)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(mode, how, names):
    plain = ccompile.compile
    if mode != "default":
        ccompile.compile = lambda *args, **kw: plain(*args, **{"mode": mode, **kw})
    for name in names:
        sys.stdout.flush()
        print(f"RESULT {name} {(forked if how == 'alone' else run)(name)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
