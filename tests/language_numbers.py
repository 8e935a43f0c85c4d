"""Numbers read from tensors and then used by C code: sorted, max, sum, any, keys, text (see language_cases.py)."""

import bisect
import collections
import functools
import heapq
import itertools
import math

from language_cases import SINCE_314, case, t

# over=: behind the first read Dynamo has no op left to compile, so that it runs and counts nothing more; here C code that
# looks at a number which a node computes is a break, wherever it stands.
INPUTS = {"inputs": lambda i: (t(2, 3, seed=i) + (i % 3) - 1,), "hit": False}


def nums(x):
    return [v.item() for v in x.flatten()]


@case(**INPUTS)
def number_gen_sortedgen(x):
    return sorted(v * 2 for v in nums(x))


@case(**INPUTS)
def number_gen_sumgen(x):
    return sum(v * 2 for v in nums(x))


@case(**INPUTS)
def number_gen_maxgen(x):
    return max(v * 2 for v in nums(x))


@case(**INPUTS)
def number_gen_mingen(x):
    return x + min(v * 2 for v in nums(x))


@case(**INPUTS)
def number_gen_anygen(x):
    return any(v > 0.5 for v in nums(x)), all(v > -0.5 for v in nums(x))


@case(**INPUTS, over=SINCE_314)  # any() is inlined: jumps read the truth of numbers
def number_gen_anygen2(x):
    return any(v * 2 for v in nums(x))


@case(**INPUTS)
def number_gen_maxkey(x):
    return max(nums(x), key=lambda v: v * v)


@case(**INPUTS)
def number_gen_sortkey(x):
    l = nums(x)
    l.sort(key=lambda v: -v)
    return l


@case(**INPUTS)
def number_gen_sortpairs(x):
    return sorted(((v, i) for i, v in enumerate(nums(x))), reverse=True)


@case(**INPUTS)
def number_gen_maxpairs(x):
    return max((v + 1, i) for i, v in enumerate(nums(x)))


@case(**INPUTS, over=2)
def number_gen_setgen(x):
    return sorted({round(v * 2) for v in nums(x)})


@case(**INPUTS, over=1)
def number_gen_dictgen(x):
    return {int(v * 2): i for i, v in enumerate(nums(x))}


@case(**INPUTS)
def number_gen_filter(x):
    return list(filter(lambda v: v > 0, nums(x)))


@case(**INPUTS)
def number_gen_filternone(x):
    return list(filter(None, (max(v, 0.0) for v in nums(x))))


@case(**INPUTS)
def number_gen_takewhile(x):
    return list(itertools.takewhile(lambda v: v > 0, nums(x)))


@case(**INPUTS)
def number_gen_accum(x):
    return list(itertools.accumulate(v + 1 for v in nums(x)))


@case(**INPUTS)
def number_gen_accummax(x):
    return list(itertools.accumulate((v + 1 for v in nums(x)), max))


@case(**INPUTS)
def number_gen_reduce(x):
    return functools.reduce(lambda a, b: a if a > b else b, (v * 3 for v in nums(x)))


@case(**INPUTS)
def number_gen_prod(x):
    return math.prod(v * 2 for v in nums(x)), math.fsum(v * 2 for v in nums(x))


@case(**INPUTS)
def number_gen_join(x):
    return ",".join(f"{v * 2:.2f}" for v in nums(x))


@case(**INPUTS)
def number_gen_joinstr(x):
    return ",".join(str(v * 2) for v in nums(x))


@case(**INPUTS, over=1)
def number_gen_heap(x):
    h = []
    for v in nums(x):
        heapq.heappush(h, v * 2)
    return [heapq.heappop(h) for _ in range(3)]


@case(**INPUTS, over=1)
def number_gen_nlargest(x):
    return heapq.nlargest(2, (v * 2 for v in nums(x)))


@case(**INPUTS, over=1)
def number_gen_in(x):
    return 1.0 in (round(v) for v in nums(x))


@case(**INPUTS, over=1)
def number_gen_tuplecmp(x):
    return tuple(v + 1 for v in nums(x)) > (1.0, 1.0)


