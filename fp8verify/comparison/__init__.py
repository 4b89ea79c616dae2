"""Compare two runs: is FP8 faster, and where does the gain go?"""

from fp8verify.comparison.compare import compare
from fp8verify.report.model.comparison import Comparison, Outcome

__all__ = ["Comparison", "Outcome", "compare"]
