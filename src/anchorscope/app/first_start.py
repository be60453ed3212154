"""Probes without a run: trained once on built-in questions, and kept."""

from __future__ import annotations

from anchorscope.config import Config
from anchorscope.models import Model
from anchorscope.pipeline.run import run
from anchorscope.progress import Progress
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.remote import cache_folder
from anchorscope.run_folder.view import RunView

# Enough for probes that tell right from wrong answers, and small enough for a first start.
SMALL = Config(data=("atlas",), limit=120, folds=3, fold_seeds=1, resamples=100, evidence=())


def kept_run(model: Model, *, progress: Progress | None = None) -> RunView:
    """A small run of this model in the cache folder, made at the first start."""
    dtype = str(model.dtype).removeprefix("torch.")
    folder = cache_folder() / "app" / f"{weights_hash(model.lm)[:16]}-{dtype}"
    return run(model, None, out=folder, config=SMALL, progress=progress)
