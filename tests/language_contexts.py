"""Context managers that change how torch computes: inference mode in all its forms, combined with other modes and with breaks."""

import contextlib

import torch
from language_cases import case, made, t
from torch import nn

torch.manual_seed(5)
LINEAR = nn.Linear(3, 3)
WEIGHT = nn.Parameter(t(3, 3, seed=9))


def kinds(*tensors):
    return [(v.is_inference(), v.requires_grad) for v in tensors]


def modes():
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@case
def inference_block(x):
    y = x * 2
    with torch.inference_mode():
        z = (y + 1).relu()
        inside = modes()
    return y, z, y * 3, inside, modes(), kinds(y, z)


@case
def inference_layers(x):
    with torch.inference_mode():
        y = LINEAR(x).relu() + 1
        return y, kinds(y, x), modes()


@torch.inference_mode()
def decorated(x, scale=2):
    return LINEAR(x) * scale


@torch.inference_mode
def decorated_bare(x):
    return LINEAR(x)


@case
def inference_decorated(x):
    a, b = decorated(x * 2, scale=3), decorated_bare(x)
    return a, b, kinds(a, b), modes()


@case
def inference_in_no_grad(x):
    with torch.no_grad():
        a = LINEAR(x)
        with torch.inference_mode():
            b = LINEAR(a)
        c = a + 1
        inside = modes()
    d = LINEAR(x)
    return a, b, c, d, inside, modes(), kinds(a, b, c, d)


@case
def grad_in_inference(x):
    with torch.inference_mode():
        with torch.enable_grad():
            a = LINEAR(x)
            inside = modes()
        with torch.set_grad_enabled(False):
            b = LINEAR(a)
    return a, b, inside, modes(), kinds(a, b)


@case
def inference_off_inside(x):
    with torch.inference_mode():
        a = x + 1
        with torch.inference_mode(False):
            b = LINEAR(x) * 2
            inside = modes()
        c = a * b.detach()
    return a, b, c, inside, kinds(a, b, c)


@case
def inference_off_alone(x):
    with torch.inference_mode(False):
        y = LINEAR(x)
    return y, kinds(y)


@case(inputs=lambda i: (t(2 + i % 2, 3, seed=i),))
def inference_by_size(x):
    with torch.inference_mode(x.shape[0] > 2):
        y = LINEAR(x)
    return y, kinds(y)


@case
def inference_views(x):
    y = x * 2
    with torch.inference_mode():
        a, b = x.view(-1), y.view(-1)[1:]
        c = (y + 1).t()
        d, e = (c * 2).split(1)[:2]
        told = kinds(a, b, c, d, e)
    f = c[0]
    return a, b, c, d, e, f, f + 1, told, kinds(a, b, c, d, e, f)


@case
def inference_asked(x):
    with torch.inference_mode():
        y = x + 1
        told = y.is_inference(), torch.is_inference(x)
    return y * 2 if y.is_inference() else y, told


@case
def inference_writes(x):
    y, z = x.clone(), torch.zeros(2, 3)
    with torch.inference_mode():
        y.add_(1)
        y[0] = 3
        cache = torch.zeros(4, 3)
        cache[:2] = x
        cache.mul_(2)
        z += y
    return y, z, cache, y + cache[:2], kinds(y, z, cache)


@case
def inference_argument_written(x):
    with torch.inference_mode():
        x.add_(1)
        y = x * 2
    x.mul_(2)
    return x, y


def inference_tensor_written_outside(x):   # no row: Dynamo raises something else
    with torch.inference_mode():
        y = x + 1
    try:
        y.add_(1)
    except RuntimeError as error:
        return y, str(error)


@case
def inference_tensor_saved(x):
    with torch.inference_mode():
        y = x + 1
    return y * WEIGHT[:2]


@case
def inference_raises(x):
    try:
        with torch.inference_mode():
            y = x + 1
            raise ValueError("inside")
    except ValueError as error:
        return y, str(error), modes()


@case
def inference_clone(x):
    with torch.inference_mode():
        y = LINEAR(x)
    z = y.clone()
    return y, z, (z * WEIGHT[0]).sum(), kinds(y, z)


