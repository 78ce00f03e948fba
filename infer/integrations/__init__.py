"""Integrations of the decoder into other libraries."""
