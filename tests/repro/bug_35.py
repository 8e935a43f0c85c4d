# behind a break an iterator over a dict (keys, values, items) that waits there was made again as one over a list of what was left:
# changes of the dict's values, and of its size, did not reach it in replays
import torch, ccompile, sys
@ccompile.disable
def brk(*_): pass
def values(x):
    d = {1: 1, 2: 2, 3: 3}; r = []
    for v in d.values(): brk(); d[3] = v + 5; r.append(v)
    return r
def grows(x):
    d = {1: 1, 2: 2}; r = []
    for k in d: brk(); d[k + 10] = 1; r.append(k)
    return r
def moved(x):
    d = {1: 1, 2: 2, 3: 3}; it = iter(d.items()); next(it); brk()
    del d[2]; brk(); d[2] = 9
    return list(it)
bad = []
def run(f):
    try: return f(torch.ones(1))
    except Exception as e: return repr(e)
for f in (values, grows, moved):
    w = run(f); c = ccompile.compile(f)
    for i in range(3):
        g = run(c)
        if g != w: bad.append((f.__name__, i, "eager", w, "compiled", g))
print(*bad, sep="\n")
if bad: print("MISMATCH"); sys.exit(1)
