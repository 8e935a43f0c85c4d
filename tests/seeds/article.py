"""Document 003: training and inference of two models in each mode, changing sizes, and how to debug.

The models are those of the demo (ccompile.demo_models), which come from this document."""

import time
from typing import Tuple

import ccompile
import torch
import torch.nn as nn
import torch.nn.functional as F
from ccompile.demo_models import MiniTransformer, SimpleModel
from seeds.listing import calls, program, t
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def benchmark_model(model: nn.Module, input_tensor: torch.Tensor, num_iterations: int = 100, warmup: int = 10) -> float:
    model.eval()

    with torch.no_grad():
        for _ in range(warmup):
            _ = model(input_tensor)

    if torch.cuda.is_available():
        synchronize()

    start_time = time.time()
    with torch.no_grad():
        for _ in range(num_iterations):
            _ = model(input_tensor)

    if torch.cuda.is_available():
        synchronize()

    end_time = time.time()
    avg_time = (end_time - start_time) / num_iterations * 1000

    return avg_time


def compared(model_eager, model_compiled, test_input, num_iterations):
    """Listings 2 and 5; the results are added."""
    model_compiled.load_state_dict(model_eager.state_dict())

    model_compiled = ccompile.compile(model_compiled)

    eager_time = benchmark_model(model_eager, test_input, num_iterations, warmup=2)
    compiled_time = benchmark_model(model_compiled, test_input, num_iterations, warmup=2)
    print(f"{eager_time:.4f} ms, {compiled_time:.4f} ms, {eager_time / compiled_time:.2f}x")
    return model_compiled(test_input)


@program("003 SimpleModel, eager and compiled")
def _():
    # The document's: 64 channels, 32x32 pixels, batch 32, 100 iterations
    return compared(SimpleModel(width=8, size=8), SimpleModel(width=8, size=8), t(4, 3, 8, 8), 2)


def small_transformer():
    """The document's: 10000 words, d_model=256, 4 layers, d_ff=1024."""
    return MiniTransformer(vocab_size=50, d_model=32, num_heads=4, num_layers=2, d_ff=64, max_seq_len=16)


@program("003 MiniTransformer, eager and compiled")
def _():
    return compared(small_transformer(), small_transformer(), torch.randint(0, 50, (2, 12)), 2)


class CompilationAwareTrainer:
    def __init__(self, model: nn.Module, compile_model: bool = True, compile_mode: str = "default"):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)

        if compile_model:
            print(f"compiling the model (mode {compile_mode}) ...")
            self.model = ccompile.compile(self.model, mode=compile_mode)
            print("compiled")

        self.compile_mode = compile_mode if compile_model else "eager"

    def train_epoch(
        self, dataloader: DataLoader, optimizer: torch.optim.Optimizer, criterion: nn.Module, epoch: int
    ) -> Tuple[float, float]:
        self.model.train()
        total_loss = 0.0
        correct = 0
        total = 0

        start_time = time.time()

        for batch_idx, (data, target) in enumerate(dataloader):
            data, target = data.to(self.device), target.to(self.device)

            optimizer.zero_grad()
            output = self.model(data)
            loss = criterion(output, target)

            loss.backward()
            optimizer.step()

            total_loss += loss.item()
            _, predicted = output.max(1)
            total += target.size(0)
            correct += predicted.eq(target).sum().item()

            if (batch_idx + 1) % 10 == 0:
                print(
                    f"Epoch {epoch} | Batch {batch_idx + 1}/{len(dataloader)} | "
                    f"Loss: {loss.item():.4f} | "
                    f"Acc: {100.0 * correct / total:.2f}%"
                )

        epoch_time = time.time() - start_time
        avg_loss = total_loss / len(dataloader)
        avg_acc = 100.0 * correct / total

        print(
            f"\nEpoch {epoch} done in: {epoch_time:.2f}s | mean loss: {avg_loss:.4f} | mean accuracy: {avg_acc:.2f}%\n"
        )

        return avg_loss, avg_acc

    @torch.no_grad()
    def validate(self, dataloader: DataLoader, criterion: nn.Module) -> Tuple[float, float]:
        self.model.eval()
        total_loss = 0.0
        correct = 0
        total = 0

        for data, target in dataloader:
            data, target = data.to(self.device), target.to(self.device)

            output = self.model(data)
            loss = criterion(output, target)

            total_loss += loss.item()
            _, predicted = output.max(1)
            total += target.size(0)
            correct += predicted.eq(target).sum().item()

        avg_loss = total_loss / len(dataloader)
        avg_acc = 100.0 * correct / total

        return avg_loss, avg_acc


