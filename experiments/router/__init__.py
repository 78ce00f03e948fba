"""``specpilot bench router``: routers on held-out prompts, and the tables of assistant selection (Huang et al. 2024).

Shapes: N held-out prompts, A arms.
"""
