"""Rows of libraries.py: transformers, accelerate, peft, sentence-transformers, torchao."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from libraries import Use, program
from torch import nn

SIZES: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "max_position_embeddings": 64}  # fmt: skip
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat on mat ran to house good bad".split()
TEXTS = ["the cat sat on the mat", "the dog ran", "a good house to a bad cat on the mat"]


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0, eos_token_id=None)).eval()


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": 99, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=1, eos_token_id=None)).eval()


def bert(head: str, **settings: Any) -> Any:
    import transformers

    return getattr(transformers, head)(transformers.BertConfig(**SIZES, **settings)).eval()


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=words, **named, model_max_length=32)


def ids(rows: int = 2, length: int = 10) -> torch.Tensor:
    return torch.randint(3, 99, (rows, length))


def saved(folder: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of all safetensors files in a folder."""
    from safetensors.torch import load_file

    return {key: value for file in sorted(Path(folder).glob("*.safetensors")) for key, value in load_file(file).items()}


# ---- transformers ----------------------------------------------------------------------------------------------------


def generating(cache: str | None) -> Use:
    model, prompt = llama(), ids(2, 7)
    model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    given = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8, "cache_implementation": cache}
    return Use(lambda i: model.generate(prompt, do_sample=bool(i % 2), **given), model.state_dict)


@program("transformers")
def transformers_generate() -> Use:
    return generating(None)


@program("transformers")
def transformers_generate_static() -> Use:
    return generating("static")


@program("transformers")
def transformers_generate_compiles() -> Use:
    """generate() compiles the model itself; on the CPU only if told so."""
    from transformers import CompileConfig, GenerationConfig

    model, prompt = llama(), ids(2, 7)
    config = GenerationConfig(
        max_new_tokens=8, do_sample=False, cache_implementation="static", compile_config=CompileConfig(), pad_token_id=0
    )
    config.compile_config._compile_all_devices = True
    mask = torch.ones_like(prompt)
    return Use(lambda i: model.generate(prompt, attention_mask=mask, generation_config=config), model.state_dict)


def trainer(**settings: Any) -> Use:
    import transformers

    model, folder = gpt2(), tempfile.TemporaryDirectory()
    rows = [{"input_ids": torch.arange(3, 15) + i, "labels": torch.arange(3, 15) + i} for i in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=folder.name, torch_compile=True, max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2,
        optim="sgd", eval_strategy="steps", eval_steps=3, save_steps=3, save_total_limit=1, logging_steps=1,
        use_cpu=True, disable_tqdm=True, report_to=[], **settings
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.remove_callback(transformers.PrinterCallback)

    def step(i: int) -> Any:
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return losses, trainer.predict(rows).predictions, trainer.evaluate()["eval_loss"]

    def state() -> Any:
        kept = saved(Path(folder.name) / "checkpoint-3")
        trainer.save_model(folder.name)
        return model.state_dict(), kept, saved(folder.name), type(trainer.model).__name__

    return Use(step, state)


@program("accelerate", costly=True)
def transformers_trainer() -> Use:
    return trainer()


@program("transformers")
def transformers_pipeline() -> Use:
    """Whole and in place; lengths of texts change from call to call."""
    from transformers import pipeline

    classify = pipeline(
        "text-classification", model=bert("BertForSequenceClassification"), tokenizer=tokenizer(), device="cpu"
    )
    classify.model = torch.compile(classify.model)
    features = pipeline("feature-extraction", model=bert("BertModel"), tokenizer=tokenizer(), device="cpu")
    features.model.compile()
    return Use(
        lambda i: (classify(TEXTS[i % 3]), classify(TEXTS, batch_size=2, padding=True), features(TEXTS[(i + 1) % 3])),
        lambda: (classify.model.state_dict(), features.model.state_dict()),
    )


@program("transformers")
def transformers_pipeline_generates() -> Use:
    from transformers import pipeline

    model = gpt2()
    model.generation_config.pad_token_id = 0
    generate = pipeline("text-generation", model=torch.compile(model), tokenizer=tokenizer(), device="cpu")
    return Use(lambda i: generate(TEXTS[i % 3], max_new_tokens=5, do_sample=False), model.state_dict)


# ---- accelerate ------------------------------------------------------------------------------------------------------


def prepared(regional: bool, **settings: Any) -> Use:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import TorchDynamoPlugin

    AcceleratorState._reset_state(True)
    plugin = TorchDynamoPlugin(backend="inductor", use_regional_compilation=regional)
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin, **settings)
    model: Any = gpt2()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    batches: Any = torch.utils.data.DataLoader(ids(8, 12), batch_size=4)  # type: ignore[arg-type]
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    def step(i: int) -> Any:
        losses = []
        for batch in batches:
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    def state() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            accelerator.load_state(folder)
            kept = saved(folder)
            unwrapped = [accelerator.unwrap_model(model, keep_torch_compile=keep) for keep in (True, False)]
            unwrapped[0].save_pretrained(f"{folder}/hub")
            accelerator.save_model(model, f"{folder}/model")
            stored = kept, saved(f"{folder}/hub"), saved(f"{folder}/model")
        states = [one.state_dict() for one in (model, *unwrapped)]
        return stored, states, accelerator.get_state_dict(model), [type(one).__name__ for one in unwrapped]

    return Use(step, state)


@program("accelerate")
def accelerate_prepare() -> Use:
    return prepared(regional=False)


@program("accelerate")
def accelerate_prepare_regions() -> Use:
    return prepared(regional=True)


@program("accelerate", costly=True, tolerance=2e-2)
def accelerate_prepare_bf16() -> Use:
    return prepared(regional=False, mixed_precision="bf16", gradient_accumulation_steps=2)


