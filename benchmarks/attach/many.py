"""Some two hundred short trainings by the loops of real libraries: `many.py FOLDER [NAME…]`.

Each case is trained in a forked child with a working directory of its own below FOLDER, which also
gets what the case printed, its exit status, and the digests of the files that it left. A case is a
row of a table: a loop of a library, and what it is given. `benchmarks/attach_many.py` compares.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

Case = Callable[[], None]
DEVICE = os.environ.get("MANY_DEVICE", "cpu")
STEPS = 7
PATIENCE_S = 240
# Trains one case in this very process. CUDA cannot be used in a forked child of a process in which
# a library asked how many GPUs there are.
ALONE = "--alone"
WORDS = 64
TINY: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "bos_token_id": 1, "eos_token_id": 2, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64,
    "d_kv": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "ffn_dim": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64,
    "word_embed_proj_dim": 32, "embedding_size": 16, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_hidden_groups": 1, "state_size": 8, "use_cache": False,
}  # fmt: skip
CAUSAL = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "phi",
    "phi3",
    "olmo",
    "olmo2",
    "starcoder2",
    "stablelm",
    "gpt_neox",
    "gpt2",
    "opt",
    "bloom",
    "falcon",
    "mixtral",
    "qwen2_moe",
    "olmoe",
    "granite",
    "cohere",
    "glm",
    "smollm3",
    "mamba",
    "gptj",
    "codegen",
    "biogpt",
    "xglm",
    "ministral",
    "helium",
    "nemotron",
    "seed_oss",
    "ernie4_5",
    "arcee",
]
MASKED = [
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "camembert",
    "xlm-roberta",
]
PAIRS = ["t5", "bart", "pegasus", "mbart", "blenderbot", "marian"]
IMAGES = ["vit", "deit", "beit"]


def show(step: int, loss: Any) -> None:
    """Print a loss to the last bit."""
    print(f"step {step} loss {float(loss.detach()).hex()}", flush=True)


def words(step: int, batch: int = 2, length: int = 16) -> torch.Tensor:
    """Return a batch of tokens, the same each time."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(3, WORDS, (batch, length), generator=generator).to(DEVICE)


def numbers(step: int, *shape: int) -> torch.Tensor:
    """Return a batch of numbers, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(step)).to(DEVICE)


IMAGE = {"image_size": 32, "patch_size": 8}
# What a kind of model needs in addition, or (None) does not take.
APART: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "falcon": {"head_dim": None},
    # Of two classes for images, the configuration chooses.
    "deit": {"architectures": ["DeiTForImageClassification"]},
}


def hf_model(kind: str, auto: str = "AutoModelForCausalLM") -> Any:
    """Return a small model of transformers."""
    import transformers

    image = IMAGE if kind in IMAGES else {}
    values = TINY | image | APART.get(kind, {})
    given = {key: value for key, value in values.items() if value is not None}
    config = transformers.AutoConfig.for_model(kind, **given)
    return getattr(transformers, auto).from_config(config).to(DEVICE)


def hf_loss(model: Any, step: int) -> Any:
    """Return the loss of a language model, or of one of images."""
    if hasattr(model.config, "image_size"):
        labels = torch.tensor([0, 1], device=DEVICE)
        return model(pixel_values=numbers(step, 2, 3, 32, 32), labels=labels).loss
    tokens = words(step)
    return model(input_ids=tokens, labels=tokens).loss


def loop(
    step_loss: Callable[[int], Any], optimizer: Any, after: Callable[[], object] = int
) -> None:
    """Train as a script without a framework does."""
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = step_loss(step)
        loss.backward()
        optimizer.step()
        after()
        show(step, loss)


def train_hf(kind: str, auto: str, style: str = "plain") -> None:
    """Train a model of transformers in a loop of one's own."""
    model = hf_model(kind, auto)
    model.train()
    if style == "checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    called = torch.compile(model, backend="aot_eager") if style == "compiled" else model
    autocast = torch.autocast(DEVICE, torch.bfloat16, enabled=style == "autocast")

    def step_loss(step: int) -> Any:
        with autocast:
            tokens = words(step)
            if hasattr(model.config, "image_size"):
                return hf_loss(model, step)
            return called(input_ids=tokens, labels=tokens).loss

    def after() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    loop(step_loss, optimizer, after if style == "clipped" else int)


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Tokens for a Trainer."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = words(index, 1)[0].cpu()
        return {"input_ids": row, "labels": row}


