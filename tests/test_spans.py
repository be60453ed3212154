"""Exact tokens: finders, the entity of a question and of an answer, characters to tokens."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from kit.cases import parts, read_cases
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import ByteLevel as Offsets
from tokenizers.processors import Sequence as Both
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from anchorscope.config import Finder
from anchorscope.datasets import load_questions
from anchorscope.datasets.text import normalised
from anchorscope.errors import UserError
from anchorscope.probes.folds import entity_folds
from anchorscope.records import Question, Span
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import content_words, merged, occurrences, overlap, tokens_of
from anchorscope.spans.question import (
    QuestionSpans,
    agreement,
    entity_of,
    find_spans,
    given_spans,
    load_pipeline,
    read_reply,
    rules_spans,
    spacy_spans,
)

# --- Finders ---


def ask(text: str, *subjects: str, id: str = "d:test:1", dataset: str = "d") -> Question:
    return Question(id=id, dataset=dataset, text=text, answers=("x",), subjects=subjects)


def marked(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[a:b] for a, b in spans]


@pytest.mark.parametrize(("text", "names"), read_cases("rules"))
def test_rules(text: str, names: str):
    assert marked(text, rules_spans(text)) == parts(names)


@pytest.mark.parametrize(
    ("text", "subjects", "expected"),
    [
        ("Is Paris in Paris County or near Parisville?", ["Paris"], [(3, 8), (12, 17)]),
        (
            "Is New York City older than Rome?",
            ["Rome", "New York", "York City"],
            [(3, 16), (28, 32)],
        ),
        ("What is a subterrane?", ["terra"], [(13, 18)]),  # inside a word, where nothing else is
        ("東京は日本の首都ですか?東京?", ["東京"], [(0, 2), (12, 14)]),
    ],
)
def test_given_takes_every_occurrence_on_word_borders(text, subjects, expected):
    assert [tuple(span) for span in given_spans(ask(text, *subjects))] == expected


def test_occurrences_keep_positions_where_folding_changes_lengths():
    text = "Is İstanbul near Paris?"
    assert marked(text, occurrences(text, "paris", any_case=True)) == ["Paris"]


def test_auto_says_which_finder_it_used():
    questions = [
        ask("Where is Kanpur?", "Kanpur", id="1"),
        ask("Where is Kanpur?", "Lima", id="2"),
        ask("Where is Kanpur?", id="3"),
        ask("Where did he go?", id="4"),
        ask("?", id="5"),
    ]
    found = find_spans(questions, finder="auto")
    assert [f.id for f in found] == ["1", "2", "3", "4", "5"]
    assert [f.finder for f in found] == ["given", "rules", "rules", "all", "all"]
    assert [marked(q.text, f.spans) for q, f in zip(questions, found, strict=True)] == [
        ["Kanpur"], ["Kanpur"], ["Kanpur"], ["Where did he go"], [],
    ]  # fmt: skip


def test_named_finder_does_not_fall_back():
    [found] = find_spans([ask("Where is Kanpur?")], finder="given")
    assert (found.finder, found.spans) == ("given", ())


def test_model_spans_come_from_the_reply_to_each_prompt():
    questions = [ask("who wrote war and peace", id="1"), ask("Where is Kanpur?", id="2")]
    replies = {"who wrote war and peace": " War and Peace.\nQuestion: Lima", "Where": ""}

    def generate(prompts: Sequence[str]) -> list[str]:
        texts = [prompt.rsplit("Question: ", 1)[1].removesuffix("\nWords:") for prompt in prompts]
        return [replies.get(text, "Lima; Peru") for text in texts]

    found = find_spans(questions, finder="model", generate=generate)
    assert [spans.subject_spans for spans in found] == [(Span(10, 23),), ()]
    assert [f.finder for f in find_spans(questions, finder="model", generate=generate)] == [
        "model",
        "model",
    ]


@pytest.mark.parametrize(
    ("text", "reply", "names"),
    [
        ("Is Ithaca, New York near Rome?", "Ithaca, New York; Rome", ["Ithaca, New York", "Rome"]),
        ("Is Ithaca near Rome?", "Rome, Ithaca", ["Ithaca", "Rome"]),
        ("Is Ithaca near Rome?", '"ithaca"', ["Ithaca"]),
        ("Is Ithaca near Rome?", "Rom", []),
        ("Is Rome in Rome?", "Rome", ["Rome", "Rome"]),
        ("Is Ithaca near Rome?", "\n", []),
    ],
)
def test_only_what_stands_in_the_question_is_kept(text: str, reply: str, names: list[str]):
    assert marked(text, read_reply(text, reply)) == names


def test_spacy_noun_chunks_lose_their_small_words():
    spacy = pytest.importorskip("spacy")
    from spacy.language import Language
    from spacy.tokens import Doc

    words = ["what", "is", "the", "longest", "river", "in", "africa"]
    heads, deps = [1, 1, 4, 4, 1, 4, 5], ["attr", "ROOT", "det", "amod", "nsubj", "prep", "pobj"]
    tags = ["PRON", "AUX", "DET", "ADJ", "NOUN", "ADP", "PROPN"]

    @Language.component("hand_parse")
    def hand_parse(doc: Doc) -> Doc:
        return Doc(doc.vocab, words=words, heads=heads, deps=deps, pos=tags)

    nlp = spacy.blank("en")
    nlp.add_pipe("hand_parse")
    text = " ".join(words)
    [spans] = spacy_spans([ask(text)], nlp=nlp)
    assert marked(text, spans) == ["longest river", "africa"]


def test_missing_spacy_or_pipeline_names_what_installs_it(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("spacy")
    with pytest.raises(UserError, match="python -m spacy download xx_not_there"):
        load_pipeline("xx_not_there")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"pip install 'anchorscope\[spans\]'"):
        find_spans([ask("Where is Kanpur?")], finder="spacy")


def test_agreement_against_counts_by_hand():
    questions = [ask("abcdefgh", id=str(i), dataset="one" if i < 3 else "two") for i in range(4)]
    found = {
        "given": {"0": (Span(0, 4),), "1": (Span(0, 2),), "2": (), "3": (Span(0, 1),)},
        "all": {"0": (Span(0, 8),), "1": (Span(0, 2),), "2": (Span(0, 8),)},
    }
    table = agreement(questions, found)
    assert list(table.columns) == ["dataset", "finder_a", "finder_b", "n", "jaccard", "identical"]
    one, two = table.to_dict("records")
    assert one == {
        "dataset": "one", "finder_a": "given", "finder_b": "all",
        "n": 2, "jaccard": 0.75, "identical": 0.5,
    }  # fmt: skip
    assert two["n"] == 0
    assert np.isnan(two["jaccard"])
    assert np.isnan(two["identical"])


@pytest.mark.parametrize(("text", "subjects", "named"), read_cases("exact_question"))
def test_exact_question_is_subject_and_property(text: str, subjects: str, named: str):
    [found] = find_spans([ask(text, *parts(subjects))], finder="given")
    assert marked(text, found.subject_spans) == parts(subjects)
    assert marked(text, found.property_spans) == parts(named)
    assert sorted(marked(text, found.spans)) == sorted([*parts(subjects), *parts(named)])


def test_every_finder_marks_the_property():
    question = ask("What country is Osaka in?", "Osaka")
    for finder in ("auto", "given", "rules"):
        [found] = find_spans([question], finder=finder)
        assert marked(question.text, found.spans) == ["country", "Osaka"]
    [found] = find_spans([question], finder="model", generate=lambda prompts: [" Osaka"])
    assert marked(question.text, found.spans) == ["country", "Osaka"]
    [found] = find_spans([question], finder="all")
    assert marked(question.text, found.spans) == ["What country is Osaka in"]


def test_other_content_words_stay_outside():
    """Else nothing would be left to hide beside subject and property."""
    text = "In which year did this division, where Cleveland Browns placed fourth, adopt its name?"
    [found] = find_spans([ask(text)], finder="rules")
    assert marked(text, found.spans) == ["year", "Cleveland Browns"]
    left = [text[a:b] for a, b in content_words(text)]
    assert left == ["year", "division", "Cleveland", "Browns", "placed", "fourth", "adopt", "name"]


def test_content_words_are_whole_words_of_any_language():
    text = "Where’s Osaka's Öresundsbrücke, and what didn’t 東京 do?"
    assert marked(text, content_words(text)) == ["Osaka", "Öresundsbrücke", "東京"]


# --- The entity of a question ---


def entity(text: str, *, named: str = "", finder: Finder = "auto") -> str:
    question = Question(id="d:test:1", dataset="d", text=text, answers=("x",),
                        entity=named or normalised(text))  # fmt: skip
    (spans,) = find_spans([question], finder=finder)
    return entity_of(question, spans)


def entity_where_marked(text: str, *parts: str) -> str:
    """The entity of a question in which a finder marked these parts."""
    question = Question(id="d:test:1", dataset="d", text=text, answers=("x",))
    spans = tuple(Span(text.index(part), text.index(part) + len(part)) for part in parts)
    return entity_of(question, QuestionSpans(id=question.id, finder="model", spans=spans))


def test_what_a_dataset_names_stays():
    assert entity("Who wrote Emma?", named="jane austen's emma") == "jane austen's emma"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(["The  Eiffel\tTower"], "eiffel tower"), (["Paris", "the Louvre Museum"], "louvre museum"),
     (["An Inspector Calls"], "inspector calls"), (["A"], "a"), (["Annie"], "annie"),
     (["Rome", "Oslo"], "rome")],
)  # fmt: skip
def test_the_longest_span_without_case_space_and_article(parts, expected):
    assert entity_where_marked(" and ".join(parts) + " are where?", *parts) == expected


def test_a_finder_that_marks_whole_questions_names_no_entity():
    text = "In which city is the Tower of London located?"
    assert entity(text, finder="all") == entity(text) != normalised(text)


def test_a_question_in_which_nothing_is_marked_is_its_own_entity():
    assert entity_where_marked("Why?") == "why"


def test_added_questions_move_no_fold(tmp_path):
    file = tmp_path / "own.csv"
    rows = [f"Who wrote Book Number {i}?,x\nWhen was Book Number {i} printed?,x" for i in range(40)]
    folds = []
    for kept in (rows, [*rows[::-1], "Who wrote Another Book?,x"]):
        file.write_text("\n".join(["question,answer", *kept]))
        questions = load_questions(file, limit=None).questions
        spans = find_spans(questions, finder="auto")
        names = [entity_of(q, found) for q, found in zip(questions, spans, strict=True)]
        fold = entity_folds(names)
        folds.append({q.text: int(f) for q, f in zip(questions, fold, strict=True)})
    few, more = folds
    assert more == few | {"Who wrote Another Book?": more["Who wrote Another Book?"]}
    for i in range(40):
        assert few[f"Who wrote Book Number {i}?"] == few[f"When was Book Number {i} printed?"]


def test_the_property_is_not_what_a_question_is_about():
    """Folds keep questions about one thing together; "screenwriter" is longer than "Up"."""
    question = Question(id="d:1", dataset="d", text="Who was the screenwriter of Up?", answers=())
    [found] = find_spans([question], finder="rules")
    assert len(found.spans) == 2 and entity_of(question, found) == "up"


# --- The entity of an answer ---


@pytest.mark.parametrize(("answer", "question", "entity"), read_cases("answer_entity"))
def test_the_span_is_the_entity(answer: str, question: str, entity: str):
    span = answer_span(answer, question=question)
    assert span is not None
    assert answer[span.start : span.stop] == entity


@pytest.mark.parametrize("answer", ["", "   ", "...", "?!", '""'])
def test_punctuation_alone_has_no_entity(answer: str):
    assert answer_span(answer) is None


def test_it_cannot_look_at_gold_answer_or_verdict():
    assert list(inspect.signature(answer_span).parameters) == ["answer_text", "question"]


# --- Characters and tokens ---


def _some_spans(draw: random.Random, most: int) -> list[Span]:
    ends = [sorted(draw.choices(range(40), k=2)) for _ in range(draw.randint(0, most))]
    return [Span(start, stop) for start, stop in ends]


def test_tokens_are_those_that_share_a_character_with_a_span() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        spans, offsets = _some_spans(draw, 3), _some_spans(draw, 9)
        marked = [set(range(7 + a, 7 + b)) for a, b in spans]
        by_hand = tuple(
            at
            for at, (first, stop) in enumerate(offsets)
            if any(
                characters & set(range(first, stop))
                if first < stop
                else characters and min(characters) < first <= max(characters)
                for characters in marked
            )
        )
        assert tokens_of(spans, offsets, start=7) == by_hand


def test_the_overlap_is_that_of_the_characters() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        a, b = ([Span(3, 5), *_some_spans(draw, 4)] for _ in range(2))
        left, right = ({at for span in spans for at in range(*span)} for spans in (a, b))
        assert overlap(a, b) == len(left & right) / len(left | right)
        assert {at for span in merged(a) for at in range(*span)} == left


CORPUS = [
    "In what country is Kanpur? Kanpur is a city in India.",
    "What is the capital of France? The capital of France is Paris.",
    "Who was born first, Kiefer Sutherland or Christian Slater?",
    "Où est né Gabriel García Márquez? 東京はどこですか?",
]


@pytest.fixture(scope="module", params=[True, False], ids=["bare", "with-space"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A byte-level BPE whose ranges leave out (bare) or count (with-space) the leading space."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = Decoder()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    start = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.post_processor = Both([Offsets(trim_offsets=request.param), start])
    return made


def text_of(tokenizer: Tokenizer, text: str, spans: tuple[Span, ...]) -> str:
    """The decoded tokens of the spans, the independent way back from tokens to text."""
    encoded = tokenizer.encode(text)
    return tokenizer.decode([encoded.ids[i] for i in tokens_of(spans, encoded.offsets)])


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("In what country is Kanpur?", "Kanpur"),
        ("Kanpur is in what country?", "Kanpur"),
        ("Where is  Kanpur , in India?", "Kanpur"),
        ("Où est né Gabriel García Márquez?", "Gabriel García Márquez"),
        ("どこですか、 東京?", "東京"),
        ("What does 🙂 mean?", "🙂"),
        ("What is the flag 🇫🇷 of?", "🇫🇷"),
        ("Who sang 👩‍🚀?", "👩‍🚀"),
        ("Tell me about naïve Bayes.", "naïve Bayes"),
    ],
)
def test_the_tokens_of_a_subject_decode_to_it(tokenizer: Tokenizer, text: str, subject: str):
    start = text.index(subject)
    found = text_of(tokenizer, text, (Span(start, start + len(subject)),))
    assert found.strip() == subject


def test_a_token_that_straddles_the_border_is_taken(tokenizer: Tokenizer):
    encoded = tokenizer.encode("東京はどこですか?")  # one token holds bytes of 東, 京 and は
    assert (0, 3) in encoded.offsets
    assert tokens_of((Span(0, 2),), encoded.offsets) == (1, 2)


def test_the_whole_question_is_every_token_but_special_and_last_mark(tokenizer: Tokenizer):
    text = "In what country is Kanpur?"
    encoded = tokenizer.encode(text)
    question = Question(id="x", dataset="d", text=text, answers=("India",))
    [found] = find_spans([question], finder="all")
    assert tokens_of(found.spans, encoded.offsets) == tuple(range(1, len(encoded.ids) - 1))
