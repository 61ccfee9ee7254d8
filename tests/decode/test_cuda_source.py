"""What the CUDA kernel is compiled to, which needs no GPU."""

from __future__ import annotations

import pytest

from megafuse.decode.kernel import catalog
from megafuse.runtime import nvrtc, sources

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(nvrtc.version() is None, reason="no NVRTC"),
]


def ptx(source: str, arch: str) -> str:
    from cuda.bindings import nvrtc as compiler

    _, program = compiler.nvrtcCreateProgram(source.encode(), b"decode.cu", 0, [], [])
    options = [f"-arch={arch}", "-std=c++17", "-no-source-include", f"-I{sources.KERNELS}"]
    (status,) = compiler.nvrtcCompileProgram(
        program, len(options), [option.encode() for option in options]
    )
    assert int(status) == 0
    _, size = compiler.nvrtcGetPTXSize(program)
    text = b" " * size
    compiler.nvrtcGetPTX(program, text)
    return text.decode()


@pytest.mark.parametrize("arch", ["compute_80", "compute_90"])
def test_nothing_is_read_through_the_read_only_cache(arch: str) -> None:
    """Which does not see what other blocks write in the same launch: x, q, k and v, the logits."""
    _, source = next(catalog())
    made = ptx(source, arch)
    assert "ld.acquire.gpu" in made
    assert "ld.global.nc" not in made
    assert ("cp.async.bulk" if arch == "compute_90" else "cp.async.cg") in made  # weights
