"""Models of transformers as GGUF files."""
