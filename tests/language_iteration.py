"""Generators, iterators and comprehensions (see language_cases.py)."""

import torch
from language_cases import case, made


# ---- generators ------------------------------------------------------------------------------------------------------
@case
def generator_values(x):
    def gen(n):
        for i in range(n):
            yield x * i

    return sum(gen(3)), list(gen(2)), [*gen(1)]


@case
def generator_send(x):
    def running():
        total = x * 0
        while True:
            v = yield total
            if v is None:
                return
            total = total + v

    g = running()
    next(g)
    a, b = g.send(x), g.send(x * 2)
    try:
        g.send(None)
    except StopIteration as e:
        return a, b, e.value


@case
def generator_return(x):
    def inner():
        yield x
        return x * 2

    def outer():
        r = yield from inner()
        yield r + 1

    return list(outer())


@case
def generator_yield_from_mixed(x):
    def leaf(n):
        yield from range(n)

    def tree():
        yield from leaf(2)
        yield from [x, x + 1]
        yield from (v * 2 for v in (x,))

    return list(tree())


@made
def generator_effects_after_yield_from():
    """What a generator does behind `yield from` is seen, whatever it was that it delegated to."""
    log = []

    def inner(v):
        yield v
        return v * 2

    def outer(v):
        log.append("begin")
        got = yield from inner(v)
        log.append("generator")
        yield from [1]
        log.append("list")
        yield got + 1

    def f(x):
        log.clear()
        return list(outer(x))

    return f, log


@case
def generator_throw(x):
    log = []

    def gen():
        try:
            yield x
        except ValueError as e:
            log.append(str(e))
            yield x * 2
        finally:
            log.append("end")

    g = gen()
    a = next(g)
    b = g.throw(ValueError("thrown"))
    g.close()
    return a, b, log


@case
def generator_throw_through(x):
    """Into a generator that delegates to one that returns then."""
    log = []

    def inner():
        try:
            yield x
        except ValueError as e:
            log.append(str(e))
            return x * 3

    def outer():
        got = yield from inner()
        yield got + 1

    g = outer()
    return next(g), g.throw(ValueError("thrown")), log


@case
def generator_throw_past(x):
    """The one that it delegates to lets the exception through."""

    def inner():
        yield x

    def outer():
        try:
            yield from inner()
        except KeyError:
            yield x - 1

    g = outer()
    return next(g), g.throw(KeyError())


@case
def generator_close(x):
    log = []

    def gen():
        try:
            yield x
            yield x + 1
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("finally")

    for v in gen():
        break
    g = gen()
    next(g)
    g.close()
    return v, log


@case(hit=False)
def generator_raises(x):
    def gen():
        yield x
        raise KeyError("in generator")

    return [v * 2 for v in gen()]


@case
def generator_raises_caught(x):
    def gen():
        yield x
        raise KeyError("in generator")

    out = []
    try:
        for v in gen():
            out.append(v * 2)
    except KeyError as e:
        out.append(e.args)
    return out


@case
def generator_stop_iteration_inside(x):
    def gen():
        yield x
        next(iter(()))

    try:
        return list(gen())
    except RuntimeError as e:
        return x, str(e), type(e.__cause__).__name__


@case
def generator_lazy_order(x):
    log = []

    def source():
        for i in range(3):
            log.append(("make", i))
            yield x * i

    out = []
    for v in (u + 1 for u in source()):
        log.append("use")
        out.append(v)
    return out, log


@case
def generator_expression_scope(x):
    k = 2
    g = (v * k for v in (x, x + 1))
    k = 5
    return list(g)


@case
def generator_pipeline(x):
    evens = (i for i in range(10) if i % 2 == 0)
    squares = (i * i for i in evens)
    return x * sum(squares), any(i > 2 for i in range(5)), all(i < 3 for i in range(5)), max(i for i in (3, 1))


@case
def generator_interleaved(x):
    def gen(k):
        while True:
            yield x * k
            k += 1

    a, b = gen(1), gen(10)
    return [next(a) + next(b), next(a) - next(b)], next(a)


@case
def generator_infinite_early_stop(x):
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    out = []
    for n in naturals():
        if n > 3:
            break
        out.append(x + n)
    return torch.stack(out)


@case
def generator_with_resource(x):
    log = []

    def gen():
        log.append("open")
        try:
            yield x
            yield x * 2
        finally:
            log.append("close")

    total = sum(v.sum() for v in gen())
    return total, log


@case
def generator_recursive_walk(x):
    def walk(v):
        if isinstance(v, list):
            for u in v:
                yield from walk(u)
        else:
            yield v

    return list(walk([x, [x + 1, [x + 2, []]], 3]))


@case
def generator_returned(x):
    return list(v for v in x), tuple(v + 1 for v in x), {i: v for i, v in enumerate(x)}


@case
def generator_break_inside(x):
    def gen():
        yield x
        print("between")
        yield x * 2

    return list(gen())


@case(hit=False)
def generator_item_inside(x):
    def gen():
        for row in x:
            yield row.sum().item()

    return x * sum(gen()), [round(v, 3) for v in gen()]


@made(over=1)  # a generator's frame from outside can't be guarded
def generator_shared_outside():
    """A generator that existed before the call: each call takes one more value."""

    def gen():
        n = 0
        while True:
            n += 1
            yield n

    g = gen()
    return lambda x: x * next(g)


