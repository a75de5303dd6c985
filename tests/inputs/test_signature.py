"""A group file is read as FSDP2 will shard it, or refused at its line."""
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Collective, stock_cause
from tidec.inputs.order import _EVENT_KEYS, _KEYS as _ORDER_KEYS, default_order, read_order
from tidec.inputs.signature import _FILE_KEYS, _GROUP_KEYS, _PARAMETER_KEYS, Dtype, Group, Parameter, Signature, canonical_text, digest, load_groups, read_groups
from tidec.inputs.topology import _KEYS, read_topology

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.json"))
MODELS = ROOT.parent / "shared" / "models"


def refusal(text: str) -> str:
    with pytest.raises(TidecError) as caught:
        read_groups(text, file="g.json")
    return str(caught.value)


def one(more: str = "", *, name: str = '"w"', shape: str = "[4]", dtype: str = '"bf16"') -> str:
    return f'{{"params": [\n {{"name": {name}, "shape": {shape}, "dtype": {dtype}{more}}}\n]}}'


REFUSED = [
    ('{"groups": [{"params": [], "repeats": 2}]}', 'P003 unknown-key]: group 0 has an unknown key "repeats"'),
    (one(shape="[-4]"), 'P005 bad-shape]: parameter "w" has a negative extent, -4'),
    (one(shape="[4611686018427387904, 2]"), 'P005 bad-shape]: parameter "w" has more bytes than 64 bits count'),
    (one(shape="4"), 'P002 malformed]: shape of parameter "w" is 4, not an array'),
    (one(shape="[true]"), 'P002 malformed]: an extent of parameter "w" is true, not an integer'),
    (one(shape="[4.0]"), 'P002 malformed]: an extent of parameter "w" is 4.0, not an integer'),
    (one(shape="[" + "9" * 30 + "]"), 'P002 malformed]: "g.json" holds an integer that does not fit 64 bits'),
    (one(dtype='"bfloat16"'), 'P002 malformed]: dtype of parameter "w" is "bfloat16"'),
    (one(dtype="null"), 'P002 malformed]: dtype of parameter "w" is null'),
    (one(name='"a\\nb"'), 'P002 malformed]: the name of parameter 0 of group "g" holds a character that cannot be printed'),
    (one(name='"\\ud800"'), 'P002 malformed]: the name of parameter 0 of group "g" holds a character that cannot be printed'),
    (one(name='""'), 'P002 malformed]: the name of parameter 0 of group "g" is "", not a non-empty string'),
    (one(', "requires_grad": 1'), 'P002 malformed]: requires_grad of parameter "w" is 1, not true or false'),
    (one(', "shard_dim": 1'), 'P002 malformed]: shard_dim of parameter "w" is 1, not 0'),
    (one(', "shard_dim": -1', shape="[2, 2]"), 'P002 malformed]: shard_dim of parameter "w" is -1, not an integer from 0 to 1'),
    (one(', "stride": [1, 1]'), 'P002 malformed]: stride of parameter "w" has 2 entries, its shape has 1'),
    (one(', "stride": [2]'), 'P005 bad-shape]: parameter "w" is not contiguous'),
    (one(', "tied_to": ["w"]'), 'P002 malformed]: tied_to of parameter "w" names the parameter itself'),
    (one(', "tied_to": "v"'), 'P002 malformed]: tied_to of parameter "w" is "v", not an array'),
    (one(', "name": "v"'), 'P002 malformed]: "g.json" holds the key "name" twice in one object'),
    ('[{"name": "w", "shape": [1]}]', 'P002 malformed]: parameter "w" has no dtype'),
    ('[{"shape": [1], "dtype": "bf16"}]', 'P002 malformed]: parameter 0 of group "g" has no name'),
    ("[3]", 'P002 malformed]: parameter 0 of group "g" is 3, not an object'),
    ("[]", 'P002 malformed]: params of group "g" is empty'),
    ('{"groups": []}', "P002 malformed]: groups is empty"),
    ('{"groups": [{"name": "a"}]}', 'P002 malformed]: group "a" has no params'),
    ('{"groups": [{"repeat": 0, "params": []}]}', 'P002 malformed]: repeat of group "g0" is 0, not an integer from 1'),
    ('{"groups": [{"reduce_dtype": "int8", "params": [{"name": "w", "shape": [1], "dtype": "bf16"}]}]}', 'P002 malformed]: reduce_dtype of group "g0" is "int8"'),
    ('{"params": [], "groups": []}', "P002 malformed]: a group file has both params and groups"),
    ('{"schema": "tidec.group/1"}', "P002 malformed]: a group file has neither params nor groups"),
    ('{"schema": "tidec.group/2", "params": []}', 'P002 malformed]: the schema of a group file is "tidec.group/1"'),
    ("3", "P002 malformed]: a group file is 3, not an object"),
    ("", 'P002 malformed]: "g.json" is not JSON: it ends where a value should be'),
]


