"""Programs in a guest that cannot write to the host's files: no privileges, and no way to the session's directory.

The guest sees the host's files through a mount whose superblock is read-only. Only the root of the guest could mount
them writable. The programs are an ordinary user there, for good.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tcpdelay.testbed.event_loop import unmount, unshare_mounts

NOBODY = 65534
"""User and group without rights (`nobody` and `nogroup` in Debian)."""
SYSCTLS = {
    # A server on port 80 needs no root then, and neither does ping.
    "net.ipv4.ip_unprivileged_port_start": "0",
    "net.ipv4.ping_group_range": "0 2147483647",
}
NO_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


@dataclass(frozen=True)
class Confinement:
    """The user as whom programs run in a guest.

    Attributes
    ----------
    user, group : int
        Numbers of the user and of the group; 0: the programs are trusted, and keep all rights in the guest.
    groups : list of int
        Further groups.
    reads_all : bool
        Whether the programs may read all files that the guest may read. The files of the host's root belong to the
        guest's root, whose rights the programs do not have.
    """

    user: int
    group: int
    groups: list[int]
    reads_all: bool

    @classmethod
    def of_caller(cls) -> Confinement:
        """Return the user of this process; for root, a user who may read what root may read, and nothing else."""
        if os.getuid() == 0:
            return cls(NOBODY, NOBODY, [], reads_all=True)
        return cls(os.getuid(), os.getgid() or NOBODY, [group for group in os.getgroups() if group], reads_all=False)

    @classmethod
    def none(cls) -> Confinement:
        """Return the root of the guest, for programs that change their network and that their user trusts."""
        return cls(0, 0, [], reads_all=True)

    def command(self, program: Sequence[str]) -> list[str]:
        """Return the command line that runs a program as this user, without a way to gain privileges."""
        if self.user == 0:
            return list(program)
        kept = ",+dac_read_search" if self.reads_all else ""
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        capabilities = [f"--{kind}=-all{kept}" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
        user = [f"--reuid={self.user}", f"--regid={self.group}", groups]
        return ["/usr/bin/setpriv", *user, *capabilities, "--no-new-privs", "--", *program]

    def hide(self, directory: Path) -> Callable[[], None]:
        """Return a function that takes a mounted directory out of the sight of this process and of its children."""

        def hidden() -> None:
            unshare_mounts()
            unmount(str(directory))

        return hidden


def forbid_namespaces() -> None:
    """Let nobody in this guest be root in a namespace of users, which would reach more of the kernel."""
    if NO_NAMESPACES.exists():
        NO_NAMESPACES.write_text("0", encoding="ascii")
