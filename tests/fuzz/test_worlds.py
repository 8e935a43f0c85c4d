"""What is changed between two calls, anywhere in what a program can reach, is seen (worlds.py). CCOMPILE_FUZZ_WORLDS=N is the
number of mutations; long runs are worlds.py's command."""

import os

import pytest
from fuzz import worlds

TRIALS = int(os.environ.get("CCOMPILE_FUZZ_WORLDS", "1200")) // worlds.MUTATIONS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_worlds(part):
    wrong = {seed: worlds.failure(worlds.drawn(seed)) for seed in range(part, TRIALS, 3)}
    assert not {seed: text for seed, text in wrong.items() if text}


def test_control_a_mutation_of_one_side_is_found(monkeypatch):
    """Eager's world alone is changed: most programs that see a mutation at all have to fail, else the comparison proves nothing."""
    plain = worlds.Change.apply

    def apply(self):
        return plain(self) if self.world.call is self.world.names["f"] else "nothing"

    monkeypatch.setattr(worlds.Change, "apply", apply)
    monkeypatch.setattr(worlds.Change, "undo", lambda self: "nothing")
    assert sum(bool(worlds.failure(worlds.drawn(seed))) for seed in range(40)) > 20
