"""The server in a thread: pieces of streams, a full queue, failures, deadlines, the end."""

from __future__ import annotations

import math
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import httpx2
import openai
import pytest
import torch
from kit.plain import plain_states
from kit.serve_fixture import Gated
from kit.web_server import server_here
from test_detect_score import LAYER, QUESTIONS, SHOTS, make

from anchorscope.detect.prompts import Example, Exchange
from anchorscope.errors import UserError
from anchorscope.models.prompts import make_prompt, stop_ids
from anchorscope.records import Shot
from anchorscope.serve.protocol import Ask
from anchorscope.serve.served import Piece, Served


def generated(model, question) -> list[int]:
    """The answer's tokens by transformers' own greedy decoding."""
    prompt = make_prompt(model, question, shots=SHOTS, style="text").ids
    out = model.lm.generate(
        input_ids=torch.tensor([prompt]), max_new_tokens=8, do_sample=False, pad_token_id=0,
        eos_token_id=stop_ids(model),
    )[0, len(prompt) :].tolist()  # fmt: skip
    return out[:-1] if out[-1] in stop_ids(model) else out


def asked(text: str, **options) -> Ask:
    return Ask(exchange=Exchange(answer="", question=text), **options)


def test_each_stream_of_a_batch_hears_its_tokens_with_the_score_of_an_answer_that_ends_there(
    tiny_llama,
):
    detector = make(tiny_llama)
    served = Served(detector, tiny_llama)
    texts = [*QUESTIONS, *(f"Where is Cairo {n}?" for n in range(8))]
    heard: list[list[Piece]] = [[] for _ in texts]
    written = served.answer([asked(text) for text in texts], [pieces.append for pieces in heard])
    lengths = set()
    for text, pieces, one in zip(texts, heard, written, strict=True):
        ids = generated(tiny_llama, text)
        assert len(pieces) == len(one.tokens) == len(ids)
        assert "".join(piece.text for piece in pieces) + one.rest == one.scored.answer
        lengths.add(len(ids))
        prompt = make_prompt(tiny_llama, text, shots=SHOTS, style="text").ids
        for n, piece in enumerate(pieces):
            state = plain_states(tiny_llama, [[*prompt, *ids[: n + 1]]])[0, LAYER - 1]
            logit = state.double().numpy() @ detector.method.coef_[0].astype(float)
            want = 1 / (1 + math.exp(-(0.1 * float(logit) + 0.2)))
            assert piece.running["probability"] == pytest.approx(want, abs=2e-3)  # float16
            assert piece.running["flagged"] == (piece.running["probability"] > 0.5)
    assert len(lengths) > 1  # some ended before the limit: those have a stop token unheard


def test_questions_are_asked_as_in_the_dataset_that_was_named(tiny_llama):
    other = (Shot(question="What is the metal with the symbol Fe?", answer="Iron"),)
    examples = [
        Example(
            question=question,
            prompt_ids=make_prompt(tiny_llama, question, shots=shots, style="text").ids,
            dataset=dataset,
        )
        for dataset, shots in (("first", SHOTS), ("second", other))
        for question in QUESTIONS
    ]
    of_two = replace(make(tiny_llama), examples=tuple(examples))
    with pytest.raises(UserError, match="asked in 2 ways"):
        Served(of_two, tiny_llama)
    (one,) = Served(of_two, tiny_llama, "second").answer([asked(QUESTIONS[0])])
    prompt = make_prompt(tiny_llama, QUESTIONS[0], shots=other, style="text").ids
    assert one.prompt_tokens == len(prompt)
    want = of_two.score(tiny_llama, QUESTIONS[0], dataset="second")
    assert one.scored.answer == want.answer
    assert one.scored.probability == pytest.approx(want.probability, abs=2e-4)


def test_a_detector_of_given_answers_lets_the_model_end_its_turn(tiny_llama):
    detector, text = replace(make(tiny_llama), examples=()), "Where is Cairo?"
    served = Served(detector, tiny_llama, max_tokens=60)
    served.warm()
    ask = Ask(exchange=Exchange(answer="", prompt=text))
    whole, drawn = served.answer([ask, replace(ask, temperature=1.0, seed=1)])
    prompt = tiny_llama.tokenizer(text, return_tensors="pt")["input_ids"]
    ends = stop_ids(tiny_llama, lines=False)
    assert set(ends) < set(stop_ids(tiny_llama))
    ids = tiny_llama.lm.generate(
        prompt, max_new_tokens=60, do_sample=False, pad_token_id=0, eos_token_id=ends
    )[0, prompt.shape[1] :]
    assert whole.scored.answer == tiny_llama.tokenizer.decode(ids, skip_special_tokens=True).strip()
    ended = int(ids[-1]) in ends
    assert whole.finish == ("stop" if ended else "length")
    assert len(whole.tokens) == len(ids) - ended
    given = [Exchange(prompt=text, answer=one.scored.answer) for one in (whole, drawn)]
    want = detector.score_answers(tiny_llama, given)
    assert [s.text for s in whole.scored.spans] == [s.text for s in want[0].spans]
    assert drawn.scored.probability == pytest.approx(want[1].probability, abs=2e-4)


def post(address: str, question: str, **more) -> httpx2.Response:
    body = {"model": "LlamaForCausalLM", "messages": [{"role": "user", "content": question}]}
    return httpx2.post(f"{address}/v1/chat/completions", json=body | more, timeout=60)


