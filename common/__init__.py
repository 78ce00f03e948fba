"""Errors, options, JSON files, locks, the machine and progress bars, which every part uses."""
