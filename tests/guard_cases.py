"""Cases of test_guards.py about modules and arguments: a function, its arguments, and one mutation."""

import collections
import dataclasses
import enum
import functools
import logging
import math
import re
import types

import torch
from torch import nn


def t(*shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed + 17 * len(shape) + sum(shape))
    return torch.randn(*shape, generator=g).to(dtype)


@dataclasses.dataclass
class Case:
    fn: object
    args: object = lambda: (t(3, 4),)  # -> tuple of arguments, or (arguments, keywords)
    mutate: object = None  # takes a MonkeyPatch, which also puts things back
    after: object = None  # the arguments while mutated, when they are what changes
    around: object = None  # a context manager that is active while mutated
    undo: object = None  # what MonkeyPatch does not undo
    silent: bool = False  # the mutation changes no result
    hit: bool = True  # the third call replays
    no_grad: bool = True


CASES = {}


def case(fn):
    CASES[fn.__name__.replace("_", "-")] = fn
    return fn


def linear(n=4, m=4, seed=1):
    torch.manual_seed(seed)
    return nn.Linear(n, m)


def mlp():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


# ---- parameters, buffers and what hangs on a module ---------------------------------------------------------------------
@case
def weight_replaced():
    m = linear()
    return Case(m, mutate=lambda p: p.setitem(m._parameters, "weight", nn.Parameter(t(4, 4, seed=9))))


@case
def weight_assigned():
    m, old = linear(), None
    old = m.weight
    return Case(
        m, mutate=lambda p: setattr(m, "weight", nn.Parameter(t(4, 4, seed=8))), undo=lambda: setattr(m, "weight", old)
    )


@case
def weight_data_set():
    m = linear()
    return Case(m, mutate=lambda p: p.setattr(m.weight, "data", t(4, 4, seed=9)))


@case
def weight_in_place():
    m = linear()
    return Case(m, mutate=lambda p: m.weight.data.mul_(3), undo=lambda: m.weight.data.div_(3))


@case
def weight_state_dict():
    m, old = linear(), {k: v.clone() for k, v in linear().state_dict().items()}
    return Case(
        m, mutate=lambda p: m.load_state_dict({k: v + 1 for k, v in old.items()}), undo=lambda: m.load_state_dict(old)
    )


@case
def weight_shape():
    m = linear()
    return Case(
        m,
        mutate=lambda p: (
            p.setitem(m._parameters, "weight", nn.Parameter(t(6, 4))),
            p.setitem(m._parameters, "bias", nn.Parameter(t(6))),
        ),
    )


@case
def weight_stride():
    m = linear()
    return Case(m, mutate=lambda p: p.setattr(m.weight, "data", t(4, 4, seed=9).t()))


@case
def weight_dtype():
    m = linear()
    return Case(m, mutate=lambda p: m.double(), undo=m.float)  # eager raises: float input, double weight


@case
def weight_tied():
    m = nn.Sequential(linear(seed=1), linear(seed=2))
    return Case(m, mutate=lambda p: p.setitem(m[1]._parameters, "weight", m[0].weight))


@case
def bias_removed():
    m = linear()
    return Case(m, mutate=lambda p: p.setitem(m._parameters, "bias", None))


@case
def requires_grad_flipped():
    m = linear()
    return Case(m, no_grad=False, mutate=lambda p: m.requires_grad_(False), undo=lambda: m.requires_grad_(True))


@case
def buffer_replaced():
    m = nn.BatchNorm1d(4).eval()
    return Case(m, mutate=lambda p: p.setitem(m._buffers, "running_mean", t(4)))


@case
def buffer_in_place():
    m = nn.BatchNorm1d(4).eval()
    return Case(m, mutate=lambda p: m.running_var.fill_(4), undo=lambda: m.running_var.fill_(1))


@case
def train_eval():
    m = nn.Sequential(linear(), nn.Dropout(0.5)).eval()
    return Case(m, mutate=lambda p: m.train(), undo=m.eval)


@case
def train_flag_of_child():
    m = nn.Sequential(linear(), nn.Dropout(0.5)).eval()
    return Case(m, mutate=lambda p: p.setattr(m[1], "training", True))


@case
def eps_attribute():
    m = nn.LayerNorm(4)
    return Case(m, mutate=lambda p: p.setattr(m, "eps", 10.0))


@case
def dropout_p():
    m = nn.Dropout(0.0).train()
    return Case(m, mutate=lambda p: p.setattr(m, "p", 1.0))


