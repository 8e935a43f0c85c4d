"""A call whose arguments do not bind makes no frame. If the program goes on (it catches the TypeError, or C code swallows
it), guards nevertheless tell when the function's code or defaults change."""

import functools

import ccompile
import pytest
import torch

CALLS = {}


def call(make):
    CALLS[make.__name__.replace("_", " ")] = make
    return make


def caught(f):
    """A function that says whether f() raises a TypeError, and adds."""

    def fn(x):
        try:
            r = f()
        except TypeError:
            r = "TypeError"
        return r, x + 1

    return fn


@call
def a_function():
    def h(b):
        return b

    return caught(lambda: h()), h


@call
def a_method():
    class A:
        def m(self, b):
            return b

    a = A()
    return caught(lambda: a.m()), A.m


@call
def a_static_method():
    class A:
        @staticmethod
        def m(b):
            return b

    return caught(lambda: A.m()), A.m


@call
def a_class_method():
    class A:
        @classmethod
        def m(cls, b):
            return b

    return caught(lambda: A.m()), A.m.__func__


@call
def a_property():
    class A:
        def get(self, b):
            return b

        p = property(get)

    a = A()
    return caught(lambda: a.p), A.get


@call
def init():
    class A:
        def __init__(self, b):
            self.b = b

    return caught(lambda: A().b), A.__init__


@call
def len_of():
    class A:
        def __len__(self, b):
            return b

    a = A()
    return caught(lambda: len(a)), A.__len__


@call
def an_operator():
    class A:
        def __neg__(self, b):
            return b

    a = A()
    return caught(lambda: -a), A.__neg__


@call
def a_reflected_operator():
    class A:
        def __radd__(self, a, b):
            return b

    a = A()
    return caught(lambda: 1 + a), A.__radd__


@call
def an_item():
    class A:
        def __getitem__(self, key, b):
            return b

    a = A()
    return caught(lambda: a[1]), A.__getitem__


@call
def an_attribute():
    class A:
        def __getattr__(self, name, b):
            return b

    a = A()
    return caught(lambda: a.missing), A.__getattr__


@call
def a_comparison():
    class A:
        def __lt__(self, other, b):
            return b

    a = A()
    return caught(lambda: a < 1), A.__lt__


@call
def a_with_block():
    class A:
        def __enter__(self, b):
            return b

        def __exit__(self, *error):
            return None

    a = A()

    def enter():
        with a as r:
            return r

    return caught(enter), A.__enter__


@call
def a_call():
    class A:
        def __call__(self, b):
            return b

    a = A()
    return caught(lambda: a()), A.__call__


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


class Sized:
    """A length that C code takes for a hint; without one it asks nothing else."""

    def __iter__(self):
        return iter([1, 2])


def swallowing(name, take):
    def make():
        class A(Sized):
            def __len__(self, b):
                return b

        a = A()
        return caught(lambda: take(a)), A.__len__

    CALLS[f"a hint of {name}"] = make


swallowing("list", list)
swallowing("tuple", tuple)
swallowing("sorted", sorted)
swallowing("unpacking", lambda a: [*a])
swallowing("arguments", lambda a: (lambda *args: args)(*a))
swallowing("bytes", bytes)


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
