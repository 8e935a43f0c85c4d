"""Adding an op edits two places: a row of ir/ops.def and a row of tens/binds.def, and for a library call a third, its family
in run/. Here a pointwise op, a reduction and a library call are added to a copy of the source, which is built and run."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPS = """
CC_OPROW(ldexp, CC_K_POINTWISE, IN(2), "float", "a * pow(2, b)", "a * 2 ** b")
CC_OPROW(frobenius, CC_K_REDUCE, IN(2), "cond/b", "sqrt(rsum(a * a))", "root of the sum of squares")
CC_OPROW(msort, CC_K_LIBRARY(SORTS), TENSOR(x), "", "", "sorted along the first dim")
"""
BINDS = """
CC_BIND(ldexp, "FM:ldexp", "input:t, other")
CC_BIND(frobenius, "F:frobenius_norm", "input:t, dim:D, -keepdim=")
CC_BIND(msort, "FM:msort", "input:t")
"""
# The library is C's: qsort.
FAMILY = """
#include "run_int.h"

typedef struct Sort {
    CcSlot from;
    int to;
    int64_t n;
} Sort;

static bool can(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    const CcType *from = &g->val.at[cc_prim_operand(g, n, 0)->value].type, *to = &g->val.at[n->out0].type;
    return cc_prim_f32(from) && from->ndim == 1 && cc_type_dense(from) && cc_type_dense(to);
}

static void *build(const CcGraph *g, const int *chain, int n, CcArena *arena, CcErr *err) {
    Sort *s = n == 1 ? cc_arena_alloc(arena, sizeof *s) : NULL;
    if (!s) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a sort");
        return NULL;
    }
    const CcNode *node = &g->node.at[chain[0]];
    *s = (Sort){{cc_prim_operand(g, node, 0)->value, 0}, node->out0, g->val.at[node->out0].type.size[0]};
    cc_prim_settle(g, &s->from);
    return s;
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const Sort *s = work;
    const void *from = cc_prim_data(host, s->from);
    void *to = from ? host->make(host->ctx, s->to) : NULL;
    if (!to) return cc_err_set(err, CC_E_HOST, "no memory for value %d", s->to);
    memcpy(to, from, sizeof(float) * (size_t)s->n);
    qsort(to, (size_t)s->n, sizeof(float), ascending);
    return 0;
}

const CcPrimFamily CC_SORTS = {.name = "sort", .can = can, .build = build, .run = run};
"""
USE = """
import re, torch, ccompile
torch.manual_seed(0)
programs = {  # the steps of its plan
    lambda x: torch.ldexp(torch.relu(x), x) + 1: ["kernel"],
    lambda x: torch.frobenius_norm(x * 2, [1], False) + 1: ["kernel"],
    lambda x: torch.msort((x + 1).view(-1)) * 2: ["kernel", "sort", "kernel"],
}
for f, steps in programs.items():
    compiled = ccompile.compile(f, fullgraph=True)
    with torch.no_grad():
        for i in range(3):
            x = torch.randn(6, 40)
            torch.testing.assert_close(compiled(x), f(x))
    segment = compiled.report()["entries"][0]["segments"][0]
    assert segment["hits"] == 2, segment
    assert re.findall(r"^[0-9]+ (\\w+)", segment["plan_text"], re.M) == steps, segment["plan_text"]
"""


def added(path, text):
    """Behind the table's last row."""
    lines = path.read_text().split("\n")
    last = max(i for i, line in enumerate(lines) if line.startswith(("CC_OPROW(", "CC_BIND(", "SAME(")))
    while not lines[last].endswith(")"):  # of several lines
        last += 1
    path.write_text("\n".join([*lines[: last + 1], *text.strip().split("\n"), *lines[last + 1 :]]))


def built(folder):
    """A package ccompile in `folder`, of the csrc there; not optimised."""
    package = folder / "ccompile"
    package.mkdir()
    for file in (ROOT / "python/ccompile").iterdir():
        if file.suffix == ".py" or file.name == "_compiler":
            (package / file.name).symlink_to(file)
    version = f"frame_{sys.version_info[0]}{sys.version_info[1]}.c"
    left_out = {"compiler.c", "frametest.c", "tenstest.c"}
    sources = [p for p in (folder / "csrc").glob("*/*.c") if p.name not in left_out]
    sources = [p for p in sources if not p.name.startswith("frame_3") or p.name == version]
    cc = os.environ.get("CC", "cc").split()
    flags = ["-std=gnu11", "-O0", "-w", "-fPIC", "-fvisibility=hidden", "-DCC_DEBUG=0", "-I", sysconfig.get_path("include")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(lambda p: subprocess.run([*cc, *flags, "-c", p, "-o", p.with_suffix(".o")], check=True), sources)
        list(runs)
    core = package / ("_core" + sysconfig.get_config_var("EXT_SUFFIX"))
    objects = [p.with_suffix(".o") for p in sources]
    subprocess.run([*cc, "-shared", "-o", core, *objects, "-lm", "-ldl", "-lpthread"], check=True)


@pytest.mark.slow
def test_an_op_is_added_by_a_row_in_each_of_two_tables(tmp_path):
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    added(tmp_path / "csrc/ir/ops.def", OPS)
    added(tmp_path / "csrc/tens/binds.def", BINDS)
    (tmp_path / "csrc/run/sort.c").write_text(FAMILY)
    built(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "CCOMPILE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", USE], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
