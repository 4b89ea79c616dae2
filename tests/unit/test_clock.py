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

    def forward(self) -> None:
        self.work += 7

    def update(self, optimizer: int = 1, *, idle: bool = False) -> bool:
        self.clock.enter(self.work)
        return self.clock.leave(optimizer, f"Optimizer{optimizer}", self.work, idle=idle)

    def scaler_update(self) -> bool:
        return self.clock.scaler_updated(self.work)

    @property
    def steps(self) -> int:
        return self.clock.steps


@pytest.fixture
def training() -> Training:
    return Training()


def test_the_optimizer_after_one_that_is_gone_is_counted_at_once(training: Training) -> None:
    for optimizer in (1, 2):
        for _ in range(3):
            training.forward()
            training.update(optimizer)
        training.clock.forget(optimizer)

    assert training.steps == 6
    assert training.clock.notes == [
        "after step 3 a new Optimizer2 began to step: it is counted since"
    ]


def test_an_update_after_a_forward_pass_is_a_step(training: Training) -> None:
    training.forward()

    assert training.update()
    assert training.steps == 1


def test_accumulated_gradients_are_one_step(training: Training) -> None:
    for _ in range(4):
        training.forward()
    training.update()

    assert training.steps == 1


def test_optimizers_of_single_parameters_in_one_backward_pass_are_one_step(
    training: Training,
) -> None:
    for _ in range(3):
        training.forward()  # the next backward pass
        updates = [training.update(optimizer) for optimizer in range(5)]
        assert updates == [True, False, False, False, False]


def test_updates_without_work_between_them_are_one_step(training: Training) -> None:
    """DeepSpeed's ZeRO steps once per sub-group."""
    for _ in range(3):
        training.forward()
        assert [training.update() for _ in range(5)] == [True, False, False, False, False]

    assert training.steps == 3


def test_optimizers_inside_an_optimizer_are_one_step(training: Training) -> None:
    """torchtitan's OptimizersContainer is itself an Optimizer."""
    for _ in range(3):
        training.forward()
        training.clock.enter(training.work)
        assert not training.update(2)
        assert not training.update(3)
        assert training.clock.leave(1, "Container", training.work)

    assert training.steps == 3


def test_a_second_optimizer_of_the_iteration_adds_nothing(training: Training) -> None:
    """A GAN: each network has its own forward pass and update."""
    for _ in range(20):
        training.forward()
        assert training.update(1)
        training.forward()
        assert not training.update(2)

    assert training.steps == 20


def test_an_optimizer_that_replaces_the_leader_is_counted(training: Training) -> None:
    training.forward()
    training.update(1)
    for _ in range(TAKEOVER_AFTER + 2):
        training.forward()
        training.update(2)

    assert training.steps == 1 + 3
    assert "after step 1 the optimizer that was counted stopped" in training.clock.notes[0]


def test_an_optimizer_made_after_training_began_leads_at_once(training: Training) -> None:
    """Cross-validation makes a model and an optimizer for each fold."""
    for optimizer in (1, 2, 3):
        training.clock.built(optimizer)
        for _ in range(5):
            training.forward()
            training.update(optimizer)

    assert training.steps == 15
    assert [note[:44] for note in training.clock.notes] == [
        "after step 5 a new Optimizer2 began to step:",
        "after step 10 a new Optimizer3 began to step",
    ]
    assert training.clock.note_on_others is None


def test_the_optimizers_of_a_second_gan_are_counted_as_those_of_the_first(
    training: Training,
) -> None:
    for generator, critic in ((1, 2), (3, 4)):
        training.clock.built(generator)
        training.clock.built(critic)
        for _ in range(4):
            for optimizer in (critic, critic, generator):
                training.forward()
                training.update(optimizer)

    assert training.steps == 16


def test_optimizers_that_take_turns_are_told(training: Training) -> None:
    for _ in range(6):
        for optimizer in (1, 1, 1, 2):
            training.forward()
            training.update(optimizer)

    assert training.steps == 18
    assert training.clock.note_on_others == (
        "optimizers take turns: the 18 steps are those of the Optimizer1 that stepped first; "
        "besides it stepped Optimizer2 6 times"
    )


def test_a_zero_rate_step_before_training_does_not_count(training: Training) -> None:
    """Checkpointing initialises optimizer state by a step with lr 0."""
    assert not training.update(idle=True)
    training.forward()
    assert training.update()

    assert training.steps == 1


def test_a_step_that_only_makes_the_optimizers_state_does_not_count(training: Training) -> None:
    """DeepSpeed makes the state of its 16-bit optimizers by a step on gradients of zero."""
    training.clock.enter(training.work)
    assert not training.clock.leave(1, "AdamW", training.work, setup=True)
    training.forward()
    assert training.update()

    assert training.steps == 1
    assert training.clock.updates == {"Optimizer1": 1}


def test_the_class_that_is_counted_is_known(training: Training) -> None:
    for optimizer in [1, 2, *[3] * TAKEOVER_AFTER]:
        training.forward()
        training.update(optimizer)
        assert training.clock.leader == ("Optimizer3" if training.steps > 1 else "Optimizer1")

    assert training.steps == 2


