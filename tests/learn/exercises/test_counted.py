"""What a C++ exercise moves is counted, access by access."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exercises.checked import NEEDS_COMPILER
from megafuse.learn.exercises.native import Counts, Native

# Each compiles, or starts a process of its own.
pytestmark = pytest.mark.slow


def counts(body: str, folder: Path, size: int = 4096) -> tuple[Counts, torch.Tensor]:
    """What `body` moves, with Input x, Output out and n."""
    path = folder / "code.cpp"
    path.write_text(f"void run(Input x, Output out, long n) {{ {body} }}\n")
    harness = folder / "harness.cpp"
    harness.write_text(
        "void exercise(const Arrays& a, const long long* n) "
        "{ run(a.input(0), a.output(1), long(n[0])); }\n"
    )
    x, out = torch.arange(size, dtype=torch.float32), torch.zeros(size)
    return Native(path, harness).counted({"x": x, "out": out}, (size,)), out


@NEEDS_COMPILER
def test_counted_memory(tmp_path):
    lines = 4096 // 16
    copied, out = counts("for (long i = 0; i < n; ++i) out[i] = x[i];", tmp_path)
    assert (copied.read_lines, copied.written_lines) == (lines, lines)
    assert (copied.read_elements, copied.written_elements) == (4096, 4096)
    assert copied.bytes_moved == 8 * 4096
    assert torch.equal(out, torch.arange(4096.0))

    # 512 lines stay; of 513 read in turn, the next one is always the one that has just gone.
    twice = "for (int k = 0; k < 2; ++k) for (long i = 0; i < n; i += 16) s += x[i];"
    assert counts(f"float s = 0; {twice} out[0] = s;", tmp_path, 512 * 16 - 16)[0].read_lines == 511
    assert counts(f"float s = 0; {twice} out[0] = s;", tmp_path, 513 * 16)[0].read_lines == 1026

    moved = "Input p = x + 3; ++p; p += 2; out[1] = *p + p[-1]; out[1] *= 2; out[0] = out[1];"
    stepped, out = counts(moved, tmp_path)
    assert out[:2].tolist() == [22, 22]
    assert (stepped.read_elements, stepped.written_elements) == (4, 3)
