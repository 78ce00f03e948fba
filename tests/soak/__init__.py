"""``specpilot bench faults``: every stage is killed, starved and given damaged files, and must end the same."""
