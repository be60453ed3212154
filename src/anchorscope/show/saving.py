"""A figure saved: its formats, with the same bytes for the same figure."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from anchorscope.run_folder.whole import put_whole

if TYPE_CHECKING:  # who asks for figures and draws none should not wait for it
    from matplotlib.figure import Figure

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
_DPI = 200
_DIGITS = 9  # of a panel's place, as a share of the figure


def save_figure(
    figure: Figure, stem: str | Path, *, formats: Sequence[Format] = FORMATS, dpi: float = _DPI
) -> tuple[Path, ...]:
    """The files written beside each other; the same figure gives the same bytes."""
    import matplotlib as mpl  # here already, since there is a figure

    stem = Path(stem)
    undated: dict[Format, dict[str, None]] = {
        "png": {},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }
    files: list[Path] = []
    with (
        mpl.rc_context({"svg.hashsalt": "anchorscope", "pdf.fonttype": 42}),
        _laid_out(figure, dpi),
    ):
        for form in formats:
            file = stem.with_name(f"{stem.name}.{form}")
            metadata = cast(Any, undated[form])
            drawn = io.BytesIO()
            figure.savefig(drawn, format=form, dpi=dpi, facecolor="white", metadata=metadata)
            files.append(put_whole(file, drawn.getvalue()))
    return tuple(files)


@contextmanager
def _laid_out(figure: Figure, sharpness: float) -> Iterator[None]:
    """The figure with its panels in place: otherwise every format would place them, and draw the
    figure twice to do so.
    """
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None:
        yield
        return
    figure.set_dpi(sharpness)
    engine.execute(figure)
    figure.set_layout_engine(None)
    for ax in figure.axes:
        # The solver's last digit depends on where its variables lie in memory, and a clip path of
        # an SVG is named after every digit.
        ax.set_position(np.round(ax.get_position(original=True).bounds, _DIGITS).tolist())
        ax.set_in_layout(True)
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
        figure.set_dpi(dpi)
