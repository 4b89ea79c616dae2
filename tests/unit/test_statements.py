"""Settings that ask for FP8, and what the statements of a log come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8verify.logs.claims import read_claims
from fp8verify.logs.statements import phase_at
from tests.log_text import WITH_PHASES, declared, labelled_lines, read_text


@pytest.mark.parametrize("text", [line for *_, line in labelled_lines("requested")])
def test_a_setting_that_asks_for_fp8_is_a_claim_by_configuration(text: str) -> None:
    claims = read_text(text).claims_at()
    assert {(claim.says, claim.strength) for claim in claims} == {
        ("fp8", "configuration")
    }
    assert all("8" in claim.text for claim in claims)


@pytest.mark.parametrize("text", [line for *_, line in labelled_lines("not requested")])
def test_what_asks_for_nothing_of_this_run_is_a_mention(text: str) -> None:
    found = read_text(text)
    assert all(claim.says == "revoked" for claim in found.claims_at())
    assert found.mention is not None


CLAIM = "Float8 training active with recipe rowwise"
DENIAL = "WARNING - self test failed: FP8 disabled, falling back to bf16"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([CLAIM, DENIAL], ["revoked", "not_fp8"]),
        ([CLAIM, DENIAL, CLAIM], ["revoked", "revoked", "fp8"]),
        (["fp8: true", DENIAL], ["revoked", "not_fp8"]),
        ([DENIAL, "fp8: true"], ["not_fp8", "revoked"]),
        ([CLAIM, f"2026-08-21 12:00:05,000 - {DENIAL}"], ["revoked", "not_fp8"]),
        ([CLAIM, f"10:00:05 {DENIAL}"], ["revoked", "not_fp8"]),
        ([f"[rank0]: {CLAIM}", f"[rank1]: {DENIAL}"], ["fp8", "not_fp8"]),
        ([f"0: {CLAIM}", f"3: {DENIAL}"], ["fp8", "not_fp8"]),
        ([f"[1,0]<stdout>: {CLAIM}", f"[1,3]<stdout>: {DENIAL}"], ["fp8", "not_fp8"]),
        ([f"[rank1]: {CLAIM}", f"[rank0]: {DENIAL}"], ["revoked", "not_fp8"]),
        ([CLAIM, f"{CLAIM}_with_gw_hp"], ["revoked", "fp8"]),
        (["fp8: true", "fp8: false", "fp8: true"], ["revoked", "fp8"]),
        ([f'{{"step": {step}, "fp8": true}}' for step in range(9)], ["fp8"]),
        ([CLAIM, "FP8 disabled for lm_head"], ["fp8"]),
        ([CLAIM, "FP8 disabled if the GPU is too old"], ["fp8"]),
        ([CLAIM, "Teacher: FP8 disabled"], ["fp8"]),
        ([CLAIM, "training in bf16"], ["fp8"]),
        ([CLAIM, "FP8 training disabled"], ["revoked", "not_fp8"]),
    ],
)
def test_the_last_statement_holds(lines: list[str], says: list[str]) -> None:
    assert [claim.says for claim in read_text("\n".join(lines)).claims_at()] == says


ON, OFF, STRANGER = "fp8_format: hybrid", "fp8: false", "x y\n"


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        # The switch of a section is inside of it; a value is no section.
        ("fp8:\n  enabled: true", "fp8: enabled: true"),
        ("fp8_config:\n  enabled: true", "fp8_config: enabled: true"),
        ("fp8_args = {\n  use: 1\n}", "fp8_args = { use: 1"),
        ("fp8: (enabled=true)", "fp8: (enabled=true)"),
        *((text, "") for text in ("fp8:\n  enabled: false", "fp8:\nenabled: true",
                                  "fp8: x\n  enabled: true", "data:\n  enabled: true")),
        # How FP8 is done is set also where it is off, as the same dump says.
        (ON, ON), (f"{ON}\n{OFF}", ""), (f"{OFF}\n{ON}", ""), (f"{ON}\n----\n{OFF}", ON),
        (f"{ON}\n  {OFF}", ON), (f"a:\n  {ON}\nb: 1\n  {OFF}", ON),
        (f"{OFF}\n{20 * STRANGER}{ON}", ""), (f"{OFF}\n{21 * STRANGER}{ON}", ON),
        (f"{ON}\n{20 * STRANGER}{OFF}", ""), (f"{ON}\n{21 * STRANGER}{OFF}", ON),
    ],
)  # fmt: skip
def test_what_is_around_a_setting_decides_what_it_asks_for(
    text: str, asks: str
) -> None:
    told = [claim.text for claim in read_text(text).claims_at() if claim.says == "fp8"]
    assert told == ([asks] if asks else [])


@pytest.mark.parametrize(("depth", "says"), [(0, ["fp8"]), (3, ["fp8"]), (4, [])])
def test_records_within_records_are_opened_thrice(depth: int, says: list[str]) -> None:
    text = CLAIM
    for _ in range(depth):
        text = json.dumps({"level": "info", "msg": text})
    assert [claim.says for claim in read_text(text).claims_at()] == says


@pytest.mark.parametrize(
    "prefix",
    [
        "INFO Teacher: ",
        "INFO Planned: ",
        "[teacher] ",
        "INFO teacher - ",
        "(RolloutWorker pid=3) ",
        "[RolloutWorker-1] ",
        "INFO rollout_engine | ",
        "INFO vllm.worker: ",
    ],
)
def test_a_prefix_gives_a_line_to_another_model(prefix: str) -> None:
    found = read_text(f"{prefix}FP8 training enabled")
    assert found.claims_at() == []
    assert found.mention is not None


def test_what_is_said_after_the_window_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    steps = [f"step {number} loss 2.0" for number in range(100)]
    log.write_text("\n".join([CLAIM, *steps[:50], DENIAL, *steps[50:]]))
    found = read_claims(log)
    assert [claim.says for claim in found.claims_at(10)] == ["fp8"]
    assert [claim.says for claim in found.claims_at(60)] == ["revoked", "not_fp8"]
    assert [claim.says for claim in found.claims_at()] == ["revoked", "not_fp8"]


def steps(first: int, last: int) -> str:
    return "\n".join(f"step {number} loss 2.0" for number in range(first, last))


PHASE = "Training in bf16 for the first 2000 steps"
WINDOW = steps(490, 520)
HIGH = "high_precision"


@pytest.mark.parametrize(
    ("lines", "stated"),
    [
        ([CLAIM, PHASE, WINDOW], HIGH),
        ([PHASE, CLAIM, WINDOW], HIGH),
        ([PHASE, WINDOW, CLAIM], HIGH),
        ([PHASE, CLAIM, steps(1, 9), CLAIM, WINDOW], None),
        ([PHASE, "RuntimeError: NCCL error", CLAIM, WINDOW], None),
        ([PHASE, steps(1, 9), "restart 1", PHASE, CLAIM, WINDOW], HIGH),
        ([PHASE, steps(1, 9), PHASE.replace("2000", "100"), CLAIM, WINDOW], None),
        ([CLAIM, f"[trainer] {PHASE}", WINDOW], HIGH),
    ],
)
def test_a_phase_is_stated_as_a_claim_is(lines: list[str], stated: str | None) -> None:
    with declared({"Lab": WITH_PHASES}):
        found = read_text("\n".join(lines))
    assert phase_at(found.held_at(500), 500) == stated


def test_a_rank_states_its_own_phase() -> None:
    with declared({"Lab": WITH_PHASES}):
        held = read_text(f"[rank3]: {PHASE}").held_at()
    assert [phase_at(held, 9, ranks) for ranks in ((0,), (3,))] == [None, HIGH]


@pytest.mark.parametrize(
    "line", [PHASE, "BF16 warm-up for 2000 steps", "bf16 until step 9"]
)
def test_a_sentence_of_no_row_on_a_warm_up_takes_a_claim_back(line: str) -> None:
    """Without steps that the log counts, nobody is accused of what may be meant so."""
    claims = read_text(f"{CLAIM}\n{line}").claims_at()
    assert [claim.says for claim in claims] == ["revoked", "not_fp8"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([WINDOW, CLAIM], []),
        ([steps(505, 520), CLAIM], []),
        (["Resuming from step 500", CLAIM, steps(501, 520)], ["fp8"]),
        ([CLAIM, PHASE, WINDOW], ["revoked", "not_fp8"]),
        (
            ["Mixed precision type: fp8", steps(1, 9), "Mixed precision type: bf16"],
            ["revoked"],
        ),
        ([CLAIM, "nan: FP8 training disabled", WINDOW], ["revoked", "not_fp8"]),
        ([CLAIM, "turning FP8 off for lm_head", WINDOW], ["fp8"]),
        ([CLAIM, "turning off FP8 all-gather", WINDOW], ["fp8"]),
    ],
)
def test_what_holds_at_a_window(lines: list[str], says: list[str]) -> None:
    claims = read_text("\n".join(lines)).claims_at(500, range(500, 503))
    assert [claim.says for claim in claims] == says
