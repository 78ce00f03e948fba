"""Execution accuracy of SQL, as Spider is scored (Yu et al. 2018): a query is right if its rows are the reference's.

The database is opened read-only and only SELECT statements are authorised. A query is stopped after ``SECONDS`` and
after ``MOST_ROWS`` rows.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from specpilot.common.errors import InputError

from .database import open_database

SECONDS = 5.0
MOST_ROWS = 100_000
MOST_BYTES = 10_000_000  # of one value
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

Rows = list[tuple[Any, ...]]


def extract_sql(text: str) -> str:
    """The first query in a text or its fenced block: from SELECT or WITH up to a semicolon or blank line."""
    fenced = re.search(r"```(?:sql\w*)?\s*(.*?)(?:```|$)", text, re.DOTALL | re.IGNORECASE)
    if fenced:
        text = fenced[1]
    found = re.search(r"\b(?:select|with)\b.*?(?=;|\n\s*\n|$(?![\s\S]))", text, re.DOTALL | re.IGNORECASE)
    return found[0].strip() if found else ""


def run_query(database: Path, query: str, seconds: float = SECONDS) -> Rows:
    """The rows that a query returns.

    Raises:
        InputError: the database cannot be opened.
        sqlite3.Error: the query is wrong, writes, or takes too long or too much.
    """
    with closing(open_database(database)) as connection:
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
        rows = connection.execute(query).fetchmany(MOST_ROWS + 1)
    if len(rows) > MOST_ROWS:
        raise sqlite3.OperationalError(f"more than {MOST_ROWS} rows")
    return rows


def sql_score(text: str, gold: str, database: Path) -> float:
    """1 if the query in ``text`` returns the rows of ``gold``, in the same order if ``gold`` has ORDER BY; else 0.

    Raises:
        InputError: the database does not open, or the gold query does not run.
    """
    try:
        right = run_query(database, gold)
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise InputError(f"{database}: the reference query does not run ({error}): {gold}") from error
    try:
        found = run_query(database, extract_sql(text))
    except (sqlite3.Error, sqlite3.Warning, UnicodeEncodeError, ValueError):
        return 0.0
    ordered = re.search(r"\border\s+by\b", gold, re.IGNORECASE)
    return float(found == right if ordered else Counter(found) == Counter(right))
