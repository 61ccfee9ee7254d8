"""graphs=True with real CUDA graphs: streams, memory, other people's graphs, and a model in bf16.

test_replayed.py has the rules, and runs on a GPU, too.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from compiler.test_replayed import programs, replays
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]
WORDS, WIDTH, HEADS = 50, 64, 4


class Layer(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        rows, cols = x.shape[:2]
        qkv = self.attn(self.ln_1(x)).view(rows, cols, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(seen.transpose(1, 2).reshape(rows, cols, WIDTH)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """GPT-2, small; the loss is in it."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList([Layer(p), Layer(p)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.words.weight)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        return loss, logits


def tokens(rows: int = 4, cols: int = 16) -> Tensor:
    return torch.randint(WORDS, (rows, cols), device="cuda")


def pair(dtype: torch.dtype = torch.float32, p: float = 0.0) -> tuple[Gpt, Gpt]:
    plain = Gpt(p).to("cuda", dtype)
    ours = copy.deepcopy(plain)
    return mf.optimize(plain), mf.optimize(ours, graphs=True)


def close(a: Any, b: Any) -> None:
    """The same kernels with the same numbers: all but what is added up in any order."""
    loose = torch.bfloat16 in {t.dtype for t in (*a, *b)}
    torch.testing.assert_close(a, b, rtol=2e-2 if loose else 1e-4, atol=1e-2 if loose else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inference(dtype: torch.dtype) -> None:
    models, held = pair(dtype), []
    with torch.no_grad():
        for rows in (4, 4, 4, 4, 7, 7, 7, 4, 7):
            x = tokens(rows)
            held.append([model(x) for model in models])
    for theirs, ours in held:
        close(ours, theirs)
    assert replays(models[1]) == [5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training(dtype: torch.dtype) -> None:
    models = pair(dtype)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    for step in range(10):
        x, losses = tokens(), []
        for model, optimizer in zip(models, optimizers, strict=True):
            if step % 3 != 2:  # else gradients are added up
                optimizer.zero_grad()
            loss, _ = model(x)
            loss.backward()
            optimizer.step()
            losses.append([loss.detach()])
        close(*losses)
    close(*(list(m.parameters()) for m in models))
    assert min(replays(models[1])) >= 5
    assert not any(each.why for each in programs(models[1]))


def test_dropout_is_new_each_time_and_follows_the_seed() -> None:
    model, x = mf.optimize(Gpt(0.3).cuda(), graphs=True), tokens()

    def step() -> float:
        model.zero_grad()
        loss, _ = model(x)
        loss.backward()
        return float(loss)

    for _ in range(5):
        step()
    assert min(replays(model)) > 0
    torch.manual_seed(1)
    first = [step() for _ in range(3)]
    torch.manual_seed(1)
    assert [step() for _ in range(3)] == pytest.approx(first, rel=1e-5)
    assert len(set(first)) == 3


def test_other_streams() -> None:
    models, streams = pair(), [torch.cuda.Stream(), torch.cuda.Stream()]
    found = []
    with torch.no_grad():
        for step in range(12):
            x = tokens()
            theirs = models[0](x)
            stream = streams[step % 2]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found.append((theirs, models[1](x), x))
    torch.cuda.synchronize()
    for theirs, ours, _ in found:
        close(ours, theirs)
    assert replays(models[1]) == [10]


def test_inside_of_someone_elses_graph() -> None:
    models, x = pair(), tokens()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(4):
            models[1](x)
        with torch.cuda.graph(graph):
            ours = models[1](x)
        x.copy_(tokens())
        graph.replay()
        close(ours, models[0](x))
    assert replays(models[1]) == [2]


def test_memory_is_given_back() -> None:
    model, x = mf.optimize(Gpt().cuda(), graphs=True), tokens(32, 32)
    for _ in range(6):
        model.zero_grad()
        model(x)[0].backward()
    model.zero_grad()
    assert min(replays(model)) > 0
    kinds = [kind for each in programs(model) for kind in each.kinds.values()]
    lent = [t for kind in kinds for recording in kind.recordings for t in recording.lent]
    expected = sum({t.data_ptr(): t.nbytes for t in lent}.values())
    del kinds, lent
    during = torch.cuda.memory_allocated()
    mf.deoptimize(model)
    assert during - torch.cuda.memory_allocated() >= expected > 0


def test_what_waits_for_the_gpu_cannot_be_recorded_and_runs() -> None:
    """A mask as an index is a capture that CUDA ends with an error."""

    class Picks(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = torch.softmax(F.gelu(x) @ x, -1)
            h = h.index_put((mask,), torch.zeros((), device=x.device))
            return torch.softmax(h @ x, -1)

    ours = mf.optimize(Picks(), graphs=True)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(8, 8, device="cuda")
            torch.testing.assert_close(ours(x, x > 0), Picks()(x, x > 0), rtol=1e-3, atol=1e-4)
        y = torch.randn(5, 5, device="cuda")  # CUDA works as before
        assert torch.isfinite(y @ y).all()
        assert torch.isfinite(torch.rand(5, device="cuda")).all()
