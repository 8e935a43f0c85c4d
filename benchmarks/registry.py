"""The benchmarks' workloads, from the package's registry (ccompile/demo_models.py), which the demo uses, too."""

from ccompile.demo_models import WORKLOADS, Workload, build

__all__ = ["WORKLOADS", "Workload", "build"]
