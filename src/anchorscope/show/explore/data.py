"""What the page holds of a run: a head with the figure, and blocks of samples."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np

from anchorscope.engine.passes import CLEAN, KNOCKOUT
from anchorscope.pathways.one_law import fit_line
from anchorscope.records import MODES, Mode, Sample, Verdict
from anchorscope.run_folder.view import RunView, records, values
from anchorscope.show.charts import INTERVENTIONS, PALETTE, color_of
from anchorscope.show.explore.stored_beliefs import Beliefs, beliefs_of, layers_of
from anchorscope.show.explore.token_texts import NoTokens, Tokens, tokens_of
from anchorscope.spans.answer import KINDS, Kind, kind_of

BLOCK = 5_000  # samples
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_NAMES = {
    "clean": "clean",
    "knockout": "exact question tokens cut",
    "question": "all question tokens cut",
    "content": "other content words cut",
    "neutral": "neutral tokens cut",
    "retest": "another prompt",
    "retest-knockout": "exact question tokens cut, another prompt",
    "answer-only": "answer without question",
    "patch-matched": "subject of a matched donor",
    "patch-random": "subject of a random donor",
    "patch-other": "other tokens patched",
    "patch-self": "patched with itself",
    "window-5": "cut in the last 5 blocks",
    "single": "cut in one block",
}
_FORMS = (("knockout-", "cut otherwise: "), ("reweight", "attention reweighted, β "))
_LARGEST_HALF = 65504.0
_SMALLEST_HALF = float(np.finfo(np.float16).smallest_subnormal)
_CUT = {"exact": "the exact question tokens", "question": "all question tokens"}


@dataclass(frozen=True)
class RunData:
    """One run as the page reads it; every value can be written as JSON."""

    head: dict[str, Any]
    blocks: list[dict[str, Any]]
    samples: int


def run_data(
    run: RunView, titles: Mapping[str, str], views: Mapping[Mode, dict[str, Any]], *, name: str
) -> RunData:
    """The run's part of the page, with its ΔP chart's `views` by mode.

    `titles` are the datasets of all runs, in colour order; `name` is what the page calls the model.
    """
    samples, beliefs = run.answers, beliefs_of(run)
    tokens = tokens_of(samples, run.model)
    datasets = [
        {"name": name, "title": title, "color": color_of(at)}
        for at, (name, title) in enumerate(titles.items())
        if name in run.titles
    ]
    shown = ("dataset", "layer", "finding", "why")
    findings = [{key: row[key] for key in shown} for row in records(run.findings)]
    head = {
        "model": name,
        "layers": layers_of(run),
        "unit": run.unit,
        "start": findings[0]["layer"],
        "findings": findings,
        "modes": list(MODES),
        "verdicts": list(VERDICTS),
        "types": list(KINDS),
        "knocked_out": _CUT.get(str(run.config.get("keys", "exact")), ""),
        "datasets": datasets,
        "passes": _passes(beliefs),
        "views": views,
        "lines": {mode: lines(run, beliefs, mode) for mode in MODES},
        **_token_head(tokens),
    }
    starts, names = range(0, len(samples), BLOCK), [dataset["name"] for dataset in datasets]
    blocks = [_block(samples, beliefs, tokens, slice(at, at + BLOCK), names) for at in starts]
    return RunData(head, blocks, len(samples))


def _passes(beliefs: Beliefs) -> list[dict[str, Any]]:
    """Every pass with a name and a colour; the page draws `clean` in its own ink.

    Passes that every run makes come first, the `further` ones after them.
    """
    return [
        {
            "name": name,
            "label": _label(name),
            "color": INTERVENTIONS.get(name, ("", PALETTE[(at + 1) % len(PALETTE)]))[1],
            "further": name != CLEAN.name and name not in INTERVENTIONS,
        }
        for at, name in enumerate(beliefs.logits)
    ]


def _label(name: str) -> str:
    for start, words in _FORMS:
        if name.startswith(start):
            return words + name.removeprefix(start)
    return _NAMES.get(name, name)


def _token_head(tokens: Tokens | NoTokens) -> dict[str, Any]:
    if isinstance(tokens, NoTokens):
        return {"no_tokens": tokens.why}
    return {
        "vocabulary": {str(id): text for id, text in tokens.texts.items()},
        "shared": {name: list(ids) for name, ids in tokens.shared.items()},
    }


def _block(
    samples: Sequence[Sample],
    beliefs: Beliefs,
    tokens: Tokens | NoTokens,
    at: slice,
    names: Sequence[str],
) -> dict[str, Any]:
    """Some of the samples: texts as lists, numbers packed; datasets by their place in `names`."""
    block = samples[at]
    known = [s.question.popularity for s in block]
    values = {
        "n": len(block),
        "id": [s.id for s in block],
        "question": [s.question.text for s in block],
        "answer": [s.answer.text for s in block],
        "accepted": [list(s.question.answers) for s in block],
        "relation": [s.question.relation or "" for s in block],
        "finder": [s.finder for s in block],
        "spans": [[list(span) for span in s.spans] for s in block],
        "answer_span": [list(s.answer_span) if s.answer_span else None for s in block],
        "dataset": _codes([names.index(s.question.dataset) for s in block]),
        "verdict": _codes([VERDICTS.index(s.verdict) for s in block]),
        "type": _codes([_type(s) for s in block]),
        "popularity": _packed([np.nan if value is None else value for value in known], "<f4"),
        "logits": {
            name: {mode: halves(by_mode[mode][at]) for mode in MODES}
            for name, by_mode in beliefs.logits.items()
        },
        "pathway": {mode: _codes(beliefs.pathway[mode][at]) for mode in MODES},
    }
    if not isinstance(tokens, NoTokens):
        ids = tokens.ids[at]
        values["token_counts"] = _packed([len(each) for each in ids], "<i4")
        values["tokens"] = _packed([id for each in ids for id in each], "<i4")
        values["roles"] = _codes(np.concatenate(tokens.roles[at]))
    return values


def _type(sample: Sample) -> int:
    """The number of the answer's kind; one that only the owner of the states knows is "other"."""
    kind = kind_of(sample)
    return KINDS.index(cast(Kind, kind)) if kind in KINDS else KINDS.index("other")


