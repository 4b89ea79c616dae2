"""Scalars of windows for MLflow."""

from __future__ import annotations

import time
from typing import Any

from fp8verify.integrations.requires import requires
from fp8verify.record.live.line import Line, scalars_in


class MlflowSink:
    """Logs the scalars of each line to the active run, or to a new one of an experiment."""

    def __init__(self, experiment: str = "") -> None:
        with requires("mlflow"):
            import mlflow
            from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient()
        active = mlflow.active_run()
        self._owned = bool(experiment) or active is None
        # Kept by its identifier: an active run is one of a thread, and lines come on another.
        self._run = self._new_run(experiment or "fp8verify") if self._owned else active.info.run_id

    def _new_run(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        number = known.experiment_id if known else self._client.create_experiment(name)
        return str(self._client.create_run(number, run_name="fp8verify").info.run_id)

    def write(self, line: Line) -> None:
        """Log the scalars, and the verdict as a tag."""
        at = int(line.get("time", time.time()) * 1000)
        for name, value in scalars_in(line).items():
            self._client.log_metric(self._run, name, value, timestamp=at, step=line["step"] or 0)
        self._client.set_tag(self._run, "fp8.verdict", line["verdict"])

    def close(self) -> None:
        """End the run if it is ours."""
        if self._owned:
            self._client.set_terminated(self._run)
