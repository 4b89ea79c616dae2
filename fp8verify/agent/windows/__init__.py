"""Windows of steps: when they open and close, the profiler session, what protects the script."""
