"""Download and upload of controllers on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...common.errors import InputError, Misspelt
from ...common.files import split_revision


def download(name: str, files: Sequence[str], *, revision: str | None, token: str | None) -> Path:
    """Return the folder with ``files`` of the repository ``name``, from the local cache or the hub.

    Args:
        name: ``owner/name``, or ``owner/name@revision``.
        files: names of the files.
        revision: branch, tag or commit.
        token: access token for a private repository.

    Raises:
        InputError: the download fails, or there are two revisions.
    """
    from huggingface_hub import snapshot_download

    hub_id, revision = split_revision(name, revision)
    with _translated_errors(f"{name}: no such folder, and not found on the hub", Misspelt):
        return Path(snapshot_download(hub_id, revision=revision, token=token, allow_patterns=list(files)))


def upload(
    folder: Path, repo_id: str, files: Sequence[str], *, message: str, private: bool, token: str | None = None
) -> str:
    """Upload ``files`` of ``folder``, and return the address of the commit.

    Raises:
        InputError: the hub refuses the upload.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with _translated_errors(f"{repo_id}: the hub refused the upload"):
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id, folder_path=folder, allow_patterns=list(files), commit_message=message
        )
    return str(commit.commit_url)


@contextmanager
def _translated_errors(problem: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn errors of the hub library and of its HTTP client into an InputError of one line.

    Args:
        problem: the beginning of the message.
        kind: the class of the error.
    """
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise kind(f"{problem} ({reason})") from error
