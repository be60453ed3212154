"""OpenAI's chat completions as far as a detector can serve them: requests in, answers out.

A detector was evaluated with its own prompt: worked examples, then one question. So the last user
message is the question, nothing else of the conversation reaches the model, and every answer
says so.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from anchorscope.detect.deployed.located import Scored
from anchorscope.detect.rows.files import plain
from anchorscope.web.guard import ApiError

PROMPT = (
    "The detector's own prompt was used: its worked examples, then the last user message. "
    "Nothing else of the conversation was read."
)
# They ask for answers of another shape, which would be missing without a word.
_REFUSED = {"tools", "tool_choice", "functions", "function_call", "logprobs", "audio", "modalities"}
_READ = {"model", "messages", "stream", "stream_options", "n", "user", "store", "metadata"}


class Message(BaseModel):
    """One message of the conversation; its content is a text, or parts that are texts."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of a request; what is not named here is kept in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[Message]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1

    @model_validator(mode="before")
    @classmethod
    def _refuse_surrogates(cls, data: Any) -> Any:
        """JSON can escape half of a surrogate pair, which no tokenizer and no answer can hold."""
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise PydanticCustomError(
                "surrogate",
                "it holds half of a surrogate pair (\\ud800 to \\udfff without its other half)",
            ) from error
        return data

    def ignored(self) -> list[str]:
        """The names of what was asked for and has no effect, so that the answer can say it."""
        names = {name for name, value in (self.model_extra or {}).items() if value is not None}
        roles = {f"{m.role} message" for m in self.messages if m.role in ("system", "developer")}
        return sorted(roles | names - _READ)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer on its way to a client: the same id, time and model in each of its chunks."""

    model: str
    detector: dict[str, Any]  # its method and threshold
    ignored: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, scored: Scored, usage: dict[str, int], finish: str) -> dict[str, Any]:
        """The answer in one piece."""
        message = {"role": "assistant", "content": scored.answer, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        head = self._head("chat.completion")
        return head | {"choices": [choice], "usage": usage, "anchorscope": self.score(scored)}

    def chunk(
        self, delta: dict[str, Any], *, finish: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """A piece of the answer as it grows."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._head("chat.completion.chunk") | {"choices": [choice]} | more

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """What `stream_options.include_usage` asks for after the last piece."""
        return self._head("chat.completion.chunk") | {"choices": [], "usage": usage}

    def score(self, scored: Scored) -> dict[str, Any]:
        """The `anchorscope` field: all that the detector says, NaN as null."""
        fields = {name: plain(value) for name, value in asdict(scored).items()}
        return fields | self.detector | {"prompt": PROMPT, "ignored": list(self.ignored)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def question_of(request: ChatRequest, *, model: str) -> str:
    """The question to be answered; a refusal where a detector could not score the answer."""
    if request.model != model:
        message = f"Unknown model '{request.model}'. Accepted: {model}."
        raise ApiError(400, message, param="model", code="model_not_found")
    _check_shape(request)
    turns = [m for m in request.messages if m.role not in ("system", "developer")]
    if [m.role for m in turns] != ["user"]:
        roles = ", ".join(m.role for m in turns) or "none"
        message = (
            f"The turns were: {roles}. Accepted: one user message. The detector was evaluated on "
            "single questions and cannot score a conversation; put all that is needed into one."
        )
        raise ApiError(400, message, param="messages", code="unsupported_conversation")
    question = _text(turns[0]).strip()
    if not question:
        raise ApiError(400, "The user message is empty. Give a question.", param="messages")
    return question


def usage_of(prompt: int, answer: int) -> dict[str, int]:
    """Token counts in OpenAI's names."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }


def models_list(name: str, created: int) -> dict[str, Any]:
    """The one model that is served."""
    one = {"id": name, "object": "model", "created": created, "owned_by": "anchorscope"}
    return {"object": "list", "data": [one]}


def _check_shape(request: ChatRequest) -> None:
    extra = request.model_extra or {}
    kind = extra.get("response_format")
    if isinstance(kind, dict) and kind.get("type") != "text":
        raise ApiError(400, "Accepted for response_format: text.", param="response_format")
    if request.n not in (None, 1):
        raise ApiError(400, f"n is {request.n}. Accepted: 1; the answer is greedy.", param="n")
    for name in sorted(_REFUSED & extra.keys()):
        if extra[name] not in (None, False, [], ["text"], "none"):
            message = f"'{name}' is not served. Accepted: one question, answered in text."
            raise ApiError(400, message, param=name, code="unsupported_parameter")


def _text(message: Message) -> str:
    """The text of a message; its parts follow each other."""
    if isinstance(message.content, list):
        if any(not isinstance(part.get("text"), str) for part in message.content):
            raise ApiError(400, "Accepted in a message: parts of type text.", param="messages")
        return "".join(part["text"] for part in message.content)
    return message.content or ""
