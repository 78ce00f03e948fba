"""The verbs of the command line, one file each. Heavy imports stand inside the functions."""
