"""What a user is told: one code, one place, one reason, one thing to do; and how bytes are spelt in all of it.

Every problem that a user can cause is a `TidecError` around a `Diagnostic`; `assert` is for what only we can cause.
"""
from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Level(Enum):
    """How serious a diagnostic is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Exit(Enum):
    """Exit codes of the command line (DESIGN section 8)."""

    OK = 0
    REFUTED = 1
    USAGE = 2
    UNKNOWN = 3
    STOCK = 4
    INTEGRITY = 5
    ENVIRONMENT = 6


@dataclass(frozen=True, slots=True)
class Spot:
    """A line of a schedule or of an input file; `via` are the lines that called the helper it stands in, outermost first."""

    file: str
    line: int
    text: str = ""
    via: tuple[Spot, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Code:
    """One rule: its name, the exit code of a command that stops at it, and its page (what `tidec explain CODE` prints)."""

    name: str
    exit: Exit
    page: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message: `level[CODE name]: sentence`, then places, reason, example, help and what to read."""

    code: str
    sentence: str
    spots: tuple[Spot, ...] = ()
    reason: str = ""
    example: tuple[str, ...] = ()
    help: str = ""
    see: str = ""
    level: Level = Level.ERROR

    def __str__(self) -> str:
        lines = [f"{self.level.value}[{self.code} {CODES[self.code].name}]: {self.sentence}"]
        for i, spot in enumerate(self.spots):
            lines.append(f"  {'-->' if i == 0 else 'and'} {spot}" + (f"   {spot.text}" if spot.text else ""))
            lines += [f"      called at {v}" + (f"   {v.text}" if v.text else "") for v in spot.via]
        if self.reason:
            lines.append(f"  reason: {self.reason}")
        for i, line in enumerate(self.example):
            lines.append(f"  example, the smallest: {line}" if i == 0 else f"      {line}")
        if self.help:
            lines.append(f"  help: {self.help}")
        if self.see:
            lines.append(f"  see: {self.see}")
        return "\n".join(lines)


class TidecWarning(UserWarning):
    """Something about plans that are made all the same, with its diagnostic: what a command would print beside its output."""

    def __init__(self, diagnostic: Diagnostic):
        assert diagnostic.level is Level.WARNING and diagnostic.code in CODES
        self.diagnostic = diagnostic
        super().__init__(str(diagnostic))


class TidecError(Exception):
    """A problem that a user can cause, with its diagnostics; the first one decides the exit code."""

    def __init__(self, *diagnostics: Diagnostic):
        assert diagnostics and all(d.code in CODES for d in diagnostics)
        self.diagnostics = diagnostics
        super().__init__("\n".join(map(str, diagnostics)))

    @property
    def exit(self) -> Exit:
        return CODES[self.diagnostics[0].code].exit


