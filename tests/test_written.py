"""Models as people write them (models_written.py, models_loops.py and models_generate.py with the loops around them): equal to eager, replayed, with no more breaks than Dynamo; in train mode, too."""

import pytest
import torch
from conftest import EAGER, no_worse, same
from models_loops import LOOPS
from models_written import WRITTEN
from torch import nn

BARE = {"packed-gru": 1}  # Dynamo captures nothing behind its first break there
NESTED = {"nn-transformer"}  # padding makes a nested tensor in eval mode, which no snapshot holds: CPython goes on there


def build(name, train=False):
    torch.manual_seed(11)
    made = WRITTEN[name][0]()
    return made.train(train) if isinstance(made, nn.Module) else made


@pytest.mark.parametrize("name", WRITTEN)
def test_equal(name):
    same(build(name), make_args=WRITTEN[name][1], calls=4, hit=name not in NESTED)


@pytest.mark.parametrize("name", WRITTEN)
def test_train_mode(name):
    """Dropout and draws take eager's random stream, statistics move, gradients are eager's."""
    same(build(name, train=True), make_args=WRITTEN[name][1], calls=3, no_grad=False, backward=isinstance(build(name), nn.Module),
         rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_no_more_breaks_than_dynamo(name):
    args, kw = WRITTEN[name][1](0)
    # Eager looks whether padding is left-aligned; Dynamo's code is told that it is compiled, and does not.
    no_worse(build(name), *args, bare=BARE.get(name, int(name in NESTED)), **kw)


# ---- loops -----------------------------------------------------------------------------------------------------------
# How many more breaks than Dynamo, which captures nothing behind its first break (beam-search, rk45) or draws Python's random
# numbers itself (dqn).
MORE = {"beam-search": 4, "rk45": 3, "dqn": 1, "ddim": 1}
CALLS = {"ppo-continuous": 9, "gpt": 2}
VARYING = {"rk45", "beam-search", "detr", "fake-quant", "dqn", "yolo", "speculative", "nms", "ppo", "lightning", "kalman-filter", "text", "tacotron"}   # many ways to go


def loop(name):
    torch.manual_seed(11)
    made = LOOPS[name][0]()
    return made.eval() if isinstance(made, nn.Module) else made


@pytest.mark.parametrize("name", LOOPS)
def test_loops_equal(name):
    def build():
        made = loop(name)
        return made, getattr(made, "__self__", made)

    same(build, build=True, make_args=LOOPS[name][1], calls=4, hit=False)
    if name not in VARYING:
        same(build, build=True, make_args=lambda i: LOOPS[name][1](1), calls=CALLS.get(name, 3))


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.skipif(EAGER, reason="needs the product")
def test_loops_no_more_breaks_than_dynamo(name):
    args, kw = LOOPS[name][1](1)
    no_worse(loop(name), *args, bare=MORE.get(name, 0), **kw)
