"""The tables and figures of the papers, with the papers' own figures beside ours."""
