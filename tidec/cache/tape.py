"""The archive's outer form: a ustar file with one spelling for given contents, written and read in pieces.

A reader knows every byte that is not contents: it spells the header that a name and a size must have, and compares. So links,
devices, owners, times, odd modes, other tar dialects and changed bytes are all the same to it: not what was written.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 512
END = bytes(2 * BLOCK)
MAX_FILE_BYTES = 1 << 32
_MAX_PREFIX, _MAX_LAST = 155, 100
_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*/){0,2}[A-Za-z0-9][A-Za-z0-9._-]*")
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder", b"6": "a pipe"}


class TapeError(Exception):
    """What is wrong with an archive. name: the member, "" where none can be named."""

    def __init__(self, name: str, reason: str):
        self.name, self.reason = name, reason
        super().__init__(f"{name}: {reason}")


@dataclass(slots=True)
class Member:
    """A file of an archive that is being read; its contents must be read whole before the next one is asked for."""

    name: str
    size: int
    _stream: BinaryIO
    _left: int = -1

    def pieces(self, most: int = 1 << 20) -> Iterator[bytes]:
        """The contents, at most `most` bytes at a time. Raises TapeError where the archive ends before."""
        self._left = self.size
        while self._left:
            piece = self._stream.read(min(most, self._left))
            if not piece:
                raise TapeError(self.name, "the archive ends in the middle of it")
            self._left -= len(piece)
            yield piece
        if self._stream.read(-self.size % BLOCK) != bytes(-self.size % BLOCK):
            raise TapeError(self.name, "what fills its last block is not zero")

    @property
    def is_read(self) -> bool:
        return self._left == 0


def header(name: str, size: int) -> bytes:
    """The header of a file: mode 0644, no owner, no time. Raises TapeError for a name or a size that an archive cannot have."""
    prefix, _, last = name.rpartition("/")
    if not _NAME.fullmatch(name) or len(prefix) > _MAX_PREFIX or len(last) > _MAX_LAST:
        raise TapeError(name, "no file of an archive can have this name")
    if not 0 <= size <= MAX_FILE_BYTES:
        raise TapeError(name, f"it is larger than {MAX_FILE_BYTES >> 30} GiB")
    fields = ((last, 100), ("0000644", 8), ("0000000", 8), ("0000000", 8), (f"{size:011o}", 12), ("00000000000", 12), (" " * 8, 8), ("0", 1), ("", 100),
              ("ustar", 6), ("00", 2), ("", 32), ("", 32), ("0000000", 8), ("0000000", 8), (prefix, 155), ("", 12))
    block = b"".join(text.encode().ljust(width, b"\0") for text, width in fields)
    assert len(block) == BLOCK
    return block[:148] + f"{sum(block):06o}\0 ".encode() + block[156:]


def write(put: Callable[[bytes], object], name: str, size: int, pieces: Iterable[bytes]) -> None:
    """Write one file of exactly `size` bytes. put: takes what is written.  Raises TapeError where the pieces are more or fewer."""
    put(header(name, size))
    written = 0
    for piece in pieces:
        written += len(piece)
        if written > size:
            break
        put(piece)
    if written != size:
        raise TapeError(name, "its size changed while it was read")
    put(bytes(-size % BLOCK))


def members(stream: BinaryIO) -> Iterator[Member]:
    """The files of an archive, in its order, which is that of their names. Raises TapeError."""
    before = ""
    while True:
        block = stream.read(BLOCK)
        if block == END[:BLOCK]:
            if stream.read(BLOCK) != END[BLOCK:] or stream.read(1):
                raise TapeError("", "it does not end as an archive does")
            return
        member = _member(block, stream, before)
        if member.name <= before:
            raise TapeError(member.name, "it is there twice, or not in its order")
        before = member.name
        yield member
        assert member.is_read


def _member(block: bytes, stream: BinaryIO, before: str) -> Member:
    if len(block) < BLOCK:
        raise TapeError("", f"it ends after {before or 'its beginning'}, in the middle of a header" if block else f"it ends after {before or 'its beginning'}")
    last, prefix = (_text(block[a:b]) for a, b in ((0, 100), (345, 500)))
    name = f"{prefix}/{last}" if prefix else last
    kind, size = block[156:157], block[124:135]
    if kind in _KINDS:
        raise TapeError(name, f"it is {_KINDS[kind]}")
    if not re.fullmatch(rb"[0-7]{11}", size) or header(name, int(size, 8)) != block:
        raise TapeError(name, "its header is not one that export writes")
    return Member(name, int(size, 8), stream)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", errors="backslashreplace")
