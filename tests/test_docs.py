"""Each command and each block of Python in README.md, CONTRIBUTING.md and docs/ runs, and samples of output are what is
printed.

Commands of ccompile's run as they stand. Those of UNTRIED are not run, for the reason given there. Of any other, which builds,
tests or measures, the targets of make and the arguments of scripts are checked: `make -n`, and argparse."""

import json
import logging
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import ccompile
import pytest
import torch
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")
ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "notebooks/README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", flags=re.M | re.S)
COMMAND = re.compile(r"^(CCOMPILE_\w+=\S* )*(python |make |jupyter |pip |benchmarks/bench_\w+\.py)")
UNTRIED = {
    "pip install .": "installs",
    "pip install '.[bench]'": "installs",
    "pip install 'ccompile[metrics]'": "installs",
    "pip install 'ccompile[regression]'": "installs",
    "jupyter nbconvert --clear-output --inplace notebooks/*.ipynb": "writes to the notebooks",
}
MODEL = """
import torch, ccompile

class Net(torch.nn.Module):
    def forward(self, x):
        y = (x * 2).relu()

        print(end="")
        return y + 1

model = ccompile.compile(Net())
for n in (2, 2, 3):
    model(torch.ones(n, 8))


def f(x):
    return x.sin() + 1
"""
EXPLAINED = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = torch.relu(self.linear(x)) * 2
        m = y.mean().item()
        return y * m + 1
"""


def blocks(page, *languages):
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def samples(page):
    return [text for text in blocks(page, "") if not any(map(COMMAND.match, text.splitlines()))]


def commands():
    """(page, command): from blocks of the shell, and from `inline code` that begins as a command does."""
    found = {}
    for page in PAGES:
        lines = [line for text in blocks(page, "sh", "") for line in text.splitlines()]
        text = FENCE.sub("", page.read_text())
        inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
        for line in lines + inline:
            command = re.split(r"\s+#", line)[0].strip()
            if COMMAND.match(command) and not re.search(r"\[.*\] SCRIPT|ARGS|\.\.\.", command):
                found.setdefault(command, page.name)
    return found


def is_own(command):
    return re.search(r"\bpython (-m ccompile|model\.py)", command)


OWN = [command for command in commands() if is_own(command)]
OTHERS = [command for command in commands() if not is_own(command) and command not in UNTRIED]


def test_untried_commands_are_on_a_page():
    assert UNTRIED.keys() <= commands().keys()


# ---------------------------------------------------------------------- Python


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks(page, tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    names = {"ccompile": ccompile, "torch": torch, "logging": logging, "x": torch.randn(4, 8)}
    names |= {name: model for name in ("full", "medium", "fast")}
    names["model"] = ccompile.compile(model) if page.name == "observing.md" else model
    try:
        for block in blocks(page, "python"):
            if "to_svg" in block and shutil.which("dot") is None:
                block = "".join(line for line in block.splitlines(keepends=True) if "to_svg" not in line)
            exec(block, names)
    finally:
        ccompile.metrics.enable(False)
        ccompile.set_logs()
        ccompile.uninstall()
    made = {"observing.md": ["ccompile.jsonl", "trace.json"], "explain.md": ["report.html"]}
    assert all((tmp_path / name).exists() for name in made.get(page.name, []))


# ---------------------------------------------------------------------- commands


@pytest.fixture
def run(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(MODEL)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def run(command, **kwargs):
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        kwargs = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True, "timeout": 300} | kwargs
        return subprocess.run(["sh", "-c", command], **kwargs)

    return run


def leaves_files(command, folder):
    """What a command of docs/observing.md or docs/explain.md has to leave."""
    if "CCOMPILE_LOGS_OUT=logs/" in command:
        assert len(list((folder / "logs").glob("ccompile-*.jsonl"))) == 1
    if "CCOMPILE_TRACE=traces/" in command:
        (trace,) = (folder / "traces").glob("ccompile-*.json")
        assert json.loads(trace.read_text())["traceEvents"]
    if "--html out.html" in command:
        assert "<html" in (folder / "out.html").read_text()


@pytest.mark.parametrize("command", [command for command in OWN if "ccompile bench" not in command])
def test_commands(run, tmp_path, command):
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert "usage:" not in done.stdout + done.stderr
    leaves_files(command, tmp_path)
    if "breaks,recompiles" in command:
        (sample,) = [text for text in samples(ROOT / "docs/observing.md") if text.startswith("[ccompile.breaks]")]
        printed = done.stderr.replace(f"{tmp_path}/", "").splitlines()
        assert set(sample.splitlines()) <= set(printed), "the page shows what is printed"


def test_commands_of_bench():
    """tests/test_bench.py runs the command."""
    from ccompile import bench

    found = [shlex.split(command)[4:] for command in OWN if "ccompile bench" in command]
    assert len(found) == 3
    for argv in found:
        args = bench.parser().parse_args(argv)
        assert args.what == "model.py:Net" and args.batch == [1, 32] and (args.save or args.against) == "baseline.json"


def test_sample_of_explain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(EXPLAINED)
    names = {}
    exec(compile(EXPLAINED, "model.py", "exec"), names)
    with torch.no_grad():
        shown = str(ccompile.explain(names["Net"]())(torch.randn(3, 4))).splitlines()
    (sample,) = [text for text in samples(ROOT / "docs/explain.md") if text.startswith("Net: ")]
    missing = [line for line in sample.splitlines() if line not in shown and "plan: " not in line]  # that varies by CPU
    assert not missing, "\n".join(shown)


# ---------------------------------------------------------------------- what builds, tests and measures

PARSE = """
import argparse, json, os, runpy, sys
own = argparse.ArgumentParser.parse_args
def parse(self, *given, **named):
    own(self, *given, **named)
    raise KeyboardInterrupt  # the arguments are accepted: nothing more is wanted
argparse.ArgumentParser.parse_args = parse
for argv in json.loads(sys.argv[1]):
    sys.argv, sys.path[0] = argv, os.path.dirname(argv[0])
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except KeyboardInterrupt:
        continue
    raise SystemExit(f"{argv} was not refused, and argparse did not see it")
"""


def scripts(text):
    """The benchmarks' command lines in what make would run, or in a command itself."""
    found = []
    for line in text.splitlines():
        script = re.search(r"(?:^|\s)(benchmarks/\w+\.py.*)", line)
        if script:
            found.append(shlex.split(script[1]))
    return found


def test_other_commands():
    """Their targets exist, their scripts take their arguments."""
    lines = []
    for command in OTHERS:
        words = shlex.split(command)
        if words[0] == "make":
            done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            lines += scripts(done.stdout)
        elif words[:2] == ["python", "-m"]:
            where = [ROOT / "tests"] if words[2].startswith("fuzz.") else [ROOT / "python"]
            assert words[2] == "pytest" or any((folder / (words[2].replace(".", "/") + ".py")).exists() for folder in where)
            assert all((ROOT / word).exists() for word in words[3:] if word.endswith(".py")), command
        else:
            lines += scripts(command)
    assert len(lines) >= 10
    done = subprocess.run([sys.executable, "-c", PARSE, json.dumps(lines)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
