"""Scores of fresh answers, against states from a plain forward pass."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from kit.plain import plain_states
from kit.tiny import tiny_lm, tiny_tokenizer

from anchorscope.answers.generate import answer_offsets
from anchorscope.detect.deployed.bind import Example
from anchorscope.detect.deployed.detector import Detector
from anchorscope.detect.deployed.located import unknown_answer
from anchorscope.detect.deployed.pre_answer import PreAnswerProbe
from anchorscope.detect.kinds import METHODS
from anchorscope.detect.method import Platt
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


def make(model, name="probe", tensors=None, **about) -> Detector:
    """A detector with random weights for this model: the scores are what is tested."""
    rng = np.random.default_rng(0)
    arrays = {"coef": rng.standard_normal(WIDTH).astype(np.float32), "intercept": np.zeros(1)}
    method = METHODS[name]().restore(tensors or arrays, {"layer": LAYER, "C": 1.0} | about)
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


def expected(model, detector, question, answer_ids, text) -> float:
    """The probability by a plain forward pass over prompt and answer."""
    answer = unknown_answer(text, answer_ids, 0)
    span = answer_span(answer.text, question=question)
    last = tokens_of([span], answer_offsets(model, answer))[-1]
    prompt = make_prompt(model, question, shots=SHOTS, style="text").ids
    state = plain_states(model, [[*prompt, *answer_ids[: last + 1]]])[0, LAYER - 1].double().numpy()
    logit = state @ detector.method.coef_.astype(float) + detector.method.intercept_
    return 1 / (1 + math.exp(-(0.1 * logit + 0.2)))


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_neox"])
def test_a_given_answer_is_scored_as_a_plain_pass_reads_it(architecture):
    model = load_model(tiny_lm(architecture), tokenizer=tiny_tokenizer())
    detector = make(model)
    answers = ["William Shakespeare", "India", "The answer is a colour", "me"]
    scored = detector.score(model, QUESTIONS, answer=answers)
    for question, answer, one in zip(QUESTIONS, answers, scored, strict=True):
        ids = model.tokenizer(f" {answer}")["input_ids"]
        want = expected(model, detector, question, ids, answer)
        assert one.probability == pytest.approx(want, abs=2e-3)  # states go through float16
        assert one.flagged == (one.probability > 0.5)
        assert one.answer_entity in one.answer == answer
        assert (one.threshold, one.detector) == (0.5, detector.id)
        assert one.outcome == ("wrong" if one.flagged else "right")  # no band was kept
        assert one.calibrated_on == "0 answers of d"


def test_the_prompt_is_the_one_of_the_run(tiny_llama):
    bound = make(tiny_llama).bind(tiny_llama)
    for question in QUESTIONS:
        want = make_prompt(tiny_llama, question, shots=SHOTS, style="text")
        assert bound.prompt(question).ids == want.ids
        assert bound.prompt(question) == want
        assert bound.prompt(question).ids[: len(bound.shared)] == bound.shared


def test_a_detector_of_two_datasets_asks_which_prompt(tiny_llama):
    """Each dataset's worked examples are kept; the score is that of the prompt that was named."""
    one = make(tiny_llama)
    other_shots = (Shot(question="What colour is grass?", answer="green"),)
    asked = {"first": SHOTS, "second": other_shots}
    examples = [
        Example(
            question=example.question,
            prompt_ids=make_prompt(tiny_llama, example.question, shots=shots, style="text").ids,
            dataset=name,
        )
        for name, shots in asked.items()
        for example in one.examples
    ]
    both = replace(one, examples=tuple(examples))
    for name, shots in asked.items():
        want = make_prompt(tiny_llama, QUESTIONS[0], shots=shots, style="text")
        assert both.bind(tiny_llama, dataset=name).prompt(QUESTIONS[0]) == want
    want = one.score(tiny_llama, QUESTIONS[0], answer="Rome").probability
    first, second = (
        both.score(tiny_llama, QUESTIONS[0], answer="Rome", dataset=name).probability
        for name in asked
    )
    assert first == pytest.approx(want, abs=2e-4)
    assert abs(second - want) > 1e-3
    with pytest.raises(UserError, match=r"first, second. Say which of them .* dataset= .* --as"):
        both.score(tiny_llama, QUESTIONS[0])
    with pytest.raises(UserError, match=r"'third'. Accepted: first, second"):
        both.watch(tiny_llama, dataset="third")
    alike = replace(one, examples=(*one.examples, *(replace(e, dataset="b") for e in one.examples)))
    assert alike.score(tiny_llama, QUESTIONS[0], answer="Rome").probability == pytest.approx(want)


def test_own_answers_batches_and_given_answers_agree(tiny_llama):
    detector = make(tiny_llama)
    together = detector.score(tiny_llama, QUESTIONS)
    for question, one in zip(QUESTIONS, together, strict=True):
        alone = detector.score(tiny_llama, question)
        assert alone.answer == one.answer
        if one.why:
            assert math.isnan(alone.probability)
        else:
            assert alone.probability == pytest.approx(one.probability, abs=2e-4)
    assert any(not one.why for one in together)


