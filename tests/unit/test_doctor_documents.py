"""Files that a user might hand to the doctor by mistake, or a stranger by intent."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8verify.errors import Fp8VerifyError, InputError
from fp8verify.preflight import launch_script
from fp8verify.preflight.documents import MAX_BYTES, MAX_VALUES, read_document
from fp8verify.preflight.frameworks import recognize
from fp8verify.preflight.launch import read_launch
from fp8verify.preflight.rules import judge
from tests import doctor_files as files
from tests.doctor_files import facts_of, write

MERGES = "a0: &a0 {x: 1, y: 2, z: 3}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("flow.yaml", "[" * 100_000, "nest"),  # in PyYAML's words since 6.0.4
        ("base60.yaml", f"a: {':'.join(['59'] * 4000)}\n", "more than 300 digits"),
        ("key.toml", f"[{'a' * 300}]\nb = 1\n", "a key has more than 256 characters"),
        ("digits.json", f'{{"a": {"1" * 400}}}', "more than 300 digits"),
        ("large.json", "1" * (MAX_BYTES + 1), "larger than 1 MB"),
        ("tag.yaml", "mixed_precision: !theirs fp8\n", "tag '!theirs'"),
        ("control.yaml", "a: \x01\n", "control characters"),
        ("deep.json", "[" * 100_000 + "]" * 100_000, "recursion"),
        ("mark.json", '\ufeff{"a": 1}', "UTF-8 BOM"),
        ("huge.toml", f"a = 0x{'f' * 5000}\n", "more than 300 digits"),
        ("twice.toml", "a = 1\na = 2\n", "Cannot overwrite a value"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=says) as refused:
        read_document(path)
    assert path in str(refused.value)
    assert refused.value.hint


def test_merge_keys_do_not_multiply_without_bound(tmp_path: Path) -> None:
    path = write(
        tmp_path, "merges.yaml", MERGES
    )  # PyYAML merges a mapping once since 6.0.4
    with suppress(InputError):
        assert len(read_document(path).values) <= MAX_VALUES


@pytest.mark.parametrize(
    ("name", "says"), [("", "Is a directory"), ("gone.yaml", "No such file")]
)
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_document(f"{tmp_path}/{name}")


def test_a_byte_order_mark_before_yaml_is_read_over(tmp_path: Path) -> None:
    path = write(tmp_path, "mark.yaml", "\ufeffmixed_precision: fp8\n")
    assert read_document(path).values == {"mixed_precision": "fp8"}


def test_merged_keys_count_as_the_mapping_s_own(tmp_path: Path) -> None:
    text = "base: &base\n  backend: TE\nfp8_config:\n  <<: *base\n  margin: 0\n"
    document = read_document(write(tmp_path, "a.yaml", text))
    assert document.values["fp8_config.backend"] == "TE"
    assert (
        document.lines["fp8_config.backend"],
        document.lines["fp8_config.margin"],
    ) == (2, 5)


def test_keys_of_json_have_their_lines(tmp_path: Path) -> None:
    text = '{\n  "said": "\\"a\\": no",\n  "a": {\n    "b": 1},\n  "c": {"b": 2}\n}\n'
    document = read_document(write(tmp_path, "a.json", text))
    assert document.lines == {"said": 2, "a": 3, "a.b": 4, "c": 5, "c.b": 5}


def test_a_long_file_of_json_is_read_in_one_pass(tmp_path: Path) -> None:
    keys = {f"key_{number}": number for number in range(MAX_VALUES)}
    document = read_document(write(tmp_path, "long.json", json.dumps(keys, indent=0)))
    assert document.lines[f"key_{MAX_VALUES - 1}"] == MAX_VALUES + 1


def test_what_variables_add_to_a_script_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_script, "MAX_GROWTH", 1000)
    text = (
        f"A={'x' * 200}\n" + "run --name $A\n" * 5 + "run --first $A\nrun --last $A\n"
    )
    values = read_document(write(tmp_path, "launch.sh", text)).values
    assert values["first"] == "x" * 200
    assert values["last"] == "$A"
    monkeypatch.setattr(launch_script, "MAX_GROWTH", 1 << 20)
    assert read_document(write(tmp_path, "launch.sh", text)).values["last"] == "x" * 200


def test_a_variable_that_doubles_itself_stays_short(tmp_path: Path) -> None:
    text = "A=xxxxxxxx\n" + "A=$A$A\n" * 60 + "python train.py --hidden-size $A\n"
    document = read_document(write(tmp_path, "launch.sh", text))
    assert len(document.values["hidden-size"]) < 20_000


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["a.yaml", "a.toml", "a.json", "a.sh", "a.py", "a"]),
    st.one_of(
        st.binary(max_size=200),
        st.text(alphabet="{}[]:,-&*!<>|\"'#\n =$()ab1\\", max_size=80).map(str.encode),
    ),
)
def test_no_bytes_make_anything_but_a_reading_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(data)
    with suppress(Fp8VerifyError):
        read_launch([str(path)], [], {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("calls.py", "convert_to_float8_training(m)\n" * 20_000),
        ("open.py", "(" * 90_000),
        (
            "keys.yaml",
            "base_model: x\n" + "".join(f"sequence_lenn{i}: 1\n" for i in range(9000)),
        ),
        ("here.sh", "".join(f"bash <<E{i}\n" for i in range(20_000))),
        ("tables.toml", "".join(f"[s{i}.t]\n" for i in range(30_000))),
    ],
)
def test_many_keys_and_calls_end_in_few_checks(
    tmp_path: Path, name: str, text: str
) -> None:
    facts = facts_of(write(tmp_path, name, text))
    assert len(list(judge(facts))) < 40


MUSUBI = (
    "accelerate launch --mixed_precision bf16 train_network.py --dataset_config {} "
    "--fp8_base --fp8_scaled --network_module networks.lora"
)


def test_an_option_that_names_a_data_set_is_no_configuration(tmp_path: Path) -> None:
    data = write(
        tmp_path, "data.toml", "[general]\nfp8 = true\nmixed_precision = 'no'\n"
    )
    script = write(tmp_path, "train.sh", MUSUBI.format(data))
    command = MUSUBI.format(data).split()
    for facts in (
        facts_of(script),
        facts_of(command=command),
        facts_of(command=[*command[:-1], f"--dataset_config={data}"]),
    ):
        checks = [c for c in judge(facts) if c.code not in ("fp8-units", "versions")]
        assert [c.code for c in checks if c.status.value != "skipped"] == [
            "stored-not-multiplied"
        ]
        assert not any(c.file == data for c in checks)


def test_a_recipe_that_the_machine_chooses_is_to_be_checked_there(
    tmp_path: Path,
) -> None:
    own = write(tmp_path, "own.yaml", "model: x\nfp8_recipe: auto\nfp8: true\n")
    (found,) = [c for c in judge(facts_of(own)) if c.code == "fp8-mentioned"]
    assert (
        "fp8_recipe: auto is decided where the model runs: check what ran"
        in found.message
    )


def test_memory_that_fp8_weights_do_not_save_is_told_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    text = files.MEGATRON_SH.replace("--bf16", "--bf16 --optimizer-cpu-offload")
    codes = [c.code for c in judge(facts_of(write(tmp_path, "a.sh", text)))]
    assert "weights-save-no-memory" in codes
    codes = [
        c.code for c in judge(facts_of(write(tmp_path, "b.sh", files.MEGATRON_SH)))
    ]
    assert "weights-save-no-memory" not in codes


@pytest.mark.parametrize(
    "script",
    [
        "megatron sft --model X --train_type lora --fp8_format e4m3 --fp8_param_gather true",
        'ARGS=(--tuner_type lora --fp8_format e4m3)\nmegatron pt "${ARGS[@]}" --seq_length 64',
        "python train.py --fp8_format hybrid --tuner_type lora --fp8_param_gather true",
        "swift/cli/start.sh --fp8_format hybrid --cached_dataset data",
    ],
)
def test_ms_swift_is_known_by_its_command_or_by_the_names_of_its_options(
    tmp_path: Path, script: str
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(script)
    config = recognize(read_document(str(path)))
    assert config is not None
    assert config.framework == "ms-swift"
    assert config.ask is not None
    path.write_text("megatron sft_data --fp8-format hybrid")
    assert recognize(read_document(str(path))) is None
