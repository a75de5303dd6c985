"""Knobs have defaults that follow the lane count, ranges, and no silent effect."""
import random

import pytest

from tidec.errors import TidecError
from tidec.inputs.knobs import FULL, MAX_CHUNKS, NAMES, NOTHING_SET, Knobs, Settings, default_knobs, num_chunks, parse_knobs, read_settings


def refusal(settings, lanes=8, **more) -> str:
    with pytest.raises(TidecError) as caught:
        parse_knobs(settings, lanes, **more)
    assert [d.code for d in caught.value.diagnostics] == ["P006"]
    return str(caught.value)


REFUSED = [
    ("W=0", 'knob W is "0", not 1..L = 1..8'), ("W=9", 'knob W is "9", not 1..L = 1..8'), ("k=33", 'knob k is "33", not 1..32'),
    ("n_stg=9", "not 1..8"), ("n_part=5", "not 1..4"), ("stripes=9", "not 1..8"), ("n_out=0", "not full or a number from 1"),
    ("n_out=all", "not full or a number from 1"), ("n_out=99999999999", "not full or a number from 1"), ("k=1.5", "not 1..32"), ("k=-1", "not 1..32"),
    ("k=\u0663", "not 1..32"), ("cast=yes", "help: write cast=0 or cast=1"), ("pacing=1", "help: write pacing=on or pacing=off"),
    ("W", "knob W is given no value"), ("W=", "knob W is given no value"), ("=3", "there is no knob"),
]


def test_the_defaults_at_8_lanes():
    knobs = parse_knobs((), 8)
    assert knobs == default_knobs(8) == Knobs(8, 4)
    assert (knobs.n_stg, knobs.n_part, knobs.n_out, knobs.stripes, knobs.cast, knobs.pacing) == (2, 1, FULL, 1, None, False)
    assert str(FULL) == "full"


def test_k_follows_w_unless_it_is_set():
    assert [parse_knobs((f"W={w}",), 8).k for w in range(1, 9)] == [1, 2, 3, 4, 4, 4, 4, 4]
    assert parse_knobs(("W=2", "k=32"), 8) == Knobs(2, 32)
    assert parse_knobs(("W=2",), 8, defaults=Knobs(8, 6)).k == 2
    assert parse_knobs((), 2, defaults=Knobs(8, 6)) == Knobs(2, 2)


def test_every_setting_reaches_its_knob():
    settings = ("W=4", "k=3", "n_stg=8", "n_part=4", "n_out=3", "chunks=6", "stripes=3", "ctas_sum=16", "ctas_land=1024", "cast=1", "pacing=off")
    assert [s.partition("=")[0] for s in settings] == [name for name in NAMES if name != "chunk_bytes"]
    assert parse_knobs(settings, 8) == Knobs(4, 3, n_stg=8, n_part=4, n_out=3, chunks=6, stripes=3, ctas_sum=16, ctas_land=1024, cast=True)
    assert parse_knobs(("chunk_bytes=4096",), 8) == Knobs(8, 4, chunk_bytes=4096)
    assert parse_knobs(("cast=0", "n_out=full"), 8) == Knobs(8, 4, cast=False)


def test_an_outbox_holds_what_one_round_sends():
    for seed in range(300):
        rng = random.Random(seed)
        lanes = rng.randrange(1, 17)
        w, k, n_out, nodes = rng.randrange(1, lanes + 1), rng.randrange(1, 33), rng.randrange(1, 20), rng.choice([None, 1, 2, 3, 9, 64])
        least = min(k, w) if nodes is None else min(k, w, nodes - 1)
        settings = (f"W={w}", f"k={k}", f"n_out={n_out}")
        if n_out >= least:
            assert parse_knobs(settings, lanes, nodes=nodes).n_out == n_out, f"seed {seed}"
        else:
            assert f"= {least}\n" in refusal(settings, lanes, nodes=nodes), f"seed {seed}"


def test_an_outbox_that_was_not_set_grows_with_what_was():
    assert parse_knobs(("k=8",), 8, defaults=Knobs(8, 2, n_out=4)).n_out == 8


def test_a_small_outbox_is_refused_with_the_terms():
    assert refusal(("n_out=3",), nodes=8) == """\
error[P006 bad-knob]: n_out=3 is below min(k, W, M-1) = min(4, 8, 7) = 4
  reason: a round would wait for a block that only its own end frees
  help: write n_out=full, or a larger number"""


def test_an_unknown_knob_is_refused_with_the_nearest_one():
    assert refusal(("n_outs=3",)) == """\
error[P006 bad-knob]: there is no knob "n_outs"
  help: did you mean n_out?  the knobs are W, k, n_stg, n_part, n_out, chunk_bytes, chunks, stripes, ctas_sum, ctas_land, cast, pacing"""


def test_a_knob_that_no_plan_reads_cannot_be_set():
    assert refusal(("pacing=on",)) == """\
error[P006 bad-knob]: knob pacing cannot be set to on
  reason: no plan reads this knob yet
  help: leave pacing out, or write pacing=off"""


