"""Document 002: four mistakes and their repairs. A comment gives the counts that the document prints."""

import ccompile
import torch
import torch.nn as nn
from seeds.listing import calls, program, t


class Simple(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return torch.relu(self.fc(x))


@program("002 Simple")
def _():
    model = ccompile.compile(Simple())
    return [model(t(1, 4, seed=i)) for i in range(2)]


class BadIf(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(16, 16)

    def forward(self, x):
        if torch.rand(1) > 0.5:
            return self.h(x) + 1
        else:
            return self.h(x) - 1


calls("002 BadIf", BadIf(), (t(4, 16),), graphs=2, breaks=1)  # graphs 2, breaks 0


class GoodWhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(16, 16)

    def forward(self, x):
        y = self.h(x)
        return torch.where(torch.rand(1) > 0.5, y + 1, y - 1)


calls("002 GoodWhere", GoodWhere(), (t(4, 16),), graphs=1, breaks=0)  # 1, 0


class LogInsideForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(16, 1)

    def forward(self, x):
        y = self.h(x)
        m = y.mean().item()
        return y


calls("002 LogInsideForward", LogInsideForward(), (t(8, 16),), graphs=1, breaks=1)  # 1, 1


class ReturnTensorForLog(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(16, 1)

    def forward(self, x):
        y = self.h(x)
        return y, y.mean().detach()


calls("002 ReturnTensorForLog", ReturnTensorForLog(), (t(8, 16),), graphs=1, breaks=0)  # 1, 0


class BadLoop(nn.Module):
    def forward(self, x):
        out = x
        for i in range(5):
            out = out + i
        return out


calls("002 BadLoop", BadLoop(), (t(32, 16),), graphs=1, breaks=0)  # each iteration is traced


class GoodVectorized(nn.Module):
    def forward(self, x):
        return x + torch.arange(5, device=x.device).sum()


calls("002 GoodVectorized", GoodVectorized(), (t(32, 16),), graphs=1, breaks=0)  # 1, 0


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


calls(
    "002 BadShapeBranch", BadShapeBranch(), (t(8, 16),), (t(8, 32),), graphs=1, breaks=0
)  # a new graph for each shape


class GoodDynamic(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(16, 16)

    def forward(self, x):
        return self.h(x)


calls("002 GoodDynamic", GoodDynamic(), (t(8, 16),), (t(16, 16),), graphs=1, breaks=0)  # 1, 0


@program("002 GoodDynamic, dynamic=True")
def _():
    model = GoodDynamic()
    compiled = ccompile.compile(model, dynamic=True)
    return [compiled(t(n, 16)) for n in (8, 16)]
