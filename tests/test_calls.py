"""Calls of C and library code that models make: recorded without a break, and still right after something changes."""

import builtins
import collections
import copy
import functools
import importlib
import pathlib
import re
import subprocess
import sys
import types
import typing
from collections import namedtuple

import ccompile
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import EAGER, breaks, recorded, replaying, same
from models_zoo import t
from torch import nn

Pair = namedtuple("Pair", "left right")


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k, x + k

    @staticmethod
    def backward(ctx, a, b):
        return a * ctx.k + b, None


class Config:
    def __init__(self):
        self.size, self.names, self.kind = 3, ["a", "b"], None
        self.table = {"scale": 2.0}


class Act(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) + 1


LIBRARY = torch.library.Library("ccompile_tests", "DEF")
LIBRARY.define("double(Tensor x) -> Tensor")
LIBRARY.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
LIBRARY.define("positive(Tensor x) -> Tensor")
LIBRARY.impl("positive", lambda x: x[x > 0].clone(), "CompositeExplicitAutograd")
LIBRARY.define("doubled_and_sum(Tensor x) -> (Tensor, int)")
LIBRARY.impl("doubled_and_sum", lambda x: (x * 2, int(x.sum())), "CompositeExplicitAutograd")
LIBRARY.define("doubled_or_none(Tensor x) -> Tensor?")
LIBRARY.impl("doubled_or_none", lambda x: x * 2 if x.sum() > 1 else None, "CompositeExplicitAutograd")
LIBRARY.define("more_or_none(Tensor x) -> (Tensor, Tensor?)")
LIBRARY.impl("more_or_none", lambda x: (x + 1, x * 2 if x.sum() > 1 else None), "CompositeExplicitAutograd")
LIBRARY.define("raise_to_(Tensor(a!) x, float k) -> ()")
LIBRARY.impl("raise_to_", lambda x, k: [x.clamp_(min=k), None][1], "CompositeExplicitAutograd")


@pytest.mark.parametrize("function", [
    functools.partial(F.gelu, approximate="tanh"),
    functools.partial(torch.clamp, min=-0.5, max=0.5),
    functools.partial(torch.add, torch.ones(4), alpha=2),
    functools.partial(functools.partial(torch.clamp, min=-1.0), max=1.0),
    functools.partial(nn.LayerNorm(4)),
    functools.partial(lambda x, k: x * k, k=3),
], ids=["gelu", "keywords", "positional", "nested", "module", "function"])  # fmt: skip
def test_partial(function):
    model = Act(function)
    same(model, t(3, 4))
    assert EAGER or breaks(model, t(3, 4)).breaks == 0


def test_partial_changes():
    """Other keywords, another function: recorded again."""
    model = Act(functools.partial(torch.clamp, min=0.0))
    compiled = ccompile.compile(model)
    x = t(3, 4)
    for function in (model.function, functools.partial(torch.clamp, min=0.5), functools.partial(torch.mul, 2),
                     functools.partial(torch.mul, 3), functools.partial(torch.clamp, max=0.1), model.function):  # fmt: skip
        model.function = function
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))


def fill(x):
    return x.masked_fill(x > 0, torch.finfo(x.dtype).min) + torch.iinfo(torch.int32).max


def scale_by_numpy(x):
    return x / np.sqrt(x.shape[-1]) + np.log2(8)


def fields(x):
    p = Pair(x, x * 2)
    return p.left + p.right, p._replace(left=p.right)


def field_of_argument(p):
    return p.left * 2 + p.right


def concatenated(x):
    out = (x,)
    out += (Config(), x * 2)
    return out[0] + out[2], [*[x], *([x] + [None, x])][0]


def unions(x, kind: int | None = None):
    hints = typing.get_args(int | None)
    return x * len(hints), typing.get_args(list[int])[0] is int


@pytest.mark.parametrize("function", [fill, scale_by_numpy, fields, concatenated, unions], ids=lambda f: f.__name__)
def test_no_break(function):
    same(function, t(3, 4))
    assert EAGER or breaks(function, t(3, 4)).breaks == 0


def test_namedtuple_argument():
    same(field_of_argument, make_args=lambda i: (Pair(t(3, seed=i), t(3, seed=i + 1)),))


