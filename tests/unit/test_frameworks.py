"""What users declare of their own frameworks, and which expressions are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8verify import frameworks
from fp8verify.errors import UsageError
from fp8verify.frameworks.expressions import fault_of, fixed_word
from fp8verify.frameworks.known import declare
from fp8verify.logs.losses import read_losses
from tests.command_line import fp8verify, refused
from tests.log_text import read_text

OURS = {
    "claims": [r"engine: (?P<recipe>\w+) GEMMs on"],
    "denials": ["engine: GEMMs off"],
    "loss": r"it (?P<step>\d+) obj (?P<loss>[\d.]+)",
    "counters": [{"cls": "lab.train.Loop", "method": "advance", "path": "state.it"}],
    "modules": {"lab.FastLinear": "mxfp8"},
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    declare({}, "")


def test_a_declared_line_claims_and_another_takes_it_back(tmp_path: Path) -> None:
    declare({"Lab": OURS}, "fp8verify.toml")
    claims = read_text(
        "start\n2026-01-01 10:00:00 INFO engine: mxfp8 GEMMs on, 48 layers"
    ).claims_at()
    assert [(one.framework, one.line, one.says, one.recipe) for one in claims] == [
        ("Lab", 2, "fp8", "mxfp8")
    ]
    assert claims[0].text == "engine: mxfp8 GEMMs on, 48 layers"
    both = read_text("engine: mxfp8 GEMMs on\nengine: GEMMs off")
    assert [one.says for one in both.claims_at()] == ["revoked", "not_fp8"]
    (tmp_path / "train.log").write_text("it 7 obj 2.5\nit 8 obj 2.25\n")
    losses = read_losses([tmp_path / "train.log"])
    assert losses is not None
    assert (losses.framework, losses.points) == ("Lab", {7: 2.5, 8: 2.25})


def test_the_agent_is_told_of_counters_and_classes() -> None:
    declare({"Lab": OURS}, "fp8verify.toml")
    told = frameworks.for_agent()
    assert told["modules"]["lab.FastLinear"] == "mxfp8"
    assert told["modules"]["transformers.Conv1D"] == "high_precision"
    names = [row["shown"] for row in told["counters"]]
    assert "lab" in names
    # Trainers count before the engine that they drive.
    assert max(names.index("transformers"), names.index("lightning")) < names.index(
        "deepspeed"
    )


def test_a_declared_class_computes_what_the_settings_say() -> None:
    torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
    from fp8verify.agent import precision

    class FastLinear(torch.nn.Linear):  # type: ignore[misc, name-defined]
        __module__ = "lab.layers"

        def forward(self, x: object) -> object:
            return x

    layer = FastLinear(16, 16)
    assert precision.promise_of(layer, layer.weight).state == "unknown"
    precision.declare({"lab.FastLinear": "mxfp8"})
    try:
        promise = precision.promise_of(layer, layer.weight)
    finally:
        precision.declare({})
    assert (promise.state, promise.formats["wgrad"]) == ("fp8", "mxfp8")


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        (r"step (?P<step>\d+).*loss (?P<loss>[\d.]+)", "step "),
        (r"engine(?: v\d)? on(?:, .{1,40})?", "engine"),
        (r"(?:\w{1,20} ){0,5}FP8 on", "fp8 on"),
        (r".{0,80}engine .{0,80}on", "engine "),
        (r"epoch\s+(\d+) step (?P<step>\d+) loss (?P<loss>[\d.]+) lr", " step "),
        (r"(\w+ )+FP8 on", "fp8 on"),
    ],
)
def test_an_expression_that_ends_is_taken_and_its_word_sought(
    expression: str, word: str
) -> None:
    assert (fault_of(expression), fixed_word(expression)) == (None, word)


@pytest.mark.parametrize(
    "expression",
    [
        "(", r"\d+", "(a+)+ FP8", "(a|aa)* FP8", "(?:a*b?)*FP8", "(.{0,80}a){9}FP8", ".*.*.*fp8$",
        ".*.*.*FP8", "(a?){30}a{30}zzz", "a?" * 30 + "a" * 30, "((a{0,50}){0,50}){0,50}bcd",
        "x" * 2000,
    ],
)  # fmt: skip
def test_an_expression_that_may_take_forever_is_refused(expression: str) -> None:
    assert fault_of(expression) is not None
    with pytest.raises(UsageError) as caught:
        declare({"Lab": {"claims": [expression]}}, "fp8verify.toml")
    assert f"fp8verify.toml: frameworks.Lab: {expression[:80]!r}" in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        "frameworks = 3",
        "[frameworks.Lab]\nclaim = ['x y z']",
        "[frameworks.Lab]\nclaims = 'x y z'",
        "[frameworks.Lab]\nloss = 'loss (\\d+)'",
        "[frameworks.Lab]\nclaims = ['(a+)+ FP8']",
        "[frameworks.Lab]\nmodules = { \"lab.Linear\" = \"fast\" }",
        "[[frameworks.Lab.counters]]\ncls = 'lab.Loop'",
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_in_two_lines(table: str, tmp_path: Path) -> None:
    (tmp_path / "fp8verify.toml").write_text(table)
    fact, _ = refused(fp8verify("explain", "claimed-not-active", cwd=tmp_path))
    assert "fp8verify.toml: frameworks" in fact


@pytest.mark.parametrize(("mode", "is_read"), [(0o644, True), (0o664, False)])
def test_only_a_file_of_ones_own_declares_frameworks(
    mode: int, tmp_path: Path, *, is_read: bool
) -> None:
    settings = tmp_path / "pyproject.toml"
    settings.write_text(
        "[tool.fp8verify.frameworks.Lab]\nclaims = ['engine: GEMMs on']\n"
    )
    settings.chmod(mode)
    (tmp_path / "train.log").write_text("one\nengine: GEMMs on\n")
    done = fp8verify("inspect", "--log", "train.log", "--format", "json", cwd=tmp_path)
    claims = [
        (one["framework"], one["line"]) for one in json.loads(done.stdout)["claims"]
    ]
    assert claims == ([("Lab", 2)] if is_read else [])
