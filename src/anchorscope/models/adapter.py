"""A PEFT adapter merged into its base model: the rest of the package sees a plain decoder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from anchorscope.errors import UserError, user_path


def adapter_name(adapter: str) -> str:
    """The name that figures write behind the base model's."""
    path = user_path(adapter)
    return path.resolve().name if path.is_dir() else adapter.rstrip("/").split("/")[-1]


def merged(lm: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """The same model with the adapter's change added to its weights, in place."""
    try:
        from peft import PeftModel
    except ImportError:
        raise UserError(
            f"The adapter '{adapter}' needs peft: pip install 'anchorscope[adapters]'."
        ) from None
    path = user_path(adapter)
    place = str(path) if path.is_dir() else adapter
    try:
        with warnings.catch_warnings():
            # Weights the file lacks would stay as they were drawn: the base under another name.
            warnings.filterwarnings("error", message=".*missing adapter keys")
            both: Any = PeftModel.from_pretrained(lm, place)
        if both.active_peft_config.is_prompt_learning:
            kind = both.active_peft_config.peft_type
            raise ValueError(f"{kind.value} adds tokens and changes no weights.")
        return both.merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError, UserWarning) as error:
        raise UserError(
            f"The adapter '{adapter}' could not be merged into {_name(lm)}: {_said(error)} "
            "Accepted: a folder or a hub id (org/name) with an adapter_config.json, made by peft "
            "for this very model, of a kind that changes weights (LoRA and its relatives)."
        ) from error


def _name(lm: PreTrainedModel) -> str:
    return Path(str(lm.config.name_or_path or type(lm).__name__)).name


def _said(error: Exception) -> str:
    """The beginning of a message, as one line with a full stop."""
    line = " ".join(str(error).split())[:240].rstrip(".: ")
    return f"{line}."
