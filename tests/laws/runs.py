"""Random runs whose truth is known: what was configured, and what each call really ran in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fp8verify.thresholds import LEAST_BLOCKS
from tests.hand_built import (
    BF16,
    BF16_KERNEL,
    E5M2,
    FP8,
    FP8_GRADIENT_KERNEL,
    FP8_KERNEL,
    module,
    write_meta,
)
from tests.laws.writer import Writer

FPROP, DGRAD, WGRAD, RECOMPUTE = "fprop", "dgrad", "wgrad", "recompute"
ALL_LEGS = frozenset((FPROP, DGRAD, WGRAD))
FIRST_STEP = 8
CHUNKS = 4  # of the batch, in a fused loss
RECIPES = {
    "all legs": (ALL_LEGS, "wgrad=i:dyn_ten_e4m3,go:dyn_ten_e5m2"),
    "wgrad in BF16": (ALL_LEGS - {WGRAD}, "wgrad=high_precision"),
}
T = TypeVar("T")
# Draws one of several; the first is the simplest.
Choose = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Layer:
    """A linear layer of n outputs and k inputs; `low` are the legs that its recipe runs in FP8.

    A frozen one, as beside adapters, has no wgrad.
    """

    name: str
    n: int
    k: int
    low: frozenset[str]
    block: int | None = None
    expert: bool = False
    frozen: bool = False


@dataclass(frozen=True, order=True)
class Execution:
    """One forward pass with its backward pass."""

    rank: int
    step: int
    batch: int


# One GEMM that ran in BF16 against its recipe: execution, place of the layer, leg.
Flips = frozenset[tuple[Execution, int, str]]


@dataclass(frozen=True)
class Run:
    """What was configured, what is recorded beside the trace, and what went wrong."""

    layers: tuple[Layer, ...]
    tokens: int = 2048
    steps: int = 2
    batches: int = 1
    ranks: int = 1
    form: str = "eager"
    recipe: str = "all legs"
    hidden: frozenset[str] = frozenset()
    extras: frozenset[str] = frozenset()
    log: str = "none"
    lists: bool = True
    # Steps after which experts get the same tokens again; 0 if that is every second one.
    window: int = 0
    flips: Flips = field(default=frozenset())

    def executions(self) -> Iterator[Execution]:
        """Yield all forward passes that are trained."""
        for rank in range(self.ranks):
            for step in range(self.steps):
                for batch in range(self.batches):
                    yield Execution(rank, step, batch)

    def tokens_of(self, at: Execution, place: int) -> int:
        """Return how many tokens a layer gets: an expert now more, now less, or none."""
        if not self.layers[place].expert:
            return self.tokens
        step = at.step % self.window if self.window else at.step
        dealt = random.Random(f"{at.batch} {place} {step % 2}")
        return dealt.choice((0, self.tokens // 8, self.tokens // 4, self.tokens // 4))

    def legs_of(self, place: int) -> list[str]:
        """Return the legs that a layer runs; the first gets no gradient of its input."""
        legs = [FPROP]
        if "recompute" in self.extras and self.layers[place].block is not None:
            legs.append(RECOMPUTE)
        if place > 0 or "embedding" in self.extras:
            legs.append(DGRAD)
        return legs if self.layers[place].frozen else [*legs, WGRAD]

    @property
    def has_sizes(self) -> bool:
        """Whether the trace shows the sizes of products: a replay has no operators."""
        return "shapes" not in self.hidden and self.form in ("eager", "compiled")

    def is_low(self, at: Execution, place: int, leg: str) -> bool:
        """Whether a GEMM ran in FP8."""
        planned = FPROP if leg == RECOMPUTE else leg
        return planned in self.layers[place].low and (at, place, leg) not in self.flips


def random_run(choose: Choose) -> Run:
    """Put a sound run together; `choose` draws one of several, the simplest first."""
    low, _ = RECIPES[recipe := choose(("all legs", "all legs", "wgrad in BF16"))]
    wide = choose((1024, 2048))
    shapes = {
        "mlp": (("up", 4 * wide, wide), ("down", wide, 4 * wide)),
        "attention and mlp": (
            *(("q", wide, wide), ("k", wide, wide), ("v", wide, wide), ("o", wide, wide)),
            *(("up", 4 * wide, wide), ("down", wide, 4 * wide)),
        ),
        "gated": (
            *(("qkv", 3 * wide, wide), ("o", wide, wide), ("gate", 3 * wide, wide)),
            *(("up", 3 * wide, wide), ("down", wide, 3 * wide)),
        ),
    }  # fmt: skip
    block = shapes[choose(("mlp", "attention and mlp", "gated"))]
    count = choose((3, 1, 2, 4))
    experts = choose((0, 0, 0, 3))
    design = choose(("none", "none", "first", "last", "first and last", "o"))
    left_out = {
        "none": (), "o": (), "first": (0,), "last": (count - 1,), "first and last": (0, count - 1),
    }[design]  # fmt: skip
    layers = []
    for number in range(count):
        inside = [(f"blocks.{number}.{name}", n, k, False) for name, n, k in block]
        for expert in range(experts):
            names = (("up", wide, wide // 2), ("down", wide // 2, wide))
            inside += [
                (f"blocks.{number}.experts.{expert}.{name}", n, k, True)
                for name, n, k in names
            ]
        for name, n, k, expert in inside:
            out = number in left_out or design == name.rpartition(".")[2]
            legs = frozenset() if out and count > 2 else low
            layers.append(Layer(name, n, k, legs, number, expert))
    if choose((True, True, False)):
        layers.append(Layer("lm_head", choose((8192, 16384)), wide, frozenset()))
    extras = {
        name for name in ("attention", "evaluation", "teacher", "optimizer", "recompute", "embedding")
        if choose((False, False, True))
    }  # fmt: skip
    form = choose(("eager", "eager", "compiled", "reduce-overhead", "own graph"))
    if form in ("reduce-overhead", "own graph"):
        layers = [one for one in layers if not one.expert]
    if (
        form == "eager"
        and layers[-1].name == "lm_head"
        and choose((False, False, True))
    ):
        extras.add("fused loss")
    hidden = choose(
        ((), (), ("shapes",), ("types",), ("numbers",), ("shapes", "types"))
    )
    return Run(
        layers=tuple(layers),
        steps=choose((2, 1, 3)),
        batches=choose((1, 1, 2)),
        ranks=choose((1, 1, 1, 2)),
        form=form,
        recipe=recipe,
        hidden=frozenset(hidden),
        extras=frozenset(extras),
        log=choose(("none", "claim", "count", "pins")),
        lists=choose((True, True, False)),
    )


def write(run: Run, folder: Path) -> Path:
    """Record a run: the traces of its ranks, its log, its module list."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(run.ranks):
        document = Recorder(run, rank).document()
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
        if run.lists:
            steps = {"first": FIRST_STEP, "last": FIRST_STEP + run.steps - 1}
            window = {**steps, "state": "complete", "trace": f"rank{rank}.json"}
            more = {
                "window": [window],
                "steps_seen": FIRST_STEP + run.steps + 3,
                "ended": True,
            }
            write_meta(folder, *_listed(run), rank=rank, world_size=run.ranks, **more)
    (folder / "log.txt").write_text(_log(run))
    return folder


