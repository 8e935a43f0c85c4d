"""The transformers zoo (benchmarks/zoo.py): equal to eager, replayed, and with no more breaks than Dynamo.

Dynamo's counts come from benchmarks/zoo_dynamo.txt; `python benchmarks/bench_zoo.py --dynamo` recounts them."""

import copy
import sys
from pathlib import Path

import ccompile
import pytest
import torch
from conftest import EAGER, alike, replaying

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import zoo

# Calls after which a row's calls replay. Data decides some of the shapes and branches of these.
DATA_DECIDES = {"switch"}
# Breaks that Dynamo does not make: torch.div of two ints is a tensor, and sizes that it gives depend on data for us.
MORE = {"longformer": 1, "led": 1}


@pytest.mark.parametrize("name", zoo.ZOO)
def test_zoo(name):
    """Whole outputs (ModelOutput, caches), in four calls on three inputs; then a replay's breaks."""
    pytest.importorskip("transformers")
    inputs, eager = zoo.ZOO[name].inputs, zoo.build(name)
    compiled = ccompile.compile(copy.deepcopy(eager))
    with torch.no_grad():
        for i in (0, 1, 0, 2):
            torch.manual_seed(i)
            expected = eager(**inputs(i))
            torch.manual_seed(i)
            alike(expected, compiled(**inputs(i)), path=f"input {i}")
        if EAGER:
            return
        if name not in DATA_DECIDES:
            with replaying(1):
                compiled(**inputs(3))
        _, breaks = zoo.met(lambda: compiled(**inputs(1)), compiled)
    dynamo = zoo.dynamo_counts()[name]
    assert dynamo is None or breaks <= dynamo[1] + MORE.get(name, 0), f"{breaks} breaks, Dynamo has {dynamo[1]}: see explain()"


@pytest.mark.parametrize("name", ["xglm", "speech-to-text", "llama", "vit", "t5"])
def test_captured_outputs(name):
    """transformers installs the hooks that capture them in the first call that asks for them."""
    pytest.importorskip("transformers")
    inputs, eager = zoo.ZOO[name].inputs, zoo.build(name)
    compiled = ccompile.compile(copy.deepcopy(eager))
    with torch.no_grad():
        for i in range(3):
            alike(eager(**inputs(i), output_hidden_states=True), compiled(**inputs(i), output_hidden_states=True), path=f"call {i}")


def test_zoo_covers():
    """At least 40 architectures, of every family."""
    families = {row.family for row in zoo.ZOO.values()}
    assert families == {"encoder", "decoder", "seq2seq", "vision", "audio", "multimodal", "moe", "state space"}
    assert len({row.config for row in zoo.ZOO.values()}) >= 40
    assert set(zoo.dynamo_counts()) == set(zoo.ZOO)
