"""Ranks that ran the same are one line of a table; the one that differs has its own."""

from __future__ import annotations

from msgspec.structs import replace

from fp8verify import Report
from tests.captures import report_of


def of_eight_ranks() -> Report:
    """A run whose last rank ran in BF16, and whose others ran alike."""
    report = report_of("ddp_one_rank_bf16")
    good, bad = report.ranks
    assert report.proof is not None
    good_row, bad_row = report.proof.rows
    ranks = []
    rows = []
    for number in range(7):
        ranks.append(replace(good, rank=number, source=f"rank{number}.json.gz"))
        rows.append(replace(good_row, value=f"rank {number}"))
    ranks.append(replace(bad, rank=7, source="rank7.json.gz"))
    rows.append(
        replace(bad_row, value="rank 7", time_us=rows[0].time_us + 1000 * len(rows))
    )
    rows[3] = replace(rows[3], time_us=rows[3].time_us + 500)
    proof = replace(report.proof, rows=tuple(rows))
    return replace(report, ranks=tuple(ranks), proof=proof)


def test_equal_ranks_are_one_line_of_the_proof() -> None:
    text = of_eight_ranks().to_text()
    proof = text.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in proof] == ["rank", "0-6", "7"]
    assert proof[1].split()[:4] == ["0-6", "(each)", "84/90", "4.50-4.75"]
    assert "6 in BF16 (as expected)" in proof[1]
    assert "0/90" in proof[2]


def test_equal_ranks_are_one_line_of_the_ranks() -> None:
    text = of_eight_ranks().to_text(verbose=True)
    _, ranks = text.split("\nrank  verdict", 1)
    lines = ranks.split("\n\n")[0].splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [
        ["0-6", "ACTIVE"],
        ["7", "CONTRADICTED"],
    ]
    assert lines[0].endswith("rank0.json.gz … rank6.json.gz")


def test_a_rank_without_a_number_keeps_its_own_line() -> None:
    report = of_eight_ranks()
    ranks = [replace(rank, rank=None) for rank in report.ranks]
    text = replace(report, ranks=tuple(ranks)).to_text(verbose=True)
    assert all(f"rank{number}.json.gz\n" in text for number in range(8))


def test_equal_ranks_are_one_line_along_their_legs() -> None:
    report = of_eight_ranks()
    assert report.proof is not None
    good_row = report.proof.rows[0]
    rows = []
    for number in range(3):
        for leg in ("fprop", "dgrad", "wgrad"):
            row = replace(good_row, value=f"rank {number}, {leg}", low=90, high=0)
            rows.append(row)
    rows[4] = replace(rows[4], low=0, high=90, short=True)
    proof = replace(report.proof, coordinate="rank, leg", rows=tuple(rows))
    text = replace(report, proof=proof).to_text()
    lines = text.split("\n\n")[1].splitlines()[1:]
    names = [line.partition("  ")[0] for line in lines]
    assert names == [
        "rank 1, dgrad",
        "rank 1, fprop, wgrad",
        "ranks 0, 2: all legs (each)",
    ]
