"""Settings for all tests: hypothesis draws the same examples in every run, without a deadline."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
