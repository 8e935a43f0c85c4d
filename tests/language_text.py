"""Builtins over sequences, and text (see language_cases.py)."""

import io
import json
import operator
import re
import string
import textwrap

from language_cases import case, made, t


# ---- builtins over sequences -----------------------------------------------------------------------------------------
@case
def builtin_map_filter(x):
    return (
        list(map(lambda a, b: a + b, [x, x], (1, 2))),
        list(filter(None, [0, 1, x.dim()])),
        list(filter(lambda v: v > 1, (1, 2))),
    )


@case
def builtin_sorted(x):
    rows = [("b", 2), ("a", 2), ("c", 1)]
    l = [3, 1, 2]
    l.sort(reverse=True)
    return (
        x,
        sorted(rows, key=lambda r: r[1]),
        sorted(rows, key=operator.itemgetter(0)),
        l,
        sorted("bca"),
        sorted({"b": 1, "a": 2}),
    )


@case
def builtin_any_all(x):
    return (
        x,
        any(i > 2 for i in range(4)),
        all([]),
        any(map(callable, (x.sin, 3))),
        all(isinstance(v, int) for v in x.shape),
    )


@case
def builtin_min_max_sum(x):
    return (
        x * max(3, 1),
        min([4, 2], default=0),
        max([], default=7),
        sum([[1], [2]], []),
        max("a", "b"),
        min({2, 1}),
        sum((x, x)),
    )


@case
def builtin_zip_enumerate(x):
    out = []
    for i, (a, b) in enumerate(zip(x, reversed(list(x))), 1):
        out.append(a * i + b)
    return out, dict(zip("ab", range(2))), list(zip(*[(1, 2), (3, 4)]))


@case
def builtin_numbers(x):
    return (
        x,
        abs(-3),
        divmod(7, 2),
        pow(2, 5, 7),
        round(3.14159, 2),
        bin(5),
        hex(255),
        int("ff", 16),
        float("1e3"),
        complex(1, 2) * 2,
    )


@case
def builtin_conversions(x):
    return (
        x,
        list("ab"),
        tuple({1: 2}),
        set([1, 1]),
        dict([(1, 2)]),
        str(3.5),
        bool([]),
        int(True),
        bytes(b"a"),
        frozenset("a"),
        ord("a"),
        chr(98),
    )


@case
def builtin_identity(x):
    y = x
    return y is x, x is not None, id(x) == id(y), hash((1, "a")) == hash((1, "a")), callable(len), repr([1, "a"])


@case
def operator_getters(x):
    rows = [{"k": 2, "v": x}, {"k": 1, "v": x + 1}]
    get = operator.itemgetter("k")
    shape = operator.attrgetter("shape")(x)
    return sorted(map(get, rows)), shape, operator.methodcaller("sum", 0)(x), operator.itemgetter(0, 2)("abc")


# ---- text ------------------------------------------------------------------------------------------------------------
@case
def f_strings(x):
    name, v = "n", 3.14159
    return (
        x,
        f"{name!r:>6}|{v:.2f}|{v=:.1f}|{x.shape[0]:03d}|{'a' if v > 3 else 'b'}|{{}}|{x.dtype}|{1_000_000:,}|{0.5:%}",
    )


@case
def string_methods(x):
    s = " Hello,World "
    return (
        x,
        s.strip().lower().split(","),
        s.replace("l", "L", 1),
        "-".join("abc"),
        s.find("W"),
        "a=b".partition("="),
        "x".center(5, "*"),
        "ab".startswith(("a", "z")),
    )


@case
def string_formatting(x):
    return (
        x,
        "%s %5.2f %r %03d" % ("a", 2.5, "b", 7),
        "{0!r:>5}|{k}|{0[1]}|{1.shape}".format([1, 2], x, k=3),
        "{!r}".format("q"),
        format(255, "x"),
    )


@case
def string_templates(x):
    return x, string.Template("$a-$b").substitute(a=1, b=2), string.ascii_lowercase[:3], textwrap.dedent("  a\n  b")


@case
def string_encoding(x):
    return (
        x,
        "é".encode(),
        b"abc".decode(),
        "a\tb".expandtabs(4),
        "abc".translate(str.maketrans("a", "z")),
        "aXb".swapcase(),
        "12".isdigit(),
    )


@case
def regular_expressions(x):
    m = re.match(r"(\w+)\.(\d+)", "layer.12")
    return x * int(m.group(2)), m.groups(), re.sub(r"\d", "#", "a1b2"), re.findall("[a-c]", "abcd")


@case(hit=False)
def f_string_of_values(x):
    return x * 2, f"{x.sum().item():.3f}", f"{float(x[0, 0]):+.2f}"


@case
def json_round_trip(x):
    text = json.dumps({"a": [1, 2.5, None], "shape": list(x.shape)}, sort_keys=True)
    return x * len(text), json.loads(text)


@case(over=3)  # a C object with state, read and written
def string_io(x):
    out = io.StringIO()
    out.write("a")
    print("b", file=out)
    return x * 2, out.getvalue()


PAT = re.compile(r"(\w+)\.(\d+)")


@made(hit=False)
def re_rebound():
    space = {"p": re.compile("a+"), "n": 0}

    def f(x):
        space["n"] += 1
        r = space["p"].findall("aab" * (space["n"] % 2 + 1)), space["p"].pattern
        if space["n"] == 2:
            space["p"] = re.compile("b")
        return x * len(r[0]), r

    return f, space


@case
def re_pattern(x):
    m = PAT.match("layer.12")
    if m is None:
        return x
    n = {k: v for k, v in re.search("(?P<a>.)(?P<b>.)", "xy").groupdict().items()}
    return (
        x * int(m[2]),
        m.group(1, 2),
        PAT.sub(r"\2", "a.1 b.2"),
        re.split(",", "a,b"),
        re.sub("a", lambda q: q.group().upper(), "banana"),
        n,
        [*re.findall("a.", "abac")],
        re.fullmatch("z", "y"),
    )


@case(inputs=lambda i: (t(2, 3, seed=i), ["blocks.%d.w" % (i % 2)]))
def re_argument(x, names):
    out = {}
    for n in names:
        m = re.match(r"blocks\.(\d+)\.(.*)", n)
        out.setdefault(int(m.group(1)), []).append(m.group(2))
    l = re.findall("[a-z]", names[0])
    l.append("!")
    return x, out, l, json.dumps({"n": names}), json.loads(json.dumps([1, {"a": [None, 2.5]}]))


# A match of a text that a node made is an object of its own in each call: each use of it is a break.
@case(hit=False, over=3)
def re_of_value(x):
    s = f"{x.sum().item():.1f}"
    m = re.match(r"-?(\d)", s)
    return m.group(1) if m else None, json.dumps([s]), x * 2
