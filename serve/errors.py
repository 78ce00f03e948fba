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
MAX_MESSAGE = 1000  # characters of an error, whose quotation may be as long as a body


class ApiError(Exception):
    """An error response of the server, for a refused or failed request.

    Args:
        status: HTTP status.
        message: a line with name, value and remedy.
        param: the wrong field.
        code: the error as a word for programs, such as ``"model_not_found"``.
        retry_after: seconds until the client may try again, for the header ``Retry-After``.
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
        """The body of the response."""
        kind = TYPES.get(self.status, "invalid_request_error")
        # A quotation in a message may contain half a character, which UTF-8 cannot encode.
        message, param = (
            None if text is None else shortened(" ".join(text.split())).encode(errors="backslashreplace").decode()
            for text in (self.message, self.param)
        )
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


def shortened(text: str) -> str:
    """Return ``text`` without its middle if it is long. Its ends have the field's name and the remedy."""
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[:half]} … {text[-half:]}"
