"""Files that are whole or absent."""

import os
from pathlib import Path

import pytest
from refusals import refuses

from clickexp.errors import UserError
from clickexp.utils.files import whole


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_name_is_the_one_of_a_folder(path):
    with refuses(IsADirectoryError, str(Path(path)), "Is a directory"), whole(Path(path)):
        pass


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path):
    """An administrator's --onnx /dev/null replaced the device for the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with refuses(UserError, str(pipe), "Choose another place"), whole(pipe):
        pytest.fail("nothing is written")
    assert pipe.is_fifo()


def test_an_error_names_the_file_and_not_its_part(tmp_path):
    file = tmp_path / "no/such/ranker.onnx"
    with refuses(FileNotFoundError, f"'{file}'"), whole(file) as part:
        part.write_text("ranker")
