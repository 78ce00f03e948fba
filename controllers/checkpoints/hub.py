"""Download and upload of controllers on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...common.errors import InputError, Misspelt
from ...common.files import split_revision


def download(name: str, files: Sequence[str], *, revision: str | None, token: str | None) -> Path:
    """The folder with ``files`` of the repository ``name``, from the local cache or the hub.

    Args:
        name: ``owner/name``, or ``owner/name@revision``.

    Raises:
        InputError: it cannot be downloaded, or two revisions are named.
    """
    from huggingface_hub import snapshot_download

    hub_id, revision = split_revision(name, revision)
    with _one_line(f"{name}: no such folder, and not found on the hub", Misspelt):
        return Path(snapshot_download(hub_id, revision=revision, token=token, allow_patterns=list(files)))


def upload(
    folder: Path, repo_id: str, files: Sequence[str], *, message: str, private: bool, token: str | None = None
) -> str:
    """Upload ``files`` of ``folder`` and return the address of the commit.

    Raises:
        InputError: the hub refuses it.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with _one_line(f"{repo_id}: the hub refused the upload"):
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id, folder_path=folder, allow_patterns=list(files), commit_message=message
        )
    return str(commit.commit_url)


@contextmanager
def _one_line(problem: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn errors of the hub library and of its HTTP client into one InputError."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise kind(f"{problem} ({reason})") from error
