"""Norms and variances of elements far from 0: about as exact as eager's, whose statistics are sums in double or Welford's. Kernels
add in the dtype of the elements; what rounds off the mean must not look like a variance: rows of 12345.678 are zeros once
normalised."""

import itertools

import ccompile
import pytest
import torch
from ccompile.api import compiled_of
from torch.nn import functional as F

OFFSETS, SPREADS = (0.0, 1e2, 12345.678, 1e5, 1e6), (0.0, 1e-3, 1.0, 100.0)
ENOUGH = 3e-7  # relative to the largest element: an error below it isn't eager's luck
TIMES = 6  # both depend on the CPU's vectors; before, errors were 69 (layer norm) to 3e6 times eager's (var)


def batch_norm(x, w, b):
    mean, var = torch.zeros_like(w), torch.zeros_like(w)
    return F.batch_norm(x, mean, var, w, b, training=True), mean, var


CASES = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (16, 64)),
    "layer_norm of 768": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (4, 768)),
    "layer_norm of 5000": (lambda x, w, b: F.layer_norm(x, x.shape[-1:]), (3, 5000)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (2, 8, 6, 7)),
    "group_norm, channels last": (lambda x, w, b: F.group_norm(x, 4, w, b), (2, 64, 24, 24)),
    "instance_norm": (lambda x, w, b: F.instance_norm(x), (2, 8, 13, 13)),
    "batch_norm, channels last": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, 32, 24, 24)),
    "batch_norm, statistics": (batch_norm, (4, 6, 9, 9)),
    "batch_norm, long lines": (batch_norm, (4, 3, 5000)),
    "rms_norm": (lambda x, w, b: F.rms_norm(x, x.shape[-1:], w), (4, 768)),
    "var": (lambda x, w, b: x.var(-1), (8, 768)),
    "std": (lambda x, w, b: x.std(-1), (8, 768)),
}


def tuple_of(results):
    return results if isinstance(results, tuple) else (results,)


def inputs(name, shape, offset, spread, seed):
    torch.manual_seed(seed)
    x = torch.randn(shape) * spread + offset
    if "channels last" in name:
        x = x.to(memory_format=torch.channels_last)
    n = shape[1]
    return x, torch.rand(n) + 0.5, torch.randn(n)


def values(fn, given, training):
    """Results of fn, and the gradients of its inputs if training, in double."""
    leaves = [t.clone().requires_grad_(training) for t in given]
    results = tuple_of(fn(*leaves))
    found = [y.detach() for y in results]
    if training:
        weights = torch.linspace(-7, 7, results[0].numel(), dtype=torch.float64).sin().view(results[0].shape)
        weights = torch.empty_like(results[0]).copy_(weights)
        found += [g for g in torch.autograd.grad((results[0] * weights).sum(), leaves, allow_unused=True) if g is not None]
    return [t.double() for t in found]


def errors(found, true):
    return [(f - t).abs().max().item() for f, t in zip(found, true, strict=True)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_exact_as_eager(name, training):
    norm, shape = CASES[name]

    def fn(x, w, b):  # autograd's stages want a few ops; these don't round
        if training:
            x = (x * 1.0 - 0.0) * 1.0
        results = tuple_of(norm(x, w, b))
        return tuple((y + 0.0) * 1.0 for y in results) if training else results

    compiled = ccompile.compile(fn, options={"verify": False, "eager_if_slower": False})
    for offset, spread in itertools.product(OFFSETS, SPREADS):
        ours, eagers = [], []
        for seed in range(3):
            given = inputs(name, shape, offset, spread, seed)
            true = values(fn, [t.double() for t in given], training)
            if seed == 0:
                values(compiled, given, training)
            ours.append(errors(values(compiled, given, training), true))
            eagers.append(errors(values(fn, given, training), true))
        for k, t in enumerate(true):
            limit = TIMES * max(max(e[k] for e in eagers), ENOUGH * t.abs().max().item(), 1e-30)
            worst = max(e[k] for e in ours)
            assert worst <= limit, f"result {k} at offset {offset}, spread {spread}: off by {worst}, eager by {limit / TIMES}"
    assert compiled_of(compiled).report()["hits"] > 0


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("layer_norm")])
@pytest.mark.parametrize("number", [12345.678, -0.1, 3e5])
def test_rows_of_one_number_are_zeros(name, number):
    fn, shape = CASES[name]
    compiled = ccompile.compile(lambda x, w, b: fn(x, w, b), options={"verify": False})
    x, w, b = inputs(name, shape, number, 0.0, 0)
    for _ in range(2):
        assert torch.equal(compiled(x, torch.ones_like(w), torch.zeros_like(b)), torch.zeros_like(x))
