"""A torch module as a module of ours, and back: the same Parameters under another class."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from megafuse.nn.plain import Kind, plain

Made = TypeVar("Made", bound=nn.Module)


def adopt(cls: type[Made], module: nn.Module) -> Made:
    """A `cls` that holds the Parameters, submodules and settings of `module`.

    `cls` has the attributes of `module`'s class, being a subclass or the superclass of it. The
    two share Parameter objects, so optimizers and tied weights go on working; what is assigned to
    one later the other does not see.
    """
    made = cls.__new__(cls)
    made.__dict__.update(
        {
            name: value.copy() if isinstance(value, dict) else value
            for name, value in module.__dict__.items()
        }
    )
    return made


def expect(module: nn.Module, what: str, *kinds: type[Kind]) -> Kind:
    """`module`; or a TypeError, if something would be lost by reading its parameters."""
    if plain(module, *kinds):
        return module
    wanted = " or ".join(f"torch.nn.{kind.__name__}" for kind in kinds)
    if not isinstance(module, kinds):
        came = type(module).__name__
        raise TypeError(f"{what} takes a {wanted}, and got a {came}")
    if type(module) in kinds:
        raise TypeError(
            f"{what}: the {type(module).__name__} has hooks or a forward of its own, which a fused "
            "op would skip. Convert first, then add them."
        )
    raise TypeError(
        f"{what} takes a {wanted}, and got a {type(module).__name__}, a subclass that may compute "
        "something else (a parametrization makes one too). Convert first, then parametrize."
    )
