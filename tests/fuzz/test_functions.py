"""Random functions of torch code (functions.py), eager against compiled: values, exceptions, prints, state, gradients, random
streams, `_version`. CCOMPILE_FUZZ_FUNCTIONS=N is the number of programs (drawing.py); long runs are functions.py's command."""

import pytest
from fuzz.drawing import drawn
from fuzz.functions import calls, check, program
from hypothesis import note


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True], ids=["none", "true"])
def test_functions(dynamic):
    @drawn("CCOMPILE_FUZZ_FUNCTIONS", 8)
    def run(pick):
        made, called = program(pick), calls(pick)
        note(made.text)
        note("\n".join(map(str, called)))
        check(made, called, dynamic)

    run()
