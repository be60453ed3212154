"""The probe that never saw a question, as evidence reads with it: one layer, one fold each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anchorscope.errors import UserError
from anchorscope.probes.probeset import ProbeSet


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The paper probe of a dataset at one layer; each question is read by the fold without it."""

    probes: ProbeSet
    fold: Mapping[str, int]  # by question id
    layer: int  # k, from 1

    def __post_init__(self) -> None:
        layers = self.probes.weights.shape[2]
        if not 1 <= self.layer <= layers:
            raise UserError(f"Layer {self.layer} has no probe. Accepted: 1 to {layers}.")

    def weights(self, ids: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
        """Weights [question, width] and intercepts [question] for these questions, float32."""
        fold = [self.fold[id] for id in ids]
        probe = self.probes.probes.index("paper")
        weights = self.probes.weights[probe, fold, self.layer - 1]
        intercept = self.probes.intercept[probe, fold, self.layer - 1].astype(np.float32)
        return torch.tensor(weights, device=device), torch.tensor(intercept, device=device)

    def logits(self, ids: Sequence[str], states: Tensor) -> Tensor:
        """The logit of z = 1 [question] from states [question, layer, width]."""
        weights, intercept = self.weights(ids, states.device)
        return (states[:, self.layer - 1].float() * weights).sum(dim=-1) + intercept
