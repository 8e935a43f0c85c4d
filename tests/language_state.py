"""State that existed before the call: ordered mutation, aliasing, globals, counters, and objects that a call returns (see language_cases.py)."""

import collections
import threading
import types

import torch
from language_cases import alternating, case, made, own_globals, t
from torch import nn

COUNT, NAMES, SCALE = 0, [], 2.0


# ---- globals ---------------------------------------------------------------------------------------------------------
@made
def global_counter():
    def f(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    return own_globals(f, COUNT=0)


@made
def global_rebound():
    def f(x):
        global SCALE
        before = SCALE
        SCALE = 3.0 if before == 2.0 else 2.0
        return x * before + SCALE

    return own_globals(f, SCALE=2.0)


@made
def global_list():
    def f(x):
        NAMES.append(len(NAMES) % 2)
        if len(NAMES) > 1:
            NAMES.clear()
        return x + len(NAMES)

    return own_globals(f, NAMES=[])


@made(hit=False)
def global_deleted_and_made():
    def f(x):
        global TEMPORARY
        TEMPORARY = x * 2
        y = TEMPORARY + 1
        del TEMPORARY
        try:
            TEMPORARY
        except NameError as e:
            return y, str(e)

    return own_globals(f, "TEMPORARY")


@made
def global_tensor_written():
    def f(x):
        global BANK
        BANK = BANK * 0.5 + x
        return BANK.sum()

    return own_globals(f, BANK=torch.zeros(2, 3))


@case(hit=False)
def global_missing(x):
    return x * 2, not_defined_anywhere  # noqa: F821


# ---- containers that existed before ----------------------------------------------------------------------------------
@made
def list_methods_outside():
    l = [3, 1, 2]

    def f(x):
        l.append(4)
        l.insert(0, 9)
        l.sort()
        l.reverse()
        a = l.pop()
        l.remove(9)
        l.extend((7, 8))
        l[0], l[-1] = l[-1], l[0]
        del l[1:3]
        b = list(l)
        l[:] = [3, 1, 2]
        return x * a, b, l.index(1), l.count(3)

    return f, l


@made
def list_of_tensors_outside():
    l = []

    def f(x):
        l.append(x * 2)
        if len(l) > 2:
            del l[0]
        return torch.stack(l).sum(0), len(l)

    return f, l


@made
def list_remove_later_mutated():
    """remove() compares; the argument changes afterwards."""
    l = [[1], [2], [3]]

    def f(x):
        v = [2]
        l.remove(v)
        v.append(5)
        l.append([2])
        return x * len(l), v

    return f, l


@made
def containers_extended_until_an_error():
    """What an iterator gave before it raised stays."""
    l, s, d, q = [1], set(), {}, collections.deque()

    def gen(v):
        yield v, 1
        raise ValueError("midway")

    def f(x):
        del l[1:]
        for c, add in ((l, l.extend), (s, s.update), (d, d.update), (q, q.extend)):
            if c is not l:
                c.clear()
            try:
                add(gen(5) if c is not s else iter([1]))
            except ValueError:
                pass
        return x * len(l)

    return f, (l, s, d, q)


@made
def list_append_then_mutated():
    l = []

    def f(x):
        v = [1]
        l.append(v)
        v.append(2)
        l[-1].append(x.shape[0])
        if len(l) > 2:
            l.clear()
        return x, len(v), [*l]

    return f, l


@made
def dict_methods_outside():
    d = {"a": 1, "b": 2}

    def f(x):
        d["c"] = d.pop("a")
        d.update(b=3, z=x.dim())
        d.setdefault("y", []).append(1)
        keys = list(d)
        del d["c"]
        last = d.popitem()
        d.clear()
        d.update({"a": 1, "b": 2})
        return x * last[1][0], keys, d.get("a"), "b" in d

    return f, d


@made
def dict_of_tensors_outside():
    d = {}

    def f(x):
        d["last"] = x
        d["sum"] = d.get("sum", torch.zeros(2, 3)) + x
        return d["sum"] * 2, sorted(d)

    return f, d


@made
def dict_counter_outside():
    d = collections.Counter()

    def f(x):
        d["calls"] += 1
        return x * d["calls"]

    return f, d


@made
def set_outside():
    s = {1, 2}

    def f(x):
        s.add(3)
        s.discard(1)
        n = len(s)
        s.update((1,))
        s.remove(3)
        return x * n, sorted(s)

    return f, s


@made
def set_operators_outside():
    a, b, c, d = {1, 2}, {1, 2}, {1, 2, 3}, {1, 2}

    def f(x):
        nonlocal a, b, c, d
        a |= {x.shape[0] + 3}
        b -= {1}
        c &= {2, 3}
        d ^= frozenset([2, 9])
        return x * len(a), sorted(d)

    return f, [a, b, c, d]


@made
def deque_outside():
    q = collections.deque(maxlen=2)

    def f(x):
        q.append(x)
        return sum(q), len(q)

    return f, q


@made
def nested_containers_outside():
    state = {"rows": [[1], [2]], "meta": {"n": 0}}

    def f(x):
        state["rows"][0].append(x.shape[0])
        state["meta"]["n"] = len(state["rows"][0])
        inner = state["rows"]
        inner[1] = (inner[1][0], 5) if len(inner[1]) == 1 else [2]
        state["rows"][0] = [1]
        return x * state["meta"]["n"]

    return f, state


@made
def aliased_containers():
    a = [1.0]
    b = {"a": a}
    o = types.SimpleNamespace(a=a)

    def f(x):
        b["a"].append(2.0)
        o.a[0] = 3.0
        total = sum(a)
        a[:] = [1.0]
        return x * total, b["a"] is o.a

    return f, (a, b, o)


@case(inputs=lambda i: (t(2, 3, seed=i), [1, 2], {"k": [3]}))
def arguments_mutated(x, l, d):
    l.append(d["k"])
    d["k"].append(x)
    d["new"] = l
    l[0] = d
    del l[1]
    return x * len(l)


@case(inputs=lambda i: (lambda v: (v, v, [v, v]))(t(2, 3, seed=i)))
def arguments_aliased(x, y, both):
    y.add_(1)
    both[0] = x * 2
    return x is y, both[1] is x, x + both[1]


@case(inputs=lambda i: (t(2, 3, seed=i),))
def argument_written_in_place(x):
    x.mul_(2)
    v = x[0]
    v.add_(1)
    x[:, 1] = 0
    x += 1
    return v, x.sum(), x


@case
def default_argument_shared(x):
    def f(v, out=[]):
        out.append(v)
        return out

    a = f(x)
    b = f(x + 1)
    return a is b, a


# ---- attributes ------------------------------------------------------------------------------------------------------
class Model:
    limit = 3

    def __init__(self):
        self.n, self.log, self.sub = 0, [], types.SimpleNamespace(v=1)

    def step(self, x):
        self.n = (self.n + 1) % self.limit
        self.log.append(self.n)
        self.sub.v *= -1
        if len(self.log) > 2:
            self.log = []
        return x * self.n + self.sub.v


@made(hit=False)
def attribute_counters():
    m = Model()
    return m.step, m


@made
def attribute_set_and_deleted():
    m = Model()

    def f(x):
        m.temporary = x + 1
        y = m.temporary * 2
        del m.temporary
        m.kept = y
        m.__dict__["direct"] = 5
        return hasattr(m, "temporary"), m.kept + m.direct

    return f, m


@made(over=1)  # a class's attribute is written: guards on types have no before and after
def attribute_of_class_written():
    class Own(Model):
        pass

    def f(x):
        Own.limit = 5 if Own.limit == 3 else 3
        return x * Own.limit

    return f, lambda: Own.limit


@made
def attribute_swapped():
    a, b = Model(), Model()
    a.sub.v, b.sub.v = 2, 5

    def f(x):
        a.sub, b.sub = b.sub, a.sub
        return x * a.sub.v - b.sub.v

    return f, (a, b)


@made
def attribute_chain_order():
    log = []

    class Loud:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, o, owner):
            log.append("get " + self.name)
            return o.__dict__[self.name]

        def __set__(self, o, v):
            log.append("set " + self.name)
            o.__dict__[self.name] = v

    class Holder:
        a, b = Loud(), Loud()

    o = Holder()

    def f(x):
        del log[:]
        o.a = o.b = x.shape[0]
        o.a += o.b
        return x * o.a

    return f, (log, o.__dict__)


