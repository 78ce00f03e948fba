"""Quality scores of generated texts.

A score is a number in [0, 1] for one text; a report gives the mean. Scores are computed outside the measured time.
"""
