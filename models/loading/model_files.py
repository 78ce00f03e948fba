"""Finds a model's files by name: an included model, a local folder, or an id on the Hugging Face hub.

``owner/name@revision`` names a branch, tag or commit on the hub.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TypedDict

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from safetensors import SafetensorError

from ...checkpoints import shipped, shipped_models
from ...common.errors import InputError, Misspelt
from ...common.files import check_no_pointer, check_no_run, split_revision
from ...common.json_file import build, naming_file, read_object
from ..gguf_model import SUFFIX

INVALID = "no valid id"
AGAIN = "fetch the model again"
LARGEST_SIZES = {  # by key of config.json; architectures use different keys
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 10**6),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 10**4),
    "vocab_size": 10**8,
}
HUB_SECONDS = 10.0  # timeout of the request for the hub's files of a model
CONFIG, TOKENIZER, ADAPTER, WEIGHTS = (
    "config.json", "tokenizer_config.json", "adapter_config.json", "model.safetensors",
)  # fmt: skip
MODEL = re.compile(r"(model|pytorch_model)\b.*\.(safetensors|bin)")  # weights of a whole model
READ = re.compile(r"(model|adapter_model|draft)\b.*\.safetensors|.*\.(json|model|jinja|txt)")  # files that are read
PICKLES = re.compile(r"(pytorch_model|adapter_model)\b.*\.bin")


def is_gguf(name: str | Path) -> bool:
    """Return true if ``name`` ends like the name of a GGUF file."""
    return str(name).lower().endswith(SUFFIX)


def gguf_path(name: str | Path) -> Path:
    """Return the path of the GGUF file ``name``.

    Raises:
        InputError: there is no such file.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise InputError(f"{name}: no such GGUF file; give the path of an existing file")
    return path


class HubKeywords(TypedDict):
    """Keywords of functions that read a model's files, from a folder or the hub."""

    revision: str | None
    local_files_only: bool


@dataclass(frozen=True)
class Source:
    """The location of a model's files.

    Attributes:
        path: a folder, or an id on the hub.
        files: names of the files, as far as they are known.
        revision: branch, tag or commit on the hub.
        local_files_only: whether only the local cache is read, because the hub does not answer.
        adapter: the location of an adapter for the model; None without one.
    """

    path: str
    files: frozenset[str] = frozenset()
    revision: str | None = None
    local_files_only: bool = False
    adapter: Source | None = None

    @property
    def hub(self) -> HubKeywords:
        """Keywords of functions that read the files."""
        return {"revision": self.revision, "local_files_only": self.local_files_only}

    @property
    def tokenizer_source(self) -> Source:
        """The location of the tokenizer: the adapter's if the adapter has a tokenizer, else the model's."""
        return self.adapter if self.adapter is not None and TOKENIZER in self.adapter.files else self

    def file(self, name: str) -> Path:
        """Return the path of the file ``name``, one of ``files``; a file on the hub is downloaded."""
        return Path(self.path, name) if Path(self.path).is_dir() else Path(hf_hub_download(self.path, name, **self.hub))


def find_files(name: str | Path, revision: str | None = None) -> Source:
    """Return the location of the files of ``name``: an included model, a folder, or a hub id.

    For an adapter, it is the location of its base model, with the adapter's location as ``adapter``.

    Args:
        name: the model; a hub id may end with ``@revision``.
        revision: branch, tag or commit of a hub id; None for its main branch.

    Raises:
        InputError: there is no such model; the folder's configuration is damaged; or ``name`` is an adapter, and peft
            is not installed, or the base model is missing or an adapter itself.
    """
    source = _locate(name, revision)
    if ADAPTER not in source.files:
        return source
    if find_spec("peft") is None:
        raise InputError(
            f"{name}: has an adapter, which needs peft: pip install 'specpilot[peft]'; or merge it into its base model"
        )
    if any(map(MODEL.fullmatch, source.files)):
        return source  # a whole model, which transformers combines with the adapter
    with refusing(name, "its adapter cannot be read"):
        file = source.file(ADAPTER)
    adapter_config = read_object(file, AGAIN)
    with naming_file(file, AGAIN):
        base = build(str, adapter_config.get("base_model_name_or_path"), "base_model_name_or_path")
        base_revision = build(str, adapter_config.get("revision") or "", "revision")
    try:
        base_source = _locate(base, base_revision or None)
    except InputError as error:
        raise InputError(f"{name}: an adapter, whose base_model_name_or_path cannot be loaded: {error}") from error
    if CONFIG not in base_source.files and ADAPTER in base_source.files:
        raise InputError(f"{name}: an adapter of {base!r}, which is an adapter itself; merge that into its base model")
    return replace(base_source, adapter=source)


def _locate(name: str | Path, revision: str | None) -> Source:
    """Return the location of the files of ``name``, also if ``name`` is an adapter.

    Raises:
        InputError: there is no such model, or the folder's configuration is damaged.
    """
    if isinstance(name, str):
        if not name.strip():
            raise InputError(f"name={name!r}: empty; {_names_remedy()}")
        local = shipped(name)
        if local is not None:
            return _folder(local)
    path = Path(name).expanduser()
    if path.is_dir():
        if not any((path / file).is_file() for file in (CONFIG, ADAPTER)):
            check_no_run(path)
            raise InputError(f"{name}: the folder is not a model in transformers' format, it holds no {CONFIG}")
        _check_files(path)
        return _folder(path)
    if path.is_file() and is_gguf(name):
        raise InputError(f"{name}: a GGUF file, where a model in transformers' format is needed; give its folder")
    if path.is_file():
        raise InputError(f"{name}: a file; give the folder of a model in transformers' format")
    if isinstance(name, Path) or name.startswith((".", "/", "~")):
        raise Misspelt(f"{name}: no such model folder; give the path of an existing folder")
    return _hub_source(name, revision)


