"""Scores, beliefs and warnings of fresh answers, against states from a plain forward pass."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from kit.plain import plain_states
from kit.tiny import tiny_lm, tiny_tokenizer
from scipy.special import expit

from anchorscope.answers.generate import answer_offsets
from anchorscope.answers.given import unread_answer
from anchorscope.detect.calibration import Platt
from anchorscope.detect.detector import Detector
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.prompts import Example, Exchange, tasks_of
from anchorscope.detect.scored import to_frame
from anchorscope.detect.side_probes import Beliefs, Distance, PreAnswerProbe
from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.models.prompts import make_prompt
from anchorscope.records import Shot
from anchorscope.run_folder.identity import weights_hash
from anchorscope.spans.answer import answer_span
from anchorscope.spans.characters import tokens_of

QUESTIONS = ["Who wrote Hamlet?", "Where is the city of Kanpur?", "What is red?", "Who is who?"]
SHOTS = (Shot(question="In which city is the Colosseum?", answer="Rome"),)
LAYER, WIDTH = 3, 48


def make(model, name="probe", **arrays) -> Detector:
    """A detector with random weights for this model: the scores are what is tested."""
    rng = np.random.default_rng(0)
    coef = rng.standard_normal((1, WIDTH)).astype(np.float32)
    probe = {"layers": [LAYER], "C": 1.0, "coef": coef, "intercept": [0.0]} | arrays
    method = METHODS[name]().restore({name: np.array(value) for name, value in probe.items()})
    method.calibration_ = Platt(0.1, 0.2)
    shape = {"blocks": model.blocks, "width": WIDTH, "dtype": "float32", "revision": None}
    texts = ["Who is it?", "What was that?", "Where?"]
    return Detector(
        name=name,
        method=method,
        model={"name": "tiny", "source": "tiny", "weights": weights_hash(model.lm), **shape},
        prompt={"style": "text", "shots": 1, "max_tokens": 8, "finder": "auto", "dataset": "d"},
        examples=tuple(
            Example(question=q, prompt_ids=make_prompt(model, q, shots=SHOTS, style="text").ids)
            for q in texts
        ),
        threshold=0.5,
        calibrated_on="nothing: made for a test",
        trained_on={"datasets": ["d"], "answers": 0, "wrong": 0},
        evaluation={"auroc": None},
        licence={"detector": "other"},
    )


def expected(model, detector, question, text) -> float:
    """The probability by a plain forward pass over the prompt and the answer's entity alone."""
    span = answer_span(text, question=question)
    prompt = make_prompt(model, question, shots=SHOTS, style="text").ids
    own = model.tokenizer(f" {text[span.start : span.stop]}")["input_ids"]
    state = plain_states(model, [[*prompt, *own]])[0, LAYER - 1].double().numpy()
    logit = state @ detector.method.coef_[0].astype(float)
    return 1 / (1 + math.exp(-(0.1 * logit + 0.2)))


@pytest.mark.parametrize("architecture", ["gemma2", "gpt_neox"])
def test_a_given_answer_is_scored_as_a_plain_pass_reads_it(architecture):
    model = load_model(tiny_lm(architecture), tokenizer=tiny_tokenizer())
    detector = make(model)
    answers = ["William Shakespeare", "India", "The answer is RED", "Me."]
    scored = detector.score(model, QUESTIONS, answer=answers)
    for question, answer, one in zip(QUESTIONS, answers, scored, strict=True):
        want = expected(model, detector, question, answer)
        assert one.probability == pytest.approx(want, abs=2e-3)  # states go through float16
        assert one.flagged == (one.probability > 0.5)
        assert one.answer_entity in one.answer == answer
        assert (one.threshold, one.detector) == (0.5, detector.id)
        assert one.outcome == ("wrong" if one.flagged else "right")  # no band was kept
        assert one.calibrated_on == "0 answers of d"


