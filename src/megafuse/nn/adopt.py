"""A torch module as a module of ours, and back: the same Parameters under another class."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from megafuse.nn.plain import Kind, plain

Made = TypeVar("Made", bound=nn.Module)


def adopt(cls: type[Made], module: nn.Module) -> Made:
    """A `cls` that holds the Parameters, submodules and settings of `module`.

    `cls` works with the attributes that `module`'s class has. The two share Parameter objects, so
    optimizers and tied weights go on working; what is assigned to one later the other does not see.
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
    wanted = f"torch.nn.{kinds[0].__name__}"
    came = class_name(module)
    if not isinstance(module, kinds):
        raise TypeError(f"{what} takes a {wanted}, and got a {came}")
    if type(module) in kinds:
        raise TypeError(
            f"{what}: the {came} has hooks or a forward of its own, which a fused op would skip. "
            "Convert first, then add them."
        )
    raise TypeError(
        f"{what} takes a {wanted}, and got a {came}, a subclass that may compute something else "
        "(a parametrization makes one too). Convert first, then parametrize."
    )


def class_name(module: object) -> str:
    """With its module: several libraries have a Linear."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"
