"""Laws of the verdict, over random runs whose truth is known and over the captures that ship.

One law over any captures (folders, or folders of captures), with what breaks it:

    python -m tests.laws traces/fp8_compiled --law flip --every
    python -m tests.laws traces --law time,order,sources,repetition,outside
    python -m tests.laws --random 200 --law sound,sources --seed 7

`--seed` and the label that is printed with each broken law (`random 7`) repeat one case:
`python -m tests.laws --random 1 --seed 7 --law flip --keep DIR` leaves its captures in DIR.
`python -m benchmarks.laws` publishes the counts.
"""
