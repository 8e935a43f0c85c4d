"""A call whose arguments do not bind makes no frame. If the program goes on (it catches the TypeError, or C code swallows
it), guards nevertheless tell when the function's code or defaults change."""

import functools

import ccompile
import pytest
import torch

CALLS = {}  # name -> a function that returns the function to compile, and the one that it calls


def caught(f):
    """A function that says whether f() raises a TypeError, and adds."""

    def fn(x):
        try:
            r = f()
        except TypeError:
            r = "TypeError"
        return r, x + 1

    return fn


class Base:
    """Without a length, C code takes the items alone."""

    def __iter__(self):
        return iter([1, 2])

    def __exit__(self, *error):
        return None


def entered(a):
    with a as r:
        return r


# name: the method, its parameters (one too many, which it returns), what calls it, its wrapper
METHODS = {
    "a method": ("m", "self, b", lambda a: a.m()),
    "a static method": ("m", "b", lambda a: a.m(), staticmethod),
    "a class method": ("m", "cls, b", lambda a: a.m(), classmethod),
    "a property": ("p", "self, b", lambda a: a.p, property),
    "an attribute": ("__getattr__", "self, name, b", lambda a: a.missing),
    "an item": ("__getitem__", "self, key, b", lambda a: a[1]),
    "an operator": ("__neg__", "self, b", lambda a: -a),
    "a reflected operator": ("__radd__", "self, other, b", lambda a: 1 + a),
    "a comparison": ("__lt__", "self, other, b", lambda a: a < 1),
    "a call": ("__call__", "self, b", lambda a: a()),
    "a with block": ("__enter__", "self, b", entered),
    "len": ("__len__", "self, b", len),
    "a hint of list": ("__len__", "self, b", list),
    "a hint of tuple": ("__len__", "self, b", tuple),
    "a hint of sorted": ("__len__", "self, b", sorted),
    "a hint of bytes": ("__len__", "self, b", bytes),
    "a hint of unpacking": ("__len__", "self, b", lambda a: [*a]),
    "a hint of arguments": ("__len__", "self, b", lambda a: (lambda *args: args)(*a)),
}


def method(name, parameters, use, wrapper=lambda f: f):
    space = {}
    exec(f"def called({parameters}): return b", space)
    a = type("A", (Base,), {name: wrapper(space["called"])})()
    return caught(lambda: use(a)), space["called"]


for name, row in METHODS.items():
    CALLS[name] = functools.partial(method, *row)


def call(make):
    CALLS[make.__name__.replace("_", " ")] = make
    return make


@call
def a_function():
    def h(b):
        return b

    return caught(lambda: h()), h


@call
def init():
    class A:
        def __init__(self, b):
            self.b = b

    return caught(lambda: A().b), A.__init__


@call
def a_partial():
    def h(a, b):
        return b

    p = functools.partial(h, 1)
    return caught(lambda: p()), h


@call
def a_key():
    def h(a, b):
        return -a * b

    return caught(lambda: sorted([1, 2, 3], key=h)), h


@call
def a_map():
    def h(a, b):
        return b

    return caught(lambda: list(map(h, [1, 2]))), h


def give_defaults(f):
    f.__defaults__ = (3,) * (f.__code__.co_argcount - 1 or 1)


def give_keywords(f):
    def q(*args, b=4):
        return b

    f.__code__, f.__kwdefaults__ = q.__code__, {"b": 4}


def give_code(f):
    def q(*args):
        return 5

    f.__code__ = q.__code__


def give_code_that_raises(f):
    """C code takes no other error for an unknown length."""

    def q(*args):
        raise KeyError("raised")

    f.__code__ = q.__code__


def outcome(f, x):
    try:
        r, y = f(x)
    except KeyError as error:
        return str(error)
    return repr(r), y.tolist()


@pytest.mark.parametrize("change", [give_defaults, give_keywords, give_code, give_code_that_raises], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_did_not_bind_changes(name, change):
    fn, called = CALLS[name]()
    compiled, x = ccompile.compile(fn), torch.ones(2)
    for _ in range(3):
        assert outcome(compiled, x) == outcome(fn, x)
    change(called)
    want = outcome(fn, x)
    for _ in range(2):
        assert outcome(compiled, x) == want
