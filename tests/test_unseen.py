"""What C code reads without the recorder's seeing it: the items of a list that torch.tensor() takes, keys that zip() gives, numbers
inside a partial whose text is asked for, the class that OSError picks. Each row runs in calls that differ in these."""

import collections
import functools
import itertools

import ccompile
import pytest
import torch


class Shown:
    def __init__(self, k):
        self.k = k

    def __repr__(self):
        return f"Shown({self.k})"


class Formatted(Shown):
    def __format__(self, spec):
        return f"Formatted{self.k}{spec}"

    def __str__(self):
        return f"str{self.k}"


class SubDict(dict):
    pass


# ---- a list, a tuple ---------------------------------------------------------------------------------------------------


def item_after_tensor(a):
    y = torch.tensor(a)
    if a[0] > 3:
        y = y * 10
    return y, a[0]


def reads_after_tensor(a):
    y = torch.tensor(a)
    return y, a[::-1], max(a), sum(a), list(a), f"{a}", a == [3, 4]


def unpacked_after_tensor(a):
    y = torch.as_tensor(a, dtype=torch.float32)
    b, c = a
    return y, b, c, [v for v in a], a[1] * y


def twice_a_tensor(a):
    return torch.tensor(a) + torch.tensor(a), a[1]


def rotated_after_tensor(a):
    y = torch.tensor(a)
    a = list(a)
    t = a.pop(0)
    a.append(t)
    return y, t, a


def keys_by_zip(a):
    return dict(zip(a, "ab")), collections.OrderedDict(zip(a, "ab"))


def keys_by_update(a):
    d = {}
    d.update(zip(a, a))
    return d, len(d)


def keys_by_pairs(a):
    return dict([(k, 1) for k in a]), {k: 1 for k in a}, dict.fromkeys(a), set(a), collections.Counter(a)


def keys_by_map(a):
    return dict(map(lambda k: (k, 1), a)), dict(zip(map(str, a), "ab")), len(dict(enumerate(a)))


OF_LISTS = [item_after_tensor, reads_after_tensor, unpacked_after_tensor, twice_a_tensor, rotated_after_tensor]
OF_LISTS += [keys_by_zip, keys_by_update, keys_by_pairs, keys_by_map]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("fn", OF_LISTS)
def test_lists(fn, kind):
    compiled = ccompile.compile(fn)
    for a in ([1, 2], [3, 4], [1, 1], [5, 6], [1, 2], [7.0, 8], [3, 3], [9, 1], [4, 4]):
        assert repr(compiled(kind(a))) == repr(fn(kind(a))), a


def test_the_items_that_a_tensor_was_made_of_are_state():
    class Holder:
        def __init__(self):
            self.a = [1, 2]

    def fn(o):
        y = torch.tensor(o.a)
        t = o.a.pop(0)
        o.a.append(t)
        return y, t

    compiled, ours, theirs = ccompile.compile(fn), Holder(), Holder()
    for _ in range(6):
        assert repr(compiled(ours)) == repr(fn(theirs))
        assert ours.a == theirs.a


def test_a_constant_tuple_that_a_caller_passes():
    def fn(a):
        b = (1, 2)
        return torch.tensor(b), a

    constant = next(c for c in fn.__code__.co_consts if isinstance(c, tuple))
    compiled = ccompile.compile(fn)
    for a in (constant, (2, 1), (5, 6), constant):
        assert repr(compiled(a)) == repr(fn(a))


# ---- a number ------------------------------------------------------------------------------------------------------------


def text_of_partial(x, k):
    return repr(functools.partial(print, k)), str(functools.partial(print, a=[k]))


def text_of_iterators(x, k):
    return repr(itertools.count(k)), repr(itertools.repeat(k, 2)), repr(slice(k)), str(range(k))


def texts_of_items(x, k):
    return f"{[Shown(k)]}", f"{(Shown(k), 1)}", "%s" % ({"q": Shown(k)},), "%r" % [Shown(k)], "{}".format([Shown(k)])


def texts_by_format(x, k):
    o, f = Shown(k), Formatted(k)
    return f"{o}", f"{o!r:>30}", f"{f}", f"{f:>3}", f"{f!s:>12}", f"{f!r}", format(f, "a"), f"{str(f):>9}", f"{[f, o]}", len(f"{f}")


def texts_by_format_of_a_tensors_number(x, k):
    k = x.sum().item() * k
    o, f = Shown(k), Formatted(k)
    return f"{o}", f"{o!r:>30}", f"{f}", f"{f:>3}", f"{f!s:>12}", f"{[f, o]}"


def class_by_errno(x, k):
    try:
        raise OSError(k, "text")
    except FileNotFoundError:
        return "not found"
    except OSError as e:
        return type(e).__name__, e.errno


def text_of_an_exception_around_a_dict(x, k):
    c = collections.OrderedDict(a=k)
    print(end="")
    return str(ValueError(c))


def text_of_an_exception_around_a_view(x, k):
    c = {"a": k}.values()
    print(end="")
    return str(ValueError(c)), str(c)


def text_of_an_exception_around_an_iterator(x, k):
    c = itertools.count(k)
    print(end="")
    return str(ValueError(c))


def text_of_an_exception_around_a_subclass(x, k):
    c = SubDict(a=k)
    print(end="")
    return str(ValueError(c)), repr([c]), f"{c}"


OF_NUMBERS = [text_of_partial, text_of_iterators, texts_of_items, texts_by_format, texts_by_format_of_a_tensors_number, class_by_errno]
OF_NUMBERS += [text_of_an_exception_around_a_dict, text_of_an_exception_around_a_view, text_of_an_exception_around_an_iterator]
OF_NUMBERS += [text_of_an_exception_around_a_subclass]


@pytest.mark.parametrize("fn", OF_NUMBERS)
def test_numbers(fn):
    compiled = ccompile.compile(fn)
    for k in (2, 3, 4, 5, 3, 2):
        assert repr(compiled(torch.ones(2), k)) == repr(fn(torch.ones(2), k)), k


def test_large_numbers_in_a_size():
    """torch.Size holds numbers of more than 64 bits, but converting one back raises."""

    def fn(x, k):
        c = torch.Size([k, 2])
        x.tolist()
        return x * 2, c[0]

    compiled = ccompile.compile(fn)
    for k, n in ((1, 4), (2**64, 3), (3, 2), (2**70, 3)):
        assert compiled(torch.ones(n), k)[1] == k


def test_what_an_operator_that_raises_has_read():
    """The number that the error's operands hold had lost its guard once it differed often."""

    def fn(x):
        v = slice(0, x.size(0))
        print(end="")
        try:
            v // 2
        except TypeError:
            pass
        return x * 2, str(v)

    compiled = ccompile.compile(fn)
    for n in range(2, 12):
        assert compiled(torch.ones(n))[1] == str(slice(0, n))


def test_what_differed_is_said_without_asking_the_objects():
    """Nothing but the text of a guard that failed would call __repr__ here."""
    asked = []

    class Asked:
        def __repr__(self):
            asked.append(1)
            return "Asked"

    def fn(x, o):
        return x * 2 if o is None else x + len(o)

    o = Asked()
    for values in ([(o,), [o], (o, 1), None], [frozenset([o]), {o}, None], [[1], [functools.partial(o.__repr__)], None]):
        compiled = ccompile.compile(fn)
        for value in values * 2:
            compiled(torch.ones(2), value)
    assert not asked
