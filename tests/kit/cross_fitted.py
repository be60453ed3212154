"""Cross-fit probes on states in memory, with labels and folds given one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anchorscope.config import Config
from anchorscope.probes.cross_fit import fit_and_read_layer, readings_of, stacked
from anchorscope.probes.folds import Covariates, Labelled, check_enough
from anchorscope.probes.probe_set import ProbeSet, Readings


def cross_fit(
    states: Mapping[str, np.ndarray],
    *,
    ids: Sequence[str],
    z: np.ndarray,
    fold: np.ndarray,
    entity: Sequence[str] | None = None,
    dataset: str = "The data",
    calibrate: bool = True,
    **options,
) -> tuple[Readings, ProbeSet]:
    """Readings and probes of all layers of states [question, layer, width], by pass.

    `options` are those of the config: C and balance.
    """
    check_enough(z, fold, dataset=dataset)
    nothing, entities = np.full(len(ids), np.nan), None if entity is None else np.array(entity)
    answers = Labelled(
        dataset=dataset, ids=tuple(ids), z=z, fold=fold, entities=tuple(entity or ids),
        covariates=Covariates(nothing, nothing, entity=entities),
    )  # fmt: skip
    layers = [
        fit_and_read_layer(
            {name: own[:, k] for name, own in states.items()}, answers, Config(**options),
            layer=k + 1, calibrate=calibrate,
        )
        for k in range(states["clean"].shape[1])
    ]  # fmt: skip
    readings = readings_of(answers, [logits for _, logits in layers])
    return readings, stacked([probes for probes, _ in layers])
