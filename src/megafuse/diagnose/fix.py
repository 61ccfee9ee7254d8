"""A finding's change as a diff, where it is a rewrite of a line or two. Nothing is written."""

from __future__ import annotations

import ast
import difflib
import linecache
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from megafuse.diagnose.finding import Finding

_IN_ORDER = "with its arguments in their order"
Lines = list[str]
Rewrite = Callable[[Lines, int, Finding], "Lines | None"]


def add_fixes(findings: Sequence[Finding]) -> None:
    """Sets the diff of each finding that has one."""
    for finding in findings:
        rewrite = _REWRITES.get(finding.name)
        if rewrite is None or not finding.where.file:
            continue
        lines = linecache.getlines(finding.where.file)
        if not 0 < finding.where.line <= len(lines):
            continue
        changed = rewrite(list(lines), finding.where.line - 1, finding)
        if changed is not None and changed != lines and _is_python(changed):
            finding.fix = diff(finding.where.file, lines, changed)


def diff(file: str, before: Lines, after: Lines) -> str:
    name = _relative(file)
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=2))


def _relative(file: str) -> str:
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file.lstrip("/")


def _is_python(lines: Lines) -> bool:
    try:
        ast.parse("".join(lines))
    except SyntaxError:
        return False
    return True


def _on_line(pattern: str, instead: str) -> Rewrite:
    """Rewrites a part of the finding's line."""

    def rewrite(lines: Lines, at: int, finding: Finding) -> Lines | None:
        new = re.sub(pattern, instead, lines[at])
        lines[at] = new
        return lines

    return rewrite


def _optimizer(lines: Lines, at: int, finding: Finding) -> Lines | None:
    """fused=True where the optimizer is made, if that is one line of the same file."""
    made = [i for i, line in enumerate(lines) if re.search(r"optim\.\w+\(.*\)\s*$", line)]
    if len(made) != 1:
        return None
    line = re.sub(r",\s*foreach\s*=\s*\w+", "", lines[made[0]])
    lines[made[0]] = re.sub(r"\)(\s*)$", r", fused=True)\1", line)
    return lines


def _loader(lines: Lines, at: int, finding: Finding) -> Lines | None:
    made = [i for i, line in enumerate(lines) if re.search(r"\bDataLoader\(.+\)", line)]
    workers = finding.number("workers")
    if len(made) != 1 or workers is None or "num_workers" in lines[made[0]]:
        return None
    call = _call(lines[made[0]], "DataLoader")
    if call is None:
        return None
    lines[made[0]] = lines[made[0]].replace(call, f"{call[:-1]}, num_workers={int(workers)})")
    return lines


def _product(lines: Lines, at: int, finding: Finding) -> Lines | None:
    """The library's linear layer in place of the call, if the trial showed that it is the same."""
    if finding.trial is None or finding.trial.error or not finding.trial.what.endswith(_IN_ORDER):
        return None
    function = finding.title.split()[0].rpartition(".")[2]
    call = _call(lines[at], function)
    if call is None:
        return None
    given = call[call.index("(") :]
    after = ".relu()" if "relu" in finding.trial.what else ""
    if " and " in finding.trial.what and not after:
        return None
    called = re.search(r"[\w.]+$", lines[at][: lines[at].index(call) + len(function)])
    assert called is not None
    old = called[0] + given
    lines[at] = lines[at].replace(old, f"torch.nn.functional.linear{given}{after}")
    return lines


def _call(line: str, name: str) -> str | None:
    """name(…) up to the bracket that closes it."""
    begin = re.search(rf"\b{re.escape(name)}\(", line)
    if begin is None:
        return None
    depth = 0
    for at in range(begin.end() - 1, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            return line[begin.start() : at + 1]
    return None


def _fuse(lines: Lines, at: int, finding: Finding) -> Lines | None:
    """@megafuse.fuse over the function that the chain is all of, if it takes its tensors."""
    tree = ast.parse("".join(lines))
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= at + 1 <= (node.end_lineno or 0)
    ]
    if not around:
        return None
    function = max(around, key=lambda node: node.lineno)
    inside = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    methods = function.args.args and function.args.args[0].arg == "self"
    if not function.args.args or methods or function.decorator_list:
        return None
    if any(where.line not in inside for where in finding.lines):
        return None
    indent = re.match(r"\s*", lines[function.lineno - 1])
    assert indent is not None
    lines.insert(function.lineno - 1, f"{indent[0]}@megafuse.fuse\n")
    if not re.search(r"^import megafuse$", "".join(lines), re.M):
        first = next(i for i, line in enumerate(lines) if re.match(r"(import|from) (?!__)", line))
        lines.insert(first, "import megafuse\n")
    return lines


_REWRITES: dict[str, Rewrite] = {
    "gradients zeroed by writing": _on_line(r"\(\s*set_to_none\s*=\s*False\s*\)", "()"),
    "hidden copy": _on_line(r"\.contiguous\(\)", ""),
    "dtype round trip": _on_line(r"\.(double|float|half|bfloat16)\(\)", ""),
    "optimizer in a loop": _optimizer,
    "waits for data": _loader,
    "naive product": _product,
    "fusable": _fuse,
}
