"""Drafters, which propose tokens; their interface is :class:`~specpilot.infer.request.Drafter`."""
