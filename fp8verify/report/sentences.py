"""The sentences of a report: its three sources and the notes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from fp8verify.model.claims import Claim
from fp8verify.model.costs import CommunicationReport, MemoryReport
from fp8verify.model.kernels import GemmSummary
from fp8verify.model.layers import ModulesReport, NamedLayerRow
from fp8verify.model.numerics import NumericsReport
from fp8verify.model.report import RankReport, Report
from fp8verify.model.steps import ClockReport
from fp8verify.model.verdict import ExpectedReport
from fp8verify.patterns import lazy_pattern
from fp8verify.report.page import Note
from fp8verify.report.proof import proof_grid
from fp8verify.report.tables import figure, label_of_group, millis
from fp8verify.terms import (
    Precision,
    Role,
    Verdict,
    low_precision_count,
    low_precision_name,
    low_precision_share,
)
from fp8verify.text import (
    about,
    counted,
    cut_middle,
    gib,
    listed,
    show_steps,
    show_window,
)

_Line = TypeVar("_Line", str, Note)
# Two lines at 80 columns hold as much of a log line.
_QUOTED = 130
_MENTIONED = 80
_RANKS = 3
# Log lines that are not sentences, by what they mean.
_MEANINGS = {
    "PYTORCH_API_USAGE torchao.float8.convert_to_float8_training": (
        "torchao's convert_to_float8_training was called"
    )
}
# How a state of linear layers that are not plainly converted is named.
_STATES = {
    "fp8_emulated": "emulate FP8",
    "fp4_emulated": "emulate FP4",
    "high_precision": "not converted",
}
_OFF = "fp8_module_off"
_JUDGED = ", judged by their GEMMs"
_CONVERTED = ("fp8", "fp4")


def sources(report: Report) -> tuple[Note, Note, Note]:
    """Return what log, model and kernels say, in this order."""
    return (
        Note("log", _log(report)),
        Note("model", _model(report)),
        Note("kernels", _kernels(report)),
    )


def quoted(claim: Claim) -> str:
    """Return a claim with its place; lines that are no sentence by what they mean."""
    # Megatron-LM fills the lines of its settings with dots.
    words, dotted = re.subn(r"\.{4,}", ".....", claim.text)
    meaning = _MEANINGS.get(claim.text, f'"{words}"')
    if dotted:
        meaning = f"{meaning} (a printed setting)"
    return f"{claim.place}: {meaning}"


_FORMAT = lazy_pattern(r"(?:mx|nv)?(?:fp|float)[48]", re.IGNORECASE)


def _cut_around(text: str, width: int) -> str:
    """Cut a line to a width around the first format that it names; its begin stays if it can."""
    named = _FORMAT.search(text)
    if len(text) <= width:
        return text
    if named is None or named.end() < width * 2 // 3:
        return cut_middle(text, width)
    head = ""
    if text.startswith("line "):
        head = text[: text.find(":") + 1]
    room = width - len(head) - 3
    middle = named.start() - room // 2
    begin = min(middle, len(text) - room)
    begin = max(begin, len(head))
    end = min(len(text), begin + room)
    begin = _word_from(text, begin, named.start())
    more = ""
    if end < len(text):
        end = max(named.end(), text.rfind(" ", begin, end))
        more = "…"
    return f"{head} …{text[begin:end].strip()}{more}".strip()


def _word_from(text: str, begin: int, latest: int) -> int:
    """Return where the next word begins, unless that is behind what a line is quoted for."""
    for place in range(begin, latest):
        if text[place] in " .,:;/=(":
            return place + 1
    return begin


def deciding_claim(report: Report) -> Claim | None:
    """Return the claim that counts: the first line that turns FP8 on, else off, else a call."""
    lines = []
    settings = []  # dumped, which say less than a line about what was done
    off = []
    calls = []
    for claim in report.claims:
        is_line = claim.line and claim.text not in _MEANINGS
        if claim.says == "not_fp8":
            off.append(claim)
        elif claim.says != "fp8":
            continue
        elif not is_line:
            calls.append(claim)
        elif claim.strength == "claim":
            lines.append(claim)
        else:
            settings.append(claim)
    for found in (lines, settings, off, calls):
        if found:
            return found[0]
    return None


def _log(report: Report) -> str:
    claim = deciding_claim(report)
    is_call = claim is not None and claim.place.endswith("'s call")
    if claim is not None and not is_call:
        return _cut_around(quoted(claim), _QUOTED)
    recorded = ""
    if claim is not None:  # by the run itself, not in a log
        recorded = f"; the run called {claim.text}"
    if not report.logs:
        return f"none was read{recorded}"
    if recorded:
        return f"no line claims FP8{recorded}"
    if report.mention is not None:
        text = _cut_around(report.mention.text, _MENTIONED)
        return f'no line claims FP8 (line {report.mention.line} mentions it: "{text}")'
    return "no line claims FP8"


def _model(report: Report) -> str:
    """Say what the modules are, once for ranks alike."""
    lines = []
    for rank in report.ranks:
        line = "not recorded"
        if rank.modules is not None:
            line = _modules(rank, rank.modules)
        if report.verdict is Verdict.INCONCLUSIVE:  # then they are not
            line = line.replace(_JUDGED, "")
        lines.append((rank, line))
    found = _by_ranks(lines)
    models = []
    for line, where in found:
        models.append(f"{where}: {line}" if len(found) > 1 else line)
    model = listed(models, _RANKS, between="; ")
    scaling = _scaling(report)
    if not scaling:
        return model
    between = "; " if len(found) > 1 else ", "  # it is that of all
    return f"{model}{between}scaling: {scaling}"


def _by_ranks(lines: Iterable[tuple[RankReport, _Line]]) -> list[tuple[_Line, str]]:
    """Return each line once, with the ranks that it is about."""
    ranks: dict[_Line, list[RankReport]] = defaultdict(list)
    for rank, line in lines:
        ranks[line].append(rank)
    found = []
    for line, same in ranks.items():
        label = label_of_group(same)
        found.append((line, label))
    return found


def _modules(rank: RankReport, modules: ModulesReport) -> str:
    """Count the linear layers by state."""
    counts = dict(modules.counts)
    total = sum(counts.values())
    if not total:
        if rank.layers is not None and rank.layers.experts:
            return "expert weights only, no linear layers"
        return "no linear layers"
    states = list(_states(counts, modules, _outside_autocast(rank)))
    if not states:
        layers = f"none of {counted(total, 'linear layer')} converted"
        if modules.storage:  # these are others than those whose weights are stored
            layers = f"{layers} ({_by_last_name(modules)})"
        return "; ".join([layers, *modules.storage])
    left = counts.get("high_precision", 0)
    if left and _has_others_than(
        counts, "high_precision"
    ):  # so that the counts add up to the total
        states.append((left, _STATES["high_precision"]))
    (first, what), *others = states
    said = f"{first} of {total} linear layers {what}"
    for count, state in others:
        said += f", {count} {state}"
    return "; ".join([said, *modules.storage])


def _by_last_name(modules: ModulesReport) -> str:
    """Count layers by the last part of their names: "28 …lora_A, 28 …lora_B, 1 lm_head"."""
    counts: Counter[str] = Counter()
    for names in modules.names.values():
        for name in names:
            _, dot, last = name.rpartition(".")
            counts[f"{'…' if dot else ''}{last}"] += 1
    shown = [f"{count} {name}" for name, count in counts.most_common()]
    return listed(shown, _RANKS)


def _has_others_than(counts: Mapping[str, int], state: str) -> bool:
    """Whether layers are in a state that neither is this one nor says that they were converted."""
    plain = (*_CONVERTED, state)
    others = [other for other in counts if other not in plain]
    return any(counts[other] for other in others)


def _outside_autocast(rank: RankReport) -> str:
    """Say what layers are whose last forward pass before they were listed had no autocast.

    Where they, or any that may be they, ran in FP8 in the window, nothing is said of that pass.
    """
    last_run = "are Transformer Engine's (last run outside its FP8 autocast)"
    if not low_precision_count(rank.gemm.kernels):
        return last_run
    named = rank.named_layers.rows if rank.named_layers is not None else ()
    off = [row for row in named if row.state == _OFF]
    if off and not any(map(_ran_low, off)):
        return last_run
    return "are Transformer Engine's (in FP8 only inside its autocast)"


def _ran_low(layer: NamedLayerRow) -> bool:
    return any(low_precision_count(leg.kernels) for leg in layer.legs)


def _states(
    counts: dict[str, int], modules: ModulesReport, outside: str
) -> Iterator[tuple[int, str]]:
    """Yield how many are in each state that is not plain high precision, converted ones first.

    Args:
        counts: layers by state.
        modules: what was listed.
        outside: what layers of Transformer Engine are whose autocast was off.
    """
    converted = sum(counts.get(state, 0) for state in _CONVERTED)
    if converted:
        yield converted, "converted"
    for state, count in counts.items():
        if state == "unknown":
            classes = ""
            if modules.unknown_classes:
                classes = f" ({listed(modules.unknown_classes, 2)})"
            yield count, f"of unknown class{classes}{_JUDGED}"
        elif state == _OFF:
            yield count, outside
        elif state not in (*_CONVERTED, "high_precision"):
            yield count, _STATES.get(state, state.replace("_", " "))


def _scaling(report: Report) -> str:
    """Say how operands are scaled: as configured, else inferred from kernels."""
    if not report.recipe.time_us:
        return ""
    configured = configured_scalings(report)
    if configured:
        return "; ".join(configured)
    return f"{', '.join(report.recipe.time_us)} (inferred from kernels)"


def configured_scalings(report: Report) -> tuple[str, ...]:
    """Return how the modules' recipes scale, as they were recorded."""
    scalings: set[str] = set()
    for rank in report.ranks:
        if rank.modules is not None:
            scalings.update(rank.modules.scalings)
    # As captures before 0.5.0 have it.
    worded = [
        one.replace("one scale a tensor", "one scale per tensor") for one in scalings
    ]
    return tuple(sorted(worded))


