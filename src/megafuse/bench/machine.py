"""The machine that measures: what it is, what it runs, and the state it is in."""

from __future__ import annotations

import functools
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megafuse.bench import timing
from megafuse.runtime import fp32_matmul
from megafuse.runtime.provenance import cpu_name, output

# Why a driver holds the clock down, by the bits of clocks_event_reasons.active. Idle and the
# user's own settings are not among them.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}


def about(device: str) -> dict[str, Any]:
    """What a reader needs to know to take a number for what it is."""
    told: dict[str, Any] = {
        "device": device,
        "cpu": cpu_name(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cache_bytes": timing.cache_bytes("cpu"),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        told |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "driver": _driver(),
            "cuda": torch.version.cuda,
        }
    return told


# ---- the state it is in


@dataclass(frozen=True)
class Condition:
    """Clock, temperature and why the clock is held down; None where nothing tells."""

    clock_mhz: float | None = None
    temperature_c: float | None = None
    held_down: tuple[str, ...] = ()


def condition(device: str) -> Condition:
    return _gpu_condition() if device == "cuda" else _cpu_condition()


def _gpu_condition() -> Condition:
    wanted = "clocks.sm,temperature.gpu,clocks_event_reasons.active"
    told = _smi(wanted) or _smi(wanted.replace("event", "throttle"))
    if told is None or len(told) != 3:
        return Condition()
    clock, temperature, reasons = told
    return Condition(_number(clock), _number(temperature), _held_down(reasons))


def _held_down(reasons: str) -> tuple[str, ...]:
    try:
        bits = int(reasons, 16)
    except ValueError:
        return ()
    return tuple(text for bit, text in _REASONS.items() if bits & bit)


def _cpu_condition() -> Condition:
    root = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    zone = Path("/sys/class/thermal/thermal_zone0/temp")
    clock, heat = _file_number(root), _file_number(zone)
    return Condition(clock and clock / 1e3, heat and heat / 1e3)


def throttled(states: list[Condition]) -> list[str]:
    """What to warn of: the clock was held down, or fell by more than a tenth."""
    reasons = sorted({reason for state in states for reason in state.held_down})
    clocks = [state.clock_mhz for state in states if state.clock_mhz]
    found = [f"the driver held the clock down: {', '.join(reasons)}"] if reasons else []
    if clocks and clocks[-1] < 0.9 * max(clocks):
        found.append(f"the clock fell from {max(clocks):.0f} to {clocks[-1]:.0f} MHz")
    return found


def load() -> float | None:
    """Programs that want a core, over the last minute; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


# ---- float32 that is float32


def float32_products(device: str) -> dict[str, str]:
    """How float32 matrices are multiplied at the moment, by torch itself and by megafuse."""
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    told = str(backend.matmul.fp32_precision)
    torch_does = "ieee" if told == "none" else told
    ours = torch_does
    if device == "cuda":
        ours = fp32_matmul.get_fp32_matmul() or ("tf32" if torch_does == "tf32" else "split")
    return {"float32_torch": torch_does, "float32_megafuse": ours}


def not_float32(products: dict[str, str]) -> list[str]:
    """What to warn of: a float32 row against something less."""
    told = products.get("float32_torch", "ieee")
    if told == "ieee":
        return []
    return [f"torch is set to multiply float32 matrices as {told}: eager is not float32 here"]


# ---- asking


@functools.cache
def _driver() -> str | None:
    told = _smi("driver_version")
    return told[0] if told else None


def _smi(query: str) -> list[str] | None:
    if shutil.which("nvidia-smi") is None:
        return None
    # Not its number: CUDA_VISIBLE_DEVICES changes torch's, not the driver's.
    card = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    command = (
        "nvidia-smi",
        f"--id=GPU-{card}",
        f"--query-gpu={query}",
        "--format=csv,noheader,nounits",
    )
    told = output(*command)
    return [part.strip() for part in told.split(",")] if told else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _file_number(path: Path) -> float | None:
    try:
        return _number(path.read_text())
    except OSError:
        return None
