"""Requests and replies of OpenAI's chat completions and completions, and of /v1/score.

A single user's turn gets the detector's own prompt, as the detector was evaluated. A conversation
goes through the model's chat template; a `prompt` of /v1/completions is used as it is.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from anchorscope.detect.prompts import Exchange
from anchorscope.detect.rows import plain
from anchorscope.detect.scored import Scored
from anchorscope.web.server import ApiError

# They change the shape of answers, so to ignore them silently would mislead.
_REFUSED = {
    *("tools", "tool_choice", "functions", "function_call", "audio", "modalities"),
    *("echo", "suffix", "best_of"),
}
_READ = {"user", "store", "metadata"}  # accepted silently: they change no answer


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A prompt to answer, with its options; or, if `given`, an answer to score."""

    exchange: Exchange
    given: bool = False
    first: int = 0  # number of its first answer in the request
    n: int = 1
    temperature: float = 0.0  # 0: greedy
    seed: int | None = None  # of sampling; None: another one each time
    most: int | None = None  # tokens, where fewer than the detector's limit are wanted
    stops: tuple[str, ...] = ()

    @property
    def characters(self) -> int:
        """The length of the prompt, or of the answer if that is longer."""
        one, answer = self.exchange, self.exchange.answer or ""
        return max(len(one.prompt) + sum(len(m["content"]) for m in one.messages), len(answer))


# --- Requests ---


class Message(BaseModel):
    """One message of a conversation; its content is a text, or parts that are texts."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[dict[str, Any]]

    @property
    def turn(self) -> dict[str, str]:
        """The message as a chat template takes it."""
        parts: list[dict[str, Any]] = (
            [{"text": self.content}] if isinstance(self.content, str) else self.content
        )
        if not all(isinstance(part.get("text"), str) for part in parts):
            raise ApiError(400, "Accepted in a message: parts of type text.", param="messages")
        content = "".join(part["text"] for part in parts)
        return {"role": self.role.replace("developer", "system"), "content": content}


class Request(BaseModel):
    """The fields of every request; unknown fields are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow")
    model: str

    @model_validator(mode="before")
    @classmethod
    def _refuse_surrogates(cls, data: Any) -> Any:
        """Refuse lone surrogates, which JSON can escape and no tokenizer can encode."""
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise PydanticCustomError(
                "surrogate",
                "it holds half of a surrogate pair (\\ud800 to \\udfff without its other half)",
            ) from error
        return data


class StreamOptions(BaseModel):
    include_usage: bool = False


class Generation(Request):
    """The fields that chat completions and completions share."""

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=16)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None

    def exchanges(self) -> list[Exchange]:
        """The prompts to answer."""
        raise NotImplementedError

    def asks(self) -> list[Ask]:
        """The prompts with the options that all of them share."""
        extra = self.model_extra or {}
        for name in sorted(_REFUSED & extra.keys()):
            harmless = extra[name] in (None, False, [], ["text"], "none", "")
            if not harmless and (name, extra[name]) != ("best_of", 1):
                message = f"'{name}' is not served. Accepted: answers in text."
                raise ApiError(400, message, param=name, code="unsupported_parameter")
        kind = extra.get("response_format")
        if isinstance(kind, dict) and kind.get("type") != "text":
            raise ApiError(400, "Accepted for response_format: text.", param="response_format")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        limits = [k for k in (self.max_tokens, self.max_completion_tokens) if k is not None]
        several = self.n or 1
        # Several greedy answers would be the same: they are sampled, as OpenAI does.
        usual = 1.0 if several > 1 else 0.0
        return [
            Ask(
                exchange=exchange,
                first=number * several,
                n=several,
                temperature=usual if self.temperature is None else self.temperature,
                seed=self.seed,
                most=min(limits, default=None),
                stops=tuple(stop for stop in stops if stop),
            )
            for number, exchange in enumerate(self.exchanges())
        ]

    def ignored(self) -> list[str]:
        """The names of given fields that have no effect, which the answer lists."""
        given = {name for name, value in (self.model_extra or {}).items() if value is not None}
        return sorted(given - _READ - _REFUSED - {"response_format"})


class ChatRequest(Generation):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=0)

    def exchanges(self) -> list[Exchange]:
        return [Exchange(answer="", messages=conversation(self.messages))]


class CompletionRequest(Generation):
    """The body of /v1/completions; `logprobs` covers only the tokens of the answer."""

    prompt: str | list[str]
    logprobs: int | None = Field(None, ge=0, le=1)

    def exchanges(self) -> list[Exchange]:
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not prompts or not all(prompt.strip() for prompt in prompts):
            raise ApiError(400, "The prompt is empty. Give a text.", param="prompt")
        return [Exchange(answer="", prompt=prompt) for prompt in prompts]


