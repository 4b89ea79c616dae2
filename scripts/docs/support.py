"""What was tried on which framework: the rows behind docs/frameworks.md and the examples' READMEs.

A row is one trial, with what shows it: a test, a capture, a script that ran on a GPU. What has no
row is "not tried" in the tables; no cell is written by hand. Tests check that the evidence exists.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from fp8verify.frameworks.known import frameworks
from scripts.docs.shell import ROOT

H200 = "H200"
CPU = "CPU"
_NO_DATE = "every run of the tests"
_GPU_TORCH = "torch 2.11.0+cu130"
_AO = f"{_GPU_TORCH}, torchao 0.17.0"
_TE = f"{_GPU_TORCH}, Transformer Engine 2.20.2"


class Trial(NamedTuple):
    """One thing that was tried.

    Attributes:
        framework: a key of `FRAMEWORKS`.
        feature: a key of `FEATURES`.
        where: the GPU, or `CPU`.
        date: when; empty for what every run of the tests does.
        versions: of the packages; names in braces are those of constraints.txt.
        evidence: files of the repository, a test as PATH::NAME.
    """

    framework: str
    feature: str
    where: str
    date: str
    versions: str
    evidence: tuple[str, ...]


# Each framework with the page that says how to verify it.
FRAMEWORKS = {
    "torch.optim alone": "",
    "torchao": "../examples/torchao/README.md",
    "FSDP2, DDP": "../examples/fsdp2/README.md",
    "Transformer Engine": "../examples/transformer-engine/README.md",
    "accelerate, torchao": "../examples/accelerate/README.md",
    "accelerate, Transformer Engine": "../examples/accelerate/README.md#transformer-engine",
    "HF Trainer": "../examples/hf-trainer/README.md",
    "Lightning": "../examples/lightning/README.md",
    "DeepSpeed": "../examples/deepspeed/README.md",
    "torchtitan": "../examples/torchtitan/README.md",
    "KempnerForge": "../examples/kempnerforge/README.md",
    "nanochat": "../examples/nanochat/README.md",
    "Megatron-LM": "../examples/megatron/README.md",
    "torchtune": "",
    "modded-nanogpt": "",
    "OLMo-core": "",
    "Composer": "",
    "axolotl, LLaMA-Factory, TRL": "",
    "NeMo, Megatron-Bridge, Automodel": "",
    "prime-rl": "",
}
FEATURES = {
    "verdict": "verdict on a GPU",
    "run": "`run`",
    "log": "its log's claims",
    "steps": "its step numbers",
    "every": "`run --every`, `watch`",
    "callback": "callback",
    "profiler": "its own profiler",
    "numerics": "`--numerics`",
    "doctor": "`doctor --config`",
    "dry": "`doctor -- COMMAND`",
}
TABLES_OF = (("verdict", "run", "log", "steps", "doctor"),
             ("every", "callback", "profiler", "numerics", "dry"))  # fmt: skip
# What there is nothing to try of: the framework has no such log lines, step numbers or profiler, or
# fp8verify has no callback for it.
HAS_NOT = {
    "torch.optim alone": {"verdict", "log", "steps", "doctor", "numerics"},
    "torchao": {"steps", "profiler"},
    "FSDP2, DDP": {"log", "steps", "doctor", "profiler"},
    "Transformer Engine": {"log", "steps", "profiler"},
    "accelerate, torchao": {"steps", "profiler"},
    "accelerate, Transformer Engine": {"steps", "profiler"},
    "HF Trainer": {"log", "profiler"},
    "DeepSpeed": {"log"},
    "nanochat": {"doctor"},
    "modded-nanogpt": {"log", "profiler", "doctor"},
    "torchtune": {"log"},
}
# The frameworks whose captures are named by trials alone: their layers are in many captures.
_CAPTURED = {
    name: name
    for name in ("torchtitan", "KempnerForge", "nanochat", "Megatron-LM", "torchtune")
}
HAVE_CALLBACKS = ("HF Trainer", "Lightning", "axolotl, LLaMA-Factory, TRL")
_ATTACHED = "tests/integration/test_run_attached.py::"
_LIVE = "tests/integration/test_live_run.py::"
_NUMERICS = "tests/integration/test_numerics_run.py::"
_DRY = "tests/integration/test_doctor_dry_start.py::"
_DOCTOR = "tests/unit/test_doctor_traps.py::"
_TRAPS = f"{_DOCTOR}test_a_sound_configuration_gives_no_warning"
_CLAIMS = "tests/unit/test_claims.py"
_CALLBACKS = "tests/integration/test_callbacks.py::"
_WINDOWS = f"{_CALLBACKS}test_windows_are_recorded_for_later_and_a_watch_goes_to_the_framework_s_own_logs"
_TRAINERS = "tests/integration/test_examples.py::test_the_trainers_of_the_examples_are_attached_to"
_OWN = "tests/integration/test_script_profilers.py::"
_COUNTERS = "tests/unit/test_agent_framework_counters.py::"
_FILES = "configurations as its source reads them"


def _trained(framework: str, features: str, versions: str) -> tuple[Trial, ...]:
    """Rows of a framework's own training that benchmarks/gpu/frameworks ran, plain and attached."""
    evidence = ("benchmarks/results/frameworks.md",)
    return tuple(
        Trial(framework, feature, H200, "2026-11-23", versions, evidence)
        for feature in features.split()
    )


