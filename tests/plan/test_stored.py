"""A stored plan comes back as it was, and anything else is refused without being run."""
import contextlib
import copy
import functools
import itertools
import json

import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan import listing
from tidec.plan.edges import wait_edges
from tidec.plan.lower import lower
from tidec.plan.stored import plan_from_json
from tidec.schedule.program import jsonable

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def planned(topo="3x2", collective=REDUCE, *, lowering=Lowering.P2P, knobs=(), gathered=None):
    topology = parse_topology(topo)
    params = (Parameter("a", (5, 4), Dtype.BF16), Parameter("b", (3,), Dtype.BF16), Parameter("f", (2, 2), Dtype.BF16, requires_grad=False))
    return lower(Ask(topology, Group("g", 1, params, param_dtype=gathered), lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


@pytest.mark.parametrize("topo", ["1x1", "1x2", "2x1", "3x2", "5x3"])
@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("options", [dict(), dict(lowering=Lowering.NVLS), dict(knobs=("n_part=2", "n_out=3")), dict(gathered=Dtype.FP32)])
def test_a_plan_comes_back_as_it_was(topo, collective, options):
    plan = planned(topo, collective, **options)
    back = plan_from_json(plan.to_json())
    assert (back.digest, back.program_digest, back.groups) == (plan.digest, plan.program_digest, ())
    assert back.arena == plan.arena and back.layout == plan.layout and jsonable(wait_edges(back.program)) == jsonable(wait_edges(plan.program))
    for rank, call in ((0, 0), (plan.ranks - 1, 3)):
        assert list(listing.lines(back, rank, call)) == list(listing.lines(plan, rank, call))


def refusal(text: str) -> TidecError:
    with pytest.raises(TidecError) as caught:
        plan_from_json(text)
    return caught.value


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"schema":"tidec.plan/2"}', '{"schema":"tidec.plan/1"}', "[" * 5000, "\x00", '{"schema":NaN}'])
def test_what_is_no_plan_is_refused(text):
    assert refusal(text).diagnostics[0].code == "P002"


ODD = (None, -1, 0, 7, 2**70, 1.5, True, "", "M", "e", "x y", [], {}, ["+", "M", 1], ["//", "M", 0], ["sym", "M"], "__import__('os')")


def places(value, path=()):
    """Every place of a JSON value, as a path of keys."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def changed(content, path, value):
    content = copy.deepcopy(content)
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("collective", Collective)
def test_any_change_of_a_value_gives_another_plan_or_a_refusal(collective, draws):
    plan, rng = planned(collective=collective), draws(11)
    content = json.loads(plan.to_json())
    paths = [p for p in places(content) if p]
    for path in rng.sample(paths, 120):
        other = functools.reduce(lambda at, key: at[key], rng.choice(paths), content)
        value = rng.choice([other, other, other, *ODD])
        text = changed(content, path, value)
        try:
            back = plan_from_json(text)
        except TidecError as error:
            assert error.diagnostics[0].code in ("P002", "P005", "V105", "V402"), (path, value)
        else:
            assert back.to_json() == text and (back.digest != plan.digest or text == plan.to_json()), (path, value)
            with contextlib.suppress(TidecError):
                list(itertools.islice(back.steps(back.ranks - 1), 2000))


def test_bytes_that_differ_are_refused_even_where_they_mean_the_same():
    text = planned().to_json()
    for other in (text + "\n", " " + text, text.replace(":", ": ", 1), json.dumps(json.loads(text)), text[:-1] + ',"more":1}', text[:-1] + ',"schema":"tidec.plan/1"}'):
        assert refusal(other).diagnostics[0].code == "P002"


def first(content, kind):
    """The path of the first object of that kind in the program."""
    for path in places(content):
        at = content
        for key in path:
            at = at[key]
        if path and isinstance(at, dict) and at.get("is") == kind and path[0] == "program":
            return path
    raise AssertionError(kind)


@pytest.mark.parametrize("where, field, value, words", [
    ("loop", "name", "x: print(1), y", "is not a name"), ("loop", "name", "lambda", "is not a name"), ("loop", "name", "top2", "is not a name"),
    ("loop", "name", "all", "is not a name"), ("loop", "name", "n", "is not a name"), ("loop", "hi", "zz", "no index zz"),
    ("loop", "hi", ["//", "M", 0], "does not take"), ("loop", "hi", ["*", "M", "M"], "does not take"), ("loop", "hi", ["%", "M", "n"], "does not take"),
    ("loop", "hi", ["<", "M", 3], "is a condition"), ("loop", "hi", ["+", ["<", "M", 3], 1], "does not take"), ("loop", "hi", ["exec", 1, 2], "not an expression"),
    ("loop", "hi", 2**70, "more than 64 bits"),
    ("loop", "hi", ["where", "M", 1, 2], "does not take"), ("loop", "step", "sideways", "is no step"), ("loop", "body", 3, "list is missing"),
    ("op", "kind", "extern", "is no opkind"), ("op", "seed", 1, "is not a condition"), ("op", "id", True, "number is missing"),
    ("op", "spot", [7], "text is missing"), ("cell", "buffer", "../x", "is not a name"), ("cell", "lane", "none", "no index none"),
    ("buffer", "dims", [], "no dimension"), ("buffer", "rests_at_zero", 0, "truth value"), ("program", "knobs", [["n_part", 900]], "n_part is out of range"),
    ("program", "knobs", [["chunks", 257]], "outside 1..256"), ("program", "knobs", [["chunks", 18], ["stripes", 9]], "outside 1..8"), ("program", "knobs", [["chunks", 5], ["stripes", 2]], "do not divide"),
    ("program", "knobs", [["n_part", None]], "neither a number"), ("program", "premises", ["n"], "not a condition"),
])
def test_a_malformed_program_is_refused_for_its_reason(where, field, value, words):
    content = json.loads(planned(collective=REDUCE).to_json())
    path = ("program",) if where == "program" else first(content, where)
    error = refusal(changed(content, (*path, field), value))
    assert error.diagnostics[0].code == "P002" and words in error.diagnostics[0].reason, error


def test_a_plan_of_the_other_collective_is_refused():
    content = json.loads(planned(collective=GATHER).to_json())
    assert "another collective" in str(refusal(changed(content, ("collective",), "reduce_scatter")))
    assert "share a name" in str(refusal(changed(content, ("params", 1, "name"), "a")))
    assert "numbers do not follow" in str(refusal(changed(content, ("params", 1, "shard_bytes"), 4)))


def test_deep_nesting_is_refused():
    content = json.loads(planned(collective=GATHER).to_json())
    deep = "M"
    for _ in range(400):
        deep = ["+", deep, 1]
    text = changed(content, (*first(content, "loop"), "hi"), "@@").replace('"@@"', json.dumps(deep, separators=(",", ":")).replace('"M"', "[" * 90000 + "]" * 90000))
    assert refusal(text).diagnostics[0].code == "P002"
