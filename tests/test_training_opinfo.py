"""Gradients on torch's own samples: each differentiable row of torch.testing's op_db and each module of its module_db, between
pointwise ops with which it may form a stage (csrc/grad). Compiled forward and backward give what eager gives, call by call.
CCOMPILE_OPS=all takes every sample of each row, else every other row has one."""

import copy
import os
import random
import warnings

import ccompile
import pytest
import torch
from conftest import Walk, tensors

pytest.importorskip("expecttest", reason="torch.testing's op_db needs it")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

# it has called torch.backends.disable_global_flags(), for the whole process
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

ALL = os.environ.get("CCOMPILE_OPS") == "all"
SAMPLES = 1000 if ALL else 1  # of each dtype, drawn from all
OPS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db if op.supports_autograd and not op.name.startswith("jiterator")}
LOOSE = {torch.float32: (2e-4, 1e-4), torch.float64: (1e-7, 1e-7)}  # sums are added in another order
ROUNDS = {"bfloat16": 2e-2, "half": 2e-3}  # eager rounds behind each op


def is_plain(t):
    return isinstance(t, torch.Tensor) and t.is_floating_point() and t.layout is torch.strided and type(t) is torch.Tensor


def mapped(f, value):
    if isinstance(value, torch.Tensor):
        return f(value) if is_plain(value) and value.requires_grad else value
    if isinstance(value, dict):
        return {k: mapped(f, v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(f, v) for v in value)
    return value


def chained(op):
    """Three pointwise ops before it and behind it."""

    def fn(args, kwargs):
        args, kwargs = mapped(lambda t: torch.tanh(t) * 0.5 + t * 0.75, (args, kwargs))
        result = op(*args, **kwargs)
        return result, mapped(lambda t: torch.tanh(t * 0.5) * 2 + t, result)

    return fn


def fresh(value):
    """Equal leaves."""
    if isinstance(value, torch.Tensor):
        copied = value.detach().clone() if value.layout is torch.strided else value.detach()
        return copied.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {k: fresh(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        items = [fresh(v) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def differentiated(fn, given, seed, parameters=()):
    """(error, results, gradients of arguments and parameters) of one call."""
    given = fresh(given)
    torch.manual_seed(seed)
    try:
        result = fn(*given)
        out = [t for t in tensors(result) if t.requires_grad]
        leaves = [t for t in (*tensors(given), *parameters) if t.requires_grad]
        g = torch.Generator().manual_seed(seed)
        weights = [torch.randn(t.shape, generator=g).to(t.dtype) for t in out]
        grads = torch.autograd.grad(out, leaves, weights, allow_unused=True) if out and leaves else ()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}", None, None
    return None, result, grads


def dense(grad):
    return torch.empty_like(grad, memory_format=torch.contiguous_format).copy_(grad) if is_plain(grad) else grad


def greatest(grad):
    """Sums are added in another order: what is lost depends on the greatest elements."""
    if not is_plain(grad) or grad.numel() == 0:
        return 1
    found = float(grad.abs().max())
    return max(found, 1) if found < float("inf") else 1


def drawn(op, dtype):
    torch.manual_seed(0)
    samples = [s for s in op.sample_inputs("cpu", dtype, requires_grad=True) if all(t.layout is torch.strided for t in tensors((s.input, s.args)))]
    return random.Random(op.full_name).sample(samples, min(SAMPLES, len(samples)))


def compare_grads(want, got, rtol, atol, call):
    for k, (a, b) in enumerate(zip(want or (), got or (), strict=True)):
        Walk(rtol, atol * greatest(a)).go(dense(a), dense(b), f"call {call}: gradient {k}")


def compare(fn, given, calls, dtype, rounds=0):
    compiled = ccompile.compile(fn)
    if any(t.dtype == torch.float32 for t in tensors(given)):  # cov's weights, whatever the dtype of the rest
        dtype = torch.float32
    rtol, atol = (max(v, rounds) for v in LOOSE[dtype])
    for i in range(calls):
        want, got = differentiated(fn, given, i), differentiated(compiled, given, i)
        Walk(rtol, atol).go(want[:2], got[:2], f"call {i}")
        # strides of gradients are torch's own where a stage gives them (docs/training.md)
        compare_grads(want[2], got[2], rtol, atol, i)


@pytest.mark.parametrize("name", list(OPS)[:: 1 if ALL else 2])
def test_ops(name):
    op = OPS[name]
    for dtype in (torch.float32, torch.float64) if ALL else (torch.float32,):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for s in drawn(op, dtype):
                ccompile.reset()
                compare(chained(op.op), ((s.input, *s.args), s.kwargs), 3, dtype, rounds=ROUNDS.get(name, 0))


class Between(torch.nn.Module):
    """A module between pointwise ops."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, args, kwargs):
        return chained(self.inner)(args, kwargs)


@pytest.mark.parametrize("info", module_db, ids=lambda m: m.name)
def test_modules(info):
    if torch.float32 not in info.supported_dtypes("cpu"):
        pytest.skip("of GPUs alone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(0)
            made = list(info.module_inputs_func(info, "cpu", torch.float32, True, training))
            for m in random.Random(info.name).sample(made, min(2 * SAMPLES, len(made))):
                if m.forward_input is None:
                    continue
                ccompile.reset()
                torch.manual_seed(1)
                one = Between(info.module_cls(*m.constructor_input.args, **m.constructor_input.kwargs).train(training))
                check_module(one, m.forward_input.args, m.forward_input.kwargs)


def check_module(one, args, kwargs):
    two = copy.deepcopy(one)
    compiled = ccompile.compile(two)
    for i in range(3):
        sides = []
        for module, fn in ((one, one), (two, compiled)):
            error, result, grads = differentiated(fn, (args, kwargs), i, list(module.parameters()))
            sides.append((error, result, grads, [*module.buffers()]))
        want, got = sides
        Walk(2e-4, 1e-4).go(want[:2] + want[3:], got[:2] + got[3:], f"call {i}")
        compare_grads(want[2], got[2], 2e-4, 1e-4, i)