@case
def inference_broken(x):
    with torch.inference_mode():
        y = LINEAR(x)
        print("inside")
        z = LINEAR(y)
        inside = modes()
    w = z + 1
    return y, z, w, inside, modes(), kinds(y, z, w)


@case
def inference_broken_twice(x):
    seen = []
    for k in range(2):
        with torch.no_grad(), torch.inference_mode(k == 0):
            y = LINEAR(x) + k
            print(k)
            y = y * 2
        seen += [y, kinds(y), modes()]
    return seen, LINEAR(x)


@case
def inference_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        y = LINEAR(x)
    return y, LINEAR(x), kinds(y)


@made
def inference_kept_manager():
    mode = torch.inference_mode()

    def fn(x):
        with mode:
            y = LINEAR(x)
        return y, kinds(y), mode.mode

    return fn


@made
def inference_tensor_from_outside():
    with torch.inference_mode():
        kept = t(3)

    def fn(x):
        with torch.inference_mode():
            y = x * kept
        z = x + kept
        return y, z, kinds(kept, y, z)

    return fn


@case
class Generates(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.fc = nn.Linear(3, 3)

    def step(self, x):
        return self.fc(x).tanh()

    @torch.inference_mode()
    def generate(self, x, n):
        found = []
        for _ in range(n):
            x = self.step(x)
            found.append(x)
        return torch.stack(found)

    def forward(self, x):
        return self.generate(x, 3), self.step(x)


@case
def no_grad_views_of_parameters(x):
    with torch.no_grad():
        v = WEIGHT.view(-1)
        y = (x @ WEIGHT).relu() + v[:3]
    d = WEIGHT.detach()
    return y, v.requires_grad, d * 2, (x @ WEIGHT).sum(), kinds(y, d)


@made
def no_grad_steps():
    weight = nn.Parameter(t(3, 3, seed=4))

    def fn(x):
        with torch.no_grad():
            weight.sub_(0.1 * (x.t() @ x))
            y = x @ weight
        return y, weight

    return fn, [weight]


@case(inputs=lambda i: (t(2, 3, seed=i).requires_grad_(i % 2 == 1),))
def grad_inside_no_grad(x):
    with torch.no_grad(), torch.enable_grad():
        y = x * 2
    return y, y.requires_grad


@case(inputs=lambda i: (t(2, 3, seed=i), t(2, 3, seed=i + 7).requires_grad_(i % 2 == 1)))
def write_that_begins_to_require_grad(x, w):
    y = x * 2
    y.add_(w)
    z = torch.zeros(2, 3)
    z[0] = w[0]
    return y, z, kinds(y, z)


@case
def attention_backends(x):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = x.view(1, 1, 2, 3)
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(SDPBackend.MATH):
        a = attend(q, q, q)
        inside = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
        b = attend(q, q, q)
    return a, b, attend(q, q, q), inside, torch.backends.cuda.flash_sdp_enabled()


@case(hit=False, over=3)  # its generator is resumed on both sides
def attention_backend_around_a_break(x):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = x.view(1, 1, 2, 3)
    with sdpa_kernel([SDPBackend.MATH]):
        a = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        print("inside", torch.backends.cuda.flash_sdp_enabled())
        a = a + 1
    return a * 2, torch.backends.cuda.flash_sdp_enabled()


@case
def cudnn_switched(x):
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not before
    y, inside = LINEAR(x), torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before
    return y + 1, inside is before, torch.backends.cudnn.benchmark is before


@case(hit=False)
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(log.append, "called")
        y = LINEAR(x)
        print("inside")
        y = LINEAR(y)
    return y, LINEAR(x), log


@case
def methods_made(x):
    import types

    def scale(self, by):
        return self * by

    return types.MethodType(scale, x)(3), types.MethodType(scale, 4)(5)


@case
def function_mapped(x):
    y = torch.func.vmap(lambda v: v * 2 + 1)(x + 1)
    return y * 2


@case
def function_differentiated(x):
    y = torch.func.grad(lambda v: (v * v).sum())(x + 1)
    return y * 2


@case
def function_jacobian(x):
    return torch.func.jacrev(torch.sin)(x[0] + 1) * 2, x + 1


@case(hit=False, over=2)  # vjp and its function are a break each; Dynamo traces them
def function_forward_and_back(x):
    a, b = torch.func.jvp(torch.sin, (x + 1,), (torch.ones_like(x),))
    back = torch.func.vjp(torch.cos, x)[1]
    return a + b, x * 2, back(x)[0]


@made
def function_of_parameters():
    parameters = {"weight": t(3, 3, seed=3), "bias": t(3, seed=4)}
    return lambda x: torch.func.functional_call(LINEAR, parameters, (x,)) + LINEAR(x)


@made
def function_of_an_ensemble():
    nets = [nn.Linear(3, 2) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(nets)

    def fn(x):
        def one(p, b, v):
            return torch.func.functional_call(nets[0], (p, b), (v,))

        return torch.func.vmap(one, in_dims=(0, 0, None))(parameters, buffers, x * 2).sum(0)

    return fn


@case
def function_results_in_a_tree(x):
    f = torch.func.vmap(lambda v, w: {"sum": v + w, "parts": (v * w, [v.sum()])})
    out = f(x, x * 2)
    out["own"] = 1
    return out, out["parts"][1][0] + 1


@case
def function_of_functions(x):
    def square(v):
        return (v * v).sum()

    def slope(v, w):
        return torch.func.jvp(torch.func.grad(square), (v,), (w,))[1]

    return torch.vmap(torch.func.grad(square))(x), slope(x, x + 1), torch.func.hessian(square)(x[0])


@made
def function_of_each_sample():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def loss(parameters, v):
        return torch.func.functional_call(net, parameters, (v[None],)).square().sum()

    def fn(x):
        parameters = {k: v.detach() for k, v in net.named_parameters()}
        grads, values = torch.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0))(parameters, x * 2)
        return {k: v.mean(0) for k, v in grads.items()}, values

    return fn


