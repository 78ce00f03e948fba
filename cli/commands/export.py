"""`specpilot export`: write a controller checkpoint, or a draft, from a training run."""

from __future__ import annotations

from ..train.options import ExportOptions


def export(options: ExportOptions) -> None:
    """Write a training run's best weights as a controller checkpoint or a draft, and push it to the hub if asked."""
    from ..common.quiet import quiet
    from ..controllers.checkpoints.checkpoint import push_controller, read_config
    from ..controllers.checkpoints.hub import upload
    from ..infer.loading.draft_folder import is_draft
    from ..train import export as exporter

    quiet()
    folder = exporter.export(options.run, options.output, threshold=options.threshold, overwrite=options.overwrite)
    if is_draft(folder):
        print(f"{folder}: a draft; use it with specpilot generate --draft {folder}")
        if options.push_to is not None:
            files = [path.name for path in folder.iterdir()]
            print(
                upload(
                    folder, options.push_to, files, message="Upload draft", private=options.private,
                    token=None, revision=None,
                )
            )  # fmt: skip
        return
    given_as = read_config(folder).given_as
    flag = "--draft ngram --copies" if given_as == "copies" else f"--{given_as}"
    print(f"{folder}: a controller checkpoint; use it with specpilot generate {flag} {folder}")
    if options.push_to is not None:
        print(push_controller(folder, options.push_to, private=options.private))
