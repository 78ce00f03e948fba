"""Variants of controllers, trained and replayed over held-out outputs."""