@case
def function_reads_what_is_written(x):
    b = x * 1
    b.add_(1)
    y = torch.vmap(lambda v: v * b[0])(x)
    b.mul_(2)
    return y, b, torch.vmap(lambda v: v + b)(x)


@made
def function_reads_a_module_that_is_written():
    net = nn.Linear(3, 2)

    def fn(x):
        with torch.no_grad():
            net.weight.add_(1)
        y = torch.vmap(net)(x)
        with torch.no_grad():
            net.weight.mul_(0.5)
        return y, torch.vmap(lambda v: net(v))(x)

    return fn, net


@case(hit=False, over=1)  # the function can't be called later than it is
def function_writes(x):
    seen = []

    def fn(v):
        seen.append(v.dim())
        return v * 2

    return torch.vmap(fn)(x), seen


@case(over=1)
def function_writes_its_argument(x):
    y = x * 2
    s = torch.vmap(lambda v: nn.functional.relu(v, True).sum())(y)
    return s, y * 3, y


@case(over=1)
def function_gives_its_argument(x):
    return torch.vmap(lambda v: v)(x).add_(1), x


@case(over=1)
def function_draws(x):
    return torch.vmap(lambda v: v + torch.rand(3), randomness="different")(x), torch.rand(2)


@case(over=1)
def function_reads_a_number(x):
    n = x.sum().item()
    return torch.vmap(lambda v: v * n)(x) + n


class Scaled(nn.Module):
    scale = 1.0

    def scaled(self, x):
        return x * self.scale

    def forward(self, x):
        return self.scaled(x) + 1


@made(hit=False, over=1)
def function_reads_an_attribute_that_is_written():
    module = Scaled()

    def fn(x):
        module.scale = module.scale + 1
        return torch.vmap(module)(x)

    return fn, module


@made
def function_reads_an_attribute():
    module = Scaled()
    return lambda x: torch.vmap(module)(x * 2) + 1


# ---- autocast on devices that are not there --------------------------------------------------------------------------
@case
def autocast_of_other_devices(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kinds = ("mps", "xpu", "cuda", x.device.type)
        return x @ x.T, [torch.is_autocast_enabled(k) for k in kinds], torch.get_autocast_dtype("mps")
