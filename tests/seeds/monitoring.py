"""Document 001, section 8.4 with its exercises, and the usual mistakes: metrics, alarms, A/B tests, caches, benchmarks."""

import asyncio
import copy
import json
import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import ccompile
import numpy as np
import torch
import torch.profiler as profiler
from seeds.device import empty_cache, synchronize
from seeds.listing import program, t
from seeds.services import aioredis
from seeds.stand_ins import Tower
from torch import nn


# ---- 8.4
def monitored(compiled_model, registry):
    from prometheus_client import Counter, Gauge, Histogram

    inference_latency = Histogram(
        "model_inference_latency_seconds",
        "Model inference latency in seconds",
        buckets=[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0],
        registry=registry,
    )

    gpu_memory_usage = Gauge("gpu_memory_usage_bytes", "GPU memory usage in bytes", registry=registry)

    inference_errors = Counter("model_inference_errors_total", "Total number of inference errors", registry=registry)

    @inference_latency.time()
    def run_inference(input_data):
        try:
            with torch.inference_mode():
                output = compiled_model(input_data)

            gpu_memory_usage.set(torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)

            return output
        except Exception as e:
            inference_errors.inc()
            raise

    return run_inference


@program("001 8.4.1 Prometheus metrics", needs="prometheus_client")
def _():
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    run_inference = monitored(ccompile.compile(nn.Linear(4, 4)), registry)
    results = [run_inference(t(2, 4, seed=i)) for i in range(3)]
    try:
        run_inference(t(2, 5))
    except RuntimeError as error:
        results.append(str(error))
    counts = "model_inference_latency_seconds_count", "model_inference_errors_total"
    return results, [registry.get_sample_value(name) for name in counts]


class AnomalyDetector:
    def __init__(self, window_size=100):
        self.latency_window = deque(maxlen=window_size)
        self.baseline_mean = None
        self.baseline_std = None
        self.alerts = []  # where the document sends mails

    def update(self, latency):
        self.latency_window.append(latency)

        if len(self.latency_window) == self.latency_window.maxlen:
            if self.baseline_mean is None:
                self.baseline_mean = np.mean(self.latency_window)
                self.baseline_std = np.std(self.latency_window)

            if abs(latency - self.baseline_mean) > 3 * self.baseline_std:
                self.trigger_alert(latency)

    def trigger_alert(self, latency):
        alert_message = f"latency {latency:.3f}s is out of range"
        self.alerts.append(alert_message)


@program("001 8.4.2 AnomalyDetector", recorded=False)
def _():
    detector = AnomalyDetector(window_size=10)
    for latency in (*np.linspace(0.010, 0.012, 12), 0.5, 0.011):
        detector.update(float(latency))
    return detector.alerts


class StructuredLogger:
    def __init__(self, name):
        self.logger = logging.getLogger(name)

    def log_inference(self, **kwargs):
        log_entry = {
            "timestamp": datetime.utcnow().isoformat(),
            "event": "inference",
            "model_version": kwargs.get("model_version"),
            "input_shape": kwargs.get("input_shape"),
            "batch_size": kwargs.get("batch_size"),
            "latency_ms": kwargs.get("latency_ms"),
            "gpu_memory_mb": kwargs.get("gpu_memory_mb"),
            "compilation_status": kwargs.get("compilation_status"),
            "graph_breaks": kwargs.get("graph_breaks", 0),
        }
        self.logger.info(json.dumps(log_entry))


class ModelABTest:
    def __init__(self, model_a, model_b, traffic_ratio=0.1):
        self.model_a = model_a
        self.model_b = model_b
        self.traffic_ratio = traffic_ratio
        self.metrics_a = []
        self.metrics_b = []
        self.served = []

    def log_metrics(self, request_id, model_version, latency):
        self.served.append((request_id, model_version))

    def inference(self, input_data, request_id):
        use_model_b = hash(request_id) % 100 < self.traffic_ratio * 100

        start_time = time.time()

        if use_model_b:
            output = self.model_b(input_data)
            latency = time.time() - start_time
            self.metrics_b.append(latency)
            model_version = "optimized"
        else:
            output = self.model_a(input_data)
            latency = time.time() - start_time
            self.metrics_a.append(latency)
            model_version = "baseline"

        self.log_metrics(request_id, model_version, latency)

        return output

    def analyze_results(self):
        from scipy import stats

        t_stat, p_value = stats.ttest_ind(self.metrics_a, self.metrics_b)

        improvement = (np.mean(self.metrics_a) - np.mean(self.metrics_b)) / np.mean(self.metrics_a)

        return {"improvement": improvement, "p_value": p_value, "significant": p_value < 0.05}