def _folder(path: Path) -> Source:
    """Return the location of a folder."""
    return Source(str(path), frozenset(file.name for file in path.iterdir()))


def _hub_source(name: str, revision: str | None) -> Source:
    """Return the location of a hub id, with or without ``@revision``.

    If the hub does not answer, the files in the local cache are used.

    Raises:
        Misspelt: neither the hub nor the cache has the model.
    """
    hub_id, revision = split_revision(name, revision)
    answer = query_hub(hub_id, revision=revision)
    if not isinstance(answer, str):
        return Source(hub_id, answer, revision)
    names = (CONFIG, TOKENIZER, ADAPTER, WEIGHTS) if answer != INVALID else ()
    if cached := frozenset(n for n in names if isinstance(try_to_load_from_cache(hub_id, n, revision=revision), str)):
        return Source(hub_id, cached, revision, local_files_only=True)
    raise Misspelt(f"{name}: no such folder, and not found on the hub ({answer}); {_names_remedy()}")


def check_format(name: str | Path, source: Source) -> None:
    """Check that a folder or repository has weights in safetensors.

    Raises:
        InputError: all its weights are pickles; the message has the command that converts them.
    """
    for part in (source, source.adapter):
        kinds = set() if part is None else {match[1] for file in part.files if (match := PICKLES.fullmatch(file))}
        if part is None or not kinds or any(file.endswith(".safetensors") for file in part.files):
            continue
        folder, fetch = part.path, ""
        if not Path(folder).is_dir():
            folder = part.path.rpartition("/")[2]
            at = "" if part.revision is None else f" --revision {quote(part.revision)}"
            fetch = f"hf download {quote(part.path)}{at} --local-dir {quote(folder)} && "
        [kind] = kinds - {"adapter_model"} or kinds
        raise InputError(
            f"{name}: its weights are in .bin files, pickles, which are not read; convert them: {fetch}"
            f"cd {quote(folder)} && "
            'python -c "import glob, torch, safetensors.torch as s; s.save_file({k: v.contiguous().clone() for f in '
            f"glob.glob('{kind}*.bin') for k, v in torch.load(f, 'cpu', weights_only=True).items()}}, "
            f"'{kind.removeprefix('pytorch_')}.safetensors', {{'format': 'pt'}})\"" + (fetch and "; give that folder")
        )


def query_hub(name: str, *, dataset: bool = False, revision: str | None = None) -> frozenset[str] | str:
    """Return the names of the files of a model or dataset on the hub, or the reason, in one line, why there are none.

    The function makes one request with a timeout of ``HUB_SECONDS``, because the libraries retry for 20 seconds or more
    for each file.
    """
    try:
        info = HfApi().repo_info(
            name, repo_type="dataset" if dataset else "model", revision=revision, timeout=HUB_SECONDS
        )
    except HFValidationError:
        return INVALID
    except RepositoryNotFoundError as error:
        return error_line(error)
    except HfHubHTTPError:  # it exists, but cannot be read or lacks this revision: loading will raise the error
        return frozenset()
    except Exception as error:  # no connection; the type of the error depends on the version of the hub's library
        return error_line(error)
    return frozenset(file.rfilename for file in getattr(info, "siblings", None) or ())


def _names_remedy() -> str:
    """Return the remedy for errors about names."""
    return f"give a folder, a hub id, or a shipped model: {', '.join(shipped_models())}"


def _check_files(folder: Path) -> None:
    """Check the files of a folder before transformers reads them.

    transformers ignores a damaged generation_config.json without a warning, and builds models of any size in
    config.json.

    Raises:
        InputError: a file is a git LFS pointer, a configuration file is not a JSON object, or a size is absurd.
    """
    for file in sorted(folder.iterdir()):
        if READ.fullmatch(file.name):
            check_no_pointer(file)
    for name in (CONFIG, "generation_config.json", TOKENIZER):
        if not (folder / name).is_file():
            continue
        values = read_object(folder / name, AGAIN)
        if name == CONFIG:
            with naming_file(folder / name, AGAIN):
                for size, largest in LARGEST_SIZES.items():
                    if values.get(size) is not None and not 1 <= build(int, values[size], size) <= largest:
                        raise InputError(f"{size}={values[size]}: must be between 1 and {largest}")


def error_line(error: Exception) -> str:
    """Return the message of ``error`` in one line of at most 500 characters."""
    text = textwrap.shorten(str(error), 500, placeholder=" …")
    plain = isinstance(error, OSError | ValueError | ImportError) or (type(error) is RuntimeError)
    return text if plain and text else f"{type(error).__name__}: {text}".removesuffix(": ")


@contextmanager
def refusing(name: str | Path, problem: str) -> Iterator[None]:
    """Turn any error that transformers raises for a checkpoint's files into an InputError of one line.

    Args:
        name: the model's name.
        problem: the problem in words, for the message.

    Raises:
        InputError: the block raised an error.
    """
    try:
        yield
    except InputError:
        raise
    except SafetensorError as error:
        raise InputError(f"{name}: a weight file is truncated or damaged ({error}); fetch it again") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: {problem}: a file is damaged, not JSON ({error}); fetch it again") from error
    except Exception as error:
        raise InputError(f"{name}: {problem} ({error_line(error)})") from error
