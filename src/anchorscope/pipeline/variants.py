"""Compute the finding under other choices (ablate.csv, robust.csv), or reuse a run's states.

Each row is the finding of the run with one choice changed. `--ablate` reads the same answers under
another knockout, with the run's own probes. `--robust` starts from folds and probes: with other
settings, other verdicts or half of the data, and, where the model is loaded, with reworded
questions. `--reuse` takes the states of a finished run under other verdicts.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from anchorscope.answers.given import GivenAnswer
from anchorscope.answers.prompted import (
    AS_WRITTEN,
    WORDINGS,
    Rephrasing,
    Shard,
    cut_into_shards,
    judged,
    prompts_of,
)
from anchorscope.answers.verdicts import flip_verdicts
from anchorscope.config import Config, Finder
from anchorscope.engine.interventions import (
    CAUGHT,
    CLEAN,
    KNOCKOUT,
    Intervention,
    knockout_of,
    passes_of,
)
from anchorscope.errors import UserError, unknown
from anchorscope.models.prompts import has_chat
from anchorscope.parallel import in_parallel
from anchorscope.pathways.band import READ
from anchorscope.pathways.dataset import DatasetInputs, whole_finding
from anchorscope.pathways.effects import delta_p, flips
from anchorscope.pipeline.prepare import prompts_by
from anchorscope.pipeline.read_states import Reader, Worker, read_states
from anchorscope.pipeline.request import Run
from anchorscope.probes.cross_fit import read_layers
from anchorscope.probes.folds import labelled
from anchorscope.probes.probe_set import ProbeSet
from anchorscope.records import Sample
from anchorscope.run_folder import table_columns
from anchorscope.run_folder.disk import refuse_unsafe
from anchorscope.run_folder.samples import (
    answers_name,
    output_name,
    stored_answers,
    stored_samples,
    to_frame,
)
from anchorscope.run_folder.states import StateBank, shard_name
from anchorscope.run_folder.store import Store, read_info
from anchorscope.stats.intervals import difference_of_means

AS_RUN = "as run"
FOLDS = (3, 5, 10)  # tried by --robust, without the run's own
FLIPPED = (2, 5, 10)  # percent of the verdicts
DRAWS = 3  # random draws of the flipped verdicts; a row is their median
CAP = 1000  # questions of each set that are asked again: the first ones, whose order is random
ABLATIONS = ("spans", "where", "layers")
_FINDERS: tuple[Finder, ...] = ("rules", "all")
_OTHERWISE = (("where", "pre"), ("where", "post"), ("layers", "cumulative"),
              ("layers", "window:5"), ("layers", "single"))  # fmt: skip
_MIDDLE = ("paper_gap", "same_gap", "strict_gap", "gap_low", "gap_high")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant of the analysis: its samples, states and config."""

    name: str  # as the table writes it
    dataset: str
    config: Config
    samples: Sequence[Sample]  # of the dataset
    folder: Path  # the run folder with the states
    knockout: str = KNOCKOUT.name  # the pass that is read as the knockout
    stored_probes: bool = False  # read with the run's own probes; else train others


def as_run(run: Run, samples: Sequence[Sample], dataset: str) -> Variant:
    """The variant that changes nothing: the run itself."""
    return Variant(
        name=AS_RUN, dataset=dataset, config=run.config, samples=samples, folder=run.store.path
    )


