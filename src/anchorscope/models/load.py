"""Load a model: a hub id, a folder, a .gguf file, `bundled`, or one that is already loaded."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from anchorscope.errors import UserError, did_you_mean, in_a_line, user_path
from anchorscope.models.device import (
    Choice,
    choose,
    devices_of,
    first_device,
    read_spread,
    spread_out,
)
from anchorscope.models.gguf import convert_once
from anchorscope.models.locate import WEIGHTS, find_model
from anchorscope.models.parts import Parts, find_parts
from anchorscope.progress import without_library_bars

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """A causal language model with its tokenizer and the names of its parts."""

    name: str  # as figures write it
    source: str  # as the user gave it
    revision: str | None
    lm: PreTrainedModel
    tokenizer: Any
    parts: Parts
    why: str  # the reason for device and dtype
    adapter: str | None = None  # as the user gave it; its change is in the weights

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.blocks} blocks, {self.dtype} on {self.device})"

    @property
    def blocks(self) -> int:
        return len(self.parts.blocks)

    @property
    def device(self) -> torch.device:
        return first_device(self.lm)

    @property
    def dtype(self) -> torch.dtype:
        return self.lm.dtype


def load_model(
    model: str | Path | nn.Module | Model,
    *,
    tokenizer: Any = None,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    adapter: str | Path | None = None,
) -> Model:
    """Load a model by name, on the device and in the dtype that suit this machine.

    Args:
        model: `bundled` or another name of `anchorscope models`, a hub id, a folder, a .gguf file,
            or a transformers model that you have loaded.
        tokenizer: The tokenizer of a model that you have loaded.
        device: auto, balanced (over all devices), cpu, cuda, cuda:N, or mps.
        dtype: auto, float32, bfloat16, or float16.
        revision: The revision of a hub model.
        trust_remote_code: Run code that comes with a hub model.
        adapter: A PEFT adapter's folder or hub id; it is merged into the weights.

    Returns:
        The model with its tokenizer and the names of its parts.

    Examples:
        >>> import anchorscope as anc
        >>> model = anc.load_model("bundled")
        >>> model.name, model.blocks
        ('SmolLM2-135M-Instruct', 30)
        >>> same = anc.load_model(model.lm, tokenizer=model.tokenizer)  # one that you have loaded
        >>> same.lm is model.lm
        True

    """
    if not isinstance(model, str | Path):
        return _wrap(model, tokenizer, None if adapter is None else str(adapter))
    if trust_remote_code:
        log.warning(
            "Code that comes with %s will be run on this machine, with your rights "
            "(trust_remote_code). Read it first.", model,
        )  # fmt: skip
    choice = choose(device, dtype)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    change = None if adapter is None else str(adapter)
    with without_library_bars():
        place, name = _locate(str(model))  # which may convert a file
        lm, tokenizer = _read(place, str(model), choice, options, change)
    if change is not None:
        path = user_path(change)
        last = path.resolve().name if path.is_dir() else change.rstrip("/").split("/")[-1]
        name = f"{name} + {last}"
    why = choice.why + (f"; on {devices_of(lm)}" if choice.spread else "")
    log.info("%s on %s", name, why)
    return Model(
        name=name,
        source=str(model),
        revision=getattr(lm.config, "_commit_hash", None) or revision,
        lm=lm.eval(),
        tokenizer=_with_offsets(tokenizer, name),
        parts=find_parts(lm),
        why=why,
        adapter=change,
    )


def _plain(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside a compiled or adapted one; an error where there is none."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if hasattr(model, "get_base_model"):
        # An adapter inside the weights is in the base model; one that adds tokens is not.
        config: Any = getattr(model, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False):
            raise UserError(
                f"{type(model).__name__} puts learned tokens in front of every text, which has no "
                "place in a prompt here. Accepted: adapters inside the weights, such as LoRA."
            )
        model = model.get_base_model()  # pyright: ignore[reportCallIssue]
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"A {type(model).__name__} is not a causal language model of transformers. Give one, "
            "with its tokenizer: load_model(model, tokenizer=tokenizer)."
        )
    check_plain(model)
    return model


def _wrap(model: Any, tokenizer: Any, adapter: str | None) -> Model:
    """A model that the caller has loaded; its weights, device and dtype stay as they are."""
    if isinstance(model, Model) and adapter in (None, model.adapter):
        return model
    if adapter is not None or isinstance(model, Model):
        raise UserError(
            f"The adapter '{adapter}' was given beside a loaded model, which stays as it is. "
            "Give the model's name and the adapter: load_model(name, adapter=adapter)."
        )
    lm = _plain(model)
    name = str(lm.config.name_or_path or type(lm).__name__)
    if tokenizer is None:
        raise UserError(
            f"A loaded model ({name}) came without its tokenizer. Give both: "
            "load_model(model, tokenizer=tokenizer)."
        )
    return Model(
        name=Path(name).name,
        source=name,
        revision=getattr(lm.config, "_commit_hash", None),
        lm=lm,
        tokenizer=_with_offsets(tokenizer, name),
        parts=find_parts(lm),
        why=f"{devices_of(lm)} and {lm.dtype} as loaded by the caller",
    )


def _locate(model: str) -> tuple[str, str]:
    """The place for `from_pretrained`, and the name that figures write; may convert a file."""
    found = find_model(model)
    if isinstance(found, str):
        return found, found.split("/")[-1]
    if found.suffix == ".gguf":
        title = WEIGHTS[model].title if model in WEIGHTS else found.stem
        return str(convert_once(found)), title
    return str(found), found.resolve().name


def _read(
    place: str, given: str, choice: Choice, options: dict[str, Any], adapter: str | None
) -> tuple[Any, Any]:
    """The model and its tokenizer; every failure is a UserError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        return _weights(place, choice, options, adapter), tokenizer
    except (MemoryError, UserError):
        raise
    except torch.OutOfMemoryError as error:
        size = ""
        if torch.device(choice.device).type == "cuda":
            total = torch.cuda.get_device_properties(choice.device).total_memory
            size = f" ({total / 2**30:.1f} GiB in all)"
        raise UserError(
            f"The model does not fit into what is free of {choice.device}{size}. "
            "Choose another device, a smaller dtype or a smaller model."
        ) from error
    except Exception as error:  # a folder or an answer that makes no sense ends in any error
        raise unreadable(given, error, trusted=options["trust_remote_code"]) from error