def test_a_detector_of_two_datasets_asks_which_prompt(tiny_llama):
    """Each dataset's worked examples are kept; the score is that of the prompt that was named."""
    one = make(tiny_llama)
    other_shots = (Shot(question="What colour is grass?", answer="green"),)
    shots_by_name = {"first": SHOTS, "second": other_shots}
    examples = [
        Example(
            question=example.question,
            prompt_ids=make_prompt(tiny_llama, example.question, shots=shots, style="text").ids,
            dataset=name,
        )
        for name, shots in shots_by_name.items()
        for example in one.examples
    ]
    both = replace(one, examples=tuple(examples))
    for name, shots in shots_by_name.items():
        want = make_prompt(tiny_llama, QUESTIONS[0], shots=shots, style="text")
        assert both.bind(tiny_llama, dataset=name).prompt(QUESTIONS[0]) == want
    want = one.score(tiny_llama, QUESTIONS[0], answer="Rome").probability
    first, second = (
        both.score(tiny_llama, QUESTIONS[0], answer="Rome", dataset=name).probability
        for name in shots_by_name
    )
    assert first == pytest.approx(want, abs=2e-4)
    assert abs(second - want) > 1e-3
    with pytest.raises(UserError, match=r"first, second. Say which of them .* dataset= .* --as"):
        both.score(tiny_llama, QUESTIONS[0])
    with pytest.raises(UserError, match=r"'third'. Accepted: first, second"):
        both.score(tiny_llama, "Who?", dataset="third")
    alike = replace(one, examples=(*one.examples, *(replace(e, dataset="b") for e in one.examples)))
    assert alike.score(tiny_llama, QUESTIONS[0], answer="Rome").probability == pytest.approx(want)


def test_own_answers_batches_and_given_answers_agree(tiny_llama):
    detector = make(tiny_llama)
    together = detector.score(tiny_llama, QUESTIONS)
    for question, one in zip(QUESTIONS, together, strict=True):
        alone = detector.score(tiny_llama, question)
        assert alone.answer == one.answer
        if one.reason:
            assert math.isnan(alone.probability)
        else:
            assert alone.probability == pytest.approx(one.probability, abs=2e-4)
    assert any(not one.reason for one in together)


def test_combined_adds_the_lowest_log_probability_to_the_probe(tiny_llama):
    probe, least = make(tiny_llama), make(tiny_llama, "entity-log-prob")
    bounds = np.array([0.5, 8.0])  # what training saw
    both = make(tiny_llama, "combined", weights=[0.5, 2.0, -1.0], range=bounds)
    for given in (None, "Rome"):
        ask = {"answer": given} if given else {}
        by = [one.score(tiny_llama, QUESTIONS[1], **ask).score for one in (probe, least, both)]
        assert by[2] == pytest.approx(0.5 * by[0] + 2.0 * np.clip(by[1], *bounds) - 1.0, abs=1e-3)


def test_a_warning_reads_the_question_alone(tiny_llama):
    coef = np.random.default_rng(3).standard_normal(WIDTH).astype(np.float32)
    probe = PreAnswerProbe(layer=2, coef=coef, intercept=0.3, calibration=Platt(0.2, -0.1),
                    threshold=0.5, evaluation={"auroc": None})  # fmt: skip
    detector = replace(make(tiny_llama), pre_answer=probe)
    together = detector.warn(tiny_llama, QUESTIONS)
    for question, one in zip(QUESTIONS, together, strict=True):
        prompt = make_prompt(tiny_llama, question, shots=SHOTS, style="text")
        last = tokens_of([prompt.question], prompt.offsets)[-1]
        state = plain_states(tiny_llama, [prompt.ids[: last + 1]])[0, 1].double().numpy()
        want = 1 / (1 + math.exp(-(0.2 * (state @ coef.astype(float) + 0.3) - 0.1)))
        assert one.probability == pytest.approx(want, abs=2e-3)
        assert one.flagged == (one.probability > 0.5) and one.detector == detector.id
        high = replace(detector, pre_answer=replace(probe, threshold=1.0))
        unsure = high.warn(tiny_llama, question)
        assert unsure.outcome == ("cannot say" if one.probability > 0.5 else "right")
        alone = detector.warn(tiny_llama, question)
        assert alone.probability == pytest.approx(one.probability, abs=2e-4)
    with pytest.raises(UserError, match="no warning before the answer"):
        make(tiny_llama).warn(tiny_llama, QUESTIONS[0])


def warning(model) -> Detector:
    """A detector that also warns before the answer."""
    probe = PreAnswerProbe(layer=2, coef=np.ones(WIDTH, np.float32), intercept=0.0, threshold=0.5,
                    calibration=Platt(0.2, -0.1), evaluation={})  # fmt: skip
    return replace(make(model), pre_answer=probe)


