"""Where ``--wandb`` logs to: a project of Weights & Biases, and whether its server is used.

The key and the network are tried before any work, with one request and a short timeout. The package ``wandb`` itself
waits for minutes, and raises errors of its own when the work has begun.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Literal, TypedDict

from .errors import InputError

KEY, SERVER, MODE = "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"
PUBLIC = "https://api.wandb.ai"
SECONDS = 10.0  # timeout of the server's answer
LONGEST = 128  # characters of a project's name
NAME = re.compile(r"[^/\\#?%:\x00-\x1f]+")
QUERY = "query Viewer { viewer { username } }"
ENTITY_QUERY = "query Entity($entity: String!) { viewer { username } entity(name: $entity) { name } }"


class WandbKeywords(TypedDict, total=False):
    """Keywords of ``wandb.init``."""

    entity: str | None
    project: str
    mode: Literal["offline"]


@dataclass(frozen=True)
class WandbProject:
    """A project to log to.

    Attributes:
        entity: the team or user that has it; None: that of the key.
        offline: whether the run is written to disk alone, for ``wandb sync``.
    """

    entity: str | None
    project: str
    offline: bool

    @property
    def options(self) -> WandbKeywords:
        """Keywords of ``wandb.init``. Without a mode it follows WANDB_MODE."""
        options: WandbKeywords = {"entity": self.entity, "project": self.project}
        if self.offline:
            options["mode"] = "offline"
        return options


def find_project(name: str) -> WandbProject:
    """The project ``name``, PROJECT or TEAM/PROJECT. Offline without WANDB_API_KEY, or with a line on standard error.

    Raises:
        InputError: the name cannot be one, the server refuses the key, or it has no such team.
    """
    *entities, project = parts = name.split("/")
    if len(parts) > 2 or len(project) > LONGEST or not all(NAME.fullmatch(part) and part.strip() for part in parts):
        raise InputError(
            f"wandb={name!r}: no name of a project; give PROJECT or TEAM/PROJECT, of at most {LONGEST} characters and "
            r"without \ # ? % :"
        )
    entity = entities[0] if entities else None
    key = os.environ.get(KEY, "").strip()
    if not key:
        return WandbProject(entity, project, offline=True)
    if os.environ.get(MODE, "online") in ("offline", "dryrun", "disabled"):
        return WandbProject(entity, project, offline=False)  # wandb itself follows the mode
    server = os.environ.get(SERVER, "").rstrip("/") or PUBLIC
    failure: Exception
    try:
        answer = _ask(server, key, entity)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise _refused(server) from None
        answer, failure = None, error
    except (OSError, ValueError, HTTPException) as error:  # no connection, a timeout, no JSON, a malformed address
        answer, failure = None, error
    if answer is None:
        reason = " ".join(str(getattr(failure, "reason", failure)).split()) or type(failure).__name__
        print(
            f"wandb={name!r}: {server} cannot be reached ({reason}), so the run is logged offline; 'wandb sync' "
            "uploads it later",
            file=sys.stderr,
        )
        return WandbProject(entity, project, offline=True)
    if answer.get("viewer", {}) is None:
        raise _refused(server)
    if entity is not None and answer.get("entity", {}) is None:
        raise InputError(f"wandb={name!r}: {server} has no team or user {entity!r} for this key; name another one")
    return WandbProject(entity, project, offline=False)


@contextmanager
def refusing_wandb(name: str | None) -> Iterator[None]:
    """Turn errors of the package ``wandb``, which logs to the project ``name``, into an InputError."""
    try:
        yield
    except Exception as error:
        if name is None or type(error).__module__.partition(".")[0] != "wandb":
            raise
        raise InputError(
            f"wandb={name!r}: {' '.join(str(error).split())}; name another project, or unset {KEY} to log offline"
        ) from error


def _refused(server: str) -> InputError:
    return InputError(f"{KEY}: {server} refuses the key; set a key of this server, or unset {KEY} to log offline")


def _ask(server: str, key: str, entity: str | None) -> dict[str, Any]:
    """The server's answer about the key's user and about ``entity``; empty if it has another form than expected."""
    query = {"query": QUERY} if entity is None else {"query": ENTITY_QUERY, "variables": {"entity": entity}}
    token = base64.b64encode(f"api:{key}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json", "User-Agent": "specpilot"}
    request = urllib.request.Request(f"{server}/graphql", json.dumps(query).encode(), headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        answer = json.load(response)
    data = answer.get("data") if isinstance(answer, dict) else None
    return data if isinstance(data, dict) else {}