def unreadable(given: str, error: Exception, *, trusted: bool) -> UserError:
    """The error for a model that cannot be loaded; for its own code, the option that runs it."""
    advice = (
        "Accepted: a hub id (org/name) that can be reached from here, a folder, a .gguf file, "
        "or `bundled`."
    )
    if not trusted and "trust_remote_code" in str(error):  # transformers has no type for it
        advice = (
            "Read that code first. To run it, give --trust-remote-code to `run`, `study`, "
            "`doctor` or `detect collect`, or trust_remote_code=True to load_model."
        )
    meant = did_you_mean(given, WEIGHTS)
    return UserError(f"The model '{given}' could not be loaded: {in_a_line(error)} {advice}{meant}")


def _weights(place: str, choice: Choice, options: dict[str, Any], adapter: str | None) -> Any:
    """The model on its device, its adapter merged into it."""
    if choice.spread and adapter is None:
        return read_spread(place, dtype=choice.dtype, **options)
    # Straight onto the device, without a copy in main memory; an adapter is merged first.
    device = choice.device if adapter is None else None
    lm: Any = AutoModelForCausalLM.from_pretrained(
        place, dtype=choice.dtype, device_map=device, **options
    )
    check_plain(lm)
    if adapter is not None:
        lm = _merge_adapter(lm, adapter)
        lm = spread_out(lm) if choice.spread else lm.to(choice.device)
    return lm


def _with_offsets(tokenizer: Any, name: str) -> Any:
    """The same tokenizer; an error where it cannot say which characters a token covers."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"The tokenizer of {name} ({type(tokenizer).__name__}) gives no character offsets. "
            "A fast tokenizer (one with a tokenizer.json) is needed."
        )
    return tokenizer


def _merge_adapter(lm: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """Add a PEFT adapter's change to the weights of its base model, in place."""
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
            merged: Any = PeftModel.from_pretrained(lm, place)
        if merged.active_peft_config.is_prompt_learning:
            kind = merged.active_peft_config.peft_type
            raise ValueError(f"{kind.value} adds tokens and changes no weights.")
        return merged.merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError, UserWarning) as error:
        base = Path(str(lm.config.name_or_path or type(lm).__name__)).name
        reason = " ".join(str(error).split())[:240].rstrip(".: ")
        raise UserError(
            f"The adapter '{adapter}' could not be merged into {base}: {reason}. "
            "Accepted: a folder or a hub id (org/name) with an adapter_config.json, made by peft "
            "for this very model, of a kind that changes weights (LoRA and its relatives)."
        ) from error


# --- Models that cannot be used ---


def check_plain(lm: nn.Module) -> None:
    """Raise a UserError where a model is compiled or rounds its activations by batch."""
    name = type(lm).__name__
    for module in lm.modules():
        own, weight = module.__dict__.get("forward"), module._parameters.get("weight")
        if (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
            or hasattr(own, "_torchdynamo_orig_callable")
        ):
            raise UserError(
                f"Parts of this {name} are compiled, and their attention cannot be replaced. Give "
                "the model before `torch.compile`."
            )
        # Dynamic quantisation, by torch in a module of its own, by torchao in its weight.
        of_torch = "ao.nn.quantized" in type(module).__module__
        if of_torch or getattr(weight, "act_quant_kwargs", None) is not None:
            raise UserError(
                f"This {name} rounds its activations to a few bits as well as its weights, by "
                "steps that depend on what else is in the batch, so no state would come out "
                "twice. Give the model itself, or one with quantised weights alone."
            )