def _listed(run: Run) -> list[dict[str, Any]]:
    legs, wgrad = RECIPES[run.recipe]
    recipe = f"fprop=i:dyn_ten_e4m3,w:dyn_ten_e4m3 dgrad=go:dyn_ten_e5m2,w:dyn_ten_e4m3 {wgrad}"
    formats = {
        leg: "fp8" if leg in legs else "high_precision" for leg in (FPROP, DGRAD, WGRAD)
    }
    converted = {"class": "Float8Linear", "recipe": recipe, "formats": formats}
    return [
        module(one.name, one.n, one.k, frozen=one.frozen, **converted)
        if one.low
        else module(one.name, one.n, one.k, "high_precision")
        for one in run.layers
    ]


def _log(run: Run) -> str:
    converted = sum(bool(one.low) for one in run.layers)
    name = "TENSORWISE" if run.recipe == "all legs" else "ROWWISE_WITH_GW_HP"
    lines = {
        "none": [],
        "claim": [
            f"Applied Float8 training: recipe={name}, fsdp_float8_all_gather=False"
        ],
        "count": [
            f"Converted {converted}/{len(run.layers)} Linear layers to Float8Linear"
        ],
        "pins": [
            f"[Override] float8_linear: {one.name} Float8Linear.Config -> Linear.Config"
            for one in run.layers
            if not one.low
        ],
    }[run.log]
    losses = [f"step {number} loss 2.5" for number in range(1, 4)]
    return "\n".join([*lines, *losses, ""])


