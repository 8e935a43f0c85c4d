"""Builds ccompile._core from csrc/*/*.c, and the program _compiler (csrc/dev/compiler.c), which _core starts.

Environment:
  CCOMPILE_WERROR=1        treat warnings as errors
  CCOMPILE_DEBUG=N         1: asserts and poisoned memory; 2: also verifiers of graphs and LLVM IR
  CCOMPILE_TEST_EXT=1      also build ccompile._frametest and ccompile._tenstest, for the tests of the C layers
  CCOMPILE_TEST_EXT=frame  build only ccompile._frametest, which needs no torch at run time
  CCOMPILE_SANITIZE=NAMES  builds with gcc's sanitizers, such as address,undefined (make test-sanitizers)
  CCOMPILE_JOBS=N          number of parallel compilations (default: 2, or 1 on a single processor)
CC, CFLAGS and LDFLAGS work as in any setuptools build.
"""

import glob
import os
import platform
import shlex
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))


def refuse_unsupported():
    """Raises SystemExit with one sentence if this interpreter or machine is not supported."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.implementation.name != "cpython":
        raise SystemExit(f"ccompile needs CPython 3.11 to 3.14: it owns CPython's frames. This is {found}.")
    if sys.version_info[:2] not in SUPPORTED:
        raise SystemExit(f"ccompile supports CPython 3.11 to 3.14; this is {found}.")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(f"ccompile does not support free-threaded builds yet; this is {found} without the GIL.")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SystemExit(f"ccompile supports x86-64 Linux; this is {sys.platform} on {platform.machine()}.")


refuse_unsupported()

from setuptools import Extension, setup  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402

ROOT = os.path.dirname(os.path.abspath(__file__))
TEST_EXT = os.environ.get("CCOMPILE_TEST_EXT", "0")
FRAME = f"csrc/py/frame_{sys.version_info[0]}{sys.version_info[1]}.c"
# Test modules: name -> the directories that it links in addition to its own file in csrc/mod.
TESTS = {
    "frametest": ("base", "py"),
    "tenstest": ("base", "py", "ir", "tens"),
}
# The program's own file, and the files that it shares with _core.
PROGRAM = "csrc/dev/compiler.c"
PROGRAM_SHARES = ("csrc/dev/cpu.c", "csrc/dev/dl.c", "csrc/dev/llvm.c")
FLAGS = [
    *("-std=gnu11", "-O2", "-g1", "-fvisibility=hidden", "-fno-semantic-interposition"),
    "-fno-math-errno",  # lets gcc vectorise sqrtf in loops
    # Otherwise the time of a call's guards, a loop over thousands of words, changes by 13 % with what else is linked
    # (Zen 4).
    *("-falign-functions=64", "-falign-loops=32"),
    *("-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wvla"),
]
if os.environ.get("CCOMPILE_WERROR") == "1":
    FLAGS.append("-Werror")
DEBUG = int(os.environ.get("CCOMPILE_DEBUG", "0"))
SANITIZERS = os.environ.get("CCOMPILE_SANITIZE", "")
SANITIZE = (
    # -O1: with -O2, gcc takes minutes for some files.
    [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1"] if SANITIZERS else []
)


def sources(*directories):
    """The C files of these directories of csrc (default: all), with only this version's frame file."""
    found = []
    for directory in directories or ("*",):
        found += glob.glob(f"csrc/{directory}/*.c", root_dir=ROOT)
    tests = {f"csrc/mod/{name}.c" for name in TESTS}
    frames = set(glob.glob("csrc/py/frame_*.c", root_dir=ROOT)) - {FRAME}
    return sorted(set(found) - tests - frames - {PROGRAM})


def extension(name, files):
    return Extension(
        f"ccompile.{name}",
        files,
        define_macros=[("CC_DEBUG", str(DEBUG))],
        undef_macros=["NDEBUG"] if DEBUG else [],
        extra_compile_args=FLAGS + SANITIZE,
        extra_link_args=SANITIZE,
        libraries=["dl", "pthread", "m"],
        depends=[PROGRAM, *(p for end in ("h", "def", "inc") for p in glob.glob(f"csrc/*/*.{end}", root_dir=ROOT))],
    )