def trainer(**options: Any) -> None:
    """Train by transformers' Trainer."""
    import transformers

    given = {
        "output_dir": "out", "max_steps": STEPS, "per_device_train_batch_size": 2,
        "report_to": [], "logging_steps": 1, "use_cpu": DEVICE == "cpu",
        "disable_tqdm": True, "save_strategy": "no", **options,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(**given)
    model = hf_model("llama")
    training = transformers.Trainer(model=model, args=arguments, train_dataset=Rows())
    training.train()
    for entry in training.state.log_history:
        if "loss" in entry:
            print(entry["step"], entry["loss"])
    show(0, sum(p.double().abs().sum() for p in model.parameters()))


def optimizer_case(name: str, **options: Any) -> None:
    """Train a Llama with an optimizer of torch."""
    model = hf_model("llama")
    parameters = [p for p in model.parameters() if name != "Muon" or p.dim() == 2]
    optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, **options)
    if name == "LBFGS":
        for step in range(1, STEPS + 1):

            def closure(step: int = step) -> Any:
                optimizer.zero_grad()
                loss = hf_loss(model, step)
                loss.backward()
                return loss

            show(step, optimizer.step(closure))
        return
    loop(partial(hf_loss, model), optimizer)


def scheduler_case(name: str, **options: Any) -> None:
    """Train with a schedule of transformers."""
    import transformers

    model = hf_model("qwen2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = transformers.get_scheduler(
        name, optimizer, num_warmup_steps=2, num_training_steps=STEPS, **options
    )
    loop(partial(hf_loss, model), optimizer, schedule.step)
    print(schedule.get_last_lr())


def accelerated(
    accumulate: int = 1, clip: bool = False, saves: bool = False, **options: Any
) -> None:
    """Train by an Accelerator."""
    import accelerate

    accelerator = accelerate.Accelerator(
        cpu=DEVICE == "cpu", gradient_accumulation_steps=accumulate, **options
    )
    model = hf_model("llama")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, loader, schedule
    )
    for step, batch in enumerate(loader, 1):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        show(step, accelerator.gather(loss.detach()).mean())
        if saves and step == 4:
            accelerator.save_state("state")
        if step == STEPS * accumulate:
            break


def lightning_case(style: str = "plain", **options: Any) -> None:
    """Train by Lightning's Trainer."""
    import lightning

    class Module(lightning.LightningModule):
        automatic_optimization = style not in ("manual", "two optimizers")

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
            self.head = nn.Linear(16, 1)

        def training_step(self, batch: Any, step: int) -> Any:
            loss = self.head(self.net(batch)).square().mean()
            show(step, loss)
            if not self.automatic_optimization:
                optimizers = self.optimizers()
                several = optimizers if isinstance(optimizers, list) else [optimizers]
                for optimizer in several:
                    optimizer.zero_grad()
                self.manual_backward(loss)
                for optimizer in several:
                    optimizer.step()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            first = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
            second = torch.optim.SGD(self.head.parameters(), lr=1e-3)
            if style == "two optimizers":
                return [first, second]
            if style == "LBFGS":
                return torch.optim.LBFGS(self.parameters(), lr=1e-2)
            both = torch.optim.AdamW(self.parameters(), lr=1e-3)
            if style == "scheduled":
                return [both], [torch.optim.lr_scheduler.StepLR(both, 2)]
            return both

    loader = torch.utils.data.DataLoader(numbers(1, 32, 16).cpu(), batch_size=4)
    given = {
        "max_steps": STEPS, "logger": False, "enable_progress_bar": False,
        "enable_checkpointing": False, "enable_model_summary": False,
        "accelerator": "cpu" if DEVICE == "cpu" else "gpu", "devices": 1, **options,
    }  # fmt: skip
    lightning.Trainer(**given).fit(Module(), loader)


def fabric_case(**options: Any) -> None:
    """Train by Lightning's Fabric."""
    import lightning

    fabric = lightning.Fabric(
        accelerator="cpu" if DEVICE == "cpu" else "cuda", devices=1, **options
    )
    model = hf_model("llama")
    model, optimizer = fabric.setup(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    )
    for step in range(1, STEPS + 1):
        tokens = words(step)
        loss = model(input_ids=tokens, labels=tokens).loss
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        show(step, loss)
    fabric.save("fabric.ckpt", {"model": model})


