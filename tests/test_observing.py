"""docs/observing.md: each of its blocks of Python and of shell commands runs."""

import json
import logging
import os
import pathlib
import re
import subprocess
import sys

import ccompile
import pytest
import torch
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")
PAGE = (pathlib.Path(__file__).parent.parent / "docs/observing.md").read_text()
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
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_python_blocks(tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    model = ccompile.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
    names = {"ccompile": ccompile, "torch": torch, "logging": logging, "model": model, "x": torch.randn(4, 8)}
    try:
        for block in blocks("python"):
            exec(block, names)
    finally:
        ccompile.metrics.enable(False)
    assert (tmp_path / "ccompile.jsonl").exists() and json.loads((tmp_path / "trace.json").read_text())


def commands():
    return [line for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def run(command):
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.parametrize("command", commands())
def test_commands(run, tmp_path, command):
    done = run(command)
    assert done.returncode == 0, done.stderr
    if "breaks,recompiles" in command:
        sample = re.search(r"^```\n(\[ccompile.breaks\].*?)^```", PAGE, flags=re.M | re.S)[1]
        printed = done.stderr.replace(f"{tmp_path}/", "").splitlines()
        assert set(sample.splitlines()) <= set(printed), "the page shows what is printed"
    if "logs/" in command:
        assert len(list((tmp_path / "logs").glob("ccompile-*.jsonl"))) == 1
    if "traces/" in command:
        (trace,) = (tmp_path / "traces").glob("ccompile-*.json")
        assert json.loads(trace.read_text())["traceEvents"]
