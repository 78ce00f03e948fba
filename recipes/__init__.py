"""How the shipped models and the built-in prompts were made. Not part of the installed package."""
