"""Packet traces of the testbed as pcapng files: tcpdump writes pcap only."""

from __future__ import annotations

import struct
from pathlib import Path

from dpkt import pcapng

from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.testbed.network import SNAP_LENGTH

ETHERNET = 1
"""Type of the link layer (LINKTYPE_ETHERNET of libpcap)."""
NANOSECONDS = b"\x09"
"""Unit of the times: 10^-9 s (pcapng, if_tsresol)."""


def write_pcapng(trace: Path, file: Path, interface: str, system: str) -> None:
    """Write a packet trace as a pcapng file, with times in nanoseconds.

    Parameters
    ----------
    trace : Path
        The trace of an Ethernet device.
    file : Path
        The pcapng file.
    interface : str
        Name of the interface.
    system : str
        Kernel whose packets were traced.

    Raises
    ------
    ValueError
        If the trace is damaged.

    References
    ----------
    M. Tuexen, F. Risso, J. Bongertz, G. Combs, G. Harris, E. Chaudron, M. Richardson, "PCAP Next Generation (pcapng)
    Capture File Format", draft-ietf-opsawg-pcapng, section 4.
    """
    section = pcapng.SectionHeaderBlockLE(opts=_options({pcapng.PCAPNG_OPT_SHB_OS: system.encode()}))
    named = {pcapng.PCAPNG_OPT_IF_NAME: interface.encode(), pcapng.PCAPNG_OPT_IF_TSRESOL: NANOSECONDS}
    device = pcapng.InterfaceDescriptionBlockLE(linktype=ETHERNET, snaplen=SNAP_LENGTH, opts=_options(named))
    head = struct.Struct("<7I")
    with file.open("wb") as out:
        out.write(bytes(section) + bytes(device))
        for packet in CaptureFile(trace):
            captured = len(packet.data)
            padding = -captured % 4
            size = head.size + captured + padding + 4
            # dpkt would write the captured length as the length on the wire.
            out.write(
                head.pack(pcapng.PCAPNG_BT_EPB, size, 0, *divmod(packet.time, 2**32), captured, packet.wire_length)
            )
            out.write(packet.data + bytes(padding) + size.to_bytes(4, "little"))


def _options(values: dict[int, bytes]) -> list[pcapng.PcapngOptionLE]:
    given = [pcapng.PcapngOptionLE(code=code, data=data) for code, data in values.items()]
    return [*given, pcapng.PcapngOptionLE(code=pcapng.PCAPNG_OPT_ENDOFOPT)]
