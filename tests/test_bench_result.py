"""megafuse.bench.result: what is written is what is read, and what is not a result is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import bench_results as made
import pytest

from megafuse.bench.result import Accuracy, Entry, NotAResult, Result, Roofs, Span, read


@pytest.fixture
def full() -> Result:
    """Every field is set, and one contender failed."""
    failed = made.row("swiglu", 1 << 10, mode="forward+backward")
    failed.entries[1] = Entry("eager", "one after the other", error="wrong")
    failed.warnings = ["the clock fell"]
    failed.entries[0].missing = {"launches": "nobody counted"}
    return made.result([made.row(seconds=2e-6), failed])


def written(result: Result, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "written.json"
    result.write(path)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def stored(data: Any, tmp_path: Path) -> Path:
    path = tmp_path / "stored.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_round_trip(full, tmp_path):
    path = tmp_path / "full.json"
    full.write(path)
    assert rounded(read(path)) == rounded(full)
    again = tmp_path / "again.json"
    read(path).write(again)
    assert again.read_bytes() == path.read_bytes()


def rounded(result: Result) -> Any:
    """To the six digits that a file keeps."""

    def each(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: each(v) for k, v in value.items()}
        if isinstance(value, list):
            return [each(v) for v in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return each(result.to_json())


def test_objects_come_back_as_what_they_were(full, tmp_path):
    full.write(tmp_path / "a.json")
    back = read(tmp_path / "a.json")
    back.write(tmp_path / "b.json")
    assert read(tmp_path / "b.json") == back
    row = back.rows[0]
    assert isinstance(row.entries[0].accuracy, Accuracy)
    assert isinstance(back.roofs, Roofs)
    assert isinstance(row.entries[0].times["cold"], Span)
    assert row.speedups["eager"]["cold"].verdict == "faster"
    assert row.key == ("gelu_scale", "forward", "float32", "16384×64")
    assert back.rows[1].entry("eager").error == "wrong"


def test_what_is_absent_stays_absent(tmp_path):
    result = made.result([])
    result.roofs, result.start_up = None, None
    result.write(tmp_path / "a.json")
    assert read(tmp_path / "a.json") == result


def test_nan_and_infinity_are_not_written(full, tmp_path):
    """They are no JSON: a browser would refuse the whole file."""
    entry = full.rows[0].entries[0]
    percentiles = {"50": 0.0, "99": math.nan, "99.9": math.inf}
    entry.accuracy = Accuracy(math.inf, 1.0, math.nan, -math.inf, percentiles, 1.0)
    entry.bytes_per_second = math.nan
    full.write(tmp_path / "a.json")
    assert not {"NaN", "Infinity"} & set((tmp_path / "a.json").read_text().split())
    back = read(tmp_path / "a.json").rows[0].entries[0]
    assert back.bytes_per_second is None
    assert back.accuracy is not None
    assert math.isnan(back.accuracy.max_abs)
    assert math.isnan(back.accuracy.max_rel)
    assert back.accuracy.mean_abs == 1.0
    assert back.accuracy.rel_percentiles["50"] == 0.0
    assert all(math.isnan(back.accuracy.rel_percentiles[p]) for p in ("99", "99.9"))
    str(read(tmp_path / "a.json"))


def test_what_a_later_megafuse_adds_is_ignored(full, tmp_path):
    data = written(full, tmp_path)
    row = data["rows"][0]
    entry = row["entries"][0]
    parts = (
        data,
        data["roofs"],
        data["start_up"]["import torch"],
        row,
        row["speedups"]["eager"]["cold"],
        entry,
        entry["times"]["cold"],
        entry["accuracy"],
    )
    for part in parts:
        part["something_new"] = [1, 2]
    assert rounded(read(stored(data, tmp_path))) == rounded(full)


def test_an_older_file_lacks_what_has_a_default(full, tmp_path):
    data = written(full, tmp_path)
    del data["start_up"], data["seconds_taken"], data["rows"][0]["warnings"]
    back = read(stored(data, tmp_path))
    assert back.start_up is None
    assert back.rows[0].warnings == []


# ---- what is not a result


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not JSON"),
        ("{'format': 1}", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a results file: `megafuse bench --json FILE` writes one"),
        ("null", "is not a results file"),
        ('{"format": "other", "version": 1}', "is not a results file"),
        ('{"format": "megafuse-bench", "version": 99}', "has version 99"),
        ('{"format": "megafuse-bench"}', "has version None"),
        ('{"format": "megafuse-bench", "version": 1}', "is damaged"),
        ('{"format": "megafuse-bench", "version": 1, "rows": 7, "roofs": null}', "is damaged"),
    ],
)
def test_another_file_is_refused(tmp_path, content, says):
    path = stored(content, tmp_path)
    with pytest.raises(NotAResult) as refused:
        read(path)
    assert str(refused.value).startswith(str(path))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_bytes_are_refused(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(NotAResult, match="is not JSON"):
        read(path)


def test_no_file_is_refused(tmp_path):
    with pytest.raises(NotAResult, match=r"missing\.json: No such file"):
        read(tmp_path / "missing.json")
    with pytest.raises(NotAResult, match="directory"):
        read(tmp_path)


def test_half_a_file_is_refused(full, tmp_path):
    text = json.dumps(written(full, tmp_path))
    with pytest.raises(NotAResult, match="is not JSON"):
        read(stored(text[: len(text) // 2], tmp_path))


ROW, ENTRY = ["rows", 0], ["rows", 0, "entries", 0]


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ([], "machine"),
        ([], "rows"),
        ([], "commit"),
        (["roofs"], "copy"),
        (ROW, "op"),
        (ROW, "entries"),
        (ROW, "speedups"),
        (ENTRY, "name"),
        (ENTRY, "times"),
        ([*ENTRY, "times", "cold"], "median"),
        ([*ENTRY, "accuracy"], "max_abs"),
        ([*ROW, "speedups", "eager", "cold"], "verdict"),
    ],
)
def test_a_missing_part_is_named(full, tmp_path, where, what):
    data = written(full, tmp_path)
    del part(data, where)[what]
    with pytest.raises(NotAResult, match=f"is damaged: .*{what}"):
        read(stored(data, tmp_path))


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ([], "machine"),
        ([], "versions"),
        ([], "roofs"),
        ([], "start_up"),
        (ROW, "entries"),
        (ROW, "speedups"),
        (ROW, "shape"),
        (ENTRY, "times"),
        (ENTRY, "accuracy"),
        ([*ENTRY, "times"], "cold"),
    ],
)
@pytest.mark.parametrize("value", [7, "text", [1, 2]])
def test_a_part_of_another_kind_is_refused(full, tmp_path, where, what, value):
    data = written(full, tmp_path)
    if isinstance(value, type(part(data, where)[what])):
        value = {"a": 1}
    part(data, where)[what] = value
    with pytest.raises(NotAResult, match="is damaged"):
        read(stored(data, tmp_path))


def part(data: Any, where: list[Any]) -> Any:
    for key in where:
        data = data[key]
    return data


# ---- what sets rows apart


@pytest.mark.parametrize(
    ("widths", "choices", "label"),
    [
        ([], {}, "64×768"),
        ([3072], {}, "64×768→3072"),
        ([3072, 768], {"act": "relu"}, "64×768→3072→768 relu"),
        ([], {"approximate": "none"}, "64×768 approximate=none"),
        ([], {"causal": True, "mask": False}, "64×768 causal no mask"),
        ([], {"p": 0.0, "heads": 12, "eps": 1e-5}, "64×768 p=0 heads=12 eps=1e-05"),
    ],
)
def test_a_row_in_words(widths, choices, label):
    row = made.row(shape=[64, 768], widths=widths, choices=choices)
    assert row.label == label
    assert row.key == ("gelu_scale", "forward", "float32", label)


def test_widths_choices_and_floor_are_kept(tmp_path):
    row = made.row(
        "ffn", widths=[8, 2], choices={"act": "relu", "p": 0.5, "mask": True}, floor=2e-6
    )
    made.result([row]).write(tmp_path / "a.json")
    (back,) = read(tmp_path / "a.json").rows
    assert (back.widths, back.choices, back.floor) == (row.widths, row.choices, row.floor)
    assert type(back.choices["mask"]) is bool


def test_a_file_from_before_there_were_layers(full, tmp_path):
    data = written(full, tmp_path)
    for row in data["rows"]:
        del row["widths"], row["choices"], row["floor"]
    (first, _) = read(stored(data, tmp_path)).rows
    assert (first.widths, first.choices, first.floor) == ([], {}, None)
    assert first.label == "16384×64"
