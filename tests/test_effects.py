"""Side effects: writes to state that existed before the call happen in program order, between breaks, prints and exceptions."""

import collections
import contextlib
import contextvars
import copy
import io
import operator
import types

import ccompile
import pytest
import torch
from conftest import EAGER, alike, hits, outcome, replaying, same, together
from torch import nn

CASES = {}
HIT = {}
counter, log, table = 0, [], {}
level = contextvars.ContextVar("level", default=0)


def t(*shape, seed=0):
    g = torch.Generator().manual_seed(seed + 13 * len(shape) + sum(shape))
    return torch.randn(*shape, generator=g)


def effect(fn=None, *, hit=True):
    """Registers a factory of (function, state). The state is compared with eager's after each call."""

    def add(fn):
        name = fn.__name__.replace("_", "-")
        CASES[name], HIT[name] = fn, hit
        return fn

    return add if fn is None else add(fn)


def space(**kw):
    return types.SimpleNamespace(**kw)


# ---- writes --------------------------------------------------------------------------------------------------------
@effect
def attribute_set():
    o = space(last=None, shape=None)

    def fn(x):
        o.last = x * 2
        o.shape = tuple(x.shape)
        return o.last + 1

    return fn, o


@effect
def attribute_added_and_deleted():
    o = space()

    def fn(x):
        o.a = x + 1
        o.b = o.a * 2
        del o.a
        o.a = 5
        return o.b

    return fn, o


@effect
def attribute_read_back():
    o = space(v=1.0)

    def fn(x):
        y = x * o.v
        o.v = 2.0
        y = y + o.v
        o.v = 1.0
        return y

    return fn, o


@effect
def list_writes():
    items = [0, 1, 2]

    def fn(x):
        items[0] = x + 1
        items[1:] = [x * 2, "s"]
        return items[0] + items[1], len(items)

    return fn, items


@effect(hit=False)
def list_grows():
    items = []

    def fn(x):
        items.append(x.sum())
        items.extend([len(items), x])
        return x + len(items)

    return fn, items


@effect
def list_cleared_and_filled():
    items = [1]

    def fn(x):
        items.clear()
        for i in range(3):
            items.append(x * i)
        items.pop()
        items.insert(0, "first")
        items.reverse()
        items.remove("first")
        return items[0] + 1

    return fn, items


@effect
def dict_writes():
    d = {"keep": 1, "x": None}

    def fn(x):
        d["x"] = x * 2
        d.update(y=x.shape, z=[1])
        d["z"].append(2)
        d.pop("y")
        return d["x"] + len(d)

    return fn, d


@effect
def dict_order():
    d = collections.OrderedDict(a=1, b=2)

    def fn(x):
        d["a"] = d.pop("a")
        return x * 2

    return fn, d


@effect
def set_writes():
    s = {1, 2}

    def fn(x):
        s.add(3)
        s.discard(1)
        s.add(1)
        return x + len(s)

    return fn, s


@effect
def deque_writes():
    q = collections.deque([0, 0], maxlen=2)

    def fn(x):
        q.append(x * 2)
        return q[-1] + 1

    return fn, q


@effect
def nested_writes():
    o = space(inner=space(items=[{"v": None}]))

    def fn(x):
        o.inner.items[0]["v"] = x + 1
        o.inner.items[0]["w"] = o.inner.items[0]["v"]
        return o.inner.items[0]["w"] * 2

    return fn, o


@effect
def nonlocal_write():
    last, n = None, 0

    def fn(x):
        nonlocal last, n
        last, n = x * 2, 3
        return last + n

    def read():
        return last, n

    return fn, read


@effect(hit=False)
def nonlocal_counter():
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    return fn


@effect
def same_value_written():
    o = space(k=3)

    def fn(x):
        o.k = o.k
        o.k = 3
        return x * o.k

    return fn, o


@effect
def written_in_callee():
    o = space(v=None)

    def store(v):
        o.v = v
        return v + 1

    def fn(x):
        return store(store(x * 2))

    return fn, o


@effect
def property_setter():
    class P:
        writes = 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self._v = value * 2

    p = P()

    def fn(x):
        p.v = x + 1
        return p.v + 1

    return fn, p


@effect
def setattr_hook():
    class S:
        def __setattr__(self, name, value):
            object.__setattr__(self, name, (value, name))

    s = S()

    def fn(x):
        s.a = x * 2
        setattr(s, "b", 1)
        return s.a[0]

    return fn, s


