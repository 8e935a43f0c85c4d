"""The break patterns of seeds 000 and 002, as a table for test_breaks.py.

User code lives here rather than in a test file because pytest rewrites the asserts of those.
"""

import json
import typing
import zlib

import ccompile
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Pattern(typing.NamedTuple):
    fn: object  # a function, or a factory of a module when it is a class
    inputs: list  # one tuple of arguments a call
    expect: object = None  # exact number of breaks, where the pattern fixes it
    graphs: object = None  # exact number of graphs
    most: object = None  # upper bound of breaks
    hit: bool = True  # the inputs run through once more must replay
    dynamo: bool = True  # hold against dynamo's count
    bare: int = 0  # breaks with no op before them, which dynamo does not list


def t(*shape, seed=0, low=-1.0, high=1.0):
    g = torch.Generator().manual_seed(seed + 100 * len(shape) + sum(shape))
    return torch.rand(*shape, generator=g) * (high - low) + low


def floats(*shape, n=3):
    return [(t(*shape, seed=i),) for i in range(n)]


UP, DOWN = torch.full((4, 4), 0.5), torch.full((4, 4), -0.5)
BOTH = [(UP,), (DOWN,), (UP * 0.7,), (DOWN * 0.7,)]
PATTERNS = {}


def pattern(name, inputs, **kw):
    def add(fn):
        PATTERNS[name] = Pattern(fn, inputs, **kw)
        return fn

    return add


# ---- seed 000: what breaks ------------------------------------------------------------------------------------------
@pattern("list-append", floats(4, 3), expect=0, graphs=1)
def list_append(x):
    results = []
    for i in range(x.size(0)):
        results.append(x[i] * 2)
    return torch.stack(results)


@pattern("dict-store", floats(4, 3), expect=0, graphs=1)
def dict_store(x):
    cache = {}
    cache["feature"] = x
    cache["twice"] = x * 2
    return cache["feature"] + cache["twice"], cache


@pattern("print-shape", floats(4, 3), expect=1, graphs=2)
def print_shape(x):
    y = x * 2
    print(f"Shape: {x.shape}")
    return y + 1


@pattern("problematic-forward", floats(4, 3), expect=1)
def problematic_forward(x):
    results = []
    for i in range(x.size(0)):
        results.append(x[i] * 2)
    cache = {}
    cache["feature"] = x
    print(f"Shape: {x.shape}")
    return torch.stack(results)


@pattern("if-mean", [(x, 0.0) for (x,) in BOTH], expect=1, graphs=2)
def conditional_v1(x, threshold):
    if x.mean() > threshold:
        return x * 2
    else:
        return x + 1


@pattern("range-int-sum", [(torch.full((3,), v),) for v in (1.0, 2.0, 0.0, 1.0)], expect=1)
def dynamic_range(x):
    for _ in range(int(x.sum())):
        x = x * 0.9
    return x


@pattern("dynamic-control-flow", [(torch.full((4,), v), 10.0) for v in (0.5, 0.75, 20.0)], most=2)
def dynamic_control_flow(x, threshold):
    if x.mean() > threshold:
        return x * 2
    for _ in range(int(x.sum())):
        x = x * 0.9
    return x


@pattern("index-by-tensor", [(t(5, 3, seed=i), torch.tensor([4, 0, i])) for i in range(3)], expect=0, graphs=1)
def index_by_tensor(x, indices):
    return x[indices] * 2


@pattern("index-by-mask", [(t(5, 3, seed=i),) for i in range(3)], most=1)
def index_by_mask(x):
    return x[x > 0] * 2


@pattern(
    "reshape-by-item", [(torch.full((4, 6), float(n)), torch.tensor([2, 0])) for n in (2, 3, 4, 2)], expect=1, graphs=2
)
def data_dependent_shape(x, indices):
    selected = x[indices]
    n = int(x[0, 0])
    reshaped = x.reshape(n, -1)
    return selected, reshaped


# Dynamo maps NumPy's functions to torch's, so it has no break here; ours is at .numpy(). The calls after it are not in a graph.
@pattern("numpy-round-trip", floats(3, 4), graphs=1, dynamo=False)
def external_calls(x):
    np_array = x.cpu().numpy()
    e = np.exp(np_array - np_array.max(-1, keepdims=True))
    processed = e / e.sum(-1, keepdims=True)
    return torch.from_numpy(processed) + x


