"""mark_dynamic, mark_static, Dim, precompile, bucketed: which shapes share a recording."""

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from torch import nn


def scaled(x, y=None):
    out = torch.relu(x) * x.shape[0] + x.size(1)
    return out if y is None else out + y


def recordings(compiled):
    return compiled_of(compiled).report()["recordings"]


def run(compiled, fn, shapes):
    """Calls with each shape, equal to eager; how many recordings that took."""
    before = recordings(compiled)
    for i, shape in enumerate(shapes):
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(i))
        torch.testing.assert_close(compiled(x), fn(x))
    return recordings(compiled) - before


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


GROWING = [(4, 8), (5, 8), (6, 8), (7, 8), (4, 8)]


@pytest.mark.parametrize(
    ("dynamic", "expected"),
    [(None, 2), (True, 1), (False, 4), ({"x": {0: None}}, 1), ({"x": {0: ccompile.Dim("batch", min=2, max=64)}}, 1)],
)
def test_recordings(dynamic, expected):
    assert run(ccompile.compile(scaled, dynamic=dynamic), scaled, GROWING) == expected


def test_both_sizes_become_symbolic():
    compiled = ccompile.compile(scaled)
    assert run(compiled, scaled, [(4, 8), (5, 9), (6, 10), (7, 3), (40, 41)]) == 2


def test_zero_and_one_are_told_apart():
    compiled = ccompile.compile(scaled, dynamic=True)
    assert run(compiled, scaled, [(4, 8), (1, 8), (0, 8), (9, 8), (1, 8), (0, 8)]) == 3


def test_range():
    """Sizes outside of min..max have recordings of their own."""
    compiled = ccompile.compile(scaled, dynamic={"x": {0: ccompile.Dim(min=4, max=6)}})
    assert run(compiled, scaled, [(4, 8), (5, 8), (6, 8)]) == 1
    assert run(compiled, scaled, [(3, 8), (5, 8), (4, 8)]) == 1
    assert run(compiled, scaled, [(7, 8), (3, 8), (7, 8)]) == 1


def test_range_is_heeded_by_torch_export_dims():
    dim = torch.export.Dim("batch", min=4, max=6)
    compiled = ccompile.compile(scaled, dynamic={"x": {0: dim}})
    assert run(compiled, scaled, [(4, 8), (6, 8), (5, 8)]) == 1
    assert run(compiled, scaled, [(7, 8)]) == 1


@pytest.mark.parametrize("mark", [ccompile.mark_dynamic, torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic])
def test_mark_dynamic(mark):
    compiled = ccompile.compile(scaled)
    x = torch.randn(4, 8)
    mark(x, 0)
    torch.testing.assert_close(compiled(x), scaled(x))
    assert run(compiled, scaled, [(5, 8), (6, 8), (4, 8)]) == 0
    assert run(compiled, scaled, [(5, 9)]) == 1


def test_mark_dynamic_with_bounds():
    compiled = ccompile.compile(scaled)
    x = torch.randn(4, 8)
    ccompile.mark_dynamic(x, -2, min=3, max=5)
    compiled(x)
    assert run(compiled, scaled, [(3, 8), (5, 8)]) == 0
    assert run(compiled, scaled, [(6, 8)]) == 1


def test_mark_static():
    compiled = ccompile.compile(scaled, dynamic=True)
    for n in (4, 5, 6):
        x = torch.randn(n, 8)
        ccompile.mark_static(x, 0)
        torch.testing.assert_close(compiled(x), scaled(x))
    assert recordings(compiled) == 3
    ccompile.mark_dynamic(x, 0)
    compiled(x)
    assert recordings(compiled) == 3   # an entry that fits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, scale=1.0):
        return self.linear(x) * scale + x.shape[0]


def test_module_arguments_by_name():
    net = Net().eval()
    by_position = ccompile.compile(net, dynamic={"x": {0: ccompile.Dim()}})
    assert run(by_position, net, GROWING) == 1
    by_keyword = ccompile.compile(net, dynamic={"x": {0: ccompile.Dim()}})
    for shape in GROWING:
        x = torch.randn(*shape)
        torch.testing.assert_close(by_keyword(x=x), net(x=x))
    assert recordings(by_keyword) == 1


