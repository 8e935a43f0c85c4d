"""Document 000, second part: control flow and shapes that depend on data."""

import ccompile
import torch
from seeds.listing import calls, program, t
from seeds.stand_ins import op1, op2, op3, process_batch
from torch import nn


def conditional_v1(x, threshold):
    if x.mean() > threshold:
        return x * 2
    else:
        return x + 1


def conditional_v2(x, threshold):
    condition = x.mean() > threshold
    return torch.where(condition, x * 2, x + 1)


def batch_conditional(x, thresholds):
    conditions = x.mean(dim=1) > thresholds
    conditions = conditions.unsqueeze(1)
    return torch.where(conditions, x * 2, x + 1)


BOTH = (t(4, 3), -9.0), (t(4, 3), 9.0)
calls("000 conditional_v1", conditional_v1, *BOTH, graphs=2, breaks=1)
calls("000 conditional_v2", conditional_v2, *BOTH, graphs=1, breaks=0)
calls("000 batch_conditional", batch_conditional, (t(4, 3), t(4)), graphs=1, breaks=0)


class ConditionalModule(nn.Module):
    def __init__(self, branch_probability=0.7):
        super().__init__()
        self.main_branch = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
        self.alt_branch = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 256))
        self.branch_prob = branch_probability

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


calls("000 ConditionalModule, eval", ConditionalModule(), (t(2, 256),), graphs=1, breaks=0)
calls("000 ConditionalModule, train", ConditionalModule(), (t(2, 256), True), graphs=1, breaks=0, training=True)


def masked_operation(x, mask):

    processed = process_batch(x)
    mask = mask.unsqueeze(-1).expand_as(x)
    return torch.where(mask, processed, x)


calls("000 masked_operation", masked_operation, (t(4, 3), t(4) > 0), graphs=1, breaks=0)


def sparse_attention_mask(queries, keys, threshold):
    scores = torch.matmul(queries, keys.transpose(-2, -1))

    mask = scores > threshold

    scores = scores.masked_fill(~mask, float("-inf"))
    attention = torch.softmax(scores, dim=-1)

    attention = attention * mask.float()
    return attention


calls("000 sparse_attention_mask", sparse_attention_mask, (t(2, 4, 8), t(2, 4, 8, seed=1), -5.0), graphs=1, breaks=0)


class RecurrentModule(nn.Module):
    def __init__(self, max_steps=10):
        super().__init__()
        self.max_steps = max_steps
        self.cell = nn.GRUCell(256, 256)

    def forward_dynamic(self, x, steps):
        h = torch.zeros_like(x)
        for _ in range(steps):
            h = self.cell(x, h)
        return h

    def forward_static(self, x, steps):
        h = torch.zeros_like(x)

        for i in range(self.max_steps):
            mask = (i < steps).float()
            h_new = self.cell(x, h)
            h = mask * h_new + (1 - mask) * h

        return h

    def forward_vectorized(self, x, steps):
        batch_size = x.size(0)
        h = torch.zeros_like(x)

        time_mask = torch.arange(self.max_steps).unsqueeze(0) < steps.unsqueeze(1)

        h_states = []
        for t in range(self.max_steps):
            h = self.cell(x, h)
            h_states.append(h)

        h_all = torch.stack(h_states, dim=1)

        last_indices = (steps - 1).clamp(min=0)
        h_final = h_all[torch.arange(batch_size), last_indices]

        return h_final


RECURRENT = RecurrentModule(max_steps=4)  # the document's has 10
calls("000 forward_dynamic", RECURRENT.forward_dynamic, (t(3, 256), 2), (t(3, 256), 3), graphs=1, breaks=0)
# `(i < steps).float()`: steps is a tensor, or the listing raises
calls("000 forward_static", RECURRENT.forward_static, (t(3, 256), torch.tensor(2)), graphs=1, breaks=0)
calls("000 forward_vectorized", RECURRENT.forward_vectorized, (t(3, 256), torch.tensor([1, 4, 2])), graphs=1, breaks=0)


def cumulative_sum_loop(x):
    result = []
    acc = 0
    for val in x:
        acc = acc + val
        result.append(acc)
    return torch.stack(result)


def cumulative_sum_scan(x):
    return torch.cumsum(x, dim=0)


