"""Models as people write them (models_written.py): equal to eager, replayed, with no more breaks than Dynamo; in train mode too."""

import pytest
import torch
from conftest import EAGER, no_worse, same
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
