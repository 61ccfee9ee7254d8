"""benchmarks/readme_results.py: the tables of README, LEARN and docs/results.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import bench_results as made
import pytest

from megafuse.bench.result import Result

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "readme_results.py"


@pytest.fixture
def script(tmp_path, monkeypatch) -> ModuleType:
    """With pages and results of its own."""
    found = importlib.util.spec_from_file_location("readme_results", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    monkeypatch.setattr(module, "LEARN", tmp_path / "LEARN.md")
    monkeypatch.setattr(module, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    for page in (module.README, module.LEARN, module.PAGE):
        page.write_text("Before.\n<!-- results -->\nold\n<!-- /results -->\nAfter.\n")
    return module


def layers() -> Result:
    rivals = {"eager": 1.5, "compile": 1.01, "compile-max": 0.8, "copy": 0.2}
    tuned = made.row(
        *("linear_gelu", 3 << 18, 98e-6),
        dtype="bfloat16",
        rivals=rivals,
        shape=[1024, 768],
        widths=[3072],
        choices={"approximate": "tanh"},
        floor=49e-6,
        roof="compute",
    )
    tuned.entries[0].roof_share = 0.5
    plain = made.row("softmax", mode="forward+backward", rivals={"eager": 3.0})
    result = made.result([tuned, made.failing(plain, "eager", "off")])
    result.suite = "transformer"
    return result


def cells(text: str, op: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| `{op}`"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_layers_are_held_against_their_floor(script):
    text = script.table(layers())
    names = [
        "`op`",
        "size",
        "",
        "dtype",
        "fused",
        "floor",
        "eager",
        "compile",
        "compile-max",
        "of floor",
    ]
    assert [f"| {' | '.join(names).replace('`', '')} |"] == [
        line for line in text.splitlines() if line.startswith("| op")
    ]
    assert cells(text, "linear_gelu") == [
        *("`linear_gelu`", "1024×768→3072 tanh", "forward", "bfloat16", "98.0 µs", "49.0 µs"),
        *("1.50×", "≈1.01×", "0.80×", "50%"),
    ]
    assert cells(text, "softmax")[4:9] == ["4.00 µs", "", "wrong", "", ""]
    assert "Transformer layers and rows, NVIDIA H200" in text
    assert "copy 4,000 GB/s" in text


def test_pointwise_ops_are_held_against_a_copy(script):
    text = script.table(made.result([made.row()]))
    assert cells(text, "gelu_scale") == [
        *("`gelu_scale`", "forward", "float32", "1 Mi", "4.00 µs", "2.50×", "≈1.01×", "90%"),
        *("8.00 µs", "2.50×", "≈1.01×"),
    ]
    assert "floor" not in text


def test_functions_have_their_first_calls(script):
    rivals = {"eager": 2.5, "compile": 1.1, "copy": 0.9, "built-in": 0.8}
    row = made.row("rope_half", rivals=rivals)
    row.subject = row.entries[0].name = "fuse"
    row.entries[0].first_call, row.entries[0].compiled_again = 1.25, False
    row.warnings = ["fuse: by the library: aten.gather.default (1×)"]
    result = made.result([row])
    result.suite = "fuse"
    text = script.table(result)
    assert cells(text, "rope_half")[-3:] == ["1.25 s", "", "aten.gather.default (1×)"]
    assert "90%" in cells(text, "rope_half")
    assert "Another batch size compiled nothing." in text
    assert "Functions, fused, NVIDIA H200" in text
    row.entries[0].compiled_again = True
    assert "Another batch size compiled `rope_half`." in script.table(result)


def test_every_results_file_has_its_table(script, tmp_path, monkeypatch):
    made.result([made.row()]).write(tmp_path / "seeds-b.json")
    layers().write(tmp_path / "transformer-a.json")
    layers().write(tmp_path / "other-a.json")
    text = script.rendered()[script.PAGE]
    assert text.startswith("Before.\n<!-- results -->\n<details>")
    assert text.endswith("</details>\n<!-- /results -->\nAfter.\n")
    assert text.count("<details>") == 2
    assert text.index("gelu_scale") < text.index("linear_gelu")
    monkeypatch.setattr("sys.argv", ["readme_results.py", "--check"])
    assert script.main() == 1
    monkeypatch.setattr("sys.argv", ["readme_results.py"])
    assert script.main() == 0
    assert script.PAGE.read_text() == text
    monkeypatch.setattr("sys.argv", ["readme_results.py", "--check"])
    assert script.main() == 0
    for page in (script.README, script.LEARN):
        assert page.read_text() == script.rendered()[page]


def headline(suite: str, device: str, op: str, mode: str, dtype: str, label: str) -> Result:
    """A run that has this one row of README's."""
    size, *choices = label.split()
    shape, *widths = [[int(n) for n in part.split("×")] for part in size.split("→")]
    named: dict[str, str | int] = {}
    for choice in choices:
        name, _, number = choice.partition("=")
        named[name] = int(number) if number else choice
    row = made.row(op, mode=mode, dtype=dtype, shape=shape, choices=named)
    row.widths = [width for (width,) in widths]
    assert row.label == label
    result = made.result([row, made.row("swiglu", 1 << 20)])
    result.suite = suite
    if device == "cpu":
        result.machine |= {"device": "cpu", "gpu": None, "cpu": "Some(R) CPU"}
    return result


