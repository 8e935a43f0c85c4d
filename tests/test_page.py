"""The pictures and pages of an Explanation, and `python -m ccompile explain`: structure of the HTML (html.parser), DOT,
layout, scripts that are run and explained."""

import contextlib
import html.parser
import io
import pathlib
import re
import shutil
import subprocess
import sys

import ccompile
import pytest
import torch
from ccompile import __main__ as command_line
from ccompile import drawing
from conftest import EAGER
from torch import nn

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")
VOID = {"meta", "br", "hr", "img", "link", "input"}


# ---- what is explained ---------------------------------------------------------------------------------------------------
class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = torch.relu(self.fc(x))  # compiled
        print("<b>not a tag</b>", y.shape)  # broken: print
        if y.mean() > -1:  # broken: tensor_branch
            y = y * 2
        n = int(y.sum() * 0 + 2)  # broken: tensor_value
        return y.reshape(n, -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.bn(self.conv1(x)))) + x)


def explained(fn, *args, grad=False):
    ccompile.reset()
    with torch.set_grad_enabled(grad), contextlib.redirect_stdout(io.StringIO()):
        return ccompile.explain(fn, *args)


CASES = {
    "breaks": lambda: explained(Broken(), torch.ones(4, 4)),
    "block": lambda: explained(Block().eval(), torch.randn(1, 4, 8, 8)),
    "training": lambda: explained(nn.TransformerEncoderLayer(16, 2, 32), torch.randn(3, 2, 16), grad=True),
    "empty": lambda: explained(lambda x: x, torch.ones(3)),
}


@pytest.fixture(scope="module")
def told():
    return {name: make() for name, make in CASES.items()}


# ---- HTML ------------------------------------------------------------------------------------------------------------------
class Page(html.parser.HTMLParser):
    """Checks that tags are balanced; keeps elements as (tag, attributes, text inside)."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.problems = [], [], []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag, _, _ in self.open]

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.problems.append(f"</{tag}> closes {self.open[-1][0] if self.open else None}")
        else:
            self.open.pop()

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)

    def find(self, tag, kind=None):
        return [
            (attributes, "".join(text))
            for name, attributes, text in self.elements
            if name == tag and (kind is None or kind in (attributes.get("class") or "").split())
        ]


def page_of(told, tmp_path):
    path = tmp_path / "report.html"
    told.to_html(path)
    return path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_page_is_whole_and_stands_alone(told, name, tmp_path):
    text = page_of(told[name], tmp_path)
    page = Page(text)
    assert not page.problems and text.startswith("<!DOCTYPE html>")
    tags = {tag for tag, _, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "base"}
    assert "prefers-color-scheme: dark" in text and "url(" not in text and "@import" not in text
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in page.elements:
        assert not any(key.startswith("on") or key == "src" for key in attributes)
        assert attributes.get("href", "#").startswith("#") and attributes.get("href", "#")[1:] in ["", *ids]
        scrolls = "scroll" in (attributes.get("class") or "").split()
        assert not scrolls or attributes.get("tabindex") == "0"  # whatever scrolls can be reached by keyboard
    assert all(attributes.get("tabindex") == "0" for attributes, _ in page.find("pre"))


@pytest.mark.parametrize("name", CASES)
def test_page_shows_all_graphs_and_counts(told, name, tmp_path):
    one = told[name]
    page = Page(page_of(one, tmp_path))
    cards = dict(re.fullmatch(r"([\d.]+(?: \w+)?)(\D+)", text).group(2, 1) for _, text in page.find("li"))
    assert (cards["graphs"], cards["graph breaks"], cards["tensor ops"]) == tuple(
        map(str, (one.graph_count, one.break_count, one.node_count))
    )
    pictures = page.find("svg")
    assert len(pictures) == one.graph_count and all(attributes["aria-label"] for attributes, _ in pictures)
    shown = sum(not drawing.is_weight(node) for graph in one.graphs for node in graph.nodes)
    assert len(page.find("g", "node")) == shown
    texts = [text for _, text in page.find("pre")]
    for graph in one.graphs:
        assert "\n".join(graph.guards) in texts and str(graph) in texts
        assert graph.print_readable(print_output=False) in texts
    if name == "training":
        assert [text for _, text in page.find("h3")][1:] == ["stage 0 forward", "stage 0 backward"]


def test_source_lines_are_marked(told, tmp_path):
    page = Page(page_of(told["breaks"], tmp_path))
    source = pathlib.Path(__file__).read_text().splitlines()
    rows = [(attributes["class"].split()[1:], text) for attributes, text in page.find("div", "line")]
    kinds = {}
    for kind, text in rows:
        number = int(re.match(r"\d+", text)[0])
        assert source[number - 1] in text
        kinds[source[number - 1].partition("  # ")[2].partition(":")[0]] = kind
    assert kinds["compiled"] == ["compiled"] and kinds["broken"] == ["broken"]
    notes = [text for _, text in page.find("div", "note")]
    reasons = re.findall(r"# broken: (\w+)", "\n".join(source))
    assert len(notes) == len(reasons) == 3 and all(reason in note for reason, note in zip(reasons, notes, strict=True))
    pairs = page.find("div", "pair")
    assert len(pairs) >= 3 and all("instead of" in text and "write" in text for _, text in pairs)
    assert any("<b>not a tag</b>" in text for _, text in rows)  # as text, not as a tag


# ---- pictures ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_dot_is_dot(told, name):
    text = told[name].to_dot()
    if shutil.which("dot"):
        assert subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True).returncode == 0
        assert "<svg" in told[name].to_svg()
    statement = r'(?P<id>\w+)(?: -> (?P<to>\w+))?(?: \[(?:\w+=(?:"(?:[^"\\]|\\.)*"|[\w.]+)(?:, )?)*\])?;'
    made, used = set(), set()
    for line in map(str.strip, text.splitlines()):
        found = re.fullmatch(statement, line)
        if found and found["to"]:
            used |= {found["id"], found["to"]}
        elif found and found["id"] not in ("graph", "node", "edge"):
            made.add(found["id"])
        else:
            assert found or re.fullmatch(r'digraph \w+ \{|subgraph \w+ \{|label="(?:[^"\\]|\\.)*";|\}', line), line
    assert used <= made and len(made) >= sum(len(graph.nodes) for graph in told[name].graphs)


def test_svg_without_graphviz_is_a_clear_error(told, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="to_svg needs graphviz's program dot"):
        told["block"].to_svg()


@pytest.mark.parametrize("name", CASES)
def test_boxes_do_not_overlap_and_edges_lead_down(told, name):
    for graph in told[name].graphs:
        layers, edges = drawing.layout(graph)
        for i, layer in enumerate(layers):
            assert all(box.layer == i for box in layer)
            ordered = sorted(layer, key=lambda box: box.x)
            for left, right in zip(ordered, ordered[1:], strict=False):
                assert left.x + left.width / 2 < right.x - right.width / 2
        for points in edges:
            heights = [y for _, y in points]
            assert heights == sorted(heights) and len(set(heights)) == len(heights)


# ---- the command ---------------------------------------------------------------------------------------------------------------
SCRIPT = """
import sys
import torch

