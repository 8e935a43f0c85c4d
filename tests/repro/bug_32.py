# constants are part of kernels, so an unrolled loop with `+ i` compiles one kernel a turn: 11 ms each (2000 turns: 20 s)
import sys, torch, ccompile
w = torch.eye(4); x = torch.ones(4); made = []
for n in (20, 200):
    def f(x):
        for i in range(n): x = torch.relu(x @ w) + i
        return x
    c = ccompile.compile(f); before = ccompile.counters["kernel"]; c(x); made.append(ccompile.counters["kernel"] - before)
print("kernels compiled for 20 and 200 turns:", made)
if made[1] > made[0] + 8: print("MISMATCH"); sys.exit(1)
