"""On a GPU, runs that look at themselves run attached as plain: prints a table.

    python benchmarks/gpu/harm.py [times]      # exit code 1 if a case differs; about seven minutes

Each case of `harm_loops.py` runs plain, by default, and with `--layers --numerics`. Compared are
exit status, output, errors and files. With two GPUs, torchrun gets a SIGTERM to its process
group: every rank hears it as often as without fp8verify. Last, step times after the window against
those before it in the same process, because processes differ by more than is looked for. Torch's
profiler leaves CUPTI attached, so a window slows what follows as the script's own profiler does
where the GPU waits for the CPU; with `TEARDOWN_CUPTI=1` torch detaches it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import left_in, scrub  # noqa: E402

LOOPS = Path(__file__).with_name("harm_loops.py")
CASES = ("spectral", "parametrized", "saves", "forks", "nvtx")
WAYS = {"default": (), "layers, numerics": ("--layers", "--numerics")}
PATIENCE_S = 90
NOISE = 0.03
TURNS = 3


def run(
    folder: Path,
    case: str,
    way: tuple[str, ...] | None,
    *launcher: object,
    env: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Run a case plain (no way) or attached, and return what can be seen of it."""
    folder.mkdir()
    command = [sys.executable, *launcher, LOOPS, case]
    if way is not None:
        steps = "261-262" if case == "times" else "3-4"
        ours = [
            sys.executable,
            "-m",
            "fp8verify",
            "run",
            "--steps",
            steps,
            *way,
            "--exit-zero",
        ]
        command = [*ours, "--trace-dir", "capture", "-o", "report", "--", *command]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "HARM_TARGET": str(os.getpid()),
            **(env or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2}),
    )
    if (
        case == "group"
        and signal.sigtimedwait({signal.SIGUSR2}, PATIENCE_S) is not None
    ):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        out, error = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, error = process.communicate()
        return {"status": "hangs", "stdout": out, "stderr": error[-500:]}
    files = {
        name: (folder / name).read_text()
        for name, _ in left_in(folder)
        if name != "times.log"
    }
    # torchrun writes of signals and times; its ranks' words are in files.
    seen = {"status": process.returncode, "files": files}
    return seen if launcher else {**seen, "stdout": out, "stderr": scrub(error)}


def row(
    case: str, way: str, plain: dict[str, object], attached: dict[str, object]
) -> bool:
    """Print a row; return whether the two are the same."""
    differs = [name for name in plain if plain[name] != attached.get(name)]
    print(f"| {case} | {way} | {plain['status']} | {attached['status']} | "
          f"{', '.join(differs) or 'none'} |", flush=True)  # fmt: skip
    for name in differs:
        print(
            f"    {name}: {str(plain[name])[-600:]!r} became {str(attached.get(name))[-600:]!r}"
        )
    return not differs


def compare(folder: Path) -> bool:
    """Run all cases; return whether all are the same."""
    import torch

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(
        "| case | way | plain ends with | attached | differs |\n|---|---|---|---|---|"
    )
    same = True
    for case in CASES:
        plain = run(folder / case, case, None)
        if plain["status"] != 0:
            print(f"    the case itself failed: {plain['stderr']}")
        same &= plain["status"] == 0
        for way, options in WAYS.items():
            same &= row(
                case, way, plain, run(folder / f"{case}-{len(options)}", case, options)
            )
    if torch.cuda.device_count() > 1:
        torchrun = (
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--standalone",
        )
        plain = run(folder / "group", "group", None, *torchrun)
        attached = run(folder / "group-default", "group", (), *torchrun)
        same &= row("SIGTERM to torchrun's group", "default", plain, attached)
        print(f"    heard: {plain.get('files')}")
    return same


def times(folder: Path) -> bool:
    """Print step times before and after a window; whether ours costs no more than torch's own."""
    detach = {"TEARDOWN_CUPTI": "1"}
    ways: dict[str, tuple[tuple[str, ...] | None, Mapping[str, str]]] = {
        "no profiler": (None, {}),
        "torch's profiler": (None, {"HARM_PROFILE": "1"}),
        "torch's profiler, TEARDOWN_CUPTI=1": (None, {"HARM_PROFILE": "1", **detach}),
        "fp8verify": ((), {}),
        "fp8verify, TEARDOWN_CUPTI=1": ((), detach),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for number, (name, (way, env)) in enumerate(ways.items()):
            place = folder / f"times-{turn}-{number}"
            run(place, "times", way, env=env)
            before, after = map(float, (place / "times.log").read_text().split())
            found[name].append((before, after))
    print(
        "\n| window | step before | after | change, turn by turn |\n|---|---|---|---|"
    )
    for name, turns in found.items():
        changes = ", ".join(f"{after / before - 1:+.1%}" for before, after in turns)
        before, after = (min(column) for column in zip(*turns, strict=True))
        print(f"| {name} | {before:.3f} ms | {after:.3f} ms | {changes} |", flush=True)
    changed = {
        name: median(after / before for before, after in t) for name, t in found.items()
    }
    return all(
        changed[f"fp8verify{end}"] <= changed[f"torch's profiler{end}"] + NOISE
        for end in ("", ", TEARDOWN_CUPTI=1")
    )


def main() -> int:
    """Run everything, or what is named; return 1 if a run was harmed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        same = sys.argv[1:] == ["times"] or compare(Path(name))
        quick = times(Path(name))
    print(
        f"{'nothing' if same and quick else 'something'} differs; {time.monotonic() - began:.0f} s"
    )
    return 0 if same and quick else 1


if __name__ == "__main__":
    sys.exit(main())
