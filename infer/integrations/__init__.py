"""The decoder inside other libraries."""