@made
def evaluation_order():
    log = []

    def say(v, name):
        log.append(name)
        return v

    def f(x):
        log.clear()
        d = {say("k", "key"): say(x, "value")}
        l = [0, 0]
        l[say(1, "index")] = say(2, "right")
        say(x.add, "callee")(say(1, "argument"), alpha=say(2, "keyword"))
        say(1, "a") < say(2, "b") < say(0, "c") < say(9, "not evaluated")
        return d["k"] * l[1]

    return f, log


# ---- tensors that existed before -------------------------------------------------------------------------------------
@made
def tensor_state_in_place():
    w = torch.ones(2, 3)

    def f(x):
        w.mul_(0.5).add_(x)
        v = w[0]
        v += 1
        return w.sum(), v

    return f, w


@made(hit=False)
def tensor_state_with_breaks():
    w = torch.ones(2, 3)
    log = []

    def f(x):
        w.add_(x)
        log.append("one")
        print(len(log))
        w.mul_(0.5)
        log.append(round(w.sum().item(), 2))
        return w * 2

    return f, (w, log)


@made(inputs=alternating, hit=False)
def state_on_branches():
    log, w = [], torch.zeros(2, 3)

    def f(x):
        log.append("in")
        if x.sum() > 0:
            w.add_(x)
            log.append("up")
        else:
            w.sub_(x)
            log.append("down")
        if len(log) > 5:
            log.clear()
        return w + 1

    return f, (log, w)