def row_of(variant: Variant) -> Row:
    """Compute the finding of a variant as a row; `too-few` where probes cannot be trained."""
    config, row = variant.config, {"variant": variant.name, "dataset": variant.dataset}
    try:
        answers = labelled(variant.samples, variant.dataset, config)
        bank = StateBank(variant.folder, list(answers.ids), {KNOCKOUT.name: variant.knockout})
        # The retest was read with the run's own knockout.
        own = variant.knockout == KNOCKOUT.name
        names = [n for n in READ if n in bank.names and (own or not n.startswith("retest"))]
        place = variant.folder / "probes" / variant.dataset
        stored = ProbeSet.load(place) if variant.stored_probes else None
        readings, _ = read_layers(bank, answers, config, names, probes=stored)
        inputs = DatasetInputs(
            model="", config=config, answers=answers, readings=readings, bank=bank
        )
        finding = whole_finding(inputs)
    except UserError:
        return row | {"n": sum(s.usable for s in variant.samples), "finding": "too-few"}
    clean, cut = (readings.at(inputs.layer, "paper", n) for n in (CLEAN.name, KNOCKOUT.name))
    paper = difference_of_means(delta_p(clean, cut), flips(clean, cut) == 1, inputs.draws)
    return row | {
        "layer": inputs.layer,
        "n": finding.examined.n,
        "paper_gap": paper.value,
        "paper_low": paper.low,
        "paper_high": paper.high,
        "paper_decision": (
            "holds" if paper.high < 0 else "fails" if paper.low > 0 else "undecided"
        ),
        "same_gap": finding.same_gap,
        "strict_gap": finding.gap.value,
        "gap_low": finding.gap.low,
        "gap_high": finding.gap.high,
        "strict_decision": "holds" if finding.name == "two-pathways" else "not shown",
        "finding": finding.name,
    }


# --ablate: the same answers under another knockout.


class Ablated(NamedTuple):
    """One choice with another value, and the knockout for it."""

    name: str  # as the table writes it
    intervention: Intervention
    finder: Finder | None = None  # another finder of the exact question tokens


def ablated_choices(config: Config) -> list[Ablated]:
    """List every other value of each choice that the config ablates."""
    for choice in config.ablate:
        if choice not in ABLATIONS:
            raise unknown("choice to ablate", choice, ABLATIONS)
    choices, own = [], knockout_of(config)
    for finder in _FINDERS if "spans" in config.ablate else ():
        cut = replace(own, name=f"knockout-spans-{finder}")
        choices.append(Ablated(f"spans={finder}", cut, finder))
    for choice, value in _OTHERWISE:
        if choice in config.ablate and value != getattr(own, choice):
            name = f"knockout-{choice}-{value.replace(':', '')}"
            cut = replace(own, **{"name": name, choice: value})
            choices.append(Ablated(f"{choice}={value}", cut))
    return choices


def read_ablated(run: Run, reader: Reader) -> None:
    """Read the same answers again under each knockout of `--ablate`."""
    for choice in ablated_choices(run.config):
        shards = reader.shards
        if choice.finder is not None:
            find = partial(_found_by, shards=shards, finder=choice.finder)
            shards = reader.ask(f"The spans of {choice.finder}", find)
        read_states(run, reader, [choice.intervention], name=choice.name, shards=shards)


def _found_by(worker: Worker, *, shards: Sequence[Shard], finder: Finder) -> list[Shard]:
    """The shards with the exact question tokens (E_Q) that another finder gives."""
    exact = {
        prompt.question.id: prompt.exact_question
        for questions in worker.run.sets
        for prompt in prompts_by(worker.run, worker.lease, questions, finder)
    }
    found = []
    for shard in shards:
        prompts = (replace(p, exact_question=exact[p.question.id]) for p in shard.prompts)
        found.append(replace(shard, prompts=tuple(prompts)))
    return found


def ablation_table(run: Run, samples: Sequence[Sample], dataset: str) -> pd.DataFrame:
    """Compute the rows of ablate.csv for a dataset, the run itself first."""
    own = replace(as_run(run, samples, dataset), stored_probes=True)
    others = [
        replace(own, name=choice.name, knockout=choice.intervention.name)
        for choice in ablated_choices(run.config)
    ]
    return pd.DataFrame(in_parallel(row_of, [own, *others]), columns=list(table_columns.ABLATION))


# --robust: from folds and probes on.


def robust_table(
    run: Run, samples: Mapping[str, Sequence[Sample]], reworded: Sequence[Variant]
) -> pd.DataFrame:
    """Compute robust.csv: the finding of the run and of each variant, for every dataset.

    `samples` is by dataset; `reworded` are the variants that needed the model.
    """
    with run.stage("robust"):
        variants: list[Variant] = []
        for dataset, own in samples.items():
            variants += variants_of_states(as_run(run, own, dataset))
            variants += [variant for variant in reworded if variant.dataset == dataset]
        run.progress.start("other choices", len(variants))
        return table_of(in_parallel(row_of, variants, progress=lambda *_: run.progress.advance()))


