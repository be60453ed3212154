"""A model by name: a hub id, a folder, a .gguf file, `bundled`, or one that is already loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from anchorscope.errors import UserError, in_a_line, user_path
from anchorscope.models import bundled
from anchorscope.models.adapter import adapter_name, merged
from anchorscope.models.device import BALANCED, Choice, choose
from anchorscope.models.gguf.convert import converted
from anchorscope.models.parts import Parts, find_parts
from anchorscope.models.quantised import check_no_code, check_plain, is_quantised
from anchorscope.models.spread import devices_of, first_device, read_spread, spread_out
from anchorscope.models.weights.catalogue import WEIGHTS

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
    """The model named, on the device and in the dtype that suit this machine.

    `adapter` is a PEFT adapter's folder or hub id; it is merged into the weights.

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
        return _loaded(model, tokenizer, None if adapter is None else str(adapter))
    if trust_remote_code:
        log.warning(
            "Code that comes with %s will be run on this machine, with your rights "
            "(trust_remote_code). Read it first.", model,
        )  # fmt: skip
    choice = choose(device, dtype)
    place, name = _locate(str(model))  # which may convert a file
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    change = None if adapter is None else str(adapter)
    lm, tokenizer = _read(place, str(model), choice, options, change)
    name = name if change is None else f"{name} + {adapter_name(change)}"
    why = choice.why + (f"; on {devices_of(lm)}" if choice.spread == BALANCED else "")
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


def _loaded(model: Any, tokenizer: Any, adapter: str | None) -> Model:
    """A model that is loaded already; it is never changed, so an adapter must be in it."""
    if isinstance(model, Model) and adapter in (None, model.adapter):
        return model
    if adapter is not None or isinstance(model, Model):
        raise UserError(
            f"The adapter '{adapter}' was given beside a loaded model, which stays as it is. "
            "Give the model's name and the adapter: load_model(name, adapter=adapter)."
        )
    return _wrap(_plain(model), tokenizer)


def _plain(model: nn.Module) -> PreTrainedModel:
    """The model of transformers inside what the caller has; an error where there is none."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if hasattr(model, "get_base_model"):
        # An adapter that lives in the weights is in the base model; one that adds tokens is not.
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


def _wrap(lm: PreTrainedModel, tokenizer: Any) -> Model:
    """A model the caller already has; its weights, device and dtype stay as they are."""
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
    """Where `from_pretrained` finds the model, and the name that figures write."""
    if model == "bundled":
        file = bundled.bundled_file()
        if file is None and not bundled.on_hub():
            raise UserError(bundled.HOW_TO_GET)
        return (str(converted(file)) if file else bundled.HUB_ID), bundled.NAME
    if (known := WEIGHTS.get(model)) is not None:
        if (file := known.local()) is None:
            raise UserError(f"{known.title} is not here. Get it: anchorscope get {known.name}")
        return str(converted(file)), known.title
    path = user_path(model)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"There is no file {path}. Give the path of a .gguf file.")
        return str(converted(path)), path.stem
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UserError(
                f"The folder {path} holds no config.json. Give a folder written by "
                "`save_pretrained`, a .gguf file, a hub id, or `bundled`."
            )
        return str(path), path.resolve().name
    if path.exists() or len(model.split("/")) > 2 or model.startswith((".", "/", "~")):
        raise UserError(
            f"'{model}' is neither a model folder nor a .gguf file. "
            "Accepted: a hub id (org/name), a folder, a .gguf file, or `bundled`."
        )
    return model, model.split("/")[-1]


def _read(
    place: str, given: str, choice: Choice, options: dict[str, Any], adapter: str | None
) -> tuple[Any, Any]:
    try:
        if not options["trust_remote_code"]:
            check_no_code(place, options)
        with _tokenizer(place, options) as tokenizer:
            lm = _weights(place, choice, options, adapter)
            return lm, tokenizer.result()
    except (MemoryError, UserError):
        raise
    except torch.OutOfMemoryError as error:
        raise _too_large(choice.device) from error
    except Exception as error:  # a folder or an answer that makes no sense ends in any error
        if given == "bundled":
            raise UserError(bundled.HOW_TO_GET) from error
        raise unreadable(given, error, trusted=options["trust_remote_code"]) from error


def unreadable(given: str, error: Exception, *, trusted: bool) -> UserError:
    """What went wrong, and what to do; where it is the model's own code, how to have it run."""
    advice = (
        "Accepted: a hub id (org/name) that can be reached from here, a folder, a .gguf file, "
        "or `bundled`."
    )
    if not trusted and "trust_remote_code" in str(error):  # transformers has no type for it
        advice = (
            "Read that code first. To run it, give --trust-remote-code to `run`, `study`, "
            "`doctor` or `detect collect`, or trust_remote_code=True to load_model."
        )
    return UserError(f"The model '{given}' could not be loaded: {in_a_line(error)} {advice}")


@contextmanager
def _tokenizer(place: str, options: dict[str, Any]) -> Iterator[Future[Any]]:
    """The tokenizer to be, read by another thread while this one waits for the weights.

    Code that comes with a model may not expect that: then it is read first.
    """
    with ThreadPoolExecutor(1, "tokenizer") as beside:
        tokenizer = beside.submit(AutoTokenizer.from_pretrained, place, **options)
        if options["trust_remote_code"]:
            tokenizer.result()
        yield tokenizer


def _weights(place: str, choice: Choice, options: dict[str, Any], adapter: str | None) -> Any:
    """The model, its adapter merged into it, where it was chosen to lie."""
    options = {**options, "dtype": choice.dtype}
    if choice.spread == BALANCED and adapter is None:
        return read_spread(place, **options)
    straight = choice.spread is None and _straight(place, choice, options, adapter)
    there = {"device_map": choice.device} if straight else {}
    lm: Any = AutoModelForCausalLM.from_pretrained(place, **options, **there)
    check_plain(lm)
    if adapter is not None:
        lm = merged(lm, adapter)
    if choice.spread == BALANCED:
        return spread_out(lm)
    return lm if straight else lm.to(choice.device)


def _straight(place: str, choice: Choice, options: dict[str, Any], adapter: str | None) -> bool:
    """Whether weights are read onto their device, without a copy of them in main memory.

    Packed ones must be, since some cannot be sent to another device. An adapter is merged first.
    """
    whole = adapter is None and torch.device(choice.device).type == "cuda"
    return whole or is_quantised(place, options)


def _too_large(device: str) -> UserError:
    size = ""
    if torch.device(device).type == "cuda":
        size = f" ({torch.cuda.get_device_properties(device).total_memory / 2**30:.1f} GiB in all)"
    return UserError(
        f"The model does not fit into what is free of {device}{size}. "
        "Choose another device, a smaller dtype or a smaller model."
    )


def _with_offsets(tokenizer: Any, name: str) -> Any:
    """The same tokenizer, if it tells which characters a token covers: spans cannot do without."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"The tokenizer of {name} ({type(tokenizer).__name__}) gives no character offsets. "
            "A fast tokenizer (one with a tokenizer.json) is needed."
        )
    return tokenizer
