"""numpy inside a model: consecutive work on arrays is one break. Dynamo traces numpy, so these rows may have that one break more."""

import numpy as np
import torch
from language_cases import case, made


@case(over=1)
def array_softmax(x):
    a = (x * 2).numpy()
    b = np.exp(a - a.max(axis=1, keepdims=True))
    c = np.clip(b / b.sum(axis=1, keepdims=True), 0.1, 0.9)
    d = (c.T @ c).astype(np.float32)
    return torch.from_numpy(d) * 2 + x.sum()


@case(over=1)
def array_written(x):
    y = x * 2
    a = y.numpy()
    a[0] = 0
    a[1, 1] += 2
    a *= 2
    return torch.from_numpy(a) + 1, y


@case(over=1)
def array_loop(x):
    a = (x + 1).numpy()
    total = np.zeros(3, dtype=np.float32)
    for row in a:
        total = total + row
    return torch.as_tensor(total) * 2


@case(over=1)
def array_branch(x):
    a = (x * 2).numpy()
    if a.mean() > 0:
        a = a + 1
    else:
        a = a - 1
    return torch.from_numpy(a) * 2


@case(over=1)
def array_raises(x):
    a = (x * 2).numpy()
    try:
        a = a @ a
    except ValueError as error:
        return x + 1, type(error).__name__
    return torch.from_numpy(a)


def normed(y):
    a = y.numpy()
    return a / np.linalg.norm(a)


@case(over=3)  # an array that a function returns
def array_from_helper(x):
    a = normed(x * 2)
    b = np.sqrt(np.abs(a))
    return torch.from_numpy(b) + x


@case(over=3)  # x is a tensor between stretches
def array_made(x):
    a = np.arange(3, dtype=np.float32) * 2
    y = torch.from_numpy(a) + x
    b = np.linspace(0, 1, 3)
    return y, x * torch.tensor(b, dtype=torch.float32)


@made(over=1)
def array_global():
    table = np.arange(6, dtype=np.float32).reshape(2, 3)

    def fn(x):
        a = x.numpy() + table
        table[0] += 1
        return torch.from_numpy(a) * 2, x * 3

    return fn, table


@case(over=2)
def array_and_scalars(x):
    a = (x * 2).numpy()
    n, m = a.shape
    k = int(a.argmax()) % n
    return x[k] * m + float(a.dtype.itemsize), torch.from_numpy(a.copy())


@case(over=1)  # however much lies in between
def array_far_on(x):
    a = (x * 2).numpy()
    n = 1
    m = n + 2
    n, m = m, n
    words = ["a", "bc"]
    k = len(words) * n + m
    k = k - 1 if k > 3 else k + 1
    text = "-".join(words) + str(k)
    a = a + len(text)
    return torch.from_numpy(a) * k, text


@case(over=1)  # an array that stays is in nobody's way
def array_kept(x):
    a = (x * 2).numpy()
    b = a.copy()
    y = x.relu() + 1
    z = (y * y).sum()
    return z, y, a, b
