"""Each pass alone: graphs as text, and what the pass turns them into.

A golden file in tests/core/passes is named after its pass, or several ('pure+views': the host does not know what a view of
a rewritten value is). Its first line says what it shows; then come a graph, '---', and the graph
after the pass, by its names for values. CCOMPILE_GOLDEN=write rewrites the second half: review the changes before you
commit them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import ccompile
import core_library
import pytest
import torch
from conftest import same
from models_zoo import TRANSFORMERS, ZOO

sys.path.insert(0, str(Path(__file__).parent / "core"))
import harness  # noqa: E402
from pass_faults import FAULTS  # noqa: E402

FILES = sorted((Path(__file__).parent / "core/passes").glob("*.txt"))
ORDER = harness.PASSES


@pytest.fixture(scope="session")
def lib(tmp_path_factory):
    return harness.load(core_library.built(tmp_path_factory))


def read(lib, text):
    why = ctypes.create_string_buffer(300)
    g = lib.t_graph_read(text.encode(), why, 300)
    if not g:
        raise ValueError(why.value.decode())
    return g


def taken(lib, pointer):
    text = ctypes.string_at(pointer).decode()
    lib.t_release(pointer)
    return text


def printed(lib, g):
    return taken(lib, lib.t_graph_text(g))


def behind(lib, monkeypatch, text, passes):
    """The graph when just these passes have seen it, as the plan of its last round of compiling tells it."""
    monkeypatch.setenv("CCOMPILE_SKIP_PASSES", ",".join(p for p in ORDER if p not in passes))
    monkeypatch.setenv("CCOMPILE_DUMP", "graph")
    why = ctypes.create_string_buffer(300)
    g = read(lib, text)
    plan = lib.t_compile(g, None, why, 300)
    lib.t_graph_free(g)
    assert plan, why.value
    lines = taken(lib, lib.t_plan_text(plan)).splitlines(keepends=True)
    lib.t_free(plan)
    return "".join(line for line in lines if line.startswith("%") or ") #" in line)


def parts(file):
    head, _, after = file.read_text().partition("---\n")
    what, _, before = head.partition("\n")
    return what, before, after


def passes_of(file):
    return file.stem.split("-")[0].split("+")


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_golden(lib, monkeypatch, file):
    what, before, expected = parts(file)
    if file.stem.startswith("transpose") and "avx512" not in taken(lib, lib.t_describe()):
        pytest.skip("products are transposed for vectors of 64 bytes")
    got = behind(lib, monkeypatch, before, passes_of(file))
    if os.environ.get("CCOMPILE_GOLDEN") == "write":
        g = read(lib, before)
        file.write_text(f"{what}\n{printed(lib, g)}---\n{got}")
        lib.t_graph_free(g)
    else:
        assert got == expected, what


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_text_is_read_as_it_is_printed(lib, file):
    for text in parts(file)[1:]:
        g = read(lib, text)
        assert printed(lib, g) == text
        lib.t_graph_free(g)


def test_each_pass_has_a_golden():
    assert {p for f in FILES for p in passes_of(f)} == set(ORDER)


@pytest.mark.parametrize("stem", FAULTS)
def test_faults_are_put_where_they_were(stem):
    """`make test-faults` takes minutes, so here just this: each text that it spoils is there, once."""
    text = (harness.ROOT / "csrc/pass" / f"{stem}.c").read_text()
    assert {old: text.count(old) for old, _ in FAULTS[stem]} == {old: 1 for old, _ in FAULTS[stem]}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("%0 : f33[2]\n", "line 1"),
        ("%0 : f32[2]\n%1 : f32[2] = exq(%0) #0\n", "line 2"),
        ("%0 : f32[2]\n%1 : f32[2] = exp(%7) #0\n", "no value %7"),
        ("%0 : f32[2]\n%1 : f32[2] hidden of %0+4\n", "bytes 4 to 12 of %0"),
        ("%0 : f32[2]\n%2 : f32[2], %1 : f32[2] = var_mean(%0, 1) #0\n", "line 2"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(lib, text, where):
    with pytest.raises(ValueError, match=where):
        read(lib, text)


def test_a_pass_that_does_not_exist_is_named(lib, monkeypatch):
    why = ctypes.create_string_buffer(300)
    g = read(lib, "%0 : f32[2]\n%1 : f32[2] out = exp(%0) #0\n")
    lib.t_free(lib.t_compile(g, None, why, 300))  # its kernel's event does not follow then
    monkeypatch.setenv("CCOMPILE_SKIP_PASSES", "transpose,lay out")
    lib.t_free(lib.t_compile(g, None, why, 300))
    lib.t_graph_free(g)
    lib.t_last_event(why, 300)
    assert b"unknown pass 'out'" in why.value or b"unknown pass 'lay'" in why.value
    assert " ".join(ORDER).encode() in why.value


MODELS = {**ZOO, **TRANSFORMERS}


def made(name):
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(11)
    model = MODELS[name][0]()
    return model.eval() if isinstance(model, torch.nn.Module) else model


@pytest.mark.parametrize("name", MODELS)
def test_graphs_of_models_are_read_as_they_are_printed(lib, monkeypatch, name):
    """As recorded, and behind all passes."""
    monkeypatch.setenv("CCOMPILE_DUMP", "graph")
    args, kw = MODELS[name][1](0)
    with torch.no_grad():
        graphs = ccompile.explain(made(name), *args, **kw).graphs
    assert graphs
    for graph in graphs:
        rewritten = "".join(line for line in graph.plan.splitlines(keepends=True) if line.startswith("%") or ") #" in line)
        for text in (graph.text, rewritten):
            g = read(lib, text)
            assert printed(lib, g) == text
            lib.t_graph_free(g)


@pytest.mark.parametrize("name", ["simple-model", "conv-net-mix", "mini-transformer", "temporal-lstm", "bert", "gpt2"])
@pytest.mark.parametrize("skipped", [*ORDER, ",".join(ORDER)], ids=[*ORDER, "all"])
def test_a_pass_that_is_left_out_costs_speed_only(monkeypatch, name, skipped):
    monkeypatch.setenv("CCOMPILE_SKIP_PASSES", skipped)
    same(made(name), make_args=MODELS[name][1], calls=2)
