"""CUDA source to cubin, with NVRTC through cuda-core. Needs no GPU, no driver and no nvcc.

Nothing of `cuda` is imported until the first call: that import takes 0.3 s.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from megafuse.runtime.cpp import PREFIX, CompileError


def compile_cubin(
    source: str, arch: str, include: Sequence[Path], *, contract: bool = False
) -> bytes:
    """Machine code for `arch` ("sm_90") of CUDA C++ `source`; raises CompileError.

    IEEE division, square root and subnormals, and a*b+c rounded twice, as PyTorch's separate
    operations would (once with `contract`): Inf and NaN come out where theirs do.
    """
    trouble = problem()
    if trouble is not None:
        raise CompileError([], trouble)
    core = _core()
    paths = [str(path) for path in include]
    fields = {**options(arch, contract), "name": "megafuse.cu", "include_path": paths}
    try:
        return _cubin(core, source, core.ProgramOptions(**fields))
    except Exception as error:
        raise CompileError(_command(fields), _explained(str(error), arch), _kept(source)) from error


@dataclass(frozen=True)
class Used:
    """What ptxas tells of a kernel."""

    registers: int
    spilled: int  # bytes that are stored because registers ran out
    instructions: int  # of 16 bytes, with what the compiler fills the end up with left out


def used(source: str, arch: str, include: Sequence[Path], *, contract: bool = False) -> Used:
    """Compiles as compile_cubin does, and reads what ptxas says; raises CompileError."""
    trouble = problem()
    if trouble is not None:
        raise CompileError([], trouble)
    core, log = _core(), io.StringIO()
    paths = [str(path) for path in include]
    fields = {**options(arch, contract), "name": "megafuse.cu", "include_path": paths}
    made = core.ProgramOptions(**fields, ptxas_options=["-v"])
    try:
        program = core.Program(source, "c++", made)
        cubin = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:
        raise CompileError(_command(fields), _explained(str(error), arch), _kept(source)) from error
    said = log.getvalue()
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", said)]
    return Used(max(registers, default=0), sum(spilled), _instructions(cubin))


_NOP = 0x7918  # the low 16 bits of the instruction, from sm_70 on


def _instructions(cubin: bytes) -> int:
    """Those of the ELF file's sections .text.<kernel>; instructions have 16 bytes from sm_70 on."""
    at, size, count, names = (
        *struct.unpack_from("<Q", cubin, 40),
        *struct.unpack_from("<HHH", cubin, 58),
    )
    headers = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]
    total = 0
    for name, _, _, _, start, length in headers:
        if cubin[headers[names][4] + name :].startswith(b".text."):
            words = [
                int.from_bytes(cubin[i : i + 2], "little") for i in range(start, start + length, 16)
            ]
            while words and words[-1] == _NOP:
                words.pop()
            total += len(words)
    return total


def options(arch: str, contract: bool = False) -> dict[str, Any]:
    """The fields of cuda-core's ProgramOptions that decide what is compiled: all but places."""
    return {
        "arch": arch,
        "std": "c++17",
        "no_source_include": True,  # else a math.h in the user's working directory is found first
        "ftz": False,
        "prec_div": True,
        "prec_sqrt": True,
        "fma": contract,  # else as on the CPU: kernels call fma where they mean it
    }


def version() -> tuple[int, int] | None:
    """(major, minor) of the NVRTC that will compile, or None when there is none."""
    try:
        _, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except Exception:  # not installed, or libnvrtc is not found: ImportError, RuntimeError, ...
        return None
    return int(major), int(minor)


def problem() -> str | None:
    """What is missing for compile_cubin and the pip command that fixes it; None when all is there.

    The major version must be that of torch's CUDA, because the driver that suits torch may not
    load what a later NVRTC makes.
    """
    wanted = _torch_cuda_major()
    pinned = f'"cuda-bindings=={wanted}.*"' if wanted else "cuda-bindings"
    found = _bindings_version()
    if not _installed("cuda.core"):
        return f"cuda-core, which compiles the GPU kernels, is missing: pip install {_extra()}"
    if found is None:
        return f"cuda-bindings, which finds NVRTC, is missing: pip install {pinned}"
    major = found.split(".")[0]
    if wanted and major != wanted:
        return (
            f"cuda-bindings {found} does not fit torch, which is built for CUDA {wanted}: "
            f"pip install {pinned}"
        )
    return _nvrtc_problem(major, wanted) or _import_problem()


