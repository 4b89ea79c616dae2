"""Short runs by libraries from the package index: `libraries.py CASE`, on a CPU.

Each prints its last loss and what torch.compile has made of it; the weights are random.
"""

import os
import sys
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "WANDB_MODE": "disabled",
}
os.environ |= {
    "HF_DATASETS_CACHE": os.path.abspath("datasets"),
    "TOKENIZERS_PARALLELISM": "false",
}

import torch
import torch._dynamo.utils
from torch import nn

STEPS = 5
ARCHITECTURES = [
    "llama",
    "gpt2",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "phi",
    "phi3",
    "gpt_neox",
    "opt",
    "bloom",
    "falcon",
    "gptj",
    "stablelm",
    "olmo2",
    "cohere",
    "starcoder2",
    "mixtral",
    "qwen2_moe",
    "granite",
]
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_attention_heads"), 2
    ),
    **dict.fromkeys(
        ("n_head", "n_heads", "num_key_value_heads", "num_experts_per_tok"), 2
    ),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("head_dim",), 16),
    **dict.fromkeys(("rotary_dim",), 8),
    **dict.fromkeys(("vocab_size",), 128),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), 0),
    **dict.fromkeys(("eos_token_id",), 1),
}


def causal_model(name):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    kind = CONFIG_MAPPING[name]
    fixed = {key for key in SMALL if isinstance(getattr(kind, key, None), property)}
    fields = {key for key in SMALL if hasattr(kind(), key)} - fixed
    config = kind(**{key: SMALL[key] for key in fields})
    return AutoModelForCausalLM.from_config(config)


def tokens(rows=2, length=16):
    return torch.randint(2, 128, (rows, length))


def report(name, loss):
    """Print what a run came to, and let the next one begin without compiled code."""
    counters = torch._dynamo.utils.counters
    graphs = counters.get("stats", {}).get("unique_graphs", 0)
    breaks = sum(counters.get("graph_break", {}).values())
    metrics = torch._dynamo.utils.get_compilation_metrics()
    again = sum(bool(one.recompile_reason) for one in metrics)
    print(
        f"{name}: loss {float(loss):.6f}, {graphs} graphs, {breaks} breaks, {again} again"
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()


def train(name, model, loss_of, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(name, loss.detach())


def transformers(wrap=lambda model: model):
    for name in ARCHITECTURES:
        model = causal_model(name)
        called, batch = wrap(model), tokens()
        train(name, model, lambda: called(input_ids=batch, labels=batch).loss)  # noqa: B023


def transformers_compiled():
    transformers(lambda model: torch.compile(model, backend="eager"))


def transformers_inductor():
    model, batch = causal_model("llama"), tokens()
    compiled = torch.compile(model, fullgraph=True)
    train("llama", model, lambda: compiled(input_ids=batch, labels=batch).loss)


def step_with_optimizer():
    for name in ("llama", "gpt2"):
        model, batch = causal_model(name), tokens()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        @torch.compile(backend="aot_eager")
        def step():
            loss = model(input_ids=batch, labels=batch).loss  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            return loss.detach()

        for _ in range(STEPS):
            loss = step()
        report(name, loss)


def peft():
    from peft import LoraConfig, get_peft_model

    for compiles in (False, True):
        model = get_peft_model(
            causal_model("llama"), LoraConfig(target_modules=["q_proj", "v_proj"])
        )
        called, batch = (
            torch.compile(model, backend="eager") if compiles else model,
            tokens(),
        )
        train("lora", model, lambda: called(input_ids=batch, labels=batch).loss)  # noqa: B023


def trl():
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = [
        {"input_ids": row.tolist(), "labels": row.tolist()} for row in tokens(rows=16)
    ]
    arguments = SFTConfig(
        output_dir="out", max_steps=STEPS, report_to=[], use_cpu=True, save_strategy="no",
        bf16=False,
        dataset_kwargs={"skip_prepare_dataset": True}, disable_tqdm=True, logging_steps=100,
        per_device_train_batch_size=2, max_length=None,
    )  # fmt: skip
    trainer = SFTTrainer(
        causal_model("llama"), arguments, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
    )  # fmt: skip
    report("sft", trainer.train().training_loss)


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {
        "<pad>": 0,
        "<eos>": 1,
        **{f"w{number}": number for number in range(2, 128)},
    }
    plain = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>"
    )


def accelerate():
    from accelerate import Accelerator

    helper = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = causal_model("llama")
    data = torch.utils.data.DataLoader(tokens(rows=16), batch_size=2)
    model, optimizer, data = helper.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), data
    )
    for batch in data:
        with helper.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            helper.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    report("accumulated", loss.detach())


def lightning():
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = causal_model("llama")

        def training_step(self, batch, _):
            self.last = self.model(input_ids=batch, labels=batch).loss
            return self.last

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    for compiles in (False, True):
        module = Module()
        called = torch.compile(module, backend="eager") if compiles else module
        trainer = Trainer(
            max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(called, torch.utils.data.DataLoader(tokens(rows=16), batch_size=2))
        report("fit", module.last.detach())


def timm():
    # torchvision's wheel from the package index fails without CUDA: it is installed where no other
    # library sees it, by scripts/test_libraries.sh.
    sys.path.append(str(Path(__file__).parents[2] / "build" / "libraries"))
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            operators.define(
                f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor"
            )
    from timm import create_model

    for name in (
        "resnet10t",
        "convnext_atto",
        "vit_tiny_patch16_224",
        "mobilenetv3_small_050",
    ):
        for compiles in (False, True):
            torch.manual_seed(0)
            size = {"img_size": 32, "patch_size": 8} if name.startswith("vit") else {}
            model = create_model(name, num_classes=4, **size)
            called = (
                torch.compile(model, backend="eager", fullgraph=True)
                if compiles
                else model
            )
            images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
            train(
                name,
                model,
                lambda: nn.functional.cross_entropy(called(images), labels),  # noqa: B023
            )


def diffusers():
    from diffusers import UNet2DModel

    for compiles in (False, True):
        torch.manual_seed(0)
        model = UNet2DModel(
            sample_size=16, block_out_channels=(32, 32), layers_per_block=1, norm_num_groups=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        called = torch.compile(model, backend="eager") if compiles else model
        noise, time = torch.randn(2, 3, 16, 16), torch.tensor([3, 7])
        train("unet", model, lambda: called(noise, time).sample.square().mean())  # noqa: B023


def schedulefree():
    from schedulefree import AdamWScheduleFree

    model, batch = causal_model("llama"), tokens()
    optimizer = AdamWScheduleFree(model.parameters(), lr=1e-3)
    optimizer.train()
    train("adamw", model, lambda: model(input_ids=batch, labels=batch).loss, optimizer)
    optimizer.eval()
    print(f"averaged {model(input_ids=batch, labels=batch).loss.item():.6f}")


torch.set_num_threads(1)
torch.manual_seed(0)
globals()[sys.argv[1]]()