def lines(run: RunView, beliefs: Beliefs, mode: Mode) -> list[dict[str, Any]]:
    """The one-mechanism line of each dataset by layer: knocked-out logit on the clean one.

    The null fits a line for each fold's probe; `spread` is what these leave over. The line drawn
    is the least-squares line through all of them.
    """
    datasets = values(run.samples, "dataset").to_numpy()
    fold = values(run.samples, "fold").fillna(0).to_numpy(int)
    clean, knockout = (beliefs.logits[name][mode] for name in (CLEAN.name, KNOCKOUT.name))
    found = []
    for name in run.titles:
        rows = datasets == name
        fits = [
            _fit(x[rows], y[rows], fold[rows]) for x, y in zip(clean.T, knockout.T, strict=True)
        ]
        keys = ("intercept", "slope", "spread")
        found.append(
            {"dataset": name} | {key: [fit[i] for fit in fits] for i, key in enumerate(keys)}
        )
    return found


def _fit(clean: np.ndarray, knockout: np.ndarray, fold: np.ndarray) -> tuple[float, float, float]:
    """Intercept, slope and spread; NaN where fewer than three samples were read."""
    read = np.isfinite(clean) & np.isfinite(knockout)
    x, y = clean[read], knockout[read]
    if len(x) < 3 or x.var() == 0:
        return (np.nan, np.nan, np.nan)
    slope, intercept = np.polyfit(x, y, 1)
    return float(intercept), float(slope), fit_line(x, y, fold[read]).spread


def halves(values: np.ndarray) -> str:
    """Numbers of any shape as base64 of half precision, row after row; NaN stays NaN.

    A number above 0 stays above 0: the sign of a logit is the prediction.
    """
    exact = np.asarray(values, dtype=np.float64)
    rounded = np.clip(exact, -_LARGEST_HALF, _LARGEST_HALF).astype("<f2")
    lost = (exact > 0) & (rounded == 0)
    return _packed(np.where(lost, np.float16(_SMALLEST_HALF), rounded), "<f2")


def _codes(values: np.ndarray | list[int]) -> str:
    """Numbers from 0 to 255 as base64."""
    return _packed(values, "u1")


def _packed(values: np.ndarray | Sequence[float], dtype: str) -> str:
    """Numbers of this type as base64."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")
