"""Controllers: acceptance predictors, length controllers and routers, and their checkpoints."""
