"""Controllers: acceptance predictors, length controllers and routers, and their checkpoints.

Limits stand here for options, which import nothing that takes long.
"""

MAX_DRAFT = 20  # maximum number of tokens drafted in one round
MAX_DEPTH = 64  # residual blocks of an acceptance head; protects against a damaged config.json
