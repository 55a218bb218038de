"""Hashes of what files hold: they change with a byte, and not with names or folders."""

import os

import pytest

from clickexp.utils.content import content_of, content_of_all

LARGE = 3_000_000


def test_files_share_a_hash_where_they_hold_the_same(tmp_path):
    for name, text in (("a", "1,0,1"), ("b", "1,0,1"), ("c", "1,1,1")):
        (tmp_path / name).write_text(text)
    one, same, other = (content_of(tmp_path / name) for name in "abc")
    assert one == same and one != other
    assert content_of_all([tmp_path / "a"]) != content_of_all([tmp_path / "b"])


@pytest.mark.parametrize("place", [0, LARGE // 2, LARGE - 1])
def test_a_byte_at_head_middle_or_tail_of_a_large_file_counts_at_the_same_time_of_change(
    tmp_path, place
):
    content = bytearray(LARGE)
    (tmp_path / "one").write_bytes(content)
    content[place] = 1
    (tmp_path / "other").write_bytes(content)
    for name in ("one", "other"):
        os.utime(tmp_path / name, (1, 1))
    assert content_of(tmp_path / "one") != content_of(tmp_path / "other")


def test_elsewhere_in_a_large_file_the_time_of_change_tells(tmp_path):
    """Alone: a program that sets it back is not seen there. Moving a file, or a copy with its time, changes nothing."""
    file, copy = tmp_path / "one", tmp_path / "copy"
    file.write_bytes(bytes(LARGE))
    copy.write_bytes(bytes(LARGE))
    for each in (file, copy):
        os.utime(each, (1, 1))
    before = content_of(file)
    assert before == content_of(copy)
    content = bytearray(LARGE)
    content[LARGE // 3] = 1
    file.write_bytes(content)
    os.utime(file, (2, 2))
    assert content_of(file) != before
    os.utime(file, (1, 1))
    assert content_of(file) == before
    assert content_of(copy.rename(tmp_path / "moved")) == before
