"""Scores while an answer is being written, against the score of each of its beginnings."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
import torch
from test_detect_score import QUESTIONS, make
from test_detect_watch import GREEDY

import anchorscope as anc
from anchorscope.errors import UserError


def beginnings(model, detector, out, start, question) -> list[float]:
    """The probability of the answer cut after each of its tokens, by a plain watched pass."""
    values = []
    for stop in range(start, out.shape[1]):
        with detector.watch(model) as seen:
            model.lm(out[:, : stop + 1])
        (one,) = seen.scores(out[:, :stop], [question])
        values.append(one.probability)
    return values


def test_the_running_flag_is_the_score_of_what_is_written_so_far(tiny_llama):
    detector, question = make(tiny_llama), QUESTIONS[0]
    inputs = detector.inputs(tiny_llama, question)
    with detector.watch(tiny_llama) as seen:
        flag = anc.StopWhenWrong(seen, [question], stop=False)
        out = tiny_llama.lm.generate(**inputs, **GREEDY, stopping_criteria=[flag])
    start = inputs["input_ids"].shape[1]
    want = beginnings(tiny_llama, detector, out, start, question)
    # Each call knows the tokens fed before it: all chosen but the last.
    assert [row[0] for row in flag.history] == pytest.approx(want, abs=2e-4, nan_ok=True)
    assert np.isfinite(want).sum() > 4
    assert flag.scored[0].probability == pytest.approx(want[-1], abs=2e-4)


def test_writing_ends_above_the_threshold_and_only_there(tiny_llama):
    detector, question = make(tiny_llama), QUESTIONS[0]
    inputs = detector.inputs(tiny_llama, question)
    start = inputs["input_ids"].shape[1]
    with detector.watch(tiny_llama) as seen:
        flag = anc.StopWhenWrong(seen, [question], stop=False)
        whole = tiny_llama.lm.generate(**inputs, **GREEDY, stopping_criteria=[flag])
    told = [row[0] for row in flag.history]
    top = int(np.nanargmax(told))
    for threshold, written in ((np.nextafter(told[top], 0), top + 1), (told[top], len(told))):
        with detector.watch(tiny_llama) as seen:
            flag = anc.StopWhenWrong(seen, [question], threshold=float(threshold))
            out = tiny_llama.lm.generate(**inputs, **GREEDY, stopping_criteria=[flag])
        assert torch.equal(out, whole[:, : start + written])
        assert not seen.scores(out, [question])[0].why
    mild = replace(detector, threshold=0.0)
    with mild.watch(tiny_llama) as seen:  # the detector's own threshold, where none is given
        flag = anc.StopWhenWrong(seen, [question])
        out = tiny_llama.lm.generate(**inputs, **GREEDY, stopping_criteria=[flag])
    assert out.shape[1] == start + 1 + int(np.flatnonzero(np.isfinite(told))[0])
    with pytest.raises(UserError, match="threshold is 2; accepted: a probability"):
        anc.StopWhenWrong(seen, [question], threshold=2)


def test_rows_of_a_batch_have_their_own_flags(tiny_llama):
    detector = make(tiny_llama)
    inputs = detector.inputs(tiny_llama, QUESTIONS[:3])
    with detector.watch(tiny_llama) as seen:
        flag = anc.StopWhenWrong(seen, QUESTIONS[:3], stop=False)
        out = tiny_llama.lm.generate(**inputs, **GREEDY, stopping_criteria=[flag])
        whole = seen.scores(out, QUESTIONS[:3])
    assert all(len(row) == 3 for row in flag.history)
    for row, question in enumerate(QUESTIONS[:3]):
        alone = detector.inputs(tiny_llama, question)
        with detector.watch(tiny_llama) as seen:
            own = anc.StopWhenWrong(seen, [question], stop=False)
            tiny_llama.lm.generate(**alone, **GREEDY, stopping_criteria=[own])
        told = [of[row] for of in flag.history]
        assert told == pytest.approx([of[0] for of in own.history], abs=2e-4, nan_ok=True)
    assert len(whole) == 3


def words_of_three(ids, scores):
    """Logits that allow letters, and at every fourth place nothing but a space."""
    letters = torch.full_like(scores, -torch.inf)
    letters[:, 34:92] = scores[:, 34:92]
    space = torch.full_like(scores, -torch.inf)
    space[:, 221] = 0.0
    return space if ids.shape[1] % 4 == 0 else letters


@pytest.mark.parametrize("way", [{}, {"prompt_lookup_num_tokens": 4}])
def test_the_streamer_gives_text_and_score_and_ends_with_the_whole_answers(tiny_llama, way):
    detector, question = make(tiny_llama), QUESTIONS[0]
    inputs = detector.inputs(tiny_llama, question)
    options = {k: v for k, v in GREEDY.items() if k != "suppress_tokens"}
    options |= {"max_new_tokens": 24, "logits_processor": [words_of_three]}
    with detector.watch(tiny_llama) as seen:
        streamer = anc.ScoreStreamer(seen, question, timeout=60)
        done = {}
        work = Thread(target=lambda: done.update(
            out=tiny_llama.lm.generate(**inputs, **options, **way, streamer=streamer)))  # fmt: skip
        work.start()
        pieces = list(streamer)
        work.join()
        (want,) = seen.scores(done["out"], [question])
    start = inputs["input_ids"].shape[1]
    text = tiny_llama.tokenizer.decode(done["out"][0, start:], skip_special_tokens=True)
    assert "".join(piece.text for piece in pieces) == text
    last = pieces[-1].scored
    assert (last.answer, last.probability) == (want.answer, want.probability) and len(pieces) > 1
    assert all(text.strip().startswith(piece.scored.answer) for piece in pieces)
    assert np.isfinite([piece.scored.probability for piece in pieces[1:]]).all()


def test_a_foreign_prompt_reaches_the_reader_of_the_stream(tiny_llama):
    detector = make(tiny_llama)
    inputs = tiny_llama.tokenizer("Tell me:", return_tensors="pt")
    with detector.watch(tiny_llama) as seen:
        streamer = anc.ScoreStreamer(seen, QUESTIONS[0], timeout=60)
        with pytest.raises(UserError, match="does not begin with the detector's prompt"):
            tiny_llama.lm.generate(**inputs, **GREEDY, streamer=streamer)
        with pytest.raises(UserError, match="does not begin with the detector's prompt"):
            list(streamer)
