"""Predictors of acceptance: SpecDec++'s head, the lag-free head, the feature model, and the evidence they read."""
