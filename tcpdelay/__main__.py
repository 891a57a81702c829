"""`python -m tcpdelay` is the command `tcpdelay`."""

import sys

from tcpdelay.cli import main

sys.exit(main())
