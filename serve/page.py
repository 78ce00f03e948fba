"""The web page: its static files, read once."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, Response

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
# Only this server's files are loaded and only it is asked, no text becomes a script, and no other page frames this one.
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
    """Routes for the page's files; the page itself is at ``/``."""
    for file in files(__package__).joinpath("static").iterdir():
        path = "/" if file.name == "index.html" else f"/{file.name}"
        _add_file(app, path, file.read_bytes(), KINDS[file.name.rpartition(".")[2]])


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path)
    async def file() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=HEADERS)