@made(over=1)  # .data is set: the storage under a guarded tensor changes
def tensor_data_swapped():
    p = nn.Parameter(torch.ones(3), requires_grad=False)

    def f(x):
        y = x * p
        p.data = p.data * 0.5
        return y + p

    return f, p


@made
def tensors_exchanged():
    s = {"a": torch.ones(3), "b": torch.zeros(3)}

    def f(x):
        s["a"], s["b"] = s["b"], s["a"] + x.sum(0)
        return s["a"] * 2

    return f, s


@made
def optimizer_by_hand():
    w, m = torch.ones(3), torch.zeros(3)

    def f(x):
        g = (x * w).mean(0)
        m.mul_(0.9).add_(g, alpha=0.1)
        w.sub_(m, alpha=0.5)
        return w.norm()

    return f, (w, m)


# ---- objects made in the call ----------------------------------------------------------------------------------------
class Tree:
    def __init__(self, v, *kids):
        self.v, self.kids, self.parent = v, list(kids), None
        for k in kids:
            k.parent = self


@case
def object_graph_returned(x):
    root = Tree(x, Tree(x + 1), Tree(2, Tree("leaf")))
    return root, root.kids[0], root.kids[1].kids[0].parent is root.kids[1]


@case
def object_cycle_returned(x):
    a, b = {"v": x}, []
    a["b"], b = b, [a, x]
    a["b"] = b
    l = [x]
    l.append(l)
    return a, b, l[1] is l


@case(hit=False)
def objects_of_all_kinds_returned(x):
    def f(v, k=2):
        return v * k

    return {
        "tensor": x * 2,
        "tuple": (x, (1, "s", None, ...)),
        "set": {1, 2},
        "frozen": frozenset("ab"),
        "range": range(2, 8, 3),
        "slice": slice(1, x.shape[0]),
        "bytes": b"b",
        "array": bytearray(b"c"),
        "complex": 1j,
        "function": f,
        "method": Model().step,
        "type": Model,
        "dtype": x.dtype,
        "size": x.shape,
        "deque": collections.deque([x], maxlen=3),
        "default": collections.defaultdict(list, a=[x]),
        "ordered": collections.OrderedDict(a=1),
        "space": types.SimpleNamespace(x=x),
        "error": ValueError("v", 1),
    }


