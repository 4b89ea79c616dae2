"""A training loop of one's own, callbacks of frameworks, and an analysis by another tool."""

import fp8verify.report  # noqa: F401 - gives the results their writers
