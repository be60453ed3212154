"""Write the page of all samples of a run, or of two side by side: one self-contained file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np

from anchorscope.engine.interventions import CLEAN, KNOCKOUT, QUESTION_ONLY
from anchorscope.errors import UserError, user_path
from anchorscope.pathways.effects import ROLES
from anchorscope.pathways.one_law import fit_line
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import MODES, Mode, Sample, Verdict
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.view import RunView, records, values, where
from anchorscope.show.charts import (
    INTERVENTIONS,
    PALETTE,
    all_titles,
    chart_data,
    color_of,
    middle_halves,
)
from anchorscope.show.figures import delta_p_chart
from anchorscope.show.html import island, render_page
from anchorscope.show.token_texts import tokens_of
from anchorscope.spans.answer import KINDS, kind_of

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_SCRIPTS = ("runs", "curves", "scatter", "figures", "filters", "table", "sample", "main")
_NAMES = {
    "patch-matched": "subject of a matched donor",
    "patch-random": "subject of a random donor",
    "patch-other": "other tokens patched",
    "patch-self": "patched with itself",
    "window-5": "cut in the last 5 blocks",
    "single": "cut in one block",
}
# The states at the last question token are another position's: these probes do not read them.
_NOT_READ = frozenset({CLEAN.name, KNOCKOUT.name, QUESTION_ONLY})
Logits = dict[str, dict[Mode, np.ndarray]]  # pass -> mode -> [sample, layer]
_LARGEST_HALF = 65504.0
_SMALLEST_HALF = float(np.finfo(np.float16).smallest_subnormal)
_CUT = {"exact": "the exact question tokens", "question": "all question tokens"}


def write_view(runs: Sequence[RunView], out: str | Path | None = None) -> Path:
    """Write the page of one finished run, or of two side by side, atomically; return its path."""
    if not 1 <= len(runs) <= 2:
        raise UserError(f"{len(runs)} runs were given. Accepted: one run, or two side by side.")
    if not set.intersection(*(set(values(run.samples, "id")) for run in runs)):
        raise UserError(
            f"'{runs[0].path}' and '{runs[-1].path}' share no question: they are joined by "
            "question id. Give two runs of the same questions, or one run."
        )
    titles, models = all_titles(runs), [run.model_name for run in runs]
    # Each run is a panel of its own; both are on one y range, strict mode's views first.
    views = chart_data(delta_p_chart(runs))["views"]
    data = []
    for number, run in enumerate(runs):
        own: dict[Mode, Any] = {"strict": views[number], "paper": views[len(runs) + number]}
        name = run.model_name
        if models.count(name) > 1:
            name = f"{name} ({run.path.resolve().name})"
        data.append(island(f"run-{number}", run_data(run, titles, own, name=name)))
    whole = render_page(
        "view.html",
        css="view/view.css",
        scripts=("text", "chart", *(f"view/{name}" for name in _SCRIPTS)),
        inline_styles=False,
        kind="view",
        title=f"{' and '.join(models)}: every sample",
        data=data,
    )
    page = user_path(out) if out is not None else runs[0].path / "view.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        return write_atomic(page, whole)
    except OSError as error:
        raise UserError(
            f"{page} cannot be written: {error.strerror}. Choose another --out."
        ) from error


def run_data(
    run: RunView, titles: Mapping[str, str], views: Mapping[Mode, Any], *, name: str
) -> dict[str, Any]:
    """The data of a run for the page, ready for JSON: texts as lists, numbers as base64.

    `titles` are the datasets of all runs, in colour order; `views` the run's ΔP chart by mode;
    `name` is what the page calls the model.
    """
    samples, beliefs = run.answers, beliefs_of(run)
    datasets = [
        {"name": name, "title": title, "color": color_of(at)}
        for at, (name, title) in enumerate(titles.items())
        if name in run.titles
    ]
    names = [dataset["name"] for dataset in datasets]
    shown = ("dataset", "layer", "finding", "why")
    findings = [{key: row[key] for key in shown} for row in records(run.findings)]
    popularity = [s.question.popularity for s in samples]
    return {
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
        "bands": [_bands(run, dataset["name"]) for dataset in datasets],
        "lines": {mode: lines(run, beliefs, mode) for mode in MODES},
        "n": len(samples),
        "id": [s.id for s in samples],
        "question": [s.question.text for s in samples],
        "answer": [s.answer.text for s in samples],
        "accepted": [list(s.question.answers) for s in samples],
        "relation": [s.question.relation or "" for s in samples],
        "finder": [s.finder for s in samples],
        "spans": [[list(span) for span in s.spans] for s in samples],
        "answer_span": [list(s.answer_span) if s.answer_span else None for s in samples],
        "dataset": _packed([names.index(s.question.dataset) for s in samples], "u1"),
        "verdict": _packed([VERDICTS.index(s.verdict) for s in samples], "u1"),
        "type": _packed([_type(s) for s in samples], "u1"),
        "popularity": _packed([np.nan if p is None else p for p in popularity], "<f4"),
        "logits": {
            name: {mode: halves(logits) for mode, logits in by_mode.items()}
            for name, by_mode in beliefs.logits.items()
        },
        "group": {mode: _packed(codes, "u1") for mode, codes in beliefs.pathway.items()},
        **_tokens(run, samples),
    }


def _bands(run: RunView, dataset: str) -> dict[Mode, list[Any]]:
    """The middle half of knocked-out P(wrong) of each group: by mode [layer][class][group]."""
    halves, layers = middle_halves(where(run.pathways, dataset=dataset)), layers_of(run)
    return {
        mode: [
            [{group: halves.get((mode, layer, z, group)) for group in "QA"} for z in (0, 1)]
            for layer in range(1, layers + 1)
        ]
        for mode in MODES
    }


def _passes(beliefs: Beliefs) -> list[dict[str, Any]]:
    """Name, label and colour of every pass; the page draws `clean` in its text colour.

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
    if name in INTERVENTIONS:
        label = INTERVENTIONS[name][0]
        return f"{label} cut" if label.endswith(("tokens", "words")) else label
    for start, words in (
        ("knockout-", "cut otherwise: "),
        ("reweight", "attention reweighted, β "),
    ):
        if name.startswith(start):
            return words + name.removeprefix(start)
    return _NAMES.get(name, name)


