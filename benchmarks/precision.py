"""How far bfloat16 moves the ΔP table: the same answers, read in float32 and in bfloat16.

    python benchmarks/precision.py [--model bundled] [--data atlas] [--limit 800] [--device cuda]

Answers are written once, in float32. Their states, clean and knocked out, are then read in both
formats, by anchorscope and by plain transformers (one fully masked pass): what moves there too is
the format's, not the engine's. Probes are trained on each, and once more only on the float32 states
and read on both.
The weights are those of bfloat16 in both, as most models are published: what is measured is the
arithmetic. With --own-weights float32 keeps weights that bfloat16 cannot hold, another model's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import pandas as pd
import way_transformers_expert as plain

from anchorscope.answers.generate import Answerer
from anchorscope.config import Config
from anchorscope.datasets import load_questions
from anchorscope.engine.batches import Budget, in_batches
from anchorscope.engine.interventions import Intervention, positions_of
from anchorscope.engine.lease import Lease
from anchorscope.engine.passes import KNOCKOUT
from anchorscope.engine.read import read_rows
from anchorscope.engine.rows import row_for
from anchorscope.engine.transfer import to_host
from anchorscope.engine.trunk import grow_trunk, read_prefix
from anchorscope.models import Model, load_model
from anchorscope.pathways.grouping import pathways_table
from anchorscope.pathways.tables import layers_table
from anchorscope.pipeline.prompts import Prompted, common_prefix, prompts_of
from anchorscope.pipeline.shard import mark_answer
from anchorscope.probes.cross_fit import cross_fit
from anchorscope.probes.labelled import labelled
from anchorscope.probes.readings import read
from anchorscope.records import Sample
from anchorscope.spans.question import find_spans

CLEAN = Intervention(name="clean", heads=())  # cuts nothing, on the knockout's own tokens
States = dict[str, dict[str, np.ndarray]]  # [layer, width] by intervention and id


def load(given: argparse.Namespace, dtype: str) -> Model:
    """The model in this format."""
    if given.own_weights or dtype == "bfloat16":
        return load_model(given.model, device=given.device, dtype=dtype)
    rounded = load_model(given.model, device=given.device, dtype="bfloat16")
    return load_model(rounded.lm.float(), tokenizer=rounded.tokenizer)


def answers(lease: Lease, prepared: Sequence[Prompted], max_tokens: int) -> list[Sample]:
    """Every question answered and marked, in float32."""
    answerer = Answerer(lease.model, max_tokens=max_tokens)
    prefix = read_prefix(lease, common_prefix(prepared))
    samples = []
    for start in range(0, len(prepared), 128):
        batch = prepared[start : start + 128]
        ids, prompts = [p.question.id for p in batch], [p.prompt_ids for p in batch]
        written = answerer.answer(lease, prefix, ids, prompts).answers
        samples += [mark_answer(lease.model, p, a) for p, a in zip(batch, written, strict=True)]
    return samples


def states(lease: Lease, prepared: Sequence[Prompted], samples: Sequence[Sample]) -> States:
    """The states of these very answers, as a run reads them."""
    prefix = read_prefix(lease, common_prefix(prepared))
    how = {"blocks": lease.model.blocks, "turn_at": len(prefix), "seed": 0}
    found: States = {"clean": {}, "knockout": {}}

    def work(batch: list[Sample]):
        return grow_trunk(lease, prefix, [s.prompt_ids for s in batch], room=0, head=False).trunk

    used = [s for s in samples if s.usable]
    options = {
        "length": lambda s: len(s.prompt_ids),
        "then": lambda s: s.id,
        "budget": Budget(8192),
    }
    for batch, trunk in in_batches(used, work, **options):
        marks = [positions_of(s) for s in batch]
        rows = [row_for(m, n, i, **how) for n, m in enumerate(marks) for i in (CLEAN, KNOCKOUT)]
        for part, of in read_rows(lease, trunk, rows, budget=Budget(8192)):
            for row, state in zip(part, to_host(of), strict=True):
                found[row.intervention.name][batch[row.number].id] = state
    return found


def plain_states(model: Model, samples: Sequence[Sample]) -> States:
    """The states of these very answers by plain transformers."""
    model.tokenizer.padding_side = "left"
    loaded = plain.Loaded(model.lm, model.tokenizer)
    marks = [positions_of(s) for s in samples if s.usable]
    rows = [list(mark.ids) for mark in marks]
    cut = [[at for at in mark.exact_question if at > 0] for mark in marks]
    read = {"clean": plain.read(loaded, rows), "knockout": plain.read(loaded, rows, cut)}
    return {
        name: {mark.id: state.numpy() for mark, state in zip(marks, of, strict=True)}
        for name, of in read.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--data", default="atlas")
    parser.add_argument("--limit", type=int, default=800)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--own-weights", action="store_true")
    given = parser.parse_args()
    config = Config()
    questions = load_questions(given.data, limit=given.limit)
    found: dict[tuple[str, str], States] = {}  # by way and format
    samples: list[Sample] = []
    for dtype in ("float32", "bfloat16"):
        model = load(given, dtype)
        spans = find_spans(questions.questions, finder="auto")
        prepared = prompts_of(model, questions, spans, style="text", shots=4)
        with Lease(model) as lease:
            samples = samples or answers(lease, prepared, config.max_tokens)
            found["anchorscope", dtype] = states(lease, prepared, samples)
        found["transformers", dtype] = plain_states(model, samples)
    part = labelled(samples, questions.name, config)
    how = {"ids": part.ids, "z": part.z, "fold": part.fold, "entity": part.entities}
    for way in ("anchorscope", "transformers"):
        wide, narrow = (stacked(found[way, d], part.ids) for d in ("float32", "bfloat16"))
        readings, probes = cross_fit(wide, **how, C=config.C)
        exact, own = table(readings), table(cross_fit(narrow, **how, C=config.C)[0])
        print(moved(exact, own, f"{way}, probes trained on each"))
        print(moved(exact, table(read(probes, narrow, **how)), f"{way}, the float32 probes"))


def stacked(by: States, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """The states [question, layer, width] by intervention."""
    return {name: np.stack([of[id] for id in ids]) for name, of in by.items()}


def moved(one: pd.DataFrame, other: pd.DataFrame, name: str) -> str:
    """How far ΔP lies apart in two tables, for small groups and large ones."""
    both = one.merge(other, on=["layer", "mode", "pathway"])
    both["n"] = both[["n_x", "n_y"]].min(axis=1)
    both["moved"] = (both["delta_p_x"] - both["delta_p_y"]).abs()
    said = [f"{name}:"]
    for least in (20, 100, 300):
        of = both[both["n"] >= least]
        said.append(
            f"  {len(of)} groups of {least} or more: mean {of['moved'].mean():.2f} points, "
            f"largest {of['moved'].max():.2f}, {(of['moved'] >= 0.5).sum()} of half a point or more"
        )
    return "\n".join(said)


def table(readings) -> pd.DataFrame:
    return layers_table(pathways_table(readings, dataset="x"), model="x", resamples=100)


if __name__ == "__main__":
    main()
