"""How numbers, names and tables read."""
from tidec.commands.tell import count_text, short, table


def test_counts_have_their_plural():
    assert [count_text(n, "rank") for n in (0, 1, 1024)] == ["0 ranks", "1 rank", "1,024 ranks"] and count_text(2, "class") == "2 classes"


def test_a_long_name_is_cut():
    assert short("a" * 40) == "a" * 40 and short("a" * 41) == "a" * 37 + "..."


def test_a_table_is_as_wide_as_its_cells_and_has_no_trailing_spaces():
    assert table(("name", "n"), [("a", "1"), ("long name", "10")], right=(1,)) == "name        n\na           1\nlong name  10"
    assert table(("a", "b"), [("x", "")]) == "a  b\nx"
