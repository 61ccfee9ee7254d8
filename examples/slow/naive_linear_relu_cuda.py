"""A linear layer and its ReLU in one launch, as a CUDA kernel of our own: a thread an output.

Nothing is stored between the product and the ReLU. Needs an NVIDIA GPU.
"""

import torch

SOURCE = """
extern "C" __global__ void linear_relu(const float* x, const float* weight, const float* bias,
                                       float* out, int rows, int outs, int ins) {
  const int o = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= rows || o >= outs) return;
  float sum = bias[o];
  for (int i = 0; i < ins; ++i) sum += x[row * ins + i] * weight[o * ins + i];
  out[row * outs + o] = sum < 0 ? 0 : sum;
}
"""
if not torch.cuda.is_available():
    raise SystemExit("naive_linear_relu_cuda.py needs an NVIDIA GPU; naive_linear_relu.py does not")
kernel = torch.cuda._compile_kernel(SOURCE, "linear_relu")


@torch.library.custom_op("slow_cuda::linear_relu", mutates_args=())
def linear_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """relu(x·Wᵀ + b)"""
    rows, outs, ins = len(x), *weight.shape
    out = x.new_empty(rows, outs)
    grid = (-(-outs // 16), -(-rows // 16), 1)
    kernel(grid=grid, block=(16, 16, 1), args=[x, weight, bias, out, rows, outs, ins])
    return out


x = torch.randn(2048, 1024, device="cuda")
weight = torch.randn(4096, 1024, device="cuda") / 1024**0.5
bias = torch.randn(4096, device="cuda")


def step():
    return linear_relu(x, weight, bias)


EXPECTED = "naive product"