@pytest.mark.parametrize("way", ["score", "answer", "warn"])
def test_a_question_that_does_not_fit_the_window_is_refused(tiny_llama, way):
    detector = warning(tiny_llama)
    fits, long = "Who wrote Hamlet?", "Who wrote " + "Hamlet " * 100 + "?"
    if way == "answer":
        with pytest.raises(UserError, match=r"'Who wrote Hamlet\?'.*and an answer of 601 tokens"):
            detector.score(tiny_llama, [fits], answer=["y" * 600])
        return
    with pytest.raises(
        UserError, match=r"'Who wrote Hamlet Ham.*needs a prompt of 7\d\d tokens.*512 in all"
    ):
        getattr(detector, way)(tiny_llama, [fits, long])
    assert getattr(detector, way)(tiny_llama, [fits])


@pytest.mark.parametrize("way", ["score", "warn"])
@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(tiny_llama, way, question):
    with pytest.raises(UserError, match=r"question .* is empty"):
        getattr(warning(tiny_llama), way)(tiny_llama, question)


def test_everything_but_right_is_flagged(tiny_llama):
    detector = make(tiny_llama)
    answers = ["I don't know", "I am not sure.", " ?! ", "Paris"]
    *unread, paris = detector.score(tiny_llama, [QUESTIONS[0]] * 4, answer=answers)
    assert [one.outcome for one in unread] == ["no answer"] * 3
    assert all(one.flagged and math.isnan(one.probability) for one in unread)
    assert "declines" in unread[0].reason and "no entity" in unread[2].reason
    assert paris.outcome in ("right", "wrong") and not paris.reason
    assert paris.flagged == (paris.outcome == "wrong")
    open_ = replace(detector, band=(0.0, 1.0))
    (one,) = open_.score(tiny_llama, [QUESTIONS[0]], answer=["Paris"])
    assert (one.outcome, one.flagged) == ("cannot say", True) and "on either side" in one.reason


def test_an_answer_unlike_all_that_was_learnt_from_gets_no_firm_outcome(tiny_llama):
    detector = make(tiny_llama)
    (firm,) = detector.score(tiny_llama, [QUESTIONS[0]], answer=["Paris"])
    assert firm.outcome in ("right", "wrong")
    near = Distance(
        layer=1, mean=np.full(WIDTH, 50.0), scale=np.ones(WIDTH), variances=np.ones(1), rest=1.0,
        directions=np.eye(1, WIDTH, dtype=np.float32), seen=np.linspace(0, 1, 101),
    )  # fmt: skip
    (far,) = replace(detector, distance=near).score(tiny_llama, [QUESTIONS[0]], answer=["Paris"])
    assert (far.outcome, far.flagged, far.distance) == ("cannot say", True, 1.0)
    assert "unlike what the detector learnt" in far.reason and far.probability == firm.probability


def test_every_form_of_an_answer_is_scored_as_its_entity_alone(tiny_llama):
    detector = make(tiny_llama, "combined", weights=[0.5, 2.0, -1.0], range=[0.5, 8.0])
    forms = ["Paris", "Paris.", "**Paris**", "It is Paris.", '{"answer": "Paris"}', "Sure! Paris."]
    bare, *others = detector.score(tiny_llama, [QUESTIONS[0]] * len(forms), answer=forms)
    denied = detector.score(tiny_llama, QUESTIONS[0], answer="It was not written by Bacon.")
    assert (denied.answer_entity, denied.outcome) == ("Bacon", "cannot say")
    assert bare.outcome in ("right", "wrong")
    exchanges = [Exchange(question=QUESTIONS[0], answer=form) for form in forms]
    for text, one in zip(
        forms * 2, [bare, *others, *detector.score_answers(tiny_llama, exchanges)], strict=True
    ):
        assert (one.answer, one.answer_entity, one.outcome) == (text, "Paris", bare.outcome)
        assert one.probability == pytest.approx(bare.probability, abs=2e-4)
        assert all(text[span.start : span.end] == span.text for span in one.spans)


