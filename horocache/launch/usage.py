"""A user's mistake on the command line."""


class UsageError(Exception):
    """Shown as one line; ``status`` is the exit code."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status