def create_dummy_dataset(num_samples: int = 1000, num_classes: int = 10):
    X = torch.randn(num_samples, 3, 32, 32)
    y = torch.randint(0, num_classes, (num_samples,))
    return TensorDataset(X, y)


@program("003 CompilationAwareTrainer in four modes", rtol=1e-3)
def _():
    train_dataset = create_dummy_dataset(num_samples=16)  # the document's: 640, batches of 32
    torch.manual_seed(0)
    state = SimpleModel(width=4).state_dict()
    results = {}

    for mode in ["eager", "default", "reduce-overhead", "max-autotune"]:
        model = SimpleModel(width=4)
        model.load_state_dict(state)
        compile_model = mode != "eager"

        trainer = CompilationAwareTrainer(
            model=model, compile_model=compile_model, compile_mode=mode if compile_model else "default"
        )

        optimizer = torch.optim.Adam(trainer.model.parameters(), lr=0.001)
        criterion = nn.CrossEntropyLoss()

        train_loader = DataLoader(train_dataset, batch_size=8)
        results[mode] = (
            trainer.train_epoch(train_loader, optimizer, criterion, epoch=1),
            trainer.validate(train_loader, criterion),
        )
    return results


def choose_compile_mode(model_size: str, training: bool = True) -> str:
    if model_size == "small":
        return "reduce-overhead"
    elif model_size == "medium":
        return "default"
    else:
        if training:
            return "max-autotune"
        else:
            return "max-autotune"


@program("003 choose_compile_mode")
def _():
    small_model, large_transformer = SimpleModel(width=4, size=8), small_transformer()
    chosen = [
        choose_compile_mode(size, training) for size in ("small", "medium", "large") for training in (True, False)
    ]

    small_compiled = ccompile.compile(small_model, mode="reduce-overhead")
    large_compiled = ccompile.compile(large_transformer, mode="max-autotune")
    large_compiled.eval()
    return chosen, [(small_compiled(t(2, 3, 8, 8)), large_compiled(torch.arange(8).view(2, 4))) for _ in range(3)]


class DynamicShapeModel(nn.Module):
    def __init__(self, d_model: int = 256):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


def forward_with_dynamic_marking(self, x):
    ccompile.mark_dynamic(x, 1)
    return self.norm(self.linear(x))


@program("003 DynamicShapeModel")
def _():
    model = DynamicShapeModel(d_model=32).to(device)  # the document's: 256; lengths to 256
    compiled_model = ccompile.compile(model, dynamic=True, mode="default")
    return [compiled_model(t(2, seq_len, 32)) for seq_len in (4, 8, 16, 32)]


@program("003 mark_dynamic")
def _():
    model = DynamicShapeModel(d_model=32)
    compiled = ccompile.compile(model)
    results = []
    for n in (4, 8, 16):
        x = t(2, n, 32)
        ccompile.mark_dynamic(x, 1)
        results.append(compiled(x))
    return results, forward_with_dynamic_marking(model, t(2, 3, 32))


# The document's: MiniTransformer(vocab_size=10000, d_model=512, num_layers=6), batches of 8x128, ten of them; on CUDA only,
# with torch.cuda.amp. The losses are added.
def memory_efficient_training():
    model = small_transformer().to(device)

    model = ccompile.compile(model, mode="default")

    from torch.amp import GradScaler, autocast

    scaler = GradScaler(device.type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    model.train()
    losses = []
    for batch_idx in range(4):
        input_ids = torch.randint(0, 50, (2, 12)).to(device)
        labels = torch.randint(0, 10, (2,)).to(device)

        optimizer.zero_grad()

        with autocast(device.type):
            outputs = model(input_ids)
            loss = F.cross_entropy(outputs, labels)

        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())

        if batch_idx % 5 == 0:
            print(f"Batch {batch_idx}, Loss: {loss.item():.4f}")

            if torch.cuda.is_available():
                allocated = torch.cuda.memory_allocated() / 1024**3
                reserved = torch.cuda.memory_reserved() / 1024**3
                print(f"  GPU memory: allocated {allocated:.2f} GB, reserved {reserved:.2f} GB")
    return losses


