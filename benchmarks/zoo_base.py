"""Building blocks of the zoo's rows; zoo_text.py and zoo_media.py define the rows, zoo.py collects them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# Sizes under the names that most configs use; rows override them.
TEXT: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
SPEECH: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "max_position_embeddings"},
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
HEADS = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}


def generator(i: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + i)


def ids(i: int, *shape: int, top: int = 99) -> torch.Tensor:
    return torch.randint(3, top, shape, generator=generator(i))


def floats(i: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(i))


def tokens(**more: Any) -> Callable[[int], dict[str, Any]]:
    """2 sentences of 12 tokens; the second one is padded at the same positions in all calls."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return lambda i: {"input_ids": ids(i, 2, 12), "attention_mask": mask.clone(), **more}


def bare(n: int = 12, **more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda i: {"input_ids": ids(i, 2, n), **more}


def pairs(**more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda i: {"input_ids": ids(i, 2, 12), "decoder_input_ids": ids(i + 50, 2, 7), **more}


def pixels(size: int = 32, **more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda i: {"pixel_values": floats(i, 2, 3, size, size), **more}


def wave(n: int = 800) -> Callable[[int], dict[str, Any]]:
    return lambda i: {"input_values": floats(i, 2, n)}


def text_and_pixels(i: int) -> dict[str, Any]:
    return {
        "input_ids": ids(i, 2, 12),
        "pixel_values": floats(i, 2, 3, 32, 32),
        "attention_mask": torch.ones(2, 12).long(),
    }


def llava_inputs(i: int) -> dict[str, Any]:
    text = ids(i, 1, 24, top=90)
    text[:, 2:18] = 98  # the image's 16 patches
    return {"input_ids": text, "pixel_values": floats(i, 1, 3, 32, 32), "attention_mask": torch.ones_like(text)}


@dataclass(frozen=True)
class Row:
    family: str
    model: str
    config: str
    settings: dict[str, Any]
    inputs: Callable[[int], dict[str, Any]]


CACHE = {"use_cache": True}
NO_CACHE = {"use_cache": False}

ZOO: dict[str, Row] = {}


def row(name: str, family: str, stem: str, head: str, inputs: Callable[[int], dict[str, Any]], **settings: Any) -> None:
    ZOO[name] = Row(family, stem + head, stem + "Config", settings, inputs)


def without(base: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in base.items() if k not in names}