@program("001 8.4.4 ModelABTest", needs="scipy")
def _():
    model = nn.Linear(4, 4)
    test = ModelABTest(model, ccompile.compile(model), traffic_ratio=0.5)
    results = [test.inference(t(2, 4, seed=i), i * 10) for i in range(10)]  # an int's hash is the int
    return results, test.served, sorted(test.analyze_results())


# ---- exercise 8.4
@dataclass
class BenchmarkResult:
    batch_size: int
    compile_mode: str
    cold_start_time: float
    warm_up_times: list[float]
    steady_state_times: list[float]
    peak_memory: float
    compile_time: float
    accuracy_loss: float


class CompileBenchmark:
    def __init__(self, model, test_data):
        self.model = model
        self.test_data = test_data
        self.results = []

    def prepare_batch(self, batch_size):
        return self.test_data[:batch_size]

    def run_benchmark(self):
        batch_sizes = [1, 4]  # the document's: 1, 4, 8, 16, 32
        compile_modes = [None, "default", "reduce-overhead", "max-autotune"]

        for bs in batch_sizes:
            for mode in compile_modes:
                result = self.benchmark_single_config(bs, mode)
                self.results.append(result)

        return self.analyze_results()

    def timed(self, model, batch):
        """Several lines of the document."""
        synchronize()
        start = time.time()
        with torch.inference_mode():
            _ = model(batch)
        synchronize()
        return time.time() - start

    def benchmark_single_config(self, batch_size, compile_mode):
        model = copy.deepcopy(self.model)  # the document's modules have a clone()
        if compile_mode:
            model = ccompile.compile(model, mode=compile_mode)

        test_batch = self.prepare_batch(batch_size)

        compile_time = self.timed(model, test_batch)

        empty_cache()
        cold_start_time = self.timed(model, test_batch)

        warm_up_times = [self.timed(model, test_batch) for _ in range(10)]

        steady_state_times = [self.timed(model, test_batch) for _ in range(10)]  # the document's: 100

        peak_memory = 0
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self.timed(model, test_batch)
            peak_memory = torch.cuda.max_memory_allocated()

        with torch.inference_mode():
            compiled_output = model(test_batch)
            eager_output = self.model(test_batch)
            accuracy_loss = self.compute_accuracy_loss(compiled_output, eager_output)

        return BenchmarkResult(
            batch_size=batch_size,
            compile_mode=compile_mode or "eager",
            cold_start_time=cold_start_time,
            warm_up_times=warm_up_times,
            steady_state_times=steady_state_times,
            peak_memory=peak_memory,
            compile_time=compile_time,
            accuracy_loss=accuracy_loss,
        )

    def compute_accuracy_loss(self, output1, output2):
        cos_sim = torch.nn.functional.cosine_similarity(output1.flatten(), output2.flatten(), dim=0)
        return (1 - cos_sim).item()

    def analyze_results(self):
        import pandas as pd

        df = pd.DataFrame(
            [
                {
                    "batch_size": r.batch_size,
                    "mode": r.compile_mode,
                    "p50_latency": np.percentile(r.steady_state_times, 50),
                    "p95_latency": np.percentile(r.steady_state_times, 95),
                    "p99_latency": np.percentile(r.steady_state_times, 99),
                    "memory_mb": r.peak_memory / 1e6,
                    "compile_time": r.compile_time,
                    "accuracy_loss": r.accuracy_loss,
                }
                for r in self.results
            ]
        )

        eager_times = df[df["mode"] == "eager"].set_index("batch_size")["p50_latency"]
        for mode in df["mode"].unique():
            if mode != "eager":
                mode_times = df[df["mode"] == mode].set_index("batch_size")["p50_latency"]
                speedup = eager_times / mode_times
                df.loc[df["mode"] == mode, "speedup"] = speedup.values

        return {
            "summary": df.groupby("mode").agg({"p50_latency": "mean", "memory_mb": "mean", "speedup": "mean"}),
            "details": df,
            "recommendations": self.generate_recommendations(df),
        }

    def generate_recommendations(self, df):
        recommendations = []

        best_mode = df.groupby("mode")["speedup"].mean().idxmax()
        recommendations.append(f"use {best_mode}: {df[df['mode'] == best_mode]['speedup'].mean():.2f}x")

        if df["accuracy_loss"].max() > 1e-3:
            recommendations.append("warning: the compiled model is less accurate")

        memory_increase = df[df["mode"] != "eager"]["memory_mb"].mean() - df[df["mode"] == "eager"]["memory_mb"].mean()
        if memory_increase > 100:
            recommendations.append(f"the compiled model takes {memory_increase:.0f} MB more")

        return recommendations


@program("001 exercise 8.4, CompileBenchmark", needs="pandas")
def _():
    report = CompileBenchmark(Tower().eval(), t(4, 16)).run_benchmark()
    return (
        list(report["details"]["mode"]),
        bool(report["details"]["accuracy_loss"].max() < 1e-5),
        len(report["recommendations"]),
    )


