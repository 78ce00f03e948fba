"""Controllers of other papers, written with the extension points that every user has."""
