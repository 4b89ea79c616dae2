"""Lay evidence and judgement out as the report: the only place that turns ns into µs."""
