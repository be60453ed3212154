"""The trained probes of one model and dataset, in memory and on disk (no pickle), and readings.

A reading is the logit that a probe gives a question it was not trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from anchorscope.config import Balance
from anchorscope.errors import UserError, unknown
from anchorscope.run_folder.disk import write_atomic

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
NO_CLASS = -1  # neither right nor wrong, and in no fold
_WEIGHTS, _ABOUT = "probes.safetensors", "probes.json"
_ARRAYS = ("weights", "intercept", "n_train")
_FIELDS = ("probes", "C", "balance", "calibrated")


@dataclass(frozen=True, kw_only=True)
class ProbeSet:
    """Weights of every probe; logit of z = 1 is state · weights + intercept."""

    probes: tuple[str, ...]  # ("paper", "a", "b")
    weights: np.ndarray  # [probe, fold, layer, width] float32
    intercept: np.ndarray  # [probe, fold, layer] float64
    n_train: np.ndarray  # [probe, fold] int, questions learnt from
    C: float  # against the mean of the losses
    balance: Balance
    calibrated: bool = False  # whether logits are Platt's, fitted on held-out questions

    @property
    def folds(self) -> int:
        return self.weights.shape[1]

    @property
    def layers(self) -> int:
        return self.weights.shape[2]

    def at_layer(self, layer: int) -> ProbeSet:
        """The probes of layer k alone, from 1."""
        one = slice(layer - 1, layer)
        return replace(self, weights=self.weights[:, :, one], intercept=self.intercept[:, :, one])

    def logits(self, states: np.ndarray, fold: np.ndarray) -> np.ndarray:
        """Logits of z = 1 by every probe, [probe, question, layer].

        `states` are [question, layer, width]; a question of fold f is read by the probes that
        held f out. A state that is NaN gives NaN.
        """
        kinds, folds, layers, _ = self.weights.shape
        logits = np.full((kinds, len(states), layers), np.nan)
        for layer, held_out in np.ndindex(layers, folds):
            rows = fold == held_out
            x = np.asarray(states[rows, layer], dtype=np.float64)  # a fold at a time: little memory
            weights = self.weights[:, held_out, layer].astype(np.float64)  # [probe, width]
            logits[:, rows, layer] = weights @ x.T + self.intercept[:, held_out, layer, None]
        return logits

    def mean_logits(self, states: np.ndarray) -> np.ndarray:
        """Mean logits over the folds' probes, for questions that no probe learnt from.

        A mean of linear probes is the probe of the mean weights; it varies less than one fold's
        probe, so it flips a little less by noise.
        """
        weights = self.weights.mean(axis=1, dtype=np.float64)  # [probe, layer, width]
        logits = np.einsum("qlw,plw->pql", np.asarray(states, dtype=np.float64), weights)
        return logits + self.intercept.mean(axis=1)[:, None]

    def tensor_logits(
        self, states: Tensor, *, probe: str, layer: int, fold: Sequence[int]
    ) -> Tensor:
        """One probe's logit at one layer [question], from tensors [question, layer, width].

        Differentiable, on the states' own device, each question read by its own fold's probe.
        """
        import torch

        kind, k = self.probes.index(probe), layer - 1
        weights = torch.tensor(self.weights[kind, fold, k], device=states.device)
        intercept = self.intercept[kind, fold, k].astype(np.float32)
        read = (states[:, k].float() * weights).sum(dim=-1)
        return read + torch.tensor(intercept, device=states.device)

    def save(self, folder: str | Path) -> None:
        """Write the probes under `folder`, complete or not at all."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        weights = save(arrays)
        description = {"format": FORMAT} | {name: getattr(self, name) for name in _FIELDS}
        # Ties the two files together: a stop between the two renames is noticed on reading.
        description["sha256"] = hashlib.sha256(weights).hexdigest()
        write_atomic(Path(folder) / _WEIGHTS, weights)
        write_atomic(Path(folder) / _ABOUT, json.dumps(description, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> ProbeSet:
        """Load the probes that `save` wrote under `folder`."""
        folder = Path(folder)
        try:
            description = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            weights = (folder / _WEIGHTS).read_bytes()
            if description["format"] != FORMAT:
                raise ValueError(f"format {description['format']} is not {FORMAT}")
            if description["sha256"] != hashlib.sha256(weights).hexdigest():
                raise ValueError(f"{_WEIGHTS} is not the file {_ABOUT} was written for")
            fields = {name: description[name] for name in _FIELDS}
            fields["probes"] = tuple(fields["probes"])
            arrays: dict[str, Any] = load(weights)
            return cls(**fields, **arrays)
        except (OSError, ValueError, SafetensorError, KeyError, TypeError) as error:
            raise UserError(
                f"No probes could be read from {folder}: a file is missing or damaged ({error}). "
                "Train them again."
            ) from error


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Logits of z = 1 (wrong) that each probe gives each question it was not trained on."""

    ids: tuple[str, ...]
    z: np.ndarray  # [question] int, 1 = wrong, 0 = right
    fold: np.ndarray  # [question] int
    probes: tuple[str, ...]  # ("paper", "a", "b")
    # intervention -> [probe, question, layer] float64; NaN: no state for that question.
    logits: Mapping[str, np.ndarray]
    entity: np.ndarray | None = None  # [question] text; None: every question has its own

    @property
    def layers(self) -> int:
        return self.logits["clean"].shape[2]

    @property
    def entity_by_id(self) -> dict[str, str]:
        """The entity of each question, by its id; the id itself where none is known."""
        entity = self.ids if self.entity is None else self.entity.tolist()
        return dict(zip(self.ids, entity, strict=True))

    @property
    def layer_numbers(self) -> range:
        """The layers k, from 1."""
        return range(1, self.layers + 1)

    def at(self, layer: int, probe: str, intervention: str = "clean") -> np.ndarray:
        """The logits of one probe at layer k (from 1) under one intervention, [question]."""
        return self.of(probe, intervention)[:, layer - 1]

    def of(self, probe: str, intervention: str = "clean") -> np.ndarray:
        """The logits of one probe under one intervention, [question, layer]."""
        if intervention not in self.logits:
            raise unknown("intervention", intervention, self.logits)
        return self.logits[intervention][self.probes.index(probe)]


def read_abstained(
    probes: ProbeSet,
    states: Mapping[str, np.ndarray],
    *,
    ids: Sequence[str],
    entity: np.ndarray | None = None,
) -> Readings:
    """Readings of abstentions, from states [question, layer, width] of each pass.

    They have no class to learn, so no probe was trained on them and every fold's may read them.
    """
    none = np.full(len(ids), NO_CLASS)
    return Readings(
        ids=tuple(ids),
        z=none,
        fold=none,
        probes=probes.probes,
        logits={name: probes.mean_logits(own) for name, own in states.items()},
        entity=entity,
    )
