"""Every op and every module of megafuse once, each held against plain PyTorch.

    python examples/usage_example.py                  on the GPU, or on the CPU where there is none
    python examples/usage_example.py --device cpu

Read it from top to bottom: from single operations to whole models. A line is printed for each, with
the largest difference from its reference. The first run compiles the kernels, the next finds them.
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import Tensor, nn

import megafuse as mf


def main() -> None:
    parser = argparse.ArgumentParser(description="Every op and module of megafuse once.")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    device = parser.parse_args().device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    ops = pointwise, random, int8, rows, linear, attention
    with torch.device(device):
        for part in (*ops, modules, whole_model, training_step, compiled):
            print(f"\n{part.__doc__}")
            part()
    print(f"\n{measured.__doc__}")
    measured(torch.randn(256, 1024, device=device))
    print(f"\n{float32_products.__doc__}")
    float32_products()


def show(what: str, got: Tensor, expected: Tensor) -> None:
    """Prints how far the two are apart, and stops where that is more than rounding."""
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-5)
    print(f"  {what:<22} differs by at most {(got - expected).detach().abs().max().item():.1e}")


# ---- ops: megafuse.<op>, and its twin in plain PyTorch, megafuse.reference.<op>


def pointwise() -> None:
    """Pointwise: several operations in one pass over memory. Tensors broadcast as in PyTorch."""
    x, y, z, w = (torch.randn(64, 128) for _ in range(4))
    bias, scale = torch.randn(128), torch.rand(128)
    show("gelu_scale", mf.gelu_scale(x, 1.7), mf.reference.gelu_scale(x, 1.7))
    show("bias_act", mf.bias_act(x, bias, "silu"), mf.reference.bias_act(x, bias, "silu"))
    show("swiglu", mf.swiglu(x, y), mf.reference.swiglu(x, y))
    show("add_mul_add", mf.add_mul_add(x, y, z, w), mf.reference.add_mul_add(x, y, z, w))
    show("add_mul_exp", mf.add_mul_exp(x / 9, y / 9), mf.reference.add_mul_exp(x / 9, y / 9))
    gate = mf.scale_bias_sigmoid(x, scale, bias)
    show("scale_bias_sigmoid", gate, mf.reference.scale_bias_sigmoid(x, scale, bias))


def random() -> None:
    """Dropout: the mask is drawn from torch's generator, and computed again in the backward."""
    x, residual = torch.randn(64, 128), torch.randn(64, 128)
    dropped = mf.dropout_relu(x, 0.5)
    kept = dropped != 0
    show("dropout_relu, kept", dropped[kept], 2 * torch.relu(x)[kept])
    added = mf.dropout_add(x, residual, 0.5)
    kept = added != residual
    show("dropout_add, kept", added[kept], (residual + 2 * x)[kept])


def int8() -> None:
    """Quantization: PyTorch's very bits."""
    x = torch.randn(64, 128)
    q = mf.quantize_int8(x, 0.05, 3)
    assert torch.equal(q, mf.reference.quantize_int8(x, 0.05, 3))
    print("  quantize_int8          every int8 equal")
    show(
        "dequantize_int8", mf.dequantize_int8(q, 0.05, 3), mf.reference.dequantize_int8(q, 0.05, 3)
    )


def rows() -> None:
    """Along the last dimension: norms and softmax, each row read once."""
    x, residual = torch.randn(64, 128), torch.randn(64, 128)
    weight, bias = torch.rand(128), torch.randn(128)
    show("layer_norm", mf.layer_norm(x, weight, bias), mf.reference.layer_norm(x, weight, bias))
    show("rms_norm", mf.rms_norm(x, weight), mf.reference.rms_norm(x, weight))
    normed, stream = mf.residual_layer_norm(x, residual, weight, bias)  # with dropout: p=0.1
    show("residual_layer_norm", normed, mf.reference.layer_norm(x + residual, weight, bias))
    normed, stream = mf.residual_rms_norm(x, stream, weight)
    show("residual_rms_norm", normed, mf.reference.rms_norm(stream, weight))
    scores = torch.randn(4, 32, 32)
    causal = mf.softmax(scores, 0.125, causal=True)
    show("softmax", causal, mf.reference.softmax(scores, 0.125, causal=True))


def linear() -> None:
    """Around a matrix product: the library multiplies, what surrounds it is fused."""
    x, up, down = torch.randn(64, 128), torch.randn(256, 128) / 11, torch.randn(128, 256) / 16
    b_up, b_down = torch.randn(256), torch.randn(128)
    ones, zeros = torch.ones(128), torch.zeros(128)
    show("linear_relu", mf.linear_relu(x, up, b_up), mf.reference.linear_relu(x, up, b_up))
    show("linear_gelu", mf.linear_gelu(x, up, b_up), mf.reference.linear_gelu(x, up, b_up))
    show("gelu_linear", mf.gelu_linear(x, up, b_up), mf.reference.gelu_linear(x, up, b_up))
    normed = mf.layernorm_linear(x, ones, zeros, up, b_up)
    show("layernorm_linear", normed, mf.reference.layernorm_linear(x, ones, zeros, up, b_up))
    layers = up, b_up, down, b_down
    ffn = mf.ffn(x, *layers, act="gelu", residual=x)
    show("ffn", ffn, mf.reference.ffn(x, *layers, act="gelu", residual=x))
    gated = mf.swiglu_ffn(x, up, up.flip(0), down)
    show("swiglu_ffn", gated, mf.reference.swiglu_ffn(x, up, up.flip(0), down))


