"""Controller checkpoints: configuration, weights, fingerprints and model card; saving, loading and upload."""
