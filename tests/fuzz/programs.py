"""Small random programs as source text: tensors, containers, control flow, breaks, effects, exceptions.

`program(pick)` makes one; pick(n) is any source of integers below n (Hypothesis draws them, so that programs shrink; a
random.Random(seed).randrange serves for long runs). The text defines make(), which returns (fn, state), and fn takes
(x, y, k, n): a float64 matrix, a tensor of another dtype, a matrix of indices and a number.
"""

import ccompile
import torch


class Oops(Exception):
    pass


class Guarded:
    __slots__ = ("log", "eats")

    def __init__(self, log, eats):
        self.log, self.eats = log, eats

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append("out" if kind is None else kind.__name__)
        return self.eats and kind is Oops


HEADER = """
import contextlib, math, random, zlib
import torch
import torch.nn.functional as F
from fuzz.programs import Guarded, Oops

G = 1.5
GL = [1.0, 2.0]
GD = {"a": 1.0, (1, 2): 0.5}


def twice(t, times=2):
    return t if times == 0 else twice(t * 0.5 + 1, times - 1)


def rows(t):
    try:
        for i in range(t.shape[0]):
            yield t[i]
    finally:
        GL.append(float(len(GL)))


def check(t, limit):
    if t.abs().max() > limit:
        raise Oops("large")
    return t


def make():
    class Box:
        kind = "box"
        shared = [0.5]

        def __init__(self, v):
            self.v = v
            self.items = []

        @property
        def double(self):
            return self.v * 2

        def scale(self, t, by=2.0, *more, plus=0):
            for m in more:
                t = t + m
            return t * by + plus

    box, outer, table, count = Box(1.0), [1.0], {"k": 2.0, 3: 0.5}, 0
    box.alias, log = outer, []
    state = {"box": box, "outer": outer, "table": table, "log": log, "G": lambda: G}
"""

FOOTER = """
    state.update(cells=lambda: count)
    return fn, [box, outer, table, log, GL, GD, Box.shared]
"""

