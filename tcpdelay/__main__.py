"""The program `tcpdelay`, also as `python -m tcpdelay`."""

import gc
import os
import signal
import sys
from contextlib import suppress

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of an interrupted command, as of shells."""


def run() -> int:
    """Run the command line in a process of its own and return the exit status."""
    # The import makes many objects and no garbage, and looking for some takes a tenth of its time.
    gc.disable()
    try:
        from tcpdelay.cli.program import main

        gc.freeze()
        gc.enable()
        status = main()
    except KeyboardInterrupt:
        # As of `main`, and no traceback, if it comes while the command line is being imported.
        return INTERRUPTED
    if status == INTERRUPTED:
        # Python would wait for threads, and nothing ends a thread that compiles or is in a long call of a kernel.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(run())