def test_scoring_leaves_the_model_as_it_was(tiny_llama):
    ids = torch.tensor([[5, 6, 7]])
    before = tiny_llama.lm(ids).logits
    detector = make(tiny_llama)
    detector.score(tiny_llama, QUESTIONS[:1])
    with detector.watch(tiny_llama):
        pass
    assert torch.equal(tiny_llama.lm(ids).logits, before)
    assert not tiny_llama.parts.blocks[LAYER - 1]._forward_hooks


def written_ids(model, ids) -> list[int]:
    """The tokens of a generated answer: up to the end of its line."""
    ends = {0, model.tokenizer("\n")["input_ids"][0]}
    stop = next((n for n, token in enumerate(ids.tolist()) if token in ends), len(ids))
    return ids[:stop].tolist()


def generate(model, prompts, tokens):
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return model.lm.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )


@pytest.mark.parametrize("tokens", [1, 8])
def test_watching_generate_reads_the_states_of_its_answers(tiny_llama, tokens):
    detector = make(tiny_llama)
    prompts = [make_prompt(tiny_llama, q, shots=SHOTS, style="text").ids for q in QUESTIONS]
    with detector.watch(tiny_llama) as seen:
        out = generate(tiny_llama, prompts, tokens)
    scored = seen.scores(out, QUESTIONS)
    width, read = max(map(len, prompts)), 0
    for row, (question, one) in enumerate(zip(QUESTIONS, scored, strict=True)):
        if one.why:
            continue
        ids = written_ids(tiny_llama, out[row, width:])
        want = expected(tiny_llama, detector, question, ids, one.answer)
        assert one.probability == pytest.approx(want, abs=2e-3)
        read += 1
    assert read


def test_watching_refuses_what_it_did_not_see(tiny_llama):
    seen = make(tiny_llama).watch(tiny_llama)
    with seen:
        pass
    with pytest.raises(UserError, match="Call generate inside the `with` block"):
        seen.scores(torch.zeros(1, 5, dtype=torch.long), ["Who?"])


def test_combined_adds_the_lowest_log_probability_to_the_probe(tiny_llama):
    probe, least = make(tiny_llama), make(tiny_llama, "min-log-prob", {})
    tensors = probe.method.tensors() | {"weights": np.array([0.5, 2.0, -1.0])}
    tensors["coef"] = tensors["coef"][None]
    both = make(tiny_llama, "combined", tensors, layers=[LAYER])
    for given in (None, "Rome"):
        ask = {"answer": given} if given else {}
        by = [one.score(tiny_llama, QUESTIONS[1], **ask).score for one in (probe, least, both)]
        assert by[2] == pytest.approx(0.5 * by[0] + 2.0 * by[1] - 1.0, abs=1e-3)


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
        alone = detector.warn(tiny_llama, question)
        assert alone.probability == pytest.approx(one.probability, abs=2e-4)
    with pytest.raises(UserError, match="no warning before the answer"):
        make(tiny_llama).warn(tiny_llama, QUESTIONS[0])


def warning(model) -> Detector:
    """A detector that also warns before the answer."""
    probe = PreAnswerProbe(layer=2, coef=np.ones(WIDTH, np.float32), intercept=0.0, threshold=0.5,
                    calibration=Platt(0.2, -0.1), evaluation={})  # fmt: skip
    return replace(make(model), pre_answer=probe)


@pytest.mark.parametrize("way", ["score", "answer", "warn", "inputs"])
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


@pytest.mark.parametrize("way", ["score", "warn", "inputs"])
@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(tiny_llama, way, question):
    with pytest.raises(UserError, match=r"question .* is empty"):
        getattr(warning(tiny_llama), way)(tiny_llama, question)


def test_an_empty_answer_has_no_probability(tiny_llama):
    one = make(tiny_llama).score(tiny_llama, QUESTIONS[0], answer=" ?! ")
    assert math.isnan(one.probability)
    assert one.why
    assert not one.flagged


def test_an_abstention_is_an_outcome_and_no_probability(tiny_llama):
    detector = make(tiny_llama)
    said = ["I don't know", "I am not sure.", "Paris", " ?! "]
    scored = detector.score(tiny_llama, [QUESTIONS[0]] * 4, answer=said)
    found = [one.outcome for one in scored]
    assert found[:2] == ["abstained", "abstained"]
    assert found[2] in ("right", "wrong")
    assert found[3] == "cannot say"
    for one in scored[:2]:
        assert math.isnan(one.probability) and math.isnan(one.score)
        assert not one.flagged
        assert "declined to answer" in one.why
    alone = detector.score(tiny_llama, QUESTIONS[0], answer="Paris")
    assert scored[2].probability == pytest.approx(alone.probability, abs=2e-4)
    assert not scored[2].why


def test_another_model_dtype_or_tokenizer_is_an_error(tiny_llama):
    detector = make(tiny_llama)
    with pytest.raises(UserError, match="Load it once: load_model"):
        detector.score("org/name", "Who?")
    other = load_model(tiny_lm("llama", seed=1), tokenizer=tiny_tokenizer())
    with pytest.raises(UserError, match=r"weights of .* are not those"):
        detector.score(other, "Who?")
    half = load_model(tiny_lm("llama").to(torch.bfloat16), tokenizer=tiny_tokenizer())
    with pytest.raises(UserError, match="in float32; this one is in bfloat16"):
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