def extensions():
    made = [] if TEST_EXT == "frame" else [extension("_core", sources())]
    for name, directories in TESTS.items():
        wanted = TEST_EXT == "1" or (TEST_EXT == "frame" and name == "frametest")
        if wanted and os.path.exists(os.path.join(ROOT, f"csrc/mod/{name}.c")):
            made.append(extension(f"_{name}", [*sources(*directories), f"csrc/mod/{name}.c"]))
    return made


class BuildExt(build_ext):
    """Compiles in parallel, and only files whose source, headers or flags have changed."""

    def finalize_options(self):
        super().finalize_options()
        # A fixed path, so that `pip install -e`, which builds in a new directory, finds existing objects.
        names = [sys.implementation.cache_tag, *filter(None, SANITIZERS.split(","))]
        self.build_temp = os.path.join("build", "-".join(["obj", *names]))

    def build_extensions(self):
        done = {}
        compiler = self.compiler
        jobs = int(os.environ.get("CCOMPILE_JOBS", "0")) or min(2, os.cpu_count() or 1)

        def compile_all(
            files,
            output_dir=None,
            macros=None,
            include_dirs=None,
            debug=0,
            extra_preargs=None,
            extra_postargs=None,
            depends=None,
        ):
            macros, objects, post, pp_opts, build = compiler._setup_compile(
                output_dir, macros, include_dirs, files, depends, extra_postargs
            )
            cc_args = compiler._get_cc_args(pp_opts, debug, extra_preargs)
            stamp = " ".join([*map(shlex.quote, [*compiler.compiler_so, *cc_args, *post])])

            def one(obj):
                if obj in build and obj not in done and not fresh(obj, stamp):
                    source, ext = build[obj]
                    compiler._compile(obj, source, ext, cc_args, [*post, "-MMD", "-MF", obj + ".d"], pp_opts)
                    with open(obj + ".cmd", "w") as f:
                        f.write(stamp)
                done[obj] = True

            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(one, objects))
            return objects

        compiler.compile = compile_all
        self.force = True  # compile_all decides for each file; linking is fast
        super().build_extensions()
        if TEST_EXT != "frame":
            self.build_program(self.extensions[0])

    def build_program(self, core):
        """Builds _compiler with the flags of _core, whose objects it shares."""
        objects = self.compiler.compile(
            [*sources("base"), *PROGRAM_SHARES, PROGRAM],
            output_dir=self.build_temp,
            macros=core.define_macros + [(name,) for name in core.undef_macros],
            include_dirs=core.include_dirs,
            debug=self.debug,
            extra_postargs=core.extra_compile_args,
            depends=core.depends,
        )
        target = self.program_path(self.get_ext_fullpath(core.name))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self.compiler.link_executable(
            objects, target, libraries=core.libraries, debug=self.debug, extra_postargs=core.extra_link_args
        )

    @staticmethod
    def program_path(core):
        return os.path.join(os.path.dirname(core), "_compiler")

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        for source, built in self.programs().items():
            self.copy_file(built, source)

    def programs(self):
        """Path in an editable install -> path where it was built."""
        if TEST_EXT == "frame":
            return {}
        core = self.extensions[0]
        build_py = self.get_finalized_command("build_py")
        folder = build_py.get_package_dir("ccompile")
        built = os.path.join(self.build_lib, *self.get_ext_fullname(core.name).split("."))
        return {os.path.join(folder, "_compiler"): self.program_path(built)}

    def get_outputs(self):
        return [*super().get_outputs(), *self.programs().values()]

    def get_output_mapping(self):
        mapping = super().get_output_mapping()
        return {**mapping, **{built: source for source, built in self.programs().items()}} if mapping else mapping


def fresh(obj, stamp):
    """Whether an object file is newer than all its sources and was built with these flags."""
    try:
        with open(obj + ".cmd") as f:
            if f.read() != stamp:
                return False
        with open(obj + ".d") as f:
            made_from = shlex.split(f.read().replace("\\\n", " ").partition(":")[2])
        made = os.path.getmtime(obj)
        return all(os.path.getmtime(path) < made for path in made_from)
    except OSError:
        return False


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExt})
