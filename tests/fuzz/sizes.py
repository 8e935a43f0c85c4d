"""Random functions over sizes as source text: arithmetic and comparisons of sizes, loops over them, views and slices by
them, factory functions. `program(pick)` makes one; pick(n) is any source of integers below n. fn takes (x, t): a float64
matrix and a float."""

import torch

HEADER = """
import torch
import torch.nn.functional as F

K = {"dtype": torch.float64}


def fn(x, t):
    a, i, j, n = x, x.shape[0], x.size(1), 3
"""

INTS = (
    "a.shape[0]",
    "a.size(-1)",
    "len(a)",
    "a.numel()",
    "a.shape.numel()",
    "{i} + {j}",
    "{i} - {j}",
    "{i} * 2 + 1",
    "{i} // 2",
    "{i} // ({j} + 1)",
    "{i} % 3",
    "{i} % ({j} + 2)",
    "-{i}",
    "max({i}, {j})",
    "min({i}, {j}, 5)",
    "abs({i} - {j})",
    "divmod({i}, 3)[1]",
    "sum(a.shape)",
    "sum(range({i} % 5))",
    "len([k for k in range({i} % 4) if k != {j}])",
    "int({i} / 2)",
    "int({i} * t) % 7",
    "{i} if {i} > {j} else {j} + 1",
    "[{i}, {j}, 4][{i} % 3]",
    "{{2: 5, 4: 1}}.get({i} % 6, {j})",
    "{i} << 1",
    "{i} & 3",
)
BOOLS = (
    "{i} > {j}",
    "{i} == {j}",
    "{i} % 2 == 0",
    "a.shape[0] < {i}",
    "a.shape == x.shape",
    "{i} in (2, 3, {j})",
    "{i}",
    "not {i} - {j}",
    "2 < {i} <= 6",
    "{i} is {j}",
    "a.is_contiguous()",
    "t > 0.5",
    "{i} * t > 2",
)
TENSORS = (
    "torch.relu(a)",
    "a * {i}",
    "a + t",
    "a * t - {j}",
    "a / ({i} * {i} + 1)",
    "a ** ({i} % 3)",
    "a.t()",
    "a.t().contiguous()",
    "a.reshape(a.shape[1], a.shape[0])",
    "a.reshape(-1, 1)",
    "a.reshape(1, -1)",
    "a.contiguous().view(a.size(0), -1)",
    "a.unflatten(1, (-1, 1)).flatten(1)",
    "torch.cat([a, a], 0)",
    "torch.cat([a, x], 1)",
    "torch.stack([a, a]).sum(0)",
    "a[:{i}]",
    "a[{i} % 3:]",
    "a[:, :{j}]",
    "a[:, {i} % 2::2]",
    "a[-{i}:]",
    "a[{i} % 2:a.shape[0] - 1]",
    "a.narrow(0, 0, min(a.shape[0], abs({i})))",
    "a.narrow(1, a.shape[1] // 2, a.shape[1] - a.shape[1] // 2)",
    "a[a.shape[0] // 2].unsqueeze(0)",
    "a.select(1, {i} % 2).reshape(-1, 1)",
    "torch.zeros(a.shape[0], abs({i}) % 6, **K)",
    "a + torch.ones_like(a) * {i}",
    "a + torch.full(a.shape, t, **K)",
    "a + torch.full((a.shape[0], 1), float({j}), **K)",
    "a + torch.arange(a.shape[1], **K)",
    "a * torch.arange(a.size(0), **K).unsqueeze(1)",
    "a + torch.linspace(0, 1, a.shape[1], **K)",
    "torch.eye(abs({i}) % 5 + 1, **K)",
    "a.sum(0, keepdim=True)",
    "a.mean(1, keepdim=True)",
    "a - a.sum(0, keepdim=True) / a.shape[0]",
    "a.softmax(-1)",
    "a @ torch.ones(a.shape[1], 3, **K)",
    "a @ a.t()",
    "F.pad(a, (0, {i} % 3))",
    "F.pad(a, (1, 0, 0, {j} % 2), value=t)",
    "a.repeat(1 + {i} % 2, 1)",
    "a[:1].expand({i} % 4 + 1, -1)",
    "a.chunk(2)[0]",
    "torch.cat([r * k for k, r in enumerate(a.unbind(1))]).reshape(-1, a.shape[0])",
    "a.split(max(1, a.shape[0] // 2))[-1]",
    "a.roll({i} % 3, 1)",
    "a.flip(0)",
    "torch.tril(a, {i} % 3)",
    "torch.where(a > 0, a, {j})",
    "a.masked_fill(a > t, float({i}))",
    "a.clamp(-1, {i})",
    "F.layer_norm(a, (a.shape[-1],))",
    "a.cumsum(0)",
    "a.clone().mul_({j} % 5)",
    "a.new_zeros({i} % 3 + 1, a.shape[1]) + a[:1]",
)


class Writer:
    def __init__(self, pick):
        self.pick, self.lines = pick, []

    def of(self, table):
        names = ("i", "j", "n")
        return table[self.pick(len(table))].format(i=names[self.pick(3)], j=names[self.pick(3)])

    def block(self, indent, left):
        pad = "    " * indent
        for _ in range(1 + self.pick(left)):
            kind = self.pick(8)
            if kind < 4 or left < 2:
                self.lines.append(f"{pad}a = {self.of(TENSORS)}")
            elif kind < 6:
                self.lines.append(f"{pad}{'ijn'[self.pick(3)]} = {self.of(INTS)}")
            elif kind == 6:
                self.lines.append(f"{pad}if {self.of(BOOLS)}:")
                self.block(indent + 1, left // 2)
                if self.pick(2):
                    self.lines.append(f"{pad}else:")
                    self.block(indent + 1, left // 2)
            else:
                self.lines.append(f"{pad}for k in range(min(abs({'ijn'[self.pick(3)]}), 3)):")
                self.lines.append(f"{pad}    a = a * (k + 1) + {'ijn'[self.pick(3)]}")
                self.block(indent + 1, left // 2)


def program(pick):
    writer = Writer(pick)
    writer.block(1, 6)
    result = ("a", "(a, i, j)", "(a, a.shape, n * t)", "{'a': a, 'n': n}")[pick(4)]
    return HEADER + "\n".join(writer.lines) + f"\n    return {result}\n"


def build(text):
    space = {}
    exec(text, space)
    return space["fn"]


SIZES = ((4, 3), (5, 3), (6, 3), (4, 6), (2, 2), (7, 5), (3, 4), (1, 3), (9, 1), (8, 8), (0, 2), (5, 7))
FLOATS = (0.25, 0.75, 0.5, 1.5, -1.0, 2.0)


def arguments(pick):
    """Sizes of the calls, most of them met again, and their floats; half of the programs see the same float always."""
    chosen = [SIZES[pick(len(SIZES))] for _ in range(2 + pick(5))]
    floats = FLOATS if pick(2) else FLOATS[:1]
    calls = [(chosen[pick(len(chosen))], floats[pick(len(floats))]) for _ in range(10)]

    def make(i):
        shape, t = calls[i]
        return torch.randn(shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64), t

    return make, len(set(calls))