@case
def forward_hook_added():
    m = mlp()
    handle = []
    return Case(
        m,
        mutate=lambda p: handle.append(m[1].register_forward_hook(lambda mod, a, out: out + 5)),
        undo=lambda: handle.pop().remove(),
    )


@case
def forward_pre_hook_added():
    m = mlp()
    handle = []
    return Case(
        m,
        mutate=lambda p: handle.append(m.register_forward_pre_hook(lambda mod, a: (a[0] * 3,))),
        undo=lambda: handle.pop().remove(),
    )


@case
def kwargs_hook_added():
    m = mlp()
    handle = []
    return Case(
        m,
        mutate=lambda p: handle.append(
            m[2].register_forward_pre_hook(lambda mod, a, kw: ((a[0] + 1,), kw), with_kwargs=True)
        ),
        undo=lambda: handle.pop().remove(),
    )


@case
def forward_hook_removed():
    m = mlp()
    handle = [m[0].register_forward_hook(lambda mod, a, out: out * 2)]
    return Case(
        m,
        mutate=lambda p: handle.pop().remove(),
        undo=lambda: handle.append(m[0].register_forward_hook(lambda mod, a, out: out * 2)),
    )


@case
def global_forward_hook():
    m, handle = mlp(), []
    from torch.nn.modules.module import register_module_forward_hook

    return Case(
        m,
        mutate=lambda p: handle.append(register_module_forward_hook(lambda mod, a, out: out + 1)),
        undo=lambda: handle.pop().remove(),
    )


@case
def global_forward_pre_hook():
    m, handle = mlp(), []
    from torch.nn.modules.module import register_module_forward_pre_hook

    return Case(
        m,
        mutate=lambda p: handle.append(register_module_forward_pre_hook(lambda mod, a: (a[0] + 1,))),
        undo=lambda: handle.pop().remove(),
    )


@case
def backward_hook_added():
    m, handle = mlp(), []
    return Case(
        m,
        no_grad=False,
        silent=True,
        undo=lambda: handle.pop().remove(),
        mutate=lambda p: handle.append(m.register_full_backward_hook(lambda mod, gi, go: None)),
    )


@case
def submodule_swapped():
    m = mlp()
    return Case(m, mutate=lambda p: p.setitem(m._modules, "1", nn.Tanh()))


@case
def submodule_same_type_swapped():
    m = mlp()
    return Case(m, mutate=lambda p: p.setitem(m._modules, "0", linear(seed=77)))


@case
def submodule_added():
    m = mlp()
    return Case(m, mutate=lambda p: m.add_module("3", nn.Sigmoid()), undo=lambda: m.__delattr__("3"))


@case
def submodule_deleted():
    m = mlp()
    return Case(m, mutate=lambda p: p.delitem(m._modules, "2"))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([linear(seed=i) for i in range(2)])
        self.heads = nn.ModuleDict({"a": linear(seed=5), "b": linear(seed=6)})
        self.scale = 2.0
        self.kind = "relu"
        self.table = [1.0, 2.0]
        self.config = types.SimpleNamespace(use_bias=True, depth=2)
        self.extra = None

    def activate(self, x):
        return torch.relu(x) if self.kind == "relu" else torch.tanh(x)

    @property
    def gain(self):
        return self._gain

    _gain = 3.0
    shared = 1.5

    def forward(self, x):
        for layer in self.layers:
            x = self.activate(layer(x)) * self.scale
        for name, head in self.heads.items():
            x = head(x) + len(name)
        if self.config.use_bias:
            x = x + self.shared
        if self.extra is not None:
            x = x + self.extra
        return x * self.gain * sum(self.table)


