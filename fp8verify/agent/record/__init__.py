"""Writing down what was seen: which process this is, its record, its files and its debug log."""
