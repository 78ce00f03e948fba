"""`specpilot export`: a run in, a controller checkpoint out."""

from __future__ import annotations

from pathlib import Path


def export(
    run: Path,
    output: Path,
    *,
    threshold: float | None = None,
    overwrite: bool = False,
    push_to: str | None = None,
    private: bool = True,
) -> None:
    """Write a training run's best head as a controller checkpoint, and push it to the hub if asked.

    Args:
        run: Run folder of `specpilot train acceptance` or `specpilot train router`.
        output: Folder of the checkpoint: config.json, model.safetensors, README.md.
        threshold: Stopping threshold h the checkpoint recommends; the paper's 0.7 by default.
        overwrite: Replace a checkpoint that is there already.
        push_to: Hub repository (owner/name) to upload the checkpoint to.
        private: Make that repository private if it is new.
    """
    from ..controllers.checkpoints.acceptance_head import push_controller
    from ..train import export as exporter
    from ..train.run_folder import run_kind

    folder = exporter.export(run, output, threshold=threshold, overwrite=overwrite)
    flag = "--router" if run_kind(run) == "router" else "--length"
    print(f"{folder}: a controller checkpoint; use it with specpilot generate {flag} {folder}")
    if push_to is not None:
        print(push_controller(folder, push_to, private=private))
