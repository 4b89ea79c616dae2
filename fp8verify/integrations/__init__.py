"""A training loop of one's own, callbacks of frameworks, and an analysis by another tool."""