def softplus_of(values):
    """Outside code: Python that only knows plain numbers."""
    return [v * v + 1 for v in values]


@pattern("outside-python", floats(5), most=1)
def outside_python(x):
    return torch.tensor(softplus_of((x * 2).tolist())) + x


@pattern("outside-bytes", floats(3, 4), most=3, bare=2)
def outside_bytes(x):
    y = x * 2
    crc = zlib.crc32(repr(y.tolist()).encode())
    return y + crc % 7


@pattern("outside-json", floats(3), most=3, bare=2)
def outside_json(x):
    y = torch.tanh(x)
    return json.loads(json.dumps({"y": y.tolist()})), y + 1


@pattern("user-function", floats(3, 4), expect=0, graphs=1)
def user_function(x):
    def custom_process(tensor):
        return tensor**2 + 1

    return custom_process(x) * 2


@pattern("process-4.1", [(t(4, 3, seed=i, low=-1 + i % 2), 0.1) for i in range(4)], most=3)
def process(x, threshold):
    if x.mean().item() > threshold:
        x = x * 2
    print(f"Processing tensor of shape {x.shape}")
    for i in range(x.size(0)):
        x[i] = torch.relu(x[i])
    indices = torch.where(x > 0)[0]
    selected = x[indices]
    return selected


# ---- seed 000: what replaces it -----------------------------------------------------------------------------------
@pattern("where", [(x, 0.0) for (x,) in BOTH], expect=0, graphs=1)
def conditional_v2(x, threshold):
    condition = x.mean() > threshold
    return torch.where(condition, x * 2, x + 1)


@pattern("where-batch", [(t(4, 3, seed=i), t(4, seed=i) * 0.2) for i in range(3)], expect=0, graphs=1)
def batch_conditional(x, thresholds):
    conditions = x.mean(dim=1) > thresholds
    conditions = conditions.unsqueeze(1)
    return torch.where(conditions, x * 2, x + 1)


@pattern("mask-expand", [(t(4, 3, seed=i), t(4, seed=i) > 0) for i in range(3)], expect=0, graphs=1)
def masked_operation(x, mask):
    processed = torch.tanh(x)
    mask = mask.unsqueeze(-1).expand_as(x)
    return torch.where(mask, processed, x)


@pattern("mask-loop", [(t(4, 3, seed=1), torch.tensor(m)) for m in ([True, False] * 2, [False] * 4, [True, False] * 2)])
def masked_loop(x, mask):
    output = []
    for i in range(len(x)):
        if mask[i]:
            output.append(torch.tanh(x[i]))
        else:
            output.append(x[i])
    return torch.stack(output)


@pattern("sparse-attention", [(t(2, 4, 8, seed=i), t(2, 4, 8, seed=i + 9), -5.0) for i in range(3)], expect=0, graphs=1)
def sparse_attention_mask(queries, keys, threshold):
    scores = torch.matmul(queries, keys.transpose(-2, -1))
    mask = scores > threshold
    scores = scores.masked_fill(~mask, float("-inf"))
    attention = torch.softmax(scores, dim=-1)
    return attention * mask.float()


@pattern("cumsum-loop", floats(5, 3), expect=0, graphs=1)
def cumulative_sum_loop(x):
    result = []
    acc = 0
    for val in x:
        acc = acc + val
        result.append(acc)
    return torch.stack(result)


@pattern("cumsum-scan", floats(5, 3), expect=0, graphs=1)
def cumulative_sum_scan(x):
    return torch.cumsum(x, dim=0)


@pattern(
    "conditional-norm", [(t(4, 3, seed=i), b, n) for i, (b, n) in enumerate([(1, 0), (0, 1), (0, 0), (1, 0)])], expect=0
)
def conditional_norm(x, use_batch_norm, use_layer_norm):
    if use_batch_norm:
        return F.batch_norm(x, torch.zeros(3), torch.ones(3))
    elif use_layer_norm:
        return F.layer_norm(x, (3,))
    else:
        return x


