"""`--dump DIR`: what each step of the pipeline made, one numbered file a step."""
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path

from tidec.emit.bundle import Bundle
from tidec.emit.render import Source
from tidec.errors import Diagnostic, Spot, TidecError
from tidec.index import Node, text
from tidec.plan.ir import Plan
from tidec.schedule.program import Cell, Event, Every, Item, Loop, Op, Program, Promise, Step, When
from tidec.verify.certificate import Proved


class Dump:
    """A `watch` that writes `<number>-<name>.json`, or `.txt` where people read it rather than programs."""

    def __init__(self, folder: Path):
        """Raises E003 where the folder cannot be made, C002 where it holds something."""
        self._folder, self._count = folder, 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if any(self._folder.iterdir()):
                raise TidecError(Diagnostic("C002", f"{folder} holds something already", help="give a new or an empty folder with --dump DIR"))
        except OSError as error:
            raise self._unwritable(error) from error

    def __call__(self, name: str, value: object) -> None:
        self._count += 1
        content, ending = _content(value)
        try:
            (self._folder / f"{self._count}-{name}.{ending}").write_text(content, encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> TidecError:
        return TidecError(Diagnostic("E003", f"{self._folder} cannot be written", reason=error.strerror or str(error), help="give another folder with --dump DIR"))


def _content(value: object) -> tuple[str, str]:
    """The text of what a step made, and the ending of its file."""
    items = value if isinstance(value, tuple) else ()
    if items and all(isinstance(v, Program) for v in items):
        return "\n".join(map(program_text, items)), "txt"
    if items and all(isinstance(v, Source) for v in items):
        return "\n".join(f"==== {v.name}\n{v.text}" for v in items), "txt"
    if items and all(isinstance(v, Proved) for v in items):
        return json.dumps([json.loads(v.certificate) for v in items], indent=1) + "\n", "json"
    if isinstance(value, Bundle):
        return json.dumps({"path": str(value.path), "digest": value.digest}, indent=1) + "\n", "json"
    return json.dumps(_jsonable(value), indent=1) + "\n", "json"


def _jsonable(value: object) -> object:
    if isinstance(value, Plan):
        return json.loads(value.to_json())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (Spot, Path)):
        return str(value)
    if isinstance(value, Node):
        return text(value)
    if is_dataclass(value):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def program_text(program: Program) -> str:
    """A program for people: its buffers and flags, then its ops under their loops and conditions, each with its schedule line."""
    knobs = " ".join(f"{name}={value}" for name, value in program.knobs)
    lines = [f"{program.name} lanes={program.lanes} {knobs}".rstrip()]
    lines += [f"  only where {text(p)}" for p in program.premises]
    for b in program.buffers:
        dims = ", ".join(f"{d.name} {text(d.lo)}..{text(d.hi)}" for d in b.dims)
        lines.append(f"  {b.kind.value} {b.name}[{dims}] of {b.block.value}")
    for f in program.flags:
        on, box = (", ".join(f"{d.name} {text(d.lo)}..{text(d.hi)}" for d in dims) for dims in (f.on, f.box))
        lines.append(f"  flag {f.name} {f.scope.value}{f' on[{on}]' if on else ''}{f' box[{box}]' if box else ''}{' each' if f.each else ''}")
    return "\n".join((*lines, *_items(program.body, 1), ""))


def _items(items: tuple[Item, ...], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for item in items:
        if isinstance(item, Op):
            yield f"{pad}{_op(item)}   {item.spot}"
        elif isinstance(item, Loop):
            by = "" if item.step is Step.BY_ONE else f" {item.step.value}"
            yield f"{pad}for {item.name} in {text(item.lo)}..{text(item.hi)}{by}:"
            yield from _items(item.body, depth + 1)
        else:
            assert isinstance(item, When)
            yield f"{pad}when {text(item.cond)}:"
            yield from _items(item.body, depth + 1)


def _op(op: Op) -> str:
    reads, writes = ", ".join(map(_cell, op.reads)), ", ".join(map(_cell, op.writes))
    arrow = f"{reads} -> {writes}" if reads and writes else reads or writes
    when = {Event.END: "", Event.DONE: "done ", Event.THEN: "then "}
    kept = [_promise(p, "by") for p in op.waits] + [f"{when[r.event]}{_promise(r.promise, 'for')}" for r in op.raises]
    return " ".join(x for x in (f"{op.stream}: {op.kind.value}", arrow, "; ".join(kept)) if x)


def _cell(c: Cell) -> str:
    return f"{c.buffer}[{', '.join(map(_coord, c.key))}]@{text(c.node)}.{_coord(c.lane)}"


def _promise(p: Promise, word: str) -> str:
    return f"{p.flag}[{', '.join(text(k) for k in p.key)}] of call {text(p.call)} {word} {text(p.node)}.{text(p.lane)}"


def _coord(c: object) -> str:
    return c.value if isinstance(c, Every) else text(c)
