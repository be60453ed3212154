# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # The published figure, with a GPU and a Llama
#
# *For people with a GPU and access to Llama-3.2 on the hub.* Two models, four datasets, 2,000 questions each: the layout of
# the paper's figure.
#
# **This notebook was not run with these weights where it was written**, so it has no outputs. A test runs every cell of it with tiny
# random models in their place (`tests/test_tutorial.py`). `anchorscope study published` does the same from the command line and
# for all four models of the published figures.

# %% tags=["parameters"]
MODELS = ["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B"]
DATA = ["popqa", "triviaqa", "hotpotqa", "nq"]
LIMIT = 2000
OPTIONS: dict = {}  # of anc.Config, such as {"dtype": "bfloat16"}

# %% [markdown]
# ## What will it cost?
#
# Tokens, FLOPs and bytes: `anchorscope study published --plan`; once a model has read a shard, the hours that are left
# ([studies](clusters.md#studies)).

# %%
# %matplotlib inline
from pathlib import Path

import pandas as pd

import anchorscope as anc

questions = [anc.load_questions(name, limit=LIMIT) for name in DATA]
pd.DataFrame([(each.title, len(each), dict(each.dropped)) for each in questions])

# %% [markdown]
# ## The runs
#
# One folder for each model. A cell that was interrupted continues where it stopped: run it again.

# %%
runs = []
for name in MODELS:
    model = anc.load_model(name)
    print(f"{model.name}, {model.blocks} blocks\n{model.why}")
    config = anc.Config(limit=LIMIT, **OPTIONS)
    runs.append(anc.run(model, questions, out=Path("runs") / model.name, config=config))
    del model  # make room on the GPU for the next one

# %% [markdown]
# ## Are the probes any good?
#
# AUROC of the clean probes by layer. Where it is near 0.5, the results below cannot be interpreted.

# %%
pd.concat([run.probes for run in runs]).pivot_table(
    index=["model", "dataset"], values="auroc", aggfunc="max"
).round(3)

# %% [markdown]
# ## The figure
#
# Paper mode first, as published: groups and effects from the same probe. Boxes, where they are drawn, are what descriptions of
# the published figure say.

# %%
figure = anc.plot_delta_p(runs, mode="paper")
figure.savefig("delta_p_paper.pdf")
figure

# %% [markdown]
# Then strict mode: groups from one probe, effects from another, on questions that neither saw. A Q curve inside its hatching
# shows no second pathway.

# %%
figure = anc.plot_delta_p(runs, mode="strict")
figure.savefig("delta_p_strict.pdf")
figure

# %% [markdown]
# ## What was found
#
# [What each finding means](findings.md). Read the power beside it: "not shown" is not "not there".

# %%
pd.concat([run.findings for run in runs])[
    ["model", "dataset", "n", "gap", "gap_low", "gap_high", "finding", "by", "power_half"]
].round(2)

# %%
pd.concat([run.claims for run in runs])[
    [
        "claim",
        "model",
        "dataset",
        "paper_value",
        "paper_decision",
        "strict_value",
        "strict_decision",
    ]
].round(2)

# %% [markdown]
# ## Look at the samples
#
# `anchorscope view` on the two run folders writes one page that shows both models side by side, from the curves to the
# tokens. `report.html` in each folder has every control.
