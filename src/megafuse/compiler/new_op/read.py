"""What an op takes from the function that it is made from."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_NUMBERS = ("float", "int")


class Refused(ValueError):
    """No op can be made of this; the message says why and what to do."""


@dataclass(frozen=True)
class Parameter:
    """An argument: a Tensor, a float or an int."""

    name: str
    kind: str
    default: str = ""  # as written, where there is one

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}" + (f" = {self.default}" if self.default else "")


@dataclass(frozen=True)
class Written:
    """A function as its author wrote it."""

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    formula: str
    body: str  # without the docstring, indented by four
    imports: tuple[str, ...]

    @property
    def tensors(self) -> list[str]:
        return [p.name for p in self.parameters if p.kind == "Tensor"]

    @property
    def numbers(self) -> list[str]:
        return [p.name for p in self.parameters if p.kind != "Tensor"]


def read(function: Callable[..., Any]) -> Written:
    """Raises Refused where an op cannot have the function's form."""
    if not isinstance(function, types.FunctionType) or function.__name__ == "<lambda>":
        raise Refused(f"{function!r} is no function that `def` made: its text becomes the op's")
    if function.__closure__:
        raise Refused(f"{function.__name__} uses variables of a function around it")
    text = textwrap.dedent(inspect.getsource(function))
    tree = ast.parse(text).body[0]
    assert isinstance(tree, ast.FunctionDef)
    parameters = tuple(_parameter(p) for p in inspect.signature(function).parameters.values())
    if not any(p.kind == "Tensor" for p in parameters):
        raise Refused(f"{function.__name__} has no tensor among its arguments")
    return Written(
        function, parameters, _formula(tree), _body(tree, text), _imports(function, tree)
    )


def _parameter(parameter: inspect.Parameter) -> Parameter:
    name, hint, default = parameter.name, parameter.annotation, parameter.default
    if parameter.kind != inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise Refused(f"argument '{parameter}': an op's arguments are plain ones")
    said = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    said = said.rpartition(".")[2]
    if hint is parameter.empty:
        said = type(default).__name__ if default is not parameter.empty else "Tensor"
    if said not in ("Tensor", *_NUMBERS):
        raise Refused(
            f"argument '{name}' is {said}: here it is a Tensor, a float or an int. For flags and "
            "strings write the op by hand, as bias_act.py has them"
        )
    return Parameter(name, said, "" if default is parameter.empty else repr(default))


def _formula(tree: ast.FunctionDef) -> str:
    """The first line of the docstring, else what is returned."""
    told = ast.get_docstring(tree)
    if told:
        return told.splitlines()[0]
    last = tree.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        raise Refused(f"{tree.name} does not end with what it returns")
    return ast.unparse(last.value)


def _body(tree: ast.FunctionDef, text: str) -> str:
    told = ast.get_docstring(tree) is not None
    statements = tree.body[1:] if told else tree.body
    if not statements:
        raise Refused(f"{tree.name} computes nothing")
    first = statements[0]
    if first.lineno == tree.lineno:
        raise Refused(f"{tree.name} is written on one line: begin a new one after the colon")
    begin = tree.body[0].end_lineno if told else first.lineno - 1
    lines = text.splitlines()[begin : tree.end_lineno]
    while not lines[0].strip():
        del lines[0]
    return textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")


def _imports(function: types.FunctionType, tree: ast.FunctionDef) -> tuple[str, ...]:
    """A line for each module or constant that the function uses from around it."""
    inside = {
        node.id
        for statement in tree.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    found = {n: function.__globals__[n] for n in sorted(inside) if n in function.__globals__}
    return tuple(_import(function.__name__, name, value) for name, value in found.items())


def _import(function: str, name: str, value: Any) -> str:
    if isinstance(value, types.ModuleType):
        package, _, module = value.__name__.rpartition(".")
        if value.__name__ == name:
            return f"import {name}"
        return (
            f"from {package} import {module} as {name}"
            if package
            else (f"import {module} as {name}")
        )
    if isinstance(value, (int, float)):
        return f"{name} = {value!r}"
    home = str(getattr(value, "__module__", ""))
    if home.partition(".")[0] == torch.__name__ or home == "math":
        return f"from {home} import {name}"
    raise Refused(
        f"{function} uses {name}, which is neither an argument nor of torch or math: write what "
        "it does into the function"
    )