def attention() -> None:
    """Attention, and a whole transformer block as one op."""
    q, k, v = (torch.randn(2, 4, 32, 16) for _ in range(3))
    show("attention", mf.attention(q, k, v, True), mf.reference.attention(q, k, v, True))
    block = nn.TransformerEncoderLayer(
        64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True
    ).eval()
    x, mixed = torch.randn(2, 32, 64), block.self_attn
    parameters = (
        *(block.norm1.weight, block.norm1.bias, mixed.in_proj_weight, mixed.in_proj_bias),
        *(mixed.out_proj.weight, mixed.out_proj.bias, block.norm2.weight, block.norm2.bias),
        *(block.linear1.weight, block.linear1.bias, block.linear2.weight, block.linear2.bias),
    )
    with torch.no_grad():
        show("transformer_block", mf.transformer_block(x, *parameters, heads=4), block(x))


# ---- modules: the parameters, names and initial values of torch's own


def modules() -> None:
    """Modules, made from torch's: they hold the very same Parameters."""
    x, gelu = torch.randn(2, 16, 64), nn.GELU()
    up, down, norm, rms = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64), nn.RMSNorm(64)
    gate, values = nn.Linear(64, 256, bias=False), nn.Linear(64, 256, bias=False)
    mixed = nn.MultiheadAttention(64, 4, batch_first=True)
    encoder = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True, norm_first=True)
    net = nn.Sequential(norm, up, gelu, down)

    wide, silu = x.repeat(1, 1, 4), nn.functional.silu
    out = nn.Linear(256, 64, bias=False)
    gated = mf.nn.SwiGLUFFN.from_torch(gate, values, out)
    residual = mf.nn.ResidualLayerNorm.from_torch(norm)(x, x)[0]
    show("LinearReLU", mf.nn.LinearReLU.from_torch(up)(x), up(x).relu())
    show("LinearGELU", mf.nn.LinearGELU.from_torch(up)(x), gelu(up(x)))
    show("GELULinear", mf.nn.GELULinear.from_torch(down)(wide), down(gelu(wide)))
    show("LayerNorm", mf.nn.LayerNorm.from_torch(norm)(x), norm(x))
    show("RMSNorm", mf.nn.RMSNorm.from_torch(rms)(x), rms(x))
    show("LayerNormLinear", mf.nn.LayerNormLinear.from_torch(norm, up)(x), up(norm(x)))
    show("ResidualLayerNorm", residual, norm(x + x))
    show("ResidualRMSNorm", mf.nn.ResidualRMSNorm.from_torch(rms)(x, x)[0], rms(x + x))
    show("FFN", mf.nn.FFN.from_torch(up, gelu, down)(x, residual=x), x + down(gelu(up(x))))
    show("SwiGLUFFN", gated(x), out(silu(gate(x)) * values(x)))
    show("Attention", mf.nn.Attention.from_torch(mixed)(x)[0], mixed(x, x, x)[0])
    show("TransformerBlock", mf.nn.TransformerBlock.from_torch(encoder)(x), encoder(x))
    show("Sequential", mf.nn.Sequential(*net)(x), net(x))


def whole_model() -> None:
    """A whole model at once, in place."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
    head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    model = nn.Sequential(layer, head)
    x = torch.randn(2, 16, 64)
    expected = model(x)
    for name, kind in mf.nn.convert(model).items():
        print(f"  {name or 'the model':<22} becomes {kind}")
    show("its output", model(x), expected)


# ---- in a program


def training_step() -> None:
    """A training step: gradients are fused too, optimizers stay as they are."""
    plain = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 1))
    fused = copy.deepcopy(plain)
    mf.nn.convert(fused)
    x, target = torch.randn(256, 64), torch.randn(256, 1)
    for model in (plain, fused):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), target).backward()
            optimizer.step()
    for (name, ours), theirs in zip(fused.named_parameters(), plain.parameters(), strict=True):
        show(f"{name} after 3", ours, theirs)


def compiled() -> None:
    """Under torch.compile an op is one node of the graph, with no graph break."""

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return mf.rms_norm(mf.gelu_scale(x, 1.7) + 1, weight)

    x, weight = torch.randn(64, 128), torch.rand(128)
    # The usual backend generates code for the rest; this one starts at once.
    quick = torch.compile(layer, fullgraph=True, backend="aot_eager")
    show("compiled", quick(x, weight), layer(x, weight))


def measured(x: Tensor) -> None:
    """Measured: eager PyTorch and fused, checked against float64, then timed in turns."""
    result = mf.bench(mf.gelu_scale, x, 1.7, against=["eager"], budget=0.05)
    gain = result.rows[0].speedups["eager"]["cold"]
    print(f"  {result.rows[0].subject} is {gain.median:.2f} times as fast as eager: {gain.verdict}")


def float32_products() -> None:
    """float32 products on CUDA: on tensor cores at float32's accuracy, or as you choose."""
    before = mf.get_fp32_matmul()
    mf.set_fp32_matmul("ieee")  # strict; "split" and "tf32" are the others
    print(f"  {before or 'the default'} before, now {mf.get_fp32_matmul()}")
    mf.set_fp32_matmul(before)
    print("\nWhat this machine runs, and why: `megafuse doctor`.")


if __name__ == "__main__":
    main()