def variants_of_states(own: Variant) -> list[Variant]:
    """List the run itself and every variant that needs only its stored states."""
    config, samples = own.config, own.samples
    seed = config.seed + config.fold_seeds  # the run's own fold seeds come before it
    configs = {f"C={C:g}": replace(config, C=C) for C in (config.C / 4, config.C * 4)}
    configs |= {f"folds={n}": replace(config, folds=n) for n in FOLDS if n != config.folds}
    configs[f"fold-seed={seed}"] = replace(config, seed=seed)
    variants = [replace(own, name=name, config=other) for name, other in configs.items()]
    for percent in FLIPPED:
        for draw in range(DRAWS):
            flipped = flip_verdicts(samples, percent, seed=(config.seed, percent, draw))
            variants.append(replace(own, name=f"flipped={percent}%", samples=flipped))
    entities = sorted({sample.question.entity for sample in samples})
    drawn = np.random.default_rng(config.seed).permutation(len(entities))[: len(entities) // 2]
    kept = {entities[n] for n in drawn}
    half = [sample for sample in samples if sample.question.entity in kept]
    return [own, *variants, replace(own, name="half", samples=half)]


def table_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Summarise rows by variant, and compare each variant's finding with the run's own.

    A row has the medians of the numbers, and the finding of most draws (the first of equals).
    """
    numbers = dict.fromkeys(("layer", "n", *_MIDDLE), float)
    frame = pd.DataFrame(rows, columns=["dataset", "variant", *numbers, "finding"]).astype(numbers)
    frame = frame.replace([np.inf, -np.inf], np.nan)
    draws = frame.groupby(["dataset", "variant"], sort=False)
    table = draws[[*_MIDDLE]].median()
    for name in ("layer", "n"):
        table[name] = draws[name].quantile(interpolation="lower")
    table["finding"] = draws["finding"].agg(lambda found: Counter(found).most_common(1)[0][0])
    table = table.reset_index()
    first = table.loc[table["variant"] == AS_RUN]
    own = first.set_index("dataset")["finding"]
    table["agrees"] = table["finding"] == table["dataset"].map(own)
    columns = list(table_columns.ROBUST)
    return table.reindex(columns=columns).astype({"layer": "Int64", "n": "Int64"})


# --robust: the variants that need the model.


def read_reworded(run: Run, reader: Reader) -> list[Variant]:
    """Read the states of every variant that needs the model, and store them.

    Another finder reads the same answers. Another style or wording asks the questions again, into
    robust/<variant> in the run folder.
    """
    spans = replace(run, config=replace(run.config, ablate=("spans",)))
    read_ablated(spans, reader)
    variants = [
        replace(
            as_run(run, samples, dataset),
            name=f"finder={choice.finder}",
            knockout=choice.intervention.name,
        )
        for choice in ablated_choices(spans.config)
        for dataset, samples in stored_samples(run.store).items()
        if {sample.finder for sample in samples} != {choice.finder}  # else the run's own
    ]
    style = run.store.info["model"]["prompt"]
    other = "text" if style == "chat" else "chat"
    variants += _ask_again(run, reader, f"prompt={other}", AS_WRITTEN, other)
    for wording in WORDINGS:
        variants += _ask_again(run, reader, f"wording={wording.name}", wording, style)
    return variants


def _ask_again(
    run: Run, reader: Reader, name: str, rephrasing: Rephrasing, style: str
) -> list[Variant]:
    """Ask the questions again in other words or another style; empty where that is impossible."""
    again = partial(_shards_again, before=reader.shards, rephrasing=rephrasing, style=style)
    try:
        shards = reader.ask(name, again)
    except UserError as error:
        run.progress.note(f"{name} is left out: {error}")
        return []
    if not shards:
        return []
    counts = f"{sum(map(len, shards))} of {sum(map(len, reader.shards))}"
    run.progress.note(f"{name}: {counts} questions are asked again")
    inner = replace(run, store=run.store.inside(f"robust/{name}"))
    passes = [cut for cut in passes_of(run.config) if cut.name in READ]
    read_states(inner, reader, passes, name="asked again", shards=shards)
    return [
        replace(as_run(inner, samples, dataset), name=name)
        for dataset, samples in stored_samples(inner.store).items()
    ]


def _shards_again(
    worker: Worker, *, before: Sequence[Shard], rephrasing: Rephrasing, style: str
) -> list[Shard]:
    """Cut the first questions of each set, in other words or another style, into new shards.

    Empty for the style `chat` where the model has no chat template.
    """
    run, model, again = worker.run, worker.lease.model, []
    if style == "chat" and not has_chat(model):
        return []
    for questions in run.sets:
        own = [shard for shard in before if shard.dataset == questions.name]
        first = [prompt for shard in own for prompt in shard.prompts][:CAP]
        texts = [rephrasing.apply(p.question.text, p.question.subjects) for p in first]
        reworded = replace(
            questions,
            questions=tuple(
                replace(p.question, text=text) for p, text in zip(first, texts, strict=True)
            ),
            shots=tuple(replace(s, question=rephrasing.apply(s.question)) for s in questions.shots),
        )
        spans = [rephrasing.spans(prompt.spans) for prompt in first]
        given = {p.question.id: GivenAnswer(token_ids=p.given.token_ids) for p in first if p.given}
        prompts = prompts_of(
            model, reworded, spans, style=style, shots=run.config.shots, given=given
        )
        size = run.store.info["shard"]
        again += cut_into_shards(prompts, questions.name, size, first=len(again))
    return again


# --reuse: states do not depend on verdicts.


def check_reuse(source: str | None, identity: Mapping[str, Any]) -> None:
    """Raise a UserError where the run to reuse is missing or differs in more than its verdicts."""
    if source is None:
        return
    folder = Path(source).expanduser()
    refuse_unsafe(folder)
    info = read_info(folder)
    if not isinstance(info, dict) or not info.get("finished"):
        raise UserError(f"--reuse {source} is no finished run on this machine. Give its folder.")
    theirs = info.get("identity", {})
    differ = [n for n in {*theirs, *identity} - {"verdicts"} if theirs.get(n) != identity.get(n)]
    if differ:
        raise UserError(
            f"--reuse {source} differs in more than the verdicts ({', '.join(sorted(differ))}). "
            "Ask for the same otherwise, or leave --reuse out."
        )


def copy_reused(run: Run, shards: Sequence[Shard]) -> None:
    """Copy the answers and states of the run that --reuse names, under the verdicts of this one."""
    if run.config.reuse is None:
        return
    source = Store(Path(run.config.reuse).expanduser())
    theirs, ours = (
        {**info["model"], "shard": info["shard"]} for info in (source.info, run.store.info)
    )
    depends_on = ("weights", "dtype", "prompt", "device", "shard")
    if differ := [name for name in depends_on if theirs.get(name) != ours.get(name)]:
        raise UserError(
            f"--reuse {run.config.reuse} was computed otherwise ({', '.join(differ)}), so its "
            "states are not those of this run. Leave --reuse out, and choose another --out."
        )
    names = (*CAUGHT, *(cut.name for cut in passes_of(run.config)))
    for shard in shards:
        if run.store.has(answers_name(shard.number)):
            continue
        for file in [f(name, shard.number) for name in names for f in (output_name, shard_name)]:
            if source.has(file) and not run.store.has(file):
                with source.file(file).open("rb") as data:
                    run.store.write(file, partial(shutil.copyfileobj, data))
        verdicts = {prompt.question.id: prompt.verdict for prompt in shard.prompts}
        samples = [
            replace(s, verdict=verdicts[s.id] or judged(s.answer, s.question))
            for s in stored_answers(source, shard.number)
        ]
        run.store.write(answers_name(shard.number), to_frame(samples).to_parquet)
    run.progress.note(f"answers and states are those of {source.path}")