STACK = {
    "module-list-append": lambda m, p: m.layers.append(linear(seed=44)),
    "module-list-order": lambda m, p: m.layers._modules.update({"0": m.layers[1], "1": m.layers[0]}),
    "module-dict-added": lambda m, p: m.heads.update({"long": linear(seed=45)}),
    "module-dict-order": lambda m, p: m.heads._modules.update({"a": m.heads._modules.pop("a")}),
    "attribute-float": lambda m, p: p.setattr(m, "scale", 5.0),
    "attribute-type": lambda m, p: p.setattr(m, "scale", True),
    "attribute-string": lambda m, p: p.setattr(m, "kind", "tanh"),
    "attribute-list-element": lambda m, p: m.table.__setitem__(0, 9.0),
    "attribute-list-length": lambda m, p: m.table.append(4.0),
    "attribute-none-to-tensor": lambda m, p: p.setattr(m, "extra", t(4, seed=3)),
    "attribute-shadows-method": lambda m, p: p.setattr(m, "activate", torch.sigmoid, raising=False),
    "attribute-shadows-class-attribute": lambda m, p: p.setattr(m, "shared", 7.5),
    "config-flag": lambda m, p: p.setattr(m.config, "use_bias", False),
    "config-object-replaced": lambda m, p: p.setattr(m, "config", types.SimpleNamespace(use_bias=False)),
    "class-method-patched": lambda m, p: p.setattr(Stack, "activate", lambda self, x: x * x),
    "class-attribute-changed": lambda m, p: p.setattr(Stack, "shared", -2.0),
    "class-property-replaced": lambda m, p: p.setattr(Stack, "gain", property(lambda self: 0.25)),
    "property-value": lambda m, p: p.setattr(m, "_gain", 0.5),
    "class-getattr-added": lambda m, p: (
        p.setattr(Stack, "gain", None),
        p.delattr(Stack, "gain"),
        p.setattr(
            Stack, "__getattr__", lambda self, n: 4.0 if n == "gain" else nn.Module.__getattr__(self, n), raising=False
        ),
    ),
    "forward-on-instance": lambda m, p: p.setattr(m, "forward", lambda x: x - 1),
    "forward-on-class": lambda m, p: p.setattr(Stack, "forward", lambda self, x: x - 2),
    "child-forward-on-instance": lambda m, p: p.setattr(m.layers[0], "forward", lambda x: x - 3),
    "child-class-changed": lambda m, p: p.setattr(m.layers[0], "__class__", Doubled),
    "child-call-patched": lambda m, p: p.setattr(nn.Linear, "__call__", lambda self, x: x + 1, raising=False),
}


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def stack_case(name):
    def make():
        m = Stack()
        before = {n: dict(mod.__dict__["_modules"]) for n, mod in m.named_modules()}
        table = list(m.table)

        def undo():
            for n, mod in list(m.named_modules()):
                if n in before:
                    mod._modules.clear()
                    mod._modules.update(before[n])
            m.table[:] = table

        return Case(m, mutate=lambda p: STACK[name](m, p), undo=undo)

    return make


CASES.update({name: stack_case(name) for name in STACK})


# ---- arguments --------------------------------------------------------------------------------------------------------
def square(x):
    return (x * x + 1).relu()


def two(x, y):
    return x * 2 + y


def alias_sensitive(x, y):
    x.add_(1)
    return x * y


def kind_of(x, v=None):
    if v is None:
        return x
    if isinstance(v, bool):
        return x - v
    return x * v, type(v).__name__


def read_items(x, items):
    for item in items:
        x = x * item
    return x, len(items)


def read_dict(x, d):
    for i, (key, value) in enumerate(d.items()):
        x = x * (i + 1) + value
    return x, list(d)


def keywords(x, **kw):
    for i, (name, value) in enumerate(kw.items()):
        x = x * (i + 1) + value
    return x, list(kw)


def is_parameter(x):
    return x * (2 if isinstance(x, nn.Parameter) else 3), x.requires_grad


def grown(x):
    return x.new_zeros(x.shape[0]), x.sum(0), x.stride()


class Tagged(torch.Tensor):
    pass


def nested_args(x, tree):
    return x + tree["a"][0]["b"] * tree["n"]


class Mode(enum.Enum):
    ADD = 1
    MUL = 2


def by_mode(x, mode):
    return x + 2 if mode is Mode.ADD else x * 2


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def by_slots(x, p):
    return x * p.x + p.y


Pair = collections.namedtuple("Pair", "a b")
base = t(12)


@torch.enable_grad()
def grown_from(x, retains=False):
    """A tensor with a history, made whatever the grad mode is."""
    y = x.requires_grad_() * 1
    if retains:
        y.retain_grad()
    return y


def tensor_arg(fn, before, after, **kw):
    return lambda: Case(fn, args=before, after=after, **kw)


