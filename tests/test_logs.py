"""Logs: the topics of set_logs and CCOMPILE_LOGS, what their records carry, and where they go."""

import json
import logging
import os
import pathlib
import subprocess
import sys

import ccompile
import pytest
import torch
from ccompile import _core, logs
from conftest import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is compiled")


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.all = []

    def emit(self, record):
        self.all.append(record)

    def kinds(self):
        return [record.kind for record in self.all]

    def of(self, kind):
        return [record for record in self.all if record.kind == kind]


@pytest.fixture
def records():
    handler = Records()
    logging.getLogger("ccompile").addHandler(handler)
    yield handler
    ccompile.set_logs()
    logging.getLogger("ccompile").removeHandler(handler)


@ccompile.disable
def outside(x):
    return x


def program():
    """A recording with a graph break and fused ops, a recompilation, new sizes, an op that only torch runs."""

    def log_program(x):
        y = (x * 2 + 1).relu()
        outside(y)
        return torch.linalg.det(y.sin().cos() @ y.T)

    compiled = ccompile.compile(log_program, isolate_recompiles=True)
    with torch.no_grad():
        for n in (3, 4, 5, 6):
            compiled(torch.randn(n, 7))


KINDS = {
    "graph": {"graph"},
    "guards": {"guards"},
    "recompiles": {"recording", "recompile", "entry"},
    "breaks": {"graph_break"},
    "kernels": {"kernel", "primitive"},
    "fusion": {"fusion"},
    "schedule": {"schedule"},
    "perf": {"through_torch"},
}
DEBUG = {"graph": {"graph_after_passes"}, "recompiles": {"new_shape"}, "kernels": {"kernel_code"}}


@pytest.mark.parametrize("topic", logs.TOPICS)
def test_a_topic_shows_its_kinds_and_no_others(records, topic):
    ccompile.set_logs(**{topic: True})
    program()
    seen = set(records.kinds())
    # this process may have compiled the kernels before
    assert seen >= KINDS[topic] - {"kernel", "primitive"} or topic == "kernels"
    assert not seen & DEBUG.get(topic, set())
    assert all(record.name == f"ccompile.{topic}" for record in records.all)
    records.all.clear()
    ccompile.set_logs(**{topic: logging.DEBUG})
    program()
    assert set(records.kinds()) >= DEBUG.get(topic, set())
    assert all(record.name == f"ccompile.{topic}" for record in records.all)


def test_all_and_off(records):
    ccompile.set_logs(all=True, guards=False)
    program()
    names = {record.name for record in records.all}
    assert "ccompile.guards" not in names and names >= {"ccompile.graph", "ccompile.breaks", "ccompile.fusion"}
    ccompile.set_logs()
    records.all.clear()
    last = ccompile.events()[-1].serial
    program()
    assert records.all == []
    new = {event.kind for event in ccompile.events(after=last)}
    assert "graph_break" in new and not new & {"graph", "guards", "fusion"}, "what nobody reads is not printed"


def test_a_break_names_the_users_line(records):
    def breaks_inside_torch(x):
        y = x + 1
        torch.nn.utils.get_total_norm([y], error_if_nonfinite=True)
        return y * 2

    ccompile.set_logs(breaks=True)
    ccompile.compile(breaks_inside_torch)(torch.ones(3))
    (record, *_) = records.of("graph_break")
    assert record.pathname == __file__
    assert record.lineno == breaks_inside_torch.__code__.co_firstlineno + 2
    assert "breaks_inside_torch: " in record.getMessage()
    assert "clip_grad.py:" in record.detail and "what to do: " in record.detail, "the frames inside torch are further lines"
    event = next(event for event in reversed(ccompile.events()) if event.kind == "graph_break")
    assert (event.file, event.line) == (record.pathname, record.lineno)


@pytest.mark.parametrize("switch", ["ccompile", "nn.Module.compile"])
def test_a_module_is_named_by_its_class(records, switch):
    class Net(torch.nn.Module):
        def forward(self, x):
            return outside(x + 1) * 2

    ccompile.set_logs(breaks=True)
    net = Net()
    with ccompile.installed():
        (net.compile if switch == "nn.Module.compile" else lambda: None)()
        called = net if switch == "nn.Module.compile" else ccompile.compile(net)
        called(torch.ones(3))
    (record,) = records.of("graph_break")
    assert record.getMessage().partition(": ")[0] == Net.__qualname__


