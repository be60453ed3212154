"""Compare every decoder of the installed transformers with stock attention; write docs/models.md.

PYTHONPATH=tests python scripts/architectures.py [--only llama,gptj] [--write docs/models.md]
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
from kit.architectures import COMPOSITE, DECODERS, build
from kit.held import Outcome, outcome_of
from kit.tiny import tiny_tokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from anchorscope.errors import UserError
from anchorscope.models import load_model

# Families that people ask about first; the others follow by name.
FAMILIES = ("llama", "qwen", "gemma", "mistral", "ministral", "mixtral", "phi", "olmo", "gpt")
# Encoders, and the decoders of encoder-decoders, which transformers can build as decoders too.
ENCODERS = MODEL_FOR_MASKED_LM_MAPPING_NAMES | MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

HEAD = """# Models

*For users who want to know whether their architecture is supported.*

Every decoder of transformers {version}, as a tiny random model in float32: what
`anchorscope doctor` says of it, and then every knockout (of all heads and of some, before and after
the softmax, in all blocks and in windows) and reweighting against stock attention, by a way that
shares no code with the engine. Before its first run a model is checked again, with its own weights.

```bash
anchorscope doctor --model MODEL                                        # your model
PYTHONPATH=tests python scripts/architectures.py --write docs/models.md  # this page
```

| | |
| --- | --- |
{counts}

*right*: every intervention agrees with stock attention, and the doctor says so. *refused*: the
doctor says no, and why; nothing is run. *wrong* would be a model that is accepted and disagrees.
*not built*: no tiny model could be made from its config here. Models of several parts
({composite})
are listed by the text decoder inside them. Falcon is read with rotary positions; with ALiBi it is
refused, because transformers' eager attention adds that bias twice and its fused one once.

| architecture | | largest difference or reason |
| --- | --- | --- |
{rows}
"""


_SECONDS = 90


def _too_slow(number: int, frame: object) -> None:
    raise TimeoutError(f"its tiny model takes longer than {_SECONDS} seconds")


def outcome(kind: str) -> Outcome:
    """What comes of one architecture."""
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


def page(outcomes: list[Outcome]) -> str:
    """The page with the counts and the table."""
    counts = collections.Counter(one.verdict for one in outcomes)
    order = ("right", "refused", "wrong", "traceback", "not built")
    rows = [f"| {o.kind} | {o.verdict} | {re.sub('[|]', '/', o.why)} |" for o in outcomes]
    return HEAD.format(
        version=transformers.__version__,
        counts="\n".join(f"| {verdict} | {counts[verdict]} |" for verdict in order),
        composite=", ".join(sorted(COMPOSITE)),
        rows="\n".join(rows),
    )


def place(kind: str) -> tuple[int, str]:
    """The place of an architecture in the table: the families that are asked for first."""
    families = (n for n, name in enumerate(FAMILIES) if kind.startswith(name))
    return next(families, len(FAMILIES)), kind


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_slow)
    transformers.logging.set_verbosity_error()
    outcomes = []
    decoders = sorted((kind for kind in DECODERS if kind not in ENCODERS), key=place)
    for kind in options.only.split(",") if options.only else decoders:
        outcomes.append(outcome(kind))
        print(*outcomes[-1], sep=" | ", flush=True)
    if options.write:
        options.write.write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
