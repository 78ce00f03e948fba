"""Finds a model's files by name: a shipped model, a local folder, or an id on the Hugging Face hub.

``owner/name@revision`` is a branch, tag or commit of the hub.
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
LARGEST_SIZES = {  # by key in config.json, which differs between architectures
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 10**6),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 10**4),
    "vocab_size": 10**8,
}
HUB_SECONDS = 10.0  # timeout of the hub's answer whether it has a model
CONFIG, TOKENIZER, ADAPTER, WEIGHTS = (
    "config.json", "tokenizer_config.json", "adapter_config.json", "model.safetensors",
)  # fmt: skip
MODEL = re.compile(r"(model|pytorch_model)\b.*\.(safetensors|bin)")  # weights of a whole model
READ = re.compile(r"(model|adapter_model|draft)\b.*\.safetensors|.*\.(json|model|jinja|txt)")  # files that are read
PICKLES = re.compile(r"(pytorch_model|adapter_model)\b.*\.bin")


def is_gguf(name: str | Path) -> bool:
    """Whether ``name`` is that of a GGUF file."""
    return str(name).lower().endswith(SUFFIX)


def gguf_path(name: str | Path) -> Path:
    """The GGUF file ``name``.

    Raises:
        InputError: there is none.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise InputError(f"{name}: no such GGUF file")
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
        files: names of the files that are there, as far as they are known.
        revision: branch, tag or commit on the hub.
        local_files_only: the hub does not answer, but its files are in the local cache.
        adapter: the files of an adapter that is put on the model.
    """

    path: str
    files: frozenset[str] = frozenset()
    revision: str | None = None
    local_files_only: bool = False
    adapter: Source | None = None

    @property
    def hub(self) -> HubKeywords:
        """Keywords of what reads its files."""
        return {"revision": self.revision, "local_files_only": self.local_files_only}

    @property
    def of_tokenizer(self) -> Source:
        """The adapter's files if it has a tokenizer, else the model's."""
        return self.adapter if self.adapter is not None and TOKENIZER in self.adapter.files else self

    def file(self, name: str) -> Path:
        """One of its ``files``."""
        return Path(self.path, name) if Path(self.path).is_dir() else Path(hf_hub_download(self.path, name, **self.hub))


def find_files(name: str | Path, revision: str | None = None) -> Source:
    """The files of ``name``: a shipped model, a folder, or a hub id; those of its base model, if it is an adapter.

    Raises:
        InputError: there is no such model, or the folder's configuration is damaged.
    """
    source = _own_files(name, revision)
    if ADAPTER not in source.files:
        return source
    if find_spec("peft") is None:
        raise InputError(
            f"{name}: has an adapter, which needs peft: pip install 'specpilot[peft]'; or merge it into its base model"
        )
    if any(map(MODEL.fullmatch, source.files)):
        return source  # a whole model, which transformers puts the adapter on
    with refusing(name, "its adapter cannot be read"):
        file = source.file(ADAPTER)
    found = read_object(file, AGAIN)
    with naming_file(file, AGAIN):
        base = build(str, found.get("base_model_name_or_path"), "base_model_name_or_path")
        own = build(str, found.get("revision") or "", "revision")
    try:
        below = _own_files(base, own or None)
    except InputError as error:
        raise InputError(f"{name}: an adapter, whose base_model_name_or_path cannot be loaded: {error}") from error
    if CONFIG not in below.files and ADAPTER in below.files:
        raise InputError(f"{name}: an adapter of {base!r}, which is an adapter itself; merge that into its base model")
    return replace(below, adapter=source)


def _own_files(name: str | Path, revision: str | None) -> Source:
    """The files of ``name`` itself."""
    if isinstance(name, str):
        if not name.strip():
            raise InputError(f"name={name!r}: empty; {_names()}")
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
        raise Misspelt(f"{name}: no such model folder")
    return _hub_source(name, revision)


def _folder(path: Path) -> Source:
    return Source(str(path), frozenset(file.name for file in path.iterdir()))


def _hub_source(name: str, revision: str | None) -> Source:
    """An id on the hub, perhaps with ``@revision``; if the hub cannot answer, the local cache must have the model."""
    hub_id, revision = split_revision(name, revision)
    answer = ask_hub(hub_id, revision=revision)
    if not isinstance(answer, str):
        return Source(hub_id, answer, revision)
    names = (CONFIG, TOKENIZER, ADAPTER, WEIGHTS) if answer != INVALID else ()
    if cached := frozenset(n for n in names if isinstance(try_to_load_from_cache(hub_id, n, revision=revision), str)):
        return Source(hub_id, cached, revision, local_files_only=True)
    raise Misspelt(f"{name}: no such folder, and not found on the hub ({answer}); {_names()}")


def check_format(name: str | Path, source: Source) -> None:
    """Raise InputError for a folder or repository whose weights are in pickles alone."""
    for own in (source, source.adapter):
        kinds = set() if own is None else {found[1] for file in own.files if (found := PICKLES.fullmatch(file))}
        if own is None or not kinds or any(file.endswith(".safetensors") for file in own.files):
            continue
        folder, fetch = own.path, ""
        if not Path(folder).is_dir():
            folder = own.path.rpartition("/")[2]
            at = "" if own.revision is None else f" --revision {quote(own.revision)}"
            fetch = f"hf download {quote(own.path)}{at} --local-dir {quote(folder)} && "
        [kind] = kinds - {"adapter_model"} or kinds
        raise InputError(
            f"{name}: its weights are in .bin files, pickles, which are not read; convert them: {fetch}"
            f"cd {quote(folder)} && "
            'python -c "import glob, torch, safetensors.torch as s; s.save_file({k: v.contiguous().clone() for f in '
            f"glob.glob('{kind}*.bin') for k, v in torch.load(f, 'cpu', weights_only=True).items()}}, "
            f"'{kind.removeprefix('pytorch_')}.safetensors', {{'format': 'pt'}})\"" + (fetch and "; give that folder")
        )


def ask_hub(name: str, *, dataset: bool = False, revision: str | None = None) -> frozenset[str] | str:
    """The files of a model or dataset on the hub, as far as it tells; the reason, in one line, why it is not found.

    It makes one request with a timeout of ``HUB_SECONDS``, since the libraries retry for 20 seconds or more per file.
    """
    try:
        info = HfApi().repo_info(
            name, repo_type="dataset" if dataset else "model", revision=revision, timeout=HUB_SECONDS
        )
    except HFValidationError:
        return INVALID
    except RepositoryNotFoundError as error:
        return one_line(error)
    except HfHubHTTPError:  # it exists but cannot be read, or not at this revision: loading will raise the error
        return frozenset()
    except Exception as error:  # no connection: an error of the HTTP library, which differs between hub versions
        return one_line(error)
    return frozenset(file.rfilename for file in getattr(info, "siblings", None) or ())


def _names() -> str:
    """The remedy of errors about names."""
    return f"give a folder, a hub id, or a shipped model: {', '.join(shipped_models())}"


def _check_files(folder: Path) -> None:
    """Raise InputError for git LFS pointers, configuration files that are not JSON objects, and absurd sizes.

    transformers silently ignores a damaged generation_config.json, and builds models of any size in config.json.
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


def one_line(error: Exception) -> str:
    """The message of ``error``, in one line of at most 500 characters."""
    text = textwrap.shorten(str(error), 500, placeholder=" …")
    plain = isinstance(error, OSError | ValueError | ImportError) or (type(error) is RuntimeError)
    return text if plain and text else f"{type(error).__name__}: {text}".removesuffix(": ")


@contextmanager
def refusing(name: str | Path, problem: str) -> Iterator[None]:
    """Turn whatever transformers raises over a checkpoint's files into one line: they may hold anything."""
    try:
        yield
    except InputError:
        raise
    except SafetensorError as error:
        raise InputError(f"{name}: a weight file is truncated or damaged ({error}); fetch it again") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: {problem}: a file is damaged, not JSON ({error}); fetch it again") from error
    except Exception as error:
        raise InputError(f"{name}: {problem} ({one_line(error)})") from error