def _type(sample: Sample) -> int:
    """The number of the answer's kind in `KINDS`; an unknown kind counts as "other"."""
    kind = kind_of(sample)
    return KINDS.index(kind if kind in KINDS else "other")  # type: ignore[arg-type]


def _tokens(run: RunView, samples: Sequence[Sample]) -> dict[str, Any]:
    """The samples' tokens as text, or the reason why they are not known."""
    tokens = tokens_of(samples, run.model)
    if isinstance(tokens, str):
        return {"no_tokens": tokens}
    return {
        "vocabulary": {str(id): text for id, text in tokens.texts.items()},
        "shared": {name: list(ids) for name, ids in tokens.shared.items()},
        "token_counts": _packed([len(each) for each in tokens.ids], "<i4"),
        "tokens": _packed(list(chain(*tokens.ids)), "<i4"),
        "roles": _packed(np.concatenate(tokens.roles), "u1"),
    }


def lines(run: RunView, beliefs: Beliefs, mode: Mode) -> list[dict[str, Any]]:
    """The one-mechanism line of each dataset by layer: knocked-out logit on the clean one.

    The null fits a line for each fold's probe; `spread` is that of its residuals. The drawn line
    is the least-squares line through the samples of all folds; NaN for fewer than three samples.
    """
    datasets = values(run.samples, "dataset").to_numpy()
    fold = values(run.samples, "fold").fillna(0).to_numpy(int)
    clean, knockout = (beliefs.logits[name][mode] for name in (CLEAN.name, KNOCKOUT.name))
    found = []
    for name in run.titles:
        line = {"intercept": [], "slope": [], "spread": []}
        for x, y in zip(clean.T, knockout.T, strict=True):
            read = (datasets == name) & np.isfinite(x) & np.isfinite(y)
            slope = intercept = spread = np.nan
            if read.sum() >= 3 and x[read].var() > 0:
                slope, intercept = np.polyfit(x[read], y[read], 1)
                spread = fit_line(x[read], y[read], fold[read]).spread
            for key, value in zip(line, (intercept, slope, spread), strict=True):
                line[key].append(float(value))
        found.append({"dataset": name, **line})
    return found


