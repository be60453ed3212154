"""The tokens of prompts and answers as text, from the model's tokenizer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np

from anchorscope.models.locate import folder_of, path_of
from anchorscope.records import Sample

_FILE = "tokenizer.json"
_TRIED = 20  # samples whose tokens must decode to their question
# Roles of a token, as bits.
QUESTION, EXACT_QUESTION, ANSWER, EXACT_ANSWER = 1, 2, 4, 8


@dataclass(frozen=True)
class Tokens:
    """Token ids of every sample, with the text and the role of each token.

    The worked examples are the same in all prompts of a dataset: `shared` holds them once.
    """

    texts: Mapping[int, str]
    shared: Mapping[str, tuple[int, ...]]  # dataset -> the first ids of all its prompts
    ids: tuple[tuple[int, ...], ...]  # by sample: the rest of the prompt, then the answer
    roles: tuple[np.ndarray, ...]  # by sample: a sum of the bits above for each of `ids`


def tokens_of(samples: Sequence[Sample], model: Mapping[str, Any]) -> Tokens | str:
    """The tokens of the samples, or the reason why they cannot be shown; loads no model."""
    if not model.get("source"):
        return "run.json does not say where the model's tokenizer is"
    file = tokenizer_file(str(model["source"]), model.get("revision"))
    if file is None:
        return f"the tokenizer of {model['name']} is not on this machine"
    from tokenizers import Tokenizer  # comes with transformers, and needs no torch

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no other type
        return f"{file} could not be read ({str(error).splitlines()[0]})"
    for sample in samples[:_TRIED]:
        if sample.question.text.strip() not in _decode(tokenizer, sample.prompt_ids):
            return f"{file} does not give back the questions of this run"
    shared = _shared(samples)
    ids, roles = [], []
    for sample in samples:
        start = len(shared[sample.question.dataset])
        ids.append((*sample.prompt_ids[start:], *sample.answer.token_ids))
        roles.append(_roles(sample)[start:])
    used = sorted({id for part in (*shared.values(), *ids) for id in part})
    return Tokens({id: piece(tokenizer, id) for id in used}, shared, tuple(ids), tuple(roles))


def tokenizer_file(source: str, revision: str | None) -> Path | None:
    """tokenizer.json of the model, if it is on this machine; downloads and converts nothing."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    path = path_of(source)
    if path.suffix == ".gguf":
        file = folder_of(path) / _FILE if path.is_file() else None
    elif path.is_dir():
        file = path / _FILE
    else:
        try:
            cached = try_to_load_from_cache(source, _FILE, revision=revision)
        except HFValidationError:  # the path of a folder that is gone
            return None
        file = Path(cached) if isinstance(cached, str) else None
    return file if file is not None and file.is_file() else None


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def piece(tokenizer: Any, id: int) -> str:
    """The text of one token, with the leading space that some decoders remove."""
    text, raw = _decode(tokenizer, [id]), tokenizer.id_to_token(id) or ""
    return f" {text}" if raw.startswith("▁") and not text.startswith(" ") else text


def _shared(samples: Sequence[Sample]) -> dict[str, tuple[int, ...]]:
    """The common prefix of all prompts, by dataset, up to the first question at most."""
    shared = {}
    for name in dict.fromkeys(sample.question.dataset for sample in samples):
        own = [sample for sample in samples if sample.question.dataset == name]
        first = min(min(sample.question_tokens, default=0) for sample in own)
        ids = [sample.prompt_ids for sample in own]
        shared[name] = commonprefix(ids)[:first]  # noqa: RUF071 - it takes any sequences
    return shared


def _roles(sample: Sample) -> np.ndarray:
    prompt = len(sample.prompt_ids)
    roles = np.zeros(prompt + len(sample.answer.token_ids), dtype=np.uint8)
    roles[prompt:] |= ANSWER
    for bit, positions in (
        (QUESTION, sample.question_tokens),
        (EXACT_QUESTION, sample.exact_question),
        (EXACT_ANSWER, sample.exact_answer),
    ):
        roles[[at for at in positions if at < len(roles)]] |= bit
    return roles