@pytest.fixture
def busy(request, tiny_llama):
    """A server that is answering a first question until its gate is opened."""
    served = Gated(make(tiny_llama), tiny_llama)
    limits = getattr(request, "param", {})
    with server_here(served, **limits) as (server, address), ThreadPoolExecutor(4) as pool:
        first = pool.submit(post, address, QUESTIONS[0])
        assert served.reached.wait(60)  # it has left the queue

        def until_metrics_have(text: str) -> None:
            while text not in httpx2.get(f"{address}/metrics").text:
                assert not first.done()

        yield served, server, address, pool, first, until_metrics_have
        served.gate.set()


@pytest.mark.parametrize("busy", [{"queue": 2, "batch": 2}], indirect=True)
def test_a_full_queue_refuses_and_those_inside_are_answered(busy):
    served, _, address, pool, first, until_metrics_have = busy
    others = [pool.submit(post, address, q, stream=bool(n)) for n, q in enumerate(QUESTIONS[1:3])]
    until_metrics_have("anchorscope_queue_length 2.0")
    refused = post(address, QUESTIONS[3])
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "overloaded"
    assert httpx2.get(f"{address}/healthz").status_code == 200
    served.gate.set()
    assert [one.result().status_code for one in (first, *others)] == [200] * 3
    assert post(address, QUESTIONS[3]).status_code == 200
    assert 'status="503"} 1.0' in httpx2.get(f"{address}/metrics").text


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_question_whose_client_left_is_not_asked(busy, stream):
    served, _, address, _, first, until_metrics_have = busy
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as leaving:
        body = f'{{"model": "LlamaForCausalLM", "stream": {stream}, "messages": '
        body += f'[{{"role": "user", "content": "{QUESTIONS[1]}"}}]}}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        leaving.sendall((head + body).encode())
        until_metrics_have("anchorscope_queue_length 1.0")
    until_metrics_have('status="499"} 1.0')
    served.gate.set()
    assert first.result().status_code == post(address, QUESTIONS[2]).status_code == 200
    assert served.asked == [QUESTIONS[0], QUESTIONS[2]]


def test_new_work_is_refused_while_the_server_drains(busy):
    served, server, address, _, first, _ = busy
    assert httpx2.get(f"{address}/readyz").status_code == 200
    server.handle_exit(signal.SIGTERM, None)
    ready, refused = httpx2.get(f"{address}/readyz"), post(address, QUESTIONS[1])
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.headers["connection"] == "close"
    assert httpx2.get(f"{address}/healthz").status_code == 200
    served.gate.set()
    assert first.result().status_code == 200
    assert served.asked == [QUESTIONS[0]]


def test_a_second_signal_ends_the_wait_and_says_so(busy):
    served, server, _, _, first, _ = busy
    server.handle_exit(signal.SIGTERM, None)
    server.handle_exit(signal.SIGTERM, None)
    cut = first.result()
    assert (cut.status_code, cut.headers["retry-after"]) == (503, "1")
    assert "stopped before the answer" in cut.json()["error"]["message"]
    served.gate.set()
    # A thread inside torch would abort the process at its end.
    end = time.monotonic() + 30
    while "anchorscope-worker" in [thread.name for thread in threading.enumerate()]:
        assert time.monotonic() < end


def test_half_sent_requests_are_closed(tiny_llama):
    with server_here(Served(make(tiny_llama), tiny_llama), request_seconds=1) as (_, address):
        host, port = address.removeprefix("http://").split(":")
        start = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        half_a_body = f"{start}Content-Length: 100\r\n\r\n{{"
        chunk = f"{start}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"
        whole = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
        halves = ["", "P", start, half_a_body, chunk, whole + "G", whole + half_a_body]
        opened = [socket.create_connection((host, int(port)), timeout=60) for _ in halves * 10]
        for one, half in zip(opened, halves * 10, strict=True):
            one.sendall(half.encode())
        for one, half in zip(opened, halves * 10, strict=True):
            with one, one.makefile("rb") as replies:
                got = replies.read()  # to the end: the server closes
                assert got.count(b"HTTP/1.1 408") == (half != "")
                assert got.count(b"HTTP/1.1 200") == (whole in half)
        with socket.create_connection((host, int(port)), timeout=0.2) as dripping:
            dripping.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
            got = None
            while got is None:
                dripping.sendall(b"a")
                with suppress(TimeoutError):
                    got = dripping.recv(100)
            assert got.startswith(b"HTTP/1.1 408")
        assert post(address, QUESTIONS[0]).status_code == 200


class Fragile(Served):
    """A model that cannot answer one question, and fails on another, when words are out already."""

    def answer(self, asks, sends=None):
        for ask, send in zip(asks, sends or [None] * len(asks), strict=True):
            if ask.exchange.asked == QUESTIONS[0]:
                raise UserError("Its state overflows in this dtype. Use float32.")
            if ask.exchange.asked == QUESTIONS[1]:
                if send:
                    send(Piece(0, "half", {}))
                raise KeyError("a fault of ours, with /secret/paths in it")
        return super().answer(asks, sends)


def test_a_failure_is_of_its_own_request(tiny_llama):
    served = Fragile(make(tiny_llama), tiny_llama)
    with server_here(served) as (_, address), ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda q: post(address, q), QUESTIONS))
        assert [one.status_code for one in got] == [500, 500, 200, 200]
        assert "Use float32" in got[0].json()["error"]["message"]
        assert "Its log says why" in got[1].json()["error"]["message"]
        assert "secret" not in got[1].text
        assert post(address, QUESTIONS[0], stream=True).status_code == 500
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(
            model="LlamaForCausalLM", messages=[{"role": "user", "content": QUESTIONS[1]}],
            stream=True,
        )  # fmt: skip
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "half"]
        with pytest.raises(openai.APIError, match="Its log says why"):
            next(stream)
        assert post(address, QUESTIONS[2]).status_code == 200
