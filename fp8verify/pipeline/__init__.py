"""Runs the steps one after the other: traces, logs and records in, a finished report out."""
