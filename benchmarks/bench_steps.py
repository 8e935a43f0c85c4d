"""Where a compiled call spends its time: by kind of step, and by op for steps that run through torch.

    python benchmarks/bench_steps.py [--calls 20] [--threads 2] [--mode MODE] [--json] [WORKLOAD ...]

Mean milliseconds per call, measured by CCOMPILE_PROFILE=1; `share` is relative to all steps of the workload."""

import argparse
import collections
import json
import os
import re
import sys
from typing import Any

os.environ["CCOMPILE_PROFILE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ccompile
import registry
import torch
from ccompile.api import compiled_of

STEP = re.compile(r"^ *\d+ (\w+) (.*?)([\d.]+) ms$")
NODE = re.compile(r"(\w+)#(\d+)")


def steps(report: dict[str, Any]) -> collections.Counter:
    """(kind, ops of a step) -> milliseconds per call; host steps use torch's op names."""
    found: collections.Counter = collections.Counter()
    for segment in (s for entry in report["entries"] for s in entry["segments"]):
        for line in segment["plan_text"].splitlines():
            match = STEP.match(line)
            if not match:
                continue
            kind, text, ms = match.groups()
            nodes = NODE.findall(text.split(" drop ")[0])
            host = [segment["nodes"][int(i)]["name"].rpartition(".")[2] for _, i in nodes]
            found[kind, "+".join(host if kind == "host" else [op for op, _ in nodes][:4])] += float(ms)
    return found


def measure(name: str, calls: int, mode: str | None) -> collections.Counter:
    workload = registry.WORKLOADS[name]
    fn = ccompile.compile(registry.build(workload), mode=mode)
    args, kwargs = workload.inputs()
    with torch.no_grad():
        for _ in range(calls):
            fn(*args, **kwargs)
    return steps(compiled_of(fn).report())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "workloads", nargs="*", default=[n for n, w in registry.WORKLOADS.items() if w.bench and w.available]
    )
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mode", help="ccompile.compile's mode")
    parser.add_argument("--json", action="store_true", help="JSON lines, one per workload")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.workloads:
        if name not in registry.WORKLOADS:
            parser.error(f"unknown workload {name!r}; choose from: {', '.join(registry.WORKLOADS)}")
        found = measure(name, args.calls, args.mode)
        total = sum(found.values()) or 1.0
        kinds: collections.Counter = collections.Counter()
        for (kind, _), ms in found.items():
            kinds[kind] += ms
        host = [(op, ms / total) for (kind, op), ms in found.most_common() if kind == "host"]
        if args.json:
            print(
                json.dumps({"bench": "steps", "workload": name, "ms": total, "kinds": dict(kinds), "host": dict(host)}),
                flush=True,
            )
            continue
        print(f"{name}: {total:.3f} ms; " + ", ".join(f"{kind} {ms / total:.0%}" for kind, ms in kinds.most_common()))
        print(
            "    through torch: "
            + (", ".join(f"{op} {share:.1%}" for op, share in host if share >= 0.001) or "nothing"),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
