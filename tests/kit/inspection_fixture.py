"""A run folder of a tiny model: its own prompts and answers, made-up verdicts, random probes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anchorscope.answers.generate import Answerer
from anchorscope.answers.prompted import prompts_of
from anchorscope.config import Config
from anchorscope.engine.decode import Prefix
from anchorscope.engine.lease import Lease
from anchorscope.models import Model, load_model
from anchorscope.models.prompts import make_prompt
from anchorscope.pipeline.read_states import mark_answer
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import Question, QuestionSet, Shot
from anchorscope.run_folder.identity import weights_hash
from anchorscope.run_folder.samples import to_frame
from anchorscope.spans.question import find_spans
from kit.explore_fixture import IMAGE, START, TURNED
from kit.show_fixture import SUBJECTS, make_run
from kit.tiny import tiny_tokenizer

SHOTS = (Shot(question="Which country is Pisa in?", answer="Italy"),)
LAYERS, FOLDS, SEED = 4, 3, 7
CONFIG = Config(data=("atlas",), limit=40, max_tokens=5, folds=FOLDS, seed=SEED, prompt="text")


def make_inspected(folder: Path, model: Model, *, n: int = 40) -> Path:
    """A finished run of this model over questions of one dataset."""
    make_run(folder, layers=LAYERS, n=n, datasets={"atlas": "Atlas"}, seed=3)
    samples = _samples(model, n)
    frame = to_frame(samples)
    frame["fold"] = pd.array([i % FOLDS for i in range(n)], dtype="Int64")
    frame.to_parquet(folder / "samples.parquet")
    rng = np.random.default_rng(SEED)
    width = model.parts.width
    ProbeSet(
        probes=("paper", "a", "b"),
        weights=rng.normal(size=(3, FOLDS, LAYERS, width)).astype(np.float32) / width**0.5,
        intercept=rng.normal(size=(3, FOLDS, LAYERS)),
        n_train=np.full((3, FOLDS), n),
        C=1.0,
        balance="weights",
    ).save(folder / "probes" / "atlas")
    info = json.loads((folder / "run.json").read_text())
    facts = {"blocks": model.blocks, "width": width, "dtype": "float32", "prompt": "text"}
    info["model"] |= {**facts, "source": "tiny", "weights": weights_hash(model.lm)}
    info["config"] = {**CONFIG.__dict__, "data": ["atlas"], "evidence": [], "ablate": []}
    info["finished"] = True
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def _samples(model: Model, n: int) -> list:
    questions = QuestionSet(
        name="atlas",
        title="Atlas",
        questions=tuple(_question(i) for i in range(n)),
        shots=SHOTS,
    )
    spans = find_spans(questions.questions, finder="auto")
    prompts = prompts_of(model, questions, spans, style="text", shots=1)
    answerer = Answerer(model, max_tokens=CONFIG.max_tokens)
    with Lease(model) as lease:
        ids = [p.prompt_ids for p in prompts]
        answered = answerer.answer(lease, Prefix((), None), [p.question.id for p in prompts], ids)
    return [mark_answer(model, p, a) for p, a in zip(prompts, answered.answers, strict=True)]


def _question(i: int) -> Question:
    subject = f"{SUBJECTS[i % len(SUBJECTS)]} {i}"
    return Question(
        id=f"atlas:test:{i}",
        dataset="atlas",
        text=f"Which country is {subject} in?",
        answers=("France",),
        subjects=(subject,),
        entity=subject,
    )


def prompt_ids(model: Model, question: str) -> tuple[int, ...]:
    """The prompt tokens of a question, made by the run's own function."""
    return make_prompt(model, question, shots=SHOTS, style="text").ids


def hostile_model() -> Model:
    """A tiny model of four blocks whose answers try to inject markup into a page.

    The output weights of all tokens but two pairs are 0, and those of a pair are opposite: one of
    them always has the highest logit.
    """
    tokenizer = tiny_tokenizer(IMAGE, TURNED, START)
    torch.manual_seed(0)
    lm = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=LAYERS,
            num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
            max_position_embeddings=512, initializer_range=0.2, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip
    row = torch.randn(32)
    with torch.no_grad():
        lm.lm_head.weight.zero_()
        for token, sign in ((IMAGE, 1.0), (TURNED, -1.0)):
            lm.lm_head.weight[tokenizer.convert_tokens_to_ids(token)] = sign * row
    return load_model(lm, tokenizer=tokenizer)
