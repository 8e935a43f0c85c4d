"""What a program of worlds.py can be made of: PIECES of a world (objects, classes, functions, a module) and PHRASES that read them.

A piece is a line or a block of source; it needs the pieces that it names. So a program's world holds what its phrases reach, and
little else: a mutation that is drawn from all of it mostly hits something that was read. A phrase appends to `r` what it read.
`x` is a tensor, and `brk()` a graph break.
"""

PIECES = {
    "brk": "brk = ccompile.disable(lambda *a: at_break())",
    "K": "K = 3",
    "FK": "FK = 0.5",
    "NAME": "NAME = 'v'",
    "items": "items = [1, 2.5, 'a', 0]",
    "nested": "nested = [[1, 2], {'a': (1, 2)}, items]",
    "pair": "pair = (1, 2.0, items)",
    "table": "table = {'a': 1, 'b': 2.5, 'c': 'v', 3: 'three'}",
    "bag": "bag = {1, 2, 'a', 2.5}",
    "frozen": "frozen = frozenset([1, 'a', 0.0])",
    "queue": "queue = collections.deque([1, 2, 3])",
    "counts": "counts = collections.Counter('aab')",
    "order": "order = collections.OrderedDict(a=1, b=2)",
    "chain": "chain = collections.ChainMap({'a': 1}, table)",
    "lazy": "lazy = collections.defaultdict(lambda: [K])",
    "nan": "nan = float('nan')",
    "zero": "zero = 0.0",
    "com": "com = complex(0.0, -0.0)",
    "np_zero": "np_zero = numpy.float32(0.0)",
    "arr": "arr = numpy.arange(4.0)",
    "Base": """
        class Base:
            kind, shared = 'base', [1]
            def __init__(self, v=1): self.v, self.w, self.items = v, 2.5, [v]
            def get(self): return self.v
            def scaled(self, by=2): return self.v * by + len(self.kind)
            @property
            def twice(self): return self.v * 2
            @classmethod
            def made(cls): return cls.kind
            @staticmethod
            def fixed(): return 4""",
    "Sub": """
        class Sub(Base):
            kind = 'sub'
            def get(self): return super().get() + 1""",
    "Other": """
        class Other(Base):
            kind = 'other'
            def scaled(self, by=3): return by""",
    "o": "o = Sub(5)",
    "p": "p = Base(2)",
    "same": "same = p",
    "Slots": """
        class Slots:
            __slots__ = ('a', 'b')
            def __init__(self): self.a = 1""",
    "s": "s = Slots()",
    "Bare": """
        class Bare: pass""",
    "bare": "bare = Bare()",
    "Full": """
        class Full:
            n = 2
            def __len__(self): return self.n
            def __iter__(self): return iter([1, self.n])
            def __getitem__(self, k): return (k, self.n) if not isinstance(k, int) or k < self.n else [][0]
            def __contains__(self, k): return k == self.n
            def __call__(self, a=1): return a + self.n
            def __eq__(self, other): return isinstance(other, Full) and self.n == other.n
            def __hash__(self): return hash(self.n)
            def __lt__(self, other): return self.n < getattr(other, 'n', 0)
            def __add__(self, b): return self.n + 1
            def __radd__(self, b): return self.n + 2
            def __neg__(self): return -self.n
            def __int__(self): return self.n
            def __index__(self): return self.n
            def __float__(self): return self.n + 0.5
            def __str__(self): return f's{self.n}'
            def __repr__(self): return f'r{self.n}'
            def __format__(self, spec): return f'f{self.n}{spec}'
            def __enter__(self): return self.n
            def __exit__(self, *what): return False
            def __getattr__(self, name): return name if name[0] != '_' else object.__getattribute__(self, name)""",
    "full": "full = Full()",
    "Desc": """
        class Desc:
            def __get__(self, of, cls=None): return ('desc', getattr(of, 'v', 0))""",
    "Has": """
        class Has:
            d, v = Desc(), 1""",
    "has": "has = Has()",
    "Caching": """
        class Caching:
            def __init__(self, f): self.f = f
            def __get__(self, of, cls=None):
                if of is None: return self
                made = of.__dict__[self.f.__name__] = self.f(of)
                return made""",
    "Cached": """
        class Cached:
            v = 2
            @Caching
            def big(self): return [self.v]
            @functools.cached_property
            def own(self): return (self.v,)
            def __getattr__(self, name):
                if name != 'late': raise AttributeError(name)
                self.late = self.v + 1
                return self.late""",
    "cached": "cached = Cached()",
    "Missing": """
        class Missing(dict):
            def __missing__(self, k): return ('missing', k)""",
    "missing": "missing = Missing(a=1)",
    "Meta": """
        class Meta(type):
            level = property(lambda cls: len(cls.__name__))
            def __iter__(cls): return iter([cls.__name__])
            def __instancecheck__(cls, o): return hasattr(o, 'v')""",
    "Made": """
        class Made(metaclass=Meta):
            k = 1""",
    "Point": "Point = collections.namedtuple('Point', 'x y', defaults=(2,))",
    "point": "point = Point(1)",
    "Data": """
        @dataclasses.dataclass
        class Data:
            a: int = 1
            b: list = dataclasses.field(default_factory=lambda: [1])""",
    "data": "data = Data(2)",
    "Color": """
        class Color(enum.Enum):
            RED, BLUE = 1, 2""",
    "color": "color = Color.RED",
    "E1": """
        class E1(Exception): pass""",
    "E2": """
        class E2(E1): pass""",
    "CATCH": "CATCH = (E1, KeyError)",
    "plain": """
        def plain(a=1, *rest, b=2, **more): return (a, rest, b, K, sorted(more))""",
    "other_plain": """
        def other_plain(a=1, *rest, b=2, **more): return (b, K)""",
    "closed": """
        def make_closed():
            n, held = 1, [2]
            def closed(a): return a + n + len(held)
            return closed
        closed = make_closed()""",
    "part": "part = functools.partial(plain, 7, b=8)",
    "bound": "bound = o.scaled",
    "rows": """
        def rows(n=2):
            for i in range(n): yield (i, K)""",
    "memo": """
        @functools.lru_cache(maxsize=2)
        def memo(k): return [k, K]""",
    "mod": "mod = module(one=1, two=[2], fn=lambda: 3)",
    "var": "var = contextvars.ContextVar('var', default=1)",
    "unset": "unset = contextvars.ContextVar('unset')",
    "scope": """
        @contextlib.contextmanager
        def scope(v):
            token = var.set(v)
            try: yield v
            finally: var.reset(token)""",
    "w": "w = torch.arange(1.0, 4.0)",
    "weights": "weights = [torch.ones(3), torch.full((3,), 2.0)]",
    "Net": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin, self.act, self.scale, self.flag = nn.Linear(3, 3), nn.ReLU(), 2.0, True
                self.register_buffer('mean', torch.ones(3))
                with torch.no_grad(): self.lin.weight.copy_(torch.arange(9.0).view(3, 3) / 9); self.lin.bias.fill_(0.5)
            def forward(self, x):
                x = self.act(self.lin(x)) * self.scale + self.mean
                return x if self.flag else x * K""",
    "net": "net = Net()",
    "lib": "lib = module(relu=torch.relu, scale=lambda x: x * 2, Linear=nn.Linear, inner=module(tanh=torch.tanh))",
    "Mine": """
        class Mine(int):
            def twice(self): return self * 2""",
    "mine": "mine = Mine(3)",
    "Text": """
        class Text(str):
            def __len__(self): return 2""",
    "text": "text = Text('abc')",
    "Match": """
        class Match:
            __match_args__ = ('a', 'b')
            def __init__(self, a, b): self.a, self.b = a, b""",
    "match_me": "match_me = Match(1, [2])",
    "shown": """
        @functools.singledispatch
        def shown(v): return 'any'
        @shown.register
        def _(v: int): return 'int'""",
    "decorated": """
        def around(f):
            @functools.wraps(f)
            def inner(*a, **k): return f(*a, **k), K
            return inner
        @around
        def decorated(a=1): return a""",
    "manager": """
        @contextlib.contextmanager
        def manager(v=1):
            yield v + K""",
    "Abstract": """
        class Abstract(abc.ABC):
            pass""",
    "WithSet": """
        class WithSet:
            _v = 1
            @property
            def v(self): return self._v
            @v.setter
            def v(self, v): self._v = v + 1
            def __setitem__(self, k, v): self.last = (k, v)
            def __delitem__(self, k): self.last = k
            def __iadd__(self, b): self._v += b; return self
            def __matmul__(self, b): return self._v
            def __or__(self, b): return NotImplemented
            def __ror__(self, b): return 'ror'
            def __round__(self, n=0): return self._v
            def __abs__(self): return self._v
            def __reversed__(self): return iter([self._v])
            def __dir__(self): return ['v']
            def __bytes__(self): return b'b'
            def __complex__(self): return 1j
            def __length_hint__(self): return 3
            def __next__(self): return self._v""",
    "ws": "ws = WithSet()",
    "attr_of": "attr_of = operator.attrgetter('v', 'w')",
    "item_of": "item_of = operator.itemgetter('a', 'b')",
    "ref": "ref = weakref.ref(o)",
    "getters": "getters = [lambda o: o.v, lambda o: o.w]",
    "log": "log = logging.Logger('ccompile.fuzz')",
    "Frozen": """
        @dataclasses.dataclass(frozen=True, eq=True)
        class Frozen:
            a: int = 1
            b: float = 2.0""",
    "key": "key = Frozen()",
    "by_key": "by_key = {key: 1, (1, 2): 2, None: 3, 2.5: 4}",
    "deep": "deep = Base(Base(Base(7)))",
    "Tree": """
        class Tree(nn.Module):
            def __init__(self, depth=2):
                super().__init__()
                self.w = nn.Parameter(torch.full((3,), float(depth)))
                if depth: self.left, self.right = Tree(depth - 1), Tree(depth - 1)
            def forward(self, x):
                x = x * self.w
                return self.right(self.left(x)) if hasattr(self, 'left') else x""",
    "tree": "tree = Tree()",
    "by_name": "by_name = nn.ModuleDict({'a': nn.Tanh(), 'b': nn.Identity()})",
    "plist": "plist = nn.ParameterList([torch.ones(3), torch.zeros(3)])",
    "seq": "seq = nn.Sequential(nn.Identity(), nn.Tanh())",
    "view": "view = w[1:]",
    "opt": "opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)",
    "ticks": "ticks = iter([1, 2, 3, 4, 5, 6, 7, 8, 9])",
    "of_table": "of_table = iter(table.items())",
    "coming": "coming = rows(20)",
    "pairs": "pairs = zip(items, itertools.count())",
    "count_up": "count_up = itertools.count(K if isinstance(K, int) else 0)",
    "bn": "bn = nn.BatchNorm1d(3)",
    "drop": "drop = nn.Dropout(0.5)",
    "emb": "emb = nn.Embedding.from_pretrained(torch.arange(12.0).view(4, 3))",
    "ids": "ids = torch.tensor([1, 2])",
    "Meta2": """
        class Meta2(type):
            def __call__(cls, *a): return (cls.__name__, super().__call__(*a))
            def __getattr__(cls, name):
                if name != 'dynamic': raise AttributeError(name)
                return len(name)
            def __contains__(cls, k): return k == 1""",
    "Made2": """
        class Made2(metaclass=Meta2):
            def __init__(self, v=1): self.v = v""",
    "SetDesc": """
        class SetDesc:
            def __set_name__(self, of, name): self.name = '_' + name
            def __get__(self, of, cls=None): return self if of is None else of.__dict__.get(self.name, 'unset')
            def __set__(self, of, v): of.__dict__[self.name] = (v, K)
            def __delete__(self, of): of.__dict__.pop(self.name, None)""",
    "Held": """
        class Held:
            d = SetDesc()""",
    "held_d": "held_d = Held()",
    "Sq": """
        class Sq(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * FK
            @staticmethod
            def backward(ctx, g): return g * 2 * ctx.saved_tensors[0]""",
    "Tens": """
        class Tens(torch.Tensor):
            scale = 2
            def scaled(self): return self * self.scale""",
    "tens": "tens = torch.ones(3).as_subclass(Tens)",
    "weak_by": "weak_by = weakref.WeakKeyDictionary({o: 1, p: 2})",
    "stack_of": "stack_of = contextlib.ExitStack()",
    "types_of": "types_of = type(sys.implementation)",
    "space": "space = types_of(a=1, b=[2], c=w)",
    "by_tensor": "by_tensor = {w: 1, 'x': 2}",
    "shape_of": "shape_of = torch.Size([3, 1])",
    "hooked": """
        class Hooked(nn.Module):
            def __init__(self):
                super().__init__()
                self.seen, self.inner = [], nn.Identity()
                made = self.inner.register_forward_hook(lambda m, a, out: self.seen.append(len(self.seen)))
                self.inner._forward_hooks[0] = self.inner._forward_hooks.pop(made.id)
            def forward(self, x): return self.inner(x) * len(self.seen)
        hooked = Hooked()""",
}

PHRASES = """
r.append(K)
r.append(K is same if 'same' in globals() else K)
r.append(x * FK)
r.append(x + K)
r.append((nan in [nan], nan == nan))
r.append(math.copysign(1.0, zero))
r.append((com, com.imag))
r.append(str(np_zero))
r.append(float(arr.sum()))
r.append(len(items)); r.append(items[0])
r.append(items[-1:])
r.append(list(items))
r.append([i for i in items if i])
r.append('a' in items)
r.append(items == [1, 2.5, 'a', 0])
r.append(items.index('a'))
r.append(nested[0][1]); r.append(nested[2] is items)
r.append(nested[1]['a'][0])
r.append(pair[1] * x); r.append(pair[2] is items)
r.append(table['a']); r.append(table.get('zz', 1))
r.append(table.get('b'))
r.append(list(table)); r.append(list(table.items()))
r.append('zz' in table); r.append(len(table))
r.append({**table})
r.append(table.setdefault('new', 1))
r.append(sorted(map(str, table.values())))
r.append(list(bag)); r.append(1 in bag)
r.append(len(bag)); r.append(sorted(map(str, bag)))
r.append(1.0 in frozen); r.append([type(i).__name__ for i in frozen])
r.append(queue[0]); r.append(list(queue)); r.append(len(queue))
queue.append(queue[0]); r.append(queue.popleft())
r.append(counts['a']); r.append(counts['zz']); r.append(counts.most_common(1))
r.append(list(order)); r.append(order['a'])
order.move_to_end('a'); r.append(list(order))
r.append(chain['a']); r.append(chain.get('zz'))
r.append(lazy['k']); r.append(len(lazy))
lazy['k'].append(1); r.append(list(lazy['k']))
r.append(o.v); r.append(o.kind)
r.append(o.get()); r.append(o.twice)
r.append(o.scaled()); r.append(o.scaled(3))
r.append(getattr(o, 'zz', 1)); r.append(hasattr(o, 'late'))
r.append(getattr(o, NAME))
r.append(o.made()); r.append(o.fixed())
o.v = o.v + 1; r.append(o.v)
o.items.append(o.v); r.append(len(o.items))
o.new = K; r.append(o.new)
r.append(isinstance(o, Base)); r.append(isinstance(o, Other))
r.append(type(o).__name__); r.append(type(o) is Sub)
r.append(o.__class__.__qualname__); r.append([c.__name__ for c in type(o).__mro__])
r.append(issubclass(Sub, Base)); r.append(Sub.__bases__[0].__name__)
r.append(sorted(k for k in vars(o)))
r.append([k for k in vars(Sub) if k[0] != '_'])
r.append(o.shared is Base.shared); r.append(len(Base.shared))
r.append(p.v * x); r.append(p.w)
r.append(p is same); r.append(p == same)
r.append(p.get() if p else 0)
r.append(s.a); r.append(getattr(s, 'b', 'unset'))
r.append(hasattr(bare, 'v')); r.append(bool(bare))
r.append(callable(bare)); r.append(bare == bare)
r.append(getattr(bare, 'items', None))
r.append(len(full)); r.append(list(full))
a, *b = full; r.append((a, b))
r.append(full[0]); r.append(full['k']); r.append(full[1:2])
r.append(2 in full); r.append(full())
r.append(full == Full()); r.append({full: 1}.get(Full()))
r.append(full + 1); r.append(1 + full)
r.append(-full); r.append(int(full)); r.append(float(full)); r.append(x[full:])
r.append(str(full)); r.append(repr(full)); r.append(f'{full:x}'); r.append('%s' % full)
r.append(bool(full)); r.append(not full)
r.append(sum(full)); r.append(max(full)); r.append(sorted([full, Full()])[0] is full)
r.append(full.attr); r.append(getattr(full, 'n'))
r.append(list(range(full))); r.append([1, 2, 3, 4][full])
r.append(list(map(lambda i: i, full))); r.append(list(zip(full, full))); r.append(tuple(full)); r.append(any(full))
r.append(math.floor(full) if hasattr(full, '__floor__') else math.sqrt(full))
r.append(operator.index(full)); r.append(operator.add(full, 1)); r.append(divmod(7, int(full)))
r.append(dict.fromkeys(full)); r.append(set(full)); r.append(enumerate(full).__next__())
with full as v: r.append(v)
for v in full: r.append(v)
r.append(has.d); r.append(has.v)
r.append(Has.d)
r.append(cached.big[0])
r.append(cached.own); r.append(cached.late)
r.append(missing['a']); r.append(missing['k']); r.append(missing.get('k'))
r.append(Made.level); r.append(list(Made)); r.append(Made.k)
r.append(isinstance(bare, Made))
r.append(point.x); r.append(point._replace(y=3)); r.append(point._fields)
r.append(data.a); r.append(data == Data(2)); r.append(dataclasses.asdict(data))
r.append(repr(data)); r.append(dataclasses.replace(data, a=5))
r.append(color is Color.RED); r.append(color.value); r.append([c.name for c in Color]); r.append(Color(2))
try: raise E2(K)
except E1 as e: r.append(type(e).__name__)
except Exception: r.append('else')
try: raise E2
except CATCH: r.append('caught')
except Exception: r.append('not caught')
try: r.append(table['zz'])
except KeyError: r.append('no key')
try: r.append(o.zz)
except AttributeError: r.append('no attribute')
r.append(plain()); r.append(plain(1, 2, c=3))
r.append(plain.__defaults__); r.append(plain.__name__); r.append(getattr(plain, 'mark', None))
r.append((plain if K else other_plain)())
r.append(closed(1)); r.append(closed.__closure__[0].cell_contents)
r.append(part()); r.append(part.args); r.append(part.keywords['b'])
r.append(bound()); r.append(bound.__name__); r.append(bound.__self__ is o)
r.append(list(rows())); r.append(next(rows(1)))
r.append(memo(1)[0])
r.append(mod.one); r.append(mod.fn()); r.append(getattr(mod, 'zz', 0)); r.append(len(mod.two))
import mutated_module; r.append(mutated_module.one)
from mutated_module import two; r.append(two[0])
r.append(var.get())
r.append(var.get(5)); r.append(unset.get('none'))
token = var.set(3); r.append(var.get()); var.reset(token); r.append(var.get())
token = unset.set(K); r.append(unset.get()); unset.reset(token); r.append(unset.get(0))
outer = var.set(3); inner = var.set(K); r.append(var.get()); var.reset(inner); r.append(var.get()); var.reset(outer); r.append(var.get(2))
with scope(4): r.append(x * var.get())
with scope(4): r.append(var.get()); brk(); r.append(var.get(7))
with scope(K), scope(5): r.append(x + var.get())
var.set(var.get() + 1); r.append(x * var.get())
r.append(K in (1, 30)); r.append(FK not in [30, 80]); r.append(K in {2: 3, 'a': 4})
r.append(items[:1]); r.append(pair[1:]); r.append(items[-1:])
r.append(x * w); r.append(w.shape[0]); r.append(w.dtype)
r.append(w.requires_grad); r.append(w.is_contiguous())
r.append(sum(weights)); r.append(weights[0] is weights[1])
w.add_(1); r.append(w.sum())
r.append(net(x))
r.append(net.training); r.append(net.lin.weight.shape[0]); r.append([n for n, _ in net.named_parameters()])
r.append(list(net.state_dict())); r.append(len(list(net.children())))
r.append(seq(x)); r.append(len(seq))
for m in seq: x = m(x)
r.append(round(x.sum().item(), 4) * K)
r.append(torch.get_default_dtype()); r.append(torch.is_grad_enabled()); r.append(torch.tensor(1.5))
r.append(torch.ones(2, 2).sum()); r.append(torch.is_autocast_enabled('cpu')); r.append(x @ x)
r.append(os.environ.get('MUTATED')); r.append(sys.getrecursionlimit()); r.append(os.getcwd() == '/')
r.append(threading.get_ident() == threading.main_thread().ident); r.append(warnings.filters[0][0] if warnings.filters else None)
r.append(K if len(items) > 2 else FK)
r.append([f() for f in (closed and plain, rows and plain)][0])
r.append(lib.relu(x)); r.append(lib.scale(x)); r.append(lib.inner.tanh(x))
r.append(mine + 1); r.append(mine.twice()); r.append(x * mine); r.append(isinstance(mine, int))
r.append(len(text)); r.append(text.upper()); r.append(f'{text}')
match match_me: case Match(1, [b]): r.append(b)
match table: case {'a': v, **rest}: r.append((v, len(rest)))
match items: case [1, *more]: r.append(more)
r.append(shown(1)); r.append(shown('a')); r.append(shown(o))
r.append(decorated()); r.append(decorated.__wrapped__(2)); r.append(decorated.__name__)
with manager() as v: r.append(v)
with contextlib.suppress(*CATCH): r.append(table['zz'])
r.append(isinstance(o, Abstract)); r.append(issubclass(Sub, Abstract))
ws.v = 3; r.append(ws.v); r.append(ws._v)
ws['a'] = 1; r.append(ws.last)
global ws; ws += 2; r.append(ws.v)
r.append(ws @ 1); r.append(1 | ws); r.append(round(ws)); r.append(abs(ws)); r.append(list(reversed(ws)))
r.append(next(ws)); r.append(dir(ws)); r.append(bytes(ws)); r.append(complex(ws)); r.append(operator.length_hint(ws))
r.append(attr_of(o)); r.append(item_of(table))
r.append(ref() is o); r.append(ref().v)
r.append([g(o) for g in getters]); r.append([f(p) for f in (getters[0], getters[-1])])
r.append(log.isEnabledFor(10)); r.append(log.level); r.append(log.name)
r.append(key.a); r.append(by_key[key]); r.append(by_key.get((1, 2))); r.append(hash(key) == hash(Frozen())); r.append(key == Frozen())
r.append(deep.v.v.v); r.append(deep.v.v.kind)
r.append(tree(x)); r.append(len(list(tree.parameters()))); r.append([n for n, _ in tree.named_modules()])
r.append(tree.left.w is tree.right.w); r.append(tree.left.left.w * x)
r.append(by_name['a'](x)); r.append(list(by_name)); r.append([m(x) for m in by_name.values()])
r.append(sum(plist)); r.append(len(plist)); r.append(plist[0] * x)
r.append(plain(**{k: v for k, v in table.items() if isinstance(k, str)})); r.append(plain(*items))
r.append(functools.reduce(lambda a, b: (a, b), items)); r.append(list(itertools.chain(items, queue)))
r.append(sorted(table, key=str)); r.append(min(items, key=str)); r.append([*map(str, items)]); r.append(list(filter(None, items)))
r.append(list(zip(items, table))); r.append(list(enumerate(items, K if isinstance(K, int) else 0))); r.append(list(reversed(items)))
r.append(items.count(1)); r.append(items.copy()); r.append(items + [1]); r.append(items * 2); r.append(items > [0])
r.append(table | {'q': 1}); r.append(table.copy()); r.append(dict(table)); r.append(table == {}); r.append(list(table.keys() & {'a', 'b'}))
r.append(table.pop('a', 0)); table['a'] = 1
r.append(sorted(map(str, bag | {7}))); r.append(sorted(map(str, bag & frozen))); r.append(bag == frozen); r.append(bag.isdisjoint([1]))
bag.add(9); r.append(9 in bag)
items.append(K); r.append(len(items)); items.pop()
items.sort(key=str); r.append(items[0])
del items[0]; r.append(len(items)); items.insert(0, 1)
r.append(copy.copy(o).v); r.append(copy.deepcopy(o).items); r.append(copy.deepcopy(nested))
r.append(str(inspect.signature(plain))); r.append(inspect.isfunction(plain)); r.append(callable(o))
r.append(json.dumps([1, K if isinstance(K, int) else 0])); r.append(re.match('a', text) is None)
r.append(hash(point)); r.append(repr(point)); r.append(point == (1, 2)); r.append(Point(*point)); r.append([f for f in point])
r.append(Color['RED']); r.append(color == Color.BLUE); r.append(str(color)); r.append(color in Color)
r.append([f.name for f in dataclasses.fields(data)]); data.b.append(1); r.append(len(data.b))
r.append((lambda a=K: a)()); r.append([i * FK for i in range(2)]); r.append({k: FK for k in 'ab'}); r.append(next((i for i in items), None))
global K; K = K; r.append(K)
global counted; counted = globals().get('counted', 0) + 1; r.append(counted)
r.append(type(x) is torch.Tensor); r.append(torch.is_tensor(w)); r.append(isinstance(w, nn.Parameter)); r.append(w.grad is None)
r.append(w.data_ptr() == w.data_ptr()); r.append(w.tolist())
r.append(torch.cat([w, x])); r.append(torch.stack(weights)); r.append((w > 0).any().item()); r.append(x[w > 0] if w.shape == x.shape else 0)
r.append(net.lin(x)); r.append(net.act); r.append(net.mean * x); r.append(dict(net.named_buffers()).keys())
net.scale = K; r.append(net.scale)
net.mean += 1; r.append(net.mean)
r.append(getattr(net, 'extra', 1)); r.append(hasattr(net, 'lin')); r.append(net.__class__.__name__); r.append(len(net._forward_hooks))
r.append(F.linear(x, net.lin.weight, net.lin.bias)); r.append(nn.functional.relu(x))
brk()
brk(); r.append(K); brk()
brk(); r.append(o.v); o.v = 1; brk(); r.append(o.scaled())
q = {'k': items}; brk(); r.append(q['k'] is items); q['k'].append(1)
q = o; brk(); r.append(q.get()); q.w = K; brk(); r.append(o.w)
try: brk(); r.append(table['zz'])
except KeyError: brk(); r.append('no key behind a break')
for i in items: brk(); r.append(i)
if x.sum() > 0: r.append(K)
r.append(round(x.max().item(), 4) + (K if isinstance(K, int) else 0))
q = [1]; brk(); q.append(K); r.append(q)
q = items; brk(); r.append(len(q)); q.append(1)
it = iter(items); next(it, 0); brk(); r.append(list(it))
it = rows(3); next(it, 0); brk(); r.append(list(it))
view.add_(1); r.append(w * view.sum())
r.append(view._base is w); r.append(view.storage_offset()); r.append(w.stride())
y = w[:2] if w.dim() else w; y.mul_(2); r.append(w)
loss = net(x).sum(); loss.backward(); r.append([q.grad for q in net.parameters()])
opt.zero_grad(); net(x).sum().backward(); opt.step(); r.append(net.lin.weight)
r.append(opt.param_groups[0]['lr']); r.append(len(opt.state)); opt.param_groups[0]['lr'] *= 0.5
r.append(torch.autograd.grad(net(x).sum(), [q for q in net.parameters() if q.requires_grad], allow_unused=True))
y = Sq.apply(x); r.append(y); r.append(y.requires_grad)
with torch.no_grad(): r.append(net(x)); r.append(w.requires_grad)
with torch.enable_grad(): r.append((w * K).requires_grad)
r.append(next(ticks, None)); r.append(next(ticks, None))
r.append(next(of_table, None)); r.append(next(coming, None)); r.append(next(pairs, None)); r.append(next(count_up))
for t in ticks: r.append(t); break
for t in coming: brk(); r.append(t); break
r.append(list(itertools.islice(coming, 2))); r.append(operator.length_hint(ticks))
r.append(bn(x.view(1, -1) * torch.tensor([[1.0], [3.0]]))); r.append(bn.running_mean); r.append(bn.num_batches_tracked)
r.append(drop(x)); r.append(F.dropout(x, 0.5, net.training)); r.append(torch.rand(2)); r.append(random.random())
r.append(emb(ids)); r.append(emb.weight[0] * x)
r.append(Made2(3)); r.append(Made2.dynamic); r.append(1 in Made2); r.append(hasattr(Made2, 'zz'))
r.append(held_d.d); held_d.d = K; r.append(held_d.d); r.append(sorted(vars(held_d)))
del held_d.d; r.append(held_d.d)
r.append(tens.scaled()); r.append(type(tens * 2).__name__); r.append(tens + x); r.append(tens.scale)
r.append(len(weak_by)); r.append(weak_by.get(o)); r.append(o in weak_by)
r.append(space.a); r.append(space.b is space.b); r.append(space.c * x); space.d = K; r.append(vars(space).keys())
r.append(by_tensor[w]); r.append(w in by_tensor); r.append(len(by_tensor))
r.append(x.reshape(shape_of) if x.numel() == 3 else 0); r.append(shape_of.numel()); r.append(x.shape == shape_of)
r.append(hooked(x)); r.append(hooked.seen)
r.append(x.shape); r.append(x.dtype); r.append(x.is_contiguous()); r.append(x.requires_grad); r.append(x is w)
r.append(x + 1); r.append(x.sum()); r.append(x.clone()); r.append(-x if x.dtype is not torch.bool else x)
x.add_(K) if x.is_floating_point() and not x.requires_grad else None; r.append(x); r.append(w)
r.append([x for x in (x, w) if x.dim()]); r.append(x.tolist() if x.dtype in (torch.int32, torch.bool) else len(x))
r.append(str(w)); r.append(repr(x)); r.append(f'{x.sum().item():.2f}')
r.append(torch.get_num_threads()); r.append(torch.are_deterministic_algorithms_enabled()); r.append(torch.get_float32_matmul_precision())
r.append(torch.zeros(2).device); r.append(torch.empty(1).dtype); r.append(torch.full((2,), K if isinstance(K, int) else 1).dtype); r.append(torch.arange(3) * w)
r.append(torch.is_inference_mode_enabled()); r.append(torch.is_anomaly_enabled()); r.append(torch.get_autocast_dtype('cpu'))
r.append(decimal.Decimal(1) / 3); r.append(str(numpy.float64(1) / 3)); r.append(str(arr)); r.append(arr[0] + arr[-1])
r.append(torch.from_numpy(arr) * 2); r.append(arr.shape); r.append(arr.mean())
r.append(items is pair[2]); r.append(items is nested[2]); r.append(o is p); r.append(w is weights[0])
r.append(len(items) + len(table)); r.append(K + 1); r.append(FK * 2); r.append(NAME + 'x')
r.append(o.v if o else p.v); r.append([i.v for i in (o, p)]); r.append({o: 1, p: 2}.get(same))
items[0], items[-1] = items[-1], items[0]; r.append(items)
table['k2'] = items; r.append(table['k2'] is items); del table['k2']
o.items = [K]; p.items = o.items; o.items.append(2); r.append(p.items)
setattr(o, NAME, 7); r.append(o.v); delattr(o, 'w') if hasattr(o, 'w') else None; r.append(getattr(o, 'w', 'none'))
o.__dict__['v'] = 9; r.append(o.v); o.__dict__.update(v=8); r.append(o.get())
g = lambda a=K: (a, o.v); r.append(g()); r.append(g(2))
g = (lambda a: lambda: (a, K))(1); r.append(g()); r.append(g.__closure__[0].cell_contents)
r.append([f() for f in [lambda i=i: (i, K) for i in range(2)]])
Local = type('Local', (Base,), {'kind': 'local'}); r.append(Local(2).scaled())
r.append(super(Sub, o).get()); r.append(type(o).get(o)); r.append(Base.get(o))
r.append(o.get.__func__ is Sub.get); r.append(o.get.__self__ is o)
r.append([*rows()] + [*coming][:1]); r.append(sum(i for i, _ in rows(3)))
with contextlib.ExitStack() as es: r.append(es.enter_context(manager(2)))
try: r.append(table['a'] / zero)
except (ZeroDivisionError, TypeError) as e: r.append(str(e))
try: r.append(x @ w.view(-1, 1).expand(5, 5))
except RuntimeError: r.append('sizes'); brk(); r.append(K)
try: brk(); raise E2(o.v)
except E1 as e: r.append(e.args); brk(); r.append(o.kind)
for k, v in table.items(): brk(); r.append((k, v))
for i, (a, b) in enumerate(zip(items, queue)): brk(); r.append((i, a, b))
q = [o, p]; brk(); r.append([i.v for i in q]); brk(); r.append(q[0] is o)
q = (w, x); brk(); r.append(q[0] is w); r.append(q[0] * q[1])
y = x * w; brk(); r.append(y + K); brk(); r.append(net(y) if y.shape == x.shape else y)
y = net(x); brk(); net.scale = 3.0; r.append(net(x) + y)
g = lambda: o.v + K; brk(); r.append(g())
with torch.no_grad(): brk(); r.append(net(x).requires_grad)
with manager() as v: brk(); r.append(v + K)
r.append([brk() or i for i in items]); r.append({k: brk() for k in table})
r.append(getattr(brk(), 'zz', K)); r.append(len(items)); brk(); r.append(len(items))
r.append((brk(), o.v, brk(), o.v)); r.append(brk() is None and K)
t_ = f'{K}:{o.v}'; r.append(t_); brk(); r.append(t_ + '!'); r.append(t_ in table); r.append({t_: 1})
t_ = 'k%s' % K; brk(); r.append(table.get(t_)); r.append(t_[-1]); r.append(hasattr(o, t_)); r.append(t_ == 'k3')
t_ = str(K); r.append([t_]); brk(); r.append(t_ is str(K)); r.append(int(t_) if t_.isdigit() else t_)
m_ = arr.sum(); n_ = m_; brk(); r.append(m_ is n_); r.append(m_ + 1); r.append([m_]); brk(); r.append(f'{m_} {n_}'); r.append(m_ > 3)
m_ = {'a': arr.max()}; brk(); r.append(m_); r.append(x * float(m_['a'])); brk(); r.append(m_['a'] == 3)
r.append(items[-1]); r.append(items[-2:]); brk(); r.append(items[-1] is items[len(items) - 1]); r.append(items[0] is items[-1])
items += [K, o]; brk(); r.append(items[-1] is o); r.append(items[-2]); del items[-2:]; r.append(items[-1:])
s.a = o.v; r.append(s.a); s.a = x; brk(); r.append(s.a is x); s.b = K; r.append(s.b); del s.b; r.append(hasattr(s, 'b')); s.a = 1
q = s; q.a = K; r.append(s.a); s.a = [K]; brk(); r.append(q.a is s.a); r.append(q.a); s.a = 1
s_ = 0.0; s_ += x.sum().item() if x.dim() else 0; r.append(s_ > FK if isinstance(FK, float) else s_ > 0)
"""