@pattern(
    "conditional-norm-weights",
    [(t(4, 3, seed=i), torch.tensor(i % 2 == 0), torch.tensor(True)) for i in range(3)],
    expect=0,
    graphs=1,
)
def conditional_norm_optimized(x, use_batch_norm, use_layer_norm):
    bn_weight = use_batch_norm.float()
    ln_weight = use_layer_norm.float() * (1 - bn_weight)
    identity_weight = (1 - bn_weight) * (1 - ln_weight)
    bn_result = F.batch_norm(x, torch.zeros(3), torch.ones(3))
    ln_result = F.layer_norm(x, (3,))
    return bn_weight * bn_result + ln_weight * ln_result + identity_weight * x


W_HH, W_XH = t(4, 4, seed=3), t(4, 4, seed=4)


@pattern("rnn-loop", [(t(5, 4, seed=i), t(4, seed=i), 3 + i % 2) for i in range(4)], expect=0)
def rnn_cell(x, h, steps):
    for step in range(steps):
        h = torch.tanh(W_HH @ h + W_XH @ x[step])
    return h


@pattern("rnn-unrolled", [(t(5, 4, seed=i), t(4, seed=i), torch.tensor(2 + i)) for i in range(3)], expect=0, graphs=1)
def rnn_cell_unrolled(x, h, steps, max_steps=6):
    for step in range(max_steps):
        mask = (step < steps).float()
        h_new = torch.tanh(W_HH @ h + W_XH @ x[min(step, x.size(0) - 1)])
        h = mask * h_new + (1 - mask) * h
    return h


@pattern("rnn-scan", [(t(5, 4, seed=i), t(4, seed=i), torch.tensor(2 + i)) for i in range(3)], most=1)
def rnn_cell_scan(x, h, steps):
    h_states = []
    for step in range(x.size(0)):
        h = torch.tanh(W_HH @ h + W_XH @ x[step])
        h_states.append(h)
    h_all = torch.stack(h_states)
    return h_all[steps - 1]


@pattern(
    "data-flow-network", [(t(3, 8, seed=i), torch.softmax(t(3, 3, seed=i), -1)) for i in range(3)], expect=0, graphs=1
)
class DataFlowNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x, route):
        outputs = [branch(x) for branch in self.branches]
        return torch.einsum("bi,bih->bh", route, torch.stack(outputs, dim=1))


@pattern("conditional-module", floats(2, 8), most=1)
class ConditionalModule(nn.Module):
    def __init__(self, branch_probability=0.7):
        super().__init__()
        self.main_branch = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.alt_branch = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
        self.branch_prob = branch_probability
        self.eval()

    def forward(self, x, use_main_branch=None):
        if use_main_branch is None:
            use_main_branch = torch.rand(1) < self.branch_prob
        if self.training:
            main_out = self.main_branch(x)
            alt_out = self.alt_branch(x)
            return self.branch_prob * main_out + (1 - self.branch_prob) * alt_out
        else:
            if self.branch_prob > 0.5:
                return self.main_branch(x)
            else:
                return self.alt_branch(x)


class RecurrentModule(nn.Module):
    def __init__(self, max_steps=4):
        super().__init__()
        self.max_steps = max_steps
        self.cell = nn.GRUCell(6, 6)


@pattern("gru-steps", [(t(3, 6, seed=i), 2 + i % 2) for i in range(4)], expect=0)
class GruDynamic(RecurrentModule):
    def forward(self, x, steps):
        h = torch.zeros_like(x)
        for _ in range(steps):
            h = self.cell(x, h)
        return h


# dynamo skips this forward (range() of an unbacked int) and compiles the cell alone: it has no break to count
@pattern("gru-tensor-steps", [(t(3, 6, seed=i), torch.tensor(2 + i % 2)) for i in range(4)], most=1, bare=1)
class GruTensorSteps(GruDynamic):
    def forward(self, x, steps):
        return super().forward(x, int(steps))


