"""Benchmarks of whole generations on prompts: decoders, batches, routers, question answering."""
