"""Declaring ops: a wrong declaration is refused by name, and breaks nothing but itself.

Numbers, elements and results of a functor are its C++ type's, so these are held to the declaration
where a kernel is compiled.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import megafuse as mf
from contract.processes import cold_cache, environment, run
from megafuse.codegen import render
from megafuse.codegen.variant import Functors, Operand, Variant
from megafuse.ops import BROKEN
from megafuse.registry import (
    OPS,
    Autograd,
    DeclarationError,
    Op,
    Pointwise,
    Program,
    Rows,
    Sharding,
    Signature,
    checks,
    op,
)
from megafuse.runtime import cpp, sources

needs_compiler = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")


def twin(x: Tensor, residual: Tensor, scale: float = 2.0) -> Tensor:
    return x * scale + residual


def rowwise(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    return x


# Declarations, flat: the kernel's kind, the fields of all parts, the other arguments of `op`.
GOOD: dict[str, Any] = {
    "kind": Pointwise,
    "forward": "Twin<{F}>",
    "backward": "TwinBackward<{F}>",
    "saves": ("x",),
    "grads": {"x": 0, "residual": 0},
    "passthrough": ("residual",),
    "flops": (2, 1),
    "sample": lambda draw: (draw.full(), draw.full(), 2.0),
}
GOOD_ROWS: dict[str, Any] = GOOD | {
    "kind": Rows,
    "shapes": {"x": "...C", "weight": "C"},
    "grads": {"x": 0, "weight": 1},
    "passthrough": (),
}


def parts(kind: Any, **flat: Any) -> dict[str, Any]:
    """The arguments of `op`: a flat declaration put together."""
    made: dict[str, Any] = {}
    for part, of in (("kernel", kind), ("signature", Signature), ("autograd", Autograd)):
        names = {f.name for f in fields(of)} & set(flat)
        made[part] = of(**{name: flat.pop(name) for name in names})
    return made | flat


@pytest.fixture
def declare() -> Iterator[Callable[..., Op]]:
    """Declares an op under a name of its own; the library's list is afterwards as it was."""
    made: list[str] = []

    def declared(function: Callable[..., Any], name: str, **options: Any) -> Op:
        function = _renamed(function, name)
        made.append(name)
        op(**parts(**options))(function)
        return OPS[name]

    yield declared
    for name in made:
        OPS.pop(name, None)


def _renamed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    source = dict(function.__globals__)
    copy = type(function)(function.__code__, source, name, function.__defaults__)
    copy.__annotations__ = dict(function.__annotations__)
    return copy


@dataclass
class Wrong:
    """A change that makes a good declaration wrong, and words that its error must have."""

    change: dict[str, Any]
    says: tuple[str, ...]
    function: Callable[..., Any] = twin
    good: dict[str, Any] = field(default_factory=lambda: GOOD)


def optional(x: Tensor, residual: Tensor | None, scale: float = 2.0) -> Tensor:
    return x


def number_first(scale: float, x: Tensor, residual: Tensor) -> Tensor:
    return x * scale + residual


def either_first(x: Tensor | float, residual: Tensor, scale: float = 2.0) -> Tensor:
    return x * scale + residual