@pattern("gru-static", [(t(3, 6, seed=i), torch.tensor(2 + i % 2)) for i in range(4)], expect=0, graphs=1)
class GruStatic(RecurrentModule):
    def forward(self, x, steps):
        h = torch.zeros_like(x)
        for i in range(self.max_steps):
            mask = (i < steps).float()
            h_new = self.cell(x, h)
            h = mask * h_new + (1 - mask) * h
        return h


@pattern("gru-vectorised", [(t(3, 6, seed=i), torch.tensor([1, 4, 2 + i])) for i in range(3)], expect=0, graphs=1)
class GruVectorised(RecurrentModule):
    def forward(self, x, steps):
        batch_size = x.size(0)
        h = torch.zeros_like(x)
        time_mask = torch.arange(self.max_steps).unsqueeze(0) < steps.unsqueeze(1)
        h_states = []
        for _ in range(self.max_steps):
            h = self.cell(x, h)
            h_states.append(h)
        h_all = torch.stack(h_states, dim=1)
        last_indices = (steps - 1).clamp(min=0)
        return h_all[torch.arange(batch_size), last_indices], time_mask


@pattern("custom-scan", [(t(5, 2, 3, seed=i),) for i in range(3)], most=1)
class CustomScan(nn.Module):
    def __init__(self):
        super().__init__()
        self.combine = nn.Linear(6, 3)

    def forward(self, x):
        seq_len = x.size(0)
        levels = int(torch.ceil(torch.log2(torch.tensor(seq_len))))
        padded_len = 2**levels
        if seq_len < padded_len:
            padding = torch.zeros(padded_len - seq_len, *x.shape[1:])
            x = torch.cat([x, padding], dim=0)
        for level in range(levels):
            stride = 2 ** (level + 1)
            for i in range(stride - 1, padded_len, stride):
                left_idx = i - (stride // 2)
                x[i] = self.combine(torch.cat([x[left_idx], x[i]], dim=-1))
        return x[:seq_len]


@pattern("dynamic-shape-model", [(t(2, 3, n, n, seed=n),) for n in (16, 40, 16, 40)], expect=0)
class DynamicShapeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        batch_size = x.size(0)
        h, w = x.size(2), x.size(3)
        x = torch.relu(self.conv(x))
        if h > 32 and w > 32:
            x = nn.functional.avg_pool2d(x, 2)
        return self.fc(self.pool(x).view(batch_size, -1))


@pattern("selective-mask", [(t(2, 4, seed=i), m) for i, m in enumerate([None, [1, 0], [0, 1], [1, 0]])], expect=0)
class SelectiveMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def dynamic_forward(self, x, mask):
        for i in range(2, 4):
            if mask[i - 2]:
                x = self.layers[i](x)
            x = torch.relu(x)
        return x

    def forward(self, x, mask=None):
        for i in range(2):
            x = torch.relu(self.layers[i](x))
        if mask is not None:
            x = self.dynamic_forward(x, mask)
        return x


@pattern(
    "stop-sign",
    [
        (t(2, 4, seed=i), {"stop_sign": s}, {"speed": v})
        for i, (s, v) in enumerate([(True, 3.0), (True, 0.0), (False, 1.0), (True, 3.0)])
    ],
    expect=0,
)
def make_decision(x, signs, state):
    if signs["stop_sign"]:
        if state["speed"] > 0:
            return x - 1
        return x * 0
    return torch.tanh(x)


# ---- seed 002: four mistakes and their counts -----------------------------------------------------------------------
class WithLinear(nn.Module):
    def __init__(self, out=16):
        super().__init__()
        self.h = nn.Linear(16, out)


@pattern("bad-if", floats(4, 16, n=5), most=1, graphs=2, hit=False)  # 2 graphs, 0 breaks in the text: a branch
class BadIf(WithLinear):
    def forward(self, x):
        if torch.rand(1) > 0.5:
            return self.h(x) + 1
        else:
            return self.h(x) - 1


@pattern("good-where", floats(4, 16), expect=0, graphs=1)
class GoodWhere(WithLinear):
    def forward(self, x):
        y = self.h(x)
        return torch.where(torch.rand(1) > 0.5, y + 1, y - 1)


@pattern("log-inside-forward", floats(8, 16), expect=1, graphs=1)  # as the text says
class LogInsideForward(WithLinear):
    def forward(self, x):
        y = self.h(x)
        m = y.mean().item()  # noqa: F841
        return y


@pattern("return-tensor-for-log", floats(8, 16), expect=0, graphs=1)
class ReturnTensorForLog(WithLinear):
    def forward(self, x):
        y = self.h(x)
        return y, y.mean().detach()


@pattern("bad-loop", floats(8, 4), expect=0, graphs=1)
class BadLoop(nn.Module):
    def forward(self, x):
        out = x
        for i in range(5):
            out = out + i
        return out


@pattern("good-vectorised", floats(8, 4), expect=0, graphs=1)
class GoodVectorized(nn.Module):
    def forward(self, x):
        return x + torch.arange(5, device=x.device).sum()


@pattern("bad-shape-branch", [(t(8, n),) for n in (16, 32, 16, 32)], expect=0, graphs=1)
class BadShapeBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.b = nn.Linear(32, 16)

    def forward(self, x):
        if x.shape[1] == 16:
            return self.a(x)
        else:
            return self.b(x)


@pattern("good-dynamic", [(t(n, 16),) for n in (8, 16, 24, 16)], expect=0, graphs=1)
class GoodDynamic(WithLinear):
    def forward(self, x):
        return self.h(x)


# ---- where a break can sit -----------------------------------------------------------------------------------------
@pattern("item-as-float", floats(4), expect=1, graphs=2)
def item_as_float(x):
    scale = x.abs().sum().item()
    return x * scale + 1


@pattern("item-int-as-shape", [(torch.tensor([n, 2]), t(12)) for n in (3, 4, 3, 4)], expect=1)
def item_as_shape(n, x):
    return x.view(n[0].item(), -1) * 2


@pattern("float-of-tensor", floats(3), expect=1)
def float_of_tensor(x):
    return x + float(x.sum())


@pattern("tolist", floats(3), expect=1)
def to_list(x):
    a, b, c = (x * 2).tolist()
    return x * a, b + c


@pattern("f-string-item", floats(3), most=2)
def f_string_item(x):
    return x * 2, f"mean {x.mean().item():.3f}"


@pattern("print-tensor", floats(3), expect=1, graphs=2)
def print_tensor(x):
    y = x + 1
    print("y =", y)
    return y * 2


@pattern("print-item", floats(3), most=2, graphs=2, bare=1)
def print_item(x):
    y = x + 1
    print("first", y[0].item())
    return y * 2


@pattern("two-in-one-expression", floats(3), expect=2)
def two_in_one(x):
    return x * (x.sum().item() + (x * 2).sum().item() * 10)


@pattern("break-in-call-arguments", floats(3), expect=2)
def break_in_arguments(x):
    return torch.clamp(x * 3, x.min().item(), (x / 2).max().item()) + 1


@pattern("break-first", floats(3), most=1, graphs=1, bare=1)
def break_first(x):
    print("start")
    return x * 2


@pattern("break-last", floats(3), expect=1, graphs=1)
def break_last(x):
    return (x * 2).sum().item()


@pattern("break-in-loop", floats(4, 3), hit=True)
def break_in_loop(x):
    total = 0.0
    for row in x:
        total += (row * 2).sum().item()
    return x + total


@pattern("break-in-comprehension", floats(4, 3))
def break_in_comprehension(x):
    return torch.tensor([(row * 2).sum().item() for row in x]) + 1


@pattern("while-tensor", [(torch.tensor([v]),) for v in (1.0, 5.0, 9.0, 5.0)])
def while_tensor(x):
    while x.sum() < 8:
        x = x * 2
    return x + 1


@pattern("while-item-countdown", [(torch.tensor(n), t(3)) for n in (2, 3, 0, 3)])
def while_item(n, x):
    while n.item() > 0:
        x, n = x + 1, n - 1
    return x


@pattern("nested-ifs", [(a, b) for a in (UP, DOWN) for b in (UP, DOWN)] * 2, most=2)
def nested_ifs(a, b):
    if a.sum() > 0:
        if b.sum() > 0:
            return a + b
        return a - b
    elif b.sum() > 0:
        return a * b
    return a / b


@pattern("early-return", BOTH, most=1)
def early_return(x):
    y = torch.relu(x)
    if y.sum() == 0:
        return y
    y = y * 2
    return y + x


@pattern("and-or-tensor", BOTH)
def and_or(x):
    if x.sum() > 0 and x.max() < 0.4 or x.min() < -0.4:
        return x + 1
    return x - 1


@pattern("ternary-assert", BOTH)
def ternary_assert(x):
    assert x.abs().max() < 10, "too large"
    return x * (2 if x[0, 0] > 0 else 3)


# dynamo lists no reason for the `not` that ends the function
@pattern("not-and-bool", BOTH, bare=1)
def not_and_bool(x):
    flag = bool((x > 0).all())
    return x + flag, not x[0, 0] > 0


@pattern("no-grad-block", floats(3), most=1)
def no_grad_block(x):
    with torch.no_grad():
        y = x * 2
        s = y.sum().item()
        z = y * s
    return z + x


@pattern("if-in-callee", BOTH, most=1)
def if_in_callee(x):
    def helper(v):
        w = v * 2
        if w.mean() > 0:
            return w + 1
        return w - 1

    return helper(x) * 3


@pattern("item-in-nested-callee", floats(3), expect=1)
def item_in_nested(x):
    def inner(v, scale=2):
        y = v * scale
        n = y.abs().sum().item()
        return y / n

    def middle(v):
        return inner(v + 1) + v

    return middle(x * 2) - x


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if x.abs().max() > 0.5:
            return x / x.norm().item()
        return x


@pattern("break-in-submodule", [(t(2, 4, seed=i) * s,) for i, s in enumerate((1.0, 0.01, 2.0, 0.01))])
class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Norm(), nn.ReLU()), Norm())

    def forward(self, x):
        return self.body(x).sum(-1)


