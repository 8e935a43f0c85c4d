"""The benchmarks' workloads: the package's one registry (ccompile/demo_models.py), which the demo uses as well."""

from ccompile.demo_models import WORKLOADS, Workload, build

__all__ = ["WORKLOADS", "Workload", "build"]
