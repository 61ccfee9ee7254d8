"""An nn.Linear and the nn.GELU beside it, as one module: what LinearGELU and GELULinear share."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import torch
from torch import nn

from megafuse.nn.adopt import adopt, expect
from megafuse.nn.linear import readable_linear
from megafuse.nn.linear_shaped import LinearShaped

Made = TypeVar("Made", bound="WithGELU")


class WithGELU(LinearShaped):
    """Arguments, parameters and initial values of nn.Linear, and nn.GELU's `approximate`."""

    gelu_first: ClassVar[bool]
    approximate: str

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"

    @classmethod
    def from_torch(cls: type[Made], module: nn.Module, approximate: str = "none") -> Made:
        """From an nn.Linear, or an nn.Sequential of it and an nn.GELU, sharing the Parameters.

        `approximate` is for the first; an nn.GELU has its own.
        """
        what = f"{cls.__name__}.from_torch"
        if isinstance(module, nn.Sequential) and len(module) == 2:
            gelu, module = module if cls.gelu_first else reversed(module)
            approximate = expect(gelu, what, nn.GELU).approximate
        made = adopt(cls, readable_linear(module, what))
        made.approximate = approximate
        return made

    def to_torch(self) -> nn.Sequential:
        """An nn.Sequential of an nn.Linear and an nn.GELU over the same Parameters."""
        linear = adopt(nn.Linear, self)
        del linear.__dict__["approximate"]
        parts = (linear, nn.GELU(self.approximate))
        return nn.Sequential(*(reversed(parts) if self.gelu_first else parts)).train(self.training)
