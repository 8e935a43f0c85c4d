"""The workloads: one registry for the demo, the benchmarks and the tests. Weights are random; nothing is downloaded.

SimpleNet, ComplexModel, complex_activation and feature_enhancement come from the torch.compile mode/dynamic notebook,
SimpleModel (conv-bn-relu) and MiniTransformer from the Python 3.14 article. benchmarks/bench_models.py compares those
with `bench` with other compilers."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class SimpleNet(nn.Module):
    def __init__(self, width: int = 512):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.relu = nn.ReLU()
        self.output = nn.Linear(width, 10)

    def forward(self, x):
        x = self.linear(x)
        x = self.relu(x)
        x = self.output(x)
        return x


class ComplexBlock(nn.Module):
    def __init__(self, in_channels, out_channels, bottleneck_ratio=0.5):
        super().__init__()
        mid = int(out_channels * bottleneck_ratio)
        self.conv1 = nn.Conv2d(in_channels, mid, 1)
        self.bn1 = nn.BatchNorm2d(mid)
        self.branch1 = nn.Conv2d(mid, mid // 4, 3, padding=1)
        self.branch2 = nn.Conv2d(mid, mid // 4, 5, padding=2)
        self.branch3 = nn.Conv2d(mid, mid // 4, 7, padding=3)
        self.branch4 = nn.Conv2d(mid, mid // 4, 1)
        self.group_conv = nn.Conv2d(mid, mid, kernel_size=3, padding=1, groups=4)
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(mid, max(mid // 16, 1), 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(max(mid // 16, 1), mid, 1),
            nn.Sigmoid(),
        )
        self.conv2 = nn.Conv2d(mid, out_channels, 1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.skip = nn.Sequential()
        if in_channels != out_channels:
            self.skip = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1), nn.BatchNorm2d(out_channels))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        b1 = self.branch1(out)
        b2 = self.branch2(out)
        b3 = self.branch3(out)
        b4 = self.branch4(out)
        out = torch.cat([b1, b2, b3, b4], dim=1)
        out = F.relu(self.group_conv(out))
        se_weight = self.se(out)
        out = out * se_weight
        out = self.bn2(self.conv2(out))
        out += self.skip(x)
        out = F.relu(out)
        return out


class ComplexModel(nn.Module):
    def __init__(self, num_classes: int = 10, width: int = 64):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        self.block1 = ComplexBlock(width, 2 * width)
        self.block2 = ComplexBlock(2 * width, 4 * width)
        self.block3 = ComplexBlock(4 * width, 8 * width)
        self.block4 = ComplexBlock(8 * width, 16 * width)
        self.context_block = nn.Sequential(
            nn.Conv2d(16 * width, 8 * width, kernel_size=1),
            nn.BatchNorm2d(8 * width),
            nn.ReLU(inplace=True),
            nn.Conv2d(8 * width, 8 * width, kernel_size=3, padding=1, dilation=2),
            nn.BatchNorm2d(8 * width),
            nn.ReLU(inplace=True),
        )
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(8 * width, 4 * width), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4 * width, num_classes)
        )

    def forward(self, x):
        x = self.stem(x)
        x = self.block1(x)
        x = F.max_pool2d(x, 2)
        x = self.block2(x)
        x = F.max_pool2d(x, 2)
        x = self.block3(x)
        x = F.max_pool2d(x, 2)
        x = self.block4(x)
        x = self.context_block(x)
        x = self.global_pool(x)
        x = torch.flatten(x, 1)
        x = self.fc(x)
        return x


def complex_activation(x):
    a = torch.sin(x)
    b = torch.pow(x, 2) * torch.tanh(x)
    c = torch.exp(-torch.abs(x))
    d = torch.sigmoid(x) * torch.log(torch.clamp(x.abs(), min=1e-10))
    return a + b - c + d


def feature_enhancement(x):
    _b, _c, _h, _w = x.shape
    channel_avg = F.adaptive_avg_pool2d(x, 1)
    channel_weight = torch.sigmoid(channel_avg * 3)
    spatial_avg = torch.mean(x, dim=1, keepdim=True)
    spatial_max, _ = torch.max(x, dim=1, keepdim=True)
    spatial_attn = torch.sigmoid(torch.cat([spatial_avg, spatial_max], dim=1))
    spatial_weight = torch.sigmoid(F.conv2d(spatial_attn, torch.ones(1, 2, 3, 3).to(x), padding=1))
    return x * channel_weight * spatial_weight


class LocalOptimizedNetwork(nn.Module):
    """A network with two functions that can also be compiled separately."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, kernel_size=3, padding=1)
        self.bn3 = nn.BatchNorm2d(2 * width)
        self.conv4 = nn.Conv2d(2 * width, 4 * width, kernel_size=3, padding=1)
        self.bn4 = nn.BatchNorm2d(4 * width)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * width, 10)
        self.enhance_features = feature_enhancement
        self.activation = complex_activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.activation(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = self.enhance_features(x)
        x = F.relu(self.bn4(self.conv4(x)))
        return self.fc(torch.flatten(self.pool(x), 1))


class MixBlock(nn.Module):
    """Four parallel convolutions of different sizes, and one over their concatenation."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.channels = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=k, padding=k // 2),
                nn.BatchNorm2d(out_channels),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(kernel_size=2, stride=2),
            )
            for k in (1, 3, 5, 7)
        )
        self.fusion = nn.Sequential(
            nn.Conv2d(out_channels * 4, out_channels, kernel_size=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fusion(torch.cat([channel(x) for channel in self.channels], dim=1))


def mix_features(width: int) -> nn.Module:
    return nn.Sequential(MixBlock(3, width), MixBlock(width, 2 * width), MixBlock(2 * width, 4 * width))


def mix_classifier(width: int, side: int) -> nn.Module:
    features = 4 * width * (side // 8) ** 2
    return nn.Sequential(
        nn.Dropout(0.5),
        nn.Linear(features, 16 * width),
        nn.BatchNorm1d(16 * width),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(16 * width, 10),
    )


class ConvNetMix(nn.Module):
    """A feature extractor with one classifier, or a random one of several."""

    def __init__(self, features: nn.Module, classifiers: list[nn.Module]):
        super().__init__()
        self.features = features
        self.classifiers = nn.ModuleList(classifiers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.features(x), 1)
        if len(self.classifiers) == 1:
            return self.classifiers[0](x)
        import numpy as np  # optional for torch

        return self.classifiers[np.random.randint(0, len(self.classifiers))](x)


class SimpleModel(nn.Module):
    def __init__(self, in_channels: int = 3, num_classes: int = 10, width: int = 64, size: int = 32):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.fc = nn.Linear(2 * width * size * size, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(x)
        x = self.bn1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = self.bn2(x)
        x = F.relu(x)
        x = x.view(x.size(0), -1)
        x = self.fc(x)
        return x


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1):
        super().__init__()
        assert d_model % num_heads == 0, "d_model must be divisible by num_heads"
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.qkv_proj = nn.Linear(d_model, d_model * 3)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.scale = self.d_k**-0.5

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch_size, seq_len, _ = x.shape
        qkv = self.qkv_proj(x)
        qkv = qkv.reshape(batch_size, seq_len, 3, self.num_heads, self.d_k)
        qkv = qkv.permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        attn_weights = F.softmax(scores, dim=-1)
        attn_weights = self.dropout(attn_weights)
        attn_output = torch.matmul(attn_weights, v)
        attn_output = attn_output.transpose(1, 2).contiguous()
        attn_output = attn_output.reshape(batch_size, seq_len, self.d_model)
        output = self.out_proj(attn_output)
        return output


class TransformerBlock(nn.Module):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model), nn.Dropout(dropout)
        )
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        attn_output = self.attention(x, mask)
        x = self.norm1(x + self.dropout(attn_output))
        ff_output = self.feed_forward(x)
        x = self.norm2(x + ff_output)
        return x


class MiniTransformer(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        d_ff: int = 2048,
        max_seq_len: int = 512,
        dropout: float = 0.1,
        num_classes: int = 10,
    ):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(max_seq_len, d_model)
        self.transformer_blocks = nn.ModuleList(
            [TransformerBlock(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)]
        )
        self.classifier = nn.Linear(d_model, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch_size, seq_len = input_ids.shape
        positions = torch.arange(seq_len, device=input_ids.device).unsqueeze(0).expand(batch_size, -1)
        token_emb = self.token_embedding(input_ids)
        pos_emb = self.position_embedding(positions)
        x = self.dropout(token_emb + pos_emb)
        for block in self.transformer_blocks:
            x = block(x, mask)
        cls_output = x[:, 0, :]
        logits = self.classifier(cls_output)
        return logits


class LSTMHead(nn.Module):
    """A sequence classifier: two recurrent layers and a head on the last step."""

    def __init__(self, features: int = 64, hidden: int = 128, num_classes: int = 10):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))

    def forward(self, x):
        out, _ = self.lstm(x)
        return F.softmax(self.head(self.norm(out[:, -1])), dim=-1)


def linear_chain(width: int = 64, depth: int = 16) -> nn.Sequential:
    """Many small layers: measures the overhead of a call."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    return nn.Sequential(*layers)


def add_one(x):
    return x + 1


def pointwise_chain(x, depth: int = 16):
    """64 element-wise ops."""
    for i in range(depth):
        x = torch.tanh(x * 0.5 + i) - x
    return x


@dataclass(frozen=True)
class Workload:
    """`make()` builds the callable (a module in eval mode, or a function); `inputs()` returns new (args, kwargs)."""

    name: str
    what: str  # shape or size, for the table
    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[], tuple[tuple, dict]]
    target: float = 0.97  # the speed-up over eager that we aim for, at least
    demo: bool = True
    bench: bool = True

    @property
    def available(self) -> bool:
        return not self.what.startswith("transformers") or find_spec("transformers") is not None