# ---- exercise 8.5
class ProductionMonitor:
    """The parts of the document's monitor that need no metrics server."""

    def __init__(self):
        self.redis = None
        self.anomaly_detectors = {}
        self.errors = []

    async def initialize(self):
        self.redis = await aioredis.create_redis_pool("redis://localhost")

    async def monitor_inference(self, model_name, model_version, device_id, func):
        async def monitored_func(*args, **kwargs):
            start_time = time.time()

            try:
                result = await func(*args, **kwargs)

                latency = time.time() - start_time

                await self.stream_metrics(
                    {
                        "timestamp": datetime.utcnow().isoformat(),
                        "model": model_name,
                        "version": model_version,
                        "device": device_id,
                        "latency": latency,
                        "status": "success",
                    }
                )

                if self.detect_anomaly(model_name, latency):
                    await self.trigger_degradation(model_name, f"High latency: {latency}")

                return result

            except Exception as e:
                self.errors.append((model_name, type(e).__name__))
                await self.trigger_degradation(model_name, str(e))
                raise

        return monitored_func

    async def stream_metrics(self, metrics: dict[str, Any]):
        await self.redis.xadd("metrics:stream", {"data": json.dumps(metrics)})

        window_key = f"window:{metrics['model']}:5min"
        await self.redis.zadd(window_key, metrics["timestamp"], metrics["latency"])

        cutoff = time.time() - 300
        await self.redis.zremrangebyscore(window_key, 0, cutoff)

    def detect_anomaly(self, model_name: str, latency: float) -> bool:
        if model_name not in self.anomaly_detectors:
            self.anomaly_detectors[model_name] = OnlineAnomalyDetector()

        detector = self.anomaly_detectors[model_name]
        return detector.is_anomaly(latency)

    async def trigger_degradation(self, model_name: str, reason: str):
        degradation_config = {
            "model": model_name,
            "action": "switch_to_lite_model",
            "reason": reason,
            "timestamp": datetime.utcnow().isoformat(),
        }

        await self.redis.publish("degradation:trigger", json.dumps(degradation_config))


class OnlineAnomalyDetector:
    def __init__(self, alpha=0.1, threshold=3):
        self.alpha = alpha
        self.threshold = threshold
        self.mean = None
        self.var = None

    def is_anomaly(self, value: float) -> bool:
        if self.mean is None:
            self.mean = value
            self.var = 0
            return False

        self.mean = self.alpha * value + (1 - self.alpha) * self.mean
        self.var = self.alpha * (value - self.mean) ** 2 + (1 - self.alpha) * self.var

        std = np.sqrt(self.var)
        z_score = abs(value - self.mean) / (std + 1e-8)

        return z_score > self.threshold


@program("001 exercise 8.5, ProductionMonitor")
def _():
    model = ccompile.compile(nn.Linear(8, 4))

    async def run_perception(image, lidar):
        return model(torch.cat([image, lidar], dim=1))

    async def serve():
        monitor = ProductionMonitor()
        await monitor.initialize()
        run = await monitor.monitor_inference("perception_model", "v2.1", "cuda:0", run_perception)
        results = [await run(t(2, 4, seed=i), t(2, 4)) for i in range(3)]
        try:
            await run(t(2, 4), t(2, 5))
        except RuntimeError as error:
            results.append(str(error))
        return results, monitor.errors, len(monitor.redis.streams["metrics:stream"])

    return asyncio.run(serve())


