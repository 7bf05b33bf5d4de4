"""One thing that ``horocache doctor`` has found."""

import enum
from dataclasses import asdict, dataclass
from typing import Any


class State(str, enum.Enum):
    """How good a finding is."""

    OK = "ok"
    INFO = "info"  # worth knowing; nothing to do
    WARNING = "warning"  # works, but not as well as it could
    PROBLEM = "problem"  # jobs will fail; makes the doctor's exit code 1


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and what to do about it."""

    section: str
    name: str
    value: str
    state: State = State.OK
    fix: str = ""

    @property
    def usable(self) -> bool:
        """Whether it is there and works."""
        return self.state is State.OK

    def as_json(self) -> dict[str, Any]:
        """Give plain values."""
        return asdict(self) | {"state": self.state.value}
