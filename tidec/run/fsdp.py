"""tidec under FSDP2: which groups of a model run by plans, on which nodes, and how a model gets there and back.

N ranks of a process group. Ranks agree before anything of FSDP2 changes: on the groups, on the plans, and on that every rank could open them. Either
all of them hold a group, or none does.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import nn

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Collective, Mode, stock_cause
from tidec.inputs.document import quoted
from tidec.inputs.signature import Group, Signature, canonical_text
from tidec.inputs.topology import MAX_LANES
from tidec.plan.ir import Plan
from tidec.run.agree import Board, Peers
from tidec.run.capture import LiveGroup, groups_of, read_group
from tidec.run.collective import Node, Reducer, Ring
from tidec.run.held import Freed, Held
from tidec.run.hooks import Hooks
from tidec.run.library import Opened, load_rt, open_bundle
from tidec.run.report import GroupReport, Report, group_report

# What rank 0 makes where no plans are given: the groups, the topology as one writes it, the target; gives the bundle's folder.
Provide = Callable[[Signature, str, str], Path]
# Where tidec_rt is kept.
RtFolder = Callable[[], Path]


@dataclass(slots=True)
class Team:
    """The held groups of one process group, and what they share."""

    peers: Peers
    board: Board | None = None
    nodes: list[Node] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.nodes.clear()
        if self.board is not None:
            self.board.close()


@dataclass(slots=True)
class Installed:
    """A model that runs by plans. names: of all groups.  lines: one a group, as they are printed.  stock: of each group that no plan serves, why."""

    target: str
    mode: Mode
    teams: tuple[Team, ...]
    names: tuple[str, ...]
    lines: tuple[str, ...]
    stock: tuple[tuple[str, str], ...]


HOOKS = Hooks()
INSTALLED: WeakKeyDictionary[nn.Module, Installed] = WeakKeyDictionary()


def install(
    root: nn.Module, *, plans: Path | None, provide: Provide, rt_folder: RtFolder, target: str = "host", mode: Mode = Mode.IN_PLACE, deadline_s: float,
    is_poisoned: bool = False,
) -> Installed:
    """Have the groups of a model run by plans where they can. Every rank of the model's process groups calls it at the same point.

    plans: a bundle; `None` = rank 0 of each process group has `provide` make one.
    deadline_s: how long a rank waits for the others in a collective.  is_poisoned: landings hold NaN once they are let go.
    Guaranteed: on every rank the same groups are held, or none; where it raises, nothing is changed.
    Raises F001 where nothing is under fully_shard, F010 where ranks disagree, F014 where the model is installed already.
    """
    if root in INSTALLED:
        raise TidecError(Diagnostic("F014", f"this {type(root).__name__} is installed already", help="call tidec.uninstall(model) first"))
    lives = groups_of(root)
    if not lives:
        raise TidecError(Diagnostic("F001", f"nothing of {type(root).__name__} is under fully_shard", help="call fully_shard on its blocks and on the model first"))
    stock: dict[str, str] = {}
    teams: list[Team] = []
    try:
        for process_group, members in _by_process_group(lives, stock):
            teams.append(_team(Peers(process_group), members, stock, plans, provide, rt_folder, target, mode, deadline_s, is_poisoned))
    except BaseException:
        for team in teams:
            team.close()
        raise
    HOOKS.take()
    for team in teams:
        for held in team.held:
            for i, p in enumerate(held.group.fsdp_params):
                p.free_unsharded_param = Freed(held, i, p.free_unsharded_param)
    made = Installed(target, mode, tuple(teams), tuple(live.name for live in lives), _lines(lives, teams, stock, target), tuple(stock.items()))
    INSTALLED[root] = made
    return made


def uninstall(root: nn.Module) -> None:
    """Give a model back to FSDP2; what is unsharded stays so, in storages of its own. Every rank calls it at the same point.

    Raises F013 where somebody else stands around FSDP2's functions by now; F015 where the model is not installed.
    """
    made = _installed(root)
    HOOKS.give()
    del INSTALLED[root]
    for team in made.teams:
        for held in team.held:
            held.leave()
            for p in held.group.fsdp_params:
                del p.free_unsharded_param
        # Nobody closes memory that another still reads.
        team.peers.gather(None)
        team.close()


def report(root: nn.Module) -> Report:
    """What the collectives of an installed model were run by so far. Raises F015 where the model is not installed."""
    made = _installed(root)
    held = {h.name: h for team in made.teams for h in team.held}
    stock = dict(made.stock)
    return Report(tuple(group_report(held[name]) if name in held else GroupReport(name, (), stock[name]) for name in made.names))


def _installed(root: nn.Module) -> Installed:
    if root not in INSTALLED:
        raise TidecError(Diagnostic("F015", f"this {type(root).__name__} is not installed", help="call tidec.install(model) first"))
    return INSTALLED[root]


def _by_process_group(lives: Sequence[LiveGroup], stock: dict[str, str]) -> list[tuple[object, list[LiveGroup]]]:
    """The groups that a plan may serve, by the process group that shards them; the others' reasons go to `stock`."""
    found: dict[int, tuple[object, list[LiveGroup]]] = {}
    for live in lives:
        reasons = why_stock(live.group)
        if reasons:
            stock[live.name] = reasons[0].reason
            continue
        process_group = live.group.mesh_info.shard_process_group
        found.setdefault(id(process_group), (process_group, []))[1].append(live)
    return list(found.values())


