"""How what a user is told reads."""
import pytest

from tidec.errors import bytes_text


@pytest.mark.parametrize("count, text", [
    (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (10 * 2**20, "10.0 MiB"), (999 * 2**30, "999 GiB"), (2**63, "8.00 EiB"),
])
def test_bytes_have_three_digits_and_a_unit(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize("count, text", [(10 * 2**10 - 1, "10.0 KiB"), (100 * 2**20 - 1, "100 MiB"), (2**20 - 1, "1.00 MiB"), (2**30 - 1, "1.00 GiB"), (2**70, "1024 EiB")])
def test_what_is_rounded_up_has_no_digit_more(count, text):
    assert bytes_text(count) == text
