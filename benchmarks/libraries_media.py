"""Rows of libraries.py: timm, diffusers, einops."""

import tempfile
from typing import Any

import torch
from libraries import Use, program
from torch import nn

# ---- timm ------------------------------------------------------------------------------------------------------------


def classifying(name: str, **settings: Any) -> Use:
    import timm

    model = torch.compile(timm.create_model(name, num_classes=7, **settings).eval())
    size = settings.get("img_size", 64)
    return Use(torch.inference_mode()(lambda i: model(torch.randn(2, 3, size, size))), model.state_dict)


@program("timm", costly=True)
def timm_resnet() -> Use:
    return classifying("resnet10t")


@program("timm", costly=True)
def timm_efficientnet() -> Use:
    return classifying("efficientnet_b0")


@program("timm", costly=True)
def timm_mobilenetv3() -> Use:
    return classifying("mobilenetv3_small_050")


@program("timm", costly=True)
def timm_convnext() -> Use:
    return classifying("convnext_atto")


@program("timm")
def timm_vit() -> Use:
    return classifying("vit_tiny_patch16_224", img_size=64, depth=2)


@program("timm", costly=True)
def timm_swin() -> Use:
    return classifying("swin_tiny_patch4_window7_224", img_size=56, depths=(2, 2))


@program("timm")
def timm_eva02() -> Use:
    return classifying("eva02_tiny_patch14_224", img_size=56, depth=2)


@program("timm", costly=True)
def timm_naflexvit() -> Use:
    return classifying("naflexvit_base_patch16_gap", depth=2)


@program("timm")
def timm_train() -> Use:
    """What train.py does with --torchcompile and --model-ema."""
    import timm
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3, get_state_dict, unwrap_model

    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=64, depth=2)
    average = ModelEmaV3(model, decay=0.9)
    model = torch.compile(model, backend="inductor")
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-3, momentum=0.9, weight_decay=0.05)

    def step(i: int) -> Any:
        model.train()
        loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 64, 64)), torch.randint(0, 7, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model, step=i)
        return loss.detach()

    def state() -> Any:
        kept = [get_state_dict(one, unwrap_model) for one in (model, average)]
        return kept, model.state_dict(), [group["weight_decay"] for group in optimizer.param_groups]

    return Use(step, state)


# ---- diffusers -------------------------------------------------------------------------------------------------------

UNET: dict[str, Any] = {"layers_per_block": 1, "block_out_channels": (16, 32), "norm_num_groups": 8,
                        "attention_head_dim": 8}  # fmt: skip


def unet() -> Any:
    from diffusers import UNet2DModel

    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    return UNet2DModel(sample_size=16, down_block_types=down, up_block_types=up, **UNET).eval()


@program("diffusers")
def diffusers_pipeline() -> Use:
    """The pipeline saves its compiled part, and loads it again."""
    import diffusers

    pipe = diffusers.DDPMPipeline(unet=unet(), scheduler=diffusers.DDPMScheduler(num_train_timesteps=20))
    pipe.set_progress_bar_config(disable=True)
    pipe.unet = torch.compile(pipe.unet, mode="reduce-overhead")

    def step(i: int) -> Any:
        return pipe(num_inference_steps=4, generator=torch.Generator().manual_seed(i), output_type="np").images

    def state() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            pipe.save_pretrained(folder)
            again = diffusers.DDPMPipeline.from_pretrained(folder)
        return pipe.unet.state_dict(), again.unet.state_dict(), type(again.unet).__name__

    return Use(step, state)


@program("diffusers")
def diffusers_unet_guided() -> Use:
    """Classifier-free guidance, the loop written out."""
    import diffusers

    down, up = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
    model = diffusers.UNet2DConditionModel(
        sample_size=8, down_block_types=down, up_block_types=up, cross_attention_dim=16, **UNET
    ).eval()
    compiled = torch.compile(model, mode="max-autotune", fullgraph=True)
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=20)

    @torch.no_grad()
    def step(i: int) -> Any:
        scheduler.set_timesteps(4)
        x, prompt = torch.randn(1, 4, 8, 8), torch.randn(2, 5, 16)
        for t in scheduler.timesteps:
            given = scheduler.scale_model_input(torch.cat([x] * 2), t)
            without, with_prompt = compiled(given, t, encoder_hidden_states=prompt).sample.chunk(2)
            x = scheduler.step(without + 3 * (with_prompt - without), t, x).prev_sample
        return x

    return Use(step, compiled.state_dict)


