"""Sends the response of a call: whole, unless the client leaves before, or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from .errors import ApiError
from .protocol import GenerationRequest
from .responses import DONE, chunk, event, usage
from .service import Call, Service

CLIENT_LEFT = 499  # nginx's status for it; nobody reads it


async def whole_unless_gone(service: Service, call: Call, request: Request) -> Response:
    """The whole response. If the client leaves meanwhile, its texts are cancelled before the next round."""
    answer = asyncio.ensure_future(service.whole(call))
    left = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(answer.result()) if answer.done() else Response(status_code=CLIENT_LEFT)
    finally:
        answer.cancel()
        left.cancel()


async def _disconnected(request: Request) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def stream(service: Service, call: Call, given: GenerationRequest) -> AsyncIterator[str]:
    """The response as server-sent events; an error after the first of them is an event as well."""
    style = call.format

    def counted(content: dict[str, Any]) -> str:
        running = {"usage": usage(call.prompt_tokens, call.choices)} if given.running_usage_wanted else {}
        return event(content | running)

    try:
        if style.opening is not None:
            entries = [{"index": c.index, **style.opening, "finish_reason": None} for c in call.choices]
            yield counted(chunk(style, entries))
        async for choice, delta in service.deltas(call):
            if delta.text or delta.logprobs or delta.rounds or choice.finish_reason is not None:
                yield counted(chunk(style, [style.entry(choice, delta, whole=False)]))
        if given.usage_wanted:
            yield event(chunk(style, []) | {"usage": usage(call.prompt_tokens, call.choices)})
    except Exception as found:  # the status has been sent
        error = found if isinstance(found, ApiError) else ApiError(500, f"internal error: {type(found).__name__}")
        service.metrics.refused.labels(status=error.status).inc()
        yield event(error.body)
    finally:
        call.cancel()
    yield DONE