@case(**INPUTS, over=1)
def number_gen_index(x):
    l = [round(v * 2) for v in nums(x)]
    return l.index(max(l)), l.count(0)


@case(**INPUTS)
def number_gen_zipmax(x):
    return [max(a, b) for a, b in zip(nums(x), nums(-x))]


@case(**INPUTS)
def number_gen_counter(x):
    return collections.Counter(v > 0 for v in nums(x)).most_common()


@case(**INPUTS)
def number_gen_mapmax(x):
    return max(map(lambda v: v + 1, nums(x)))


@case(**INPUTS)
def number_gen_mapabs(x):
    return max(map(abs, (v + 1 for v in nums(x))))


@case(**INPUTS)
def number_gen_sortedmap(x):
    return sorted(map(lambda v: v + 1, nums(x)))


@case(**INPUTS)
def number_gen_tolist(x):
    return sorted(v * 2 for row in x.tolist() for v in row)


@case(**INPUTS, over=1)
def number_gen_tolist_sum(x):
    return x * sum(v * 2 for row in x.tolist() for v in row)


@case(**INPUTS)
def number_gen_intgen(x):
    return sum(int(v) for v in nums(x)), max(int(v * 3) for v in nums(x))


@case(**INPUTS)
def number_gen_anyint(x):
    return any(int(v) for v in nums(x))


@case(**INPUTS)
def number_gen_next(x):
    return next((v * 2 for v in nums(x) if v > 0), None)


@case(**INPUTS, over=1)
def number_gen_nextmax(x):
    best = None
    for v in (u * 2 for u in nums(x)):
        if best is None or v > best:
            best = v
    return best


@case(**INPUTS, over=1)
def number_gen_float_from_item(x):
    a = x.sum().item()
    return sorted([a * 2, a + 1, 0.5, -a]), max(a * 2, 0.0), min((a + 1, 0.25)), any([a - a]), bool(a * 2)


@case(**INPUTS)
def number_gen_gen_shared(x):
    a = x.sum().item()
    g = (a * i for i in range(3))
    return max(g), x * a


@case(**INPUTS)
def number_gen_if_in_gen(x):
    a = x.sum().item()
    return sum(1 for i in range(4) if a * i > 1), [i for i in range(4) if a + i > 0]


@case(**INPUTS)
def number_gen_dict_values(x):
    d = {i: v.item() * 2 for i, v in enumerate(x.flatten())}
    return max(d.values()), sorted(d.items(), key=lambda kv: kv[1]), max(d, key=d.get), min(d, key=lambda k: d[k])


@case(**INPUTS, over=1)
def number_gen_sorted_attr(x):
    class P:
        def __init__(s, v):
            s.v = v

        def __lt__(s, o):
            return s.v < o.v

    return [p.v for p in sorted(P(v * 2) for v in nums(x))]


@case(**INPUTS)
def number_gen_slice(x):
    n = int(x.abs().sum().item()) % 3
    return x[:n], list(range(n)), [0] * n, "a" * n


@case(**INPUTS, over=1)
def number_gen_format(x):
    a = x.sum().item() * 2
    return "%.3f" % a, "{:.2f} {}".format(a, a), f"{a!r:>12}", str(a), repr(a + 1)


@case(**INPUTS, over=1)
def number_gen_round(x):
    a = x.sum().item() * 2
    return round(a), round(a, 1), int(a), math.floor(a), divmod(a, 1.0), abs(a), -a, a**2, a // 1, a % 1


@case(**INPUTS, over=1)
def number_gen_isnan(x):
    a = x.sum().item() * 2
    return math.isnan(a), math.isclose(a, a + 1e-12), a.is_integer(), a.hex()


@case(**INPUTS)
def number_gen_clamp(x):
    a = max(0.0, min(1.0, x.sum().item()))
    return x * a, a


@case(**INPUTS, over=1)
def number_gen_struct(x):
    import struct

    return struct.pack("d", x.sum().item())


@case(**INPUTS)
def number_best(x):
    best = None
    for v in x:
        u = v.sum().item()
        if best is None or u > best:
            best = u
    return best, x * best


