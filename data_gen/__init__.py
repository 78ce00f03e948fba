"""Data generation: prompt sources, batched rollouts, labels, shards."""
