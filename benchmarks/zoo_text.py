"""The zoo's text rows (see zoo.py)."""

import torch
from zoo_base import CACHE, GROUPED, NO_CACHE, SEQ2SEQ, TEXT, ZOO, Row, bare, pairs, row, tokens, without

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

# ---- decoders, with their default cache and without ------------------------------------------------------------------
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