def test_formatting_a_tensor_in_a_tuple():
    same(lambda x: ("%s" % (x,), x + 1), make_args=lambda i: (torch.full((2,), float(i)),), calls=4, hit=False)


def test_deepcopy():
    """copy.deepcopy and copy.copy of plain objects: their parts are read, and guarded."""

    def f(x, config):
        mine, shallow = copy.deepcopy(config), copy.copy(config)
        mine.names.append("c")
        mine.size += 1
        return x * mine.size + len(mine.names) * shallow.table["scale"], mine, shallow

    config = Config()
    same(f, t(3), config)
    assert EAGER or breaks(f, t(3), config).breaks == 0
    compiled = ccompile.compile(f)
    for size in (3, 5, 3):
        config.size = size
        assert torch.equal(compiled(torch.ones(2), config)[0], f(torch.ones(2), config)[0])
        assert config.names == ["a", "b"]


def test_mapping_proxy():
    view = types.MappingProxyType({"a": 2, "b": 3})
    same(lambda x: [x * n for n in view.values()] + [x * view["a"], len(view)], t(3))
    behind = {"k": 1}
    view = types.MappingProxyType(behind)
    compiled = ccompile.compile(lambda x: x * view["k"])
    for k in (1, 1, 4, 4):
        behind["k"] = k
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(k)))


# ---- ops of a library, custom functions ------------------------------------------------------------------------------
def test_custom_op():
    f = lambda x: torch.ops.ccompile_tests.double(x).relu() + torch.ops.aten.mul.Tensor(x, 3)
    same(f, t(3, 4))
    assert EAGER or recorded(f, t(3, 4)).break_count == 0


def test_custom_op_that_writes():
    def f(x):
        y = x * 2
        torch.ops.ccompile_tests.raise_to_(y, 0.25)
        return y + 1

    same(f, t(3, 4))


def test_custom_op_whose_shape_depends_on_data():
    """Nothing tells so before: a replay that meets another shape is made again eagerly."""
    f = lambda x: torch.ops.ccompile_tests.positive(x * 2) + 1
    compiled = ccompile.compile(f)
    for values in ([1.0, 2, 3], [1.0, 5, 3], [-1.0, 2, 3], [-1.0, -2, -3], [4.0, 2, 3]):
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), f(x))


def number_and_tensor(x):
    y, n = torch.ops.ccompile_tests.doubled_and_sum(x)
    return y + 1, n


def maybe_tensor(x):
    y = torch.ops.ccompile_tests.doubled_or_none(x)
    return x if y is None else y + 1


def maybe_among_tensors(x):
    y, z = torch.ops.ccompile_tests.more_or_none.default(x)
    return y if z is None else z + 1


@pytest.mark.parametrize("f", [number_and_tensor, maybe_tensor, maybe_among_tensors])
def test_custom_op_whose_results_data_decides(f):
    compiled = ccompile.compile(f)
    for values in ([0.0, 1], [0.0, 1], [2.0, 3], [2.0, 4], [1.0, 0]):
        x = torch.tensor(values)
        assert str(compiled(x)) == str(f(x))


def test_custom_function():
    f = lambda x: sum(Scaled.apply(x, 3.0))
    same(f, t(3, 4))
    same(f, t(3, 4).requires_grad_(), no_grad=False, backward=True, hit=False)
    assert EAGER or breaks(f, t(3, 4)).breaks == 0


def test_custom_function_changes():
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    f = lambda x: Local.apply(x) + 1
    compiled = ccompile.compile(f)
    with torch.no_grad():
        for k in (2, 2, 5, 5):
            Local.forward = staticmethod(lambda ctx, x, k=k: x * k)
            assert torch.equal(compiled(torch.ones(3)), torch.full((3,), k + 1.0))


# ---- a replay that fails behind a write ------------------------------------------------------------------------------
def keep_row(cache, counter, at, x, log):
    """As transformers' static cache: a counter and rows of a buffer, inside of code that catches."""
    log.append("in")
    try:
        counter.add_(1)
        cache.index_copy_(0, at, x)
        y = cache.sum(0) + counter
        return y.gather(0, at)
    finally:
        log.append("out")


