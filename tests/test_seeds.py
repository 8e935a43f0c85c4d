"""Every code listing of the five source documents (tests/seeds/): with ccompile in place of torch.compile it gives what
eager gives, breaks where the document or today's Dynamo says, and its reader finds what the document promises."""

import importlib
import os
import random

import ccompile
import conftest
import numpy
import pytest
import torch
from conftest import EAGER, alike, counters, no_worse
from seeds.listing import LISTINGS

# In the documents' order; to import one adds its listings to LISTINGS.
for part in "breaks control regions driving exercises profiling monitoring regression mistakes article modes".split():
    importlib.import_module(f"seeds.{part}")
DYNAMO = os.environ.get("CCOMPILE_SEEDS_DYNAMO", "0") not in ("", "0")
pytestmark = pytest.mark.skipif(EAGER, reason="compares compiled with eager runs")


def ran(listing, stance):
    """What the listing gives under a stance, from the same random streams."""
    ccompile.reset()
    torch.manual_seed(7)
    numpy.random.seed(7)
    random.seed(7)
    with ccompile.set_stance(stance):
        return listing.run()


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.name)
def test_gives_what_eager_gives(listing):
    if listing.needs:
        pytest.importorskip(listing.needs)
    before = counters()["recording"]
    eager = ran(listing, "force_eager")
    assert counters()["recording"] == before
    compiled = ran(listing, "default")
    assert (counters()["recording"] > before) == listing.recorded
    alike(eager, compiled, rtol=listing.rtol)


@pytest.mark.parametrize("listing", [one for one in LISTINGS if one.counted], ids=lambda listing: listing.name)
def test_breaks_where_it_must(listing):
    fn, args = listing.counted
    if DYNAMO:
        no_worse(fn, *args, expect=listing.breaks, graphs=listing.graphs, bare=listing.bare)
    else:
        assert conftest.breaks(fn, *args) == (listing.graphs, listing.breaks)
