"""transformers' generate() with a compiled forward, or of a compiled model: eager's tokens; decoding steps replay."""

import copy
import sys
import warnings
from pathlib import Path

import ccompile
import pytest
import torch
from conftest import EAGER, counters, replaying

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import zoo

NEW = 12  # tokens
pytestmark = pytest.mark.filterwarnings("ignore:ccompile")


def prompt(name):
    given = zoo.ZOO[name].inputs(0)["input_ids"]
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


def generating(model, how):
    """generate of a copy of the model that runs compiled."""
    model = copy.deepcopy(model)
    if how == "model":
        return ccompile.compile(model).generate
    model.forward = ccompile.compile(model.forward)
    return model.generate


def settings(sample, cache):
    found = {"max_new_tokens": NEW, "pad_token_id": 0, "do_sample": sample, **({"top_k": 20} if sample else {})}
    return {**found, "cache_implementation": cache} if cache else found


@pytest.mark.parametrize("how, sample", [("forward", False), ("model", True)], ids=["forward-greedy", "model-sample"])
@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama-cache", "gpt2-cache", "qwen3", "gemma2", "t5"])
def test_tokens(name, cache, how, sample):
    """The same tokens in each of three runs; with a static cache the last run is made of replays."""
    pytest.importorskip("transformers")
    eager, given, kw = zoo.build(name), prompt(name), settings(sample, cache)
    compiled = generating(eager, how)
    torch.manual_seed(3)
    expected = eager.generate(**given, **kw)
    for run in range(3):
        torch.manual_seed(3)
        before = counters()
        assert torch.equal(expected, compiled(**given, **kw)), f"run {run}"
    steps = counters()["calls"] - before["calls"]
    if cache == "static" and not EAGER and name != "gemma2":  # its sliding layers count in Python: other code each step
        with replaying(steps):
            torch.manual_seed(3)
            compiled(**given, **kw)


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_static_cache_is_one_graph():
    """Counters and rows of the cache are written in place, and no step of decoding breaks."""
    pytest.importorskip("transformers")
    model = zoo.build("llama-cache")
    model.forward = ccompile.compile(model.forward)
    for _ in range(2):
        model.generate(**prompt("llama-cache"), **settings(False, "static"))
    assert counters()["graph_break"] == counters()["give_up"] == 0
    entries = ccompile.api.compiled_of(model.forward).report()["entries"]
    assert len(entries) == 2, "one for the prompt, one for all steps"


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_growing_cache_is_symbolic():
    """A dynamic cache has another size in each step: the third recording serves all of them, also in later calls."""
    pytest.importorskip("transformers")
    model = zoo.build("llama-cache")
    expected = model.generate(**prompt("llama-cache"), **settings(False, None))
    model.forward = ccompile.compile(model.forward, options={"recompile_limit": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(2):
            assert torch.equal(expected, model.generate(**prompt("llama-cache"), **settings(False, None)))
    report = ccompile.api.compiled_of(model.forward).report()
    assert report["recordings"] == 3 and report["eager_calls"] == 0
    assert report["hits"] == report["calls"] - 3


@pytest.mark.skipif(EAGER, reason="needs the product")
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_experts_are_symbolic(kind):
    """What an op of torch.ops gives is symbolic with its operands: there are as many recordings as without experts."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=90)
    experts = dict(num_local_experts=4) if kind == "mixtral" else dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8)
    config = transformers.AutoConfig.for_model(kind, **sizes, **experts, pad_token_id=0, bos_token_id=1, eos_token_id=None)
    torch.manual_seed(0)
    eager = transformers.AutoModelForCausalLM.from_config(config).eval()
    model = copy.deepcopy(eager)
    model.forward = ccompile.compile(model.forward)
    before = counters()
    for rows in (6, 6, 9, 7):
        prompt = torch.randint(5, 90, (2, rows))
        kw = {"do_sample": False, "max_new_tokens": NEW, "attention_mask": torch.ones_like(prompt)}
        assert torch.equal(eager.generate(prompt, **kw), model.generate(prompt, **kw)), rows
    after = counters()
    assert after["no_symbols"] == before["no_symbols"] and after["give_up"] == before["give_up"]
    report = ccompile.api.compiled_of(model.forward).report()
    assert report["eager_calls"] == 0 and report["recordings"] <= 5


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_growing_cache_without_symbols_ends_in_eager_with_one_warning():
    """dynamic=False: recompile_limit entries, one warning, eager calls."""
    pytest.importorskip("transformers")
    model = zoo.build("llama-cache")
    expected = model.generate(**prompt("llama-cache"), **settings(False, None))
    model.forward = ccompile.compile(model.forward, dynamic=False, options={"recompile_limit": 4})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            assert torch.equal(expected, model.generate(**prompt("llama-cache"), **settings(False, None)))
    ours = [w for w in seen if "recompile_limit" in str(w.message)]
    assert len(ours) == 1
    assert len(ccompile.api.compiled_of(model.forward).report()["entries"]) == 4


def test_mamba_keeps_its_state():
    """A state of one size: all steps but the first replay."""
    pytest.importorskip("transformers")
    eager = zoo.build("mamba")
    expected = eager.generate(**prompt("mamba"), **settings(False, None))
    compiled = generating(eager, "forward")
    for _ in range(2):
        assert torch.equal(expected, compiled(**prompt("mamba"), **settings(False, None)))
    with replaying(NEW):
        compiled(**prompt("mamba"), **settings(False, None))