def test_readme_has_the_first_eight_of_its_rows(script, tmp_path):
    keys = script.HEADLINES[:6] + script.HEADLINES[8:]
    for i, key in enumerate(keys):
        headline(*key).write(tmp_path / f"{key[0]}-{i}.json")
    lines = [line for line in script.rendered()[script.README].splitlines() if line[:3] == "| `"]
    assert len(lines) == script.SHOWN == 8
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cell[0] for cell in shown] == [f"`{key[2]}`" for key in keys[:8]]
    assert shown[0][4:] == ["NVIDIA H200", "10.0 µs", "4.04 µs", "4.00 µs", "2.50×", "≈1.01×"]


def test_the_rows_of_one_machine_stand_together(script, tmp_path):
    cuda, cpu = script.HEADLINES[8], script.HEADLINES[6]
    headline(*cuda).write(tmp_path / "seeds-a.json")
    headline(*cpu).write(tmp_path / "seeds-b.json")
    text = script.rendered()[script.README]
    assert cells(text, "quantize_int8")[4] == "NVIDIA H200"  # the first of two lines
    assert "Some CPU, 16 threads" in text


def test_a_learner_sees_both_ways(script, tmp_path):
    rows = [
        made.row(elements=1024, seconds=2e-6),
        made.row("swiglu", 1 << 24, rivals={"eager": 3.0, "copy": 0.8}),
        made.row("swiglu", 1 << 20),
        made.row("swiglu", 1 << 24, dtype="bfloat16"),
        made.row("swiglu", 1 << 24, mode="forward+backward"),
    ]
    made.result(rows).write(tmp_path / "seeds-a.json")
    layers().write(tmp_path / "transformer-a.json")
    text = script.rendered()[script.LEARN]
    assert text.count("**NVIDIA H200") == 1
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")] == [
        "`gelu_scale`",
        "`swiglu`",
    ]
    assert cells(text, "swiglu")[4:] == ["12.0 µs", "4.00 µs", "3.00×", "80%"]


def test_a_page_without_markers_is_named(script):
    script.LEARN.write_text("nothing")
    with pytest.raises(SystemExit, match=r"LEARN\.md has no"):
        script.rendered()


def test_a_stopped_run_is_not_shown(script, tmp_path):
    """What is missing from it may be what is slow."""
    stopped = made.result([made.row()])
    stopped.stopped = True
    stopped.write(tmp_path / "seeds-a.json")
    for text in script.rendered().values():
        assert "gelu_scale" not in text


def test_a_wrong_result_has_a_note(script):
    text = script.table(layers())
    assert "wrong: the result did not pass the check" in text
    assert "- `softmax` 16384×64, forward+backward, float32, eager: off" in text
    assert "wrong" not in script.table(made.result([made.row()]))


def test_the_docs_table_of_float32_is_up_to_date():
    found = importlib.util.spec_from_file_location(
        "fp32_matmul", SCRIPT.with_name("fp32_matmul.py")
    )
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    text = module.rendered()
    assert text == module.DOCS.read_text(encoding="utf-8")
    assert "| `linear_relu` | 8192×4096→4096 |" in text


def test_whole_models_show_what_a_step_takes(script):
    rivals = {"eager": 2.0, "compile": 1.5}
    row = made.row("gpt2", mode="train step", rivals=rivals, clocks={"step": 1.0})
    row.entries[0].name = row.subject = "optimize"
    for entry in row.entries:
        entry.peak_bytes, entry.first_call, entry.side_by_side = 3 * 10**9, 4.5, 8
        entry.off = {"outputs": 1e-6, "gradients": 2e-5}
    made.failing(row, "compile", "no result of the first step within 300 s")
    result = made.result([row])
    result.suite, result.roofs = "models", None
    text = script.table(result)
    told = cells(text, "gpt2")
    assert {"failed", "3.00 GB", "4.50 s", "2e-05"} <= set(told)
    assert "with up to 8 processes side by side" in text
    assert "compile: no result of the first step within 300 s" in text


def test_readme_begins_with_whole_models(script, tmp_path):
    """The best of torch.compile's modes and of ours, which are others in each row; in the type
    that the machine is used with, and not those that few know."""
    rows = []
    for name, dtype, compiled in (
        ("gpt2", "bfloat16", {"compile": 1.5, "max-autotune": 1.25}),
        ("bert", "bfloat16", {}),
        ("llama", "bfloat16", {"compile": 0.75, "optimize-graphs": 0.5}),
        ("vit", "float32", {}),
        ("moe", "bfloat16", {}),
    ):
        rivals = {"eager": 2.0, **compiled}
        row = made.row(name, dtype=dtype, rivals=rivals, clocks={"step": 1e3})
        row.entries[0].name = row.subject = "optimize"
        rows.append(row)
    result = made.result(rows)
    result.suite, result.roofs = "models", None
    result.write(tmp_path / "models-a.json")
    made.result([made.row()]).write(tmp_path / "seeds-a.json")
    headline(*script.HEADLINES[0]).write(tmp_path / "seeds-b.json")
    text = script.rendered()[script.README]
    assert text.index("| model |") < text.index("| op |")
    assert cells(text, "gpt2")[4:] == [
        *("NVIDIA H200", "8.00 ms", "5.00 ms", "4.00 ms", "2.00×", "1.25×")
    ]
    assert cells(text, "bert")[6:] == ["", "4.00 ms", "2.00×", ""]
    assert cells(text, "llama")[6:] == ["3.00 ms", "2.00 ms, graphs", "4.00×", "1.50×"]
    assert "(default, max-autotune)" in text
    assert "with `graphs=True` where that is faster" in text
    assert "`vit`" not in text
    assert "`moe`" not in text
