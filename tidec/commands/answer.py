"""What a command gives back: an exit code, one JSON object, a text for people, and notes."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tidec.errors import CODES, Diagnostic, Exit, TidecError


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole outcome of one command.

    fields: the object of --json without its schema (JSON values only).  text: what is printed without --json, no line end.
    notes: what goes to stderr beside it, one diagnostic each; none changes the exit code.
    """

    exit: Exit
    fields: Mapping[str, object]
    text: str
    notes: tuple[str, ...] = ()

    def to_json(self, command: str) -> str:
        """The text of --json."""
        return json.dumps({"schema": f"tidec.{command}/1", "exit": self.exit.value, **self.fields}, indent=1, ensure_ascii=True)


def error_json(command: str, error: TidecError) -> str:
    """The text of --json where a command stopped at an error: the first diagnostic, which decides the exit code, and the others."""
    first, *others = map(_jsonable, error.diagnostics)
    content: dict[str, object] = {"schema": f"tidec.{command}/1", "exit": error.exit.value, "error": first}
    if others:
        content["others"] = others
    return json.dumps(content, indent=1, ensure_ascii=True)


def _jsonable(d: Diagnostic) -> dict[str, object]:
    spots = [{"file": s.file, "line": s.line, "text": s.text, "via": [str(v) for v in s.via]} for s in d.spots]
    content = {"code": d.code, "name": CODES[d.code].name, "sentence": d.sentence, "places": spots, "reason": d.reason, "example": list(d.example),
               "help": d.help, "see": d.see}
    return {key: value for key, value in content.items() if value}
