"""The judge on a table of hard cases, one verdict each; which verdicts are in doubt, and why."""

from __future__ import annotations

import random

import pytest

from anchorscope.answers.judge import judge
from anchorscope.answers.normalise import plain, words
from anchorscope.answers.verdicts import doubt_of, doubtful
from anchorscope.errors import UserError
from anchorscope.records import Answer, Question, Sample, Span

NORWAY = ["Norway", "Norge", "NO", "no"]
INDIA = ["India", "Bharat", "in", "IN"]
LARGER = "Which is larger, Paris or London?"
LUCERNE = "What is the capital of the canton of Lucerne?"

CASES = [
    # plain, and words around the alias
    ("Paris", ["Paris"], "", "right"),
    ("paris.", ["Paris"], "", "right"),
    ("The city of Paris", ["Paris"], "", "right"),
    ("Paris, France", ["Paris"], "", "right"),
    ("Paris, Île-de-France, France", ["Paris"], "", "right"),
    ("Kanpur is a city in India.", ["India"], "In what country is Kanpur?", "right"),
    ("Parisian", ["Paris"], "", "wrong"),
    ("Indiana", INDIA, "", "wrong"),
    ("London", ["Paris"], "", "wrong"),
    ("Lowville", ["Lowville, New York"], "", "wrong"),
    # spelling
    ("Sao Paulo", ["São Paulo"], "", "right"),
    ("Łódź", ["Lodz"], "", "right"),
    ("STRASSE", ["Straße"], "", "right"),
    ("Spiderman", ["Spider-Man"], "", "right"),
    ("a comedy drama", ["comedy-drama"], "", "right"),
    ("Simon and Garfunkel", ["Simon & Garfunkel"], "", "right"),
    ("McDonald’s", ["McDonalds"], "", "right"),
    ("U.S.", ["US"], "", "right"),
    ("the U. S.", ["US"], "", "right"),
    ("J.R.R. Tolkien", ["J. R. R. Tolkien"], "", "right"),
    ("The Beatles", ["Beatles"], "", "right"),
    ("Yellow", ["Yellow (colour)"], "", "right"),
    ("日本", ["日本"], "", "right"),
    # numbers
    ("15", ["5"], "", "wrong"),
    ("5", ["15"], "", "wrong"),
    ("5", ["5"], "", "right"),
    ("There are 5 of them", ["five"], "", "right"),
    ("1000", ["1,000"], "", "right"),
    ("more than 1,000", ["1000"], "", "right"),
    ("1,000", ["1"], "", "wrong"),
    ("twelve", ["12"], "", "right"),
    ("twenty-one", ["21"], "", "right"),
    ("twenty-one", ["20"], "", "wrong"),
    ("5.3 million", ["5,300,000"], "", "right"),
    ("5 million", ["5"], "", "wrong"),
    ("two thousand three hundred", ["2,300"], "", "right"),
    ("between two hundred three hundred", ["300"], "", "right"),
    ("the fortieth president", ["40th president"], "", "right"),
    ("It is one of the largest rivers", ["1"], "", "wrong"),
    ("the 20th century", ["twentieth century"], "", "right"),
    ("5th", ["5"], "", "wrong"),
    ("67.0", ["67"], "", "right"),
    ("6.7", ["7"], "", "wrong"),
    ("-40", ["40"], "", "wrong"),
    ("minus 40 degrees", ["-40"], "", "right"),
    ("30 minutes", ["30-minute"], "", "right"),
    ("35", ["35 people"], "How many people died?", "right"),
    ("1000", ["1000 Elm Street"], "Where does he live?", "wrong"),
    ("World War Two", ["World War II"], "", "right"),
    ("World War II", ["World War I"], "", "wrong"),
    ("Louis XVI", ["Louis XV"], "", "wrong"),
    ("8 minutes", ["About 8 minutes"], "", "right"),
    ("1840", ["In 1840"], "", "right"),
    # dates
    ("December 14, 1972", ["14 December 1972"], "", "right"),
    ("It was on the 14th of December, 1972.", ["December 14, 1972"], "", "right"),
    ("1972-12-14", ["14 Dec 1972"], "", "right"),
    ("1972", ["14 December 1972"], "", "wrong"),
    ("December 1972", ["14 December 1972"], "", "wrong"),
    ("December 15, 1972", ["14 December 1972"], "", "wrong"),
    ("December 14, 1972", ["1972"], "", "right"),
    ("December 14, 1972", ["December 1972"], "", "right"),
    ("December 14, 1972", ["14"], "", "wrong"),
    ("1990s", ["1990"], "", "wrong"),
    ("the 1990's", ["1990s"], "", "right"),
    ("1939-45", ["1939–1945"], "", "right"),
    ("1632–53", ["1632"], "", "wrong"),
    ("776 BCE", ["776 BC"], "", "right"),
    # yes and no
    ("No", ["no"], "", "right"),
    ("No, they are not.", ["no"], "", "right"),
    ("Yes, both are American", ["yes"], "", "right"),
    ("Yes, there is no doubt", ["no"], "", "wrong"),
    ("Yes and no", ["yes"], "", "wrong"),
    ("I do not know", ["no"], "", "abstain"),
    ("Not both of them", ["no"], "", "wrong"),
    ("They are both American", ["yes"], "", "wrong"),
    ("No, it is in Sweden", NORWAY, "", "wrong"),
    ("There is no such country", NORWAY, "", "wrong"),
    ("I do not know", NORWAY, "", "abstain"),
    # abstentions
    ("", ["Paris"], "", "abstain"),
    (" ... ", ["Paris"], "", "abstain"),
    ("I don’t know.", ["Paris"], "", "abstain"),
    ("I'm not sure, maybe Paris", ["Paris"], "", "abstain"),
    ("unknown", ["Paris"], "", "abstain"),
    ("It is unknown.", ["Paris"], "", "abstain"),
    ("The exact date is not known", ["1972"], "", "abstain"),
    ("N/A", ["Paris"], "", "abstain"),
    ("No answer", ["no"], "", "abstain"),
    ("I cannot answer that", ["Paris"], "", "abstain"),
    ("As an AI language model, I do not have access to that", ["Paris"], "", "abstain"),
    ("I'm sorry for any misunderstanding, but I can only chat", ["Paris"], "", "abstain"),
    ("Sorry", ["Paris"], "", "wrong"),
    ("The Unknown", ["The Unknown"], "", "right"),
    ("Unknown", ["The Unknown"], "", "right"),
    ("I Don't Know by Paul", ["I Don't Know"], "", "right"),
    ("The Unknown Soldier", ["The Doors"], "", "wrong"),
    ("Na", ["Fe"], "", "wrong"),
    ("I Know You", ["Paris"], "", "wrong"),
    # hedges and lists
    ("Paris or London", ["Paris"], "", "wrong"),
    ("either 5 or 6", ["5"], "", "wrong"),
    ("Holland or the Netherlands", ["Netherlands", "Holland"], "", "right"),
    ("Truth or Dare", ["Truth or Dare"], "", "right"),
    ("It is Truth or Dare", ["Truth or Dare"], "", "right"),
    ("composer and pianist", ["pianist"], "", "right"),
    ("Rome, Paris, London, Berlin", ["Paris"], "", "wrong"),
    ("red, white, blue and green", ["red, white, blue, and green"], "", "right"),
    # negation and comparison
    ("not Paris", ["Paris"], "", "wrong"),
    ("It isn't in Paris, it is in Rome", ["Paris"], "", "wrong"),
    ("It isn't in Paris, it is in Rome", ["Rome"], "", "right"),
    ("I do not think it is Paris", ["Paris"], "", "wrong"),
    ("not only Paris", ["Paris"], "", "right"),
    ("London is larger than Paris", ["Paris"], "", "wrong"),
    ("Paris", ["Paris"], LARGER, "right"),
    ("London", ["Paris"], LARGER, "wrong"),
    ("Paris or London", ["Paris"], LARGER, "wrong"),
    ("Paris and London", ["Paris"], LARGER, "wrong"),
    ("Paris is larger than London", ["Paris"], LARGER, "right"),
    ("London is larger than Paris", ["Paris"], LARGER, "wrong"),
    ("Paris, not London", ["Paris"], LARGER, "right"),
    ("Paris, not London", ["London"], LARGER, "wrong"),
    # the question repeated
    ("Lucerne", ["Lucerne"], LUCERNE, "right"),
    ("The capital of the canton of Lucerne is Bern", ["Lucerne"], LUCERNE, "wrong"),
    ("The capital of the canton of Lucerne is Lucerne", ["Lucerne"], LUCERNE, "right"),
    # short aliases and idle words
    ("Fe", ["Fe"], "", "right"),
    ("fe", ["Fe"], "", "right"),
    ("The symbol is Fe.", ["Fe"], "", "right"),
    ("The symbol is FE.", ["Fe"], "", "wrong"),
    ("U is the symbol", ["U"], "", "right"),
    ("It lies in Poland", INDIA, "", "wrong"),
    ("In Poland", INDIA, "", "wrong"),
    ("It is in Poland", ["Italy", "IT"], "", "wrong"),
    ("one of us", ["US"], "", "wrong"),
    ("the US", ["US"], "", "right"),
    ("It was The Who", ["The Who"], "", "right"),
    ("Who knows", ["The Who"], "", "wrong"),
    ("A scarlet letter", ["A"], "", "wrong"),
    ("The letter A", ["A"], "", "right"),
    ("C++", ["C"], "", "wrong"),
    # names inside names
    ("New York", ["York"], "", "wrong"),
    ("Equatorial Guinea", ["Guinea"], "", "wrong"),
    ("Guinea-Bissau", ["Guinea"], "", "wrong"),
    ("Guinea", ["Equatorial Guinea"], "", "wrong"),
    ("Democratic Republic of the Congo", ["Republic of the Congo", "Congo"], "", "wrong"),
    ("Mexico City, Mexico", ["Mexico"], "", "right"),
    # aliases that hold no word
    ("!!!", ["!!!"], "", "right"),
    ("🇳🇴", ["Norway", "🇳🇴"], "", "right"),
    ("Sweden", ["🇳🇴"], "", "wrong"),
    ("🇸🇪", ["Norway", "🇳🇴"], "", "wrong"),
]


