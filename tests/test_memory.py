"""Memory of a call: compilers' pages are released before the next run, library calls take scratch from the call's block, large
results use huge pages. Processes of their own measure resident sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import ccompile
import pytest
import torch
from torch import nn


def alone(code: str, **more: str) -> str:
    """What a fresh process prints."""
    head = """
        import ccompile, torch, re
        torch.set_grad_enabled(False)
        def resident(library):  # MiB of the pages that are only read
            found, here = 0, False
            for line in open("/proc/self/smaps"):
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    here = library in line and "w" not in line.split()[1]
                elif here and line.startswith("Rss:"):
                    found += int(line.split()[1]) / 1024
            return found
    """
    env = {**os.environ, **more}
    done = subprocess.run([sys.executable, "-c", dedent(head) + dedent(code)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pages_of_llvm_go_and_come_back():
    out = alone("""
        x = torch.randn(8, 40)
        fns = [lambda x: (x * 2 + 1).sin() * x, lambda x: x.softmax(-1) + x.exp(), lambda x: x.tanh() - x.sum(0)]
        for fn in fns:
            c = ccompile.compile(fn)
            for _ in range(2):
                torch.testing.assert_close(c(x), fn(x))
            print(resident("libllvmlite"))
    """, CCOMPILE_WORKER="0", CCOMPILE_CACHE_DIR="")
    sizes = [float(line) for line in out.split()]
    assert len(sizes) == 3 and 0 < max(sizes) < 16, "one kernel alone touches 40 MiB of LLVM"


def test_pages_go_while_another_thread_compiles():
    alone("""
        import threading
        x = torch.randn(8, 40)
        def work(n):
            for i in range(n, n + 6):
                fn = lambda x, i=i: (x * i).cos() + i
                c = ccompile.compile(fn)
                for _ in range(3):
                    torch.testing.assert_close(c(x), fn(x))
        threads = [threading.Thread(target=work, args=(10 * t,)) for t in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    """, CCOMPILE_WORKER="0", CCOMPILE_CACHE_DIR="")


def test_pages_stay_where_no_code_is_made():
    """A plan of what is compiled already, as for each new size, gives nothing back."""
    out = alone("""
        import ctypes
        def touch(library):
            for line in open("/proc/self/maps"):
                begin, end = (int(n, 16) for n in line.split()[0].split("-"))
                if library in line and line.split()[1] == "r-xp":
                    ctypes.string_at(begin, end - begin)
        def layers(n, calls=2):
            fn = lambda x, w: torch.relu(torch.relu(x) @ w)
            c, x, w = ccompile.compile(fn), torch.randn(n, 64), torch.randn(64, 48)
            for _ in range(calls):
                torch.testing.assert_close(c(x, w), fn(x, w))
        layers(32)
        for n in (32, 33):
            touch("libdnnl")
            before = resident("libdnnl")
            layers(n)
            print(resident("libdnnl") / before)
    """)
    same, new = (float(line) for line in out.split())
    assert same > 0.9 and new < 0.6


class Wide(nn.Module):
    """Convolutions whose weights are converted in each call, with values alive across them."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(3))
        self.rnn = nn.LSTM(64, 48, num_layers=2, batch_first=True)
        self.out = nn.Linear(48, 64)

    def forward(self, x):
        kept = [x.sin(), x.cos()]
        for conv in self.convs:
            kept.append(torch.tanh(conv(kept[-1]) + kept[-2]))
        rows = sum(kept).flatten(2).transpose(1, 2)
        return self.out(self.rnn(rows)[0]) + rows


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_scratch_of_library_calls_spares_what_is_alive(mode):
    model = Wide().eval()
    compiled = ccompile.compile(model, mode=mode)
    with torch.no_grad():
        for size in (5, 24):
            for seed in range(3):
                x = torch.randn(2, 64, size, size, generator=torch.Generator().manual_seed(seed))
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2048, 1024), (3000, 1001), (1 << 21,)], ids=str)
def test_large_results(shape):
    """At and around the size from which on results have large pages."""

    def f(x):
        return x.softmax(-1), (x * 2).amax(-1), x + 1

    x = torch.randn(shape)
    if x.dim() > 1:
        x[0, 7], x[1, 8], x[2, 9] = float("nan"), float("inf"), float("-inf")
    compiled = ccompile.compile(f)
    with torch.no_grad():
        for _ in range(3):
            for got, want in zip(compiled(x), f(x), strict=True):
                torch.testing.assert_close(got, want, equal_nan=True)
                assert got.stride() == want.stride()
