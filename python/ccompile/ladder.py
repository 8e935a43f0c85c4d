"""A ladder of models for a deadline: each call runs the best one that is expected to be ready in time.

Nothing is compiled within a deadline: a call for which nothing is compiled runs eagerly, and `precompile` is what
compiles and measures."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .api import compile, disabled_of
from .costs import percentile, synchronize
from .shapes import Precompiled, arguments, precompile

KEPT = 64  # times of a rung's latest calls
ENOUGH = 8  # of them for their P95 to count
FORGETS = 16  # a rung that is passed over so often forgets its oldest time: it is tried again when too few are left
NEVER = 2**31 - 1  # compile_after: nothing is recorded, except by precompile


class Ran(NamedTuple):
    """A call of a DeadlineLadder."""

    result: Any
    name: str  # of the model that ran
    ms: float


class _Rung:
    def __init__(self, name: str, model: Callable[..., Any], expected_ms: float, options: dict[str, Any]) -> None:
        knobs = {**(options.get("options") or {}), "compile_after": NEVER}
        self.name, self.given_ms = name, expected_ms
        self.model = compile(model, **options | {"options": knobs})
        self.is_eager = disabled_of(self.model) is not None
        self.times: deque[float] = deque(maxlen=KEPT)
        self.calls = self.passed_over = 0

    @property
    def expected_ms(self) -> float:
        """P95 of the latest calls; before there are enough, what the caller has said."""
        return percentile(self.times, 95) if len(self.times) >= ENOUGH else self.given_ms

    def precompile(self, given: list[tuple[Any, ...]]) -> list[Precompiled]:
        made = [] if self.is_eager else precompile(self.model, given)
        if made:
            precompile(self.model, given)  # the first replays make kernels
        for args in given * ENOUGH:
            self.run(args, {})
        return made

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ran:
        start = time.perf_counter()
        result = self.model(*args, **kwargs)
        synchronize()
        ms = (time.perf_counter() - start) * 1e3
        self.times.append(ms)
        return Ran(result, self.name, ms)

    def pass_over(self) -> None:
        self.passed_over += 1
        if self.passed_over % FORGETS == 0 and self.times:
            self.times.popleft()


def _time(what: str, ms: Any) -> float:
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not ms > 0:
        raise ValueError(f"{what} must be a number of ms above 0, not {ms!r:.100}")
    return ms


def _check(models: Any) -> None:
    form = "models must be a sequence of (name, model, expected ms)"
    if not isinstance(models, Sequence):
        raise TypeError(f"{form}, not {type(models).__name__}: {models!r:.100}")
    if not models:
        raise ValueError(f"a ladder needs a model; {form}")
    for rung in models:
        if not isinstance(rung, tuple | list) or len(rung) != 3 or not isinstance(rung[0], str):
            raise TypeError(f"{form}; one is {rung!r:.100}")
        _time(f"the time of {rung[0]!r}", rung[2])
    names = [rung[0] for rung in models]
    if len(set(names)) < len(names):
        raise ValueError(f"each model needs a name of its own, not {names!r:.200}")


class DeadlineLadder:
    """Models for one task, the best first. A call runs the first one whose expected time, the P95 of its latest calls,
    is at most `deadline_ms` less a tenth, and the last one if none is. A running model is not interrupted.

    models:      (name, model, expected ms) each; the time counts until calls have been measured.
    deadline_ms: of a call, in ms; may be assigned later.
    options:     those of ccompile.compile, for all models. ccompile.disable(model) stays eager.

    Raises TypeError if models is not of that form, ValueError if there is none, names are equal, or a time is not
    above 0."""

    def __init__(
        self, models: Sequence[tuple[str, Callable[..., Any], float]], deadline_ms: float, **options: Any
    ) -> None:
        _check(models)
        self.deadline_ms = deadline_ms
        self._rungs = [_Rung(name, model, ms, options) for name, model, ms in models]

    @property
    def deadline_ms(self) -> float:
        return self._deadline_ms

    @deadline_ms.setter
    def deadline_ms(self, ms: float) -> None:
        self._deadline_ms = _time("deadline_ms", ms)

    def precompile(self, inputs: Iterable[Any]) -> dict[str, list[Precompiled]]:
        """Compiles each model for the inputs (those of ccompile.precompile) and measures it, in real calls."""
        given, made = [arguments(item) for item in inputs], {}
        for rung in self._rungs:
            made[rung.name] = rung.precompile(given)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Ran:
        """Runs one of the models; raises what it raises."""
        limit = 0.9 * self.deadline_ms
        for rung in self._rungs:
            if rung.expected_ms <= limit:
                break
            rung.pass_over()
        rung.calls += 1
        return rung.run(args, kwargs)

    def stats(self) -> dict[str, int]:
        """The calls of each model, by its name."""
        return {rung.name: rung.calls for rung in self._rungs}
