"""An OpenAI-compatible HTTP server for a decoder, with continuous batching, metrics and reloadable controllers."""