def _kernels(report: Report) -> str:
    gemms = _layer_gemms(report)
    kernels = sum(rank.health.kernels for rank in report.ranks)
    if not gemms.launches:
        if kernels:
            return f"no linear-layer GEMM among {kernels} kernels"
        return "none in the trace"
    line = _counts(gemms.kernels, _whose_high(report))
    shares = list(_shares(report, gemms))
    if shares:
        line = f"{line}{', '.join(shares)}"
    return "; ".join([line, *_more(report)])


def _shares(report: Report, gemms: GemmSummary) -> Iterator[str]:
    """Yield how much of the work ran in low precision, unless the sentence or its table says it.

    It is the share of what was expected where less ran, else that of time.
    """
    if _is_work_said(report):
        return
    missed = _missed(report)
    kinds = [kind for kind, count in gemms.kernels.items() if count]
    is_counted = all(rank.counted is not None for rank in training_ranks(report.ranks))
    formats = low_precision_name(gemms.kernels)
    if missed:
        yield missed
    elif len(kinds) > 1 and not is_counted:
        share = about(low_precision_share(gemms.time_us) or 0.0)
        unknown = unknown_share(gemms.time_us)
        yield f": {formats} is {share} of {_whole_of(report, gemms)}"
        if unknown:
            yield f"and {about(unknown)} of it may be"