def test_a_file_with_params_is_one_group_named_after_the_file(tmp_path):
    path = tmp_path / "tiny.v2.json"
    path.write_text('{"schema": "tidec.group/1", "notes": ["b", "a"], "params": [{"name": "w", "shape": [7, 2, 3], "dtype": "fp32"}]}')
    signature = load_groups(path)
    assert signature.source_name == "tiny.v2" and signature.about == (("notes", '["b","a"]'),)
    (group,) = signature.groups
    assert group == Group("tiny.v2", 1, (Parameter("w", (7, 2, 3), Dtype.FP32),))
    (w,) = group.params
    assert (w.rows, w.row_elems, w.elems, w.requires_grad, w.tied_to, w.shard_dim) == (7, 6, 42, True, (), 0)
    assert (group.gather_dtype, group.gradient_dtype, group.reduce_dtype, group.needs_cast, group.mesh) == (Dtype.FP32, Dtype.FP32, Dtype.FP32, False, "")


def test_a_bare_list_is_one_group_too():
    text = '[{"name": "w", "shape": [4], "dtype": "bf16"}]'
    assert read_groups(text, file="a/b.json") == read_groups('{"params": %s}' % text, file="b.json")


def test_groups_keep_their_order_names_and_types():
    signature = read_groups(json.dumps({"groups": [
        {"name": "block", "repeat": 3, "param_dtype": "bf16", "mesh": {"b": 1, "a": [2]}, "params": [
            {"name": "w", "shape": [4, 2], "dtype": "fp32", "stride": [2, 1]}, {"name": "b", "shape": [4], "dtype": "fp32", "requires_grad": False}]},
        {"params": [{"name": "w", "shape": [4, 2], "dtype": "fp32", "shard_dim": 1, "tied_to": ["v", "u"]}], "reduce_dtype": "bf16"},
        {"name": "block", "params": [{"name": "w", "shape": [0], "dtype": "fp64"}]}]}), file="g.json")
    first, second, third = signature.groups
    assert [(g.name, g.repeat) for g in signature.groups] == [("block", 3), ("g1", 1), ("block", 1)]
    assert (first.gather_dtype, first.gradient_dtype, first.needs_cast, first.mesh) == (Dtype.BF16, Dtype.BF16, True, '{"a":[2],"b":1}')
    assert [p.name for p in first.trainable] == ["w"]
    assert (second.params[0].tied_to, second.params[0].shard_dim, second.reduce_dtype) == (("v", "u"), 1, Dtype.BF16)
    assert third.params[0].elems == 0


