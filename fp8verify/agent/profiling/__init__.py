"""Profiling windows of steps: when to start and stop, the profiler, what protects the script."""
