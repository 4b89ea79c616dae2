"""Plain sentences: what is claimed in words of the table alone, and that any other word stops it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.logs import plain

CLAIMS = (
    "FP8 training enabled",
    "Using MXFP8 autocast",
    "Converted 48 linear layers to Float8Linear",
    "Swapped torch.nn.Linear for Float8Linear",
    "FP8 mixed precision: True",
    "Float8 conversion complete",
)
DENIALS = (
    "FP8 training disabled",
    "FP8 training enabled: False",
    "Float8 conversion failed",
    "Using BF16 training instead",
    "falling back to bf16",
    "No FP8 training enabled",
    "BF16 warm-up for 100 steps",
)


COUNTED = (
    "FP8Linear is active in 21 linear layers (head in bf16)",
    "Converted 48 linear modules to Float8Linear, 2 stay in bf16",
    "float8: 96 linears converted; router and head in bf16",
)


def says(text: str) -> str | None:
    clause = plain.read(text)
    return None if clause is None else clause.says


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("BF16 warm-up for 100 steps", 100),
        ("fp8: BF16 for the first 4 steps, then float8 in 21 linear layers", 4),
        ("Using BF16 until step 8", 8),
        ("BF16 warm-up", None),
        ("BF16 in the first 2 layers", None),
        ("FP8 training active until step 8", None),
        ("falling back to bf16 in step 12", None),
        ("FP8 training disabled for 16 layers", None),
    ],
)
def test_what_holds_for_a_while_says_until_which_step(
    text: str, until: int | None
) -> None:
    clause = plain.read(text)
    assert clause is not None
    assert (clause.says, clause.until) == ("not_fp8", until)


def test_the_table_has_sixty_words_at_most() -> None:
    words = [word for words in plain.table().values() for word in words]
    assert len(words) <= 60
    assert len(words) == len(set(words))


@pytest.mark.parametrize("text", CLAIMS)
def test_a_sentence_of_these_words_claims(text: str) -> None:
    assert says(text) == "fp8"


@pytest.mark.parametrize("text", COUNTED)
def test_a_claim_that_counts_its_layers_leaves_the_others(text: str) -> None:
    assert says(text) == "fp8"


@pytest.mark.parametrize(
    "text",
    [
        "FP8Linear is active (head in bf16)",
        "FP8 training enabled in 32 layers (head in bf16)",
    ],
)
def test_a_claim_that_counts_none_or_for_a_while_is_taken_back(text: str) -> None:
    assert says(text) is None


@pytest.mark.parametrize("text", DENIALS)
def test_a_sentence_of_these_words_denies(text: str) -> None:
    assert says(text) == "not_fp8"


@pytest.mark.parametrize(
    "text",
    [
        "Skipping bf16 warm-up",
        "fp8_training: true",
        "The reference model: BF16 warm-up for the first 8 steps",
        "Teacher: FP8 training disabled",
        "FP8 training enabled for the first 8 steps, until BF16",
        "training in bf16",
        "Swapped own.Linear for Float8Linear",
        "Replaced 224 FP8Linear modules with nn.Linear",
        "Swapped Float8Linear for Linear",
    ],
)
def test_what_these_words_cannot_say_claims_nothing(text: str) -> None:
    assert says(text) != "fp8"
    assert says(text) != "not_fp8" or text.startswith("FP8")


@pytest.mark.parametrize(
    ("prefix", "text", "said"),
    [
        ("[fp8] ", "96 linear layers converted, scaling=tensor scope=ffn", "fp8"),
        ("[rank3] [FP8] ", "converted 96 linear layers", "fp8"),
        ("", "FP8: converted 48 linear layers", "fp8"),
        ("[fp8] ", "conversion failed", "not_fp8"),
        ("[fp8] [rank3] ", "converted 96 linear layers", None),
        ("[fp8_utils] ", "converted 96 linear layers", None),
        ("[fp8] ", "layers: 96", None),
        ("[fp8] ", "converted 96 attention masks", None),
        ("", "FP8: disabled, 96 linear layers converted", None),
        ("", "converted 96 linear layers", None),
    ],
)
def test_a_format_before_a_sentence_is_what_it_is_about(
    prefix: str, text: str, said: str | None
) -> None:
    clause = plain.read(text, prefix)
    assert (clause.says if clause else None) == said


@given(
    st.sampled_from([*CLAIMS, *DENIALS]),
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=12),
    st.integers(0, 8),
)
def test_a_word_that_is_not_in_the_table_leaves_no_claim(
    text: str, word: str, place: int
) -> None:
    words = text.partition(":")[0].split()
    words.insert(place, word)
    is_known = plain._meaning(word) != "unknown" or plain._low().search(word)
    if not is_known:
        assert says(" ".join(words)) is None


@pytest.mark.parametrize(
    "rest",
    [
        ", skipped because no layer matched",
        " (disabled on this GPU)",
        "; emulated in bf16",
        " (dry run)",
        ": unset",
        ": []",
        " [SKIPPED]",
        ", if torchao is installed",
        " (0 layers)",
        " -> no",
        '", flush=True)',
        "?",
        ": {value}",
        "\u5931\u8d25",
    ],
)
def test_what_follows_may_take_a_claim_back(rest: str) -> None:
    assert says(f"FP8 training enabled{rest}") != "fp8"


@pytest.mark.parametrize(
    "rest",
    [
        ". Evaluation runs in bf16.",
        " (static_scale=False)",
        ", evaluating every 100 steps",
        " [48 layers]",
        " \u2014 nn.Linear replaced",
        ": Float8LinearConfig(recipe='rowwise')",
    ],
)
def test_what_follows_may_say_something_else(rest: str) -> None:
    assert says(f"FP8 training enabled{rest}") == "fp8"
