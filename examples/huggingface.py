"""BERT, GPT-2 and Llama of Hugging Face's transformers with fused feed-forward blocks and norms.

    python examples/huggingface.py            small models with random weights; downloads nothing

Each function changes a model in place. The new modules hold the Parameters of the old ones, so a
checkpoint is loaded before, and `model.save_pretrained` works after: BERT and Llama keep the names
of their weights too. GPT-2's linear layers keep their weights transposed; there the modules hold
transposed views of the same memory, under other names.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import megafuse as mf


def fuse_bert(model: nn.Module) -> None:
    """dense + gelu as LinearGELU, dropout + residual + LayerNorm as ResidualLayerNorm."""
    for module in list(model.modules()):
        kind = type(module).__name__
        if kind == "BertLayer":
            fuse_gelu(module.intermediate, "intermediate_act_fn")
            module.output = DenseAddNorm(module.output)
            module.attention.output = DenseAddNorm(module.attention.output)
        elif kind == "BertPredictionHeadTransform":
            fuse_gelu(module, "transform_act_fn")
    mf.nn.convert(model)  # the norms that are left


def fuse_gelu(module: nn.Module, activation: str) -> None:
    """`module.dense` takes the activation in; the names of its weights stay."""
    module.dense = mf.nn.LinearGELU.from_torch(module.dense)
    setattr(module, activation, nn.Identity())


class DenseAddNorm(nn.Module):
    """LayerNorm(residual + dropout(dense(x))): BertOutput and BertSelfOutput, by their names."""

    def __init__(self, output: nn.Module) -> None:
        super().__init__()
        self.dense = output.dense
        self.LayerNorm = mf.nn.ResidualLayerNorm.from_torch(output.LayerNorm, output.dropout)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(hidden_states), input_tensor)[0]


def fuse_gpt2(model: nn.Module) -> None:
    """Each mlp as an FFN, each norm as a LayerNorm."""
    for module in list(model.modules()):
        if type(module).__name__ == "GPT2Block":
            mlp = module.mlp
            module.mlp = mf.nn.FFN.from_torch(mlp.c_fc, "gelu_tanh", mlp.c_proj, mlp.dropout)
    mf.nn.convert(model)


def fuse_llama(model: nn.Module) -> None:
    """Each mlp as a SwiGLUFFN, each norm as an RMSNorm."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if type(module).__name__ == "LlamaMLP":
                layers = module.gate_proj, module.up_proj, module.down_proj
                setattr(parent, name, mf.nn.SwiGLUFFN.from_torch(*layers))
            elif type(module).__name__ == "LlamaRMSNorm":
                norm = mf.nn.RMSNorm(len(module.weight), module.variance_epsilon, device="meta")
                norm.weight = module.weight
                setattr(parent, name, norm)


def small_models() -> dict[str, tuple[nn.Module, object]]:
    """Random weights, no dropout, and the function that fuses each."""
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
        "BERT": (hf.BertForMaskedLM(bert), fuse_bert),
        "GPT-2": (hf.GPT2LMHeadModel(gpt2), fuse_gpt2),
        "Llama": (hf.LlamaForCausalLM(llama), fuse_llama),
    }


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.randint(200, (4, 32), device=device)
    for name, (model, fuse) in small_models().items():
        model = model.to(device).eval()
        fused = copy.deepcopy(model)
        fuse(fused)
        with torch.no_grad():
            expected, got = model(tokens).logits, fused(tokens).logits
        kinds = {type(m) for m in fused.modules()}
        ours = sorted(k.__name__ for k in kinds if k.__module__.startswith("megafuse"))
        print(f"{name}: {', '.join(ours)}")
        print(
            f"  largest logit {expected.abs().max():.3f}, largest difference "
            f"{(got - expected).abs().max():.1e}"
        )


if __name__ == "__main__":
    main()
