"""peer.csv: a second model's states as a control for what a model's states say of its own answer.

Both probes are trained alike, on the same questions and folds, for the class of the first model's
answer. What any reader of the question could know (that it is hard, that its subject is rare) is in
both models' states; what only the first one's hold is the gap. Where one model is right and the
other wrong, that the question is hard explains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from anchorscope.detect.compare import aurocs
from anchorscope.detect.evaluate import evaluate, fit_reasons
from anchorscope.detect.material import Material
from anchorscope.errors import UserError
from anchorscope.probes.folds import MIN_OVERALL, MIN_PER_CLASS
from anchorscope.progress import Progress
from anchorscope.stats.intervals import holm, percentile_interval
from anchorscope.stats.ranking import paired_difference

READ = {"probe": "probe position", "question-only": "last question token"}
COLUMNS = (
    "model", "peer", "dataset", "position", "answers", "n", "wrong",
    "own", "own_low", "own_high", "of_peer", "of_peer_low", "of_peer_high",
    "gap", "gap_low", "gap_high", "p",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The answers of the first model to the questions that both answered, with either's states."""

    own: Material
    peer: Material  # the same texts and classes, the second model's states
    peer_z: np.ndarray  # [question], the class of the second model's own answer

    @property
    def subsets(self) -> dict[str, np.ndarray]:
        """Which questions are compared, [question] bool: all, and those where one is wrong."""
        return {"all": np.ones(len(self.own), dtype=bool), "disagree": self.own.z != self.peer_z}


def peer_table(
    parts: Sequence[Material],
    peers: Sequence[Material],
    *,
    model: str,
    peer: str,
    folds: int = 5,
    seed: int = 0,
    resamples: int = 2000,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """One row per dataset, position and set of answers: AUROC of either probe, and the gap.

    Folds are disjoint by entity, entities are drawn, and p is Holm's over the table.
    """
    by_name = {part.name: part for part in peers}
    rows = []
    for shared in [share(part, by_name.get(part.name)) for part in parts]:
        named = {"model": model, "peer": peer, "dataset": shared.own.name}
        scores = _scores(shared, folds=folds, seed=seed, progress=progress)
        for name, pair in scores.items():
            for answers, rows_of in shared.subsets.items():
                row = _compare(
                    shared.own.take(rows_of), [s[rows_of] for s in pair], seed, resamples
                )
                rows.append(named | {"position": READ[name], "answers": answers} | row)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.assign(p=holm(table["p"].tolist()))


def share(own: Material, peer: Material | None) -> Shared:
    """The questions of a dataset that both models answered; a UserError where they are too few."""
    # A file's questions may have changed under the same ids: the texts must be the same too.
    texts = () if peer is None else peer.texts
    place = {(text.id, text.question): n for n, text in enumerate(texts)}
    keys = [(text.id, text.question) for text in own.texts]
    rows = [(n, place[key]) for n, key in enumerate(keys) if key in place]
    z = own.z[[n for n, _ in rows]]
    fewest = min(int((z == 0).sum()), int((z == 1).sum()))
    if peer is None or fewest < MIN_OVERALL:
        raise UserError(
            f"{own.name}: the run and its peer share {len(rows)} answered questions, {fewest} of "
            f"the rarer class; {MIN_OVERALL} of each are needed. Collect the same questions with "
            "both models (the same --data, --limit and --seed)."
        )
    mine, other = (np.array(side) for side in zip(*rows, strict=True))
    first = own.take(mine)
    second = replace(first, bank=peer.bank, rows=peer.rows[other], memo={})
    return Shared(own=first, peer=second, peer_z=peer.z[other])


def _scores(
    shared: Shared, *, folds: int, seed: int, progress: Progress | None
) -> dict[str, list[np.ndarray]]:
    """The held-out scores [question] of both models' probes, by detector."""
    sides = (shared.own, shared.peer)
    names = [name for name in READ if not any(fit_reasons(side, [name]) for side in sides)]
    tables = [
        evaluate(side, names=names, splits=("entity",), folds=folds, seed=seed, progress=progress)
        for side in sides
    ]
    return {
        name: [
            table[table["detector"] == name].set_index("id")["score"].loc[list(side.ids)].to_numpy()
            for table, side in zip(tables, sides, strict=True)
        ]
        for name in names
    }


def _compare(
    answers: Material, scores: Sequence[np.ndarray], seed: int, resamples: int
) -> dict[str, Any]:
    """Both AUROCs and their paired difference; no numbers below MIN_PER_CLASS of a class."""
    z = answers.z
    found: dict[str, Any] = {"n": len(z), "wrong": int(z.sum())}
    if min(found["wrong"], found["n"] - found["wrong"]) < MIN_PER_CLASS:
        return found | {"p": np.nan}
    value, draws = aurocs(
        z,
        dict(zip(("own", "of_peer"), scores, strict=True)),
        entity=np.array(answers.entities),
        seed=seed,
        resamples=resamples,
    )
    for side, drawn in draws.items():
        area = percentile_interval(value[side], drawn, len(z))
        found |= {side: value[side], f"{side}_low": area.low, f"{side}_high": area.high}
    gap = paired_difference(value["own"], value["of_peer"], draws["own"] - draws["of_peer"])
    return found | {"gap": gap.value, "gap_low": gap.low, "gap_high": gap.high, "p": gap.p}
