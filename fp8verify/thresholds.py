"""Every threshold that decides a verdict or what a report says: its value, its unit, its source.

The comment above each says what it is a share or a number of, and where it comes from; "ours" lies
well outside what sound runs showed on an H200. docs/verdicts.md lists those of the
first section.
"""

from __future__ import annotations

from typing import Final

# ---- the verdict

# Share of what is expected of a part of a run, below which it is short; share that counts as most.
HALF: Final = 0.5
# Elements that the inputs and outputs of an FP8 GEMM are a multiple of: cuBLASLt's 16 bytes.
FP8_SIDE: Final = 16
# Share of GEMM work below which what is not known, or falls short, cannot hide a leg or a layer of
# a model: adapters and routers take less.
NEGLIGIBLE: Final = 0.01
# Share of what parts lack from which one value of a coordinate explains them.
NEARLY_ALL: Final = 0.9
# Share of GEMM time in low precision that ACTIVE takes where nothing says what was to run in it.
USUAL_SHARE: Final = 0.5
# Share of GEMM FLOPs by which the expected one may be missed: shapes of padding are rounded.
TOLERANCE: Final = 0.02
# Share of GEMM time, or of launches, without shapes up to which FLOP shares are quoted.
WITHOUT_SHAPES: Final = 0.001
# Share of the time of possible GEMMs from which unrecognized kernels may hide a run in FP8: custom
# norms, losses and rotations take less than the GEMMs of a model.
MANY_OPAQUE: Final = 0.1
# Share of launches above which names prove nothing: a correlation that went astray at a window's
# edge misnames single kernels, never so many.
MANY_MISNAMED: Final = 0.05
# Share of a trace's events above which those that cannot be read may outweigh the others: a cut or a
# bad block costs single ones.
MANY_UNREADABLE: Final = 0.1
# Times the BF16 peak from which a rate cannot be a clock's or a timer's error.
PROOF_MARGIN: Final = 1.02
# GEMMs that one cast feeds at the most: q, k and v of attention, dgrad and wgrad.
GEMMS_PER_CAST: Final = 4
# Layers without dgrad at the most: query, key, value and a gate take the input of a model.
FIRST_LAYERS: Final = 4
# Blocks that only the order of calls shows: from how many of them an odd one is told, and the
# share of them below which those that ran in high precision are odd.
LEAST_BLOCKS: Final = 4
MOST_APART: Final = 0.3
# ns between the first kernels of two ranks of one run, by the clocks of their machines.
ANOTHER_RUN_NS: Final = 120 * 10**9
# Share of GEMM FLOPs of a layer size from which it is reported: routers and adapters have less.
LAYER_FLOPS: Final = 0.05
# Outputs of a layer from which it may be the head of a language model.
VOCABULARY: Final = 16384

# ---- kernels that may be products, whatever they are called

# Share of the mean time of an operator's longest kernel: others as long are tuned variants.
AS_LONG: Final = 0.5
# Share of the BF16 peak at which a poor kernel of a product runs, and the most that any can.
LEAST_RATE: Final = 0.05
MOST_RATE: Final = 1.1
# Times that the tensors of a kernel take to be read: no helper runs longer.
LONGER_THAN_MOVING: Final = 4
# Share of the time of the median GEMM, where no shapes are recorded.
AS_LONG_AS_GEMMS: Final = 0.75
# Least side of a weight; rotations' tables, routers and LoRA's halves are smaller.
LEAST_SIDE: Final = 512

# Kernels between a softmax and a product of attention: masks, dropout and casts. More of them, which
# sort tokens by expert, run behind the softmax of a router.
BEHIND_SOFTMAX: Final = 2

# FMAs in the machine code of a kernel that nothing explains, from which it may be a product in FP32.
MANY_FMAS: Final = 256

# ---- collectives

# Elements up to which an all-gather carries no weights.
FEW_ELEMENTS: Final = 4096
# Bytes a parameter of FP8 weights: two are BF16; a group whose norms or embedding stay in BF16 is
# in between.
LEAST_FP8_BYTES: Final = 0.9
MOST_FP8_BYTES: Final = 1.9
# The same of weights in FP32, with some room for padding.
MOST_BYTES: Final = 4.2
# All-reduces of one number a step that are usual: a loss, a gradient norm and a few metrics.
USUAL_SCALARS: Final = 8

# ---- speed

