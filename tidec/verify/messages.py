"""A finding as a claim that people read: the lines of the schedule, and the smallest example in its words."""
from __future__ import annotations

from collections.abc import Mapping

from tidec.errors import CODES, Diagnostic, Level, Spot
from tidec.index import evaluate, text
from tidec.schedule.program import Cell, Every, Op, Program, statements
from tidec.verify.judge import Finding
from tidec.verify.obligation import Claim, Example, Verdict

# The letters of the schedules (STYLE.md), as messages say them.
LEGEND = {
    "e": "call", "n": "node", "j": "lane", "w": "wave", "c": "contributor", "p": "part", "r": "round", "t": "target node", "g": "generation", "h": "slots held",
    "q": "slot", "o": "to lane", "i": "with lane", "d": "diagonal", "J": "remote block", "G": "local sum",
}
_SEE = {
    "V101": "paper section 4.2", "V102": "paper section 3.1", "V103": "paper section 4.2", "V104": "paper section 4.2, Proposition 4.1", "V105": "paper eqs. 6-8",
    "V106": "paper eq. 6 and invariant I1", "V107": "paper section 4.2, invariant I1", "V201": "paper section 5.2, invariant I3", "V202": "paper section 3.2",
    "V203": "paper appendix E, invariant I4", "V204": "paper appendix E, invariant I4", "V205": "paper appendix E, invariant I2",
    "V301": "paper section 2.1 and eq. 5", "V302": "paper section 4.3",
}
_HELP = {
    "V101": "give wrap() a value below 2M, back() one of at least -M, or guard it with where()",
    "V102": "correct the index, or the extent that the buffer declares",
    "V103": "put along the own rail to another node; copy, sum and land inside the own node",
    "V104": "let the two writers use different blocks, or different uses of the block",
    "V105": "correct the source, the destination, or what the buffer says it holds",
    "V106": "let every contributor have one place, and say where it is in covers()",
    "V107": "write or clear the block in this use before it is read",
    "V201": "let the second op wait for a flag that is raised after the first",
    "V202": "raise the elements of a counter in the order of its box, from one stream",
    "V203": "raise the awaited element, for the rank that awaits it",
    "V204": "write the op that raises the flag before the wait, or await an earlier call",
    "V205": "wait until the put's source is reusable (done=), not until it is issued",
    "V301": "correct what the buffer says it holds, its extents, or what the cover asks for",
    "V302": "order the sums into a block on one stream, or by a flag",
    "V901": "a smaller claim: fewer parts, or a wave width that divides the lanes",
    "V902": "correct the loop bounds or conditions: nothing satisfies them",
}


def explained(finding: Finding, program: Program, scope: str) -> Claim:
    """The finding as a claim; one that is not proved carries its message."""
    o, outcome = finding.obligation, finding.outcome
    if outcome.verdict is Verdict.PROVED:
        return Claim(o.code, o.what, scope, outcome.verdict, outcome.seconds)
    ops = {s.op.id: s.op for s in statements(program)}
    code = {Verdict.UNKNOWN: "V901", Verdict.VACUOUS: "V902"}.get(outcome.verdict, o.code)
    spots = tuple(dict.fromkeys(ops[i.op_id].spot for i in o.instances)) or _declared(program, o.what)
    example = _numbers(outcome.example, ops, program) if outcome.example else {}
    lines = _story(outcome.example, o.what, ops, program) if outcome.example else ()
    sentence = {"V901": f"the solver gave up on {o.code}: {o.what}", "V902": f"nothing satisfies the assumptions of {o.code}: {o.what}"}.get(code, _sentence(o.code, o.what))
    message = Diagnostic(code, sentence, spots, f"claimed for {scope}", lines, _help(o.code, code, program), _SEE.get(o.code, ""), Level.ERROR)
    return Claim(o.code, o.what, scope, outcome.verdict, outcome.seconds, example, spots, message)


def _sentence(code: str, what: str) -> str:
    return f"{CODES[code].page.split('.')[0].split(':')[0]} ({what})"


