"""Seeded mutants of bundles: none is accepted that means something else. `pytest -m slow` runs ten thousand, a few hundred run by default.

A mutant that is accepted must be one of SILENT, whose fields say nothing that a plan does, or must issue the same steps on every rank, or must be shown
equivalent by interpretation. What the checker cannot see by nature is the golden text, with the reason.
"""
from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidec.emit.bundle import Bundle, read_bundle
from tidec.emit.manifest import canonical
from tidec.emit.render import render
from tidec.errors import Exit, TidecError
from tidec.interpret.machine import simulate
from tidec.plan.listing import lines
from tidec.verify.certificate import Proved
from tidec.verify.graph import check
from tidec.verify.recheck import recheck

TOPOLOGIES = ("2x2", "3x2", "5x4", "3x1")
CALLS = 4

# Fields that may change unseen, as file kind and path without numbers, and why that is no harm, or who sees it.
SILENT = {
    r"manifest tidec_version": "who compiled it; no plan depends on it",
    r"manifest echo\b.*": "what was echoed is taken at its word: the build compares it",
    r"manifest groups\.(all_gather|reduce_scatter)\.stock\.(reason|parameter)": "words for people; that a group must keep its stock collective is derived again",
    r"cert claims\.what": "the words of a claim; that there are claims of every code is checked",
    r"cert claims(\.(code|scope))?": "one claim of several with its code; that the program is right is what its theorem or its graph says",
    r"cert prover\.z3": "who proved it; the program is a theorem, or its order was unfolded",
    r"ask topology\.rails": "numbers of rails; that a put stays on its own is proved without them",
    r"ask topology\.multicast": "only chooses the lowering, which is compared",
    r"ask groups\.knobs\.(ctas_sum|ctas_land|cast|chunk_bytes|chunks|W|k|n_out|n_part|n_stg|stripes)": "of a knob that no plan of the group depends on",
    r"plan program\..*\.?spot": "lines of the schedule's text, for messages",
    r"source": "emitted text: tidec verify --prove emits it again and compares every byte",
}


@dataclass(frozen=True)
class Mutant:
    """What was done to which file. kind: plan, cert, ask, manifest or source; path: of the field, numbers left out."""

    file: str
    kind: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.file} {self.path}: {self.what}"

    @property
    def field(self) -> str:
        return f"{self.kind} {self.path}".strip()


# ---- bytes and files, digests as they were


def spoil_bytes(folder: Path, draw: random.Random) -> Mutant:
    """Flip, cut, swap, remove, add: what an accident does. The digests stay."""
    names = sorted(p.name for p in folder.iterdir())
    name = draw.choice(names)
    file, data = folder / name, (folder / name).read_bytes()
    how = draw.choice(("flip", "cut", "swap", "remove", "add", "grow"))
    if how == "flip":
        at = draw.randrange(len(data))
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
    elif how == "cut":
        file.write_bytes(data[: draw.randrange(len(data))])
    elif how == "grow":
        file.write_bytes(data + draw.choice((b"\n", b" ", b"\0", data)))
    elif how == "swap":
        other = draw.choice([n for n in names if n != name and (folder / n).read_bytes() != data])
        file.write_bytes((folder / other).read_bytes())
        (folder / other).write_bytes(data)
    elif how == "remove":
        file.unlink()
    else:
        (folder / draw.choice(("x.hpp", "block.ag.plan.json.bak", "x.so", "z.ag.plan.json"))).write_bytes(data)
    return Mutant(name, "bytes", "", how)


# ---- fields, with every digest made anew


def places(value: object, path: tuple = ()) -> list[tuple]:
    """The paths of everything in a JSON value."""
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, x in children:
        found += places(x, (*path, key))
    return found


def edit(root: object, draw: random.Random, among: list[tuple]) -> tuple[tuple, str]:
    """Change one place; the path and what was done."""
    while True:
        path = draw.choice(among)
        parent = root
        for key in path[:-1]:
            parent = parent[key]
        key, old = path[-1], parent[path[-1]]
        new, what = changed(root, parent, key, old, draw, among)
        if what:
            if new is not Ellipsis:
                parent[key] = new
            return path, what


