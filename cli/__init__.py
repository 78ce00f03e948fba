"""The command line: its parser, the commands and the demo."""
