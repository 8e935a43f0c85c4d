"""Python features as real models use them: a table for test_language.py.

A row is a function of tensors or, with @made, a factory that returns (function, state to compare after each call).
User code, so pytest does not rewrite its asserts. language_dynamo.txt holds torch._dynamo.explain's counts for each row;
`python tests/language_cases.py` rewrites it.
"""

import os
import sys
import types
import typing

import torch

COUNTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "language_dynamo.txt")
CASES = {}
SINCE_313 = sys.version_info >= (3, 13)
SINCE_314 = sys.version_info >= (3, 14)


class Case(typing.NamedTuple):
    fn: object  # a function, a class of modules, or with `made` a factory
    inputs: object  # call number -> arguments
    hit: bool  # the fourth call replays
    made: bool
    over: int  # more breaks than dynamo lists: it leaves out those without an op before them, or knows what we don't


def t(*shape, seed=0):
    g = torch.Generator().manual_seed(seed + 31 * len(shape) + sum(shape))
    return torch.randn(*shape, generator=g)


def case(fn=None, *, inputs=None, hit=True, made=False, over=0):
    """Registers fn under its own name. Without `inputs` it is called with one 2x3 tensor, other numbers in each call."""

    def add(fn):
        name = fn.__name__
        assert name not in CASES, name
        CASES[name] = Case(fn, inputs or (lambda i: (t(2, 3, seed=i),)), hit, made, over)
        return fn

    return add if fn is None else add(fn)


def made(fn=None, **options):
    return case(fn, made=True, **options)


def alternating(i):
    """A tensor with another sign in each call: a branch on it goes both ways."""
    return (torch.full((2, 3), (i + 1.0) * (-1) ** i),)


class Seen:
    """State that is asked for when it is compared (the comparison walks what has a length and items)."""

    __slots__ = ("__ask",)

    def __init__(self, ask):
        self.__ask = ask

    def __len__(self):
        return len(self.__ask())

    def __iter__(self):
        return iter(self.__ask())


def own_globals(fn, *names, **values):
    """fn with globals of its own, and those of them that it may write."""
    space = dict(fn.__globals__, **values)
    own = types.FunctionType(fn.__code__, space, fn.__name__, fn.__defaults__, fn.__closure__)
    return own, Seen(lambda: [space.get(k, "absent") for k in (*names, *values)])


# ---- dynamo's counts -------------------------------------------------------------------------------------------------
def write_counts():
    """Adds the rows that language_dynamo.txt lacks (remove the file first for all of them): minutes."""
    import conftest
    import language_cases
    import test_language  # fills the table

    known = test_language.stored()
    with open(COUNTS, "a") as file:
        if not known:
            file.write(
                f"# torch._dynamo.explain, torch {torch.__version__}: name graphs breaks; - where the call raises\n"
            )
        for name in sorted(language_cases.CASES.keys() - known.keys()):
            raises = conftest.outcome(test_language.callable_of(name), test_language.arguments(name)).error
            fn = test_language.callable_of(name)
            counts = ("-", "-") if raises else conftest.dynamo_breaks(fn, *test_language.arguments(name))
            file.write(f"{name} {counts[0]} {counts[1]}\n")
            file.flush()


if __name__ == "__main__":
    write_counts()
