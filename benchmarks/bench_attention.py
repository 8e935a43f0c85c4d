"""Attention: the fused kernel against torch's own (eager F.scaled_dot_product_attention) and against written-out ops.

    python benchmarks/bench_attention.py [--seconds 1] [--threads 2] [--json]

Each row times a compiled function and the eager one in alternating blocks in one process; a time is the minimum of its
samples. "written" is softmax(mask(q @ k^T * scale)) @ v with the heads transposed back."""

import argparse
import json
import sys

import ccompile
import torch
import torch.nn.functional as F
from ccompile.demo import alternate, largest_error, markdown

# (batch, heads, rows, keys, depth, mask, kv heads)
ROWS = [
    (1, 12, 128, 128, 64, None, 12),
    (8, 12, 128, 128, 64, "keys", 12),
    (1, 12, 64, 64, 64, "causal", 12),
    (1, 12, 197, 197, 64, None, 12),
    (16, 8, 128, 128, 32, None, 8),
    (1, 8, 512, 512, 80, None, 8),
    (1, 8, 1024, 1024, 64, "causal", 8),
    (1, 8, 1024, 1024, 64, "full", 8),
    (1, 4, 4096, 4096, 64, None, 4),
    (1, 16, 300, 300, 128, None, 16),
    (1, 12, 1, 64, 64, None, 12),
    (1, 12, 1, 512, 64, "keys", 12),
    (1, 32, 1, 2048, 128, None, 8),
    (8, 12, 1, 128, 64, None, 12),
    (1, 1, 17, 33, 16, None, 1),
]


def tensors(b, h, tq, tk, d, mask, hk):
    q, k, v = (torch.randn(b, t, n, d).transpose(1, 2) for t, n in ((tq, h), (tk, hk), (tk, hk)))
    return q, k, v, {"keys": torch.rand(b, 1, 1, tk) < 0.8, "full": torch.randn(tq, tk)}.get(mask)


def sdpa(causal, grouped):
    def fn(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v, m, is_causal=causal, enable_gqa=grouped)

    return fn


def written(q, k, v, m):
    scores = torch.matmul(q, k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    if m is not None:
        scores = scores.masked_fill(m == 0, float("-inf")) if m.dtype == torch.bool else scores + m
    return torch.matmul(torch.softmax(scores, dim=-1), v).transpose(1, 2).contiguous()


def measure(row, seconds):
    b, h, tq, tk, d, mask, hk = row
    args = tensors(*row)
    shape = [b, h, tq, tk, d]
    found = {"bench": "attention", "shape": shape, "mask": mask, "kv_heads": hk, "threads": torch.get_num_threads()}
    ways = {"sdpa": sdpa(mask == "causal", hk != h)}
    if mask != "causal" and hk == h:
        ways["written"] = written
    for way, fn in ways.items():
        compiled = ccompile.compile(fn)
        with torch.no_grad():
            found[f"{way}_error"] = largest_error(compiled(*args), fn(*args))
            eager, ours = alternate([lambda f=f: f(*args) for f in (fn, compiled)], seconds, most=3000)
        found[f"{way}_eager_ms"], found[f"{way}_ms"] = round(eager, 4), round(ours, 4)
        found[f"{way}_speedup"] = round(eager / ours, 2)
    return found


def title(row):
    kept = f" ({row[6]} kv)" if row[6] != row[1] else ""
    return ", ".join(map(str, row[:5])) + kept


def cells(r, way):
    if f"{way}_ms" not in r:
        return ["–"] * 3
    return [str(r[f"{way}_eager_ms"]), str(r[f"{way}_ms"]), f"{r[f'{way}_speedup']}x"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    head = ["B, H, rows, keys, depth", "mask", "eager ms", "ours ms", "speed-up", "written: eager", "ours", "speed-up"]
    lines = [head]
    for row in ROWS:
        r = measure(row, args.seconds)
        if args.json:
            print(json.dumps(r), flush=True)
        lines.append([title(row), row[5] or "", *cells(r, "sdpa"), *cells(r, "written")])
    if not args.json:
        print(markdown(lines, left=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