class GivenAnswer(BaseModel):
    """An answer to score, and the messages or the raw text that it answers."""

    answer: str | None = None
    messages: list[Message] = Field(default_factory=list)
    prompt: str = ""

    @property
    def ask(self) -> Ask:
        if self.answer is None or bool(self.messages) == bool(self.prompt.strip()):
            message = "Give an `answer` with either `messages` or `prompt`, or `exchanges` of them."
            raise ApiError(400, message)
        messages = conversation(self.messages) if self.messages else ()
        exchange = Exchange(answer=self.answer, messages=messages, prompt=self.prompt)
        return Ask(exchange=exchange, given=True)


class ScoreRequest(Request, GivenAnswer):
    """The body of /v1/score: one answer, or a list of them in `exchanges`."""

    exchanges: list[GivenAnswer] = Field(default_factory=list)

    def asks(self) -> list[Ask]:
        """The answers to score, each with its prompt."""
        return [one.ask for one in self.exchanges or [self]]


def conversation(messages: Sequence[Message]) -> tuple[dict[str, str], ...]:
    """The messages as a chat template takes them; an ApiError unless a user's turn is last."""
    turns = tuple(message.turn for message in messages)
    if not turns or turns[-1]["role"] != "user":
        roles = ", ".join(turn["role"] for turn in turns) or "none"
        message = f"The turns were: {roles}. Accepted: a conversation that ends with a user's turn."
        raise ApiError(400, message, param="messages")
    if not turns[-1]["content"].strip():
        raise ApiError(400, "The last user message is empty. Give a question.", param="messages")
    return turns


# --- Answers ---


@dataclass(frozen=True, kw_only=True)
class Written:
    """An answer with its score, and its tokens where the model wrote it."""

    scored: Scored
    prompt_tokens: int = 0
    tokens: tuple[str, ...] = ()  # as text; half characters are marks
    log_probs: tuple[float, ...] = ()  # of each, at temperature 1
    finish: Literal["stop", "length"] = "stop"
    rest: str = ""  # what a stream has not sent yet


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Build a reply in OpenAI's format; each chunk has the same id, time and model."""

    kind: Literal["chat.completion", "text_completion"]
    model: str
    detector: dict[str, Any]  # id, method and threshold
    stream: bool = False
    n: int = 1  # answers to each prompt
    logprobs: bool = False
    ignored: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The JSON of the whole answer, or of a chunk of a stream."""
        chunk = ".chunk" if self.stream and self.kind == "chat.completion" else ""
        return {
            "id": self.id,
            "object": self.kind + chunk,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"anchorscope-{self.detector['detector']}",
            "choices": choices,
            **more,
        }

    def choice(
        self, number: int, text: str, one: Written | None = None, *, first: bool = False
    ) -> dict[str, Any]:
        """One answer, or a chunk of it: the first one, one between, or the last with `one`."""
        own: dict[str, Any] = {"text": text}
        if self.kind == "chat.completion" and self.stream:
            role = {"role": "assistant"} if first else {}
            own = {"delta": role | ({"content": text} if text or one is None else {})}
        elif self.kind == "chat.completion":
            own = {"message": {"role": "assistant", "content": text, "refusal": None}}
        finish = None if one is None else one.finish
        logprobs = None if one is None else self._log_probs(one)
        return {"index": number, **own, "finish_reason": finish, "logprobs": logprobs}

    def usage(self, answers: Sequence[Written]) -> dict[str, int]:
        """Token counts in OpenAI's names; a prompt with several answers is counted once."""
        prompt = sum(one.prompt_tokens for one in answers[:: self.n])
        written = sum(len(one.tokens) for one in answers)
        total = prompt + written
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": total}

    def score(self, scored: Scored) -> dict[str, Any]:
        """The `anchorscope` field: the detector's whole score, NaN as null."""
        return score_of(scored) | self.detector | {"ignored": list(self.ignored)}

    def _log_probs(self, one: Written) -> dict[str, Any]:
        """The tokens' log-probabilities, if requested, and the score.

        The score is here too because LangChain keeps only this field of a choice unchanged.
        """
        texts = one.tokens if self.logprobs else ()
        if self.kind == "chat.completion":
            content = [
                {
                    "token": text,
                    "logprob": log_prob,
                    "bytes": None if "\ufffd" in text else list(text.encode()),
                    "top_logprobs": [],
                }
                for text, log_prob in zip(texts, one.log_probs, strict=False)
            ]
            own: dict[str, Any] = {"content": content, "refusal": None}
        else:
            own = {
                "tokens": texts,
                "token_logprobs": one.log_probs[: len(texts)],
                "top_logprobs": None,
                "text_offset": list(accumulate(map(len, texts), initial=0))[:-1],
            }
        return own | {"anchorscope": self.score(one.scored)}


def score_of(scored: Scored) -> dict[str, Any]:
    """A scored answer as JSON, NaN as null."""
    return {name: plain(value) for name, value in asdict(scored).items()}
