"""A JSON input with places: every value knows its line, so that every complaint can point at it.

Stricter than `json.loads`: a key stands once, NaN and Infinity are not numbers, and an integer has at most 64 bits.
"""
from __future__ import annotations

import codecs
import difflib
import json
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Sequence

from tidec.errors import Diagnostic, Spot, TidecError

REFERENCE = "examples/README.md, every key of the input files"
MAX_INT64 = 2**63 - 1
MAX_FILE_BYTES = 16 * 2**20
_MAX_DEPTH = 64
_MAX_SPOT_TEXT = 100
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:(?P<mark>[{}\[\]:,])
                    |(?P<text>"(?:[^"\\\x00-\x1f]|\\.)*")
                    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z.]))
                    |(?P<word>-?[A-Za-z]+))""",
    re.VERBOSE,
)
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and the line it begins on; arrays are tuples of nodes, objects are tuples of members."""

    value: str | int | float | bool | None | tuple[Node, ...] | Object
    line: int


@dataclass(frozen=True, slots=True)
class Member:
    """One key of an object, the line the key stands on, and its value."""

    key: str
    line: int
    node: Node


@dataclass(frozen=True, slots=True)
class Object:
    """A JSON object: its members in the file's order, each key once."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON text that was read; `file` is the name the user gave and is only ever printed."""

    file: str
    lines: tuple[str, ...]
    root: Node

    def error(self, code: str, sentence: str, *, line: int, reason: str = "", help: str = "", see: str = "") -> TidecError:
        """The error of one line of this file, ready to be raised."""
        return TidecError(replace(_diagnostic(code, sentence, self.file, self.lines, line, reason=reason, help=help), see=see))

    def members(self, node: Node, *, what: str, keys: Sequence[str], owner: str = "", group_keys: Sequence[str] = ()) -> dict[str, Member]:
        """The members of an object by key.

        what: how a message names the object; owner: how it names the kind, for the list of keys.
        group_keys: keys that belong to the groups inside it.
        Raises P002 where it is no object, P003 with the nearest key where it holds an unknown one.
        """
        if not isinstance(node.value, Object):
            raise self.error("P002", f"{what} is {kind_of(node.value)}, not an object", line=node.line,
                             help=f"write an object with the keys {', '.join(keys)}", see=REFERENCE)
        for member in node.value.members:
            if member.key not in keys and member.key in group_keys:
                raise self.error("P003", f"{what} has an unknown key {quoted(member.key)}", line=member.line,
                                 help=f"{member.key} belongs to a group: list the group under groups", see=REFERENCE)
            if member.key not in keys:
                raise self.error("P003", f"{what} has an unknown key {quoted(member.key)}", line=member.line,
                                 help=f"did you mean {quoted(nearest(member.key, keys))}?  "
                                      f"the keys of {owner or what} are {', '.join(keys)}", see=REFERENCE)
        return {member.key: member for member in node.value.members}

    def text(self, node: Node, *, what: str) -> str:
        """A printable, non-empty string. Raises P002."""
        if not isinstance(node.value, str) or not node.value:
            raise self._wrong(node, what, "a non-empty string")
        if not node.value.isprintable():
            raise self.error("P002", f"{what} holds a character that cannot be printed", line=node.line,
                             help="write names without line breaks, control characters and lone surrogates")
        return node.value

    def flag(self, node: Node, *, what: str) -> bool:
        """true or false. Raises P002."""
        if not isinstance(node.value, bool):
            raise self._wrong(node, what, "true or false")
        return node.value

    def integer(self, node: Node, *, what: str, low: int = 0, high: int = MAX_INT64) -> int:
        """An integer from low to high, both included; true and 1.0 are none. Raises P002."""
        if not isinstance(node.value, int) or isinstance(node.value, bool):
            raise self._wrong(node, what, "an integer")
        if not low <= node.value <= high:
            wanted = f"an integer from {low}" if high == MAX_INT64 else f"an integer from {low} to {high}" if low < high else str(low)
            raise self.error("P002", f"{what} is {node.value}, not {wanted}", line=node.line, help=f"write {wanted}")
        return node.value

    def number(self, node: Node, *, what: str, is_zero_allowed: bool = False) -> float:
        """A number above zero (or zero, where that is allowed). Raises P002."""
        if not isinstance(node.value, (int, float)) or isinstance(node.value, bool):
            raise self._wrong(node, what, "a number")
        if node.value < 0 or (node.value == 0 and not is_zero_allowed):
            bound = "zero or more" if is_zero_allowed else "more than zero"
            raise self.error("P002", f"{what} is {node.value}, not {bound}", line=node.line, help=f"write a number that is {bound}")
        return float(node.value)

    def items(self, node: Node, *, what: str) -> tuple[Node, ...]:
        """The nodes of an array. Raises P002."""
        if not isinstance(node.value, tuple):
            raise self._wrong(node, what, "an array")
        return node.value

    def _wrong(self, node: Node, what: str, wanted: str) -> TidecError:
        return self.error("P002", f"{what} is {kind_of(node.value)}, not {wanted}", line=node.line,
                          help=f"write {wanted}" + (", or leave the key out" if node.value is None else ""))


