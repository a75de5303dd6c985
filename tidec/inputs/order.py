"""In which order a step uses its groups: when each is unsharded, resharded and reduced, from a `tidec.order/1` file or as FSDP2 does by default.

An event is the moment in which the host issues something, so that whatever stands later may wait for it.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import REFERENCE, Document, Member, Node, nearest, parse, quoted, read_file
from tidec.inputs.signature import Signature

SCHEMA = "tidec.order/1"
MAX_GROUPS = 16384
MAX_AHEAD = 8
# What `tidec capture` calls the group of a model's root, which FSDP2 keeps unsharded from its first forward to its post-backward.
ROOT = "root"

_ABOUT_KEYS = ("model", "source", "notes")
_KEYS = ("schema", "ahead", "events", *_ABOUT_KEYS)


class Moment(Enum):
    """What happens to a group.

    UNSHARD: its all-gather is issued.  RESHARD: its parameters are not used any more.  REDUCE: its reduce-scatter begins to be issued.
    READ: all reads of that reduce-scatter's source are issued, so that a later use of the source's place can wait for them.
    """

    UNSHARD = "unshard"
    RESHARD = "reshard"
    REDUCE = "reduce"
    READ = "read"


_EVENT_KEYS = (*(m.value for m in Moment), "copy")


@dataclass(frozen=True, slots=True)
class Copy:
    """One group of the model: copy `number` of entry `entry` of the group file. name: the entry's, and its number where the file repeats it: block[3]."""

    entry: int
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """group: index into `Order.groups`."""

    moment: Moment
    group: int


@dataclass(frozen=True, slots=True)
class Order:
    """The events of one step, which repeats.

    groups: every group of the model, copies told apart, in the file's order.
    ahead: how many all-gathers may be under way beside the group in use; two of ahead + 1 neighbouring all-gathers never share a landing.
    origin: the file's name, "" where the order is the assumed one.
    Guaranteed: every group is unsharded; it is unsharded only while sharded and resharded only while not; every reduce has one read, before the next.
    """

    groups: tuple[Copy, ...]
    events: tuple[Event, ...]
    ahead: int
    origin: str = ""


def copies(signature: Signature) -> tuple[Copy, ...]:
    """Every group of a model, in the file's order. Raises P002 where there are more than MAX_GROUPS."""
    count = sum(g.repeat for g in signature.groups)
    if count > MAX_GROUPS:
        raise TidecError(Diagnostic("P002", f"{quoted(signature.source_name)} has {count:,} groups, repeats counted, more than {MAX_GROUPS:,}",
                                    reason="an arena names every one of them", help="mend repeat, or shard larger groups"))
    return tuple(
        Copy(entry, number, group.name + (f"[{number}]" if group.repeat > 1 else "")) for entry, group in enumerate(signature.groups) for number in range(group.repeat))


def default_order(signature: Signature) -> Order:
    """Forward in the file's order, then backward in reverse, as FSDP2 orders a step by default.

    In backward the group before is prefetched. The last group is kept from forward to backward, and takes its turn in the ring like the others. A group
    called "root" is no part of the ring: it is unsharded first, reduced last and resharded there. Raises P002.
    Source: paper appendix F; FSDP2's _fsdp_state.py and _fsdp_param_group.py.
    """
    groups = copies(signature)
    roots = tuple(i for i, c in enumerate(groups) if signature.groups[c.entry].name == ROOT)
    ring = tuple(i for i in range(len(groups)) if i not in set(roots))
    events = [Event(Moment.UNSHARD, i) for i in roots]
    for i in ring:
        events.append(Event(Moment.UNSHARD, i))
        if i != ring[-1]:
            events.append(Event(Moment.RESHARD, i))
    for i, before in zip(reversed(ring), (*reversed(ring[:-1]), None)):
        if before is not None:
            events.append(Event(Moment.UNSHARD, before))
        events += [Event(m, i) for m in (Moment.RESHARD, Moment.REDUCE, Moment.READ)]
    for i in roots:
        events += [Event(m, i) for m in (Moment.RESHARD, Moment.REDUCE, Moment.READ)]
    return Order(groups, tuple(events), 1)


def ends_of_backward(order: Order) -> frozenset[int]:
    """Positions of the reshards that end a backward of their group: a reduce of it comes before its next all-gather, if there is one."""
    found = []
    following: dict[int, Moment] = {}
    for at in range(len(order.events) - 1, -1, -1):
        event = order.events[at]
        if event.moment is Moment.RESHARD and following.get(event.group) is Moment.REDUCE:
            found.append(at)
        if event.moment in (Moment.UNSHARD, Moment.REDUCE):
            following[event.group] = event.moment
    return frozenset(found)


def load_order(path: str | os.PathLike[str], signature: Signature) -> Order:
    """Read a recorded order of the groups of a model. Raises P001 where the file cannot be read; P002 malformed; P003 unknown key."""
    return read_order(read_file(path), file=os.fspath(path), signature=signature)


