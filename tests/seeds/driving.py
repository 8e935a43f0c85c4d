"""Document 000, fourth part: perception, decision and control under deadlines."""

import time
from queue import PriorityQueue

import ccompile
import torch
from seeds.listing import calls, program, t
from seeds.stand_ins import *
from torch import nn


class PerceptionNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = ResNet50()
        self.fpn = FeaturePyramidNetwork()
        self.detection_head = DetectionHead()
        self.segmentation_head = SegmentationHead()

    def forward(self, sensor_data):
        camera_features = self.backbone(sensor_data["camera"])
        lidar_features = self.process_lidar(sensor_data["lidar"])

        multi_scale_features = self.fpn(torch.cat([camera_features, lidar_features], dim=1))

        detections = self.detection_head(multi_scale_features)
        segmentation = self.segmentation_head(multi_scale_features)

        return {"objects": detections, "lanes": segmentation["lanes"], "traffic_signs": segmentation["signs"]}


class AutonomousDrivingPipeline(nn.Module):
    def __init__(self):
        super().__init__()
        self.perception = ccompile.compile(PerceptionNetwork(), backend="ccompile", mode="reduce-overhead")

        self.decision = DecisionNetwork()

        self.control = ccompile.compile(ControlNetwork(), backend="ccompile")

        self.safety_checker = SafetyModule()

    def forward(self, sensor_data, vehicle_state, traffic_rules):
        perception_output = self.perception(sensor_data)

        with torch.no_grad():
            objects = perception_output["objects"]
            lanes = perception_output["lanes"]
            traffic_signs = perception_output["traffic_signs"]

            decision = self.make_decision(objects, lanes, traffic_signs, vehicle_state, traffic_rules)

        control_commands = self.control(decision, vehicle_state)

        safe_commands = self.safety_checker(control_commands, vehicle_state, objects)

        return safe_commands

    def make_decision(self, objects, lanes, signs, state, rules):
        if self.detect_emergency(objects):
            return self.emergency_stop()

        if signs["stop_sign"]:
            if state["speed"] > 0:
                return self.decelerate()
            elif self.is_intersection_clear(objects):
                return self.proceed()

        decision_input = self.prepare_decision_input(objects, lanes, signs, state)

        # The document writes `with ccompile.compile(...):`, which torch refuses.
        decision = ccompile.compile(self.decision, dynamic=True)(decision_input)

        decision = self.apply_constraints(decision, rules)

        return decision


class WholePerception(PerceptionNetwork):
    """With the method that the document leaves out."""

    def process_lidar(self, points):
        return nn.functional.avg_pool2d(points, 2)


class WholePipeline(AutonomousDrivingPipeline):
    """With the methods that the document leaves out."""

    def __init__(self):
        super().__init__()
        self.perception = ccompile.compile(WholePerception(), backend="ccompile", mode="reduce-overhead")

    def detect_emergency(self, objects):
        return objects.max().item() > 1e3

    def prepare_decision_input(self, objects, lanes, signs, state):
        return torch.cat([objects, lanes, signs["scores"]], dim=1)

    def apply_constraints(self, decision, rules):
        return decision.clamp(max=rules["limit"])


@program("000 AutonomousDrivingPipeline")
def _():
    model, rules = WholePipeline().eval(), {"limit": 0.5}
    sensors = [{"camera": t(2, 3, 16, 16, seed=i), "lidar": t(2, 8, 16, 16, seed=i)} for i in range(3)]
    return [model(one, {"speed": 10.0 + 8 * i}, rules) for i, one in enumerate(sensors)]


@program("000 PerceptionNetwork")
def _():
    model = ccompile.compile(WholePerception().eval())
    return [model({"camera": t(2, 3, 16, 16, seed=i), "lidar": t(2, 8, 16, 16, seed=i)}) for i in range(3)]


class TemporalDecisionNetwork(nn.Module):
    def __init__(self, history_len=10):
        super().__init__()
        self.history_len = history_len
        self.history_buffer = []

        self.lstm = nn.LSTM(512, 256, num_layers=2, batch_first=True)

        self.transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, nhead=8), num_layers=3)

        self.decision_head = nn.Sequential(
            nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3)
        )

    def forward(self, current_state):
        self.history_buffer.append(current_state)
        if len(self.history_buffer) > self.history_len:
            self.history_buffer.pop(0)

        if len(self.history_buffer) < self.history_len:
            padded = self.pad_sequence(self.history_buffer)
            mask = self.create_padding_mask(len(self.history_buffer))
        else:
            padded = torch.stack(self.history_buffer)
            mask = None

        lstm_out, (h_n, c_n) = self.lstm(padded)

        if mask is not None:
            transformer_out = self.transformer(lstm_out, src_key_padding_mask=mask)
        else:
            transformer_out = self.transformer(lstm_out)

        aggregated = transformer_out.mean(dim=1)

        decision = self.decision_head(aggregated)

        return decision

    def pad_sequence(self, sequence):
        batch_size = sequence[0].size(0)
        feature_dim = sequence[0].size(1)

        padded = torch.zeros(batch_size, self.history_len, feature_dim, device=sequence[0].device)

        for i, state in enumerate(sequence):
            padded[:, i, :] = state

        return padded