def halves(values: np.ndarray) -> str:
    """Encode numbers of any shape as base64 of half precision, row by row; NaN stays NaN.

    A number above 0 stays above 0: the sign of a logit is the prediction.
    """
    exact = np.asarray(values, dtype=np.float64)
    rounded = np.clip(exact, -_LARGEST_HALF, _LARGEST_HALF).astype("<f2")
    lost = (exact > 0) & (rounded == 0)
    return _packed(np.where(lost, np.float16(_SMALLEST_HALF), rounded), "<f2")


def _packed(values: np.ndarray | Iterable[float], dtype: str) -> str:
    """Encode numbers as base64 of this dtype."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")


# --- Beliefs: the run's probes under every pass whose states are stored ---


@dataclass(frozen=True)
class Beliefs:
    """Logits of "wrong" [sample, layer] in the order of `ids`; NaN where no probe read a sample."""

    ids: tuple[str, ...]
    logits: Logits
    pathway: Mapping[Mode, np.ndarray]  # [sample, layer]: 0 not read, 1 Q, 2 A


def beliefs_of(run: RunView) -> Beliefs:
    """The logits of a run under every stored pass, with the pathways.

    Clean and knocked out come from pathways.parquet, the other passes from states and probes.
    """
    ids, layers = tuple(map(str, values(run.samples, "id"))), layers_of(run)
    pathway = values(run.pathways, "pathway")
    table = run.pathways.assign(group=(pathway == "Q") + 2.0 * (pathway == "A"))

    def by_mode(column: str) -> dict[Mode, np.ndarray]:
        """The column as [sample, layer]; NaN for samples that are not in the table."""
        return {
            mode: where(table, mode=mode)
            .pivot(index="id", columns="layer", values=column)
            .reindex(index=list(ids), columns=range(1, layers + 1))
            .to_numpy(float)
            for mode in MODES
        }

    logits = {CLEAN.name: by_mode("logit_clean"), KNOCKOUT.name: by_mode("logit_knockout")}
    pathways: dict[Mode, np.ndarray] = {
        mode: np.nan_to_num(codes).astype(np.uint8) for mode, codes in by_mode("group").items()
    }
    return Beliefs(ids, logits | _from_states(run, ids, layers), pathways)


def layers_of(run: RunView) -> int:
    """The number of layers that the run's probes read."""
    return int(values(run.layers, "layer").max())


def _from_states(run: RunView, ids: tuple[str, ...], layers: int) -> Logits:
    """The logits under the further passes; none where the folder holds no states or probes."""
    probes = {
        dataset: ProbeSet.load(folder)
        for dataset in run.datasets
        if (folder := run.path / "probes" / dataset).is_dir()
    }
    if not probes or "fold" not in run.samples.columns or not (run.path / "states").is_dir():
        return {}
    folds = values(run.samples, "fold").astype("Float64").to_numpy(float, na_value=np.nan)
    datasets = values(run.samples, "dataset").to_numpy()
    rows = {d: np.flatnonzero((datasets == d) & ~np.isnan(folds)) for d in probes}
    bank, order = StateBank(run.path, list(ids)), list(INTERVENTIONS)
    # The passes of every run first, then the others by name.
    names = sorted(
        bank.names - _NOT_READ, key=lambda n: (order.index(n) if n in order else len(order), n)
    )
    logits: Logits = {n: {m: np.full((len(ids), layers), np.nan) for m in MODES} for n in names}
    for name in names:
        for layer in range(1, layers + 1):
            states = bank.layer(name, layer)
            for dataset, own in probes.items():
                at = rows[dataset]
                fold = folds[at].astype(int)
                read = own.at_layer(layer).logits(states[at][:, None], fold)[:, :, 0]
                for mode in MODES:
                    logits[name][mode][at, layer - 1] = read[own.probes.index(ROLES[mode].effect)]
    return logits
