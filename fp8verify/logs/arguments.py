"""The dump of arguments that Megatron-LM and DeepSpeed print: one `name ....... value` a line.

Its lines say little each on their own: `fp8_recipe` has a value also where FP8 is off.
"""

from __future__ import annotations

from fp8verify.logs.layer_promises import LayerScan
from fp8verify.logs.promised import HIGH_PRECISION, format_of
from fp8verify.report.model import Claim
from fp8verify.text import lazy_pattern

_LINE = lazy_pattern(r"(?P<name>[a-z]\w{1,47}) \.{3,} (?P<value>\S.{0,80})$")
_FORMAT_VALUES = {"fp8": ("hybrid", "e4m3"), "fp4": ("e2m1",)}


class ArgumentDump:
    """Collects the arguments about low precision, line by line, into claims and pins."""

    def __init__(self, source: str, layers: LayerScan) -> None:
        self._source = source
        self._layers = layers
        self._lines: dict[str, tuple[int, str]] = {}
        self._values: dict[str, str] = {}
        self._claims: list[Claim] = []

    def add(self, text: str, number: int) -> bool:
        """Read a message; return whether it is a line of a dump."""
        found = _LINE.match(text)
        if found is None:
            return False
        name = found["name"]
        if name in self._values:  # another dump begins
            self.finish()
        self._values[name] = found["value"].strip()
        self._lines[name] = number, found[0].strip()
        return True

    def finish(self) -> list[Claim]:
        """Return the claims of all dumps."""
        for kind, values in _FORMAT_VALUES.items():
            if self._values.get(kind) in values:
                self._add_megatron(kind)
        if self._values.get("msamp_enabled") == "True":
            self._claim("msamp_enabled", "MS-AMP", self._values.get("msamp_optlevel"), "fp8")
        self._values, self._lines = {}, {}
        return self._claims

    def _add_megatron(self, kind: str) -> None:
        """Join the lines of one format: megatron/training/arguments.py:1990 prints them."""
        values = {name: value for name, value in self._values.items() if value != "None"}
        recipe = values.get(f"{kind}_recipe")
        low = format_of(kind, recipe) or kind
        legs = {"fprop": low, "dgrad": low, "wgrad": HIGH_PRECISION}
        # The argument and the field of the configuration are called differently.
        gathers = {values.get(f"{kind}_param_gather"), values.get(f"{kind}_param")}
        self._claim(
            kind,
            "Megatron-LM",
            recipe,
            low,
            all_gather=True if "True" in gathers else False if "False" in gathers else None,
            legs=legs if values.get(f"{kind}_wgrad") == "False" else {},
        )
        number, text = self._lines.get("first_last_layers_bf16", (0, ""))
        self._layers.add_blocks(values, number, text)

    def _claim(
        self,
        argument: str,
        framework: str,
        recipe: str | None,
        format_: str,
        *,
        all_gather: bool | None = None,
        legs: dict[str, str] | None = None,
    ) -> None:
        number, text = self._lines[argument]
        self._claims.append(
            Claim(
                line=number,
                text=text,
                framework=framework,
                says="fp8",
                recipe=recipe,
                all_gather=all_gather,
                format=format_,
                legs=legs or {},
                source=self._source,
            )
        )
