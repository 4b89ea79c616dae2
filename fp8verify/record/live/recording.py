"""Windows recorded from inside a program whose loop is not its own, to be inspected later."""

from __future__ import annotations

from pathlib import Path

from fp8verify.errors import UsageError
from fp8verify.record.agent_config import agent_config
from fp8verify.record.folder import make_capture_folder
from fp8verify.record.settings import RunSettings


class Recording:
    """Records the windows of `settings` from now on, until it is closed.

    Attributes:
        folder: the capture.
    """

    def __init__(self, settings: RunSettings) -> None:
        from fp8verify.agent.record.process import rank_and_world_size
        from fp8verify.agent.steps import hooks

        if hooks.installed() is not None:
            raise UsageError("This process is watched already.", "Close the other watch first.")
        if settings.trace_dir is None:
            raise UsageError("There is no folder for the capture.", "Give trace_dir.")
        self.folder: Path = settings.trace_dir.absolute()
        if rank_and_world_size()[0] == 0:  # the others may write only after a step
            make_capture_folder(self.folder)
        hooks.install_late(agent_config(settings._replace(capture_log=False), self.folder))

    def close(self) -> None:
        """Write what is recorded, and take the hooks away."""
        from fp8verify.agent.steps import hooks

        hooks.uninstall()
