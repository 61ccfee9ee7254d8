"""What cannot be captured, said once, with the user's line and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from megafuse.graph import origin
from megafuse.graph.ir import Origin


class CaptureError(RuntimeError):
    """The function does something that one compiled program cannot do."""

    def __init__(self, what: str, instead: str, where: Origin) -> None:
        place = f'\n  File "{where.file}", line {where.line}' if where.file else ""
        text = f"\n    {where.text}" if where.text else ""
        super().__init__(f"{what}{place}{text}\n{instead}")
        self.what, self.instead, self.origin = what, instead, where


class Untraceable(NotImplementedError):
    """The function runs, but only as it is: torch has no way to trace a part of it."""


@contextmanager
def clear_errors() -> Iterator[None]:
    """What torch's tracer cannot do, as one error with the user's line."""
    try:
        yield
    except CaptureError as error:
        if error.origin.file is None:
            raise CaptureError(
                error.what, error.instead, origin.of_error(error.__traceback__)
            ) from None
        raise
    except (
        DataDependentOutputException,
        DynamicOutputShapeException,
        GuardOnDataDependentSymNode,
    ) as error:
        raise CaptureError(
            f"What this returns depends on a tensor's values, not on its shape alone: {error}",
            "Do it outside of the fused function.",
            origin.of_error(error.__traceback__),
        ) from error
    except UnsupportedFakeTensorException as error:
        raise CaptureError(
            f"torch cannot trace this: {error}",
            "Do it outside of the fused function.",
            origin.of_error(error.__traceback__),
        ) from error
    except AssertionError as error:
        if "token for effect" in str(error):
            where = origin.of_error(error.__traceback__)
            place = f" ({where.file}, line {where.line}: {where.text})" if where.file else ""
            raise Untraceable(
                f"it raises an error for some values of a tensor, as torch.linalg does{place}"
            ) from error
        if "convert all Tensors to FakeTensors" not in str(error):
            raise
        raise CaptureError(
            "A tensor that is not an argument of the function is used here.",
            "Pass it as an argument: what it holds may change between calls.",
            origin.of_error(error.__traceback__),
        ) from error