CASES.update(
    {
        "input-dtype": tensor_arg(square, lambda: (t(3, 4),), lambda: (t(3, 4).double(),)),
        "input-dtype-int": tensor_arg(square, lambda: (t(3, 4),), lambda: (torch.arange(12).view(3, 4),)),
        "input-shape": tensor_arg(square, lambda: (t(3, 4),), lambda: (t(5, 4),)),
        "input-size-one": tensor_arg(two, lambda: (t(3, 4), t(3, 4)), lambda: (t(3, 4), t(1, 4))),
        "input-size-zero": tensor_arg(square, lambda: (t(3, 4),), lambda: (t(0, 4),)),
        "input-rank": tensor_arg(square, lambda: (t(3, 4),), lambda: (t(2, 3, 4),)),
        "input-scalar-tensor": tensor_arg(square, lambda: (t(3),), lambda: (torch.tensor(2.0),)),
        "input-stride": tensor_arg(grown, lambda: (t(4, 4),), lambda: (t(4, 4).t(),)),
        "input-expanded": tensor_arg(grown, lambda: (t(4, 4),), lambda: (t(1, 4).expand(4, 4),)),
        "input-channels-last": tensor_arg(
            lambda x: (x * 2, x.stride()),
            lambda: (t(2, 3, 4, 4),),
            lambda: (t(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),),
        ),
        "input-offset": tensor_arg(lambda x: (x * 2, x.storage_offset()), lambda: (base[:4],), lambda: (base[3:7],)),
        "input-meta-device": tensor_arg(square, lambda: (t(3, 4),), lambda: (t(3, 4).to("meta"),)),
        "input-sparse": tensor_arg(lambda x: x * 2, lambda: (t(3, 4),), lambda: (t(3, 4).relu().to_sparse(),)),
        "input-sparse-numel": tensor_arg(
            lambda x: (x.numel(), x.dim(), x.layout),
            lambda: (torch.eye(3).to_sparse(),),
            lambda: (torch.eye(5).to_sparse(),),
        ),
        "input-sparse-coalesced": tensor_arg(
            lambda x: (x.is_coalesced(), x._nnz()),
            lambda: (torch.eye(3).to_sparse(),),
            lambda: ((torch.eye(3) + 1).to_sparse().coalesce(),),
        ),
        "input-complex": tensor_arg(
            lambda x: (x * 2).abs(), lambda: (t(3, 4),), lambda: (torch.complex(t(3, 4), t(3, 4)),)
        ),
        "input-conj": tensor_arg(
            lambda x: x * 2, lambda: (torch.complex(t(3), t(3)),), lambda: (torch.complex(t(3), t(3)).conj(),)
        ),
        "input-requires-grad": tensor_arg(
            square, lambda: (t(3, 4),), lambda: (t(3, 4).requires_grad_(),), no_grad=False
        ),
        "input-gets-history": tensor_arg(
            lambda x: x * (2 if x.grad_fn is None else 3), lambda: (t(3),), lambda: (grown_from(t(3)),)
        ),
        "input-no-leaf": tensor_arg(
            lambda x: x * (2 if x.is_leaf else 3), lambda: (t(3),), lambda: (grown_from(t(3)),)
        ),
        "input-retains-grad": tensor_arg(
            lambda x: x * (2 if x.retains_grad else 3), lambda: (t(3),), lambda: (grown_from(t(3), retains=True),)
        ),
        "input-to-parameter": tensor_arg(is_parameter, lambda: (t(3, 4),), lambda: (nn.Parameter(t(3, 4)),)),
        "input-subclass": tensor_arg(square, lambda: (t(3, 4),), lambda: (t(3, 4).as_subclass(Tagged),)),
        "input-inference-tensor": tensor_arg(
            lambda x: (x * 2, x.is_inference()), lambda: (t(3),), lambda: (inference_made(),)
        ),
        "input-to-none": tensor_arg(kind_of, lambda: (t(3), t(3)), lambda: (t(3), None)),
        "input-from-none": tensor_arg(kind_of, lambda: (t(3), None), lambda: (t(3), t(3))),
        "input-tensor-to-float": tensor_arg(two, lambda: (t(3), torch.tensor(2.0)), lambda: (t(3), 3.0)),
        "scalar-value": tensor_arg(kind_of, lambda: (t(3), 2), lambda: (t(3), 5)),
        "scalar-float-value": tensor_arg(kind_of, lambda: (t(3), 0.5), lambda: (t(3), 0.25)),
        "scalar-int-to-float": tensor_arg(kind_of, lambda: (t(3), 2), lambda: (t(3), 2.0)),
        "scalar-int-to-bool": tensor_arg(kind_of, lambda: (t(3), 1), lambda: (t(3), True)),
        "scalar-negative-zero": tensor_arg(
            lambda x, v: x * 0 + math.copysign(1, v), lambda: (t(3), 0.0), lambda: (t(3), -0.0)
        ),
        "scalar-nan": tensor_arg(kind_of, lambda: (t(3), 1.0), lambda: (t(3), float("nan"))),
        "scalar-big-int": tensor_arg(lambda x, v: (x, v + 1), lambda: (t(3), 7), lambda: (t(3), 1 << 80)),
        "string": tensor_arg(lambda x, s: x * len(s), lambda: (t(3), "ab"), lambda: (t(3), "abc")),
        "string-same-length": tensor_arg(lambda x, s: (x + 1, s.upper()), lambda: (t(3), "ab"), lambda: (t(3), "cd")),
        "enum": tensor_arg(by_mode, lambda: (t(3), Mode.ADD), lambda: (t(3), Mode.MUL)),
        "list-length": tensor_arg(read_items, lambda: (t(3), [t(3), 2.0]), lambda: (t(3), [t(3), 2.0, 3.0])),
        "list-content": tensor_arg(read_items, lambda: (t(3), [2.0, 4.0]), lambda: (t(3), [2.0, 5.0])),
        "list-to-tuple": tensor_arg(
            lambda x, v: (x + v[0], type(v).__name__), lambda: (t(3), [2.0]), lambda: (t(3), (2.0,))
        ),
        "tuple-to-namedtuple": tensor_arg(
            lambda x, v: x * (2 if hasattr(v, "a") else 3), lambda: (t(3), (1, 2)), lambda: (t(3), Pair(1, 2))
        ),
        "dict-keys": tensor_arg(read_dict, lambda: (t(3), {"a": 1.0}), lambda: (t(3), {"b": 1.0})),
        "dict-order": tensor_arg(read_dict, lambda: (t(3), {"a": 1.0, "b": 2.0}), lambda: (t(3), {"b": 2.0, "a": 1.0})),
        "dict-value": tensor_arg(read_dict, lambda: (t(3), {"a": t(3)}), lambda: (t(3), {"a": 4.0})),
        "set-contents": tensor_arg(
            lambda x, s: x * (2 if 3 in s else 5), lambda: (t(3), {1, 3}), lambda: (t(3), {1, 4})
        ),
        "nested-argument": tensor_arg(
            nested_args, lambda: (t(3), {"a": [{"b": 2.0}], "n": 1}), lambda: (t(3), {"a": [{"b": 3.0}], "n": 1})
        ),
        "keyword-order": tensor_arg(
            keywords, lambda: ((t(3),), {"a": 1.0, "b": 2.0}), lambda: ((t(3),), {"b": 2.0, "a": 1.0})
        ),
        "keyword-extra": tensor_arg(keywords, lambda: ((t(3),), {"a": 1.0}), lambda: ((t(3),), {"a": 1.0, "c": 3.0})),
        "keyword-for-positional": tensor_arg(
            lambda x, y, *rest: x - y + len(rest), lambda: (t(3), t(3, seed=1)), lambda: (t(3), t(3, seed=1), 3)
        ),
        "missing-argument": tensor_arg(two, lambda: (t(3), t(3)), lambda: (t(3),)),
        "slots-attribute": tensor_arg(by_slots, lambda: (t(3), Point(1.0, 2.0)), lambda: (t(3), Point(1.0, 3.0))),
        "aliased-inputs": tensor_arg(alias_sensitive, lambda: (t(3), t(3, seed=1)), lambda: same_twice(t(3))),
        "aliased-views": tensor_arg(alias_sensitive, lambda: (t(3), t(3, seed=1)), lambda: overlapping(t(6))),
        "aliased-in-list": tensor_arg(
            lambda x, ys: (x.mul_(2), ys[0] + ys[1]),
            lambda: (t(3), [t(3), t(3, seed=1)]),
            lambda: (lambda x: (x, [x, x[:]]))(t(3)),
        ),
        "tensor-in-list-dtype": tensor_arg(read_items, lambda: (t(3), [t(3)]), lambda: (t(3), [t(3).double()])),
        "function-argument": tensor_arg(lambda x, f: f(x), lambda: (t(3), torch.relu), lambda: (t(3), torch.tanh)),
        "lambda-argument": tensor_arg(
            lambda x, f: f(x),
            lambda: (t(3), lambda v: v + 1),
            lambda: (t(3), lambda v: v + 2),
            hit=False,  # another function object in each call
        ),
        "dtype-argument": tensor_arg(lambda x, d: x.to(d), lambda: (t(3), torch.float64), lambda: (t(3), torch.int32)),
        "recursion-depth": tensor_arg(lambda x, n: recursive(x, n), lambda: (t(3), 3), lambda: (t(3), 6)),
    }
)


