"""Who may call the server: clients with its key, or without a key clients that reach it by one of its own names.

A browser sends requests to this machine for any page that it shows. The name that the page used is in the header
``Host``, the page's origin in ``Origin``; neither can be forged by the page.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from .errors import ApiError
from .options import ServeOptions

OPEN = ("/health",)  # paths that anybody may ask
ANY = "*"  # in allow_hosts and allow_origins


@dataclass(frozen=True)
class Access:
    """The rules by which requests are let in.

    Attributes:
        key: that clients must send; None: none is needed, and ``Host`` is checked instead.
        hosts: names of the server besides ``localhost`` and numeric addresses, in lower case.
        origins: origins of web pages of other hosts that may call the server.
    """

    key: str | None
    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def from_options(cls, options: ServeOptions) -> Access:
        """The rules of ``options``.

        Raises:
            InputError: the key is one that no client can send.
        """
        hosts = (options.host, socket.gethostname(), *(options.allow_hosts or ()))
        return cls(
            options.resolve_key(), frozenset(host.lower() for host in hosts), frozenset(options.allow_origins or ())
        )

    def check(self, scope: Scope) -> None:
        """Let a request pass.

        A request with the key as bearer token may come from any page, since the page knows the key. A browser sends a
        password that it has stored with the requests of every page.

        Raises:
            ApiError: 401: without the key; 403: under a foreign name, or from a foreign page.
        """
        if scope["type"] != "http" or scope["path"] in OPEN or scope["method"] == "OPTIONS":
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.key is None:
            self._check_host(host)
        elif (scheme := scheme_of_key(headers.get(b"authorization", b""), self.key)) is None:
            raise ApiError(401, "Authorization: missing or wrong key; send 'Authorization: Bearer KEY'")
        elif scheme == "bearer":
            return
        self._check_origin(headers.get(b"origin", b"").decode("latin-1"), host)

    def _check_host(self, host: str) -> None:
        """A page that resolves its own name to this machine's address (DNS rebinding) sends its own name as Host."""
        name = host_name(host)
        if host and ANY not in self.hosts and not is_local(name) and name not in self.hosts:
            message = f"Host: {host!r}: not a name of this server; start it with --allow-hosts {name or 'NAME'}"
            raise ApiError(403, f"{message}, or with a key", code="host_not_allowed")

    def _check_origin(self, origin: str, host: str) -> None:
        """The server's own page has the origin that the request was sent to; programs send none."""
        same = origin.partition("://")[2].lower() == host
        if origin and not same and not self.origins & {origin, ANY}:
            message = f"Origin: {origin!r}: pages from there may not call this server"
            raise ApiError(403, f"{message}; start it with --allow-origins {origin}", code="origin_not_allowed")


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port; empty if it is neither."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_local(name: str) -> bool:
    """Return true for names that no name server is asked for: ``localhost``, ``*.localhost`` and numeric addresses."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def scheme_of_key(header: bytes, key: str) -> str | None:
    """The scheme by which an Authorization header sends the key: ``bearer``, or ``basic`` from a browser's password.

    None if the header does not hold the key. Keys are compared in constant time.
    """
    word, _, sent = header.partition(b" ")
    scheme = word.lower().decode("latin-1")
    if scheme == "basic":
        try:
            sent = base64.b64decode(sent, validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    elif scheme != "bearer":
        return None
    return scheme if hmac.compare_digest(sent, os.fsencode(key)) else None  # a variable's bytes may be no UTF-8