def test_settings_keep_what_was_set_whatever_the_order():
    settings = read_settings(("k=3", "W=4", "n_out=full"), 8)
    assert settings == read_settings(("n_out=full", "W=4", "k=3"), 8) == Settings((("W", 4), ("k", 3), ("n_out", FULL)))
    assert "k" in settings and "n_part" not in settings
    assert settings.over(Knobs(8, 4, n_stg=3)) == Knobs(4, 3, n_stg=3)
    assert read_settings((), 8) == NOTHING_SET and NOTHING_SET.over(Knobs(8, 4)) == Knobs(8, 4)


@pytest.mark.parametrize("settings", [("W=9",), ("W=2", "W=3"), ("pacing=on",), ("chunks=2", "chunk_bytes=64"), ("nothing=1",)])
def test_settings_are_refused_as_knobs_are(settings):
    with pytest.raises(TidecError) as caught:
        read_settings(settings, 8)
    assert str(caught.value) == refusal(settings)


def test_chunks_are_as_many_as_fit_a_slot_and_a_multiple_of_the_stripes():
    # Rows of 100 elements in bf16 over four lanes: a slot of 64 bytes has 8 columns, one of 200 bytes 24.
    rows = dict(row_elems=100, row_item_bytes=8)
    assert num_chunks(Knobs(4, 4), **rows) == 1
    assert num_chunks(Knobs(4, 4, chunk_bytes=64), **rows) == 13
    assert num_chunks(Knobs(4, 4, chunk_bytes=200), **rows) == 5
    assert num_chunks(Knobs(4, 4, chunk_bytes=200, stripes=4), **rows) == 8
    assert num_chunks(Knobs(4, 4, chunk_bytes=1), **rows) == 13       # never less than 8 columns
    assert num_chunks(Knobs(4, 4, stripes=3), **rows) == 3
    assert num_chunks(Knobs(4, 4, chunks=4, stripes=3)) == 6


def test_too_many_chunks_are_refused_with_the_size_that_fits():
    with pytest.raises(TidecError) as caught:
        num_chunks(Knobs(8, 4, chunk_bytes=1000), row_elems=10**6, row_item_bytes=16)
    assert str(caught.value) == """\
error[P006 bad-knob]: chunk_bytes=1000 cuts a block of 16,000,000 bytes into 17,858 chunks, more than 256
  help: write chunk_bytes=62592 or more"""
    assert num_chunks(Knobs(8, 4, chunk_bytes=62592), row_elems=10**6, row_item_bytes=16) <= 256


@pytest.mark.parametrize("stripes", range(1, 9))
def test_chunks_rounded_to_a_multiple_of_the_stripes_are_never_more_than_the_limit(stripes):
    """256 chunks in 7 stripes would be 259; 252 are the most."""
    most = MAX_CHUNKS // stripes * stripes
    for count in range(1, MAX_CHUNKS + 1):
        if count <= most:
            assert num_chunks(Knobs(8, 4, chunks=count, stripes=stripes)) == -(-count // stripes) * stripes <= MAX_CHUNKS
            continue
        with pytest.raises(TidecError) as caught:
            num_chunks(Knobs(8, 4, chunks=count, stripes=stripes))
        assert str(caught.value) == f"""\
error[P006 bad-knob]: {count} chunks in {stripes} equal stripes are {most + stripes}, more than {MAX_CHUNKS}
  help: write chunks={most} or fewer, or another number of stripes"""


def test_a_size_whose_chunks_only_the_stripes_make_too_many_is_refused_with_the_size_that_fits():
    """Blocks of 256 * 8 columns of 16 bytes: slots of 8 columns make 256 chunks, which 7 stripes make 259; slots of 16 make 128, which are 133."""
    rows = dict(row_elems=256 * 8, row_item_bytes=16)
    assert num_chunks(Knobs(8, 4, chunk_bytes=128), **rows) == 256
    with pytest.raises(TidecError) as caught:
        num_chunks(Knobs(8, 4, chunk_bytes=128, stripes=7), **rows)
    assert str(caught.value) == """\
error[P006 bad-knob]: chunk_bytes=128 cuts a block of 32,768 bytes into 259 chunks in 7 stripes, more than 256
  help: write chunk_bytes=256 or more"""
    assert num_chunks(Knobs(8, 4, chunk_bytes=256, stripes=7), **rows) == 133


def test_chunks_are_said_once():
    assert "set one of them" in refusal(("chunks=4", "chunk_bytes=4096"))


@pytest.mark.parametrize("setting, words", REFUSED)
def test_a_setting_out_of_range_is_refused(setting, words):
    assert words in refusal((setting,))


def test_a_knob_set_twice_is_refused():
    assert refusal(("W=1", "W=1")).startswith("error[P006 bad-knob]: knob W is set twice, to 1 and to 1\n")


def test_every_refusal_reads_as_written_down(golden):
    golden("inputs/knobs-refused.txt", "\n".join(refusal((setting,)) + "\n" for setting, _ in REFUSED))
