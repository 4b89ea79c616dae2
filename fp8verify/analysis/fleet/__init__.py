"""Working through the traces of many ranks: in this process, in others, on other machines."""

from fp8verify.analysis.fleet.ranks import OnProgress, gather_ranks

__all__ = ["OnProgress", "gather_ranks"]
