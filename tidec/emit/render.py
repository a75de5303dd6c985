"""A bundle's C++ as text: the walks and tables of its plans in the templates. The only user of jinja2.

Templates hold names, constants and instantiations; every value in them is spelt here or in `walk.py` and `tables.py`.
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidec.emit.kernels import kernels
from tidec.emit.names import lines
from tidec.emit.stems import namespaces, stems
from tidec.emit.tables import Tables, tables
from tidec.emit.walk import Constants, Scan
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.schedule.program import Program
from tidec.shipped import folder

if TYPE_CHECKING:
    from tidec.verify.certificate import Proved

TABLES, MODULE, KERNELS = "tables.hpp", "module.cpp", "kernels.cu"


@dataclass(frozen=True, slots=True)
class Source:
    """One emitted file. name: relative, with forward slashes."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A stream or flag of a program: its constant, its number and its name in the schedule; scope: of a flag."""

    constant: str
    index: int
    name: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Walked:
    """What one plan gives the templates. title: comment lines."""

    stem: str
    namespace: str
    title: tuple[str, ...]
    digest: str
    nodes: int
    lanes: int
    streams: tuple[Symbol, ...]
    flags: tuple[Symbol, ...]
    tables: Tables
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Linked:
    """What one plan gives the module. spots: lines of its header, and the text of the schedule's line as C++ has it."""

    stem: str
    namespace: str
    digest: str
    nodes: int
    lanes: int
    is_reduction: int
    landings: int
    spots_constant: str
    spots: tuple[tuple[int, str], ...]


def render(proved: Sequence[Proved]) -> tuple[Source, ...]:
    """The C++ of distinct proved plans: one header a plan, in their order, then the tables, the module and the kernels.

    The text depends on the plans and their groups' names alone.
    Raises E001 where jinja2 is missing; E004 with the line of an op that C++ has no form for.
    """
    plans = [p.plan for p in proved]
    names = stems(plans)
    walks: dict[tuple[int, int], tuple[Constants, tuple[str, ...]]] = {}
    walked = tuple(_walked(plan, stem, space, walks) for plan, stem, space in zip(plans, names, namespaces(names)))
    environment = _environment()
    program = environment.get_template("program.hpp.jinja")
    headers = tuple(Source(f"{w.stem}.hpp", program.render(p=w)) for w in walked)
    linked = tuple(_linked(w, plan, header) for w, plan, header in zip(walked, plans, headers))
    return (
        *headers,
        Source(TABLES, environment.get_template("tables.hpp.jinja").render(plans=walked)),
        Source(MODULE, environment.get_template("module.cpp.jinja").render(plans=linked)),
        Source(KERNELS, environment.get_template("kernels.cu.jinja").render(kernels=kernels(plans))),
    )


def _linked(walked: Walked, plan: Plan, header: Source) -> Linked:
    """spots: the lines of the header that issue an op; each ends in a comment, which names the line of the schedule."""
    found = tuple((number, json.dumps(line.rpartition(" // ")[2])) for number, line in enumerate(header.text.splitlines(), 1) if "ops." in line and " // " in line)
    return Linked(walked.stem, walked.namespace, walked.digest, walked.nodes, walked.lanes, int(plan.collective is Collective.REDUCE_SCATTER), plan.landings,
                  f"kSpots_{walked.namespace}", found)


def _environment():
    try:
        import jinja2
    except ImportError as problem:
        raise TidecError(Diagnostic("E001", "emitting needs jinja2, which is not installed", help='pip install "tidec[compile]"')) from problem
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("templates")), undefined=jinja2.StrictUndefined, line_statement_prefix="//%", keep_trailing_newline=True,
        autoescape=False,
    )


def _walked(plan: Plan, stem: str, namespace: str, walks: dict[tuple[int, int], tuple[Constants, tuple[str, ...]]]) -> Walked:
    """walks: those that are read already; groups share their programs."""
    key = (id(plan.program), plan.nodes)
    if key not in walks:
        scan = Scan(plan.program, plan.nodes)
        walks[key] = scan.constants, tuple(lines(scan))
    constants, text = walks[key]
    program = plan.program
    return Walked(
        stem, namespace, _title(plan), plan.digest, plan.nodes, plan.lanes,
        tuple(Symbol(constants.stream(s.name), i, s.name) for i, s in enumerate(program.streams)),
        tuple(Symbol(constants.flag(f.name), i, f.name, f"Scope::k{f.scope.value.capitalize()}") for i, f in enumerate(program.flags)),
        tables(plan, constants), text,
    )


def _title(plan: Plan) -> tuple[str, ...]:
    named = ", ".join(json.dumps(name) for name in plan.groups) or "a group"
    return (
        f"The {plan.collective.value.replace('_', '-')} of {named} on {plan.nodes}x{plan.lanes}, {plan.lowering.value}.",
        f"Schedule {_called(plan.program)}; plan {plan.digest}.",
    )


def _called(program: Program) -> str:
    return f"{program.name}({', '.join(f'{name}={value}' for name, value in program.knobs)})"
