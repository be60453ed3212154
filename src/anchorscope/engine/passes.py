"""The named passes of a run: knockouts, controls, answer-only, retest and reweighting.

The name of a pass is the name of its states in the run folder, states/<pass>/.
"""

from __future__ import annotations

from dataclasses import replace

from anchorscope.config import Config
from anchorscope.engine.interventions import Intervention

CLEAN = Intervention(name="clean", heads=())  # no head is cut: nothing is
KNOCKOUT = Intervention(name="knockout")
NEUTRAL = Intervention(name="neutral", keys="neutral")
CONTENT = Intervention(name="content", keys="content")
QUESTION = Intervention(name="question", keys="question")
ANSWER_ONLY = Intervention(name="answer-only", answer_only=True)
# The same answer after other worked examples and wording, clean and knocked out.
RETESTED = 500  # questions of each dataset at most
RETEST = Intervention(name="retest", heads=(), retest=True)
RETEST_KNOCKOUT = Intervention(name="retest-knockout", retest=True)

# States recorded while the answer is written, without a pass of their own: at the probe position,
# and at the last token of the question, before any answer token.
QUESTION_ONLY = "question-only"
CAUGHT = (CLEAN.name, QUESTION_ONLY)

# Added to attention scores for Pathway Reweighting, with both signs; 0 is the clean pass.
BETAS = (0.25, 0.5, 1.0, 2.0)


def knockout_of(config: Config) -> Intervention:
    """The knockout as the run's config defines it."""
    return replace(KNOCKOUT, keys=config.keys, where=config.where, layers=config.layers)


def passes_of(config: Config) -> tuple[Intervention, ...]:
    """The passes of every run: the knockout, its controls, the answer alone, and the retest."""
    cut = knockout_of(config)
    controls = (replace(cut, name=c.name, keys=c.keys) for c in (NEUTRAL, CONTENT, QUESTION))
    again = replace(cut, name=RETEST_KNOCKOUT.name, retest=True)
    return (cut, *controls, ANSWER_ONLY, RETEST, again)


def window_knockouts(config: Config) -> tuple[Intervention, ...]:
    """Knockouts in windows of 5 blocks and in single blocks, which show the depth of the flow."""
    cut = knockout_of(config)
    return (
        replace(cut, name="window-5", layers="window:5"),
        replace(cut, name="single", layers="single"),
    )


def reweightings() -> tuple[Intervention, ...]:
    """The passes that add β to the scores from E_Q to E_A, which detectors are trained on."""
    betas = [sign * beta for beta in BETAS for sign in (1, -1)]
    return tuple(Intervention(name=reweighted_name(beta), boost=beta) for beta in betas)


def reweighted_name(beta: float) -> str:
    """The name of the reweighting pass with this β."""
    return f"reweight{float(beta):+}"