class Recorder:
    """Runs one rank, and records it."""

    def __init__(self, run: Run, rank: int) -> None:
        self.run, self.rank = run, rank
        self.writer = Writer()
        self._number = 0
        self._numbers: dict[int, int] = {}
        # Kernels of the graph that is captured, None while nothing is.
        self._graph: list[tuple[str, float]] | None = None

    def document(self) -> dict[str, Any]:
        """Run all steps; return the trace as Kineto writes it."""
        for step in range(self.run.steps):
            name = f"ProfilerStep#{FIRST_STEP + step}"
            with self.writer.op(name, cat="user_annotation"):
                for batch in range(self.run.batches):
                    self._train(Execution(self.rank, step, batch))
                self._optimizer()
                if "evaluation" in self.run.extras and step == self.run.steps - 1:
                    self._forward(Execution(self.rank, step, 0), trains=False)
                self.writer.wait()
        events = self.writer.events
        for event in events:
            self._hide(event["args"])
        head: dict[str, Any] = {"schemaVersion": 1}
        if "shapes" not in self.run.hidden:
            head["record_shapes"] = 1
        gpu = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
        head["deviceProperties"] = [gpu]
        if self.run.ranks > 1:
            head["distributedInfo"] = {
                "backend": "nccl", "rank": self.rank, "world_size": self.run.ranks,
            }  # fmt: skip
        end = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": ""}
        on_cpu = [event for event in events if event["cat"] != "kernel"]
        on_gpu = [event for event in events if event["cat"] == "kernel"]
        last = {**end, "ts": self.writer.clock + 1e4}
        return {**head, "traceEvents": [*on_cpu, *on_gpu, last], "traceName": "t.json"}

    def _hide(self, args: dict[str, Any]) -> None:
        keys = {
            "shapes": ("Input Dims", "Input type"), "types": ("Input type",),
            "numbers": ("Sequence number", "Fwd thread id"),
        }  # fmt: skip
        for source in self.run.hidden:
            for key in keys[source]:
                args.pop(key, None)

    # ---- passes

    def _train(self, at: Execution) -> None:
        form = self.run.form
        if "teacher" in self.run.extras:
            self._teacher()
        if form == "own graph":
            self._graph = []
            self._forward(at, trains=True)
            self._backward(at)
            kernels, self._graph = self._graph, None
            self.writer.replay(kernels)
            return
        if form == "eager":
            self._forward(at, trains=True)
            with self.writer.backward():
                self._backward(at)
            return
        number = self._next_number()
        region = self.writer.op("Torch-Compiled Region: 0/0")
        function = self.writer.op("CompiledFunction", **self._node(number))
        with region, function:
            self._whole(lambda: self._forward(at, trains=True))
        node = self._backward_node("CompiledFunction", number)
        with self.writer.backward(), node:
            self._whole(lambda: self._backward(at))

    def _whole(self, work: Callable[[], None]) -> None:
        """Run a compiled region, in reduce-overhead as the replay of a graph."""
        if self.run.form != "reduce-overhead":
            work()
            return
        self._graph = []
        work()
        kernels, self._graph = self._graph, None
        self.writer.replay(kernels)

    def _forward(self, at: Execution, *, trains: bool) -> None:
        before: int | None = None
        for place, layer in enumerate(self.run.layers):
            if layer.block != before:
                self._norm()
            before = layer.block
            fused = layer.name == "lm_head" and "fused loss" in self.run.extras
            if fused and trains:
                self._fused_loss(place)
                continue
            if trains:
                self._numbers[place] = self._next_number()
            self._gemm(at, place, FPROP, trains=trains)
            if layer.name.endswith((".q", ".qkv")):
                self._attention(place, trains=trains)

    def _backward(self, at: Execution) -> None:
        layers = self.run.layers
        blocks = sorted({one.block for one in layers if one.block is not None})
        for place in reversed(range(len(layers))):
            if layers[place].name == "lm_head":
                self._backward_of(at, place)
        for block in reversed(blocks):
            places = [p for p, one in enumerate(layers) if one.block == block]
            if "recompute" in self.run.extras:
                self._recompute(at, places)
            for place in reversed(places):
                self._backward_of(at, place)
                if layers[place].name.endswith((".q", ".qkv")):
                    self._attention_backward(place)
            with self._backward_node(
                "NativeLayerNorm", self._numbers.get(places[0], 0)
            ):
                self._norm()

    def _recompute(self, at: Execution, places: list[int]) -> None:
        """Run a block again within the node that first needs what it had made."""
        number = self._numbers.get(places[-1], 0)
        with self._backward_node(self._function(places[-1]), number):
            for place in places:
                self._gemm(at, place, RECOMPUTE, trains=True)

    def _backward_of(self, at: Execution, place: int) -> None:
        layer = self.run.layers[place]
        if not self.run.tokens_of(at, place):
            return
        if layer.name == "lm_head" and "fused loss" in self.run.extras:
            name, number = "LigerFusedLinearCrossEntropyFunction", self._numbers[place]
            with self._backward_node(name, number):
                self._simple("aten::mul", "vectorized_elementwise_kernel")
            return
        with self._backward_node(self._function(place), self._numbers.get(place, 0)):
            for leg in (DGRAD, WGRAD):
                if leg in self.run.legs_of(place):
                    self._gemm(at, place, leg, trains=True)

    # ---- what runs within a pass

    def _gemm(self, at: Execution, place: int, leg: str, *, trains: bool) -> None:
        """Run a leg of a layer; forward it has a number where autograd records it."""
        layer, m = self.run.layers[place], self.run.tokens_of(at, place)
        if not m:
            return
        low = self.run.is_low(at, place, leg)
        if not trains:
            low = FPROP in layer.low
        a, b, layout = {
            DGRAD: ((m, layer.n), (layer.n, layer.k), "NNT"),
            WGRAD: ((layer.n, m), (m, layer.k), "NTT"),
        }.get(leg, ((m, layer.k), (layer.k, layer.n), "TNT"))
        us = max(2.0, m * layer.n * layer.k / 2e8)
        name, us = BF16_KERNEL.replace("TNT", layout), us * 2
        op, types = "aten::mm", (BF16, BF16)
        if low:
            gradient = leg in (DGRAD, WGRAD)
            name = FP8_GRADIENT_KERNEL if gradient else FP8_KERNEL
            op, types = "aten::_scaled_mm", (E5M2 if gradient else FP8, FP8)
            us /= 2
        known = {"Input type": list(types), "Input Dims": [list(a), list(b)]}
        forward = leg in (FPROP, RECOMPUTE)
        if self.run.form != "eager" or not forward:
            self._kernel_of(op, name, us, known)
            return
        node = {}
        if trains:
            again = leg == RECOMPUTE
            node = self._node(self._next_number() if again else self._numbers[place])
        outer = self._function(place) if layer.low else "aten::linear"
        with self.writer.op(outer, **node):
            self._kernel_of(op, name, us, {**known, **({} if layer.low else node)})

    def _kernel_of(self, op: str, name: str, us: float, known: dict[str, Any]) -> None:
        if "scaled" in op:
            self._simple("aten::_to_copy", "vectorized_elementwise_kernel")
        if self._graph is not None:
            self._graph.append((name, us))
            return
        with self.writer.op(op, **known):
            self.writer.kernel(name, us)

    def _simple(self, op: str, name: str) -> None:
        if self._graph is not None:
            self._graph.append((name, 2.0))
            return
        with self.writer.op(op):
            self.writer.kernel(name, 2.0)

    def _norm(self) -> None:
        self._simple("aten::native_layer_norm", "vectorized_layer_norm_kernel")

    def _attention(self, place: int, *, trains: bool) -> None:
        """Run attention, in one kernel or unfused, in products around a softmax."""
        if "attention" not in self.run.extras:
            name = "aten::_scaled_dot_product_flash_attention"
            self._simple(name, "flash_fwd_kernel")
            return
        node = {}
        if trains:
            self._numbers[-1 - place] = self._next_number()
            node = self._node(self._numbers[-1 - place])
        heads, length, width = self._heads()
        self._product(node, (heads, length, width), (heads, width, length))
        self._simple("aten::_softmax", "softmax_warp_forward")
        self._product(node, (heads, length, length), (heads, length, width))

    def _attention_backward(self, place: int) -> None:
        if "attention" not in self.run.extras:
            with self._backward_node("ScaledDotProductFlashAttention", 0):
                self._simple("aten::_flash_attention_backward", "flash_bwd_kernel")
            return
        with self._backward_node("Bmm", self._numbers[-1 - place]):
            heads, length, width = self._heads()
            scores, values = (heads, length, length), (heads, length, width)
            self._product({}, scores, values)
            self._product({}, values, (heads, width, length))
            self._simple("aten::_softmax_backward_data", "softmax_warp_backward")
            self._product({}, scores, values)
            self._product({}, scores, values)

    def _heads(self) -> tuple[int, int, int]:
        """Return sequences times heads, the tokens of a sequence, and the width of a head."""
        return 2 * 16, self.run.tokens // 2, 64

    def _product(
        self, node: dict[str, int], a: tuple[int, ...], b: tuple[int, ...]
    ) -> None:
        """Run a batched product of attention."""
        known = {"Input type": [BF16, BF16], "Input Dims": [list(a), list(b)]}
        if self.run.form != "eager":
            node = {}
        self._kernel_of("aten::bmm", BF16_KERNEL, 12.0, {**known, **node})

    def _fused_loss(self, place: int) -> None:
        """Compute the head's three legs in the forward pass, in chunks."""
        self._numbers[place] = self._next_number()
        layer = self.run.layers[place]
        node = self._node(self._numbers[place])
        chunk = self.run.tokens // CHUNKS
        with self.writer.op("LigerFusedLinearCrossEntropyFunction", **node):
            for _ in range(CHUNKS):
                for a, b in (
                    ((chunk, layer.k), (layer.k, layer.n)),
                    ((chunk, layer.n), (layer.n, layer.k)),
                    ((layer.n, chunk), (chunk, layer.k)),
                ):
                    known = {
                        "Input type": [BF16, BF16],
                        "Input Dims": [list(a), list(b)],
                    }
                    us = max(2.0, chunk * layer.n * layer.k / 1e8)
                    self._kernel_of("aten::mm", BF16_KERNEL, us, known)

    def _teacher(self) -> None:
        """Run a model of other sizes forward in BF16, under no_grad."""
        for n, k in ((2560, 640), (640, 2560)):
            known = {
                "Input type": [BF16, BF16],
                "Input Dims": [[self.run.tokens, k], [k, n]],
            }
            with self.writer.op("aten::linear"):
                self._kernel_of("aten::mm", BF16_KERNEL, 30.0, known)

    def _optimizer(self) -> None:
        muon = "optimizer" in self.run.extras
        name = "Optimizer.step#Muon.step" if muon else "Optimizer.step#AdamW.step"
        with self.writer.op(name, cat="user_annotation"):
            if muon:
                for one in self.run.layers[:2]:
                    known = {
                        "Input type": [BF16, BF16],
                        "Input Dims": [[one.n, one.k], [one.k, one.n]],
                    }
                    self._kernel_of("aten::mm", BF16_KERNEL, 20.0, known)
            self._simple("aten::_foreach_add_", "multi_tensor_apply_kernel")

    # ---- autograd

    def _function(self, place: int) -> str:
        if self.run.layers[place].low:
            return "matmul_with_hp_or_float8_args"
        return "Mm"

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _node(self, number: int) -> dict[str, int]:
        return {"Sequence number": number, "Fwd thread id": 0}

    @contextmanager
    def _backward_node(self, name: str, number: int) -> Iterator[None]:
        if self.run.form != "eager" and name != "CompiledFunction":
            yield
            return
        known = {"Sequence number": number, "Fwd thread id": 1}
        own = (
            name in ("CompiledFunction", "matmul_with_hp_or_float8_args")
            or "Liger" in name
        )
        node = f"{name}Backward" if own else f"{name}Backward0"
        engine = f"autograd::engine::evaluate_function: {node}"
        with self.writer.op(engine, **known), self.writer.op(node, **known):
            yield


