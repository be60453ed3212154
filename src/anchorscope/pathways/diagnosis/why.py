"""Why a dataset's finding is what it is, and how many questions would decide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anchorscope.pathways.diagnosis.at_layer import AtLayer
from anchorscope.pathways.diagnosis.probe_reads import ProbeReads, probe_reads
from anchorscope.pathways.two_pathways.finding import FEWEST
from anchorscope.pathways.two_pathways.needed import MOST, ONE_HUMP, WORLDS, Needed, needed
from anchorscope.pathways.two_pathways.own_case import own_case
from anchorscope.pathways.two_pathways.planted import clear_case
from anchorscope.records import Estimate
from anchorscope.run_folder.view import RunView, records, where

# What more questions do not change.
_OTHER = {
    "class-collapse": "More questions do not change that: the knockout pushes nearly every sample "
    "to one class, so the groups are the predicted classes under another name.",
    "margin": "More questions do not change that: the groups are told by the clean belief.",
    "kinds-of-question": "More questions do not change that: take kinds of question apart, or ask "
    "one kind alone.",
    "no-effect": "See first that the right tokens are cut: exact tokens are in samples.parquet.",
}


@dataclass(frozen=True, kw_only=True)
class Why:
    """One dataset of a run."""

    dataset: str
    finding: str
    why: str  # as findings.csv has it
    asked: int  # questions
    usable: int  # of them, with a verdict of right or wrong and states
    probe: ProbeReads
    own: Needed | None  # for an effect like this run's; None without any noise to plant it in
    clear: Needed | None  # for the clear case

    def questions(self, of: Needed | None) -> Estimate:
        """The number of questions to ask, at this run's share of usable ones."""
        if of is None:
            return Estimate(np.nan, np.nan, np.nan, 0)
        return Estimate(*(value * self.asked / self.usable for value in of.samples[:3]), n=0)

    @property
    def limit(self) -> str:
        """What keeps an effect like this run's from being shown."""
        if self.usable < FEWEST:
            return f"fewer than {FEWEST} usable samples"
        if self.probe.at_chance:
            return "the probe, at chance"
        if self.own is None or self.finding == "two-pathways":
            return ""
        return "one hump" if self.own.apart <= ONE_HUMP else self.own.limit

    @property
    def sentences(self) -> list[str]:
        """The same in words."""
        parts = [f"{self.dataset}: {self.finding} ({self.why})."]
        if self.own is not None and self.finding != "two-pathways":
            parts.append(self._effect(self.own))
        if self.clear is not None:
            parts.append(self._clear(self.clear))
        parts += [_OTHER[self.finding]] if self.finding in _OTHER else []
        parts += [f"{self.probe.why.capitalize()}."] if self.probe.why else []
        return parts

    def _effect(self, own: Needed) -> str:
        if own.apart <= ONE_HUMP:
            return (
                f"The samples of this run look like one hump (its best guess of two is "
                f"{own.apart:.1f} spreads of the noise apart, and up to {ONE_HUMP:.0f} two equal "
                "humps have one peak), so it has no size of its own to ask for."
            )
        return (
            f"Its best guess is humps {own.apart:.1f} spreads of the noise apart, with "
            f"{own.share:.0%} of the samples in the lower one ({own.furthest:.1f} spreads with "
            f"probes as good as they get). {self.usable} usable of {self.asked} questions show "
            f"that with a chance of {own.now.value:.0%}; 80 % takes {self.said(own)}."
        )

    def _clear(self, clear: Needed) -> str:
        return (
            f"The clear case ({clear.apart:.0f} spreads) is shown with a chance of "
            f"{clear.now.value:.0%} now; 80 % takes {self.said(clear)}."
        )

    def said(self, of: Needed) -> str:
        """The number of questions with the simulation's interval."""
        number = self.questions(of)
        if np.isnan(number.value):
            return f"more than {_rounded(MOST * self.asked / self.usable):,} questions"
        low, high = (f"{_rounded(end):,}" for end in (number.low, number.high))
        return f"about {_rounded(number.value):,} questions ({low} to {high})"


def why(
    run: RunView, dataset: str, *, worlds: int = WORLDS, on_done: Callable[[], None] | None = None
) -> Why:
    """What the run shows and could have shown on one dataset."""
    at = AtLayer.of(run, dataset)
    row = records(where(run.findings, dataset=dataset))[0]
    logits, known = at.logits_and_known
    plans = own_case(logits, known), clear_case(logits, known)
    own, clear = (
        None if plan is None else needed(
            plan, seed=at.config.seed, worlds=worlds, on_done=on_done
        )
        for plan in plans
    )  # fmt: skip
    asked = next(d for d in run.info["datasets"] if d["name"] == dataset)
    usable = len(known.fold)
    return Why(
        dataset=dataset,
        finding=str(row["finding"]),
        why=str(row["why"]),
        asked=max(int(asked.get("questions") or usable), usable),
        usable=usable,
        probe=probe_reads(run, at),
        own=own,
        clear=clear,
    )


def _rounded(number: float) -> int:
    """Two figures: the simulation knows no more."""
    return int(float(f"{number:.1e}"))
