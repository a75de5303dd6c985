"""TIDE's reduce-scatter: gradients are read where autograd left them, summed in fp32, and land on the rank that owns them.

M nodes, L lanes, n node, j lane, e call, c contributor (c = M is the own node), t target node, w wave, W width, g generation, p part (pass),
J remote block in sending order, G node-local sum in order, d diagonal, o lane. Paper sections 4 and 5.2, Algorithm 1.
"""
from tidec.schedule.idioms import ALL, LANES, NODE, OTHERS, RAIL, Block, back, ceildiv, every, least, no, some, times, where, wrap


def tide_rs(s, *, W, k, n_part=1, n_out="full", n_stg=2, multicast=False):
    M, L = s.nodes, s.lanes                                    # M is a symbol; L and the knobs are ints
    (n, j), e = s.here, s.call
    Wn, D = ceildiv(M, W), n_part * (M - 1)                    # waves in a pass; remote blocks in a call
    full = n_out == "full"
    ahead = D if full else least(n_out, D)                     # blocks summed before the network starts
    Gn = D + n_part                                            # node-local sums in a call
    if L % W: s.only_for((M - 1) % W <= (M - 1) % L)           # else contributors of the last wave collide

    def served(c):     return n if c is M else wrap(n + c, M)                               # eq. 6, seen from the sender
    def sub(c, lane):  return lane if c is M else (lane + c) % L                            # eq. 7, the Latin square; the own node counts as 0
    def gen(w):        return where(Wn.eq(1), 0, w % 2)
    def J(p, c):       return times(p, M - 1, n_part) + c - 1
    def part(x):
        r = 0
        for q in range(1, n_part): r = where(x >= q * (M - 1), q, r)
        return r
    def dest(x):       return x - times(part(x), M - 1, n_part) + 1
    def block(x):      return x if full else x % n_out
    def prev(e, p, w):                                         # the use of this generation before (p, w)
        last = where(Wn.eq(1), 0, where(((Wn - 1 - w) % 2).eq(0), Wn - 1, Wn - 2))
        return (where(w >= 2, e, where(p > 0, e, e - 1)), where(w >= 2, p, where(p > 0, p - 1, n_part - 1)), where(w >= 2, w - 2, last))
    def fills(w, d):                                           # does wave w write the blocks b = j + d ?
        c0 = w*W + 1; c = c0 + (d - c0) % L                    # the only contributor of the wave that could
        return some(every(w.eq(Wn - 1), d.eq(0)), every(c < c0 + W, c < M))
    def staged_for(G):                                         # what the staging of sum G is for
        is_own = every(G >= ahead, G < ahead + n_part); x = where(G < ahead, G, G - n_part)
        return (where(is_own, G - ahead, part(x)), where(is_own, n, served(dest(x))), where(is_own, j, sub(dest(x), j)))

    grad   = s.input ("grad",   Block.GRAD_SLICE, part=n_part, node=M, sub=L, holds=lambda p, t, b: (p, t, b),     source=lambda *_: (n, j))
    stage  = s.buffer("stage",  Block.SLICE, slot=n_stg, src=L, per=("G",),   holds=lambda q, i, G: staged_for(G), source=lambda q, i, G: (n, i))
    outbox = s.buffer("outbox", Block.PARTIAL, bank=2, block=D if full else n_out, per=("J",),
                      holds=lambda b, q, J: (part(J), served(dest(J)), sub(dest(J), j)),                           source=lambda *_: (n, ALL))
    spare  = s.buffer("spare",  Block.PARTIAL, bank=2, part=n_part,           holds=lambda b, p: (p, n, j),        source=lambda *_: (n, ALL))
    inbox  = s.buffer("inbox",  Block.PARTIAL, gen=2, sub=L, per=("p", "w"), rests_at_zero=True, before=prev,      holds=lambda g, b, p, w: (p, n, b))
    out    = s.output("out",    Block.OUT_SLICE, part=n_part, sub=L, per=("p", "w"),                               holds=lambda q, b, p, w: (q, n, b))
    staged, freed = s.flag("staged", LANES, G=(0, Gn)), s.flag("freed", LANES, G=(0, Gn))
    summed, sent = s.flag("summed", J=(0, D)), s.flag("sent", each=True, J=(0, D))
    owned, placed = s.flag("owned", p=(0, n_part)), s.flag("placed", p=(0, n_part))
    arrived = s.flag("arrived", RAIL, on=dict(c=(1, M)), p=(0, n_part))
    credit  = s.flag("credit",  RAIL, on=dict(c=(1, M)), p=(0, n_part))
    ready, landed = s.flag("ready", NODE, p=(0, n_part), w=(0, Wn)), s.flag("landed", NODE, p=(0, n_part), w=(0, Wn))

    def level1(G, theirs, mine, stage, into, **told):          # one node-local sum, the G-th of the call
        far = Gn - 1 - (Gn - 1 - G) % n_stg                    # the slot's last user in the call before
        for o in s.others("o"): s.wait(freed.call(where(G >= n_stg, e, e - 1))[where(G >= n_stg, G - n_stg, far)].by(n, o))
        for o in s.each_other("o"): s.copy(theirs(o), stage[G % n_stg, j].of(G).at(n, o))
        s.join()
        for o in s.others("o"): s.signal(staged[G].at(n, o))
        for i in s.others("i"): s.wait(staged[G].by(n, i))
        s.sum(stage[G % n_stg, OTHERS].of(G), mine, into=into, **told)
        for i in s.others("i"): s.signal(freed[G].at(n, i))
    def partial(G, p, c, into):                                # contributor c's partial of part p
        level1(G, lambda o: grad[p, served(c), sub(c, o)], grad[p, served(c), sub(c, j)], stage, into, contributor=c)

    with s.when(s.single_node):                                # every lane sums its own row, straight into the output
        rows   = s.input ("rows",   Block.GRAD_ROW, part=n_part, lane=L,          holds=lambda p, i: (p, i), source=lambda *_: (n, j))
        landing = s.buffer("row_stage", Block.ROW, slot=n_stg, src=L, per=("G",), holds=lambda q, i, G: (G, j), source=lambda q, i, G: (n, i))
        result = s.output("result", Block.OUT_ROW, part=n_part,                   holds=lambda p: (p, j),    source=lambda *_: (n, ALL))
        with s.stream("read"):
            for p in s.serial("p", 0, n_part): level1(p, lambda o: rows[p, o], rows[p, j], landing, result[p], seed=True)
            s.free(rows[ALL, ALL])

    with s.when(no(s.single_node)):
        with s.stream("read"):                                 # level 1: everything that the outbox has room for, then the own node
            for x in s.serial("J", 0, ahead):
                s.wait(sent.call(e - 2)[x if full else D - 1 - (D - 1 - x) % n_out])
                partial(x, part(x), dest(x), outbox[e % 2, block(x)])
                s.signal(summed[x])
            for p in s.serial("p", 0, n_part):
                s.wait(placed.call(e - 2)[p])
                partial(ahead + p, p, M, spare[e % 2, p])
                s.signal(owned[p])
            if full: s.free(grad[ALL, ALL, ALL])

        for p in s.serial("p", 0, n_part):                     # level 2: rails and landings
            for w in s.serial("w", 0, Wn):
                g, end = gen(w), least(w*W + W, M - 1) + 1     # buffer generation; behind the last remote c
                pe, pp, pw = prev(e, p, w)
                for r in s.serial("r", 0, ceildiv(end - (w*W + 1), k), at_most=ceildiv(W, k)):
                    lo = w*W + 1 + r*k; hi = least(lo + k, end)
                    with s.stream("net"):
                        for c in s.serial("c", lo, hi, at_most=k):
                            t = wrap(n + c, M)
                            s.wait(summed[J(p, c)])
                            s.wait(credit.call(pe)[c, pp].by(t, j))
                            s.put(outbox[e % 2, block(J(p, c))].of(J(p, c)), inbox[g, sub(c, j)].at(t, j),
                                  then=arrived[c, p].at(t, j), done=sent[J(p, c)], contributor=c)
                        for c in s.serial("c", lo, hi, at_most=k): s.wait(arrived[c, p].by(back(n - c, M), j))
                    if not full:
                        with s.stream("read"):                 # sum what is left into the blocks that this round frees
                            for x in s.serial("J", J(p, lo) + n_out, least(J(p, hi) + n_out, D)):
                                s.wait(sent[x - n_out])
                                partial(x + n_part, part(x), dest(x), outbox[e % 2, block(x)])
                                s.signal(summed[x])
                with s.stream("net"):
                    with s.when(w.eq(Wn - 1)):
                        s.wait(owned[p])
                        s.copy(spare[e % 2, p], inbox[g, j], contributor=M)
                        s.signal(placed[p])
                    if L > 1:                                  # else every wave fills the only block
                        for d in s.each_lane("d"):             # blocks that only the last use of this generation filled
                            with s.when(every(fills(pw, d), no(fills(w, d)))): s.zero(inbox[g, (j + d) % L])
                        s.join()
                    s.meet(ready[p, w])
                    s.land(inbox[g, ALL].at(n, ALL), into=out[p, ALL], seed=w.eq(0))
                    s.meet(landed[p, w])
                    nw = where(w + 2 < Wn, w + 2, gen(w))      # the wave that uses this generation next
                    for c in s.serial("c", nw*W + 1, least(nw*W + W, M - 1) + 1): s.signal(credit[c, p].at(back(n - c, M), j))
        if not full:
            with s.stream("read"): s.free(grad[ALL, ALL, ALL])

    def found(x, m, b, p):                                     # where the partial of node x for block b of node m comes from
        own = m.eq(x); c = where(own, M, back(m - x, M)); w = where(own, Wn - 1, (c - 1)//W)
        lane = (b - where(own, 0, c)) % L                                                   # eq. 8
        return dict(n=x, j=lane, p=p, w=w, c=c, r=(c - 1 - w*W)//k, node=m, lane=lane, cell=(gen(w), b))
    s.covers(inbox, dict(x=M, m=M, b=L, p=n_part), found)
