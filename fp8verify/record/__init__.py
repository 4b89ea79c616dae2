"""Attach to a training run that knows nothing of fp8verify, and watch it from outside."""