@case(**INPUTS)
def number_prev(x):
    prev, out = 0.0, []
    for v in x.flatten():
        cur = v.item()
        out.append(cur - prev)
        prev = cur
    return out, prev, cur


@case(**INPUTS)
def number_same(x):
    a = b = x.sum().item()
    c = x.max().item()
    if c > 0:
        b = c
    d = x.min().item()
    return a, b, c, d, x * a + b


@case(**INPUTS)
def number_max_then_break(x):
    a, b = x.sum().item(), x.mean().item()
    m = max(a, b)
    c = x.max().item()
    return m, a, b, c, x * m


@case(**INPUTS)
def number_list_alias(x):
    a, b = x.sum().item(), x.mean().item()
    l = [a, b, max(a, b), min(a, b)]
    c = x.max().item()
    return l + [c]


@case(**INPUTS)
def number_dict_alias(x):
    a, b = x.sum().item(), x.mean().item()
    d = {"a": a, "b": b, "m": max(a, b)}
    c = x.max().item()
    d["c"] = c
    return d


@case(**INPUTS)
def number_sum(x):
    a = x.sum().item()
    return sum(a * i for i in range(3)), sum((a, a * 2)), sum([a * 2, 1.0], a)


@case(**INPUTS, over=2)  # the truth of computed numbers decides
def number_filter(x):
    a = x.sum().item()
    return list(filter(None, [a - a, a * 0 + 1, a])), list(filter(None, (a * i for i in range(3))))


@case(**INPUTS, over=2)  # the truth of computed numbers decides
def number_compress(x):
    a = x.sum().item()
    return list(itertools.compress("abc", [a, a * 0, a + 1])), list(itertools.filterfalse(None, [a, a * 0]))


@case(**INPUTS)
def number_groupby(x):
    a, b = x.sum().item() > 0, round(x.mean().item())
    return [(k, len(list(g))) for k, g in itertools.groupby([a, True, b, 1])]


@case(**INPUTS)
def number_groupby2(x):
    a = x.sum().item()
    return [len(list(g)) for k, g in itertools.groupby([a, abs(a), a * 1])]


@case(**INPUTS)
def number_set(x):
    a = x.sum().item()
    return (
        len({a, abs(a)}),
        len(set([a * 1, abs(a)])),
        len(set(v * 1 for v in (a, abs(a)))),
        len({v: 1 for v in (a * 1, abs(a))}),
    )


@case(**INPUTS)
def number_dict(x):
    a = x.sum().item()
    d = dict((v, 1) for v in (a * 1, abs(a)))
    d.update((v, 2) for v in (a * 1, 0.0))
    s = set()
    s.update(v for v in (a * 1, abs(a)))
    return len(d), len(s), len(dict.fromkeys([a * 1, abs(a)])), len(collections.Counter(v for v in (a * 1, abs(a))))


@case(**INPUTS, over=SINCE_314)  # any() is inlined: jumps read the truth of numbers
def number_any(x):
    a = x.sum().item()
    return any(a * i for i in range(1)), all(a + i for i in range(3)), any(a > i for i in range(3)), all([a * 0])


@case(**INPUTS)
def number_mm(x):
    a = x.sum().item()
    return (
        min(a * i for i in range(3)),
        max((a * i, i) for i in range(3)),
        min([a, -a]),
        max(a, -a, key=lambda v: v * 2),
    )


@case(**INPUTS)
def number_sorted(x):
    a = x.sum().item()
    return (
        sorted(a * i for i in range(3)),
        sorted([a, -a, 0.5]),
        sorted(((a * i, i) for i in range(3)), key=lambda p: p[0]),
    )


@case(**INPUTS, over=1)
def number_heap(x):
    a = x.sum().item()
    return (
        heapq.nlargest(2, (a * i for i in range(3))),
        heapq.nsmallest(1, [a, -a]),
        bisect.bisect([0.0, 1.0], a * 2),
        list(heapq.merge([a], [0.0])),
    )


