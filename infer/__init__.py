"""Decoding: models and their KV caches, drafters, verification, the decoding loop."""
