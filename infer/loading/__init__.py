"""From names to models, tokenizers, drafts, controllers and defaults."""
