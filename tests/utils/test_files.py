"""Files that are whole or absent."""

from pathlib import Path

import pytest
from refusals import refuses

from clickexp.utils.files import whole


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_name_is_the_one_of_a_folder(path):
    with refuses(IsADirectoryError, str(Path(path)), "Is a directory"), whole(Path(path)):
        pass
