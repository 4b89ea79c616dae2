"""Compare two runs: is FP8 faster, and where does the gain go?"""