def given_path(text: str, *, what: str) -> Path:
    """A path that the user gave; what: how a message names the argument. Raises P001 where it is empty: `Path` would take that for the folder one is in."""
    if not text or "\0" in text:
        raise TidecError(Diagnostic("P001", f"{what} is {quoted(text)}, which is no path", help="give a path; . is the folder that you are in"))
    return Path(text)


def read_file(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file of at most MAX_FILE_BYTES.

    Guaranteed: never waits; a pipe or a device is not opened for long, and nothing is read of it.
    Raises P001 where it cannot be read or is no file, P002 where it is not UTF-8, begins with a byte order mark, or is too large.
    """
    file = os.fspath(path)
    try:
        # NOTE: without O_NONBLOCK the opening of a pipe waits for somebody who writes.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise _not_read(file, f"it is {_kind_of_file(mode)}, not a file")
            with open(descriptor, "rb", closefd=False) as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise _not_read(file, getattr(error, "strerror", None) or str(error)) from error
    if len(data) > MAX_FILE_BYTES:
        raise TidecError(Diagnostic("P002", f"{quoted(file)} is larger than {MAX_FILE_BYTES // 2**20} MiB", (Spot(file, 0),),
                                    reason="a group file of a thousand groups has about one", help="give a JSON file"))
    if data.startswith(codecs.BOM_UTF8):
        raise TidecError(Diagnostic("P002", f"{quoted(file)} begins with a byte order mark", (Spot(file, 0),), reason="JSON is UTF-8 text without one",
                                    help="save it as UTF-8 without a byte order mark"))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TidecError(Diagnostic("P002", f"{quoted(file)} is not UTF-8 text", (Spot(file, 0),), reason=f"byte {error.start} is no part of a character",
                                    help="give a JSON file")) from error


def _not_read(file: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("P001", f"{quoted(file)} cannot be read", reason=reason, help="give the path of a JSON file"))


def _kind_of_file(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "a socket"


def parse(text: str, *, file: str) -> Document:
    """Read a JSON text. Raises P002 with the line where it is not JSON or where a key stands twice."""
    lines = tuple(text.split("\n"))
    reader = _Reader(text, file, lines)
    root = reader.value(0)
    reader.end()
    return Document(file, lines, root)


def plain_text(node: Node) -> str:
    """The canonical JSON text of a value (sorted keys, ASCII, no spaces)."""
    return json.dumps(_plain(node), sort_keys=True, separators=(",", ":"))


def nearest(word: str, known: Sequence[str]) -> str:
    """The known word that is most like the one written."""
    folded = {candidate.lower(): candidate for candidate in known}
    return folded[difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.0)[0]]


def quoted(text: str) -> str:
    """A text of the user's in double quotes, with everything that cannot be printed escaped."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def kind_of(value: object) -> str:
    """How a message names the kind of a JSON value."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quoted(value) if len(value) < 40 else "a string"
    return "an array" if isinstance(value, tuple) else "an object"


def _plain(node: Node) -> object:
    if isinstance(node.value, Object):
        return {member.key: _plain(member.node) for member in node.value.members}
    if isinstance(node.value, tuple):
        return [_plain(item) for item in node.value]
    return node.value


def _diagnostic(code: str, sentence: str, file: str, lines: Sequence[str], line: int, *, reason: str = "", help: str = "") -> Diagnostic:
    shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    if len(shown) > _MAX_SPOT_TEXT:
        shown = shown[: _MAX_SPOT_TEXT - 3] + "..."
    return Diagnostic(code, sentence, (Spot(file, line, shown if shown.isprintable() else ""),), reason=reason, help=help)


class _Reader:
    """One pass over a JSON text; `at` is the offset of the next token, `line` the line of the last one."""

    def __init__(self, text: str, file: str, lines: Sequence[str]):
        self.text, self.file, self.lines = text, file, lines
        self.at, self.line, self.counted = 0, 1, 0

    def value(self, depth: int) -> Node:
        kind, token = self._next("a value")
        return self._value_of(kind, token, depth)

    def end(self) -> None:
        rest = self.text[self.at:]
        if rest.strip(" \t\r\n"):
            self._count(len(self.text) - len(rest.lstrip(" \t\r\n")))
            raise self._error("is not JSON: there is more text after its end")

    def _value_of(self, kind: str, token: str, depth: int) -> Node:
        line = self.line
        if depth > _MAX_DEPTH:
            raise self._error(f"is nested more than {_MAX_DEPTH} deep")
        if kind == "text":
            return Node(self._string(token), line)
        if kind == "number":
            return Node(self._number(token), line)
        if kind == "word":
            if token not in _WORDS:
                raise self._error(f"is not JSON: {token} is not one of its values", help="write a number, a string, true, false, an array or an object")
            return Node(_WORDS[token], line)
        if token == "[":
            return Node(self._array(depth), line)
        if token == "{":
            return Node(Object(self._members(depth)), line)
        raise self._error(f"is not JSON: {quoted(token)} stands where a value should")

    def _array(self, depth: int) -> tuple[Node, ...]:
        items: list[Node] = []
        kind, token = self._next("a value or ]")
        while token != "]":
            items.append(self._value_of(kind, token, depth + 1))
            kind, token = self._next(", or ]")
            if token == ",":
                kind, token = self._next("a value")
                if token == "]":
                    raise self._error("is not JSON: a comma stands before ]")
            elif token != "]":
                raise self._error(f"is not JSON: {quoted(token)} stands where , or ] should")
        return tuple(items)

    def _members(self, depth: int) -> tuple[Member, ...]:
        members: dict[str, Member] = {}
        kind, token = self._next("a key or }")
        while token != "}":
            if kind != "text":
                raise self._error(f"is not JSON: {quoted(token)} stands where a key should")
            key, line = self._string(token), self.line
            if key in members:
                raise self._error(f"holds the key {quoted(key)} twice in one object", reason=f"it stands on line {members[key].line} too",
                                  help="delete one of the two")
            if self._next(":")[1] != ":":
                raise self._error(f"is not JSON: no colon follows the key {quoted(key)}")
            members[key] = Member(key, line, self.value(depth + 1))
            kind, token = self._next(", or }")
            if token == ",":
                kind, token = self._next("a key")
                if token == "}":
                    raise self._error("is not JSON: a comma stands before }")
            elif token != "}":
                raise self._error(f"is not JSON: {quoted(token)} stands where , or }} should")
        return tuple(members.values())

    def _next(self, wanted: str) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            start = len(self.text) - len(self.text[self.at:].lstrip(" \t\r\n"))
            self._count(start)
            found = "it ends" if start == len(self.text) else f"{quoted(self.text[start:start + 12].split(chr(10))[0])} stands"
            raise self._error(f"is not JSON: {found} where {wanted} should be")
        kind = str(match.lastgroup)
        self._count(match.start(kind))
        self.at = match.end()
        return kind, match.group(kind)

    def _string(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except ValueError as error:
            raise self._error("is not JSON: a string holds a wrong escape") from error

    def _number(self, token: str) -> int | float:
        if token.lstrip("-").isdigit():
            value = int(token) if len(token) < 24 else MAX_INT64 + 1
            if abs(value) <= MAX_INT64:
                return value
            raise self._error("holds an integer that does not fit 64 bits", help=f"write an integer of at most {MAX_INT64}")
        number = float(token)
        if number in (float("inf"), float("-inf")):
            raise self._error(f"holds a number that no double can hold: {token[:24]}")
        return number

    def _count(self, offset: int) -> None:
        self.line += self.text.count("\n", self.counted, offset)
        self.counted = max(self.counted, offset)

    def _error(self, what: str, *, reason: str = "", help: str = "") -> TidecError:
        return TidecError(_diagnostic("P002", f"{quoted(self.file)} {what}", self.file, self.lines, self.line,
                                      reason=reason, help=help or "mend the JSON at this line"))
