"""The one error a user is meant to read: what was given, and what to do about it.

Everything else that is raised is a defect of ours and keeps its traceback.
"""


class InputError(ValueError):
    """Bad input, said in one line: the name, the value and the remedy. The command line prints it and exits with 2."""