def _help(asked: str, code: str, program: Program) -> str:
    width = dict(program.knobs).get("W")
    if asked == "V104" and isinstance(width, int) and program.lanes % width:
        divisors = [str(w) for w in range(1, program.lanes + 1) if program.lanes % w == 0]
        good = f"W must divide the lane count: {', '.join(divisors[:-1])}{' or ' if divisors[:-1] else ''}{divisors[-1]}"
        return f"{good};  compile also takes W = {width} where {' and '.join(text(p) for p in program.premises)}" if program.premises else good
    if asked == "V204" and dict(program.knobs).get("ahead"):
        return "issue the all-gather behind the network phase, or let all gradients be read before it (n_out=full)"
    if asked in ("V107", "V201", "V205") and (name := _unheard(program)):
        return f'let somebody await the flag "{name}": it is raised, and nobody does'
    return _HELP.get(code, _HELP.get(asked, ""))


def _unheard(program: Program) -> str:
    """A flag that is raised and never awaited; empty if there is none."""
    ops = [s.op for s in statements(program)]
    heard = {p.flag for op in ops for p in op.waits}
    return next((r.promise.flag for op in ops for r in op.raises if r.promise.flag not in heard), "")


def _declared(program: Program, what: str) -> tuple[Spot, ...]:
    """Where the buffer or flag that the claim is about is declared."""
    name = what.partition(":")[0]
    return tuple(x.spot for x in (*program.buffers, *program.flags) if x.name == name)


def _env(nodes: int, indices: Mapping[str, int]) -> dict[str, int]:
    return {"M": nodes, **indices}


def _words(op: Op, env: Mapping[str, int]) -> dict[str, int]:
    return {name: evaluate(x, env) for name, x in op.words}


def _numbers(example: Example, ops: Mapping[int, Op], program: Program) -> dict[str, object]:
    """The example as integers: M, L, every index (a list where the instances differ), and the instances one by one."""
    shared: dict[str, list[int]] = {}
    each: list[dict[str, object]] = []
    for role, op_id, indices in example.instances:
        named = {**indices, **_words(ops[op_id], _env(example.nodes, indices))}
        each.append({"role": role, "op": ops[op_id].kind.value, "line": ops[op_id].spot.line, **named})
        for name, value in named.items():
            shared.setdefault(name, []).append(value)
    flat = {name: v[0] if len(set(v)) == 1 else v for name, v in shared.items()}
    return {"M": example.nodes, "L": program.lanes, **flat, "instances": each}


def _story(example: Example, what: str, ops: Mapping[int, Op], program: Program) -> tuple[str, ...]:
    knobs = "".join(f", {name} = {value}" for name, value in program.knobs if not isinstance(value, bool))
    lines = [f"{_count(example.nodes, 'node')}, {_count(program.lanes, 'lane')}{knobs}"]
    about = what.partition(":")[0]
    for role, op_id, indices in example.instances:
        op, env = ops[op_id], _env(example.nodes, indices)
        named = {LEGEND.get(x, x): v for x, v in indices.items() if x not in ("n", "j")} | _words(op, env)
        where = ", ".join(f"{name} {value}" for name, value in named.items())
        lines.append(f"{role + ': ' if role else ''}{op.kind.value} of node {indices['n']}, lane {indices['j']} ({where})")
        for verb, cells in (("reads", op.reads), ("writes", op.writes)):
            lines += [f"    {verb} {_cell(c, program, env)}" for c in cells if c.buffer == about or about not in {b.name for b in program.buffers}]
        for w in op.waits:
            lines.append(f"    awaits {w.flag}[{', '.join(str(evaluate(k, env)) for k in w.key)}] of call {evaluate(w.call, env)} from node {evaluate(w.node, env)}, lane {evaluate(w.lane, env)}")
        for r in op.raises:
            p = r.promise
            if p.flag == about:
                lines.append(f"    raises {p.flag}[{', '.join(str(evaluate(k, env)) for k in p.key)}] for node {evaluate(p.node, env)}, lane {evaluate(p.lane, env)}")
    return tuple(lines)


def _cell(cell: Cell, program: Program, env: Mapping[str, int]) -> str:
    buffer = program.buffer(cell.buffer)
    at = ", ".join(f"{d.name} {'*' if isinstance(x, Every) else evaluate(x, env)}" for d, x in zip(buffer.dims, cell.key))
    lane = "every lane" if isinstance(cell.lane, Every) else f"lane {evaluate(cell.lane, env)}"
    return f"{cell.buffer}[{at}] on node {evaluate(cell.node, env)}, {lane}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


