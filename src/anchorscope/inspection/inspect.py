"""The per-question analysis as a library call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from anchorscope.detect.deployed.detector import Detector
from anchorscope.errors import UserError, unknown
from anchorscope.inspection.choices import Choices, Head
from anchorscope.inspection.inspection import Inspection
from anchorscope.inspection.inspector import Inspector
from anchorscope.models import Model, load_model
from anchorscope.records import MODES, Mode
from anchorscope.run_folder.view import RunView

_OPEN: WeakKeyDictionary[Any, dict[tuple, Inspector]] = WeakKeyDictionary()


def inspect(
    model: Any,
    question: str,
    *,
    run: RunView | str | Path,
    dataset: str | None = None,
    detector: Detector | None = None,
    mode: Mode = "strict",
    cut: str | Sequence[int] | None = None,
    neutral: bool = True,
    answer_only: bool = True,
    subject: str = "",
    window: int | None = None,
    heads: Sequence[Head] = (),
) -> Inspection:
    """The model's answer to a question, and what the probes of a finished run read in it.

    Asked, marked and read as the questions of the run's `dataset` (its first one by default).
    `cut` is what the knockout cuts: a part of the question, positions of prompt tokens, or by
    default the exact question tokens. `neutral` cuts as many tokens that carry neither subject nor
    property, `answer_only` leaves the question out, `subject` puts another subject in its place,
    `window` cuts in so many blocks that end at each layer, `heads` (block from 1, head from 0) in
    these heads alone.

    Examples:
        >>> import anchorscope as anc
        >>> one = anc.inspect(model, "What is the capital of France?", run="runs/atlas")
        >>> one.answer, one.pathway.pathway in ("Q", "A"), 0 < one.wrong.probability < 1
        ('Paris', True, True)
        >>> sorted(one.beliefs)  # P(wrong) by layer, clean and under each change
        ['answer-only', 'clean', 'knockout', 'neutral']
        >>> [token.text for token in one.tokens if token.exact_question]  # what was cut
        [' capital', ' France']

    """
    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    inspector = _inspector(model, run, dataset, detector)
    chosen = inspector.prompts.positions(question, cut) if isinstance(cut, str) else cut
    choices = Choices(
        cut=None if chosen is None else tuple(chosen),
        neutral=neutral,
        answer_only=answer_only,
        subject=subject,
        window=window,
        heads=tuple(heads),
    )
    return inspector.read(inspector.ask(question), choices, mode=mode)


def _inspector(
    model: Any, run: RunView | str | Path, dataset: str | None, detector: Detector | None
) -> Inspector:
    """The inspector of a model and a run, kept while the model lives."""
    if isinstance(model, str | Path):
        raise UserError(
            f"The model was given by name ('{model}'), which would load it for every question. "
            f"Load it once: load_model('{model}')."
        )
    loaded: Model = load_model(model)
    view = run if isinstance(run, RunView) else RunView.open(run)
    kept = _OPEN.setdefault(loaded.lm, {})
    key = (str(view.path.resolve()), view.info.get("started"), dataset, id(detector))
    if key not in kept:
        kept[key] = Inspector.open(loaded, view, dataset=dataset, detector=detector)
    return kept[key]
