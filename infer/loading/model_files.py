"""Finds a model's files by name: a shipped model, a local folder, or an id on the Hugging Face hub."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from ...checkpoints import shipped, shipped_models
from ...common.errors import InputError
from ...common.json_file import blaming, build, read_object
from ..models.gguf_model import SUFFIX

INVALID = "no valid id"
AGAIN = "fetch the model again"
LARGEST_SIZES = {  # by key in config.json, which differs between architectures
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 10**6),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 10**4),
    "vocab_size": 10**8,
}
HUB_SECONDS = 10.0  # timeout of the hub's answer whether it has a model


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


@dataclass(frozen=True)
class Source:
    """The location of a model's files."""

    path: str  # a folder, or an id on the hub
    local_files_only: bool = False  # the hub does not answer, but its files are in the local cache


def find_files(name: str | Path, revision: str | None) -> Source:
    """The files of ``name``: a shipped model, a folder, or a hub id.

    Raises:
        InputError: there is no such model, or the folder's configuration is damaged.
    """
    if isinstance(name, str):
        if not name.strip():
            raise InputError(f"name={name!r}: empty; {_names()}")
        local = shipped(name)
        if local is not None:
            return Source(str(local))
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{name}: the folder is not a model in transformers' format, it holds no config.json")
        _check_files(path)
        return Source(str(path))
    if path.is_file() and is_gguf(name):
        raise InputError(f"{name}: a GGUF file, where a model in transformers' format is needed; give its folder")
    if path.is_file():
        raise InputError(f"{name}: a file; give the folder of a model in transformers' format")
    if isinstance(name, Path) or name.startswith((".", "/", "~")):
        raise InputError(f"{name}: no such model folder")
    return _hub_source(name, revision)


def _hub_source(name: str, revision: str | None) -> Source:
    """An id on the hub; if the hub cannot answer, the local cache must have the model."""
    problem = hub_problem(name, revision=revision)
    if problem is None:
        return Source(name)
    if problem != INVALID and any(_cached(name, file, revision) for file in ("config.json", "tokenizer_config.json")):
        return Source(name, local_files_only=True)
    raise InputError(f"{name}: no such folder, and not found on the hub ({problem}); {_names()}")


def check_format(path: str) -> None:
    """Raise InputError for a folder whose weights are in pickles alone."""
    folder = Path(path)
    if any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{folder}: its weights are in .bin files, pickles, which are not read; convert them: cd {quote(path)} && "
            'python -c "import glob, torch, safetensors.torch as s; s.save_file({k: v.contiguous().clone() for f in '
            "glob.glob('pytorch_model*.bin') for k, v in torch.load(f, 'cpu', weights_only=True).items()}, "
            "'model.safetensors', {'format': 'pt'})\""
        )


def hub_problem(name: str, *, dataset: bool = False, revision: str | None = None) -> str | None:
    """The reason, in one line, why a model or dataset is not found on the hub; None if it is found.

    It makes one request with a timeout of ``HUB_SECONDS``, since the libraries retry for 20 seconds or more per file.
    """
    try:
        HfApi().repo_info(name, repo_type="dataset" if dataset else "model", revision=revision, timeout=HUB_SECONDS)
    except HFValidationError:
        return INVALID
    except RepositoryNotFoundError as error:
        return one_line(error)
    except HfHubHTTPError:  # it exists but cannot be read, or not at this revision: loading will raise the error
        return None
    except Exception as error:  # no connection: an error of the HTTP library, which differs between hub versions
        return one_line(error)
    return None


def _cached(name: str, file: str, revision: str | None) -> bool:
    return isinstance(try_to_load_from_cache(name, file, revision=revision), str)


def _names() -> str:
    """The remedy of errors about names."""
    return f"give a folder, a hub id, or a shipped model: {', '.join(shipped_models())}"


def _check_files(folder: Path) -> None:
    """Raise InputError for configuration files that are not JSON objects, and for absurd sizes.

    transformers silently ignores a damaged generation_config.json, and builds models of any size in config.json.
    """
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            continue
        values = read_object(folder / name, AGAIN)
        if name == "config.json":
            with blaming(folder / name, AGAIN):
                for size, largest in LARGEST_SIZES.items():
                    if values.get(size) is not None and not 1 <= build(int, values[size], size) <= largest:
                        raise InputError(f"{size}={values[size]}: must be between 1 and {largest}")


def one_line(error: Exception) -> str:
    """The message of ``error``, in one line of at most 500 characters."""
    text = textwrap.shorten(str(error), 500, placeholder=" …")
    plain = isinstance(error, OSError | ValueError | ImportError) or (type(error) is RuntimeError)
    return text if plain and text else f"{type(error).__name__}: {text}".removesuffix(": ")
