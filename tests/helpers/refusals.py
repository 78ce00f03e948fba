"""Checks of the messages about bad input."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from specpilot.common.errors import InputError


@contextmanager
def refused(words: str, start: object = "") -> Iterator[None]:
    """An error of one line in which the pattern ``words`` is found, and which begins with ``start``."""
    with pytest.raises(InputError, match=words) as error:
        yield
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(start))
