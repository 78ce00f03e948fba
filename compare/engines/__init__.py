"""Other engines and servers that are measured."""
