"""Build a `Trace` from the columns that a reader filled, the same for every format."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from itertools import compress, count, islice
from math import prod

from fp8verify.terms import Collective
from fp8verify.text import clean
from fp8verify.trace.autograd import Autograd, NamedOps
from fp8verify.trace.columns import Columns, Inputs, launch_config
from fp8verify.trace.contexts import Contexts, nest
from fp8verify.trace.steps import steps_of_kernels, whole_steps
from fp8verify.trace.tables import Health, Kernels, Launch, Step, Trace

# Real traces have some thousands at most.
_MOST_NAMES = 16_384
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_ONE_HOUR_NS = 3600 * 10**9


def fill(
    trace: Trace,
    columns: Columns,
    *,
    layers: bool = False,
    launches: bool = False,
) -> None:
    """Fill in what the columns say: kernels with their operators and steps, copies, counts.

    Args:
        trace: with what the reader knows apart from the columns, such as its rank and health.
        columns: of one rank; they are used up.
        layers: join kernels to the layers that `fp8verify run --layers` named; takes longer.
        launches: say when and on which thread kernels were launched.
    """
    kernels = columns.kernels
    base_ns = columns.base_ns
    health = trace.health
    repeated = _repeated(columns)
    if repeated:
        trace.remarks.append(
            f"{repeated} kernels are recorded twice, and count twice: the trace may be joined "
            "of two copies"
        )
    for recorded in columns.inputs:
        health.skipped_events += Inputs(recorded).is_damaged
    op_rows, launch_rows = _correlate(columns, trace, layers=layers)
    whole = [True] * len(columns.steps)
    if not health.complete:
        whole = whole_steps(columns, op_rows, kernels.step, is_cut=health.truncated)
    health.kernels_in_graphs = _launched_together(launch_rows)
    if launches:
        _note_launches(columns, launch_rows)
    health.kernels = len(kernels)
    health.bad_durations = _clear_bad_durations(columns)
    health.kernels_without_launch = kernels.launch.count(Launch.NONE)
    health.kernels_without_op = len(kernels) - kernels.launch.count(Launch.OP)
    absolute_ns = map(base_ns.__add__, kernels.start_ns)
    kernels.start_ns = array("q", absolute_ns)
    trace.kernels = kernels
    trace.names = _bounded_names(columns, health)
    trace.collectives = list(map(_collective, columns.collectives))
    trace.configs = [launch_config(raw) for raw in columns.configs]
    trace.process = _process(columns)
    if health.complete:
        trace.largest_gradient = _largest_gradient(columns)
    trace.copies = dict(sorted(columns.copies.items()))
    trace.steps = []
    for step, is_whole in zip(columns.steps, whole, strict=True):
        absolute = Step(
            number=step.number,
            start_ns=step.start_ns + base_ns,
            end_ns=step.end_ns + base_ns,
            whole=is_whole,
        )
        trace.steps.append(absolute)


def _collective(fields: tuple[str, str, int, int, int]) -> Collective:
    name, dtype, in_elements, out_elements, group_size = fields
    return Collective(
        name=clean(name),
        dtype=clean(dtype),
        in_elements=in_elements,
        out_elements=out_elements,
        group_size=group_size,
    )


def _largest_gradient(columns: Columns) -> int | None:
    """Return how many elements the largest gradient has that autograd gave a parameter.

    A node accumulates the gradient of each parameter that wants one. None if there is no such
    node, or one whose gradient has no recorded size.
    """
    if _ACCUMULATES not in columns.op_names:
        return None
    number = columns.op_names[_ACCUMULATES]
    ops = columns.ops
    recorded = list(columns.inputs)
    is_node = map(number.__eq__, ops.name)
    largest = 0
    for index in set(compress(ops.inputs, is_node)):
        shapes = Inputs(recorded[index]).dims
        if not shapes or not shapes[0]:
            return None
        largest = max(largest, prod(shapes[0]))
    return largest


def _repeated(columns: Columns) -> int:
    """Return how many kernels are the record of a launch again.

    A launch is known by its correlation id: one of a graph makes many kernels, which start one
    after another.
    """
    kernels = columns.kernels
    if len(set(kernels.start_ns)) == len(kernels):
        return 0  # hardly any kernel starts when another one does
    starts = Counter(kernels.start_ns)
    repeated = 0
    seen: set[tuple[int, ...]] = set()
    for row, start in enumerate(kernels.start_ns):
        correlation = columns.correlations[row]
        if starts[start] == 1 or correlation < 0:
            continue
        record = (
            correlation,
            start,
            kernels.duration_ns[row],
            kernels.name[row],
            kernels.device[row],
            kernels.stream[row],
        )
        repeated += record in seen
        seen.add(record)
    return repeated


def _launched_together(launch_rows: array[int]) -> int:
    """Return how many kernels were launched by a call that launched several: by a graph."""
    launched = Counter(launch_rows)
    launched.pop(-1, None)
    together = 0
    for kernels_of_call in launched.values():
        if kernels_of_call > 1:
            together += kernels_of_call
    return together


def _note_launches(columns: Columns, launch_rows: array[int]) -> None:
    """Note the time and the thread of each launch; a graph's, of many kernels, is none."""
    calls = columns.calls
    kernels = columns.kernels
    launched = Counter(launch_rows)
    thread_numbers = [_thread_number(number) for _, number in columns.threads]
    kernels.launch_ns = array("q")
    kernels.thread = array("q")
    for row in launch_rows:
        launch_ns = -1
        thread = -1
        if row >= 0 and launched[row] == 1:
            launch_ns = calls.start[row] + columns.base_ns
            thread = thread_numbers[calls.thread[row]]
        kernels.launch_ns.append(launch_ns)
        kernels.thread.append(thread)


