"""torch's versions have different formulas for some derivatives (ir/formula.def): compiled functions give the gradients of
the one that runs, or leave the op to it. It is asked once in a process, and users see nothing of that."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="needs the product")

HEAD = """
import types, warnings
import torch
import torch.nn.functional as F
import ccompile
from test_grad_rows import OF_TORCH

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")
# 16 ** 3 elements: torch's logit has other gradients of NaN behind the last whole vector
grid = torch.tensor([0.0, -0.0, 0.3, -0.3, 0.5, 0.7, 1, -1, 2, 3, 6, 20, INF, -INF, 1e-30, NAN])
X, Y, Z = (t.reshape(-1) for t in torch.meshgrid(grid, grid, grid, indexing="ij"))
FUNCTIONS = {
    "clamp": lambda x, y, z: torch.clamp(x, y, z),
    "clamp of numbers": lambda x, y, z: x.clamp(0, 1) + y + z,
    "min": lambda x, y, z: torch.clamp(x, y) + z * 2,
    "min of a number": lambda x, y, z: x.clamp(1) * 2 + y + z,
    "max": lambda x, y, z: torch.clamp(x, max=y) + z * 2,
    "max of a number": lambda x, y, z: x.clamp(max=1.0) * 2 + y + z,
    "clamp_min": lambda x, y, z: x.clamp_min(y) + z * 2,
    "clamp_max": lambda x, y, z: x.clamp_max(y) + z * 2,
    "in place": lambda x, y, z: (x * 1).clamp_(0, 1) + y + z,
    "fmin and fmax": lambda x, y, z: torch.fmin(x, y) + torch.fmax(x, z),
    "logit": lambda x, y, z: torch.logit(x, 0.3) + y + z,
    "hinge": lambda x, y, z: F.hinge_embedding_loss(x, y, 1.0, reduction="none") + z * 2,
    "ranking": lambda x, y, z: F.margin_ranking_loss(x, y, z, 0.5, reduction="none") + x * 2,
    "triplet": lambda x, y, z: F.triplet_margin_loss(x[:, None], y[:, None], z[:, None], 0.5, reduction="none") + x * 2,
}

def gradients(fn):
    given = [t.clone().requires_grad_() for t in (X, Y, Z)]
    return torch.autograd.grad(fn(*given).sum(), given, allow_unused=True)

def alike(name):
    fn = FUNCTIONS[name]
    compiled = ccompile.compile(fn)
    for _ in range(2):
        for a, b in zip(gradients(fn), gradients(compiled), strict=True):
            torch.testing.assert_close(b, a, equal_nan=True, msg=lambda m: f"{name}: {m}")

def texts():
    return [e.text for e in ccompile.events() if "formula" in e.text]

class Functions:
    '''torch's C functions, some of them with other derivatives: gradients(name, gradient, operands) gives these'''
    def __init__(self, gradients):
        self.torchs, self.gradients = torch._C._VariableFunctions, gradients

    def __getattr__(self, name):
        if name not in ("clamp", "clamp_min", "clamp_max", "fmin", "fmax"):
            return getattr(self.torchs, name)
        def call(*args):
            there = [i for i, a in enumerate(args) if a is not None]
            which = name if name != "clamp" else {(0, 1): "clamp_min", (0, 2): "clamp_max"}.get(tuple(there), name)
            if which.startswith("clamp"):
                kind = "tensor" if torch.is_tensor(args[there[1]]) else "number"
                which = f"{which.removeprefix('clamp_')}_{kind}"
            def node(g):
                grads = dict(zip(there, self.gradients(which, g, [args[i] for i in there])))
                return tuple(grads.get(i) for i in range(len(args)))
            return types.SimpleNamespace(grad_fn=node)
        return call

def torch_has(gradients):
    torch._C._VariableFunctions = Functions(gradients)
"""


def alone(code):
    here = Path(__file__).parent
    paths = [str(here), str(here / "core"), *filter(None, [os.environ.get("PYTHONPATH")])]
    verify = {"CCOMPILE_VERIFY": "0"}  # it would mend what these tests look for
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **verify}
    program = HEAD + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300, cwd=here.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_this_torch():
    """All its formulas are known, and gradients at kinks are eager's."""
    alone("""
        for name in FUNCTIONS:
            alike(name)
        assert not texts(), texts()
    """)


