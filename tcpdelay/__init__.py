"""tcpdelay: how late the packets of a real-time flow are over TCP."""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

# The names and their modules are in __init__.pyi. A module is loaded when a name of it is first used: the compiler of
# the solver alone takes longer to import than `tcpdelay --help` may take.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
