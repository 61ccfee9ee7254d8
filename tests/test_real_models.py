"""Models of transformers, converted: the same logits, gradients, checkpoints and adapters.

Small models of random weights: nothing is downloaded.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from families import FAMILIES, Family
from nn.rule import check
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf

os.environ.setdefault("HF_HUB_OFFLINE", "1")
hf = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")

STEPS = 20
FIRST = ["BERT", "GPT-2", "Llama"]


@pytest.fixture(autouse=True)
def quiet_and_seeded() -> None:
    hf.logging.set_verbosity_error()
    torch.manual_seed(0)


@pytest.fixture(params=FAMILIES.values(), ids=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(params=FIRST)
def one(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def converted(model: nn.Module) -> nn.Module:
    made = copy.deepcopy(model)
    assert mf.nn.convert(made)
    return made


def drawn(family: Family, device: str = "cpu") -> dict[str, Tensor]:
    return {name: t.to(device) for name, t in family.inputs().items()}


def logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def seen(result: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Without the padding, whose rows are of no use to anyone."""
    mask = inputs.get("attention_mask")
    return result if mask is None or mask.shape != result.shape[:2] else result[mask.bool()]


def test_what_is_replaced(family: Family) -> None:
    model = family.make()
    answer = mf.nn.convert(model)
    assert set(answer.values()) == family.kinds, answer
    for path in answer:
        assert type(model.get_submodule(path)).__module__.startswith("megafuse.nn")
    assert answer.left  # their attention, to say the least
    assert all(len(line) <= 80 for line in str(answer).splitlines())
    assert mf.nn.convert(model) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits(family: Family, dtype: torch.dtype, device: str) -> None:
    torchs = family.make().to(device, dtype)
    ours, exact = converted(torchs), copy.deepcopy(torchs).double()
    inputs = drawn(family, device)
    wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
    results = [logits(ours, inputs), logits(torchs, inputs), logits(exact, wide)]
    assert results[0].dtype == dtype
    got, expected, known = (seen(result, inputs) for result in results)
    check("the logits", got, expected, known.cpu())


# Their gradients are small differences of large sums. Over 24 batches our error there is that of
# torch, but both differ by several times from batch to batch, and 1 in 7 would break the rule. So
# they have room for that, and for no more.
CANCEL = ("query", "key", "q_proj", "k_proj", "q_lin", "k_lin", "c_attn")
BETWEEN_BATCHES = 8.0


@pytest.mark.slow
def test_gradients(family: Family, device: str) -> None:
    torchs = family.make().to(device).train()
    ours, exact = converted(torchs), copy.deepcopy(torchs).double()
    inputs = drawn(family, device)
    wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    mine, theirs, known = (
        gradients(m, given) for m, given in ((ours, inputs), (torchs, inputs), (exact, wide))
    )
    assert mine.keys() == known.keys()
    for name, gradient in known.items():
        room = BETWEEN_BATCHES if any(part in name for part in CANCEL) else 1.0
        check(name, mine[name], theirs[name], gradient.cpu(), room=room)


def test_parameters_stay(family: Family) -> None:
    """The very Parameters, under their names, tied where they were; so the state_dict as well."""
    model = family.make()
    before = {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)}
    state = {name: (t.shape, t.stride()) for name, t in model.state_dict().items()}
    mf.nn.convert(model)
    assert {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)} == before
    assert {name: (t.shape, t.stride()) for name, t in model.state_dict().items()} == state


