"""Power of a run: how often it finds a planted loss of belief in a share of its samples.

The loss is planted in the readings of the run's own states, with their own noise, and goes through
the whole rule, all sets of folds together. The belief that is removed is drawn given the probes'
readings of it: a probe at real width reads much else as well, and that stays.

`anchorscope power` estimates the smallest effect that a run, or one of two or four times its size,
would find in 80 %: a half of the samples loses a part of its belief, or a part of the samples loses
all of it. Larger runs are the run's own entities, drawn with replacement; their probes are not
better than the run's, so that a larger run may find more than these numbers say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import expit, logit

from anchorscope.config import Config, unit_of
from anchorscope.errors import UserError
from anchorscope.parallel import in_parallel
from anchorscope.pathways.band import SIDES, Band
from anchorscope.pathways.effects import delta_p
from anchorscope.pathways.finding import ENOUGH, FEWEST, shows_two_pathways
from anchorscope.pathways.fold_layers import band_of_folds, read_fold_layer
from anchorscope.probes.cross_fit import fit_and_read_layer
from anchorscope.probes.folds import PROBES, Labelled, labelled
from anchorscope.records import Estimate
from anchorscope.run_folder.states import StateBank
from anchorscope.run_folder.view import RunView, records, where
from anchorscope.stats.intervals import NOTHING, Draws
from anchorscope.stats.ranking import auroc

SHARES = {"half": 0.5, "fifth": 0.2}
WORLDS = 20  # planted for each share
_FEWEST = 60  # samples read twice below which their noise is not known
_RESAMPLES = 100  # behind the intervals of a planted world
# Each pass that shows the loss, and the pass that it is read against.
_CUTS = {"knockout": "clean", "question": "clean", "retest-knockout": "retest"}
FACTORS = (1, 2, 4)  # times the run's samples
CURVE_WORLDS = 40  # planted for each number of samples and each kind of effect
MOST = {"loss": 1.0, "share": 0.5}  # of its belief, and of the samples: the other half is A
FEW = 50  # answers of the rarer class below which a probe at chance is most likely short of them
_LEAST = 0.02  # of a loss or a share
_SHUFFLES = 5
# Loss of log-likelihood at the ends of a 95 % interval. It is 1.92 for very many worlds; with forty
# of them such intervals held the truth in 82 to 91 %.
_UNLIKELY = 3.0


def power(
    bands: Sequence[Band], *, share: float, worlds: range, seed: int, lost: float = 1.0
) -> list[bool]:
    """Whether two pathways are found in each of these planted worlds.

    `bands` are the readings of all sets of folds, of the same samples. `lost` is the part of its
    belief that each planted sample loses.
    """
    noise, found = [cut_noise(band) for band in bands], []
    for number in worlds:
        rng = np.random.default_rng((seed, number))
        planted = plant(bands, noise, share=share, lost=lost, rng=rng)
        draws = Draws(seed=int(rng.integers(2**31)), resamples=_RESAMPLES)
        found.append(shows_two_pathways(planted, draws))
    return found


def deciding_power(bands: Sequence[Band], *, seed: int) -> list[bool]:
    """Estimate the power to find two pathways, with as many worlds as a finding needs.

    The worlds are those of `power`. No more are planted once the share that is found must end up
    below or above `ENOUGH`.
    """
    found: list[bool] = []
    for number in range(WORLDS):
        found += power(bands, share=SHARES["half"], worlds=range(number, number + 1), seed=seed)
        hits = sum(found)
        if hits >= ENOUGH * WORLDS or hits + WORLDS - len(found) < ENOUGH * WORLDS:
            break
    return found


def plant(
    bands: Sequence[Band],
    noise: Sequence[np.ndarray],
    *,
    share: float,
    lost: float,
    rng: np.random.Generator,
) -> list[Band]:
    """Plant a loss of belief in bands: the same samples lose it in every set of folds.

    `noise` is the `cut_noise` of each band, permuted among the samples of the same ŷ.
    """
    n, wrong = bands[0].n, bands[0].wrong
    dose = lost * (rng.random(n) < share)
    jolt = rng.standard_normal(n)
    donors = {cut: np.arange(n) for cut in _CUTS}
    for donor in donors.values():
        for mine in (wrong, ~wrong):
            donor[mine] = rng.permutation(donor[mine])

    def planted(band: Band, noise: np.ndarray) -> Band:
        sure, belief = band.reliability, band.belief
        apart = belief - belief.mean()
        true = sure * apart + np.sqrt(sure * (1 - sure)) * belief.std() * jolt
        clean = band.logits["clean"]
        scale = clean @ apart / (apart @ apart) if apart.any() else np.zeros(len(clean))
        logits = dict(band.logits)
        for cut, before in _CUTS.items():
            if band.has(cut, before):
                after = band.logits[before] - scale[:, None] * (dose * true) + noise[:, donors[cut]]
                logits[cut] = np.where(np.isfinite(band.logits[cut]), after, np.nan)
        return replace(band, logits=logits)

    return [planted(band, own) for band, own in zip(bands, noise, strict=True)]


def cut_noise(band: Band) -> np.ndarray:
    """The noise that a cut adds to readings, without the sample's own effect, [probe, question].

    The difference between two cuts of one sample over √2: the sample's own effect cancels. The
    second cut is the retest's, else the whole question's; without either, the law's residuals.
    """

    def residuals(cut: str, before: str) -> np.ndarray:
        rows = band.rows(cut, before)
        some, left = band.take(rows), np.full((len(band.probes), band.n), np.nan)
        for probe, name in enumerate(band.probes):
            left[probe, rows] = some.law(some.side(name, before), some.side(name, cut)).residual
        return left

    left = residuals("knockout", "clean")
    for cut, before in (("retest-knockout", "retest"), ("question", "clean")):
        if band.has(cut, before) and (twice := band.rows(cut, before)).sum() >= _FEWEST:
            apart = (left - residuals(cut, before)) / np.sqrt(2)
            # Samples that were not read twice take the noise of those that were, in turn.
            donor = np.flatnonzero(twice)[np.arange(band.n) % twice.sum()]
            return np.where(twice, apart, apart[:, donor])
    return left


@dataclass(frozen=True, kw_only=True)
class ProbeReads:
    """Whether the clean probe of the best layer is better than chance."""

    layer: int  # k, from 1
    layers: int  # of the model
    right: int
    wrong: int
    auroc: Estimate
    shuffled: tuple[float, ...]  # the same with shuffled labels, several times

    @property
    def at_chance(self) -> bool:
        """Whether the interval reaches a half, or shuffled labels read as well."""
        return not (self.auroc.low > 0.5 and self.auroc.value > max(self.shuffled))

    @property
    def why(self) -> str:
        """What to check where the probe is at chance; empty otherwise."""
        if not self.at_chance:
            return ""
        count, name = min((self.right, "right"), (self.wrong, "wrong"))
        if count < FEW:
            return (
                f"the probe is at chance, and it has only {count} {name} answers to learn "
                "from: ask more questions, or such as this model answers wrong about half the time"
            )
        return (
            "the probe is at chance with enough answers of both kinds: read the doubtful verdicts "
            "(anchorscope verdicts); if they are right, this model's states do not tell a linear "
            "probe which of these answers are wrong"
        )


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """Smallest effects found in 80 % of worlds with n samples; NaN where the largest is not."""

    n: int
    loss: Estimate  # part of its belief that a half of the samples must lose
    delta_p: Estimate  # the same loss as mean ΔP of these samples
    share: Estimate  # of the samples that must lose all of their belief


@dataclass(frozen=True, kw_only=True)
class Power:
    """The power of a run on one dataset."""

    dataset: str
    finding: str
    why: str  # as findings.csv has it
    questions: int  # asked
    n: int  # of them usable
    now: dict[str, float]  # power_half and power_fifth of findings.csv
    probe: ProbeReads
    smallest: tuple[Smallest, ...]  # for n, 2n and 4n


def power_of_run(run: RunView, dataset: str, *, worlds: int = CURVE_WORLDS) -> Power:
    """The power of a finished run on a dataset, from its stored states."""
    rows = records(where(run.findings, dataset=dataset))
    if not rows:
        raise UserError(
            f"'{run.path}' has no finding on '{dataset}'. It has: {', '.join(run.datasets)}."
        )
    config = Config.restore(dict(run.config))
    answers = labelled(run.answers, dataset, config)
    bank = StateBank(run.path, list(answers.ids))
    layers = [int(k) for k in str(rows[0]["layers"]).split()]
    read = partial(read_fold_layer, answers, bank, config, passes=bank.names)
    sets = (
        band_of_folds(answers, config, layers, [read(layer, seed=seed) for layer in layers])
        for seed in range(config.fold_seeds)
    )
    bands = [folds.band for folds in sets if folds is not None]
    described = next(d for d in run.info["datasets"] if d["name"] == dataset)
    return Power(
        dataset=dataset,
        finding=str(rows[0]["finding"]),
        why=str(rows[0]["why"]),
        questions=max(int(described.get("questions") or 0), bands[0].n),
        n=bands[0].n,
        now={name: float(rows[0][name]) for name in ("power_half", "power_fifth")},
        probe=_probe_reads(run, answers, bank, config, int(rows[0]["layer"])),
        smallest=smallest_effects(bands, config, worlds=worlds),
    )


def smallest_effects(
    bands: Sequence[Band], config: Config, *, worlds: int = CURVE_WORLDS
) -> tuple[Smallest, ...]:
    """The smallest loss and the smallest share that are found, for n, 2n and 4n samples."""
    tasks = [(factor, kind) for factor in FACTORS for kind in MOST]

    def threshold(task: tuple[int, str]) -> Estimate:
        factor, kind = task
        if bands[0].n * factor < FEWEST:
            return NOTHING

        def found(size: float, number: int) -> bool:
            effect = {"share": 0.5, "lost": size} if kind == "loss" else {"share": size}
            drawn = redraw(bands, factor, np.random.default_rng((config.seed, factor, number)))
            return power(drawn, **effect, worlds=range(number, number + 1), seed=config.seed)[0]

        return smallest_found(found, most=MOST[kind], worlds=worlds)

    thresholds = in_parallel(threshold, tasks)
    results = zip(FACTORS, thresholds[::2], thresholds[1::2], strict=True)
    return tuple(
        Smallest(
            n=factor * bands[0].n,
            loss=loss,
            delta_p=_as_delta_p(bands[0], loss, config),
            share=share,
        )
        for factor, loss, share in results
    )


def smallest_found(found: Callable[[float, int], bool], *, most: float, worlds: int) -> Estimate:
    """The size at which 80 % of the worlds are found, from a logistic curve through them.

    `found(size, number)` plants one world. Half of the worlds are spread evenly over all sizes, the
    other half around the crossing that the first half suggests. The value is NaN where the crossing
    is beyond `most`; an end of the interval that may be there is infinite.
    """
    sizes = np.linspace(_LEAST, most, worlds - worlds // 2)
    hits = [found(size, number) for number, size in enumerate(sizes)]
    value, low, _ = _crossing(sizes, np.array(hits), most=most)
    ends = np.clip([low, 2 * value - low], _LEAST, most)
    closer = np.linspace(ends[0], ends[1], worlds // 2)
    hits += [found(size, number + len(sizes)) for number, size in enumerate(closer)]
    sizes = np.concatenate([sizes, closer])
    value, low, high = _crossing(sizes, np.array(hits), most=most)
    return Estimate(
        value if value <= most else np.nan, low, high if high <= most else np.inf, worlds
    )


def _crossing(sizes: np.ndarray, hits: np.ndarray, *, most: float) -> tuple[float, float, float]:
    """The likeliest crossing of 80 % and its 95 % likelihood interval, up to twice `most`."""
    at = np.linspace(_LEAST, 2 * most, 200)
    steep = np.geomspace(2, 400, 24) / most
    # [crossing, steepness, world]
    chance = expit(logit(ENOUGH) + steep[:, None] * (sizes - at[:, None, None]))
    likely = np.log(np.where(hits, chance, 1 - chance).clip(1e-12)).sum(axis=2).max(axis=1)
    inside = at[likely >= likely.max() - _UNLIKELY]
    best = at[likely >= likely.max() - 1e-9].mean()  # a plateau where the curve may be a step
    return float(best), float(inside.min()), float(inside.max())


def redraw(bands: Sequence[Band], factor: int, rng: np.random.Generator) -> list[Band]:
    """A run of `factor` times the size: entities drawn with replacement, each a new one.

    The same rows are taken from every set of folds.
    """
    number = np.unique(bands[0].entity, return_inverse=True)[1]
    size = np.bincount(number)
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(size)[:-1])
    drawn = rng.integers(len(members), size=factor * len(members))
    rows = np.concatenate([members[number] for number in drawn])
    entity = np.repeat(np.arange(len(drawn)), size[drawn]).astype(str)
    taken = [band.take(rows) for band in bands]
    return [replace(b, covariates=replace(b.covariates, entity=entity)) for b in taken]


def _as_delta_p(band: Band, loss: Estimate, config: Config) -> Estimate:
    """Mean ΔP of samples that lose this part of their belief."""

    def effect(lost: float) -> float:
        if not np.isfinite(lost):
            return np.nan
        rng = np.random.default_rng(config.seed)
        (planted,) = plant(
            [band], [cut_noise(band)], share=1.0, lost=min(lost, MOST["loss"]), rng=rng
        )
        sides = [
            delta_p(planted.side(p), planted.side(p, "knockout"), delta=unit_of(config.delta))
            for p in SIDES
        ]
        return float(np.mean(sides))

    # A larger loss is a ΔP further below zero.
    return Estimate(effect(loss.value), effect(loss.high), effect(loss.low), 0)


def _probe_reads(
    run: RunView, answers: Labelled, bank: StateBank, config: Config, layer: int
) -> ProbeReads:
    """Compare the probe of a layer, by the run's own AUROC, with probes of shuffled labels."""
    table = where(run.probes, dataset=answers.dataset)
    row = next(row for row in records(table) if int(row["layer"]) == layer)
    states, shuffled = {"clean": bank.layer("clean", layer)}, []
    for seed in range(_SHUFFLES):
        z = np.random.default_rng(seed).permutation(answers.z)
        _, logits = fit_and_read_layer(states, replace(answers, z=z), config, layer=layer)
        shuffled.append(auroc(z, logits["clean"][PROBES.index("paper")]))
    return ProbeReads(
        layer=layer,
        layers=len(table),
        right=int(np.sum(answers.z == 0)),
        wrong=int(np.sum(answers.z == 1)),
        auroc=Estimate(row["auroc"], row["auroc_low"], row["auroc_high"], len(answers.z)),
        shuffled=tuple(shuffled),
    )