UNARY = [
    "torch.tanh({})",
    "{}.sigmoid()",
    "{}.relu()",
    "-{}",
    "{}.abs()",
    "({} * 0.5)",
    "({} + 1)",
    "({} - 0.25)",
    "F.gelu({})",
    "{}.clone()",
    "{}.clamp(-1, 1)",
    "{}.cos()",
    "{}.contiguous()",
    "{}.detach()",
    "{}.flip(0)",
    "{}.softmax(-1)",
    "F.layer_norm({0}, {0}.shape[-1:])",
    "{}.to(torch.float32).double()",
    "{}.cumsum(0)",
    "torch.zeros_like({})",
]
BINARY = [
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "torch.maximum({}, {})",
    "torch.where({0} > 0, {0}, {1})",
    "torch.add({}, {}, alpha=0.5)",
    "({} + {}.mean(0))",
    "({} - {}.max())",
    "({} * {}.sum(-1, keepdim=True).tanh())",
    "({} @ {}.t() @ {0})[: {0}.shape[0]].tanh()",
    "torch.cat([{}, {}])[: {0}.shape[0]]",
    "torch.stack([{}, {}]).mean(0)",
    "torch.addcmul({0}, {0}, {1}, value=0.1)",
]
SCALARS = ["{}.sum()", "{}.mean()", "{}.max()", "{}[0, 0]", "{}.norm()", "{}.std()", "({} > 0).sum()", "{}.amin()"]
INPLACE = [
    "{}.add_({})",
    "{}.mul_(0.5)",
    "{} += {}",
    "{} *= 0.5",
    "{}[0] = {}[-1]",
    "{}[:, 1] = 0.5",
    "{}[{} > 0.5] = 0.25",
    "{}.copy_({}.clone())",
    "{}.clamp_(-2, 2)",
    "{}.zero_()",
    "{}[0].add_(1)",
    "{}.t()[0].mul_(2)",
    "{}.view(-1)[1:3] = -1",
    "{}.sub_({}, alpha=0.5)",
    "{}.masked_fill_({} > 1, 0.0)",
    "torch.add({0}, {1}, out={0})",
    "{}.normal_()",
    "{}.relu_()",
]
NUMBERS = [
    "len(outer)",
    "{t}.shape[0]",
    "{t}.shape[-1] * 2",
    "{t}.sum().item()",
    "int({t}.sum())",
    "float({t}.mean())",
    "{t}.argmax().item()",
    "n",
    "n * 2",
    "count",
    "box.v",
    "box.double",
    "len(table)",
    "table['k']",
    "table.get('z', 1)",
    "G",
    "GD['a']",
    "GD[(1, 2)]",
    "sum(outer)",
    "max(outer)",
    "zlib.crc32(b'abc') % 7",
    "{t}.dim()",
    "{t}.numel() // 2",
    "random.random()",
    "outer[-1]",
    "outer[0]",
    "len(box.items)",
    "min({t}.shape)",
    "round({t}.sum().item())",
    "Box.shared[0]",
    "math.sqrt(abs(n))",
    "ask()",
    "ask(2)",
    "max([{t}.sum().item(), 0.25])",
    "sorted([{t}.mean().item(), 0.1])[0]",
    "abs({t}[0, 0].item())",
    "{t}.size(0)",
    "len([*outer, 1])",
    "len({{{t}.sum().item(), 0.5}})",
    "{{1: 0.5, 2: 0.25}}.get({t}.shape[0], 0.75)",
    "count if count > 2 else 2.0",
]
TESTS = [
    "{n} > 1",
    "{t}.sum() > 0.2718",
    "{t}.shape[0] > 2",
    "{n} > {m}",
    "{t}.mean().item() > 0.1",
    "len(outer) % 2 == 0",
    "'k' in table",
    "n",
    "isinstance(n, (int, bool))",
    "isinstance(n, float) and n > 1",
    "bool(({t} > 0).any())",
    "{t}.requires_grad",
    "outer",
    "not table",
    "box.items",
    "box.alias is outer",
    "torch.is_grad_enabled()",
    "{n} in (0, 1, 2)",
    "{n} == {m}",
    "{t}.dtype == torch.float64",
    "hasattr(box, 'extra')",
    "count % 2",
    "callable(box.scale)",
    "0 < {n} < 3",
    "type({n}) is int",
    "({n}, 1) > ({m}, 0)",
    "y.dtype.is_floating_point",
    "({t} > 0).all()",
    "k.max().item() > 1",
]
EFFECTS = [
    "outer.append({n})",
    "outer.append(float({n}))",
    "outer[0] = {n}",
    "outer.extend([{n}, 1])",
    "outer.insert(0, {n})",
    "outer.sort()",
    "outer.reverse()",
    "if len(outer) > 2: outer.pop()",
    "if len(outer) > 4: del outer[1:3]",
    "outer += [{n}]",
    "box.alias.append({n})",
    "table['k'] = {n}",
    "table[len(table)] = {n}",
    "table.update(z={n})",
    "table.setdefault('s', {n})",
    "table.pop('z', None)",
    "if 3 in table: del table[3]",
    "box.v = {n}",
    "box.v += 1",
    "box.items.append({t}.shape[0])",
    "box.items.append({t})",
    "box.items = [{n}]",
    "box.extra = {t}",
    "box.__dict__.pop('extra', None)",
    "count += 1",
    "count = {n}",
    "G = {n}",
    "G = G + 1",
    "GL.append({n})",
    "GD['a'] = {n}",
    "GD[(1, 2)] = {n}",
    "Box.shared[0] = {n}",
    "setattr(box, 'v', {n})",
    'log.append(f"{{{n}:.2f}}")',
    "log.append('%.1f' % {n})",
    "log.append(str({t}.shape))",
    "log.append(({n}, {m}))",
    "outer[:] = outer[:3]",
    "box.alias = [{n}]",
    "box.alias = outer",
    "outer.clear()",
    "del box.items[:]",
    "box.items, box.alias = box.alias, box.items",
    "log.append(tuple(sorted(map(str, table))))",
    "GL[-1] += {n}",
    "box.m = box.scale",
    "log.append(G)",
    "log.append(count)",
    "outer.remove(outer[0]) if outer else None",
]
BREAKS = [
    "print('p', {t}.shape)",
    'print(f"{{{n}:.3f}}")',
    "ask()",
    "zlib.crc32(b'x')",
    'print(f"{{{t}.sum() + 0.0003:.3f}}")',
    "print([round(v, 3) for v in outer])",
    "print(len(outer), round(count, 3), round(G, 3))",
    "torch.manual_seed(3)",
    "torch._dynamo.graph_break() if False else ask(1)",
]
RAISES = [
    "raise Oops('no')",
    "check({t}, 0.75)",
    "outer[99]",
    "table['missing']",
    "1 / 0",
    "{t} @ torch.zeros(7)",
    "{t}[5]",
    "int('x')",
    "box.missing",
    "check({t}, 3.0)",
    "{t}[k + 1]",
    "torch.zeros(3)[k.max() + 1]",
    "assert {t}.sum() > 0.2718",
    "raise StopIteration(3)",
    "assert {n} > 1, 'small'",
    "raise KeyError(round({n}, 6))",
]
WITH_FORMS = [
    "torch.no_grad()",
    "Guarded(log, True)",
    "Guarded(outer, False)",
    "torch.enable_grad()",
    "contextlib.nullcontext({n})",
    "contextlib.suppress(Oops)",
    "Guarded(log, {n} > 1)",
]
CALLS = [
    "twice({t})",
    "twice({t}, times=1)",
    "box.scale({t})",
    "box.scale({t}, 0.5, {n}, plus=1)",
    "box.scale(*({t}, {n}))",
    "box.scale({t}, **{{'plus': {n}}})",
    "sum([r.sum() for r in rows({t})]) + {t}",
    "torch.stack([r * 2 for r in rows({t})])",
    "(lambda a, b={n}: a * b)({t})",
    "sum((v * {t} for v in (0.5, 1)), {t})",
    "next(rows({t})) + {t}",
    "list(map(lambda v: v + 1, [{t}, {u}]))[1]",
    "[{t}, {u}][{n} > 1]",
    "{{'a': {t}, 'b': {u}}}['b']",
    "torch.rand(2, 3).double().mean() + {t}",
    "F.dropout({t}, 0.5)",
    "{t}.index_select(0, k[0, :1].clamp(0, 1)).mean(0) + {t}",
    "({t} if {n} > 1 else {u})",
    "sorted([{t}.sum(), {u}.sum()], key=float)[0] + {t}",
    "max([{t}, {u}], key=lambda v: v.shape[0])",
    "inner({t})",
    "inner(a={t})",
    "{t}.unbind(0)[0] + {t}",
    "{t} + y.to(torch.float64).mean()",
    "{t} * k.to(torch.float64)[:1, :1]",
    "torch.randn_like({t}) * 0.1 + {t}",
    "dict(zip('ab', [{t}, {u}]))['b'] * 1.0",
    "(lambda *a, **k: a[0] + k['s'])({t}, s={u})",
    "[v for v in ({t}, {u}) if v.shape[0] > 1][-1] * 2",
]


