"""The program `tcpdelay`, also as `python -m tcpdelay`."""

import gc
import signal
import sys


def run() -> int:
    """Run the command line in a process of its own and return the exit status."""
    # Starting up makes many objects and no garbage, and looking for some takes a tenth of the time.
    gc.disable()
    try:
        from tcpdelay.cli.program import main

        return main()
    except KeyboardInterrupt:
        # As of `main`, and no traceback, if it comes while the command line is being imported.
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(run())
