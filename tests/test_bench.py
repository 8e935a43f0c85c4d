"""python -m ccompile bench, and the comparison of two measurements. docs/bench.md describes both."""

import json
import os
import subprocess
import sys

import pytest
import torch
from ccompile import bench, machine, regression, target
from conftest import EAGER

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(8, 8)

    def forward(self, x):
        print("a line of the program's own")
        return torch.tanh(self.l(x))
"""


def samples(mean, spread):
    return [mean * (1 + spread * i) for i in (-2, -1, 0, 1, 2)]


def row(compiled, cold=(10.0, 0.01), memory=10.0, breaks=0, loss=1e-6, batch=8, mode="default"):
    """A row of a measurement whose five processes took these times (mean, relative step), next to eager's 1 ms."""
    found = [
        {"cold_ms": first, "warm_ms": [], "eager_ms": 1.0, "compiled_ms": ms, "memory_mib": memory}
        for first, ms in zip(samples(*cold), samples(*compiled))
    ]
    return {"batch": batch, "mode": mode, "processes": found, "breaks": breaks, "accuracy_loss": loss}


def measured(*rows, **differs):
    return {"what": "net", "machine": machine.describe() | differs, "rows": list(rows)}


BEFORE = dict(compiled=(0.5, 0.01))


@pytest.mark.parametrize(
    ("after", "failures", "warnings"),
    [
        (BEFORE, [], []),
        (dict(compiled=(0.4, 0.01)), [], []),  # faster
        (dict(compiled=(0.6, 0.01)), ["calls take 20.0% longer"], []),
        (dict(compiled=(0.515, 0.005)), [], ["calls take 3.0% longer"]),
        (dict(compiled=(0.6, 0.3)), [], []),  # chance
        (BEFORE | dict(cold=(15.0, 0.01)), [], ["first calls take 50% longer"]),
        (BEFORE | dict(cold=(12.0, 0.01)), [], []),
        (BEFORE | dict(memory=12.0), [], ["peak memory grew by 2.0 MiB"]),
        (BEFORE | dict(memory=10.9), [], []),
        (BEFORE | dict(breaks=2), ["graph breaks: 0 before, 2 now"], []),
        (BEFORE | dict(loss=2e-3), ["accuracy: the error grew from 1.0e-06 to 2.0e-03"], []),
        (BEFORE | dict(loss=9e-4), [], []),
    ],
)
def test_what_is_worse(after, failures, warnings):
    pytest.importorskip("scipy")
    (verdict,) = regression.compare(measured(row(**BEFORE)), measured(row(**after)))
    assert [*verdict.failures] == failures and [*verdict.warnings] == warnings
    for text in failures + warnings or ["no regression"]:
        assert text in str(verdict)


def test_a_slower_machine_is_no_regression():
    pytest.importorskip("scipy")
    slow = measured(row(**BEFORE))
    for one in slow["rows"][0]["processes"]:
        one.update({key: 3 * one[key] for key in ("cold_ms", "eager_ms", "compiled_ms")})
    (verdict,) = regression.compare(measured(row(**BEFORE)), slow)
    assert not verdict.failures + verdict.warnings


def test_effect_and_probability_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    a, b = [1.0, 1.1, 1.3, 0.9], [1.4, 1.2, 1.6]
    found = regression.difference(a, b)
    assert found.p_value == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert found.cohens_d == pytest.approx((1.4 - 1.075) / ((0.1707825**2 + 0.2**2) / 2) ** 0.5, rel=1e-6)
    assert (found.effect, found.significant, found.change) == ("large", found.p_value < 0.05, pytest.approx(0.325 / 1.075))


@pytest.mark.parametrize(("after", "p_value", "significant"), [(1.0, 1.0, False), (2.0, 0.0, True)])
def test_samples_without_spread(after, p_value, significant):
    pytest.importorskip("scipy")
    found = regression.difference([1.0, 1.0], [after, after])
    assert (found.p_value, found.significant) == (p_value, significant)


