"""TIDE's reduce-scatter: gradients are read where autograd left them, summed in fp32, and land on the rank that owns them.

M nodes, L lanes, n node, j lane, e call, c contributor (c = M is the own node), t target node, w wave, W width, g generation, p part (pass),
J remote block in sending order, G node-local sum in order, U chunk of them in order, x stripe, y chunk of a stripe, d diagonal, o lane.
Paper sections 4 and 5.2, Algorithm 1.
"""
from tidec.schedule.idioms import ALL, LANES, NODE, OTHERS, RAIL, Block, back, ceildiv, every, least, no, some, times, where, wrap


def tide_rs(s, *, W, k, n_part=1, n_out="full", n_stg=2, chunks=1, stripes=1, multicast=False):
    M, L = s.nodes, s.lanes                                    # M is a symbol; L and the knobs are ints
    (n, j), e = s.here, s.call
    Wn, D = ceildiv(M, W), n_part * (M - 1)                    # waves in a pass; remote blocks in a call
    full = n_out == "full"
    ahead = D if full else least(n_out, D)                     # blocks summed before the network starts
    Gn = D + n_part                                            # node-local sums in a call
    per = chunks // stripes                                    # chunks of a stripe
    cut = dict(cut=stripes, piece=per) if chunks > 1 else {}   # a block is whole, or in pieces: chunk y of stripe x
    whole = (ALL, ALL) if cut else ()
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
    def chunk(U):      return U // chunks, *((U // per % stripes, U % per) if cut else ())  # the sum that it is of, and its piece
    def staged_for(U):                                         # what the staging of chunk U is for
        G, *at = chunk(U)
        is_own = every(G >= ahead, G < ahead + n_part); x = where(G < ahead, G, G - n_part)
        return (where(is_own, G - ahead, part(x)), where(is_own, n, served(dest(x))), where(is_own, j, sub(dest(x), j)), *at)
    def each_chunk(G):                                         # (its number in the call, its piece)
        if not cut: yield G, ()
        else:
            for x in s.serial("x", 0, stripes):
                for y in s.serial("y", 0, per): yield (G*stripes + x)*per + y, (x, y)
    def each_stripe():
        if stripes == 1: yield 0, ()
        else:
            for x in s.serial("x", 0, stripes): yield x, (x,)

    grad   = s.input ("grad",   Block.GRAD_SLICE, part=n_part, node=M, sub=L, **cut, holds=lambda p, t, b, *q: (p, t, b, *q), source=lambda *_: (n, j))
    stage  = s.buffer("stage",  Block.SLICE, slot=n_stg, src=L, per=("U",),   holds=lambda q, i, U: staged_for(U), source=lambda q, i, U: (n, i))
    outbox = s.buffer("outbox", Block.PARTIAL, bank=2, block=D if full else n_out, **cut, per=("J",),
                      holds=lambda b, q, *at: (part(at[-1]), served(dest(at[-1])), sub(dest(at[-1]), j), *at[:-1]), source=lambda *_: (n, ALL))
    spare  = s.buffer("spare",  Block.PARTIAL, bank=2, part=n_part, **cut,    holds=lambda b, p, *q: (p, n, j, *q), source=lambda *_: (n, ALL))
    inbox  = s.buffer("inbox",  Block.PARTIAL, gen=least(2, Wn), sub=L, **cut, per=("p", "w"), rests_at_zero=True, before=prev, holds=lambda g, b, *at: (at[-2], n, b, *at[:-2]))
    out    = s.output("out",    Block.OUT_SLICE, part=n_part, sub=L, **cut, per=("p", "w"), holds=lambda q, b, *at: (q, n, b, *at[:-2]))
    staged, freed = s.flag("staged", LANES, U=(0, Gn*chunks)), s.flag("freed", LANES, U=(0, Gn*chunks))
    stripe = dict(x=(0, stripes)) if stripes > 1 else {}
    pushed, summed, sent = s.flag("pushed"), s.flag("summed", J=(0, D)), s.flag("sent", each=True, J=(0, D), **stripe)
    owned, placed = s.flag("owned", p=(0, n_part)), s.flag("placed", p=(0, n_part))
    arrived = s.flag("arrived", RAIL, on=dict(c=(1, M), **stripe), p=(0, n_part))
    credit  = s.flag("credit",  RAIL, on=dict(c=(1, M)), p=(0, n_part))
    ready, landed = s.flag("ready", NODE, p=(0, n_part), w=(0, Wn)), s.flag("landed", NODE, p=(0, n_part), w=(0, Wn))

    def level1(G, theirs, mine, stage, into, **told):          # one node-local sum, the G-th of the call, chunk after chunk
        for U, at in each_chunk(G):
            last = Gn*chunks - 1                               # of a call; `far` is the slot's last user in the call before
            far = last - (last - U) % n_stg
            if L > 1:
                with s.stream("push"):                         # runs ahead of the sums by as many chunks as there are slots
                    for o in s.others("o"): s.wait(freed.call(where(U >= n_stg, e, e - 1))[where(U >= n_stg, U - n_stg, far)].by(n, o))
                    for o in s.each_other("o"): s.copy(theirs(o, at), stage[U % n_stg, j].of(U).at(n, o))
                    s.join()
                    for o in s.others("o"): s.signal(staged[U].at(n, o))
            with s.stream("sum"):
                for i in s.others("i"): s.wait(staged[U].by(n, i))
                s.sum(stage[U % n_stg, OTHERS].of(U), mine(at), into=into(at), **told)
                for i in s.others("i"): s.signal(freed[U].at(n, i))
    def partial(G, p, c, into):                                # contributor c's partial of part p
        level1(G, lambda o, at: grad[p, served(c), sub(c, o), *at], lambda at: grad[p, served(c), sub(c, j), *at], stage, into, contributor=c)
    def reusable(call, J):                                     # every stripe of outbox block J has left
        for _, x in each_stripe(): s.wait(sent.call(call)[J, *x])
    def free(gradients):                                       # all pushes and sums of the call have read them
        if L > 1:
            with s.stream("push"): s.signal(pushed)
        with s.stream("sum"):
            if L > 1: s.wait(pushed)
            s.free(gradients)

    with s.when(s.single_node):                                # every lane sums its own row, straight into the output
        rows   = s.input ("rows",   Block.GRAD_ROW, part=n_part, lane=L, **cut,   holds=lambda p, i, *q: (p, i, *q), source=lambda *_: (n, j))
        landing = s.buffer("row_stage", Block.ROW, slot=n_stg, src=L, per=("U",), source=lambda q, i, U: (n, i),
                           holds=lambda q, i, U: (chunk(U)[0], j, *chunk(U)[1:]))
        result = s.output("result", Block.OUT_ROW, part=n_part, **cut,            holds=lambda p, *q: (p, j, *q),    source=lambda *_: (n, ALL))
        for p in s.serial("p", 0, n_part): level1(p, lambda o, at: rows[p, o, *at], lambda at: rows[p, j, *at], landing, lambda at: result[p, *at], seed=True)
        free(rows[ALL, ALL, *whole])

    with s.when(no(s.single_node)):
        with s.stream("sum"):                                  # level 1: everything that the outbox has room for, then the own node
            for x in s.serial("J", 0, ahead):
                reusable(e - 2, x if full else D - 1 - (D - 1 - x) % n_out)
                partial(x, part(x), dest(x), lambda at: outbox[e % 2, block(x), *at].of(x))
                s.signal(summed[x])
            for p in s.serial("p", 0, n_part):
                s.wait(placed.call(e - 2)[p])
                partial(ahead + p, p, M, lambda at: spare[e % 2, p, *at])
                s.signal(owned[p])
        if full: free(grad[ALL, ALL, ALL, *whole])

        for p in s.serial("p", 0, n_part):                     # level 2: rails and landings
            for w in s.serial("w", 0, Wn):
                g, end = gen(w), least(w*W + W, M - 1) + 1     # buffer generation; behind the last remote c
                pe, pp, pw = prev(e, p, w)
                for r in s.serial("r", 0, ceildiv(end - (w*W + 1), k), at_most=ceildiv(W, k)):
                    lo = w*W + 1 + r*k; hi = least(lo + k, end)
                    with s.stream("net"):
                        for c in s.serial("c", lo, hi, at_most=k):
                            s.wait(summed[J(p, c)])
                            s.wait(credit.call(pe)[c, pp].by(wrap(n + c, M), j))
                        for c in s.serial("c", lo, hi, at_most=k):             # with no wait between them, so that all are under way at once
                            t = wrap(n + c, M)
                            for context, x in each_stripe():   # each over an RMA context of its own
                                at = (*x, *whole[len(x):]) if x else whole
                                s.put(outbox[e % 2, block(J(p, c)), *at].of(J(p, c)), inbox[g, sub(c, j), *at].at(t, j),
                                      then=arrived[c, *x, p].at(t, j), done=sent[J(p, c), *x], context=context, contributor=c)
                        for c in s.serial("c", lo, hi, at_most=k):
                            for _, x in each_stripe(): s.wait(arrived[c, *x, p].by(back(n - c, M), j))
                    if not full:
                        with s.stream("sum"):                  # sum what is left into the blocks that this round frees
                            for x in s.serial("J", J(p, lo) + n_out, least(J(p, hi) + n_out, D)):
                                reusable(e, x - n_out)
                                partial(x + n_part, part(x), dest(x), lambda at: outbox[e % 2, block(x), *at].of(x))
                                s.signal(summed[x])
                with s.stream("net"):
                    with s.when(w.eq(Wn - 1)):
                        s.wait(owned[p])
                        s.copy(spare[e % 2, p, *whole], inbox[g, j, *whole], contributor=M)
                        s.signal(placed[p])
                    if L > 1:                                  # else every wave fills the only block
                        for d in s.each_lane("d"):             # blocks that only the last use of this generation filled
                            with s.when(every(fills(pw, d), no(fills(w, d)))): s.zero(inbox[g, (j + d) % L, *whole])
                        s.join()
                    s.meet(ready[p, w])
                    s.land(inbox[g, ALL, *whole].at(n, ALL), into=out[p, ALL, *whole], seed=w.eq(0))
                    s.meet(landed[p, w])
                    nw = where(w + 2 < Wn, w + 2, gen(w))      # the wave that uses this generation next
                    for c in s.serial("c", nw*W + 1, least(nw*W + W, M - 1) + 1): s.signal(credit[c, p].at(back(n - c, M), j))
        if not full: free(grad[ALL, ALL, ALL, *whole])

    def found(x, m, b, p, *at):                                # where the partial of node x for block b of node m comes from
        own = m.eq(x); c = where(own, M, back(m - x, M)); w = where(own, Wn - 1, (c - 1)//W)
        lane = (b - where(own, 0, c)) % L                                                   # eq. 8
        return dict(n=x, j=lane, p=p, w=w, c=c, r=(c - 1 - w*W)//k, node=m, lane=lane, cell=(gen(w), b, *at), **(dict(x=at[0]) if stripe else {}))
    s.covers(inbox, dict(x=M, m=M, b=L, p=n_part, **cut), found)
