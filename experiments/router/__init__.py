"""The study of routers, with the tables of assistant selection (Huang et al. 2024): N held-out prompts, A arms."""