@torch.compile
def doubled(x):
    y = x * 2
    print("sum", y.sum().item())
    return y + 1

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * float(sys.argv[1])

def inner():
    torch.compile(lambda x: x + 1)  # never called
    return torch.compile(Net())(torch.ones(3))

if __name__ == "__main__":
    doubled(torch.ones(3))
    print("result", inner().tolist())
    {end}
"""


@pytest.mark.parametrize(
    "end, status, said",
    [("", 0, ""), ("sys.exit(4)", 4, ""), ("sys.exit('no')", 1, "no\n"), ("x = 1 / 0", 1, "ZeroDivisionError")],
)
def test_a_script_is_run_and_explained(end, status, said, tmp_path, capsys):
    script, page = tmp_path / "train.py", tmp_path / "out.html"
    script.write_text(SCRIPT.replace("{end}", end))
    before = torch.compile, list(sys.argv), list(sys.path)
    assert command_line.main(["explain", "--html", str(page), "--guards", str(script), "2.5", "--guards"]) == status
    assert (torch.compile, sys.argv, sys.path) == before
    out, err = capsys.readouterr()
    assert "result [2.5, 2.5, 2.5]" in out
    assert re.findall(r"^(\w+): (\d) graph", out, re.M) == [("doubled", "2"), ("Net", "1")]  # and guards of each
    assert f"{script}:8 in doubled" in out or "train.py:8 in doubled" in out
    assert out.count("graph 1:") == 2
    assert said in err and "ccompile/script.py" not in err
    if said.startswith("Zero"):
        assert re.search(r'Traceback.*:\n  File ".*train.py", line \d+, in <module>', err)
    found = Page(page.read_text())
    assert not found.problems and len(found.find("svg")) == 3
    assert {text for _, text in found.find("a")} == {"doubled", "Net"}


def test_a_script_that_compiles_nothing(tmp_path, capsys):
    script = tmp_path / "plain.py"
    script.write_text("import torch\nprint(torch.ones(2) + 1)\n")
    assert command_line.main(["explain", str(script)]) == 0
    assert "called nothing that was compiled" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no such file"):
        command_line.main(["explain", str(tmp_path / "none.py")])


def test_a_function_of_a_file_as_dot(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def f(x):\n    return x * 2\n")
    assert command_line.main(["explain", f"{tmp_path}/mine.py:f", "--input", "3", "--dot"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("digraph") and "Graph Count" not in out
