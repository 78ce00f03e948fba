"""Access rules: clients must send the server's key, or reach a server without a key by one of its names.

A browser sends requests to this machine for any page that it shows. The header ``Host`` contains the name that the page
used, and ``Origin`` the page's origin. A page cannot forge either header.
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

OPEN = ("/health",)  # paths without access rules
ANY = "*"  # in allow_hosts and allow_origins


@dataclass(frozen=True)
class Access:
    """Access rules of a server.

    Attributes:
        key: the key that clients must send; None without a key, and then ``Host`` is checked.
        hosts: names of the server besides ``localhost`` and numeric addresses, in lower case.
        origins: origins of web pages of other hosts that may call the server.
    """

    key: str | None
    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def from_options(cls, options: ServeOptions) -> Access:
        """Return the access rules of ``options``.

        Raises:
            InputError: no client can send the key.
        """
        hosts = (options.host, socket.gethostname(), *(options.allow_hosts or ()))
        return cls(
            options.resolve_key(), frozenset(host.lower() for host in hosts), frozenset(options.allow_origins or ())
        )

    def check(self, scope: Scope) -> None:
        """Check a request against the rules.

        A request with the key as bearer token may come from any page, because the page knows the key. A stored password
        does not suffice, because a browser sends it with the requests of every page.

        Raises:
            ApiError: 401 if the key is missing or wrong; 403 for a foreign ``Host`` or ``Origin``.
        """
        if scope["type"] != "http" or scope["path"] in OPEN or scope["method"] == "OPTIONS":
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.key is None:
            self._check_host(host)
        elif (scheme := scheme_of_key(headers.get(b"authorization", b""), self.key)) is None:
            raise ApiError(401, "Authorization: the key is missing or wrong; send 'Authorization: Bearer KEY'")
        elif scheme == "bearer":
            return
        self._check_origin(headers.get(b"origin", b"").decode("latin-1"), host)

    def _check_host(self, host: str) -> None:
        """Check the header ``Host``, in which a page that resolves to this machine (DNS rebinding) has its own name.

        Raises:
            ApiError: 403 for a name that is not a name of the server.
        """
        name = host_name(host)
        if host and ANY not in self.hosts and not is_local(name) and name not in self.hosts:
            message = f"Host: {host!r}: not a name of this server; start the server with --allow-hosts {name or 'NAME'}"
            raise ApiError(403, f"{message}, or with a key", code="host_not_allowed")

    def _check_origin(self, origin: str, host: str) -> None:
        """Check the header ``Origin``. The server's page has the origin of the server; programs send no origin.

        Raises:
            ApiError: 403 for an origin that may not call the server.
        """
        same = origin.partition("://")[2].lower() == host
        if origin and not same and not self.origins & {origin, ANY}:
            message = f"Origin: {origin!r}: pages of this origin may not call this server"
            raise ApiError(403, f"{message}; start the server with --allow-origins {origin}", code="origin_not_allowed")


def host_name(host: str) -> str:
    """Return the name or address in a ``Host`` header without its port; empty if the header is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_local(name: str) -> bool:
    """Return true for ``localhost``, ``*.localhost`` and numeric addresses, which need no name server."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def scheme_of_key(header: bytes, key: str) -> str | None:
    """Return the scheme by which an ``Authorization`` header sends the key.

    Keys are compared in constant time.

    Returns:
        ``bearer``, or ``basic`` for a password that a browser stored; None if the header does not contain the key.
    """
    word, _, credentials = header.partition(b" ")
    scheme = word.lower().decode("latin-1")
    if scheme == "basic":
        try:
            credentials = base64.b64decode(credentials, validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    elif scheme != "bearer":
        return None
    return (
        scheme if hmac.compare_digest(credentials, os.fsencode(key)) else None
    )  # the bytes of a variable may not be UTF-8
