"""Small models in FP8, each sound or with one layer at fault, with known truth.

    fp8verify run --steps 8-9 --trace-dir OUT/capture benchmarks/gpu/small_models.py NAME FAULT OUT

NAME is one of `RUNS`. FAULT: `sound`; `missed` (one layer of the third of four blocks is not
converted); `lies` (that layer is converted, and multiplies in BF16 all the same). Behind the window
a plain torch.profiler, with its defaults, records two steps into OUT; OUT/truth.json has the truth.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import types
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DIM, HEADS, VOCABULARY = (1024, 16, 8192) if GPU else (64, 4, 128)
BATCH, LENGTH = (2, 1024) if GPU else (2, 16)
LAYERS, STEPS = 4, 14


def at_fault(model):
    """Return the name of the layer that the fault is about."""
    found = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and re.search(r"\b(layers?|blocks)\.2\.", name)
    ]
    for end in ("down_proj", "down", "fc2", "output.dense", "o_proj"):
        for name in found:
            if name.endswith(end):
                return name
    return found[-1]


# ---- models of transformers


def llama(name):
    from transformers import LlamaConfig, LlamaForCausalLM

    if name.startswith("liger"):
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama()
    config = LlamaConfig(
        hidden_size=DIM, intermediate_size=DIM * 11 // 4, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS // 2, vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), tokens, lambda fqn: "lm_head" not in fqn


def mla(_):
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    heads, width = (8, 64) if GPU else (4, 16)
    config = DeepseekV3Config(
        hidden_size=DIM, intermediate_size=2 * DIM, moe_intermediate_size=DIM,
        num_hidden_layers=LAYERS, num_attention_heads=heads, num_key_value_heads=heads,
        kv_lora_rank=DIM // 4, q_lora_rank=DIM * 3 // 8, qk_rope_head_dim=width,
        qk_nope_head_dim=width, v_head_dim=width, first_k_dense_replace=LAYERS,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    return DeepseekV3ForCausalLM(config), tokens, lambda fqn: "lm_head" not in fqn


def bert(_):
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **encoder()))
    return model, words, lambda fqn: "encoder" in fqn


def vit(_):
    from transformers import ViTConfig, ViTForImageClassification

    side = 224 if GPU else 32
    config = ViTConfig(image_size=side, num_labels=1008, **encoder())
    model = ViTForImageClassification(config)
    return model, pictures, lambda fqn: "classifier" not in fqn


def encoder():
    """Return the sizes of an encoder whose attention is not fused."""
    width, heads = (768, 12) if GPU else (64, 4)
    return {
        "hidden_size": width, "num_hidden_layers": LAYERS, "num_attention_heads": heads,
        "intermediate_size": 4 * width, "attn_implementation": "eager",
    }  # fmt: skip


# ---- models of our own


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Linear(DIM, DIM, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (heads(layer(x)) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


def heads(x):
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Experts(nn.Module):
    """Experts of linear layers, two to a token: each gets another number of tokens."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, 4, bias=False)
        self.experts = nn.ModuleList(Feed() for _ in range(4))

    def forward(self, x):
        flat = x.reshape(-1, DIM)
        weights, chosen = self.router(flat).float().softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            part = expert(flat[token]) * weights[token, place, None].to(flat.dtype)
            out = out.index_add(0, token, part)
        return out.view(x.shape)


class Grouped(nn.Module):
    """Experts in one grouped GEMM, tokens dealt to them evenly."""

    def __init__(self):
        super().__init__()
        self.fp8 = True
        self.weight = nn.Parameter(torch.randn(4, DIM, DIM) / DIM**0.5)
        ends = torch.arange(1, 5) * (BATCH * LENGTH // 4)
        self.register_buffer("ends", ends.to(torch.int32))

    def forward(self, x):
        flat, turned = x.reshape(-1, DIM), self.weight.transpose(-2, -1)
        if not self.fp8:
            return torch._grouped_mm(flat, turned, offs=self.ends).view(x.shape)
        from torchao.prototype.moe_training.fp8_grouped_mm import (
            _to_fp8_rowwise_then_scaled_grouped_mm as multiply,
        )

        options = {"pad_token_groups_for_grouped_mm": False}
        return multiply(flat, turned, self.ends, **options).view(x.shape)


class Block(nn.Module):
    def __init__(self, feed):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention, self.mlp = Attention(), feed()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, feed):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(Block(feed) for _ in range(LAYERS))
        self.lm_head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, input_ids, labels):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(x).flatten(0, 1).float()
        return functional.cross_entropy(logits, labels.flatten())


class DitBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (
            nn.LayerNorm(DIM, elementwise_affine=False) for _ in range(2)
        )
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.ada = nn.Linear(DIM, 6 * DIM)

    def forward(self, x, c):
        a1, b1, g1, a2, b2, g2 = self.ada(functional.silu(c))[:, None].chunk(6, -1)
        q, k, v = map(heads, self.qkv(self.norm1(x) * (1 + a1) + b1).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + g1 * self.proj(mixed.transpose(1, 2).reshape(x.shape))
        inner = functional.gelu(self.fc1(self.norm2(x) * (1 + a2) + b2))
        return x + g2 * self.fc2(inner)


class Dit(nn.Module):
    """A diffusion transformer; each block is checkpointed."""

    def __init__(self):
        super().__init__()
        self.patches, self.time = nn.Linear(64, DIM), nn.Linear(256, DIM)
        self.blocks = nn.ModuleList(DitBlock() for _ in range(LAYERS))
        self.final = nn.Linear(DIM, 64)

    def forward(self, x, times, wanted):
        c, y = self.time(times), self.patches(x)
        for block in self.blocks:
            y = checkpoint(block, y, c, use_reentrant=False)
        return (self.final(y) - wanted).float().square().mean()


def gpt(_):
    return Gpt(Feed), tokens, lambda fqn: "lm_head" not in fqn


def moe(name):
    feed = Grouped if name == "moe_grouped" else Experts
    return Gpt(feed), tokens, lambda fqn: "lm_head" not in fqn and "router" not in fqn


def dit(_):
    return Dit(), noise, lambda fqn: "blocks" in fqn and "ada" not in fqn


# ---- batches


def tokens():
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device=DEVICE)
    return {"input_ids": ids, "labels": ids}


