"""Drafters, which propose tokens; their interface is :class:`~specpilot.infer.core.Drafter`."""
