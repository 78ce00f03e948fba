"""Costs of decoding on a GPU, and its speed compared with transformers, with random models of real sizes."""
