"""Models of the source documents, at sizes where a test takes milliseconds, and small transformers models from configs.

ZOO: name -> (make model, call number -> (args, kwargs)). Calls alternate between two inputs of equal shape.
"""

import torch
import torch.nn.functional as F
from ccompile.demo_models import (
    ComplexModel,
    ConvNetMix,
    LocalOptimizedNetwork,
    MiniTransformer,
    MultiHeadAttention,
    SimpleModel,
    SimpleNet,
    complex_activation,
    feature_enhancement,
    mix_classifier,
    mix_features,
)
from torch import nn


def t(*shape, seed=0):
    g = torch.Generator(torch.empty(0).device).manual_seed(seed + 7 * sum(shape))
    return torch.randn(*shape, generator=g)


def ids(*shape, seed=0, top=100):
    return torch.randint(0, top, shape, generator=torch.Generator(torch.empty(0).device).manual_seed(seed))


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


def small_net():
    return SimpleNet(width=64)


def small_complex():
    return ComplexModel(width=8)


def small_local():
    return LocalOptimizedNetwork(width=8)


def small_mix():
    return ConvNetMix(mix_features(2), [mix_classifier(2, 16)])


def small_transformer():
    return MiniTransformer(vocab_size=100, d_model=32, num_heads=4, num_layers=2, d_ff=64, max_seq_len=64)


def one(make):
    return lambda i: ((make(i),), {})


def function(fn):
    return lambda: fn


ZOO = {
    "mlp": (Mlp, one(lambda i: t(8, 16, seed=i))),
    "simple-net": (small_net, one(lambda i: t(32, 64, seed=i))),
    "simple-net-batch-1": (small_net, one(lambda i: t(1, 64, seed=i))),
    "simple-model": (lambda: SimpleModel(width=8, size=8), one(lambda i: t(2, 3, 8, 8, seed=i))),
    "conv-dict": (ConvDict, one(lambda i: t(2, 3, 32, 32, seed=i))),
    "complex-model": (small_complex, one(lambda i: t(2, 3, 96, 96, seed=i))),
    "complex-model-batch-1": (small_complex, one(lambda i: t(1, 3, 96, 96, seed=i))),
    "local-optimized": (small_local, one(lambda i: t(2, 3, 16, 16, seed=i))),
    "conv-net-mix": (small_mix, one(lambda i: t(2, 3, 16, 16, seed=i))),
    "complex-activation": (function(complex_activation), one(lambda i: t(4, 33, seed=i))),
    "feature-enhancement": (function(feature_enhancement), one(lambda i: t(2, 4, 9, 7, seed=i))),
    "multi-head-attention": (lambda: MultiHeadAttention(32, 4), lambda i: ((t(2, 6, 32, seed=i),), {})),
    "attention-with-mask": (
        lambda: MultiHeadAttention(32, 4),
        lambda i: ((t(2, 6, 32, seed=i),), {"mask": torch.ones(6, 6).tril().view(1, 1, 6, 6)}),
    ),
    "mini-transformer": (small_transformer, one(lambda i: ids(2, 12, seed=i))),
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
