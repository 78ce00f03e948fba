"""The commands, one file per verb. Slow imports are inside the functions."""
