"""The tokens of a launch, taken while it runs."""

from __future__ import annotations

from collections.abc import Generator

from megafuse.decode.kernel import NOT_YET, CpuKernel
from megafuse.decode.kernel_cuda import CudaKernel
from megafuse.decode.workspace import Workspace


def columns(
    kernel: CpuKernel | CudaKernel, space: Workspace, steps: int, count: int, streaming: bool
) -> Generator[list[int], None, None]:
    """Launches the step; the next token of each of `count` rows, up to `steps` times.

    streaming: as soon as they are made. Where nobody takes the rest of them, the launch ends with
    the token that it is at, which nobody gets: see `made`.
    """
    out = space.out.numpy()[:count]
    out[:, :steps] = NOT_YET
    space.halt[0] = 0
    (kernel.begin if streaming else kernel.launch)(space.step)
    try:
        for column in range(steps):
            if not kernel.wait(space.step, out, column):
                return
            yield out[:, column].tolist()
    finally:
        space.halt[0] = 1
        kernel.finish(space.step)


def made(space: Workspace, steps: int) -> int:
    """How many tokens the last launch, which was to make `steps`, has made of each row."""
    return int((space.out.numpy()[0, :steps] != NOT_YET).sum())
