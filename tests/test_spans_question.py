"""The finders of exact question tokens, each on questions as the datasets write them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from anchorscope.errors import UserError
from anchorscope.records import Question, Span
from anchorscope.spans.characters import content_words, merged, occurrences
from anchorscope.spans.question import (
    agreement,
    find_spans,
    given_spans,
    load_pipeline,
    model_prompt,
    model_spans,
    read_reply,
    spacy_spans,
)
from anchorscope.spans.rules import rules_spans


def ask(text: str, *subjects: str, id: str = "d:test:1", dataset: str = "d") -> Question:
    return Question(id=id, dataset=dataset, text=text, answers=("x",), subjects=subjects)


def marked(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[a:b] for a, b in spans]


RULES = [
    ("What is the capital of Canton of Lucerne?", ["Canton of Lucerne"]),
    ("In what country is Nowa Wieś Reszelska?", ["Nowa Wieś Reszelska"]),
    ("What is Kekko Fornarelli's occupation?", ["Kekko Fornarelli"]),
    ("Who was the composer of The Dawning?", ["The Dawning"]),
    ("Who was the composer of I Wish You Would?", ["I Wish You Would"]),
    ("What genre is It?", ["It"]),
    ("Who was the father of Ludwig van Beethoven?", ["Ludwig van Beethoven"]),
    ("Where was Leonardo da Vinci born?", ["Leonardo da Vinci"]),
    ("Who wrote The Lord of the Rings?", ["The Lord of the Rings"]),
    ("Which American University is situated in Ithaca, New York?",
     ["American University", "Ithaca", "New York"]),
    ("On August 15th 1914, what did the SS Ancon do?", ["August 15th 1914", "SS Ancon"]),
    ("In 2014 Russia closed branches of what global brand?", ["2014 Russia"]),
    ("Who played 'Judge Dredd' in the 1995 film?", ["Judge Dredd", "1995"]),
    ('The subject of the biography "Name Dropper" was born when?', ["Name Dropper"]),
    ("Who sang “she's a woman” in 1964?", ["she's a woman", "1964"]),
    ("David Huntsinger has worked with whom?", ["David Huntsinger"]),
    ("Who was born first, Kiefer Sutherland or Christian Slater?",
     ["Kiefer Sutherland", "Christian Slater"]),
    ("Where does Tiko's Spanish club play?", ["Tiko's Spanish"]),
    ("Who won Hell's Kitchen 2009?", ["Hell's Kitchen 2009"]),
    ("Who wrote as J. R. R. Tolkien?", ["J. R. R. Tolkien"]),
    ("Where is St. Louis?", ["St. Louis"]),
    ("Who sang with Simon & Garfunkel?", ["Simon & Garfunkel"]),
    ("Who makes the iPhone?", ["iPhone"]),
    ("how many seasons of the bastard executioner are there", ["seasons", "bastard executioner"]),
    ("who plays margot in legally blonde the musical", ["margot", "legally blonde", "musical"]),
    ("how many episodes in season 6 downton abbey", ["episodes", "season 6 downton abbey"]),
    ("when was the taj mahal built and completed", ["taj mahal built", "completed"]),
    ("Where did he go?", []),
    ("", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), RULES)
def test_rules(text: str, names: list[str]):
    assert marked(text, rules_spans(text)) == names


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


def test_merged_sorts_and_joins():
    assert merged([Span(5, 8), Span(0, 2), Span(7, 9), Span(3, 3)]) == (Span(0, 2), Span(5, 9))


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
    with pytest.raises(UserError, match=r"'magic'.*auto, given, rules, model, spacy, all"):
        find_spans([], finder="magic")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="generate="):
        find_spans([ask("Where is Kanpur?")], finder="model")


def test_model_spans_come_from_the_reply_to_each_prompt():
    questions = [ask("who wrote war and peace", id="1"), ask("Where is Kanpur?", id="2")]
    replies = {"who wrote war and peace": " War and Peace.\nQuestion: Lima", "Where": ""}

    def generate(prompts: Sequence[str]) -> list[str]:
        asked = [prompt.rsplit("Question: ", 1)[1].removesuffix("\nWords:") for prompt in prompts]
        return [replies.get(text, "Lima; Peru") for text in asked]

    assert model_spans(questions, generate) == [(Span(10, 23),), ()]
    assert [f.finder for f in find_spans(questions, finder="model", generate=generate)] == [
        "model",
        "model",
    ]


def test_model_prompt_holds_the_question_once_on_one_line():
    prompt = model_prompt("where is\nLima")
    assert prompt.count("where is Lima") == 1
    assert prompt.endswith("Question: where is Lima\nWords:")


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


def test_a_generator_that_loses_a_prompt_is_refused():
    with pytest.raises(UserError, match="0 texts for 1 prompts"):
        model_spans([ask("Where is Kanpur?")], lambda prompts: [])


def test_spacy_entities_and_noun_chunks():
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns(
        [{"label": "GPE", "pattern": "Kanpur"}, {"label": "W", "pattern": "The Who"}]
    )
    questions = [ask("Where is Kanpur? Near The Who?", id="1"), ask("Where?", id="2")]
    found = find_spans(questions, finder="spacy", nlp=nlp)
    assert [marked(q.text, f.spans) for q, f in zip(questions, found, strict=True)] == [
        ["Kanpur", "The Who"],
        [],
    ]


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


def test_spans_load_neither_torch_nor_spacy():
    code = (
        "import sys, anchorscope.spans.question, anchorscope.spans.characters;"
        "import anchorscope.spans.answer;"
        "assert not {'torch', 'transformers', 'spacy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ASKED_FOR = [
    ("What country is Osaka in?", ["Osaka"], ["country"]),
    ("What is John Mayne's occupation?", ["John Mayne"], ["occupation"]),
    ("What is Spas-Demensk the capital of?", ["Spas-Demensk"], ["capital"]),
    ("In what city was Bianca Guaccero born?", ["Bianca Guaccero"], ["city"]),
    ("What sport does Tama play?", ["Tama"], ["sport"]),
    ("Oslo is the capital of which country?", ["Oslo"], ["country"]),
    ("What is the atomic number of zinc?", ["zinc"], ["atomic number"]),
    ("Who wrote Emma?", ["Emma"], ["wrote"]),
    ("When did the Berlin Wall fall?", ["Berlin Wall"], ["fall"]),
    ("Where was Dench born?", ["Dench"], ["born"]),
    ("The subject of “Name Dropper” was born when?", ["Name Dropper"], ["born"]),
    ("What was the name of the land in Yellow Submarine?", ["Yellow Submarine"], ["land"]),
    ("The arena where the Maineiacs played seats how many people?", ["Maineiacs"], ["people"]),
    ("Are the Alps and the Andes both volcanic?", ["Alps", "Andes"], ["volcanic"]),
    ("Which city is further north, Oslo or Rome?", ["Oslo", "Rome"], ["further north"]),
    ("Which was published earlier, Emma or Heidi?", ["Emma", "Heidi"], ["published earlier"]),
    ("Who died more recently, Ali or Foreman?", ["Ali", "Foreman"], ["died"]),
    ("Which English opera features Nemo?", ["English", "Nemo"], ["opera features"]),
    ("Where does the river Po end?", ["Po"], ["end"]),
    ("Which Lloyd Webber musical premiered in 1993?", ["Lloyd Webber", "1993"],
     ["musical premiered"]),
    ("Where is Kanpur?", ["Kanpur"], []),
    ("Where is Kanpur? Please tell me.", ["Kanpur"], []),
    ("I would like to know: where is Kanpur?", ["Kanpur"], []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "subjects", "named"), ASKED_FOR)
def test_exact_question_is_subject_and_property(text: str, subjects: list[str], named: list[str]):
    [found] = find_spans([ask(text, *subjects)], finder="given")
    assert marked(text, found.subject_spans) == subjects
    assert marked(text, found.property_spans) == named
    assert sorted(marked(text, found.spans)) == sorted([*subjects, *named])


def test_every_finder_marks_the_property():
    question = ask("What country is Osaka in?", "Osaka")
    for finder in ("auto", "given", "rules"):
        [found] = find_spans([question], finder=finder)
        assert marked(question.text, found.spans) == ["country", "Osaka"]
    [found] = find_spans([question], finder="model", generate=lambda prompts: [" Osaka"])
    assert marked(question.text, found.spans) == ["country", "Osaka"]
    [found] = find_spans([question], finder="all")
    assert marked(question.text, found.spans) == ["What country is Osaka in"]


def test_a_property_that_the_finder_marked_already_is_marked_once():
    question = ask("how many seasons of the bastard executioner are there")
    [found] = find_spans([question], finder="rules")
    assert marked(question.text, found.spans) == ["seasons", "bastard executioner"]
    assert found.property_spans == ()


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
