"""The shortest schedule, to read first: an all-gather of one rail as a ring. `tidec prove --schedule ring_ag`.

M nodes, n node, j lane, e call, q slot (slot q of node n is the shard of node n + q). A node passes on what it has, slot by slot.
"""
from tidec.schedule.idioms import ALL, RAIL, Block, back, no, where, wrap


def ring_ag(s):
    M, (n, j), e = s.nodes, s.here, s.call                     # the node count, the rank and the call are symbols
    to, source = back(n - 1, M), wrap(n + 1, M)
    shard = s.input ("shard", Block.SHARD, one=1,          holds=lambda _: (n, j))
    rows  = s.output("rows",  Block.SHARD, bank=2, slot=M, holds=lambda b, q: (wrap(n + q, M), j),
                     found=lambda b, q: dict(n=where(q.eq(0), n, source), j=j, q=q - 1))
    room, have = s.flag("room", RAIL), s.flag("have", RAIL, q=(1, M))       # you may write to me; slot q is there
    sent = s.flag("sent", q=(0, M - 1))                                     # slot q has left me
    with s.stream("rail"):
        with s.when(no(s.single_node)):
            for q in s.serial("q", 0, M - 1): s.wait(sent.call(e - 2)[q])
        s.copy(shard[0], rows[e % 2, 0])
        with s.when(no(s.single_node)):
            s.signal(room.at(source, j))
            s.wait(room.by(to, j))
            for q in s.serial("q", 0, M - 1):
                s.put(rows[e % 2, q], rows[e % 2, q + 1].at(to, j), then=have[q + 1].at(to, j), done=sent[q])
                s.wait(have[q + 1].by(source, j))
        s.read(rows[e % 2, ALL])                               # what the caller computes comes after, on this stream