class WholeTemporal(TemporalDecisionNetwork):
    """With the method that the document leaves out. Its masks are (batch, time), its encoder (time, batch): the batch is
    as long as the history, as the listing needs it."""

    def create_padding_mask(self, length):
        return (torch.arange(self.history_len) >= length).unsqueeze(1).expand(self.history_len, self.history_len)


@program("000 TemporalDecisionNetwork")
def _():
    model = ccompile.compile(WholeTemporal(history_len=3).eval())  # the document's: 10
    with torch.no_grad():
        return [model(t(3, 512, seed=i)) for i in range(5)], len(model.history_buffer)


class RealTimeDecisionModule(nn.Module):
    def __init__(self, max_latency_ms=50):
        super().__init__()
        self.max_latency = max_latency_ms / 1000.0

        self.fast_model = ccompile.compile(FastDecisionNet(), backend="ccompile", mode="max-autotune")

        self.medium_model = ccompile.compile(MediumDecisionNet(), backend="ccompile")

        self.full_model = FullDecisionNet()

        self.latency_history = []
        self.model_selection_stats = {"fast": 0, "medium": 0, "full": 0}

    def forward(self, x, deadline=None):
        if deadline is None:
            deadline = self.max_latency

        start_time = time.time()

        if deadline < 0.015:
            result = self.fast_model(x)
            self.model_selection_stats["fast"] += 1
        elif deadline < 0.035:
            result = self.medium_model(x)
            self.model_selection_stats["medium"] += 1
        else:
            result = self.run_with_timeout(self.full_model, x, deadline)
            self.model_selection_stats["full"] += 1

        latency = time.time() - start_time
        self.latency_history.append(latency)

        return result

    def run_with_timeout(self, model, x, timeout):
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor() as executor:
            future = executor.submit(model, x)
            try:
                result = future.result(timeout=timeout)
                return result
            except concurrent.futures.TimeoutError:
                print(f"Full model timeout, falling back to fast model")
                return self.fast_model(x)


@program("000 RealTimeDecisionModule")
def _():
    model = RealTimeDecisionModule()
    # 60 s in place of 50 ms: which model answers must not depend on the machine
    return [model(t(2, 16, seed=i), d) for i, d in enumerate((0.01, 0.01, 0.03, 0.03, 60))], model.model_selection_stats


class AdaptiveLatencyControl(nn.Module):
    def __init__(self):
        super().__init__()
        self.models = {
            "ultra_fast": (UltraFastNet(), 5),
            "fast": (FastNet(), 10),
            "normal": (NormalNet(), 20),
            "accurate": (AccurateNet(), 50),
        }

        for name, (model, _) in self.models.items():
            self.models[name] = (ccompile.compile(model, mode="reduce-overhead"), self.models[name][1])

    def forward(self, x, latency_budget_ms):
        selected_model = None
        for name in ["accurate", "normal", "fast", "ultra_fast"]:
            model, expected_latency = self.models[name]
            if expected_latency <= latency_budget_ms:
                selected_model = model
                break

        if selected_model is None:
            selected_model = self.models["ultra_fast"][0]

        return selected_model(x)


@program("000 AdaptiveLatencyControl")
def _():
    model = AdaptiveLatencyControl()
    return [model(t(2, 16, seed=i), budget) for i, budget in enumerate((1, 1, 8, 8, 30, 30, 60, 60))]


class PriorityBasedDecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.emergency_detector = ccompile.compile(EmergencyDetector(), backend="ccompile", mode="max-autotune")

        self.high_priority_planner = ccompile.compile(HighPriorityPlanner(), backend="ccompile")

        self.normal_planner = NormalPlanner()

        self.task_queue = PriorityQueue()

    def forward(self, sensor_data, context):
        emergency = self.emergency_detector(sensor_data)

        if emergency["detected"]:
            return self.emergency_response(emergency)

        high_priority_tasks = self.identify_high_priority(context)

        if high_priority_tasks:
            plan = self.high_priority_planner(sensor_data, high_priority_tasks)
            return plan

        return self.interruptible_planning(sensor_data, context)

    def interruptible_planning(self, sensor_data, context):
        checkpoints = []
        partial_result = None

        for step in range(self.planning_steps):
            if self.has_higher_priority_task():
                return partial_result if partial_result else self.default_plan()

            partial_result = self.planning_step(sensor_data, context, step, partial_result)

            if step % 5 == 0:
                checkpoints.append(partial_result.clone())

        return partial_result


