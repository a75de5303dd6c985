"""TIDE's all-gather: every shard lands at its final address on every rank.

M nodes, L lanes, n node, j lane, e call, h slots held when a round starts, k slot of a round, x group of its slots, q slot of the stage (q = 0 is
the own shard), o destination lane.
With two landings a call arrives while the parameters of the one before are used; with one it waits until all ranks are through with those.
Nodes exchange slots by recursive doubling on their rail (Bruck: any M), copy engines place them in the node. Paper section 3.
"""
from tidec.schedule.idioms import ALL, NODE, RAIL, Block, back, every, least, most, no, times, top2, where, wrap

GROUPS = 4                                                     # of the last round's slots, placed one after the other as they arrive


def tide_ag(s, *, cast=False, multicast=False, landings=2):
    M, L = s.nodes, s.lanes                                    # M is a symbol, L an int
    (n, j), e = s.here, s.call                                 # rank and call are symbols

    def moved(h):      return least(h, M - h)                  # slots that move in the round that starts with h held
    def last(h):       return 2*h >= M
    def cut(h, x):     return where(last(h), times(x, moved(h), GROUPS + 1) // GROUPS, where(x.eq(0), 0, moved(h)))     # where group x begins
    def came(q):       return dict(h=top2(q), k=q - top2(q))   # the round and the place in which slot q arrived
    def group(h, k):   return sum((where(every(last(h), k >= times(x, moved(h), GROUPS) // GROUPS), 1, 0) for x in range(1, GROUPS)), 0)
    def placed(q):     return dict(**came(q), x=group(**came(q)))

    shard = s.input ("shard", Block.SHARD,  one=1,                     holds=lambda _: (n, j))
    stage = s.buffer("stage", Block.SHARD,  slot=(0 if cast else 1, M), holds=lambda q: (wrap(n + q, M), j),
                     found=lambda q: dict(n=where(q.eq(0), n, wrap(n + top2(q), M)), j=j, **came(q)))
    land  = s.output("land",  Block.PLACED, bank=landings, node=M, lane=L, holds=lambda b, m, i: (m, i),
                     found=lambda b, m, i: dict(n=n, j=i, o=j, **placed(back(m - n, M))))
    room     = s.flag("room", NODE)                            # my landing may be overwritten
    credit   = s.flag("credit", RAIL, on=dict(h=("x2", M)))    # my stage may be overwritten, told to the sender of round h
    have     = s.flag("have", RAIL, on=dict(h=("x2", M)), k=(0, moved))
    sent     = s.flag("sent", each=True, q=(1, M))
    done     = s.flag("done", NODE)
    released, scattered, ready = s.flag("released"), s.flag("scattered"), s.flag("ready")
    first = stage[0] if cast else shard[0]

    def use():                                                 # the parameters of call e - 1
        with s.stream("compute"):
            for i in s.all_lanes("i"): s.wait(done.call(e - 1).by(n, i))
            s.read(land[(e - 1) % landings, ALL, ALL].of(call=e - 1))
            s.signal(released)

    if landings == 1: use()                                    # before e is gathered
    with s.stream("entry"):
        s.wait(released.call(e - (landings - 1)))              # the caller is through with the landing of call e - landings
        for i in s.all_lanes("i"): s.signal(room.at(n, i))

    with s.stream("rail"):
        with s.when(True if cast else no(s.single_node)): s.wait(scattered.call(e - 1))
        with s.when(no(s.single_node)):
            for q in s.serial("q", 1, M): s.wait(sent.call(e - 1)[q])
            for h in s.doubling("h", M): s.signal(credit[h].at(wrap(n + h, M), j))
        if cast:
            s.cast(shard[0], stage[0])
            s.signal(ready)
        with s.when(no(s.single_node)):
            for h in s.doubling("h", M):
                to = back(n - h, M)
                s.wait(credit[h].by(to, j))
                s.put(first, stage[h].at(to, j), then=have[h, 0].at(to, j), done=sent[h])
                for k in s.serial("k", 1, moved(h)):
                    s.put(stage[k], stage[h + k].at(to, j), then=have[h, k].at(to, j), done=sent[h + k])
                for k in s.serial("k", 0, moved(h)): s.wait(have[h, k].by(wrap(n + h, M), j))

    def place(src, m, o):                                      # a shard of node m, in the landing of lane o
        s.copy(src, land[e % landings, m, j].at(n, o))
    def everywhere():                                          # one multicast copy, or one copy a lane
        if multicast: yield ALL
        else: yield from s.each_lane("o")

    with s.stream("scatter"):
        for i in s.all_lanes("i"): s.wait(room.by(n, i))
        if cast: s.wait(ready)
        for o in everywhere(): place(first, n, o)
        s.join()
        with s.when(no(s.single_node)):
            for h in s.doubling("h", M):
                turn = M - n - h                               # slots from here on belong to node 0, 1, ...
                for x in s.serial("x", 0, where(last(h), GROUPS, 1)):
                    lo, hi = cut(h, x), cut(h, x + 1)
                    with s.when(lo < hi):
                        for k in s.serial("k", lo, hi): s.wait(have[h, k].by(wrap(n + h, M), j))
                        for o in everywhere():
                            for k in s.run("k", lo, least(hi, turn)): place(stage[h + k], n + h + k, o)
                        for o in everywhere():
                            for k in s.run("k", most(lo, turn), hi): place(stage[h + k], n + h + k - M, o)
                        s.join()
        s.signal(scattered)
        for i in s.all_lanes("i"): s.signal(done.at(n, i))

    with s.stream("update"):                                   # the caller may change its shard again
        if cast: s.wait(ready)
        else:
            s.wait(scattered)
            with s.when(no(s.single_node)):
                for h in s.doubling("h", M): s.wait(sent[h])
        s.free(shard[0])
    if landings > 1: use()                                     # while e is gathered
