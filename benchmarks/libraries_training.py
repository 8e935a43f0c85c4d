"""Rows of libraries.py: Lightning and torchmetrics."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from libraries import Use, program
from torch import nn

# ---- lightning -------------------------------------------------------------------------------------------------------


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def module_class() -> Any:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(
            self, compile_part: Callable[[nn.Module], nn.Module] = lambda net: net, accuracy: Any = None
        ) -> None:
            super().__init__()
            self.net: Any = None
            self.accuracy = accuracy
            self.compile_part = compile_part
            self.losses: list[torch.Tensor] = []

        def configure_model(self) -> None:
            if self.net is None:  # called before each run
                self.net = self.compile_part(classifier())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            out = self(x)
            self.log("right", (out.argmax(-1) == y).float().mean())
            if self.accuracy is not None:
                self.accuracy(out, y)
                self.log("accuracy", self.accuracy)

        def predict_step(self, batch: Any, index: int) -> torch.Tensor:
            return self(batch[0]).softmax(-1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Classifier


def fitting(model: Any) -> Use:
    import lightning

    rows = torch.utils.data.TensorDataset(torch.randn(160, 8), torch.randint(0, 3, (160,)))
    batches = torch.utils.data.DataLoader(rows, batch_size=8)
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )

    def step(i: int) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder, **quiet)
            trainer.fit(model, batches, batches)
            predicted = trainer.predict(model, batches)
            trainer.save_checkpoint(f"{folder}/kept")
            kept = torch.load(f"{folder}/kept", weights_only=False)["state_dict"]
        return model.losses[-20:], dict(trainer.callback_metrics), predicted, kept

    return Use(step, model.state_dict)


@program("lightning")
def lightning_fit() -> Use:
    """self.log() is the break in a step."""
    return fitting(torch.compile(module_class()()))


@program("lightning", settles=False)
def lightning_fit_metric() -> Use:
    """The first log() of a metric in each run hashes its tensors."""
    from torchmetrics.classification import MulticlassAccuracy

    return fitting(torch.compile(module_class()(accuracy=MulticlassAccuracy(num_classes=3))))


@program("lightning")
def lightning_configure_model() -> Use:
    return fitting(module_class()(torch.compile))


@program("lightning")
def lightning_fabric() -> Use:
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    model: Any = torch.compile(classifier())
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def step(i: int) -> Any:
        loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 3, (4,)))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def state() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            fabric.save(f"{folder}/kept", {"model": model, "optimizer": optimizer})
            kept = torch.load(f"{folder}/kept")
            fabric.load(f"{folder}/kept", {"model": model, "optimizer": optimizer})
        return kept["model"], model.state_dict(), [name for name, _ in model.named_parameters()]

    return Use(step, state)


# ---- torchmetrics ----------------------------------------------------------------------------------------------------


def measuring(metric: Any) -> Use:
    """A step that computes outputs and updates metrics."""
    net = nn.Linear(8, 3).requires_grad_(False)

    @torch.compile
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = net(x)
        metric.update(out, y)
        return out

    return Use(lambda i: (update(torch.randn(16, 8), torch.randint(0, 3, (16,))), metric.compute()), dict)


@program("torchmetrics")
def torchmetrics_accuracy() -> Use:
    from torchmetrics.classification import MulticlassAccuracy

    return measuring(MulticlassAccuracy(num_classes=3, validate_args=False))


@program("torchmetrics")
def torchmetrics_collection() -> Use:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassF1Score, MulticlassPrecision

    return measuring(MetricCollection([MulticlassPrecision(num_classes=3), MulticlassF1Score(num_classes=3)]))
