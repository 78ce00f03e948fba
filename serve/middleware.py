"""Middleware of all paths: answers to HEAD where a path has GET, and complete reading of refused bodies."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware that answers HEAD like GET. The connection sends the headers and leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self.app({**scope, "method": "GET"} if head else scope, receive, send)


class WholeBodies:
    """ASGI middleware that reads the rest of a refused body before the connection closes.

    A connection that is closed with unread bytes is reset, and the client may lose the response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        waits = b"expect" in headers  # the client sends its body only on request
        unread = (
            scope["type"] == "http" and not waits and not {b"content-length", b"transfer-encoding"}.isdisjoint(headers)
        )

        async def received() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and bool(message.get("more_body"))
            return message

        async def sent(message: Message) -> None:
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if last and unread:
                await send({**message, "more_body": True})
                while (await received()).get("more_body"):
                    pass
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self.app(scope, received, sent)