def test_items_have_2_2_4_and_8_bytes():
    assert [(d.value, d.item_bytes) for d in Dtype] == [("bf16", 2), ("fp16", 2), ("fp32", 4), ("fp64", 8)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_load_and_count_what_they_say(path):
    said = json.loads(path.read_text())
    signature = load_groups(path)
    assert said["schema"] == "tidec.group/1" and signature.source_name == path.stem
    assert sum(g.repeat * sum(p.elems for p in g.params) for g in signature.groups) == said["total_params"]
    assert {key for key, _ in signature.about} >= {"model", "source", "notes"}


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared model files are not beside this checkout")
def test_the_shared_models_load_as_they_are():
    paths = [path for path in sorted(MODELS.glob("*.json")) if path.name != "EXPECTED.json"]
    assert len(paths) == 12
    for path in paths:
        said, signature = json.loads(path.read_text()), load_groups(path)
        assert [(g.name, g.repeat, len(g.params)) for g in signature.groups] == [(g["name"], g["repeat"], len(g["params"])) for g in said["groups"]], path


def test_strides_that_torch_calls_contiguous_are_accepted():
    for shape, stride in (("[4, 1, 3]", "[3, 77, 1]"), ("[1]", "[5]"), ("[0, 4]", "[9, 9]"), ("[2, 3]", "[3, 1]")):
        read_groups(one(f', "stride": {stride}', shape=shape), file="g.json")


def test_a_scalar_is_refused_with_the_remedy():
    assert refusal(one(shape="[]")) == """\
error[P005 bad-shape]: parameter "w" is a scalar: it has no dimension 0 to shard
  --> g.json:2   {"name": "w", "shape": [], "dtype": "bf16"}
  reason: FSDP2 refuses it too
  help: make it a tensor of one element, shape [1]"""


def test_a_transposed_view_is_refused():
    assert refusal(one(', "stride": [1, 4096]', shape="[4096, 4096]")) == """\
error[P005 bad-shape]: parameter "w" is not contiguous
  --> g.json:2   {"name": "w", "shape": [4096, 4096], "dtype": "bf16", "stride": [1, 4096]}
  reason: stride [1, 4096], contiguous is [4096, 1]; FSDP2 refuses it too
  help: call .contiguous() on the parameter before it is sharded"""


def test_an_unknown_key_names_the_parameter_and_the_nearest_key():
    assert refusal(one(', "requires_gard": true')) == """\
error[P003 unknown-key]: parameter "w" has an unknown key "requires_gard"
  --> g.json:2   {"name": "w", "shape": [4], "dtype": "bf16", "requires_gard": true}
  help: did you mean "requires_grad"?  the keys of a parameter are name, shape, dtype, requires_grad, tied_to, shard_dim, stride
  see: examples/README.md, every key of the input files"""


def test_a_key_of_a_group_outside_groups_is_refused_with_its_place():
    assert refusal('{"params": [],\n "param_dtype": "bf16"}') == """\
error[P003 unknown-key]: a group file has an unknown key "param_dtype"
  --> g.json:2   "param_dtype": "bf16"}
  help: param_dtype belongs to a group: list the group under groups
  see: examples/README.md, every key of the input files"""


def test_a_name_that_stands_twice_is_refused_at_the_second():
    assert refusal('[\n {"name": "w", "shape": [1], "dtype": "bf16"},\n {"name": "w", "shape": [2], "dtype": "bf16"}\n]') == """\
error[P002 malformed]: group "g" has two parameters "w"
  --> g.json:3   {"name": "w", "shape": [2], "dtype": "bf16"}
  reason: the other one stands on line 2
  help: give every parameter of a group its own name"""


def test_a_tied_tensor_is_listed_once():
    assert refusal('[\n {"name": "w", "shape": [1], "dtype": "bf16", "tied_to": ["v"]},\n {"name": "v", "shape": [1], "dtype": "bf16"}\n]') == """\
error[P002 malformed]: "v" is tied to "w" and has an entry of its own
  --> g.json:3   {"name": "v", "shape": [1], "dtype": "bf16"}
  reason: they are one tensor, which FSDP2 shards once
  help: delete the entry of "v\""""


def test_a_tensor_that_is_tied_through_a_third_name_is_one_tensor():
    def entry(name: str, tied: str) -> str:
        return f'{{"name": "{name}", "shape": [9, 4], "dtype": "bf16", "tied_to": ["{tied}"]}}'

    apart = '{"groups": [\n {"name": "embed", "params": [%s]},\n {"name": "head", "params": [%s]}\n]}'
    read_groups(apart % (entry("wte", "x"), entry("out", "y")), file="g.json")
    for name in ("out", "wte"):
        assert refusal(apart % (entry("wte", "x"), entry(name, "x"))) == f"""\
error[P002 malformed]: "{name}" of group "head" and "wte" of group "embed" are both tied to "x"
  --> g.json:3   {{"name": "head", "params": [{entry(name, "x")}]}}
  reason: they are one tensor, and FSDP2 refuses a tensor that two groups share (ValueError)
  help: shard the modules that share it in one group; where they are two tensors, write their names in full"""
    assert refusal(f'[\n {entry("wte", "x")},\n {entry("out", "x")}\n]').splitlines()[0] == 'error[P002 malformed]: "out" and "wte" are both tied to "x"'


@pytest.mark.parametrize("text, head", REFUSED)
def test_a_malformed_file_is_refused(text, head):
    assert refusal(text).splitlines()[0] == f"error[{head}"


def test_every_refusal_reads_as_written_down(golden):
    golden("inputs/groups-refused.txt", "\n".join(refusal(text) + "\n" for text, _ in REFUSED))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'["\xff"]')
    for path, words in ((tmp_path / "none.json", "P001 usage"), (tmp_path, "P001 usage"), (tmp_path / "latin.json", "P002 malformed")):
        with pytest.raises(TidecError, match=words):
            load_groups(path)


