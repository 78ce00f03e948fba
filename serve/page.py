"""The web page: three static files, read once."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, Response

FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
# Nothing of another host may be loaded, and no other page may frame this one.
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def add_page(app: FastAPI) -> None:
    """Routes for the page's files."""
    for path, (name, kind) in FILES.items():
        content = files(__package__).joinpath("static", name).read_bytes()
        _add_file(app, path, content, kind)


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path)
    async def file() -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)
