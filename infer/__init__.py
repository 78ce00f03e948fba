"""Decoding: the loop, drafters, verification, pairs and controllers."""