def inference_made():
    with torch.inference_mode():
        return t(3) + 1


def same_twice(x):
    return x, x


def overlapping(x):
    return x[:4][1:], x[1:5][:3]


def recursive(x, n):
    return x if n == 0 else recursive(x * 2 + n, n - 1)


def varying(make):
    """Arguments whose number differs in each call."""
    n = [0]

    def args():
        n[0] += 1
        return t(3), make(n[0])

    return args


@functools.lru_cache
def shared_pattern(n):
    return re.compile("a" * n)


def raises_in(fn):
    def run(x, o):
        try:
            made = fn(o)
        except (TypeError, ValueError, RuntimeError, OverflowError) as e:
            made = type(e)
        return made, x + 1

    return run


# Arguments that also come out of a library function or a cache, texts of what holds objects, and calls that raise
CASES.update(
    {
        "content-logger": tensor_arg(
            lambda x, o: (o is logging.getLogger("cc.a"), x + 1),
            lambda: (t(3), logging.getLogger("cc.a")),
            lambda: (t(3), logging.getLogger("cc.b")),
        ),
        "content-pattern": tensor_arg(
            lambda x, o: (o is re.compile("a"), x + 1),
            lambda: (t(3), re.compile("a")),
            lambda: (t(3), re.compile("b")),
        ),
        "content-pattern-equal": tensor_arg(
            lambda x, o: (o == re.compile("a"), x + 1),
            lambda: (t(3), re.compile("a")),
            lambda: (t(3), re.compile("b")),
            hit=False,
        ),
        "content-cached": tensor_arg(
            lambda x, o: (o is shared_pattern(1), x + 1),
            lambda: (t(3), shared_pattern(1)),
            lambda: (t(3), shared_pattern(2)),
        ),
        "content-factory-text": tensor_arg(
            lambda x, o: (f"{o}", x + 1),
            lambda: (t(3), collections.defaultdict(int, a=1)),
            lambda: (t(3), collections.defaultdict(list, a=1)),
        ),
        "content-factory-union": tensor_arg(
            lambda x, o: ((o | {1: 2}).default_factory, repr({1: 2} | o), x + 1),
            lambda: (t(3), collections.defaultdict(int, a=1)),
            lambda: (t(3), collections.defaultdict(list, a=1)),
            hit=False,
        ),
        "content-format-mapping": lambda: Case(
            lambda x, o: ("%(a)s" % o, x + 1), args=varying(lambda n: collections.ChainMap({"a": n})), hit=False
        ),
        "content-unhashable": tensor_arg(
            raises_in(lambda o: {o: 1}), lambda: (t(3), (1, [2])), lambda: (t(3), (1, 2)), hit=False
        ),
        "content-raising-number": lambda: Case(
            raises_in(torch.tensor), args=varying(lambda n: 2**70 if n == 4 else n), hit=False
        ),
        "content-raising-data": tensor_arg(
            raises_in(torch.tensor), lambda: (t(3), [2**70]), lambda: (t(3), [3]), hit=False
        ),
    }
)

TWO = {
    "star": lambda a, b: {*[a, b]},
    "comprehension": lambda a, b: {v for v in (a, b)},
    "set": lambda a, b: set([a, b]),
}
CASES.update(
    {
        f"content-members-{how}": tensor_arg(
            lambda x, a, b, fn=fn: (len(fn(a, b)), x + 1),
            lambda: (t(3), t(4), t(4)),
            lambda: (t(3), *[t(4)] * 2),
            hit=False,
        )
        for how, fn in TWO.items()
    }
)


def writes_a_view(view):
    """Reads of another argument around a write to a view that torch makes: the memory may be the same in a later call."""

    def run(a, b):
        p = view(a)
        before = b * 4
        p.add_(1)
        return p, before, b * 4

    return run


def shared():
    a = t(3, 3)
    return a, a


VIEWED = {"detach": torch.Tensor.detach, "view": lambda a: a.view(-1), "t": torch.t, "part": lambda a: a[1:]}
CASES.update(
    {
        f"content-shared-{how}": tensor_arg(writes_a_view(view), lambda: (t(3, 3), t(3, 3)), shared, hit=False)
        for how, view in VIEWED.items()
    }
)
