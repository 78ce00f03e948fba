"""Benchmarks of one part: a forward, a step's cost, memory, rollouts, the profile of a decoding run."""
