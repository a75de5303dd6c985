"""`tidec cache`: what is kept, whether it is still what was written, how it travels, and what leaves it."""
from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tidec.cache.clean import Cleaned, Kind, clean, contents
from tidec.cache.entry import digest_of
from tidec.cache.folder import check_closed
from tidec.cache.key import Cache
from tidec.cache.listing import Listed, chosen, listed, resolve
from tidec.cache.proofs import read_proof
from tidec.cache.ship import export, import_archive
from tidec.cache.store import reading
from tidec.commands.answer import Answer
from tidec.commands.tell import count_text, table
from tidec.errors import Diagnostic, Exit, TidecError, bytes_text
from tidec.inputs.document import given_path
from tidec.verify.recheck import recheck

_SHOWN = 12
_DAY_S = 86_400.0
_UNITS = ((_DAY_S, "day"), (3600.0, "hour"), (60.0, "minute"))


def run_ls(cache: Cache) -> Answer:
    """Every bundle of the cache and its layers, unchecked."""
    now, bundles = time.time(), listed(cache)
    proofs = [i for i in contents(cache.folder) if i.kind is Kind.PROOF]
    rows = [(b.digest[:_SHOWN], b.topology or "?", str(b.num_groups), str(b.num_plans), bytes_text(b.bytes), "yes" if b.is_built else "no",
             _ago(now - b.used), _where(b, cache)) for b in bundles]
    size = sum(i.bytes for i in proofs)
    parts = [table(("bundle", "topology", "groups", "plans", "size", "libraries", "last used", "in"), rows, right=(2, 3, 4)), ""] if rows else []
    parts.append(f"{count_text(len(bundles), 'bundle')}, {bytes_text(sum(b.bytes for b in bundles))}; {count_text(len(proofs), 'kept proof')}, {bytes_text(size)}")
    fields = {
        "action": "ls", "folder": str(cache.folder), "layers": list(map(str, cache.layers)),
        "bundles": [{"digest": b.digest, "path": str(b.path), "in": str(b.folder), "topology": b.topology, "groups": b.num_groups, "plans": b.num_plans, "bytes": b.bytes,
                     "has_libraries": b.is_built, "is_spare": b.is_spare, "unused_seconds": round(now - b.used)} for b in bundles],
        "proofs": {"count": len(proofs), "bytes": size},
    }
    return Answer(Exit.OK, fields, "\n".join((*parts, str(cache.folder))))


def run_path(cache: Cache, digits: str | None) -> Answer:
    """The own folder, or with `digits` the folder of the bundle whose digest begins so."""
    path = cache.folder if digits is None else resolve(cache, digits)
    return Answer(Exit.OK, {"action": "path", "path": str(path), "folder": str(cache.folder), "layers": list(map(str, cache.layers))}, str(path))


def run_verify(cache: Cache, digits: Sequence[str]) -> Answer:
    """Re-check bundles, and without digits the kept proofs too: exit 5 where one is not what was written or does not re-check, 3 where one cannot be decided."""
    start = time.perf_counter()
    rows, entries, problems = [], [], []
    for path in chosen(cache, digits, with_layers=True):
        verdict, order, found = _rechecked(cache, path)
        problems += found
        rows.append((digest_of(path)[:_SHOWN], verdict, order, _layer(path.parent, cache)))
        entries.append({"digest": digest_of(path), "path": str(path), "verdict": verdict, "order_by": order, **({"code": found[0].code, "problem": found[0].sentence} if found else {})})
    num_proofs = 0
    for item in contents(cache.folder) if not digits else ():
        if item.kind is Kind.PROOF:
            num_proofs += 1
            problems += _proof_problem(item.path)
    seconds = time.perf_counter() - start
    is_damaged, is_open = any(p.code != "V901" for p in problems), bool(problems)
    verdict = "damaged" if is_damaged else "unknown" if is_open else "ok"
    parts = [table(("bundle", "verdict", "order by", "in"), rows), ""] if rows else []
    parts.append(f"{count_text(len(rows), 'bundle')} and {count_text(num_proofs, 'kept proof')} checked: {verdict} ({seconds:.2f} s)")
    fields = {"action": "verify", "verdict": verdict, "bundles": entries, "proofs": num_proofs,
              "problems": [{"code": p.code, "sentence": p.sentence, "reason": p.reason} for p in problems], "seconds": round(seconds, 3)}
    return Answer(Exit.INTEGRITY if is_damaged else Exit.UNKNOWN if is_open else Exit.OK, fields, "\n".join(parts), tuple(map(str, problems)))


