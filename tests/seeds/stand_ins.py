"""Small modules and functions that the documents name and leave to the reader."""

import torch
from torch import nn


def op1(x):
    return torch.relu(x)


def op2(x):
    return torch.tanh(x)


def op3(x):
    return x * 0.5 + 1


process_batch = op2


def softmax(array):
    """numpy has none; the document writes np.special.softmax."""
    import numpy as np

    e = np.exp(array - array.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def mlp(*widths: int) -> nn.Sequential:
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Tower(nn.Module):
    """`depth` hidden layers of 16: the same model, fast and less fast."""

    depth = 1

    def __init__(self):
        super().__init__()
        self.layers = mlp(*[16] * (self.depth + 2))

    def forward(self, x):
        return self.layers(x)


class BaseModel(Tower):
    pass


class MainPath(Tower):
    depth = 2


class DynamicPath(Tower):
    pass


class FastDecisionNet(Tower):
    pass


class MediumDecisionNet(Tower):
    depth = 2


class FullDecisionNet(Tower):
    depth = 3


class UltraFastNet(Tower):
    depth = 0


class FastNet(Tower):
    pass


class NormalNet(Tower):
    depth = 2


class AccurateNet(Tower):
    depth = 3


class DynamicModule(nn.Module):
    """Chooses by the data, and makes the vectors that the layers behind it take."""

    def forward(self, features):
        pooled = features.mean(dim=(2, 3))
        return pooled * 2 if pooled.sum().item() > 0 else pooled - 1


class DynamicAttention(nn.Module):
    def forward(self, x, mask):
        kept = [row * 2 if row.mean().item() > 0 else row for row in x]
        return torch.stack(kept).masked_fill(~mask, 0.0)


class ComplexModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(torch.flatten(self.layers(x), 1))


# ---- driving


class ResNet50(nn.Module):
    """Of a ResNet-50 only that it makes feature maps of an image."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


class FeaturePyramidNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.lateral, self.smooth = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        top = self.lateral(nn.functional.avg_pool2d(x, 2))
        return self.smooth(nn.functional.interpolate(top, scale_factor=2.0) + self.lateral(x))


class DetectionHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(x.mean(dim=(2, 3)))


class SegmentationHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.lanes, self.signs = nn.Conv2d(8, 2, 1), nn.Linear(8, 3)

    def forward(self, x):
        return {
            "lanes": self.lanes(x).mean(dim=(2, 3)),
            "signs": {"stop_sign": False, "scores": self.signs(x.mean(dim=(2, 3)))},
        }


class DecisionNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(9, 16, 4)

    def forward(self, x):
        return self.layers(x)


class ControlNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(5, 16, 3)

    def forward(self, decision, vehicle_state):
        speed = vehicle_state["speed"] * torch.ones_like(decision[:, :1])
        return torch.tanh(self.layers(torch.cat([decision, speed], dim=1)))


class SafetyModule(nn.Module):
    def forward(self, commands, vehicle_state, objects):
        limit = 0.5 if vehicle_state["speed"] > 20 and objects.abs().max().item() > 0.1 else 1.0
        return commands.clamp(-limit, limit)


class EmergencyDetector(nn.Module):
    def forward(self, sensor_data):
        nearest = sensor_data.min()
        return {"detected": nearest < -3.0, "distance": nearest}


class HighPriorityPlanner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(16, 16, 4)

    def forward(self, sensor_data, tasks):
        return sum(weight * self.layers(sensor_data) for weight in tasks)


class NormalPlanner(HighPriorityPlanner):
    pass


class StaticRulesChecker(nn.Module):
    def forward(self, traffic_light, map_info):
        return (traffic_light > 0) & (map_info.sum(dim=-1) > 0)


class SceneUnderstanding(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature_extractor, self.aggregator = mlp(8, 64), Aggregator()

    def relation_reasoning(self, features, map_info):
        weights = [0.5 if row.sum().item() > 0 else 0.25 for row in map_info]
        return torch.stack([w * f for w, f in zip(weights, features)])


class Aggregator(nn.Module):
    def forward(self, features, relations):
        return torch.tanh(features + relations)


class IntersectionDecisionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(64 + 2, 3)

    def forward(self, scene, trajectory, feasible):
        x = self.layers(torch.cat([scene.mean(dim=1), trajectory[:, -1]], dim=1))
        return torch.where(feasible.unsqueeze(1), x, torch.zeros_like(x))


class StaticPerception(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, sensors):
        return self.layers(sensors)


class SafetyChecker(nn.Module):
    def verify(self, decision, context):
        limit = 0.1 if context.get("emergency", False) else 1.0
        return decision.clamp(-limit, limit)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(8, 8, 3)

    def forward(self, features):
        return self.layers(features)


class DynamicPlanner(Branch):
    pass


class EmergencyBranch(Branch):
    pass


class IntersectionBranch(Branch):
    pass


class HighwayBranch(Branch):
    pass


class ParkingBranch(Branch):
    pass
