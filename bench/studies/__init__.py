"""Controllers trained in many variants and replayed over held-out texts."""
