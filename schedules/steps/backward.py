"""One step of backward: a reduce-scatter in its two phases, and the all-gather that lands next where its gradients may lie.

M nodes, L lanes, n node, j lane, e call. Calls are numbered so that all-gather e comes with reduce-scatter e and lands in bank e % B of its B landings; reduce-scatter e takes
the gradients of the parameters of all-gather e - B, which lay in that bank. A use of a landing is (call, what): 0 gradients, 1 parameters.
Paper sections 5.1 to 5.3, Algorithm 1.
"""
from tidec.schedule.idioms import ALL, Block, where


def backward(s, *, slot_reuse, ahead):
    M, L = s.nodes, s.lanes
    (n, j), e = s.here, s.call
    filled, consumed = s.flag("filled"), s.flag("consumed")    # the gradients are where they are read; they have been read

    if slot_reuse:                                             # each lies anywhere in the bank: groups of other shapes land there too
        land = s.gather.buffer("land", source=lambda b, m, i, what: (where(what.eq(0), n, m), where(what.eq(0), j, i)))
        B = land.count(0)
        s.reduce.lies(("grad", "rows"), land[e % B, ALL, ALL].of(0))
        grads = s.input("grads", Block.PLACED, node=M, lane=L, holds=lambda m, i: (m, i), source=lambda *_: (n, j))

    def gather():
        if slot_reuse:
            with s.stream("ag_entry"): s.wait(consumed)        # the prefetch gate, before this lane tells the others of room
        s.issue(s.gather.behind_uses)

    s.issue(s.gather.uses)                                     # where B = 1, the parameters have been used before gradients lie there
    with s.stream("ag_compute"):                               # the caller's own stream, behind its use of the parameters
        if slot_reuse: s.copy(grads[ALL, ALL], land[e % B, ALL, ALL].of(0))
        s.signal(filled)
    for stream in s.reduce.readers:
        with s.stream(stream): s.wait(filled)
    s.issue(s.reduce.reads, freed=consumed)
    if ahead: gather()
    s.issue(s.reduce.network, freed=consumed)
    if not ahead: gather()
