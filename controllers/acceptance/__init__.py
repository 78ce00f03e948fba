"""Acceptance predictors: SpecDec++'s head, the lag-free head and the feature model, and their inputs."""