def launches(run: Run) -> tuple[int, int]:
    """Return how many GEMMs of layers that train ran in FP8, and how many in all."""
    low = every = 0
    for at in run.executions():
        for place, layer in enumerate(run.layers):
            if not run.tokens_of(at, place):
                continue
            fused = layer.name == "lm_head" and "fused loss" in run.extras
            for leg in run.legs_of(place) if not fused else ():
                low += run.is_low(at, place, leg)
                every += 1
            every += 3 * CHUNKS if fused else 0
    return low, every


# ---- one call flipped


@dataclass(frozen=True)
class Flip:
    """A call of a layer in BF16: in which legs, in how much of the run, and what shows it."""

    place: int
    legs: str
    where: str
    shown_by: str


def random_flip(run: Run, choose: Choose) -> tuple[Run, Flip] | None:
    """Run one converted layer in BF16; None where nothing is converted."""
    places = [
        place for place, one in enumerate(run.layers) if one.low and not one.expert
    ]
    if not places:
        return None
    place = choose(places)
    runs_low = [
        leg
        for leg in run.legs_of(place)
        if leg == RECOMPUTE or leg in run.layers[place].low
    ]
    legs = choose(("all", *[leg for leg in runs_low if leg != RECOMPUTE]))
    executions = list(run.executions())
    where = choose(
        ("everywhere", "one execution") if len(executions) > 1 else ("everywhere",)
    )
    chosen = executions if where == "everywhere" else [choose(executions)]
    hit = runs_low if legs == "all" else [legs]
    flips = frozenset((at, place, leg) for at in chosen for leg in hit)
    if len(hit) == len(runs_low):
        legs = "all"
    return replace(run, flips=flips), Flip(
        place, legs, where, _shown_by(run, place, legs, where)
    )


