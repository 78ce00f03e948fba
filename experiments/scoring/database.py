"""SQLite databases of questions, opened read-only."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from specpilot.common.errors import InputError


def open_database(database: Path) -> sqlite3.Connection:
    """A read-only connection.

    Raises:
        InputError: the file does not exist or is not a database.
    """
    try:
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise InputError(f"{database}: the database does not open ({error})") from error
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")  # SQLite reads the file only now
    except sqlite3.Error as error:
        connection.close()
        raise InputError(f"{database}: the database does not open ({error})") from error
    return connection


def schema(database: Path) -> str:
    """The schema as text, one line per table: its name, and its columns with their types.

    Raises:
        InputError: see :func:`open_database`.
    """
    lines = []
    with closing(open_database(database)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = connection.execute("SELECT name, type FROM pragma_table_info(?)", (name,)).fetchall()
            lines.append(f"{name}({', '.join(f'{column} {kind.lower()}'.strip() for column, kind in columns)})")
    return "\n".join(lines)
