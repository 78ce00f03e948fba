"""Simulation of length controllers without model forwards: traces, replay and a Markov model."""