# Side of a GEMM below which FP8 does not pay. A cast reads an operand twice (amax, then cast) and
# writes a byte: with its layout copy some 7 bytes an element. The product saves 2·(1/BF16 - 1/FP8
# rate) a multiply-add, on an H200 10⁻¹⁵ s, so about 1400 of them pay for one cast element;
# measured there between 512 and 2048.
SMALL_SIDE: Final = 1024
# Share of the FP8 GEMM time from which small GEMMs are reported.
MANY_SMALL: Final = 0.25
# Share of the time of a kernel that Inductor fused that FP8 adds: it also does what BF16 needs
# (the runs of width 768 to 4096: 0.60 to 0.70).
ADDED_BY_FUSED: Final = 0.65
# Speed-up or slow-down up to which an estimate says that both are even; ours.
EVEN: Final = 0.05
# Up to which advice says that a fix leaves no gain over BF16; below, FP8 is slower. Ours.
NO_GAIN: Final = 0.03
# Times that BF16 takes at the size of a GEMM from which one in low precision is slow: rates of the
# table and of captures differ by less (docs/payoff.md).
SLOW_GEMM: Final = 1.1
# Side from which a product of the same sides in another order, as dgrad of the same layer, tells what
# BF16 takes: a short k is slower than a short n.
LEAST_TURNED: Final = 256
# Side from which rates were measured; below it no kernel is accused.
LEAST_MEASURED: Final = 128
# Share of GPU time that slow GEMMs cost from which they are reported; ours.
LOST: Final = 0.02
# Share of the time of eager casts that they take where a compiler fused them: on an H200 0.10
# tensorwise, 0.16 to 0.21 rowwise.
FUSED_CASTS: Final = 0.2
# Share of a step for which a GPU waits in BF16 too (benchmarks/gpu/frameworks, --group payoff).
USUAL_WAIT: Final = 0.1
# Share of a step from which the CPU is surely the bottleneck (the same benchmark).
WAITING: Final = 0.2
# Share of GPU time from which a cause, such as unfused attention, is what to fix first; ours.
COSTLY: Final = 0.1
# Share of GPU time from which casts of weights in each micro-batch are reported; ours.
RECAST: Final = 0.02
# Medians from which a step is an exception (compilation, a checkpoint), unless as large a share of
# steps is as long.
FAR: Final = 1.5
RARE: Final = 0.25
# Steps from which the correlation of neighbors can be estimated.
LONG_SERIES: Final = 10

# ---- measured tensors

# Share of values that a cast makes zero (BioNeMo, analyze_activation_underflows.py: marks > 1.0%).
UNDERFLOW: Final = 0.01
# The same of a gradient; ours: a sick layer of BioNeMo's summary_fl4.csv reached 0.092.
GRADIENT_FLUSHED: Final = 0.10
# dB of signal over a cast's noise; ours: torchao/test/float8 accepts casts from 25, whole blocks
# from 20.
SQNR_DB: Final = 20.0
# The same under MX scales; ours: torchao's tests of MXFP8 accept from 24.
SQNR_MX_DB: Final = 22.0
# dB by which another recipe must be better to be named.
WORTH_DB: Final = 1.0
# Share of values that a cast clips (FP8-LM, arXiv 2310.18313: lowers its scale from 0.001% on).
SATURATED: Final = 1e-5
# Share of blocks whose values share the last bucket; ours, after arXiv 2506.20752.
TOP_BLOCKS: Final = 0.05
# Share of rows that are all zero; ours.
ZERO_ROWS: Final = 0.01
# Times the median of the same projection in other layers; ours.
OUTLIER: Final = 100.0
# Layers that a tensor is compared with, at least.
LEAST_PEERS: Final = 3
# amax over RMS above which a typical value of E4M3 is subnormal; ours.
WIDE_E4M3: Final = 2.0**13
# Largest magnitude below which no scale helps (torchao/float8/float8_utils.py, EPS).
LEAST_AMAX: Final = 1e-12

# ---- scales, the loss

# Octaves by which a scale may be off what its history gives.
SCALE_TOLERANCE: Final = 0.02
# Times the largest amax that the history held before; ours.
SPIKE: Final = 4.0
# Steps of a history from which a spike is one.
LEAST_HISTORY: Final = 4
# Times what a scale can hold; ours: a value clipped by half, less is hard to tell from rounding.
CLIPPED: Final = 2.0
# Steps of a history that only one is used of; Transformer Engine keeps 1024 by default, Megatron 1.
LONG_HISTORY: Final = 16
# Octaves over a series or a history; ours.
MOST_OCTAVES: Final = 4.0
# Points of a series, at least.
LEAST_POINTS: Final = 5
# Times that an amax grew after the warm-up; ours: a small sound model grew 27 times in its first
# 150 steps.
GROWN: Final = 8.0
# Share of the points of a series that rise, if it grows; ours.
RISING: Final = 0.75
# Steps of a warm-up; ours.
WARM_UP_STEPS: Final = 200
# Scale of a loss, at least; ours: torch's GradScaler begins with 65,536.
LEAST_LOSS_SCALE: Final = 1.0