def words():
    ids = torch.randint(0, VOCABULARY, (8, 256) if GPU else (2, 16), device=DEVICE)
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def pictures():
    side = 224 if GPU else 32
    images = torch.randn(16, 3, side, side, device=DEVICE, dtype=torch.bfloat16)
    labels = torch.randint(0, 1008, (16,), device=DEVICE)
    return {"pixel_values": images, "labels": labels}


def noise():
    patches = 256 if GPU else 16
    options = {"device": DEVICE, "dtype": torch.bfloat16}
    x, wanted = (torch.randn(16, patches, 64, **options) for _ in range(2))
    return {"x": x, "times": torch.randn(16, 256, **options), "wanted": wanted}


# name: (model, mode of torch.compile or None for eager, torchao's recipe)
RUNS = {
    "llama_reduce_overhead": (llama, "reduce-overhead", "tensorwise"),
    "llama_max_autotune": (llama, "max-autotune", "tensorwise"),
    "llama_rowwise": (llama, "default", "rowwise"),
    "llama_rowwise_eager": (llama, None, "rowwise"),
    "llama_gw_hp": (llama, "default", "rowwise_with_gw_hp"),
    "liger": (llama, None, "tensorwise"),
    "gpt_own_graph": (gpt, None, "tensorwise"),
    "gpt_own_graph_compiled": (gpt, "default", "tensorwise"),
    "vit_reduce_overhead": (vit, "reduce-overhead", "tensorwise"),
    "vit_compiled": (vit, "default", "tensorwise"),
    "bert_compiled": (bert, "default", "tensorwise"),
    "dit": (dit, None, "tensorwise"),
    "dit_compiled": (dit, "blocks", "tensorwise"),
    "mla_compiled": (mla, "default", "tensorwise"),
    "mla": (mla, None, "tensorwise"),
    "moe": (moe, None, "tensorwise"),
    "moe_grouped": (moe, None, "tensorwise"),
}


def convert(model, takes, recipe, fault, layer):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    left_out = {layer} if fault == "missed" else set()
    config = Float8LinearConfig.from_recipe_name(recipe)
    if isinstance(model, Gpt):  # an expert's tokens are no multiple of 16
        config = dataclasses.replace(config, pad_inner_dim=True)
    chosen = lambda _, name: takes(name) and name not in left_out  # noqa: E731
    convert_to_float8_training(model, config=config, module_filter_fn=chosen)
    if fault == "lies":
        part = model.get_submodule(layer)
        part.forward = types.MethodType(in_bf16, part)
    classes = [type(part).__name__ for part in model.modules()]
    return classes.count("Float8Linear")


def in_bf16(self, x):
    return functional.linear(x, self.weight, self.bias)


def both(model, batch):
    """Run both passes; return the loss."""
    out = model(**batch)
    loss = out if torch.is_tensor(out) else out.loss
    loss.backward()
    return loss.detach()


def captured(model, batch):
    """Return a function that replays a CUDA graph of both passes."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            both(model, batch)
    torch.cuda.current_stream().wait_stream(aside)
    for parameter in model.parameters():
        parameter.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = both(model, batch)

    def replay():
        graph.replay()
        return loss

    return replay


def build(name, fault):
    """Return the model, its batch, and the truth."""
    make, mode, recipe = RUNS[name]
    model, data, takes = make(name)
    model = model.to(DEVICE, torch.bfloat16).train()
    if name == "moe_grouped":
        layer = "blocks.2.mlp"
        model.blocks[2].mlp.fp8 = fault == "sound"
    else:
        layer = at_fault(model)
    linears = sum(isinstance(part, nn.Linear) for part in model.modules())
    converted = convert(model, takes, recipe, fault, layer)
    if mode == "blocks":
        for block in model.blocks:
            block.compile()
    elif mode is not None:
        model = torch.compile(model, mode=mode)
    truth = {
        "name": f"{name}_{fault}", "mode": mode, "recipe": recipe, "fault": fault,
        "layer": None if fault == "sound" else layer, "converted": converted,
        "linears": linears,
    }  # fmt: skip
    return model, data(), truth


def main():
    name, fault, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, batch, truth = build(name, fault)
    (folder / "truth.json").write_text(json.dumps(truth))
    graphed = "own_graph" in name
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    run = captured(model, batch) if graphed else lambda: both(model, batch)

    def step(number):
        loss = run()
        optimizer.step()
        if graphed and os.environ.get("MARK_STEPS"):
            import fp8verify

            fp8verify.step()  # a replay calls no module
        optimizer.zero_grad(set_to_none=not graphed)
        print(f"step {number} loss {loss.item():.6f}", flush=True)

    for number in range(1, STEPS - 3):
        step(number)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=2)
    with torch.profiler.profile(schedule=plan) as profiler:
        for number in range(STEPS - 3, STEPS):
            step(number)
            if number < STEPS - 1:
                profiler.step()
    profiler.export_chrome_trace(str(folder / "plain.json.gz"))
    print("done", flush=True)


if __name__ == "__main__":
    main()
