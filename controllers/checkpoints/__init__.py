"""Controller checkpoints: configuration, weights, fingerprint and model card, saved, loaded and pushed."""
