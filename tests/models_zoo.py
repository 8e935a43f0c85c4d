"""Models of the source documents, at sizes where a test takes milliseconds, and small transformers models by config.

ZOO: name -> (make model, call number -> (args, kwargs)). Batches alternate between two inputs of equal shape.
"""

import torch
import torch.nn.functional as F
from torch import nn


def t(*shape, seed=0):
    g = torch.Generator().manual_seed(seed + 7 * sum(shape))
    return torch.randn(*shape, generator=g)


def ids(*shape, seed=0, top=100):
    return torch.randint(0, top, shape, generator=torch.Generator().manual_seed(seed))


# ---- seed 004 --------------------------------------------------------------------------------------------------------
class SimpleNet(nn.Module):
    def __init__(self, width=64):
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
        out = torch.cat([self.branch1(out), self.branch2(out), self.branch3(out), self.branch4(out)], dim=1)
        out = F.relu(self.group_conv(out))
        se_weight = self.se(out)
        out = out * se_weight
        out = self.bn2(self.conv2(out))
        out += self.skip(x)
        out = F.relu(out)
        return out


class ComplexModel(nn.Module):
    def __init__(self, num_classes=10, width=8):
        super().__init__()
        w = width
        self.stem = nn.Sequential(
            nn.Conv2d(3, w, kernel_size=7, stride=2, padding=3),
            nn.BatchNorm2d(w),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        self.block1 = ComplexBlock(w, 2 * w)
        self.block2 = ComplexBlock(2 * w, 4 * w)
        self.block3 = ComplexBlock(4 * w, 8 * w)
        self.block4 = ComplexBlock(8 * w, 16 * w)
        self.context_block = nn.Sequential(
            nn.Conv2d(16 * w, 8 * w, kernel_size=1),
            nn.BatchNorm2d(8 * w),
            nn.ReLU(inplace=True),
            nn.Conv2d(8 * w, 8 * w, kernel_size=3, padding=1, dilation=2),
            nn.BatchNorm2d(8 * w),
            nn.ReLU(inplace=True),
        )
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(8 * w, 4 * w), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4 * w, num_classes)
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
    b, c, h, w = x.shape
    channel_avg = F.adaptive_avg_pool2d(x, 1)
    channel_weight = torch.sigmoid(channel_avg * 3)
    spatial_avg = torch.mean(x, dim=1, keepdim=True)
    spatial_max, _ = torch.max(x, dim=1, keepdim=True)
    spatial_attn = torch.sigmoid(torch.cat([spatial_avg, spatial_max], dim=1))
    spatial_weight = torch.sigmoid(F.conv2d(spatial_attn, torch.ones(1, 2, 3, 3).to(x.device), padding=1))
    return x * channel_weight * spatial_weight


