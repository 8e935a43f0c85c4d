"""Random training programs (training.py), eager against compiled: values, gradients, hooks, buffers, parameters, optimisers, errors,
random streams, `_version`. CCOMPILE_FUZZ_TRAINING=N is the number of programs; long runs are training.py's command."""

import os

import pytest
import torch
from fuzz import training

PROGRAMS = int(os.environ.get("CCOMPILE_FUZZ_TRAINING", "60"))


@pytest.mark.parametrize("seed", range(12))
def test_some(seed):
    training.check(training.drawn(seed + 1000))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_training(part):
    wrong = {seed: training.failure(training.drawn(seed)) for seed in range(3 + part, 3 + PROGRAMS, 3)}
    assert not {seed: text for seed, text in wrong.items() if text}


def test_control_a_gradient_of_one_side_is_found(monkeypatch):
    """One side's function gives a gradient that is wrong by a tenth: most programs have to fail, else the comparison proves nothing."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a.view_as(a)

        @staticmethod
        def backward(ctx, g):
            return g * 1.1

    def plain(fn, **_):
        return lambda x, *rest: fn(Wrong.apply(x), *rest) if rest else fn(x)

    monkeypatch.setattr(training, "plain", plain)
    failed = [seed for seed in range(12) if training.failure(training.drawn(seed))]
    assert len(failed) > 5