def why_stock(group: object) -> tuple:
    from tidec.inputs.ask import StockCause

    info = group.mesh_info
    pg = getattr(info, "shard_process_group", None)
    if pg is None or pg.size() == 1:
        return (StockCause("one rank"),)
    if group._reshard_after_forward and group._use_post_forward_mesh:
        return (StockCause("post forward mesh"),)
    return ()


def _team(
    peers: Peers, members: list[LiveGroup], stock: dict[str, str], plans: Path | None, provide: Provide, rt_folder: RtFolder, target: str, mode: Mode,
    deadline_s: float, is_poisoned: bool,
) -> Team:
    groups = [read_group(live) for live in members]
    peers.check_same("the parameter groups", "\n".join(f"{quoted(g.name)} {canonical_text(g)}" for g in groups))
    peers.check_same("how to install", f"mode {mode.value}, target {target}, landings {'poisoned' if is_poisoned else 'left as they are'}")
    team = Team(peers)
    trouble = "" if peers.is_one_machine() else "its ranks are on several machines, and the host target shares memory"
    trouble = trouble or _ranks_trouble(peers, plans)
    opened, rt, found = None, None, None
    if not trouble:
        opened, rt, trouble = _open(peers, groups, plans, provide, rt_folder, target)
    if not trouble:
        try:
            team.board = Board(peers)
            trouble = _hold(team, members, groups, opened, rt, stock, mode, deadline_s, is_poisoned)
        except BaseException:
            team.close()
            raise
    if trouble:
        team.close()
        stock.update({live.name: trouble for live in members})
        team.held.clear()
    return team


def _ranks_trouble(peers: Peers, plans: Path | None) -> str:
    return f"{peers.size} ranks are more than {MAX_LANES}, the lanes of a node: give plans for several nodes" if plans is None and peers.size > MAX_LANES else ""


