"""What a client is told when it gets no answer, in the shape that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

_KINDS = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "overloaded"),
}


class Refusal(Exception):
    """A request that gets no answer: the status, the sentence, and the field that is to blame."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self._code = status, param, code

    def body(self) -> dict[str, Any]:
        """The error as JSON: message, type, param, code."""
        kind, code = _KINDS.get(self.status, ("invalid_request_error", "invalid_request"))
        told = {"message": str(self), "type": kind, "param": self.param, "code": self._code or code}
        return {"error": told}