# ---- exercise 8.6
class CompiledModelCache:
    def __init__(self, model, cache_size=10):
        self.base_model = model
        self.cache = {}
        self.cache_size = cache_size
        self.hit_count = 0
        self.miss_count = 0

    def get_bucket_size(self, size, bucket_width=32):
        return math.ceil(size / bucket_width) * bucket_width

    def get_compiled_model(self, input_shape):
        bucket_shape = tuple(self.get_bucket_size(dim) if i > 0 else dim for i, dim in enumerate(input_shape))

        cache_key = bucket_shape

        if cache_key in self.cache:
            self.hit_count += 1
            return self.cache[cache_key], bucket_shape

        self.miss_count += 1

        if len(self.cache) >= self.cache_size:
            # The document also passes assume_static_by_default, which is Dynamo's and which torch.compile refuses.
            compiled_model = ccompile.compile(self.base_model, dynamic=True, options={"shape_padding": True})
            self.cache.clear()
            self.cache["dynamic"] = compiled_model
            return compiled_model, input_shape

        compiled_model = ccompile.compile(
            self.base_model, options={"max_autotune": False, "epilogue_fusion": True, "aggressive_fusion": True}
        )
        self.cache[cache_key] = compiled_model

        return compiled_model, bucket_shape

    def forward(self, input_tensor):
        input_shape = tuple(input_tensor.shape)
        compiled_model, target_shape = self.get_compiled_model(input_shape)

        if input_shape != target_shape:
            padded_input = self.pad_to_shape(input_tensor, target_shape)
            output = compiled_model(padded_input)
            output = self.crop_to_shape(output, input_shape)
        else:
            output = compiled_model(input_tensor)

        return output

    def pad_to_shape(self, tensor, target_shape):
        padding = []
        for i in range(len(tensor.shape) - 1, -1, -1):
            diff = target_shape[i] - tensor.shape[i]
            padding.extend([0, diff])

        if any(p > 0 for p in padding):
            tensor = torch.nn.functional.pad(tensor, padding)

        return tensor

    def crop_to_shape(self, tensor, target_shape):
        slices = tuple(slice(0, dim) for dim in target_shape)
        return tensor[slices]

    def get_stats(self):
        total = self.hit_count + self.miss_count
        hit_rate = self.hit_count / total if total > 0 else 0
        return {"hit_rate": hit_rate, "miss_rate": 1 - hit_rate, "cache_size": len(self.cache), "total_requests": total}


class PrecompiledModelCache(CompiledModelCache):
    def __init__(self, model, common_sizes):
        super().__init__(model)
        self.precompile(common_sizes)

    def precompile(self, sizes):
        print(f"compiling for {len(sizes)} common sizes ...")

        for size in sizes:
            dummy_input = torch.randn(size)
            cache_key = tuple(size)

            compiled_model = ccompile.compile(self.base_model, options={"max_autotune": True})

            with torch.no_grad():
                _ = compiled_model(dummy_input)

            self.cache[cache_key] = compiled_model

        print(f"done: {len(self.cache)} in the cache")


class Pointwise(nn.Module):
    """The output has the input's shape, as crop_to_shape needs it."""

    def forward(self, x):
        return torch.tanh(x) * 2


@program("001 exercise 8.6, CompiledModelCache")
def _():
    cached = CompiledModelCache(Pointwise(), cache_size=2)
    results = [cached.forward(t(2, n, seed=n)) for n in (100, 120, 150, 200, 180)]
    return results, cached.get_stats()


@program("001 exercise 8.6, PrecompiledModelCache")
def _():
    cached = PrecompiledModelCache(Pointwise(), [(1, 32, 128), (1, 32, 160)])
    with torch.no_grad():
        results = [cached.forward(t(1, 3 + i % 30, 101 + i % 60, seed=i)) for i in range(40)]
    stats = cached.get_stats()
    return results, stats, stats["hit_rate"] > 0.95


# ---- the usual mistakes
def logged_in_forward(layers, debug_mode):
    @ccompile.compile
    def model_forward(x):
        if debug_mode:
            print(f"Input shape: {x.shape}")
        return layers(x)

    return model_forward


@program("001 mistake 1, profiling with a schedule")
def _():
    model = ccompile.compile(nn.Linear(4, 4))
    traces = []
    with profiler.profile(
        schedule=profiler.schedule(wait=1, warmup=1, active=3, repeat=1), on_trace_ready=traces.append
    ) as prof:
        results = []
        for i in range(6):
            results.append(model(t(2, 4, seed=i)))
            prof.step()
    return results, len(traces)


@program("001 mistake 3, another dtype")
def _():
    model = ccompile.compile(torch.tanh)
    return model(torch.ones(10, 10).float()), model(torch.ones(10, 10).double())


@program("001 mistake 5, print in forward")
def _():
    layers = nn.Linear(4, 4)
    return [logged_in_forward(layers, debug)(t(2, 4, seed=i)) for debug in (False, True) for i in range(2)]


@program("001 mistake 6, a range for each request")
def _():
    model, results = ccompile.compile(nn.Linear(4, 4)), []
    for i in range(4):
        with profiler.record_function("inference"):
            results.append(model(t(2, 4, seed=i)))
    return results


@program("001 mistakes 4, 7, 8 and 9, timing")
def _():
    model = ccompile.compile(nn.Linear(4, 4), dynamic=True)
    latencies, outputs = [], []
    for i in range(5):  # the document's: 100
        synchronize()
        start = time.time()
        outputs.append(model(t(2 + i % 2, 4, seed=i)))
        synchronize()
        latencies.append(time.time() - start)
        empty_cache()
    return outputs, len(latencies)


@program("001 mistake 10, debugging in production", recorded=False)
def _():
    ccompile.config.verbose = True
    ccompile.config.debug = True
    switched_on = ccompile.config.verbose, ccompile.config.debug
    ccompile.config.verbose = ccompile.config.debug = False
    return switched_on
