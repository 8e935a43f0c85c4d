"""The suites that compare with eager, on CUDA kernels: CCOMPILE_BACKEND=cuda on the emulated driver (tests/cuda). Everything from
the recorder to the launch is what runs on a GPU; only the driver, the kernels' threads and the origin of memory differ. In
processes of their own, as a process chooses its back-end once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EAGER

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "cuda"))
import emulated  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.skipif(EAGER, reason="nothing is compiled")]
SHARDS = 2


@pytest.fixture(scope="session")
def cuda(tmp_path_factory):
    return emulated.build(tmp_path_factory.mktemp("cuda"))


def start(cuda, shard, of, *args):
    env = emulated.environment(cuda, CCOMPILE_BACKEND="cuda", CCOMPILE_TEST_SHARD=f"{shard}/{of}",
                               CCOMPILE_EMULATED_LOG=str(cuda / f"log{shard}"))  # fmt: skip
    env["PYTHONPATH"] = os.pathsep.join([str(HERE / "cuda"), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "shard", "-p", "no:cacheprovider", *args]
    return subprocess.Popen(command, env=env, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(cuda, *args, of=SHARDS):
    """Runs the first SHARDS of so many shards at once. -> (tests that passed, kernels launched)"""
    logs = [cuda / f"log{i}" for i in range(SHARDS)]
    for log in logs:
        log.unlink(missing_ok=True)
    children = [start(cuda, i, of, *args) for i in range(SHARDS)]
    outputs = [child.communicate()[0] for child in children]
    for child, output in zip(children, outputs, strict=True):
        assert child.returncode == 0, output[-6000:]
    passed = sum(int(re.search(r"(\d+) passed", output)[1]) for output in outputs)
    return passed, sum(log.read_text().count("\nlaunch ") for log in logs)


# The CPU's library calls and own loops; and floats out of an integer's range, whose conversion C++ does not define: the emulation
# gives what its compiler makes of it.
NOT_EMULATED = ("test_kernels", "test_row[M:to0]", "test_row[X:doubled]")


def test_the_op_table(cuda):
    shares = 2 if os.environ.get("CI") else 1  # half of the table in CI
    without = [f"--deselect=tests/test_ops.py::{name}" for name in NOT_EMULATED]
    passed, launched = run(cuda, "tests/test_ops.py", *without, of=shares * SHARDS)
    assert passed > 700 // shares and launched > 10000 // shares


def test_models(cuda):
    few = "mlp or simple-net or attention or mini"   # the larger ones take minutes in fibers
    passed, launched = run(cuda, "tests/test_models.py", "-k", f"test_equal and ({few})")
    assert passed >= 6 and launched > 50


def test_writes(cuda):
    passed, launched = run(cuda, "tests/cuda/writes.py")
    assert passed >= 14 and launched > 100


def test_convolutions(cuda):
    passed, launched = run(cuda, "tests/cuda/convolutions.py")
    assert passed >= 9 and launched > 50


def test_autocast(cuda):
    passed, launched = run(cuda, "tests/cuda/autocast.py")
    assert passed >= 28 and launched > 100


def test_the_benchmark(cuda, tmp_path):
    """Its rows, but for what only a GPU can tell."""
    rows = tmp_path / "rows"
    env = emulated.environment(cuda, CCOMPILE_BACKEND="cuda")
    command = [sys.executable, "benchmarks/bench_gpu.py", "--device", "cpu", "--seconds", "0", "--families", "ccompile", "--json", str(rows), "SimpleNet", "layer_norm 63x500"]
    done = subprocess.run(command, env=env, cwd=HERE.parent, capture_output=True, text=True)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(r["workload"], r["mode"], r["kernels"]) for r in found] == [(w, m, 1) for w in ("SimpleNet", "layer_norm 63x500") for m in ("default", "reduce-overhead")], done
    assert all(r["error"] < 1e-5 and r["ms"] > 0 for r in found) and "| geomean |  | " in done.stdout


def test_a_mode_of_the_benchmark_that_fails(monkeypatch, capsys):
    """The others are measured, and its error is told."""
    monkeypatch.syspath_prepend(str(HERE.parent / "benchmarks"))
    import argparse

    import bench_gpu

    def measured(family, mode, *_):
        if mode == "default":
            raise RuntimeError("out of memory\nand more")
        return {"mode": mode}

    monkeypatch.setattr(bench_gpu, "measure_mode", measured)
    options = argparse.Namespace(device="cpu", dtype="float32", batch=32, seconds=0, autocast=None, tf32=False)
    assert bench_gpu.measure("ccompile", "softmax 64x512", options) == 1
    out, errors = capsys.readouterr()
    assert [json.loads(line)["mode"] for line in out.splitlines()] == ["reduce-overhead"]
    assert errors.splitlines()[-1] == "default: RuntimeError: ['out of memory']"


def test_captures():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cuda/capture.py"]
    done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 30
