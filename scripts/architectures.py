"""Compare every decoder of transformers with stock attention; write the list of a page.

PYTHONPATH=tests python scripts/architectures.py [--only llama,gpt2] [--write docs/own-model.md]
"""

from __future__ import annotations

import argparse
import collections
import re
import signal
import warnings
from pathlib import Path

import torch
import transformers
from kit.architectures import DECODERS, build
from kit.held import Outcome, outcome_of
from kit.tiny import tiny_tokenizer

from anchorscope.errors import UserError
from anchorscope.models import load_model

PART = """Every decoder of transformers {version}, as a tiny random model in float32: first what
`anchorscope doctor` says of it, then every knockout (all heads and some, before and after the
softmax, in all blocks and in windows) and reweighting against stock attention, by code that shares
nothing with the engine. Made by `PYTHONPATH=tests python scripts/architectures.py --write PAGE`.
{right} agree, {refused} are refused, {wrong} are accepted and disagree, and of {unbuilt} no tiny
model could be made. A model is checked again, with its own weights, before its first run.

| common architectures | largest difference from stock attention |
| --- | --- |
{common}

**Also right:** {others}.

**Refused**, with the reason that the doctor gives:

{reasons}

Encoders and encoder-decoders (BERT, BART, T5, ...) are not listed: they write no answer. Models of
several parts (gemma3, llama4, qwen3_5, ...) are listed by the text decoder inside them.
"""
START, END = "<!-- architectures -->", "<!-- end of architectures -->"
COMMON = (
    *(
        "llama",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "mistral",
        "mixtral",
    ),
    *(
        "llama4_text",
        "phi3",
        "olmo2",
        "gpt_oss",
        "deepseek_v3",
        "glm4",
        "smollm3",
        "gpt2",
        "gpt_neox",
    ),
)
# Registered as causal language models as well, though they write no answers.
NOT_DECODERS = re.compile(
    "bart|bert|bird|blenderbot|camembert|data2vec|electra|^ernie$|marian|mvp|pegasus|prophetnet"
    "|reformer|rembert|roformer|trocr|^xlm|xlnet|xmod|musicgen|git$"
)
REASONS = {
    "its attention is its own code": "its attention is code of its own, which cannot be replaced",
    "information flows around": "some block has no attention that a knockout could cut (state "
    "space, convolution, linear attention)",
    "hands on more than one vector": "a block hands on more than one vector for each token",
    "attends more than once": "a block attends more than once",
    "is not understood": "no list of blocks with an output head was found",
}


_SECONDS = 90


def _too_slow(number: int, frame: object) -> None:
    raise TimeoutError(f"its tiny model takes longer than {_SECONDS} seconds")


def outcome(kind: str) -> Outcome:
    """Test one architecture: built or not, right, wrong or refused."""
    signal.alarm(_SECONDS)
    try:
        lm = build(kind)
        with torch.no_grad():
            lm(torch.randint(3, 290, (1, 20)))
    except Exception as error:
        return Outcome(kind, "not built", _line(error))
    try:
        return outcome_of(kind, load_model(lm, tokenizer=tiny_tokenizer()))
    except UserError as error:
        return Outcome(kind, "refused", _line(error))
    except Exception as error:
        return Outcome(kind, "traceback", _line(error))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def part(outcomes: list[Outcome]) -> str:
    """Format the list of architectures for the page: common ones first, refused ones by reason."""
    decoders = [one for one in outcomes if not NOT_DECODERS.search(one.kind)]
    counts = collections.Counter(one.verdict for one in decoders)
    right = {one.kind: one.why for one in decoders if one.verdict == "right"}
    refused: dict[str, list[str]] = collections.defaultdict(list)
    for one in decoders:
        if one.verdict == "refused":
            reasons = (words for part, words in REASONS.items() if part in one.why)
            refused[next(reasons, "its states are not those of stock attention")].append(one.kind)
    return PART.format(
        version=transformers.__version__,
        right=counts["right"],
        refused=counts["refused"],
        wrong=counts["wrong"] + counts["traceback"],
        unbuilt=counts["not built"],
        common="\n".join(f"| {kind} | {right[kind]} |" for kind in COMMON if kind in right),
        others=", ".join(sorted(set(right) - set(COMMON))),
        reasons="\n".join(f"- {why}: {', '.join(kinds)}" for why, kinds in refused.items()),
    )


def write(file: Path, text: str) -> None:
    """Replace the text between the marks of the page."""
    before, _, rest = file.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    file.write_text(f"{before}{START}\n{text}{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_slow)
    transformers.logging.set_verbosity_error()
    outcomes = []
    for kind in options.only.split(",") if options.only else DECODERS:
        outcomes.append(outcome(kind))
        print(*outcomes[-1], sep=" | ", flush=True)
    if options.write:
        write(options.write, part(outcomes))


if __name__ == "__main__":
    main()