TRIALS = (
    Trial("torch.optim alone", "run", CPU, "", "torch {torch}",
          (f"{_ATTACHED}test_a_window_holds_exactly_its_steps",)),
    Trial("torch.optim alone", "profiler", CPU, "", "torch {torch}; torch.profiler in the script",
          (f"{_OWN}test_a_script_that_profiles_itself_keeps_its_trace",)),
    Trial("torch.optim alone", "dry", CPU, "", "torch {torch}",
          (f"{_DRY}test_it_ends_at_the_optimizer_and_nothing_of_the_training_is_written",)),
    Trial("torchao", "verdict", H200, "2026-11-21", _AO,
          ("traces/fp8_compiled", "traces/bf16_filter_rejects_all", "traces/fp8_rowwise_gw_hp")),
    Trial("torchao", "run", H200, "2026-11-21", _AO, ("examples/train_gpt.py",)),
    Trial("torchao", "run", H200, "2026-11-22",
          f"{_AO}; under Nsight Systems 2024.2.3, driver 580 (CUDA 13.0)",
          ("traces/fp8_nsys",)),
    Trial("torchao", "run", CPU, "", "torch {torch}, torchao {torchao}",
          (f"{_ATTACHED}test_the_census_knows_float8_modules",)),
    Trial("torchao", "log", H200, "2026-11-21", _AO, ("traces/bf16_filter_rejects_all",)),
    Trial("torchao", "doctor", CPU, "", "Python sources",
          ("tests/unit/test_doctor_traps.py",)),
    Trial("torch.optim alone", "every", CPU, "", "torch {torch}",
          (f"{_LIVE}test_a_thousand_steps_lose_no_window_and_grow_no_memory",
           "tests/integration/test_own_loop.py::test_a_watch_hands_every_window_to_its_sinks")),
    Trial("torchao", "every", H200, "2026-11-22",
          f"{_AO}; two ranks shared the GPU", ("benchmarks/gpu/live.sh",)),
    Trial("torchao", "numerics", H200, "2026-11-22", f"{_AO}, tensorwise and rowwise, compiled",
          ("benchmarks/gpu/numerics.py",)),
    Trial("torchao", "numerics", CPU, "", "torch {torch}, torchao {torchao}, emulated",
          (f"{_NUMERICS}test_a_sound_run_has_three_rows_a_layer_and_no_finding",)),
    Trial("torchao", "dry", CPU, "", "torch {torch}, torchao {torchao}",
          (f"{_DRY}test_layers_that_torchao_converted_are_counted",)),
    Trial("FSDP2, DDP", "verdict", H200, "2026-11-21", f"two GPUs, {_AO}",
          ("traces/fsdp_fp8_all_gather", "traces/ddp_one_rank_bf16")),
    Trial("FSDP2, DDP", "run", H200, "2026-11-21", f"two GPUs, {_AO}", ("examples/train_fsdp.py",)),
    Trial("FSDP2, DDP", "run", CPU, "", "torch {torch}, gloo, DDP",
          (f"{_ATTACHED}test_torchrun_profiles_the_ranks_asked_for",)),
    Trial("Transformer Engine", "verdict", H200, "2026-11-22", _TE,
          ("traces/fp8_te_modules_delayed", "traces/fp8_te_modules_current",
           "traces/fp8_te_modules_block")),
    Trial("Transformer Engine", "run", H200, "2026-11-22", _TE,
          ("benchmarks/gpu/whole_models.py",)),
    Trial("Transformer Engine", "doctor", CPU, "", "environment variables",
          ("tests/unit/test_doctor_traps.py",)),
    Trial("Transformer Engine", "numerics", H200, "2026-11-22",
          f"{_TE}, delayed, current and block scaling", ("benchmarks/gpu/numerics.py",)),
    Trial("accelerate, torchao", "verdict", H200, "2026-11-21", _AO, ("traces/fp8_accelerate",)),
    Trial("accelerate, torchao", "run", H200, "2026-11-21", _AO, ("examples/train_accelerate.py",)),
    Trial("accelerate, torchao", "run", CPU, "", "torch {torch}, accelerate {accelerate}",
          (f"{_ATTACHED}test_accelerate_launch_counts_updates_not_batches",)),
    Trial("accelerate, torchao", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("accelerate, Transformer Engine", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("accelerate, torchao", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("accelerate, Transformer Engine", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("HF Trainer", "run", CPU, "", "torch {torch}, transformers {transformers}", (_TRAINERS,)),
    Trial("HF Trainer", "steps", CPU, "", "torch {torch}, transformers {transformers}",
          (f"{_ATTACHED}test_the_steps_of_every_trainer_are_named_as_it_names_them",)),
    Trial("HF Trainer", "callback", CPU, "", "torch {torch}, transformers {transformers}",
          (_WINDOWS,)),
    Trial("HF Trainer", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("Lightning", "run", CPU, "", "torch {torch}, lightning {lightning}", (_TRAINERS,)),
    Trial("Lightning", "steps", CPU, "", "torch {torch}, lightning {lightning}",
          (f"{_ATTACHED}test_the_steps_of_every_trainer_are_named_as_it_names_them",)),
    Trial("Lightning", "callback", CPU, "", "torch {torch}, lightning {lightning}",
          (_WINDOWS,)),
    Trial("Lightning", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("torchtune", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("OLMo-core", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("Lightning", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("DeepSpeed", "run", CPU, "", "where DeepSpeed is installed; else the case is left out",
          ("benchmarks/attach/deepspeed_cifar.py",)),
    Trial("DeepSpeed", "steps", CPU, "", "an engine with the counters of its source",
          (f"{_COUNTERS}test_a_counter_is_read_before_it_counts_the_step",)),
    Trial("DeepSpeed", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("torchtitan", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("torchtitan", "profiler", CPU, "", "torch {torch}; a loop with its `profiling` section",
          (f"{_OWN}test_a_window_that_a_framework_profiles_moves_behind_it",)),
    Trial("torchtitan", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("KempnerForge", "log", H200, "2026-11-21", f"{_AO}; its line, printed by our example",
          ("traces/bf16_filter_rejects_all",)),
    Trial("KempnerForge", "profiler", CPU, "",
          "torch {torch}; a loop with its `[profiling]` section",
          (f"{_OWN}test_a_window_that_a_framework_profiles_moves_behind_it",)),
    Trial("KempnerForge", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("nanochat", "verdict", H200, "2026-11-22", f"{_GPU_TORCH}; a layer class of its kind",
          ("traces/fp8_own_class", "traces/fp8_muon")),
    Trial("nanochat", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("Megatron-LM", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("Megatron-LM", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("axolotl, LLaMA-Factory, TRL", "log", CPU, "", "lines of its source (axolotl)",
          (_CLAIMS,)),
    Trial("axolotl, LLaMA-Factory, TRL", "doctor", CPU, "", _FILES, (_TRAPS,)),
    Trial("NeMo, Megatron-Bridge, Automodel", "log", CPU, "", "lines of its source (Automodel)",
          (_CLAIMS,)),
    Trial("NeMo, Megatron-Bridge, Automodel", "doctor", CPU, "", _FILES,
          (_TRAPS, f"{_DOCTOR}test_the_arguments_of_a_command_are_read")),
    Trial("prime-rl", "log", CPU, "", "lines of its source", (_CLAIMS,)),
    Trial("prime-rl", "doctor", CPU, "", _FILES, (_TRAPS,)),
    *_trained("accelerate, torchao", "verdict run every numerics",
              f"{_AO}, accelerate 1.15.0, INDUCTOR and eager"),
    *_trained("accelerate, Transformer Engine", "verdict run every numerics",
              f"{_TE}, accelerate 1.15.0"),
    *_trained("Lightning", "verdict run steps every numerics", f"{_TE}, lightning 2.6.6"),
    *_trained("DeepSpeed", "verdict run every numerics", f"{_AO}, deepspeed 0.19.8, ZeRO 1"),
    *_trained("Megatron-LM", "verdict run steps every profiler numerics",
              f"{_TE}, Megatron-LM d98e8a64: delayed, first and last layers in BF16, TP 2"),
    *_trained("HF Trainer", "verdict run steps every numerics",
              f"{_AO}, transformers 5.17.0, compiled"),
    *_trained("axolotl, LLaMA-Factory, TRL", "verdict run steps every numerics",
              f"{_AO}, trl 1.16.0 (SFTTrainer), peft 0.21.0 (LoRA)"),
    *_trained("KempnerForge", "verdict run steps profiler numerics",
              f"{_AO}, KempnerForge 5666d0d: one GPU, FSDP2, EP 2, PP 2"),
    *_trained("nanochat", "verdict run steps numerics", f"{_GPU_TORCH}, nanochat 92d63d4"),
    *_trained("torchtitan", "verdict run steps every numerics",
              f"{_AO}, torchtitan b5bcd76 and 2b935fa"),
    *_trained("torchtune", "verdict run every numerics",
              f"{_AO}, torchtune 41aaca4: full_finetune_distributed"),
    *_trained("modded-nanogpt", "verdict run steps numerics",
              f"{_GPU_TORCH}, modded-nanogpt 0d20074"),
    *_trained("OLMo-core", "verdict run steps profiler numerics",
              f"{_AO}, OLMo-core fa6c501: llama2_1B, FSDP"),
)  # fmt: skip


def matrix(features: tuple[str, ...]) -> str:
    """Return the table of frameworks by features; one with nothing tried has no row."""
    head = ["framework", *(FEATURES[name] for name in features)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    seen = {one.framework for one in TRIALS if one.feature in features}
    for name, page in FRAMEWORKS.items():
        if name not in seen:
            continue
        cells = [f"[{name}]({page})" if page else name]
        lines.append(
            f"| {' | '.join([*cells, *(_cell(name, one) for one in features)])} |"
        )
    return "\n".join(lines)


def _cell(framework: str, feature: str) -> str:
    """Return ✓ for a GPU, CPU for the tests alone."""
    if not _can_be_tried(framework, feature):
        return "-"
    tried = [
        one for one in TRIALS if (one.framework, one.feature) == (framework, feature)
    ]
    if not tried:
        return "not tried"
    if any(one.date for one in tried):
        return "✓"
    return CPU


def _can_be_tried(framework: str, feature: str) -> bool:
    if feature == "callback":
        return framework in HAVE_CALLBACKS
    return feature not in HAS_NOT.get(framework, ())


def tried(framework: str) -> str:
    """Return what an example's README says was tried of its framework."""
    of_framework = [one for one in TRIALS if one.framework == framework]
    on_gpu = {one.feature for one in of_framework if one.date}
    done = {one.feature for one in of_framework}
    index = json.loads((ROOT / "traces" / "index.json").read_text(encoding="utf-8"))
    names = {
        one.removeprefix("traces/") for trial in of_framework for one in trial.evidence
    }
    captures = [
        f"`traces/{row['name']}`"
        for row in index["captures"]
        if row["name"] in names
        or _CAPTURED.get(framework) in row["framework"].split(", ")
    ]
    lines = {
        "Tried on an H200": _named(on_gpu),
        "On a CPU, in every run of the tests": _named(done - on_gpu),
        "Not tried": _named(
            {one for one in FEATURES if _can_be_tried(framework, one)} - done
        ),
        "Captures": ", ".join(captures),
    }
    shown = [f"- **{what}**: {text}" for what, text in lines.items() if text]
    return "\n".join(
        [*shown, "- [Dates, versions, evidence](../../benchmarks/results/trials.md)"]
    )


def _named(features: set[str]) -> str:
    names = (name for feature, name in FEATURES.items() if feature in features)
    return ", ".join(names).removesuffix(" on a GPU").replace(" on a GPU,", ",")


def trials() -> str:
    """Return every trial with what shows it; features with the same evidence share a row."""
    lines = [
        "| framework | features | where | with | shown by |",
        "|---|---|---|---|---|",
    ]
    versions = pinned()
    features: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for one in sorted(TRIALS, key=lambda one: [*FRAMEWORKS].index(one.framework)):
        words = one.versions.format(**versions)
        shown = ", ".join(f"`{place.removeprefix('tests/')}`" for place in one.evidence)
        place = f"{one.where}, {one.date or _NO_DATE}"
        features[one.framework, place, words, shown].append(FEATURES[one.feature])
    for (framework, place, words, shown), names in features.items():
        tried = ", ".join(dict.fromkeys(names))
        lines.append(f"| {framework} | {tried} | {place} | {words} | {shown} |")
    return "\n".join(lines)


def pinned() -> dict[str, str]:
    """Return the versions that the tests run with, by package; of the newest Python."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def known() -> str:
    """Return what the file of each framework says."""
    lines = [
        "| framework | log lines | loss | steps counted by | classes |",
        "|---|---|---|---|---|",
    ]
    for one in frameworks():
        rows = len(one.claims) + len(one.denials) + len(one.limits) + len(one.layers)
        counters = dict.fromkeys(
            f"`{row.cls.split('.')[-1]}.{row.path}`" for row in one.counters
        )
        classes = (f"`{cls.split('.')[-1]}`" for cls in one.modules)
        loss = "yes" if one.loss else "-"
        cells = (
            one.name,
            rows or "-",
            loss,
            ", ".join(counters) or "-",
            ", ".join(classes) or "-",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def tables() -> Iterator[tuple[str, str]]:
    """Yield the tables of the page by their names."""
    yield "known", known()
    yield "support", matrix(TABLES_OF[0])
    yield "support, more", matrix(TABLES_OF[1])
    yield "trials", trials()
    for name, page in FRAMEWORKS.items():
        if page:
            yield f"tried {name}", tried(name)
