"""Train a Llama of transformers, from its configuration, through one library after the other.

    python benchmarks/gpu/frameworks/llama.py --through accelerate --backend ao --compile

The libraries bring their own training loops: accelerate's Accelerator, transformers' Trainer, TRL's
SFTTrainer, PEFT's LoRA (under the Trainer), Lightning's Trainer and DeepSpeed's engine.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 32000


def llama(dim: int, layers: int) -> nn.Module:
    """Return a Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=dim,
        intermediate_size=4 * dim,
        num_hidden_layers=layers,
        num_attention_heads=dim // 128,
        num_key_value_heads=dim // 128,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def rows(count: int, length: int) -> list[dict[str, list[int]]]:
    """Return rows of random tokens."""
    tokens = torch.randint(0, VOCABULARY, (count, length)).tolist()
    return [{"input_ids": row, "labels": row} for row in tokens]


def convert(model: nn.Module) -> None:
    """Convert all linear layers but the head with torchao."""
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(
        model, module_filter_fn=lambda _module, name: "lm_head" not in name
    )


def through_accelerate(args: argparse.Namespace) -> None:
    """Let Accelerator.prepare convert the model and, with --compile, compile it."""
    from accelerate import Accelerator
    from accelerate.utils import AORecipeKwargs, TERecipeKwargs

    recipes = {"ao": AORecipeKwargs, "te": TERecipeKwargs}
    accelerator = Accelerator(
        mixed_precision="bf16" if args.backend == "none" else "fp8",
        kwargs_handlers=[recipes[args.backend]()] if args.backend in recipes else [],
        dynamo_backend="inductor" if args.compile else "no",
    )
    model = llama(args.dim, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(1, args.steps + 1):
        tokens = batch(args).to(accelerator.device)
        loss = model(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} | loss {loss.item():.4f}", flush=True)


def through_trainer(args: argparse.Namespace) -> None:
    """Train with transformers' Trainer, with PEFT's LoRA or with TRL's SFTTrainer."""
    from transformers import Trainer, TrainingArguments, default_data_collator

    model: Any = llama(args.dim, args.layers).to(torch.bfloat16)
    if args.backend == "ao":
        convert(model)
    if args.through == "peft":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
        )
    options = {
        "output_dir": "checkpoints", "max_steps": args.steps, "logging_steps": 1,
        "per_device_train_batch_size": args.batch, "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "bf16": torch.cuda.is_available(), "torch_compile": args.compile,
        "use_cpu": not torch.cuda.is_available(),
    }  # fmt: skip
    data = rows(args.batch * args.steps, args.length)
    if args.through == "trl":
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        settings = SFTConfig(**options, max_length=args.length, packing=False)
        SFTTrainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_list(data),
            processing_class=tokenizer(),
        ).train()
        return
    Trainer(
        model=model,
        args=TrainingArguments(**options),
        train_dataset=data,  # type: ignore[arg-type]
        data_collator=default_data_collator,
    ).train()


def tokenizer() -> Any:
    """Return a tokenizer of whole words, which TRL asks for and hardly uses."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(VOCABULARY - 2)}
    words |= {"<pad>": VOCABULARY - 2, "</s>": VOCABULARY - 1}
    whole = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="<pad>", eos_token="</s>"
    )


def through_lightning(args: argparse.Namespace) -> None:
    """Train with Lightning, with its Transformer Engine plugin where the backend is te."""
    import lightning

    class Module(lightning.LightningModule):
        def configure_model(self) -> None:
            self.model = llama(args.dim, args.layers)
            if args.backend == "ao":
                convert(self.model)

        def training_step(self, tokens: Tensor, _index: int) -> Tensor:
            loss: Tensor = self.model(input_ids=tokens, labels=tokens).loss
            print(f"step {self.global_step + 1} | loss {loss.item():.4f}", flush=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    trainer = lightning.Trainer(
        max_steps=args.steps, devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        precision="transformer-engine" if args.backend == "te" else "bf16-true",
    )  # fmt: skip
    data = torch.randint(0, VOCABULARY, (args.batch * args.steps, args.length))
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=args.batch))  # type: ignore[arg-type]


def through_deepspeed(args: argparse.Namespace) -> None:
    """Train with DeepSpeed's ZeRO 1 engine over layers that torchao converted."""
    import deepspeed

    model = llama(args.dim, args.layers).to(torch.bfloat16)
    if args.backend == "ao":
        convert(model)
    config = {
        "train_micro_batch_size_per_gpu": args.batch,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(1, args.steps + 1):
        tokens = batch(args).to(engine.device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        print(f"step {step} | loss {loss.item():.4f}", flush=True)


def batch(args: argparse.Namespace) -> Tensor:
    """Return one batch of random tokens."""
    return torch.randint(0, VOCABULARY, (args.batch, args.length))


def main() -> None:
    """Train for a few steps, printing the loss of each."""
    loops = {
        "accelerate": through_accelerate,
        "trainer": through_trainer,
        "trl": through_trainer,
        "peft": through_trainer,
        "lightning": through_lightning,
        "deepspeed": through_deepspeed,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--through", choices=loops, required=True)
    parser.add_argument("--backend", choices=["ao", "te", "none"], default="ao")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    args = parser.parse_args()
    torch.manual_seed(0)
    loops[args.through](args)


if __name__ == "__main__":
    main()
