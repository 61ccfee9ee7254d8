"""Cross-entropy of many classes: right in every form, and nothing of its size is stored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compiler.placed import here
from megafuse.compiler import fuse
from megafuse.compiler.fuzz import Argument, Program, check
from megafuse.graph.lowering import losses

pytestmark = pytest.mark.slow  # each test compiles for seconds

CLASSES = 2051

FORMS = {
    "mean": "F.cross_entropy(a0, t)",
    "sum": "F.cross_entropy(a0, t, reduction='sum')",
    "none": "F.cross_entropy(a0, t, reduction='none')",
    "ignored": "F.cross_entropy(a0, torch.where(a1 > 0.3, -100, t))",
    "ignored_class": "F.cross_entropy(a0, torch.where(a1 > 0.3, 7, t), ignore_index=7)",
    "weights": "F.cross_entropy(a0, t, a2.abs())",
    "smoothed": "F.cross_entropy(a0, t, label_smoothing=0.1)",
    "widened": "F.cross_entropy(a0.float(), t)",
    "log_softmax": "a0.log_softmax(-1) * F.nll_loss(a0.log_softmax(-1), t)",
    "of_others": "F.nll_loss(a0 * 2, t, a2, reduction='sum')",
    "nowhere": "F.cross_entropy(a0, torch.where(t > -1, -100, t), reduction='sum')",
    "minus_infinity": "F.cross_entropy(a0.masked_fill(a2 > 1, -torch.inf), t * 0)",
}


def program(form: str, dtype: str, rows: tuple[int, int]) -> Program:
    source = f"""
        def program(a0, a1, a2):
            t = (a1.float().sigmoid() * {CLASSES}).long().clamp(0, {CLASSES - 1})
            v = {FORMS[form]}
            return v,
    """
    shapes = [tuple((n, CLASSES) for n in rows), tuple((n,) for n in rows), ((CLASSES,),) * 2]
    grads = (True, False, False)
    return Program.of_source(
        source,
        [
            Argument(f"a{i}", dtype, shape, requires_grad=grad)
            for i, (shape, grad) in enumerate(zip(shapes, grads, strict=True))
        ],
    )


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    check(program(form, "float32", (5, 33)))


FEW = ("weights", "ignored_class")


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *((form, "bfloat16") for form in FORMS),
        *((form, dtype) for form in FEW for dtype in ("float16", "float64")),
    ],
)
def test_dtypes(form: str, dtype: str) -> None:
    check(program(form, dtype, (4, 19)))


def loss(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), target)


def test_a_label_that_is_no_class() -> None:
    if here().type != "cpu":
        pytest.skip("an assertion of the device, after which it is of no use")
    x, target = torch.randn(4, CLASSES, requires_grad=True), torch.tensor([0, 5, CLASSES, 1])
    fused = fuse(loss)
    with pytest.raises(IndexError, match=f"Target {CLASSES} is out of bounds"):
        fused(x, target)
    assert fused(x, target.clamp(max=9)).isfinite()


def test_logarithms_are_not_stored() -> None:
    """Forward and backward read 16-bit logits, and the backward writes their gradient."""
    rows = 64
    x = torch.randn(rows, CLASSES, dtype=torch.bfloat16, requires_grad=True)
    told = str(fuse(loss).explain(x, torch.zeros(rows, dtype=torch.int64)))
    assert "saved for the backward: 1.0 KB" in told or "saved for the backward: 516 B" in told, told
    small = str(fuse(loss).explain(x[:, :500], torch.zeros(rows, dtype=torch.int64)))
    assert small.count("one kernel") < told.count("one kernel")


def test_many_rows_of_few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of their size is stored either."""
    rows = 64
    x = torch.randn(rows, 17, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, 17, (rows,))
    monkeypatch.setattr(losses, "_MANY", rows * 17)
    fused = fuse(loss)
    told = str(fused.explain(x, target))
    assert "saved for the backward: 516 B" in told or "saved for the backward: 1.0 KB" in told, told
    for n in (rows, 5):
        wide = x.detach()[:n].double().requires_grad_()
        narrow = x.detach()[:n].requires_grad_()
        (got,) = torch.autograd.grad(fused(narrow, target[:n]), narrow)
        (exact,) = torch.autograd.grad(F.cross_entropy(wide, target[:n]), wide)
        torch.testing.assert_close(got.double(), exact, rtol=2**-7, atol=1e-6)


def of_the_next(logits: Tensor, labels: Tensor) -> Tensor:
    """As transformers has it: [batch, length, classes], the labels one further on."""
    logits = logits.float()
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), shifted.view(-1), ignore_index=-100)


def test_a_language_models_loss() -> None:
    """Its rows are those of the logits, though torch calls them batch·length of the labels; and
    nobody shifts labels once more for each logit."""
    x = torch.randn(4, 16, CLASSES, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, CLASSES, (4, 16))
    told = str(fuse(of_the_next).explain(x, labels))
    assert "backward: 1 step" in told, told
    taken = told.partition("row by row")[2].partition("reads")[2].partition("writes")[0]
    assert "logits" in taken, told
    assert "labels" not in taken, told
    wide = x.detach().double().requires_grad_()
    (got,) = torch.autograd.grad(fuse(of_the_next)(x, labels), x)
    (exact,) = torch.autograd.grad(of_the_next(wide, labels), wide)
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-9)


def test_the_library_is_asked_with_one_number() -> None:
    """About the labels: one number stands for all logits."""
    assert losses._is_one_number(torch.zeros(()).expand(3, 4))
    assert not losses._is_one_number(torch.zeros(3, 4))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_images(reduction: str, weighted: bool) -> None:
    """Whose classes are the second dimension: nobody scatters into zeros for their gradient."""

    def of_images(x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        return F.cross_entropy(x, target, weight, ignore_index=1, reduction=reduction)

    fused = fuse(of_images)
    for batch, classes, height, width in ((2, 4, 3, 5), (3, 6, 2, 2)):
        x = torch.randn(batch, classes, height, width, requires_grad=True)
        target = torch.randint(classes, (batch, height, width))
        weight = torch.rand(classes) + 0.5 if weighted else None
        exact = x.detach().double().requires_grad_()
        results = (
            fused(x, target, weight),
            of_images(exact, target, None if weight is None else weight.double()),
        )
        torch.testing.assert_close(results[0].double(), results[1], rtol=1e-5, atol=1e-6)
        passed = torch.randn(results[1].shape, dtype=torch.float64)
        (grad,) = torch.autograd.grad(results[0], x, passed.float())
        (exactly,) = torch.autograd.grad(results[1], exact, passed)
        torch.testing.assert_close(grad.double(), exactly, rtol=1e-5, atol=1e-6)
    assert len(fused.variants) == 1
    assert "nll_loss2d_backward" not in str(fused.explain(x, target, weight))
