"""Sample further answers to the questions of a run."""

from __future__ import annotations

import pandas as pd

from anchorscope.answers.generate import Answerer
from anchorscope.detect.prompts import common_prefix
from anchorscope.detect.read_answers import sample_answers
from anchorscope.evidence.shards import Shards, evidence_name
from anchorscope.records import Sample
from anchorscope.run_folder.table_columns import SAMPLED_ROWS


def draw_answers(shards: Shards, *, samples: int, temperature: float, max_tokens: int) -> None:
    """Sample answers to all usable questions of a run; shards already on disk are kept."""
    answerer = Answerer(shards.lease.model, max_tokens=max_tokens)

    def work(number: int, dataset: str, answered: list[Sample]) -> None:
        usable = [sample for sample in answered if sample.usable]
        drawn = sample_answers(
            shards.lease,
            answerer,
            common_prefix(usable),
            [sample.prompt_ids for sample in usable],
            [sample.id for sample in usable],
            samples=samples,
            temperature=temperature,
            seed=shards.seed,
        )
        # A finished answer took one more pass: the one that chose the stop token.
        rows = [
            (a.id, n, a.text, float(sum(a.log_probs)), len(a.token_ids),
             len(a.token_ids) + int(a.finished), ms / samples)
            for answers, ms in drawn for n, a in enumerate(answers)
        ]  # fmt: skip
        shards.save_table("sampled", number, pd.DataFrame(rows, columns=list(SAMPLED_ROWS)))

    shards.each("sampled answers", lambda n: [evidence_name("sampled", n)], work)
