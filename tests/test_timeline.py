"""The timeline (ccompile.timeline, CCOMPILE_TRACE) and the ranges in torch.profiler: the same spans."""

import json
import os
import re
import subprocess
import sys

import ccompile
import pytest
import torch
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")


def timeline_program(x, w):
    y = (x @ w).relu() * 2
    ccompile.graph_break()
    return torch.linalg.det(y.sin().cos() @ y.T)


def arguments(n=4):
    return torch.randn(n, 8), torch.randn(8, 8)


def spans(events, kind=None):
    return [e for e in events if e["ph"] == "X" and kind in (None, e["cat"])]


def check(text):
    """The file is a trace: complete events nest, asynchronous ones come in pairs, times are positive."""
    events = json.loads(text)["traceEvents"]
    assert {e["ph"] for e in events} <= {"M", "X", "i", "b", "e"}
    for thread in {e["tid"] for e in events}:
        open_until = []
        mine = [e for e in spans(events) if e["tid"] == thread]
        for e in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
            while open_until and open_until[-1] <= e["ts"]:
                open_until.pop()
            assert e["dur"] >= 0 and all(e["ts"] + e["dur"] <= end + 1e-6 for end in open_until), e
            open_until.append(e["ts"] + e["dur"])
    begun = [e["id"] for e in events if e["ph"] == "b"]
    assert begun == [e["id"] for e in events if e["ph"] == "e"]
    return events


def test_spans_and_events(tmp_path):
    compiled = ccompile.compile(timeline_program)
    with torch.no_grad():
        with ccompile.timeline(tmp_path / "t.json"):
            compiled(*arguments())
            compiled(*arguments())
        compiled(*arguments())
    events = check((tmp_path / "t.json").read_text())
    kinds = {"call", "record", "compile", "pass", "graph", "kernel", "library call", "torch"}
    assert {e["cat"] for e in spans(events)} == kinds
    assert [e["name"] for e in spans(events, "call")] == ["timeline_program"] * 2, "the call behind the block is not in it"
    assert {e["name"] for e in spans(events, "graph")} == {f"timeline_program, segment {i}" for i in (0, 1)}
    assert re.fullmatch(r"(mul|relu|sin|cos)#\d( \w+#\d)*", spans(events, "kernel")[0]["name"])
    (broken,) = [e for e in events if e["name"] == "graph_break"]
    assert broken["args"]["file"] == __file__
    assert broken["args"]["line"] == timeline_program.__code__.co_firstlineno + 2
    assert {e["pid"] for e in events} == {os.getpid()}


def test_the_file_is_complete_at_any_moment(tmp_path):
    path, seen = tmp_path / "t.json", []

    @ccompile.disable
    def look():
        seen.append(check(path.read_text()))

    def f(x):
        look()
        y = x + 1
        look()
        return y * 2

    compiled = ccompile.compile(f)
    with ccompile.timeline(path):
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    sizes = [len(events) for events in seen]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_stages_under_autograd(tmp_path):
    compiled = ccompile.compile(lambda x: (x * 2).tanh().sum())
    x = torch.ones(4, requires_grad=True)
    compiled(x).backward()
    with ccompile.timeline(tmp_path / "t.json"):
        compiled(x).backward()
    kinds = [e["cat"] for e in spans(check((tmp_path / "t.json").read_text()))]
    assert kinds.count("forward") == kinds.count("backward") == 1


def test_names_are_escaped(tmp_path):
    name = 'a "name" \\ with\n\x01 é'
    compiled = ccompile.compile(lambda x: x + 1, name=name)
    with ccompile.timeline(tmp_path / "t.json"):
        compiled(torch.ones(3))
    assert [e["name"] for e in spans(check((tmp_path / "t.json").read_text()), "call")] == [name]


def test_long_names_and_graphs(tmp_path):
    def f(x):
        for _ in range(200):
            x = x + 1
        return x

    compiled = ccompile.compile(f, name="é" * 300)
    with ccompile.timeline(tmp_path / "t.json"):
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    assert len(spans(check((tmp_path / "t.json").read_text()), "call")) == 2


def test_errors(tmp_path):
    with pytest.raises(OSError, match="no such folder/t.json: No such file"):
        with ccompile.timeline(tmp_path / "no such folder/t.json"):
            pass
    with pytest.raises(TypeError):
        with ccompile.timeline(3):
            pass
    with ccompile.timeline(tmp_path):
        with pytest.raises(RuntimeError, match="a timeline is being written already"):
            with ccompile.timeline(tmp_path / "other.json"):
                pass
    assert check((tmp_path / f"ccompile-{os.getpid()}.json").read_text())
    assert not (tmp_path / "other.json").exists()


CHILD = """
import os, signal, torch, ccompile

def f(x):
    return (x + 1).relu()

compiled = ccompile.compile(f)
compiled(torch.ones(3))
pid = os.fork()
compiled(torch.ones(3))
if pid == 0:
    compiled(torch.ones(4))
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(pid, 0)
print(os.getpid(), pid, flush=True)
os._exit(1)
"""


def test_by_the_environment_with_a_fork_and_without_an_end(tmp_path):
    env = os.environ | {"CCOMPILE_TRACE": str(tmp_path / "traces")}
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr == ""
    parent, child = (
        check((tmp_path / f"traces/ccompile-{pid}.json").read_text()) for pid in done.stdout.split()
    )
    assert [len(spans(events, "call")) for events in (parent, child)] == [2, 2]
    assert [len(spans(events, "record")) for events in (parent, child)] == [1, 1]


def ranges(profile):
    return {e.key for e in profile.key_averages() if e.key.startswith("ccompile::")}


@pytest.mark.parametrize("stacks", [False, True], ids=["plain", "stacks"])
def test_ranges_in_torchs_profiler(stacks):
    compiled = ccompile.compile(lambda x, w: (x @ w).relu() * 2, name="profiled")
    x = arguments()
    with torch.no_grad():
        for _ in range(3):
            compiled(*x)
        with torch.profiler.profile(with_stack=stacks) as profile:
            compiled(*x)
        expected = {"ccompile::call profiled", "ccompile::graph profiled, segment 0"}
        assert ranges(profile) >= expected
        assert {key.split()[0] for key in ranges(profile)} == {"ccompile::call", "ccompile::graph", "ccompile::kernel", "ccompile::library"}
        before = {e.key: e for e in profile.events()}
        for inner in ("ccompile::graph profiled, segment 0", next(key for key in ranges(profile) if "::kernel" in key)):
            outer, one = before["ccompile::call profiled"].time_range, before[inner].time_range
            assert outer.start <= one.start and one.end <= outer.end
        compiled(*x)
        with torch.profiler.profile() as later:
            x[0] + 1
        assert not ranges(later)


def test_ranges_of_recordings_and_backwards():
    compiled = ccompile.compile(lambda x: (x * 2).tanh().sum(), name="trained")
    x = torch.ones(4, requires_grad=True)
    with torch.profiler.profile() as profile:
        compiled(x)
        compiled(x).backward()
    kinds = {key.split()[0].removeprefix("ccompile::") for key in ranges(profile)}
    assert kinds >= {"record", "compile", "pass", "graph", "forward", "backward"}


def test_an_exception_passes_through_open_ranges():
    def fails(x):
        y = x + 1
        ccompile.graph_break()
        raise KeyError("the call's own")

    compiled = ccompile.compile(fails)
    for _ in range(3):
        with torch.profiler.profile() as profile:
            with pytest.raises(KeyError, match="the call's own"):
                compiled(torch.ones(3))
        assert "ccompile::call " + fails.__qualname__ in ranges(profile)
