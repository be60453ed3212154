"""The mkdocs hook: add notebooks, figures and the pages of the repository's root to the site.

Sources stay readable on the code host: a page there links to `tutorial.ipynb` and
`../CONTRIBUTING.md`, and the site turns these into pages of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from anchorscope.config import Config

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file alone
import help_page
from site_figures import FIGURES

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
ROOT_FILES = ("LICENSE", "NOTICE", "CITATION.cff")  # which README links to
NOTEBOOKS = ("tutorial", "tutorial_gpu")
GALLERY = ROOT / "docs" / "gallery"
_MARK = re.compile(r"^<!-- figure: (\w+) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages that the navigation does not name at its end."""
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    if left := sorted(written - set(_pages_of(config.nav))):
        config.nav = [*(config.nav or []), {"More": left}]
    return config


def _pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _pages_of(part)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add generated files to those of docs/: notebooks, the help page, pages of the root."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    for name in ROOT_FILES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    files.append(File.generated(config, "help.md", content=help_page.page()))
    for name in NOTEBOOKS:
        for made in notebook_files(config, ROOT / "docs" / f"{name}.ipynb"):
            files.append(made)
    return files


def notebook_files(config: MkDocsConfig, source: Path) -> list[File]:
    """Convert a notebook with its stored outputs to a page and its pictures."""
    notebook = nbformat.read(source, as_version=4)
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, resources={"output_files_dir": f"{source.stem}_files"}
    )
    note = f"\n[Download this notebook]({source.name}).\n"
    head, _, rest = text.partition("\n\n")
    made = [File.generated(config, f"{source.stem}.md", content=f"{head}\n{note}\n{rest}")]
    for name, content in resources["outputs"].items():
        made.append(File.generated(config, name, content=content))
    return made


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to notebooks and root pages by links to their pages, and marks by figures."""
    for name, made in ROOT_PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{name}", f"]({made}", markdown)
    if Path(page.file.src_uri).stem not in NOTEBOOKS:
        for name in NOTEBOOKS:
            markdown = markdown.replace(f"({name}.ipynb)", f"({name}.md)")
    markdown = markdown.replace("<!-- table: config -->", config_table())
    markdown = markdown.replace("<!-- gallery -->", gallery_list())
    return _MARK.sub(lambda mark: f'<div class="figure">{FIGURES[mark[1]]()}</div>', markdown)


def gallery_list() -> str:
    """List links to the finished reports that `scripts/gallery.py` wrote to docs/gallery."""
    reports = sorted(GALLERY.glob("*/report.html"))
    return "\n".join(
        f"- {report.parent.name}: [report](gallery/{report.parent.name}/report.html), "
        f"[every sample](gallery/{report.parent.name}/view.html)"
        for report in reports
    )


def config_table() -> str:
    """Format the fields of `Config` as a Markdown table: defaults and lines of help."""
    rows = [
        f"| `{field.name}` | `{field.default!r}` | {field.metadata['help']} | "
        f"{'yes' if field.metadata['changes'] else 'no'} |"
        for field in fields(Config)
    ]
    head = ["| field | default | what it is | changes results |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])
