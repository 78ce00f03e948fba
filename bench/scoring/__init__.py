"""Scores of generated texts: their quality, beside the speed that the rest of the benchmarks measures.

Every score is a number in [0, 1] for one text; a report gives their mean. None of them is computed while a clock runs.
"""
