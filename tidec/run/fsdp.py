"""tidec under FSDP2: which groups of a model run by plans, on which nodes, and how a model gets there and back.

N ranks of a process group. Ranks agree before anything of FSDP2 changes: on the groups, on the plans, and on that every rank could open them. Either
all of them hold a group, or none does.
"""
from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Collective, Mode
from tidec.inputs.asked import as_asked, as_kept, moved
from tidec.inputs.document import quoted
from tidec.inputs.signature import Group, Signature, canonical_text
from tidec.inputs.topology import MAX_LANES
from tidec.plan.ir import Plan
from tidec.run.agree import Peers
from tidec.run.capture import LiveGroup, groups_of, read_group
from tidec.run.collective import Node
from tidec.run.device import device_of
from tidec.run.fallback import Reason, because, line, of_collective, require, target_of, why_stock
from tidec.run.held import Freed, Held
from tidec.run.hooks import Hooks, is_held
from tidec.run.library import Opened, load_rt, may_build, open_bundle
from tidec.run.loan import Swap, load_swap, swap_by_torch
from tidec.run.meeting import meet
from tidec.run.report import GroupReport, Report, group_report
from tidec.run.team import Libraries, Team, leave_behind, libraries, memory_line, tell_lines
from tidec.run.watch import Watch

# What rank 0 makes where no plans are given: the groups, the topology as one writes it, the target; gives the bundle's folder.
Provide = Callable[[Signature, str, str], Path]
Module = nn.Module
# Where tidec_rt is kept.
RtFolder = Callable[[], Path]


@dataclass(frozen=True, slots=True)
class Asking:
    """How to install; as `install` has it."""

    plans: Path | None
    provide: Provide
    rt_folder: RtFolder
    target: str
    mode: Mode
    deadline_s: float
    is_poisoned: bool
    is_required: bool

    def text(self) -> str:
        """What must be equal on all ranks."""
        given = "a bundle is given" if self.plans is not None else "no bundle is given"
        return f"mode {self.mode.value}, target {self.target}, {given}{', landings poisoned' if self.is_poisoned else ''}"


@dataclass(frozen=True, slots=True)
class Installed:
    """A model that runs by plans. names: of all groups.  lines: one a group, as they are printed.  stays: what of each group stays stock, and why.

    gone: what happens where the model goes without being uninstalled; `None` = no group is held.  NOTE: nothing here keeps the model alive.
    """

    target: str
    mode: Mode
    teams: tuple[Team, ...]
    names: tuple[str, ...]
    lines: tuple[str, ...]
    stays: Mapping[str, tuple[Reason, ...]]
    gone: weakref.finalize | None = None


_UNKNOWN = "an error that tidec does not know"
HOOKS = Hooks()
INSTALLED: weakref.WeakKeyDictionary[nn.Module, Installed] = weakref.WeakKeyDictionary()


