"""What decodes: models and their KV caches, drafting, verification, the decoder loop."""
