"""Tests that `make test` runs with a few cases, and `make test-slow` runs again with many."""

import os
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import settings

THOROUGH = "THOROUGH" in os.environ  # set by `make test-slow`, which also runs what is marked `thorough`
Test = TypeVar("Test", bound=Callable[..., None])


def examples(few: int, many: int) -> Callable[[Test], Test]:
    """Let hypothesis try ``few`` examples in `make test` and ``many`` in `make test-slow`."""

    def limited(test: Test) -> Test:
        return pytest.mark.thorough(settings(max_examples=many if THOROUGH else few)(test))

    return limited