def _thread_number(number: object) -> int:
    """Return the number of a thread, -1 if it is none that fits."""
    if isinstance(number, int) and 0 <= number < 1 << 62:
        return number
    return -1


def _correlate(
    columns: Columns,
    trace: Trace,
    *,
    layers: bool,
) -> tuple[array[int], array[int]]:
    """Follow every kernel back, whatever the order of the events in the file was.

    An operator is found by the `op_id` of the kernel; if that names none, by the launch with the
    kernel's correlation id and the innermost operator that encloses it on its thread. The step is
    the one in which the launch happened, on any thread.

    Returns:
        For each kernel the rows of its operator and of its launch, -1 for none.
    """
    ops = columns.ops
    kernels = columns.kernels

    def is_operator(row: int) -> bool:
        return ops.inputs[row] >= 0 and ops.name[row] not in columns.step_names

    op_rows = _rows_by_number(columns.op_ids, ops.op_id, is_operator)
    launch_rows = _rows_by_number(columns.correlations, columns.calls.correlation)
    without_operator = list(_without_operator(op_rows))
    unplaced = {launch_rows[kernel] for kernel in without_operator}
    if layers:
        unplaced.update(launch_rows)
    unplaced.discard(-1)
    threads = set(ops.thread) if layers else _threads_of(columns, op_rows)
    parent, enclosing = nest(columns, threads, unplaced)
    for kernel in without_operator:
        launch = launch_rows[kernel]
        if launch >= 0:
            row = enclosing[launch]
            while row >= 0 and not is_operator(row):
                row = parent[row]
            op_rows[kernel] = row
    contexts = Contexts(columns, parent)
    kernels.op = contexts.of_all(op_rows)
    autograd = Autograd(columns, parent, contexts.numbered)
    trace.sites, kernels.site = autograd.sites(op_rows)
    kernels.launch = _how_launched(columns, op_rows, launch_rows)
    kernels.step = steps_of_kernels(columns, op_rows, launch_rows)
    trace.ops = contexts.ops
    if layers:
        named = NamedOps(columns, parent, autograd)
        around = map(enclosing.get, launch_rows)
        kernels.layer = named.of_launches(op_rows, around)
        trace.layers = named.names
    return op_rows, launch_rows


def _without_operator(op_rows: array[int]) -> Iterator[int]:
    """Yield the kernels whose operator is not known."""
    has_no_operator = map((0).__gt__, op_rows)
    return compress(count(), has_no_operator)


def _threads_of(columns: Columns, op_rows: array[int]) -> set[int]:
    """Return the threads of the kernels' operators."""
    threads = columns.ops.thread
    return {threads[row] for row in op_rows if row >= 0}


