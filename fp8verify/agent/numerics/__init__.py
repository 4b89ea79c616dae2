"""Numerics of the script: tensors of FP8 layers, scales, gradients."""
