"""torch.compile(…, backend=megafuse's): whole graphs as programs, soundly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest
import sympy
import torch
from families import FAMILIES
from selection import often
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._sympy.functions import FloorDiv
from torch.utils.checkpoint import checkpoint

from compiler.counted import launches
from compiler.placed import here
from megafuse.compiler.backend import backend
from megafuse.graph.lowering.sizes import cancelled
from megafuse.runtime import cpp, generated

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, **options)


def check(ours: Tensor, exact: Tensor, eager: Tensor) -> None:
    """At most twice eager's error, plus 2 ulps of the largest element."""
    floor = 2 * torch.finfo(ours.dtype).eps * exact.abs().max()
    off, allowed = ((t.double() - exact).abs().max() for t in (ours, eager))
    assert off <= 2 * allowed + floor, f"off by {off}, eager by {allowed}"


def block(x: Tensor, w: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    h = F.gelu(x @ w + b) + x
    return F.layer_norm(h, h.shape[-1:], scale) * torch.sigmoid(h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_value_and_gradients(dtype: torch.dtype, device: str) -> None:
    shapes = ((9, 48), (48, 48), (48,), (48,))
    args = [torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in shapes]
    wide = [a.detach().double().requires_grad_() for a in args]
    found = []
    call = compiled(block)
    for function, given in ((call, args), (block, args), (block, wide)):
        out = function(*given)
        grads = torch.autograd.grad(out, given, torch.ones_like(out))
        found.append([out.detach(), *grads])
    for ours, eager, exact in zip(*found, strict=True):
        check(ours, exact, eager)


def test_its_name_is_enough() -> None:
    if "megafuse" not in metadata.entry_points(group="torch_dynamo_backends").names:
        pytest.skip("run from a checkout that is not installed")
    x = torch.randn(5, 7)
    call = torch.compile(lambda x: torch.tanh(x) * 2 + x, backend="megafuse")
    torch.testing.assert_close(call(x), torch.tanh(x) * 2 + x)
    assert launches(lambda: call(x)) == 1


def test_graphs_run_as_programs() -> None:
    call = compiled(block)
    args = [torch.randn(s) for s in ((9, 48), (48, 48), (48,), (48,))]
    call(*args)
    assert launches(lambda: call(*args)) == 1  # all that follows the product


def test_other_sizes_compile_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    call = compiled(block, dynamic=True)
    weights = [torch.randn(s) for s in ((48, 48), (48,), (48,))]
    call(torch.randn(9, 48), *weights)
    monkeypatch.setattr(generated, "kernel", lambda *_: pytest.fail("a kernel is built"))
    for rows in (2, 17, 300):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(call(x, *weights), block(x, *weights))


class Norms(nn.Module):
    """Buffers that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))
        return seen


def test_training_changes_buffers_and_parameters_as_eager_does() -> None:
    theirs = Norms()
    ours = copy.deepcopy(theirs)
    call = compiled(ours)
    for model, run in ((ours, call), (theirs, theirs)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            x, y = torch.randn(6, 3, 7, 7), torch.randint(5, (6,))
            optimizer.zero_grad()
            F.cross_entropy(run(x), y).backward()
            optimizer.step()
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    ours.eval()
    theirs.eval()
    x = torch.randn(2, 3, 7, 7)
    torch.testing.assert_close(call(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_arguments_written_in_place() -> None:
    def store(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(1, at, x)
        x.mul_(2)
        return (cache.sum(1) + x.sum(1)).tanh()

    cache, x, at = torch.zeros(2, 8, 5), torch.randn(2, 1, 5), torch.tensor([3])
    twins = cache.clone(), x.clone()
    out, expected = compiled(store)(cache, x, at), store(*twins, at)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close((cache, x), twins)


def test_results_that_share_memory() -> None:
    def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = (x * y).exp()
        return x, x[1:], x.t(), z, z.view(-1), z, y.expand(3, 4, 5)

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    ours, theirs = compiled(views)(x, y), views(x, y)
    torch.testing.assert_close(ours, theirs)
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]
    ours[0][1, 1] = 7.0  # x itself
    assert x[1, 1] == ours[1][0, 1] == ours[2][1, 1] == 7.0
    ours[3].zero_()
    assert not ours[4].any()
    assert not ours[5].any()


def test_numbers_and_other_results() -> None:
    def mixed(x: Tensor, scale: float, flag: bool) -> tuple[Tensor, float, int, str, None]:
        return x * scale if flag else x, scale * 2, x.shape[0] + 1, "name", None

    call = compiled(mixed, dynamic=True)
    for rows, scale, flag in ((3, 0.5, True), (7, 0.25, True), (3, 0.5, False)):
        x = torch.randn(rows, 4)
        ours, theirs = call(x, scale, flag), mixed(x, scale, flag)
        torch.testing.assert_close(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]


class WithANumber(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * 2, 4, None


def test_a_size_that_is_always_the_same_is_a_result() -> None:
    """What Dynamo takes for a size can turn out to be one number when AOTAutograd traces."""
    x = torch.randn(3, 5, requires_grad=True)
    call = backend(torch.fx.symbolic_trace(WithANumber()), [x])
    out, *rest = call(x)
    assert rest == [4, None]
    out.sum().backward()
    torch.testing.assert_close((out, x.grad), (x * 2, torch.full_like(x, 2)))
    assert launches(lambda: call(x)) == 1


def test_graph_breaks() -> None:
    seen = []

    def broken(x: Tensor) -> Tensor:
        y = torch.softmax(x, -1) * 3
        torch._dynamo.graph_break()
        seen.append(float(y.sum()))
        return torch.tanh(y) + x

    x = torch.randn(5, 9, requires_grad=True)
    ours = compiled(broken)(x)
    theirs = broken(x)
    torch.testing.assert_close(ours, theirs)
    grads = [torch.autograd.grad(t.square().sum(), x)[0] for t in (ours, theirs)]
    torch.testing.assert_close(*grads)
    assert seen == pytest.approx([15.0, 15.0])


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"]
)
def test_modes_without_gradients(mode: Callable[[], Any]) -> None:
    call = compiled(block)
    args = [torch.randn(s, requires_grad=True) for s in ((9, 48), (48, 48), (48,), (48,))]
    with mode():
        first = call(*args)
        torch.testing.assert_close(first, block(*args))
        assert launches(lambda: call(*args)) == 1
        given = [a.clone() for a in args]  # inference tensors, in that mode
        torch.testing.assert_close(call(*given), first)
    assert not first.requires_grad


def test_autocast() -> None:
    call = compiled(block)
    args = [torch.randn(s) for s in ((9, 48), (48, 48), (48,), (48,))]
    with torch.autocast(here().type, torch.bfloat16):
        ours, theirs = call(*args), block(*args)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    torch.testing.assert_close(call(*args), block(*args))


def test_dropout_has_one_mask_in_both_passes() -> None:
    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x.exp(), 0.5) * 2

    x = torch.randn(64, 64, requires_grad=True)
    call = compiled(dropped)
    torch.manual_seed(3)
    first = call(x)
    torch.manual_seed(3)
    again = call(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, call(x))
    (grad,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(grad == 0, first == 0)
    torch.testing.assert_close(grad, first.detach())
    assert 0.4 < (first == 0).double().mean() < 0.6


def test_a_checkpoint_around_attention_and_dropout() -> None:
    def layer(x: Tensor) -> Tensor:
        return x + F.scaled_dot_product_attention(x, x, x).tanh()

    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x.exp(), 0.5)

    x = torch.randn(2, 4, 8, 16, requires_grad=True)
    ours = compiled(lambda x: checkpoint(layer, x, use_reentrant=False))(x)
    grads = [torch.autograd.grad(t.square().sum(), x)[0] for t in (ours, layer(x))]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    out = compiled(lambda x: checkpoint(dropped, x, use_reentrant=False))(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, out.detach())


def test_hooks_and_weights_that_change_later() -> None:
    first = nn.Linear(6, 6)
    model = nn.Sequential(first, nn.GELU(), nn.LayerNorm(6))
    call, x = compiled(model), torch.randn(4, 6)
    torch.testing.assert_close(call(x), model(x))
    with torch.no_grad():
        first.weight.mul_(2)
    torch.testing.assert_close(call(x), model(x))
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    torch.testing.assert_close(call(x), model(x))
    first.weight = nn.Parameter(torch.randn(6, 6))
    torch.testing.assert_close(call(x), model(x))


def test_what_is_left_of_a_size_after_a_division() -> None:
    """ConvNeXt's patches: torch writes n²//n for n, and both stand for sizes of one tensor."""
    n = FloorDiv(sympy.Symbol("s", integer=True, positive=True), 4)
    unsimplified = FloorDiv(n**2, n)
    assert unsimplified != n
    assert cancelled(unsimplified) == n
    assert cancelled(n) == n
    assert cancelled(FloorDiv(n**2 + 1, n)) == FloorDiv(n**2 + 1, n)


def test_nothing_in_it() -> None:
    """Empty tensors, and a graph without any."""
    x = torch.randn(0, 48)
    weights = [torch.randn(s) for s in ((48, 48), (48,), (48,))]
    torch.testing.assert_close(compiled(block)(x, *weights), block(x, *weights))
    assert torch.equal(compiled(lambda: torch.arange(5) * 2)(), torch.arange(5) * 2)


def test_what_kernels_do_not_know() -> None:
    def complicated(x: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfft(x)
        return spectrum.abs() + torch.complex(x, x).real[..., :3]

    x = torch.randn(4)
    torch.testing.assert_close(compiled(complicated)(x), complicated(x))


def _logits_and_gradients(
    model: nn.Module, call: Callable[..., Any], inputs: dict[str, Tensor]
) -> list[Tensor]:
    model.zero_grad()
    logits = call(**inputs).logits
    logits.float().square().mean().backward()
    return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


# Encoders, decoders, both; norms of each kind, rotary or learnt positions: others are like these.
MODELS = ("BERT", "GPT-2", "Llama", "Qwen3", "Gemma", "T5", "ViT")


@pytest.mark.slow
@pytest.mark.parametrize("name", often(MODELS, ["GPT-2", "Qwen3", "T5"]))
def test_models(name: str) -> None:
    family = FAMILIES[name]
    hf = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")
    hf.logging.set_verbosity_error()
    model, inputs = family.make(), family.inputs()
    exact = copy.deepcopy(model).double()
    wide = {k: t.double() if t.is_floating_point() else t for k, t in inputs.items()}
    call = compiled(model)
    with torch.no_grad():
        check(
            *(
                run(**given).logits
                for run, given in ((call, inputs), (exact, wide), (model, inputs))
            )
        )
    found = (
        _logits_and_gradients(model, call, inputs),
        _logits_and_gradients(exact, exact, wide),
        _logits_and_gradients(model, model, inputs),
    )
    scale = max(t.abs().max() for t in found[1][1:])
    for ours, best, eager in zip(*found, strict=True):
        # A key's bias has no gradient but rounding errors.
        floor = 1e-6 * scale
        off, allowed = ((t.double() - best).abs().max() for t in (ours, eager))
        assert off <= 4 * allowed + floor, f"{tuple(ours.shape)}: {off}, eager {allowed}"
