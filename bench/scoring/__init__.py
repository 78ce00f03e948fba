"""Scores of generated texts: how good they are, where the rest of the benchmarks says how fast they came.

Every score is a number in [0, 1] for one text; a report gives their mean. None of them is computed while a clock runs.
"""