@program("accelerate")
def accelerate_compile_regions() -> Use:
    from accelerate.utils import compile_regions, extract_model_from_parallel

    model = llama()
    compiled = compile_regions(model, mode="reduce-overhead")

    def state() -> Any:
        unwrapped = [extract_model_from_parallel(compiled, keep_torch_compile=keep) for keep in (True, False)]
        return compiled.state_dict(), [one.state_dict() for one in unwrapped], unwrapped[0] is compiled

    return Use(torch.no_grad()(lambda i: compiled(ids()).logits), state)


# ---- peft ------------------------------------------------------------------------------------------------------------


def lora(model: Any, rank: int, *targets: str) -> Any:
    import peft

    return peft.get_peft_model(model, adapter(rank, *targets))


def adapter(rank: int, *targets: str) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(targets), init_lora_weights=False)


@program("peft")
def peft_lora() -> Use:
    """Trains one of two adapters, switches, disables and merges, all after torch.compile."""
    import peft

    model = lora(llama(), 4, "q_proj", "v_proj")
    model.add_adapter("other", adapter(2, "q_proj"))
    model = torch.compile(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    @torch.no_grad()
    def looks(tokens: torch.Tensor) -> list[Any]:
        model.set_adapter("other")
        seen = [model(tokens).logits]
        with model.disable_adapter():
            seen.append(model(tokens).logits)
        model.set_adapter("default")
        model.merge_adapter()
        seen.append(model(tokens).logits)
        model.unmerge_adapter()
        return [*seen, model(tokens).logits]

    def step(i: int) -> Any:
        tokens = ids()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), looks(tokens)

    def state() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = peft.PeftModel.from_pretrained(llama(), folder)
            kept = saved(folder), list(again.state_dict())
        adapters = peft.get_peft_model_state_dict(model)
        merged = model.merge_and_unload()
        return kept, adapters, merged.state_dict(), model.active_adapter

    return Use(step, state)


@program("peft")
def peft_adapter_added_later() -> Use:
    model = torch.compile(lora(llama(), 4, "q_proj"))

    @torch.no_grad()
    def step(i: int) -> Any:
        tokens = ids()
        seen = [model(tokens).logits]
        name = f"from call {i % 2}".replace(" ", "_")
        if name not in model.peft_config:
            model.add_adapter(name, adapter(2 + i, "v_proj"))
        model.set_adapter(name)
        seen.append(model(tokens).logits)
        model.set_adapter("default")
        return seen

    return Use(step, model.state_dict)


@program("peft")
def peft_hotswap() -> Use:
    import peft
    from peft.utils.hotswap import hotswap_adapter, prepare_model_for_compiled_hotswap

    folders = [tempfile.TemporaryDirectory() for _ in range(2)]
    for rank, folder in zip((4, 8), folders, strict=True):
        lora(llama(), rank, "q_proj").save_pretrained(folder.name)
    model = peft.PeftModel.from_pretrained(llama(), folders[0].name)
    prepare_model_for_compiled_hotswap(model, target_rank=8)
    model.compile()

    @torch.no_grad()
    def step(i: int) -> Any:
        tokens = ids()
        before = model(tokens).logits
        hotswap_adapter(model, folders[(i + 1) % 2].name, adapter_name="default")
        return before, model(tokens).logits

    return Use(step, model.state_dict)


# ---- sentence-transformers -------------------------------------------------------------------------------------------


def sentences() -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    with tempfile.TemporaryDirectory() as folder:
        bert("BertModel").save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        encoder = Transformer(folder)
    return SentenceTransformer(modules=[encoder, Pooling(32, "mean"), Normalize()], device="cpu")


def encoding(model: Any) -> Use:
    from sentence_transformers import SentenceTransformer

    def step(i: int) -> Any:
        found = model.encode(TEXTS, batch_size=2, convert_to_tensor=True)
        return found, model.encode(TEXTS[i % 3]), model.similarity(found, found)

    def state() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            return model.state_dict(), SentenceTransformer(folder, device="cpu").state_dict()

    return Use(step, state)


@program("sentence_transformers")
def sentence_transformers_encode() -> Use:
    return encoding(torch.compile(sentences()))


@program("sentence_transformers")
def sentence_transformers_encode_in_place() -> Use:
    model = sentences()
    model.compile()
    return encoding(model)


@program("sentence_transformers")
def sentence_transformers_rank() -> Use:
    from sentence_transformers import CrossEncoder

    with tempfile.TemporaryDirectory() as folder:
        bert("BertForSequenceClassification", num_labels=1).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        model = CrossEncoder(folder, device="cpu")
    model.compile()
    return Use(
        lambda i: (model.predict([(TEXTS[0], TEXTS[1]), (TEXTS[i % 3], TEXTS[2])]), model.rank(TEXTS[0], TEXTS)),
        model.state_dict,
    )


# ---- torchao ---------------------------------------------------------------------------------------------------------


def quantised(config: str) -> Use:
    import torchao.quantization as quantization

    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval()
    quantization.quantize_(model, getattr(quantization, config)())
    compiled = torch.compile(model, mode="max-autotune")
    return Use(torch.no_grad()(lambda i: compiled(torch.randn(8, 64))), lambda: list(compiled.state_dict()))


@program("torchao", breaks=1)
def torchao_int8_weights() -> Use:
    return quantised("Int8WeightOnlyConfig")


@program("torchao", breaks=1)
def torchao_int8_dynamic() -> Use:
    return quantised("Int8DynamicActivationInt8WeightConfig")
