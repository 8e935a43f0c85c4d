"""Do the goldens and the verifier catch faults in passes? Each fault is one edit of one file of csrc/pass: builds the core with
it and compiles the graphs of tests/core/passes. `make test-faults` runs this; an uncaught fault is an error.

--keep-going lists all uncaught faults; arguments select files (fold views ...).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASS = ROOT / "csrc/pass"
sys.path[:0] = [str(ROOT / "tests/core"), str(ROOT / "python")]

# file -> (text that stands there once, what it is replaced by)
FAULTS: dict[str, list[tuple[str, str]]] = {
    "fold": [
        ("const int at = 2 * (dims - 1 - d);", "const int at = 2 * d;"),
        ("in->padding_after[d].i += cc_graph_operand(g, pad, by->widths.first + at + 1)->i;",
         "in->padding_after[d].i += cc_graph_operand(g, pad, by->widths.first + at)->i;"),
        ("    in->x = by->x;\n", ""),
        ("if (g->node.at[i].flags & (CC_N_WRITES | CC_N_EFFECT)) return false;", ""),
    ],
    "pure": [
        ("rename_reads(g, value, g->val.n - 1, maker + 1, write[w]);", "rename_reads(g, value, g->val.n - 1, maker + 1, write[w] - 1);"),
        ("        version.hidden = true;\n", ""),
        ("offset != r.offset || ", ""),
        ("    n->flags = 0;\n", ""),
    ],
    "autocast": [
        ("    v.type.dtype = (uint8_t)to;\n", ""),
        ("if (n->flags & (CC_N_WRITES | CC_N_EFFECT)) memset(c.made, 0, sizeof *c.made * values);", ""),
        ("        g->operand.at[in0 + i].value = cast;\n", "        (void)cast;\n"),
    ],
    "contract": [
        ("NULL, y, in.x, in.beta);", "NULL, y, in.x, in.alpha);"),
        ("if (same) same->stride += type->stride[d];", "if (same) same->stride = type->stride[d];"),
        ("type.stride[i] = d ? d->stride : 0;", "type.stride[i] = d ? 1 : 0;"),
        ("type.size[i] = d ? s->size[o->label[i]] : 1;", "type.size[i] = s->size[o->label[i]];"),
    ],
    "attend": [
        ("*scale = n->op == CC_OP_mul ? number : 1 / number;", "*scale = number;"),
        ("        f->q = unscaled;\n", ""),
        ("v.type.ndim - 2, v.type.ndim - 1)", "v.type.ndim - 2, v.type.ndim - 2)"),
        ("value_of(f->q),", "value_of(f->v),"),
        ("    f->merged = 2;\n", ""),
    ],
    "expand": [
        ("{CC_OP_max_dim, {CC_OP_amax, CC_OP_argmax}, {2, 2}},", "{CC_OP_max_dim, {CC_OP_amin, CC_OP_argmax}, {2, 2}},"),
        ("cc_parts_add(p, CC_OP_sub, -1, &whole, in.x, max),", "cc_parts_add(p, CC_OP_sub, -1, &whole, max, in.x),"),
        ("if (cc_space_reduced(f, d)) t.size[d] = 1;", ""),
    ],
    "layers": [
        ("p->whole.op == CC_OP_rnn_tanh_cell ? CC_OP_tanh : CC_OP_relu", "CC_OP_relu"),
        ("linear(p, in.h, in.w_h, in.b_h, -1);", "linear(p, in.x, in.w_h, in.b_h, -1);"),
    ],
    "moments": [
        ("(double)count / (double)(count - 1)", "(double)(count - 1) / (double)count"),
        ("move(p, &t, k, k ?", "move(p, &t, 0, k ?"),
    ],
    "narrow": [
        ("v.offset += index * v.type.stride[d] *", "v.offset += index *"),
        ("if (n->op == CC_OP_linear) return w->right >= 1;", "if (n->op == CC_OP_linear) return true;"),
        ("narrow_value(w, cc_edit_val(g, g->node.at[i].out0));", ""),
    ],
    "norms": [
        ("s.stride[1] = t->stride[1] * s.size[2];", "s.stride[1] = t->stride[1] * s.size[1];"),
        ("if (groups) t.size[1] = size / groups, t.stride[1] = step;", "if (groups) t.size[1] = size / groups, t.stride[1] = 0;"),
        ("    see_result(g, node, groups);\n}\n\n/* Does", "}\n\n/* Does"),
    ],
    "index": [
        (".step = int_of(a->by), .index = index, .count = int_of(a->count),", ".step = int_of(a->by), .index = index, .count = int_of(a->by),"),
        (".x = x, .step = int_of(a->by), .index", ".x = x, .step = int_of(1), .index"),
        ("if (n->flags & CC_N_WRITES && !n->repeatable) first = CC_MIN(first, n->origin);", ""),
    ],
    "rearrange": [
        ("axis(a, times, 0, out->stride[d]);", "axis(a, times, x->stride[d], out->stride[d]);"),
        ("b = window_at(g, x, &half, half.size[d] * half.stride[d]);", "b = window_at(g, x, &half, half.stride[d]);"),
        ("shuffle ? in_large[i] : in_many[i]);", "shuffle ? in_many[i] : in_large[i]);"),
    ],
    "into": [
        ("return a != b && !cc_into_unknown(g, a)", "return !cc_into_unknown(g, a)"),
        ("        forget(v, g, -1);\n", ""),
        ("v.window_of = cc_graph_base(g, x) + 1;", "v.window_of = g->val.n + 1;"),
        ("if (is_fill(g, n)) n->op = CC_OP_fill_like;", ""),
    ],
    "views": [
        ("*offset += index * x->stride[d];", "*offset += index;"),
        ("*offset += x->stride[d] * (n->op == CC_OP_unbind ? 1 : before->size[d]);", "*offset += x->stride[d];"),
        ("right > 0 ? right * x->stride[col] : -right * x->stride[row];", "right * x->stride[col];"),
        ("v->offset = from.offset + offset *", "v->offset = offset *"),
        ("window->offset += into->offset;", ""),
        ("by_host[v] = g->val.at[v].is_output;", "by_host[v] = false;"),
    ],
    "transpose": [
        ("    v->narrowed = true;\n}", "}"),
        ("cc_type_contiguous(&v->type) && !v->is_output &&", "cc_type_contiguous(&v->type) &&"),
    ],
    "separate": [
        ("int_of(divided ? 1 : pool->divisor)", "int_of(pool->divisor)"),
        ("own->padding);\n        most.dilation", "0);\n        most.dilation"),
        ("t.dtype = CC_DT_F32;", "{}"),
        ("i == pool->dim[k] ? w : &one;", "k == 0 ? w : &one;"),
    ],
    "window": [
        (".kernel = in / out, .stride = in / out,", ".kernel = in / out, .stride = 1,"),
    ],
    "layout": [
        ("    v->channels_last = true;\n", ""),
        ("v->is_output || v->window_of ||", "v->window_of ||"),
    ],
}  # fmt: skip

CHECK = """
import ctypes, os, sys
from pathlib import Path
import harness
os.environ["CCOMPILE_DUMP"] = "graph"
lib = harness.load(Path(sys.argv[1]))
why = ctypes.create_string_buffer(300)
for file in sorted(Path(sys.argv[2]).glob("*.txt")):
    head, _, expected = file.read_text().partition("---\\n")
    chosen = file.stem.split("-")[0].split("+")
    os.environ["CCOMPILE_SKIP_PASSES"] = ",".join(p for p in harness.PASSES if p not in chosen)
    g = lib.t_graph_read(head.partition("\\n")[2].encode(), why, 300)
    plan = lib.t_compile(g, None, why, 300)
    if not plan:
        sys.exit(f"{file.stem}: {why.value.decode()}")
    lines = ctypes.string_at(lib.t_plan_text(plan)).decode().splitlines(keepends=True)
    if "".join(line for line in lines if line.startswith("%") or ") #" in line) != expected:
        sys.exit(f"{file.stem} differs")
