"""The files under figures/: who draws which of them, in processes of their own.

This process needs matplotlib only where it draws itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from anchorscope.parallel import default_workers, in_parallel
from anchorscope.run_folder.view import RunView
from anchorscope.show.evidence import pieces_of
from anchorscope.show.saving import FORMATS, Format, save_figure

Wanted = tuple[str, tuple[Format, ...]]  # a figure by name, and formats of it
_ALWAYS = ("delta_p", "delta_p_strict", "delta_p_both", "probes", "controls")
# A figure in parts: the formats of each.
Split = tuple[tuple[Format, ...], ...]
_WHOLE: Split = (FORMATS,)
_IN_TWO: Split = (FORMATS[:-1], FORMATS[-1:])
_IN_THREE: Split = tuple((form,) for form in FORMATS)


def write_figures(run: RunView, *, workers: int | None = None) -> list[Path]:
    """The files under figures/: ΔP in each mode and in both, probes, controls, other evidence."""
    names, workers = names_of(run), workers or default_workers()
    dealt = _dealt(names, workers)
    drawn = in_parallel(partial(_write, run.path), dealt, workers=workers)
    files = dict(zip(chain(*dealt), chain(*drawn), strict=True))
    return sorted((file for of in files.values() for file in of), key=_order(names))


def _dealt(names: Sequence[str], workers: int) -> list[list[Wanted]]:
    """What each process draws. It opens the run once, and has one figure in memory at a time.

    Where there are more processes than figures, formats are drawn apart: of the last figure each,
    of those before it the PDF, which takes about as long as the other two. Figures of evidence
    stand last, and are larger.
    """
    wanted: list[Wanted] = []
    spare, splits = max(0, workers - len(names)), (_IN_THREE, _IN_TWO, _WHOLE)
    for name in reversed(names):
        split = next(of for of in splits if len(of) - 1 <= spare)
        wanted += [(name, formats) for formats in split]
        spare, splits = spare - len(split) + 1, (_IN_TWO, _WHOLE)
    return [wanted[start::workers] for start in range(min(workers, len(wanted)))]


def _order(names: Sequence[str]) -> Callable[[Path], tuple[int, int]]:
    """The order of the files: figure by figure, format by format."""
    formats = [f".{form}" for form in FORMATS]
    return lambda file: (names.index(file.stem), formats.index(file.suffix))


def _write(path: Path, wanted: Sequence[Wanted]) -> list[tuple[Path, ...]]:
    """The files of each of these figures."""
    from anchorscope.show.figures import figure_of  # which needs matplotlib

    run = RunView.open(path, unfinished_ok=True)
    return [
        save_figure(figure_of(run, name), path / "figures" / name, formats=formats)
        for name, formats in wanted
    ]


def names_of(run: RunView) -> list[str]:
    """The figures of a run, all of which `figure_of` can draw."""
    return [*_ALWAYS, *(shown.name for shown in pieces_of(run))]
