"""Identify a run: hash its questions and weights, and list its software versions."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import xxhash

from anchorscope.records import QuestionSet

_PACKAGES = (
    "anchorscope", "torch", "transformers", "scikit-learn", "numpy", "pandas", "safetensors",
)  # fmt: skip


def questions_hash(sets: Sequence[QuestionSet]) -> str:
    """Hash a run's questions (id, text, answers, subjects, entity) and worked examples."""
    rows = [(q.id, q.text, q.answers, q.subjects, q.entity) for each in sets for q in each]
    shots = [(shot.question, shot.answer) for each in sets for shot in each.shots]
    text = json.dumps([rows, shots], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_hash(lm: Any) -> str:
    """Hash every byte of every weight, to detect another model under the same name.

    32 digits, computed at each call, since weights may be changed in place: some 8 GB a second on
    a CPU.
    """
    import torch  # not needed to read a run folder

    if served := getattr(lm, "served_weights", None):  # in another program's processes
        return str(served)
    digest = xxhash.xxh3_128()
    for name, weight in _weights(lm):
        tensor = weight.detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _weights(lm: Any) -> Iterator[tuple[str, Any]]:
    """Yield each weight and saved buffer by name as a plain tensor, also offloaded or quantised."""
    saved = lm.state_dict().keys()
    buffers = ((name, buffer) for name, buffer in lm.named_buffers() if name in saved)
    for name, weight in chain(lm.named_parameters(), buffers):
        if weight.is_meta:  # accelerate keeps it in main memory or on disk until its module runs
            # Offloaded, tied weights are no longer one object: the second name is left out here.
            if name in getattr(lm, "all_tied_weights_keys", {}):
                continue
            module, _, own = name.rpartition(".")
            hook = lm.get_submodule(module)._hf_hook
            maps = [getattr(h, "weights_map", None) for h in getattr(hook, "hooks", (hook,))]
            weight = next(kept[own] for kept in maps if kept is not None)
        if hasattr(weight, "__tensor_flatten__"):  # quantised: packed values and their scales
            parts, _ = weight.__tensor_flatten__()
            yield from ((f"{name}.{part}", getattr(weight, part)) for part in parts)
        else:
            yield name, weight


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that the numbers depend on."""
    numbers = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            numbers[package] = "not installed"
    return numbers


def git_revision() -> str | None:
    """The git revision of this source tree, marked if modified; None outside a checkout."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(
            [*words, "--abbrev=12"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None
