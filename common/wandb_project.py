"""Projects of Weights & Biases for ``--wandb``, online or offline.

The key and the network are checked before any work, with one request and a short timeout. The package ``wandb`` itself
waits for minutes, and raises its errors after the work has begun.
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
        entity: team or user that owns the project; None for the owner of the key.
        project: name of the project.
        offline: whether the run is only written to disk, for ``wandb sync``.
    """

    entity: str | None
    project: str
    offline: bool

    @property
    def options(self) -> WandbKeywords:
        """Keywords of ``wandb.init``. Without a mode, wandb follows WANDB_MODE."""
        options: WandbKeywords = {"entity": self.entity, "project": self.project}
        if self.offline:
            options["mode"] = "offline"
        return options


def find_project(name: str) -> WandbProject:
    """Return the project ``name``, which is PROJECT or TEAM/PROJECT.

    The project is offline if WANDB_API_KEY is not set, or if the server cannot be reached, which is printed to standard
    error.

    Raises:
        InputError: the name is malformed, the server refuses the key, or the server has no such team.
    """
    *entities, project = parts = name.split("/")
    if len(parts) > 2 or len(project) > LONGEST or not all(NAME.fullmatch(part) and part.strip() for part in parts):
        raise InputError(
            f"wandb={name!r}: not the name of a project; give PROJECT or TEAM/PROJECT, with at most {LONGEST} "
            "characters and "
            r"without \ # ? % :"
        )
    entity = entities[0] if entities else None
    key = os.environ.get(KEY, "").strip()
    if not key:
        return WandbProject(entity, project, offline=True)
    if os.environ.get(MODE, "online") in ("offline", "dryrun", "disabled"):
        return WandbProject(entity, project, offline=False)  # wandb follows the mode
    server = os.environ.get(SERVER, "").rstrip("/") or PUBLIC
    failure: Exception
    try:
        answer = _ask(server, key, entity)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise _refused(server) from None
        answer, failure = None, error
    except (OSError, ValueError, HTTPException) as error:  # no connection, a timeout, not JSON, a malformed address
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
        raise InputError(
            f"wandb={name!r}: {server} has no team or user {entity!r} for this key; name another team or user"
        )
    return WandbProject(entity, project, offline=False)


@contextmanager
def refusing_wandb(name: str | None) -> Iterator[None]:
    """Convert errors of the package ``wandb`` in the block to an InputError; ``name`` is the project."""
    try:
        yield
    except Exception as error:
        if name is None or type(error).__module__.partition(".")[0] != "wandb":
            raise
        raise InputError(
            f"wandb={name!r}: {' '.join(str(error).split())}; name another project, or unset {KEY} to log offline"
        ) from error


def _refused(server: str) -> InputError:
    """Return the error that ``server`` refuses the key."""
    return InputError(f"{KEY}: {server} refuses the key; set a key of this server, or unset {KEY} to log offline")


def _ask(server: str, key: str, entity: str | None) -> dict[str, Any]:
    """Return the server's answer about the key's user and about ``entity``; empty if it has an unexpected form."""
    query = {"query": QUERY} if entity is None else {"query": ENTITY_QUERY, "variables": {"entity": entity}}
    token = base64.b64encode(f"api:{key}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json", "User-Agent": "specpilot"}
    request = urllib.request.Request(f"{server}/graphql", json.dumps(query).encode(), headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        answer = json.load(response)
    data = answer.get("data") if isinstance(answer, dict) else None
    return data if isinstance(data, dict) else {}
