"""How the memory of a model is told."""
from tidec.commands.memory import against, arena_fields, arena_text, memory_fields, memory_of, memory_text
from tidec.inputs.ask import Mode
from tidec.inputs.order import default_order
from tidec.inputs.signature import Dtype, Group, Parameter, Signature
from tidec.inputs.topology import Topology
from tidec.plan.model_arena import Need, lay_model_arena

GIB = 2**30
WEIGHT = (Parameter("w", (2**10, 2**20), Dtype.BF16),)                 # 2 GiB
MODEL = Signature((
    Group("embed", 1, (Parameter("e", (2**10, 2**19), Dtype.BF16),)), Group("block", 12, WEIGHT), Group("a", 1, WEIGHT), Group("b[0]", 1, WEIGHT), Group("c", 1, WEIGHT),
), "m")
NEEDS = (Need(GIB, 2**20, 5, GIB, "E"), *[Need(2 * GIB, 2**21, 7, 3 * GIB, "B")] * 3, Need(), )


def arenas():
    order = default_order(MODEL)
    return tuple(lay_model_arena(order, NEEDS, mode=mode) for mode in Mode)


def test_the_table_of_memory(golden):
    memory = memory_of(MODEL, Topology(4, 8), arenas(), (NEEDS, NEEDS))
    golden("cli/memory-table.txt", memory_text(memory) + "\n")
    assert [row["peak_bytes"] for row in memory_fields(memory)["systems"]] == [row.peak.total for row in memory.rows]
    # Stock at the end of a block's backward: its parameters, the next one's, its gradients, and the pack of the one before, twice its bf16.
    assert memory.rows[0].peak.total == 31 * GIB // 32 + (2 + 2 + 2 + 4) * GIB and memory.layer == "block"


def test_groups_on_a_mesh_apart_are_told():
    model = Signature((*MODEL.groups[:4], Group("c", 1, WEIGHT, mesh="[8]")), "m")
    memory = memory_of(model, Topology(4, 8), arenas(), (NEEDS, NEEDS))
    assert memory_fields(memory)["groups_apart"] == 1 and "; 1 group on a mesh apart counted as if all ranks shared them\n" in memory_text(memory)
    assert "apart" not in memory_text(memory_of(MODEL, Topology(4, 8), arenas(), (NEEDS, NEEDS)))


def test_the_arena_names_every_region_and_who_has_it(golden):
    first = arenas()[0]
    golden("cli/memory-arena.txt", arena_text(first, MODEL, separate_bytes=99 * GIB) + "\n")
    fields = arena_fields(first, separate_bytes=99)
    assert fields["regions"][0]["groups"][:3] == ["embed", "block[1]", "block[3]"] and fields["regions"][1]["groups"][-1] == "a"
    assert [r["fences"] for r in fields["regions"]] == [0, 0, 0, 0, 2] and fields["bytes"] == first.bytes
    nothing = lay_model_arena(default_order(MODEL), [Need()] * 5, mode=Mode.IN_PLACE)
    assert arena_text(nothing, MODEL, separate_bytes=0) == "arena of the model: none, nothing is planned"


def test_differences_to_stock_have_their_sign():
    assert [against(5 * GIB, 5 * GIB), against(7 * GIB, 5 * GIB), against(5, 2**10)] == ["", "+2.00 GiB", "-1019 B"]
