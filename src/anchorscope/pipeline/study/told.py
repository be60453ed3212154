"""A study's plan in words and rows, for the terminal and for docs/scale.md."""

from __future__ import annotations

from collections.abc import Sequence

from anchorscope.pipeline.study.check import Checked, Planned
from anchorscope.pipeline.study.hardware import GB, Hardware
from anchorscope.pipeline.study.plan import ANSWER

COLUMNS = (
    "model", "questions", "passes", "tokens", "FLOPs", "weights", "disk", "loading", "states",
    "analysis", "hours", "GPU-hours",
)  # fmt: skip


def plan_rows(checked: Checked) -> list[list[str]]:
    """A row for each model, and their sum where there are several."""
    rows = [_row(planned) for planned in checked.planned]
    known = [p.forecast for p in checked.planned if p.forecast and not p.finished]
    if len(rows) > 1:
        total = ["all to do", f"{sum(f.questions for f in known):,}"]
        total += [f"{sum(f.passes for f in known):,}", short(sum(f.tokens for f in known))]
        total += [short(sum(f.flops for f in known)), gb(sum(f.weights for f in known))]
        total += [gb(sum(f.disk for f in known))]
        total += [
            seconds(sum(f.seconds[stage] for f in known))
            for stage in ("model", "answers and states", "analysis")
        ]
        total += [hours(sum(f.hours for f in known)), hours(sum(f.gpu_hours for f in known))]
        rows.append(total)
    return rows


def _row(planned: Planned) -> list[str]:
    name, forecast = planned.model.name, planned.forecast
    if forecast is None or planned.finished:
        return [name, *["finished" if planned.finished else "size not known"], *[""] * 10]
    return [
        name,
        f"{forecast.questions:,}",
        f"{forecast.passes:,}",
        short(forecast.tokens),
        short(forecast.flops),
        gb(forecast.weights),
        gb(forecast.disk),
        seconds(forecast.seconds["model"]),
        seconds(forecast.seconds["answers and states"]),
        seconds(forecast.seconds["analysis"]),
        hours(forecast.hours),
        hours(forecast.gpu_hours),
    ]


def notes(checked: Checked, on: Hardware) -> list[str]:
    """What the plan rests on, each in a sentence."""
    said = [_loaded(planned) for planned in checked.planned]
    said += [
        f"On {on.gpus} × {on.kind}, {on.cores} cores beside each; models one after the other, the "
        "shards of a model over all of them. Downloads are not counted.",
        f"Answers are taken to have {ANSWER} tokens on average. Passes of saliency, single heads "
        "and P(True) are not counted.",
    ]
    estimated = [p.model.name for p in checked.planned if not all(c.counted for c in p.counts)]
    if estimated:
        said.append(
            f"Tokens estimated from characters, for want of the tokenizer: {', '.join(estimated)}."
        )
    several = [p for p in checked.planned if p.forecast and p.forecast.devices > 1]
    for planned in several:
        assert planned.forecast is not None
        said.append(f"{planned.model.name} needs {planned.forecast.devices} devices to itself.")
    return said


def _loaded(planned: Planned) -> str:
    """What the run of a model would load, which its name in the study need not say."""
    config = planned.config
    more = {"revision": config.revision, "adapter": config.adapter}
    named = "".join(f", {name} {given}" for name, given in more.items() if given)
    return f"{planned.model.name} is {config.model}{named}."


def short(value: float) -> str:
    """A count with its power of a thousand: 12.3M."""
    for unit, name in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def gb(value: float) -> str:
    return f"{value / GB:.2f} GB" if value < 10 * GB else f"{value / GB:,.0f} GB"


def seconds(value: float) -> str:
    return f"{value:,.0f} s" if value < 6000 else f"{value / 3600:,.1f} h"


def hours(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def as_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as a page has it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
