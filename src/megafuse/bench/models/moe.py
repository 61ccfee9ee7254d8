"""A mixture-of-experts layer in plain torch: a token goes to its two best experts.

An expert has room for so many tokens (`capacity`), as in Switch and GShard: every shape is fixed,
and a token that comes too late is left out. The router works in float32, as is usual.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MoELayer(nn.Module):
    """x + Σ gate · expert(norm(x)), an expert is down(silu(gate) · up)."""

    def __init__(
        self, width: int = 1024, hidden: int = 2816, experts: int = 8, chosen: int = 2
    ) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, width, 2 * hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.norm(hidden_states).flatten(0, -2)
        tokens, width = x.shape
        capacity = tokens * self.chosen * 5 // (self.experts * 4)  # a quarter more than even
        logits = F.linear(x.float(), self.router.weight.float())
        weights, expert = logits.softmax(-1).topk(self.chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        place = self._places(expert)
        kept = place < capacity
        # Tokens without room go to one row more, which nobody reads.
        row = torch.where(kept, expert * capacity + place, self.experts * capacity)
        rows = x.new_zeros(self.experts * capacity + 1, width)
        rows = rows.index_copy(0, row.flatten(), x.repeat_interleave(self.chosen, 0))
        done = self._run(rows[:-1].view(self.experts, capacity, width))
        found = F.pad(done.flatten(0, 1), (0, 0, 0, 1))[row]
        mixed = (found * (weights * kept).to(x.dtype).unsqueeze(-1)).sum(1)
        return hidden_states + mixed.view_as(hidden_states)  # type: ignore[no-any-return]

    def _places(self, expert: Tensor) -> Tensor:
        """Which of its expert's tokens each one is, in the order of tokens."""
        taken = F.one_hot(expert.flatten(), self.experts)
        before = taken.cumsum(0) - taken
        return (before * taken).sum(-1).view_as(expert)

    def _run(self, rows: Tensor) -> Tensor:
        gate, up = torch.bmm(rows, self.gate_up).chunk(2, -1)
        return torch.bmm(F.silu(gate) * up, self.down)
