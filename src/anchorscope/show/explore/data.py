"""What the page holds of a run: a head with the figure, and blocks of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np

from anchorscope.answers.kind import KINDS, Kind, kind_of
from anchorscope.engine.passes import CLEAN
from anchorscope.records import MODES, Sample, Verdict
from anchorscope.run_folder.view import RunView, records
from anchorscope.show.curves import INTERVENTIONS, PALETTE, color_of
from anchorscope.show.explore import effect_curves, packed
from anchorscope.show.explore.stored_beliefs import Beliefs, beliefs_of, layers_of
from anchorscope.show.explore.token_texts import NoTokens, Tokens, tokens_of

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
_FORMS = (("knockout-", "cut otherwise: "), ("reweight", "attention reweighted, β "),
          ("rescale", "attention rescaled, β "))  # fmt: skip
_CUT = {"exact": "the exact question tokens", "question": "all question tokens"}


@dataclass(frozen=True)
class RunData:
    """One run as the page reads it; every value can be written as JSON."""

    head: dict[str, Any]
    blocks: list[dict[str, Any]]
    samples: int


def run_data(run: RunView, titles: Mapping[str, str], *, name: str | None = None) -> RunData:
    """The run's part of the page; `titles` are the datasets of all runs, in colour order.

    `name` is what the page calls the model, where its own name would not do.
    """
    samples, beliefs = run.answers, beliefs_of(run)
    tokens = tokens_of(samples, run.model)
    head = {
        "model": name or run.model_name,
        "layers": layers_of(run),
        "unit": run.unit,
        "start": _start(run),
        "findings": _findings(run),
        "modes": list(MODES),
        "verdicts": list(VERDICTS),
        "types": list(KINDS),
        "knocked_out": _CUT.get(str(run.config.get("keys", "exact")), ""),
        "datasets": _datasets(run, titles),
        "passes": _passes(beliefs),
        **effect_curves.all_modes(run, titles, beliefs),
        **_token_head(tokens),
    }
    starts = range(0, len(samples), BLOCK)
    names = [of["name"] for of in head["datasets"]]
    blocks = [_block(samples, beliefs, tokens, slice(at, at + BLOCK), names) for at in starts]
    return RunData(head, blocks, len(samples))


def _start(run: RunView) -> int:
    """The layer to open at: the first finding's, or the middle one."""
    found = _findings(run)
    return int(found[0]["layer"]) if found else (layers_of(run) + 1) // 2


def _findings(run: RunView) -> list[dict[str, Any]]:
    if not run.has_strict:
        return []
    return [
        {"dataset": row["dataset"], "layer": int(row["layer"]), "finding": row["finding"],
         "why": row["why"]}
        for row in records(run.findings)
        if row["layer"] == row["layer"]
    ]  # fmt: skip


def _datasets(run: RunView, titles: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {"name": name, "title": title, "Q": color_of(at), "A": color_of(at)}
        for at, (name, title) in enumerate(titles.items())
        if name in run.titles
    ]


def _passes(beliefs: Beliefs) -> list[dict[str, Any]]:
    """Every pass with a name and a colour; the page draws `clean` in its own ink.

    Passes that every run makes stand first, the `further` ones behind them.
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
    here = samples[at]
    return {
        "n": len(here),
        **_texts(here, names),
        "logits": {
            name: {mode: packed.halves(of[mode][at]) for mode in MODES}
            for name, of in beliefs.logits.items()
        },
        "pathway": {mode: packed.codes(beliefs.pathway[mode][at]) for mode in MODES},
        **_packed_tokens(tokens, at),
    }


def _texts(samples: Sequence[Sample], datasets: Sequence[str]) -> dict[str, Any]:
    return {
        "id": [s.id for s in samples],
        "question": [s.question.text for s in samples],
        "answer": [s.answer.text for s in samples],
        "accepted": [list(s.question.answers) for s in samples],
        "relation": [s.question.relation or "" for s in samples],
        "finder": [s.finder for s in samples],
        "spans": [[list(span) for span in s.spans] for s in samples],
        "answer_span": [list(s.answer_span) if s.answer_span else None for s in samples],
        "dataset": packed.codes([datasets.index(s.question.dataset) for s in samples]),
        "verdict": packed.codes([VERDICTS.index(s.verdict) for s in samples]),
        "type": packed.codes([_type(s) for s in samples]),
        "popularity": packed.floats(
            np.nan if s.question.popularity is None else s.question.popularity for s in samples
        ),
    }


def _packed_tokens(tokens: Tokens | NoTokens, at: slice) -> dict[str, str]:
    if isinstance(tokens, NoTokens):
        return {}
    ids, roles = tokens.ids[at], tokens.roles[at]
    return {
        "token_counts": packed.integers(len(of) for of in ids),
        "tokens": packed.integers(id for of in ids for id in of),
        "roles": packed.codes(np.concatenate(roles)),
    }


def _type(sample: Sample) -> int:
    """The number of the answer's kind; one that only the owner of the states knows is "other"."""
    kind = kind_of(sample)
    return KINDS.index(cast(Kind, kind)) if kind in KINDS else KINDS.index("other")