def read_order(text: str, *, file: str, signature: Signature) -> Order:
    """Read the text of an order file; file: the name to print. Raises P002, P003.

    An event is an object of one moment and the group's name, with `copy` where the group file repeats it: {"unshard": "block", "copy": 3}.
    """
    document = parse(text, file=file)
    given = document.members(document.root, what="an order file", keys=_KEYS)
    if "schema" in given and given["schema"].node.value != SCHEMA:
        raise document.error("P002", f"the schema of an order file is {quoted(SCHEMA)}", line=given["schema"].line, help=f'write "schema": "{SCHEMA}"')
    if "events" not in given:
        raise document.error("P002", "an order file has no events", line=document.root.line, help="list the events of one step", see=REFERENCE)
    ahead = document.integer(given["ahead"].node, what="ahead", high=MAX_AHEAD) if "ahead" in given else 1
    reader = _Reader(document, signature)
    events = tuple(reader.event(i, node) for i, node in enumerate(document.items(given["events"].node, what="events")))
    reader.end(given["events"])
    return Order(reader.groups, events, ahead, file)


class _Reader:
    """Reads events one after the other; knows which groups are unsharded, which are being reduced, and the line since when."""

    def __init__(self, document: Document, signature: Signature):
        self.groups = copies(signature)
        self._document, self._signature = document, signature
        self._index = {(c.entry, c.number): i for i, c in enumerate(self.groups)}
        self._unsharded: dict[int, int] = {}
        self._reducing: dict[int, int] = {}
        self._seen: set[int] = set()

    def event(self, i: int, node: Node) -> Event:
        given = self._document.members(node, what=f"event {i}", owner="an event", keys=_EVENT_KEYS)
        moments = [m for m in Moment if m.value in given]
        if len(moments) != 1:
            found = " and ".join(m.value for m in moments) or "no moment"
            raise self._document.error("P002", f"event {i} has {found}", line=node.line, help="give one of unshard, reshard, reduce and read, and the group's name")
        (moment,) = moments
        event = Event(moment, self._group(i, given[moment.value], given.get("copy")))
        self._step(event, node.line)
        return event

    def _group(self, i: int, member: Member, copy: Member | None) -> int:
        document, groups = self._document, self._signature.groups
        name = document.text(member.node, what=f"the group of event {i}")
        entries = [e for e, g in enumerate(groups) if g.name == name]
        if not entries:
            raise document.error("P002", f"event {i} names {quoted(name)}, which the model has no group of", line=member.line,
                                 help=f"did you mean {quoted(nearest(name, [g.name for g in groups]))}?  names are those of the group file")
        if len(entries) > 1:
            raise document.error("P002", f"event {i} names {quoted(name)}, and {len(entries)} groups are called so", line=member.line,
                                 help="give every group of the group file a name of its own")
        repeat = groups[entries[0]].repeat
        if repeat > 1 and copy is None:
            raise document.error("P002", f"event {i} does not say which of the {repeat} copies of {quoted(name)} it is about", line=member.line,
                                 help=f'write "copy": a number from 0 to {repeat - 1}')
        number = 0 if copy is None else document.integer(copy.node, what=f"copy of event {i}", high=repeat - 1)
        return self._index[entries[0], number]

    def _step(self, event: Event, line: int) -> None:
        g, moment = event.group, event.moment
        state = self._unsharded if moment in (Moment.UNSHARD, Moment.RESHARD) else self._reducing
        begins = moment in (Moment.UNSHARD, Moment.REDUCE)
        if begins and g in state:
            since = "unsharded" if moment is Moment.UNSHARD else "being reduced"
            raise self._document.error("P002", f"group {self._named(g)} is {since} already", line=line, reason=f"since line {state[g]}",
                                       help=f"record its {'reshard' if moment is Moment.UNSHARD else 'read'} before")
        if not begins and g not in state:
            want = "is not unsharded" if moment is Moment.RESHARD else "is not being reduced"
            first = Moment.UNSHARD if moment is Moment.RESHARD else Moment.REDUCE
            raise self._document.error("P002", f"group {self._named(g)} {want}", line=line, help=f"record its {first.value} before")
        if begins:
            state[g] = line
        else:
            del state[g]
        self._seen |= {g} if moment is Moment.UNSHARD else set()

    def end(self, events: Member) -> None:
        """Refuse an order that ends in a reduce without its read, or that a group is missing in."""
        for g, line in self._reducing.items():
            raise self._document.error("P002", f"the reduce of group {self._named(g)} has no read", line=line, help="record when all reads of its source are issued")
        for g in range(len(self.groups)):
            if g not in self._seen:
                raise self._document.error("P002", f"group {self._named(g)} is never unsharded", line=events.line,
                                           help="record a whole step, or leave the group out of the group file")

    def _named(self, g: int) -> str:
        return quoted(self.groups[g].name)