@program("diffusers")
def diffusers_dit() -> Use:
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=10, norm_num_groups=8
    ).eval()  # fmt: skip
    model.compile(fullgraph=True)
    scheduler = diffusers.DPMSolverMultistepScheduler(num_train_timesteps=20)

    @torch.no_grad()
    def step(i: int) -> Any:
        scheduler.set_timesteps(4)
        x, label = torch.randn(1, 4, 8, 8), torch.tensor([3])
        for t in scheduler.timesteps:
            x = scheduler.step(model(x, timestep=t[None], class_labels=label).sample, t, x).prev_sample
        return x

    return Use(step, model.state_dict)


@program("diffusers")
def diffusers_repeated_blocks() -> Use:
    import diffusers

    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)
    ).eval()  # fmt: skip
    model.compile_repeated_blocks(fullgraph=True)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    row = torch.arange(4.0)
    places = torch.stack([torch.zeros(16), row.repeat_interleave(4), row.repeat(4)], dim=1)
    rest = {"img_ids": places, "txt_ids": torch.zeros(6, 3), "return_dict": False}

    @torch.no_grad()
    def step(i: int) -> Any:
        scheduler.set_timesteps(3)
        x, prompt, pooled = torch.randn(1, 16, 4), torch.randn(1, 6, 16), torch.randn(1, 16)
        for t in scheduler.timesteps:
            (moved,) = model(
                x, encoder_hidden_states=prompt, pooled_projections=pooled, timestep=t[None] / 1000, **rest
            )
            (x,) = scheduler.step(moved, t, x, return_dict=False)
        return x

    return Use(step, model.state_dict)


@program("diffusers")
def diffusers_vae() -> Use:
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32), norm_num_groups=8, sample_size=32, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2
    ).eval()  # fmt: skip
    model.decode = torch.compile(model.decode)
    model.encoder = torch.compile(model.encoder)

    @torch.no_grad()
    def step(i: int) -> Any:
        found = model.encode(torch.randn(1, 3, 16, 16)).latent_dist
        return model.decode(found.sample(generator=torch.Generator().manual_seed(i))).sample

    return Use(step, model.state_dict)


@program("diffusers", costly=True)
def diffusers_train() -> Use:
    import diffusers
    from diffusers.training_utils import EMAModel

    model, scheduler = unet().train(), diffusers.DDPMScheduler(num_train_timesteps=20)
    average = EMAModel(model.parameters(), decay=0.9)
    model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(i: int) -> Any:
        images, noise, t = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16), torch.randint(0, 20, (2,))
        loss = nn.functional.mse_loss(model(scheduler.add_noise(images, noise, t), t).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        return loss.detach()

    return Use(step, lambda: (model.state_dict(), average.state_dict()["shadow_params"]))


# ---- einops ----------------------------------------------------------------------------------------------------------


@program("einops")
def einops_layers() -> Use:
    from einops.layers.torch import EinMix, Rearrange, Reduce

    patches = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
    mix = EinMix("b d -> b k", weight_shape="d k", bias_shape="k", d=32, k=5)
    model = nn.Sequential(patches, nn.Linear(48, 32), Reduce("b n d -> b d", "mean"), mix)
    compiled = torch.compile(model, fullgraph=True)
    return Use(torch.no_grad()(lambda i: compiled(torch.randn(2, 3, 16, 16))), compiled.state_dict)


@program("einops")
def einops_functions() -> Use:
    """Attention with two lengths."""
    from einops import einsum, pack, parse_shape, rearrange, reduce, repeat, unpack

    @torch.compile(fullgraph=True)
    def attend(*given: torch.Tensor) -> Any:
        q, k, v = (rearrange(x, "b n (h d) -> b h n d", h=4) for x in given)
        weights = einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
        out = rearrange(weights @ v, "b h n d -> b n (h d)")
        packed, shapes = pack([out[:, 0], out], "b * d")
        first, rest = unpack(packed, shapes, "b * d")
        return reduce(out, "b n d -> b d", "max"), repeat(out, "b n d -> b (n r) d", r=2), first, rest, parse_shape(
            out, "b n _"
        )  # fmt: skip

    return Use(lambda i: attend(*(torch.randn(2, 6 + i % 2, 32) for _ in range(3))), dict)
