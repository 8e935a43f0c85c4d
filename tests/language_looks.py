"""C code that inspects tensors by itself: any(), filter(), max(), sorted keys, conversions (see language_cases.py)."""

import bisect
import functools
import itertools
import math
import operator

import torch
from language_cases import case, t

INPUTS = {"inputs": lambda i: (t(2, 3, seed=i + 5),)}


@case(**INPUTS)
def look_filter(x):
    return list(filter(lambda r: r.sum() > 0, x))


@case(**INPUTS)
def look_filternone(x):
    return list(filter(None, [r.sum().clamp(min=0).round() for r in x]))


@case(**INPUTS)
def look_takewhile(x):
    return list(itertools.takewhile(lambda r: r.sum() > 0, x))


@case(**INPUTS, over=1)  # compares tensors
def look_sortedkey(x):
    return sorted(x, key=lambda r: r.sum())


@case(**INPUTS)
def look_listsortkey(x):
    return (lambda l: (l.sort(key=lambda r: r.sum()), l))(list(x))


@case(**INPUTS, over=1)  # compares tensors
def look_maxkey(x):
    return max(x, key=lambda r: r.sum())


@case(**INPUTS)
def look_mapfloat(x):
    return list(map(float, x[0]))


@case(**INPUTS, hit=False)
def look_mapstr(x):
    return list(map(str, x[0]))


@case(**INPUTS)
def look_mapabs(x):
    return list(map(abs, x))


@case(**INPUTS)
def look_maxmap(x):
    return max(map(torch.sum, x))


@case(**INPUTS)
def look_maxmapf(x):
    return max(map(float, x[0]))


@case(**INPUTS, hit=False)
def look_join(x):
    return ",".join(f"{v.sum().item():.2f}" for v in x)


@case(**INPUTS, hit=False)
def look_join2(x):
    return ",".join([f"{v:.2f}" for v in x.tolist()[0]])


@case(**INPUTS)
def look_all(x):
    return all(v.sum() > 0 for v in x)


@case(**INPUTS)
def look_any(x):
    return any(v.sum() > 0 for v in x)


@case(**INPUTS)
def look_anymap(x):
    return any(map(lambda r: r.sum() > 0, x))


@case(**INPUTS)
def look_sortedgen(x):
    return sorted(v.sum() for v in x)


@case(**INPUTS)
def look_sortedgenf(x):
    return sorted(v.sum().item() for v in x)


@case(**INPUTS)
def look_prod(x):
    return math.prod(v.sum() for v in x)


@case(**INPUTS)
def look_fsum(x):
    return math.fsum(v.sum() for v in x)


@case(**INPUTS, hit=False)
def look_setgen(x):
    return {round(v.sum().item(), 1) for v in x}


@case(**INPUTS)
def look_setgen2(x):
    return set(v.sum().item() for v in x)


@case(**INPUTS, hit=False)
def look_dictgen(x):
    return dict((v.sum().item(), 1) for v in x)


@case(**INPUTS)
def look_accum(x):
    return list(itertools.accumulate(x, torch.maximum))


@case(**INPUTS)
def look_accummax(x):
    return list(itertools.accumulate([v.sum() for v in x], max))


@case(**INPUTS)
def look_reducemax(x):
    return functools.reduce(max, [v.sum() for v in x])


@case(**INPUTS, hit=False)
def look_groupby(x):
    return [k for k, _ in itertools.groupby(x, key=lambda r: r.sum() > 0)]


@case(**INPUTS)
def look_iter(x):
    return len(list(iter(lambda it=iter([x, x * 0]): next(it).sum(), 0.0)))


@case(**INPUTS)
def look_compress(x):
    return list(itertools.compress(x, [r.sum() > 0 for r in x]))


@case(**INPUTS)
def look_listindex(x):
    return [v.sum() for v in x].index(x[1].sum())


@case(**INPUTS)
def look_itemgetter(x):
    return sorted([(v.sum(), 1) for v in x], key=operator.itemgetter(0))


@case(**INPUTS, hit=False)
def look_range(x):
    return list(range(x.sum().abs().int()))


@case(**INPUTS, over=1)  # compares tensors
def look_minlist(x):
    return min([v.sum() for v in x])


@case(**INPUTS, hit=False)
def look_format(x):
    return "{:.2f}".format(x.sum().item())


@case(**INPUTS, hit=False, over=1)  # prints a tensor
def look_format2(x):
    return "{:.2f}".format(x.sum())


@case(**INPUTS, hit=False)
def look_pct(x):
    return "%.2f" % x.sum()


@case(**INPUTS, hit=False)
def look_round(x):
    return round(x.sum().item(), 2)


@case(**INPUTS, hit=False)
def look_bisect(x):
    return bisect.bisect([0.0, 1.0], x.sum().item())
