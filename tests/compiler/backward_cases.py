"""Small functions whose backward passes are of many kinds, each with two sets of arguments.

Every float tensor gets a gradient. The second set has other sizes, and should run what was compiled
for the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Arguments = Callable[[int, int], tuple[Any, ...]]  # of two sizes


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    arguments: Arguments
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((4, 6), (3, 9))
    captures: int = 1  # 2 where torch's tracer reads sizes, 0 where it runs unfused


def matrix(n: int, m: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, m),)


def matrices(n: int, m: int) -> tuple[Tensor, ...]:
    return torch.randn(n, m), torch.randn(n, m)


def matrix_and_row(n: int, m: int) -> tuple[Tensor, ...]:
    return torch.randn(n, m), torch.randn(m)


def matrix_and_column(n: int, m: int) -> tuple[Tensor, ...]:
    return torch.randn(n, m), torch.randn(n, 1)


def table_and_places(n: int, m: int) -> tuple[Tensor, ...]:
    return torch.randn(n, m), torch.randint(n, (2, 5))


def matrix_and_mask(n: int, m: int) -> tuple[Tensor, ...]:
    return torch.randn(n, m), torch.rand(n, m) > 0.5


def quantised(n: int, m: int) -> tuple[Tensor, ...]:
    return torch.randint(-128, 127, (n, m), dtype=torch.int8), torch.rand(n, 1), torch.randn(n, 1)


# ---- functions of several lines


def written_in_place(x: Tensor) -> Tensor:
    y = x.sin()
    y.mul_(2).add_(x)
    y[1:] *= 3
    y[:, 0] = x[:, 1]
    return y.relu_()


def filled_in_place(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, ::2] = x[:, ::2].exp()
    out[1:, 1] += x[1:, 0]
    return out


def accumulated(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[0])
    for row in x[:3]:
        total = total + row.tanh()
    return total


def some_without_gradient(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    return x * y, (x > y), x.detach().exp(), x.argmax(-1), y.sum(), 3


def itself_and_more(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x, x + y, y


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def dequantised(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (q.float() - zero) * scale


def dequantised_groups(q: Tensor, scale: Tensor) -> Tensor:
    groups = q.float().unflatten(-1, (scale.shape[-1], -1))
    return (groups * scale.unsqueeze(-1)).flatten(-2)


def fake_quantised(x: Tensor, scale: Tensor) -> Tensor:
    q = (x / scale).round().clamp(-128, 127)
    rounded = x / scale + (q - x / scale).detach()
    return rounded * scale


def no_gradient_inside(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True)
    return x / (scale + 1) * y


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v


def group_norm(x: Tensor, weight: Tensor) -> Tensor:
    n, c, h = x.shape
    g = x.view(n, 2, c // 2 * h)
    g = (g - g.mean(-1, keepdim=True)) * torch.rsqrt(g.var(-1, keepdim=True) + 1e-5)
    return g.view(n, c, h) * weight[:, None]


def top(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = x.topk(2, -1)
    return values * 2, places


def dictionary(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"sum": x + y, "parts": [x * 2, (y.sin(), None)], "size": x.shape[0]}


def contrastive(x: Tensor, y: Tensor) -> Tensor:
    a, b = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
    return F.cross_entropy(a @ b.t() / 0.1, torch.arange(x.shape[0]))


CASES: dict[str, Case] = {
    # broadcasting
    "row": Case(lambda x, w: x * w + w, matrix_and_row),
    "column": Case(lambda x, c: (x - c) / (c * c + 1), matrix_and_column),
    "outer": Case(lambda x, y: x[:, None] * y[None], lambda n, m: (torch.randn(n), torch.randn(m))),
    "number of no dimensions": Case(
        lambda x, s: x * s + s.exp(), lambda n, m: (torch.randn(n, m), torch.randn(()))
    ),
    "pairwise": Case(
        lambda x, y: (x[:, None] - y[None]).square().sum(-1),
        lambda n, m: (torch.randn(n, 3), torch.randn(m, 3)),
    ),
    "row and column": Case(
        lambda r, c: torch.sigmoid(r) * c.cos(), lambda n, m: (torch.randn(1, m), torch.randn(n, 1))
    ),
    "expand": Case(lambda r: r.expand(5, -1, -1).exp(), matrix),
    "expand a result": Case(lambda r: r.exp().expand(5, -1, -1), matrix),
    "broadcast_to": Case(lambda x, w: torch.broadcast_to(w, x.shape) * x.sin(), matrix_and_row),
    "repeat": Case(lambda x: x.repeat(2, 3) * 2, matrix),
    "repeat_interleave": Case(lambda x: x.repeat_interleave(3, -1).sin(), matrix),
    "tile": Case(lambda x: x.tile(2).exp(), matrix),
    "meshgrid": Case(
        lambda x, y: torch.meshgrid(x, y, indexing="ij")[0] * y,
        lambda n, m: (torch.randn(n), torch.randn(m)),
    ),
    # joining and cutting
    "cat": Case(lambda x, y: torch.cat((x.sin(), y * 2), 0), matrices),
    "cat of unequal ones": Case(
        lambda x, y: torch.cat((x, y.exp()), -1).tanh(),
        lambda n, m: (torch.randn(n, m), torch.randn(n, m + 3)),
    ),
    "cat and sum": Case(lambda x, y: torch.cat((x, y), -1).square().sum(-1), matrices),
    "stack": Case(lambda x, y: torch.stack((x.sin(), y), 1), matrices),
    "stack last": Case(lambda x, y: torch.stack((x * y, y.cos()), -1).flatten(-2), matrices),
    "hstack vstack": Case(lambda x, y: torch.vstack((torch.hstack((x, y)),) * 2), matrices),
    "split": Case(
        lambda x: [part * i for i, part in enumerate(x.split(2, -1), 1)],
        matrix,
        ((4, 6), (5, 6)),
    ),
    "split unevenly": Case(lambda x: x.split((2, 4), -1)[1].exp(), matrix, ((4, 6), (5, 6))),
    "chunk": Case(lambda x: torch.mul(*x.chunk(2, -1)), matrix, ((4, 6), (3, 10))),
    "unbind": Case(lambda x: torch.stack(x.unbind(0)).sin(), matrix, ((4, 6), (4, 5))),
    "swiglu of one": Case(
        lambda x: (lambda a, b: F.silu(a) * b)(*x.chunk(2, -1)), matrix, ((4, 6), (3, 10))
    ),
    "pad": Case(lambda x: F.pad(x.sin(), (1, 2)), matrix),
    "pad two dimensions": Case(lambda x: F.pad(x, (1, 0, 0, 3), value=2.0).exp(), matrix),
    "pad less": Case(lambda x: F.pad(x * 2, (-1, 1)), matrix),
    "pad by reflection": Case(lambda x: F.pad(x[None] * 2, (2, 1), mode="reflect"), matrix),
    "pad circular": Case(lambda x: F.pad(x[None] * 2, (2, 1), mode="circular"), matrix),
    "roll": Case(lambda x: x.roll(1, -1) * x, matrix),
    "roll both": Case(lambda x: x.exp().roll((1, -2), (0, 1)), matrix),
    "flip": Case(lambda x: x.flip(-1).cumsum(-1), matrix),
    "slices": Case(lambda x: x[1:, ::2] * x[:-1, 1::2], matrix, ((4, 6), (3, 10))),
    "select": Case(lambda x: x[0] * x[-1] + x[:, 0].sum(), matrix),
    "narrow": Case(lambda x: x.narrow(1, 1, 3).exp(), matrix),
    "rotary": Case(
        rotated,
        lambda n, m: (torch.randn(2, n, m), torch.randn(n, m), torch.randn(n, m)),
        ((4, 6), (3, 10)),
    ),
    "diff": Case(lambda x: x.diff(dim=-1).abs(), matrix),
    "unfold": Case(lambda x: x.unfold(-1, 3, 1).mean(-1), matrix),
    "tril": Case(lambda x: x.tril().exp() + x.triu(1), matrix),
    "diagonal": Case(lambda x: x.diagonal().sin(), matrix, ((4, 4), (5, 5))),
    "diagonal above": Case(lambda x: x.diagonal(1).sin() * 2, matrix, ((4, 6), (5, 7))),
    "diagonal below": Case(lambda x: x.exp().diagonal(-2) + 1, matrix, ((6, 4), (7, 5))),
    "diagonal of no elements": Case(lambda x: x.diagonal(9).sin(), matrix, ((4, 6), (5, 7))),
    "diagonal of one row": Case(lambda x: x[:1].diagonal(2).exp() * x.sum(), matrix),
    "diagonals of matrices": Case(
        lambda x: x.diagonal(-1, 2, 0).exp() * x.sum((0, 2))[:, None],
        lambda n, m: (torch.randn(n, 3, m),),
        ((4, 4), (5, 5)),
    ),
    "diag_embed": Case(lambda x: x.diag_embed() * 2, matrix),
    # views
    "view": Case(lambda x: x.view(-1).sin(), matrix),
    "reshape": Case(lambda x: x.exp().reshape(2, -1) * 2, matrix, ((4, 6), (8, 9))),
    "flatten a transposed": Case(lambda x: x.t().flatten() * 2, matrix),
    "transposed result": Case(lambda x: x.sin().t(), matrix),
    "permute": Case(lambda x: x.permute(2, 0, 1).exp(), lambda n, m: (torch.randn(2, n, m),)),
    "heads": Case(
        lambda x: x.view(*x.shape[:-1], 2, -1).transpose(0, 1) * 2, matrix, ((4, 6), (3, 10))
    ),
    "unflatten": Case(lambda x: x.unflatten(-1, (2, -1)).softmax(-1), matrix, ((4, 6), (3, 10))),
    "squeeze": Case(lambda x: x[:, None].sin().squeeze(1).unsqueeze(-1), matrix),
    "movedim": Case(lambda x: x.movedim(0, -1) * x.sum(), matrix),
    "as_strided": Case(lambda x: (x * 2).as_strided((2, 2), (1, 2)), matrix),
    "a slice is a result": Case(lambda x: x.exp()[1:], matrix),
    "an expanded view of an argument": Case(lambda x: (x[:, :1].expand(-1, 7), x * 2), matrix),
    "itself": Case(itself_and_more, matrices),
    "itself twice": Case(lambda x: (x, x), matrix),
    "itself alone": Case(lambda x: x, matrix),
    "contiguous": Case(lambda x: x.t().contiguous() + 1, matrix),
    # loads
    "gather": Case(
        lambda x, i: x.gather(-1, i).exp(),
        lambda n, m: (torch.randn(n, m), torch.randint(m, (n, 2))),
    ),
    "take_along_dim": Case(
        lambda x, i: x.take_along_dim(i, 0) * 2,
        lambda n, m: (torch.randn(n, m), torch.randint(n, (2, m))),
    ),
    "index_select": Case(
        lambda x, i: x.index_select(0, i).sin(),
        lambda n, m: (torch.randn(n, m), torch.randint(n, (7,))),
    ),
    "index_select in the middle": Case(
        lambda x, i: x.index_select(1, i) * 2,
        lambda n, m: (torch.randn(n, m, 3), torch.randint(m, (7,))),
    ),
    "x[i]": Case(lambda x, i: x[i].tanh(), table_and_places),
    "x[i, j]": Case(
        lambda x, i: x[i, i].exp(), lambda n, m: (torch.randn(n, n), torch.randint(n, (7,)))
    ),
    "x[:, i]": Case(
        lambda x, i: x[:, i] * 3, lambda n, m: (torch.randn(n, m), torch.randint(m, (7,)))
    ),
    "embedding": Case(lambda w, i: F.embedding(i, w) * 2, table_and_places),
    "embedding with padding": Case(
        lambda w, i: F.embedding(i, w, padding_idx=1).sum(1), table_and_places
    ),
    "embedding and norm": Case(
        lambda w, i: F.rms_norm(F.embedding(i, w), w.shape[-1:]), table_and_places
    ),
    # stores
    "scatter": Case(
        lambda x, i, y: x.scatter(-1, i, y) * 2,
        lambda n, m: (torch.randn(n, m), torch.arange(2).expand(n, 2), torch.randn(n, 2)),
    ),
    "scatter_add": Case(
        lambda x, i, y: x.sin().scatter_add(-1, i, y),
        lambda n, m: (torch.randn(n, m), torch.randint(m, (n, 2)), torch.randn(n, 2)),
    ),
    "index_add": Case(
        lambda x, i, y: x.index_add(0, i, y.exp()),
        lambda n, m: (torch.randn(n, m), torch.randint(n, (7,)), torch.randn(7, m)),
    ),
    "index_copy": Case(
        lambda x, i, y: x.index_copy(0, i, y) * 2,
        lambda n, m: (torch.randn(n, m), torch.tensor([1, 0]), torch.randn(2, m)),
    ),
    "index_put": Case(
        lambda x, i, y: x.index_put((i,), y, accumulate=True).sin(),
        lambda n, m: (torch.randn(n, m), torch.randint(n, (7,)), torch.randn(7, m)),
    ),
    "select_scatter": Case(
        lambda x, y: x.select_scatter(y, 0, 1).exp(),
        lambda n, m: (torch.randn(n, m), torch.randn(m)),
    ),
    "slice_scatter": Case(
        lambda x, y: x.slice_scatter(y, 0, 1).exp(),
        lambda n, m: (torch.randn(n, m), torch.randn(n - 1, m)),
    ),
    # choices
    "where": Case(
        lambda x, y, c: torch.where(c, x.sin(), y),
        lambda n, m: (*matrices(n, m), torch.rand(n, m) > 0.5),
    ),
    "where with a number": Case(
        lambda x: torch.where(x > 0, x, 0.1 * x) + x.where(x < 1, 2), matrix
    ),
    "where, broadcast": Case(
        lambda x, y, c: torch.where(c, x, y),
        lambda n, m: (torch.randn(n, m), torch.randn(()), torch.rand(m) > 0.5),
    ),
    "masked_fill": Case(lambda x, c: x.masked_fill(c, -1e9).softmax(-1), matrix_and_mask),
    "masked_fill with a tensor": Case(
        lambda x, c, v: x.masked_fill(c, v),
        lambda n, m: (*matrix_and_mask(n, m), torch.randn(())),
    ),
    "masked_scatter": Case(
        lambda x, c, y: x.masked_scatter(c, y),
        lambda n, m: (*matrix_and_mask(n, m), torch.randn(n, m)),
    ),
    "clamp": Case(lambda x, y: x.clamp(-1, 1) + x.clamp(min=y), matrices),
    "maximum": Case(lambda x, y: torch.maximum(x, y) * torch.minimum(x, 2 * y), matrices),
    "max along rows": Case(lambda x: x.max(-1).values * 2, matrix),
    "max and where it is": Case(lambda x: x.max(0), matrix),
    "median": Case(lambda x: x.median(-1).values.exp(), matrix),
    # library steps
    "cumsum": Case(lambda x: x.sin().cumsum(-1) * x, matrix),
    "cumprod": Case(lambda x: x.cumprod(-1), matrix, captures=2),
    "logcumsumexp": Case(lambda x: x.logcumsumexp(-1) * 2, matrix),
    "cummax": Case(lambda x: x.cummax(-1).values * x, matrix),
    "sort": Case(lambda x: x.sin().sort(-1).values * 2, matrix),
    "topk": Case(top, matrix),
    "argsort": Case(lambda x: x.gather(-1, x.argsort(-1)), matrix),
    "conv1d": Case(
        lambda x, w: F.conv1d(x, w, padding=1).relu(),
        lambda n, m: (torch.randn(2, n, m), torch.randn(3, n, 3)),
        ((4, 6), (4, 9)),
    ),
    "max_pool": Case(lambda x: F.max_pool1d(x[None].sin(), 2), matrix, captures=2),
    # A size that is halved is captured as two halves, and once more where it is odd.
    "avg_pool": Case(lambda x: F.avg_pool1d(x[None].sin(), 2).exp(), matrix, captures=2),
    "interpolate": Case(
        lambda x: F.interpolate(x[None].sin(), scale_factor=2.0, mode="nearest"), matrix
    ),
    "bilinear": Case(
        lambda x: F.interpolate(x[None, None], size=(8, 8), mode="bilinear") * 2, matrix
    ),
    "matmul": Case(
        lambda x, w, b: F.gelu(x @ w + b),
        lambda n, m: (torch.randn(n, m), torch.randn(m, 5), torch.randn(5)),
    ),
    "linear": Case(
        lambda x, w, b: F.relu(F.linear(x, w, b)).square(),
        lambda n, m: (torch.randn(2, n, m), torch.randn(5, m), torch.randn(5)),
    ),
    "einsum": Case(lambda x, y: torch.einsum("nm,nm->n", x, y).exp(), matrices),
    "attention": Case(attention, lambda n, m: tuple(torch.randn(2, n, m) for _ in range(3))),
    "sdpa": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * 2,
        lambda n, m: tuple(torch.randn(1, 2, n, 8) for _ in range(3)),
    ),
    "norm of a matrix": Case(lambda x: torch.linalg.norm(x) * x, matrix),
    "inverse": Case(
        lambda x: torch.linalg.inv(x + 9 * torch.eye(x.shape[0])) * 2,
        matrix,
        ((4, 4), (5, 5)),
        captures=0,
    ),
    # reductions
    "sum over rows": Case(lambda x: x.sin().sum(0), matrix),
    "mean over everything": Case(lambda x: (x * x).mean(), matrix),
    "var": Case(lambda x: x.var(-1) + x.std(0).sum(), matrix),
    "layer_norm": Case(lambda x, w: F.layer_norm(x, x.shape[-1:], w), matrix_and_row),
    "group_norm": Case(
        group_norm, lambda n, m: (torch.randn(2, n, m), torch.randn(n)), ((4, 6), (6, 5))
    ),
    "batch_norm": Case(lambda x, w: F.batch_norm(x, None, None, w, training=True), matrix_and_row),
    "prod": Case(lambda x: x.prod(-1) * 2, matrix),
    "logsumexp": Case(lambda x: x.logsumexp((0, 1)) + x.logsumexp(-1), matrix),
    "norms": Case(lambda x: x.norm(dim=-1) + x.norm(p=1, dim=-1), matrix),
    "cross_entropy": Case(
        lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1),
        lambda n, m: (torch.randn(n, m), torch.randint(m, (n,))),
    ),
    "contrastive": Case(contrastive, matrices),
    "cosine": Case(lambda x, y: F.cosine_similarity(x, y), matrices),
    "kl": Case(
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), matrices
    ),
    # in place, several results, dtypes
    "in place": Case(written_in_place, matrix),
    "filled in place": Case(filled_in_place, matrix, captures=2),  # every other column
    "a loop over rows": Case(accumulated, matrix, ((4, 6), (4, 9))),
    "some without a gradient": Case(some_without_gradient, matrices),
    "no gradient inside": Case(no_gradient_inside, matrices),
    "a dictionary": Case(dictionary, matrices),
    "only integers": Case(lambda x, y: ((x > y).sum(-1), x.argmax(-1)), matrices),
    "an unused argument": Case(lambda x, y: x.exp() + y.shape[0], matrices),
    "casts": Case(lambda x, y: (x.double() * y).float() + x.bfloat16().float(), matrices),
    "dequantise": Case(dequantised, quantised),
    "dequantise by groups": Case(
        dequantised_groups,
        lambda n, m: (torch.randint(-9, 9, (n, m), dtype=torch.int8), torch.rand(n, 2)),
        ((4, 6), (3, 10)),
    ),
    "fake quantisation": Case(fake_quantised, matrix_and_column),
    "complex parts": Case(
        lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * 2j).sin(),
        matrix,
        ((4, 6), (3, 10)),
    ),
    "numbers": Case(
        lambda x, n, s: x * s / n + x.shape[1], lambda n, m: (torch.randn(n, m), n, m / 7)
    ),
    "a polynomial": Case(lambda x: ((x * 0.2 + 1) * x - 3) * x**3, matrix),
    "masked loss": Case(
        lambda x, y, c: ((x - y).square() * c).sum() / c.sum().clamp(min=1),
        lambda n, m: (*matrices(n, m), torch.rand(n, m) > 0.5),
    ),
    "dropout off": Case(lambda x: F.dropout(x.sin(), 0.5, training=False), matrix),
    "embedding, tied": Case(lambda w, i: F.embedding(i, w).mean(1) @ w.t(), table_and_places),
    "tensor_split": Case(lambda x: x.tensor_split(2, -1)[0].exp(), matrix, ((4, 6), (3, 10))),
    "outer product sum": Case(lambda x, y: torch.outer(x[0], y[:, 0]).sum(0), matrices),
    "lerp": Case(lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y[0], 0.1), matrices),
    "addcmul": Case(lambda x, y: torch.addcmul(x, x, y, value=0.5).addcdiv(y, x.exp()), matrices),
}