def changed(root: object, parent: object, key: object, old: object, draw: random.Random, among: list[tuple]) -> tuple[object, str]:
    """The new value and what it is; Ellipsis = the parent was changed in place; "" = nothing was found."""
    how = draw.random()
    if how < 0.12:
        if isinstance(parent, dict):
            del parent[key]
        else:
            parent.pop(key)
        return Ellipsis, "removed"
    if how < 0.2 and isinstance(parent, list) and len(parent) > 1:
        other = draw.randrange(len(parent))
        if parent[other] != parent[key]:
            parent[other], parent[key] = parent[key], parent[other]
            return Ellipsis, f"swapped with {other}"
        return old, ""
    if how < 0.26 and isinstance(parent, list):
        parent.insert(key, json.loads(json.dumps(old)))
        return Ellipsis, "doubled"
    if isinstance(old, bool):
        return not old, "negated"
    if isinstance(old, int):
        return draw.choice([x for x in (old + 1, old - 1, 2 * old, 0, -old, old + 2, old + 512) if x != old]), "another number"
    if isinstance(old, str) and how < 0.4:
        return draw.choice([x for x in (old + "x", "", old[::-1], old[:-1] + "0") if x != old]), "other letters"
    twin = root
    for step in draw.choice(among):
        twin = twin[step] if not isinstance(twin, (int, str, bool)) else twin
    if twin != old and (type(twin) is type(old) or draw.random() < 0.02):
        return json.loads(json.dumps(twin)), f"like {json.dumps(twin)[:40]}"
    return old, ""


def reseal(folder: Path) -> None:
    """All digests anew, by somebody who knows every place that has one."""
    old = json.loads((folder / "manifest.json").read_text())
    names = list(old["files"])
    swap: dict[str, str] = {}
    for p in old["plans"]:
        text = (folder / f"{p['stem']}.plan.json").read_text()
        plan = json.loads(text)
        swap[p["digest"]] = hashlib.sha256(text.encode()).hexdigest()
        swap[p["program_digest"]] = hashlib.sha256(canonical(plan.get("program")).encode()).hexdigest() if isinstance(plan, dict) else ""
    for name in names:
        text = (folder / name).read_text()
        for before, after in swap.items():
            text = text.replace(before, after)
        (folder / name).write_text(text)
    text = (folder / "manifest.json").read_text()
    for before, after in swap.items():
        text = text.replace(before, after)
    manifest = json.loads(text)
    manifest["inputs_digest"] = hashlib.sha256((folder / "ask.json").read_bytes()).hexdigest()
    for name in names:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    seal(folder, canonical(manifest))


def seal(folder: Path, manifest: str) -> None:
    (folder / "manifest.json").write_text(manifest)
    (folder / "manifest.sha256").write_text(f"{hashlib.sha256(manifest.encode()).hexdigest()}  manifest.json\n")


def spoil_field(folder: Path, draw: random.Random) -> Mutant:
    """Edit a field of a JSON file, or a letter of a source, and make every digest anew."""
    names = sorted(p.name for p in folder.iterdir() if p.name != "manifest.sha256")
    kind = draw.choices(("plan", "cert", "ask", "manifest", "source"), (60, 12, 10, 14, 4))[0]
    ends = {"plan": ".plan.json", "cert": ".cert.json", "ask": "ask.json", "manifest": "manifest.json", "source": "pp"}
    name = draw.choice([n for n in names if n.endswith(ends[kind])])
    text = (folder / name).read_text()
    if kind == "source":
        at = draw.choice([i for i, c in enumerate(text) if c.isalnum()])
        (folder / name).write_text(text[:at] + draw.choice([c for c in "019abz" if c != text[at]]) + text[at + 1 :])
        reseal(folder)
        return Mutant(name, kind, "", f"letter {at}")
    root = json.loads(text)
    among = places(root)
    if kind == "plan":          # half of the edits beside the program, which is most of the text
        among = [p for p in among if (p[0] == "program") is (draw.random() < 0.5)] or among
    path, what = edit(root, draw, among)
    (folder / name).write_text(canonical(root))
    if kind == "manifest":
        seal(folder, canonical(root))
    else:
        reseal(folder)
    return Mutant(name, kind, ".".join(k for k in path if isinstance(k, str)), what)


# ---- what a bundle means


def meaning(bundle: Bundle) -> dict[str, object]:
    """Every line of every rank of every plan, in a few calls, and which group has which."""
    steps = {p.digest: [list(lines(p, rank, call)) for rank in range(p.ranks) for call in range(CALLS)] for p in bundle.plans}
    names = dict(zip(bundle.stems, bundle.plans))

    def of(outcome: object) -> object:
        return (steps[names[outcome].digest], names[outcome].arena.bytes, names[outcome].lowering) if isinstance(outcome, str) else "stock"

    return {f"{i} {g.name} {g.repeat}": [of(g.all_gather), of(g.reduce_scatter)] for i, g in enumerate(bundle.groups)}


def carries_out(bundle: Bundle) -> bool:
    """Every plan of it is ordered and gives what its collective asks for, in the eyes of two checkers that share nothing with this one."""
    return all(
        check(p.program, p.nodes).is_clean and all(simulate(p.program, p.nodes, seed=seed).is_ok for seed in range(7)) for p in bundle.plans)


