"""Each trap of a framework's configuration, in the form of its real file, is told by its code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import fp8verify
from fp8verify.preflight.checks import report_of
from fp8verify.preflight.machine import Gpu, named_gpus
from fp8verify.preflight.rules import judge
from fp8verify.preflight.tables import Rule, rules
from fp8verify.verdict.findings_table import findings_table
from scripts.docs.doctor_codes import examples
from tests import doctor_files as files
from tests.doctor_files import B200, H100, SOUND, complaints, facts_of, write

ASK_NOTHING = {"torchtitan_preset.toml", "trl.yaml", "zero3.json", "litgpt.yaml"}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_configuration_gives_no_warning(tmp_path: Path, name: str) -> None:
    gpus = [B200 if name == "bridge.yaml" else H100]  # which asks for MXFP8
    facts = facts_of(write(tmp_path, name, SOUND[name]), gpus=gpus)
    assert complaints(facts) == {}
    assert len(facts.configs) == 1
    assert bool(facts.asks) == (name not in ASK_NOTHING)


PRETRAIN = "torchrun pretrain_gpt.py --fp8-format hybrid"
LAUNCH = "accelerate launch --mixed_precision fp8 --fp8_format E4M3 --fp8_margin 0"
# A command on a B200, the framework of its arguments, the recipe that it asks for, a complaint.
COMMANDS = [
    ("run.py --recipe qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config", "Megatron-Bridge", "mxfp8"),
    ("run.py --recipe deepseek_v3_pretrain_1024gpu_h100_fp8sc_config", "Megatron-Bridge",
     "blockwise"),
    ("run.py --recipe qwen3_30b_a3b_pretrain_16gpu_h100_fp8ds_config", "Megatron-Bridge",
     "delayed"),
    ("run.py --recipe llama3_8b_pretrain_8gpu_gb200_nvfp4_config", "Megatron-Bridge", "nvfp4"),
    ("run.py --recipe llama3_8b_pretrain_8gpu_h100_fp8cs_config mixed_precision=bf16_mixed",
     "Megatron-Bridge", None),
    ("run.py --gpu gb200 --compute_dtype fp8_mx", "Megatron-Bridge", "mxfp8"),
    ("train.py --compute_dtype bfloat16", None, None),
    ("train.py --recipe rowwise", None, None),
    ("python -m scripts.base_train --depth=12 --fp8", "nanochat", "tensorwise"),
    ("python -m scripts.base_train --depth=12", "nanochat", None),
    ("python vit.py --depth=12 --fp8", None, None),
    ("train.py --num_layers 12 --hidden_size 768 --num_attention_heads 12 --fp8", None, None),
    ("train.py --mixed_precision fp8", None, None),
    (f"{PRETRAIN} --transformer-impl local", "Megatron-LM", "delayed", "config-section-inert"),
    (f"{PRETRAIN} --num-layers 2 --hidden-size 4096 --num-attention-heads 32 --train-iters 10",
     "Megatron-LM", "delayed", "fp8-without-bf16"),
    (f"{LAUNCH} train.py", "accelerate", None),
    (f"{LAUNCH} --fp8_backend TE train.py", "accelerate", "delayed", "config-value-unknown"),
    (f"{LAUNCH} --fp8_bakend te train.py", "accelerate", None, "config-key-unknown"),
    (f"{LAUNCH} --fp8_backend te --fp8_interval 2 train.py", "accelerate", "delayed",
     "config-value-unknown"),
]  # fmt: skip


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row[0])
def test_the_arguments_of_a_command_are_read(
    row: tuple[str, str | None, str | None],
) -> None:
    command, framework, recipe, *complaint = row
    facts = facts_of(command=command.split(), gpus=[B200])
    assert [(c.framework, c.path) for c in facts.configs] == (
        [(framework, "the command")] if framework else []
    )
    assert [ask.recipe for ask, _ in facts.asks if ask.recipe] == (
        [recipe] if recipe else []
    )
    assert list(complaints(facts)) == complaint


# What stands before the launch, what in its place of --fp8-format, and whether FP8 is asked for.
EXPANSIONS = [
    ("", "${FP8:+--fp8-format hybrid}", True),
    ("FP8=", "${FP8:+--fp8-format hybrid}", False),
    ("", "${FP8_ARGS:---fp8-format hybrid}", True),
    ('FP8_ARGS=${FP8_ARGS:-"--fp8-format hybrid"}', "$FP8_ARGS", True),
    ("export FP8_ARGS='--fp8-format hybrid'", "${FP8_ARGS}", True),
    ("", "${FP8_ARGS:-}", False),
    ("", "--fp8-format ${FORMAT:-${KIND:-hybrid}}", True),
    ("", "${DRY:+--fp8-param-gather} ${ARGS[@]} --fp8-format e4m3", True),
]


@pytest.mark.parametrize(("before", "words", "asks"), EXPANSIONS)
def test_a_launch_script_is_read_as_a_shell_expands_it(
    tmp_path: Path, before: str, words: str, asks: bool
) -> None:
    text = f"{before}\npython pretrain_gpt.py --bf16 --num-layers 32 --hidden-size 4096 \\\n"
    text += (
        f"    --num-attention-heads 32 {words} --micro-batch-size 8 --seq-length 4096\n"
    )
    facts = facts_of(write(tmp_path, "launch.sh", text))
    assert bool(facts.asks) == asks
    assert complaints(facts) == {}


RULES = {rule.message: rule for found in reversed(rules().values()) for rule in found}
CHANGES = [
    (plain, change) for plain, found in examples()["rules"].items() for change in found
]


@pytest.mark.parametrize(("plain", "change"), CHANGES)
def test_the_example_of_a_rule_is_told_by_its_code(
    tmp_path: Path, plain: str, change: list[str]
) -> None:
    rule, (name, old, new) = RULES[plain], change
    assert old in SOUND[name]
    path = write(tmp_path, name, SOUND[name].replace(old, new, 1))
    tests = rule.where.get("capability", [])
    gpus = (
        [] if tests is False or (isinstance(tests, list) and False in tests) else [H100]
    )
    found = [c for c in judge(facts_of(path, gpus=gpus)) if c.code == rule.code]
    assert {c.status for c in found if rule.remedy == c.hint} == {rule.status}
    assert {check.file for check in found} == {path}
    assert all(check.line for check in found if rule.when) or not new
    assert not any("<" in check.message for check in found)


TEXT_RULES = rules()["sources"]


@pytest.mark.parametrize(
    "rule", TEXT_RULES, ids=lambda rule: f"{rule.code}-{rule.message[:20]}"
)
def test_the_example_of_a_source_is_told_at_its_line(
    tmp_path: Path, rule: Rule
) -> None:
    source = examples()["texts"][rule.message]
    path = write(tmp_path, "train.py", f'"""About: nothing."""\n{source}')
    found = [c for c in judge(facts_of(path, versions={})) if c.hint == rule.remedy]
    assert [(check.code, check.status) for check in found] == [(rule.code, rule.status)]
    line = source.splitlines()[(found[0].line or 0) - 2]
    assert re.search(rule.when["has"][0], line)
    commented = "".join(f"# {line}\n" for line in source.splitlines())
    write(tmp_path, "train.py", f'"""\n{source}"""\n{commented}')
    assert complaints(facts_of(path, versions={})) == {}


SOUND_SOURCES = [
    "with torch.autocast('cuda', torch.bfloat16):\n    pass\n",
    "convert_to_float8_training(model, module_filter_fn=f)\nmodel = torch.compile(model)\n",
    "m = te.Linear(64, 8)\nwith te.autocast(enabled=True):\n    m(x)\n",
    "model = AutoModel.from_pretrained('a/b')\nTrainer(model, args=Args(output_dir='out-fp8'))\n",
    "model = AutoModel.from_pretrained('a/b-FP8')\nprint(model.generate(x))\n",
    "c = FineGrainedFP8Config(dequantize=True)\nm = A.from_pretrained('a/b-FP8')\nTrainer(m)\n",
    "with te.fp8_model_init():\n    m = te.Linear(8, 8)\nm = DistributedDataParallel(m)\n",
]


@pytest.mark.parametrize("text", SOUND_SOURCES)
def test_a_sound_source_gives_no_warning(tmp_path: Path, text: str) -> None:
    facts = facts_of(write(tmp_path, "train.py", text), gpus=[B200])
    assert complaints(facts) == {}
    assert report_of(judge(facts)).conclusion == "NOTHING CHECKED"


PACKAGE = Path(fp8verify.__file__).parent
FIXES = (PACKAGE / "verdict" / "fixes.md").read_text(encoding="utf-8")
# Of each block of code the part that is to take the place of the other.
ADVISED = [
    code.rpartition("# use instead")[2]
    for code in re.findall(r"^```python\n(.*?)^```$", FIXES, re.MULTILINE | re.DOTALL)
]


def test_the_doctor_finds_no_fault_in_what_findings_advise(tmp_path: Path) -> None:
    assert len(ADVISED) > 40
    faulty = {}
    for code in ADVISED:
        facts = facts_of(write(tmp_path, "train.py", code), gpus=[B200])
        if complaints(facts):
            faulty[code] = complaints(facts)
    assert faulty == {}
    hints = [
        case.hint for cases in findings_table().values() for case in cases.values()
    ]
    inert = [hint for hint in hints if "auto_filter_small_kn" in hint]
    assert inert
    assert all(hint.startswith("Remove ") for hint in inert)


# File, what is replaced in it, by what, what the doctor calls unknown and how grave, and its hint.
SLIPS = [
    ("accelerate.yaml", "amax_history_len:", "amax_histroy_len:", "key warn", "amax_history_len"),
    ("accelerate.yaml", "fp8_config:", "fp8_confg:", "key fail", "fp8_config"),
    ("accelerate.yaml", "mixed_precision", "mixed_precison", "key fail", "mixed_precision"),
    ("accelerate.yaml", 'mixed_precision: "fp8"', "mixed_precision: float8", "value fail", "fp8"),
    ("accelerate.yaml", "backend: TE", "backend: torchao", "value fail", "AO"),
    ("accelerate.yaml", "backend: TE", "backend: XX", "value fail", ""),
    ("accelerate.yaml", "mixed_precision:", "dynamo_config: {dynamo_backnd: NO}\nmixed_precision:",
     "key warn", "dynamo_backend"),
    ("kempnerforge.toml", "[train]", "[trian]", "key fail", "train"),
    ("kempnerforge.toml", '"fp8"', '"FP8"', "value fail", "fp8"),
    ("kempnerforge.toml", "[distributed]", "[distribtued]", "key fail", "distributed"),
    ("torchtitan.toml", "quantize.linear.float8]", 'float8]\nrecipe_name = "rowise"',
     "value fail", "rowwise"),
    ("torchtitan.toml", "quantize.linear.float8]", "flaot8]", "key fail", "float8"),
    ("torchtitan.toml", "linear.float8]", "linear.flaot8]", "key fail", "float8"),
    ("megatron.sh", "--fp8-format hybrid", "--fp8-format e5m2", "value warn", ""),
    ("megatron.sh", "--fp8-param-gather", "--fp8-param-gahter", "key fail", "fp8-param-gather"),
    ("ms_swift.sh", "--fp8_recipe blockwise", "--fp8_recipe block", "value fail", "blockwise"),
    ("axolotl.yaml", "fp8_enable_fsdp_float8_all_gather", "fp8_enable_fsdp_float8_allgather",
     "key warn", "fp8_enable_fsdp_float8_all_gather"),
    ("llama_factory.yaml", "fp8_backend: torchao", "fp8_backend: transformer_engine",
     "value warn", "te"),
    ("zero3.json", '"bf16"', '"bf61"', "key warn", "bf16"),
    ("lightning.yaml", "transformer-engine", "fp8", "value fail", "transformer-engine"),
    ("torchtune.yaml", "fp8_recipe_name: tensorwise", "fp8_recipe_name: tensor_wise",
     "value fail", "tensorwise"),
    ("litgpt.yaml", "bf16-true", "fp8", "value fail", "transformer-engine"),
    ("accelerate.yaml", "margin: 0", "margin: 0\n  scaling_flavour: vanilla", "key warn", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "told", "meant"), SLIPS)
def test_a_slip_is_told_with_what_was_meant(
    tmp_path: Path, name: str, old: str, new: str, told: str, meant: str
) -> None:
    assert old in SOUND[name]
    path = write(tmp_path, name, SOUND[name].replace(old, new, 1))
    kind, status = told.split()
    code = f"config-{kind}-unknown"
    found = [c for c in judge(facts_of(path)) if c.code == code and c.file == path]
    assert [check.status for check in found] == [status]
    assert meant in found[0].hint


MX = files.ACCELERATE + "  use_mxfp8_block_scaling: true\n"
SWITCH = '[job]\ndump_folder = "x"\n\n[model]\nflavor = "8B"\n\n[training]\ncompile = true\n{}\n'
DEEPSPEED = files.ACCELERATE.replace('"NO"', "DEEPSPEED")
SMALL_MODEL = {
    "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12,
}  # fmt: skip
SIZES = "model_config.yaml"
# A file, its text, the accelerate that is installed ("-" for nothing), and all its complaints.
TEXTS = [
    ("kempnerforge.toml", files.KEMPNERFORGE.replace("dim = 4096\n", "dim = 256\n"), "",
     "warn dims-too-small-to-pay"),
    (SIZES, SOUND[SIZES].replace("-parallel-size: 2", "-parallel-size: 512", 1), "",
     "warn dims-not-multiple-of-16 warn dims-too-small-to-pay"),
    ("a.yaml", files.ACCELERATE.replace('"fp8"', "FP8").replace("backend: TE", "backend: te"),
     "", ""),
    ("mx.yaml", MX, "", ""),
    ("mx.yaml", MX.replace("len: 1024", "len: 16"), "", "fail config-value-unknown"),
    ("switch.toml", SWITCH.format('fp8_linear = "dynamic"'), "", ""),
    ("switch.toml", SWITCH.format("enable_fp8_linear = true"), "", ""),
    ("off.toml", SWITCH.format('fp8_linear = ""'), "", ""),
    ("off.toml", SWITCH.format("enable_fp8_linear = false"), "", ""),
    ("ds.yaml", DEEPSPEED, "-", "warn fp8-with-deepspeed"),
    ("ds.yaml", DEEPSPEED, "1.3.0", "fail fp8-with-deepspeed"),
    ("ds.yaml", DEEPSPEED, "1.4.0", ""),
    ("ds.yaml", DEEPSPEED, "0.34.2", ""),
    ("ds.yaml", DEEPSPEED, "0.34.3", "fail fp8-with-deepspeed"),
    ("go.sh", f"{PRETRAIN} --transformer-impl local", "", "fail config-section-inert"),
    ("sft.yaml", "model_name_or_path: x\nstage: sft\noutput_dir: out\nfp8: true\n", "", ""),
    ("config.json", json.dumps(SMALL_MODEL), "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "accelerate", "told"), TEXTS)
def test_what_is_told_of_a_file(
    tmp_path: Path, name: str, text: str, accelerate: str, told: str
) -> None:
    versions = {**files.GOOD, "accelerate": accelerate} if accelerate else files.GOOD
    facts = facts_of(
        write(tmp_path, name, text),
        gpus=[B200],
        versions={} if accelerate == "-" else versions,
    )
    found = complaints(facts)
    assert (
        " ".join(f"{c.status.value} {code}" for code, c in sorted(found.items()))
        == told
    )
    assert bool(facts.asks) == (name not in ("config.json", "off.toml"))


def test_the_sizes_of_a_model_count_for_what_a_configuration_asks(
    tmp_path: Path,
) -> None:
    model = write(tmp_path, "config.json", json.dumps(SMALL_MODEL))
    axolotl = write(tmp_path, "a.yaml", files.AXOLOTL)
    assert set(complaints(facts_of(axolotl, model))) == {"dims-too-small-to-pay"}


# A file of no known framework or with no request, what is said of it, and the closing line.
UNREAD = [
    ("train.py", "plugin = build(use_fp8=True)  # FP8\n", "fp8-mentioned", "use_fp8=True"),
    ("train.py", '"""Trains in FP8."""\npass\n', "fp8-mentioned", "no line mentions FP8"),
    ("rl.yaml", "rollout: {quantization: fp8}\n", "fp8-mentioned", "FP8 for generation only"),
    ("neox.yml", "{pipe-parallel-size: 2, num-layers: 2, hidden-size: 8, train-iters: 9, fp8: 1}",
     "fp8-mentioned", "requests FP8 by its name (line 1"),
    ("own.yaml", "\nquantization: fp8\n", "fp8-mentioned", "mentions FP8 (line 2: quanti"),
    ("own.yaml", "lr: 1\nuse_fp8: true\n", "fp8-mentioned", "requests FP8 by its name (line 2"),
    ("own.yaml", "train:\n  precision: fp8\n", "fp8-mentioned", "requests FP8 by its name (line 2"),
    ("own.yaml", "use_transformer_engine: true\n", "fp8-mentioned", "no line mentions FP8"),
    ("own.yaml", "lr: 1\noutput_dir: fp8\n", "config-not-recognized", "is not recognized: not"),
    ("own.yaml", "lr: 1\nfp8: false\n", "config-not-recognized", "no setting of it requests FP8;"),
    ("own.yaml", "# NVFP4\nlr: 1\n", "config-not-recognized", "a remark speaks of it (line 1: # NVFP4)"),
    ("own.sh", "python train.py --config-file a.yaml --lr 1\n", "config-not-found", "a.yaml is not on"),
    ("m.yml", "base_config: base.yml\nquantization: fp8\n", "fp8-mentioned", "MaxText: mentions"),
    ("sft.yaml", f"{files.TRL}\nload_in_fp8: true\n", "fp8-mentioned", ", not as a known"),
    ("x.sh", "accelerate launch --mixed_precison fp8 t.py\n", "fp8-mentioned",
     "accelerate: mentions FP8 where no rule reads it (line 1: mixed_precison"),
    ("go.sh", "accelerate launch --config_file /no/fp8.yaml train.py\n", "config-not-found",
     "accelerate; its configuration /no/fp8.yaml is not on this machine"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "code", "says"), UNREAD)
def test_of_a_file_that_no_rule_reads_only_its_words_are_told(
    tmp_path: Path, name: str, text: str, code: str, says: str
) -> None:
    path = write(tmp_path, name, text)
    report = report_of(judge(facts_of(path)))
    (check,) = [check for check in report.checks if check.file == path]
    assert (check.code, check.status) == (code, "skipped")
    assert says in check.message
    assert report.conclusion == "NOTHING CHECKED"


def test_what_a_rule_reads_is_not_said_to_be_unread(tmp_path: Path) -> None:
    stored = '"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}'
    model = f'{{"model_type": "llama", "hidden_size": 4096, {stored}}}'
    titan = write(tmp_path, "t.toml", files.TORCHTITAN_TOML)
    command = f"torchrun -m torchtitan.train --job.config_file {titan} --model.converters=float8"
    for facts in (
        facts_of(write(tmp_path, "c.json", model)),
        facts_of(command=command.split()),
    ):
        assert "fp8-mentioned" not in {check.code for check in judge(facts)}


def test_a_script_is_named_beside_a_request_only_if_it_mentions_fp8(
    tmp_path: Path,
) -> None:
    script, config = (
        write(tmp_path, "t.py", "pass\n"),
        write(tmp_path, "a.yaml", files.ACCELERATE),
    )
    assert script not in {check.file for check in judge(facts_of(script, config))}


@pytest.mark.parametrize(
    ("name", "text", "gpus", "conclusion"),
    [
        ("litgpt.yaml", SOUND["litgpt.yaml"], [H100], "NO FP8 REQUESTED"),
        ("grpo.yaml", "policy: {megatron_cfg: {enabled: true}, generation: {precision: fp8}}\n", [],
         "NO FP8 REQUESTED"),
        ("a.yaml", files.ACCELERATE, [H100], "NO FAULT FOUND (1 not checked)"),
        ("a.yaml", files.ACCELERATE, [], "NO FAULT FOUND (2 not checked)"),
        ("a.yaml", files.ACCELERATE, [files.A100], "1 FAULT: 1 fail, 1 not checked"),
        ("none.py", "", [H100], "NOTHING CHECKED"),
    ],
)  # fmt: skip
def test_the_last_line_says_what_was_checked(
    tmp_path: Path, name: str, text: str, gpus: list[Gpu], conclusion: str
) -> None:
    facts = facts_of(write(tmp_path, name, text), gpus=gpus, require_gpu=False)
    report = report_of(judge(facts))
    assert report.conclusion == conclusion
    assert str(report).splitlines()[-1] == conclusion


def test_an_fp8_checkpoint_is_for_inference(tmp_path: Path) -> None:
    fp8 = SMALL_MODEL | {"quantization_config": {"quant_method": "fp8"}}
    trl = files.TRL.replace("model_name_or_path: ", "model_name_or_path: x/")
    for name, text in (("config.json", json.dumps(fp8)), ("sft.yaml", _renamed(trl))):
        assert "fp8-checkpoint" in complaints(facts_of(write(tmp_path, name, text)))
    command = [
        "sft.py",
        "--model_name_or_path",
        "Qwen/Qwen3-4B-FP8",
        "--output_dir",
        "out",
    ]
    assert "fp8-checkpoint" in complaints(facts_of(command=command))


def _renamed(text: str) -> str:
    return re.sub(r"(model_name_or_path: \S+)", r"\1-FP8", text)


def test_what_megatron_loads_to_fine_tune_is_no_resumed_run(tmp_path: Path) -> None:
    for rest, resumes in (("", True), (" --finetune", False)):
        text = files.MEGATRON_SH.rstrip() + f" --load ckpt{rest}\n"
        found = {
            check.code for check in judge(facts_of(write(tmp_path, "run.sh", text)))
        }
        assert ("checkpoint-in-fp8" in found) is resumes


def test_own_flags_are_checked_against_the_gpu() -> None:
    command = ["python", "train.py", "--fp8-recipe", "mxfp8"]
    assert "MXFP8" in complaints(facts_of(command=command))["no-fp8-units"].message
    assert complaints(facts_of(command=command, gpus=[B200])) == {}


@pytest.mark.parametrize(
    ("argument", "is_told"),
    [("--mixed_precision bf16", True), ("--mixed-precision=no", True),
     ("--mixed_precision fp8", False)],
)  # fmt: skip
def test_an_argument_beats_accelerate_s_file(
    tmp_path: Path, argument: str, is_told: bool
) -> None:
    path = write(tmp_path, "fp8.yaml", files.ACCELERATE)
    found = complaints(
        facts_of(
            command=f"accelerate launch --config_file {path} {argument} train.py".split()
        )
    )
    told = [(code, check.file, check.line) for code, check in found.items()]
    assert told == ([("bf16-overrides-fp8", path, 3)] if is_told else [])


def test_the_trainers_bf16_takes_the_place_of_fp8(tmp_path: Path) -> None:
    trl, unset = (
        write(tmp_path, f"{name}.yaml", text)
        for name, text in (
            ("sft", files.TRL),
            ("unset", files.TRL.replace("bf16: true\n", "")),
        )
    )
    environment = {"ACCELERATE_MIXED_PRECISION": "fp8"}
    assert complaints(facts_of(trl)) == {}
    found = complaints(facts_of(trl, write(tmp_path, "fp8.yaml", files.ACCELERATE)))
    line = files.TRL.splitlines().index("bf16: true") + 1
    assert found["bf16-overrides-fp8"].line == line
    assert "bf16-overrides-fp8" in complaints(facts_of(trl, environment=environment))
    # TRL sets bf16 where nothing is said.
    facts = facts_of(command=["trl", "sft", "--config", unset], environment=environment)
    assert "trl#3860" in complaints(facts)["bf16-overrides-fp8"].source


def test_files_of_the_command_are_read_with_its_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "7b.toml", files.KEMPNERFORGE)
    command = ["python", "scripts/train.py", path]
    assert complaints(facts_of(command=command)) == {}
    found = complaints(facts_of(command=[*command, "--distributed.tp=4"]))
    assert set(found) == {"fp8-with-tensor-parallel"}
    plain = facts_of(command=[*command, "--train.mixed_precision", "bf16"])
    assert plain.asks == ()


def test_variables_of_transformer_engine(tmp_path: Path) -> None:
    te = write(tmp_path, "te.yaml", files.ACCELERATE)
    command = [
        "env",
        "NVTE_BACKWARD_OVERRIDE=high_precision",
        "accelerate",
        "launch",
        "x",
    ]
    assert "te-environment" in complaints(facts_of(te, command=command))
    quiet = {
        "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES": "1",
        "NVTE_NVFP4_DISABLE_RHT": "0",
    }
    facts = facts_of(te, environment=quiet)
    assert complaints(facts) == {}
    (note,) = [
        check.message for check in judge(facts) if check.code == "te-environment"
    ]
    assert note.startswith("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES: ")
    unread = complaints(facts_of(environment={"FP8_BACKEND": "te"}))
    assert "ACCELERATE_" in unread["config-key-ignored"].hint


ISSUES = tomllib.loads(
    Path(__file__).parents[2].joinpath("benchmarks", "doctor_issues.toml").read_text()
)
GPUS = {
    "H20": files.H20,
    "B200": B200,
    "MI300X": files.MI300X,
    "sm_120": files.RTX6000_PRO,
}


@pytest.mark.parametrize("thread", ISSUES)
def test_configurations_of_public_issues(tmp_path: Path, thread: str) -> None:
    issue = ISSUES[thread]
    text = issue.get("text", "").lstrip()
    environment = {**issue.get("environment", {})}
    if "default" in issue:
        environment["HF_HOME"] = str(tmp_path)
        (tmp_path / "accelerate").mkdir()
        write(tmp_path / "accelerate", "default_config.yaml", issue["default"])
    facts = facts_of(
        *([write(tmp_path, issue["file"], text)] if text else []),
        command=issue.get("command", "").split(),
        gpus=[GPUS[gpu]]
        if (gpu := issue.get("gpu", "H100")) in GPUS
        else named_gpus(gpu),
        versions=issue.get("versions", files.GOOD),
        environment=environment,
    )
    report = report_of(judge(facts))
    found = {check.code for check in report.checks}
    assert issue["code"] in found
    unseen = issue["code"] in (
        "training-not-started",
        "fp8-mentioned",
        "config-not-recognized",
    )
    expected = {"skipped"} if unseen else {"warn", "fail"}
    assert report.status in expected or not issue.get("dies", True)
    assert report.status != "ok" or "fp8-asked" not in found


# Evidence that says what a version does: its source, a measurement, or a version with the repair.
SURE = re.compile(
    r" [0-9a-f]{7}\b|\w\.(?:py|cpp|md)\b|transformers [\d.]|measured|README|fixed: \w+ [\d.]"
)
SEEN = re.compile(
    r"\b(?:has|have|had|may|some versions|runs with it|by its name|not checked)\b"
)


def test_what_was_only_seen_is_not_said_of_every_version() -> None:
    for rule in (one for found in rules().values() for one in found):
        if rule.status != "note" and not SURE.search(rule.evidence):
            assert SEEN.search(rule.message), rule.message


# A file that takes settings from elsewhere, and whether a row that needs a key's absence is said.
ABSENT = [
    ("run.sh", "python pretrain_gpt.py {} --fp8-format hybrid --train-iters 9 {}", "--seed 1",
     "$MORE_ARGS", "fp8-without-bf16"),
    ("run.sh", "python pretrain_gpt.py {} --fp8-format hybrid --train-iters 9 {}", "--seed 1",
     '"$@"', "fp8-without-bf16"),
    ("run.sh", "python pretrain_gpt.py {} --fp8-format hybrid --train-iters 9 {}", "--seed 1",
     "--config-file more.yaml", "fp8-without-bf16"),
    ("tune.yaml", SOUND["torchtune.yaml"].replace("enable_fp8_training: True", "{}") + "{}\n", "",
     "defaults: [base]", "config-section-inert"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "plain", "more", "code"), ABSENT)
def test_what_is_not_in_a_file_may_be_set_elsewhere(
    tmp_path: Path, name: str, text: str, plain: str, more: str, code: str
) -> None:
    sizes = (
        "--num-layers 8 --hidden-size 4096 --num-attention-heads 32"
        if name == "run.sh"
        else ""
    )
    path = write(tmp_path, name, text.format(sizes, plain))
    assert code in complaints(facts_of(path))
    path = write(tmp_path, name, text.format(sizes, more))
    facts = facts_of(path)
    assert code not in complaints(facts)
    assert report_of(judge(facts)).conclusion not in ("OK", "NO FP8 REQUESTED")


def test_branches_of_a_script_are_not_mixed(tmp_path: Path) -> None:
    branches = "if [ $A ]; then ARGS+=(--fp4-format e2m1)\nelse ARGS+=(--fp8-format hybrid)\nfi\n"
    rest = (
        "python pretrain_gpt.py ${ARGS[@]} --bf16 --num-layers 8 --hidden-size 4096\n"
    )
    facts = facts_of(
        write(tmp_path, "run.sh", f"ARGS=()\n{branches}{rest}"), gpus=[B200]
    )
    assert complaints(facts) == {}
    asked = [check.message for check in judge(facts) if check.code == "fp8-asked"]
    assert asked == ["Megatron-LM: requests NVFP4 (te) in a branch of the script"]


TITAN_TOML = "llama3_8b.toml"
TITAN = f"CONFIG_FILE={TITAN_TOML} ./run_train.sh --model.converters float8"
NEMO = "FP8=True\npython train.py model.fp8=${FP8} model.transformer_engine=True\n"


@pytest.mark.parametrize(("text", "framework"), [(TITAN, "torchtitan"), (NEMO, "NeMo")])
def test_arguments_ask_for_fp8_without_the_file_that_they_change(
    tmp_path: Path, text: str, framework: str
) -> None:
    facts = facts_of(write(tmp_path, "run.sh", text))
    (config,) = facts.configs
    assert config.framework == framework
    assert [ask.format for ask, _ in facts.asks] == ["fp8"]
    assert config.compile is None  # the file may set it


@pytest.mark.parametrize(
    ("precision", "code"),
    [(" --mixed_precision=fp16", "fp8-not-asked"), ("", "fp8-mentioned")],
)
def test_a_launch_that_names_its_precision_leaves_none_to_others(
    tmp_path: Path, precision: str, code: str
) -> None:
    text = (
        f"accelerate launch{precision} run.py --model_name_or_path m"
        " --per_device_train_batch_size 4 --output_dir o\n"
    )
    checks = judge(facts_of(write(tmp_path, "run.sh", text)))
    (check,) = [check for check in checks if check.file]
    assert check.code == code
    assert "the launch may request it" not in check.message


OLDER_TITAN = "./run_llama_train.sh --float8.enable_float8_linear"


def test_the_recipe_is_not_guessed_where_another_file_may_give_it(
    tmp_path: Path,
) -> None:
    facts = facts_of(write(tmp_path, "run.sh", OLDER_TITAN))
    assert [ask.recipe for ask, _ in facts.asks] == [None]


@pytest.mark.parametrize(
    ("argument", "recipe"),
    [
        ('--fp8-recipe="blockwise"', "blockwise"),
        ('--fp8-recipe=${R:-"mxfp8"}', "mxfp8"),
    ],
)
def test_quotes_around_a_value_are_not_its_end(
    tmp_path: Path, argument: str, recipe: str
) -> None:
    text = f'python pretrain_gpt.py --fp8-format="hybrid" {argument} --bf16\n'
    facts = facts_of(write(tmp_path, "run.sh", text))
    assert [ask.recipe for ask, _ in facts.asks] == [recipe]


@pytest.mark.parametrize("word", ["", " --compile.enable"])
def test_the_arguments_of_a_script_change_the_file_that_it_names(
    tmp_path: Path, word: str
) -> None:
    write(tmp_path, TITAN_TOML, "[model]\nflavor = '8B'\n[compile]\nenable = false\n")
    facts = facts_of(write(tmp_path, "run.sh", TITAN + word))
    (config,) = facts.configs
    assert config.path.endswith(TITAN_TOML)
    assert config.ask is not None
    assert config.compile is bool(word)


def test_a_command_s_configuration_is_found_in_its_variable(tmp_path: Path) -> None:
    path = write(tmp_path, TITAN_TOML, "[model]\nflavor = '8B'\n")
    command = f"env CONFIG_FILE={path} ./run_train.sh --model.converters float8"
    facts = facts_of(command=command.split())
    assert [path for _, path in facts.asks] == [path]


@pytest.mark.parametrize(
    ("section", "codes"),
    [
        ("{fp8: hybrid}", {"config-section-inert", "fp8-not-asked"}),
        ("{enabled: false, fp8: hybrid}", {"fp8-not-asked"}),
        ("{enabled: true, fp8: hybrid}", {"fp8-asked"}),
    ],
)
def test_nemo_rl_s_section_needs_its_switch(
    tmp_path: Path, section: str, codes: set[str]
) -> None:
    text = f"policy:\n  megatron_cfg: {{enabled: true, fp8_cfg: {section}}}\n"
    checks = judge(facts_of(write(tmp_path, "grpo.yaml", text)))
    said = {check.code for check in checks if check.file}
    assert said & {"config-section-inert", "fp8-not-asked", "fp8-asked"} == codes


BAT = (
    "rem train --fp8_base\naccelerate launch ^\n --mixed_precision bf16 ^\n"
    ' flux_train_network.py ^\n --dit "D:\\flux-fp8\\a.safetensors" ^\n'
    " --network_module networks.lora_flux {}\n"
)
AUTOMODEL = (
    "step_scheduler: {{global_batch_size: 8}}\nmodel:\n  _target_: a.b\n"
    "  quantization_config:\n    _target_: transformers.FineGrainedFP8Config\n"
    "    dequantize: {}\n"
)
FLUX_TOML = "pipeline_stages = 1\n[model]\ntype = 'flux'\ntransformer_dtype = '{}'\n"
FLUX_YAML = (
    "job: extension\nconfig:\n  process:\n  - type: sd_trainer\n"
    "    model: {{quantize: true, qtype: {}}}\n"
)
FLUX_JSON = (
    '{{"training_method": "LORA", "model_type": "FLUX_DEV_1",'
    ' "transformer": {{"weight_dtype": "{}"}}}}'
)
MPT = "model: {{name: mpt_causal_lm, d_model: 4096{}}}\nmax_duration: 10ba\nprecision: {}\n"


@pytest.mark.parametrize(
    ("name", "text", "codes"),
    [
        ("mpt.yaml", MPT.format("", "amp_fp8"), {"config-section-inert", "fp8-asked"}),
        ("mpt.yaml", MPT.format(", fc_type: te", "amp_fp8"), {"fp8-asked"}),
        ("mpt.yaml", MPT.format(", ffn_config: {ffn_type: te_ln_mlp}", "amp_fp8"), {"fp8-asked"}),
        ("mpt.yaml", MPT.format("", "amp_bf16"), {"fp8-not-asked"}),
        ("run.sh", "composer train.py yamls/mpt-7b.yaml precision=amp_fp8\n", {"fp8-asked"}),
        ("run.sh", "swift sft --model Qwen/Qwen3-8B --dataset a\n", {"fp8-not-asked"}),
        ("run.sh", "swift sft --model Qwen/Qwen3-8B-FP8 --dataset a\n", {"fp8-checkpoint", "fp8-not-asked"}),
        ("run.sh", "megatron sft --model a --fp8_format e4m3 --dataset a\n", {"fp8-asked"}),
        ("train.bat", BAT.format("--fp8_base"), {"stored-not-multiplied"}),
        ("train.bat", BAT.format("--sdpa"), {"fp8-not-asked"}),
        ("train.ps1", BAT.format("--fp8_base").replace("^", "`"), {"stored-not-multiplied"}),
        ("ui.toml", '[general_args.args]\nfp8_base = true\n', {"stored-not-multiplied"}),
        ("run.sh", "python benchmark_litgpt.py --low_precision_mode fp8-delayed-te\n", {"fp8-asked"}),
        ("run.sh", "bash paxml/run.sh --fdl.USE_FP8=True\n", {"fp8-mentioned"}),
        ("tune.yaml", AUTOMODEL.format("true"), {"fp8-checkpoint", "fp8-not-asked"}),
        ("run.sh", "python -m paddle.distributed.launch a.py --per_device_train_batch_size 2 --use_fp8 0\n",
         {"fp8-not-asked"}),
        ("run.sh", "python gaudi_spawn.py run_lora_clm.py --fp8 True\n", {"fp8-asked"}),
        ("arctic.yaml", "model: {fp8_recipe: {type: delayedscaling}}\n", {"fp8-asked"}),
        ("run.sh", "python bench.py --mx_recipe_name mxfp8_emulated\n", {"fp8-mentioned"}),
        ("flux.toml", FLUX_TOML.format("float8"), {"stored-not-multiplied"}),
        ("flux.toml", FLUX_TOML.format("bfloat16"), {"fp8-not-asked"}),
        ("flux.yaml", FLUX_YAML.format("qfloat8"), {"stored-not-multiplied"}),
        ("flux.yaml", FLUX_YAML.format("uint4"), {"fp8-not-asked"}),
        ("flux.json", FLUX_JSON.format("FLOAT_8"), {"stored-not-multiplied"}),
        ("flux.json", FLUX_JSON.format("FLOAT_W8A8"), {"fp8-asked"}),
        ("flux.json", FLUX_JSON.format("NFLOAT_4"), {"fp8-not-asked"}),
    ],
)  # fmt: skip
def test_what_files_of_other_trainers_ask_for(
    tmp_path: Path, name: str, text: str, codes: set[str]
) -> None:
    path = write(tmp_path, name, text)
    checks = judge(facts_of(path))
    assert {check.code for check in checks if check.file == path} == codes
