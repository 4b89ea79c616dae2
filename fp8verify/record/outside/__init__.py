"""Runs under a profiler around the process: Nsight Systems or rocprofv3 instead of Kineto."""
