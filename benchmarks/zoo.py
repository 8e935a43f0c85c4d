"""The transformers zoo: architectures with small random configs (no downloads), for bench_zoo.py and tests.

A row: name -> Row(family, model class, config class, settings, inputs). Weights come from a fixed seed; `inputs` maps a
call's number to keyword arguments: equal shapes, different values.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zoo_base
import zoo_media  # noqa: F401  these two modules fill the table
import zoo_text  # noqa: F401

FAMILIES = ["encoder", "decoder", "seq2seq", "vision", "audio", "multimodal", "moe", "state space"]
ZOO = dict(sorted(zoo_base.ZOO.items(), key=lambda row: FAMILIES.index(row[1].family)))


def build(name: str) -> torch.nn.Module:
    """The model of a row in eval mode, always with the same weights."""
    import transformers

    found = ZOO[name]
    torch.manual_seed(11)
    config = getattr(transformers, found.config)(**found.settings)
    return getattr(transformers, found.model)(config).eval()


# ---- counts ----------------------------------------------------------------------------------------------------------
DYNAMO = Path(__file__).with_name("zoo_dynamo.txt")  # written by bench_zoo.py --dynamo


def dynamo_counts() -> dict[str, tuple[int, int] | None]:
    """torch._dynamo.explain's (graphs, breaks) of each row's first call; None where Dynamo fails."""
    found: dict[str, tuple[int, int] | None] = {}
    for line in DYNAMO.read_text().splitlines():
        if line and not line.startswith("#"):
            name, graphs, breaks = line.split()
            found[name] = None if graphs == "-" else (int(graphs), int(breaks))
    return found


def met(call: Callable[[], Any], *compiled: Any) -> tuple[int, int]:
    """(graphs, breaks) of a replay of all `compiled` by `call`; a break in a loop counts once, as in explain."""
    from ccompile.api import compiled_of

    roots = [compiled_of(one) for one in compiled]

    def segments() -> dict[int, dict[str, Any]]:
        return {s["id"]: s for root in roots for entry in root.report()["entries"] for s in entry["segments"]}

    before = segments()
    call()
    run = [s for i, s in segments().items() if s["hits"] > (before[i]["hits"] if i in before else 0)]
    ends = {(s["break"]["file"], s["break"]["line"], s["break"]["text"]) for s in run if s["end"] == "break"}
    return len({s["point"] for s in run if s["nodes"]}), len(ends)
