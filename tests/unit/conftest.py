"""What is said of hand-built traces, beyond what each test states: golden lines, one a report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fp8verify import comparison
from fp8verify.pipeline import inspection
from tests import captures
from tests.golden.test_variations import stated

CAPTURES = frozenset(captures.CAPTURES)
HELD = Path(__file__).parents[1] / "golden" / "hand_built"


@pytest.fixture(autouse=True)
def held(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Hold each report and comparison that a test makes against the test's line in HELD."""
    if hasattr(request.function, "hypothesis"):
        yield
        return
    told: list[Any] = []
    place = re.compile(re.escape(f"{tmp_path_factory.getbasetemp()}") + r"[\w./-]*")

    def telling(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **more: Any) -> Any:
            result = make(*args, **more)
            # Captures have figures of their own, and their reports are worked out once.
            if CAPTURES.isdisjoint(
                getattr(result, "names", (getattr(result, "name", ""),))
            ):
                told.append(stated(json.loads(place.sub("", result.to_json()))))
            return result

        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspection, "judge", telling(inspection.judge))
        patch.setattr(comparison, "Comparison", telling(comparison.Comparison))
        yield
    if told:
        golden, name = HELD / f"{request.path.stem}.jsonl", request.node.name
        known = (
            dict(map(json.loads, golden.read_text().splitlines()))
            if golden.exists()
            else {}
        )
        if captures.UPDATE:
            known[name] = json.loads(json.dumps(told))
            # Lines of tests that are gone go, where the whole file runs.
            tests = {
                item.name for item in request.session.items if item.path == request.path
            }
            option = request.config.option
            if not (option.keyword or any("::" in arg for arg in request.config.args)):
                known = {key: line for key, line in known.items() if key in tests}
            lines = (json.dumps(line, sort_keys=True) for line in sorted(known.items()))
            golden.write_text("\n".join(lines) + "\n")
        assert told == known.get(name), (
            "if this is wanted: FP8VERIFY_UPDATE_GOLDENS=1 pytest FILE"
        )
