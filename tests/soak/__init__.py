"""``make soak``: every stage and the server are killed, starved and given damaged files, and must end the same."""
