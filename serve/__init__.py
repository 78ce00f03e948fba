"""An OpenAI-compatible HTTP server over one decoder: continuous batching, metrics, controllers that can be replaced."""
