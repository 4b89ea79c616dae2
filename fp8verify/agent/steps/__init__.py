"""Counting training steps: hooks on torch, the clock they drive, the framework's own numbers."""
