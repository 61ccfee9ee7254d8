"""Diffs for rewrites of a line or two; none where the line is another one."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from megafuse.diagnose import fix
from megafuse.diagnose.finding import Evidence, Finding, Trial
from megafuse.diagnose.record import Where


def fixed(tmp_path: Path, source: str, name: str, line: int, **more: object) -> str:
    file = tmp_path / "train.py"
    file.write_text(source)
    linecache.clearcache()
    finding = Finding(name, "mine.linear_relu is slow", "", Where(str(file), line), 1, 1, "sure")
    for key, value in more.items():
        setattr(finding, key, value)
    fix.add_fixes([finding])
    assert file.read_text() == source  # nothing is written
    return "".join(
        f"{x}\n" for x in finding.fix.splitlines() if x[0] in "+-" and x[:3] not in ("+++", "---")
    )


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("gradients zeroed by writing", "m.zero_grad(set_to_none=False)", "m.zero_grad()"),
        ("hidden copy", "y = f(x, w.t().contiguous())", "y = f(x, w.t())"),
        ("dtype round trip", "z = clamp(x.double() + y.double()).float()", "z = clamp(x + y)"),
    ],
)
def test_a_line(tmp_path: Path, name: str, before: str, after: str) -> None:
    assert fixed(tmp_path, f"a = 1\n{before}\n", name, 2) == f"-{before}\n+{after}\n"


def test_an_optimizer(tmp_path: Path) -> None:
    made = "opt = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)"
    got = fixed(tmp_path, f"{made}\n\nopt.step()\n", "optimizer in a loop", 3)
    assert got.endswith("+opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)\n")


def test_two_optimizers_are_left_to_the_user(tmp_path: Path) -> None:
    made = "opt = torch.optim.SGD(p, lr=1)\n"
    assert fixed(tmp_path, made * 2 + "opt.step()\n", "optimizer in a loop", 3) == ""


def test_a_loader(tmp_path: Path) -> None:
    source = "loader = iter(DataLoader(Files(), batch_size=32))\nnext(loader)\n"
    evidence = [Evidence("workers", 4.0, "")]
    got = fixed(tmp_path, source, "waits for data", 2, evidence=evidence)
    assert got.endswith("+loader = iter(DataLoader(Files(), batch_size=32, num_workers=4))\n")


def test_a_product_that_was_tried(tmp_path: Path) -> None:
    source = "import torch\ndef step(x, w, b):\n    return mine.linear_relu(x, w, b) * 2\n"
    what = "F.linear and F.relu, with its arguments in their order"
    trial = Trial(what, 1.0, 0.1, 9.0, 11.0)
    got = fixed(tmp_path, source, "naive product", 3, trial=trial)
    assert got.endswith("+    return torch.nn.functional.linear(x, w, b).relu() * 2\n")
    assert fixed(tmp_path, source, "naive product", 3) == ""  # not tried: not known to be the same


def test_a_function_of_its_own_is_fused(tmp_path: Path) -> None:
    source = "import torch\n\n\ndef gelu(x):\n    return 0.5 * x * (1 + torch.tanh(x))\n"
    got = fixed(tmp_path, source, "fusable", 5)
    assert got == "+import megafuse\n+@megafuse.fuse\n"


@pytest.mark.parametrize("source", ["def step():\n    return a * b\n", "x = a * b\nx = x\n"])
def test_a_function_without_arguments_is_not(tmp_path: Path, source: str) -> None:
    assert fixed(tmp_path, source, "fusable", 2) == ""
