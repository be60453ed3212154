"""Synthetic detector materials with a known truth, and run folders made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorscope.detect.material import Arrays, Material, Text
from anchorscope.records import Answer, Question, Sample, Span
from anchorscope.run_folder.samples import to_frame
from anchorscope.run_folder.states import save_states, shard_name
from anchorscope.run_folder.store import Store


def material(z, states, *, entities=None, name="made-up", seed=0, log_probs=None, answers=None):
    """A material of states {name: [question, layer, width]}; texts are independent of z."""
    n = len(z)
    entities = [f"thing {i}" for i in range(n)] if entities is None else entities
    log_probs = [(-1.0, -0.5)] * n if log_probs is None else log_probs
    texts = tuple(
        Text(
            id=f"{name}:{i}",
            question=f"What is {entities[i]}?",
            answer="some answer" if answers is None else answers[i],
            log_probs=tuple(log_probs[i]),
            exact_answer=(1,),
            first_entropy=1.0,
            dataset=name,
            entity=entities[i],
            popularity=float(i % 7),
        )
        for i in range(n)
    )
    arrays = {
        (key, layer + 1): own[:, layer].astype(np.float32)
        for key, own in states.items()
        for layer in range(own.shape[1])
    }
    layers = next(iter(states.values())).shape[1]
    bank = Arrays(arrays, layers=layers)
    return Material(
        name=name, texts=texts, z=np.asarray(z), bank=bank, rows=np.arange(n), seed=seed
    )


def noise(n=240, layers=8, width=12, seed=0, **more) -> Material:
    """A material whose states are independent of z."""
    rng = np.random.default_rng(seed)
    clean = rng.standard_normal((n, layers, width))
    states = {"clean": clean, "knockout": clean + rng.standard_normal(clean.shape)}
    return material(np.arange(n) % 2, states, seed=seed, **more)


def plain(n=240, layers=4, width=8, strength=1.2, seed=0, **more) -> Material:
    """A material whose last-but-one layer holds z along its first direction, others nothing."""
    rng = np.random.default_rng(seed)
    z = rng.permutation(np.arange(n) % 2)
    clean = rng.standard_normal((n, layers, width))
    clean[:, layers - 2, 0] += strength * (2 * z - 1)
    return material(z, {"clean": clean, "knockout": clean.copy()}, seed=seed, **more)


def two_pathways(n=800, seed=0, **more) -> Material:
    """Two pathways: Q holds z in direction 0 and noise in 1, A the reverse; 2 holds the pathway.

    The knockout reverses directions 0 and 1 for Q alone. A reweighting by the right sign removes
    the noise; by the wrong sign it removes the truth.
    """
    rng = np.random.default_rng(seed)
    z, q = rng.permutation(np.arange(n) % 2), rng.random(n) < 0.5
    sign = 2.0 * z - 1
    clean = rng.standard_normal((n, 1, 6)) * 0.3
    own, other = 1.5 * sign + 0.5 * rng.standard_normal(n), 2.5 * rng.standard_normal(n)
    clean[:, 0, 0] += np.where(q, own, other)
    clean[:, 0, 1] += np.where(q, other, own)
    clean[:, 0, 2] += np.where(q, 3.0, -3.0)
    knocked = clean.copy()
    knocked[q, 0, 0] -= 4 * own[q]
    knocked[q, 0, 1] -= 4 * other[q]
    states = {"clean": clean, "knockout": knocked}
    for beta in (1.0, 2.0):
        for name, good in (("+", q), ("-", ~q)):
            read = rng.standard_normal((n, 1, 6))
            read[:, 0, 0] += np.where(good, beta * sign, 0.0)
            states[f"reweight{name}{beta:.1f}"] = read
    made = material(z, states, seed=seed, **more)
    made.memo["q"] = q
    return made


def unequal(n=900, seed=0, wrong=(0.15, 0.7), strength=0.5) -> Material:
    """Two pathways, one of them more often wrong; the knockout reverses the states of Q."""
    rng = np.random.default_rng(seed)
    q = rng.random(n) < 0.5
    z = (rng.random(n) < np.where(q, *wrong)).astype(int)
    own, other = strength * (2 * z - 1) + 0.5 * rng.standard_normal(n), rng.standard_normal(n)
    clean = 0.1 * rng.standard_normal((n, 1, 6))
    clean[:, 0, 0] += np.where(q, own, other)
    clean[:, 0, 1] += np.where(q, other, own)
    clean[:, 0, 2] += np.where(q, 1.0, -1.0)
    knocked = np.where(q[:, None, None], -9.0, 1.0) * clean
    made = material(z, {"clean": clean, "knockout": knocked}, seed=seed)
    made.memo["q"] = q
    return made


def two_sources(
    n=400, direction=0, strength=1.0, shift=0.0, seed=0, name="made-up", **more
) -> Material:
    """Two independent sources of z, the state and the lowest log-probability, both normal.

    `shift` moves all states in a direction without information.
    """
    rng = np.random.default_rng(seed)
    z = rng.permutation(np.arange(n) % 2)
    clean = rng.standard_normal((n, 1, 6))
    clean[:, 0, direction] += strength * (2 * z - 1)
    clean[:, 0, 5] += shift
    least = -5 - 0.8 * (2 * z - 1) - rng.standard_normal(n)
    log_probs = [(-0.01, float(value)) for value in least]
    entities = [f"{name}/{i}" for i in range(n)]
    return material(
        z, {"clean": clean}, name=name, entities=entities, log_probs=log_probs, seed=seed, **more
    )


def sisters() -> list[Material]:
    """Three datasets: two hold the truth in the same direction, one in the opposite."""
    out = []
    for number, sign in enumerate((1.0, 1.0, -1.0)):
        rng = np.random.default_rng(number)
        z = rng.permutation(np.arange(120) % 2)
        clean = rng.standard_normal((120, 1, 6))
        clean[:, 0, 0] += 2 * sign * (2 * z - 1)
        names = [f"{number}/{i}" for i in range(120)]
        out.append(material(z, {"clean": clean}, name=f"d{number}", entities=names))
    return out


def write_run(folder: Path, parts: list[Material], **model) -> Path:
    """Write a finished run folder that holds these materials."""
    store = Store.open(folder, {"made": "up"})
    names = sorted(parts[0].bank.names)
    samples: list[Sample] = []
    for number, part in enumerate(parts):
        samples += [_sample(part, i) for i in range(len(part))]
        for key in names:
            layers = range(1, part.bank.layers + 1)
            states = np.stack([part.layer(key, layer) for layer in layers], axis=1)
            save_states(store, shard_name(key, number), part.ids, states)
    store.write("samples.parquet", to_frame(samples).to_parquet)
    width = parts[0].layer("clean", 1).shape[1]
    shape = {"blocks": parts[0].bank.layers, "width": width, "dtype": "float32", "prompt": "text"}
    facts = {"name": "made-up", "source": "made-up", "revision": None, "weights": "0", **shape}
    store.save_info(
        {
            "model": facts | model,
            "datasets": [{"name": part.name, "title": part.name} for part in parts],
            "config": {"shots": 0, "max_tokens": 6, "finder": "auto"},
            "finished": True,
        }
    )
    return folder


def _sample(part: Material, i: int) -> Sample:
    text = part.texts[i]
    return Sample(
        question=Question(
            id=text.id,
            dataset=part.name,
            text=text.question,
            answers=("x",),
            entity=text.entity,
            popularity=10.0**text.popularity,
        ),
        answer=Answer(
            id=text.id,
            text=text.answer,
            token_ids=(1,) * len(text.log_probs),
            log_probs=text.log_probs,
            first_entropy=text.first_entropy,
            finished=True,
        ),
        verdict="wrong" if part.z[i] else "right",
        finder="given",
        spans=(Span(0, 1),),
        answer_span=Span(0, 1),
        prompt_ids=(1, 2, 3),
        question_tokens=(1, 2),
        exact_question=(1,),
        exact_answer=tuple(3 + e for e in text.exact_answer),
    )
