"""Watching a training while it goes on: windows judged in another process, line after line."""
