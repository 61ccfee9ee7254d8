"""The page of a diagnosis: it holds what JSON holds, loads nothing, and no text becomes code."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest
from test_report import Parsed

from diagnose import made_diagnoses as made
from megafuse.diagnose import page
from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.diagnose.finding import Evidence
from megafuse.diagnose.record import HostCall, Where

HOSTILE = "</script><!--<script><img src=x onerror=\"alert('&')\">\u2028$data ${script}"


def held(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def hostile() -> Diagnosis:
    """Everything that a user or a file can name is hostile."""
    diagnosis = made.naive()
    where = Where(HOSTILE, 3, HOSTILE, HOSTILE)
    diagnosis.command = HOSTILE
    diagnosis.record.name = HOSTILE
    diagnosis.record.notes = diagnosis.record.graph_breaks = [HOSTILE]
    diagnosis.record.host_calls = [HostCall(HOSTILE, HOSTILE, where, 0.0, 1e-3)]
    for operation in diagnosis.record.operations:
        operation.name, operation.where = HOSTILE, where
    finding = diagnosis.findings[0]
    finding.title = finding.advice = finding.how = finding.fix = HOSTILE
    finding.where, finding.lines = where, [where]
    finding.evidence = [Evidence(HOSTILE, 1.0, HOSTILE)]
    finding.trial.what = finding.trial.accuracy = HOSTILE
    diagnosis.verdict = dataclasses.replace(diagnosis.verdict, sentence=HOSTILE, binds=HOSTILE)
    diagnosis.machine = dataclasses.replace(
        diagnosis.machine, name=HOSTILE, versions={"torch": HOSTILE, HOSTILE: HOSTILE}
    )
    return diagnosis


@pytest.mark.parametrize("which", ["naive", "launches", "fine"])
def test_holds_the_diagnosis(which: str) -> None:
    diagnosis = getattr(made, which)()
    data = held(page.page(diagnosis))
    expected = diagnosis.to_dict()
    measured = [finding.pop("measured") for finding in data["findings"]]
    assert data["findings"] == expected["findings"]
    assert measured == {"naive": [12.5e-3, None], "launches": [None], "fine": []}[which]
    assert data["verdict"] == expected["verdict"]
    assert data["machine"] == expected["machine"]
    for shown, whole in zip(
        data["record"]["operations"], expected["record"]["operations"], strict=True
    ):
        unpacked = {**data["empty"], **shown, "where": data["lines"][shown["where"]]}
        kept = {key: value for key, value in whole.items() if key not in ("reads", "writes")}
        assert {key: unpacked[key] for key in kept} == kept
        for side in ("reads", "writes"):
            tensors = [data["tensors"][place] for place in unpacked[side]]
            assert tensors == [{k: t[k] for k in ("shape", "dtype")} for t in whole[side]]
    assert data["record"]["launches"] == diagnosis.record.launches


def test_loads_nothing_and_allows_only_its_own_script_and_style() -> None:
    text = page.page(made.naive())
    parsed = Parsed(text)
    for tag, attributes in parsed.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base"), tag
        assert attributes.get("src") is None
    outside = re.findall(r"https?://[^\s\"']+|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}  # a name, never loaded
    policy = next(a["content"] for t, a in parsed.elements if a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none'")
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_hostile_text_stays_text() -> None:
    plain = [tag for tag, _ in Parsed(page.page(made.naive())).elements]
    text = page.page(hostile())
    assert [tag for tag, _ in Parsed(text).elements] == plain
    data = held(text)
    assert data["record"]["name"] == data["findings"][0]["title"] == HOSTILE
    assert "\u2028" not in text.split('id="data">')[1].split("</script>")[0]


def test_the_heading_says_whether_there_is_something() -> None:
    assert "<h1>Why is train.py:step slow?</h1>" in page.page(made.naive())
    assert "<h1>fine_add.py:step: leave it</h1>" in page.page(made.fine())


def test_a_page_of_that_name_stays_whole_until_the_new_one_is(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    page.write(made.naive(), target)
    before = target.read_text("utf-8")
    assert before.startswith("<!doctype html>")
    with pytest.raises(OSError, match="No such file"):
        page.write(made.naive(), tmp_path / "no such folder" / "page.html")
    page.write(made.fine(), target)
    assert target.read_text("utf-8") != before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_what_was_not_measured_is_null() -> None:
    diagnosis = made.naive()
    diagnosis.record.operations[0].roof_share = float("nan")
    diagnosis.record.peak_bytes = None
    data = held(page.page(diagnosis))
    assert "roof_share" not in data["record"]["operations"][0]
    assert data["empty"]["roof_share"] is None
    assert data["record"]["peak_bytes"] is None
