"""What makes datasets: prompt sources, batched rollouts, labels, shards."""
