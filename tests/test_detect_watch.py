"""Watching somebody else's `generate`, however it feeds the model, against a plain pass."""

from __future__ import annotations

import pytest
import torch
from kit.tiny import tiny_lm, tiny_tokenizer
from kit.versions import older
from test_detect_beliefs import with_beliefs
from test_detect_score import QUESTIONS, SHOTS, expected, make, written_ids

from anchorscope.errors import UserError
from anchorscope.models import load_model
from anchorscope.models.prompts import make_prompt

# Letters alone: a random model may else write nothing that can be read.
LETTERS = {"suppress_tokens": [n for n in range(300) if not 34 <= n <= 91]}
GREEDY = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 8, **LETTERS}
# However the tokens go in, the same tokens come out, and their states are the same.
WAYS = {
    "prompt lookup": {"prompt_lookup_num_tokens": 6},
    "chunked prefill": {"prefill_chunk_size": 16},
    "no cache": {"use_cache": False},
    "a dictionary": {"return_dict_in_generate": True},
    "plain": {},
}
if older("transformers", "5.21"):  # the two that earlier releases cannot do with every cache
    del WAYS["prompt lookup"], WAYS["chunked prefill"]


def check(model, detector, scored, out, prompts) -> None:
    """Every scored answer against a plain pass over its prompt and answer."""
    width, read = max(map(len, prompts)), 0
    for row, one in enumerate(scored):
        if one.why:
            continue
        ids = written_ids(model, out[row, width:])
        want = expected(model, detector, one.question, ids, one.answer)
        assert one.probability == pytest.approx(want, abs=2e-3)
        read += 1
    assert read


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("architecture", ["llama", "gpt_neox", "gemma2"])
def test_how_the_tokens_are_fed_does_not_matter(architecture, way):
    model = load_model(tiny_lm(architecture), tokenizer=tiny_tokenizer())
    detector = make(model)
    # Candidates are looked up in the prompt: an answer that repeats it has many accepted.
    for question in ("Who who who who?", QUESTIONS[1]):
        inputs = detector.inputs(model, question)
        with detector.watch(model) as seen:
            out = model.lm.generate(**inputs, **GREEDY, **WAYS[way])
        ids = getattr(out, "sequences", out)
        check(model, detector, seen.scores(out, [question]), ids, inputs["input_ids"])


def test_accepted_and_refused_candidates_leave_the_states_of_the_answer(tiny_llama):
    """Five candidates a pass, of which the last two are wrong and taken back again."""
    detector, question = with_beliefs(tiny_llama), QUESTIONS[0]
    inputs = detector.inputs(tiny_llama, question)
    options = GREEDY | {"max_new_tokens": 18, "eos_token_id": None}
    straight = detector.watch(tiny_llama)
    with straight:
        whole = tiny_llama.lm.generate(**inputs, **options)
    width = inputs["input_ids"].shape[1]
    with detector.watch(tiny_llama) as seen:
        cache = None
        for start in (0, *range(width + 3, whole.shape[1], 3)):
            fed = whole[:, start : max(width, start) + 5].clone()
            fed[:, -2:] += 1
            mask = torch.ones(1, start + fed.shape[1], dtype=torch.long)
            cache = tiny_llama.lm(fed, attention_mask=mask, past_key_values=cache).past_key_values
            cache.crop(-2)
    (one,), (want,) = (w.scores(whole[:, :-1], [question]) for w in (seen, straight))
    assert not one.why
    assert one.probability == pytest.approx(want.probability, abs=2e-4)
    assert one.belief == pytest.approx(want.belief, abs=2e-4)


def test_only_the_last_generate_of_a_block_is_scored_and_others_are_refused(tiny_llama):
    detector = make(tiny_llama)
    inputs = [detector.inputs(tiny_llama, q) for q in QUESTIONS[:2]]
    with detector.watch(tiny_llama) as seen:
        first, second = (tiny_llama.lm.generate(**i, **GREEDY) for i in inputs)
    check(tiny_llama, detector, seen.scores(second, [QUESTIONS[1]]), second, inputs[1]["input_ids"])
    with pytest.raises(UserError, match="are not what the last passes in the `with` block wrote"):
        seen.scores(first, [QUESTIONS[0]])
    with detector.watch(tiny_llama) as seen:
        for question, inputs_, out in zip(QUESTIONS[:2], inputs, (first, second), strict=True):
            tiny_llama.lm.generate(**inputs_, **GREEDY)
            check(tiny_llama, detector, seen.scores(out, [question]), out, inputs_["input_ids"])


def test_the_detectors_prompt_is_that_of_the_run_padded_and_masked(tiny_llama):
    inputs = make(tiny_llama).inputs(tiny_llama, QUESTIONS)
    wanted = [make_prompt(tiny_llama, q, shots=SHOTS, style="text").ids for q in QUESTIONS]
    for ids, mask, want in zip(inputs["input_ids"], inputs["attention_mask"], wanted, strict=True):
        assert tuple(ids[mask == 1].tolist()) == want
        assert mask.tolist() == sorted(mask.tolist())  # the padding stands on the left


