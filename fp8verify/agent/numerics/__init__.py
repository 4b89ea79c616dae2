"""What the numbers of the training are: tensors of FP8 layers, scales, gradients."""
