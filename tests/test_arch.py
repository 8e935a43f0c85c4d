"""The shape of the source: the include DAG that csrc/README.md draws, narrow doors, sizes, names, no machine paths.

Nothing here imports ccompile or torch."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
FILES = sorted(p for p in CSRC.glob("*/*") if p.suffix in (".c", ".h", ".def", ".inc"))
TEST_MODULES = {"frametest.c", "tenstest.c"}
FRONT_HALF = {"py", "tens", "guard", "rec", "eval", "mod"}


def name_of(path):
    return f"{path.parent.name}/{path.name}"


def code_of(path):
    """Source without comments; string literals are kept, line numbers too."""
    text = path.read_text()
    return re.sub(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"',
        lambda m: m[0] if m[0].startswith('"') else re.sub(r"[^\n]", " ", m[0]),
        text,
        flags=re.S,
    )


def module_map():
    """directory -> (half, directories whose public header it may include), from the table of csrc/README.md."""
    rows = {}
    for line in (CSRC / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[1] in ("both", "core", "front"):
            rows[cells[0]] = (cells[1], cells[3])
    table = {}
    for directory, (half, allowed) in rows.items():
        allowed = re.sub(r"all of (\w+)", lambda m: ", ".join(d for d in rows if rows[d][0] in (m[1], "both")), allowed)
        table[directory] = (half, {word.strip() for word in allowed.split(",")} & set(rows) - {directory})
    return table


MAP = module_map()


def includes(path):
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', code_of(path), flags=re.M)


def test_map_names_every_directory():
    assert set(MAP) == {p.name for p in CSRC.iterdir() if p.is_dir()}
    assert {d for d, (half, _) in MAP.items() if half == "front"} == FRONT_HALF


def test_each_directory_has_a_page():
    """csrc/<directory>/README.md, which the map links; and the files that pages name exist."""
    overview = (CSRC / "README.md").read_text()
    known = {p.name for p in CSRC.glob("*/*")} | {"Python.h", "frame_3XX.c", "py/frame_3XX.c"}
    for directory in MAP:
        assert f"[{directory}]({directory}/README.md)" in overview, directory
    for page in (CSRC / "README.md", *(CSRC / directory / "README.md" for directory in MAP)):
        for named in re.findall(r"`((?:[\w/]+/)?\w+\.(?:c|h|def|inc))`", page.read_text()):
            assert named in known or ("/" in named and (CSRC / named).exists()), (
                f"{page.relative_to(ROOT)} names {named}"
            )


def test_map_is_acyclic_and_core_does_not_see_front():
    done = set()
    while len(done) < len(MAP):
        ready = {d for d, (_, allowed) in MAP.items() if d not in done and allowed <= done}
        assert ready, f"a cycle among {sorted(set(MAP) - done)}"
        done |= ready
    for directory, (half, allowed) in MAP.items():
        if half != "front":
            assert not allowed & FRONT_HALF, directory


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_includes_follow_the_map(path):
    half, allowed = MAP[path.parent.name]
    for own, system in includes(path):
        if system:
            if system in ("Python.h", "structmember.h", "frameobject.h", "opcode.h"):
                assert half == "front", f"{name_of(path)} is in the core half and includes <{system}>"
            continue
        assert not own.startswith("/"), f"{name_of(path)} includes by an absolute path"
        target = (path.parent / own).resolve()
        if own.startswith("internal/") or own.startswith("cpython/"):
            continue
        assert target.is_relative_to(CSRC), f'{name_of(path)} includes "{own}", which lies outside csrc'
        directory = target.parent.name
        if directory == path.parent.name:
            continue
        assert directory in allowed, f'{name_of(path)} includes "{own}": csrc/README.md does not let {path.parent.name}'
        public = target.name == f"{directory}.h" or target.suffix == ".def" or path.name in TEST_MODULES
        assert public, f'{name_of(path)} includes "{own}", which is private to {directory}'


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_narrow_doors(path):
    code = code_of(path)
    where = name_of(path)
    directory = path.parent.name
    if directory != "py":
        assert not re.search(r"\bPY_(VERSION_HEX|MINOR_VERSION|MAJOR_VERSION)\b", code), (
            f"{where} tests CPython's version"
        )
    if re.fullmatch(r"frame_3\d\d\.c", path.name):
        assert '#    include "frame.inc"' in code, f"{where} does not share what all versions have"
    if where != "py/frame.inc":
        assert '"frame.inc"' not in code or path.name.startswith("frame_3"), f"{where} opens CPython's internal headers"
        assert "internal/pycore" not in code, f"{where} includes CPython's internal headers"
        assert "Py_BUILD_CORE" not in code, f"{where} defines Py_BUILD_CORE"
    if where != "dev/dl.c" and directory != "tens":
        assert not re.search(r"include\s*<dlfcn\.h>", code), f"{where} includes <dlfcn.h>"
        assert not re.search(r"\bdl(open|sym|close|error)\s*\(", code), f"{where} calls the dynamic linker"
    if where != "py/raised.c":
        assert "PyErr_Clear" not in code, f"{where} may lose a KeyboardInterrupt: cc_raised_clear() keeps it"
    hides = re.search(r"\b(PyDict_GetItem(String)?|PyObject_HasAttr(String)?|PyMapping_HasKey(String)?)\s*\(", code)
    assert not hides, f"{where}: sys.unraisablehook runs for errors in {hides[1]}: cc_obj_item() and the like don't"
    if MAP[directory][0] != "front":
        assert not re.search(r"\b(Py[A-Z]\w*|_Py\w+)\b", code), f"{where} is in the core half and names CPython"
    assert not re.search(r"\bextern\s+\"C\"|std::|#\s*include\s*<(ATen|torch|c10)/", code), f"{where}: C++ or libtorch"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_size(path):
    lines = path.read_text().count("\n")
    assert lines < 800, f"{name_of(path)} has {lines} lines: split it"


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix != ".def"], ids=name_of)
def test_file_says_what_it_is(path):
    assert path.read_text().lstrip().startswith("/*"), f"{name_of(path)} has no comment at its top"


def test_headers_of_a_directory():
    for directory in MAP:
        for path in (CSRC / directory).glob("*.h"):
            # A part of the private header is one that builds on it.
            part = path.stem.startswith(f"{directory}_") and (f"{directory}_int.h", "") in includes(path)
            assert path.stem in (directory, f"{directory}_int") or part, name_of(path)


def test_file_stems_are_unique():
    seen = {}
    for path in FILES:
        if path.suffix == ".c":
            assert path.stem not in seen, f"{name_of(path)} and {seen[path.stem]} have one stem"
            seen[path.stem] = name_of(path)
    assert not any("util" in stem or "helper" in stem or "misc" in stem for stem in seen)


# Stems that two directories share: types and ops of tensors (ir) and of Python (py), a run of a frame (py) or a plan (run).
SHARED_STEMS = {"type": {"ir", "py"}, "op": {"ir", "py"}, "run": {"py", "run"}}
DEFINITION = re.compile(
    r"^(?P<head>[A-Za-z_][A-Za-z0-9_ \t*]*?[ \t*\n])(?P<name>[A-Za-z_]\w*)\((?P<args>[^;{}]*?)\)\s*\{", re.M
)


def external_functions(path):
    for found in DEFINITION.finditer(code_of(path)):
        head = found["head"].split()
        if "static" not in head and head[0] not in ("else", "return", "do", "if", "while", "switch", "for"):
            yield found["name"]


def test_external_functions_are_named_after_their_place():
    """cc_<stem>_<verb>; a stem belongs to one directory, so a symbol tells where it lives."""
    homes = {}
    for path in FILES:
        if path.suffix != ".c":
            continue
        for name in external_functions(path):
            if name.startswith("PyInit_"):
                assert path.parent.name == "mod", f"{name} in {name_of(path)}"
                continue
            if name == "main":
                assert name_of(path) == "dev/compiler.c"
                continue
            # A last part in capitals is a row's id, pasted by an X-macro: cc_ex_GLOBAL.
            assert re.fullmatch(r"cc_[a-z0-9]+(_[a-z0-9]+)*(_[A-Z0-9_]+)?", name), f"{name} in {name_of(path)}"
            stem = name.split("_")[1]
            if path.parent.name not in SHARED_STEMS.get(stem, ()):
                home = homes.setdefault(stem, path)
                where = f"cc_{stem}_* is defined in {name_of(home)} and in {name_of(path)} ({name})"
                assert home.parent == path.parent, where


def test_one_frame_file_per_served_version():
    """setup.py compiles exactly one of them; a file for a version that is not served would never be tested."""
    text = (ROOT / "setup.py").read_text()
    served = re.search(r"SUPPORTED = \((.*)\)\n", text)[1]
    versions = {f"{a}{b}" for a, b in re.findall(r"\((\d+), (\d+)\)", served)}
    present = {p.stem.removeprefix("frame_") for p in (CSRC / "py").glob("frame_3*.c")}
    if present:
        assert present == versions
    package = (ROOT / "python/ccompile/_setup.py").read_text()
    assert f"SUPPORTED = ({served})" in package, "setup.py and the package serve different versions"


def own_text_files():
    for top in ("csrc", "python", "tests", "benchmarks", "notebooks", ".ci"):
        yield from (p for p in sorted((ROOT / top).rglob("*")) if p.is_file())
    yield from (p for p in sorted(ROOT.iterdir()) if p.is_file() and p.name != ".git")  # a worktree's is git's own


def test_no_machine_paths_and_no_hosts():
    """Nothing names this machine's folders or a package registry's host."""
    path_of_a_machine = re.compile(r"(?<![\w.$}~-])/(work|root|home|opt|Users|mnt|data)/[\w.-]+")
    host = re.compile(r"\b(pypi|pythonhosted|deb\.debian|download\.pytorch|proxy\.golang)\.(org|net|com)\b")
    for path in own_text_files():
        if (
            path.suffix in (".so", ".pyc")
            or path.name == "_compiler"
            or "__pycache__" in path.parts
            or ".egg-info" in str(path)
        ):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if path.resolve() == pathlib.Path(__file__).resolve():
            continue
        for pattern in (path_of_a_machine, host):
            found = pattern.search(text)
            assert not found, f"{path.relative_to(ROOT)} names {found[0]!r}"


def test_readme_commands_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for command in re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert command in targets, f"README.md names `make {command}`"
    assert "make test" in (ROOT / ".ci/run").read_text()


def documented(title):
    """The names in the first cells of the table under this title of docs/settings.md."""
    part = (ROOT / "docs/settings.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert part, f"docs/settings.md has no part {title!r}"
    return [name for row in re.findall(r"^\| (`.*?) \|", part, flags=re.M) for name in re.findall(r"`(\w+)`", row)]


def test_each_knob_is_documented():
    rows = re.findall(r"^CC_KNOB\((\w+), (\w+), (\d+),", (CSRC / "eval/policy.def").read_text(), flags=re.M)
    assert documented("Knobs") == [name for name, _, _ in rows]
    text = (ROOT / "docs/settings.md").read_text()
    for name, kind, default in rows:
        shown = default if kind == "INT" else ("off", "on")[int(default)]
        assert f"| `{name}` | {shown} |" in text, f"docs/settings.md has another default of {name} than {shown}"


def test_each_environment_variable_is_documented():
    """What the code reads, by getenv or by our prefix, is what the tables say: nothing is secret, nothing is left over."""
    use, rest = documented("Environment: use"), documented("Environment: build and tests")
    sources = [
        p for p in own_text_files() if p.suffix in (".c", ".h", ".inc", ".py", ".cc", ".ipynb") or p.name == "Makefile"
    ]
    read = set()
    for path in sources:
        if "__pycache__" not in path.parts and path.name != pathlib.Path(__file__).name:
            read |= set(re.findall(r"\bCCOMPILE_[A-Z_]*[A-Z]\b", path.read_text()))
    assert read == set(use) | set(rest), (
        f"only in the code or only in docs/settings.md: {read ^ (set(use) | set(rest))}"
    )
    in_product = {name for path in FILES for name in re.findall(r'\bgetenv\("(\w+)"\)', path.read_text())}
    in_product |= {
        n
        for p in (ROOT / "python/ccompile").glob("*.py")
        for n in re.findall(r'environ(?:\.get\(|\[)"(CCOMPILE_\w+)"', p.read_text())
    }
    words = set(re.findall(r"`[$]?(\w+)[/`]", (ROOT / "docs/settings.md").read_text()))
    assert {name for name in in_product if name.startswith("CCOMPILE_")} == set(use)
    assert in_product - {"HOME"} <= words, f"docs/settings.md does not tell of {in_product - {'HOME'} - words}"