def test_rows_are_matched_by_batch_and_mode():
    pytest.importorskip("scipy")
    before = measured(row(**BEFORE, batch=1), row(**BEFORE, batch=8), row(**BEFORE, mode="max-autotune"))
    after = measured(row((0.9, 0.01), batch=1), row(**BEFORE, batch=64), row(**BEFORE, mode="max-autotune"))
    verdicts = regression.compare(before, after)
    assert [(one.name, bool(one.failures)) for one in verdicts] == [("batch 1, default", True), ("batch 8, max-autotune", False)]
    with pytest.raises(ValueError, match="in common"):
        regression.compare(before, measured(row(**BEFORE, batch=3)))
    with pytest.raises(ValueError, match="two samples"):
        regression.difference([1.0], [1.0, 2.0])


@pytest.mark.skipif(EAGER, reason="nothing is compiled")
def test_the_command(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    options = ["net.py:Net", "--input=2x8", "--batch=1,4", "--processes=2", "--calls=3", "--save=base.json"]
    command = [sys.executable, "-m", "ccompile", "bench", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| default |") == 2 and "of the program's own" not in done.stdout
    base = json.loads((tmp_path / "base.json").read_text())
    assert [(one["batch"], one["mode"], one["input"], len(one["processes"])) for one in base["rows"]] == [
        (1, "default", "[1, 8]", 2),
        (4, "default", "[4, 8]", 2),
    ]
    for one in base["rows"]:
        assert one["p50_ms"] <= one["p95_ms"] <= one["p99_ms"] and one["cold_ms"] > one["p50_ms"] > 0
        assert one["breaks"] == 1 and one["accuracy_loss"] < 1e-4 and one["memory_mib"] >= 0
    assert base["machine"]["cpu"] and base["machine"]["torch"] == torch.__version__


def test_the_command_compares(tmp_path, monkeypatch, capsys):
    pytest.importorskip("scipy")
    cost = {"input": "[2, 8]", "cold_ms": 9.0, "warm_ms": [], "eager": [1.0, 1.0], "compiled": [0.5, 0.6]}
    found = {"batch": None, "mode": "default", "cost": cost, "memory_mib": 1.0, "accuracy_loss": 0.0, "breaks": 0}
    monkeypatch.setattr(bench, "_process", lambda task: [found])
    base, report, options = tmp_path / "base.json", tmp_path / "report.md", ["net", "--processes=2"]
    assert bench.run([*options, f"--save={base}"]) == 0
    assert bench.run([*options, f"--against={base}"]) == 0
    assert capsys.readouterr().out.strip().endswith("passed")
    found["breaks"] = 1
    kept = json.loads(base.read_text())
    base.write_text(json.dumps(kept | {"machine": kept["machine"] | {"cpu": "an older one"}}))
    assert bench.run([*options, f"--against={base}", f"--report={report}"]) == 1
    shown = capsys.readouterr().out
    assert "cpu: an older one before" in shown and "graph breaks: 0 before, 1 now" in shown
    assert shown.strip().endswith("failed: default")
    assert "| speed-up |" in report.read_text()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["net.py:Net", "--mode=fast"], "unknown mode 'fast'; there are: default"),
        *(
            (["net.py:Net", f"{option}={value}"], f"argument {option}: '{value.split(',')[-1]}' is not a whole number above 0")
            for option, value in (("--batch", "1,0"), ("--batch", "x"), ("--calls", "0"), ("--processes", "0"), ("--threads", "-1"))
        ),
        (["net.py:Net", "--save=x.json", "--processes=1"], "a process is a sample"),
        (["nothing.py:Net", "--processes=1"], "could not be measured"),
    ],
)
def test_bad_options(options, text, capfd):
    with pytest.raises(SystemExit) as end:
        bench.run(options)
    assert text in f"{end.value} {capfd.readouterr().err}"


@pytest.mark.parametrize("batch", (1, 3, 8))
def test_batches_repeat_the_inputs(batch):
    x, n, flat = torch.arange(6.0).reshape(3, 2), 5, torch.tensor(2.0)
    got = bench.batched((x, n, flat), batch)
    assert got[0].shape == (batch, 2) and torch.equal(got[0][-1], x[(batch - 1) % 3]) and got[1:] == (n, flat)
    assert torch.equal(bench.batched((x,), None)[0], x)


def test_inputs_by_text():
    assert target.tensor("2x3:int64").dtype == torch.int64 and target.tensor("4").shape == (4,)
    for text in ("2y3", "2x3:float33"):
        with pytest.raises(SystemExit, match="--input"):
            target.tensor(text)