def test_parameters_are_never_symbolic():
    """dynamic=True is about arguments: another module's weights of another size record anew."""
    net = Net().eval()
    compiled = ccompile.compile(net, dynamic=True)
    assert run(compiled, net, GROWING) == 1
    net.linear = nn.Linear(8, 6)
    assert run(compiled, net, GROWING) == 1


def test_report_names_symbols():
    compiled = ccompile.compile(scaled, dynamic=True)
    run(compiled, scaled, GROWING)
    segment = compiled_of(compiled).report()["entries"][0]["segments"][0]
    assert any("shape(argument 0)" in line for line in segment["symbols"])
    assert any("size(0) symbolic" in guard for guard in segment["guards"])
    assert segment["shapes"] == 4


def test_shape_limit_bounds_plans():
    compiled = ccompile.compile(scaled, dynamic=True, options={"shape_limit": 3})
    assert run(compiled, scaled, [(n, 8) for n in range(2, 20)] * 2) == 1
    assert 3 <= compiled_of(compiled).report()["entries"][0]["segments"][0]["shapes"] <= 4 * 3


def test_precompile():
    compiled = ccompile.compile(scaled)
    done = ccompile.precompile(compiled, [(4, 8), torch.zeros(6, 8), (torch.zeros(5, 8), torch.zeros(5, 8))])
    assert [d.inputs for d in done] == ["[4, 8]", "[6, 8]", "[5, 8], [5, 8]"]
    assert [d.recorded for d in done] == [True, True, True] and all(d.ms > 0 for d in done)
    assert run(compiled, scaled, [(4, 8), (6, 8), (9, 8)]) == 0


@pytest.mark.parametrize("how", [{"width": 4}, {"sizes": [4, 8, 12]}])
def test_bucketed(how):
    fn = lambda x, y: (x * 2 + y, x.sum(1))  # noqa: E731
    bucketed = ccompile.bucketed(fn, 0, **how)
    for n in (3, 4, 5, 7, 8, 9, 3):
        x, y = torch.randn(n, 6), torch.randn(n, 6)
        torch.testing.assert_close(bucketed(x, y=y), fn(x, y))
    stats = bucketed.stats()
    assert stats.calls == 7 and stats.buckets == {4: 3, 8: 3, 12: 1}
    assert stats.hits == 4 and stats.hit_rate == pytest.approx(4 / 7)
    assert set(t[0].shape[0] for t in [bucketed(torch.randn(2, 6), torch.randn(2, 6))]) == {2}


def test_bucketed_precompile_and_sizes_past_the_last():
    fn = lambda x: torch.relu(x)  # noqa: E731
    bucketed = ccompile.bucketed(fn, 1, sizes=[8, 4], crop=False)
    bucketed.precompile([(2, 3), (2, 7)])
    assert bucketed(torch.randn(2, 3)).shape == (2, 4)
    assert bucketed(torch.randn(2, 9)).shape == (2, 9)
    assert bucketed.stats().buckets == {4: 1, 8: 0, 9: 1} and bucketed.stats().hits == 1


def test_bucketed_keeps_what_is_compiled():
    for model in (nn.Identity(), scaled):
        compiled = ccompile.compile(model, fullgraph=True, name="mine")
        assert ccompile.bucketed(compiled, 0, width=4).compiled is compiled
        again = ccompile.bucketed(compiled, 0, width=4, name="other").compiled
        assert again is not compiled


