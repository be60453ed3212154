"""Choices that need the model: the same questions in other words and another style."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kit.rivers import stored_states
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.answers.prompted import WORDINGS, Rephrasing
from anchorscope.config import Config
from anchorscope.engine.interventions import passes_of
from anchorscope.models import Model, load_model
from anchorscope.pipeline.executor import open_reader
from anchorscope.pipeline.read_states import read_states
from anchorscope.pipeline.request import Run, resolve
from anchorscope.pipeline.variants import Variant, read_reworded
from anchorscope.records import Question
from anchorscope.run_folder.samples import stored_answers
from anchorscope.run_folder.store import Store

CITIES = ("Lyon", "Kyoto", "Quito", "Perth", "Cusco", "Turku", "Gent")
CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "
CONFIG = Config(prompt="text", shots=0, max_tokens=3, shard=4, dtype="float32", device="cpu")
VARIANTS = ["finder=rules", "finder=all", "prompt=chat", *(f"wording={w.name}" for w in WORDINGS)]


def questions(text: str) -> list[Question]:
    return [
        Question(id=f"c:{n}", dataset="c", text=text.format(city), answers=("x",),
                 subjects=(city,), entity=city)
        for n, city in enumerate(CITIES)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = CHAT
    return load_model(tiny_lm("llama"), tokenizer=tokenizer)


def begun(model: Model, text: str, out: Path, config: Config = CONFIG) -> Run:
    config, sets, identity = resolve(model, questions(text), config)
    return Run(store=Store.open(out, identity), config=config, sets=sets)


def asked(model: Model, run: Run, *, otherwise: bool) -> list[Variant]:
    """The run's own answers, then those asked otherwise."""
    with open_reader(run, model) as reader:
        read_states(run, reader, passes_of(run.config))
        return read_reworded(run, reader) if otherwise else []


@pytest.fixture(scope="module")
def run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return begun(model, "Where is {}?", tmp_path_factory.mktemp("r") / "run")


@pytest.fixture(scope="module")
def choices(model: Model, run: Run) -> dict[str, Variant]:
    return {choice.name: choice for choice in asked(model, run, otherwise=True)}


def test_every_choice_is_there_with_the_questions_of_the_run(choices):
    assert list(choices) == VARIANTS
    for choice in choices.values():
        assert sorted(sample.id for sample in choice.samples) == [f"c:{n}" for n in range(7)]


@pytest.mark.parametrize(
    ("variant", "text", "prompt"),
    [
        ("prompt=chat", "Where is {}?", "chat"),
        ("wording=could-you-tell-me", "Could you tell me: where is {}?", "text"),
        ("wording=i-would-like-to-know", "I would like to know: where is {}?", "text"),
        ("wording=please-tell-me", "Where is {}? Please tell me.", "text"),
    ],
)
def test_asked_again_is_a_run_of_questions_written_so(
    model, choices, tmp_path, variant, text, prompt
):
    """Answers, exact tokens and states against a run of questions that were written here."""
    config = replace(CONFIG, prompt=prompt, finder="given")
    other = begun(model, text, tmp_path / "run", config)
    asked(model, other, otherwise=False)
    own = [sample for number in range(2) for sample in stored_answers(other.store, number)]
    for sample, expected in zip(choices[variant].samples, own, strict=True):
        assert sample == expected
        ids = [sample.prompt_ids[i] for i in sample.exact_question]
        assert model.tokenizer.decode(ids) == sample.question.entity
    for name in ("clean", "knockout", "neutral"):
        here, there = (
            stored_states(at, name) for at in (choices[variant].folder, other.store.path)
        )
        assert here.keys() == there.keys() and len(here) > 0
        assert all(np.array_equal(here[id], there[id]) for id in here)


def test_another_finder_reads_the_same_answers(choices, run):
    choice = choices["finder=all"]
    assert choice.folder == run.store.path
    cut, own = (stored_states(choice.folder, name) for name in (choice.knockout, "knockout"))
    assert cut.keys() == own.keys()
    assert not any(np.array_equal(cut[id][-1], own[id][-1]) for id in own)


@pytest.mark.parametrize(
    ("text", "subjects", "said"),
    [
        ("Who wrote Hamlet?", ("Hamlet",), "Tell: who wrote Hamlet?"),
        ("Who Is She is by whom?", ("Who Is She",), "Tell: Who Is She is by whom?"),
        ("Hamlet is by whom?", (), "Tell: Hamlet is by whom?"),
        ("", (), "Tell: "),
    ],
)
def test_a_wording_keeps_names_as_they_are(text, subjects, said):
    assert Rephrasing(name="tell", before="Tell: ").apply(text, subjects) == said
    assert Rephrasing(name="after", after=" Now.").apply(text, subjects) == f"{text} Now."
