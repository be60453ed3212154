"""Synthetic runs for the page of samples: a character tokenizer, and texts that inject markup."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kit.show_fixture import make_run

START = "<|im_start|>"
IMAGE = "<img src=x onerror=alert(1)>"
TURNED = "\u202egnorw\u202c"  # shown from right to left where the mark is obeyed
HIDDEN = "\u200b\u00a0\x07"
QUESTION = f"{START}{IMAGE}{TURNED}{HIDDEN} Where is {{}}? =1+1, שלום \U0001f600"
ANSWER = f'{IMAGE}, "quoted" {TURNED} France {START}'
SHARED = "Q: One?\nA: Two\n\n"


def make_tokens(folder: Path) -> Path:
    """Give a run a tokenizer with a token for each character, and its prompts and answers."""
    samples = pd.read_parquet(folder / "samples.parquet")
    samples = samples.assign(**_columns(samples, _tokenizer(samples, folder / "model")))
    samples.to_parquet(folder / "samples.parquet", index=False)
    info = json.loads((folder / "run.json").read_text())
    info["model"]["source"] = str(folder / "model")
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def make_evil(folder: Path, *, layers: int = 4, n: int = 24, tokens: bool = True) -> Path:
    """A run whose model name, dataset title, questions and answers are all hostile."""
    make_run(folder, layers=layers, n=n, question=QUESTION, answer=ANSWER, model=IMAGE,
             datasets={"evil": f"{IMAGE}{TURNED}"})  # fmt: skip
    return make_tokens(folder) if tokens else folder


def _tokenizer(samples: pd.DataFrame, folder: Path) -> Tokenizer:
    letters = sorted({*"Q:A \n?", *SHARED, *"".join([*samples["question"], *samples["answer"]])})
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    tokenizer.add_special_tokens([START])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def _columns(samples: pd.DataFrame, tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    """Prompt, answer, and the positions of their parts, counted over prompt and answer."""
    columns: dict[str, list[list[int]]] = {
        name: []
        for name in ("prompt_ids", "token_ids", "question_tokens", "exact_question", "exact_answer")
    }
    for row in samples.to_dict("records"):
        question, answer = row["question"], row["answer"]
        prompt = f"{SHARED}Q: {question}\nA: "
        of_prompt, of_answer = tokenizer.encode(prompt), tokenizer.encode(answer)
        at = len(SHARED) + len("Q: ")

        def within(encoding, from_: int, to: int, add: int = 0) -> list[int]:
            pairs = enumerate(encoding.offsets)
            return [place + add for place, (a, b) in pairs if a >= from_ and b <= to]

        spans = zip(row["span_starts"], row["span_stops"], strict=True)
        columns["prompt_ids"].append(of_prompt.ids)
        columns["token_ids"].append(of_answer.ids)
        columns["question_tokens"].append(within(of_prompt, at, at + len(question)))
        columns["exact_question"].append(
            [place for a, b in spans for place in within(of_prompt, at + a, at + b)]
        )
        found = [] if pd.isna(row["answer_start"]) else within(
            of_answer, row["answer_start"], row["answer_stop"], len(of_prompt.ids)
        )  # fmt: skip
        columns["exact_answer"].append(found)
    return columns
