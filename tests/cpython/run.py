"""CPython's own tests, each method compiled: what passes plainly has to pass compiled.

    python tests/cpython/run.py [-j JOBS] [--calls N] [-v] [module[.Class[.method]] ...]

Each module of MODULES runs three times, in processes of its own: plainly, and twice with every test method compiled by ccompile.
All of them import the tests, and the library modules of USERS, by links outside of the standard library's folder: calls into that
folder are mostly breaks, and helpers of tests stand for a user's code. unittest is a library the first time ("broken": each
assertion is a break), and a user's code the second ("whole").

A method is called --calls times (4), setUp and tearDown around each; what fails plainly in its i-th call need not pass in it
compiled. A process that is lost, or in which a call is over its time, is begun again behind the method that it was in. differs.txt
names methods that differ by design, each with the reason. Ends with 1 where there is any other, and where one of those passes.
"never replayed" counts the methods none of whose calls was a replay.

--folder names another folder of tests: PyTorch's `test`, of a release near the installed one (its modules can't be given out
with ccompile). Then the modules have to be named: run.py --folder pytorch/test test_autograd test_nn. What differs by design is in
differs_pytorch.txt.

--dynamo: they are tests of Dynamo: run.py --dynamo --folder pytorch/test/dynamo test_misc. In place of the run "broken", methods
stay as they are and torch.compile is ccompile's ("inner"); in the other two it returns what it is given. stand_in.py says more.
"""

import argparse
import concurrent.futures
import faulthandler
import functools
import gc
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
MODULES = """
test_abc test_augassign test_baseexception test_binop test_bisect test_bool test_builtin test_bytes test_call test_class test_cmath
test_collections test_compare test_complex test_comprehensions test_contains test_context test_contextlib test_copy test_coroutines
test_dataclasses test_decorators test_defaultdict test_deque test_descr test_descrtut test_dict test_dictcomps test_dictviews
test_dynamic test_dynamicclassattribute test_enum test_enumerate test_except_star test_exception_group test_exception_hierarchy
test_exception_variations test_exceptions test_extcall test_float test_fnmatch test_format test_fractions test_fstring test_funcattrs
test_functools test_generator_stop test_generators test_genericalias test_genericclass test_genexps test_global test_grammar
test_graphlib test_hash test_heapq test_index test_int test_isinstance test_iter test_iterlen test_itertools test_keyword
test_keywordonlyarg test_lambda test_list test_listcomps test_long test_math test_memoryview test_metaclass test_named_expressions
test_numeric_tower test_opcodes test_operator test_ordered_dict test_patma test_pep646_syntax test_positional_only_arg test_pow
test_property test_raise test_range test_reprlib test_richcmp test_scope test_set test_setcomps test_slice test_sort test_statistics
test_str test_string test_subclassinit test_super test_syntax test_textwrap test_tuple test_types test_typechecks test_unary test_unicode
test_unpack test_unpack_ex test_userdict test_userlist test_userstring test_weakref test_weakset test_with test_yield_from
""".split()
USERS = "fnmatch fractions graphlib statistics string textwrap".split()
TIME = 300  # seconds of a call


# ---- a process of one module -------------------------------------------------------------------------------------
class Told(unittest.TestResult):
    """Writes down what a test does as soon as it does it."""

    def __init__(self, out, hits):
        super().__init__()
        self.out, self.hits, self.before = out, hits, 0

    def tell(self, test, what, text=""):
        self.out.write(json.dumps([getattr(test, "told_as", None) or str(test), what, text[-1500:]]) + "\n")
        self.out.flush()

    def startTest(self, test):
        faulthandler.dump_traceback_later(TIME, exit=True)
        self.tell(test, "begins")
        self.before = self.hits()

    def stopTest(self, test):
        self.tell(test, "hits", str(self.hits() - self.before))

    def addSuccess(self, test):
        self.tell(test, "ok")

    def addSkip(self, test, reason):
        self.tell(test, "skip")

    def addExpectedFailure(self, test, err):
        self.tell(test, "ok")

    def addUnexpectedSuccess(self, test):
        self.tell(test, "fail", "unexpected success")

    def addFailure(self, test, err):
        self.tell(test, "fail", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)


