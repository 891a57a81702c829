"""The lines of a region in several threads: the solver runs without Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

from tcpdelay.processors import processors

MOST_THREADS = 4
"""Beyond, threads would wait for Python's own lock: only the solver runs without it."""


def for_each_line(
    solve: Callable[[int], None], lines: int, on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Call `solve` with the number of each line, the last one first, in several threads.

    Parameters
    ----------
    solve : callable
        Takes the number of a line.
    lines : int
        How many there are.
    on_progress : callable, optional
        Called with the number of lines done, and of all.

    Examples
    --------
    >>> done = set()
    >>> for_each_line(done.add, 3)
    >>> sorted(done)
    [0, 1, 2]
    """
    with ThreadPoolExecutor(min(processors(), MOST_THREADS, lines)) as pool:
        # Long round-trip times take longest: first, so that no thread is left alone with one at the end.
        solved = [pool.submit(solve, line) for line in range(lines - 1, -1, -1)]
        try:
            for done, each in enumerate(as_completed(solved), start=1):
                each.result()
                if on_progress is not None:
                    on_progress(done, lines)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
