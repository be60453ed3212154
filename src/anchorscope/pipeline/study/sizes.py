"""How large a model is, from its config alone: nothing of its weights is read or downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorscope.config import Config
from anchorscope.errors import UserError
from anchorscope.models import bundled
from anchorscope.models.converted_folder import folder_of
from anchorscope.models.weights.catalogue import path_of

_BYTES = {"float32": 4}  # of one weight; every other dtype here has two


@dataclass(frozen=True, kw_only=True)
class Size:
    """What the cost of a pass depends on."""

    blocks: int
    width: int
    block_weights: int  # of all blocks: each token goes through them
    head_weights: int  # only where a token is chosen
    weights: int  # all of them, tied ones once

    def bytes(self, dtype: str = "auto") -> int:
        """The bytes of the weights as they are held while they are used."""
        return self.weights * _BYTES.get(dtype, 2)


def size_of(config: Config) -> Size:
    """The size of the model that a run is asked for, from its config on disk or on the hub."""
    from anchorscope.models.load import unreadable

    trusted = config.trust_remote_code
    try:
        return size_from(_transformers_config(config), trust_remote_code=trusted)
    except UserError:
        raise
    except Exception as error:  # a config that makes no sense ends in any error
        raise unreadable(config.model, error, trusted=trusted) from error


def size_from(config: Any, *, trust_remote_code: bool = False) -> Size:
    """The size of a model with this config of transformers; its weights are never made."""
    import torch
    from transformers import AutoModelForCausalLM

    from anchorscope.models.parts import find_parts

    with torch.device("meta"):
        # Not left open: then a terminal is asked whether code that lies there may be run.
        lm = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        lm.tie_weights()  # early releases of transformers 5 do not, where there are no weights yet
    parts = find_parts(lm)
    return Size(
        blocks=len(parts.blocks),
        width=parts.width,
        block_weights=sum(_weights(block) for block in parts.blocks),
        head_weights=_weights(parts.head),
        weights=_weights(lm),
    )


def _weights(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


def read_shape(model: str) -> tuple[int, int] | None:
    """Blocks and width of a model whose config lies on this disk; None of every other."""
    try:
        config = config_on_disk(model)
        if config is None:
            return None
        return int(config.num_hidden_layers), int(config.hidden_size)
    except (UserError, OSError, ValueError, KeyError, ImportError, AttributeError, TypeError):
        return None  # what is wrong with it is said when it is loaded


def config_on_disk(model: str) -> Any:
    """The config of a model's text part, of transformers, from this disk; None where it is not."""
    from transformers import AutoConfig

    place, options = place_of(model)
    if options or not Path(place).is_dir():
        return None
    # Not left open: then a terminal is asked whether code that lies there may be run.
    config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    return config.get_text_config()


def place_of(model: str) -> tuple[str, dict[str, str]]:
    """Where config and tokenizer lie, and with which options transformers reads them there."""
    path = path_of(model)
    file = bundled.bundled_file() if model == "bundled" else path
    if file is None:
        return bundled.HUB_ID, {}
    if file.suffix == ".gguf":
        if not file.is_file():
            raise UserError(f"There is no file {file}. Give the path of a .gguf file.")
        folder = folder_of(file)
        if (folder / "config.json").exists():
            return str(folder), {}
        return str(file.parent), {"gguf_file": file.name}
    if path.is_dir() and not (path / "config.json").exists():
        raise UserError(f"The folder {path} holds no config.json.")
    is_path = path.exists() or len(model.split("/")) > 2 or model.startswith((".", "/", "~"))
    if is_path and not path.is_dir():
        raise UserError(f"There is no model at '{model}'.")
    return (str(path) if is_path else model), {}


def _transformers_config(config: Config) -> Any:
    from transformers import AutoConfig

    place, options = place_of(config.model)
    return AutoConfig.from_pretrained(
        place,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        **options,
    )


def tokenizer_of(config: Config) -> Any | None:
    """The model's own tokenizer; None where it cannot be had without converting the model."""
    from transformers import AutoTokenizer

    try:
        place, options = place_of(config.model)
        if options:  # a .gguf file whose conversion is not on disk yet
            return None
        return AutoTokenizer.from_pretrained(
            place, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (UserError, OSError, ValueError, KeyError, ImportError, RuntimeError):
        return None
