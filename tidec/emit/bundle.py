"""A bundle: the folder with everything that was asked, planned, proved and emitted; written whole, read back with every digest checked.

    manifest.json manifest.sha256 ask.json <stem>.plan.json <stem>.cert.json <stem>.hpp tables.hpp module.cpp kernels.cu

A build adds lib/, build.json, build.sha256 and build.log, which the manifest does not list.
"""
from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidec import __version__
from tidec.emit.manifest import BUNDLE_SCHEMA, FILE_NAME, Ctas, EchoReport, Entry, ask_json, canonical, ctas_of, entries, manifest_json, requires, sha256
from tidec.emit.place import MANIFEST, place
from tidec.emit.render import Source, render
from tidec.emit.stems import stems
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Ask, Collective, StockCause
from tidec.plan.ir import Plan
from tidec.plan.stored import plan_from_json

if TYPE_CHECKING:
    from tidec.verify.certificate import Proved

SEAL, ASK = "manifest.sha256", "ask.json"
_BUILT = ("lib", "build.json", "build.sha256", "build.log")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on disk.

    digest: sha256 of manifest.json.  groups: one entry a group of the file, in order.
    plans, certificates, stems, ctas: one a distinct plan: the plan, its certificate's JSON, the name of its files without endings, and what its kernels run on.
    sources: the emitted files.  environment: names and values that a job must have set before its first communicator.
    """

    path: Path
    digest: str
    version: str
    inputs_digest: str
    groups: tuple[Entry, ...]
    plans: tuple[Plan, ...]
    certificates: tuple[str, ...]
    stems: tuple[str, ...]
    ctas: tuple[Ctas, ...]
    sources: tuple[Source, ...]
    environment: tuple[tuple[str, str], ...]


def write_bundle(
    proved: Sequence[Proved], *, asks: Sequence[Ask], out: Path, is_forced: bool = False, echo: EchoReport | None = None,
    sources: Sequence[Source] | None = None,
) -> Bundle:
    """Emit distinct proved plans and write the bundle.

    asks: one a group of the file, in its order; every collective that is not stock must have its plan among `proved`.
    out: absent or an empty folder; with is_forced a bundle may stand there, which is replaced.
    echo: what the compiled echo was compared on; `None` = it was not.
    sources: what `render` gave for these plans; `None` = it is rendered here.
    Guaranteed: equal arguments give equal bytes.  Raises C002, E001, E003, E004.
    """
    plans = tuple(p.plan for p in proved)
    names, sources = stems(plans), render(proved) if sources is None else tuple(sources)
    ask = ask_json(asks)
    files = {ASK: ask.encode()}
    for p, stem in zip(proved, names):
        files[f"{stem}.plan.json"] = p.plan.to_json().encode()
        files[f"{stem}.cert.json"] = p.certificate.encode()
    files |= {s.name: s.text.encode() for s in sources}
    groups = entries(asks, plans, names)
    inputs_digest = sha256(ask.encode())
    topology = asks[0].topology
    manifest = manifest_json(version=__version__, inputs_digest=inputs_digest, topology=topology, groups=groups, plans=plans, stems=names, files=files, echo=echo).encode()
    path = place({**files, MANIFEST: manifest, SEAL: _seal(manifest).encode()}, out, is_forced=is_forced)
    return Bundle(path, sha256(manifest), __version__, inputs_digest, groups, plans, tuple(p.certificate for p in proved), names, _ctas(ask, groups, names), sources,
                  _environment(requires(topology)))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and check every digest in it; nothing found in it is run.

    Raises P001 where there is no bundle; C001 naming the file that is not what the manifest says, or the manifest itself.
    """
    if not (path / MANIFEST).is_file():
        raise TidecError(Diagnostic("P001", f"{path} is no bundle", reason=f"it has no {MANIFEST}" if path.exists() else "there is no such folder",
                                    help="give the folder that tidec compile printed"))
    text = _bytes(path, MANIFEST)
    if _bytes(path, SEAL) != _seal(text).encode():
        raise _tampered(MANIFEST, f"its sha256 is not the one in {SEAL}")
    try:
        return _checked(path, text)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise _tampered(MANIFEST, f"it is not a manifest of this version: {problem}") from problem


