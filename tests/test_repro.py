"""CCOMPILE_REPRO: a graph that fails the self-check becomes a script. What fails it is oneDNN behind a shim that gives
wrong products for some operands, which the verification of its primitives does not use (tests/test_vet.py has the like)."""

import os
import subprocess
import sys

import pytest
import torch
from ccompile import repro
from conftest import EAGER

pytestmark = [
    pytest.mark.skipif(EAGER, reason="nothing is compiled"),
    pytest.mark.skipif("CCOMPILE_ONEDNN" in os.environ, reason="the library is named already"),
]

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
typedef struct Any *Any;
typedef struct Arg { int arg; Any memory; } Arg;

/* the first element of a result is wrong where the first one of the source is 777, or has more digits than those of the
   verification */
int dnnl_primitive_execute(Any primitive, Any stream, int n, const Arg *args) {
    int (*execute)(Any, Any, int, const Arg *) = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    int (*handle)(Any, void **) = dlsym(RTLD_NEXT, "dnnl_memory_get_data_handle");
    float *from = NULL, *to = NULL;
    const int status = execute(primitive, stream, n, args);
    for (int i = 0; i < n; i++) {
        if (args[i].arg == 1) handle(args[i].memory, (void **)&from);
        if (args[i].arg == 17) handle(args[i].memory, (void **)&to);
    }
    const char *spoil = getenv("SPOIL");
    if (from && to && (strcmp(spoil, "777") == 0 ? *from == 777 : *from * 65536 != rintf(*from * 65536))) *to += 1000;
    return status;
}
"""

PROGRAM = r"""
import sys, torch, ccompile
torch.manual_seed(0)
torch.set_num_threads(1)

def spoilt(x, w):
    a = (x * 2).relu().sum(0, keepdim=True)
    y = torch.clamp(x, max=1000.0) @ w
    b, c = torch.split(y + a[:, :64], [32, 32], dim=1)
    return torch.cat([c.sin(), b.cos()], 1), a

x, w = torch.randn(256, 256), torch.randn(256, 64)
if sys.argv[1] == "777":
    x[0, 0] = 777