def test_another_prompt_is_refused_unless_its_length_is_said(tiny_llama):
    detector = make(tiny_llama)
    ids = torch.tensor([tiny_llama.tokenizer("Tell me: who wrote it?\nAnswer:")["input_ids"]])
    mask = torch.ones_like(ids)
    with detector.watch(tiny_llama) as seen:
        out = tiny_llama.lm.generate(input_ids=ids, attention_mask=mask, **GREEDY)
    with pytest.raises(UserError, match="Row 0 does not begin with the detector's prompt"):
        seen.scores(out, QUESTIONS[:1])
    (one,) = seen.scores(out, QUESTIONS[:1], prompt_tokens=ids.shape[1])
    answer = tiny_llama.tokenizer.decode(written_ids(tiny_llama, out[0, ids.shape[1] :]))
    assert one.answer == answer.strip()
    with pytest.raises(UserError, match="prompt_tokens is 0; accepted: 1 to"):
        seen.scores(out, QUESTIONS[:1], prompt_tokens=0)


def test_beams_unmasked_padding_and_wrong_counts_are_refused(tiny_llama):
    detector = make(tiny_llama)
    inputs = detector.inputs(tiny_llama, QUESTIONS[:2])
    with detector.watch(tiny_llama) as seen:
        out = tiny_llama.lm.generate(**inputs, **GREEDY, num_beams=2)
    with pytest.raises(UserError, match="the passes seen had 4 rows"):
        seen.scores(out, QUESTIONS[:2])
    with pytest.raises(UserError, match="2 sequences and 1 questions"):
        seen.scores(out, QUESTIONS[0])
    with detector.watch(tiny_llama) as seen:
        everything = torch.ones_like(inputs["input_ids"])
        out = tiny_llama.lm.generate(inputs["input_ids"], attention_mask=everything, **GREEDY)
    with pytest.raises(UserError, match="in front of row 0 were not masked"):
        seen.scores(out, QUESTIONS[:2])


def test_a_cache_that_was_filled_before_is_refused(tiny_llama):
    detector = make(tiny_llama)
    inputs = detector.inputs(tiny_llama, QUESTIONS[0])
    cache = tiny_llama.lm(inputs["input_ids"][:, :20], use_cache=True).past_key_values
    with detector.watch(tiny_llama) as seen:
        out = tiny_llama.lm.generate(**inputs, **GREEDY, past_key_values=cache)
    with pytest.raises(UserError, match="begin it from an empty cache"):
        seen.scores(out, QUESTIONS[:1])


def test_states_that_were_not_kept_are_fed_again(tiny_llama, monkeypatch):
    detector = make(tiny_llama)
    inputs = detector.inputs(tiny_llama, QUESTIONS[0])
    with detector.watch(tiny_llama) as seen:
        out = tiny_llama.lm.generate(**inputs, **GREEDY)
        want = seen.scores(out, QUESTIONS[:1])
        # All in one pass, of which only the last tokens are kept.
        monkeypatch.setattr("anchorscope.detect.watching.recorder.KEPT", 1)
        tiny_llama.lm(out)
    (one,) = seen.scores(out, QUESTIONS[:1])
    assert one.probability == pytest.approx(want[0].probability, abs=2e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_detector_that_reads_token_probabilities_can_watch(architecture, way):
    """The lowest log-probability of the answer, against a plain pass over prompt and answer."""
    model = load_model(tiny_lm(architecture), tokenizer=tiny_tokenizer())
    detector, read = make(model, "min-log-prob"), 0
    one_by_one = [[q] for q in ("Who who who who?", QUESTIONS[1])]
    for questions in one_by_one if way == "prompt lookup" else [*one_by_one, QUESTIONS]:
        inputs = detector.inputs(model, questions)
        with detector.watch(model) as seen:
            out = model.lm.generate(**inputs, **GREEDY, **WAYS[way])
        ids, width = getattr(out, "sequences", out), inputs["input_ids"].shape[1]
        for row, one in enumerate(seen.scores(out, questions)):
            if one.why:
                continue
            prompt = inputs["input_ids"][row][inputs["attention_mask"][row] == 1]
            answer = torch.tensor(written_ids(model, ids[row, width:]))
            with torch.no_grad():
                logits = model.lm(torch.cat([prompt, answer])[None]).logits
            logits = logits[0, len(prompt) - 1 : -1]
            own = torch.log_softmax(logits.float(), dim=-1).gather(1, answer[:, None])
            assert one.score == pytest.approx(-float(own.min()), abs=2e-4)
            read += 1
    assert read