def two_results(x: Tensor, residual: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    return x * scale + residual, x


def string(x: Tensor, residual: Tensor, act: str = "relu") -> Tensor:
    return x


def either_in_rows(x: Tensor, weight: Tensor | float, eps: float = 1e-5) -> Tensor:
    return x


def draws(x: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return x


def sum_of(count: int) -> Callable[..., Tensor]:
    """A function that adds up so many tensors: t0, t1, …"""
    names = [f"t{i}" for i in range(count)]
    taken = ", ".join(f"{name}: Tensor" for name in names)
    made: dict[str, Any] = dict(globals())
    exec(f"def many({taken}) -> Tensor:\n    return {' + '.join(names)}", made)
    function: Callable[..., Tensor] = made["many"]
    return function


# As many as a kernel has operands, beside the result; and for a backward, half of that.
MOST = checks.MAX_OPERANDS
HALF = tuple(f"t{i}" for i in range(MOST // 2))

NO_GRADS: dict[str, Any] = {"backward": None, "saves": (), "grads": {}, "passthrough": ()}

WRONG = {
    "saves": Wrong({"saves": ("resid",)}, ("saves", "'resid'", "did you mean 'residual'")),
    "saves a number": Wrong({"saves": ("x", "scale")}, ("saves", "'scale'", "tensor")),
    "saves twice": Wrong({"saves": ("x", "x")}, ("saves", "twice")),
    "saves for nothing": Wrong(NO_GRADS | {"saves": ("x",)}, ("saves", "grads")),
    "grads": Wrong({"grads": {"y": 0}, "passthrough": ()}, ("grads", "'y'", "x, residual")),
    "grads of a number": Wrong({"grads": {"x": 0, "residual": 0, "scale": 1}}, ("'scale'",)),
    "grads beyond": Wrong({"grads": {"x": 0, "residual": 7}}, ("'residual': 7", "from 0")),
    "grads beyond, not passed": Wrong(
        {"grads": {"x": 0, "residual": 2}, "passthrough": ()}, ("'residual': 2",)
    ),
    "grads below": Wrong({"grads": {"x": -1, "residual": 0}}, ("'x': -1",)),
    "grads without backward": Wrong({"backward": None}, ("backward=",)),
    "passthrough": Wrong({"passthrough": ("resid",)}, ("passthrough", "'resid'", "residual")),
    "any_dtype": Wrong({"any_dtype": ("q",)}, ("any_dtype", "'q'")),
    "any_dtype of a number": Wrong({"any_dtype": ("scale",)}, ("any_dtype", "'scale'")),
    "ranges": Wrong({"ranges": {"scal": (0.0, 1.0)}}, ("ranges", "'scal'", "'scale'?")),
    "ranges of a tensor": Wrong({"ranges": {"x": (0.0, 1.0)}}, ("ranges", "'x'")),
    "ranges, empty": Wrong({"ranges": {"scale": (3.0, 1.0)}}, ("ranges", "'scale'")),
    "ranges, default": Wrong({"ranges": {"scale": (3.0, 4.0)}}, ("default 2.0", "'scale'")),
    "choices": Wrong({"choices": {"act": {"relu": "mf::Relu"}}}, ("choices", "'act'")),
    "choices, none": Wrong(NO_GRADS, ("'act'", "choices="), string),
    "choices, default": Wrong(
        {"choices": {"act": {"gelu": "mf::Gelu"}}}, ("default 'relu'", "'act'"), string
    ),
    "choices, no words": Wrong(
        {"choices": {"act": ("relu", "gelu")}}, ("choices", "'act'", "C++ word"), string
    ),
    "dtype_like": Wrong({"dtype_like": "scale"}, ("dtype_like", "'scale'")),
    "inverted": Wrong({"inverted": "x"}, ("inverted", "'x'", "Tensor | float")),
    "autocast": Wrong({"autocast": "float16"}, ("autocast", "float16")),
    "output_dtype": Wrong({"output_dtype": "int4"}, ("output_dtype", "int4")),
    "a word": Wrong({"forward": "Twin<{F}, {act}>"}, ("forward", "'act'")),
    "no functor": Wrong({"forward": ""}, ("forward=",)),
    "header and text": Wrong({"header": "twin.h", "text": "//"}, ("header=", "text=")),
    "vjp": Wrong({"vjp": lambda grad: (grad, grad)}, ("vjp", "2 arguments")),
    "check": Wrong({"check": lambda x: None}, ("check", "3 arguments")),
    "flops": Wrong({"flops": lambda x: (1, 1)}, ("flops", "3 arguments")),
    "random": Wrong({"random": True}, ("random", "'p: float'")),
    "random, two tensors": Wrong({"random": True}, ("random", "2 tensors"), draws),
    "first a number": Wrong({}, ("first argument", "'scale'"), number_first),
    "first perhaps a number": Wrong({}, ("first argument", "'x'"), either_first),
    "pointwise, None": Wrong({}, ("'residual'", "None"), optional),
    "pointwise, two results": Wrong(
        {"returns": ("out", "s")}, ("returns", "'s'", "pointwise"), two_results
    ),
    "returns": Wrong({"returns": ("out", "s")}, ("returns", "annotation")),
    "returns an argument": Wrong({"returns": ("x",)}, ("x", "different names")),
    "pointwise, keeps": Wrong(
        {"keeps": ("pre",), "saves": ("x", "pre"), "kept": lambda *args: [], "vjp": lambda *a: a},
        ("keeps", "pointwise"),
    ),
    "pointwise, laid_out_as": Wrong({"laid_out_as": "x"}, ("laid_out_as", "pointwise")),
    "pointwise, shapes": Wrong({"shapes": {"x": "...C"}}, ("shapes", "pointwise")),
    "pointwise, own_dtype": Wrong({"own_dtype": ("x",)}, ("own_dtype", "pointwise")),
    "rows, shapes": Wrong({"shapes": {"y": "C"}}, ("shapes", "'y'"), rowwise, GOOD_ROWS),
    "rows, own_dtype": Wrong({"own_dtype": ("y",)}, ("own_dtype", "'y'"), rowwise, GOOD_ROWS),
    "rows, laid_out_as": Wrong({"laid_out_as": "eps"}, ("laid_out_as",), rowwise, GOOD_ROWS),
    "rows, passthrough": Wrong({"passthrough": ("weight",)}, ("rows",), rowwise, GOOD_ROWS),
    "rows, output_dtype": Wrong({"output_dtype": "int8"}, ("output_dtype",), rowwise, GOOD_ROWS),
    "rows, a number": Wrong({}, ("'weight'", "Tensor | float"), either_in_rows, GOOD_ROWS),
    "rows, keeps unsaved": Wrong(
        {"keeps": ("mean",), "kept": lambda *a: []}, ("keeps", "mean"), rowwise, GOOD_ROWS
    ),
    "rows, keeps without kept": Wrong(
        {"keeps": ("mean",), "saves": ("x", "weight", "mean")}, ("kept=",), rowwise, GOOD_ROWS
    ),
    "rows, kept without keeps": Wrong({"kept": lambda *a: []}, ("kept=",), rowwise, GOOD_ROWS),
    "rows, second derivatives": Wrong(
        {"saves": ("out",)}, ("second derivatives", "weight"), rowwise, GOOD_ROWS
    ),
    "sharding, pointwise": Wrong(
        {"sharding": Sharding(spread={"x": "BC"})}, ("not for pointwise",)
    ),
    "sharding, a letter": Wrong(
        {"sharding": Sharding(cuts={"K": ()})}, ("sharding: cuts: 'K'",), rowwise, GOOD_ROWS
    ),
    "sharding, results of rows": Wrong(
        {"sharding": Sharding(results={"out": "...C"})}, ("are for programs",), rowwise, GOOD_ROWS
    ),
    "sharding, no result": Wrong(
        {"sharding": Sharding(results={"pre": "...C"})}, ("results: 'pre'",), rowwise, GOOD_ROWS
    ),
    "sharding, no flag": Wrong(
        {"sharding": Sharding(whole={"eps": -2})}, ("whole: 'eps'", "a flag"), rowwise, GOOD_ROWS
    ),
    "sharding, added and cut": Wrong(
        {"sharding": Sharding(cuts={"C": ("weight",)})}, ("'weight' is cut",), rowwise, GOOD_ROWS
    ),
    "too many tensors": Wrong(
        NO_GRADS,
        ("forward", f"{MOST + 1}", f"{MOST} read", "1 written", f"at most {MOST}"),
        sum_of(MOST),
    ),
    "backward of many": Wrong(
        {"grads": dict.fromkeys(HALF, 0), "saves": HALF, "passthrough": ()},
        (
            "backward",
            f"{2 * len(HALF) + 1}",
            f"{len(HALF)} gradients",
            f"{len(HALF)} saved",
            f"at most {MOST}",
        ),
        sum_of(MOST - 1),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_is_refused(case: str) -> None:
    """The error names the op, the option and the argument; nothing of the op is left behind."""
    wrong = WRONG[case]
    name = "wrong_declaration"
    before = list(OPS)
    with pytest.raises(DeclarationError) as caught:
        op(**parts(**{**wrong.good, **wrong.change}))(_renamed(wrong.function, name))
    for words in (f"op {name}: ", *wrong.says):
        assert words in str(caught.value)
    assert list(OPS) == before
    assert not hasattr(torch.ops.megafuse, name)


def test_a_kernel_is_one_of_three() -> None:
    with pytest.raises(DeclarationError, match="op twin: kernel='pointwize' is no Pointwise, Rows"):
        op(**parts(**GOOD) | {"kernel": "pointwize"})(twin)


@pytest.mark.parametrize(("kind", "option"), [(Program, "forward"), (Rows, "inverted")])
def test_a_kind_of_kernel_has_no_options_of_another(kind: Any, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        kind(**{option: "x"})


def test_the_good_declarations_are_taken(declare: Callable[..., Op]) -> None:
    declare(twin, "good_pointwise", **GOOD)
    declare(rowwise, "good_rows", **GOOD_ROWS)
    with pytest.raises(DeclarationError, match="already"):
        declare(twin, "good_pointwise", **GOOD)


def test_every_shipped_op_is_declared() -> None:
    assert BROKEN == {}
    with pytest.raises(AttributeError, match="no attribute 'gelu_scal'"):
        _ = mf.gelu_scal


def test_limits_are_the_host_runtimes() -> None:
    host = Path(mf.__file__).parent / "runtime" / "host"

    def constant(file: str, name: str) -> int:
        found = re.search(rf"constexpr int {name} = (\d+);", (host / file).read_text())
        assert found is not None
        return int(found[1])

    assert constant("core/space.h", "kMaxOperands") == checks.MAX_OPERANDS
    assert constant("torch/op.h", "kMaxArgs") == checks.MAX_ARGUMENTS


@pytest.mark.slow
def test_a_broken_op_breaks_only_itself(tmp_path: Path) -> None:
    """A typo in a copy of the package: the others are there, this one says what is wrong."""
    package = tmp_path / "megafuse"
    shutil.copytree(Path(mf.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    file = package / "ops" / "scale_bias_sigmoid.py"
    text = file.read_text(encoding="utf-8")
    assert '"x", "w", "b"' in text
    file.write_text(text.replace('"x", "w", "b"', '"x", "ww", "b"'), encoding="utf-8")
    code = f"""
assert mf.__file__.startswith({str(package)!r}), mf.__file__
right("gelu_scale", x, 1.7)
assert "scale_bias_sigmoid" not in mf.OPS and not hasattr(mf, "scale_bias_sigmoid")
try:
    mf.scale_bias_sigmoid
except AttributeError as error:
    print(error)
"""
    out, err = run(code, environment(cold_cache(tmp_path), PYTHONPATH=str(tmp_path)))
    for said in (out, err):
        assert "op scale_bias_sigmoid: saves: 'ww' is not" in said


# ---- the functor, where a kernel is compiled

HEADER = """
#pragma once
#include "math.h"
#include "rows.h"

namespace mf {

template <class F>
struct Twin : Scalars<1> {
  F scale;
  MF_INLINE explicit Twin(const F* s) : scale(s[0]) {}
  MF_INLINE F operator()(F x, F residual) const { return x * scale + residual; }
};
template <class F>
struct TwinBackward : Scalars<1> {
  F scale;
  MF_INLINE explicit TwinBackward(const F* s) : scale(s[0]) {}
  MF_INLINE F operator()(F grad, F) const { return grad * scale; }
};

template <class F>
struct Sum : Scalars<0> {
  MF_INLINE explicit Sum(const F*) {}
  template <class... T>
  MF_INLINE F operator()(F x, T... more) const {
    return (x + ... + more);
  }
};

// As softmax is made, without a softmax: each element minus the largest.
template <class F>
struct Below : RowFunctor<F, 1, 1, 1>, Scalars<0> {
  using Total = Pack<F, 1>;
  using Row = Total;
  template <int S>
  static constexpr bool takes_max = true;
  MF_INLINE explicit Below(const F*) {}
  MF_INLINE Pack<F, 1> load(F x) const { return {x}; }
  static MF_INLINE Total start() { return {-infinity<F>()}; }
  template <int S>
  MF_INLINE F term(const Pack<F, 1>& x, const Total&) const {
    return x[0];
  }
  template <int S>
  MF_INLINE void fold(Total& total, F most, F) const {
    total[0] = most;
  }
  MF_INLINE Total merged(const Total& a, const Total& b) const { return {larger(a[0], b[0])}; }
  MF_INLINE Row row(const Total& total, const Total&, F) const { return total; }
  MF_INLINE F result(const Pack<F, 1>& x, const Row& row) const { return x[0] - row[0]; }
  MF_INLINE F row_result(const Row& row) const { return row[0]; }
};

}  // namespace mf
"""


@pytest.fixture
def header(tmp_path: Path) -> str:
    """The path of HEADER, in a folder named by its text, which cache keys may not contain."""
    folder = tmp_path / hashlib.sha256(HEADER.encode()).hexdigest()[:16]
    folder.mkdir()
    file = folder / "declared.h"
    file.write_text(HEADER, encoding="utf-8")
    return file.as_posix()


def source(functors: Functors, family: str, outputs: str, inputs: int, *results: int) -> str:
    """A CPU kernel of float32 operands, the outputs with these walks."""
    real = [Operand("Float", w, r) for w, r in zip(outputs, results, strict=True)]
    variant = Variant(
        op="held",
        family=family,
        choices={},
        device="cpu",
        common="Float",
        double=False,
        dims=2 if family.startswith("rows") else 1,
        vector=1,
        wide_index=False,
        outputs=len(outputs),
        operands=(*real, *[Operand("Float", "c")] * inputs),
    )
    return render.source(functors, variant)


def compile_(text: str, out: Path) -> None:
    cpp.compile_shared(text, out, include=[sources.KERNELS], flags=["-std=c++17"])


@needs_compiler
@pytest.mark.parametrize(
    ("numbers", "family", "outputs", "inputs", "results", "says"),
    [
        (("scale",), "forward", "c", 2, (0,), None),
        (("scale", "shift"), "forward", "c", 2, (0,), "2 numbers (scale, shift)"),
        ((), "forward", "c", 2, (0,), "must have Scalars<0>"),
        (("scale",), "forward", "c", 3, (0,), "must take 3 elements"),
        (("scale",), "forward", "cc", 2, (0, 1), "`returns` asks for its result 1"),
        (("scale",), "backward", "c", 2, (0,), None),
        (("scale",), "backward", "cc", 2, (0, -1), None),
        (("scale",), "backward", "c", 1, (0,), "must take 1 elements: one of each gradient"),
        (("scale",), "backward", "c", 2, (7,), "`grads` asks for its result 7"),
        ((), "rows_forward", "cw", 1, (0, 0), None),
        (("eps",), "rows_forward", "cw", 1, (0, 0), "must have Scalars<1>"),
        ((), "rows_forward", "c", 2, (0,), "must take 2 elements"),
        ((), "rows_forward", "cc", 1, (0, 1), "`returns` asks for its result 1"),
        ((), "rows_forward", "cw", 1, (0, 1), "`keeps` asks for number 1 of row_result"),
    ],
)
def test_functors_are_held_to_the_declaration(
    numbers: tuple[str, ...],
    family: str,
    outputs: str,
    inputs: int,
    results: tuple[int, ...],
    says: str | None,
    header: str,
    tmp_path: Path,
) -> None:
    functor = "Below<{F}>" if family == "rows_forward" else "Twin<{F}>"
    functors = Functors(functor, "TwinBackward<{F}>", header=header, numbers=numbers)
    text = source(functors, family, outputs, inputs, *results)
    if says is None:
        compile_(text, tmp_path / "kernel.so")
        return
    with pytest.raises(cpp.CompileError) as caught:
        compile_(text, tmp_path / "kernel.so")
    which = "backward" if family == "backward" else "forward"
    assert f"megafuse.held, {which} functor: " in caught.value.stderr
    assert says in caught.value.stderr


@needs_compiler
def test_random_numbers_are_declared(tmp_path: Path) -> None:
    functors = Functors("DropoutRelu<{F}, true>", header="dropout_relu.h", numbers=("p",))
    with pytest.raises(cpp.CompileError, match="forward functor: it draws random"):
        compile_(source(functors, "forward", "c", 1, 0), tmp_path / "kernel.so")


# ---- what was refused or wrong before, at the edge of what is allowed

SHAPES = [(7, 5), (5,), (7, 1), (1, 1), ()]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_passthrough_gets_the_incoming_gradient(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    header: str,
    declare: Callable[..., Op],
    request: pytest.FixtureRequest,
) -> None:
    """`residual` shares its number with x, whose gradient is twice the incoming one."""
    name = "passed_" + re.sub(r"\W", "_", request.node.callspec.id)
    made = declare(twin, name, **GOOD, header=header)
    x = torch.randn(7, 5)
    residual = torch.randn(shape).to(dtype)
    found = {}
    for which in ("fused", "reference"):
        given = [t.clone().requires_grad_() for t in (x, residual)]
        out = getattr(made, which)(*given, 2.0)
        incoming = torch.linspace(1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
        found[which] = torch.autograd.grad(out, given, incoming)
    for fused, exact in zip(found["fused"], found["reference"], strict=True):
        torch.testing.assert_close(fused, exact)


def test_as_many_operands_as_fit(header: str, declare: Callable[..., Op]) -> None:
    options = GOOD | NO_GRADS | {"forward": "Sum<{F}>", "header": header}
    made = declare(sum_of(MOST - 1), "many_tensors", **options)
    args = [torch.randn(3, 4) if i % 2 else torch.randn(4) for i in range(MOST - 1)]
    torch.testing.assert_close(made.fused(*args), made.reference(*args))


@needs_compiler
def test_a_kernel_of_too_many_operands_is_an_error(tmp_path: Path, header: str) -> None:
    """Past the check of declarations, in a process that may die of it."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from contract.test_declaration import GOOD, MOST, NO_GRADS, checks, op, parts, sum_of
checks.MAX_OPERANDS = 99
options = GOOD | NO_GRADS | {{"forward": "Sum<{{F}}>", "header": {header!r}}}
op(**parts(**options))(sum_of(MOST))
for shapes in ([(8,)] * MOST, [(8, 8)] + [(8,)] * (MOST - 1)):
    try:
        mf.OPS["many"].fused(*(torch.randn(s) for s in shapes))
    except RuntimeError as error:
        print(f"more than {{MOST}} operands" in str(error))
"""
    out, _ = run(code, environment(cold_cache(tmp_path)))
    assert out == "True\nTrue\n"
