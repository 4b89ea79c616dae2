"""The dump of arguments that Megatron-LM and DeepSpeed print: one `name ....... value` a line.

Its lines say little each on their own: `fp8_recipe` has a value also where FP8 is off.
"""

from __future__ import annotations

import re

import msgspec

from fp8verify.logs.promised import HIGH_PRECISION, format_of
from fp8verify.report.model import Claim

_LINE = re.compile(r"(?P<name>[a-z]\w{1,47}) \.{3,} (?P<value>\S.{0,80})$")
_FORMAT_VALUES = {"fp8": ("hybrid", "e4m3"), "fp4": ("e2m1",)}
# The gathering of parameters has two names: of the argument and of the configuration's field.
_GATHERS = ("param_gather", "param")


class ArgumentDump:
    """Collects the arguments about low precision, line by line, into claims."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str, str]] = {}
        self._claims: list[Claim] = []

    def add(self, text: str, number: int, source: str) -> bool:
        """Take in a message; return whether it is a line of a dump."""
        found = _LINE.match(text)
        if found is None:
            return False
        name = found["name"]
        if name in self._found:  # another dump begins
            self.finish(source)
        self._found[name] = (number, found["value"].strip(), found[0].strip())
        return True

    def finish(self, source: str) -> list[Claim]:
        """Return the claims of all dumps."""
        for kind in ("fp8", "fp4"):
            number, value, text = self._found.get(kind, (0, "", ""))
            if value in _FORMAT_VALUES[kind]:
                self._claims.append(self._megatron(kind, number, text, source))
        number, value, text = self._found.get("msamp_enabled", (0, "", ""))
        if value == "True":
            self._claims.append(
                Claim(
                    line=number,
                    text=text,
                    framework="MS-AMP",
                    says="fp8",
                    recipe=self._value("msamp_optlevel"),
                    format="fp8",
                    source=source,
                )
            )
        self._found = {}
        return self._claims

    def _megatron(self, kind: str, number: int, text: str, source: str) -> Claim:
        """Join the lines of one format: megatron/training/arguments.py:1990 prints them."""
        recipe = self._value(f"{kind}_recipe")
        format_ = format_of(kind, recipe) or kind
        high = self._value(f"{kind}_wgrad") == "False"
        gathers = [self._value(f"{kind}_{name}") for name in _GATHERS]
        claim = Claim(
            line=number,
            text=text,
            framework="Megatron-LM",
            says="fp8",
            recipe=recipe,
            all_gather=True if "True" in gathers else False if "False" in gathers else None,
            format=format_,
            source=source,
        )
        if not high:
            return claim
        legs = {"fprop": format_, "dgrad": format_, "wgrad": HIGH_PRECISION}
        return msgspec.structs.replace(claim, legs=legs)

    def _value(self, name: str) -> str | None:
        value = self._found.get(name, (0, "None", ""))[1]
        return None if value == "None" else value