@pytest.mark.parametrize("rows", [4, 400], ids=["small", "large"])
def test_failing_behind_a_write(rows):
    """The counter counts once, the rows are written once, `finally` runs, the error is eager's."""
    at = [[0, 1], [2, 3], [1, 2], [1, rows + 5], [3, 0], [-1, 0]]

    def build():
        cache, counter, log = torch.zeros(rows, 8), torch.zeros((), dtype=torch.long), []
        return (lambda i, x: keep_row(cache, counter, i, x, log)), (cache, counter, log)

    same(build, make_args=lambda i: (torch.tensor(at[i]), t(2, 8, seed=i)), calls=6, build=True, raises=True, hit=False)


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_writes_that_can_be_undone_do_not_break():
    cache, counter, log = torch.zeros(40, 8), torch.zeros((), dtype=torch.long), []
    compiled = ccompile.compile(lambda i, x: keep_row(cache, counter, i, x, log))
    with torch.no_grad():
        compiled(torch.tensor([0, 1]), t(2, 8))
        with replaying(2):
            compiled(torch.tensor([2, 1]), t(2, 8))
            compiled(torch.tensor([4, 1]), t(2, 8))
    assert counter == 3 and len(log) == 6


def test_write_behind_a_read_is_not_repeated():
    """What was read before it is overwritten can't be written twice: the second row would add up."""

    def build():
        cache = torch.zeros(50, 8)

        def f(at, x):
            try:
                cache.copy_(cache * 2 + x.sum())
                return cache.index_select(0, at)
            finally:
                pass

        return f, cache

    at = [[0, 1], [2, 3], [1, 99], [1, 0]]
    same(build, make_args=lambda i: (torch.tensor(at[i]), t(2, 8, seed=i)), calls=4, build=True, raises=True, hit=False)


class Two:
    def __init__(self, a, b):
        self.a, self.b = a, b


def test_deepcopy_of_shared_parts():
    """Whether two parts are one object is another question in each call; which object it is, is none."""

    def f(x, pair):
        mine = copy.deepcopy(pair)
        mine.a.size += 1
        return x * mine.b.size, mine.a is mine.b

    compiled = ccompile.compile(f)
    before = ccompile.counters()["recompile"] if not EAGER else 0
    for shared in (False, True, False, False, True, True):
        a = Config()
        pair = Two(a, a if shared else Config())
        got, want = compiled(torch.ones(2), pair), f(torch.ones(2), pair)
        assert torch.equal(got[0], want[0]) and got[1] is want[1] is shared
    assert EAGER or ccompile.counters()["recompile"] - before <= 2


# ---- any number of operands, of any kind --------------------------------------------------------------------------------------
def rows():
    """What callee.def names, as far as this interpreter has it."""
    text = (pathlib.Path(__file__).parent.parent / "csrc" / "rec" / "callee.def").read_text()
    paths = " ".join(re.findall(r'CC_CALLEE\(\w+, [^"]+"([^"]+)"\)', text)).split()
    apart = ("input", "print", "globals", "vars", "hash", "id")  # they tell of the process, or of the one object that they are given
    return [path for path in paths if path.rpartition(".")[2] not in apart and not path.endswith("object.__hash__")]


def named(path):
    at, *names = path.split(".")
    o = importlib.import_module(at)
    for name in names:
        if not hasattr(o, name):
            return None
        o = getattr(o, name)
    return o if callable(o) else None


OPERANDS = {
    "number": lambda: 1,
    "text": lambda: "a",
    "none": lambda: None,
    "list": lambda: [3, 1, 2],
    "dict": lambda: {"a": 1},
    "set": lambda: {1, 2},
    "function": lambda: len,
    "class": lambda: int,
    "iterator": lambda: iter([1, 2]),
}
GIVEN = ["", "number", "text", "list", "class", "dict text", "list number", "number number", "none text", "function list"]
GIVEN += ["list number number", "dict text number", "text number number", "function list list", "set number", "iterator list"]


def shown(o):
    return re.sub("0x[0-9a-f]+", "0x", repr(o))


def outcome_of(f, *operands):
    try:
        return shown(f(*operands))
    except Exception as e:
        return shown(e)