calls("000 cumulative_sum_loop", cumulative_sum_loop, (t(5, 3),), graphs=1, breaks=0)
calls("000 cumulative_sum_scan", cumulative_sum_scan, (t(5, 3),), graphs=1, breaks=0)


class CustomScan(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.combine = nn.Linear(hidden_size * 2, hidden_size)

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
                combined = self.combine(torch.cat([x[left_idx], x[i]], dim=-1))
                x[i] = combined

        return x[:seq_len]


calls("000 CustomScan", CustomScan(4), (t(5, 2, 4),), graphs=2, breaks=1)


class DynamicShapeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        batch_size = x.size(0)
        h, w = x.size(2), x.size(3)

        x = self.conv(x)
        x = torch.relu(x)

        if h > 32 and w > 32:
            x = nn.functional.avg_pool2d(x, 2)

        x = self.pool(x)
        x = x.view(batch_size, -1)
        x = self.fc(x)

        return x


calls("000 DynamicShapeModel", DynamicShapeModel(), (t(2, 3, 16, 16),), (t(1, 3, 40, 40),), graphs=1, breaks=0)


def compile_with_dynamic_shapes(model):
    dynamic_shapes = {
        "x": {
            0: torch.export.Dim("batch"),
            2: torch.export.Dim("height", min=16, max=256),
            3: torch.export.Dim("width", min=16, max=256),
        }
    }

    compiled_model = ccompile.compile(model, backend="ccompile", dynamic=True)

    return compiled_model


@program("000 compile_with_dynamic_shapes")
def _():
    model = DynamicShapeModel()
    compiled = compile_with_dynamic_shapes(model)
    return [compiled(t(n, 3, h, w)) for n, h, w in ((2, 16, 16), (3, 40, 36), (2, 20, 50), (2, 16, 16))]


# Its sizes, 24 and 14, are 224 and 112 in the document, where a layer takes 25 GB; its classes are 1000 there.
class ShapeSpecializedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3))

        self.fc_224 = nn.Linear(128 * 20 * 20, 10)
        self.fc_112 = nn.Linear(128 * 10 * 10, 10)
        self.fc_dynamic = None

    def forward(self, x):
        batch_size = x.size(0)
        h, w = x.size(2), x.size(3)

        x = self.backbone(x)
        x = x.view(batch_size, -1)

        if h == 24 and w == 24:
            return self.fc_224(x)
        elif h == 14 and w == 14:
            return self.fc_112(x)
        else:
            if self.fc_dynamic is None or self.fc_dynamic.in_features != x.size(1):
                self.fc_dynamic = nn.Linear(x.size(1), 10).to(x.device)
            return self.fc_dynamic(x)


@program("000 ShapeSpecializedModel")
def _():
    model = ShapeSpecializedModel()
    compiled = ccompile.compile(model)
    return [compiled(t(1, 3, n, n)) for n in (24, 14, 12, 24, 14, 12, 16)]


class CompiledModelCache:
    def __init__(self, model):
        self.model = model
        self.cache = {}

    def __call__(self, x):
        shape_key = tuple(x.shape)

        if shape_key not in self.cache:
            print(f"compiling for a new shape: {shape_key}")
            self.cache[shape_key] = ccompile.compile(self.model, backend="ccompile", mode="reduce-overhead")

        return self.cache[shape_key](x)


@program("000 CompiledModelCache")
def _():
    cached = CompiledModelCache(nn.Linear(4, 4))
    return [cached(t(n, 4)) for n in (2, 3, 2, 3)], len(cached.cache)


def control_to_data_flow(x, conditions):

    x1 = op1(x)
    x2 = op2(x)
    x3 = op3(x)

    x = torch.where(conditions[0], x1, x)
    x = torch.where(conditions[1], x2, x)
    x = torch.where(conditions[2], x3, x)

    return x


CONDITIONS = torch.tensor([True, False, True])
calls("000 control_to_data_flow", control_to_data_flow, (t(4, 3), CONDITIONS), graphs=1, breaks=0)


class DataFlowNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, 256)])

    def forward(self, x, route):
        outputs = [branch(x) for branch in self.branches]

        stacked = torch.stack(outputs, dim=1)
        result = torch.einsum("bi,bih->bh", route, stacked)

        return result


calls("000 DataFlowNetwork", DataFlowNetwork(), (t(4, 256), t(4, 3)), graphs=1, breaks=0)
