"""The fuzzer of mutations (worlds.py) finds what it is made to find."""

from fuzz import worlds


def test_control_a_mutation_of_one_side_is_found(monkeypatch):
    """Eager's world alone is changed: most programs that see a mutation at all have to fail, else the comparison proves nothing."""
    plain = worlds.Change.apply

    def apply(self):
        return plain(self) if self.world.call is self.world.names["f"] else "nothing"

    monkeypatch.setattr(worlds.Change, "apply", apply)
    monkeypatch.setattr(worlds.Change, "undo", lambda self: "nothing")
    assert sum(bool(worlds.failure(worlds.drawn(seed))) for seed in range(40)) > 20
