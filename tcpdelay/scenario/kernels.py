"""Versions of the Linux kernel, and the rules of its TCP that differ between them.

The rules were read in the sources of Linux 6.1.192, 6.12.117 and 7.3.4. Where a rule is older than the oldest of these
sources that has it, its first version is the one that the kernel's history gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BeforeValidator

from tcpdelay.declare import Field, InvalidValueError, Kind
from tcpdelay.store import read_toml

OLDEST = "4.18"
"""The oldest version whose TCP the models describe: it has RACK with a reordering window, and F-RTO with SACK."""
VALIDATED = ("6.1", "6.12", "7.3")
"""Versions whose captures were compared with the models, from old to new."""
NEWEST_VALIDATED = VALIDATED[-1]
_VERSION = re.compile(r"[1-9]\d?\.\d{1,3}")


def version_numbers(text: object) -> tuple[int, int] | None:
    """Return the two numbers of a version of Linux; None if the text is no version."""
    if not isinstance(text, str) or _VERSION.fullmatch(text) is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)


def is_at_least(kernel: str, version: str) -> bool:
    """Return whether a version of Linux is another version or newer.

    >>> is_at_least("6.12", "6.7"), is_at_least("6.1", "6.7")
    (True, False)
    """
    numbers, least = version_numbers(kernel), version_numbers(version)
    return numbers is not None and least is not None and numbers >= least


def kernel_of_release(release: str) -> str:
    """Return the version of a release, as `uname -r` prints it; the newest validated version if it is unknown.

    >>> kernel_of_release("6.1.192"), kernel_of_release("6.8.0-45-generic"), kernel_of_release("")
    ('6.1', '6.8', '7.3')
    """
    version = ".".join(release.split(".")[:2])
    return version if is_at_least(version, OLDEST) else NEWEST_VALIDATED


@dataclass(frozen=True, kw_only=True)
class KernelVersion(Field):
    """Declaration of a version of the Linux kernel: two numbers in a text."""

    kind: Kind = "word"
    example: str = "6.12"

    def __iter__(self) -> Iterator[object]:
        """Yield the check for pydantic."""
        yield BeforeValidator(self._checked)

    def _checked(self, value: object) -> object:
        if not self.allows(value):
            raise self.refusal("kernel", value)
        return value

    def allows(self, value: object) -> bool:
        """Return whether a value is a version that the models describe."""
        return isinstance(value, str) and is_at_least(value, OLDEST)

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is not such a version."""
        allowed = f'be a version of Linux of at least {OLDEST} in two numbers, such as "{NEWEST_VALIDATED}"'
        return InvalidValueError(name, value, allowed)


@dataclass(frozen=True)
class KernelRule:
    """A rule of TCP that newer kernels have and older ones lack; `kernels.toml` says what its fields are."""

    name: str
    since: str
    function: str
    file: str
    commit: str
    read_in: str
    meaning: str
    used_by: str
    before: int = 0
    after: int = 0

    def holds(self, kernel: str) -> bool:
        """Return whether a version of Linux has the rule."""
        return is_at_least(kernel, self.since)

    def value(self, kernel: str) -> int:
        """Return the value of the rule in a version of Linux; 0 for a rule without a value."""
        return self.after if self.holds(kernel) else self.before


_RULES = {key: KernelRule(**table) for key, table in read_toml(Path(__file__).with_suffix(".toml")).items()}
KERNEL_RULES = tuple(_RULES.values())
"""All rules that differ between versions, from old to new."""
DELAYED_ACK_BELOW_TIMEOUT = _RULES["DELAYED_ACK_BELOW_TIMEOUT"]
RTO_MIN_OPTION = _RULES["RTO_MIN_OPTION"]
DELACK_MAX_OPTION = _RULES["DELACK_MAX_OPTION"]
RTO_MAX_OPTION = _RULES["RTO_MAX_OPTION"]
TIME_BASED_RECOVERY = _RULES["TIME_BASED_RECOVERY"]
COMPRESSION_PERCENT = _RULES["COMPRESSION_PERCENT"]
COMPRESSION_SLACK = _RULES["COMPRESSION_SLACK"]
