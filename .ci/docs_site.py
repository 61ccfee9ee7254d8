"""The docs site's hook for mkdocs: takes in the pages that lie elsewhere, and writes the API's.

    README.md, LEARN.md, CONTRIBUTING.md, LICENSE, examples/, notebooks/  ── as they are
    api/ops, api/modules, api/functions                                   ── from the registry

Links between them are turned into links between pages. Nothing is written but the site. A page that
would load something from a network stops the build.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

# Where a file of the repository stands in the site.
PAGES = {
    "README.md": "index.md",
    "LEARN.md": "learn.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "license.md",
    "examples/cpp/README.md": "examples/cpp.md",
    "examples/slow/README.md": "examples/slow.md",
    **{
        f"examples/slow/{p.name}": f"examples/slow/{p.stem}.md"
        for p in sorted((ROOT / "examples" / "slow").glob("*.py"))
    },
    **{f"docs/{p.name}": p.name for p in sorted((ROOT / "docs").glob("*.md"))},
    **{
        f"examples/{p.name}": f"examples/{p.stem}.md"
        for p in sorted((ROOT / "examples").glob("*.py"))
    },
    **{
        f"notebooks/{p.name}": f"notebooks/{p.stem}.md"
        for p in sorted((ROOT / "notebooks").glob("*.ipynb"))
    },
}
ORIGINS = {page: origin for origin, page in PAGES.items()}


class _ListsAfterText(Extension):
    """A list may follow a line of text without a blank line between, as on GitHub."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_BlankLineBeforeList(md), "lists-after-text", 20)


class _BlankLineBeforeList(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        spaced: list[str] = []
        for line in lines:
            before = spaced[-1] if spaced else ""
            if re.match(r"- \S", line) and before[:1].isalnum():
                spaced.append("")
            spaced.append(line)
        return spaced


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(_ListsAfterText())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    for origin, page in PAGES.items():
        if not origin.startswith("docs/"):
            files.append(File.generated(config, page, content=text_of(ROOT / origin)))
    for page, text in api().items():
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "highlight.css", content=highlighting()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to files become links to pages; tables inside <details> are Markdown too."""
    here = page.file.src_uri
    folder = Path(ORIGINS.get(here, here)).parent

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        origin = os.path.normpath(folder / target).replace(os.sep, "/")
        origin = f"{origin}/README.md" if (ROOT / origin).is_dir() else origin
        if origin not in PAGES:
            return found[0]  # mkdocs knows it, or warns
        away = os.path.relpath(PAGES[origin], Path(here).parent).replace(os.sep, "/")
        return f"]({away}{anchor})"

    markdown = re.sub(r"\]\((?!\w+:)([^)#\s]+)(#[^)]*)?\)", link, markdown)
    return markdown.replace("<details>", '<details markdown="1">')


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """The start page shows what fusion is, below its first paragraph."""
    if page.file.src_uri != "index.md":
        return html
    return with_animation(html, (ROOT / "docs" / "fusion.html").read_text(encoding="utf-8"))


def with_animation(html: str, animation: str) -> str:
    first, end, rest = html.partition("</p>")
    return f"{first}{end}\n{animation}{rest}"


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Stops at anything that a browser would fetch from elsewhere."""
    fetched = _Fetched(output).found
    if fetched:
        raise PluginError(f"{page.file.src_uri} loads {', '.join(fetched)}: expected nothing")
    return output


class _Fetched(HTMLParser):
    """What a page loads by itself from another host."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        urls = [given.get("src"), given.get("href") if tag == "link" else None]
        self.found += [u for u in urls if u and re.match(r"(https?:)?//", u)]


# ---- pages from files


def text_of(path: Path) -> str:
    """Markdown as it is, a notebook's cells, a program in a code block."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return "\n\n".join(notebook(path, text))
    if path.suffix == ".py":
        return f"# {path.name}\n\n```python\n{text}```\n"
    return f"# {path.name.capitalize()}\n\n```text\n{text}```\n"


def notebook(path: Path, text: str) -> Iterator[str]:
    """Its cells, each with what it showed when .ci/record_notebooks.py ran it."""
    for number, cell in enumerate(json.loads(text)["cells"]):
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        yield from shown(cell.get("outputs", []))
        if number == 0:
            yield f"*This is `notebooks/{path.name}`: open it in Jupyter to run it.*"


def shown(outputs: list[dict[str, Any]]) -> Iterator[str]:
    """Printed text in a block, figures as they are."""
    for output in outputs:
        data = output.get("data", {})
        if "text/html" in data:
            yield f"<div>{''.join(data['text/html'])}</div>"
        else:
            text = "".join(output.get("text", data.get("text/plain", [])))
            yield f"```text\n{text.rstrip()}\n```"


def highlighting() -> str:
    """The colours of code, light and dark."""
    light, dark = (HtmlFormatter(style=style) for style in ("default", "github-dark"))
    return "\n".join(
        [
            *light.get_style_defs('[data-bs-theme="light"] .highlight').splitlines(),
            *dark.get_style_defs('[data-bs-theme="dark"] .highlight').splitlines(),
        ]
    )


# ---- the API, from the registry


def api() -> dict[str, str]:
    """The three pages: a mkdocstrings directive for each op, module and function."""
    import megafuse
    from megafuse.bench.api import bench
    from megafuse.compiler.explain_model import explain
    from megafuse.diagnose.api import diagnose
    from megafuse.registry.card import dtypes

    ops = [
        "# Ops\n\nEach is `megafuse.<op>`. Its twin in plain PyTorch, whose source is shown, is "
        "`megafuse.reference.<op>`.\n"
    ]
    for name, op in megafuse.OPS.items():
        where = inspect.unwrap(op.reference).__module__
        grads = ", ".join(op.autograd.grads) or "nothing"
        facts = [f"dtypes: {dtypes(op)}", f"gradient of: {grads}", f"family: {op.family}"]
        ops.append(f"::: {where}.{name}\n\n" + "".join(f"- {fact}\n" for fact in facts))
    modules = [f"# Modules\n\n{inspect.getdoc(megafuse.nn)}\n"]
    functions = [f"# Functions\n\n{inspect.getdoc(megafuse)}\n"]
    for name in megafuse.nn.__all__:
        modules.append(_documented(getattr(megafuse.nn, name)))
    for name in megafuse.__all__:
        # The packages `bench` and `diagnose` can be called, and stand for these.
        lazy = {"bench": bench, "diagnose": diagnose, "explain": explain}
        found = lazy.get(name) or getattr(megafuse, name)
        if name not in megafuse.OPS and (inspect.isfunction(found) or inspect.isclass(found)):
            functions.append(_documented(found))
    return {
        "api/ops.md": "\n".join(ops),
        "api/modules.md": "\n".join(modules),
        "api/functions.md": "\n".join(functions),
    }


def _documented(thing: Any) -> str:
    return f"::: {thing.__module__}.{thing.__qualname__}\n"