# ---- cuda-core, by version


def _core() -> Any:
    """The module that holds Program: cuda.core since 0.5, cuda.core.experimental before."""
    core = importlib.import_module("cuda.core")
    if hasattr(core, "Program"):
        return core
    return importlib.import_module("cuda.core.experimental")


def _cubin(core: Any, source: str, options: Any) -> bytes:
    program = core.Program(source, "c++", options)
    try:
        return bytes(program.compile("cubin").code)
    except RuntimeError:
        # cuda-core before 1.0 compiles, then asks the driver how to load the result; where there
        # is no driver, fetch what was compiled. (NVRTC's own errors are no RuntimeError.)
        return _compiled(program.handle)
    finally:
        # A Program that an error's traceback keeps alive dies in the garbage collector, where
        # cuda-core 1.2 prints an AttributeError to stderr.
        del program


def _compiled(handle: Any) -> bytes:
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    status, size = nvrtc.nvrtcGetCUBINSize(handle)
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        cubin: bytes = b" " * size  # written in place
        (status,) = nvrtc.nvrtcGetCUBIN(handle, cubin)
        if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return cubin
    raise RuntimeError(f"NVRTC compiled, but its cubin could not be read: {status}")


# ---- what is installed


def _extra() -> str:
    """What brings cuda-core: the package's own extra, or where it is not installed (a checkout on
    PYTHONPATH) cuda-core itself."""
    try:
        metadata.distribution("megafuse")
    except metadata.PackageNotFoundError:
        return "cuda-core"
    return '"megafuse[cuda]"'


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _bindings_version() -> str | None:
    try:
        return str(importlib.import_module("cuda.bindings").__version__)
    except (ImportError, AttributeError):
        return None


def _torch_cuda_major() -> str | None:
    import torch

    return torch.version.cuda.split(".")[0] if torch.version.cuda else None


def _nvrtc_problem(bindings: str, wanted: str | None) -> str | None:
    package = "nvidia-cuda-nvrtc-cu12" if bindings == "12" else f'"nvidia-cuda-nvrtc=={bindings}.*"'
    found = version()
    if found is None:
        return f"libnvrtc for CUDA {bindings} is not found: pip install {package}"
    if wanted and str(found[0]) != wanted:
        # Where both lie in site-packages, cuda-bindings 12 too takes the NVRTC of CUDA 13.
        remove = "pip uninstall nvidia-cuda-nvrtc && " if wanted == "12" else ""
        return (
            f"NVRTC {found[0]}.{found[1]} is found first and does not fit torch, which is built "
            f"for CUDA {wanted}: {remove}pip install {package}"
        )
    return None


def _import_problem() -> str | None:
    try:
        _core()
    except Exception as error:
        return f"cuda-core does not import ({error}): pip install --upgrade cuda-core"
    return None


# ---- errors


def _explained(log: str, arch: str) -> str:
    log = log.replace("\x00", "").strip()
    if "--gpu-architecture" in log:
        made = ".".join(map(str, version() or ()))
        log += (
            f"\nNVRTC {made} does not know {arch}: a newer GPU needs a torch with a newer CUDA, "
            "one older than sm_75 needs a torch for CUDA 12"
        )
    return log


def _command(fields: dict[str, Any]) -> list[str]:
    include = [f"--include-path={path}" for path in fields["include_path"]]
    return ["nvrtc", f"--gpu-architecture={fields['arch']}", f"--std={fields['std']}", *include]


def _kept(source: str) -> Path:
    file = Path(tempfile.mkdtemp(prefix=PREFIX), "megafuse.cu")
    file.write_text(source, encoding="utf-8")
    return file