def test_records_tell_when_and_how_long(records):
    import time

    ccompile.set_logs(recompiles=True)
    before = time.time()
    program()
    (first, *_) = records.of("recording")
    whole = [record for record in records.all if record.kind == "recompile" or record.getMessage().endswith("ms")]
    assert whole and all(record.ms > 0 for record in whole)
    assert all(before - 1 < record.created < time.time() + 1 for record in records.all)
    assert [record.serial for record in records.all] == sorted(record.serial for record in records.all)


def test_records_arrive_at_breaks_and_at_the_end_of_calls(records):
    seen = []

    @ccompile.disable
    def look():
        seen.append(len(records.of("graph_break")))

    def program_of_two(x):
        look()
        x = x + 1
        look()
        return x * 2

    ccompile.set_logs(breaks=True)
    ccompile.compile(program_of_two)(torch.ones(3))
    assert seen == [0, 1] and len(records.of("graph_break")) == 2


def test_bad_names_values_and_formats():
    with pytest.raises(ValueError, match=r"unknown log 'brekas': did you mean 'breaks'\? Allowed: 'all', 'breaks', "):
        ccompile.set_logs(brekas=True)
    with pytest.raises(TypeError, match="log 'breaks' is True, False or a level"):
        ccompile.set_logs(breaks="yes")
    with pytest.raises(ValueError, match="unknown format 'xml'"):
        ccompile.set_logs(breaks=True, format="xml")
    with pytest.raises(TypeError, match="out is a path"):
        ccompile.set_logs(breaks=True, out=1)
    with pytest.raises(OSError):
        ccompile.set_logs(breaks=True, out="/nowhere/at/all")


def test_a_bad_call_keeps_the_earlier_choice(records):
    ccompile.set_logs(breaks=True)
    with pytest.raises(ValueError):
        ccompile.set_logs(brekas=True)
    program()
    assert records.of("graph_break")


@pytest.mark.parametrize("name", sorted(logs.TORCHS))
def test_names_of_torchs_logs(records, name):
    """Each is known to torch, and shows what the table says; one without a counterpart is an event."""
    import torch._logging

    assert name in torch._logging._internal.log_registry.artifact_names | set(
        torch._logging._internal.log_registry.log_alias_to_log_qnames
    )
    last = ccompile.events()[-1].serial if ccompile.events() else 0
    ccompile.set_logs(**{name: True})
    levels = {topic: logging.getLogger(f"ccompile.{topic}").level for topic in logs.TOPICS}
    chosen = {topic.lstrip("+"): logging.DEBUG if topic[0] == "+" else logging.INFO for topic in logs.TORCHS[name]}
    assert {topic: level for topic, level in levels.items() if level} == chosen
    assert (not chosen) == any(event.kind == "ignored" for event in ccompile.events(after=last))


@pytest.mark.parametrize(
    ("ours", "torchs", "topics"),
    [
        ("breaks,+guards", "", {"breaks": 20, "guards": 10}),
        ("all,-kernels", "", {topic: 20 for topic in logs.TOPICS if topic != "kernels"}),
        ("", "graph_breaks,+torch.distributed,bytecode", {"breaks": 20}),
        ("fusion", "graph_breaks", {"fusion": 20}),
        ("", "", {}),
    ],
)
def test_environment(records, monkeypatch, ours, torchs, topics):
    monkeypatch.setenv("CCOMPILE_LOGS", ours)
    monkeypatch.setenv("TORCH_LOGS", torchs)
    logs.from_environment()
    levels = {topic: logging.getLogger(f"ccompile.{topic}").level for topic in logs.TOPICS}
    assert {topic: level for topic, level in levels.items() if level} == topics


@pytest.mark.parametrize(
    ("chosen", "but"),
    [
        ({"all": True, "graph_breaks": False}, {"breaks": 0}),
        ({"all": True, "dynamo": None}, {"graph": 0, "guards": 0, "recompiles": 0, "breaks": 0}),
        ({"all": 10, "output_code": False}, {"kernels": 20}),
        ({"all": True, "output_code": False, "bytecode": False}, {}),
    ],
)
def test_torchs_names_end_what_they_begin(records, chosen, but):
    ccompile.set_logs(**chosen)
    levels = {topic: logging.getLogger(f"ccompile.{topic}").level for topic in logs.TOPICS}
    assert levels == {topic: but.get(topic, 10 if chosen["all"] == 10 else 20) for topic in logs.TOPICS}


