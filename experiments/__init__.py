"""Recipes of the shipped models and the built-in prompts. Not part of the installed package."""