def bytes_text(count: int) -> str:
    """A byte count to three digits with a binary unit: 1.50 KiB, 13.7 GiB; below 1 KiB exactly, as in 0 B."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, 0
    while value >= 1023.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {_UNITS[unit]}"


CODES: dict[str, Code] = {
    # inputs
    "P001": Code("usage", Exit.USAGE, "The command line cannot be read as asked: an option, a value or a file is missing or out of range."),
    "P002": Code("malformed", Exit.USAGE, "An input file is not JSON, or a value in it has the wrong type or is out of range."),
    "P003": Code("unknown-key", Exit.USAGE, "An input file holds a key that its schema does not have. Unknown keys are errors, so that a misspelt one is never ignored."),
    "P004": Code("bad-topology", Exit.USAGE, "The topology cannot be planned for: ranks that the lanes do not divide, more than 72 lanes or 2^31 - 1 ranks, or rails that differ between nodes."),
    "P005": Code("bad-shape", Exit.USAGE, "A parameter's shape cannot be sharded on dimension 0: it is a scalar, has a negative extent, is not contiguous, or is larger than 64-bit offsets reach."),
    "P006": Code("bad-knob", Exit.USAGE, "A knob has no such name or no such value."),
    "P007": Code("bad-schedule", Exit.USAGE, "A schedule breaks a rule of the language: an unordered set without its join, an index that is not linear, a use that no loop names."),
    "P012": Code("stock-collective", Exit.STOCK, "A group is valid, but tidec has no plan for it, so it keeps FSDP2's own collective. `tidec why-not` lists all of them; --stock-ok makes the exit code 0."),
    "P013": Code("premise", Exit.REFUTED, "The claims of this wave width hold only for some node counts, and this topology is not one of them."),
    "P014": Code("unknown-variable", Exit.USAGE, "An environment variable begins with TIDEC_ and means nothing to tidec. A warning: no variable changes results."),
    "P015": Code("padding", Exit.OK, "More than half of a landing is padding: most ranks own no row of the large parameters. A warning, never an error."),
    "P102": Code("out-of-range", Exit.USAGE, "A rank, node, lane, parameter or block index lies outside the plan."),
    # what is proved
    "V101": Code("wrap-range", Exit.REFUTED, "wrap(e, M) needs 0 <= e < 2M and back(e, M) needs -M <= e < M; outside they are not the residue."),
    "V102": Code("in-bounds", Exit.REFUTED, "An access lies outside the buffer that the schedule declares."),
    "V103": Code("reach", Exit.REFUTED, "A put must stay on its rail and leave its node; a copy, sum or landing must stay inside its node."),
    "V104": Code("exclusive", Exit.REFUTED, "Two writers reach one block in one use of it: one of them is lost."),
    "V105": Code("contents", Exit.REFUTED, "A block is moved to a place that should hold another one."),
    "V106": Code("covers", Exit.REFUTED, "A contributor does not land, or lands twice."),
    "V107": Code("stale", Exit.REFUTED, "A block is read that this use did not write: it holds what an earlier use left there."),
    "V201": Code("race", Exit.REFUTED, "Two conflicting accesses of one block are not ordered by streams and waits."),
    "V202": Code("ambiguous-wait", Exit.REFUTED, "A counter can reach a wait's threshold without the event that the wait names."),
    "V203": Code("starved-wait", Exit.REFUTED, "A wait names a promise that no op keeps, or that another rank keeps for somebody else."),
    "V204": Code("wait-cycle", Exit.REFUTED, "A wait stands before its producer in the common order of issue: ranks can wait for each other in a circle."),
    "V205": Code("early-release", Exit.REFUTED, "A block is overwritten or freed while a put may still read it."),
    "V206": Code("redundant-wait", Exit.OK, "A wait that other waits already imply. A note, never an error."),
    "V301": Code("wrong-value", Exit.REFUTED, "An input or output is not what the collective's contract says: another rank's, another block's, or not all of it."),
    "V302": Code("loose-grouping", Exit.REFUTED, "The order in which a sum adds its terms is not fixed by the plan."),
    "V401": Code("over-budget", Exit.REFUTED, "The arena of a model, all its landings and stages together, is larger than the budget that was given, or than 80 GiB where none was."),
    "V402": Code("layout", Exit.REFUTED, "Two rows of a buffer overlap, or leave a gap, or pass its end."),
    "V501": Code("echo-mismatch", Exit.REFUTED, "The compiled program issues other ops than the plan that was proved."),
    "V901": Code("unknown", Exit.UNKNOWN, "The solver gave up on a claim within its budget. Unknown is never accepted."),
    "V902": Code("vacuous", Exit.REFUTED, "The hypotheses of a claim contradict each other, so that it says nothing."),
    # runs
    "R001": Code("stopped", Exit.REFUTED, "A run stops: a wait was not over within its deadline, a counter was raised out of turn, or the process of a rank has ended or is silent. Every other rank stops too."),
    "R002": Code("unequal-bits", Exit.REFUTED, "A target gives other bits than the reference: the example is the first rank, parameter, row and column that differ."),
    # under FSDP2
    "F001": Code("no-model", Exit.USAGE, "No model under fully_shard is there to capture: a script failed, ended or ran too long before one ran, or the model has no such module."),
    "F002": Code("other-dtype", Exit.USAGE, "A parameter has a type that group files, and plans, have no name for: they know bf16, fp16, fp32 and fp64."),
    "F010": Code("ranks-disagree", Exit.REFUTED, "Ranks of one process group bring different models, plans or arguments to tidec.install. Nothing is installed on any rank."),
    "F011": Code("no-shared-memory", Exit.ENVIRONMENT, "The ranks of a process group cannot map each other's memory: other users, other containers, or a limit."),
    "F012": Code("diverged", Exit.REFUTED, "Ranks did different things in the same collective: other parameters had gradients, one rank ran a plan where another stayed stock, or one came to tidec.uninstall where another went on."),
    "F013": Code("foreign-hook", Exit.USAGE, "Somebody else replaced a function of FSDP2 after tidec.install, so tidec.uninstall cannot put the original back."),
    "F014": Code("installed", Exit.USAGE, "tidec.install was called for a model that is installed already."),
    "F015": Code("not-installed", Exit.USAGE, "tidec.uninstall or tidec.report was called for a model that is not installed."),
    "F016": Code("absent", Exit.REFUTED, "A rank of the process group did not come to tidec.install by the deadline, as where only rank 0 calls it. Nothing is installed on any rank."),
    # what keeps FSDP2's own collective: of a group, of a call, of a job
    "F101": Code("nothing-to-gather", Exit.STOCK, "A group is replicated (DDP), or sharded over one rank: FSDP2 calls no collective of it that a plan could run."),
    "F102": Code("dtensor-parameter", Exit.STOCK, "A parameter is a DTensor before fully_shard shards it, by tensor or expert parallelism. Its group keeps FSDP2's collectives."),
    "F103": Code("all-gather-extension", Exit.STOCK, "A parameter's tensor class has steps of its own before and after the all-gather (fsdp_pre_all_gather), as fp8 has: what is gathered is not the shard."),
    "F104": Code("cpu-offload", Exit.STOCK, "Shards of a group lie on the CPU while its parameters are used elsewhere (CPUOffloadPolicy)."),
    "F105": Code("post-forward-mesh", Exit.STOCK, "A group is resharded to fewer ranks after forward (an integer reshard_after_forward), so its all-gather in backward is another collective."),
    "F106": Code("own-all-gather", Exit.STOCK, "The all-gather of a group goes through an object that the user gave FSDP2 (set_custom_all_gather, symmetric memory, memory of the process group), or, from torch 2.15 on, through a function of theirs that copies its result out. tidec leaves it alone."),
    "F107": Code("own-reduce-scatter", Exit.STOCK, "The reduce-scatter of a group goes through an object that the user gave FSDP2 (set_custom_reduce_scatter and the like), or, from torch 2.15 on, through a function of theirs that packs gradients. tidec leaves it alone."),
    "F108": Code("other-device", Exit.STOCK, "The parameters of a group lie on another kind of device than the target moves."),
    "F109": Code("other-gather-type", Exit.STOCK, "A parameter is gathered in another type than the mixed-precision policy of its module says, so that its group has no one type."),
    "F110": Code("odd-object", Exit.STOCK, "An object of FSDP2 lacks an attribute that tidec reads, or has another kind of value there: another version, or somebody's replacement. Its group keeps FSDP2's collectives."),
    "F201": Code("no-landing", Exit.STOCK, "All landings of a ring are held by other groups when one more group is gathered: more groups are unsharded at once than landings stand ready. This call is stock."),
    "F202": Code("gradient-type", Exit.STOCK, "Gradients of a call are in another type than the plan reads, as they are after backward passes without a reduction (fp32) where the bundle that was given has no plan for those. This call is stock."),
    "F203": Code("reduce-type", Exit.STOCK, "Gradients of a call are summed in another type than fp32. This call is stock."),
    "F204": Code("changed-parameter", Exit.STOCK, "A parameter has another shape, type or flag than at install, or is new. The call is stock."),
    "F205": Code("divide-factor", Exit.STOCK, "The divide factor of a call is zero, negative, infinite or no number, so no plan can scale with its inverse. This call is stock."),
    "F206": Code("other-process-group", Exit.STOCK, "A call is for another process group than the plan. This call is stock."),
    "F207": Code("compiled-autograd", Exit.STOCK, "Backward passes are traced by compiled autograd, and a plan's collectives cannot be. This call is stock."),
    "F301": Code("disabled", Exit.STOCK, "TIDEC_DISABLE=1: tidec.install changes nothing."),
    "F302": Code("no-plan", Exit.STOCK, "A group has no plan: none of the bundle that was given fits it, or none could be made here."),
    "F303": Code("several-machines", Exit.STOCK, "The ranks that shard a group are on several machines, and the target reaches those of one."),
    "F304": Code("other-topology", Exit.STOCK, "The plans that were given are for another number of ranks than shards the group."),
    "F305": Code("torch-version", Exit.STOCK, "A function of FSDP2 that tidec stands in for, or calls, has other arguments or results than any version that tidec knows. Nothing is installed."),
    "F306": Code("rank-cannot-run", Exit.STOCK, "One rank cannot open, build or load what runs the plans, so no rank does."),
    "F307": Code("untested-torch", Exit.OK, "FSDP2's functions are as tidec knows them, and this version of torch was not looked at. A warning."),
    "F308": Code("mute-group", Exit.STOCK, "The backend of a process group lacks what ranks need to agree with each other: an all-gather of objects. Its groups keep FSDP2's collectives."),
    "F309": Code("sharded-later", Exit.STOCK, "A group came under fully_shard after tidec.install, which saw the model without it. Its collectives are FSDP2's until the model is uninstalled and installed again."),
    # bundles, caches, environment
    "C001": Code("tampered", Exit.INTEGRITY, "A file of a bundle is not the one that was proved."),
    "C002": Code("output-exists", Exit.USAGE, "The output folder exists and is not empty; --force replaces a bundle."),
    "C003": Code("untrusted-cache", Exit.INTEGRITY, "The cache folder is a link, belongs to another user, or can be written by others: what lies in it could be anybody's."),
    "C004": Code("damaged-entry", Exit.INTEGRITY, "A kept proof is not what was written there. It is never trusted: the proof is found again. A note. (A kept bundle that was changed is an error: C001.)"),
    "C005": Code("damaged-archive", Exit.INTEGRITY, "An archive of bundles is not what `tidec cache export` wrote, or holds what it never writes: links, paths out of it, names that differ in case at most. Nothing of it is imported."),
    "C006": Code("unusable-layer", Exit.ENVIRONMENT, "A folder that TIDEC_CACHE_PATH names is missing or cannot be read, and is left out. A warning: the own cache is enough."),
    "C007": Code("no-such-entry", Exit.USAGE, "No bundle of the cache or of its layers has this digest, or more than one begins with these digits."),
    "E001": Code("missing-extra", Exit.ENVIRONMENT, "A Python package that this command needs is not installed."),
    "E002": Code("missing-tool", Exit.ENVIRONMENT, "A compiler that this command needs was not found, or does not work."),
    "E003": Code("unwritable", Exit.ENVIRONMENT, "A folder cannot be made or written: it is read-only, full, or no folder."),
    "E004": Code("not-built", Exit.ENVIRONMENT, "What is asked for is part of the design, and this version cannot do it."),
    "E005": Code("noexec", Exit.ENVIRONMENT, "The folder lies on a file system that runs no programs (mounted noexec), so the libraries of a bundle could not be loaded from there."),
    "E006": Code("no-device", Exit.ENVIRONMENT, "This machine has no GPU that the target runs on, or its driver does not answer."),
    "E007": Code("other-environment", Exit.ENVIRONMENT, "An environment variable has another value than the plans of a bundle need. A warning: it stays as it is, and they may run slower, or stall on a full network."),
    "E008": Code("no-memory", Exit.ENVIRONMENT, "This machine has too little memory left for a job, or a limit keeps the job from it: the shared memory of its ranks cannot be made, or its layout cannot be reckoned."),
}