def test_a_zero_rate_step_of_a_warm_up_counts(training: Training) -> None:
    training.forward()

    assert training.update(idle=True)


def test_without_any_forward_pass_every_update_counts(training: Training) -> None:
    """Gradients made by hand, or on a thread that the clock does not see."""
    assert [training.update() for _ in range(3)] == [True, True, True]


def test_a_step_that_raised_does_not_stop_the_clock(training: Training) -> None:
    training.forward()
    training.clock.enter(training.work)
    training.forward()

    assert training.update()
    assert training.steps == 1


def test_a_closure_runs_its_forward_passes_inside_the_step(training: Training) -> None:
    """LBFGS evaluates the closure many times, Lightning once."""
    for _ in range(3):
        training.clock.enter(training.work)
        for _ in range(5):
            training.forward()
        assert training.clock.leave(1, "LBFGS", training.work)

    assert training.steps == 3


def test_a_base_optimizer_inside_a_closure_step_is_one_step(training: Training) -> None:
    """SAM runs the closure, then steps its base optimizer inside its own step."""
    for _ in range(3):
        training.clock.enter(training.work)
        training.forward()
        training.update(2)
        training.clock.leave(1, "SAM", training.work)

    assert training.steps == 3


def test_a_step_whose_update_the_scaler_skips_counts(training: Training) -> None:
    training.forward()
    assert training.scaler_update()
    training.forward()
    assert training.update()
    assert not training.scaler_update()

    assert training.steps == 2
    assert training.clock.skipped == 1


def test_a_scaler_that_updates_after_a_second_optimizer_adds_nothing(training: Training) -> None:
    training.forward()
    training.update(1)
    training.forward()
    training.update(2)

    assert not training.scaler_update()
    assert training.steps == 1


def test_announced_steps_alone_count_once_there_are_any(training: Training) -> None:
    for _ in range(3):
        for _ in range(2):
            training.forward()
            training.update()
        training.clock.announce(training.work)

    assert training.clock.source == "explicit"
    assert training.steps == 2 + 2


def test_a_first_announcement_does_not_count_its_own_step_twice(training: Training) -> None:
    training.forward()
    training.update()

    assert not training.clock.announce(training.work)
    assert training.steps == 1


def test_an_announcement_needs_no_optimizer(training: Training) -> None:
    assert training.clock.announce(0)
    assert training.clock.announce(0)
    assert training.steps == 2


def test_updates_are_counted_by_class(training: Training) -> None:
    training.forward()
    training.update(1)
    training.update(2)
    training.update(2)

    assert training.clock.updates == {"Optimizer1": 1, "Optimizer2": 2}


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
def test_one_iteration_is_one_step_however_it_is_made(iterations: list[dict[str, int]]) -> None:
    training = Training()
    for iteration in iterations:
        if iteration["raises"]:
            training.forward()
            training.clock.enter(training.work)
        for _ in range(iteration["micro_batches"]):
            training.forward()
        if not iteration["skipped"]:
            for _ in range(iteration["sub_groups"]):
                training.update(1)
            for other in range(iteration["others"]):
                training.update(2 + other)
        training.scaler_update()

    assert training.steps == len(iterations)
    assert training.clock.skipped == sum(iteration["skipped"] for iteration in iterations)


Event = st.sampled_from(["forward", "enter", "leave", "update", "scaler", "announce"])


@given(st.lists(st.tuples(Event, st.integers(1, 3)), max_size=60))
def test_a_step_is_told_exactly_when_the_count_grows_by_one(events: list[tuple[str, int]]) -> None:
    training = Training()
    for event, optimizer in events:
        before, told = training.steps, False
        if event == "forward":
            training.forward()
        elif event == "enter":
            training.clock.enter(training.work)
        elif event == "leave":
            told = training.clock.leave(optimizer, "O", training.work)
        elif event == "update":
            told = training.update(optimizer)
        elif event == "scaler":
            told = training.scaler_update()
        else:
            told = training.clock.announce(training.work)
        assert training.steps - before == int(told)


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
    found = times_of([(99, False), (5, False), (6, False), (7, False), (8, False)]).summary()

    assert found == {
        "count": 4,
        "total_ns": 26,
        "median_ns": 6,
        "p25_ns": 5,
        "p75_ns": 7,
        "samples_ns": [5, 6, 7, 8],
    }


def test_a_profiled_step_and_the_two_after_it_are_left_out() -> None:
    times = times_of([(1, False), (2, False), (50, True), (40, False), (30, False), (3, False)])

    assert (times.count, times.total) == (2, 5)


def test_one_step_has_no_time() -> None:
    assert times_of([(1, False)]).summary() is None


def test_samples_of_a_long_run_are_spread_over_all_of_it() -> None:
    found = times_of([(step, False) for step in range(100_001)]).summary()

    assert found is not None
    assert found["count"] == 100_000
    assert MAX_SAMPLES / 2 <= len(found["samples_ns"]) <= MAX_SAMPLES
    assert abs(found["median_ns"] - 50_000) < 400