def test_an_answer_without_capitals_is_read_in_its_likelier_spelling(tiny_llama):
    detector = make(tiny_llama)
    prompt = make_prompt(tiny_llama, QUESTIONS[0], shots=SHOTS, style="text").ids

    def mean_log_prob(text):
        ids = [*prompt, *tiny_llama.tokenizer(f" {text}")["input_ids"]]
        logits = tiny_llama.lm(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
        return logits[range(len(prompt) - 1, len(ids) - 1), ids[len(prompt) :]].mean().item()

    chosen = set()
    for low, high in (("paris", "Paris"), ("rome", "Rome"), ("yen", "Yen"), ("red", "Red")):
        lower, upper = detector.score(tiny_llama, [QUESTIONS[0]] * 2, answer=[low, high])
        assert lower.answer == lower.answer_entity == low
        upper_likelier = mean_log_prob(high) > mean_log_prob(low)
        alike = lower.probability == pytest.approx(upper.probability, abs=2e-4)
        assert alike == upper_likelier
        chosen.add(alike)
    assert chosen == {True, False}


def test_states_of_another_engine_get_an_outcome_if_one_entity_begins_the_answer(tiny_llama):
    detector, tokenizer = make(tiny_llama), tiny_llama.tokenizer
    prompt = make_prompt(tiny_llama, QUESTIONS[0], shots=SHOTS, style="text").ids

    def scored(text):
        ids = tokenizer(f" {text}")["input_ids"]
        states = plain_states(tiny_llama, [(*prompt, *ids[: n + 1]) for n in range(len(ids))])
        return detector.score_states(ids, states.numpy(), tokenizer=tokenizer)

    bare = detector.score(tiny_llama, QUESTIONS[0], answer="Paris")
    for text in ("Paris", "Paris."):
        assert scored(text).outcome == bare.outcome
        assert scored(text).probability == pytest.approx(bare.probability, abs=2e-3)
    for text in ("It is Paris.", "Paris. It is Rome."):
        assert scored(text).outcome == "cannot say" and "entit" in scored(text).reason


def test_every_entity_of_a_given_answer_is_scored_in_one_pass(tiny_llama):
    detector = make(tiny_llama)
    answer = 'Sure! It was Rome. The river is Tiber.\n- Paris\n```json\n{"a": "Lyon"}\n```'
    (one,) = detector.score_answers(tiny_llama, [Exchange(question="Who?", answer=answer)])
    entities = [span for span in one.spans if span.kind == "entity"]
    assert [span.text for span in entities] == ["Rome", "Tiber", "Paris", "Lyon"]
    assert all(answer[span.start : span.end] == span.text for span in one.spans)
    exchange = Exchange(question="Who?", answer=answer)
    ids = tasks_of(tiny_llama, detector.bind(tiny_llama), exchange, 0)[0].answer_ids
    located = unread_answer("0", answer, ids)
    offsets = answer_offsets(tiny_llama, located)
    for span in entities:
        last = tokens_of([(span.start, span.end)], offsets)[-1]
        prompt = make_prompt(tiny_llama, "Who?", shots=SHOTS, style="text").ids
        state = plain_states(tiny_llama, [(*prompt, *ids[: last + 1])])[0, LAYER - 1]
        score = state.double().numpy() @ detector.method.coef_[0].astype(float)
        assert span.probability == pytest.approx(1 / (1 + math.exp(-0.1 * score - 0.2)), abs=2e-3)
    worst = max(entities, key=lambda span: span.probability)
    assert one.probability == worst.probability and one.answer_entity == worst.text
    assert one.outcome == "cannot say" and "several entities" in one.reason
    assert to_frame([one])["probability"].tolist() == [one.probability]
    assert to_frame([one], spans=True)["text"].tolist() == [span.text for span in one.spans]
    # The same from states that come from elsewhere.
    rest = plain_states(tiny_llama, [(*prompt, *ids[: n + 1]) for n in range(len(ids))])
    again = detector.score_states(ids, rest.numpy(), tokenizer=tiny_llama.tokenizer)
    assert [s.text for s in again.spans] == [s.text for s in one.spans]
    assert again.probability == pytest.approx(one.probability, abs=2e-3)


def test_messages_and_raw_prompts_are_read_as_given(tiny_llama):
    detector = make(tiny_llama)
    prompt = "Notes: it rained.\nQ: Where?\nA:"
    exchanges = [
        Exchange(prompt=prompt, answer="Rome"),
        Exchange(messages=({"role": "user", "content": QUESTIONS[0]},), answer="Rome"),
    ]
    raw, shots_by_name = detector.score_answers(tiny_llama, exchanges)
    ids = tiny_llama.tokenizer(prompt + " Rome")["input_ids"]
    state = plain_states(tiny_llama, [ids])[0, LAYER - 1].double().numpy()
    want = 0.1 * state @ detector.method.coef_[0].astype(float) + 0.2
    assert raw.probability == pytest.approx(1 / (1 + math.exp(-want)), abs=2e-3)
    alone = detector.score(tiny_llama, QUESTIONS[0], answer="Rome")
    assert shots_by_name.probability == pytest.approx(alone.probability, abs=2e-4)
    long = Exchange(prompt="y " * 600, answer="Rome")
    (unread,) = detector.score_answers(tiny_llama, [long])
    assert unread.outcome == "cannot say" and "512" in unread.reason


def test_a_question_cannot_bring_a_worked_example(tiny_llama):
    bound = make(tiny_llama).bind(tiny_llama)
    prompt = bound.prompt("Who?\nA: Me\n\nQ: Where?")
    text = tiny_llama.tokenizer.decode(prompt.ids)
    assert text.count("\nQ:") + text.startswith("Q:") == len(SHOTS) + 1
    assert text.count("\nA:") == len(SHOTS) + 1


def test_another_model_dtype_or_tokenizer_is_an_error(tiny_llama):
    detector = make(tiny_llama)
    with pytest.raises(UserError, match="Load it once: load_model"):
        detector.score("org/name", "Who?")
    other = load_model(tiny_lm("llama", seed=1), tokenizer=tiny_tokenizer())
    with pytest.raises(UserError, match=r"made for tiny in float32 .*weights .*; this model is "):
        detector.score(other, "Who?")
    half = load_model(tiny_lm("llama").to(torch.bfloat16), tokenizer=tiny_tokenizer())
    with pytest.raises(UserError, match=r"tiny in float32 .* this model is .* in bfloat16"):
        detector.score(half, "Who?")
    small = load_model(tiny_lm("llama"), tokenizer=tiny_tokenizer())
    del small.lm.model.layers[3]
    small.lm.config.num_hidden_layers = 3
    with pytest.raises(UserError, match="4 blocks of width 48"):
        detector.score(load_model(small.lm, tokenizer=small.tokenizer), "Who?")
    tokenizer = tiny_tokenizer().__class__(
        tokenizer_object=upper_cased(tiny_tokenizer()), eos_token="<end>"
    )
    with pytest.raises(UserError, match="does not give the tokens"):
        detector.score(load_model(tiny_llama.lm, tokenizer=tokenizer), "Who?")


def upper_cased(tokenizer):
    """The same vocabulary with another habit: everything in lower case first."""
    from tokenizers import Tokenizer, normalizers

    made = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    made.normalizer = normalizers.Lowercase()
    return made


def with_beliefs(model) -> Detector:
    """A detector whose beliefs are made up too: the layer's own number as the logit's intercept."""
    rng = np.random.default_rng(2)
    coef = rng.standard_normal((model.blocks, WIDTH)).astype(np.float32)
    gate = rng.standard_normal(WIDTH).astype(np.float32)
    beliefs = Beliefs(coef=coef, intercept=np.arange(4.0), gate=gate, gate_layer=2)
    return replace(make(model), beliefs=beliefs)


def check_beliefs(model, detector, one, answer_ids) -> None:
    """Belief and pathway of a scored answer against a plain pass over prompt and answer."""
    answer = unread_answer("0", one.answer, answer_ids)
    span = answer_span(answer.text, question=one.question)
    last = tokens_of([span], answer_offsets(model, answer))[-1]
    prompt = make_prompt(model, one.question, shots=SHOTS, style="text").ids
    states = plain_states(model, [[*prompt, *answer_ids[: last + 1]]])[0].double().numpy()
    want = expit((states * detector.beliefs.coef).sum(axis=1) + np.arange(4.0))
    assert list(one.belief) == pytest.approx(want.tolist(), abs=5e-3)
    q = expit(states[1] @ detector.beliefs.gate)
    assert one.predicted_pathway == ("Q" if q > 0.5 else "A")
    assert one.predicted_pathway_probability == pytest.approx(max(q, 1 - q), abs=5e-3)


def test_belief_and_pathway_are_those_of_a_plain_pass(tiny_llama):
    detector = with_beliefs(tiny_llama)
    answers = ["William Shakespeare", "India", "Blue", "Me"]
    for one in detector.score(tiny_llama, QUESTIONS, answer=answers):
        check_beliefs(
            tiny_llama, detector, one, tiny_llama.tokenizer(f" {one.answer}")["input_ids"]
        )
