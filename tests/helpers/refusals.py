"""Checks of the messages about bad input."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from specpilot.common.errors import InputError


@contextmanager
def refused(words: str, start: object = "") -> Iterator[None]:
    """Expect an error of one line that begins with ``start`` and contains the pattern ``words``."""
    with pytest.raises(InputError, match=words) as error:
        yield
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(start))
