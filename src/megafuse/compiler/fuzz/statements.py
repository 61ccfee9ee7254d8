"""What a statement can look like.

    {x} {y} {z}   float tensors           {n} {k}      a float and an int that come with the call
    {i} {j}       integer tensors         {d} {di} {db}  a dimension of x, i, b
    {b} {c}       bool tensors            {keep}       True or False
    {o} {p}       what it assigns         {f} {t}      a float dtype, any dtype

Arguments of logarithms and the like are kept off their poles. No sign of a NaN is looked at: which
one it has is chance in PyTorch too.
"""

from __future__ import annotations

UNARY = """
    torch.sin({x}) | torch.cos({x}) | torch.tanh({x}) | torch.sigmoid({x}) | torch.erf({x})
    torch.exp(-{x}.abs()) | torch.exp({x}.clamp(max=2)) | torch.expm1({x}.clamp(-2, 2))
    torch.exp2({x}.clamp(max=3)) | torch.log({x}.abs() + 0.3) | torch.log1p({x}.abs())
    torch.log2({x}.abs() + 0.5) | torch.sqrt({x}.abs() + 0.1) | torch.rsqrt({x}.square() + 0.5)
    ({x}.abs() + 0.5).reciprocal() | {x}.abs() | -{x} | {x}.square() | {x} ** 3 | {x}.relu()
    F.silu({x}) | F.gelu({x}) | F.gelu({x}, approximate="tanh") | F.softplus({x}) | F.elu({x})
    F.leaky_relu({x}, 0.1) | F.hardswish({x}) | F.mish({x}) | F.logsigmoid({x}) | F.hardtanh({x})
    F.hardsigmoid({x}) | F.relu6({x}) | F.selu({x}) | torch.atan({x}) | torch.asinh({x})
    torch.sinh({x}.clamp(-2, 2)) | {x}.floor() | {x}.ceil() | {x}.round() | {x}.trunc()
    {x}.frac() | {x}.sign() | {x}.clamp(-1, 1) | torch.nan_to_num({x}) | torch.erfc({x})
    torch.special.expit({x}) | torch.logit({x}.sigmoid(), 0.01) | F.tanhshrink({x})
    F.softsign({x}) | F.threshold({x}, 0.2, -1.0) | torch.isnan({x}) | torch.isfinite({x})
    {x}.nan_to_num().signbit() | {x}.isinf() | torch.atanh({x}.clamp(-0.9, 0.9))
    F.dropout({x}, 0.3)
"""
BINARY = """
    {x} + {y} | {x} - {y} | {x} * {y} | {x} / ({y}.abs() + 0.5) | torch.maximum({x}, {y})
    torch.minimum({x}, {y}) | torch.atan2({x}, {y}.abs() + 0.2)
    ({x}.abs() + 0.1) ** {y}.clamp(-2, 2) | torch.remainder({x}, {y}.abs() + 0.7)
    torch.fmod({x}, {y}.abs() + 0.7) | torch.hypot({x}, {y}.abs() + 0.3)
    torch.copysign({x}, {y}.nan_to_num()) | torch.lerp({x}, {y}, 0.3)
    torch.where({x} > {y}, {x}, {y} * 2) | torch.where({b}, {x}, {y})
    torch.where({x} > 0, {y}, 0.0) | torch.addcmul({x}, {y}, {z}, value=0.5)
    torch.addcdiv({x}, {y}, {z}.abs() + 0.5) | {x} > {y} | {x} <= {y} | {x} == {y} | {x} != 0
    ({x} < {y}) & {b} | torch.fmax({x}, {y}) | torch.fmin({x}, {y}) | {x}.masked_fill({b}, -1.5)
    {x} * {b} | {x} + {i} | {x} * {i} | torch.sub({x}, {y}, alpha=0.25)
    torch.add({x}, {y}, alpha=2) | F.mse_loss({x}, {y}) | F.l1_loss({x}, {y})
    F.smooth_l1_loss({x}, {y}) | torch.xlogy({x}, {y}.abs() + 0.2) | torch.logaddexp({x}, {y})
    torch.heaviside({x}, {y}) | F.binary_cross_entropy_with_logits({x}, {y}.sigmoid())
    F.huber_loss({x}, {y}, delta=0.7)
"""
NUMBERS = """
    {x} * {n} | {x} + {n} | {n} - {x} | {x} / ({n} + 9.0) | {n} / ({x}.abs() + 1) | {x} * {k}
    {x} + {k} | {x} > {n} | {x}.clamp(min={n}) | {x}.clamp(-abs({n}), abs({n}))
    torch.where({b}, {x}, {n}) | torch.full_like({x}, {n}) + {x} | {x}.masked_fill({b}, {n})
    torch.lerp({x}, {y}, {n}) | torch.add({x}, {y}, alpha={n}) | {x} * 2 | {x} - 1
    1 / ({x}.abs() + 1) | 0.5 * {x} * (1 + {y}) | F.leaky_relu({x}, {n}) | {x}.sub({k})
    {x} * ({n} * 2 + {k}) | {x} + {x}.shape[{d}] | {x} / max({x}.shape[{d}], 1)
    ({x}.abs() + 0.2) ** 1.5
"""
INTEGERS = """
    {i} + {j} | {i} - {j} | {i} * {j} | {i} // ({j}.abs() + 1) | {i} % 3 | {i} & {j}
    {i}.bitwise_or({j}) | {i} ^ {j} | -{i} | {i}.abs() | {i} << 1 | {i} >> 1 | {i} > {j}
    {i} == {k} | {i} + {k} | torch.maximum({i}, {j}) | {i}.clamp(-3, 3) | {i} / 4 | {i}.sum({di})
    {i}.sum() | {i}.amax({di}) | {b} & {c} | {b} ^ {c} | ~{b} | {b}.sum({db}) | {b}.any({db})
    {b}.all() | {b} + {i} | torch.where({b}, {i}, {j}) | {i}.to({t}) | {b}.to({t}) | {i}.sign()
    {b}.logical_not() | torch.logical_or({b}, {i}) | {i}.bool() | {b}.float().mean() | {i}.square()
    {i} ** 2 | {i} != {j} | torch.bitwise_not({i}) | {i}.to({f}) * {x} | {b}.long() * 3
    torch.arange({i}.shape[{di}], device={i}.device) | {i}.remainder({j}.abs() + 2) | {b}.any()
"""
CASTS = """
    {x}.to({f}) | {x}.to({f}) | {x}.to({t}) | {x}.to({f}).to(torch.float32)
    {x}.to(torch.float32) + {y} | {x}.to(torch.int32) | {x}.bool()
"""
REDUCTIONS = """
    {x}.sum({d}, keepdim={keep}) | {x}.mean({d}, keepdim={keep}) | {x}.amax({d}, keepdim={keep})
    {x}.amin({d}, keepdim={keep}) | {x}.var({d}, keepdim={keep}, correction=0)
    ({x}.var({d}, keepdim={keep}, correction=0) + 0.1).sqrt()
    torch.logsumexp({x}, {d}, keepdim={keep}) | torch.softmax({x}, {d})
    torch.log_softmax({x}, {d}) | {x}.argmax({d}, keepdim={keep}) | {x}.argmin({d}) | {x}.sum()
    {x}.mean() | {x}.amax() | {x}.sum(-1, keepdim={keep}) | {x}.mean(-1, keepdim=True)
    torch.softmax({x}, -1) | {x}.amax(-1, keepdim=True) | {x} - {x}.mean(-1, keepdim=True)
    {x} - {x}.amax({d}, keepdim=True) | {x} / ({x}.abs().sum(-1, keepdim=True) + 1)
    {x} * torch.rsqrt({x}.square().mean(-1, keepdim=True) + 1e-3)
    F.layer_norm({x}, ({x}.shape[-1],)) | torch.softmax({x}, -1, dtype=torch.float32)
    {x}.sum({d}, dtype=torch.float32) | {x}.max({d}).values | {x}.min({d}, keepdim={keep})[0]
    ({x}.square().sum({d}) + 0.1).sqrt() | torch.linalg.vector_norm({x} + 0.1, dim={d})
    {x}.cumsum({d}) | {x}.tanh().prod({d}) | {x}.sum((0, -1)) | {x}.mean((0, 1), keepdim={keep})
    {x}.std({d}, correction=0) | torch.var_mean({x}, {d}, correction=0)[0] | {x}.sum(0)
    {x}.mean(0, keepdim=True) | ({x} > 0).any({d}) | ({x} > -1).all({d}, keepdim={keep})
    ({x} > 0).sum({d}) | {x}.count_nonzero({d}) | {x}.abs().max() | F.normalize({x} + 0.1, dim={d})
    ({x} - {x}.mean({d}, keepdim=True)).square().mean({d}, keepdim=True)
    {x}.sigmoid().sum({d}, keepdim=True).log() | {x}.argmax()
"""
VIEWS = """
    {x}.transpose({d}, -1) | {x}.transpose(0, -1) | {x}[..., 1:] | {x}[..., ::2] | {x}[1:]
    {x}[..., :-1] | {x}.unsqueeze({d}) | {x}.unsqueeze(-1) | {x}.flatten()
    {x}.reshape({x}.shape[0], -1) | {x}.reshape(-1, {x}.shape[-1]) | {x}.flip({d})
    {x}.movedim(0, -1) | {x}.select({d}, 0) | {x}.narrow({d}, 0, 1) | {x}.squeeze()
    {x}.squeeze({d}) | {x}.expand(2, *{x}.shape) | {x}.unsqueeze(-1).expand(*{x}.shape, 3)
    {x}.diagonal() | {x}.unfold(-1, 2, 1) | {x}.transpose({d}, -1).flatten(0, 1)
    {x}.transpose(0, -1)[..., 1:] | {x}.contiguous() | {x}.clone() | {x}.mT | {x}.expand_as({y})
    {x}[None] | {x}[..., -1] | {x}.reshape(-1, 2).sum(-1)
    {x}.reshape(*{x}.shape[:-1], -1, 2)[..., 0] | {x}.flip(-1)[..., 1:] | {x}.T.contiguous()
    {x}.swapaxes(0, -1) | {x}.ravel() | {x}.permute(*range({x}.dim())[::-1])
"""
COMBINED = """
    torch.cat([{x}, {y}], {d}) | torch.cat([{x}, {x} * 2], {d}) | torch.cat([{x}, {y}, {x}], -1)
    torch.stack([{x}, {y}], {d}) | torch.stack([{x}, {x}.sin()], -1) | F.pad({x}, (1, 2))
    F.pad({x}, (1, 0), value=0.5) | F.pad({x}, (0, 1, 2, 0)) | {x}.roll(1, {d}) | {x}.roll(-2, {d})
    {x}.chunk(2, {d})[0] | {x}.split(2, {d})[-1] | {x}.repeat(2, *([1] * ({x}.dim() - 1)))
    {x}.tril() | {x}.triu(1) | {x}.gather({d}, {x}.argmax({d}, keepdim=True))
    torch.take_along_dim({x}, {x}.argmin({d}, keepdim=True), {d})
    {x}.index_select({d}, {i}.flatten() % {x}.shape[{d}])
    torch.cat([-{x}[..., 1:], {x}[..., :1]], -1) | {x}.unbind({d})[0]
    {x} * torch.arange({x}.shape[{d}]).sum()
    {x} + torch.arange({x}.shape[-1], dtype={x}.dtype, device={x}.device)
    torch.zeros_like({x}) + {x} | {x}.repeat_interleave(2, {d})
    {x}[({i}.flatten() % {x}.shape[0]).long()] | torch.ones_like({x}) - {x}
    torch.cat([{x}, {x}.mean({d}, keepdim=True)], {d})
    {x} * torch.eye({x}.shape[-2], {x}.shape[-1])
"""
PRODUCTS = """
    {x} @ {y}.transpose(-1, -2) | {x} @ {x}.transpose(-1, -2)
    torch.matmul({x}.transpose(-1, -2), {y}) | F.linear({x}, {y})
    torch.einsum("...i,...i->...", {x}, {y})
"""
IN_PLACE = """
    {o} = {x}.clone(); {o}.mul_({y}) | {o} = {x}.clone(); {o}[..., 1:] += 1.0
    {o} = {x}.sin(); {o}.add_({x}, alpha=0.5) | {o} = torch.zeros_like({x}); {o}.copy_({y})
    {o} = {x}.clone(); {o}[..., 0] = 0.0 | {o} = {x} * 2; {o}.transpose(0, -1).mul_(0.5)
    {o} = {x}.clone(); {o}.clamp_(-1, 1).neg_()
    {o} = {x}.clone(); {o}.masked_fill_({o} > 0.5, 0.1)
    {o}, {p} = torch.var_mean({x}, {d}, correction=0) | {o}, {p} = {x}.max({d})
    {o}, {p} = {x}.chunk(2, {d}) | {o}, {p} = {x}.tensor_split(2, -1) | {o}, {p} = {x} + 1, {x} - 1
"""


def listed(text: str) -> list[str]:
    return [
        item.strip() for line in text.splitlines() for item in line.split(" | ") if item.strip()
    ]


# How often each kind is drawn.
KINDS: list[tuple[int, list[str]]] = [
    (20, listed(UNARY)),
    (24, listed(BINARY)),
    (10, listed(NUMBERS)),
    (8, listed(INTEGERS)),
    (5, listed(CASTS)),
    (18, listed(REDUCTIONS)),
    (14, listed(VIEWS)),
    (8, listed(COMBINED)),
    (2, listed(PRODUCTS)),
    (5, listed(IN_PLACE)),
]
