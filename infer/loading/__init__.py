"""Loads pairs, routers and controllers by name."""
