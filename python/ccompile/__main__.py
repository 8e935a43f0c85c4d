"""python -m ccompile bench | demo | doctor | explain"""

import argparse
import os
import sys
import traceback
from typing import Any

USAGE = """usage: python -m ccompile COMMAND ...

  bench    measures a model by batch size and mode, and compares with an earlier measurement (see --help)
  demo     compares ccompile with eager on real models (see --help)
  doctor   shows versions, libraries, threads and knobs
  explain  runs a script, or MODULE:NAME, FILE.py:NAME or a demo model once; shows graphs and breaks: where, why, what
           to do
"""


def doctor(argv: list[str]) -> int:
    argparse.ArgumentParser(prog="python -m ccompile doctor").parse_args(argv)
    import ccompile
    from ccompile import _core, _setup, machine

    here = machine.describe()
    rows = {
        "ccompile": here["ccompile"],
        "python": f"{here['python']} at {sys.executable}",
        "torch": f"{here['torch']}, {here['threads']} threads",
        "processor": f"{here['cpu']}, {here['processors']} of them, {' '.join(here['flags'])}",
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
    from ccompile import target

    fn, inputs, kwargs = target.find(what)
    if texts:
        inputs, kwargs = tuple(target.tensor(text) for text in texts), {}
    with torch.no_grad():
        try:
            return ccompile.explain(fn)(*inputs, **kwargs)
        except Exception as error:
            given = ", ".join(texts) or (
                "its own inputs" if inputs or kwargs else "no arguments (--input 8x64 passes one)"
            )
            raise SystemExit(f"{what}, called with {given}, raised {_told(error)}") from error


def _told(error: Exception) -> str:
    """The error's type and text, and the innermost place outside torch and ccompile, if there is one."""
    import torch

    ours = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in (__file__, torch.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    places = [f" at {frame.filename}:{frame.lineno}" for frame in frames if not frame.filename.startswith(ours)]
    return f"{type(error).__name__}{''.join(places[-1:])}: {error}"


def main(argv: list[str]) -> int:
    command, rest = (argv[0], argv[1:]) if argv else ("", [])
    if command == "bench":
        from ccompile import bench

        return bench.run(rest)
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
