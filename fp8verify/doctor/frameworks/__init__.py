"""The frameworks whose configurations are known, and which of them a document belongs to."""

from __future__ import annotations

from fp8verify.doctor.documents import Document
from fp8verify.doctor.frameworks.accelerate import ACCELERATE
from fp8verify.doctor.frameworks.framework import Framework
from fp8verify.doctor.frameworks.huggingface import AXOLOTL, LLAMA_FACTORY, MODEL, TRAINER
from fp8verify.doctor.frameworks.kempnerforge import KEMPNERFORGE
from fp8verify.doctor.frameworks.megatron import MEGATRON, MS_SWIFT
from fp8verify.doctor.frameworks.nemo import AUTOMODEL, BRIDGE, NEMO
from fp8verify.doctor.frameworks.others import (
    DEEPSPEED,
    LIGHTNING,
    LITGPT,
    NANOCHAT,
    PRIME_RL,
    TORCHTUNE,
)
from fp8verify.doctor.frameworks.torchtitan import TORCHTITAN
from fp8verify.doctor.training import Config

# Asked in this order: those with keys of their own before those that share theirs.
FRAMEWORKS: tuple[Framework, ...] = (
    KEMPNERFORGE,
    PRIME_RL,
    TORCHTITAN,
    AXOLOTL,
    LLAMA_FACTORY,
    NANOCHAT,
    MS_SWIFT,
    MEGATRON,
    ACCELERATE,
    BRIDGE,
    NEMO,
    AUTOMODEL,
    LIGHTNING,
    LITGPT,
    TORCHTUNE,
    DEEPSPEED,
    MODEL,
    TRAINER,
)
_BY_NAME = {framework.name: framework for framework in FRAMEWORKS}


def recognise(document: Document) -> Config | None:
    """Return the configuration that a document is, None where no framework knows its keys."""
    for framework in FRAMEWORKS:
        if framework.recognises(document):
            training = framework.read(document.values)
            return Config(document.path, framework.name, document.values, document.lines, training)
    return None


def framework_of(config: Config) -> Framework:
    """Return the framework of a configuration."""
    return _BY_NAME[config.framework]
