"""Document 001, sections 8.1 to 8.3 with their exercises: profiler, graphs and passes, memory."""

import time
from collections import deque

import ccompile
import torch
import torch.profiler as profiler
from ccompile.report import report
from seeds.device import empty_cache
from seeds.listing import calls, program, t
from seeds.stand_ins import Tower, mlp
from torch import nn
from torch.utils.checkpoint import checkpoint


# ---- 8.1 the profiler
def pipeline(preprocess, detect, fuse, points):
    """The document's blocks hold `pass`; here they hold compiled calls."""
    with profiler.record_function("perception_pipeline"):
        with profiler.record_function("point_cloud_preprocessing"):
            points = preprocess(points)

        with profiler.record_function("3d_detection"):
            boxes = detect(points)

        with profiler.record_function("tracking_fusion"):
            return fuse(boxes)


@program("001 8.1.2 nested record_function")
def _():
    parts = [ccompile.compile(part) for part in (torch.tanh, nn.Linear(4, 4), nn.Linear(4, 2))]
    return [pipeline(*parts, t(3, 4, seed=i)) for i in range(2)]


def profiled_training(model, optimizer, dataloader, folder):
    prof = profiler.profile(
        activities=[
            profiler.ProfilerActivity.CPU,
            profiler.ProfilerActivity.CUDA,
        ],
        schedule=profiler.schedule(wait=1, warmup=1, active=3, repeat=2),
        on_trace_ready=profiler.tensorboard_trace_handler(folder),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        with_flops=True,
        with_modules=True,
    )

    with prof:
        for step, batch in enumerate(dataloader):
            prof.step()

            with profiler.record_function("forward"):
                output = model(batch)

            with profiler.record_function("backward"):
                loss = output.square().mean()  # the document's loss appears from nowhere
                loss.backward()

            with profiler.record_function("gradient_sync"):
                optimizer.step()
    return prof


# ---- 8.2 graphs and passes
def get_compiled_graph(model, example_input):
    compiled = ccompile.compile(model, fullgraph=True)

    _ = compiled(example_input)

    # The document reads Dynamo's cache entries, by a function that torch no longer has.
    graphs = report(compiled).graphs
    if graphs:
        return graphs[0]


def trace_of_passes(log_file):
    import ccompile.config as config

    config.trace.enabled = True
    config.trace.log_file = log_file
    config.debug = True


# ---- 8.3 memory
def with_and_without_gradients(model, inputs):
    outputs = model(inputs)

    with torch.inference_mode():
        return outputs, model(inputs)


@program("001 8.3.2 inference without gradients")
def _():
    model = ccompile.compile(nn.Linear(4, 4))
    return [with_and_without_gradients(model, t(3, 4, seed=i)) for i in range(2)]


def summed(model, dataloader):
    loss_sum = 0
    for data in dataloader:
        loss = model(data)
        loss_sum += loss

    number_sum = 0
    for data in dataloader:
        loss = model(data)
        number_sum += loss.item()
    return loss_sum, number_sum


@program("001 8.3.2 sums of losses")
def _():
    model = ccompile.compile(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)))
    return summed(model, [t(1, 4, seed=i) for i in range(3)])


class CheckpointedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Tower() for _ in range(8)])  # the document's: 24 Transformer blocks

    def forward(self, x):
        for i in range(0, 8, 4):
            x = checkpoint(lambda x: self._forward_layers(x, i, i + 4), x, use_reentrant=False)
        return x

    def _forward_layers(self, x, start, end):
        for i in range(start, end):
            x = self.layers[i](x)
        return x


calls("001 8.3.4 CheckpointedModel", CheckpointedModel(), (t(2, 16),), graphs=1, breaks=0)


@program("001 8.3.4 CheckpointedModel, training")
def _():
    model = CheckpointedModel()
    compiled = ccompile.compile(model)
    results = []
    for i in range(3):
        x = t(2, 16, seed=i).requires_grad_()
        # The lambda reads `i` of forward() again in the backward, after the loop: a recomputation of other layers
        compiled(x).sum().backward()
        results.append((x.grad, [p.grad for p in model.parameters()]))
    return results