@effect
def class_attribute_written():
    class C:
        last = None

    def fn(x):
        C.last = x.shape
        return x * 2

    return fn, space(read=lambda: C.last)


@effect
def context_variable():
    def fn(x):
        token = level.set(level.get() + 1)
        try:
            return x * level.get()
        finally:
            level.reset(token)

    return fn


# ---- tensors -------------------------------------------------------------------------------------------------------
@effect
def tensor_in_place():
    buf = torch.zeros(3)

    def fn(x):
        before = buf + 0
        buf.add_(x)
        after = buf * 2
        buf[0] = 7
        return before, after, buf

    return fn, buf


@effect
def tensor_written_through_view():
    buf = torch.zeros(2, 3)

    def fn(x):
        row = buf[1]
        row.copy_(x)
        row += 1
        return buf.sum(0), row

    return fn, buf


@effect
def tensor_in_place_then_item():
    buf = torch.ones(3)

    def fn(x):
        buf.mul_(0.5)
        s = buf.sum().item()
        buf.add_(x)
        return x * s

    return fn, buf


@effect
def item_then_in_place():
    buf = torch.ones(3)

    def fn(x):
        buf.add_(buf.sum().item())
        print(f"{buf[0].item():.4f}")
        buf.div_(10)
        return x + buf

    return fn, buf


@effect
def list_of_tensors_in_place():
    bufs = [torch.zeros(3), torch.zeros(3)]

    def fn(x):
        for i, b in enumerate(bufs):
            b.add_(x * (i + 1))
        torch._foreach_add_(bufs, 1.0)
        return bufs[0] + bufs[1]

    return fn, bufs


@effect
def swapped_tensors():
    o = space(front=torch.zeros(3), back=torch.ones(3))

    def fn(x):
        o.front, o.back = o.back, o.front
        o.back.add_(x)
        return o.front * 1

    return fn, o


@effect
def view_kept():
    o = space(view=None)

    def fn(x):
        y = x * 2
        o.view = y[1:]
        y.add_(1)
        return y

    return fn, o


@effect
def input_kept():
    o = space(x=None)

    def fn(x):
        o.x = x
        x.mul_(2)
        return x + 1

    return fn, o


# ---- order -----------------------------------------------------------------------------------------------------------
@effect
def writes_around_print():
    class Shown:
        def __init__(self):
            self.items = []

        def __str__(self):
            return f"{len(self.items)} items, last {self.items[-1] if self.items else None}"

    s = Shown()

    def fn(x):
        s.items.clear()
        print(s)
        s.items.append("a")
        y = x * 2
        print(s)
        s.items.append("b")
        y = y + 1
        print(s)
        return y

    return fn, s


@effect
def prints_and_items():
    def fn(x):
        print("one")
        y = x + 1
        print("two", y[0].item())
        y = y * 2
        print("three", y, sep="|", end="!\n")
        return y

    return fn


@effect(hit=False)
def writes_around_break():
    items = []

    def fn(x):
        items.append("start")
        s = (x * 2).sum().item()
        items.append(s)
        y = x + len(items)
        if y.mean() > 0:
            items.append("positive")
        else:
            items.append("negative")
        return y

    return fn, items


@effect
def write_seen_by_unknown_call():
    items = [None]

    @ccompile.disable
    def show():
        print(items)

    def fn(x):
        items[0] = "before"
        show()
        items[0] = "between"
        y = x * 2
        show()
        items[0] = "after"
        return y

    return fn, items


@effect
def break_changes_what_is_read():
    """What follows a break is guarded anew: the break writes what the rest reads."""
    o = space(k=1.0, n=0)

    @ccompile.disable
    def step():
        o.n += 1
        o.k = float(o.n % 2 + 1)

    def fn(x):
        o_before = o.k
        step()
        return x * o.k + o_before

    return fn, o


@effect
def stdout_replaced():
    def fn(x):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print("inside", x.shape)
        print("outside", text.getvalue())
        return x + 1

    return fn


# ---- exceptions half-way --------------------------------------------------------------------------------------------
@effect
def raise_after_writes():
    o, items = space(v=None), []

    def fn(x):
        o.v = x + 1
        items[:] = ["written"]
        raise ValueError("half-way")

    return fn, (o, items)