compiled = ccompile.compile(spoilt)
with torch.no_grad():
    for _ in range(2):
        for got, want in zip(compiled(x, w), spoilt(x, w)):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    from ccompile import _setup

    real = _setup.find_onednn()
    if not os.path.exists(real or ""):
        pytest.skip("oneDNN has no path here")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    command = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", folder / "libspoilt.so", folder / "shim.c", real]
    try:
        subprocess.run([*map(str, command), f"-Wl,-rpath,{os.path.dirname(real)}"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return str(folder / "libspoilt.so")


def environment(shim, spoil):
    """The library, and not the way that is the fastest on this machine, computes products."""
    return os.environ | {"CCOMPILE_ONEDNN": shim, "SPOIL": spoil, "CCOMPILE_WAY": "onednn"}


@pytest.mark.parametrize("spoil", ["777", "any"])
def test_a_wrong_graph_becomes_a_script(shim, tmp_path, spoil):
    folder = tmp_path / "repro"
    env = environment(shim, spoil) | {"CCOMPILE_VERIFY": "0", "CCOMPILE_REPRO": str(folder)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, spoil], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, "the self-check keeps the result right: " + done.stderr
    (script,) = folder.glob("*.py")
    assert f"{script} reproduces segment 0 of spoilt: the self-check failed" in done.stderr
    assert len(list(folder.glob("*.pt"))) == (spoil == "777"), "values are saved where a seed does not do"
    text = script.read_text()
    body = text.partition("def graph")[2].partition("def inputs")[0].strip().splitlines()
    assert len(body) == 3 and " @ " in body[1], f"one op remains: {body}"
    if spoil == "777":
        again = env | {"CCOMPILE_REPRO": ""}
        wrong = subprocess.run([sys.executable, script], env=again, capture_output=True, text=True, timeout=300)
        assert wrong.returncode == 1 and "result 0 differs: compiled" in wrong.stdout, wrong.stdout + wrong.stderr
    names = {"__name__": "script", "__file__": str(script)}
    exec(text, names)
    threads = torch.get_num_threads()
    try:
        assert names["main"]() is False, "with the real library it passes"
    finally:
        torch.set_num_threads(threads)


# Graphs beside a wrong product: the text of each computes what was recorded.
TEXTS = r"""
import sys, torch, ccompile
from ccompile import _core, repro
F = torch.nn.functional
CASES = [
    lambda x: torch.relu(x) + 1,
    lambda x: x.transpose(0, 1).contiguous()[1:, ..., None],
    lambda x: F.pad(x, (1, 1), value=float("inf")),
    lambda x: torch.clamp(x, min=-float("inf"), max=3),
    lambda x: torch.cat([x, x.T], dim=0),
    lambda x: x.to(torch.float64).sum(dtype=torch.float32),
    lambda x: torch.split(x, 2)[1] * 2,
    lambda x: -x // 2 % 3,
    lambda x: (x > 3) & ~(x == 4),
    lambda x: torch.linalg.vector_norm(x, dim=1) + torch.special.expit(x).mean(1),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: torch.ops.aten.mul.Tensor(x, x),
    lambda x: torch.softmax(x, -1).max(dim=1)[0],
    lambda x: torch.zeros(64, 64, device=torch.device("cpu")) + x,
    lambda x: F.conv1d(x, x[:, :, None], stride=(2,)),
    lambda x: torch.stack(x.unbind(0)[:3]).T * 2,
    lambda x: F.layer_norm(x, (64,), x[0], None),
]

class Check:
    Value = repro.Value
    done = 0

    def write(self, description):
        graph = repro._graph(description)
        values = repro._eager(graph)
        for v in graph.outputs:
            torch.testing.assert_close(values[v], description["outputs"][v], rtol=0, atol=0, equal_nan=True)
        names = {}
        exec(repro._script(graph, description, None), names)
        made = names["inputs"]()
        assert [(t.shape, t.stride(), t.dtype) for t in made] == [
            (t.shape, t.stride(), t.dtype) for t in graph.inputs.values()
        ]
        self.done += 1

check = Check()
_core.set_repro_writer(check)
sys.unraisablehook = lambda info: sys.exit(f"case {i}: {info.exc_value!r}")
x, w = torch.randn(64, 64), torch.randn(64, 64)
for i, fn in enumerate(CASES):
    compiled = ccompile.compile(lambda x, w: (fn(x), x @ w), options={"verify": True}, name=f"case {i}")
    with torch.no_grad():
        compiled(x, w)
    if check.done != i + 1:
        sys.exit(f"case {i}: no description")
"""


def test_texts_compute_what_was_recorded(shim):
    env = environment(shim, "any")
    done = subprocess.run([sys.executable, "-c", TEXTS], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# What the self-check compares: nothing that is computed of memory which torch.empty left unset.
UNSET = r"""
import torch, ccompile
def part(x, w):
    o = torch.empty(70, 64)
    o[:64] = x @ w
    return o

CASES = {
    "product": (lambda x, w: x @ w, True),
    "copied": (lambda x, w: torch.empty(64, 64).copy_(x @ w) + 1, True),
    "filled": (lambda x, w: torch.empty(64, 64).zero_() + x @ w, True),
    "unset": (lambda x, w: (torch.empty_like(x), x + 1), False),
    "read": (lambda x, w: (torch.empty(64, 64) + x, x + 1), False),
    "new": (lambda x, w: (x.new(64, 64), x + 1), False),
    "strided": (lambda x, w: (torch.empty_strided((64, 64), (64, 1)).T, x + 1), False),
    "resized": (lambda x, w: (torch.empty(2).resize_(64, 64), x + 1), False),
    "part": (part, False),
}
x, w = torch.randn(64, 64), torch.randn(64, 64)
for name, (fn, found) in CASES.items():
    compiled, before = ccompile.compile(fn, options={"verify": True}), ccompile.counters()["verify"]
    old = [torch.full((n, 64), float(i)) for n in (64, 70) for i in range(40)]
    del old  # what is allocated next holds different numbers
    with torch.no_grad():
        compiled(x, w)
    assert (ccompile.counters()["verify"] > before) == found, name
"""


def test_unset_memory_is_not_compared(shim):
    env = environment(shim, "any")
    done = subprocess.run([sys.executable, "-c", UNSET], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_what_has_no_text_is_said(caplog, tmp_path):
    def own(x):
        return x

    node = ("call", own, "own", (repro.Value(0),), None, 1, 1, 0)
    description = {"root": "f", "segment": 0, "why": "", "nodes": [node], "inputs": {}, "outputs": {}, "knobs": {}}
    repro.Writer(str(tmp_path / "new")).write(description)
    assert "no script reproduces segment 0 of f" in caplog.text and "is no function of torch" in caplog.text
    assert list((tmp_path / "new").iterdir()) == []