def cases(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        elif type(test).__module__ != "doctest" and not isinstance(test, unittest.IsolatedAsyncioTestCase):
            yield test


def child(name, how, dynamo, calls, passed_over, path):
    import ccompile

    if dynamo:
        import stand_in

        stand_in.put(stand_in.compiled if how == "inner" else stand_in.itself)
    if not name.startswith("test."):  # PyTorch's refuse to be loaded by another script
        import torch.testing._internal.common_utils as common

        common.check_test_defined_in_running_script = lambda test: None
    compiled = {}

    def compile_method(case):
        method = case._testMethodName
        fn = getattr(type(case), method, None)
        if fn is None or getattr(fn, "__unittest_skip__", False):
            return
        key = type(case), method
        if key not in compiled:
            compiled[key] = ccompile.compile(fn)
        call = compiled[key]
        setattr(case, method, functools.wraps(fn)(lambda: call(case)))  # unittest's marks, expectedFailure among them

    suite, first = unittest.TestSuite(), unittest.defaultTestLoader.loadTestsFromName(name)
    for case in cases(first):
        method = case.id().removeprefix("test.")
        if method in passed_over or not hasattr(case, "_testMethodName"):
            continue
        for i in range(calls):
            again = type(case)(case._testMethodName) if type(case).__module__ != "unittest.loader" else case
            again.told_as = f"{method} {i}"
            if how in ("broken", "whole"):
                compile_method(again)
            suite.addTest(again)
    gc.collect()
    gc.freeze()  # tests call gc.collect() hundreds of times: 80 ms each with torch's objects
    with open(path, "a") as out:
        suite.run(Told(out, lambda: ccompile.counters()["hits"]))
        out.write(json.dumps(["", "end", json.dumps(ccompile.counters())]) + "\n")


# ---- all modules -------------------------------------------------------------------------------------------------
def link(folder, how, tests):
    """Puts links to the tests, and to what is to be a user's code, below the folder."""
    library = pathlib.Path(unittest.__file__).parent.parent
    names = [f"{name}.py" for name in USERS] + ["unittest"] * (how != "broken")
    for name in names:
        (folder / name).symlink_to(library / name)
    below = folder if tests else folder / "test"
    below.mkdir(exist_ok=True)
    for path in (tests or library / "test").iterdir():
        if not (below / path.name).exists():
            (below / path.name).symlink_to(path)


def read(path, seen, counted, replays):
    """What the process wrote; the test that it was in when it was lost, or None."""
    at = None
    for line in path.read_text().splitlines():
        name, what, text = json.loads(line)
        if what == "end":
            counted.update(json.loads(text))
            return None
        at = name
        if what == "begins":
            seen.setdefault(name, ("ok", ""))
        elif what == "hits":
            replays[name] = int(text)
        elif what != "ok":
            seen[name] = (what, text)
    return at


def run_module(name, how, calls, tests, dynamo, passed_over=()):
    """{"module.Class.method i": (status, text)} and {"module.Class.method i": replays}."""
    seen, counted, replays, passed_over = {}, {}, {}, set(passed_over)
    while True:
        with tempfile.TemporaryDirectory() as folder:
            path, links = pathlib.Path(folder) / "told", pathlib.Path(folder) / "links"
            over = pathlib.Path(folder) / "passed_over"  # too long for a command line
            path.touch()
            over.write_text("\n".join(passed_over))
            links.mkdir()
            link(links, how, tests)
            paths = [str(links), *filter(None, [os.environ.get("PYTHONPATH")]), str(HERE.parent.parent / "python")]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            command = [
                sys.executable,
                "-X",
                "faulthandler",
                __file__,
                "--child",
                name if tests else f"test.{name}",
                how,
                "dynamo" if dynamo else "",
                str(calls),
                str(path),
                str(over),
            ]
            done = subprocess.run(
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            lost = "lost", f"exit status {done.returncode}\n" + done.stdout.decode(errors="replace")[-1500:]
            found = {}
            at = read(path, found, counted, replays)
        seen.update(found)
        if counted or at is None:
            if not counted:
                seen[name] = lost
            return seen, replays
        seen[at] = lost
        passed_over.update(key.rsplit(" ", 1)[0] for key in seen if "." in key)


def differences(name, calls, tests, dynamo):
    """(what passes plainly and not compiled, methods that pass plainly, replays, those of them that were never replayed)"""
    plain, _ = run_module(name, "plain", calls, tests, dynamo)
    passed = {key: key.rsplit(" ", 1)[0] for key, (status, _) in plain.items() if status == "ok"}
    bad, total, never = {}, 0, set(passed.values())
    failed = {key.rsplit(" ", 1)[0] for key in plain} - never
    for how in ("inner" if dynamo else "broken", "whole"):
        compiled, replays = run_module(name, how, calls, tests, dynamo, failed)
        total += sum(replays.values())
        for key, method in passed.items():
            got = compiled.get(key, ("missing", ""))
            if got[0] not in ("ok", "skip"):
                bad.setdefault(method, (f"{key} ({how})", *got))
            if replays.get(key):
                never.discard(method)
    return bad, set(passed.values()), total, never


def allowed(table):
    """method -> reason; the lines of the file."""
    rows = [line.split(None, 1) for line in (HERE / table).read_text().splitlines() if line and line[0] != "#"]
    return {row[0]: row[1] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", type=int, default=os.cpu_count(), metavar="JOBS")
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("-v", action="store_true", help="show how each one fails")
    parser.add_argument("--folder", type=pathlib.Path, help="of other tests than CPython's")
    parser.add_argument("--dynamo", action="store_true", help="the tests in --folder are tests of Dynamo")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.folder and not args.names:
        parser.error("--folder: name the modules to run")
    folder = args.folder or pathlib.Path(unittest.__file__).parent.parent / "test"
    jobs = [name for name in args.names or MODULES if list(folder.glob(name.split(".")[0] + "*"))]
    table = "differs_pytorch.txt" if args.folder else "differs.txt"
    known, failed, total, hits, unseen = allowed(table), [], 0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        tests = args.folder and args.folder.resolve()
        running = {pool.submit(differences, name, args.calls, tests, args.dynamo): name for name in jobs}
        for done in concurrent.futures.as_completed(running):
            bad, methods, n, never = done.result()
            total += len(methods)
            hits += n
            unseen += len(never)
            failed += [m for m in bad if m not in known]
            failed += [f"{m} (passes: delete it from {table})" for m in methods & known.keys() if m not in bad]
            print(
                f"{running[done]}: {len(methods)} methods, {n} replays"
                + "".join(f"\n  never replayed: {m}" for m in sorted(never))
                + "".join(f"\n  FAILS {m}" for m in bad),
                flush=True,
            )
            if args.v:
                for key, status, text in bad.values():
                    print(f"---- {key}: {status}\n{text}", flush=True)
    print(
        f"{len(jobs)} modules, {total} methods pass plainly, {hits} replays, {unseen} never replayed; "
        f"{len(failed)} differ compiled"
    )
    for method in sorted(failed):
        print(" ", re.sub(r"\s+", " ", method))
    return 1 if failed or not total else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        name, how, dynamo, calls, path, over = sys.argv[2:]
        child(name, how, bool(dynamo), int(calls), set(pathlib.Path(over).read_text().splitlines()), path)
    else:
        sys.exit(main())