@pytest.mark.parametrize(
    ("answer", "alias"),
    [
        ("New Yorker", "New York"),
        ("He was a New Yorker all his life", "New York"),
        ("Anew York", "New York"),
        ("The Fifth Elementary", "The Fifth Element"),
        ("25 December 19721", "25 December 1972"),
        ("It was George Washingtonian of him", "George Washington"),
        ("Mount Everestine Peak", "Mount Everest Peak"),
    ],
)
def test_alias_of_several_words_inside_longer_words_is_wrong(answer, alias):
    assert judge(alias, [alias]) == "right"
    assert judge(answer, [alias]) == "wrong"


@pytest.mark.parametrize(("answer", "aliases", "question", "verdict"), CASES)
def test_hard_cases(answer: str, aliases: list[str], question: str, verdict: str):
    assert judge(answer, aliases, question=question) == verdict


def test_every_alias_is_right_for_itself():
    for _, aliases, question, _ in CASES:
        for alias in aliases:
            assert judge(alias, aliases, question=question) == "right"


def test_no_alias_is_refused():
    with pytest.raises(UserError, match="at least one"):
        judge("Paris", [])


def test_words_of_a_date_keep_the_day_apart_from_counts():
    texts = [word.text for word in words("on the 14th of December 1972")]
    assert texts == ["on", "1972", "december", "day14"]


