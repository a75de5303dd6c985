"""Every knob and every word of the glossary has a page."""
import re
from pathlib import Path

import pytest

from tidec.commands.words import GLOSSARY, KNOBS, NOT_BUILT, page, words
from tidec.inputs.knobs import _NOT_BUILT, NAMES

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_glossary_is_that_of_the_readme():
    table = README.read_text(encoding="utf-8").partition("## Glossary")[2]
    assert re.findall(r"^\| ([^|]+) \| (.+) \|$", table, re.M)[2:] == list(GLOSSARY.items())


def test_every_knob_has_a_page_that_says_whether_it_is_built():
    assert set(KNOBS) == set(NAMES) and len(set(words())) == len(words())
    assert {name for name, text in KNOBS.items() if text.endswith(NOT_BUILT)} == set(_NOT_BUILT)
    assert all("default" in text for text in KNOBS.values())


def test_a_knob_and_a_word_read(told, golden):
    golden("cli/explain-knob.txt", told("explain", "W"))
    golden("cli/explain-word.txt", told("explain", "Premise"))
    golden("cli/explain-no-such-word.txt", told("explain", "premises"))


@pytest.mark.parametrize("word", words())
def test_every_word_is_explained(word, json_of):
    exit_code, content = json_of("explain", word)
    assert exit_code == 0 and content["schema"] == "tidec.explain/1" and word in content["word"] and content["page"] == page(word)[1]


def test_a_folder_comes_before_a_word(told, tmp_path, monkeypatch):
    (tmp_path / "bank").mkdir()
    assert told("explain", tmp_path / "bank").endswith("exit 2\n")
