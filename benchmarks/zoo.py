"""The transformers zoo: architectures by small random configs (nothing is downloaded), for bench_zoo.py and tests.

A row: name -> Row(family, model class, config class, settings, inputs). Weights come from a fixed seed; `inputs` maps a
call's number to keyword arguments of equal shapes and other values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# Sizes under the names that most configs use; a row says what is different.
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
    """2 sentences of 12 tokens, the second one padded in all calls at the same places."""
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


# ---- encoders --------------------------------------------------------------------------------------------------------
row("bert", "encoder", "Bert", "Model", tokens(), **TEXT)
row("bert-no-mask", "encoder", "Bert", "ForMaskedLM", bare(), **TEXT)
row("roberta", "encoder", "Roberta", "Model", tokens(), **TEXT)
row("xlm-roberta", "encoder", "XLMRoberta", "ForSequenceClassification", tokens(), **TEXT)
row("camembert", "encoder", "Camembert", "ForTokenClassification", tokens(), **TEXT)
row(
    "distilbert",
    "encoder",
    "DistilBert",
    "Model",
    tokens(),
    vocab_size=99,
    dim=32,
    n_layers=2,
    n_heads=4,
    hidden_dim=64,
    max_position_embeddings=64,
)
row("albert", "encoder", "Albert", "Model", tokens(), **TEXT, embedding_size=16)
row("electra", "encoder", "Electra", "Model", tokens(), **TEXT, embedding_size=16)
row(
    "deberta-v2",
    "encoder",
    "DebertaV2",
    "Model",
    tokens(),
    **TEXT,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_biased_input=False,
)
row("deberta", "encoder", "Deberta", "Model", tokens(), **TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"])
row("mpnet", "encoder", "MPNet", "Model", tokens(), **TEXT)
row(
    "xlnet",
    "encoder",
    "XLNet",
    "Model",
    tokens(),
    vocab_size=99,
    d_model=32,
    n_layer=2,
    n_head=4,
    d_inner=64,
    pad_token_id=0,
)
row(
    "funnel",
    "encoder",
    "Funnel",
    "Model",
    tokens(),
    vocab_size=99,
    block_sizes=[1, 1],
    num_decoder_layers=1,
    d_model=32,
    n_head=4,
    d_head=8,
    d_inner=64,
)
row("longformer", "encoder", "Longformer", "Model", tokens(), **TEXT, attention_window=[4, 4])
row("big-bird", "encoder", "BigBird", "Model", bare(32), **TEXT, attention_type="original_full")
row("modernbert", "encoder", "ModernBert", "Model", tokens(), **TEXT, global_attn_every_n_layers=2, local_attention=8)
row("ernie", "encoder", "Ernie", "Model", tokens(), **TEXT)
row("convbert", "encoder", "ConvBert", "Model", tokens(), **TEXT, embedding_size=32, head_ratio=2, conv_kernel_size=3)
row(
    "mobilebert",
    "encoder",
    "MobileBert",
    "Model",
    tokens(),
    **TEXT,
    embedding_size=32,
    intra_bottleneck_size=32,
    true_hidden_size=32,
    num_feedforward_networks=2,
)
row("squeezebert", "encoder", "SqueezeBert", "Model", tokens(), **TEXT, embedding_size=32)
row("fnet", "encoder", "FNet", "Model", bare(), **TEXT, tpu_short_seq_length=12)
row("nystromformer", "encoder", "Nystromformer", "Model", bare(), **TEXT, num_landmarks=12, segment_means_seq_len=12)
row(
    "canine",
    "encoder",
    "Canine",
    "Model",
    bare(32),
    **without(TEXT, "vocab_size"),
    num_hash_buckets=64,
    downsampling_rate=4,
    local_transformer_stride=8,
)
row("roformer", "encoder", "RoFormer", "Model", tokens(), **TEXT)
row("layoutlm", "encoder", "LayoutLM", "Model", tokens(), **TEXT)
row("esm", "encoder", "Esm", "Model", tokens(), **TEXT, mask_token_id=3, position_embedding_type="rotary")
row("ibert", "encoder", "IBert", "Model", tokens(), **TEXT)
row(
    "reformer",
    "encoder",
    "Reformer",
    "Model",
    bare(16),
    vocab_size=99,
    hidden_size=32,
    num_attention_heads=4,
    attention_head_size=8,
    feed_forward_size=64,
    attn_layers=["local", "local"],
    local_attn_chunk_length=4,
    axial_pos_shape=[4, 4],
    axial_pos_embds_dim=[16, 16],
    is_decoder=False,
    max_position_embeddings=64,
)
row(
    "perceiver",
    "encoder",
    "Perceiver",
    "ForMaskedLM",
    bare(),
    vocab_size=99,
    d_model=32,
    num_latents=8,
    d_latents=32,
    num_self_attends_per_block=2,
    num_self_attention_heads=4,
    num_cross_attention_heads=4,
    max_position_embeddings=64,
    qk_channels=32,
    v_channels=32,
)

# ---- decoders, with the cache they make by default and without -------------------------------------------------------
row(
    "gpt2",
    "decoder",
    "GPT2",
    "LMHeadModel",
    bare(**NO_CACHE),
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=64,
)
row(
    "gpt2-cache",
    "decoder",
    "GPT2",
    "LMHeadModel",
    tokens(**CACHE),
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=64,
)
row(
    "gpt-neo",
    "decoder",
    "GPTNeo",
    "ForCausalLM",
    tokens(),
    vocab_size=99,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=64,
    attention_types=[[["global", "local"], 1]],
    window_size=4,
    max_position_embeddings=64,
)
row("gpt-neox", "decoder", "GPTNeoX", "ForCausalLM", tokens(), **TEXT)
row(
    "gptj",
    "decoder",
    "GPTJ",
    "ForCausalLM",
    tokens(),
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    rotary_dim=4,
    n_positions=64,
)
row(
    "gpt-bigcode",
    "decoder",
    "GPTBigCode",
    "ForCausalLM",
    tokens(),
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=64,
)
row(
    "codegen",
    "decoder",
    "CodeGen",
    "ForCausalLM",
    tokens(),
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    rotary_dim=4,
    n_positions=64,
)
row(
    "opt",
    "decoder",
    "OPT",
    "ForCausalLM",
    tokens(),
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    ffn_dim=64,
    num_attention_heads=4,
    max_position_embeddings=64,
    word_embed_proj_dim=32,
)
row("llama", "decoder", "Llama", "ForCausalLM", bare(**NO_CACHE), **GROUPED)
row("llama-cache", "decoder", "Llama", "ForCausalLM", tokens(**CACHE), **GROUPED)
row("mistral", "decoder", "Mistral", "ForCausalLM", tokens(), **GROUPED, sliding_window=8)
row("qwen2", "decoder", "Qwen2", "ForCausalLM", tokens(), **GROUPED)
row("qwen3", "decoder", "Qwen3", "ForCausalLM", tokens(), **GROUPED, head_dim=8)
row("gemma", "decoder", "Gemma", "ForCausalLM", tokens(), **GROUPED, head_dim=8)
row("gemma2", "decoder", "Gemma2", "ForCausalLM", tokens(), **GROUPED, head_dim=8, sliding_window=8)
row("gemma3", "decoder", "Gemma3", "ForCausalLM", tokens(), **GROUPED, head_dim=8, sliding_window=8)
ZOO["gemma3"] = Row("decoder", "Gemma3ForCausalLM", "Gemma3TextConfig", ZOO["gemma3"].settings, tokens())
row("phi", "decoder", "Phi", "ForCausalLM", tokens(), **TEXT)
row("phi3", "decoder", "Phi3", "ForCausalLM", tokens(), **GROUPED)
row("falcon", "decoder", "Falcon", "ForCausalLM", tokens(), **TEXT)
row("bloom", "decoder", "Bloom", "ForCausalLM", tokens(), vocab_size=99, hidden_size=32, n_layer=2, n_head=4)
row("mpt", "decoder", "Mpt", "ForCausalLM", tokens(), vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)
row("stablelm", "decoder", "StableLm", "ForCausalLM", tokens(), **GROUPED)
row("olmo", "decoder", "Olmo", "ForCausalLM", tokens(), **GROUPED)
row("olmo2", "decoder", "Olmo2", "ForCausalLM", tokens(), **GROUPED)
row("cohere", "decoder", "Cohere", "ForCausalLM", tokens(), **GROUPED)
row("starcoder2", "decoder", "Starcoder2", "ForCausalLM", tokens(), **GROUPED)
row("granite", "decoder", "Granite", "ForCausalLM", tokens(), **GROUPED)
row("glm", "decoder", "Glm", "ForCausalLM", tokens(), **GROUPED, head_dim=8)
row("smollm3", "decoder", "SmolLM3", "ForCausalLM", tokens(), **GROUPED)
row("biogpt", "decoder", "BioGpt", "ForCausalLM", tokens(), **TEXT)
row(
    "xglm",
    "decoder",
    "XGLM",
    "ForCausalLM",
    tokens(),
    vocab_size=99,
    d_model=32,
    num_layers=2,
    ffn_dim=64,
    attention_heads=4,
    max_position_embeddings=64,
)
row(
    "openai-gpt",
    "decoder",
    "OpenAIGPT",
    "LMHeadModel",
    tokens(),
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=64,
)
row(
    "ctrl",
    "decoder",
    "CTRL",
    "LMHeadModel",
    tokens(),
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    dff=64,
    n_positions=64,
)

# ---- encoder and decoder ---------------------------------------------------------------------------------------------
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
row("t5", "seq2seq", "T5", "ForConditionalGeneration", pairs(), **T5, decoder_start_token_id=0)
row("mt5", "seq2seq", "MT5", "ForConditionalGeneration", pairs(**NO_CACHE), **T5, decoder_start_token_id=0)
row("bart", "seq2seq", "Bart", "ForConditionalGeneration", pairs(), **SEQ2SEQ)
row("mbart", "seq2seq", "MBart", "ForConditionalGeneration", pairs(), **SEQ2SEQ)
row("pegasus", "seq2seq", "Pegasus", "ForConditionalGeneration", pairs(), **SEQ2SEQ)
row("marian", "seq2seq", "Marian", "MTModel", pairs(), **SEQ2SEQ)
row("m2m-100", "seq2seq", "M2M100", "ForConditionalGeneration", pairs(), **SEQ2SEQ)
row("blenderbot", "seq2seq", "Blenderbot", "ForConditionalGeneration", pairs(), **SEQ2SEQ)
row(
    "led",
    "seq2seq",
    "LED",
    "ForConditionalGeneration",
    pairs(),
    **without(SEQ2SEQ, "max_position_embeddings"),
    max_encoder_position_embeddings=64,
    max_decoder_position_embeddings=64,
    attention_window=4,
)
row(
    "prophetnet",
    "seq2seq",
    "ProphetNet",
    "ForConditionalGeneration",
    pairs(),
    vocab_size=99,
    hidden_size=32,
    num_encoder_layers=2,
    num_decoder_layers=2,
    num_encoder_attention_heads=4,
    num_decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=64,
)

# ---- vision ----------------------------------------------------------------------------------------------------------
row("vit", "vision", "ViT", "ForImageClassification", pixels(), **VISION)
row("deit", "vision", "DeiT", "ForImageClassification", pixels(), **VISION)
row("beit", "vision", "Beit", "ForImageClassification", pixels(), **VISION, use_relative_position_bias=True)
row(
    "swin",
    "vision",
    "Swin",
    "ForImageClassification",
    pixels(),
    image_size=32,
    patch_size=2,
    embed_dim=16,
    depths=[2, 2],
    num_heads=[2, 4],
    window_size=4,
)
row(
    "swinv2",
    "vision",
    "Swinv2",
    "Model",
    pixels(),
    image_size=32,
    patch_size=2,
    embed_dim=16,
    depths=[2, 2],
    num_heads=[2, 4],
    window_size=4,
)
row(
    "convnext",
    "vision",
    "ConvNext",
    "ForImageClassification",
    pixels(),
    hidden_sizes=[16, 32],
    depths=[2, 2],
    num_stages=2,
)
row(
    "convnextv2",
    "vision",
    "ConvNextV2",
    "ForImageClassification",
    pixels(),
    hidden_sizes=[16, 32],
    depths=[2, 2],
    num_stages=2,
)
row(
    "resnet",
    "vision",
    "ResNet",
    "ForImageClassification",
    pixels(),
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[2, 2],
    layer_type="basic",
)
row(
    "regnet",
    "vision",
    "RegNet",
    "ForImageClassification",
    pixels(),
    embedding_size=8,
    hidden_sizes=[16, 32],
    depths=[1, 2],
    groups_width=8,
)
row(
    "segformer",
    "vision",
    "Segformer",
    "ForSemanticSegmentation",
    pixels(),
    num_encoder_blocks=2,
    depths=[1, 1],
    sr_ratios=[2, 1],
    hidden_sizes=[16, 32],
    patch_sizes=[7, 3],
    strides=[4, 2],
    num_attention_heads=[2, 4],
    mlp_ratios=[2, 2],
    decoder_hidden_size=32,
)
row("dinov2", "vision", "Dinov2", "Model", pixels(), **VISION)
row(
    "detr",
    "vision",
    "Detr",
    "ForObjectDetection",
    pixels(64),
    d_model=32,
    encoder_layers=1,
    decoder_layers=1,
    **HEADS,
    num_queries=5,
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone_config={
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "layer_type": "basic",
        "out_features": ["stage2"],
    },
)
row(
    "yolos",
    "vision",
    "Yolos",
    "ForObjectDetection",
    pixels(),
    **without(VISION, "image_size"),
    image_size=[32, 32],
    num_detection_tokens=5,
)
row("mobilenet-v1", "vision", "MobileNetV1", "ForImageClassification", pixels(), depth_multiplier=0.25, min_depth=4)
row("mobilenet-v2", "vision", "MobileNetV2", "ForImageClassification", pixels(), depth_multiplier=0.25, min_depth=4)
row(
    "mobilevit",
    "vision",
    "MobileViT",
    "ForImageClassification",
    pixels(),
    hidden_sizes=[16, 24, 32],
    image_size=32,
    neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64],
    patch_size=2,
)
row(
    "efficientnet",
    "vision",
    "EfficientNet",
    "ForImageClassification",
    pixels(),
    width_coefficient=0.25,
    depth_coefficient=0.3,
    hidden_dim=320,
    image_size=32,
)
row(
    "poolformer",
    "vision",
    "PoolFormer",
    "ForImageClassification",
    pixels(),
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_encoder_blocks=2,
    patch_sizes=[7, 3],
    strides=[4, 2],
    padding=[2, 1],
)
row(
    "pvt",
    "vision",
    "Pvt",
    "ForImageClassification",
    pixels(),
    image_size=32,
    num_encoder_blocks=2,
    depths=[1, 1],
    sequence_reduction_ratios=[2, 1],
    hidden_sizes=[16, 32],
    patch_sizes=[4, 2],
    strides=[4, 2],
    num_attention_heads=[2, 4],
    mlp_ratios=[2, 2],
)
row(
    "levit",
    "vision",
    "Levit",
    "ForImageClassification",
    pixels(64),
    image_size=64,
    hidden_sizes=[16, 32, 48],
    num_attention_heads=[2, 4, 6],
    depths=[1, 1, 1],
    key_dim=[8, 8, 8],
)
row(
    "focalnet",
    "vision",
    "FocalNet",
    "ForImageClassification",
    pixels(),
    image_size=32,
    embed_dim=16,
    depths=[1, 1],
    hidden_sizes=[16, 32],
    focal_levels=[2, 2],
    focal_windows=[3, 3],
)
row(
    "dpt",
    "vision",
    "DPT",
    "ForDepthEstimation",
    pixels(),
    **{**VISION, "num_hidden_layers": 4},
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[8, 8, 16, 16],
    fusion_hidden_size=16,
)
row(
    "vit-mae",
    "vision",
    "ViTMAE",
    "ForPreTraining",
    lambda i: {**pixels()(i), "noise": floats(i, 2, 16).abs()},
    **VISION,
    decoder_hidden_size=16,
    decoder_num_hidden_layers=1,
    decoder_num_attention_heads=2,
    decoder_intermediate_size=32,
)
row(
    "bit",
    "vision",
    "Bit",
    "ForImageClassification",
    pixels(),
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_groups=2,
)
row(
    "videomae",
    "vision",
    "VideoMAE",
    "Model",
    lambda i: {"pixel_values": floats(i, 1, 4, 3, 16, 16)},
    **{**VISION, "image_size": 16},
    num_frames=4,
)

# ---- audio -----------------------------------------------------------------------------------------------------------
row("wav2vec2", "audio", "Wav2Vec2", "ForCTC", wave(), **SPEECH)
row("hubert", "audio", "Hubert", "Model", wave(), **SPEECH)
row("wavlm", "audio", "WavLM", "Model", wave(), **SPEECH)
row(
    "whisper",
    "audio",
    "Whisper",
    "ForConditionalGeneration",
    lambda i: {"input_features": floats(i, 1, 8, 60), "decoder_input_ids": ids(i, 1, 7)},
    **without(SEQ2SEQ, "max_position_embeddings"),
    num_mel_bins=8,
    max_source_positions=30,
    max_target_positions=32,
)
row(
    "ast",
    "audio",
    "AST",
    "Model",
    lambda i: {"input_values": floats(i, 2, 24, 16)},
    **without(VISION, "image_size", "patch_size"),
    patch_size=8,
    max_length=24,
    num_mel_bins=16,
)
row(
    "speech-to-text",
    "audio",
    "Speech2Text",
    "ForConditionalGeneration",
    lambda i: {"input_features": floats(i, 2, 40, 16), "decoder_input_ids": ids(i, 2, 7)},
    **without(SEQ2SEQ, "max_position_embeddings"),
    max_source_positions=64,
    max_target_positions=64,
    input_feat_per_channel=16,
    num_conv_layers=2,
    conv_kernel_sizes=(5, 5),
    conv_channels=16,
)
row(
    "encodec",
    "audio",
    "Encodec",
    "Model",
    lambda i: {"input_values": floats(i, 1, 1, 640)},
    num_filters=4,
    hidden_size=16,
    upsampling_ratios=[4, 2],
    codebook_size=16,
    num_lstm_layers=1,
    target_bandwidths=[24.0],
    sampling_rate=24000,
)

# ---- text with images ------------------------------------------------------------------------------------------------
TOWERS = {"text_config": without(TEXT, "pad_token_id", "bos_token_id", "eos_token_id"), "vision_config": VISION}
row(
    "clip",
    "multimodal",
    "CLIP",
    "Model",
    text_and_pixels,
    **{**TOWERS, "text_config": {**TOWERS["text_config"], "eos_token_id": 2}},
    projection_dim=16,
)
row("siglip", "multimodal", "Siglip", "Model", text_and_pixels, **TOWERS)
row(
    "blip",
    "multimodal",
    "Blip",
    "Model",
    text_and_pixels,
    **{**TOWERS, "text_config": {**TEXT, "encoder_hidden_size": 32}},
    projection_dim=16,
    image_text_hidden_size=16,
)
row(
    "llava",
    "multimodal",
    "Llava",
    "ForConditionalGeneration",
    llava_inputs,
    text_config={**GROUPED, "model_type": "llama"},
    vision_config={**VISION, "model_type": "clip_vision_model"},
    image_token_index=98,
    image_token_id=98,
    vision_feature_layer=-1,
)
row("vilt", "multimodal", "Vilt", "Model", text_and_pixels, **{**VISION, **TEXT})
row(
    "chinese-clip",
    "multimodal",
    "ChineseCLIP",
    "Model",
    text_and_pixels,
    text_config=TEXT,
    vision_config=VISION,
    projection_dim=16,
)

# ---- mixture of experts ----------------------------------------------------------------------------------------------
row("mixtral", "moe", "Mixtral", "ForCausalLM", tokens(), **GROUPED, num_local_experts=4, num_experts_per_tok=2)
row(
    "qwen2-moe",
    "moe",
    "Qwen2Moe",
    "ForCausalLM",
    tokens(),
    **GROUPED,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=64,
    num_experts=4,
    num_experts_per_tok=2,
)
row(
    "qwen3-moe",
    "moe",
    "Qwen3Moe",
    "ForCausalLM",
    tokens(),
    **GROUPED,
    moe_intermediate_size=32,
    num_experts=4,
    num_experts_per_tok=2,
    head_dim=8,
)
row("olmoe", "moe", "Olmoe", "ForCausalLM", tokens(), **GROUPED, num_experts=4, num_experts_per_tok=2)
row(
    "gpt-oss",
    "moe",
    "GptOss",
    "ForCausalLM",
    tokens(),
    **GROUPED,
    head_dim=8,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=8,
)
row(
    "deepseek-v3",
    "moe",
    "DeepseekV3",
    "ForCausalLM",
    tokens(),
    **TEXT,
    num_key_value_heads=4,
    moe_intermediate_size=32,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    n_shared_experts=1,
    first_k_dense_replace=1,
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=8,
)
row(
    "switch",
    "moe",
    "SwitchTransformers",
    "ForConditionalGeneration",
    pairs(attention_mask=torch.ones(2, 12).long(), decoder_attention_mask=torch.ones(2, 7).long()),
    **T5,
    num_experts=4,
    decoder_start_token_id=0,
)

# ---- state space and recurrent ---------------------------------------------------------------------------------------
row(
    "mamba",
    "state space",
    "Mamba",
    "ForCausalLM",
    bare(),
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    state_size=8,
)
row(
    "mamba2",
    "state space",
    "Mamba2",
    "ForCausalLM",
    bare(),
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    state_size=8,
    num_heads=8,
    head_dim=8,
    n_groups=1,
    chunk_size=8,
)
row(
    "falcon-mamba",
    "state space",
    "FalconMamba",
    "ForCausalLM",
    bare(),
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    state_size=8,
)
row(
    "rwkv",
    "state space",
    "Rwkv",
    "ForCausalLM",
    bare(),
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    attention_hidden_size=32,
    context_length=64,
)
row(
    "jamba",
    "state space",
    "Jamba",
    "ForCausalLM",
    tokens(),
    **GROUPED,
    num_experts=2,
    num_experts_per_tok=1,
    attn_layer_period=2,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    mamba_d_state=8,
    use_mamba_kernels=False,
)
row(
    "recurrent-gemma",
    "state space",
    "RecurrentGemma",
    "ForCausalLM",
    tokens(),
    **TEXT,
    num_key_value_heads=1,
    lru_width=32,
    attention_window_size=8,
    block_types=["recurrent", "attention"],
)


def build(name: str) -> torch.nn.Module:
    """The model of a row, in eval mode; the same weights each time."""
    import transformers

    found = ZOO[name]
    torch.manual_seed(11)
    config = getattr(transformers, found.config)(**found.settings)
    return getattr(transformers, found.model)(config).eval()


# ---- counts ----------------------------------------------------------------------------------------------------------
DYNAMO = Path(__file__).with_name("zoo_dynamo.txt")  # written by bench_zoo.py --dynamo


def dynamo_counts() -> dict[str, tuple[int, int] | None]:
    """torch._dynamo.explain's (graphs, breaks) of each row's first call; None where Dynamo fails."""
    found: dict[str, tuple[int, int] | None] = {}
    for line in DYNAMO.read_text().splitlines():
        if line and not line.startswith("#"):
            name, graphs, breaks = line.split()
            found[name] = None if graphs == "-" else (int(graphs), int(breaks))
    return found


def met(compiled: Any, call: Callable[[], Any]) -> tuple[int, int]:
    """(graphs, breaks) that `call` of `compiled` meets in a replay; a break in a loop counts once, as in explain."""
    from ccompile.api import compiled_of

    def segments() -> dict[int, dict[str, Any]]:
        return {s["id"]: s for entry in compiled_of(compiled).report()["entries"] for s in entry["segments"]}

    before = segments()
    call()
    run = [s for i, s in segments().items() if s["hits"] > (before[i]["hits"] if i in before else 0)]
    ends = {(s["break"]["file"], s["break"]["line"], s["break"]["text"]) for s in run if s["end"] == "break"}
    return len({s["point"] for s in run if s["nodes"]}), len(ends)
