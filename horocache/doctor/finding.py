"""One finding of ``horocache doctor``."""

import enum
from dataclasses import asdict, dataclass
from typing import Any


class State(str, enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    INFO = "info"  # worth knowing; nothing to do
    WARNING = "warning"  # works, but not as well as it could
    PROBLEM = "problem"  # jobs will fail; makes the doctor's exit code 1


@dataclass(frozen=True)
class Finding:
    """The item that was checked, its state, and how to repair it."""

    section: str
    name: str
    value: str
    state: State = State.OK
    fix: str = ""
    broken: bool = False  # the item is there, but a job cannot use it

    @property
    def usable(self) -> bool:
        """True if the item exists and works."""
        return self.state in {State.OK, State.WARNING} and not self.broken

    def as_json(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        return asdict(self) | {"state": self.state.value}
