"""Cache the proof that a model passes all checks, in memory and on disk.

A proof holds for these weights and this config, on this device with these versions, and for this
source of the engine. Where one of them differs, the model is proved again. `doctor` always proves.
"""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import nn

import anchorscope
from anchorscope.engine.batches import ModelFacts, facts_of, set_facts
from anchorscope.engine.check.checks import check_model
from anchorscope.errors import UserError
from anchorscope.models import Model
from anchorscope.run_folder.disk import write_atomic
from anchorscope.run_folder.identity import versions, weights_hash
from anchorscope.run_folder.remote import cache_folder

_PROVED: dict[str, ModelFacts] = {}  # by `_key`
_HASHES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # of weights, as first seen


def require_understood(model: Model, *, weights: str | None = None) -> None:
    """Check a model once and cache the proof; raise a UserError that names the failed checks.

    `weights` is the hash of the weights, where it was computed already.
    """
    if weights is not None or model.lm not in _HASHES:
        _HASHES[model.lm] = weights or weights_hash(model.lm)
    key = _key(model)
    file = cache_folder() / "proofs" / f"{key}.json"
    facts, proved = facts_of(model.lm), _PROVED.get(key) or _stored(file)
    if proved is None:
        failed = [check for check in check_model(model) if not check.ok]
        if failed:
            seen = "; ".join(f"{check.name}: no ({check.seen})" for check in failed)
            raise UserError(
                f"{model.name} is not understood, so its numbers would mean nothing: {seen}. "
                f"`anchorscope doctor --model {model.source}` shows every check."
            )
        proved = replace(facts_of(model.lm), bounds=None)
        with suppress(OSError):  # a full or read-only cache only makes the next run prove it again
            write_atomic(file, json.dumps(asdict(proved)) + "\n")
    elif (facts.proved or 0) > (proved.proved or 0):  # longer packs were tried since
        proved = replace(proved, proved=facts.proved, largest=facts.largest)
    _PROVED[key] = proved
    set_facts(model.lm, proved)


def _stored(file: Path) -> ModelFacts | None:
    """The proof that an earlier process stored; None where there is none."""
    try:
        return ModelFacts(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _key(model: Model) -> str:
    """A hash of all that a proof depends on; weights changed in place are not read again."""
    # The processor or GPU that computes, as far as rounding depends on it.
    device = [str(model.device), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if model.device.type == "cuda":
        gpu = torch.cuda.get_device_properties(model.device)
        device += [gpu.name, str(gpu.total_memory)]
    holds_for = {
        "weights": _HASHES[model.lm],
        "config": model.lm.config.to_dict(),
        "dtype": str(model.dtype),
        "device": [*device, str(getattr(model.lm, "hf_device_map", ""))],
        "engine": _versions_and_source(),
    }
    text = json.dumps(holds_for, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _versions_and_source() -> str:
    """The versions, and a hash of the files that decide what the engine computes."""
    digest = hashlib.sha256(json.dumps(versions()).encode())
    root = Path(anchorscope.__file__).parent
    for file in sorted([*(root / "engine").rglob("*.py"), *(root / "models").rglob("*.py")]):
        digest.update(file.relative_to(root).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