def peft_case(tuner: str, **options: Any) -> None:
    """Train adapters of peft on a Llama."""
    import peft

    config = getattr(peft, tuner)(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(hf_model("llama"), config)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)

    def step_loss(step: int) -> Any:
        tokens = words(step)
        return model(input_ids=tokens, labels=tokens).loss

    loop(step_loss, optimizer)
    show(0, sum(p.double().abs().sum() for p in model.parameters()))


def timm_case(
    name: str, optimizer: str = "adamw", average: bool = False, **more: Any
) -> None:
    """Train a model of timm with one of timm's optimizers."""
    import timm
    import timm.optim
    import timm.utils

    model = timm.create_model(name, num_classes=4, **more).to(DEVICE)
    steps = timm.optim.create_optimizer_v2(model, opt=optimizer, lr=1e-3)
    mean = timm.utils.ModelEmaV3(model) if average else None
    size = more.get("img_size", 64)

    def step_loss(step: int) -> Any:
        labels = torch.tensor([0, 1], device=DEVICE)
        return nn.functional.cross_entropy(
            model(numbers(step, 2, 3, size, size)), labels
        )

    loop(step_loss, steps, (lambda: mean.update(model)) if mean else int)


def diffusers_case(name: str, schedule: str) -> None:
    """Train a denoiser of diffusers."""
    import diffusers

    small = {"sample_size": 16, "block_out_channels": (16, 32), "norm_num_groups": 8}
    down = ("DownBlock2D", "AttnDownBlock2D")
    up = ("AttnUpBlock2D", "UpBlock2D")
    model = diffusers.UNet2DModel(
        in_channels=3, out_channels=3, layers_per_block=1, attention_head_dim=8,
        down_block_types=down, up_block_types=up, **small,
    ).to(DEVICE)  # fmt: skip
    noise_schedule = getattr(diffusers, schedule)(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = None
    if name == "EMA":
        from diffusers.training_utils import EMAModel

        average = EMAModel(model.parameters())

    def step_loss(step: int) -> Any:
        noise = numbers(step, 2, 3, 16, 16)
        times = torch.tensor([5, 50], device=DEVICE)
        noisy = noise_schedule.add_noise(numbers(step + 99, 2, 3, 16, 16), noise, times)
        return nn.functional.mse_loss(model(noisy, times).sample, noise)

    loop(
        step_loss,
        optimizer,
        (lambda: average.step(model.parameters())) if average else int,
    )


def gpytorch_case(kernel: str) -> None:
    """Fit a Gaussian process."""
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            inner = getattr(gpytorch.kernels, kernel)()
            self.kernel = gpytorch.kernels.ScaleKernel(inner)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean(x), self.kernel(x)
            )

    x = torch.linspace(0, 1, 24, device=DEVICE)
    y = torch.sin(6 * x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
    model = Process(x, y, likelihood).to(DEVICE)
    model.train()
    likelihood.train()
    gain = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    loop(lambda _: -gain(model(x), y), torch.optim.Adam(model.parameters(), lr=0.1))


def pyro_case(guide: str) -> None:
    """Fit a regression by stochastic variational inference."""
    import pyro
    import pyro.distributions as dist
    import pyro.infer.autoguide as guides

    pyro.clear_param_store()
    pyro.set_rng_seed(0)

    def model(x: Any, y: Any) -> None:
        slope = pyro.sample("slope", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ slope, 0.5), obs=y)

    x = numbers(1, 16, 4).cpu()
    fit = pyro.infer.SVI(
        model, getattr(guides, guide)(model), pyro.optim.Adam({"lr": 0.05}),
        pyro.infer.Trace_ELBO(),
    )  # fmt: skip
    for step in range(1, STEPS + 1):
        print(step, fit.step(x, x.sum(1)).hex())


def small_training(seed: int) -> float:
    """Train a small network and return its last loss; for pools of threads."""
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)]
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.1, generator=generator)
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 13):
        optimizer.zero_grad()
        loss = (model(numbers(step, 8, 32)) - 1).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def optuna_case(jobs: int) -> None:
    """Search with trials on threads."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    study.optimize(lambda trial: small_training(trial.number), n_trials=6, n_jobs=jobs)
    print(sorted(value.hex() for value in (trial.value for trial in study.trials)))


def joblib_case(jobs: int) -> None:
    """Train on joblib's threads."""
    import joblib

    done = joblib.Parallel(n_jobs=jobs, prefer="threads")(
        joblib.delayed(small_training)(seed) for seed in range(6)
    )
    print([loss.hex() for loss in done])


