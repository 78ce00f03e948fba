"""The HTTP application: routes, files of the web page, access, limits on bodies, and errors in OpenAI's format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from .access import OPEN, Access
from .errors import ApiError
from .middleware import HeadAsGet, WholeBodies
from .protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest, parse_json, parse_request
from .responses import DONE, chunk, event, usage
from .server import Server
from .service import Call, Service
from .worker import in_own_thread

PATHS = "send requests to /v1/chat/completions or /v1/completions"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy passes every event on at once
CLIENT_LEFT = 499  # nginx's status for a client that closed the connection


def create_app(server: Server) -> FastAPI:
    """Return the application with the access rules and the limit on bodies of the server's options.

    Raises:
        InputError: no client can send the key.
    """
    options = server.options

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server.worker.start()
        yield
        await asyncio.to_thread(server.stop)

    app = FastAPI(title="specpilot", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _handle_errors(app, server)
    _add_model_routes(app, server, options.max_body)
    _add_state_routes(app, server, options.max_body)
    add_page(app)

    app.add_middleware(AccessCheck, server=server, access=Access.from_options(options))
    if options.allow_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=options.allow_origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(HeadAsGet)
    app.add_middleware(WholeBodies)
    return app


class AccessCheck:
    """ASGI middleware that refuses the requests that ``access`` forbids."""

    def __init__(self, app: ASGIApp, server: Server, access: Access) -> None:
        self.app, self.server, self.access = app, server, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.access.check(scope)
        except ApiError as error:
            await refusal(self.server, error)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Overload:
    """ASGI application for connections beyond the limit. It answers 503, except to ``/health``."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        error = ApiError(
            503, "too many connections are open; try again later", code="too_many_connections", retry_after=1
        )
        response = refusal(self.server, error)
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request.

    Args:
        most: maximum length in bytes.

    Raises:
        ApiError: 413 if the body is longer.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise ApiError(413, f"body: is longer than {most} bytes; send a shorter prompt", code="body_too_large")
    return bytes(body)


def refusal(server: Server, error: ApiError) -> JSONResponse:
    """Count an error and return it as a response."""
    server.metrics.refused.labels(status=error.status).inc()
    return JSONResponse(error.body, error.status, error.headers)


def _handle_errors(app: FastAPI, server: Server) -> None:
    """Add handlers that answer every error in OpenAI's format."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return refusal(server, error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        path = request.url.path
        headers = dict(error.headers or {})
        if "Allow" in headers:  # status 405
            methods = {*headers["Allow"].split(", ")}
            headers["Allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        messages = {
            404: f"{path}: no such path; {PATHS}",
            405: f"{request.method} {path}: use {headers.get('Allow', 'another method')}",
        }
        response = refusal(server, ApiError(error.status_code, messages.get(error.status_code, str(error.detail))))
        response.headers.update(headers)
        return response

    @app.exception_handler(ClientDisconnect)
    async def client_left(request: Request, error: ClientDisconnect) -> Response:
        server.metrics.cancelled.inc()
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        return refusal(server, ApiError(500, f"internal error: {type(error).__name__}"))


def _add_model_routes(app: FastAPI, server: Server, max_body: int) -> None:
    """Add the routes of OpenAI's API: completions and models."""
    service = server.service

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await respond(request, parse_request(ChatCompletionRequest, await read_body(request, max_body)))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await respond(request, parse_request(CompletionRequest, await read_body(request, max_body)))

    async def respond(request: Request, api_request: ChatCompletionRequest | CompletionRequest) -> Response:
        call = await service.accept(api_request)
        if api_request.stream:
            return StreamingResponse(
                stream(service, call, api_request), media_type="text/event-stream", headers=UNBUFFERED
            )
        return await whole_unless_gone(service, call, request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [server.model_card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != service.name:
            raise ApiError(
                404,
                f"model={name!r}: this server has the model {service.name!r}; request that one",
                code="model_not_found",
            )
        return server.model_card()


async def whole_unless_gone(service: Service, call: Call, request: Request) -> Response:
    """Return the whole response. If the client disconnects first, its texts are cancelled before the next round."""
    answer = asyncio.ensure_future(service.whole(call))
    disconnection = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answer, disconnection), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(answer.result()) if answer.done() else Response(status_code=CLIENT_LEFT)
    finally:
        answer.cancel()
        disconnection.cancel()


async def _disconnected(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def stream(service: Service, call: Call, api_request: GenerationRequest) -> AsyncIterator[str]:
    """Yield the response as server-sent events. Errors are events, too, because the status has been sent."""
    style = call.format

    def counted(content: dict[str, Any]) -> str:
        running = {"usage": usage(call.prompt_tokens, call.choices)} if api_request.running_usage_wanted else {}
        return event(content | running)

    try:
        if style.opening is not None:
            entries = [{"index": c.index, **style.opening, "finish_reason": None} for c in call.choices]
            yield counted(chunk(style, entries))
        async for choice, delta in service.deltas(call):
            if delta.text or delta.logprobs or delta.rounds or choice.finish_reason is not None:
                yield counted(chunk(style, [style.entry(choice, delta, whole=False)]))
        if api_request.usage_wanted:
            yield event(chunk(style, []) | {"usage": usage(call.prompt_tokens, call.choices)})
    except Exception as cause:  # the status has been sent
        error = cause if isinstance(cause, ApiError) else ApiError(500, f"internal error: {type(cause).__name__}")
        service.metrics.refused.labels(status=error.status).inc()
        yield event(error.body)
    finally:
        call.cancel()
    yield DONE


def _add_state_routes(app: FastAPI, server: Server, max_body: int) -> None:
    """Add the routes of the server's state: health, metrics, and the controller."""

    @app.get("/health")
    async def health() -> Response:
        healthy = server.worker.alive
        return JSONResponse({"status": "ok" if healthy else "stopped"}, 200 if healthy else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        server.metrics.running.set(server.worker.running)
        server.metrics.waiting.set(server.worker.waiting)
        return PlainTextResponse(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/controllers")
    async def controllers() -> dict[str, Any]:
        return server.controller_card()

    @app.post("/v1/controllers/reload")
    async def reload(request: Request) -> dict[str, Any]:
        body = await read_body(request, max_body)
        fields = parse_json(body) if body.strip() else {}
        for name in fields:
            raise ApiError(400, f"{name}: unknown field; leave it out", param=name, code="unknown_field")
        return await asyncio.to_thread(in_own_thread, server.reload)


KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
# The page loads only files of this server and sends requests only to it. No text becomes a script, and no other page
# may show this one in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "require-trusted-types-for 'script'; trusted-types 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add routes for the files of the web page, which is at ``/``."""
    for file in files(__package__).joinpath("static").iterdir():
        path = "/" if file.name == "index.html" else f"/{file.name}"
        _add_file(app, path, file.read_bytes(), KINDS[file.name.rpartition(".")[2]])


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    """Add a route for a file with the media type ``kind``."""

    @app.get(path)
    async def file() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=HEADERS)
