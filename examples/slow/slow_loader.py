"""A training step that takes its batch from a DataLoader over files on a slow disk."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Files(Dataset):
    """32 samples that take a millisecond each to read, over and over."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(1e-3)
        return torch.full((256,), float(index % 7))


loader = iter(DataLoader(Files(), batch_size=32))
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step():
    batch = next(loader).to(device)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


EXPECTED = "waits for data"