def _how_launched(
    columns: Columns,
    op_rows: array[int],
    launch_rows: array[int],
) -> array[int]:
    """Return for each kernel how far it could be followed back: values of `Launch`."""
    found = array("b", [_OP]) * len(op_rows)
    without_operator: list[int] = []
    for kernel in _without_operator(op_rows):
        if launch_rows[kernel] >= 0:
            found[kernel] = _NO_OP
            without_operator.append(kernel)
        else:
            found[kernel] = _NONE
    if not without_operator:
        return found
    recorded = _threads_of(columns, op_rows)
    launched = Counter(launch_rows[kernel] for kernel in without_operator)
    for kernel in without_operator:
        row = launch_rows[kernel]
        is_alone = launched[row] == 1
        if is_alone and columns.calls.thread[row] in recorded:
            found[kernel] = _OUTSIDE
    return found


# Plain integers: looking up a member of an enumeration costs more than the rest of the row.
_NONE = int(Launch.NONE)

_NO_OP = int(Launch.NO_OP)

_OP = int(Launch.OP)

_OUTSIDE = int(Launch.OUTSIDE)


def _rows_by_number(
    wanted: array[int],
    numbers: array[int],
    counts: Callable[[int], bool] | None = None,
) -> array[int]:
    """Return for each kernel the first row that counts and has the number it wants, or -1.

    All rows count if it is not said which.
    """
    row_of = dict.fromkeys(wanted, -1)
    row_of.pop(-1, None)
    is_wanted = map(row_of.__contains__, numbers)
    for row in compress(count(), is_wanted):
        number = numbers[row]
        if row_of[number] < 0 and (counts is None or counts(row)):
            row_of[number] = row
    row_of[-1] = -1
    rows = map(row_of.__getitem__, wanted)
    return array("i", list(rows))


def _bounded_names(columns: Columns, health: Health) -> list[str]:
    """Return the names of kernels, cleaned; of too many, the last replaces all others.

    Each distinct name is classified, which takes a third of a millisecond.
    """
    names = [clean(name) for name in islice(columns.names, _MOST_NAMES)]
    if len(columns.names) > _MOST_NAMES:
        names.append("a kernel whose name was not read")
        numbers = columns.kernels.name
        for row, number in enumerate(numbers):
            numbers[row] = min(number, _MOST_NAMES)
        health.truncated = True
        health.notes.append(
            f"only {_MOST_NAMES} of {len(columns.names)} kernel names were read"
        )
    return names


def _process(columns: Columns) -> int | None:
    """Return the process of most operators, as far as threads name their process."""
    owners = list(map(process_of, columns.threads))
    calls: Counter[object] = Counter()
    for thread, calls_of_thread in Counter(columns.ops.thread).items():
        calls[owners[thread]] += calls_of_thread
    # Of equally many the least, as the order of the threads says nothing.
    in_order = sorted(calls, key=str)
    process = max(in_order, key=calls.__getitem__, default=None)
    if isinstance(process, int):
        return process
    return None


def process_of(thread: object) -> Hashable:
    """Return the process of a thread as `Columns.threads` has it, None if it names none."""
    process: Hashable = None
    if isinstance(thread, tuple):
        process = thread[0]
    return process


def _clear_bad_durations(columns: Columns) -> int:
    """Set impossible durations to 0; return how many there were.

    No kernel runs longer than the CPU side of the trace, whose end waits for the GPU. Broken
    counters of some GPUs say otherwise.
    """
    durations = columns.kernels.duration_ns
    starts = columns.kernels.start_ns
    if not durations:
        return 0
    limit = _ONE_HOUR_NS
    if columns.last_end:
        last = max(columns.last_end, max(starts))
        limit = last - min(starts)
    # As nearly always: looking at each one takes longer.
    if min(durations) >= 0 and max(durations) <= limit:
        return 0
    if columns.last_end:
        begun = (columns.ops.start, columns.calls.start, starts)
        firsts = [min(column) for column in begun if column]
        limit = last - min(firsts)
    bad = 0
    for row, duration in enumerate(durations):
        if not 0 <= duration <= limit:
            durations[row] = 0
            bad += 1
    return bad


def main_device(kernels: Kernels) -> int:
    """Return the device that ran most kernels, -1 if none is known."""
    devices = Counter(kernels.device)
    return max(devices, key=devices.__getitem__, default=-1)