# ---- comparisons of two runs

# Share by which the work of two steps may differ that count as equal; ours.
SAME_WORK: Final = 0.01
# Share by which peaks of memory may differ that count as equal; ours.
SAME_MEMORY: Final = 0.02
# Difference of the shares of GEMM time in FP8 from which one run has more of it; ours.
OTHER_FP8_SHARE: Final = 0.1
# Standard deviation of two recordings of one program, however many steps they have: clocks,
# temperature, neighbors on the machine. Parts of the runs in traces/ show as much.
BETWEEN_RECORDINGS: Final = 0.007
# Speed-up or slow-down within which an interval means the same speed; ours.
SAME_SPEED: Final = 0.05
# Steps of each run from which a speed-up has an interval, and from which steps tell their variation.
LEAST_STEPS: Final = 2
ENOUGH_STEPS: Final = 5
# Variation of steps where fewer were recorded, as a share of their mean; ours.
USUAL_VARIATION: Final = 0.03
# Steps that advice names at the most.
MOST_STEPS: Final = 1000
# Correlation of neighboring steps that few steps do not show; ours.
NEIGHBORS: Final = 0.25
# Standard errors beyond which a difference is found in 80% of the comparisons: 2.1 + 0.84.
FOUND: Final = 2.94
# Times as fast, up to which GEMMs gained hardly anything: those of large layers gain 1.6 to 2.
HARDLY_FASTER: Final = 1.15
# Times as fast, below which a pair of GEMMs is slower.
SLOWER_GEMM: Final = 0.95
# Times as long from which a kernel is slower than that of a baseline: less is noise between runs.
SLOWER_KERNEL: Final = 1.2
# Share of a step by which work must have grown to explain a slow-down.
NOTICEABLE: Final = 0.02
# Steps of a log that the profiler or its warm-up may have slowed down stand this near to a window.
NEAR_WINDOW: Final = 3
# Steps without the profiler from which these are compared rather than profiled ones.
LEAST_TIMES: Final = 3

# ---- losses of two runs

# Relative gap that FP8 may have: DeepSeek-V3 (arXiv 2412.19437) keeps below 0.25%, most guides
# expect 1%, and none more than 5%.
EXPECTED_GAP: Final = 0.01
MOST_GAP: Final = 0.05
# Step up to which a run diverges early; ours.
EARLY_STEPS: Final = 50
# Epochs by which equal points of two logs may differ: transformers rounds them to two digits.
SAME_EPOCH: Final = 0.02
# Blocks of losses whose means are compared, and losses from which there is a trend; ours.
LOSS_BLOCKS: Final = 8
LEAST_LOSSES: Final = 8
# Losses of the median that a single loss is compared with.
ROLLING: Final = 5
# Times by which a gap, or a loss, must grow to be growing; ours.
LOSS_GROWTH: Final = 1.5
# Losses of a third of the steps from which its gap is compared with that of the last; ours.
LEAST_OF_A_THIRD: Final = 4
# Medians of the differences of neighbors, over the root of their number, that count as the error of
# the mean gap of a third; ours.
THIRD_ERRORS: Final = 3
# Blocks from which the error of their mean is known, and the two-sided quantiles of Student's t for
# 99.9% from so many blocks on, whose degrees of freedom are two fewer.
LEAST_LOSS_BLOCKS: Final = 3
STUDENT: Final = (636.6, 31.60, 12.92, 8.61, 6.87, 5.96)
# Last digits that two printed losses may differ by without a gap; rounding of sums comes on top.
PRINTED_DIGITS: Final = 1.001
# Loss that counts as infinite: a larger one cannot be squared. Relative gap that a larger one is
# taken for: a loss that explodes stays a number.
INFINITE_LOSS: Final = 1e150
LARGEST_GAP: Final = 1e12
# Relative gap from which a sentence says how many times the baseline's a loss is; ours.
TOLD_AS_TIMES: Final = 10

# ---- sentences

# Names, names in a verdict's reason, numbers, and rows of the proof that are shown; of more the
# first, and how many more.
SHOWN: Final = 4
SHOWN_IN_REASON: Final = 3
SHOWN_NUMBERS: Final = 8
SHOWN_ROWS: Final = 256
# Entries of the ledger: enough for 80 blocks that all run differently in eight executions.
SHOWN_ENTRIES: Final = 20_000
