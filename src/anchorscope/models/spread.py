"""A model spread over several devices by accelerate, and where its parts are."""

from __future__ import annotations

import weakref
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

Memory = dict[int | str, int | str] | None  # bytes that a device may hold; None: what is free


def read_spread(place: str, *, memory: Memory = None, **options: Any) -> PreTrainedModel:
    """The model, read straight onto all devices; what they cannot hold stays on disk."""
    folder = TemporaryDirectory(prefix="anchorscope-")
    lm = AutoModelForCausalLM.from_pretrained(
        place, device_map="auto", max_memory=memory, offload_folder=folder.name, **options
    )
    weakref.finalize(lm, folder.cleanup)
    return lm


def spread_out(lm: Any, *, memory: Memory = None) -> Any:
    """The same model, now whole in main memory, over all devices."""
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole: dict[str, Any] = {"no_split_module_classes": list(lm._no_split_modules or ())}
    free: Any = memory or get_balanced_memory(lm, **whole)
    folder = TemporaryDirectory(prefix="anchorscope-")
    places = infer_auto_device_map(lm, max_memory=free, **whole)
    dispatch_model(lm, places, offload_dir=folder.name)
    weakref.finalize(lm, folder.cleanup)
    return lm


def first_device(lm: Any) -> torch.device:
    """Where a model takes its tokens: that of its embedding, which may be offloaded in between."""
    embedding = lm.get_input_embeddings()
    hook = getattr(embedding, "_hf_hook", None)
    hooks: Any = getattr(hook, "hooks", (hook,))
    for one in hooks:
        if getattr(one, "execution_device", None) is not None:
            return torch.device(one.execution_device)
    return next(embedding.parameters()).device


def devices_of(lm: Any) -> str:
    """The devices that hold the model's weights, in words: "cuda:0, cuda:1, disk"."""
    places = getattr(lm, "hf_device_map", {}).values()
    names = dict.fromkeys(f"cuda:{p}" if isinstance(p, int) else str(p) for p in places)
    return ", ".join(names) or str(first_device(lm))