def test_saved_and_loaded(family: Family, tmp_path: Path) -> None:
    """Into a plain model and a fused one, from a fused model and a plain one."""
    plain = family.make()
    ours, inputs = converted(plain), drawn(family)
    expected, mine = logits(plain, inputs), logits(ours, inputs)
    for source, folder in ((ours, tmp_path / "ours"), (plain, tmp_path / "theirs")):
        source.save_pretrained(folder)
        assert list(folder.glob("*.safetensors"))
        loaded, notes = type(plain).from_pretrained(folder, output_loading_info=True)
        assert not any(notes[key] for key in ("missing_keys", "unexpected_keys"))
        torch.testing.assert_close(logits(loaded.eval(), inputs), expected, rtol=0, atol=0)
        mf.nn.convert(loaded)
        torch.testing.assert_close(logits(loaded, inputs), mine, rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(plain.state_dict(), file)
    file.seek(0)
    fresh = converted(family.make())
    fresh.load_state_dict(torch.load(file), strict=True)
    torch.testing.assert_close(logits(fresh, inputs), mine, rtol=0, atol=0)


def test_copies_and_pickles(family: Family) -> None:
    ours, inputs = converted(family.make()), drawn(family)
    expected = logits(ours, inputs)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    copies = (
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(file, weights_only=False),
    )
    tied = {n: p.data_ptr() for n, p in ours.named_parameters(remove_duplicate=False)}
    for again in copies:
        torch.testing.assert_close(logits(again, inputs), expected, rtol=0, atol=0)
        now = {n: p.data_ptr() for n, p in again.named_parameters(remove_duplicate=False)}
        assert len(set(now.values())) == len(set(tied.values()))


@pytest.mark.slow
@pytest.mark.parametrize("cast", ["half", "bfloat16", "double"])
def test_cast_afterwards(family: Family, cast: str) -> None:
    plain = family.make()
    ours, inputs = converted(plain), drawn(family)
    dtype = getattr(torch, {"half": "float16", "double": "float64"}.get(cast, cast))
    inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
    wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    results = [logits(getattr(m, cast)(), inputs) for m in (ours, plain)]
    assert results[0].dtype == dtype
    got, expected = (seen(result, inputs) for result in results)
    if cast == "double":  # most of their norms compute in float32 all the same
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    else:
        check("the logits", got, expected, seen(logits(plain.double(), wide), inputs))


@pytest.mark.slow
def test_generates(family: Family) -> None:
    if not family.causal:
        pytest.skip("it does not generate")
    plain = family.make()
    prompt = torch.randint(1, 200, (2, 7))
    results = [
        model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
        for model in (plain, converted(plain))
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("name", "changes", "kind"),
    [
        ("BERT", {"hidden_act": "relu"}, "LinearReLU"),
        ("BERT", {"hidden_act": "gelu_new"}, "LinearGELU"),
        ("BERT", {"hidden_act": "quick_gelu"}, None),
        ("GPT-2", {"activation_function": "relu"}, "FFN"),
        ("GPT-2", {"activation_function": "gelu_pytorch_tanh"}, "FFN"),
        ("GPT-2", {"activation_function": "gelu"}, "FFN"),
        ("GPT-2", {"activation_function": "silu"}, None),
        ("Llama", {"hidden_act": "gelu"}, "GatedFFN"),
        ("Llama", {"hidden_act": "relu"}, "GatedFFN"),
        ("Llama", {"hidden_act": "gelu_10"}, None),
        ("Llama", {"hidden_act": "tanh"}, None),
    ],
)
def test_the_activation_is_honoured_or_left(name: str, changes: dict, kind: str | None) -> None:
    plain = FAMILIES[name].make(**changes)
    ours, inputs = copy.deepcopy(plain), drawn(FAMILIES[name])
    answer = mf.nn.convert(ours)
    path = next(p for p, m in plain.named_modules() if type(m).__name__ in MLPS)
    assert answer.get(path) == kind
    assert (path in answer.left) == (kind is None)
    torch.testing.assert_close(logits(ours, inputs), logits(plain, inputs), rtol=1e-4, atol=1e-5)


MLPS = ("BertIntermediate", "GPT2MLP", "LlamaMLP")


# ---- LoRA


TARGETS = {
    "BERT": ["query", "dense"],
    "GPT-2": ["c_attn", "c_fc", "c_proj"],
    "Llama": ["q_proj", "gate_proj", "down_proj"],
    "Qwen3": ["up_proj"],
    "T5": ["wi", "wo"],
}


def adapted(model: nn.Module, targets: list[str]) -> nn.Module:
    """With random adapters: LoRA's own start as 0 and would show nothing."""
    peft = pytest.importorskip("peft", reason="needs peft, of the dev extra")
    made = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) / 4)
    return made.eval()


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("order", ["adapt, convert", "convert, adapt"])
@pytest.mark.parametrize("name", list(TARGETS))
def test_lora(name: str, order: str) -> None:
    family = FAMILIES[name]
    plain, inputs = family.make(), drawn(FAMILIES[name])
    ours = copy.deepcopy(plain)
    without = logits(plain, inputs)
    torchs = adapted(plain, TARGETS[name])
    if order == "adapt, convert":
        ours = adapted(ours, TARGETS[name])
        answer = mf.nn.convert(ours)
    else:
        answer = mf.nn.convert(ours)
        ours = adapted(ours, TARGETS[name])
    assert family.kinds <= set(answer.values())
    assert list(ours.state_dict()) == list(torchs.state_dict())  # no adapter vanished
    expected = logits(torchs, inputs)
    assert (expected - without).abs().max() > 0.1
    torch.testing.assert_close(logits(ours, inputs), expected, rtol=1e-4, atol=1e-4)
    mine, theirs = (gradients(model, inputs) for model in (ours, torchs))
    assert mine.keys() == theirs.keys()
    for key, gradient in theirs.items():
        size = gradient.abs().max().item()
        torch.testing.assert_close(mine[key], gradient, rtol=1e-3, atol=1e-3 * size + 1e-7, msg=key)
    merged = (m.merge_and_unload() for m in (ours, torchs))
    torch.testing.assert_close(*(logits(m, inputs) for m in merged), rtol=1e-4, atol=1e-4)


def test_lora_refuses_a_layer_with_an_activation_inside() -> None:
    """It would compute gelu(W·x) + B·A·x."""
    peft = pytest.importorskip("peft", reason="needs peft, of the dev extra")
    model = nn.ModuleDict({"wide": mf.nn.LinearGELU(8, 8)})
    with pytest.raises(ValueError, match="not supported"):
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["wide"]), model)


# ---- training


@pytest.mark.slow
def test_training(one: Family, device: str) -> None:
    """20 steps of AdamW: the loss curve keeps the error rule, against training in float64.

    Rounding differs, and training makes it grow: torch's own float32 curve, from 5.3 down, leaves
    that of float64 by up to 2e-6, and so did ours in 123 runs. It may leave it twice as far, plus
    2e-6, as torch may have been lucky.
    """
    torchs = one.make().to(device).train()
    ours, exact = converted(torchs), copy.deepcopy(torchs).double()
    batches = [drawn(one, device) for _ in range(2)]
    curve, expected, known = (trained(m, batches) for m in (ours, torchs, exact))
    assert known[-2:].mean() < 0.97 * known[:2].mean()  # of both batches
    allowed = 2 * (expected - known).abs().max() + 2e-6
    assert (curve - known).abs().max() <= allowed, (curve - known, expected - known)


def loss_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The next token's cross entropy, where there are tokens: its meaning does not matter."""
    made = model(**inputs).logits
    if made.dim() == 2:
        return made.square().mean()
    labels = inputs.get("decoder_input_ids")
    if labels is None:
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    return F.cross_entropy(made[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def gradients(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    loss_of(model, inputs).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def trained(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    """The loss of each step.

    With AdamW's own eps of 1e-8 a gradient of nothing but rounding errors moves its weight by a
    whole step, in torch's model as in ours: 1 curve in 20 then leaves float64's by 2e-5.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, batches[step % len(batches)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)