def pool_case(jobs: int) -> None:
    """Train on the threads of the standard library's pool."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(jobs) as pool:
        print([loss.hex() for loss in pool.map(small_training, range(6))])


def schedule_free(name: str) -> None:
    """Train with an optimizer that averages weights."""
    import schedulefree

    model = hf_model("llama")
    optimizer = getattr(schedulefree, name)(model.parameters(), lr=1e-3)
    optimizer.train()
    loop(partial(hf_loss, model), optimizer)
    optimizer.eval()


def torchrl_case(name: str) -> None:
    """Train a policy by a loss of torchrl, on transitions that are made up."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    network = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(DEVICE)
    actor = QValueActor(
        TensorDictModule(network, ["observation"], ["action_value"]),
        action_space="categorical",
    )
    loss = DQNLoss(actor, action_space="categorical", double_dqn=name == "double")
    target = SoftUpdate(loss, eps=0.9)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    def step_loss(step: int) -> Any:
        following = {
            "observation": numbers(step + 99, 8, 16),
            "reward": numbers(step, 8, 1),
            "done": torch.zeros(8, 1, dtype=torch.bool, device=DEVICE),
            "terminated": torch.zeros(8, 1, dtype=torch.bool, device=DEVICE),
        }
        transitions = TensorDict(
            {
                "observation": numbers(step, 8, 16),
                "action": words(step, 1, 8)[0] % 4,
                "next": TensorDict(following, batch_size=8),
            },
            batch_size=8,
        )
        return loss(transitions)["loss"]

    loop(step_loss, optimizer, target.step)


