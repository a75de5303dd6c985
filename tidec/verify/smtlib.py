"""Terms spelt in SMT-LIB 2, every shared one once, with the axioms of powers of two."""
from __future__ import annotations

from collections.abc import Iterable

from tidec.verify.terms import Bool, Form, Term, Terms, closure


def with_powers(terms: Terms, asserted: list[Bool]) -> list[Bool]:
    """The axioms of powers of two for the terms in sight: they double, are at least 1, and two different ones differ by a factor of two."""
    axioms: list[Bool] = []
    seen = closure(asserted)
    for t in seen:
        if t.form is Form.TOP2:
            x = t.args[0]
            axioms.append(terms.implies(terms.lt(x, 1), terms.eq(t, 0)))
            axioms.append(terms.implies(terms.le(1, x), terms.every((terms.le(1, t), terms.pow2(t), terms.le(t, x), terms.lt(x, terms.scale(t, 2))))))
    powers = [t.args[0] for t in closure([*seen, *axioms]) if t.form is Form.POW2]
    if powers:
        axioms += [terms.implies(terms.pow2(x), terms.every((terms.le(1, x), terms.pow2(terms.scale(x, 2))))) for x in powers]
        for i, x in enumerate(powers):
            for y in powers[i + 1 :]:
                apart = terms.some((terms.eq(x, y), terms.le(terms.scale(x, 2), y), terms.le(terms.scale(y, 2), x)))
                axioms.append(terms.implies(terms.every((terms.pow2(x), terms.pow2(y))), apart))
    return axioms


def smt2(asserted: Iterable[Bool], *, is_anonymous: bool = False) -> str:
    """The declarations and assertions of these terms as SMT-LIB 2 text, every shared term spelt once.

    is_anonymous: unknowns are numbered as they come, so that claims which differ in names only are one text.
    """
    asserted = list(asserted)
    order = closure(asserted)
    uses: dict[Term, int] = {}
    for t in order:
        for c in t.under:
            uses[c] = uses.get(c, 0) + 1
    lines: list[str] = []
    name: dict[Term, str] = {}
    if any(t.form is Form.POW2 for t in order):
        lines.append("(declare-fun pow2 (Int) Bool)")
    for i, t in enumerate(order):
        if t.form is Form.VAR or t.form is Form.TOP2:
            name[t] = f"x{i}" if is_anonymous else f"|{t.args[0]}|" if t.form is Form.VAR else f"|top2.{t.uid}|"
            lines.append(f"(declare-const {name[t]} Int)")
            continue
        spelt = _spell(t, name)
        if uses.get(t, 0) > 1 and len(spelt) > 12:
            name[t] = f"t{i if is_anonymous else t.uid}"
            lines.append(f"(define-fun {name[t]} () {'Int' if t.form in _INTS else 'Bool'} {spelt})")
        else:
            name[t] = spelt
    lines += [f"(assert {name[a] if isinstance(a, Term) else str(a).lower()})" for a in asserted]
    return "\n".join(lines)


_INTS = (Form.VAR, Form.SUM, Form.DIV, Form.MOD, Form.ITE, Form.TOP2)


def _spell(t: Term, name: dict[Term, str]) -> str:
    def show(x: object) -> str:
        if isinstance(x, Term):
            return name[x]
        return str(x).lower() if isinstance(x, bool) else _int(x)

    if t.form is Form.SUM:
        parts = [name[x] if f == 1 else f"(* {_int(f)} {name[x]})" for x, f in t.args[1]]
        if t.args[0]:
            parts.append(_int(t.args[0]))
        return parts[0] if len(parts) == 1 else f"(+ {' '.join(parts)})"
    if t.form is Form.LE0:
        return f"(<= {show(t.args[0])} 0)"
    if t.form is Form.EQ0:
        return f"(= {show(t.args[0])} 0)"
    return f"({t.form.value} {' '.join(show(x) for x in t.args)})"


def _int(v: int) -> str:
    return str(v) if v >= 0 else f"(- {-v})"
