"""The zoo's vision, audio and multimodal rows (see zoo.py)."""

from zoo_base import (
    GROUPED,
    HEADS,
    SEQ2SEQ,
    SPEECH,
    TEXT,
    VISION,
    floats,
    ids,
    llava_inputs,
    pixels,
    row,
    text_and_pixels,
    wave,
    without,
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
