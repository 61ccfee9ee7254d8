"""The programs of examples/real: what diagnose sees of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import megafuse as mf
from megafuse.diagnose.findings import Case, fusable

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "examples" / "real"
pytestmark = pytest.mark.slow


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"real_{name}", REAL / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_images_wait_for_their_loader_before_and_not_after() -> None:
    images = program("images")
    for step, waits in ((images.before, True), (images.after, False)):
        record = mf.diagnose(step, attempt=False).record
        kinds = {call.kind for call in record.host_calls}
        assert ("data loader" in kinds) == waits
        assert any(op.short == "convolution_backward" for op in record.operations)


def test_gpt2s_gelu_is_a_chain() -> None:
    pytest.importorskip("transformers", reason="needs transformers, of the dev extra")
    found = mf.diagnose(program("gpt2").eager, attempt=False)
    assert found.record.flops > 2e10
    # Whether it is more than noise depends on what else runs here; that it is seen does not.
    chains = list(fusable.find(Case(found.record, found.machine, None)))
    gelu = [chain for chain in chains if chain.where.file.endswith("activations.py")]
    assert gelu
    assert all(chain.gain > 0 for chain in gelu)


def test_the_page_has_the_results_files() -> None:
    script = ROOT / "benchmarks" / "real_cases.py"
    ran = subprocess.run([sys.executable, script, "--check"], check=False)
    assert ran.returncode == 0, "python benchmarks/real_cases.py --page writes them"
