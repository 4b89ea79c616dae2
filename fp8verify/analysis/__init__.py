"""What is known about a run, source by source: kernels, log claims, the model's modules."""
