"""Python features as real models use them (language_cases.py and its siblings): eager's behaviour, on first and later calls.

Each function runs four times beside eager: values, exceptions with text, chain and the traceback's lines in user code,
prints, arguments and state afterwards. torch._dynamo.explain's break counts, kept in language_dynamo.txt, are the ceiling
for the first call, which explain makes, and for the fourth, where no recording gives up any more. Rows of language_steady.txt
have more breaks in their fourth call; its numbers may only fall.
"""

import contextlib
import copy
import inspect
import io
import os
import warnings

import ccompile
import language_arrays  # noqa: F401  these fill the table
import language_calls  # noqa: F401
import language_classes  # noqa: F401
import language_contexts  # noqa: F401
import language_errors  # noqa: F401
import language_flow  # noqa: F401
import language_idioms  # noqa: F401
import language_iteration  # noqa: F401
import language_library  # noqa: F401
import language_looks  # noqa: F401
import language_modules
import language_numbers  # noqa: F401
import language_objects  # noqa: F401
import language_state  # noqa: F401
import language_text  # noqa: F401
import language_tools  # noqa: F401
import language_training  # noqa: F401
import pytest
import torch
from ccompile.api import compiled_of
from conftest import EAGER, Counts, alike, dynamo_breaks, explained, recorded, same, together
from language_cases import CASES, COUNTS, SINCE_313, SINCE_314, t


def build(name):
    fn = CASES[name].fn
    return fn() if isinstance(fn, type) else fn


def callable_of(name):
    """The function or module itself, as explain and dynamo take it."""
    fn = build(name)
    if CASES[name].made:
        fn = fn()
        fn = fn[0] if isinstance(fn, tuple) else fn
    return fn


def arguments(name, i=0):
    made = CASES[name].inputs(i)
    return made if isinstance(made, tuple) else (made,)


def stored():
    """name -> dynamo's (graphs, breaks), or None where the call raises; from the file that language_cases.py writes."""
    if not os.path.exists(COUNTS):
        return {}
    with open(COUNTS) as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    return {name: None if graphs == "-" else Counts(int(graphs), int(breaks)) for name, graphs, breaks in rows}


DYNAMO = stored()


def test_there_are_enough():
    assert len(CASES) >= 250


@pytest.mark.parametrize("name", CASES)
def test_equal(name):
    c = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(build(name), make_args=c.inputs, calls=4, build=c.made, hit=c.hit, trace=True, raises=True)


@pytest.mark.parametrize("name", [name for name in CASES if DYNAMO.get(name)])
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_no_more_breaks_than_dynamo(name):
    callable_of(name)(*arguments(name))  # what torch and the library load or make once is there
    ours, theirs = recorded(callable_of(name), *arguments(name)), DYNAMO[name]
    text = f"ours {ours.graph_count, ours.break_count}, dynamo's {tuple(theirs)}\n{ours}"
    if theirs.graphs:  # else dynamo failed, or left the whole function to eager
        assert ours.break_count <= theirs.breaks + CASES[name].over, text


@pytest.mark.parametrize("name", ["generator_throw", "generator_throw_through"])
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_nothing_is_given_up(name):
    report = explained(callable_of(name), *arguments(name))
    assert (report.graph_count, report.break_count, report.give_ups) == (1, 0, []), str(report)


def breaks_of_fourth_call(name):
    """Places at which it breaks, in segments that it runs or records; one in a loop counts once, as explain counts."""
    fn = ccompile.compile(callable_of(name))
    before = {}
    for i in range(4):
        ran = set()
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            fn(*copy.deepcopy(arguments(name, i)))
        segments = [s for entry in compiled_of(fn).report()["entries"] for s in entry["segments"]]
        ran = {s["break"]["site"] for s in segments if s["break"] and before.get(s["id"]) != s["hits"]}
        before = {s["id"]: s["hits"] for s in segments}
    return len(ran)


def steady():
    """name -> breaks in the fourth call, where they are more than dynamo's."""
    with open(os.path.join(os.path.dirname(COUNTS), "language_steady.txt")) as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    return {name: int(breaks) for name, breaks in rows}


STEADY = steady()


@pytest.mark.parametrize("name", [name for name in CASES if DYNAMO.get(name) and DYNAMO[name].graphs])
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_no_more_breaks_in_later_calls(name):
    more = name == "frames_locals" and SINCE_313  # f_locals is an object of a kind of its own there
    more += name == "annotations_of_a_local_function" and SINCE_314  # reading them runs a function that makes them
    assert breaks_of_fourth_call(name) <= max(DYNAMO[name].breaks, STEADY.get(name, 0)) + more


def test_steady_rows_are_needed():
    for name, breaks in STEADY.items():
        assert breaks > DYNAMO[name].breaks, f"{name} can go: dynamo has as many"


def test_dynamo_counts_are_complete():
    assert DYNAMO.keys() == CASES.keys()


@pytest.mark.parametrize("name", ["ThreeNested", "branch_on_tensor", "comprehension_dict", "print_plain"])
def test_dynamo_counts_are_current(name):
    assert dynamo_breaks(callable_of(name), *arguments(name)) == DYNAMO[name]


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_break_in_the_innermost_module():
    """One break, three modules deep: its callers are not split. Dynamo makes a graph for each part of each of them."""
    report = explained(build("ThreeNested"), t(2, 3))
    assert (report.graph_count, report.break_count) == (2, 1), str(report)
    assert DYNAMO["ThreeNested"].graphs >= 4
    (reason,) = report.break_reasons
    assert reason.line == inspect.getsourcelines(language_modules.Inner.forward)[1] + 2


# (recordings, breaks) of five calls. The bytecode of these differs from one CPython to the next: comparisons before jumps, inlined
# comprehensions and their handlers, StopIteration in generators, formats with a conversion, protocols, dataclasses.
ALL_VERSIONS = {
    "loop_while_tensor": (5, 3),
    "match_sequences": (10, 10),
    "generator_stop_iteration_inside": (1, 0),
    "number_gen_format": (4, 2),
    "protocols_and_typing": (1, 0),
    "dataclass_inside": (11, 6),
}


@pytest.mark.parametrize("name", ALL_VERSIONS)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_as_many_breaks_on_all_versions(name):
    with contextlib.suppress(RuntimeError):  # what abc and typing keep: 3.12's protocols look at their caller until then
        callable_of(name)(*arguments(name))
    before, compiled = ccompile.counters(), ccompile.compile(callable_of(name))
    with torch.no_grad():
        for i in range(5):
            try:
                compiled(*arguments(name, i))
            except RuntimeError:
                assert name == "match_sequences"
    grown = {key: value - before[key] for key, value in ccompile.counters().items()}
    assert (grown["recording"], grown["graph_break"]) == ALL_VERSIONS[name], grown
    assert grown["give_up"] == 0


THREADED = [
    "branch_on_tensor",
    "raise_on_value_in_callee",
    "generator_interleaved",
    "with_user_class",
    "break_innermost",
]


@pytest.mark.parametrize("name", THREADED)
def test_threads(name):
    """One compiled function, called by many threads at once; their first calls record side by side."""
    fn = callable_of(name)
    compiled = ccompile.compile(fn)

    def work(k):
        for i in range(8):
            expected = fn(*arguments(name, k + i))
            alike(expected, compiled(*arguments(name, k + i)), path=f"thread {k}, call {i}")

    together(6, work)