def fit(text, *values):
    """str.format where {} counts up, also beside {0}."""
    for i in range(text.count("{}")):
        text = text.replace("{}", f"{{{i}}}", 1)
    return text.format(*values)


class Program:
    def __init__(self, pick):
        self.pick, self.lines, self.names = pick, [], 0

    def one(self, items):
        return items[self.pick(len(items))]

    def fresh(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def number(self, env, deep=True):
        what = self.pick(6)
        if what == 0 or not deep:
            return self.one(["1", "2", "0.5", "-1", "3", "True", "1.0", "n"])
        if what < 3 and env["n"]:
            return self.one(env["n"])
        return self.fill(self.one(NUMBERS), env, False)

    def fill(self, text, env, deep=True):
        return text.format(t=self.one(env["t"]), u=self.one(env["t"]), n=self.atom(env, deep), m=self.atom(env, deep))

    def atom(self, env, deep):
        text = self.number(env, deep)
        return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"

    def tensor(self, env, depth=2):
        what = self.pick(8)
        if depth == 0 or what == 0:
            return self.one(env["t"])
        if what < 4:
            return fit(self.one(UNARY), self.tensor(env, depth - 1))
        if what < 6:
            return fit(self.one(BINARY), self.tensor(env, depth - 1), self.tensor(env, depth - 1), self.one(env["t"]))
        if what == 6:
            return f"({self.fill(self.one(CALLS), env)})"
        return f"({self.one(env['t'])} * {self.atom(env, True)})"

    def put(self, indent, text):
        self.lines.append("    " * indent + text)

    def block(self, env, indent, depth, size, loop=False):
        """A block sees the names around it; what it makes is not used behind it."""
        inner = {"t": list(env["t"]), "n": list(env["n"]), "loop": loop or env["loop"]}
        for _ in range(size):
            self.statement(inner, indent, depth)

    def statement(self, env, indent, depth):
        kinds = ["tensor"] * 5 + ["inplace"] * 2 + ["view", "number", "number", "effect", "effect", "effect", "break"]
        if depth > 0:
            kinds += ["if", "if", "for", "for", "try", "try", "with", "while", "def", "comprehension", "return"]
        if env["loop"]:
            kinds += ["leave"]
        getattr(self, "do_" + self.one(kinds))(env, indent, depth)

    def do_tensor(self, env, indent, depth):
        name = self.fresh("t") if self.pick(3) or len(env["t"]) < 2 else self.one(env["t"])
        self.put(indent, f"{name} = {self.tensor(env)}")
        if name not in env["t"]:
            env["t"].append(name)

    def do_inplace(self, env, indent, depth):
        self.put(indent, fit(self.one(INPLACE), self.one(env["t"]), self.one(env["t"])))

    def do_view(self, env, indent, depth):
        name = self.fresh("v")
        self.put(
            indent,
            f"{name} = "
            + self.one(
                ["{}[1]", "{}[:, 0]", "{}.t()", "{}.view(-1)", "{}[:1]", "{}.expand(2, -1, -1)[0]", "{}"]
            ).format(self.one(env["t"])),
        )
        self.put(indent, name + self.one([".add_(1)", ".mul_(0.5)", "[...] = 0.5", " = 1", ".sum()"]))

    def do_number(self, env, indent, depth):
        name = self.fresh("n")
        text = self.number(env)
        self.put(indent, f"{name} = {text}" + self.one(["", "", " + 1", " * 0.5", " - 2", " % 3 if False else 1"]))
        env["n"].append(name)

    def do_effect(self, env, indent, depth):
        self.put(indent, self.fill(self.one(EFFECTS), env))

    def do_break(self, env, indent, depth):
        self.put(indent, self.fill(self.one(BREAKS), env))

    def do_if(self, env, indent, depth):
        self.put(indent, f"if {self.fill(self.one(TESTS), env)}:")
        self.block(env, indent + 1, depth - 1, 1 + self.pick(2))
        if self.pick(2):
            self.put(indent, f"elif {self.fill(self.one(TESTS), env)}:" if self.pick(3) == 0 else "else:")
            self.block(env, indent + 1, depth - 1, 1 + self.pick(2))

    def do_for(self, env, indent, depth):
        name, t = self.fresh("i"), self.one(env["t"])
        head = self.one(
            [
                "for {i} in range(2):",
                "for {i} in range({t}.shape[0]):",
                "for {i}, _ in enumerate(outer[:3]):",
                "for {i} in outer[:2]:",
                "for {i}, _ in zip([1, 2], {t}):",
                "for {i} in list(table.values())[:2]:",
                "for {i} in (0.5, 2):",
                "for _ in rows({t}): {i} = 1;",
                "for {i} in [len(str(s)) for s in table]:",
                "for {i} in iter([1, 2.5]):",
            ]
        ).format(i=name, t=t)
        head, colon, tail = head.partition(":")
        self.put(indent, head + ":")
        if tail:
            self.put(indent + 1, tail.strip(" ;"))
        inner = {**env, "n": env["n"] + [name]}
        self.block(inner, indent + 1, depth - 1, 1 + self.pick(2), loop=True)
        if self.pick(4) == 0:
            self.put(indent, "else:")
            self.block(env, indent + 1, depth - 1, 1)

    def do_while(self, env, indent, depth):
        name = self.fresh("w")
        self.put(indent, f"{name} = 0")
        self.put(indent, f"while {name} < {self.one(['2', '3', 'len(outer) % 3', '1 + (n > 1)'])}:")
        self.put(indent + 1, f"{name} += 1")
        self.block({**env, "n": env["n"] + [name]}, indent + 1, depth - 1, 1 + self.pick(2), loop=True)

    def do_leave(self, env, indent, depth):
        self.put(indent, f"if {self.fill(self.one(TESTS), env)}:")
        self.put(indent + 1, self.one(["break", "continue"]))

    def do_try(self, env, indent, depth):
        self.put(indent, "try:")
        if self.pick(2):
            self.block(env, indent + 1, depth - 1, 1)
        self.put(indent + 1, self.fill(self.one(RAISES), env))
        self.block(env, indent + 1, depth - 1, 1)
        kind = self.pick(4)
        if kind < 3:
            caught = self.one(
                ["Oops", "Exception as e", "(KeyError, IndexError, Oops) as e", "RuntimeError", "Exception"]
            )
            self.put(indent, f"except {caught}:")
            if caught.endswith(" e"):
                self.put(indent + 1, "log.append(type(e).__name__)")
            self.block(env, indent + 1, depth - 1, 1)
        if kind == 1:
            self.put(indent, "else:")
            self.block(env, indent + 1, depth - 1, 1)
        if kind >= 2:
            self.put(indent, "finally:")
            self.block({**env, "loop": False}, indent + 1, 0, 1)

    def do_with(self, env, indent, depth):
        self.put(indent, f"with {self.fill(self.one(WITH_FORMS), env)}:")
        self.block(env, indent + 1, depth - 1, 1 + self.pick(2))
        if self.pick(3) == 0:
            self.put(indent + 1, self.fill(self.one(RAISES), env))

    def do_def(self, env, indent, depth):
        """A closure that reads and perhaps writes what is around it; `fn`'s own variables become cells."""
        name, t = self.fresh("f"), self.one(env["t"])
        self.put(indent, f"def {name}(a, by={self.number(env, False)}):")
        own = env["n"][0] if env["n"] and env["n"][0].startswith("n") and len(env["n"][0]) > 1 else None
        if own and self.pick(2):
            self.put(indent + 1, f"nonlocal {own}")
            self.put(indent + 1, f"{own} = {own} + 1")
        self.block({"t": ["a"], "n": ["by"], "loop": False}, indent + 1, min(depth - 1, 1), 1 + self.pick(2))
        self.put(indent + 1, f"return a * by + {t}.sum()")
        made = self.fresh("t")
        self.put(
            indent,
            f"{made} = {name}({self.one(env['t'])})"
            + self.one(["", f" + {name}({t}, 2)", f" if {self.fill(self.one(TESTS), env)} else {t}"]),
        )
        env["t"].append(made)

    def do_comprehension(self, env, indent, depth):
        name, made = self.fresh("l"), self.fresh("t")
        t = self.one(env["t"])
        self.put(
            indent,
            f"{name} = "
            + self.fill(
                self.one(
                    [
                        "[{t} * i for i in range(2)]",
                        "[v + {n} for v in ({t}, {u})]",
                        "[{t}, {u}] * 2",
                        "list({{'a': {t}, 'b': {u}}}.values())",
                        "[v for v in {t}.unbind(0)]",
                        "[*{t}.split(1), {u}]",
                        "[{t} for _ in outer[:2]] + [{u}]",
                    ]
                ),
                env,
            ),
        )
        self.put(
            indent,
            self.one(
                [
                    f"{name}.append({t})",
                    f"{name}[0] = {name}[-1]",
                    f"{name}.reverse()",
                    f"box.items = {name}",
                    f"{name}[0].add_(1)",
                    f"first, *rest = {name}",
                ]
            ),
        )
        self.put(indent, f"{made} = {t} + {name}[0].sum()")
        env["t"].append(made)

    def do_return(self, env, indent, depth):
        self.put(indent, f"if {self.fill(self.one(TESTS), env)}:")
        self.put(indent + 1, f"return {self.one(env['t'])}, {self.atom(env, True)}")

    def text(self):
        env = {"t": ["x"], "n": ["n"], "loop": False}
        self.lines = []
        self.put(1, "def inner(a, scale=0.5):")
        self.put(2, "nonlocal count, outer")
        self.block({"t": ["a"], "n": ["scale"], "loop": False}, 2, 1, 1 + self.pick(2))
        self.put(2, "return a * scale")
        self.put(1, "def fn(x, y, k, n):")
        self.put(2, "global G")
        self.put(2, "nonlocal count, outer")
        for _ in range(3 + self.pick(6)):
            self.statement(env, 2, 2)
        last = ", ".join(env["t"][-3:])
        self.put(
            2,
            "return "
            + self.one(
                [
                    last + ",",
                    f"{{'a': [{last}], 'n': n, 'c': count}}",
                    f"[{last}, {self.atom(env, True)}]",
                    f"{last}, G, outer",
                    "box",
                    f"({last},), box.items, x.t()",
                ]
            ),
        )
        body = "\n".join(self.lines)
        return HEADER + body + FOOTER


def program(pick):
    return Program(pick).text()


def build(text):
    """A factory of (fn, state), for conftest.same(build=True): each side gets a namespace of its own."""
    code = compile(text, "<program>", "exec")

    def factory():
        space = {"__name__": "program", "ask": ccompile.disable(lambda v=1.5: v)}
        exec(code, space)
        return space["make"]()

    return factory


def arguments(pick):
    """call number -> (x, y, k, n): shapes, strides, dtypes and numbers that vary between calls in one of several ways."""
    dtypes = (torch.float32, torch.int64, torch.bool, torch.float16, torch.float64)
    base, dtype, vary = pick(4), dtypes[pick(5)], pick(4)
    numbers = ([1, 1, 1, 1], [1, 2, 3, 1], [1, True, 1.0, 2.5], [0.5, -0.0, 0.0, 3], [2.5, 2.5, 2.5, 2.5])[pick(5)]

    def make(i):
        g = torch.Generator().manual_seed(i * 7 + base)
        rows = 3 if vary == 1 and i >= 2 else 2
        x = torch.randn(rows, 3, generator=g, dtype=torch.float64)
        if vary == 2:
            x = torch.randn(3, rows, generator=g, dtype=torch.float64).t()
        if vary == 3 and i == 1:
            x = x.abs() + 1
        y = x if base == 3 else (torch.randn(rows, 3, generator=g) * 3).to(dtype)
        return x, y, torch.randint(0, 3, (2, 2), generator=g), numbers[i % 4]

    return make