BAD = [
    (lambda: ccompile.bucketed(ccompile.compile(scaled), 0, width=4, wrong=1), TypeError, "argument 'wrong'"),
    (lambda: ccompile.bucketed(scaled, 0, width=4).precompile([(3.5,)]), ValueError, "no argument is a tensor with"),
    (lambda: ccompile.mark_dynamic(3, 0), TypeError, "expected a tensor, not int"),
    (lambda: ccompile.mark_dynamic(torch.ones(2), 1), IndexError, "dim must be in -1..0"),
    (lambda: ccompile.mark_dynamic(torch.ones(2), True), TypeError, "dim must be an int"),
    (lambda: ccompile.mark_dynamic(torch.ones(2), 0, min=5, max=4), ValueError, "contains no size"),
    (lambda: ccompile.mark_dynamic(torch.ones(2), 0, max=1), ValueError, "sizes below 2 never are"),
    (lambda: ccompile.mark_static(torch.ones(2), 2), IndexError, "dim must be in"),
    (lambda: ccompile.Dim(min=1.5), TypeError, "min must be an int or None"),
    (lambda: ccompile.Dim(min=-1), ValueError, "min must be 0 or more"),
    (lambda: ccompile.Dim(2, 5), TypeError, "name must be a str, not int: 2; bounds are min= and max="),
    (lambda: ccompile.compile(scaled, dynamic={"z": {0: None}}), ValueError, "the parameters are: x, y"),
    (lambda: ccompile.compile(scaled, dynamic={"x": 0}), TypeError, "a str and a mapping"),
    (lambda: ccompile.compile(scaled, dynamic={"x": {"a": None}}), ValueError, "a dim is an int in 0..7"),
    (lambda: ccompile.compile(scaled, dynamic={"x": {0: 5}}), TypeError, "must be a ccompile.Dim or None"),
    (lambda: ccompile.precompile(scaled, []), TypeError, "not something that ccompile.compile returned"),
    (lambda: ccompile.precompile(ccompile.compile(scaled), [3]), TypeError, "expected arguments, a tensor or a shape"),
    (lambda: ccompile.precompile(ccompile.compile(scaled), 3), TypeError, "inputs must be an iterable"),
    (lambda: ccompile.bucketed(scaled, 0), ValueError, "pass either width="),
    (lambda: ccompile.bucketed(scaled, -1, width=2), ValueError, "non-negative"),
    (lambda: ccompile.bucketed(scaled, 0, width=0), ValueError, "above 0"),
    (lambda: ccompile.bucketed(scaled, 0, width=4)(1), ValueError, "no argument is a tensor with that dim"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_arguments(call, error, text):
    with pytest.raises(error) as info:
        call()
    assert text in str(info.value)


def test_dynamic_benchmark():
    import json
    import pathlib
    import subprocess
    import sys

    script = pathlib.Path(__file__).parents[1] / "benchmarks/bench_dynamic.py"
    done = subprocess.run(
        [sys.executable, str(script), "--lengths", "4", "--json"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = {(row["experiment"], row["dynamic"]): row for row in map(json.loads, done.stdout.splitlines())}
    assert {key: row["recordings"] for key, row in rows.items() if key[1] is not False} == {
        ("batch 32, 64", None): 2, ("batch 32, 64", True): 1, ("4 lengths", None): 2, ("4 lengths", True): 1,
    }  # fmt: skip
    assert all(row["eager calls"] == 0 for row in rows.values())


PADDED = {
    "arange": lambda p: torch.arange(p.size(1)),
    "zeros": lambda p: torch.zeros(p.shape[:2]) + 1,
    "zeros_like": lambda p: torch.zeros_like(p) - 1,
    "new_zeros": lambda p: p.new_zeros(p.size(1), 2) * 3,
    "number": lambda p: p.size(1),
    "product": lambda p: p.size(0) * p.size(1) + 1,
    "mask": lambda p: (p.sum(-1), torch.arange(p.size(1))[None] < 3),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PADDED)
def test_a_size_that_only_torch_knows_is_checked_even_if_nothing_else_is_read(name, grad):
    """pad_sequence: the longest of several. That it follows one of them is a guess, which holds in some calls."""

    def fn(parts):
        return PADDED[name](torch.nn.utils.rnn.pad_sequence(parts, batch_first=True))

    lengths = [[2, 3, 4], [3, 4, 5], [4, 5, 2], [5, 2, 3], [7, 3, 4], [2, 8, 8]]
    compiled = ccompile.compile(fn)
    for i in range(36):
        parts = [torch.rand(n, 3).requires_grad_(grad) for n in lengths[i % 4 if i < 20 else i % 6]]
        torch.testing.assert_close(compiled(parts), fn(parts))