@effect
def raise_between_writes():
    d, buf = {"n": 0, "end": 0}, torch.zeros(3)

    def fn(x):
        d["n"] = 1
        buf.fill_(2)
        y = x * buf
        [][y.sum().item() > 1e9]
        d["end"] = 1
        buf.fill_(3)
        return y

    return fn, (d, buf)


@effect
def finally_writes():
    o = space(open=False, closed=None)

    def fn(x):
        o.open = True
        try:
            y = x * 2
            y = y / (y.sum().item() * 0 or "zero")
        except TypeError as error:
            o.closed = type(error).__name__
            y = x
        finally:
            o.open = False
        return y

    return fn, o


@effect
def raise_in_setter():
    class P:
        @property
        def v(self):
            return 1

        @v.setter
        def v(self, value):
            self.seen = "set"
            raise AttributeError("read only")

    p = P()

    def fn(x):
        y = x * 2
        p.v = y
        return y

    return fn, p


@effect
def tensor_error_after_write():
    items = [0]

    def fn(x):
        items[0] = "written"
        return x @ torch.ones(x.shape[0] + 1)

    return fn, items


@pytest.mark.parametrize("name", CASES)
def test_effects(name):
    raises = "raise" in name or "error" in name
    past = same(
        CASES[name], make_args=lambda i: t(3, seed=i), build=True, calls=4, hit=HIT[name] and not raises, raises=raises
    )
    assert not raises or past[-1].error


# ---- module level names ------------------------------------------------------------------------------------------------
def writes_globals(x):
    global counter
    counter = x.shape[0]
    log[:] = ["start", counter]
    table["last"] = x * 2
    return table["last"] + counter


def counts_globally(x):
    global counter
    counter += 1
    log.append(counter)
    return x * counter


@pytest.mark.parametrize("fn", [writes_globals, counts_globally], ids=lambda f: f.__name__)
def test_global_writes(fn):
    def run(call):
        global counter
        counter = 0
        log.clear()
        table.clear()
        out = []
        for i in range(4):
            with torch.no_grad():
                out.append((outcome(call, (t(3, seed=i),)), counter, list(log), dict(table)))
        return out

    alike(run(fn), run(ccompile.compile(fn)))


def test_effects_happen_once():
    """The first call records while it runs: nothing is performed a second time by a replay of the same call."""
    seen = []

    class Spy(list):
        def append(self, item):
            seen.append(item)
            super().append(item)

    spy = Spy()

    def fn(x):
        spy.append("a")
        y = x * 2
        s = y.sum().item()
        spy.append("b")
        return y + s

    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for n in range(1, 5):
            compiled(t(3))
            assert seen == ["a", "b"] * n


def test_module_state_is_the_users():
    """Writes go to the module that was compiled, and the compiled one shows them."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.register_buffer("seen", torch.zeros(3))
            self.last = None

        def forward(self, x):
            self.seen.add_(x)
            self.last = self.fc(x)
            return self.last * 2

    net = Net()
    compiled = ccompile.compile(net)
    with torch.no_grad():
        total = torch.zeros(3)
        for i in range(4):
            x = t(3, seed=i)
            total += x
            out = compiled(x)
            alike(total, net.seen)
            alike(net.fc(x), net.last)
            alike(net.last * 2, out)
        with replaying(1):
            compiled(t(3))
    assert compiled.last is net.last and compiled.seen is net.seen


def test_caller_sees_aliases():
    """An output that is an input, or a view of one, is so in replays: writing one shows in the other."""

    def fn(x):
        y = x * 2
        return x, x[1:], y, y.view(-1)

    compiled = ccompile.compile(fn)
    with torch.no_grad():
        for _ in range(3):
            x = t(4)
            same_x, view, y, flat = compiled(x)
            assert same_x is x
            view.fill_(3)
            assert x[1:].eq(3).all()
            flat.fill_(4)
            assert y.eq(4).all()


def test_results_are_not_reused():
    """Results of earlier calls keep their values and memory: no call writes into what another has returned."""
    compiled = ccompile.compile(lambda x: (torch.relu(x) + 1, x.sum(0), [x * 3]))
    with torch.no_grad():
        kept = [(x := t(64, 8, seed=i), compiled(x)) for i in range(6)]
        hits(lambda: compiled(t(64, 8)), 2)
    for x, (a, b, (c,)) in kept:
        alike((torch.relu(x) + 1, x.sum(0), x * 3), (a, b, c))
    addresses = {v.data_ptr() for _, (a, b, (c,)) in kept for v in (a, b, c)}
    assert len(addresses) == 18


def test_generators_of_random_numbers():
    """The stream is eager's over many calls, with an own generator too."""
    gen = torch.Generator().manual_seed(3)

    def fn(x):
        return x + torch.rand(3, generator=gen), torch.randn(2)

    compiled = ccompile.compile(fn)
    runs = []
    for call in (fn, compiled):
        gen.manual_seed(3)
        torch.manual_seed(5)
        with torch.no_grad():
            runs.append([call(t(3, seed=i)) for i in range(5)] + [torch.rand(2), torch.rand(2, generator=gen)])
    alike(*runs)