"""


def notice(lib: Path) -> str:
    """What noticed a fault, '' for nothing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(lib), str(ROOT / "tests/core/passes")], env=environment, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended"])[0]


def main(arguments: list[str]) -> int:
    import harness

    chosen = [a for a in arguments if not a.startswith("-")] or list(FAULTS)
    with tempfile.TemporaryDirectory() as folder:
        objects = harness.compile_all(Path(folder))

        def build(name: str, replaced: dict[Path, Path]) -> Path:
            return harness.link({**objects, **replaced}.values(), Path(folder) / f"{name}.so")

        wrong = notice(build("sound", {}))
        if wrong:
            print(f"without a fault: {wrong}")
            return 1
        missed = total = 0
        for stem in chosen:
            path = PASS / f"{stem}.c"
            for i, (old, new) in enumerate(FAULTS[stem]):
                text = path.read_text()
                if text.count(old) != 1:
                    print(f"{stem}.c has this text {text.count(old)} times, not once; mend the fault: {old}")
                    return 1
                faulty = Path(folder) / "faulty.o"
                harness.compile_one(path, faulty, text.replace(old, new))
                by = notice(build(f"{stem}-{i}", {path: faulty}))
                print(f"{stem:<10} {by[:90] or 'NOT NOTICED: ' + old}", flush=True)
                total += 1
                missed += not by
                if missed and "--keep-going" not in arguments:
                    return 1
        print(f"{total - missed} of {total} faults noticed")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
