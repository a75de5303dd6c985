"""`tidec why-not`: every group that keeps a stock collective, with the first parameter that is the reason."""
from __future__ import annotations

from tidec.commands.answer import Answer
from tidec.commands.asking import read_asked
from tidec.commands.stock import kept, spelt, stock_fields, stock_summary
from tidec.commands.tell import short, table
from tidec.errors import Exit


def run(*, topo: str, group: str) -> Answer:
    """Exit 4 where a group keeps a stock collective, else 0."""
    signature = read_asked(topo=topo, group=group).signature
    groups, rows = [], []
    for g in signature.groups:
        entry: dict[str, object] = {"name": g.name, "repeat": g.repeat}
        stays = kept(g)
        if stays:
            entry["stock"] = stock_fields(stays[0].cause)
        for k in stays:
            entry[k.collective.value] = {"stock": stock_fields(k.cause)}
            rows.append((short(g.name), str(g.repeat), spelt(k.collective), k.cause.reason))
        groups.append(entry)
    if not rows:
        count = sum(g.repeat for g in signature.groups)
        return Answer(Exit.OK, {"groups": groups}, f"tidec has a plan for both collectives of {'the one group' if count == 1 else f'all {count} groups'}")
    helps = dict.fromkeys(k.cause.help for g in signature.groups for k in kept(g) if k.cause.help)
    text = "\n".join((table(("group", "repeat", "keeps the stock", "because"), rows, right=(1,)), *(f"help: {h}" for h in helps), stock_summary(signature.groups)))
    return Answer(Exit.STOCK, {"groups": groups}, text)