@case(**INPUTS)
def number_prod(x):
    a = x.sum().item()
    return (
        math.prod(a * i for i in range(1, 3)),
        math.fsum(a * i for i in range(3)),
        math.hypot(a, 1),
        max(map(abs, (a * i for i in range(3)))),
    )


@case(**INPUTS)
def number_join(x):
    a = x.sum().item()
    return (
        ",".join(f"{a * i:.2f}" for i in range(3)),
        " ".join([str(a * 2), repr(a * 3)]),
        "%s" % (a * 2),
        "{}".format(a * 2),
        f"{a * 2}".upper(),
        f"{a:.1f}".split("."),
        len(f"{a:.1f}"),
    )


@case(**INPUTS, over=1)
def number_strs(x):
    s = f"{x.sum().item():.2f}"
    return (
        s == "1.00",
        s in ("1.00", "2.00"),
        s < "3",
        s.startswith("-"),
        sorted([s, "0.5"]),
        max(s, "0"),
        {s: 1},
        {s},
        s[0],
        list(s),
        float(s),
        "-" in s,
    )


@case(**INPUTS, over=3)
def number_in(x):
    a = x.sum().item() * 2
    return (
        a in [1.0, a],
        0.0 in (a, 1.0),
        a in {1.0},
        a in (a * i for i in range(2)),
        0.0 in (a * i for i in range(2)),
        [a].index(a),
        [a, 0.0].count(0.0),
        (a,) == (1.0,),
        [a] < [0.0],
    )


@case(**INPUTS)
def number_items(x):
    a = x.sum().item() * 2
    it = iter(v * a for v in (1, 2, 3))
    return (
        next(it),
        max(it),
        list(zip([a], [a * 2])),
        dict(zip("ab", [a, a * 2])),
        list(enumerate([a])),
        [*map(lambda v: v * 2, [a])],
        list(reversed([a, a * 2])),
    )


@case(**INPUTS)
def number_ops(x):
    a = x.sum().item()
    return (
        round(a, 1),
        int(a),
        a // 1,
        a % 1,
        divmod(a, 1),
        a**2,
        abs(a),
        -a,
        +a,
        bool(a),
        not a,
        a == a,
        a != 0,
        a or 1.0,
        a and 2.0,
        1 if a > 0 else 2,
        0 < a < 1,
        complex(a),
        a.__class__,
        type(a * 2),
        isinstance(a * 2, float),
        a.is_integer(),
        (a * 2).as_integer_ratio(),
    )


@case(**INPUTS)
def number_intlike(x):
    n = int(x.abs().sum().item())
    return (
        n * 2,
        [0] * n,
        list(range(n)),
        x[:, :n],
        n % 2 == 0,
        "x" * n,
        bin(n),
        n.bit_length(),
        hash(n),
        {n: 1},
        (1, 2, 3)[n % 3],
    )


@case(**INPUTS)
def number_int_item(x):
    n = (x * 3).long().sum().item()
    m = (x * 3).long().max().item()
    return n + m, max(n, m), sorted([n, m, 0]), sum(v for v in (n, m)), x * n, [n, m, max(n, m)], n // 2, {n: m}


@case(**INPUTS)
def number_bool_item(x):
    a = (x > 0).any().item()
    b = bool((x > 1).all())
    return a, b, a and b, any([a, b]), x * a, [a, b].index(a), sum([a, b])


@case(**INPUTS)
def number_tolist_rows(x):
    rows = x.tolist()
    return (
        max(rows),
        sorted(rows, key=lambda r: r[0]),
        [max(r) for r in rows],
        max(max(r) for r in rows),
        rows.index(max(rows)),
        list(zip(*rows)),
    )


@case(**INPUTS, over=1)
def number_reduce(x):
    a = x.sum().item()
    return (
        functools.reduce(max, [a, -a, 0.0]),
        functools.reduce(lambda p, q: p + q, (a * i for i in range(3))),
        list(itertools.accumulate([a, -a, 2.0], max)),
        list(itertools.accumulate(a * i for i in range(3))),
    )


