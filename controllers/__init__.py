"""What decides: acceptance head, length controllers; their configurations, checkpoints and fingerprints."""
