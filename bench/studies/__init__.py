"""Studies that train controllers and replay them over held-out texts."""
