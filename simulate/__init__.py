"""Traces, replay and the Markov model: what a length controller would do, without the model's forwards."""
