"""A page that needs nothing else: its style, its script and its data stand in it.

The page loads nothing. Its content security policy allows only the script and the style that
were put in here, by their hashes, and the data is JSON that cannot end the element it stands in,
so no text from the data can become code.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import secrets
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from string import Template

from megafuse.bench.result import plain


def framed(
    *,
    title: str,
    heading: str,
    style: str,
    script: str,
    data: object,
    main: str,
    controls: str = "",
) -> str:
    """The whole HTML text. `main` and `controls` are HTML; the other texts are escaped here."""
    return Template(part("page.html")).substitute(
        title=escape(title),
        policy=f"default-src 'none'; img-src data:; style-src {_source(style)}; "
        f"script-src {_source(script)}",
        style=style,
        script=script,
        data=_json(data),
        heading=escape(heading),
        controls=controls,
        main=main,
    )


def part(name: str, package: str = __package__) -> str:
    """The text of a file beside this one, or in another package."""
    return (resources(package) / name).read_text(encoding="utf-8")


def save(text: str, output: str | Path) -> None:
    """Writes a page. One of that name stays whole until the new one is."""
    target = Path(output)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # A file name need not be valid text; the page shows "?" there.
        unfinished.write_text(text, encoding="utf-8", errors="replace")
        os.replace(unfinished, target)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _source(text: str) -> str:
    """What a content security policy calls exactly this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(value: object) -> str:
    """ASCII only, and without the characters that could end the script element it stands in."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
