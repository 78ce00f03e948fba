"""A real model without a hub: SmolLM2-135M-Instruct out of a package on PyPI."""
