"""A question answered as in a run, with the state of every answer token heard as it is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from anchorscope.engine.lease import Lease, Read
from anchorscope.engine.transfer import to_host
from anchorscope.inspection.prompts import RunPrompts
from anchorscope.models import Model
from anchorscope.pipeline.prompts import Prompted
from anchorscope.pipeline.read_states import mark_answer
from anchorscope.records import Sample

# Told of each answer token when it has been fed: its id, and its states [layer, width].
OnToken = Callable[[int, np.ndarray], None]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with the model's answer to it, and the states that were caught on the way."""

    prompt: Prompted
    sample: Sample  # its verdict means nothing where no accepted answer is known
    states: np.ndarray  # [answer token, layer, width], as a run folder would give them back

    @property
    def known(self) -> bool:
        """Whether the accepted answers are known, and with them the verdict."""
        return bool(self.sample.question.answers)

    @property
    def clean(self) -> np.ndarray | None:
        """The states [layer, width] at the probe position; None: no answer entity to read."""
        exact = self.sample.exact_answer
        return self.states[exact[-1] - len(self.sample.prompt_ids)] if exact else None


class ListeningLease(Lease):
    """A lease that tells of every token that is fed alone, which is how answers are written."""

    def __init__(self, model: Model, heard: OnToken) -> None:
        super().__init__(model)
        self._heard = heard

    def run(self, ids: Tensor, *args: Any, **options: Any) -> Read:
        read = super().run(ids, *args, **options)
        if ids.shape == (1, 1):
            self._heard(int(ids[0, 0]), to_host(read.states)[0].astype(np.float32))
        return read


def ask(prompts: RunPrompts, text: str, heard: OnToken | None = None) -> Asked:
    """The model's greedy answer to a question, marked as a run marks it."""
    prompt, model = prompts.prompted(text), prompts.model
    states: list[np.ndarray] = []

    def keep(token: int, of: np.ndarray) -> None:
        states.append(of)
        if heard is not None:
            heard(token, of)

    with ListeningLease(model, keep) as lease:
        prefix = prompts.prefix(lease, prompt.prompt_ids)
        states.clear()  # a prefix of one token is no answer
        answered = prompts.bound.answerer.answer(
            lease, prefix, [prompt.question.id], [prompt.prompt_ids]
        )
    (answer,) = answered.answers
    stacked = np.stack(states) if states else np.empty((0, model.blocks, model.parts.width))
    if not prompt.question.answers:  # no judge: the sample is neither right nor wrong
        prompt = replace(prompt, verdict="abstain")
    sample = mark_answer(model, prompt, answer)
    return Asked(prompt=prompt, sample=sample, states=stacked)
