"""Numerics of the training: tensors of FP8 layers, scales, gradients."""