def test_plain_drops_apostrophes_and_punctuation():
    assert plain("I don’t — know!") == "i dont know"


SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]  # fmt: skip
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spelled(n: int) -> str:
    """The number in English words, without "and"."""
    for scale, name in (
        (10**9, "billion"),
        (10**6, "million"),
        (1000, "thousand"),
        (100, "hundred"),
    ):
        if n >= scale:
            rest = f" {spelled(n % scale)}" if n % scale else ""
            return f"{spelled(n // scale)} {name}{rest}"
    if n < 20:
        return SMALL[n]
    return TENS[n // 10] + (f"-{SMALL[n % 10]}" if n % 10 else "")


def test_numbers_are_read_as_they_are_spelled():
    drawn = random.Random(0)
    numbers = [*range(2500), *(drawn.randrange(10 ** drawn.randint(4, 12)) for _ in range(500))]
    for n in numbers:
        assert [word.text for word in words(spelled(n))] == [str(n)]
    assert [word.text for word in words("12345678901234567890")] == ["12345678901234567890"]


def test_an_answer_without_words_to_a_yes_or_no_question_is_wrong():
    assert judge("👍", ["yes"], question="Is it?") == "wrong"


# --- Verdicts in doubt ---


DOUBTS = [  # answer, accepted, what the judge says, why that is in doubt
    ("Nigeria", "Niger", "wrong", "holds 'Niger' inside a word or across words"),
    ("Naiya", "Naira", "wrong", "spelled nearly like 'Naira'"),
    ("not Paris", "Paris", "wrong", "holds the accepted answer 'Paris'"),
    ("1972", "14 December 1972", "wrong", "has a number of '14 December 1972'"),
    ("1989", "1990", "wrong", "a number near that of '1990'"),
    ("George Washington", "Washington Irving", "wrong",
     "shares 'washington' with 'Washington Irving'"),
    ("He is, as far as is known, unknown", "Ada Lovelace", "wrong", "may decline to answer"),
    ("North America", "America", "right", "says more than 'America'"),
    ("It may not be Paris, though Paris fits", "Paris", "right", "hedges or denies: 'not'"),
    ("Paris 7", "Paris", "right", "names another number beside 'Paris'"),
    ("Of iron: Fe", "Fe", "right", "the accepted answer 'Fe' is very short"),
    ("I don't know, maybe Paris", "Paris", "abstain", "holds the accepted answer 'Paris'"),
    ("I don't know", "Paris", "abstain", None),
    ("Paris", "Paris", "right", None),
    ("Rome", "Paris", "wrong", None),
]  # fmt: skip


def sample(text: str, accepted: str, verdict: str, id: str = "q") -> Sample:
    question = Question(id=id, dataset="d", text="What is it?", answers=(accepted,), entity=id)
    answer = Answer(
        id=id, text=text, token_ids=(1,), log_probs=(-1.0,), first_entropy=1.0, finished=True
    )
    return Sample(
        question=question, answer=answer, verdict=verdict, finder="given", spans=(),  # type: ignore[arg-type]
        answer_span=Span(0, len(text)), prompt_ids=(0,), question_tokens=(0,),
        exact_question=(0,), exact_answer=(1,),
    )  # fmt: skip


@pytest.mark.parametrize(("text", "accepted", "verdict", "why"), DOUBTS, ids=[c[0] for c in DOUBTS])
def test_the_reason_is_named(text, accepted, verdict, why):
    assert judge(text, [accepted], question="What is it?") == verdict  # the case is a real one
    doubt = doubt_of(sample(text, accepted, verdict))
    assert (doubt and doubt.why) == why


def test_the_most_doubtful_come_first():
    samples = [sample(text, gold, verdict, id=str(n)) for n, (text, gold, verdict, _) in
               enumerate(DOUBTS)]  # fmt: skip
    pairs = doubtful(samples)
    assert [doubt.doubt for _, doubt in pairs] == sorted((d.doubt for _, d in pairs), reverse=True)
    assert len(pairs) == sum(why is not None for *_, why in DOUBTS)
    assert all(0 < doubt.doubt < 1 for _, doubt in pairs)