def run_export(cache: Cache, digits: Sequence[str], *, out: str, has_lib: bool, is_forced: bool) -> Answer:
    """Write bundles into one archive; without digits all of the own folder."""
    file = given_path(out, what="-o")
    paths = chosen(cache, digits, with_layers=False)
    if not paths:
        raise TidecError(Diagnostic("C007", f"{cache.folder} holds no bundle to export", help="tidec compile makes one"))
    shipped = export(paths, file, has_lib=has_lib, is_forced=is_forced)
    fields = {"action": "export", "file": str(shipped.file), "bytes": shipped.bytes, "sha256": shipped.sha256, "bundles": list(shipped.digests), "has_libraries": has_lib}
    text = f"{count_text(len(shipped.digests), 'bundle')}, {bytes_text(shipped.bytes)}, sha256 {shipped.sha256}\n{shipped.file}"
    return Answer(Exit.OK, fields, text)


def run_import(cache: Cache, file: str) -> Answer:
    """Take the bundles of an archive in, after all of it was checked."""
    found = import_archive(cache, given_path(file, what="the archive"), recheck=recheck)
    new = [i for i in found if i.is_new]
    rows = [(i.digest[:_SHOWN], bytes_text(i.bytes), "new" if i.is_new else "there already") for i in found]
    text = table(("bundle", "size", "is"), rows, right=(1,)) + f"\n\n{len(new)} of {count_text(len(found), 'bundle')} new\n{cache.folder}"
    fields = {"action": "import", "folder": str(cache.folder), "new": len(new),
              "bundles": [{"digest": i.digest, "path": str(i.path), "bytes": i.bytes, "is_new": i.is_new} for i in found]}
    return Answer(Exit.OK, fields, text)


def run_gc(cache: Cache, *, max_gib: str | None, older_than: str | None, is_dry: bool) -> Answer:
    """Remove what was not used for long or is too much, and leftovers of builders that died; `None` = not given."""
    max_bytes = None if max_gib is None else int(_number(max_gib, "--max-gib") * 2**30)
    older_than_s = None if older_than is None else _number(older_than, "--older-than") * _DAY_S
    cleaned = clean(cache.folder, max_bytes=max_bytes, older_than_s=older_than_s, now=time.time(), is_dry=is_dry)
    fields = {"action": "gc", "is_dry_run": is_dry, "freed_bytes": cleaned.freed_bytes, "kept_bytes": cleaned.kept_bytes,
              "removed": [{"kind": i.kind.value, "path": str(i.path), "bytes": i.bytes} for i in cleaned.removed], "in_use": [str(i.path) for i in cleaned.in_use]}
    return Answer(Exit.OK, fields, _cleaned_text(cleaned, is_dry))


def _cleaned_text(cleaned: Cleaned, is_dry: bool) -> str:
    rows = [(i.kind.value, i.path.name[:_SHOWN], bytes_text(i.bytes)) for i in cleaned.removed]
    rows += [(i.kind.value, i.path.name[:_SHOWN], "in use") for i in cleaned.in_use]
    parts = [table(("kind", "name", "size"), rows, right=(2,)), ""] if rows else []
    parts.append(f"{'would free' if is_dry else 'freed'} {bytes_text(cleaned.freed_bytes)}; {bytes_text(cleaned.kept_bytes)} {'would stay' if is_dry else 'stay'}")
    return "\n".join(parts)


def _rechecked(cache: Cache, path: Path) -> tuple[str, str, tuple[Diagnostic, ...]]:
    """The verdict on a bundle, by what its order was accepted, and what is wrong with it."""
    try:
        if path.parent != cache.folder:
            check_closed(path)
        with reading(path) as entry:
            if entry is None:
                return "removed", "", ()        # by another, meanwhile
            return "ok", recheck(path).order_by.value, ()
    except TidecError as error:
        return "unknown" if error.diagnostics[0].code == "V901" else "damaged", "", error.diagnostics


def _proof_problem(file: Path) -> tuple[Diagnostic, ...]:
    try:
        read_proof(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        return (Diagnostic("C004", f"the kept proof {file} is not what was written there", reason=getattr(error, "strerror", "") or str(error),
                           help=f"rm {file}; it is never used, and found again when it is needed"),)
    return ()


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 2**40:
        raise TidecError(Diagnostic("P001", f'{option} takes a number that is not negative, not "{text}"', help="run tidec cache gc --help"))
    return value


def _ago(seconds: float) -> str:
    for unit, word in _UNITS:
        if seconds >= unit:
            return f"{count_text(int(seconds // unit), word)} ago"
    return "just now"


def _where(bundle: Listed, cache: Cache) -> str:
    return f"{_layer(bundle.folder, cache)}{' (spare)' if bundle.is_spare else ''}{' (damaged)' if not bundle.topology else ''}"


def _layer(folder: Path, cache: Cache) -> str:
    return "own folder" if folder == cache.folder else str(folder)