def test_environment_with_a_format_that_nobody_knows(records, monkeypatch):
    monkeypatch.setenv("CCOMPILE_LOGS", "breaks")
    monkeypatch.setenv("CCOMPILE_LOGS_FORMAT", "xml")
    logs.from_environment()
    assert isinstance(logs._handlers[0].formatter, logs._Text)


def test_environment_with_a_misspelt_name(monkeypatch):
    monkeypatch.setenv("CCOMPILE_LOGS", "brekas")
    with pytest.raises(ValueError, match="unknown log 'brekas'"):
        logs.from_environment()


def test_text_in_a_file(records, tmp_path):
    out = tmp_path / "log.txt"
    out.write_text("before\n")
    ccompile.set_logs(breaks=True, fusion=True, out=out)
    program()
    before, *lines = out.read_text().splitlines()
    assert before == "before"
    (head,) = [line for line in lines if line.startswith("[ccompile.breaks] graph_break at ")][:1]
    assert f"{__file__}:" in head and "log_program: " in head
    assert any(line.startswith("    ") and "kernel mul" in line for line in lines)


CHILD = """
import os, torch, ccompile

def f(x):
    y = x + 1
    print(end="")
    return y * 2

ccompile.compile(f)(torch.ones(3))
pid = os.fork()
if pid == 0:
    ccompile.compile(f)(torch.ones(4))
    os._exit(0)
os.waitpid(pid, 0)
print(os.getpid(), pid)
"""


def test_json_lines_in_a_folder_by_the_environment(tmp_path):
    env = os.environ | {
        "CCOMPILE_LOGS": "breaks,recompiles",
        "CCOMPILE_LOGS_OUT": str(tmp_path / "logs") + os.sep,
        "CCOMPILE_LOGS_FORMAT": "json",
    }
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for pid in done.stdout.split():
        rows = [json.loads(line) for line in (tmp_path / f"logs/ccompile-{pid}.jsonl").read_text().splitlines()]
        assert {str(row["pid"]) for row in rows} == {pid}
        (row,) = [row for row in rows if row["kind"] == "graph_break"]
        assert (row["topic"], row["level"], row["file"], row["line"]) == ("breaks", "INFO", "<string>", 6)
        assert row["message"].startswith("f: ") and "what to do" in row["detail"]
        assert [row["ms"] > 0 for row in rows if row["kind"] == "recording" and row["ms"] is not None] == [True]


def test_handlers_may_compile_and_fail(records, monkeypatch):
    """A handler that calls compiled code, and one that raises, change nothing for the call."""
    inner = ccompile.compile(lambda x: x - 3)
    failures = []

    class Calls(logging.Handler):
        def emit(self, record):
            failures.append(inner(torch.zeros(len(failures) + 2)).sum().item())

    class Fails(logging.Filter):
        def filter(self, record):
            raise RuntimeError("the filter failed")

    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: raised.append(info.exc_value))
    logger, calls, fails = logging.getLogger("ccompile.breaks"), Calls(), Fails()
    ccompile.set_logs(breaks=True)

    def f(x):
        y = x + 1
        outside(y)
        raise KeyError("the call's own")

    logger.addHandler(calls)
    with pytest.raises(KeyError, match="the call's own"):
        ccompile.compile(f)(torch.ones(3))
    logger.removeHandler(calls)
    assert failures and failures[0] == -6
    logger.addFilter(fails)
    g = ccompile.compile(lambda x: outside(x + 1) * 2)
    assert g(torch.ones(2)).tolist() == [4, 4]
    logger.removeFilter(fails)
    assert raised and all("the filter failed" in str(error) for error in raised)


@pytest.mark.parametrize("topics", [{}, {"all": logging.DEBUG}], ids=["off", "all"])
def test_an_op_that_raises_raises_what_eager_raises(records, topics):
    def raises(x):
        return x @ torch.ones(5)

    ccompile.set_logs(**topics)
    compiled = ccompile.compile(raises)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="inconsistent tensor size"):
            compiled(torch.ones(3))


def test_each_kind_has_a_topic_that_exists():
    assert {topic for topic, _ in _core.event_kinds().values()} == set(logs.TOPICS)
    assert {level for _, level in _core.event_kinds().values()} <= {10, 20, 30, 40}


def test_settings_name_every_topic():
    text = (pathlib.Path(__file__).parent.parent / "docs/observing.md").read_text()
    for topic, (shows, more) in logs.TOPICS.items():
        assert f"| `{topic}` | {shows} | {more} |" in text