def _of(*shape: int) -> Callable[[], tuple[tuple, dict]]:
    return lambda: ((torch.randn(*shape),), {})


def _ids(vocabulary: int, *shape: int, **kwargs: Any) -> Callable[[], tuple[tuple, dict]]:
    return lambda: ((torch.randint(0, vocabulary, shape),), kwargs)


def _transformers(config: str, model: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return make


def _mini_transformer() -> nn.Module:
    return MiniTransformer(vocab_size=10000, d_model=256, num_heads=8, num_layers=4, d_ff=1024, max_seq_len=512)


_SMALL_LLAMA = {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
                "num_attention_heads": 8, "num_key_value_heads": 4}  # fmt: skip
_IMAGE = (1, 3, 224, 224)

_REGISTRY = [
    Workload("x + 1", "4", lambda: add_one, _of(4), target=0, demo=False, bench=False),
    Workload("64 pointwise ops", "1024", lambda: pointwise_chain, _of(1024), target=0, demo=False, bench=False),
    Workload("SimpleNet b1", "1x512", SimpleNet, _of(1, 512), target=1.0, demo=False),
    Workload("SimpleNet", "32x512", SimpleNet, _of(32, 512), target=1.5),
    Workload("complex_activation small", "64x512", lambda: complex_activation, _of(64, 512), demo=False, bench=False),
    Workload("complex_activation", "16x128x56x56", lambda: complex_activation, _of(16, 128, 56, 56), target=1.5),
    Workload("feature_enhancement", "8x64x64x64", lambda: feature_enhancement, _of(8, 64, 64, 64), demo=False),
    Workload("linear_chain", "8x64", linear_chain, _of(8, 64), demo=False),
    Workload("LSTM head", "8x32x64", LSTMHead, _of(8, 32, 64), demo=False),
    Workload("ComplexModel", "8x3x224x224", ComplexModel, _of(8, 3, 224, 224)),
    Workload("SimpleModel", "32x3x32x32", SimpleModel, _of(32, 3, 32, 32)),
    Workload("MiniTransformer", "16x128", _mini_transformer, _ids(10000, 16, 128), target=1.5),
    Workload("ResNet-50", "transformers 1x3x224x224", _transformers("ResNetConfig", "ResNetForImageClassification"),
             _of(*_IMAGE)),
    Workload("MobileNetV2", "transformers 1x3x224x224",
             _transformers("MobileNetV2Config", "MobileNetV2ForImageClassification"), _of(*_IMAGE), demo=False),
    Workload("ConvNeXt-T", "transformers 1x3x224x224",
             _transformers("ConvNextConfig", "ConvNextForImageClassification"), _of(*_IMAGE), demo=False),
    Workload("BERT-Base", "transformers 1x128", _transformers("BertConfig", "BertModel"), _ids(30522, 1, 128)),
    Workload("GPT-2", "transformers 1x128", _transformers("GPT2Config", "GPT2LMHeadModel"),
             _ids(50257, 1, 128, use_cache=False)),
    Workload("small Llama", "transformers 1x64", _transformers("LlamaConfig", "LlamaForCausalLM", **_SMALL_LLAMA),
             _ids(8000, 1, 64, use_cache=False), demo=False),
    Workload("ViT-Base", "transformers 1x3x224x224", _transformers("ViTConfig", "ViTForImageClassification"),
             _of(*_IMAGE)),
]  # fmt: skip
WORKLOADS = {workload.name: workload for workload in _REGISTRY}


def build(workload: Workload, seed: int = 0) -> Callable[..., Any]:
    """Builds the callable with seeded random weights, modules in eval mode."""
    torch.manual_seed(seed)
    made = workload.make()
    return made.eval() if isinstance(made, nn.Module) else made