def test_the_digest_sees_what_a_plan_depends_on_and_nothing_else():
    def group(**changed):
        base = dict(name="g", repeat=1, dtype=Dtype.FP32, shape=(4, 2), requires_grad=True, shard_dim=0, tied_to=(), param="w", param_dtype=None, reduce_dtype=Dtype.FP32, mesh="")
        v = base | changed
        return Group(v["name"], v["repeat"], (Parameter(v["param"], v["shape"], v["dtype"], v["requires_grad"], v["tied_to"], v["shard_dim"]),),
                     param_dtype=v["param_dtype"], reduce_dtype=v["reduce_dtype"], mesh=v["mesh"])

    same = [group(), group(name="h"), group(repeat=9), group(tied_to=("v",)), group(param_dtype=Dtype.FP32)]
    assert len({digest(g) for g in same}) == 1
    other = [group(), group(param="v"), group(shape=(2, 4)), group(shape=(8,)), group(dtype=Dtype.BF16), group(requires_grad=False), group(shard_dim=1),
             group(param_dtype=Dtype.BF16), group(reduce_dtype=Dtype.BF16), group(mesh="1")]
    assert len({digest(g) for g in other}) == len(other)
    assert canonical_text(group()) == ('{"mesh":"","params":[{"dtype":"fp32","gathered_as":"fp32","name":"w","requires_grad":true,"shape":[4,2],"shard_dim":0}],'
                                       '"reduce_dtype":"fp32","schema":"tidec.group/1"}')


def test_the_digest_sees_the_order_of_parameters():
    for seed in range(20):
        rng = random.Random(seed)
        params = [Parameter(f"p{i}", (rng.randrange(1, 9),), Dtype.BF16) for i in range(rng.randrange(2, 9))]
        mixed = rng.sample(params, len(params))
        assert (digest(Group("g", 1, tuple(params))) == digest(Group("g", 1, tuple(mixed)))) == (params == mixed), f"seed {seed}"


def test_the_folder_of_a_file_is_in_no_digest(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "g.json").write_text(one())
    signatures = [load_groups(tmp_path / folder / "g.json") for folder in ("a", "b")]
    assert signatures[0] == signatures[1] and os.fspath(tmp_path) not in repr(signatures[0])


def test_reading_groups_loads_no_package():
    code = "import sys; import tidec.inputs.ask; sys.exit(any(m in sys.modules for m in ('torch', 'z3', 'numpy', 'networkx', 'jinja2')))"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.fspath(ROOT)})


def test_the_reference_names_every_key_and_its_example_is_planned_whole():
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    keys, programs = ({name for name in re.findall("^[|] (`[^|]+) [|]", part, re.M)} for part in text.split("\n# Programs\n"))
    assert {name for row in keys for name in re.findall("`([^`]+)`", row)} == {*_FILE_KEYS, *_GROUP_KEYS, *_PARAMETER_KEYS, *_KEYS, *_ORDER_KEYS, *_EVENT_KEYS}
    assert programs and all(any((ROOT / "examples").glob(program.strip("`"))) for program in programs)
    (example,) = re.findall("```json group\n(.*?)```", text, re.S)
    (topology,) = re.findall("```json topology\n(.*?)```", text, re.S)
    groups = read_groups(example, file="pebble.json").groups
    assert sum(g.repeat for g in groups) == 26 and all(stock_cause(g, c) is None for g in groups for c in Collective)
    assert str(read_topology(topology, file="t.json")) == "2x4"
    (order,) = re.findall("```json order\n(.*?)```", text, re.S)
    model = Signature((Group("embed", 1, groups[0].params), Group("block", 2, groups[1].params)), "m")
    assert read_order(order, file="o.json", signature=model).events == default_order(model).events
