"""Simulation of length controllers without model forwards: traces and replay."""
