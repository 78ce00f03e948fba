"""``specpilot train copies``: trains a copy head on a target's own texts and writes a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ..common.errors import InputError
from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..data_gen.dataset import read_manifest
from ..data_gen.documents import answers
from ..infer.loading.devices import pick_device
from ..infer.loading.names import load_any_model
from ..infer.models import output_embedding
from .copy_data import CopyDataModule
from .copy_module import CopyModule
from .datasets import check_same, joint_fingerprint, joint_sampling
from .fitting import TrainingResult, completed, discarding, fit, threads, writable
from .nodes import training_in
from .options import CopyTrainingOptions
from .run_folder import Run, begin_run, read_checkpoint

KIND = "copies"


def train_copies(settings: CopyTrainingOptions, *, output: Path, resume: bool = False) -> TrainingResult:
    """Train a copy head.

    Args:
        settings: data and settings.
        output: run folder to create. A complete run is not changed.
        resume: continue the unfinished run in ``output``, or begin one if there is none.

    Raises:
        InputError: the data is incomplete, malformed or of several targets; the target is missing or another one;
            ``output`` holds a run with other settings, or an unfinished one and ``resume`` is false; training diverges;
            the disk is full.
    """
    dataset, output = copies_identity(settings), Path(output)
    with writable(output), training_in(output, settings), threads(settings.threads):
        return completed(output, settings, dataset, lambda run: _train(run, output, settings, dataset), resume=resume)


def copies_identity(settings: CopyTrainingOptions) -> dict[str, Any]:
    """The joint manifest of the datasets, of which only the target matters.

    Raises:
        InputError: one of them has no manifest, or is of another target.
    """
    manifests = [
        manifest | {"fingerprint": {name: manifest["fingerprint"][name] for name in ("target", "tokenizer")}}
        for manifest in map(read_manifest, settings.folders)
    ]
    check_same(settings.folders, manifests, ("fingerprint",))
    first = manifests[0]
    return {
        **{name: first[name] for name in ("schema_version", "fingerprint")},
        "kind": KIND,
        "predictor": KIND,
        "target": settings.target or first["target"],
        **joint_sampling(manifests),
        "complete": True,
        "shards": [],
        "datasets": [manifest["dataset_fingerprint"] for manifest in manifests],
        "dataset_fingerprint": joint_fingerprint(manifests),
    }


def _train(
    run: Run[CopyTrainingOptions] | None, output: Path, settings: CopyTrainingOptions, dataset: dict[str, Any]
) -> dict[str, Any]:
    """Load the texts and the target's embedding, begin or continue the run and train; return the result."""
    target = dataset["fingerprint"]["target"]
    documents = [document for folder in settings.folders for document in answers(Path(folder), target)]
    data = CopyDataModule(documents, _embedding(dataset), settings)
    run = run or begin_run(output, settings, dataset)
    run.log_command()
    module = CopyModule(settings, data)
    print(
        f"{len(data.training.kept):,} copied tokens to train on, {len(data.validation.kept):,} held out, "
        f"{data.total_steps} steps; {sum(p.numel() for p in module.head.parameters()):,} parameters"
    )
    with discarding(run):
        fit(run, module, data, pick_device(settings.device))
    result = {name: value for name, value in read_checkpoint(run.best).items() if name != "head"}
    run.complete(result)
    return result


def _embedding(dataset: dict[str, Any]) -> Tensor:
    """(V, d) the output embedding of the target that wrote the texts.

    Raises:
        InputError: the target is missing, or another one.
    """
    name = dataset["target"]
    model = load_any_model(name, dtype="float32", device="cpu", decoder_only=True)
    if model_fingerprint(model) != dataset["fingerprint"]["target"]:
        raise InputError(f"target={name!r}: is not the target whose texts these are; give that one")
    return output_embedding(model).clone()  # the rest of the model is freed