def install(
    root: nn.Module, *, plans: Path | None, provide: Provide, rt_folder: RtFolder, target: str, mode: Mode, is_required: bool, is_disabled: bool,
    deadline_s: float, is_poisoned: bool,
) -> Installed:
    """Have the groups of a model run by plans where they can. Every rank of the model's process groups calls it at the same point.

    plans: a bundle; `None` = rank 0 of each process group has `provide` make one.  is_required: a collective that stays stock is an error, and so
    is a call that would go stock later: it raises on every rank before anything of it is done.
    is_disabled: all of them do.  deadline_s: how long a rank waits for the others in a collective, and here.
    is_poisoned: landings hold NaN once they are let go.
    Guaranteed: on every rank the same groups are held, or none; where it raises, nothing is changed.
    Raises F001 where nothing is under fully_shard, F010 where ranks disagree, F011, F014 where the model is installed already, F016 where a rank does
    not come by the deadline; with is_required every reason by its code.
    """
    if root in INSTALLED:
        raise TidecError(Diagnostic("F014", f"this {type(root).__name__} is installed already", help="call tidec.uninstall(model) first"))
    lives = groups_of(root)
    if not lives:
        raise TidecError(Diagnostic("F001", f"nothing of {type(root).__name__} is under fully_shard", help="call fully_shard on its blocks and on the model first"))
    for live in lives:
        if is_held(live.group.fsdp_params if not live.odd else ()):
            raise TidecError(Diagnostic("F014", f"group {quoted(live.name)} is installed already, with another module", help="call tidec.uninstall of that module first"))
    whole = _whole_job(is_disabled)
    targets = {live.name: target_of(live, target) for live in lives}
    stays = {live.name: (whole,) if whole is not None else why_stock(live, target=targets[live.name]) for live in lives}
    asked = str(whole) if whole is not None else f"it runs{', and no group may stay stock' if is_required else ''}"
    for process_group, _, members in _by_process_group(lives, targets):
        peers = Peers(process_group, _replicas(members))
        for each in (process_group, *_replicas(members)):
            meet(each, "tidec.install", deadline_s)
        apart = peers.why_apart()
        if apart:
            stays.update({live.name: (*stays[live.name], because("F308", what=apart)) for live in members})
            continue
        peers.check_same("whether tidec runs", asked)
        peers.check_same("what stays stock", "\n".join(f"{quoted(live.name)}: {'; '.join(map(str, stays[live.name])) or 'nothing'}" for live in members))
    teams: list[Team] = []
    with ExitStack() as undo:
        for process_group, by, members in _by_process_group([live for live in lives if not all(of_collective(stays[live.name], c) for c in Collective)], targets):
            teams.append(Team(Peers(process_group, _replicas(members)), round(1000 * deadline_s), is_poisoned, device_of(members[0].group.device)))
            undo.callback(teams[-1].close)
            _gather_team(teams[-1], members, stays, Asking(plans, provide, rt_folder, by, mode, deadline_s, is_poisoned, is_required))
        if is_required:
            require(stays)
        undo.pop_all()
    gone = None
    if any(team.held for team in teams):
        HOOKS.take()
        gone = weakref.finalize(root, _let_go, tuple((team.nodes, team.watch) for team in teams if team.device.is_behind))
        gone.atexit = False
    for team in teams:
        for held in team.held:
            for i, p in enumerate(held.group.fsdp_params):
                p.free_unsharded_param = Freed(held, i, p.free_unsharded_param)
    held = {h.name: h for team in teams for h in team.held}
    lines = tuple(line(live.name, stays[live.name], plans=_digests(held.get(live.name)), target=targets[live.name]) for live in lives)
    made = Installed(target, mode, tuple(teams), tuple(live.name for live in lives), lines, stays, gone)
    INSTALLED[root] = made
    return made


def _let_go(left: Sequence[tuple[list[Node], Watch | None]]) -> None:
    """A model is gone without `uninstall`."""
    HOOKS.give_up()
    for nodes, watch in left:
        leave_behind(nodes, watch)


def _whole_job(is_disabled: bool) -> Reason | None:
    """Why no group at all runs by a plan."""
    if is_disabled:
        return because("F301")
    fit = HOOKS.fit()
    if fit.differs:
        return because("F305", version=fit.version, what=fit.differs)
    return None


def _digests(held: Held | None) -> dict[Collective, str]:
    return {} if held is None else {c: runs.plan.digest for c, runs in zip(Collective, (held.ring, held.reducer)) if runs is not None}


def tell(made: Installed, notes: Sequence[Diagnostic]) -> None:
    """Print notes and the line of every group, on one rank of the job."""
    warning = HOOKS.fit().warning
    tell_lines(*map(str, notes), *(() if warning is None else (str(warning),)), *made.lines)


def uninstall(root: nn.Module) -> None:
    """Give a model back to FSDP2; what is unsharded stays so, in storages of its own. Every rank calls it at the same point.

    Guaranteed: where it raises F013 or F015, nothing is changed; where it raises F012 or R001, FSDP2 has all of its own again.
    Raises F013 where somebody else stands around FSDP2's functions by now; F015 where the model is not installed; F012 where a rank goes on with something
    else; R001 where one is gone, or has not come at the deadline; unless this one was told before: after a collective that stopped, no rank is waited for.
    """
    made = _installed(root)
    problems: list[TidecError] = []
    every = [held for team in made.teams for held in team.held]
    for team in made.teams:
        team.spread()
    if every:
        HOOKS.check()
        for held in every:
            _trying(held.end_gather, problems)
        HOOKS.give()
        made.gone.detach()
    del INSTALLED[root]
    for held in every:
        _trying(held.leave, problems)
        for p in held.group.fsdp_params:
            del p.free_unsharded_param
    with ExitStack() as leaving:
        # Each of them leaves, whatever becomes of the others, a handler of a signal for one.
        for team in reversed(made.teams):
            leaving.callback(_trying, team.leave, problems)
    if problems:
        raise problems[0]


