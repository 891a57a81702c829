"""What a gzip file was made of, as far as the file is intact.

gzip.GzipFile is not used, as it says neither where a damage lies nor hands out what stands before it.
"""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE = 2**16
_HEADER_AND_CHECKSUM = 31
"""`wbits` with which zlib reads the header of gzip and compares the checksum."""


class DamagedPackingError(Exception):
    """A gzip file that is damaged; its text says what is wrong and where."""


class Unpacked(io.RawIOBase):
    """The bytes that a gzip file unpacks to, as a file.

    Parameters
    ----------
    packed : binary file
        The gzip file, of one member or several.

    Attributes
    ----------
    cut : bool
        Whether the file has turned out to end within a member.
    count : int
        Bytes unpacked so far.

    Raises
    ------
    DamagedPackingError
        When read, behind the last intact byte, if the file is damaged; with what is wrong and where.

    Examples
    --------
    >>> import gzip
    >>> file = Unpacked(io.BytesIO(gzip.compress(b"delay")[:-9]))
    >>> file.read(), file.cut
    (b'delay', True)
    """

    def __init__(self, packed: BinaryIO) -> None:
        self.cut = False
        self.count = 0
        self._packed = packed
        self._taken = 0
        self._waiting = b""
        self._member = zlib.decompressobj(_HEADER_AND_CHECKSUM)
        self._broken: DamagedPackingError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Unpack at least one byte into a buffer, and return how many; 0 at the end."""
        room = memoryview(buffer)
        while True:
            if self._broken is not None:
                raise self._broken
            if self._member.eof and not self._next_member():
                return 0
            if not self._waiting:
                self._waiting = self._packed.read(_PIECE)
                self._taken += len(self._waiting)
            ended = not self._waiting
            data = self._unpack(len(room))
            if data:
                room[: len(data)] = data
                self.count += len(data)
                return len(data)
            if ended and self._broken is None:
                self.cut = True
                return 0

    def _next_member(self) -> bool:
        """Begin another member, and return whether there is one; zeros may stand between them."""
        waiting = self._member.unused_data
        while True:
            waiting = waiting.lstrip(b"\0")
            if waiting:
                break
            waiting = self._packed.read(_PIECE)
            self._taken += len(waiting)
            if not waiting:
                return False
        self._waiting, self._member = waiting, zlib.decompressobj(_HEADER_AND_CHECKSUM)
        return True

    def _unpack(self, most: int) -> bytes:
        before, waiting = self._member.copy(), self._waiting
        try:
            data = self._member.decompress(waiting, most)
        except zlib.error:
            return self._unpack_up_to_damage(before, waiting)
        self._waiting = self._member.unconsumed_tail
        return data

    def _unpack_up_to_damage(self, member: zlib._Decompress, waiting: bytes) -> bytes:
        """Unpack byte by byte, as zlib drops all that it has unpacked when it comes upon a damage."""
        data = b""
        for place in range(len(waiting)):
            try:
                data += member.decompress(waiting[place : place + 1])
            except zlib.error as error:
                # "Error -3 while decompressing data: invalid distance too far back"
                reason = str(error).rpartition(": ")[2]
                at = self._taken - len(waiting) + place
                self._broken = DamagedPackingError(f"gzip reports '{reason}' at byte {at} of the file")
                break
        return data