# A share or an amount of work.
_OF_WORK = lazy_pattern(r"%|\d (?:ms|TFLOP)\b")


def _is_work_said(report: Report) -> bool:
    """Whether the sentence says how much of the work ran in what, or the table below it."""
    proof = proof_grid(report)
    if proof is not None and any(name.startswith("GEMM ") for name in proof.names):
        return True
    return bool(_OF_WORK.search(report.reason))


def _whole_of(report: Report, gemms: GemmSummary) -> str:
    """Name what the shares are shares of."""
    unit = "GEMM FLOPs"
    if report.measure == "time":
        unit = "GEMM time"
    if _has_others(report):
        unit = f"the layers' {unit}"
    if gemms.launches < report.layer_gemm.launches:
        unit += " of the ranks that train"
    return unit


def _has_others(report: Report) -> bool:
    """Whether GEMMs ran that are no layer's."""
    return bool(report.attention_gemm.launches or report.untrained_gemm.launches)


def _layer_gemms(report: Report) -> GemmSummary:
    """Return the GEMMs of layers of the ranks that train, as the verdict counts them."""
    training = training_ranks(report.ranks)
    others = []
    for rank in report.ranks:
        if rank not in training:
            others.append(rank.layer_gemm)
    return report.layer_gemm.less(*others)


def _whose_high(report: Report) -> dict[int, str]:
    """Name the layers of so many GEMMs in high precision, where the sentence does not.

    They are those that are listed and ran as often.
    """
    if report.verdict is not Verdict.INCONCLUSIVE or len(report.ranks) > 1:
        return {}
    layers = report.ranks[0].layers
    if layers is None:
        return {}
    launches = 0
    names: list[str] = []
    for row in layers.rows:
        if not row.in_fp8:
            launches += sum(row.observed.values())
            names += row.names
    if not names:
        return {}
    return {launches: f" ({listed(names, _RANKS)})"}


def _counts(
    kernels: Mapping[str, int],
    whose_high: Mapping[int, str],
) -> str:
    """Count GEMMs by precision: FP8, what ran in high precision, unknown.

    Args:
        kernels: launches by precision class.
        whose_high: whose so many in high precision are, in brackets.
    """
    shown: list[Precision] = []
    for precision in Precision:
        if kernels.get(precision.value) and precision is not Precision.UNKNOWN:
            shown.append(precision)
    if not any(precision.is_low for precision in shown):
        shown.insert(0, Precision.FP8)
    if all(precision.is_low for precision in shown):
        shown.append(Precision.BF16)
    counts = []
    for precision in shown:
        count = kernels.get(precision.value, 0)
        whose = "" if precision.is_low else whose_high.get(count, "")
        counts.append(f"{precision.value.upper()} {count}{whose}")
    counts.append(f"unknown {kernels.get('unknown', 0)}")
    return ", ".join(counts)


