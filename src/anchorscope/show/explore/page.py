"""The page itself: one HTML file, or one with its samples in files beside it when they are many."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anchorscope.errors import UserError, user_path
from anchorscope.run_folder.disk import is_partial, remove_partials, write_atomic
from anchorscope.run_folder.view import RunView, values
from anchorscope.show.charts import all_titles, chart_data
from anchorscope.show.delta_p import delta_p_chart
from anchorscope.show.explore.data import RunData, run_data
from anchorscope.show.html import bundle, finite, island, page_style, render, source_hash

MOST_INSIDE = 20_000  # samples of all runs together; more than that are files beside the page
_BLOCK = re.compile(r"run[12]-\d{3,}\.json")  # a file of samples beside the page
_SCRIPTS = ("runs", "curves", "scatter", "figures", "filters", "table", "sample", "main")


@dataclass(frozen=True)
class Written:
    """The page, and the folder of its samples where they are too many for one file."""

    page: Path
    beside: Path | None = None


def write_view(runs: Sequence[RunView], out: str | Path | None = None) -> Written:
    """The page of one finished run, or of two side by side, replaced whole."""
    _check(runs)
    titles = all_titles(runs)
    # Each run is a panel of its own; both are on one y range, strict mode's views first.
    views = chart_data(delta_p_chart(runs))["views"]
    parts = [
        run_data(run, titles, {"strict": strict, "paper": paper}, name=_name(run, runs))
        for run, strict, paper in zip(runs, views, views[len(runs) :], strict=False)
    ]
    page = user_path(out) if out is not None else runs[0].path / "view.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        if sum(part.samples for part in parts) <= MOST_INSIDE:
            write_atomic(page, _inside(runs, parts))
            return Written(page)
        beside = page.with_name(f"{page.stem}-data")
        write_atomic(page, _beside(runs, parts, beside))
        return Written(page, beside)
    except OSError as error:
        raise UserError(
            f"{page} cannot be written: {error.strerror}. Choose another --out."
        ) from error


def _check(runs: Sequence[RunView]) -> None:
    if not 1 <= len(runs) <= 2:
        raise UserError(f"{len(runs)} runs were given. Accepted: one run, or two side by side.")
    if len(runs) == 2:
        first, second = (set(values(run.samples, "id")) for run in runs)
        if not first & second:
            raise UserError(
                f"'{runs[0].path}' and '{runs[1].path}' share no question: they are joined by "
                "question id. Give two runs of the same questions, or one run."
            )


def _name(run: RunView, runs: Sequence[RunView]) -> str:
    """The model's name, with the folder's where both runs are of one model."""
    if sum(other.model_name == run.model_name for other in runs) == 1:
        return run.model_name
    return f"{run.model_name} ({run.path.resolve().name})"


def _inside(runs: Sequence[RunView], parts: Sequence[RunData]) -> str:
    """The page with all blocks in it."""
    blocks = [
        island(f"block-{number}-{at}", block)
        for number, part in enumerate(parts)
        for at, block in enumerate(part.blocks)
    ]
    heads = [part.head | {"blocks": len(part.blocks)} for part in parts]
    return _html(runs, [island("head", heads), *blocks], connect="'none'")


def _beside(runs: Sequence[RunView], parts: Sequence[RunData], folder: Path) -> str:
    """Write the page's blocks as files in `folder`; remove those of an earlier page."""
    earlier = _blocks_of_a_page(folder)
    folder.mkdir(exist_ok=True)
    remove_partials(folder)
    heads, written = [], set()
    for number, part in enumerate(parts):
        names = [f"run{number + 1}-{at:03d}.json" for at in range(len(part.blocks))]
        for name, block in zip(names, part.blocks, strict=True):
            content = json.dumps(finite(block), allow_nan=False, separators=(",", ":"))
            write_atomic(folder / name, content)
            written.add(name)
        heads.append(part.head | {"files": [f"{folder.name}/{name}" for name in names]})
    for name in earlier - written:
        (folder / name).unlink()
    return _html(runs, [island("head", heads)], connect="'self'")


def _blocks_of_a_page(folder: Path) -> set[str]:
    """The names of the files that an earlier page left in the folder; an error for any other."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"'{folder}' is no folder that can be written. Choose another --out.")
    files = list(folder.iterdir()) if folder.is_dir() else []
    files = [file for file in files if not is_partial(file.name)]  # of a page that was killed
    for file in files:
        if not _BLOCK.fullmatch(file.name) or file.is_symlink() or not file.is_file():
            raise UserError(
                f"'{folder}' holds '{file.name}', which `anchorscope view` did not write. The "
                "samples of the page go there: choose another --out, or move that file."
            )
    return {file.name for file in files}


def _html(runs: Sequence[RunView], inside: Sequence[str], *, connect: str) -> str:
    script = bundle("text", "chart", *(f"view/{name}" for name in _SCRIPTS))
    style = page_style("view/view.css")
    policy = (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    names = " and ".join(run.model_name for run in runs)
    return render(
        "view.html",
        policy=policy,
        title=f"{names}: every sample",
        style=style,
        data=inside,
        script=script,
    )
