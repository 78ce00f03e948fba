"""Compares decoders: replay and clock, costs, intervals, results."""
