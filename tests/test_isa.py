"""torch's oneDNN gives results that differ between CPUs, and so does compiled code. Each process here is restricted to another
machine's instructions (DNNL_MAX_CPU_ISA), or restricts our code (CCOMPILE_CPU)."""

import os
import subprocess
import sys

import pytest
from conftest import EAGER, TESTS

pytestmark = pytest.mark.slow
PROGRAM = """
import torch, torch.nn.functional as F, ccompile
big = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-42, 88.0, -88.0, 5.5, -5.5, 1.8e38, -1.8e38]
w = torch.eye(14)
CASES = {
    "gelu": lambda x: F.gelu(x) * 1.5,
    "one": lambda x: F.gelu(x[4:5]) - x[5:6],
    "strided": lambda x: F.gelu(x[::2]) * 1.5,
    "linear": lambda x: F.gelu(F.linear(x.nan_to_num(0.5, 2.0, -2.0).clamp(-9, 9), w)),
}
for switched in (True, False):
    with torch.backends.mkldnn.flags(enabled=switched):
        for name, fn in CASES.items():
            for dtype in (torch.float32, torch.float64):
                x, c = torch.tensor(big, dtype=dtype), ccompile.compile(fn)
                if name == "linear":
                    x = x.reshape(1, 14)
                    fn, c = (lambda x, fn=fn: fn(x.float())), ccompile.compile(lambda x, fn=fn: fn(x.float()))
                for _ in range(2):
                    got, want = c(x), fn(x)
                    torch.testing.assert_close(got, want, equal_nan=True, rtol=3e-6, atol=2e-6, msg=lambda m: f"{name} {dtype} {switched}: {m}")
print("same", ccompile.counters().get("kernel", 0) > 0)
"""


@pytest.mark.skipif(EAGER, reason="needs ccompile")
@pytest.mark.parametrize("settings", ["", "DNNL_MAX_CPU_ISA=AVX2", "ONEDNN_MAX_CPU_ISA=avx", "DNNL_MAX_CPU_ISA=SSE41",
                                      "DNNL_MAX_CPU_ISA=AVX512_CORE", "CCOMPILE_CPU=avx2", "CCOMPILE_CPU=base"])  # fmt: skip
def test_a_function_gives_what_this_cpus_library_gives(settings):
    env = {k: v for k, v in os.environ.items() if k not in ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "CCOMPILE_CPU")}
    env |= dict(s.split("=") for s in settings.split())
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=env, cwd=TESTS, capture_output=True, text=True)
    assert ran.stdout.strip() == "same True", ran.stdout + ran.stderr[-1500:]