class LocalOptimizedNetwork(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        w = width
        self.conv1 = nn.Conv2d(3, w, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(w)
        self.conv2 = nn.Conv2d(w, 2 * w, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * w)
        self.conv4 = nn.Conv2d(2 * w, 4 * w, kernel_size=3, padding=1)
        self.bn4 = nn.BatchNorm2d(4 * w)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * w, 10)
        self.enhance_features = feature_enhancement
        self.activation = complex_activation

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.activation(self.bn2(self.conv2(x)))
        x = self.enhance_features(x)
        x = F.relu(self.bn4(self.conv4(x)))
        x = self.pool(x)
        x = torch.flatten(x, 1)
        return self.fc(x)


class MixBlock(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        for i, k in enumerate((1, 3, 5, 7), 1):
            setattr(
                self,
                f"channel{i}",
                nn.Sequential(
                    nn.Conv2d(in_channels, out_channels, kernel_size=k, padding=k // 2),
                    nn.BatchNorm2d(out_channels),
                    nn.ReLU(inplace=True),
                    nn.MaxPool2d(kernel_size=2, stride=2),
                ),
            )
        self.fusion = nn.Sequential(
            nn.Conv2d(out_channels * 4, out_channels, kernel_size=1, padding=0),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        x_cat = torch.cat([self.channel1(x), self.channel2(x), self.channel3(x), self.channel4(x)], dim=1)
        return self.fusion(x_cat)


class ConvNetMix(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(MixBlock(3, 4), MixBlock(4, 8))
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(8 * 4 * 4, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(16, 10),
        )

    def forward(self, x):
        x = self.features(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)


# ---- seed 003 --------------------------------------------------------------------------------------------------------
class SimpleModel(nn.Module):
    def __init__(self, in_channels=3, num_classes=10, size=8):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 8, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * size * size, num_classes)

    def forward(self, x):
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
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        assert d_model % num_heads == 0
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.qkv_proj = nn.Linear(d_model, d_model * 3)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.scale = self.d_k**-0.5

    def forward(self, x, mask=None):
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
        return self.out_proj(attn_output)


class TransformerBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model), nn.Dropout(dropout)
        )
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        attn_output = self.attention(x, mask)
        x = self.norm1(x + self.dropout(attn_output))
        ff_output = self.feed_forward(x)
        x = self.norm2(x + ff_output)
        return x


class MiniTransformer(nn.Module):
    def __init__(
        self,
        vocab_size=100,
        d_model=32,
        num_heads=4,
        num_layers=2,
        d_ff=64,
        max_seq_len=64,
        dropout=0.1,
        num_classes=10,
    ):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(max_seq_len, d_model)
        self.transformer_blocks = nn.ModuleList(
            [TransformerBlock(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)]
        )
        self.classifier = nn.Linear(d_model, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids, mask=None):
        batch_size, seq_len = input_ids.shape
        positions = torch.arange(seq_len, device=input_ids.device).unsqueeze(0).expand(batch_size, -1)
        token_emb = self.token_embedding(input_ids)
        pos_emb = self.position_embedding(positions)
        x = self.dropout(token_emb + pos_emb)
        for block in self.transformer_blocks:
            x = block(x, mask)
        cls_output = x[:, 0, :]
        return self.classifier(cls_output)


# ---- seed 000 and others ---------------------------------------------------------------------------------------------
class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(16, 32),
            nn.ReLU(),
            nn.LayerNorm(32),
            nn.Linear(32, 32),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(32, 10),
        )


class ConvDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(c, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)) for c in (3, 8, 8)]
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            y = block(x)
            x = y + x if i else y
            if x.shape[-1] > 8:
                x = F.max_pool2d(x, 2)
        x = self.pool(x).flatten(1)
        return {"logits": self.fc(x), "p": torch.softmax(self.fc(x), -1)}


class TrajectoryPredictor(nn.Module):
    def __init__(self, prediction_horizon=5):
        super().__init__()
        self.horizon = prediction_horizon
        self.encoder = nn.GRU(8, 16, batch_first=True)
        self.decoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, prediction_horizon * 2))

    def forward(self, scene_features):
        encoded, hidden = self.encoder(scene_features)
        trajectories = self.decoder(hidden.squeeze(0))
        batch_size = scene_features.size(0)
        return trajectories.view(batch_size, self.horizon, 2)


