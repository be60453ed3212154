"""The study of the published figures with random weights: everything but the download.

    python scripts/rehearse_published.py --models Llama-3.2-1B,Llama-3.2-3B --questions 2000 \
        --llama-tokenizer DIR --qwen-tokenizer DIR --data DIR --out runs/rehearsal --bring OUT
    python scripts/rehearse_published.py --tiny --out runs/rehearsal-tiny

The models have their real shapes and random weights made on the device; tokenizers and questions
are real; verdicts are drawn at random, since random weights know nothing. So AUROC must come out
at about 0.5 and nothing may be shown. Does without `datasets`. Figures, tables and
costs go to --bring; the states stay behind, and --drop-states removes those of each model when its
run is finished.

DIR of --data holds popqa, triviaqa, hotpotqa and nq_open as .jsonl or .jsonl.gz.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from anchorscope.datasets import load_questions
from anchorscope.pipeline.study.file import Study, StudyModel
from anchorscope.pipeline.study.study import StudyResult, study

FILES = ("popqa", "triviaqa", "hotpotqa", "nq_open")
PANELS = {  # model -> panel, as in the shipped study
    "Llama-3.2-1B": "Llama-3.2", "Llama-3.2-3B": "Llama-3.2", "Qwen3-8B": "Qwen3",
    "Qwen3-32B": "Qwen3",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 5e5,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN = {
    "model_type": "qwen3", "num_key_value_heads": 8, "vocab_size": 151936, "rope_theta": 1e6,
}  # fmt: skip
FIELDS = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "intermediate_size",
)  # fmt: skip
SIZES = {  # of the published configs, in the order of FIELDS
    "Llama-3.2-1B": (16, 2048, 32, 64, 8192), "Llama-3.2-3B": (28, 3072, 24, 128, 8192),
    "Qwen3-8B": (36, 4096, 32, 128, 12288), "Qwen3-32B": (64, 5120, 64, 128, 25600),
}  # fmt: skip
TINY = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128, "initializer_range": 0.2,
}  # fmt: skip
ANSWER = 4  # tokens: random weights would write on to the limit, and real answers are short
BROUGHT = ("study.csv", "claims.csv", "costs.csv", "study.html")


@dataclass(frozen=True)
class RandomModel:
    """Makes a model of a known shape with random weights, on the device, when it is called."""

    name: str
    shape: dict[str, Any]
    tokenizer: Any

    @property
    def config(self) -> Any:
        return AutoConfig.for_model(**self.shape)

    def __call__(self) -> tuple[Any, Any]:
        begun = time.monotonic()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                lm = AutoModelForCausalLM.from_config(self.config, dtype=dtype).eval()
        finally:
            torch.set_default_dtype(before)
        print(f"{self.name}: made in {time.monotonic() - begun:.1f} s on {device}", flush=True)
        speak_words(lm, self.tokenizer)
        return lm, self.tokenizer


def speak_words(lm: Any, tokenizer: Any) -> None:
    """Lets the head choose names only: an answer without a word has no probe position."""
    shut = torch.full((lm.config.vocab_size,), -torch.inf, device=lm.device, dtype=lm.dtype)
    words = [i for token, i in tokenizer.get_vocab().items() if re.fullmatch("Ġ[A-Z][a-z]+", token)]
    shut[words] = 0
    lm.get_output_embeddings().register_forward_hook(lambda head, given, logits: logits + shut)


def tokenizer_at(place: Path | None) -> Any:
    """The tokenizer of a folder; that of the bundled model for --tiny without one."""
    if place is not None:
        return AutoTokenizer.from_pretrained(place)
    from anchorscope.models import load_model

    return load_model("bundled", device="cpu").tokenizer


def draw_verdicts(file: Path, data: Sequence[str], questions: int) -> Path:
    """A file with a verdict drawn for every question that will be asked."""
    rng = random.Random(0)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as text:
        rows = csv.writer(text)
        rows.writerow(["id", "right"])
        for name in data:
            drawn = load_questions(name, limit=questions)
            rows.writerows([q.id, int(rng.random() < 0.5)] for q in drawn)
    return file


def data_of(folder: Path | None) -> tuple[str, ...]:
    """The four files of the folder; the built-in sets without one."""
    if folder is None:
        return ("atlas", "atlas-compare")
    files = [next(iter(sorted(folder.glob(f"{name}.jsonl*"))), None) for name in FILES]
    if missing := [name for name, file in zip(FILES, files, strict=True) if file is None]:
        sys.exit(f"{folder} has no {', '.join(missing)} as .jsonl or .jsonl.gz.")
    return tuple(str(file) for file in files)


def study_of(options: argparse.Namespace) -> Study:
    """The shipped study `published` with random models in it."""
    data = data_of(options.data)
    verdicts = draw_verdicts(options.out / "verdicts.csv", data, options.questions)
    models = []
    for name in options.models.split(","):
        place = options.llama_tokenizer if name.startswith("Llama") else options.qwen_tokenizer
        family = LLAMA if name.startswith("Llama") else QWEN
        shape = family | dict(zip(FIELDS, SIZES[name], strict=True))
        make = RandomModel(name, shape | (TINY if options.tiny else {}), tokenizer_at(place))
        models.append(StudyModel(name=name, model=name, panel=PANELS[name], make=make))
    settings = {"limit": options.questions, "prompt": "text", "max_tokens": ANSWER}
    settings |= {"verdicts": str(verdicts)}
    if options.tiny:
        settings |= {"resamples": 100, "fold_seeds": 1, "folds": 3}
        settings |= {"evidence": "none", "dtype": "float32"}
    title = "Rehearsal of the published figures: real shapes and questions, random weights"
    return Study(title=title, data=data, models=tuple(models), options=settings)


class Lines:
    """A listener that prints a line a stage."""

    def __init__(self) -> None:
        self.begun = time.monotonic()

    def start(self, stage: str, total: int) -> None:
        print(f"{time.monotonic() - self.begun:8.1f} s  {stage} ({total})", flush=True)

    def advance(self, count: int = 1) -> None:
        return None

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:8.1f} s  {text}", flush=True)


def bring(result: StudyResult, to: Path) -> None:
    """The small files of the study: tables, page, figures, and run.json of each run."""
    to.mkdir(parents=True, exist_ok=True)
    for name in BROUGHT:
        if (result.path / name).is_file():
            shutil.copy(result.path / name, to / name)
    for folder in ("figures", "errors"):
        if (result.path / folder).is_dir():
            shutil.copytree(result.path / folder, to / folder, dirs_exist_ok=True)
    for name, view in result.runs.items():
        shutil.copy(view.path / "run.json", to / f"{name}.run.json")


def tables(result: StudyResult) -> str:
    """What each run took, and the AUROC of every model and dataset."""
    costs = pd.read_csv(result.path / "costs.csv")
    found = pd.read_csv(result.path / "study.csv")
    columns = ["model", "dataset", "state", "n", "auroc", "auroc_low", "auroc_high", "finding"]
    parts = [costs.round(1), found[columns].round(3)]
    return "\n\n".join(part.to_string(index=False) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(PANELS))
    parser.add_argument("--questions", type=int, default=2000, help="of each set")
    parser.add_argument("--llama-tokenizer", type=Path)
    parser.add_argument("--qwen-tokenizer", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bring", type=Path, help="where the small files are copied")
    parser.add_argument("--drop-states", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="small shapes, for a trial on a CPU")
    options = parser.parse_args()
    logging.set_verbosity_error()
    if not options.tiny and not (
        options.data and options.llama_tokenizer and options.qwen_tokenizer
    ):
        sys.exit("Give --data, --llama-tokenizer and --qwen-tokenizer, or --tiny.")
    asked = study_of(options)
    result = study(
        asked,
        out=options.out,
        drop_states=options.drop_states,
        progress=Lines(),
    )
    print(tables(result))
    if options.bring:
        bring(result, options.bring)
        print(f"Brought: {options.bring}")
    for name, error in result.errors.items():
        print(f"{name} failed: {error}")
    sys.exit(bool(result.errors))


if __name__ == "__main__":
    main()
