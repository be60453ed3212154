"""Keep the proof of a model on disk, so that a second run of it does not prove it again.

A proof holds for these weights and this config, on this device with these versions, and for this
source of the engine. Where one of them differs, the model is proved again. `doctor` always proves.
"""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

import anchorscope
from anchorscope.engine.check.packs import proved_up_to
from anchorscope.engine.limits.bounds import Bounds, Noted
from anchorscope.models import Model
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.identity import versions
from anchorscope.run_folder.remote import cache_folder


def load_proof(model: Model, weights: str) -> Noted | None:
    """What an earlier process found out about the model; None where none has proved it."""
    try:
        noted = json.loads(_file(model, weights).read_text(encoding="utf-8"))
        return Noted(
            bounds=None if noted["bounds"] is None else Bounds(*noted["bounds"]),
            largest=noted["largest"],
            proved=proved_up_to(noted["tokens"], limit=noted["limit"]),
            fused=noted["fused"],
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def save_proof(model: Model, weights: str, noted: Noted) -> None:
    """Keep what was found out about a model that passed every check."""
    if noted.proved is None:
        return
    facts = {
        "bounds": noted.bounds,
        "largest": noted.largest,
        "fused": noted.fused,
        "tokens": noted.proved.tokens,
        "limit": noted.proved.limit,
    }
    with suppress(OSError):  # a full or read-only cache costs the next run its proof, no more
        write_atomic(_file(model, weights), json.dumps(facts) + "\n")


def _file(model: Model, weights: str) -> Path:
    holds_for = {
        "weights": weights,
        "config": model.lm.config.to_dict(),
        "dtype": str(model.dtype),
        "device": _device(model),
        "versions": versions(),
        "source": _source_hash(),
    }
    text = json.dumps(holds_for, sort_keys=True, default=str)
    return cache_folder() / "proofs" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _device(model: Model) -> list[str]:
    """What computes: the kind of processor or GPU, and how its numbers are rounded."""
    name = [str(model.device), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if model.device.type == "cuda":
        facts = torch.cuda.get_device_properties(model.device)
        name += [facts.name, str(facts.total_memory)]
    devices = getattr(model.lm, "hf_device_map", None)
    return [*name, str(devices or "")]


@cache
def _source_hash() -> str:
    """A hash of the files that decide what the engine computes."""
    digest = hashlib.sha256()
    root = Path(anchorscope.__file__).parent
    for folder in ("engine", "models"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
