"""The certificate of a plan: it is this plan's, every claim in it is proved, and no code of claims that its collective must have is missing.

One that is spelt canonically, without a letter to escape, is known by its text: what stands around the claims is spelt here and compared, the claims are
matched as a whole, and codes are looked for as they are spelt. Any other is read as JSON, which takes longer, and refused by what is wrong with it.
"""
from __future__ import annotations

import re
from collections.abc import Iterable

from tidec.verify.recheck_ask import Wanted
from tidec.verify.recheck_files import loaded
from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_theorems import Theorems, canonical
from tidec.verify.recheck_words import refuted, tampered, unknown

SCHEMA = "tidec.certificate/1"
_OWN_CLAIMS = ("V402", "P013")
_PLAIN = r'[ !#-\[\]-~]*+'    # letters that JSON spells as they are
_CLAIMS = re.compile(rf'(?:\{{"code":"{_PLAIN}","scope":"{_PLAIN}","verdict":"proved","what":"{_PLAIN}"\}},)*+')
_VERSION = re.compile(_PLAIN)
_END = f'"}},"schema":"{SCHEMA}"}}'


def check_certificate(file: str, data: bytes, wanted: Wanted, facts: Facts, theorems: Theorems) -> None:
    """There are claims of every code about the plan's branch of M and about the plan itself, and every claim is proved.

    Raises C001; the code of a claim that is refuted; V902 for one that is vacuous, V901 for one that is unknown.
    """
    claims = _proved(data, wanted, facts, theorems)
    branch = "M = 1" if facts.nodes == 1 else "every M >= 2"
    if claims:
        missing = _missing(claims, theorems.codes[_branch(facts)], branch) + _missing(claims, _OWN_CLAIMS, 'this plan"')
    else:
        read = _read(file, data, wanted, facts, theorems)
        codes, own = {code for code, scope in read if scope.startswith(branch)}, {code for code, scope in read if scope == "this plan"}
        missing = [x for x in theorems.codes[_branch(facts)] if x not in codes] + [x for x in _OWN_CLAIMS if x not in own]
    if missing:
        raise tampered(file, f"it has no claim of {', '.join(missing)}")


def _branch(facts: Facts) -> str:
    return f"{facts.collective} M {'= 1' if facts.nodes == 1 else '>= 2'}"


def _proved(data: bytes, wanted: Wanted, facts: Facts, theorems: Theorems) -> str:
    """The text of all claims, if all are proved and the text around is what a certificate of this plan is spelt like; else nothing."""
    text = data.decode("ascii", "replace")
    head = f'{{"assumes":{theorems.assumes_text},"claims":['
    tail = f'],"nodes":{facts.nodes},"plan":"{wanted.digest}","program":"{wanted.program_digest}","prover":{{"z3":"'
    split = text.rfind(tail)
    end = split + len(tail)
    if not (text.startswith(head) and split >= len(head) and text.endswith(_END, end) and _VERSION.fullmatch(text, end, len(text) - len(_END))):
        return ""
    claims = text[len(head) : split] + ","
    return claims if _CLAIMS.fullmatch(claims) else ""


def _missing(claims: str, codes: Iterable[str], scope: str) -> list[str]:
    """The codes of which there is no claim whose scope begins so. Claims mostly stand in the order of the codes, so that one is looked for behind the last."""
    missing, at = [], 0
    for code in codes:
        start = f'{{"code":"{code}","scope":"{scope}'
        found = claims.find(start, at)
        if found < 0 and start not in claims:
            missing.append(code)
        at = max(found, at)
    return missing


def _read(file: str, data: bytes, wanted: Wanted, facts: Facts, theorems: Theorems) -> list[tuple[str, str]]:
    """(code, scope) of all claims. Raises as `check_certificate`."""
    c = loaded(file, data)
    if canonical(c).encode() != data:
        raise tampered(file, "it is not spelt canonically")
    if c.keys() != {"schema", "plan", "program", "nodes", "claims", "assumes", "prover"} or c["schema"] != SCHEMA:
        raise tampered(file, f"it is not of the schema {SCHEMA}")
    if (c["plan"], c["program"], c["nodes"]) != (wanted.digest, wanted.program_digest, facts.nodes) or type(c["nodes"]) is not int:
        raise tampered(file, "it is for another plan, program or node count")
    if c["assumes"] != theorems.assumes or c["prover"].keys() != {"z3"} or not isinstance(c["prover"]["z3"], str):
        raise tampered(file, "it assumes other things than this version does, or names no prover")
    for claim in c["claims"]:
        code, _, verdict, what = claim["code"], claim["scope"], claim["verdict"], claim["what"]
        if len(claim) != 4 or not isinstance(what, str):
            raise tampered(file, "a claim has not the fields that it should have")
        if verdict != "proved":
            _refuse_claim(file, code, what, verdict)
    return [(claim["code"], claim["scope"]) for claim in c["claims"]]


def _refuse_claim(file: str, code: str, what: str, verdict: str) -> None:
    if verdict == "unknown":
        raise unknown(file, f"the solver gave up on {code}: {what}")
    if verdict not in ("refuted", "vacuous"):
        raise tampered(file, f"a claim has the verdict {verdict!r:.40}")
    raise refuted("V902" if verdict == "vacuous" else code, file, f"a claim of it is {verdict}: {what}")