def _missed(report: Report) -> str:
    """Say how much of the FLOPs ran in low precision, where more was expected."""
    rank = _least_met(report)
    if rank is None or rank.expected is None:
        return ""
    said = of_expected(report, rank.expected)
    share = about(rank.expected.share_of_flops)
    measured = about(rank.expected.measured_share_of_flops)
    if share == measured:
        return ""
    formats = low_precision_name(report.gemm.kernels)
    part = f"{formats} is {said} ({share} expected)"
    if len(report.ranks) == 1:
        return f": {part}"
    return f"; on {rank.label} {part}"


def of_expected(report: Report, expected: ExpectedReport) -> str:
    """Return the share of FLOPs that ran in low precision, with its whole."""
    measured = about(expected.measured_share_of_flops)
    whose = "the layers' " if _has_others(report) else ""
    return f"{measured} of {whose}GEMM FLOPs"


def _more(report: Report) -> Iterator[str]:
    others = []
    training = training_ranks(report.ranks)
    for rank in report.ranks:
        if rank not in training and rank.layer_gemm.launches:
            others.append(rank)
    if others:
        yield f"without {label_of_group(others)}"
    attention = _counts_of_attention(report)
    if attention:
        yield f"attention's GEMMs: {attention}"
    elif report.attention_gemm.launches:
        yield "without attention's GEMMs"
    if any(map(_has_fp8_attention, report.ranks)):
        yield "attention in FP8"
    yield from _vouched(report)


def _counts_of_attention(report: Report) -> str:
    """Count the GEMMs of attention by precision, where it has some and the sentence does not."""
    counts = []
    for name, count in report.attention_gemm.kernels.items():
        is_said = f"{count} {name.upper()} GEMMs" in report.reason
        if count and not is_said:
            counts.append(f"{name.upper()} {count}")
    return ", ".join(counts)


def _least_met(report: Report) -> RankReport | None:
    """Return the rank that ran least of what was expected of it."""
    known = []
    for rank in report.ranks:
        expected = rank.expected
        if expected is not None and expected.share_of_flops:
            over = expected.measured_share_of_flops - expected.share_of_flops
            known.append((over, rank))
    _, least = min(known, key=itemgetter(0), default=(0.0, None))
    return least


def _has_fp8_attention(rank: RankReport) -> bool:
    for row in rank.kernels:
        is_attention = row.role is Role.ATTENTION
        if is_attention and row.precision.is_fp8:
            return True
    return False


def _vouched(report: Report) -> Iterator[str]:
    """Say how many GEMMs the library's log and the machine code agree on."""
    gemms = 0
    vouched = 0
    for rank in report.ranks:
        log = rank.library_log
        if log is not None and log.note is None:
            gemms += log.gemms
            vouched += log.vouched
    if gemms:
        yield f"the BLAS library's own log agrees on {vouched} of its {gemms}"
    gemms = 0
    vouched = 0
    for rank in report.ranks:
        if rank.compiled_code is not None:
            gemms += rank.compiled_code.gemms
            vouched += rank.compiled_code.vouched
    if gemms:
        yield f"the compiled code agrees on {vouched} of {gemms} Triton GEMMs"


def training_ranks(ranks: Sequence[RankReport]) -> Sequence[RankReport]:
    """Return the ranks that train, all if none does."""
    training = [rank for rank in ranks if rank.may_train]
    return training or ranks


def unknown_share(time_us: Mapping[str, float]) -> float:
    """Return the share of GEMMs of unknown precision."""
    total = sum(time_us.values())
    if not total:
        return 0.0
    return time_us.get("unknown", 0.0) / total


# ---- the notes

_WINDOWS = 3
_NORMS = 6
_RECORDED = frozenset({"complete", "cut"})


def steps_shown(report: Report) -> str:
    """Return the steps that the ranks' traces hold: "steps 10-12", or nothing."""
    shown = []
    for rank in report.ranks:
        for step in rank.steps:
            # A window that the run's end cut short holds the begin of a step that never came.
            number = step.step or 0
            if rank.clock is None or number <= rank.clock.steps_seen:
                shown.append(step.step)
    return show_steps(shown)