@case
def generator_extend_raises(x):
    """list.extend keeps what the generator gave before it raised."""

    def gen():
        yield x
        yield x + 1
        raise ValueError("midway")

    out = [0]
    try:
        out.extend(gen())
    except ValueError as e:
        return out, str(e)


@made
def generator_extend_outside_raises():
    out = []

    def gen(x):
        yield len(out)
        raise ValueError("midway")

    def f(x):
        out.append("call")
        try:
            out.extend(gen(x))
        except ValueError:
            pass
        return x + 1

    return f, out


# ---- iterators of users ----------------------------------------------------------------------------------------------
class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Indexed:
    """Iterated by __getitem__."""

    def __init__(self, *v):
        self.v = v

    def __getitem__(self, i):
        return self.v[i]

    def __len__(self):
        return len(self.v)


@case
def iterator_class(x):
    return [x * n for n in Countdown(3)], sum(Countdown(4)), list(zip(Countdown(2), Countdown(3)))


@case
def iterator_by_getitem(x):
    s = Indexed(x, x + 1, 3)
    return [v * 2 for v in s], list(reversed(s)), 3 in s, len(s)


@case
def iterator_sentinel(x):
    rest = [1, 2, 0, 5]
    return [x * v for v in iter(lambda: rest.pop(0), 0)], rest


@case
def iterator_next_default(x):
    it = iter([x])
    return next(it, None), next(it, None), next(iter(()), x * 2)


@case
def iterator_shared(x):
    it = iter(range(6))
    return [x * (a - b) for a, b in zip(it, it)], list(it)


@case
def iterator_list_grows(x):
    todo, out = [3], []
    for n in todo:
        if n:
            todo.append(n - 1)
        out.append(x * n)
    return out, todo


@case
def iterator_dict_changed(x):
    d = {"a": 1, "b": 2}
    try:
        for k in d:
            d[k + "z"] = x
    except RuntimeError as e:
        return x, str(e), list(d)


@case
def iterator_over_tensor_rows(x):
    rows = []
    for i, (row, twice) in enumerate(zip(x, x * 2)):
        rows.append(row * i + twice)
    first, *_ = x
    return rows, first, len(list(iter(x)))


@case
def iterator_reversed_enumerate(x):
    return [v * i for i, v in reversed(list(enumerate([x, x + 1], start=2)))], list(reversed(range(3)))


@case
def iterator_zip_strict(x):
    try:
        return list(zip([x], [1, 2], strict=True))
    except ValueError as e:
        return x * 2, str(e)


# ---- comprehensions --------------------------------------------------------------------------------------------------
@case
def comprehension_list_nested(x):
    return [[x * i + j for j in range(i + 1)] for i in range(2)], [v for row in [[x], [x + 1, 2]] for v in row]


@case
def comprehension_conditions(x):
    return [x * i for i in range(6) if i % 2 if i > 1], [x if i else -x for i in (0, 1)]


@case
def comprehension_dict(x):
    d = {k: x * i for i, k in enumerate("abc")}
    return d, {v: k for k, v in {"a": 1, "b": 2}.items()}, {k: v for k, v in d.items() if k != "b"}


@case
def comprehension_set(x):
    return x * len({i % 3 for i in range(7)}), {len(s) for s in ("a", "bb", "c")}


@case
def comprehension_walrus(x):
    out = [y for i in range(4) if (y := i * 2) > 2]
    return x * y, out


@case
def comprehension_closure(x):
    fs = {n: (lambda v, n=n: v + n) for n in range(3)}
    return [f(x) for f in fs.values()]


@case
def comprehension_calls(x):
    def f(v, *, k):
        return v * k

    return torch.stack([f(x, k=k) for k in (1, 2)]), [m(x) for m in (torch.sin, torch.cos)]


@case
def comprehension_unpacks(x):
    pairs = [("a", (x, 1)), ("b", (x + 1, 2))]
    return [v * n for _, (v, n) in pairs], [a for a, *_ in pairs], {k: n for k, (_, n) in pairs}


@made
def comprehension_of_outside():
    scale = {"a": 1.0, "b": 2.0}

    def f(x):
        out = {k: x * v for k, v in scale.items()}
        scale["a"] = 3.0
        return out

    return f, scale


@case(hit=False)
def comprehension_raises(x):
    return [x / d if d else [][1] for d in (1, 0)]


@case
def comprehension_of_tensors(x):
    return [v.sum() for v in x.unbind(1)], torch.stack([r for r in x if r.dim() == 1]), [i * 2 for i in x.shape]


# ---- in --------------------------------------------------------------------------------------------------------------
@case
def generator_contains(x):
    squares = (i * i for i in range(10))
    found = 9 in squares, next(squares), 7 in (i for i in range(5)), 7 not in (i for i in range(5))
    return x * found[0], found, x.shape[1] in (n + 1 for n in (2, 4))


@case
def generator_contains_tensor(x):
    y = x + 1
    return y in (r for r in (x, y)), x * 2


@case
def generator_contains_raises(x):
    def gen():
        yield 1
        raise ValueError("in the middle")

    try:
        return 5 in gen()
    except ValueError as error:
        return x + 1, str(error)


class Equal:
    __hash__ = None

    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return isinstance(other, Equal) and self.k == other.k


@case
def iterator_contains(x):
    objects = Equal(2) in (Equal(i) for i in range(4)), Equal(9) in iter([Equal(1)])
    return objects, (1, 2) in zip([1], [2]), 2 in reversed([1, 2]), "b" in map(str.lower, "AB"), x * 2