def _shown_by(run: Run, place: int, legs: str, where: str) -> str:
    """Return the strongest witness of a flip."""
    # Without sizes nobody knows which experts the calls of an execution are of.
    takes_turns = any(one.expert for one in run.layers) and "shapes" in run.hidden
    if run.lists and not takes_turns:
        return "module list"
    # A number leaves room for a fault where experts that were left out got no tokens.
    is_counted = not any(one.expert and not one.low for one in run.layers)
    if run.log == "count" and is_counted:
        return "count"
    leaves_out = any(not one.low for one in run.layers)
    if run.log == "pins" and leaves_out and is_counted:
        return "filters"
    if legs != "all" and not ({"numbers"} & run.hidden) and run.form == "eager":
        return "legs of the call"
    if where != "everywhere" and not takes_turns:
        return "other executions"
    if _is_odd_block(run, place, legs):
        return "other blocks"
    return "nothing"


def _is_odd_block(run: Run, place: int, legs: str) -> bool:
    """Whether a flip tells an inner block from all others.

    The order of sizes shows blocks, where experts do not take turns, and the forward products are
    compared: of gradients, a recipe may keep some. Beside blocks that are left out, as by a pattern,
    one more may be left out too.
    """
    low_blocks = {one.block for one in run.layers if one.low}
    blocks = {one.block for one in run.layers if one.block is not None}
    takes_turns = any(one.expert for one in run.layers)
    is_inner = min(blocks) < (run.layers[place].block or 0) < max(blocks)
    is_forward = legs in ("all", FPROP)
    are_told = run.has_sizes and len(blocks) >= LEAST_BLOCKS and not takes_turns
    return is_inner and is_forward and are_told and blocks <= low_blocks
