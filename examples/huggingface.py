"""Models of Hugging Face's transformers, fused by one call: mf.nn.convert(model).

    python examples/huggingface.py            small models with random weights; downloads nothing

The call changes classes and nothing else: every weight keeps its name, shape and place. So a
checkpoint of the plain model loads into the fused one and the other way round, optimizers stay as
they are, and adapters (LoRA) may come before or after. What it left, and why, is printed too.
"""

from __future__ import annotations

import copy
import tempfile

import torch
from torch import nn

import megafuse as mf


def small_models() -> dict[str, nn.Module]:
    """Random weights, no dropout."""
    import transformers as hf

    sizes = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = hf.BertConfig(
        **sizes, intermediate_size=256, hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )
    gpt2 = hf.GPT2Config(
        vocab_size=200,
        n_embd=64,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    llama = hf.LlamaConfig(**sizes, intermediate_size=176, num_key_value_heads=1)
    return {
        "BERT": hf.BertForMaskedLM(bert),
        "GPT-2": hf.GPT2LMHeadModel(gpt2),
        "Llama": hf.LlamaForCausalLM(llama),
    }


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.randint(200, (4, 32), device=device)
    for name, model in small_models().items():
        model = model.to(device).eval()
        fused = copy.deepcopy(model)
        print(f"{name}\n{mf.nn.convert(fused)}")
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            fused.save_pretrained(folder)  # and back, into the plain model
            loaded = type(model).from_pretrained(folder).to(device).eval()
            expected, got, again = (m(tokens).logits for m in (model, fused, loaded))
        print(
            f"largest logit {expected.abs().max():.3f}, largest difference of the fused model "
            f"{(got - expected).abs().max():.1e}, of what it saved "
            f"{(again - expected).abs().max():.1e}\n"
        )


if __name__ == "__main__":
    main()