@pytest.mark.skipif(EAGER, reason="needs the product")
def test_threads_share_a_compiled_function():
    compiled = ccompile.compile(lambda x: torch.relu(x * 2) + x.sum().item())

    def work(n):
        for i in range(200):
            x = t(5, seed=n * 1000 + i)
            want = torch.relu(x * 2) + x.sum().item()
            assert torch.allclose(compiled(x), want, rtol=1e-4, atol=1e-5), (n, i)

    together(4, work)


IN_PLACE = {
    "set |= set": (lambda s: operator.ior(s, {3, 4}), {1, 2}),
    "set -= set": (lambda s: operator.isub(s, {1, 4}), {1, 2}),
    "set &= frozenset": (lambda s: operator.iand(s, frozenset({1, 4})), {1, 2}),
    "set ^= keys": (lambda s: operator.ixor(s, {1: 0, 5: 0}.keys()), {1, 2}),
    "dict |= dict": (lambda s: operator.ior(s, {3: 1}), {1: 2}),
    "dict |= pairs": (lambda s: operator.ior(s, [(3, 4)]), {1: 2}),
    "list += set": (lambda s: operator.iadd(s, {3}), [1, 2]),
    "list += dict": (lambda s: operator.iadd(s, {3: 4}), [1, 2]),
    "list += generator": (lambda s: operator.iadd(s, (i for i in range(2))), [1, 2]),
    "list *= 2": (lambda s: operator.imul(s, 2), [1, 2]),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_operators_that_write_what_existed_before(name):
    """By operator, as a function and as an instruction."""
    write, before = IN_PLACE[name]
    op = name.split()[1]
    text = {"set": "{1, 4}", "frozenset": "frozenset({1, 4})", "keys": "{1: 0, 5: 0}.keys()", "dict": "{3: 1}", "2": "2",
            "pairs": "[(3, 4)]", "generator": "(i for i in range(2))"}[name.split()[2]]  # fmt: skip
    space = {}
    exec(f"def fn(x, s):\n    s {op} {text}\n    return x + 1, len(s)", space)
    for fn in (lambda x, s: (x + 1, len(write(s))), space["fn"]):
        compiled = ccompile.compile(fn)
        with torch.no_grad():
            for i in range(4):
                theirs, ours = copy.copy(before), copy.copy(before)
                alike(fn(t(3, seed=i), theirs), compiled(t(3, seed=i), ours))
                assert theirs == ours


# ---- what torch counts -----------------------------------------------------------------------------------------------
def written_result(x):
    y = x.clone()
    y.add_(1)
    y[0] = 2.0
    return y, y.relu_()


def written_through_views(x):
    y = x * 2
    y.view(-1)[3] = 7
    y.t()[0].add_(1)
    return y, y[1:], y.view(-1)


def written_argument(x):
    x.mul_(2)
    y = torch.zeros_like(x)
    y.copy_(x)
    return x, x[0], y


def written_around_a_break(x):
    y = x + 1
    y.mul_(2)
    before = y._version
    y.sub_(1)
    return y, before, y._version


@pytest.mark.parametrize("fn", [written_result, written_through_views, written_argument, written_around_a_break])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_writes_are_counted(fn, mode):
    """A tensor's _version is eager's, also where kernels do without the writes."""

    def versions(results):
        return [r._version if isinstance(r, torch.Tensor) else r for r in results]

    compiled = ccompile.compile(fn, mode=mode)
    with torch.no_grad():
        for i in range(4):
            x = t(3, 4, seed=i)
            expected = fn(x.clone())
            with replaying(1) if i == 3 else contextlib.nullcontext():
                got = compiled(x.clone())
            alike(expected, got)
            assert versions(got) == versions(expected)