class Judge:
    """Holds mutants against the bundle that they were made from."""

    def __init__(self, bundles: dict[str, Path]):
        self.files = {topo: {file.name: file.read_bytes() for file in path.iterdir()} for topo, path in bundles.items()}
        self.meanings = {topo: meaning(read_bundle(path)) for topo, path in bundles.items()}
        self.accepted: list[Mutant] = []
        self.exits: dict[str, int] = {}

    def look(self, seed: int, spoil: Callable[[Path, random.Random], Mutant], tmp: Path) -> None:
        draw = random.Random(seed)
        topo = draw.choice(TOPOLOGIES)
        folder = self.fresh(topo, tmp / topo)
        mutant = spoil(folder, draw)
        try:
            recheck(folder)
        except TidecError as error:
            self.exits[error.exit.name] = self.exits.get(error.exit.name, 0) + 1
            assert error.exit in (Exit.INTEGRITY, Exit.REFUTED) or mutant.kind == "bytes" and error.exit is Exit.USAGE, f"seed {seed}, {topo}: {mutant}: {error}"
            if mutant.kind == "bytes" and error.exit is Exit.INTEGRITY and mutant.what in ("flip", "cut", "grow", "remove"):
                assert mutant.file in error.diagnostics[0].sentence or mutant.file == "manifest.sha256", f"seed {seed}: {mutant}: {error}"
            return
        assert mutant.kind != "bytes", f"seed {seed}, {topo}: accepted {mutant}"
        self.accepted.append(mutant)
        assert self.is_equivalent(topo, folder, mutant), f"seed {seed}, {topo}: accepted {mutant}"

    def fresh(self, topo: str, folder: Path) -> Path:
        """The bundle as it was made, where the mutant before left its traces."""
        folder.mkdir(exist_ok=True)
        original = self.files[topo]
        for file in folder.iterdir():
            if file.name not in original:
                file.unlink()
        for name, data in original.items():
            if not (folder / name).is_file() or (folder / name).read_bytes() != data:
                (folder / name).write_bytes(data)
        return folder

    def is_equivalent(self, topo: str, folder: Path, mutant: Mutant) -> bool:
        if mutant.kind == "source":
            return not emits_the_same(folder)        # so that --prove sees it
        bundle = read_bundle(folder)
        if any(re.fullmatch(field, mutant.field) for field in SILENT):
            return meaning(bundle) == self.meanings[topo]
        return mutant.kind == "plan" and (meaning(bundle) == self.meanings[topo] or carries_out(bundle))


def emits_the_same(folder: Path) -> bool:
    """What `tidec verify --prove` compares."""
    bundle = read_bundle(folder)
    emitted = render([Proved(p, c) for p, c in zip(bundle.plans, bundle.certificates)])
    return {s.name: s.text for s in emitted} == {s.name: s.text for s in bundle.sources}


@pytest.fixture(scope="session")
def originals(made) -> dict[str, Path]:
    return {topo: made(topo) for topo in TOPOLOGIES}


def run(originals, tmp_path: Path, seeds: range) -> Judge:
    judge = Judge(originals)
    for seed in seeds:
        judge.look(seed, spoil_bytes if seed % 4 == 0 else spoil_field, tmp_path)
    return judge


def test_an_edit_with_new_digests_is_read_as_a_bundle(originals, spoilt):
    """The forger of these tests knows every digest: an edit of nothing is accepted."""
    folder = spoilt("3x2")
    reseal(folder)
    assert recheck(folder).verdict == "proved" and meaning(read_bundle(folder)) == meaning(read_bundle(originals["3x2"]))


def test_no_mutant_of_two_hundred_is_accepted_that_differs(originals, tmp_path):
    judge = run(originals, tmp_path, range(200))
    assert judge.exits["INTEGRITY"] > 120 and judge.exits["REFUTED"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11_000, 1000))
def test_no_mutant_of_ten_thousand_is_accepted_that_differs(first, originals, tmp_path):
    judge = run(originals, tmp_path, range(first, first + 1000))
    assert judge.exits["INTEGRITY"] > 700 and 20 < len(judge.accepted) < 200


def test_what_the_checker_cannot_see_is_listed_with_the_reason(golden):
    rows = [f"{field}\n    {why}" for field, why in SILENT.items()]
    head = "Fields that somebody who makes every digest anew can change unseen, and why that does no harm or who sees it.\nAny other edit that is accepted leaves every step of every rank as it was, or is shown equivalent by interpretation."
    golden("verify/unseen.txt", "\n".join([head, "", *rows, ""]))