@pytest.mark.parametrize("module", sorted({path.rpartition(".")[0] for path in rows()}))
def test_rows_with_any_operands(module):
    """Calls that C code refuses raise what eager raises, whatever a row of callee.def says of those that it takes."""
    for path in rows():
        f = named(path) if path.rpartition(".")[0] == module else None
        for given in GIVEN if f is not None else ():
            compiled = ccompile.compile(lambda x, *operands, f=f: (f(*operands), x + 1)[0])
            for _ in range(2):
                eagers, ours = ([OPERANDS[name]() for name in given.split()] for _ in range(2))
                want, got = outcome_of(f, *eagers), outcome_of(compiled, torch.ones(1), *ours)
                assert got == want and shown(ours) == shown(eagers), f"{path}({given})"


@pytest.mark.parametrize("name", [{}, {"__name__": 5}, {"__name__": "\ud800"}, {"__name__": "torch"}], ids=["none", "number", "no UTF-8", "torch"])
def test_exceptions_of_functions_whose_globals_have_no_name(name):
    """Code that a program has made with exec, such as torch.fx's, may have any globals."""
    space = {"torch": torch, **name}
    exec(
        """
def raises(x):
    raise ValueError(x.shape)

def unbound(x):
    y = y + x

def refused(x):
    return torch.cat([r * 2 for r in x[:0]])

def caught(x):
    try:
        return x.missing
    except AttributeError as e:
        return x * 2, str(e)
""",
        space,
    )
    for name in ("raises", "unbound", "refused", "caught"):
        same(space[name], torch.ones(2, 3), raises=True, hit=False)


# ---- a method of a builtin base, held across a break -----------------------------------------------------------------
class Shouts(list):
    def append(self, v):
        method = super().append
        torch._dynamo.graph_break()
        method(v)
        torch._dynamo.graph_break()
        super().append(v + 1)

    def index(self, v):
        method = super().index
        torch._dynamo.graph_break()
        return method(v) * 100


class Wraps(dict):
    def get(self, key):
        method = super().get
        torch._dynamo.graph_break()
        return "wrapped", method(key)

    def update(self, *args, **more):
        method = super().update
        torch._dynamo.graph_break()
        method(*args)
        method(**more)

    @classmethod
    def fromkeys(cls, keys):
        method = super().fromkeys
        torch._dynamo.graph_break()
        return method(keys, 7)


class Orders(collections.OrderedDict):
    def move_to_end(self, key):
        method = super().move_to_end
        torch._dynamo.graph_break()
        method(key)
        self.moved = key


def of_a_list(x):
    held = Shouts()
    held.append(1)
    return list(held), held.index(2), x + 1


def of_a_dict(x):
    held = Wraps(a=1)
    held.update({"b": 2}, c=3)
    return dict(held), held.get("a"), Wraps.fromkeys("xy"), x + 1


def of_an_ordered_dict(x):
    held = Orders(a=1, b=2)
    held.move_to_end("a")
    return list(held), held.moved, x + 1


def of_a_storage(x):
    """TypedStorage.__sizeof__ calls object's by super()."""
    return [torch.ones(n).storage().__sizeof__() for n in (0, 10, 100)], x + 1


def of_plain_objects(x):
    held, table = [3, 1], {}
    append, sort, setdefault = held.append, held.sort, table.setdefault
    torch._dynamo.graph_break()
    append(2)
    sort()
    setdefault("a", []).append(1)
    return held, table, x + 1


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("fn", [of_a_list, of_a_dict, of_an_ordered_dict, of_a_storage, of_plain_objects])
def test_bound_methods_of_builtins(fn):
    expected = fn(torch.ones(2))
    compiled = ccompile.compile(fn)
    for _ in range(5):
        assert str(compiled(torch.ones(2))) == str(expected)


