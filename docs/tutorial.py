# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Tutorial: from one question to a detector
#
# *For anybody with Python and two CPU cores; no GPU, no account, no download.* You make a run and its figure, look into one
# question, see why the figure alone proves little, and train a detector of wrong answers.
#
# Everything here is small so that each cell takes seconds: a model of 135 million weights and 96 questions. That is
# **too few for any finding**, and the tool will say so. The words are explained in the [glossary](findings.md#glossary).
# `make tutorial` runs this notebook and says what each cell took.

# %%
# %matplotlib inline
import pandas as pd

import anchorscope as anc

pd.set_option("display.max_colwidth", 90)
model = anc.load_model("bundled")  # or a hub id, a folder, a .gguf file, a model of transformers
print(f"{model.name}, {model.blocks} blocks\n{model.why}")

# %% [markdown]
# `atlas` is a built-in set of questions for a fact. `answers` are the accepted answers, `subjects` the words that name what
# is asked about: they are what the knockout hides.

# %%
questions = anc.load_questions("atlas", limit=96)
pd.DataFrame(
    [(q.text, q.answers[0], q.subjects[0], q.relation) for q in questions][:4],
    columns=["text", "answers[0]", "subjects[0]", "relation"],
)

# %% [markdown]
# ## 1. A run and its figure
#
# A run asks every question, judges the answers, reads the states of all layers clean and under several interventions, trains
# probes that predict *wrong* from a state, and writes tables, figures and a report. These options make it small; leave
# `config` out for a real one. A run that was stopped continues with the same call.
#
# **ΔP** is the change in the probability that the probe gives to its own first prediction when the subject is hidden, in
# percentage points. Samples whose prediction flips are called question-anchored (**Q**, solid), the others answer-anchored
# (**A**, dashed). Top: paper mode, one probe for group and effect. Bottom: strict mode, the group from one probe and the
# effect from another. With 96 samples the curves are rough.

# %%
small = anc.Config(prompt="text", max_tokens=8, folds=3, fold_seeds=1, resamples=100, evidence=())
run = anc.run(model, questions, out="runs/tutorial", config=small)
anc.plot_delta_p(run, mode="both")

# %% [markdown]
# What does strict mode conclude? Nothing: below 150 samples it makes no finding.

# %%
run.findings[["dataset", "layer", "n", "finding", "why"]]

# %% [markdown]
# The samples, as any table:

# %%
run.samples[["question", "answer", "verdict"]].head(5)

# %% [markdown]
# ## 2. One question, with and without its subject
#
# `inspect` asks one question and lets the run's probes read the states: first unchanged, then with the subject knocked out,
# so that no later token can attend to it. Struck-out tokens are knocked out.

# %%
one = anc.inspect(model, "What is the capital of France?", run=run)
one

# %% [markdown]
# Is the knockout exact on this model? Every change that a run makes to the forward pass is compared with transformers' own
# attention under the same mask. A run makes these checks by itself and refuses a model that fails one.

# %%
checks = pd.DataFrame(anc.check_model(model))[["name", "ok", "seen"]]
assert checks["ok"].all()
checks

# %% [markdown]
# ## 3. Why the figure alone proves little
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
# ## 4. Your own model and data
#
# A model that you have loaded with transformers, with its tokenizer, is used as it is. Your own questions are a file with the
# columns `question` and `answers`, or a list:

# %%
import json
from pathlib import Path

lm, tokenizer = model.lm, model.tokenizer  # yours: AutoModelForCausalLM.from_pretrained(...)
mine = anc.load_model(lm, tokenizer=tokenizer)
rows = [
    {"question": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"], "subject": "Emma"},
    {"question": "What is the capital of Bhutan?", "answers": ["Thimphu"], "subject": "Bhutan"},
    {"question": "Which element has the symbol Fe?", "answers": ["iron"], "subject": "Fe"},
]
Path("my.jsonl").write_text("\n".join(map(json.dumps, rows)))
own = anc.load_questions("my.jsonl")
[question.text for question in own]

# %% [markdown]
# With about a thousand of them, this is a study of your own: `anchorscope run --model MODEL --data my.jsonl --out runs/mine`
# ([your model](own-model.md), [your data](own-data.md)).
#
# ## 5. A detector
#
# A probe estimates from the model's hidden states how likely an answer is wrong. A detector is such a score with a calibrated
# probability and a threshold. This one was trained on 96 answers, so do not trust it.

# %%
detector = anc.Detector.train(run, method="probe", resamples=100)
unseen = list(anc.load_questions("atlas", limit=104))[96:]  # a larger limit extends a smaller one
scored = detector.score(model, [question.text for question in (*unseen, *own)])
pd.DataFrame(
    [(s.question, s.answer, s.probability, s.outcome) for s in scored],
    columns=["question", "answer", "P(wrong)", "outcome"],
).round(2)

# %% [markdown]
# `outcome` is `cannot say` where the training answers do not settle on which side of the threshold an answer lies. You can also
# score an answer that you already have. A detector is saved without pickle.

# %%
detector.save("detector")
again = anc.Detector.load("detector")
other = again.score(model, "What is the capital of Japan?", answer="Kyoto")
other.answer, round(other.probability, 2)

# %% [markdown]
# ## Where next
#
# - [Results](results.md): three models on four datasets, with every number.
# - [What a finding means](findings.md), and [the method](method.md) behind it.
# - [With a GPU and a Llama](tutorial_gpu.ipynb): the published figure.
# - [Detectors](detection.md): what they are worth, and how to deploy one.
# - `anchorscope view runs/tutorial` opens every sample in one page; `anchorscope app runs/tutorial` asks the model live.
