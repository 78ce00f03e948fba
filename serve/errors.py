"""Errors as OpenAI's API reports them: ``{"error": {"message", "type", "param", "code"}}`` with an HTTP status."""

from __future__ import annotations

from ..common.json_file import JsonObject

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
MAX_MESSAGE = 1000  # characters of an error; what it quotes may be as long as a body


class ApiError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: one line: name, value, remedy.
        param: the field at fault.
        code: a word for programs, such as ``"model_not_found"``.
        retry_after: seconds after which to try again, for the header of that name.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if status == 401:
            self.headers["WWW-Authenticate"] = 'Basic realm="specpilot"'

    @property
    def body(self) -> JsonObject:
        kind = TYPES.get(self.status, "invalid_request_error")
        # What a message quotes may hold half a character, which UTF-8 does not have.
        message, param = (
            None if text is None else shortened(" ".join(text.split())).encode(errors="backslashreplace").decode()
            for text in (self.message, self.param)
        )
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


def shortened(text: str) -> str:
    """``text`` without its middle if it is long: at its ends are the field's name and the remedy."""
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[:half]} … {text[-half:]}"
