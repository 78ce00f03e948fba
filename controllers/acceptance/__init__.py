"""Acceptance predictors: SpecDec++'s head, the lag-free head, the feature model and the copy head; their inputs."""