@pattern("explicit-graph-break", floats(3), expect=1, graphs=2, dynamo=False)
def explicit_break(x):
    y = x * 2
    ccompile.graph_break()
    return y + 1


@pattern("sorted-by-item", floats(4, 2))
def sorted_by_item(x):
    rows = sorted(x.unbind(0), key=lambda r: r.sum().item())
    return torch.stack(rows)


@pattern("tensor-as-index", [(torch.tensor(i % 3), t(3, seed=i)) for i in range(4)], most=1)
def tensor_as_index(i, x):
    table = [x + 1, x * 2, x - 3]
    return table[i]


@pattern("numpy-random-pick", floats(2, 4, n=4), most=1, hit=False)  # failed to compile in seed 004
class RandomPick(nn.Module):
    def __init__(self):
        super().__init__()
        self.classifiers = nn.ModuleList([nn.Linear(4, 2) for _ in range(3)])

    def forward(self, x):
        x = torch.relu(x)
        return self.classifiers[np.random.randint(0, len(self.classifiers))](x)


class Checkpointed(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.settings = {"use_reentrant": False} | settings

    def part(self, x, start, *, scale=1.0):
        return torch.tanh(self.layers[start + 1](torch.relu(self.layers[start](x)))) * scale

    def forward(self, x):
        for start in (0, 2):
            x = checkpoint(lambda x, **named: self.part(x, start, **named), x, scale=0.5, **self.settings)
        return x + 1


pattern("checkpoint", floats(2, 4), expect=0, graphs=1)(Checkpointed)


@pattern("checkpoint-sequential", floats(2, 4), expect=0, graphs=1)
class CheckpointSequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(4)])

    def forward(self, x):
        return checkpoint_sequential(self.layers, 2, x, use_reentrant=False, preserve_rng_state=False)


@pattern("checkpoint-checked", floats(2, 4), expect=1, graphs=1, dynamo=False)  # its other arguments may be functions
class CheckedCheckpoint(Checkpointed):
    def __init__(self):
        super().__init__(determinism_check="none")


@pattern("if-in-checkpoint", BOTH, most=2, bare=1)  # the whole call is a break then
def if_in_checkpoint(x):
    return checkpoint(lambda x: x * 2 if x.sum() > 0 else x - 1, x, use_reentrant=False) + 1


def assert_fails(x):
    y = x * 2
    assert y.sum() < -1e9, f"sum is {y.sum().item():.2f}"
    return y
