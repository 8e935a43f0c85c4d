"""python -m ccompile demo | doctor | explain"""

import argparse
import importlib
import importlib.util
import os
import sys
from typing import Any

USAGE = """usage: python -m ccompile COMMAND ...

  demo     compares ccompile with eager on real models (see --help)
  doctor   shows versions, libraries, threads and knobs
  explain  runs a script, or MODULE:NAME, FILE.py:NAME or a demo model once; shows graphs and breaks: where, why, what
           to do
"""


def doctor(argv: list[str]) -> int:
    argparse.ArgumentParser(prog="python -m ccompile doctor").parse_args(argv)
    import platform

    import torch

    import ccompile
    from ccompile import _core, _setup

    rows = {
        "ccompile": ccompile.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "back-ends": _core.describe(),
        "llvmlite": _setup.find_llvmlite() or "not installed: fused kernels run through torch",
        "oneDNN": _setup.find_onednn() or "switched off by CCOMPILE_ONEDNN",
        "environment": " ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("CCOMPILE_")) or "-",
        "knobs": " ".join(f"{k}={v}" for k, v in ccompile.config.table().items()),
    }
    for name, value in rows.items():
        print(f"{name:<12} {value}")
    missing = [event for event in ccompile.events() if event.kind == "missing_library"]
    for event in missing:
        print(f"{'missing':<12} {event.text}")
    return 0


def explain(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ccompile explain",
        usage="%(prog)s [options] (SCRIPT.py [arguments ...] | MODULE:NAME | FILE.py:NAME | MODEL)",
        description="SCRIPT.py runs as a program, with torch.compile replaced; all that it compiles is explained. "
        "Of the other forms, a callable or demo model is called once.",
    )
    parser.add_argument("what", help=argparse.SUPPRESS)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="8x64[:dtype]",
        help="pass a random tensor of this shape; repeatable",
    )
    parser.add_argument("--guards", action="store_true", help="also print the guards of each graph")
    parser.add_argument("--dot", action="store_true", help="print the graphs for graphviz instead of the report")
    parser.add_argument("--html", metavar="OUT.html", help="also write the report as one HTML file")
    script = next((i for i, word in enumerate(argv) if word.endswith(".py")), len(argv))
    args = parser.parse_args(argv[: script + 1])
    if script < len(argv):
        if not os.path.isfile(args.what):
            raise SystemExit(f"no such file: {args.what}")
        from ccompile.script import run

        told, status = run(args.what, argv[script + 1 :])
    else:
        told, status = [_explain_one(args.what, args.input)], 0
    if not told:
        print(f"{args.what} called nothing that was compiled (by torch.compile or ccompile.compile)")
    for one in told:
        print(one.to_dot() if args.dot else one)
        if args.guards:
            one.print_guards()
    if args.html:
        from ccompile import page

        page.write(told, args.html, f"{args.what}: ccompile report")
    return status


def _explain_one(what: str, texts: list[str]) -> Any:
    import torch

    import ccompile

    fn, inputs, kwargs = _find(what)
    if texts:
        inputs, kwargs = tuple(_tensor(text) for text in texts), {}
    with torch.no_grad():
        return ccompile.explain(fn)(*inputs, **kwargs)


def _find(what: str) -> tuple[Any, tuple, dict]:
    from ccompile.demo_models import WORKLOADS, build

    if what in WORKLOADS:
        args, kwargs = WORKLOADS[what].inputs()
        return build(WORKLOADS[what]), args, kwargs
    place, _, name = what.rpartition(":")
    if not place:
        raise SystemExit(f"{what!r} is not MODULE:NAME, FILE.py:NAME or one of: {', '.join(WORKLOADS)}")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(os.path.basename(place)[:-3], place)
        if spec is None or spec.loader is None or not os.path.exists(place):
            raise SystemExit(f"no such file: {place}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not (place + ".").startswith(error.name + "."):
                raise  # a module that it imports is missing
            raise SystemExit(f"no such module: {error.name}") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise SystemExit(f"{place} has no {name!r}")
        found = getattr(found, part)
    return (found() if isinstance(found, type) else found), (), {}


def _tensor(text: str) -> Any:
    import torch

    shape, _, name = text.partition(":")
    if not all(n.isdecimal() for n in shape.split("x") if n):
        raise SystemExit(f"--input {text!r} must be sizes joined by x, such as 8x64 or 8x64:bfloat16")
    sizes = [int(n) for n in shape.split("x") if n]
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise SystemExit(f"unknown dtype {name!r} in --input {text}")
    if dtype.is_floating_point:
        return torch.randn(sizes, dtype=dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, sizes).to(dtype)


def main(argv: list[str]) -> int:
    command, rest = (argv[0], argv[1:]) if argv else ("", [])
    if command == "demo":
        from ccompile import demo

        return demo.run(rest)
    if command == "doctor":
        return doctor(rest)
    if command == "explain":
        return explain(rest)
    print(USAGE, end="", file=sys.stdout if command in ("-h", "--help", "help") else sys.stderr)
    return 0 if command in ("-h", "--help", "help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
