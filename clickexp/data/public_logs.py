"""Public logs that a command downloads."""

from collections.abc import Mapping
from typing import NamedTuple


class PublicLog(NamedTuple):
    """Where a public log is.

    Attributes:
        repository: A repository of data sets on Hugging Face.
        folder: Its folder there.
    """

    repository: str
    folder: str


_CLAX = "philipphager/clax-datasets"
PUBLIC: Mapping[str, PublicLog] = {
    "yandex_clax": PublicLog(_CLAX, "yandex"),
    "baidu_ultr": PublicLog(_CLAX, "baidu-ultr"),
    "baidu_ultr_uva": PublicLog(_CLAX, "baidu-ultr-uva"),
}
"""Public logs by the option of `dataset=` that reads them."""


def how_to_get(name: str | None) -> str:
    """Returns a sentence on where a log comes from; nothing where it is not known.

    Args:
        name: Of the dataset.
    """
    if name is None or name not in PUBLIC:
        return ""
    return f" clickexp-data download {name} FOLDER fetches it into FOLDER/{PUBLIC[name].folder}."