def _trying(step: Callable[[], None], problems: list[TidecError]) -> None:
    """Take a step of several of which each has to be taken, whatever becomes of the others."""
    try:
        step()
    except TidecError as problem:
        problems.append(problem)


def report(root: nn.Module) -> Report:
    """What the collectives of an installed model were run by so far; groups that were sharded after `install` stand last. Raises F015 where the model is not installed."""
    made = _installed(root)
    held = {h.name: h for team in made.teams for h in team.held}
    groups = tuple(group_report(held[name]) if name in held else GroupReport(name, (), "; ".join(map(str, made.stays[name]))) for name in made.names)
    later = tuple(GroupReport(live.name, (), str(because("F309")), is_later=True) for live in groups_of(root) if live.name not in made.names)
    return Report((*groups, *later), sum(team.arena_bytes for team in made.teams))


def _installed(root: nn.Module) -> Installed:
    if root not in INSTALLED:
        raise TidecError(Diagnostic("F015", f"this {type(root).__name__} is not installed", help="call tidec.install(model) first"))
    return INSTALLED[root]


def _by_process_group(lives: Sequence[LiveGroup], targets: Mapping[str, str]) -> list[tuple[dist.ProcessGroup, str, list[LiveGroup]]]:
    """Groups that are sharded over several ranks, by the process group that shards them and the target that moves them, in the order of the groups."""
    found: dict[tuple[int, str], tuple[dist.ProcessGroup, str, list[LiveGroup]]] = {}
    for live in lives:
        process_group, target = None if live.odd else getattr(getattr(live.group, "mesh_info", None), "shard_process_group", None), targets[live.name]
        if isinstance(process_group, dist.ProcessGroup) and process_group.size() > 1:
            found.setdefault((id(process_group), target), (process_group, target, []))[2].append(live)
    return list(found.values())


def _replicas(lives: Sequence[LiveGroup]) -> list[dist.ProcessGroup]:
    """The process groups in which hybrid sharding adds up what groups reduced."""
    found = [getattr(live.group.mesh_info, "replicate_process_group", None) for live in lives]
    return list({id(g): g for g in found if isinstance(g, dist.ProcessGroup) and g.size() > 1}.values())


def _gather_team(team: Team, members: list[LiveGroup], stays: dict[str, tuple[Reason, ...]], asking: Asking) -> None:
    """Agree with the other ranks and hold the members, or add to `stays` why none of them is held.

    NOTE: every step that may fail on one rank is followed by an exchange, so that all ranks go on or none does.
    """
    peers = team.peers
    signature = signature_for(members)
    groups = as_asked(signature.groups)
    peers.check_same("the parameter groups", "\n".join(f"{quoted(g.name)} {canonical_text(g)}" for g in groups))
    peers.check_same("how to install", asking.text())
    trouble: Reason | None = None
    opened, found = None, None
    if not peers.is_one_machine():
        trouble = because("F303", target=asking.target)
    elif asking.plans is None and peers.size > MAX_LANES:
        trouble = because("F302", why=f": {peers.size} ranks are more than {MAX_LANES}, the lanes of a node")
    else:
        opened, found, trouble = _open(peers, signature, asking)
    # Replicas add up rows: either all of them hold a group, or none.
    trouble = peers.of_replicas(trouble)
    if trouble is None:
        peers.check_same("the plans", opened.bundle.digest)
        team.prepare(found)
        trouble = _hold(team, members, groups, opened.bundle.plans, stays, asking)
    if trouble is not None:
        team.held.clear()
        team.close()
        stays.update({live.name: (*stays[live.name], trouble) for live in members})


def signature_for(members: Sequence[LiveGroup]) -> Signature:
    """What plans of the members of a process group are asked for."""
    return Signature(tuple(map(read_group, members)), "model", is_installed=True)


