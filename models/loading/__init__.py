"""From names to models, tokenizers, drafts and their default sampling parameters."""
