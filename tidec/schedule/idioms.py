"""Everything that a file in `schedules/` imports: the language and the index arithmetic."""
from tidec.index import Index, Truth, back, ceildiv, every, least, most, no, some, times, top2, where, wrap
from tidec.schedule.program import ALL, OTHERS, Block, Scope
from tidec.schedule.tracer import Schedule

SELF, NODE, LANES, RAIL = Scope.SELF, Scope.NODE, Scope.LANES, Scope.RAIL

__all__ = [
    "ALL", "LANES", "NODE", "OTHERS", "RAIL", "SELF", "Block", "Index", "Schedule", "Truth", "back", "ceildiv", "every", "least", "most", "no", "some", "times",
    "top2", "where", "wrap",
]
