"""Each notebook in notebooks/ runs from first to last cell at small size, and is stored in git without outputs."""

import pathlib

import ccompile
import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow
NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def read(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    return book, [cell for cell in book.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path):
    book, cells = read(path)
    for cell in cells:
        assert not cell.outputs and cell.execution_count is None, f"{path.name}: clear all outputs before it is committed"
    assert set(book.metadata) <= {"kernelspec", "language_info"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_small(path, tmp_path, monkeypatch):
    """A cell that raises fails the test with its traceback; what was drawn are images."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(ccompile.__file__).parents[1]))  # the build that is tested
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # several wait for one another where the machine has other work
    monkeypatch.setenv("CCOMPILE_NOTEBOOK_SMALL", "1")
    monkeypatch.setenv("CCOMPILE_NOTEBOOK_PEERS", "0")
    if path.stem == "001_profiling":
        pytest.importorskip("scipy")
    book, cells = read(path)
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    lines = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stderr").splitlines()
    assert [line for line in lines if not line.startswith("USDT:")] == []  # torch's profiler says when it starts and stops
