"""benchmarks/tables.py: measurements of several processors as tables of one page."""

import importlib
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("tables")
    for name in ("tables", "bench_models"):
        sys.modules.pop(name)


def measured(cpu, flags, **speedups):
    machine = {"cpu": cpu, "cpu_model": "25-17-1", "flags": flags, "threads": 2}
    machine |= {"torch": "2.13.0", "python": "CPython 3.11.9", "ccompile": "0.1.0"}
    rows = []
    for compiler, by_model in speedups.items():
        for name, speedup in by_model.items():
            row = {"workload": name, "input": "1x8", "compiler": compiler.replace("_", "-"), "threads": 2}
            rows.append(row | ({"missing": "not installed"} if speedup is None else {"eager_ms": 4.0, "ms": 1.0, "speedup": speedup}))
    return {"machine": machine, "rows": rows}


PAGE = "before\n<!-- machines: benchmarks/tables.py draws this -->\nold\n<!-- end of machines -->\nafter\n"


def test_machines_side_by_side(tables, tmp_path, monkeypatch):
    one = measured("AMD X", ["avx2", "avx512f"], ccompile={"Net": 2.0, "Big": 8.0}, ccompile_max={"Net": 3.0}, openvino={"Net": None})
    other = measured("Intel Y", ["avx2"], ccompile={"Net": 1.5, "New": 1.0})
    results, page = tmp_path / "results", tmp_path / "page.md"
    results.mkdir()
    for name, found in (("a", one), ("b", other)):
        (results / f"{name}.json").write_text(json.dumps(found))
    page.write_text(PAGE)
    monkeypatch.setattr(sys, "argv", ["tables.py", "--results", str(results), "--page", str(page)])
    for _ in range(2):  # drawn again, it is the same
        assert tables.main() == 0
        text = page.read_text()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
        assert cells[2:4] == [
            ["A", "AMD X", "25-17-1", "AVX-512", "2", "2.13.0", "3.11.9", "0.1.0"],
            ["B", "Intel Y", "25-17-1", "AVX2", "2", "2.13.0", "3.11.9", "0.1.0"],
        ]
        assert cells[4] == ["workload", "input", "A: eager ms", "A: ccompile", "A: max", "B: eager ms", "B: ccompile"]
        assert cells[6:] == [
            ["Net", "1x8", "4.000", "2.00", "3.00", "4.000", "1.50"],
            ["Big", "1x8", "4.000", "8.00", "", "", ""],
            ["New", "1x8", "", "", "", "4.000", "1.00"],
            ["geomean", "", "", "4.00", "3.00", "", "1.22"],
        ]
        assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text


def test_nothing_to_draw(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tables.py", "--results", str(tmp_path)])
    assert tables.main() == 1 and "make bench" in capsys.readouterr().err
    with pytest.raises(ValueError, match="lacks the lines"):
        tables.drawn("a page", [measured("AMD X", [], ccompile={"Net": 2.0})])


def test_a_measurement_is_kept_by_processor(tables, tmp_path):
    rows = measured("AMD X", [], ccompile={"Net": 2.0})["rows"]
    path = sys.modules["bench_models"].keep(tmp_path / "new", rows)
    kept = json.loads(path.read_text())
    assert kept["rows"] == rows and kept["machine"]["threads"] == 2
    assert path.stem and path.stem.strip("-").isascii() and " " not in path.stem
    assert path.stem.endswith(kept["machine"]["cpu_model"])  # processors that share a name have files of their own
    assert tables.of_models([kept]).count("\n") == 3


def test_the_page_has_the_marks(tables):
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert text.count(tables.BEGIN) == text.count(tables.END) == 1
    results = sorted((ROOT / "benchmarks/results").glob("*.json"))
    found = [json.loads(path.read_text()) for path in results]
    assert not found or tables.drawn(text, found) == text, "`make bench-tables` draws the page anew"
