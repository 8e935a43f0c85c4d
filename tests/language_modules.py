"""Modules: containers, buffers, hooks, state (see language_cases.py)."""

import torch
from language_cases import Seen, case, made, t
from torch import nn


# ---- modules ---------------------------------------------------------------------------------------------------------
class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.named = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
        self.seq = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(3) * i) for i in range(2))
        self.table = nn.ParameterDict({"w": nn.Parameter(torch.ones(3))})


@case
class ModuleListWalk(Containers):
    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) * (i + 1)
        return x + self.layers[-1](x), len(self.layers), [type(m).__name__ for m in self.layers[1:]]


@case
class ManyModules(nn.Module):
    """named_modules() and named_parameters() keep sets of what they have met."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(3, 3) for _ in range(90)))
        self.layers.append(self.layers[0])

    def forward(self, x):
        for m in self.modules():
            if isinstance(m, nn.Linear) and m.bias.shape[0] == 3:
                x = x + m.bias
        return self.layers[0](x), len(list(self.parameters())), next(self.parameters()).dtype


@case
class ModuleDictWalk(Containers):
    def forward(self, x):
        for name, m in self.named.items():
            x = m(x) + len(name)
        return self.named["a"](x), "b" in self.named, list(self.named.keys()), list(self.named)


@case
class SequentialWalk(Containers):
    def forward(self, x):
        y = x
        for m in self.seq:
            y = m(y)
        return y, self.seq[0](x), len(self.seq), self.seq[:2](x)


@case
class ParameterListWalk(Containers):
    def forward(self, x):
        for p in self.scales:
            x = x + p
        return x * self.scales[1] + self.table["w"], len(self.scales), list(self.table)


@case
class NamedWalks(Containers):
    def forward(self, x):
        names = [n for n, _ in self.named_parameters()]
        kinds = [type(m).__name__ for m in self.modules()]
        total = sum(p.sum() for p in self.parameters() if p.dim() > 1)
        return x + total, names, kinds, [n for n, _ in self.named_children()], sorted(self.state_dict())[:2]


@case
class ModuleQuestions(Containers):
    def forward(self, x):
        sub = self.get_submodule("named.a")
        return (
            sub(x),
            isinstance(sub, nn.Linear),
            hasattr(self, "layers"),
            hasattr(self, "missing"),
            self.training,
            sub.in_features,
        )


@case
class ModuleGetattrFallback(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.inner.tag = 4

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x):
        return self.inner(x) * self.tag, self.in_features


@case
class BufferWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x):
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        self.count += 1
        return x - self.mean


@case
class BufferInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ring", torch.zeros(4, 3))

    def forward(self, x):
        self.ring[:2] = self.ring[2:].clone()
        self.ring[2:].copy_(x)
        return self.ring.sum(0)


@case
class CallCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.fc = 0, nn.Linear(3, 3)

    def forward(self, x):
        self.calls += 1
        return self.fc(x) * self.calls


@case
class HookedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.seen = []
        self.fc.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        self.fc.register_forward_hook(lambda m, args, out: out * 2)
        self.fc.register_forward_hook(self.keep, with_kwargs=True)

    def keep(self, module, args, kwargs, out):
        self.seen[:] = [out]

    def forward(self, x):
        return self.fc(x)


@case(hit=False)
class HookAddedInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        handle = self.fc.register_forward_hook(lambda m, args, out: out * 2)
        y = self.fc(x)
        handle.remove()
        return y, self.fc(x)


@case
class ModuleMadeInside(nn.Module):
    def forward(self, x):
        layer = nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            layer.weight.fill_(0.5)
        return layer(x), nn.ReLU()(x)


@case
class TrainSwitch(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        was = self.training
        self.eval()
        y = self.drop(x)
        self.train(was)
        return y * 2, self.training


@case
class StateOnSelf(nn.Module):
    """What models keep between calls: a cache, the last output, a list of them."""

    def __init__(self):
        super().__init__()
        self.last, self.past, self.cache = None, [], {}

    def forward(self, x):
        if self.last is not None:
            x = x + self.last
        self.last = x * 0.5
        self.past.append(x)
        if len(self.past) > 1:
            self.past.pop(0)
        self.cache["shape"] = tuple(x.shape)
        return x, len(self.past)


@case
class DeviceAndDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def forward(self, x):
        w = self.fc.weight
        y = x.to(dtype=self.dtype, device=w.device)
        return self.fc(y), str(w.device), w.dtype is self.dtype, w.is_cuda


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        y = self.fc(x)
        print("inner")
        return y * 2


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x + 1) + 1


@case
class ThreeNested(nn.Module):
    """A break in the innermost of three modules."""

    def __init__(self):
        super().__init__()
        self.middle = Middle()

    def forward(self, x):
        return self.middle(x * 2) - 1


@case(inputs=lambda i: (t(2, 3, seed=i),))
class WeightTiedLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.Linear(3, 3)] * 3)
        self.steps = {"a": 0}

    def forward(self, x):
        for cell in self.cells:
            x = torch.tanh(cell(x))
        self.steps["a"] = len(self.cells)
        return x, self.cells[0] is self.cells[2]


@made
def spectral_norm_by_hooks():
    """The hook normalises with torch.div(..., out=buffer), in the try block of Module._call_impl."""
    net = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(3, 4)), nn.ReLU(), torch.nn.utils.spectral_norm(nn.Linear(4, 2)))
    return lambda x: net(x) + 1, Seen(lambda: list(net.buffers()))
