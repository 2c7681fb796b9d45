"""Being told to stop: SIGTERM and Ctrl-C let the step finish, save, and leave with code 42."""

import contextlib
import signal
from collections.abc import Callable, Iterator

EXIT_CODE = 42
"""Stopped early with everything saved: start the same command again."""


@contextlib.contextmanager
def on_signals() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether a stop was asked for; a second signal kills as usual."""
    asked = []
    old = {}

    def note(number, frame):
        asked.append(number)
        signal.signal(number, old[number])

    for number in (signal.SIGTERM, signal.SIGINT):
        old[number] = signal.signal(number, note)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
