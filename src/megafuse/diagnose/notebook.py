"""A Diagnosis in a notebook: the call, the verdict and a row for each finding."""

from __future__ import annotations

from html import escape

from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.diagnose.text import seconds, shown


def html(found: Diagnosis) -> str:
    record = found.record
    head = (
        f"<p><b>{escape(record.name)}</b>, {escape(record.mode)}, on {escape(found.machine.name)}: "
        f"{seconds(record.seconds)} a call. {escape(found.verdict.sentence)}</p>"
    )
    if not found.findings:
        return head
    rows = []
    for finding in found.findings:
        evidence = "<br>".join(escape(shown(e)) for e in finding.evidence)
        tried = ""
        if finding.trial is not None:
            error = finding.trial.error
            tried = escape(error) if error else f"{finding.trial.times:.3g}×"
        rows.append(
            "<tr style='text-align:left;vertical-align:top'>"
            f"<td><b>{escape(finding.name)}</b><br>{escape(str(finding.where))}</td>"
            f"<td>{escape(finding.title)}<br><i>{escape(finding.advice)}</i></td>"
            f"<td>{evidence}</td><td>{finding.call_gain:.3g}×</td><td>{tried}</td></tr>"
        )
    names = ("", "what", "evidence", "predicted", "tried")
    header = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
    return f"{head}<table><tr>{header}</tr>{''.join(rows)}</table>"
