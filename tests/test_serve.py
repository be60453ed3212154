"""A real server process, asked by the real `openai` client, against `Detector.score`."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
from kit.serve_fixture import NAME, make_served, questions, server_process, serving

from anchorscope.detect.deployed.detector import Detector
from anchorscope.models import load_model

QUESTION = "Where is Oslo 0?"
KEY = "a-key-of-more-than-sixteen"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_served(tmp_path_factory.mktemp("serve"), "probe")


@pytest.fixture(scope="module")
def address(folder):
    words = ["probe", "--model", NAME, "--port", 0, "--device", "cpu", "--question-chars", 900]
    with serving(*words, cwd=folder, OMP_NUM_THREADS="1") as where:
        yield where


@pytest.fixture(scope="module")
def client(address) -> openai.OpenAI:
    return openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def offline(folder):
    """The scored answers by `Detector.score` in this process."""
    model = load_model(str(folder / NAME), device="cpu", dtype="float32")
    detector = Detector.load(folder / "probe")
    return lambda texts: detector.score(model, texts)


def ask(client, text=QUESTION, **options):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=NAME, messages=messages, **options)


def test_an_answer_carries_the_score_that_the_detector_gives_offline(client, offline):
    (want,) = offline([QUESTION])
    got = ask(client)
    assert got.choices[0].message.content == want.answer
    assert (got.model, got.object) == (NAME, "chat.completion")
    said = got.anchorscope
    assert said["probability"] == pytest.approx(want.probability, abs=2e-4)
    assert said["belief"] == pytest.approx(list(want.belief), abs=2e-4)
    assert (said["flagged"], said["answer_entity"]) == (want.flagged, want.answer_entity)
    assert said["method"] == "probe"
    assert (said["question"], said["answer"]) == (QUESTION, want.answer)
    assert "own prompt was used" in said["prompt"]
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens
    assert got.usage.prompt_tokens == len(f"Q: {QUESTION}\nA:")  # a token a byte
    assert 1 <= got.usage.completion_tokens <= 8


def test_what_has_no_effect_is_said(client):
    system = {"role": "system", "content": "Answer in Latin."}
    user = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    got = client.chat.completions.create(
        model=NAME, messages=[system, user], temperature=0.7, max_tokens=3
    )
    assert got.anchorscope["ignored"] == ["max_tokens", "system message", "temperature"]
    assert got.choices[0].message.content == ask(client).choices[0].message.content


def test_a_stream_is_the_same_answer_with_a_flag_beside_each_piece(client, offline):
    for text in [q.text for q in questions()[:6]]:
        (want,) = offline([text])
        chunks = list(ask(client, text, stream=True, stream_options={"include_usage": True}))
        *pieces, last, counts = chunks
        assert "".join(c.choices[0].delta.content or "" for c in [*pieces, last]) == want.answer
        assert pieces[0].choices[0].delta.role == "assistant"
        assert len(pieces) > 1
        for piece in pieces[1:]:
            running = piece.anchorscope["running"]
            assert running["by"] == "detector probe"
            threshold = last.anchorscope["threshold"]
            assert running["flagged"] == (running["probability"] > threshold)
        assert last.choices[0].finish_reason in ("stop", "length")
        assert last.anchorscope["probability"] == pytest.approx(want.probability, abs=2e-4)
        assert not counts.choices and counts.usage.prompt_tokens == len(f"Q: {text}\nA:")
        assert len({chunk.id for chunk in chunks}) == 1


def test_the_one_model_is_listed(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="Accepted: tiny"):
        client.models.retrieve("gpt-5")


TWO = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "He."},
       {"role": "user", "content": "Where?"}]  # fmt: skip
ONE = [{"role": "user", "content": "Who?"}]
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
BAD = [
    ({"model": "gpt-5", "messages": ONE}, "Unknown model 'gpt-5'. Accepted: tiny.", "model"),
    ({"messages": TWO}, "The turns were: user, assistant, user.", "messages"),
    ({"messages": []}, "The turns were: none.", "messages"),
    ({"messages": [{"role": "user", "content": "  "}]}, "message is empty", "messages"),
    ({"messages": PICTURE}, "parts of type text", "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "messages.0.role"),
    ({"messages": ONE, "n": 2}, "n is 2. Accepted: 1", "n"),
    ({"messages": ONE, "logprobs": True}, "'logprobs' is not served", "logprobs"),
    ({"messages": ONE, "tools": [{"type": "function", "function": {"name": "f"}}]},
     "'tools' is not served", "tools"),
    ({"messages": ONE, "response_format": {"type": "json_object"}}, "text", "response_format"),
    ({"messages": [{"role": "user", "content": "a" * 901}]}, "901 characters", "messages"),
    ({"messages": [{"role": "user", "content": "a" * 600}]}, "tiny reads 512", "messages"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said", "param"), BAD, ids=[said for _, said, _ in BAD])
@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_is_a_400_in_the_shape_of_openai(client, given, said, param, stream):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": NAME, "stream": stream} | given)
    assert said in error.value.message
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"


SURROGATES = [
    r'{"model": "tiny", "messages": [{"role": "user", "content": "Where is \ud800?"}]}',
    r'{"model": "tiny", "messages": [{"role": "user", "content": [{"text": "a\udfffb"}]}]}',
    r'{"model": "\ud800", "messages": [{"role": "user", "content": "Where?"}]}',
    r'{"model": "tiny", "\ud800": 1, "messages": [{"role": "user", "content": "Where?"}]}',
]


@pytest.mark.parametrize("body", SURROGATES)
def test_lone_surrogate_is_a_400(address, body):
    answer = httpx.post(
        f"{address}/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert "half of a surrogate pair" in answer.json()["error"]["message"]


def test_health_answers_head(address):
    root = address.removesuffix("/v1")
    for path in ("/healthz", "/readyz"):
        assert (httpx.head(f"{root}{path}").status_code, httpx.get(f"{root}{path}").json()) == (
            200,
            {"status": "ok"},
        )


def test_forty_at_once_get_what_each_gets_alone(client, address, offline):
    texts = [f"Where is Cairo {n}?" for n in range(40)]

    def answer(number: int) -> tuple[str, float]:
        if number % 4:
            got = ask(client, texts[number])
            return got.choices[0].message.content, got.anchorscope["probability"]
        chunks = list(ask(client, texts[number], stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        return text, chunks[-1].anchorscope["probability"]

    before = counts(address)
    with ThreadPoolExecutor(40) as pool:
        got = list(pool.map(answer, range(40)))
    for (text, probability), want in zip(got, offline(texts), strict=True):
        assert text == want.answer
        # Batches of other sizes: their products round otherwise, on some processors by 2e-5.
        assert probability == pytest.approx(want.probability, abs=2e-4)
    after = counts(address)
    flagged = sum(one.flagged for one in offline(texts))
    name = "anchorscope_flagged_total"
    assert after[name] - before[name] == flagged
    assert after["anchorscope_queue_length"] == 0
    for name in (*ONCE_EACH, CHAT):
        assert after[name] - before.get(name, 0) == 40


ONCE_EACH = (
    "anchorscope_answers_total",
    "anchorscope_request_seconds_count",
    "anchorscope_batch_size_sum",
)
CHAT = 'anchorscope_requests_total{path="/v1/chat/completions",status="200"}'


def counts(address: str) -> dict[str, float]:
    """The numbers of /metrics by name and labels."""
    text = httpx.get(address.removesuffix("/v1") + "/metrics").text
    lines = re.findall(r"^(anchorscope\S+(?: \S+)*?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_a_request_that_is_too_large_is_a_413(client, address):
    with pytest.raises(openai.APIStatusError) as error:
        ask(client, "a" * 70_000)
    assert error.value.status_code == 413
    assert error.value.body["code"] == "request_too_large"
    streamed = httpx.post(f"{address}/chat/completions", content=iter([b"a" * 40_000] * 2))
    assert streamed.status_code == 413


def test_pages_of_other_sites_are_refused(address):
    url = f"{address}/models"
    assert httpx.get(url).status_code == 200
    assert httpx.get(url, headers={"origin": "http://evil.example"}).status_code == 403
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 421
    missing = httpx.get(f"{address}/nothing")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "not_found"
    broken = httpx.post(f"{address}/chat/completions", json="{")
    assert broken.status_code == 400 and broken.json()["error"]["message"]


def test_another_address_is_served_to_those_who_have_the_key(folder):
    words = ["probe", "--model", NAME, "--port", 0, "--device", "cpu", "--listen", "127.0.0.2"]
    with serving(*words, cwd=folder, ANCHORSCOPE_API_KEY=KEY, OMP_NUM_THREADS="1") as where:
        assert where.startswith("http://127.0.0.2:")
        for key in ("wrong", f"{KEY}x", KEY[:-1]):
            with pytest.raises(openai.AuthenticationError, match="No API key, or a wrong one"):
                ask(openai.OpenAI(base_url=where, api_key=key, max_retries=0))
        got = ask(openai.OpenAI(base_url=where, api_key=KEY, max_retries=0))
        assert 0 < got.anchorscope["probability"] < 1
        root = where.removesuffix("/v1")
        assert httpx.get(f"{root}/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{root}/metrics").status_code == 401


def test_requests_under_way_are_answered_after_sigterm(folder):
    """One question a call, so that most of the forty wait when the signal comes."""
    words = ["probe", "--model", NAME, "--port", 0, "--device", "cpu", "--batch", 1]
    long = " ".join(["Where is Cairo?"] * 24)
    with (
        server_process(*words, "--drain", 300, cwd=folder, OMP_NUM_THREADS="1") as (process, where),
        ThreadPoolExecutor(40) as pool,
        openai.OpenAI(base_url=where, api_key="none", max_retries=0, timeout=300) as client,
    ):
        asked = [pool.submit(ask, client, f"{long} {n}?") for n in range(40)]
        while (now := counts(where)).get(CHAT, 0) + now["anchorscope_queue_length"] < 39:
            pass  # one more is at the model
        assert now["anchorscope_queue_length"] > 0
        process.send_signal(signal.SIGTERM)
        assert [one.result().choices[0].finish_reason in ("stop", "length") for one in asked] == (
            [True] * 40
        )
        assert process.wait(timeout=60) == 0


REFUSED = [
    (["--listen", "0.0.0.0"], "--listen 0.0.0.0 lets others in. Set an API key of 16"),
    (["--listen", "::1"], "--listen ::1 lets others in"),
    (["--listen", "0.0.0.0", "--api-key", "short"], "The API key has 5 characters."),
    (["--queue", "0"], "--queue is 0. Accepted: 1 or more."),
    (["--drain", "-1"], "--drain is -1.0. Accepted: 0 or more seconds."),
    (["--request-seconds", "0"], "--request-seconds is 0.0. Accepted: more than 0."),
    ([], "No detector could be read from"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_served_does_not_start(cli, tmp_path, words, said):
    code, _, error = cli("detect", "serve", tmp_path / "none", "--port", 0, *words)
    assert code == 2
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("words", [[], ["--as", "rivers"]])
def test_dataset_of_the_prompt_is_checked_before_the_model_is_loaded(cli, folder, tmp_path, words):
    detector = Detector.load(folder / "probe")
    examples = (*detector.examples, replace(detector.examples[0], dataset="other"))
    replace(detector, examples=examples).save(tmp_path / "two")
    code, _, error = cli("detect", "serve", tmp_path / "two", "--model", "no/model", *words)
    assert code == 2
    assert "made, other" in error and "no/model" not in error
    assert "rivers" in error if words else "--as made" in error


def test_ctrl_c_is_how_it_ends(cli, folder, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", interrupted)
    monkeypatch.chdir(folder)
    code, out, error = cli("detect", "serve", "probe", "--model", NAME, "--port", "0")
    assert code == 0, error
    assert "http://" in out
    assert "Stopped" not in error


def test_a_missing_extra_is_named(cli, monkeypatch):
    monkeypatch.setattr("anchorscope.cli.detect_serve.find_spec", lambda name: None)
    code, _, error = cli("detect", "serve", "detector")
    assert code == 2 and "pip install 'anchorscope[serve]'" in error