@case
def closure_returned(x):
    n = 2

    def f(v):
        nonlocal n
        n += 1
        return v * n + x

    return f, f(x), (lambda v: v + x)


@case
def iterator_returned(x):
    def gen():
        yield x
        yield x * 2

    g = gen()
    next(g)
    return list(g), [*zip([x], [1])], type(gen()).__name__, type(iter([])).__name__


@case
def same_object_twice_returned(x):
    y, l = x + 1, [x]
    return y, y, [l, l], {"l": l}, y.view(-1), x


@case
def views_and_aliases_returned(x):
    y = x * 2
    return y, y[0], y.t(), y.reshape(-1)[1:], x[:, 1], y.detach()


@made
def returned_object_kept_outside():
    kept = []

    def f(x):
        o = types.SimpleNamespace(x=x, l=[1])
        kept[:] = [o, o.l]
        o.l.append(2)
        return o

    return f, kept


# ---- breaks between states -------------------------------------------------------------------------------------------
@case(hit=False)
def break_between_everything(x):
    l, d, o, n = [x], {"k": 1}, types.SimpleNamespace(v=x), 0

    def bump(by=1):
        nonlocal n
        n += by
        return n

    it, g = iter([1, 2, 3]), (v * 2 for v in (x, x + 1))
    bump()
    next(it), next(g)
    print("break", n)
    l.append(next(it))
    d["g"] = next(g)
    o.w = bump(5)
    return l, d, o, n, list(it)


@case(hit=False)
def break_in_arguments_of_call(x):
    def f(a, b, *c, k):
        return a * b + sum(c) + k

    return f(x, x.sum().item(), *[1, x.max().item()], k=float(x.min()))


@case(over=1)  # Dynamo leaves a frame that breaks in a comprehension to eager
def break_in_comprehension(x):
    return [v * v.sum().item() for v in x], {i: float(v.sum()) for i, v in enumerate(x)}


@case(hit=False)
def break_in_context_and_loop(x):
    out = []
    for i in range(3):
        with torch.no_grad():
            y = x * i
            out.append(round(y.sum().item(), 2))
    return y, out


@case
def break_in_callback(x):
    return torch.stack(sorted(x, key=lambda r: r.sum().item())), list(map(lambda r: round(r.sum().item(), 2), x))


@case(hit=False)
def break_in_property_and_operator(x):
    class_ = Breaking
    o = class_(x)
    return o.total, (o + 1).v, o[0], f"{o}"


class Breaking:
    def __init__(self, v):
        self.v = v

    @property
    def total(self):
        print("property")
        return self.v.sum()

    def __add__(self, o):
        print("add")
        return Breaking(self.v + o)

    def __getitem__(self, i):
        print("item")
        return self.v[i]

    def __str__(self):
        return f"{self.v.sum().item():.2f}"


@case(hit=False)
def threads_inside(x):
    out = {}

    def work(i):
        out[i] = x * i

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    return [out[i] for i in range(3)]


@case
def lock_inside(x):
    with LOCK:
        y = x * 2
    return y, LOCK.locked()


LOCK = threading.Lock()


@case(inputs=lambda i: (t(2, 3, seed=i), {"a": [t(3, seed=i)], "n": 3, "s": "text"}, (1, [2.0]), None))
def nested_arguments(x, d, p, none):
    return x * d["n"] + d["a"][0], p[1][0], d["s"].upper(), none is None


@case(inputs=lambda i: (t(2, 3, seed=i), [0.5, 1, True, "a"][i % 4]), hit=False)
def numbers_of_changing_type(x, k):
    return x * k if not isinstance(k, str) else x, type(k).__name__


@case(inputs=lambda i: (t(2 + i % 2, 3, seed=i),))
def shapes_that_change(x):
    n = x.shape[0]
    rows = [x[i] * i for i in range(n)]
    return torch.stack(rows), n, x.reshape(3, -1), list(x.size())
