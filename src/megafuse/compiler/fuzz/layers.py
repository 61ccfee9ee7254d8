"""What a layer of a network can look like: `module -> statement`, a statement alone, or a module
alone, which is called with x.

    {x}         the value before             {m}       the module
    {y}         an earlier value like x      {o}       what the statement assigns
    {s1} {sl}   sizes of x: of its second and last dimension, the same in both runs
    {n}         a size to choose             {g}       a divisor of s1
    {d} {e}     two dimensions of x

By how many dimensions x has; 0: however many, 2 at least.
"""

from __future__ import annotations

from megafuse.compiler.fuzz.statements import listed

ANY = """
    nn.Linear({sl}, {n}) | nn.Linear({sl}, {sl}) -> {x} + {m}({x})
    nn.Linear({sl}, {n}, bias=False) | nn.Bilinear({sl}, {sl}, {n}) -> {m}({x}, {x})
    nn.LayerNorm({sl}) | nn.RMSNorm({sl}) | nn.RMSNorm({sl}) -> {x} + {m}({x})
    nn.LayerNorm({sl}, bias=False) -> {x} + {m}({x}) | nn.PReLU() | nn.Dropout(0.0) | nn.Identity()
    nn.Linear({sl}, 1) -> torch.sigmoid({m}({x})) * {x}
"""
ACTIVATIONS = """
    nn.GELU() | nn.GELU("tanh") | nn.SiLU() | nn.ReLU() | nn.Tanh() | nn.Sigmoid() | nn.ELU()
    nn.Mish() | nn.Softplus() | nn.Hardswish() | nn.LeakyReLU(0.1) | nn.ReLU6() | nn.SELU()
    nn.LogSigmoid() | nn.CELU() | nn.Softmax({d}) | nn.LogSoftmax({d}) | F.glu({x}, {d})
    nn.Softsign()
"""
REDUCTIONS = """
    {x} - {x}.mean({d}, keepdim=True)
    {x} * torch.rsqrt({x}.square().mean({d}, keepdim=True) + 0.1) | {x}.sum({d}) | {x}.mean({d})
    {x}.amax({d}) | {x}.var({d}) | {x}.logsumexp({d}) | {x}.mean(({d}, {e}))
    {x} / ({x}.norm(dim={d}, keepdim=True) + 0.5) | {x} + {x}.sum(({d}, {e}), keepdim=True) * 0.1
    {x} - {x}.amax({d}, keepdim=True) | {x}.std({d}, keepdim=True) * {x} | {x}.min({d})[0]
    {x}.sum() * {x} | {x}.cumsum({d}) | {x}.cumsum({d}).tanh() | torch.sigmoid({x}).cumprod({d})
    {x}.cummax({d})[0] | torch.logcumsumexp({x}, {d}) | {x}.flip({d}).cumsum({d})
    F.normalize({x}, dim={d})
"""
SHAPES = """
    {x} + {y} | {x} * torch.sigmoid({y}) | {x}.transpose({d}, {e})
    {x}.transpose({d}, {e}).contiguous() | {x}.flatten(-2) | {x}.unsqueeze({d}) | {x}.flip({d})
    torch.cat([{x}, {y}], {d}) | {x}.roll(1, {d}) | {x}.chunk(2, {d})[0] + 1
    {x}[..., 1:] - {x}[..., :-1] | {x}.flatten(1) | torch.stack([{x}, {y}], 1)
    {x}.movedim({d}, {e}) | F.pad({x}, (1, 1)) | {x}.unflatten(-1, (2, -1)) | {x}[:, ::2] | {x}.mT
    {x}.reshape({x}.shape[0], -1) | {x}.repeat_interleave(2, {d})
"""
ATTENTION = """
    F.scaled_dot_product_attention({x}, {x}, {x}) | F.scaled_dot_product_attention({x}, {y}, {y})
    F.scaled_dot_product_attention({x}, {x}, {x}, is_causal=True)
    torch.softmax({x} @ {x}.transpose(-1, -2) * 0.3, -1) @ {x}
    nn.Linear({sl}, 3 * {sl}) -> F.scaled_dot_product_attention(*{m}({x}).chunk(3, -1))
"""
ROWS = """
    nn.GRUCell({sl}, {n}) | nn.LSTMCell({sl}, {n}) -> {m}({x})[0] | nn.RNNCell({sl}, {n})
    nn.LSTMCell({sl}, {sl}) -> h, c = {m}({x}); h, c = {m}(h, (h, c)); {o} = h * c
    nn.GRUCell({sl}, {sl}) -> h = {m}({x}); h = {m}({x}, h); {o} = {m}(h, {x})
    nn.BatchNorm1d({s1}) | nn.GroupNorm({g}, {s1})
"""
SEQUENCES = """
    nn.MultiheadAttention({sl}, 1, batch_first=True) -> {m}({x}, {x}, {x}, need_weights=False)[0]
    nn.MultiheadAttention({sl}, 2, batch_first=True) -> h, _ = {m}({x}, {x}, {x}); {o} = {x} + h
    nn.GRUCell({sl}, {n}) -> h = {m}({x}[:, 0]); h = {m}({x}[:, 1], h); {o} = {m}({x}[:, 2], h)
    nn.LSTMCell({sl}, {n}) -> h, c = {m}({x}[:, 0]); h, c = {m}({x}[:, 1], (h, c)); {o} = h + c
    nn.RNNCell({sl}, {n}) -> h = {m}({x}[:, 0]); g = {m}({x}[:, 1], h); {o} = torch.stack([h, g], 1)
    h = {x}.unflatten(-1, (2, -1)).mT; {o} = F.scaled_dot_product_attention(h, h, h).flatten(2)
    nn.TransformerEncoderLayer({sl}, 2, {n}, dropout=0.0, batch_first=True)
"""
# For 1, 2 and 3 dimensions beside batch and channels.
CONVOLUTIONS = """
    nn.Conv{k}d({s1}, {n}, 3, padding=1) | nn.Conv{k}d({s1}, {n}, 1)
    nn.Conv{k}d({s1}, {s1}, 3, padding=1) -> {x} + {m}({x}) | nn.Conv{k}d({s1}, {n}, 2, stride=2)
    nn.Conv{k}d({s1}, {s1}, 3, padding=1, groups={s1}) | nn.Conv{k}d({s1}, {n}, 3, bias=False)
    nn.Conv{k}d({s1}, {n}, 3, padding=2, dilation=2) | nn.ConvTranspose{k}d({s1}, {n}, 2, stride=2)
    nn.ConvTranspose{k}d({s1}, {n}, 3, padding=1)
    nn.ConvTranspose{k}d({s1}, {s1}, 3, stride=2, padding=1, output_padding=1, groups={g})
"""
NORMS = """
    nn.BatchNorm{k}d({s1}) | nn.BatchNorm{k}d({s1}) -> F.relu({m}({x}))
    nn.BatchNorm{k}d({s1}, affine=False) | nn.InstanceNorm{k}d({s1})
    nn.InstanceNorm{k}d({s1}, affine=True) | nn.GroupNorm({g}, {s1})
    nn.InstanceNorm{k}d({s1}, affine=True, track_running_stats=True)
    nn.GroupNorm({g}, {s1}) -> F.silu({m}({x})) | nn.GroupNorm(1, {s1}) -> {x} + {m}({x})
    nn.BatchNorm{k}d({s1}, momentum=None)
"""
POOLS = """
    nn.MaxPool{k}d(2) | nn.AvgPool{k}d(2) | nn.MaxPool{k}d(3, stride=1, padding=1)
    nn.AvgPool{k}d(3, stride=2, padding=1) | nn.AdaptiveAvgPool{k}d(1) -> {m}({x}) * {x}
    nn.AdaptiveAvgPool{k}d(3) | nn.AdaptiveMaxPool{k}d(2) | nn.LPPool{k}d(2, 2)
    F.interpolate({x}, scale_factor=2) | nn.Dropout{k}d(0.0)
"""

Kinds = list[tuple[int, list[str]]]  # with how often each is drawn


def images(dims: int) -> Kinds:
    kinds = ((30, CONVOLUTIONS), (20, NORMS), (12, POOLS))
    return [(often, listed(text.replace("{k}", str(dims)))) for often, text in kinds]


EVERYWHERE: Kinds = [
    (24, listed(ANY)),
    (16, listed(ACTIVATIONS)),
    (14, listed(REDUCTIONS)),
    (14, listed(SHAPES)),
]
OF_RANK: dict[int, Kinds] = {
    2: [(24, listed(ROWS))],
    3: [(16, listed(SEQUENCES)), (6, listed(ATTENTION)), *images(1)],
    4: [(6, listed(ATTENTION)), *images(2)],
    5: images(3),
}
