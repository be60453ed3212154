"""lm-polygraph's part of `polygraph.py`: reads a job in JSON, writes uncertainties and seconds.

It imports lm-polygraph and transformers alone, so that it can run in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_polygraph import estimators as by  # pyright: ignore[reportMissingImports]
from lm_polygraph.stat_calculators.entropy import EntropyCalculator  # pyright: ignore[reportMissingImports]
from lm_polygraph.stat_calculators.greedy_probs import GreedyProbsCalculator  # pyright: ignore[reportMissingImports]
from lm_polygraph.stat_calculators.prompt import PromptCalculator  # pyright: ignore[reportMissingImports]
from lm_polygraph.stat_calculators.sample import SamplingGenerationCalculator  # pyright: ignore[reportMissingImports]
from lm_polygraph.utils.generation_parameters import GenerationParameters  # pyright: ignore[reportMissingImports]
from lm_polygraph.utils.model import WhiteboxModel  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, AutoTokenizer

SAMPLES = 10
# One at a time, as its documentation asks it: in a batch the padding after an answer that ended
# with its line would be counted as the answer's last token, however unlikely it is.
BATCH = 1

# What is calculated, in order, and what of it each estimator needs. Estimators that compare
# sampled answers by a second language model (NLI) are left out: that model has to be downloaded.
CALCULATED = {
    "greedy": lambda: GreedyProbsCalculator(output_attentions=False),
    "entropy": EntropyCalculator,
    "p_true": PromptCalculator,
    "samples": lambda: SamplingGenerationCalculator(samples_n=SAMPLES),
}
ESTIMATORS = {
    "MaximumSequenceProbability": (by.MaximumSequenceProbability, ("greedy",)),
    "Perplexity": (by.Perplexity, ("greedy",)),
    "MeanTokenEntropy": (by.MeanTokenEntropy, ("greedy", "entropy")),
    "PTrue": (by.PTrue, ("greedy", "p_true")),
    "MonteCarloSequenceEntropy": (by.MonteCarloSequenceEntropy, ("greedy", "samples")),
    "LexicalSimilarity (ROUGE-L)": (
        lambda: by.LexicalSimilarity(metric="rougeL"),
        ("greedy", "samples"),
    ),
    "EigValLaplacian (Jaccard)": (
        lambda: by.EigValLaplacian(similarity_score="Jaccard_score"),
        ("greedy", "samples"),
    ),
    "DegMat (Jaccard)": (
        lambda: by.DegMat(similarity_score="Jaccard_score"),
        ("greedy", "samples"),
    ),
}


def load(folder: str) -> WhiteboxModel:
    """The model as lm-polygraph takes it; an answer ends with its line."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    how = GenerationParameters(stop_strings=["\n"])
    return WhiteboxModel(lm, tokenizer, folder, "CausalLM", how)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Answers, uncertainty by estimator, and the seconds each would have taken by itself."""
    model = load(job["model"])
    torch.manual_seed(0)
    made = {name: make() for name, make in CALCULATED.items()}
    asked = {name: (make(), needs) for name, (make, needs) in ESTIMATORS.items()}
    answers: list[str] = []
    scores: dict[str, list[float]] = {name: [] for name in asked}
    spent = dict.fromkeys([*made, *asked], 0.0)
    for start in range(0, len(job["prompts"]), BATCH):
        texts = job["prompts"][start : start + BATCH]
        stats: dict[str, Any] = {"input_texts": texts}
        for name, calculator in made.items():
            begun = time.perf_counter()
            stats |= calculator(stats, texts, model, max_new_tokens=job["max_tokens"])
            spent[name] += time.perf_counter() - begun
        answers += stats["greedy_texts"]
        for name, (estimator, _) in asked.items():
            begun = time.perf_counter()
            scores[name] += np.asarray(estimator(stats), dtype=float).tolist()
            spent[name] += time.perf_counter() - begun
    seconds = {n: spent[n] + sum(spent[c] for c in needs) for n, (_, needs) in asked.items()}
    return {"answers": answers, "scores": scores, "seconds": seconds}


if __name__ == "__main__":
    given, out = map(Path, sys.argv[1:3])
    out.write_text(json.dumps(work(json.loads(given.read_text()))))
