"""Runs the steps one after the other: traces, logs and records in, a finished report out."""

import fp8verify.report  # noqa: F401 - gives the results their writers
