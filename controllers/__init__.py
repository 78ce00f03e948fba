"""Controllers: acceptance predictors, length controllers and routers, and their checkpoints.

This file defines limits of options, so that modules of options need no slow imports.
"""

MAX_DRAFT = 20  # maximum number of tokens drafted in one round
MAX_DEPTH = 64  # residual blocks of an acceptance head; protects against a damaged config.json
