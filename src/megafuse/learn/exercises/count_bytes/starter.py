"""Exercise 1: count the bytes. All large tensors are float32."""

# operations: how many PyTorch runs
# separate:   bytes an element that they move together
# fused:      bytes an element if one kernel did the whole chain
LEDGER = {
    # gelu(x) * 1.7
    "gelu_scale": {"operations": 2, "separate": 16, "fused": 8},
    # silu(gate) * up
    "swiglu": {"operations": 0, "separate": 0, "fused": 0},
    # sigmoid(x * w + b), w and b are rows
    "scale_bias_sigmoid": {"operations": 0, "separate": 0, "fused": 0},
}