class WholePriority(PriorityBasedDecision):
    """With the methods that the document leaves out."""

    planning_steps = 6

    def emergency_response(self, emergency):
        return emergency["distance"].reshape(1, 1)

    def identify_high_priority(self, context):
        return context["tasks"]

    def has_higher_priority_task(self):
        return not self.task_queue.empty()

    def planning_step(self, sensor_data, context, step, partial):
        return self.normal_planner(sensor_data, [1.0]) + (0 if partial is None else partial)


@program("000 PriorityBasedDecision")
def _():
    model = WholePriority()
    situations = (
        ([], t(2, 16)),
        ([0.5, 0.25], t(2, 16, seed=1)),
        ([], t(2, 16, seed=2) - 9),
        ([0.5, 0.25], t(2, 16, seed=3)),
    )
    return [model(data, {"tasks": tasks}) for tasks, data in situations]


class TrajectoryPredictor(nn.Module):
    def __init__(self, prediction_horizon=30):
        super().__init__()
        self.horizon = prediction_horizon

        self.encoder = nn.GRU(64, 128, batch_first=True)

        self.decoder = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, prediction_horizon * 2))

    def forward(self, scene_features):
        encoded, hidden = self.encoder(scene_features)

        trajectories = self.decoder(hidden.squeeze(0))

        batch_size = scene_features.size(0)
        trajectories = trajectories.view(batch_size, self.horizon, 2)

        return trajectories


calls(
    "000 TrajectoryPredictor", TrajectoryPredictor(4), (t(2, 5, 64),), graphs=1, breaks=0
)  # the document's horizon: 30


class IntersectionDecisionSystem(nn.Module):
    def __init__(self):
        super().__init__()

        self.static_rules = ccompile.compile(StaticRulesChecker(), backend="ccompile", fullgraph=True)

        self.scene_understanding = SceneUnderstanding()

        self.trajectory_predictor = ccompile.compile(TrajectoryPredictor(), backend="ccompile", dynamic=True)

        self.decision_network = IntersectionDecisionNet()

        self.compile_stats = {"static_hits": 0, "dynamic_recompiles": 0, "fallbacks": 0}

    def forward(self, observations, traffic_light, map_info):
        batch_size = observations.size(0)

        static_feasible = self.static_rules(traffic_light, map_info)

        scene_features = self.understand_scene(observations, map_info)

        predicted_trajectories = self.trajectory_predictor(scene_features)

        decisions = []
        for i in range(batch_size):
            cache_key = self.get_cache_key(scene_features[i])

            if cache_key in self.compiled_decision_cache:
                decision = self.compiled_decision_cache[cache_key](
                    scene_features[i : i + 1], predicted_trajectories[i : i + 1], static_feasible[i : i + 1]
                )
                self.compile_stats["static_hits"] += 1
            else:
                try:
                    compiled_decision = ccompile.compile(self.decision_network, backend="ccompile")
                    decision = compiled_decision(
                        scene_features[i : i + 1], predicted_trajectories[i : i + 1], static_feasible[i : i + 1]
                    )
                    self.compiled_decision_cache[cache_key] = compiled_decision
                    self.compile_stats["dynamic_recompiles"] += 1
                except:
                    decision = self.decision_network(
                        scene_features[i : i + 1], predicted_trajectories[i : i + 1], static_feasible[i : i + 1]
                    )
                    self.compile_stats["fallbacks"] += 1

            decisions.append(decision)

        return torch.cat(decisions, dim=0)

    def understand_scene(self, observations, map_info):
        # The document writes `with ccompile.compile(...):`, which torch refuses.
        features = ccompile.compile(self.scene_understanding.feature_extractor)(observations)

        with ccompile.disable():
            relations = self.scene_understanding.relation_reasoning(features, map_info)

        aggregated = ccompile.compile(self.scene_understanding.aggregator)(features, relations)

        return aggregated


class WholeIntersection(IntersectionDecisionSystem):
    """With what the document leaves out."""

    def __init__(self):
        super().__init__()
        self.compiled_decision_cache = {}

    def get_cache_key(self, features):
        return tuple(features.shape)


@program("000 IntersectionDecisionSystem")
def _():
    model = WholeIntersection()
    results = [model(t(2, 5, 8, seed=i), t(2), t(2, 3, seed=i)) for i in range(3)]
    return results, model.compile_stats
