"""Document 001, exercise 8.7: a regression test of performance for a CI."""

import json
import time
from datetime import datetime
from pathlib import Path

import ccompile
import numpy as np
import torch
from seeds.device import synchronize
from seeds.listing import program, t
from seeds.services import Repo
from torch import nn


class PerformanceRegressionTest:
    """The document keeps model, test data and baselines in files next to the repository; here they are in `folder`."""

    def __init__(self, folder, model, test_data):
        self.repo = Repo(folder)
        self.model = model
        self.test_data = test_data
        self.folder = folder
        self.baseline_db = Path(folder) / "baselines.json"

    def run_regression_test(self, commit_hash=None):
        current_perf = self.measure_performance(commit_hash)
        baseline_perf = self.get_baseline()

        regression_report = self.analyze_regression(baseline_perf, current_perf)

        report = self.generate_report(regression_report)

        return self.make_decision(regression_report)

    def get_baseline(self):
        with open(self.baseline_db) as f:
            return json.load(f)[self.repo.head.commit.hexsha]["metrics"]

    def measure_performance(self, commit_hash=None):
        if commit_hash:
            self.repo.git.checkout(commit_hash)

        model = ccompile.compile(self.model)
        model.eval()

        test_data = self.test_data

        metrics = {"latencies": [], "memory_usage": [], "accuracy": [], "compile_time": None}

        start = time.time()
        with torch.no_grad():
            _ = model(test_data[0])
        metrics["compile_time"] = time.time() - start

        for i in range(30):  # the document's: 100
            if i < 10:
                with torch.no_grad():
                    _ = model(test_data[i % len(test_data)])
                continue

            batch = test_data[i % len(test_data)]

            synchronize()
            start = time.time()
            with torch.no_grad():
                output = model(batch)
            synchronize()
            latency = time.time() - start

            metrics["latencies"].append(latency)

            metrics["memory_usage"].append((torch.cuda.memory_allocated() if torch.cuda.is_available() else 1e6) / 1e6)

            if hasattr(batch, "labels"):
                acc = self.compute_accuracy(output, batch.labels)
                metrics["accuracy"].append(acc)

        return metrics

    def analyze_regression(self, baseline, current):
        from scipy import stats

        analysis = {}

        baseline_latencies = np.array(baseline["latencies"])
        current_latencies = np.array(current["latencies"])

        t_stat, p_value = stats.ttest_ind(baseline_latencies, current_latencies, equal_var=False)

        pooled_std = np.sqrt((np.std(baseline_latencies) ** 2 + np.std(current_latencies) ** 2) / 2)
        cohens_d = (np.mean(current_latencies) - np.mean(baseline_latencies)) / pooled_std

        analysis["latency"] = {
            "baseline_mean": np.mean(baseline_latencies),
            "current_mean": np.mean(current_latencies),
            "change_percent": (np.mean(current_latencies) - np.mean(baseline_latencies))
            / np.mean(baseline_latencies)
            * 100,
            "p_value": p_value,
            "cohens_d": cohens_d,
            "significant": p_value < 0.05 and abs(cohens_d) > 0.2,
            "regression": p_value < 0.05 and cohens_d > 0.2,
        }

        analysis["memory"] = {
            "baseline_mean": np.mean(baseline["memory_usage"]),
            "current_mean": np.mean(current["memory_usage"]),
            "change_percent": (np.mean(current["memory_usage"]) - np.mean(baseline["memory_usage"]))
            / np.mean(baseline["memory_usage"])
            * 100,
        }

        analysis["compile_time"] = {
            "baseline": baseline["compile_time"],
            "current": current["compile_time"],
            "change_percent": (current["compile_time"] - baseline["compile_time"]) / baseline["compile_time"] * 100,
        }

        analysis["tail_latency"] = {
            "p95_baseline": np.percentile(baseline_latencies, 95),
            "p95_current": np.percentile(current_latencies, 95),
            "p99_baseline": np.percentile(baseline_latencies, 99),
            "p99_current": np.percentile(current_latencies, 99),
        }

        return analysis

    def generate_report(self, analysis):
        report = f"""
# Regression test

- **latency**: {analysis["latency"]["change_percent"]:.2f}%
- **memory**: {analysis["memory"]["change_percent"]:.2f}%
- **p**: {analysis["latency"]["p_value"]:.4f}
- **verdict**: {"slower" if analysis["latency"]["regression"] else "fine"}

| | baseline | current | change |
|---|---|---|---|
| mean | {analysis["latency"]["baseline_mean"] * 1000:.2f}ms | {analysis["latency"]["current_mean"] * 1000:.2f}ms | {analysis["latency"]["change_percent"]:+.2f}% |
| P95 | {analysis["tail_latency"]["p95_baseline"] * 1000:.2f}ms | {analysis["tail_latency"]["p95_current"] * 1000:.2f}ms | - |
| P99 | {analysis["tail_latency"]["p99_baseline"] * 1000:.2f}ms | {analysis["tail_latency"]["p99_current"] * 1000:.2f}ms | - |

- **Cohen's d**: {analysis["latency"]["cohens_d"]:.3f}, {self.interpret_cohens_d(analysis["latency"]["cohens_d"])}
"""

        with open(Path(self.folder) / "performance_report.md", "w") as f:
            f.write(report)

        return report

    def interpret_cohens_d(self, d):
        d = abs(d)
        if d < 0.2:
            return "negligible"
        elif d < 0.5:
            return "small"
        elif d < 0.8:
            return "medium"
        else:
            return "large"

    def make_decision(self, analysis):
        LATENCY_THRESHOLD = 5
        MEMORY_THRESHOLD = 10

        failures = []
        warnings = []

        if analysis["latency"]["regression"]:
            if analysis["latency"]["change_percent"] > LATENCY_THRESHOLD:
                failures.append(f"latency grew by {analysis['latency']['change_percent']:.1f}%")
            else:
                warnings.append(f"latency grew a little, by {analysis['latency']['change_percent']:.1f}%")

        if analysis["memory"]["change_percent"] > MEMORY_THRESHOLD:
            warnings.append(f"memory grew by {analysis['memory']['change_percent']:.1f}%")

        if failures:
            print("failed", failures)
            return False
        elif warnings:
            print("passed with warnings", warnings)
            return True
        else:
            print("passed")
            return True

    def update_baseline(self, metrics):
        baselines = {}
        if self.baseline_db.exists():
            with open(self.baseline_db) as f:
                baselines = json.load(f)

        baselines[self.repo.head.commit.hexsha] = {"timestamp": datetime.now().isoformat(), "metrics": metrics}

        with open(self.baseline_db, "w") as f:
            json.dump(baselines, f, indent=2)


@program("001 exercise 8.7, PerformanceRegressionTest", needs="scipy")
def _():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        test = PerformanceRegressionTest(folder, nn.Linear(8, 8), [t(2, 8, seed=i) for i in range(3)])
        metrics = test.measure_performance()
        metrics |= {"latencies": [0.010 + 1e-5 * i for i in range(20)]}  # the verdicts must not depend on the machine
        verdicts = []
        for factor in (0.5, 1.0, 2.0):
            test.update_baseline(metrics | {"latencies": [factor * one for one in metrics["latencies"]]})
            analysis = test.analyze_regression(test.get_baseline(), metrics)
            verdicts.append((test.make_decision(analysis), analysis["latency"]))
        return verdicts, sorted(metrics), test.run_regression_test() in (True, False)