def _open(peers: Peers, signature: Signature, asking: Asking) -> tuple[Opened | None, Libraries | None, Reason | None]:
    """The bundle, and what its plans are opened from, on every rank, or why some rank could not. Rank 0 makes and builds what is missing, the others find it."""
    # Whatever ends a step, the others are told: they wait for it.
    opened, found, told, trouble = None, None, ("", _UNKNOWN), _UNKNOWN
    try:
        if peers.rank == 0:
            path = asking.plans if asking.plans is not None else asking.provide(signature, f"1x{peers.size}", asking.target)
            opened, found = _load(path, asking)
            told = (os.fspath(path.absolute()), "")
    except TidecError as problem:
        told = ("", _in_a_line(problem))
    finally:
        path, missing = peers.first(told)
    if missing:
        return None, None, because("F306", rank=peers.names[0], what=missing)
    try:
        if peers.rank > 0:
            opened, found = _load(Path(path), asking)
        trouble = ""
    except TidecError as problem:
        trouble = _in_a_line(problem)
    finally:
        troubled = peers.first_trouble(trouble)
    if troubled is not None:
        return None, None, because("F306", rank=troubled[0], what=troubled[1])
    sizes = {f"{p.nodes}x{p.lanes}" for p in opened.bundle.plans if p.ranks != peers.size}
    if sizes:
        return None, None, because("F304", found=", ".join(sorted(sizes)), wanted=f"{peers.size} ranks")
    tell_lines(*map(str, opened.notes))
    return opened, found, None


def _load(path: Path, asking: Asking) -> tuple[Opened, Libraries]:
    """Open a bundle, and load its library, tidec_rt and what lends storages. Raises as these do."""
    opened = open_bundle(path, asking.target, has_begun=torch.cuda.is_initialized())
    swap: Swap = swap_by_torch if HOOKS.fit().has_loan else load_swap(asking.rt_folder(), may_build=may_build)
    return opened, libraries(opened, load_rt(asking.rt_folder()), swap)


def _in_a_line(problem: TidecError) -> str:
    first = problem.diagnostics[0]
    return f"{first.code} {first.sentence}" + (f": {first.reason}" if first.reason else "")


def _hold(
    team: Team, members: list[LiveGroup], groups: Sequence[Group], plans: Sequence[Plan], stays: dict[str, tuple[Reason, ...]], asking: Asking,
) -> Reason | None:
    """Open a node a plan that a group uses, and make a `Held` of each group. Returns why some rank could not."""
    chosen = [tuple(None if of_collective(stays[live.name], c) else _plan_of(plans, group, c) for c in Collective) for live, group in zip(members, groups)]
    used = {plan.digest: plan for pair in chosen for plan in pair if plan is not None}
    tell_lines(memory_line(tuple(used.values()), device=team.device))
    trouble = team.open_all(tuple(used.values()))
    if trouble is not None:
        return trouble
    for live, group, pair in zip(members, groups, chosen):
        lacking = tuple(c for c, plan in zip(Collective, pair) if plan is None and not of_collective(stays[live.name], c))
        if lacking:
            stays[live.name] += (replace(because("F302", why=" in the bundle"), collectives=lacking),)
        without = tuple(next(iter(of_collective(stays[live.name], c)), None) for c in Collective)
        ring, reducer = (None if plan is None else team.runs[plan.digest] for plan in pair)
        if ring is not None or reducer is not None:
            kept = None if reducer is None else _plan_of(plans, as_kept(group), Collective.REDUCE_SCATTER)
            team.held.append(Held(live.name, weakref.ref(live.group), team.board, asking.mode, ring, reducer, without, kept, team.open, device=team.device,
                                  is_required=asking.is_required, tell=tell_lines))
    for held in team.held:
        held.sharing = tuple(other for other in team.held if other.ring is held.ring and held.ring is not None)
    return None


def _plan_of(plans: Sequence[Plan], group: Group, collective: Collective) -> Plan | None:
    """The plan that moves just these parameters; names do not matter, and neither does whether the plan casts.

    Of an all-gather's plans the one with the fewest landings that are as many as the group needs.
    """
    want, found = moved(group), []
    for plan in plans:
        has = tuple((r.rows, r.row_elems, gathered, r.is_trainable) for r, gathered in zip(plan.layout.params, plan.gathered))
        if plan.collective is collective and has == want and (collective is Collective.REDUCE_SCATTER or plan.landings >= group.landings):
            found.append(plan)
    return min(found, key=lambda plan: plan.landings, default=None)