@case(**INPUTS, over=1)
def number_objects(x):
    class V:
        def __init__(s, v):
            s.v = v

        def __lt__(s, o):
            return s.v < o.v

        def __bool__(s):
            return s.v > 0

        def __eq__(s, o):
            return s.v == o.v

        def __hash__(s):
            return hash(round(s.v))

        def __float__(s):
            return s.v

        def __len__(s):
            return int(abs(s.v))

    a, b = V(x.sum().item()), V(x.mean().item())
    return (
        max(a, b).v,
        min([a, b]).v,
        any([a, b]),
        a in [b],
        len({a, b}),
        float(a),
        len(a),
        [v.v for v in sorted([a, b])],
        bool(a),
        math.floor(float(b)),
        sum([float(a), float(b)]),
    )


@case(**INPUTS)
def number_while(x):
    n = 0
    while x.norm().item() > 0.5 and n < 5:
        x = x * 0.5
        n += 1
    return x, n


@case(**INPUTS)
def number_hist(x):
    hist = []
    for row in x:
        hist.append(row.sum().item())
        if len(hist) > 1 and hist[-1] > hist[-2]:
            hist.append(0.0)
        m = max(hist)
    return hist, m, sum(hist) / len(hist), hist.index(m)


@case(**INPUTS)
def number_held_values(x):
    d = {i: v.item() * 2 for i, v in enumerate(x.flatten())}
    return (
        max(d.values()),
        min(d.items(), key=lambda kv: kv[1]),
        sorted(d.values()),
        sum(d.values()),
        any(d.values()),
        all(v for v in d.values()),
    )


@case(**INPUTS, over=1)
def number_held_values2(x):
    a = x.sum().item()
    d = {"p": a, "n": -a, "z": 0.0}
    return (
        max(d.values()),
        sorted(d.items(), key=lambda kv: kv[1]),
        sum(d.values()),
        any(d.values()),
        max(d, key=d.get),
        0.5 in d.values(),
        list(d.values()),
        sorted(d.values()),
    )


@case(**INPUTS, over=1)
def number_held_deque(x):
    a = x.sum().item()
    q = collections.deque([a, -a, a * 2], maxlen=2)
    return max(q), sorted(q), sum(q), list(q), any(q), a in q


@case(**INPUTS)
def number_held_tuple(x):
    P = (x.sum().item(), x.mean().item())
    lo, hi = sorted(P)
    return lo, hi, P < (0.0, 0.0), max(P), P.index(max(P))


@case(**INPUTS)
def number_held_zip(x):
    a, b = x.sum().item(), x.mean().item()
    return (
        max(zip([a, b], "ab")),
        sorted(zip([a, b], [b, a])),
        max(enumerate([a, b]), key=lambda p: p[1]),
        list(map(max, [a, b], [0.0, 1.0])),
        list(map(lambda p, q: p > q, [a], [b])),
    )


@case(**INPUTS, over=1)
def number_held_ns(x):
    class Stats:
        best = -1e9

        def update(s, v):
            s.best = max(s.best, v)
            return s.best > 0

    s = Stats()
    r = [s.update(v.item()) for v in x.flatten()]
    return r, s.best


@case(**INPUTS)
def number_held_nested(x):
    a, b = x.sum().item(), x.mean().item()
    l = [[a, b], [b, a]]
    return (
        max(l),
        sorted(l),
        [max(p) for p in l],
        max(map(max, l)),
        sum(map(sum, l)),
        list(itertools.chain(*l)),
        max(itertools.chain(*l)),
        max(itertools.chain.from_iterable(l)),
        sorted(itertools.islice(itertools.chain(*l), 3)),
    )


@case(**INPUTS)
def number_held_cond(x):
    a, b = x.sum().item(), x.mean().item()
    big = a if a > b else b
    return (
        x * big,
        big,
        [v for v in (a, b) if v > 0],
        a > b,
        (a > 0) + (b > 0),
        {True: 1, False: 0}[a > b],
        "pos" if a > 0 else "neg",
    )


@case(**INPUTS)
def number_held_inf(x):
    a = (x / 0).flatten()[0].item()
    return a == float("inf"), a > 0, max(a, 1.0), x * 2
