"""Compares two measurements of `python -m ccompile bench`: Welch's t-test and Cohen's d for the times, and limits for
what does not vary (memory, graph breaks, accuracy).

A sample is what one process measured: calls of one process resemble each other more than those of the next one, so they
would make chance look significant. A time is compared as a fraction of eager's in the same process, which a slower
machine leaves unchanged."""

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

P_VALUE, EFFECT = 0.05, 0.2  # a difference counts below this probability and above this effect size
SLOWER, SLOWER_FIRST, MORE_MEMORY = 0.05, 0.25, 0.10  # failure: steady calls; warnings: first calls, peak memory
INACCURATE = 1e-3
SIZES = ((0.2, "negligible"), (0.5, "small"), (0.8, "medium"), (math.inf, "large"))


@dataclass(frozen=True)
class Difference:
    """Of two sets of samples of at least two each: `change` is relative, and positive if the later mean is higher."""

    before: float
    after: float
    p_value: float
    cohens_d: float

    @property
    def change(self) -> float:
        return self.after / self.before - 1

    @property
    def significant(self) -> bool:
        return self.p_value < P_VALUE and abs(self.cohens_d) > EFFECT

    @property
    def effect(self) -> str:
        return next(name for below, name in SIZES if abs(self.cohens_d) < below)


def difference(before: list[float], after: list[float]) -> Difference:
    """Raises ImportError if scipy is missing, ValueError for fewer than two samples."""
    if min(len(before), len(after)) < 2:
        raise ValueError("Welch's t-test needs two samples of each kind: measure in more processes")
    try:
        from scipy.stats import ttest_ind
    except ImportError:
        raise ImportError("comparing needs scipy: pip install 'ccompile[regression]'") from None
    means = fmean(before), fmean(after)
    spread = math.sqrt((stdev(before) ** 2 + stdev(after) ** 2) / 2)
    if spread == 0:  # scipy divides by it
        equal = means[0] == means[1]
        return Difference(*means, 1.0 if equal else 0.0, 0.0 if equal else math.copysign(math.inf, means[1] - means[0]))
    p_value = float(ttest_ind(before, after, equal_var=False).pvalue)
    return Difference(*means, p_value, (means[1] - means[0]) / spread)


@dataclass(frozen=True)
class Verdict:
    """What changed for one batch size and mode."""

    name: str  # "batch 8, default", or "default"
    steady: Difference
    first: Difference
    failures: tuple[str, ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        t = self.steady
        known = f"p = {t.p_value:.3f}, d = {t.cohens_d:+.2f} ({t.effect})"
        found = "; ".join([*self.failures, *self.warnings]) or "no regression"
        return f"{self.name}: {t.change:+.1%} time per call, {known}: {found}"


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[Verdict]:
    """Verdicts for the rows that both have. Raises ValueError if there is none."""
    known = {(row["batch"], row["mode"]): row for row in before["rows"]}
    pairs = [(known[key], row) for row in after["rows"] if (key := (row["batch"], row["mode"])) in known]
    if not pairs:
        raise ValueError("the two measurements have no batch size and mode in common")
    return [_verdict(old, new) for old, new in pairs]


def _verdict(old: dict[str, Any], new: dict[str, Any]) -> Verdict:
    steady = difference(_relative(old, "compiled_ms"), _relative(new, "compiled_ms"))
    first = difference(_relative(old, "cold_ms"), _relative(new, "cold_ms"))
    failures: list[str] = []
    warnings: list[str] = []
    if steady.significant and steady.change > 0:
        (failures if steady.change > SLOWER else warnings).append(f"calls take {steady.change:.1%} longer")
    if first.significant and first.change > SLOWER_FIRST:
        warnings.append(f"first calls take {first.change:.0%} longer")
    memory = _mean(new, "memory_mib") - _mean(old, "memory_mib")
    if memory > max(1.0, MORE_MEMORY * _mean(old, "memory_mib")):
        warnings.append(f"peak memory grew by {memory:.1f} MiB")
    if new["breaks"] > old["breaks"]:
        failures.append(f"graph breaks: {old['breaks']} before, {new['breaks']} now")
    if new["accuracy_loss"] > max(INACCURATE, old["accuracy_loss"]):
        failures.append(f"accuracy: the error grew from {old['accuracy_loss']:.1e} to {new['accuracy_loss']:.1e}")
    name = new["mode"] if new["batch"] is None else f"batch {new['batch']}, {new['mode']}"
    return Verdict(name, steady, first, tuple(failures), tuple(warnings))


def _relative(row: dict[str, Any], key: str) -> list[float]:
    return [one[key] / one["eager_ms"] for one in row["processes"]]


def _mean(row: dict[str, Any], key: str) -> float:
    return fmean(one[key] for one in row["processes"])