def _open(
    peers: Peers, groups: list[Group], plans: Path | None, provide: Provide, rt_folder: RtFolder, target: str,
) -> tuple[Opened | None, object, str]:
    """The bundle and tidec_rt, opened on every rank, or why some rank could not. Rank 0 makes and builds what is missing, the others find it."""
    opened, rt, told = None, None, ("", "")
    if peers.rank == 0:
        try:
            path = plans if plans is not None else provide(Signature(tuple(groups), "model"), f"1x{peers.size}", target)
            opened, rt = open_bundle(path, target), load_rt(rt_folder())
            told = (os.fspath(path.absolute()), "")
        except TidecError as problem:
            told = ("", str(problem))
    path, trouble = peers.first(told)
    if trouble:
        return None, None, trouble
    if peers.rank > 0:
        try:
            opened, rt = open_bundle(Path(path), target), load_rt(rt_folder())
        except TidecError as problem:
            trouble = str(problem)
    found = peers.first_trouble(trouble)
    if found is not None:
        return None, None, f"rank {found[0]}: {found[1]}"
    peers.check_same("the plans", opened.bundle.digest)
    ranks = {p.ranks for p in opened.bundle.plans}
    return (opened, rt, "") if ranks == {peers.size} else (None, None, f"the plans are for {', '.join(map(str, sorted(ranks)))} ranks, not for {peers.size}")


def _hold(
    team: Team, members: list[LiveGroup], groups: list[Group], opened: Opened, rt: object, stock: dict[str, str], mode: Mode, deadline_s: float, is_poisoned: bool,
) -> str:
    """Open a node a plan that a group uses, and make a `Held` of each group. Returns why some rank could not, "" where all could."""
    library = rt.Library(os.fspath(opened.library))
    rings: dict[str, Ring] = {}
    reducers: dict[str, Reducer] = {}
    programs = {plan.digest: number for plan, number in zip(opened.bundle.plans, opened.programs)}
    chosen = [tuple(_plan_of(opened.bundle.plans, group, collective) for collective in Collective) for group in groups]
    for plan in {plan.digest: plan for pair in chosen for plan in pair if plan is not None}.values():
        node, trouble = None, ""
        try:
            node = rt.Node(library, programs[plan.digest], team.peers.rank, 0, round(1000 * deadline_s))
            team.nodes.append(node)
            mine = node.handle()
        except RuntimeError as problem:
            mine, trouble = b"", str(problem)
        handles = team.peers.gather(mine)
        if not trouble and all(handles):
            try:
                node.connect(handles)
            except RuntimeError as problem:
                trouble = str(problem)
        found = team.peers.first_trouble(trouble)
        if found is not None:
            return f"rank {found[0]}: {found[1]}"
        if plan.collective is Collective.ALL_GATHER:
            rings[plan.digest] = Ring(plan, node, is_poisoned=is_poisoned)
        else:
            reducers[plan.digest] = Reducer(plan, node)
    for live, (gathers, reduces) in zip(members, chosen):
        if gathers is None and reduces is None:
            stock[live.name] = "the bundle has no plan for it"
            continue
        team.held.append(Held(live.name, live.group, team.board, mode, rings[gathers.digest] if gathers else None, reducers[reduces.digest] if reduces else None))
    for held in team.held:
        held.sharing = tuple(other for other in team.held if other.ring is held.ring and held.ring is not None)
    return ""


def _plan_of(plans: Sequence[Plan], group: Group, collective: Collective) -> Plan | None:
    """The plan that moves just these parameters; names do not matter."""
    want = [(p.rows, p.row_elems, p.dtype, group.gathered_as(p), p.requires_grad) for p in group.params]
    for plan in plans:
        has = [(r.rows, r.row_elems, stored, gathered, r.is_trainable) for r, stored, gathered in zip(plan.layout.params, plan.stored, plan.gathered)]
        if plan.collective is collective and has == want:
            return plan
    return None


def _lines(lives: Sequence[LiveGroup], teams: Sequence[Team], stock: dict[str, str], target: str) -> tuple[str, ...]:
    held = {h.name: h for team in teams for h in team.held}
    lines = []
    for live in lives:
        h = held.get(live.name)
        if h is None:
            lines.append(f"tidec: group {quoted(live.name)} stock: {stock[live.name]}")
        else:
            parts = [f"{'all-gather' if r is h.ring else 'reduce-scatter'} {'stock' if r is None else r.plan.digest[:12]}" for r in (h.ring, h.reducer)]
            lines.append(f"tidec: group {quoted(live.name)} active on {target}: {', '.join(parts)}")
    return tuple(lines)