class Keyed(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def sum_from(x):
    return sum([[1], [2]], start=[0]), sum([x, x], start=1.0)


def removed_by_name(x):
    LISTED.remove(value=1)
    return x + 1


LISTED = [1, 2, 3]
REFUSED = {
    "sum, foo": lambda x: (sum([1, 2], foo=3), x + 1),
    "sum, iterable": lambda x: (sum(iterable=[1, 2]), x + 1),
    "sum, start alone": lambda x: (sum(start=[1, 2]), x + 1),
    "sum, start": sum_from,
    "reduce": lambda x: (functools.reduce(lambda a, b: a + b, [1, 2], initial=3), x + 1),
    "remove": removed_by_name,
    "id": lambda x: (id(obj=LISTED) > 0, x + 1),
    "getattr": lambda x: (getattr(Keyed(a=1), "a", default=3), x + 1),
    "hasattr": lambda x: (hasattr(Keyed(a=1), name="a"), x + 1),
    "setattr": lambda x: (setattr(Keyed(a=1), "b", value=3), x + 1),
    "is_scripting": lambda x: (torch.jit.is_scripting(3), x + 1),
    "foreach, numbers": lambda x: torch._foreach_mul([x, x], torch.tensor([2.0, 3.0])),
    "foreach, one number": lambda x: torch._foreach_add([x], torch.tensor([2.0])),
    "foreach, number": lambda x: torch._foreach_mul([x, x], torch.tensor(2.0)),
    "graph_break": lambda x: (ccompile.graph_break("\ud800"), x + 1),
    "module": lambda x: (getattr(types, "\ud800"), x + 1),  # noqa: B009
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_c_code_refuses(name):
    same(REFUSED[name], t(3), raises=True, hit=False)


# torch gives all results of _foreach_neg() a gradient if one of the tensors requires it, and refuses integers then
LISTS = {
    "neg": lambda x, y: torch._foreach_neg([x * 2, y]),
    "numbers": lambda x, y: torch._foreach_add([y, x], 2),
    "lists": lambda x, y: torch._foreach_mul([x, y], [y, y]),
    "second list": lambda x, y: torch._foreach_sub([y, y], [y, x]),
    "tensor": lambda x, y: torch._foreach_mul([y, y], x.sum()),
    "all": lambda x, y: torch._foreach_mul([x, x * 2], [y, y]),
    "in place": lambda x, y: torch._foreach_mul_([x * 1, y * 1], 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors_some_of_which_require_gradients(name, dtype):
    same(lambda x, y: [(r, r.requires_grad) for r in LISTS[name](x, y)],
         make_args=lambda i: (t(3, seed=i).requires_grad_(), torch.arange(i, i + 3).to(dtype)),
         no_grad=False, raises=True, hit=False)  # fmt: skip


@torch.compiler.disable
def fresh_partial(x):
    return functools.partial(torch.add, x)


def test_a_dict_that_exists_once_it_is_read():
    """A break gives a partial whose __dict__ nobody has asked for yet, as functools.update_wrapper does (in Pyro)."""

    def f(x):
        made = fresh_partial(x)
        made.__dict__.update({"name": 1})
        return made(1), made.name, fresh_partial(x).__dict__

    same(f, t(3), calls=5)


def test_is_compiling_takes_no_argument():
    compiled = ccompile.compile(lambda x: (torch.compiler.is_compiling(x), x + 1))
    for _ in range(3):
        with pytest.raises(TypeError):
            compiled(t(3))


# ---- user code that C code calls: as often as in eager -----------------------------------------------------------------
def length_of(base):
    def make(log):
        class Sized(base):
            def __len__(self):
                log.append("len")
                return 1

        o = Sized()
        return lambda x: x + 1 if o else x - 1

    return make


def instance_check(log):
    class Meta(type):
        def __instancecheck__(cls, o):
            log.append("check")
            return True

    class Cls(metaclass=Meta):
        pass

    def f(x):
        match 3:
            case Cls():
                return x + 1
        return x

    return f


def taken_apart(cls):
    p = cls()

    def f(x):
        match p:
            case cls(a):
                return x + a
        return x

    return f


def attribute_of_a_pattern(log):
    class Point:
        __match_args__ = ("x",)

        def __init__(self):
            self.x = 1

        def __getattribute__(self, name):
            log.append(name)
            return object.__getattribute__(self, name)

    return taken_apart(Point)


def names_of_a_pattern(log):
    class Meta(type):
        @property
        def __match_args__(cls):
            log.append("args")
            return ("x",)

    class Point(metaclass=Meta):
        def __init__(self):
            self.x = 1

    return taken_apart(Point)


def bounds_of_a_slice(log):
    class Index:
        def __index__(self):
            log.append("index")
            return 1

    i, items = Index(), (1, 2, 3)
    return lambda x: (items[i:], items[:i], items[::i], x + 1)


def name_of_a_partial(log):
    class Partial(functools.partial):
        def __getattr__(self, name):
            log.append(name)
            raise AttributeError(name)

    p = Partial(len)
    return lambda x: (p([1]), x + 1)


def part_of_a_property(log):
    class Property(property):
        @property
        def fget(self):
            log.append("fget")

    class Held:
        three = Property(lambda self: 3)

    o = Held()
    return lambda x: (o.three, x + 1)


@pytest.mark.parametrize(
    "make",
    [
        *map(length_of, (list, tuple, dict, set, collections.deque)),
        instance_check,
        attribute_of_a_pattern,
        names_of_a_pattern,
        bounds_of_a_slice,
        name_of_a_partial,
        part_of_a_property,
    ],
    ids=lambda make: make.__name__ if make.__name__ != "make" else "length",
)
def test_code_of_the_users_runs_as_often_as_in_eager(make):
    def build():
        log = []
        return make(log), log

    same(build, build=True, calls=5, hit=False, make_args=lambda i: t(3, seed=i))


# ---- which builtins ----------------------------------------------------------------------------------------------------
def test_a_function_without_builtins_sums():
    """In a process of its own: code of ours that runs in place of C code is made when it is first needed."""
    program = """
import operator, torch, ccompile
space = {"__builtins__": {}, "sum": sum, "map": map, "list": list, "getter": operator.itemgetter(0, 1)}
exec("def f(x): return sum([1, 2]), list(map(getter, [[1, 2], [3, 4]])), x + 1", space)
compiled = ccompile.compile(space["f"])
for _ in range(4):
    assert compiled(torch.ones(2))[:2] == (3, [(1, 2), (3, 4)])
assert ccompile.explain(space["f"])(torch.ones(2)).break_count == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=300)


def test_sum_is_replaced_by_code_that_calls_it(monkeypatch):
    added = []
    monkeypatch.setattr(builtins, "sum", lambda items, start=0, of=sum: added.append(0) or of(items, start) + 1)
    compiled, x = ccompile.compile(lambda x: (sum([1, 2]), x + 1)), torch.ones(3)
    for i in range(4):
        assert compiled(x)[0] == 4
        assert len(added) == i + 1


# ---- formats with a NUL in them ----------------------------------------------------------------------------------------
def items_behind_a_nul(held):
    return lambda x: ("\0%(k)s" % held, x + 1)


def items_of_bytes_behind_a_nul(held):
    return lambda x: (b"\0%(k)d" % held, x + 1)


def attributes_behind_a_nul(held):
    o = held["o"]
    return lambda x: ("\0{0.kind}".format(o), x + 1)  # noqa: UP032


@pytest.mark.parametrize(
    "make", [items_behind_a_nul, items_of_bytes_behind_a_nul, attributes_behind_a_nul], ids=lambda f: f.__name__
)
def test_a_nul_in_a_format(make):
    def build():
        held = collections.defaultdict(int, o=Config())
        f = make(held)

        @ccompile.disable
        def change():
            keys = list(held)
            held["o"].kind = len(keys) + (held["o"].kind or 0)
            held.pop("k", None)
            held.pop(b"k", None)
            return keys

        return lambda x: (f(x), change()), held

    same(build, build=True, calls=5, hit=False, make_args=lambda i: t(3, seed=i))


@pytest.mark.parametrize(
    ("fn", "depends"),
    [
        (lambda x: ("{:>{b}}".format(2.5, b="10n"), x + 1), True),
        (lambda x: ("\0{:>10n}".format(2.5), x + 1), True),
        (lambda x: ("{{:{:>5}".format(2.5), x + 1), False),
    ],
    ids=["nested", "NUL", "braces"],
)
def test_formats_that_depend_on_the_locale(fn, depends):
    guards = ccompile.explain(fn)(t(3)).out_guards
    assert any("localeconv" in str(g) for g in guards) == depends
