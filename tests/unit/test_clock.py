"""What counts as a training step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8verify.agent.clock import MAX_SAMPLES, TAKEOVER_AFTER, Clock, StepTimes


@dataclass
class Training:
    """Drives a clock as the hooks do; `work` grows with every forward pass."""

    clock: Clock = field(default_factory=Clock)
    work: int = 0

    def do(self, events: str) -> list[bool]:
        """Play events, and return what those of them say that can be steps.

        f: a forward pass. 1, 2, 3: an update of that optimizer. z: one of optimizer 1 with a zero
        learning rate. s: the scaler updates. a: the script announces a step. (: the step of an
        outer optimizer begins. ): the step of optimizer 1 ends.
        """
        said = []
        for event in events:
            if event == "f":
                self.work += 7
            elif event == "(":
                self.clock.enter(self.work)
            elif event == ")":
                said.append(self.clock.leave(1, "Optimizer1", self.work))
            elif event == "s":
                said.append(self.clock.scaler_updated(self.work))
            elif event == "a":
                said.append(self.clock.announce(self.work))
            else:
                said.append(
                    self.update(1 if event == "z" else int(event), idle=event == "z")
                )
        return said

    def update(self, optimizer: int = 1, *, idle: bool = False) -> bool:
        self.clock.enter(self.work)
        return self.clock.leave(
            optimizer, f"Optimizer{optimizer}", self.work, idle=idle
        )


@pytest.fixture
def training() -> Training:
    return Training()


@pytest.mark.parametrize(
    ("events", "steps"),
    [
        ("f1", 1),
        ("ffff1", 1),
        ("f11111" * 3, 3),  # DeepSpeed's ZeRO steps once per sub-group
        ("f12312" * 3, 3),  # an optimizer for each parameter, in one backward pass
        ("f(23)" * 3, 3),  # torchtitan's OptimizersContainer is itself an Optimizer
        ("f1f2" * 20, 20),  # a GAN: each network has its own forward pass and update
        ("f1f1f1f2" * 6, 18),
        ("f1" + "f2" * (TAKEOVER_AFTER + 2), 1 + 3),
        (
            "zf1",
            1,
        ),  # checkpointing makes the optimizer's state by a step with a zero rate
        ("fz", 1),  # a learning rate that warms up
        (
            "111",
            3,
        ),  # gradients made by hand, or on a thread that the clock does not see
        ("f(f1", 1),  # a step that raised
        ("(fffff)" * 3, 3),  # LBFGS evaluates the closure many times, Lightning once
        ("(f2)" * 3, 3),  # SAM steps its base optimizer inside its own step
        ("f1f2s", 1),
        ("f1f1a" * 3, 2 + 2),  # from the first announcement on only these count
        ("f1a", 1),
        ("aa", 2),
    ],
)
def test_steps_are_counted(training: Training, events: str, steps: int) -> None:
    said = training.do(events)
    assert (training.clock.steps, sum(said)) == (steps, steps)


def test_the_first_of_several_updates_is_the_step(training: Training) -> None:
    assert training.do("f12312") == [True, False, False, False, False]
    assert training.clock.updates == {"Optimizer1": 2, "Optimizer2": 2, "Optimizer3": 1}


def test_a_step_whose_update_the_scaler_skips_counts(training: Training) -> None:
    assert training.do("fsf1s") == [True, True, False]
    assert (training.clock.steps, training.clock.skipped) == (2, 1)


def test_announced_steps_are_the_source(training: Training) -> None:
    assert training.clock.source == "optimizer"
    training.do("f1a")
    assert training.clock.source == "explicit"


def test_an_optimizer_that_replaces_the_leader_is_named(training: Training) -> None:
    training.do("f1" + "f2" * (TAKEOVER_AFTER - 1))
    assert training.clock.leader == "Optimizer1"
    training.do("f2")
    assert training.clock.leader == "Optimizer2"
    assert (
        "after step 1 the optimizer that was counted stopped" in training.clock.notes[0]
    )


def test_an_optimizer_after_one_that_is_gone_is_counted_at_once(
    training: Training,
) -> None:
    training.do("f1f1f1")
    training.clock.forget(1)
    training.do("f2f2f2")
    assert training.clock.steps == 6
    assert training.clock.notes == [
        "after step 3 a new Optimizer2 began to step: it is counted since"
    ]


def test_an_optimizer_made_after_training_began_leads_at_once(
    training: Training,
) -> None:
    """Cross-validation makes a model and an optimizer for each fold."""
    for optimizer in (1, 2, 3):
        training.clock.built(optimizer)
        training.do(f"f{optimizer}" * 5)
    assert training.clock.steps == 15
    assert [note[:44] for note in training.clock.notes] == [
        "after step 5 a new Optimizer2 began to step:",
        "after step 10 a new Optimizer3 began to step",
    ]


def test_the_optimizers_of_a_second_gan_are_counted_as_those_of_the_first(
    training: Training,
) -> None:
    for generator, critic in ((1, 2), (3, 4)):
        training.clock.built(generator)
        training.clock.built(critic)
        training.do(f"f{critic}f{critic}f{generator}" * 4)
    assert training.clock.steps == 16


def test_a_step_that_only_makes_the_optimizers_state_does_not_count(
    training: Training,
) -> None:
    """DeepSpeed makes the state of its 16-bit optimizers by a step on gradients of zero."""
    training.clock.enter(training.work)
    assert not training.clock.leave(1, "AdamW", training.work, setup=True)
    training.do("f1")
    assert (training.clock.steps, training.clock.updates) == (1, {"Optimizer1": 1})


def test_each_replay_of_a_graph_with_the_leaders_step_is_a_step(
    training: Training,
) -> None:
    training.do("f1")
    clock = training.clock

    assert clock.replayed({1: "Adam", 2: "SGD"}, 7)
    assert clock.replayed({1: "Adam"}, 7)
    assert not clock.replayed({2: "SGD"}, 7)

    assert (clock.steps, clock.updates) == (3, {"Optimizer1": 1, "Adam": 2, "SGD": 2})
    assert len(clock.notes) == 1
    training.do("a")
    assert not clock.replayed({1: "Adam"}, 7)  # the script announces its steps


def test_a_graph_may_hold_the_first_step_of_all() -> None:
    clock = Clock()
    assert clock.replayed({7: "Adam"}, 0)
    assert clock.leader == "Adam"


Iteration = st.fixed_dictionaries(
    {
        "micro_batches": st.integers(1, 4),
        "sub_groups": st.integers(1, 4),
        "others": st.integers(0, 3),
        "raises": st.booleans(),
        "skipped": st.booleans(),
    }
)


@given(st.lists(Iteration, max_size=30))
def test_one_iteration_is_one_step_however_it_is_made(
    iterations: list[dict[str, int]],
) -> None:
    training = Training()
    for iteration in iterations:
        training.do("f(" * iteration["raises"] + "f" * iteration["micro_batches"])
        if not iteration["skipped"]:
            training.do("1" * iteration["sub_groups"] + "234"[: iteration["others"]])
        training.do("s")

    assert training.clock.steps == len(iterations)
    assert training.clock.skipped == sum(
        iteration["skipped"] for iteration in iterations
    )


@given(st.lists(st.sampled_from("f()123zsa"), max_size=60))
def test_a_step_is_told_exactly_when_the_count_grows_by_one(events: list[str]) -> None:
    training = Training()
    for event in events:
        before = training.clock.steps
        assert sum(training.do(event)) == training.clock.steps - before


def times_of(steps: list[tuple[int, bool]]) -> StepTimes:
    """Return the times of steps of (duration, disturbed); each hook takes 1000."""
    now = [0]
    times = StepTimes(lambda: now[0])
    for took, disturbed in steps:
        now[0] += took
        times.tick(disturbed=disturbed)
        now[0] += 1000
        times.resume()
    return times


def test_steps_are_timed_without_the_hooks() -> None:
    found = times_of([(took, False) for took in (99, 5, 6, 7, 8)]).summary()
    assert found == {
        "count": 4, "total_ns": 26, "median_ns": 6,
        "samples_ns": [5, 6, 7, 8],
    }  # fmt: skip
    assert times_of([(1, False)]).summary() is None


def test_a_profiled_step_and_the_two_after_it_are_left_out() -> None:
    times = times_of(
        [(1, False), (2, False), (50, True), (40, False), (30, False), (3, False)]
    )
    assert (times.count, times.total) == (2, 5)


def test_samples_of_a_long_run_are_spread_over_all_of_it() -> None:
    found = times_of([(step, False) for step in range(100_001)]).summary()
    assert found is not None
    assert found["count"] == 100_000
    assert MAX_SAMPLES / 2 <= len(found["samples_ns"]) <= MAX_SAMPLES
    assert abs(found["median_ns"] - 50_000) < 400
