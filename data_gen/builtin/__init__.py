"""The built-in prompts: JSON Lines files in the package, which need no download.

There are six domains: math, sql, shell, code, prose and dialogue. The prompts of ``builtin-copy`` ask to edit,
summarise or answer questions about texts of all domains. The id, the text and the split of a prompt never change.
``README.md`` describes the files. They are checked against the hashes below when they are read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
from dataclasses import dataclass
from importlib import resources

from ...common.errors import InputError

# File → SHA-256 of the decompressed lines.
FILES = {
    "builtin": "0074e0499a4b260ddc886e52734eb9da070c6f53953e4a88209f06e781f88067",
    "builtin-large": "bc61a120883ed5f9a03588b2fa507068856a1c14ccfc7c45d510488d70ce8b10",
    "builtin-copy": "b48787b9656e7433beae3c798a8a051cc01425d6311d7827c70faefffc0041e4",
}


@dataclass(frozen=True)
class BuiltinPrompt:
    """A built-in prompt.

    Attributes:
        id: unique name of the prompt.
        domain: ``math``, ``sql``, ``shell``, ``code``, ``prose`` or ``dialogue``.
        prompt: the text.
        split: ``train``, ``validation`` or ``test``.
    """

    id: str
    domain: str
    prompt: str
    split: str


@functools.cache
def builtin_prompts(name: str) -> tuple[BuiltinPrompt, ...]:
    """Return the prompts of ``builtin``, ``builtin-large`` or ``builtin-copy``, in random order.

    Raises:
        InputError: the installed file is damaged.
    """
    file = resources.files(__package__) / f"{name}.jsonl.xz"
    try:
        lines = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{file}: cannot be read ({error}); install specpilot again") from error
    if hashlib.sha256(lines).hexdigest() != FILES[name]:
        raise InputError(f"{file}: its SHA-256 is not the expected one; install specpilot again")
    return tuple(BuiltinPrompt(**json.loads(line)) for line in lines.decode().splitlines())
