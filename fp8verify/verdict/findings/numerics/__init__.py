"""Findings on the numbers of a run: its FP8 tensors, their scales, its loss. None makes a verdict.

Each threshold stands with its source: a number of a paper, a tool or a test suite; those called
"ours" lie well outside of what sound runs showed on an H200 (docs/numerics.md).
"""