def _steps_line(clock: ClockReport) -> str:
    said = ["fp8verify.step()"]
    if clock.source != "explicit":
        call = f" ({clock.counts})" if clock.counts else ""
        said = [f"optimizer steps{call}"]
    windows = [window for window in clock.windows if window.state in _RECORDED]
    for window in windows[:_WINDOWS]:
        shown = f"window {show_window((window.first, window.last))}"
        if window.framework_first is not None and window.framework_last is not None:
            own = show_window((window.framework_first, window.framework_last))
            shown += f" = {window.framework} {window.counter} {own}"
        said.append(shown)
    if len(windows) > _WINDOWS:
        said.append(f"{len(windows) - _WINDOWS} more windows")
    line = ", ".join(said)
    if clock.steps_skipped:
        line += f"; {counted(clock.steps_skipped, 'step')} skipped by GradScaler"
    return line


def report_notes(report: Report) -> Iterator[Note]:
    """Yield what the tables and the first screen do not say, once for ranks alike."""
    decides = deciding_claim(report)
    for claim in report.claims:
        if claim is not decides:
            yield Note("log", f"{quoted(claim)} ({_source_of(claim)})")
    lines = []
    for rank in report.ranks:
        lines += [(rank, note) for note in _of_rank(rank)]
    for note, where in _by_ranks(lines):
        if len(report.ranks) > 1:
            yield note._replace(text=f"{where}: {note.text}")
        else:
            yield note
    for text in report.notes:
        yield Note("note", text)


def _source_of(claim: Claim) -> str:
    by = "a setting"
    if claim.strength == "claim":
        by = f"{claim.framework}'s wording"
    if claim.says == "revoked":
        return f"{by}, taken back later"
    return by


def _of_rank(rank: RankReport) -> Iterator[Note]:
    if rank.clock is not None:
        yield Note("steps", _steps_line(rank.clock))
    named = rank.named_layers
    if named is not None and named.note and not named.rows:
        yield Note("layers", f"not recorded: {named.note}")
    if rank.communication is not None:
        yield Note("network", _network(rank.communication))
    if rank.numerics is not None:
        yield from _of_numerics(rank.numerics)
    if rank.memory is not None:
        yield from _of_memory(rank.memory)


def _of_numerics(numerics: NumericsReport) -> Iterator[Note]:
    if numerics.recipes:
        yield Note("scales", _scales(numerics))
    if numerics.loss_scales:
        scales = [figure(scale, ".6g") for scale in numerics.loss_scales]
        yield Note("loss scale", ", ".join(scales))
    if not numerics.gradients:
        return
    norms = []
    for norm in numerics.gradients[:_NORMS]:
        norms.append(f"{figure(norm.norm, '.4g')} in step {norm.step}")
    part = " (of this rank's part)" if numerics.gradients[0].sharded else ""
    yield Note("gradient", f"norm {', '.join(norms)}{part}")


def _of_memory(peak: MemoryReport) -> Iterator[Note]:
    held = gib(peak.reserved_peak)
    total = gib(peak.total)
    used = f"peak {gib(peak.allocated_peak)} of tensors, {held} reserved, of {total}"
    yield Note("memory", used)
    for line in peak.why:
        yield Note("", line)


def _network(moved: CommunicationReport) -> str:
    line = f"{millis(moved.time_us)} ms in collectives, {millis(moved.exposed_us)} ms exposed"
    gather = moved.weight_gather
    if gather is None:
        return line
    total = (gather.eight_bit_bytes + gather.wider_bytes) / 1e6
    if not gather.fp8:
        doubt = "perhaps " if gather.fp8 is None else "not "
        return f"{line}; {total:.0f} MB all-gathered, {doubt}in FP8"
    fp8 = gather.eight_bit_bytes / 1e6
    said = f"{line}; {fp8:.0f} of {total:.0f} MB all-gathered in FP8"
    if gather.bytes_per_parameter:
        return f"{said} ({gather.bytes_per_parameter:.2f} bytes a parameter)"
    return said


def _scales(numerics: NumericsReport) -> str:
    recipe = numerics.recipes[0]
    settings = {
        "margin": recipe.margin,
        "history": recipe.history_length,
        "by": recipe.algorithm,
    }
    how = []
    for name, value in settings.items():
        if value is not None:
            how.append(f"{name} {value}")
    said = recipe.name
    if how:
        said = f"{said} ({', '.join(how)})"
    free = []
    for row in numerics.scales:
        if row.headroom_octaves is not None:
            free.append(row.headroom_octaves)
    if free:
        return f"{said}; headroom {min(free):.1f} to {max(free):.1f} octaves"
    return said
