"""Run a command attached, as the command line does."""

import argparse
import sys
from pathlib import Path

from fp8verify.record.runner import run_training
from fp8verify.record.settings import (
    RunSettings,
    TimedWindow,
    parse_ranks,
    parse_windows,
)

parser = argparse.ArgumentParser()
parser.add_argument("--job")
parser.add_argument("--layers", action="store_true")
parser.add_argument("--numerics", action="store_true")
parser.add_argument("--numerics-every", type=int)
parser.add_argument("--numerics-eager", action="store_true")
parser.add_argument("--debug", action="store_true")
parser.add_argument("--blas-log", action="store_true")
parser.add_argument("--after-seconds", type=float, help="a window of two steps")
parser.add_argument(
    "--python", default=sys.executable, help="what scripts and modules run under"
)
parser.add_argument("--max-trace-mb", type=int, default=2048)
parser.add_argument("windows")
parser.add_argument("ranks")
parser.add_argument("capture", type=Path)
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()
timed = None if args.after_seconds is None else TimedWindow(args.after_seconds, steps=2)
windows = parse_windows(args.windows.removeprefix("global:")) if timed is None else ()
numbered = windows if args.windows.startswith("global:") else None
settings = RunSettings(
    windows=windows if numbered is None else (),
    global_windows=numbered or (),
    timed_window=timed,
    debug=args.debug,
    ranks=parse_ranks(args.ranks),
    trace_dir=args.capture,
    job=args.job,
    layers=args.layers,
    blas_log=args.blas_log,
    python=args.python,
    max_trace_mb=args.max_trace_mb,
    numerics=args.numerics or args.numerics_eager or bool(args.numerics_every),
    numerics_every=args.numerics_every,
    numerics_eager=args.numerics_eager,
)
result = run_training(args.command, settings)
Path(args.capture, "notes.test").write_text(
    "\n".join(filter(None, [result.guess, *result.notes]))
)
sys.exit(result.exit_code)
