"""The mean of channel 3 of a batch of images of 16 channels."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
images = torch.rand(64 if device == "cuda" else 8, 512, 512, 16, device=device)


def step():
    return images[..., 3].mean()


EXPECTED = "strided access"