def _checked(path: Path, text: bytes) -> Bundle:
    manifest = json.loads(text)
    if manifest["schema"] != BUNDLE_SCHEMA or canonical(manifest).encode() != text:
        raise _tampered(MANIFEST, f"its schema is not {BUNDLE_SCHEMA}, or it is not spelt canonically")
    files = {}
    for name, said in sorted(manifest["files"].items()):
        if not FILE_NAME.fullmatch(name):
            raise _tampered(MANIFEST, f"{json.dumps(name)} is no name of a file in it")
        data = _bytes(path, name)
        if (len(data), sha256(data)) != (said["size"], said["sha256"]):
            raise _tampered(name, "its size or sha256 is not the one in the manifest")
        files[name] = data
    for found in sorted(os.listdir(path)):
        if found not in (*files, MANIFEST, SEAL, *_BUILT):
            raise _tampered(found, "the manifest does not list it")
    if sha256(files[ASK]) != manifest["inputs_digest"]:
        raise _tampered(ASK, "its sha256 is not the manifest's inputs_digest")
    plans, names = [], tuple(p["stem"] for p in manifest["plans"])
    for said in manifest["plans"]:
        name = f"{said['stem']}.plan.json"
        try:
            plan = plan_from_json(files[name].decode())
        except TidecError as problem:
            raise _tampered(name, problem.diagnostics[0].reason or problem.diagnostics[0].sentence) from problem
        if plan.digest != said["digest"] or plan.collective.value != said["collective"]:
            raise _tampered(name, "it is not the plan that the manifest lists")
        plans.append(replace(plan, groups=tuple(said["groups"])))
    groups = tuple(Entry(g["name"], g["repeat"], *(_outcome(g[c.value], names) for c in Collective)) for g in manifest["groups"])
    certificates = tuple(files[f"{stem}.cert.json"].decode() for stem in names)
    sources = tuple(Source(name, files[name].decode()) for name in files if name.endswith((".hpp", ".cpp", ".cu")))
    return Bundle(path, sha256(text), manifest["tidec_version"], manifest["inputs_digest"], groups, tuple(plans), certificates, names,
                  _ctas(files[ASK].decode(), groups, names), sources, _environment(manifest["requires"]))


def _ctas(ask: str, groups: Sequence[Entry], names: Sequence[str]) -> tuple[Ctas, ...]:
    """What the ask says of kernels, one a plan. Raises C001."""
    try:
        return ctas_of(groups, [group["knobs"] for group in json.loads(ask)["groups"]], names)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as problem:
        raise _tampered(ASK, f"it does not say on how many CTAs the kernels of every plan run: {problem}") from problem


def _environment(needed: dict) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(name), str(value)) for name, value in needed["environment"].items()))


def _outcome(said: dict, names: Sequence[str]) -> str | StockCause:
    if "stock" in said:
        return StockCause(said["stock"]["reason"], said["stock"]["parameter"])
    if said["plan"] not in names:
        raise ValueError(f"there is no plan {said['plan']}")
    return said["plan"]


def _seal(manifest: bytes) -> str:
    """What `sha256sum -c` reads."""
    return f"{sha256(manifest)}  {MANIFEST}\n"


def _bytes(path: Path, name: str) -> bytes:
    try:
        if not stat.S_ISREG(os.lstat(path / name).st_mode):
            raise _tampered(name, "it is no file")
        return (path / name).read_bytes()
    except OSError as problem:
        raise _tampered(name, problem.strerror or str(problem)) from problem


def _tampered(name: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("C001", f"{name} is not what was proved", reason=reason, help="compile it again, or copy the bundle from where it was made"))
