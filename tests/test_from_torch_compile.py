"""docs/from_torch_compile.md: what its first column names is torch's, and its second runs."""

import pathlib
import re

import ccompile
import pytest
import torch
from torch import nn

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "from_torch_compile.md"
ROWS = re.findall(r"^\| `(.*?)` \| `(.*?)` \|", PAGE.read_text(), re.MULTILINE)


def f(x):
    return torch.relu(x) + 1


@pytest.fixture(autouse=True)
def _clean():
    yield
    ccompile.uninstall()
    ccompile.set_stance("default")
    torch._dynamo.reset()


def test_every_row_is_read():
    assert len(ROWS) == sum(line.startswith("| `") for line in PAGE.read_text().splitlines()) > 40


@pytest.mark.parametrize(("theirs", "ours"), ROWS, ids=[theirs for theirs, _ in ROWS])
def test_row(theirs, ours):
    name = re.match(r"[\w.]+", theirs)[0]
    found = {"torch": torch, "model": nn.Linear(4, 4)}[name.split(".")[0]]
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    space = {"torch": torch, "ccompile": ccompile, "f": f, "model": nn.Linear(4, 4), "x": torch.randn(3, 4)}
    with ccompile.installed():
        result = eval(ours, space)
    if callable(result) and "compile(" in ours:
        torch.testing.assert_close(result(space["x"]), (space["model"] if "model" in ours else f)(space["x"]))
