"""First process of a User-Mode Linux guest: mount the file systems, run the session, and halt."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from tcpdelay.declare import InvalidValueError
from tcpdelay.testbed.event_loop import mount, power_off

WORK_DIRECTORY = Path("/mnt")
REFUSED = "refused"
DISCIPLINES = ("netem", "tbf", "codel", "fq_codel", "red", "pie", "cake", "dualpi2")
POLICER = ("sch_ingress", "cls_matchall", "act_police")
MODULES = (
    "drivers/net/veth",
    *(f"net/sched/sch_{discipline}" for discipline in DISCIPLINES),
    *(f"net/sched/{part}" for part in POLICER),
)
CONGESTION_CONTROLS = ("tcp_bbr", "tcp_vegas", "tcp_westwood", "tcp_dctcp")
TCP_MEMORY = "65536 131072 262144"
"""Memory of all TCP sockets [pages] (sysctl net.ipv4.tcp_mem): many flows exhaust the default of a small guest."""


def main(shared: str) -> None:
    """Run the plan in a directory of the host, and halt the guest; `error` or `refused` there says why it failed."""
    try:
        mount("proc", "/proc", "proc")
        mount("sysfs", "/sys", "sysfs")
        mount("tmpfs", "/run", "tmpfs")
        mount("none", str(WORK_DIRECTORY), "hostfs", shared)
        try:
            _prepare_kernel()
            # Imported here, because the import of the session reads /proc.
            from tcpdelay.testbed.experiment_run import Plan, run_session
            from tcpdelay.testbed.program_session import ProgramPlan, run_program_session

            if (programs := WORK_DIRECTORY / ProgramPlan.file).exists():
                run_program_session(ProgramPlan.read(programs), WORK_DIRECTORY)
            else:
                run_session(Plan.read(WORK_DIRECTORY / Plan.file), WORK_DIRECTORY)
        except InvalidValueError as error:
            setting = [error.name, error.value, error.allowed]
            (WORK_DIRECTORY / REFUSED).write_text(json.dumps(setting), encoding="utf-8")
        except BaseException:
            (WORK_DIRECTORY / "error").write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        power_off()


def _prepare_kernel() -> None:
    import subprocess

    Path("/proc/sys/net/ipv4/tcp_mem").write_text(TCP_MEMORY, encoding="ascii")
    (WORK_DIRECTORY / "kernel").write_text(os.uname().release, encoding="ascii")
    modules = Path("/usr/lib/uml/modules", os.uname().release, "kernel")
    # A kernel without this directory, such as the kernel for virtual time, has no modules: everything is built in.
    for module in (*MODULES, *(f"net/ipv4/{control}" for control in CONGESTION_CONTROLS)):
        with suppress(FileNotFoundError):
            file = (modules / module).with_suffix(".ko").resolve(strict=True)
            subprocess.run(["/sbin/insmod", file], check=True, capture_output=True)


if __name__ == "__main__":
    main(sys.argv[1])
