"""The trained probes of one model and dataset, in memory and on disk (no pickle)."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from anchorscope.errors import UserError
from anchorscope.probes.probe import Balance

FORMAT = 1
_WEIGHTS, _ABOUT = "probes.safetensors", "probes.json"


@dataclass(frozen=True, kw_only=True)
class ProbeSet:
    """Weights of every probe; logit of z = 1 is state · weights + intercept."""

    probes: tuple[str, ...]  # ("paper", "a", "b")
    weights: np.ndarray  # [probe, fold, layer, width] float32
    intercept: np.ndarray  # [probe, fold, layer] float64
    n_train: np.ndarray  # [probe, fold] int, questions learnt from
    C: float
    balance: Balance

    def __post_init__(self) -> None:
        shape = self.weights.shape
        if (
            len(shape) != 4
            or self.intercept.shape != shape[:3]
            or self.n_train.shape != shape[:2]
            or len(self.probes) != shape[0]
        ):
            raise UserError(
                f"Probes that do not belong together: weights {shape}, intercept "
                f"{self.intercept.shape}, n_train {self.n_train.shape}, probes {self.probes}."
            )

    def save(self, folder: str | Path) -> None:
        """Write the probes under `folder`, complete or not at all."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        unfinished = folder / f".{_WEIGHTS}.tmp"
        save_file(arrays, unfinished)
        about = {
            "format": FORMAT,
            "probes": list(self.probes),
            "C": self.C,
            "balance": self.balance,
            # Ties the two files together: a stop between the two renames is noticed on reading.
            "sha256": _digest(unfinished),
        }
        os.replace(unfinished, folder / _WEIGHTS)
        unfinished = folder / f".{_ABOUT}.tmp"
        unfinished.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        os.replace(unfinished, folder / _ABOUT)

    @classmethod
    def load(cls, folder: str | Path) -> ProbeSet:
        """The probes that `save` wrote under `folder`."""
        folder = Path(folder)
        try:
            about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            if about["format"] != FORMAT:
                raise _unreadable(folder, f"format {about['format']} is not {FORMAT}")
            if about["sha256"] != _digest(folder / _WEIGHTS):
                raise _unreadable(folder, f"{_WEIGHTS} is not the file {_ABOUT} was written for")
            arrays = load_file(folder / _WEIGHTS)
            return cls(
                probes=tuple(about["probes"]),
                C=about["C"],
                balance=about["balance"],
                **{name: arrays[name] for name in _ARRAYS},
            )
        except FileNotFoundError as error:
            raise _unreadable(folder, f"{Path(error.filename).name} is missing") from error
        except (json.JSONDecodeError, SafetensorError, KeyError, TypeError) as error:
            raise _unreadable(folder, f"a file is damaged ({error})") from error


_ARRAYS = ("weights", "intercept", "n_train")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _unreadable(folder: Path, why: str) -> UserError:
    return UserError(f"No probes could be read from {folder}: {why}. Train them again.")
