"""Functions whose behaviour tests/test_frames.py compares with plain CPython, with their arguments.

Each one logs what its callees see of it (lines, columns, locals), which reveals a frame that was handed over, broken or
rebuilt at the wrong place. CASES: (function, maker of its arguments).
"""

import contextlib
import functools
import gc
import sys
import traceback

LOG = []
KEEP = []
GLOBAL = 41


def position(code, lasti):
    """Exact source range of an instruction."""
    return list(code.co_positions())[lasti // 2] if lasti >= 0 else None


def where(tag=None, depth=3):
    """Logs what a callee sees of its callers: function, line, columns, locals."""
    frame, seen = sys._getframe(1), []
    for _ in range(depth):
        if frame is None or frame.f_code.co_name == "outcome":
            break
        simple = (int, str, float, bool, type(None), tuple, list)
        names = sorted((k, v if isinstance(v, simple) else type(v).__name__) for k, v in frame.f_locals.items())
        seen.append((frame.f_code.co_name, frame.f_lineno, position(frame.f_code, frame.f_lasti), repr(names)))
        frame = frame.f_back
    LOG.append((tag, seen))
    return tag


class Manager:
    def __init__(self, suppress=False, value=None):
        self.suppress, self.value = suppress, value

    def __enter__(self):
        LOG.append("enter")
        return self.value or self

    def __exit__(self, kind, value, tb):
        LOG.append(("exit", kind and kind.__name__, tb and tb.tb_lineno))
        return self.suppress


class Base:
    name = "B"

    def __init__(self, v=3):
        self.v = v

    def method(self, a, b=2):
        return self.v + a + b

    @property
    def prop(self):
        where("prop")
        return self.v * 2

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def double(x):
        return x * 2

    def up(self, x):
        return ("base", x)


class Derived(Base):
    def up(self, x):
        r = super().up(x + 1)
        q = [super(Derived, self).up(i) for i in (x, 2)]
        return r, q, __class__.__name__

    def missing(self):
        return super().nothing


class Slotted:
    __slots__ = ("a", "b")
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Odd:
    """Python code behind every operator."""

    def __bool__(self):
        where("bool")
        return False

    def __add__(self, o):
        where("add")
        return ("added", o)

    def __iadd__(self, o):
        where("iadd")
        return self

    def __neg__(self):
        where("neg")
        return 7

    def __iter__(self):
        where("iter")
        return iter((1, 2))

    def __getitem__(self, i):
        where("getitem")
        return i if not isinstance(i, slice) else (i.start, i.stop)

    def __setitem__(self, i, v):
        where(("setitem", repr(i)))

    def __delitem__(self, i):
        where("delitem")

    def __lt__(self, o):
        where("lt")
        return 1

    def __setattr__(self, k, v):
        where("setattr " + k)

    def __delattr__(self, k):
        where("delattr " + k)

    def __getattr__(self, k):
        where("getattr " + k)
        if k.startswith("no"):
            raise AttributeError(k)
        return k

    def __contains__(self, v):
        where("contains")
        return v == 3

    def __format__(self, spec):
        where("format")
        return f"W<{spec}>"

    def __len__(self):
        where("len")
        return 2

    def __call__(self, *a, **k):
        where("call")
        return a, sorted(k)

    def keys(self):
        where("keys")
        return ["p", "q"]

    def __hash__(self):
        where("hash")
        return 3

    def __eq__(self, o):
        where("eq")
        return self is o


class BadBool:
    def __bool__(self):
        raise ValueError("no truth")


class Verdict:
    """What Ranked's comparisons give: its truth is Python code, and may raise."""

    def __init__(self, held):
        self.held = held

    def __bool__(self):
        where(("truth", self.held))
        if self.held is None:
            raise ArithmeticError("no verdict")
        return self.held


class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def __lt__(self, o):
        where(("less", self.rank))
        return Verdict(None if o is None else self.rank < o)

    def __gt__(self, o):
        return 0 if o is None else Verdict(self.rank > o)


class Counter:
    """A Python iterator."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        where("next")
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Noted:
    """Says when it dies."""

    def __init__(self, tag):
        self.tag = tag

    def __del__(self):
        LOG.append(("del", self.tag))


def boom(msg="boom"):
    raise KeyError(msg)


def ident(*a, **k):
    return a, sorted(k.items())


def c_locals(a, b):
    x = a + b
    y = x * 2
    z = y - a
    return x, y, z


def c_branch(a):
    if a > 3:
        r = "big"
    elif a:
        r = "small"
    else:
        r = "zero"
    return r


def c_closure_make(a):
    n = a

    def inc(d):
        nonlocal n
        n += d
        return n

    inc(2)
    where("mid")
    inc(3)
    n = n * 2
    return n, inc(1)


def _make_closure():
    p, q = 5, "q"

    def c_closure_use(a):
        where("free")
        r = p + a
        f = lambda: (p, a, q)  # noqa: E731
        return f(), r, q

    return c_closure_use


c_closure_use = _make_closure()


def c_cell_argument(a, b):
    g = lambda k: a + k + b  # noqa: E731
    a = a + 1
    where("cells")
    b = g(b)
    return g(10)


def c_cell_delete(a):
    x = a
    f = lambda: x  # noqa: F821
    r = f()
    del x
    try:
        f()
    except NameError as e:
        r = r, str(e)
    try:
        x  # noqa: F821
    except UnboundLocalError as e:
        r = r, str(e)
    return r


def c_for(xs):
    s = 0
    for x in xs:
        s += x
        if x == 3:
            continue
        s += 1
    else:
        s += 1000
    return s


def c_for_break(xs):
    for i, x in enumerate(xs):
        for j in (1, 2):
            if x * j == 6:
                break
        else:
            continue
        where("found")
        break
    return i, x, j


def c_while(n):
    r = []
    while n:
        r.append(n)
        n -= 1
    return r


def c_while_else(n):
    while True:
        n -= 1
        if n < 0:
            break
        if n == 100:
            return "no"
    while n < 2:
        n += 1
    else:
        n = -n
    return n


def c_iterator(n):
    r = [x for x in Counter(n)]
    for x in Counter(n):
        r.append(x)
    a, b, *c = Counter(n)
    return r, a, b, c


def c_try_ok(a):
    try:
        r = ident(a)
    except KeyError:
        r = "no"
    finally:
        where("fin")
    return r


def c_try_raise(a):
    try:
        r = ident(a)
        boom(a)
        r = 1
    except KeyError as e:
        where("handler")
        r = ("caught", e.args, e.__traceback__.tb_lineno, e.__traceback__.tb_next.tb_lineno)
    finally:
        where("fin")
    return r


def c_try_nested(a):
    out = []
    try:
        try:
            out.append(1)
            1 / a
        except KeyError:
            out.append("bad")
        finally:
            out.append("f1")
            where()
    except ZeroDivisionError as e:
        out.append(e.__traceback__.tb_lineno)
        try:
            raise TypeError("x") from e
        except TypeError as t:
            out.append((type(t.__cause__).__name__, type(t.__context__).__name__))
    else:
        out.append("else")
    return out


def c_first_in_try(a):
    try:
        undefined_name  # noqa: B018, F821
    except NameError:
        r = "ne"
    try:
        a.zzz
    except AttributeError:
        r += "ae"
    try:
        boom()
    except KeyError:
        r += "ke"
    try:
        -a
    except TypeError:
        r += "te"
    try:
        raise a
    except TypeError:
        r += "re"
    return r


def c_raise_after_try(a):
    try:
        x = 1  # noqa: F841
    except Exception:
        return "never"
    a.nope


def c_raise_after_try2(a):
    try:
        x = 1
    except Exception:
        return "never"
    raise ValueError(x)


def c_raise_after_try3(a):
    try:
        ident(a)
    except Exception:
        return "never"
    f"{a!r:{a}}"
    -a


def c_raise_forms(a):
    out = []
    for make in (lambda: KeyError, lambda: KeyError("k"), lambda: 5, lambda: "s"):
        try:
            raise make()
        except Exception as e:
            out.append((type(e).__name__, str(e), e.__traceback__.tb_lineno))
    try:
        raise
    except RuntimeError as e:
        out.append(str(e))
    try:
        raise KeyError from ValueError
    except KeyError as e:
        out.append(repr(e.__cause__))
    try:
        raise KeyError from None
    except KeyError as e:
        out.append((repr(e.__cause__), e.__suppress_context__))
    try:
        raise KeyError from 5
    except TypeError as e:
        out.append(str(e))
    return out


def c_raise_bad_class(a):
    class Bad(Exception):
        def __new__(cls):
            return a

    raise Bad


def c_bare_raise(a):
    try:
        try:
            boom(a)
        except KeyError:
            where("h")
            raise
        finally:
            where("f")
    except KeyError as e:
        r = traceback.extract_tb(e.__traceback__)
        return [(f.name, f.lineno) for f in r]


def c_bare_raise_out(a):
    try:
        boom(a)
    except KeyError:
        where("h")
        raise


def c_finally_return(a):
    for i in range(3):
        try:
            if i == a:
                return i
        finally:
            where(i)
    return "end"


def c_finally_swallow(a):
    for i in range(2):
        try:
            boom(a)
        finally:
            break
    return i


def c_context_chain(a):
    try:
        try:
            boom(1)
        except KeyError:
            boom(2)
    except KeyError as e:
        return e.args, e.__context__.args, sys.exc_info()[1] is e


def c_except_tuple(a):
    try:
        boom(a)
    except (ValueError, (KeyError)):
        r = 1
    try:
        boom(a)
    except 5:
        r = 2
    return r


def c_except_star(a):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as e:
        r = len(e.exceptions)
    except* KeyError:
        where("star")
    return r


def c_with(a):
    with Manager() as c:
        where("in")
        r = ident(a)
    return r, type(c).__name__


def c_with_suppress(a):
    with Manager(True):
        x = 1
        boom("w")
        x = 2
    return x


def c_with_raise(a):
    with Manager(False) as c, Manager(False) as d:  # noqa: F841
        x = ident(a)  # noqa: F841
        boom("p")
    return 0


def c_with_return(a):
    for i in range(3):
        with Manager():
            if i == 1:
                return where("r")


def c_with_unpack(a):
    with Manager(True, (1, 2, 3)) as (x, y):
        return x, y
    return 2


def c_with_unpack2(a):
    with Manager(False, (1, 2, 3)) as (x, y):
        return x, y
    return 2


def c_with_not_manager(a):
    try:
        with a:
            pass
    except (TypeError, AttributeError) as e:
        r = str(e)
    with open(__file__) as f:
        return r, f.readline()[:3]


def c_with_generator(a):
    @contextlib.contextmanager
    def manager(x):
        where("gen enter")
        try:
            yield x + 1
        finally:
            where("gen exit")

    with manager(a) as v:
        r = v
    try:
        with manager(a):
            boom(a)
    except KeyError as e:
        r = r, e.__traceback__.tb_lineno
    return r


def c_call_nested(a):
    return ident(ident(a, 1), ident(k=a, j=ident()), *[where(1), where(2)], **{"z": where(3)})


def c_kwargs(a):
    r = ident(a, 2, k=where("kw"), z=a)
    return r, Base(v=a).method(1, b=5), Base().method(b=a, a=2)


def c_kwargs_conditional(a):
    return ident(1, k=a if a else 2), ident(a or 5), ident(x=[i for i in range(2) if i], y=a and 3)


def c_star(a, *args, k=3, **kw):
    args += (a,)
    return args, k, kw, ident(*args, **kw), ident(a, *args)


def c_star_iterables(a):
    r = ident(*(x for x in (1, 2)), *{3: 4}, **{"p": 1}, **Odd())
    return r, ident(*"ab"), [*a, *range(2)], {*a, 1}, {**{"k": 1}, **dict(z=a)}, (*a, 0)


def c_star_errors(a):
    out = []
    for f in (
        lambda: ident(*5),
        lambda: ident(**5),
        lambda: ident(**{"k": 1}, **{"k": 2}),
        lambda: ident(k=1, **{"k": 2}),
        lambda: ident(**{1: 2}),
        lambda: [*5],
        lambda: {**5},
        lambda: {*5},
        lambda: {[]: 1},
        lambda: {a[0], []},
        lambda: a[0](),
        lambda: ident.nothing(),
        lambda: c_locals(1),
    ):
        try:
            out.append(f())
        except TypeError as e:
            out.append((str(e), e.__traceback__.tb_next.tb_lineno))
        except AttributeError as e:
            out.append(str(e))
    return out


def c_comprehensions(xs):
    y = 10
    a = [x + y for x in xs if x != 2]
    b = {x: where(x) for x in xs}
    c = {x * y for x in xs}
    d = list(x for x in xs)
    e = [[i + j for j in range(i)] for i in range(3)]
    return a, b, c, d, e


def c_comprehension_raise(xs):
    x = "outer"
    try:
        return [1 // (x - 2) for x in xs]
    except ZeroDivisionError as e:
        return x, e.__traceback__.tb_lineno


def c_raise_before(a):
    x = a.missing
    return ident(x)


def c_raise_after(a):
    x = ident(a)
    y = [x, 1]
    y[5]


def c_raise_multiline(a):
    return ident(
        a,
        boom(
            "ml",
        ),
        a + 1,
    )


def c_method(o):
    r = o.method(1)
    r += o.method(2, b=3) + o.v
    o.v = r
    m = o.method
    return m(0), o.name, o.prop, o.__class__.__name__, o.make(4).v, o.double(3), len([1].__add__([2]))


def c_super(o):
    try:
        o.missing()
    except AttributeError as e:
        r = str(e)
    return o.up(4), r


def c_fstring(a, w):
    return f"{a}-{a!r:>5}-{a:{w}}-{ident(a)}-{'s'}" + f"{GLOBAL}" + f"{a!s}{a!a}"


def c_odd(w):
    if w:
        r = 1
    else:
        r = 2
    q = w + 1
    z = w[3], w < 2, 3 in w, 4 not in w, f"{w:abc}", not w, -w
    for t in w:
        r += t
    w.attr = r
    del w.attr
    w += 1
    w[5] = 1
    w[1:2] = 3
    w[0] += 2
    del w[5]
    v = w(1, *w, k=2), w[1:2], w.some, w.meth(3) if False else 0
    a, b = w
    d = {w: 1, "x": w}
    s = {w, 1}
    try:
        w.nope
    except AttributeError as e:
        z = z, str(e)
    return r, q, z, w and 5, w or 6, v, a, b, len(d), len(s), len(w)


def c_bad_bool(b):
    try:
        if b:
            return 1
    except ValueError as e:
        return str(e), e.__traceback__.tb_lineno


def c_bad_bool2(b):
    x = 3
    while b:
        x = 4
    return x


def c_del(a):
    x = a
    y = [1, 2, 3]
    del x, y[0]
    try:
        x  # noqa: F821
    except UnboundLocalError as e:
        y.append(type(e).__name__)
    x = 3
    return x, y


def c_finalizers(a):
    x = Noted("x")
    y = [Noted("y"), Noted("y2")]
    x = Noted("x2")
    del y[0]
    Noted("temp")
    x = None
    z = Noted("z")
    boom(z.tag) if a else None
    return x, ident(Noted("arg"), 1)[1]


class Collects:
    def __del__(self):
        LOG.append(("collected", gc.collect(1) >= 0, where("__del__")))


def c_collects(a):
    def each(v):
        for w in (v, Collects()):
            held = yield [w, Collects()]
            del held
            Collects(), w
    x, y = Collects(), [Collects() for _ in range(2)]
    x = ident(Collects(), [Collects(), x])
    for y in each(y):
        y[0] = len([Collects(), y]) - len((Collects(),))
    try:
        boom([Collects(), Collects()].pop() and a)
    except KeyError:
        x = y = None
    return x, y, len(ident({1: Collects()}, Collects())[0])


def c_unbound(a):
    if a:
        z = 1
    where()
    return z


def c_walrus(xs):
    if (n := len(xs)) > 2 and (m := xs[0]) is not None:
        return n, m, [t for x in xs if (t := x * 2)], t
    return n


def c_logic(a, b):
    return (a and b, a or b, not a, a if b else "no", a is b, a is not None, a is not b, a < b < 5, None if a is None else 1)


def c_none_loop(a):
    r = []
    while a is not None:
        r.append(a)
        a = a - 1 if a else None
    while a is None:
        a = 0
    return r, a


def c_unpack(p):
    a, (b, c) = p
    a, b = b, a
    *d, e = p
    (f, g), h = (a, b), c
    i, *j, k = [1, 2, 3, 4]
    return a, b, c, d, e, f, g, h, i, j, k


def c_unpack_errors(a):
    out = []
    for v in (5, (1,), (1, 2, 3), "ab", [1], iter(()), Odd()):
        try:
            x, y = v
            out.append((x, y))
        except (TypeError, ValueError) as e:
            out.append(str(e))
        try:
            x, *y, z = v
            out.append((x, y, z))
        except (TypeError, ValueError) as e:
            out.append(str(e))
    return out


def c_slices(xs):
    xs = list(xs)
    a = xs[1:], xs[:-1], xs[::2], xs[:]
    xs[0] = 9
    xs[1:2] = [7, 7]
    xs[-1] += 5
    del xs[:1]
    try:
        xs["a":]
    except TypeError as e:
        a = a, str(e)
    try:
        xs[1:2] = 5
    except TypeError as e:
        a = a, str(e)
    return a, xs


def c_operators(a, b):
    r = [a + b, a - b, a * b, a // b, a % b, a / b, a**b, a << b, a >> b, a & b, a | b, a ^ b, ~a, -a, +a]
    x = a
    x += b
    x -= 1
    x *= 3
    x //= 2
    x **= 2
    x %= 50
    x <<= 1
    x >>= 1
    x &= 255
    x |= 1
    x ^= 3
    x /= 2
    try:
        a @ b
    except TypeError as e:
        r.append(str(e))
    return r, x, a == b, a != b, a < b, a <= b, a > b, a >= b


def c_recurse(n):
    if n == 0:
        return where("deep", 4)
    return c_recurse(n - 1)


def c_factorial(n):
    return 1 if n < 2 else n * c_factorial(n - 1)


def c_infinite(n):
    return c_infinite(n + 1) + 1


def c_functions(a):
    def inner(x, y=a, *, z: int = a) -> int:
        return x, y, z

    class K:
        w = a

        def m(self):
            return a

    @functools.lru_cache(None)
    def cached(x):
        return x + a

    return inner(1), inner.__annotations__, K.w, K().m(), cached(2), cached(2), (lambda *q, s=a: (q, s))(3)


def c_globals(a):
    global GLOBAL, GLOBAL2
    old = GLOBAL
    GLOBAL = a
    r = GLOBAL + 1
    GLOBAL = old
    GLOBAL2 = 1
    del GLOBAL2
    try:
        del GLOBAL2
    except NameError as e:
        r = r, str(e)
    return r, len(globals()) > 3, sorted(locals()), eval("a + GLOBAL")


def c_import(a):
    import os.path as p
    from math import floor as f

    try:
        from math import nothing  # noqa: F401
    except ImportError as e:
        r = str(e)[:30]
    try:
        import no_such_module_at_all  # noqa: F401
    except ImportError as e:
        r = r, str(e)
    return f(a + 0.5), p.basename("a/b"), r


def c_assert(a):
    assert a, ident(a)
    assert not a, ("msg", where())


def c_generator(n):
    for i in range(n):
        got = yield i, where("gen")
        LOG.append(got)
    return "end"


def c_generators(n):
    g = c_generator(n)
    r = [next(g), g.send(5)]
    r += list(g)
    r.append(sum(x for x in range(n)))

    def delegate():
        got = yield from c_generator(2)
        LOG.append(got)
        yield from [1, 2]

    r += delegate()
    a, b, *c = (x * 2 for x in range(4))
    return r, a, b, c, any(x > 1 for x in range(5)), max((x for x in ()), default=3)


def c_generator_throw(n):
    def gen():
        while True:
            try:
                with Manager():
                    yield 1
            except ValueError as e:
                LOG.append(e.args)
            except GeneratorExit:
                where("close")
                raise

    g = gen()
    r = [next(g), g.throw(ValueError(3)), next(g)]
    g.close()

    def bad():
        yield 1
        boom(n)

    try:
        list(bad())
    except KeyError as e:
        r.append(e.__traceback__.tb_next.tb_lineno)

    def stop():
        yield 1
        raise StopIteration

    try:
        list(stop())
    except RuntimeError as e:
        r.append(str(e))
    return r


def c_generator_throw_through(n):
    def inner():
        try:
            where(("sent", (yield n)))
            yield n + 1
        except ValueError as e:
            where("caught")
            return e.args
        finally:
            where("over")

    def outer(catches):
        try:
            got = yield from inner()
            where(got)
            yield got
        except catches as e:
            yield type(e).__name__, e.__traceback__.tb_next.tb_lineno
        finally:
            where("outer over")

    def thrown(error, catches, *sent):
        g = outer(catches)
        r = [next(g), *(g.send(v) for v in sent)]
        try:
            r.append(g.throw(error))
        except Exception as e:
            r.append((repr(e), e.__traceback__.tb_lineno))
        g.close()
        return r

    r = [thrown(ValueError(1), KeyError), thrown(ValueError(2), KeyError, 5), thrown(KeyError(3), KeyError)]
    r += [thrown(TypeError(4), KeyError), thrown(StopIteration(5), KeyError), thrown(KeyError(6), (KeyError, 7))]
    return r, where()


def c_coroutine(n):
    async def inner(x):
        return x + 1

    async def outer():
        r = [await inner(i) for i in range(n)]
        async with AsyncManager() as m:
            r.append(m)
        async for x in agen():
            r.append(x)
        return r

    async def agen():
        yield 1
        yield 2

    try:
        outer().send(None)
    except StopIteration as e:
        return e.value


class AsyncManager:
    async def __aenter__(self):
        return "entered"

    async def __aexit__(self, *a):
        where("aexit")


def c_match(p):
    match p:
        case [x, y]:
            return x + y
        case [x, *rest]:
            return x, rest
        case {"k": v, **others}:
            return v, others
        case Slotted(1, b=b):
            return "one", b
        case Slotted(a, b):
            return a, b
        case str(s) if len(s) > 2:
            return s
        case int() | float():
            return "number"
        case None:
            return "none"
        case _:
            return "other"


def c_match_errors(p):
    out = []
    for f in (lambda: _match_class(p, 5), lambda: _match_many(p), lambda: _match_twice(p)):
        try:
            out.append(f())
        except TypeError as e:
            out.append(str(e))
    return out


def _match_class(p, k):
    match p:
        case k():
            return 1


def _match_many(p):
    match p:
        case Slotted(1, 2, 3):
            return 1


def _match_twice(p):
    match p:
        case Slotted(1, a=1):
            return 1


def c_deep_stack(a):
    return [a, [a + 1, {a: (a, where("deepstack"), [boom() if a > 100 else ident(a)])}]]


def c_traceback_lines(a):
    try:
        ident(); c_raise_after(  # noqa: E702
            a
        )
    except IndexError:
        et, ev, tb = sys.exc_info()
        return [(f.name, f.lineno) for f in traceback.extract_tb(tb)], [f.lineno for f in traceback.extract_stack()][-1]


def c_grab_frame(a):
    fr = sys._getframe()
    b = a + 1  # noqa: F841
    fr2 = sys._getframe()
    return fr is fr2, fr.f_lineno, sorted(k for k in fr.f_locals)


def grab():
    KEEP.append(sys._getframe(1))
    return 1


def c_keep_frame(a):
    b = [a]
    grab()
    b = a + 2
    return b


def c_keep_frame_raise(a):
    b = [a]
    grab()
    with Manager():
        b[3]


def c_write_locals(a):
    b = 1
    fr = sys._getframe()
    fr.f_locals
    return b, a


def c_exc_info(a):
    try:
        boom(1)
    except KeyError:
        return ident(sys.exc_info()[0].__name__), [x for x in (1, 2)], where("exc")


def c_many_locals(a):
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = a9 = a
    b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = b8 = b9 = a0 + a9
    return (a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, where())


def c_sort_key(xs):
    return sorted(xs, key=lambda v: (where(v), -v)[1]), list(map(lambda v: v + 1, xs)), functools.reduce(lambda p, q: p + q, xs)


def c_annotated(a):
    x: int = a
    y: str
    return x, (y := "q"), y


exec(
    "def c_extended(a):\n"
    + "".join(f" v{i} = a + {i + 1000}\n" for i in range(300))
    + " for q in (1, 2):\n  if a < 0:\n"
    + "".join(f"   v{i} = a - v{i}\n" for i in range(300))
    + "  v299 += q\n"
    + " return v0, v299, where(depth=0)"
)


# Syntax that 3.11 can't read.
SINCE_312 = """
def c_generic(a):
    def first[T, *Ts, **P](xs: list[T], k: T = where("default")) -> T:
        return xs[0], k, T.__name__, first.__type_params__
    class Box[T: (int, str)]:
        held = [where("in class") for _ in (1, 2)]
        def get(self, v: T) -> T:
            return v, where("get"), __class__.__name__
    return first([a]), Box().get(a), Box[int] == Box[int], Box.held, where()

def c_alias(a):
    type Pair[T] = tuple[T, lost, a]
    try:
        Pair.__value__
    except NameError as e:
        where(str(e))
    lost = 3
    return Pair[int].__args__, Pair.__value__, where()

def c_nested_formats(a):
    return f"{f"{a!r:>{4 + a}}"}{"\\n".join(f"{k}" for k in (a, where()))}{a + 1 = }"
"""
SINCE_313 = """
def c_generic_default(a):
    class Box[T = int, *Ts = *tuple[int, ...], **P = [where("default")]]:
        pass
    f = lambda: a
    return Box[str].__args__, [p.__default__ for p in Box.__type_params__], f(), where()

def c_proxy_of_locals(a):
    b = c = 1
    d, e = locals(), sys._getframe().f_locals
    e["b"], d["c"], e["z"] = a + 5, 7, 9
    return b, c, d is locals(), sorted(e), [sorted(locals()) for q in (1, 2)], where()
"""
SINCE_314 = """
def c_template(a):
    t = t"{a!r:>{4 + a}} and {where()}"
    return t.strings, [(i.value, i.expression, i.conversion, i.format_spec) for i in t.interpolations]

def c_annotate(a):
    def g(x: where("x") = a, *, y: int = 2) -> list[a]:
        return x + y
    return g(1), g.__annotate__(1), g.__annotations__, where()

def c_inlined_builtins(a):
    out = [all(q for q in (1, a)), any(q > a for q in (1, 2)), tuple(q + a for q in (1, 2))]
    all_ = all
    def shadowed(all, any):
        return all(q for q in (0, 1)), any([0])
    return out, shadowed(any, all_), where()

def c_written_locals(a):
    b = None
    frame = sys._getframe()
    write = frame.f_locals.__setitem__
    for value in (None, 7, [1], 10**30, True):
        write("a", value)
        write("b", [value, frame.f_lineno])
        write("later", value)
        LOG.append((a, b, later))
        del later
    later = a
    return a, b, later, where()

def c_return_in_finally_of_with(a):
    for q in (1, a):
        try:
            with Manager(), Manager(suppress=True) as m:
                for r in (m, a):
                    if r is a:
                        1 / (q - a)
                        break
        except ZeroDivisionError as e:
            where(str(e))
    return q, r, where()
"""
if sys.version_info >= (3, 12):
    exec(SINCE_312)
if sys.version_info >= (3, 13):
    exec(SINCE_313)
if sys.version_info >= (3, 14):
    exec(SINCE_314)


def leaf(a, b):
    t = a + b
    if t > 3:
        t = t * 2
    z = [t, a]
    return where("in leaf", 2) and z


def looping(a):
    s = 0
    for q in [1, 2, a]:
        s = s + q
    f = lambda: s  # noqa: E731
    return f()


def dividing(a, b, *, k=1):
    r = looping(a) + looping(b)
    try:
        return r / (a - b)
    except ZeroDivisionError:
        where("div")
        if k:
            raise
        return "zero"


def c_verdicts(a, b):
    n, r = 0, Ranked(a)
    out = [r < b, not r < b, r > None]
    if r < b:
        out.append("if")
    while r > n:
        n += 1
    out.append("chain" if 0 < r < b else n)
    assert r < b or r > b, "never"
    with contextlib.suppress(ArithmeticError):
        if r < None:
            out.append("not here")
    try:
        if r < None and out:
            out.append("nor here")
    except ArithmeticError as e:
        out.append(e.__traceback__.tb_lineno)
    return [o.held if isinstance(o, Verdict) else o for o in out], where()


def c_calls(a, b):
    x = looping(a) + 1
    y = leaf(x, b)
    z = [looping(y[0]), leaf(looping(1), looping(b))]
    try:
        w = dividing(b, b)
    except ZeroDivisionError as e:
        w = e.__traceback__.tb_lineno, e.__traceback__.tb_next.tb_lineno
    return x, y, z, w, dividing(b, b, k=0)


CALLEES = [leaf, looping, dividing]

CASES = [
    (c_with_unpack, lambda: (1,)),
    (c_with_unpack2, lambda: (1,)),
    (c_collects, lambda: (1,)),
    (c_calls, lambda: (3, 4)),
    (c_verdicts, lambda: (2, 5)),
    (c_verdicts, lambda: (3, 1)),
    (c_locals, lambda: (1, 2)),
    (c_locals, lambda: ("a", "b")),
    (c_branch, lambda: (5,)),
    (c_branch, lambda: (0,)),
    (c_branch, lambda: ("x",)),
    (c_closure_make, lambda: (4,)),
    (c_closure_use, lambda: (4,)),
    (c_cell_argument, lambda: (1, 2)),
    (c_cell_delete, lambda: (1,)),
    (c_for, lambda: ([1, 2, 3, 4],)),
    (c_for, lambda: (iter([3, 3]),)),
    (c_for, lambda: ((x for x in (1, 3)),)),
    (c_for, lambda: (Counter(2),)),
    (c_for, lambda: (5,)),
    (c_for_break, lambda: ([1, 2, 3, 4],)),
    (c_while, lambda: (3,)),
    (c_while_else, lambda: (2,)),
    (c_iterator, lambda: (3,)),
    (c_try_ok, lambda: (1,)),
    (c_try_raise, lambda: (1,)),
    (c_try_nested, lambda: (0,)),
    (c_try_nested, lambda: (1,)),
    (c_try_nested, lambda: ("s",)),
    (c_first_in_try, lambda: (object(),)),
    (c_raise_after_try, lambda: (1,)),
    (c_raise_after_try2, lambda: (1,)),
    (c_raise_after_try3, lambda: ("q",)),
    (c_raise_after_try3, lambda: ("10",)),
    (c_raise_forms, lambda: (1,)),
    (c_raise_bad_class, lambda: (1,)),
    (c_bare_raise, lambda: (1,)),
    (c_bare_raise_out, lambda: (1,)),
    (c_finally_return, lambda: (1,)),
    (c_finally_swallow, lambda: (1,)),
    (c_context_chain, lambda: (1,)),
    (c_except_tuple, lambda: (1,)),
    (c_except_star, lambda: (1,)),
    (c_with, lambda: (1,)),
    (c_with_suppress, lambda: (1,)),
    (c_with_raise, lambda: (1,)),
    (c_with_return, lambda: (1,)),
    (c_with_not_manager, lambda: (1,)),
    (c_with_generator, lambda: (1,)),
    (c_call_nested, lambda: (1,)),
    (c_kwargs, lambda: (7,)),
    (c_kwargs_conditional, lambda: (0,)),
    (c_star, lambda: (1, 2, 3)),
    (c_star, lambda: (1,)),
    (c_star_iterables, lambda: ((1, 2),)),
    (c_star_errors, lambda: ((1, 2),)),
    (c_comprehensions, lambda: ((1, 2, 3),)),
    (c_comprehension_raise, lambda: ((1, 2, 3),)),
    (c_comprehension_raise, lambda: ((4, 5),)),
    (c_raise_before, lambda: (1,)),
    (c_raise_after, lambda: (1,)),
    (c_raise_multiline, lambda: (1,)),
    (c_method, lambda: (Base(4),)),
    (c_super, lambda: (Derived(1),)),
    (Derived.up, lambda: (Derived(1), 3)),
    (c_fstring, lambda: (12, 8)),
    (c_odd, lambda: (Odd(),)),
    (c_bad_bool, lambda: (BadBool(),)),
    (c_bad_bool2, lambda: (BadBool(),)),
    (c_del, lambda: (1,)),
    (c_finalizers, lambda: (0,)),
    (c_finalizers, lambda: (1,)),
    (c_unbound, lambda: (0,)),
    (c_unbound, lambda: (1,)),
    (c_walrus, lambda: ([1, 2, 3],)),
    (c_walrus, lambda: ([],)),
    (c_logic, lambda: (1, 3)),
    (c_logic, lambda: (None, [])),
    (c_logic, lambda: (0, "s")),
    (c_none_loop, lambda: (2,)),
    (c_unpack, lambda: ((1, (2, 3)),)),
    (c_unpack, lambda: ((1, (2, 3, 4)),)),
    (c_unpack_errors, lambda: (1,)),
    (c_slices, lambda: ((1, 2, 3),)),
    (c_operators, lambda: (7, 3)),
    (c_recurse, lambda: (5,)),
    (c_factorial, lambda: (6,)),
    (c_infinite, lambda: (0,)),
    (c_functions, lambda: (3,)),
    (c_globals, lambda: (3,)),
    (c_import, lambda: (3,)),
    (c_assert, lambda: (0,)),
    (c_assert, lambda: (1,)),
    (c_generators, lambda: (3,)),
    (c_generator_throw, lambda: (3,)),
    (c_generator_throw_through, lambda: (2,)),
    (c_coroutine, lambda: (3,)),
    (c_match, lambda: ([1, 2],)),
    (c_match, lambda: ((1, 2, 3),)),
    (c_match, lambda: ({"k": 3, "z": 4},)),
    (c_match, lambda: (Slotted(1, 2),)),
    (c_match, lambda: (Slotted(3, 2),)),
    (c_match, lambda: ("abc",)),
    (c_match, lambda: (1.5,)),
    (c_match, lambda: ({},)),
    (c_match_errors, lambda: (Slotted(1, 2),)),
    (c_deep_stack, lambda: (1,)),
    (c_deep_stack, lambda: (101,)),
    (c_traceback_lines, lambda: (1,)),
    (c_grab_frame, lambda: (1,)),
    (c_keep_frame, lambda: (1,)),
    (c_keep_frame_raise, lambda: (1,)),
    (c_write_locals, lambda: (1,)),
    (c_exc_info, lambda: (1,)),
    (c_many_locals, lambda: (1,)),
    (c_sort_key, lambda: ([3, 1, 2],)),
    (c_annotated, lambda: (1,)),
    (c_extended, lambda: (1,)),  # noqa: F821
]
NEWER = ("c_generic", "c_alias", "c_nested_formats", "c_generic_default", "c_proxy_of_locals", "c_template",
         "c_annotate", "c_inlined_builtins", "c_written_locals", "c_return_in_finally_of_with")
CASES += [(globals()[name], lambda: (1,)) for name in NEWER if name in globals()]