def test_unknown_formulas_are_left_to_torch():
    """Whatever torch computes."""
    alone("""
        torch_has(lambda which, g, args: [g * 0.125 for a in args if torch.is_tensor(a)])
        for name in FUNCTIONS:
            alike(name)
        known = [name for name in OF_TORCH if not any(f" {name} " in text for text in texts())]
        assert not known and len(texts()) == len(OF_TORCH), texts()
        report = ccompile.compile(lambda x, y, z: x.clamp_min(y).exp().sin().cos() + z)
        gradients(report)
        assert "no derivative of ours" in str(report.report()), report.report()
    """)


def test_only_what_is_unknown_is_left_to_torch():
    alone("""
        torch_has(lambda which, g, args: OF_TORCH[which][0](g * 0.5 if which == "fmax" else g, *args))
        compiled = ccompile.compile(lambda x, y, z: x.clamp_min(y).exp().sin().cos() + z)
        gradients(compiled)
        assert len(texts()) == 1 and " fmax " in texts()[0], texts()
        assert "no derivative of ours" not in str(compiled.report())
    """)


@pytest.mark.parametrize("version", [0, 1], ids=["2.13", "2.14"])
def test_either_version(version):
    """Plans have the formulas of the torch that was asked."""
    alone(f"""
        version = {version}
        torch_has(lambda which, g, args: OF_TORCH[which][version](g, *args))
        cases = [
            ("clamp_tensor", lambda x, y, z: torch.clamp(x, y, z), (X, Y, Z)),
            ("clamp_number", lambda x, y, z: torch.clamp(x, 0.3, 0.7) + y + z, (X, 0.3, 0.7)),
            ("min_tensor", lambda x, y, z: x.clamp(y) + z, (X, Y)),
            ("min_number", lambda x, y, z: x.clamp_min(0.3) + y + z, (X, 0.3)),
            ("max_tensor", lambda x, y, z: x.clamp(None, y) + z, (X, Y)),
            ("max_number", lambda x, y, z: x.clamp(max=0.3) + y + z, (X, 0.3)),
            ("fmin", lambda x, y, z: torch.fmin(x, y) + z, (X, Y)),
            ("fmax", lambda x, y, z: torch.fmax(x, y) + z, (X, Y)),
        ]
        for name, fn, args in cases:
            compiled = ccompile.compile(lambda x, y, z, fn=fn: fn(x.neg().neg(), y.neg().neg(), z).neg().neg())
            gradients(compiled)  # eager records it
            got = gradients(compiled)
            want = OF_TORCH[name][version](torch.ones_like(X), *args)
            for a, b in zip(want, got):
                torch.testing.assert_close(b, a, equal_nan=True, msg=lambda m: f"{{name}}: {{m}}")
        assert not texts(), texts()
    """)


def test_nobody_notices():
    """The first training plan of a process, with modes and hooks around it."""
    alone("""
        import threading
        x = torch.linspace(-2, 2, 64).requires_grad_()
        fn = lambda x: (x.clamp(0, 1).exp().sin().cos() + torch.rand(64)).square()
        def run(fn):
            torch.manual_seed(3)
            packs = []
            hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packs.append(t) or t, lambda t: t)
            with warnings.catch_warnings(record=True) as warned, torch.device("cpu"), torch.autocast("cpu", torch.bfloat16), hooks:
                warnings.simplefilter("always")
                y = fn(x)
                state = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled())
            (g,) = torch.autograd.grad(y.sum(), x)
            return y, g, len(packs), [str(w.message) for w in warned], state, torch.get_rng_state(), threading.active_count()
        eager, compiled = run(fn), run(ccompile.compile(fn))
        for a, b in zip(eager, compiled, strict=True):
            assert torch.equal(a, b) if torch.is_tensor(a) else a == b, (a, b)
        for name in FUNCTIONS:
            alike(name)
        assert not texts()
    """)
