"""`specpilot export`: write a controller checkpoint from a training run."""

from __future__ import annotations

from ..options import ExportOptions


def export(options: ExportOptions) -> None:
    """Write a training run's best weights as a controller checkpoint, and push it to the hub if asked."""
    from ..controllers.checkpoints.checkpoint import push_controller, read_config
    from ..train import export as exporter

    folder = exporter.export(options.run, options.output, threshold=options.threshold, overwrite=options.overwrite)
    flag = "--router" if read_config(folder).kind == "router" else "--length"
    print(f"{folder}: a controller checkpoint; use it with specpilot generate {flag} {folder}")
    if options.push_to is not None:
        print(push_controller(folder, options.push_to, private=options.private))