# ---- exercise 8.2
class Perception(nn.Module):
    """The self that the document's functions use."""

    def __init__(self):
        super().__init__()
        self.image_backbone, self.point_encoder, self.detection_head = mlp(12, 8), mlp(3, 8), nn.Linear(16, 4)
        self.image_rows = 10

    def perception_model(self, image, lidar_points):
        image_features = self.image_backbone(image)

        if lidar_points.shape[0] > 10:  # the document's: 10000
            lidar_points = lidar_points[torch.randperm(10)]

        point_features = self.point_encoder(lidar_points)

        fused = torch.cat([image_features, point_features], dim=1)

        return self.detection_head(fused)

    def perception_model_fixed(self, image, lidar_points):
        image_features = self.image_backbone(image)

        num_points = lidar_points.shape[0]
        max_points = 10

        indices = torch.arange(num_points, device=lidar_points.device)
        # torch.maximum takes tensors only; the document passes num_points // max_points as an int.
        step = torch.maximum(torch.tensor(1), torch.tensor(num_points // max_points))
        sampled_indices = indices[::step][:max_points]
        lidar_points = lidar_points[sampled_indices]

        point_features = self.point_encoder(lidar_points)

        fused = torch.cat([image_features, point_features], dim=1)

        return self.detection_head(fused)


PERCEPTION = Perception()
CLOUDS = (t(10, 12), t(25, 3)), (t(10, 12), t(10, 3))
calls("001 exercise 8.2, perception_model", PERCEPTION.perception_model, *CLOUDS, graphs=1, breaks=0)
calls("001 exercise 8.2, repaired", PERCEPTION.perception_model_fixed, *CLOUDS, graphs=2, breaks=1)


# ---- exercise 8.3
class PerceptionNet(Tower):
    pass


class PlanningNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(16, 8, 2)

    def forward(self, history):
        return self.layers(history.mean(dim=0))


class RobotController:
    """Its loop ends after `steps`; sensors and actuators are lists."""

    def __init__(self, steps):
        self.perception_model = ccompile.compile(PerceptionNet())
        self.planning_model = ccompile.compile(PlanningNet())
        self.history_buffer = []
        self.steps, self.actions = steps, []

    def get_sensor_data(self):
        return t(2, 16, seed=self.steps)

    def execute_action(self, plan):
        self.actions.append(plan)

    def control_loop(self):
        plan = None
        while self.steps:
            self.steps -= 1
            sensor_data = self.get_sensor_data()
            perception_output = self.perception_model(sensor_data)

            self.history_buffer.append(
                {"timestamp": time.time(), "perception": perception_output, "sensor": sensor_data}
            )

            if len(self.history_buffer) > 10:
                recent_history = torch.stack([h["perception"] for h in self.history_buffer[-10:]])
                plan = self.planning_model(recent_history)

            self.execute_action(plan)

            if len(self.history_buffer) > 1000:
                self.history_buffer = self.history_buffer[-100:]


class RepairedController(RobotController):
    def control_loop(self):
        plan = torch.zeros(1)
        while self.steps:
            self.steps -= 1
            with torch.inference_mode():
                sensor_data = self.get_sensor_data()
                perception_output = self.perception_model(sensor_data)

            self.history_buffer.append(
                {"timestamp": time.time(), "perception": perception_output.detach().clone().cpu(), "sensor": None}
            )

            if len(self.history_buffer) > 10:
                with torch.inference_mode():
                    recent_history = torch.stack([h["perception"] for h in self.history_buffer[-10:]])
                    plan = self.planning_model(recent_history)

            self.execute_action(plan.cpu().numpy())

            if len(self.history_buffer) > 100:
                self.history_buffer = self.history_buffer[-50:]
                empty_cache()


@program("001 exercise 8.3, RobotController")
def _():
    robot = RobotController(14)
    robot.control_loop()
    return robot.actions, len(robot.history_buffer)


@program("001 exercise 8.3, repaired")
def _():
    robot = RepairedController(120)
    robot.control_loop()
    return robot.actions, len(robot.history_buffer)