def averaged(kind: str) -> None:
    """Train with an average of the weights by torch_ema."""
    from torch_ema import ExponentialMovingAverage

    model = hf_model(kind)
    average = ExponentialMovingAverage(model.parameters(), decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop(partial(hf_loss, model), optimizer, average.update)
    with average.average_parameters():
        show(0, hf_loss(model, 0))


TRAINER: dict[str, dict[str, Any]] = {
    "plain": {}, "accumulation": {"gradient_accumulation_steps": 2},
    "checkpointing": {"gradient_checkpointing": True}, "bf16": {"bf16": True},
    "adafactor": {"optim": "adafactor"}, "sgd": {"optim": "sgd"},
    "adagrad": {"optim": "adagrad"}, "rmsprop": {"optim": "rmsprop"},
    "fused": {"optim": "adamw_torch_fused"}, "cosine": {"lr_scheduler_type": "cosine"},
    "clipped": {"max_grad_norm": 0.1}, "smoothed": {"label_smoothing_factor": 0.1},
    "saves": {"save_strategy": "steps", "save_steps": 4},
    "weights only": {"save_strategy": "steps", "save_steps": 3, "save_only_model": True},
    "polynomial": {"lr_scheduler_type": "polynomial"}, "neftune": {"neftune_noise_alpha": 5},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    "workers": {"dataloader_num_workers": 1},
}  # fmt: skip
OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SGD", {}), ("SGD", {"momentum": 0.9, "nesterov": True}), ("SGD", {"foreach": True}),
    ("Adam", {}), ("Adam", {"amsgrad": True}), ("Adam", {"fused": True}),
    ("AdamW", {"foreach": True}), ("AdamW", {"fused": True}), ("AdamW", {"maximize": True}),
    ("NAdam", {}), ("RAdam", {}), ("Adamax", {}), ("Adagrad", {}), ("Adadelta", {}),
    ("RMSprop", {}), ("RMSprop", {"centered": True}), ("Rprop", {}), ("ASGD", {}),
    ("LBFGS", {"max_iter": 3}), ("Adafactor", {}), ("Muon", {}),
)  # fmt: skip
LIGHTNING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {}), ("manual", {}), ("two optimizers", {}), ("LBFGS", {}), ("scheduled", {}),
    ("plain", {"accumulate_grad_batches": 2}), ("plain", {"gradient_clip_val": 0.5}),
    ("plain", {"precision": "bf16-mixed"}), ("plain", {"precision": "bf16-true"}),
    ("plain", {"enable_checkpointing": True}), ("plain", {"enable_model_summary": True}),
    ("plain", {"profiler": "simple"}), ("plain", {"detect_anomaly": True}),
    ("plain", {"deterministic": True}), ("plain", {"precision": "64-true"}),
    ("plain", {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"}),
    ("plain", {"inference_mode": False}), ("plain", {"barebones": True}),
)  # fmt: skip
PEFT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("LoraConfig", {"target_modules": ["q_proj", "v_proj"]}),
    ("LoraConfig", {"target_modules": "all-linear", "use_rslora": True}),
    ("LoraConfig", {"target_modules": ["q_proj"], "use_dora": True}),
    ("IA3Config", {}), ("LoHaConfig", {"target_modules": ["q_proj"]}),
    ("LoKrConfig", {"target_modules": ["q_proj"]}), ("VeraConfig", {"target_modules": ["q_proj"]}),
    ("AdaLoraConfig", {"target_modules": ["q_proj"], "total_step": 20}),
    ("OFTConfig", {"target_modules": ["q_proj"], "oft_block_size": 4}),
    ("PrefixTuningConfig", {"num_virtual_tokens": 4}),
    ("PromptTuningConfig", {"num_virtual_tokens": 4}), ("LNTuningConfig", {}),
    ("FourierFTConfig", {"target_modules": ["q_proj"], "n_frequency": 16}),
    ("BOFTConfig", {"target_modules": ["q_proj"], "boft_block_size": 4}),
)  # fmt: skip
TIMM = [
    "resnet18",
    "resnet26",
    "mobilenetv3_small_050",
    "efficientnet_b0",
    "regnetx_002",
    "convnext_atto",
    "densenet121",
    "ghostnet_050",
    "mnasnet_050",
    "lcnet_035",
    "tinynet_e",
    "repvgg_a0",
    "dla34",
    "vgg11",
]
KERNELS = [
    "RBFKernel",
    "MaternKernel",
    "PeriodicKernel",
    "LinearKernel",
    "RQKernel",
    "CosineKernel",
]
GUIDES = ["AutoNormal", "AutoDelta", "AutoDiagonalNormal", "AutoMultivariateNormal"]
SCHEDULES = [
    "linear",
    "cosine",
    "constant",
    "constant_with_warmup",
    "polynomial",
    "inverse_sqrt",
]
NOISES = [
    "DDPMScheduler",
    "DDIMScheduler",
    "PNDMScheduler",
    "DPMSolverMultistepScheduler",
]
ACCELERATE: tuple[dict[str, Any], ...] = (
    {}, {"accumulate": 2}, {"accumulate": 3, "clip": True}, {"clip": True},
    {"mixed_precision": "bf16"}, {"saves": True}, {"step_scheduler_with_optimizer": False},
    {"accumulate": 2, "saves": True}, {"mixed_precision": "bf16", "clip": True},
)  # fmt: skip
FABRIC: tuple[dict[str, Any], ...] = (
    {}, {"precision": "bf16-mixed"}, {"precision": "bf16-true"}, {"precision": "64-true"},
)  # fmt: skip


Cases = Iterator[tuple[str, str, Case]]


def all_cases() -> Cases:
    """Yield the name of each case, the library that it needs, and what trains it."""
    yield from models_of_transformers()
    yield from loops_of_transformers()
    yield from loops_of_trainers()
    yield from loops_of_other_libraries()
    yield from loops_of_pools_and_policies()


def models_of_transformers() -> Cases:
    """Yield a loop of one's own for each kind of model."""
    kinds = {
        "AutoModelForCausalLM": CAUSAL,
        "AutoModelForMaskedLM": MASKED,
        "AutoModelForSeq2SeqLM": PAIRS,
        "AutoModelForImageClassification": IMAGES,
    }
    for auto, known in kinds.items():
        for kind in known:
            yield f"model {kind}", "transformers", partial(train_hf, kind, auto)
    for style in ("checkpointing", "autocast", "compiled", "clipped"):
        for kind in ("llama", "mixtral"):
            case = partial(train_hf, kind, "AutoModelForCausalLM", style)
            yield f"{style} {kind}", "transformers", case


def loops_of_transformers() -> Cases:
    """Yield trainings by the Trainer, and with optimizers and schedules."""
    for name, options in TRAINER.items():
        yield f"Trainer {name}", "transformers", partial(trainer, **options)
    for optimizer, options in OPTIMIZERS:
        name = f"optimizer {optimizer} {' '.join(options)}".strip()
        if hasattr(torch.optim, optimizer):
            yield name, "transformers", partial(optimizer_case, optimizer, **options)
    for name in SCHEDULES:
        yield f"schedule {name}", "transformers", partial(scheduler_case, name)


