"""What the fuzzer prints: a failing program as a pytest case, and the summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from megafuse.compiler.fuzz.network import SETTINGS, Network
from megafuse.compiler.fuzz.program import Argument, Program
from megafuse.compiler.fuzz.trial import Outcome


@dataclass
class Finding:
    """A program that failed, and how."""

    index: int
    program: Program
    outcome: Outcome


def test_case(finding: Finding) -> str:
    """For tests/compiler/test_found.py; of a network, for test_networks_found.py."""
    program = finding.program
    arguments = "".join(f"        {_argument(a)},\n" for a in program.arguments)
    body = "".join(f"        {line}\n" for line in program.source.splitlines())
    message = finding.outcome.message.strip().splitlines() or [finding.outcome.verdict]
    kind, how = type(program).__name__, _settings(program)
    return (
        f"def test_{kind.lower()}_{finding.index}() -> None:\n"
        f'    """{message[0][:90]}"""\n'
        f'    source = """\n{body}    """\n'
        f"    arguments = [\n{arguments}    ]\n"
        f"    check({kind}.of_source(source, arguments, seed={program.seed}{how}))\n"
    )


def _settings(program: Program) -> str:
    if not isinstance(program, Network):
        return ""
    return "".join(f", {name}={getattr(program, name)}" for name in SETTINGS)


def _argument(argument: Argument) -> str:
    text = f'Argument("{argument.name}", "{argument.dtype}", {argument.each!r}'
    if argument.layout != "contiguous":
        text += f', layout="{argument.layout}"'
    if argument.requires_grad:
        text += ", requires_grad=True"
    if argument.values != "normal":
        text += f', values="{argument.values}"'
    return text + ")"


def summary(outcomes: Iterable[Outcome]) -> str:
    outcomes = list(outcomes)
    verdicts = Counter(o.verdict for o in outcomes)
    ran = [o for o in outcomes if o.captures]
    lines = [
        f"{len(outcomes)} programs: " + ", ".join(f"{n} {v}" for v, n in verdicts.most_common()),
        f"kernels: {sum(o.kernels for o in ran) / max(len(ran), 1):.1f} a program; "
        f"captured more than once: {sum(o.captures > 1 for o in ran)}; "
        f"{sum(o.seconds for o in outcomes) / max(len(outcomes), 1):.2f} s a program",
    ]
    calls: Counter[str] = Counter()
    for outcome in outcomes:
        calls.update(outcome.calls)
    lines += _table("left to the library", calls)
    refused = Counter(general(o.message) for o in outcomes if o.verdict == "refused")
    lines += _table("refused", refused)
    failed = Counter(general(o.message) for o in outcomes if o.is_finding)
    return "\n".join(lines + _table("wrong, failed or crashed", failed))


def general(message: str) -> str:
    """Without the numbers of one program."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    return re.sub(r"\d[\d.e+-]*", "#", line)[:160]


def _table(title: str, counts: Counter[str]) -> list[str]:
    return (
        [f"{title}:", *(f"  {n:5}  {what}" for what, n in counts.most_common(30))] if counts else []
    )
