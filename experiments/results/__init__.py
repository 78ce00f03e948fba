"""All numbers of the documentation, measured anew: the commands, and the tables made from their results."""
