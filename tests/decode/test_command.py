"""`megafuse generate`: a folder in, text out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from decode.tiny import make
from megafuse.cli import main
from megafuse.decode.command import best_device


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes, and its tokenizer."""
    import transformers as hf
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    hf.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    make("llama-3", vocab_size=len(alphabet)).save_pretrained(path)
    return path


def test_text_and_speed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import transformers as hf

    command = ["generate", str(folder), "Once upon", "--max-new-tokens", "12", "--schedule"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer("Once upon", return_tensors="pt")["input_ids"]
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert out.rstrip("\n") == tokenizer.decode(expected).rstrip("\n")
    assert "prompt of 9 tokens" in err
    assert "tokens/s" in err
    assert "norm + QKV" in err
    assert all(len(line) <= 80 for line in err.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "x"], "no config.json"),
        (["FOLDER", "x", "--temperature", "-1"], "temperature is -1"),
        (["FOLDER", ""], "empty"),
    ],
)
def test_refused(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *(str(folder) if a == "FOLDER" else a for a in arguments)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("capability", "device"), [(None, "cpu"), ((7, 5), "cpu"), ((8, 0), "cuda"), ((9, 0), "cuda")]
)
def test_a_gpu_that_can_run_it_does(
    capability: tuple[int, int] | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert best_device() == device