@program("003 memory_efficient_training", rtol=1e-2)  # bfloat16
def _():
    return memory_efficient_training()


def debug_compilation():
    import ccompile as dynamo

    model = SimpleModel(width=4).to(device)

    print("=" * 60)
    print("graph breaks")
    print("=" * 60)

    dynamo.reset()

    import logging

    ccompile.config.verbose = True
    ccompile.set_logs(dynamo=logging.INFO)

    compiled_model = ccompile.compile(model, backend="ccompile")

    test_input = torch.randn(4, 3, 32, 32).to(device)
    _ = compiled_model(test_input)

    print("\n" + "=" * 60)
    print("generated code")
    print("=" * 60)

    explanation = ccompile.explain(model)(test_input)
    print(explanation)

    print("\n" + "=" * 60)
    print("switching passes off")
    print("=" * 60)

    ccompile.config.suppress_errors = False

    from ccompile import export

    exported_program = export(model, test_input)
    print(f"\nnodes of the exported graph: {len(exported_program.graph.nodes)}")

    dynamo.reset()
    ccompile.config.verbose = False


class BadModel(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return self.path1(x)
        else:
            return self.path2(x)


class GoodModel(nn.Module):
    def forward(self, x):
        condition = x.sum() > 0
        return torch.where(condition, self.path1(x), self.path2(x))


class BadStatefulModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.counter = 0

    def forward(self, x):
        self.counter += 1
        return x * self.counter


class GoodStatefulModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("counter", torch.tensor(0))

    def forward(self, x):
        self.counter += 1
        return x * self.counter


def with_paths(model):
    """The paths that the document leaves out."""
    model.path1, model.path2 = nn.Linear(4, 4), nn.Linear(4, 4)
    return model


SIGNS = (t(2, 4).abs(),), (-t(2, 4).abs(),)
calls("003 BadModel", with_paths(BadModel()), *SIGNS, graphs=2, breaks=1)
calls("003 GoodModel", with_paths(GoodModel()), *SIGNS, graphs=1, breaks=0)


@program("003 BadStatefulModel")
def _():
    model = BadStatefulModel()
    compiled = ccompile.compile(model)
    return [compiled(t(2, 4)) for _ in range(5)], model.counter


@program("003 GoodStatefulModel")
def _():
    model = GoodStatefulModel()
    compiled = ccompile.compile(model)
    return [compiled(t(2, 4)) for _ in range(5)], model.counter


def batch_inference_optimized(model: nn.Module, data_list: list, batch_size: int = 32):
    model = ccompile.compile(model, mode="reduce-overhead")
    model.eval()

    results = []

    with torch.no_grad():
        for i in range(0, len(data_list), batch_size):
            batch = data_list[i : i + batch_size]

            max_len = max(len(item) for item in batch)
            padded_batch = torch.stack([F.pad(item, (0, max_len - len(item))) for item in batch])

            outputs = model(padded_batch.to(device))
            results.extend(outputs.cpu())

    return results


@program("003 batch_inference_optimized")
def _():
    data = [t(n, seed=n) for n in (5, 8, 3, 8, 8, 2)]
    return batch_inference_optimized(nn.Linear(8, 4), data, batch_size=2)


# The document's ranks are processes with a GPU each, and its MiniTransformer(vocab_size=10000) trains ten epochs.
def setup_distributed_compiled_training(dataloader):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group(backend="gloo", store=dist.HashStore(), rank=0, world_size=1)

    model = small_transformer()

    model = ccompile.compile(model, mode="default")
    model = DDP(model)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    losses = []
    for epoch in range(2):
        for batch in dataloader:
            inputs = batch["input_ids"]
            labels = batch["labels"]

            outputs = model(inputs)
            loss = F.cross_entropy(outputs, labels)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    dist.destroy_process_group()
    return losses


@program("003 setup_distributed_compiled_training", rtol=1e-3)
def _():
    batches = [{"input_ids": torch.randint(0, 50, (2, 12)), "labels": torch.randint(0, 10, (2,))} for _ in range(2)]
    return setup_distributed_compiled_training(batches)
