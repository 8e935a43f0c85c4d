"""torch's own samples: each row of torch.testing's op_db (700 ops and variants) supplies arguments for each dtype; the compiled
op must match eager on them, alone and in a chain with other ops. torch's samples cover what our own tables miss."""

import random
import warnings

import pytest
import torch
from conftest import same, tensors

pytest.importorskip("expecttest", reason="torch.testing's op_db needs it")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

# it has called torch.backends.disable_global_flags(), for the whole process
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

SAMPLES = 6  # of each dtype, drawn from all
UNSET = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}  # memory as it was
OPS = {
    f"{op.name}.{op.variant_test_name}".rstrip("."): op
    for op in op_db
    if op.name not in UNSET and not op.name.startswith("jiterator")  # of GPUs alone
}
LOOSE = {torch.float32: (1e-4, 1e-4), torch.complex64: (1e-4, 1e-4)}  # sums are added in another order


def chained(op):
    """The op between others, with which kernels may join it."""

    def fn(*args, **kwargs):
        more = [a * 0.5 if isinstance(a, torch.Tensor) and a.is_floating_point() and a.layout is torch.strided else a for a in args]
        result = op(*more, **kwargs)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.layout is torch.strided:
            return result, result * 0.5 + 1
        return result

    return fn


def alone(op):
    return lambda *args, **kwargs: op(*args, **kwargs)


WAYS = ((alone, torch.float32), (alone, torch.int64), (alone, torch.bool), (alone, torch.complex64), (chained, torch.float32))


def drawn(op, dtype):
    torch.manual_seed(0)
    samples = [s for s in op.sample_inputs("cpu", dtype) if all(t.layout is torch.strided for t in tensors((s.input, s.args)))]
    return random.Random(op.full_name).sample(samples, min(SAMPLES, len(samples)))


@pytest.mark.parametrize("name", OPS)
def test_samples(name):
    op = OPS[name]
    for build, dtype in WAYS:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        samples = drawn(op, dtype)
        rtol, atol = LOOSE.get(dtype, (None, None))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(
                build(op.op),
                make_args=lambda i, samples=samples: ((samples[i // 2].input, *samples[i // 2].args), samples[i // 2].kwargs),
                calls=2 * len(samples),
                hit=False,
                raises=build is chained,  # as_strided of what has other strides now
                rtol=rtol,
                atol=atol,
            )
