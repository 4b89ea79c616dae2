"""A training with a watch in the same program: own_numerics.py plain|watched|closed STEPS.

`closed` ends the watch when step 5 is complete, in the middle of what it measures, and says on
standard error how many hooks on modules torch had before and after.
"""

import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

import torch.nn.modules.module as module_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook

import fp8verify

how, steps = sys.argv[1:]
watch = nullcontext()
if how != "plain":
    watch = fp8verify.watch(every=8, window=1, numerics_every=10, sinks="fp8.jsonl")
done = 0


def hooks():
    return len(module_hooks._global_forward_hooks) + len(
        module_hooks._global_forward_pre_hooks
    )


def after_step(*_):
    global done
    done += 1
    if how == "closed" and done == 5:
        before = hooks()
        watch.close()
        print(before, hooks(), file=sys.stderr)


register_optimizer_step_post_hook(after_step)  # which is called after the watch's
sys.argv = ["numerics.py", "--steps", steps, "--clip", "0.001"]
with watch:
    runpy.run_path(str(Path(__file__).with_name("numerics.py")), run_name="__main__")
