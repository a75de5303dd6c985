"""Inputs are read more strictly than JSON demands, and every value knows its line."""
import json
import random

import pytest

from tidec.errors import TidecError
from tidec.inputs.document import nearest, parse, plain_text, read_file


def refusal(text: str) -> str:
    with pytest.raises(TidecError) as caught:
        parse(text, file="f.json")
    assert [d.code for d in caught.value.diagnostics] == ["P002"]
    return str(caught.value)


REFUSED = [
    ("", 1, "it ends where a value should be"),
    ('{"params": [', 1, "it ends where a value or ] should be"),
    ('{"a": 1,\n "a": 1}', 2, 'holds the key "a" twice'),
    ('{"a": NaN}', 1, "NaN is not one of its values"),
    ('[\n-Infinity]', 2, "-Infinity is not one of its values"),
    ("[1e999]", 1, "a number that no double can hold"),
    ("[9223372036854775808]", 1, "does not fit 64 bits"),
    ("[" + "9" * 10000 + "]", 1, "does not fit 64 bits"),
    ("[012]", 1, '"012]" stands where a value or ] should be'),
    ("[1]\n\n[2]", 3, "there is more text after its end"),
    ('{"a": 1,}', 1, "a comma stands before }"),
    ("[1,]", 1, "a comma stands before ]"),
    ("[1 2]", 1, '"2" stands where , or ] should'),
    ('{"a" 1}', 1, 'no colon follows the key "a"'),
    ("{a: 1}", 1, '"a" stands where a key should'),
    ("[,]", 1, '"," stands where a value should'),
    ('["\\x"]', 1, "a string holds a wrong escape"),
    ('["a\tb"]', 1, "where a value or ] should be"),
    ("[" * 100, 1, "is nested more than 64 deep"),
]


def test_values_know_their_lines():
    document = parse('{\n "a": [1,\n  true],\n\n "b": {"c": null}}', file="f.json")
    a, b = document.root.value.members
    assert (a.key, a.line, a.node.line) == ("a", 2, 2)
    assert [(item.value, item.line) for item in a.node.value] == [(1, 2), (True, 3)]
    assert (b.line, b.node.value.members[0].node.value) == (5, None)


@pytest.mark.parametrize("text, line, words", REFUSED)
def test_what_is_not_strict_json_is_refused_at_its_line(text, line, words):
    message = refusal(text)
    assert words in message and f"--> f.json:{line}" in message, message


def test_every_refusal_reads_as_written_down(golden):
    golden("inputs/json-refused.txt", "\n".join(refusal(text) + "\n" for text, _, _ in REFUSED))


def test_text_that_json_reads_is_read_alike():
    def draw(rng, depth):
        kind = rng.randrange(8 if depth < 4 else 6)
        if kind == 6:
            return [draw(rng, depth + 1) for _ in range(rng.randrange(4))]
        if kind == 7:
            return {rng.choice("abc\"\\\n\u00e9") * i: draw(rng, depth + 1) for i in range(rng.randrange(4))}
        return [None, True, False, rng.randrange(-2**63 + 1, 2**63), rng.random() * 10.0 ** rng.randrange(-30, 30), rng.choice(["", "x", "\u00fc\n\t/\\", "[1,2"])][kind]

    for seed in range(200):
        value = draw(random.Random(seed), 0)
        for indent in (None, 1):
            text = json.dumps(value, indent=indent, ensure_ascii=seed % 2 == 0)
            assert plain_text(parse(text, file="f").root) == json.dumps(value, sort_keys=True, separators=(",", ":")), f"seed {seed}: {text}"


def test_the_nearest_word_ignores_case():
    assert nearest("w", ("W", "stripes")) == "W"
    assert nearest("shpae", ("name", "shape")) == "shape"
    assert nearest("?", ("name",)) == "name"


def test_a_file_without_end_is_refused_at_once(tmp_path):
    with pytest.raises(TidecError, match="P001 usage.*cannot be read(?s:.*)it is a device"):
        read_file("/dev/zero")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(16 * 2**20 + 1)
    with pytest.raises(TidecError, match="P002 malformed.*larger than 16 MiB"):
        read_file(tmp_path / "large")
