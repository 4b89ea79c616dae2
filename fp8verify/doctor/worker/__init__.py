"""Scripts that the doctor runs in the Python of the training."""
