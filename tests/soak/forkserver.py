"""Imported by the process that all stages are forked from, and by no other: it ends with the one that started it."""

from .processes import end_with_parent

end_with_parent()
