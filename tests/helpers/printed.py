"""Commands that a command prints."""

import shlex


def printed_arguments(output: str) -> list[str]:
    """Return the arguments of the ``specpilot`` command after "Decode with it" in ``output``, as a shell reads them."""
    program, *arguments = shlex.split(output.split(" Decode with it: ")[1].splitlines()[0])
    assert program == "specpilot"
    return arguments
