"""What tests with guests need of the machine."""

import os

import pytest


def require(problems, variable):
    """Skip for want of something, or fail if the environment says that it is to be there."""
    if problems:
        (pytest.fail if os.environ.get(f"TCPDELAY_REQUIRE_{variable}") == "1" else pytest.skip)("; ".join(problems))
