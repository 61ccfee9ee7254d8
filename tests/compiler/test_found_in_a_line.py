"""Programs of one line that the fuzzer found to fail once (python -m megafuse.compiler.fuzz)."""

from __future__ import annotations

import pytest

from megafuse.compiler.fuzz import Argument, Program, check

ONE_LINERS = {
    "gradients that are all zero, of one number": (  # SIGSEGV: the result had no history
        "v0 = a0.sum().trunc()",
        Argument("a0", "float32", ((300, 3), (3, 3)), requires_grad=True),
    ),
    "an expanded view of an argument": (  # nobody wrote it
        "v0 = a0.unbind(1)[0].unsqueeze(-1).expand(-1, 1, 3)",
        Argument("a0", "float32", ((3, 3, 1), (3, 3, 1))),
    ),
    "an expanded view of a copy that is none": (  # it was stored, element by element
        "v0 = a0.flip(1).expand(2, *a0.shape)",
        Argument("a0", "float32", ((31, 1), (16, 1))),
    ),
    "a transposed argument with a dimension of size 1": (  # captured for other layouts
        "v0 = a0.transpose(0, -1)",
        Argument("a0", "float32", ((3, 3, 1, 3), (3, 3, 1, 3)), requires_grad=True),
    ),
    "logsigmoid of a transposed argument": (  # torch's decomposition has other strides
        "v0 = F.logsigmoid(a0)",
        Argument("a0", "float32", ((3, 7, 5), (5, 2, 9)), layout="transposed", requires_grad=True),
    ),
    "huber_loss of two dtypes": (  # torch's decomposition has another dtype
        "v0 = F.huber_loss(a0, a0.double() * 2, delta=0.7)",
        Argument("a0", "float32", ((3, 7), (5, 2))),
    ),
    "soft_margin_loss of two dtypes": (  # torch's decomposition has another dtype
        "v0 = F.soft_margin_loss(a0, a0.double().sign())",
        Argument("a0", "float32", ((3, 7), (5, 2))),
    ),
    "binary_cross_entropy_with_logits of two dtypes": (  # so has torch 2.11's
        "v0 = F.binary_cross_entropy_with_logits(a0, a0.sigmoid().half())",
        Argument("a0", "float32", ((3, 7), (5, 2))),
    ),
    "vector_norm of one element": (  # torch 2.11's decomposition kept the dimension
        "v0 = torch.linalg.vector_norm(a0, dim=-1)",
        Argument("a0", "float32", ((3, 1), (5, 1)), requires_grad=True),
    ),
    "the gradient of hardsigmoid in float64": (  # the yardstick had 1/6 in float32
        "v0 = F.hardsigmoid(a0)",
        Argument("a0", "float64", ((3, 7), (5, 2)), requires_grad=True),
    ),
    "the difference of what is nearly equal": (  # eager could be as far off: x − tanh(x)
        "v0 = F.tanhshrink(torch.softmax(a0, -1).mean(0, keepdim=True))",
        Argument("a0", "float32", ((8, 63), (300, 7))),
    ),
    "the gradient of amin in 16 bits": (  # NaN: no element was equal to the smallest
        "v0 = (torch.sqrt(a0.abs() + 0.1) / max(a0.shape[1], 1)).amin(2)",
        Argument("a0", "bfloat16", ((3, 3, 3, 1), (3, 3, 3, 1)), requires_grad=True),
    ),
    "a tensor that is written to stays where it lies": (  # masked_fill gives a contiguous one
        "v0 = a0.clone(); v0.masked_fill_(v0 > 0.5, 0.1)",
        Argument("a0", "float32", ((3, 4, 5, 6), (2, 3, 2, 7)), layout="channels_last"),
    ),
    "roll of channels-last images": (  # torch's decomposition has other strides
        "v0 = a0.roll(-2, 3)",
        Argument("a0", "float32", ((3, 3, 2, 3), (3, 2, 3, 2)), layout="channels_last"),
    ),
    "the gradient of a half without elements": (  # no kernel has empty rows
        "v0 = (a0.tensor_split(2, -1)[0].abs() + 0.1) ** a0.tensor_split(2, -1)[1].clamp(-2, 2)",
        Argument("a0", "float32", ((1,), (1,)), requires_grad=True),
    ),
    "a diagonal of one element": (  # its size is Min(1, n - 1): torch knew that it is 1
        "v0 = torch.xlogy(a0.unfold(-1, 2, 1).diagonal(), a0.abs() + 0.2)",
        Argument("a0", "float32", ((1, 3), (1, 5)), requires_grad=True),
    ),
    "a second half of one element": (  # both halves together had another size than the whole
        "v0 = torch.softmax(a0.chunk(2, 2)[0], -1) * a0.chunk(2, 2)[1].amin(2, keepdim=True)",
        Argument("a0", "float32", ((65, 1, 3), (4, 1, 5)), requires_grad=True),
    ),
    "what is left of a half is one element": (  # its size is n//2 - 1: torch knew that it is 1
        "v0 = a0.tensor_split(2, -1)[1][..., 1:] * a0",
        Argument("a0", "float32", ((31, 4), (33, 5)), requires_grad=True),
    ),
    "the sign of gelu's tail": (  # the yardstick had rounded it to 0
        "v0 = F.gelu(a0 * 8, approximate='tanh').bool()",
        Argument("a0", "bfloat16", ((3, 33), (33, 3))),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", ONE_LINERS.values(), ids=list(ONE_LINERS))
def test_one_line(which: tuple[str, Argument]) -> None:
    statement, argument = which
    check(Program.of_source(f"def program(a0):\n{statement}\nreturn v0,", [argument]))