def loops_of_trainers() -> Cases:
    """Yield trainings by accelerate and Lightning."""
    for options in ACCELERATE:
        case = partial(accelerated, **options)
        yield _named("accelerate", options), "accelerate", case
    for style, options in LIGHTNING:
        case = partial(lightning_case, style, **options)
        yield _named(f"Lightning {style}", options), "lightning", case
    for options in FABRIC:
        yield _named("Fabric", options), "lightning", partial(fabric_case, **options)


def loops_of_other_libraries() -> Cases:
    """Yield trainings by libraries for adapters, images, processes and searches."""
    for tuner, options in PEFT:
        name = _named(f"peft {tuner}", options)
        yield name, "peft", partial(peft_case, tuner, **options)
    for name in TIMM:
        yield f"timm {name}", "timm", partial(timm_case, name)
    for name in ("sgd", "lamb", "lion", "adopt", "madgrad", "nadamw"):
        case = partial(timm_case, "resnet18", name, average=True)
        yield f"timm by {name}", "timm", case
    for name, schedule in [("plain", noise) for noise in NOISES] + [("EMA", NOISES[0])]:
        case = partial(diffusers_case, name, schedule)
        yield f"diffusers {name} {schedule}", "diffusers", case
    for kernel in KERNELS:
        yield f"gpytorch {kernel}", "gpytorch", partial(gpytorch_case, kernel)
    for guide in GUIDES:
        yield f"pyro {guide}", "pyro", partial(pyro_case, guide)


def loops_of_pools_and_policies() -> Cases:
    """Yield trainings on threads, of policies, and with averages of weights."""
    for name in ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"):
        yield f"schedulefree {name}", "schedulefree", partial(schedule_free, name)
    for jobs in (1, 2, 3):
        yield f"optuna {jobs}", "optuna", partial(optuna_case, jobs)
        yield f"joblib {jobs}", "joblib", partial(joblib_case, jobs)
        yield f"pool {jobs}", "torch", partial(pool_case, jobs)
    for name in ("plain", "double"):
        yield f"torchrl {name}", "torchrl", partial(torchrl_case, name)
    for kind in ("llama", "gpt2"):
        yield f"torch_ema {kind}", "torch_ema", partial(averaged, kind)


def _named(name: str, options: dict[str, Any]) -> str:
    values = (f"{key}={value}" for key, value in options.items())
    return " ".join([name, *values]).replace("/", "-")


def train_in_child(folder: Path, case: Case) -> None:
    """Train a case in this process, which ends with it."""
    work = folder / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o600), descriptor)
    torch.manual_seed(0)
    try:
        case()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        sys.exit(1)


def digests(work: Path) -> list[str]:
    """Return a line for each file that a case left, with what is in it if it holds tensors."""
    lines = []
    for path in sorted(work.rglob("*")):
        if path.suffix == ".safetensors":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            lines.append(f"{path.relative_to(work)} {digest}")
        elif path.is_file():
            lines.append(str(path.relative_to(work)))
    return lines


def main() -> None:
    """Train the cases that are named, or all, one after the other."""
    out = Path(sys.argv[1]).absolute()
    alone = sys.argv[2:3] == [ALONE]
    wanted = set(sys.argv[3:] if alone else sys.argv[2:])
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for library in (
        "transformers",
        "accelerate",
        "lightning",
        "peft",
        "timm",
        "diffusers",
    ):
        if find_spec(library) is not None:
            with contextlib.suppress(ImportError):  # the case says so
                __import__(library)
    for name, library, case in all_cases():
        if (wanted and name not in wanted) or find_spec(library) is None:
            continue
        folder = out / name.replace(" ", "_")
        if alone:
            train_in_child(folder, case)
            return
        folder.mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if not child and DEVICE != "cpu":
            again = [sys.executable, __file__, str(out), ALONE, name]
            os.execv(sys.executable, again)
        if not child:
            train_in_child(folder, case)
            sys.exit(0)
        status = wait(child)
        (folder / "status").write_text(f"{status}\n")
        (folder / "files").write_text("\n".join(digests(folder / "work")))
        print(name, status, flush=True)


def wait(child: int) -> int | str:
    """Return the exit status of a child, or the number of its signal, or that it hangs."""
    import time

    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


if __name__ == "__main__":
    main()
