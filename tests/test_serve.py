"""The server, asked by the real `openai` client, against the detector offline."""

from __future__ import annotations

import json
import logging
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest
import torch
from kit.serve_fixture import NAME, Gated, make_served, questions
from kit.web_server import send, server_here

import anchorscope as anc
from anchorscope.detect.calibration import Platt
from anchorscope.detect.detector import Detector
from anchorscope.detect.kinds import METHODS
from anchorscope.models import load_model
from anchorscope.serve.metrics import PATHS
from anchorscope.serve.served import Served

QUESTION = "Where is Oslo 0?"
KEY = "a-key-of-more-than-sixteen"
USER = {"role": "user", "content": QUESTION}
TALK = [
    {"role": "developer", "content": "Answer in Latin."},
    {"role": "user", "content": "Where is Oslo?"},
    {"role": "assistant", "content": "In Norway."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "Rome?"}],
    },
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_served(tmp_path_factory.mktemp("serve"), "probe", "combined")


@pytest.fixture(scope="module")
def client(address) -> openai.OpenAI:
    return openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(str(folder / NAME), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def detector(folder) -> Detector:
    return Detector.load(folder / "probe")


@pytest.fixture(scope="module")
def address(model, detector):
    with server_here(Served(detector, model), characters=900) as (_, where):
        yield f"{where}/v1"


def ask(client, text=QUESTION, **options):
    messages = options.pop("messages", [{"role": "user", "content": text}])
    return client.chat.completions.create(model=NAME, messages=messages, **options)


def streamed(chunks) -> tuple[str, list]:
    """The text of a stream, and its chunks."""
    chunks = list(chunks)
    parts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    return "".join(parts), chunks


def test_answer_carries_the_score_that_the_detector_gives_offline(address, model, detector):
    want = detector.score(model, QUESTION)
    body = {"model": NAME, "messages": [USER], "temperature": 0, "top_p": 0.5}
    got = httpx2.post(f"{address}/chat/completions", json=body, headers={"x-request-id": "mine-1"})
    answer = got.json()
    score, (choice,) = answer["anchorscope"], answer["choices"]
    assert choice["message"]["content"] == want.answer
    assert score["probability"] == pytest.approx(want.probability, abs=2e-4)
    assert score["belief"] == pytest.approx(list(want.belief), abs=2e-4)
    assert (score["outcome"], score["flagged"]) == (want.outcome, want.flagged)
    assert (score["detector"], score["method"]) == (detector.id, "probe")
    assert score["ignored"] == ["top_p"]
    # LangChain keeps these two and drops the field.
    assert choice["logprobs"]["anchorscope"] == score
    assert got.headers["x-anchorscope-outcome"] == want.outcome
    assert float(got.headers["x-anchorscope-probability"]) == pytest.approx(
        want.probability, abs=3e-4
    )
    assert got.headers["x-request-id"] == "mine-1"
    assert answer["usage"]["prompt_tokens"] == len(f"Q: {QUESTION}\nA:")  # a token a byte
    assert answer["usage"]["completion_tokens"] <= 8


def test_a_detector_that_draws_answers_draws_them_behind_the_server_too(model, detector):
    method = METHODS["self-check"]().restore({"samples": np.array(3), "temperature": np.array(0.8)})
    method.calibration_ = Platt(2.0, 0.2)
    drawing = replace(detector, name="self-check", method=method)
    with server_here(Served(drawing, model)) as (_, where):
        for answer in (None, "Norway"):
            want = drawing.score(model, QUESTION, answer=answer)
            path, more = ("score", {"answer": answer}) if answer else ("chat/completions", {})
            body = {"model": NAME, "messages": [USER]} | more
            got = httpx2.post(f"{where}/v1/{path}", json=body, timeout=120)
            assert got.headers["x-anchorscope-outcome"] == want.outcome
            assert float(got.headers["x-anchorscope-probability"]) == pytest.approx(
                want.probability, abs=1e-3
            )


def test_conversation_goes_through_the_chat_template(client, model, detector):
    text = "[system] Answer in Latin.\n[user] Where is Oslo?\n[assistant] In Norway.\n"
    text += "[user] And Rome?\n[assistant]"
    prompt = model.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    ids = model.lm.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    got = ask(client, messages=TALK, logprobs=True)
    assert got.usage.prompt_tokens == prompt.shape[1]
    content = got.choices[0].logprobs.content
    log_probs = torch.log_softmax(model.lm(ids).logits[0].detach().double(), dim=-1)
    own = ids[0, prompt.shape[1] :][: len(content)]
    want = [float(log_probs[prompt.shape[1] - 1 + n, token]) for n, token in enumerate(own)]
    assert [one.logprob for one in content] == pytest.approx(want, abs=1e-3)
    assert got.choices[0].message.content == model.tokenizer.decode(own).strip()
    turns = tuple({"role": t["role"], "content": t["content"]} for t in TALK[:3])
    turns = ({**turns[0], "role": "system"}, *turns[1:], {"role": "user", "content": "And Rome?"})
    exchange = anc.Exchange(messages=turns, answer=got.choices[0].message.content)
    (offline,) = detector.score_answers(model, [exchange])
    assert got.anchorscope["question"] == "And Rome?"
    assert got.anchorscope["outcome"] == offline.outcome


def test_given_answers_are_scored_in_their_order(address, model, detector):
    answers = ["It is in Norway.", "", "Peru, not Chile"]
    turns = ({"role": "system", "content": "Be brief."}, USER)
    exchanges = [anc.Exchange(question=QUESTION, answer=text) for text in answers]
    exchanges += [anc.Exchange(messages=turns, answer="Peru"), anc.Exchange(prompt="x", answer="y")]
    want = detector.score_answers(model, exchanges)
    given = [{"messages": [USER], "answer": text} for text in answers]
    given += [{"messages": turns, "answer": "Peru"}, {"prompt": "x", "answer": "y"}]
    got = httpx2.post(f"{address}/score", json={"model": NAME, "exchanges": given}, timeout=60)
    assert [one["outcome"] for one in got.json()["data"]] == [one.outcome for one in want]
    assert got.headers["x-anchorscope-outcome"] == ", ".join(one.outcome for one in want)
    for mine, one in zip(got.json()["data"], want, strict=True):
        numbers = np.array([mine["probability"], one.probability], dtype=float)
        assert numbers[0] == pytest.approx(numbers[1], abs=2e-4, nan_ok=True)
        assert [s["text"] for s in mine["spans"]] == [s.text for s in one.spans]
    assert got.json()["data"][1]["outcome"] == "no answer"
    alone = {"model": NAME, "messages": [USER], "answer": answers[0]}
    (one,) = httpx2.post(f"{address}/score", json=alone, timeout=60).json()["data"]
    assert one["probability"] == pytest.approx(want[0].probability, abs=2e-4)


def test_drawn_answers_repeat_with_their_seed(client):
    def texts(seed: int, **more) -> list[str]:
        got = ask(client, n=3, seed=seed, **more)
        assert [choice.index for choice in got.choices] == [0, 1, 2]
        assert all(c.logprobs.anchorscope["answer"] == c.message.content for c in got.choices)
        assert got.usage.prompt_tokens == len(f"Q: {QUESTION}\nA:")
        return [choice.message.content for choice in got.choices]

    first = texts(1)
    assert len(set(first)) == 3 and texts(1) == first != texts(2)
    greedy = ask(client).choices[0].message.content
    assert texts(1, temperature=0) == [greedy] * 3
    text, chunks = streamed(ask(client, seed=1, temperature=1, stream=True))
    assert text == first[0] == chunks[-1].anchorscope["answer"]


def test_stop_and_most_tokens_cut_the_answer_that_is_scored(client, model, detector):
    whole = ask(client, logprobs=True)
    text, tokens = whole.choices[0].message.content, whole.choices[0].logprobs.content
    few = ask(client, max_completion_tokens=3)
    assert few.usage.completion_tokens == 3 and few.choices[0].finish_reason == "length"
    assert text.startswith(few.choices[0].message.content)
    stop = text[len(text) // 2]
    cut = ask(client, stop=[stop, "never"], logprobs=True)
    assert cut.choices[0].message.content == text[: text.index(stop)].strip()
    assert cut.choices[0].finish_reason == "stop"
    assert len(cut.choices[0].logprobs.content) < len(tokens)
    (want,) = detector.score_answers(
        model, [anc.Exchange(question=QUESTION, answer=cut.choices[0].message.content)]
    )
    assert cut.anchorscope["outcome"] == want.outcome
    assert streamed(ask(client, stop=stop, stream=True))[0] == cut.choices[0].message.content


def test_completions_continue_a_raw_text(client):
    prompts = [f"Q: {QUESTION}\nA:", "Once upon"]
    got = client.completions.create(model=NAME, prompt=prompts, n=2, temperature=0, logprobs=0)
    assert got.object == "text_completion" and len(got.choices) == 4
    assert got.choices[0].text == got.choices[1].text == ask(client).choices[0].message.content
    assert got.usage.prompt_tokens == sum(map(len, prompts))
    assert len(got.choices[3].logprobs.tokens) == len(got.choices[3].logprobs.token_logprobs) <= 8
    chunks = list(client.completions.create(model=NAME, prompt=prompts[1], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == got.choices[2].text


def test_streams_are_the_same_answers_with_a_flag_beside_each_piece(client, model, detector):
    for one in questions()[:4]:
        want = detector.score(model, one.text)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        text, chunks = streamed(ask(client, one.text, **options))
        *pieces, last, counts = chunks
        assert text == want.answer
        assert pieces[0].choices[0].delta.role == "assistant" and len(pieces) > 1
        for piece in pieces[1:]:
            running = piece.anchorscope["running"]
            assert running["by"] == "detector probe"
            assert running["flagged"] == (running["probability"] > detector.threshold)
        assert last.choices[0].finish_reason in ("stop", "length")
        assert last.anchorscope["probability"] == pytest.approx(want.probability, abs=2e-4)
        assert last.choices[0].logprobs.anchorscope == last.anchorscope
        assert not counts.choices and counts.usage.prompt_tokens == len(f"Q: {one.text}\nA:")
        assert len({chunk.id for chunk in chunks}) == 1


def test_a_detector_that_reads_token_probabilities_serves_what_it_says_offline(folder, model):
    offline = Detector.load(folder / "combined")
    with server_here(Served(offline, model)) as (_, where):
        client = openai.OpenAI(base_url=f"{where}/v1", api_key="none", max_retries=0)
        got, want = ask(client), offline.score(model, QUESTION)
        assert got.anchorscope["probability"] == pytest.approx(want.probability, abs=2e-4)


def test_the_one_model_is_listed(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="Accepted: tiny"):
        client.models.retrieve("gpt-5")


ONE = [{"role": "user", "content": "Who?"}]
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
TOOL = [{"type": "function", "function": {"name": "f"}}]
BAD = [
    ({"model": "gpt-5"}, "Unknown model 'gpt-5'. Accepted: tiny.", "model"),
    ({"messages": TALK[:3]}, "The turns were: system, user, assistant.", "messages"),
    ({"messages": []}, "The turns were: none.", "messages"),
    ({"messages": [{"role": "user", "content": "  "}]}, "message is empty", "messages"),
    ({"messages": PICTURE}, "parts of type text", "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "messages.0.role"),
    ({"n": 17}, "n: Input should be less than or equal to 16", "n"),
    ({"temperature": -1}, "temperature: Input should be greater", "temperature"),
    ({"logprobs": True, "top_logprobs": 2}, "top_logprobs: Input should be less", "top_logprobs"),
    ({"tools": TOOL}, "'tools' is not served", "tools"),
    ({"response_format": {"type": "json_object"}}, "text", "response_format"),
    ({"messages": [{"role": "user", "content": "a" * 901}]}, "901 characters", "messages"),
    ({"messages": [*ONE, *TALK[2:3], {"role": "user", "content": "a" * 890}]}, "904", "messages"),
    ({"messages": [{"role": "user", "content": "a" * 600}]}, "tiny reads 512", "messages"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "sentence", "param"), BAD, ids=[words for _, words, _ in BAD])
@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_is_a_400_in_the_shape_of_openai(client, given, sentence, param, stream):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": NAME, "messages": ONE, "stream": stream} | given)
    assert sentence in error.value.message
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"


BODIES = [
    ("score", '{"model": "tiny", "answer": "x"}', "either `messages` or `prompt`"),
    ("score", '{"model": "tiny", "messages": [{"role": "user", "content": "x"}]}', "`exchanges`"),
    ("completions", '{"model": "tiny", "prompt": ""}', "The prompt is empty"),
    ("completions", '{"model": "tiny", "prompt": ["a", "b", "c"], "n": 16}', "48 answers at once"),
    ("completions", '{"model": "tiny", "prompt": "a", "echo": true}', "'echo' is not served"),
    ("chat/completions", "{", "JSON decode error"),
    *(
        ("chat/completions", body, "half of a surrogate pair")
        for body in (
            r'{"model": "tiny", "messages": [{"role": "user", "content": "Where is \ud800?"}]}',
            r'{"model": "\ud800", "messages": [{"role": "user", "content": "Where?"}]}',
            r'{"model": "tiny", "\ud800": 1, "messages": [{"role": "user", "content": "W"}]}',
        )
    ),
]


@pytest.mark.parametrize(("path", "body", "sentence"), BODIES)
def test_a_body_that_is_no_request_is_a_400(address, path, body, sentence):
    headers = {"content-type": "application/json"}
    answer = httpx2.post(f"{address}/{path}", content=body, headers=headers)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]


def test_forty_at_once_get_what_each_gets_alone(client, address, model, detector):
    """Questions, streams and given answers, of which the server makes batches."""
    texts = [f"Where is Cairo {n}?" for n in range(40)]
    want = detector.score(model, texts)

    def probability(number: int) -> float:
        if number % 4 == 0:
            text, chunks = streamed(ask(client, texts[number], stream=True))
            assert text == want[number].answer
            return chunks[-1].anchorscope["probability"]
        if number % 4 == 1:
            messages = [{"role": "user", "content": texts[number]}]
            body = {"model": NAME, "messages": messages, "answer": want[number].answer}
            got = httpx2.post(f"{address}/score", json=body, timeout=120).json()["data"]
            return got[0]["spans"] and got[0]["probability"]
        got = ask(client, texts[number])
        assert got.choices[0].message.content == want[number].answer
        return got.anchorscope["probability"]

    before = counts(address)
    with ThreadPoolExecutor(40) as pool:
        got = list(pool.map(probability, range(40)))
    for number, (one, offline) in enumerate(zip(got, want, strict=True)):
        if number % 4 != 1:  # of a given answer every entity is read
            # Batches of other sizes: their products round otherwise, on some processors by 2e-5.
            assert one == pytest.approx(offline.probability, abs=2e-4)
    after = counts(address)
    for name in ONCE_EACH:
        assert after[name] - before.get(name, 0) == 40, name
    answers = [name for name in after if name.startswith("anchorscope_answers_total")]
    assert len(answers) == 4 and sum(after[name] - before[name] for name in answers) == 40
    assert after["anchorscope_queue_length"] == 0
    assert after["anchorscope_batch_size_count"] - before["anchorscope_batch_size_count"] < 40
    info = f'anchorscope_detector_info{{detector="{detector.id}",method="probe"}}'
    assert after[info] == 1


ONCE_EACH = (
    "anchorscope_request_seconds_count",
    "anchorscope_queue_seconds_count",
    "anchorscope_batch_size_sum",
    "anchorscope_probability_count",
    "anchorscope_distance_count",
)


def counts(address: str) -> dict[str, float]:
    """The numbers of /metrics by name and labels."""
    text = httpx2.get(address.removesuffix("/v1") + "/metrics").text
    lines = re.findall(r"^(anchorscope\S+(?: \S+)*?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_another_address_is_served_to_those_who_have_the_key(model, detector):
    with server_here(Served(detector, model), key=KEY, listen="127.0.0.2") as (_, where):
        assert where.startswith("http://127.0.0.2:")
        for key in ("wrong", f"{KEY}x", KEY[:-1]):
            with pytest.raises(openai.AuthenticationError, match="No API key, or a wrong one"):
                ask(openai.OpenAI(base_url=f"{where}/v1", api_key=key, max_retries=0))
        got = ask(openai.OpenAI(base_url=f"{where}/v1", api_key=KEY, max_retries=0))
        assert 0 < got.anchorscope["probability"] < 1
        assert httpx2.get(f"{where}/healthz").json() == {"status": "ok"}
        assert httpx2.get(f"{where}/metrics").status_code == 401


def test_refusals_have_the_shape_of_errors_and_head_has_the_headers_of_get(address):
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "a" * (1 << 16)}]})
    headers = {"content-type": "application/json"}
    got = httpx2.post(f"{address}/chat/completions", content=body, headers=headers)
    assert (got.status_code, got.json()["error"]["code"]) == (413, "request_too_large")
    root = address.removesuffix("/v1")
    evil = httpx2.get(f"{address}/models", headers={"origin": "http://evil.example"})
    assert (evil.status_code, evil.json()["error"]["code"]) == (403, "forbidden")
    missing = httpx2.get(f"{address}/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    for path in ("/healthz", "/readyz", "/v1/models"):
        status, headers, body = send(root, "GET", path, host=root.removeprefix("http://"))
        same = send(root, "HEAD", path, host=root.removeprefix("http://"))
        assert (status, int(headers["content-length"])) == (200, len(body))
        assert (same[0], same[1]["content-length"], same[2]) == (200, str(len(body)), b"")


MANY = 24


def test_nothing_is_lost_at_sigterm_and_every_request_has_a_line(model, detector, caplog):
    """Many clients of four kinds, two answers a call, so that most wait when the signal comes."""

    def request(client, number: int) -> bool:
        text = f"Where is Cairo {number}?"
        if number % 4 == 0:
            return streamed(ask(client, text, stream=True))[1][-1].anchorscope["outcome"] != ""
        if number % 4 == 1:
            return len(ask(client, text, n=2, seed=number).choices) == 2
        if number % 4 == 2:
            body = {"model": NAME, "prompt": text, "answer": "Egypt"}
            return client.post("/score", body=body, cast_to=httpx2.Response).is_success
        return ask(client, text).choices[0].finish_reason in ("stop", "length")

    caplog.set_level(logging.INFO, "anchorscope.requests")
    slow = Gated(detector, model)
    with (
        server_here(slow, batch=2) as (server, where),
        ThreadPoolExecutor(MANY) as pool,
        openai.OpenAI(base_url=f"{where}/v1", api_key="none", max_retries=0) as client,
    ):
        pending = [pool.submit(request, client, number) for number in range(MANY)]
        while counts(where).get("anchorscope_queue_length", 0) < MANY - 2:
            time.sleep(0.02)
        server.handle_exit(signal.SIGTERM, None)
        slow.gate.set()
        assert [one.result() for one in pending] == [True] * MANY
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "anchorscope.requests"]
    served = [line for line in lines if line["method"] == "POST"]
    assert len(served) == len({one["id"] for one in served}) == MANY
    assert all(one["status"] == 200 and one["outcome"] for one in served)
    assert sum("," in one["outcome"] for one in served) == MANY / 4  # two answers each


REFUSED = [
    (["--listen", "0.0.0.0"], "--listen 0.0.0.0 lets others in. Set the environment variable"),
    (["--listen", "::1"], "--listen ::1 lets others in"),
    (["--listen", "0.0.0.0", "--api-key", "short"], "The key or password has 5 characters."),
    (["--queue", "0"], "Invalid value for '--queue'"),
    (["--drain", "-1"], "Invalid value for '--drain'"),
    (["--request-seconds", "0"], "Invalid value for '--request-seconds'"),
    ([], "No detector could be read from"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_what_cannot_be_served_does_not_start(cli, tmp_path, words, sentence):
    code, _, error = cli("detect", "serve", tmp_path / "none", "--port", 0, *words)
    assert code == 2
    assert sentence in error
    assert "Traceback" not in error


@pytest.mark.parametrize("words", [[], ["--as", "rivers"]])
def test_dataset_of_the_prompt_is_checked_before_the_model_is_loaded(
    cli, detector, tmp_path, words
):
    examples = (*detector.examples, replace(detector.examples[0], dataset="other"))
    replace(detector, examples=examples).save(tmp_path / "two")
    code, _, error = cli("detect", "serve", tmp_path / "two", "--model", "no/model", *words)
    assert code == 2
    assert "made, other" in error and "no/model" not in error
    assert "rivers" in error if words else "--as made" in error


def test_the_container_starts_what_is_there_and_nothing_without_a_key(cli, tmp_path):
    root = Path(__file__).parents[1]
    text = (root / "Dockerfile").read_text(encoding="utf-8")
    sources = " ".join(re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)).split()
    assert sources and all((root / name).exists() for name in sources)
    (address,) = re.findall(r"http://127.0.0.1:8000(/\w+)", text)
    assert address in PATHS
    words = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0])
    assert words[:3] == ["anchorscope", "detect", "serve"]
    code, _, error = cli(*words[1:], tmp_path / "none")
    assert code == 2 and "--listen 0.0.0.0 lets others in." in error
