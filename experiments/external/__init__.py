"""A load generator of others against the server."""