class TemporalDecision(nn.Module):
    """The LSTM and Transformer parts of seed 000's TemporalDecisionNetwork."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True)
        self.transformer = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, nhead=4, dim_feedforward=32, batch_first=True), num_layers=2
        )
        self.decision_head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, padded, mask=None):
        lstm_out, (h_n, c_n) = self.lstm(padded)
        if mask is not None:
            out = self.transformer(lstm_out, src_key_padding_mask=mask)
        else:
            out = self.transformer(lstm_out)
        return self.decision_head(out.mean(dim=1)), h_n


class TemporalHistory(TemporalDecision):
    """With its history buffer: a list on self that grows to its limit, then shifts."""

    def __init__(self, history_len=3):
        super().__init__()
        self.history_len = history_len
        self.history_buffer = []

    def forward(self, current_state):
        self.history_buffer.append(current_state)
        if len(self.history_buffer) > self.history_len:
            self.history_buffer.pop(0)
        if len(self.history_buffer) < self.history_len:
            padded = self.pad_sequence(self.history_buffer)
            mask = torch.arange(self.history_len).unsqueeze(0) >= len(self.history_buffer)
            mask = mask.expand(current_state.size(0), -1)
        else:
            padded = torch.stack(self.history_buffer, dim=1)
            mask = None
        return super().forward(padded, mask)[0]

    def pad_sequence(self, sequence):
        padded = torch.zeros(sequence[0].size(0), self.history_len, sequence[0].size(1), device=sequence[0].device)
        for i, state in enumerate(sequence):
            padded[:, i, :] = state
        return padded


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32), num_layers=2)

    def forward(self, x):
        return self.encoder(x)


def one(make):
    return lambda i: ((make(i),), {})


def function(fn):
    return lambda: fn


ZOO = {
    "mlp": (Mlp, one(lambda i: t(8, 16, seed=i))),
    "simple-net": (SimpleNet, one(lambda i: t(32, 64, seed=i))),
    "simple-net-batch-1": (SimpleNet, one(lambda i: t(1, 64, seed=i))),
    "simple-model": (SimpleModel, one(lambda i: t(2, 3, 8, 8, seed=i))),
    "conv-dict": (ConvDict, one(lambda i: t(2, 3, 32, 32, seed=i))),
    "complex-model": (ComplexModel, one(lambda i: t(2, 3, 96, 96, seed=i))),
    "complex-model-batch-1": (ComplexModel, one(lambda i: t(1, 3, 96, 96, seed=i))),
    "local-optimized": (LocalOptimizedNetwork, one(lambda i: t(2, 3, 16, 16, seed=i))),
    "conv-net-mix": (ConvNetMix, one(lambda i: t(2, 3, 16, 16, seed=i))),
    "complex-activation": (function(complex_activation), one(lambda i: t(4, 33, seed=i))),
    "feature-enhancement": (function(feature_enhancement), one(lambda i: t(2, 4, 9, 7, seed=i))),
    "multi-head-attention": (lambda: MultiHeadAttention(32, 4), lambda i: ((t(2, 6, 32, seed=i),), {})),
    "attention-with-mask": (
        lambda: MultiHeadAttention(32, 4),
        lambda i: ((t(2, 6, 32, seed=i),), {"mask": torch.ones(6, 6).tril().view(1, 1, 6, 6)}),
    ),
    "mini-transformer": (MiniTransformer, one(lambda i: ids(2, 12, seed=i))),
    "trajectory-gru": (TrajectoryPredictor, one(lambda i: t(3, 7, 8, seed=i))),
    "temporal-lstm": (TemporalDecision, one(lambda i: t(2, 5, 12, seed=i))),
    "temporal-lstm-mask": (TemporalDecision, lambda i: ((t(2, 5, 12, seed=i), torch.arange(5).expand(2, 5) > 3), {})),
    "transformer-encoder": (Encoder, one(lambda i: t(5, 2, 16, seed=i))),
}


# ---- transformers, by config -------------------------------------------------------------------------------------------
def bert():
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=16,
            patch_size=8,
        )
    )


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic")
    )


def tokens(**kw):
    return lambda i: ((), dict(input_ids=ids(2, 8, seed=i), **kw))


TRANSFORMERS = {
    "bert": (
        bert,
        lambda i: ((), {"input_ids": ids(2, 8, seed=i), "attention_mask": torch.ones(2, 8, dtype=torch.long)}),
    ),
    "bert-padded": (
        bert,
        lambda i: ((), {"input_ids": ids(2, 8, seed=i), "attention_mask": (torch.arange(8) < 6).long().expand(2, 8)}),
    ),
    "gpt2": (gpt2, tokens(use_cache=False)),
    "llama": (llama, tokens(use_cache=False)),
    "vit": (vit, one(lambda i: t(2, 3, 16, 16, seed=i))),
    "resnet": (resnet, one(lambda i: t(2, 3, 32, 32, seed=i))),
}
