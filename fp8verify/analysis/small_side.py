"""The size of a matrix below which FP8 does not pay, on its own so that the doctor is quick."""

from __future__ import annotations

# A cast reads an operand twice (amax, then cast) and writes a byte: with its layout copy some 7
# bytes an element. The product saves 2·(1/BF16 - 1/FP8 rate) a multiply-add, on an H200 10⁻¹⁵ s,
# so that about 1400 of them pay for one cast element; measured there between 512 and 2048.
SMALL_SIDE = 1024
