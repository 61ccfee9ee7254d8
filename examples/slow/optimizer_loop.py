"""One step of AdamW over the 200 parameters of a network."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
size = 128 if device == "cuda" else 64
parameters = [torch.nn.Parameter(torch.randn(size, size, device=device)) for _ in range(200)]
for parameter in parameters:
    parameter.grad = torch.randn_like(parameter)
optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=False)


def step():
    optimizer.step()


EXPECTED = "optimizer in a loop"
