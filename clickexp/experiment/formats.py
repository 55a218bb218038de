"""The formats of logs, by the names that `dataset=` and `clickexp-data` use."""

from clickexp.data.readers.baidu import open_baidu_ultr_uva
from clickexp.data.readers.counts import open_counts
from clickexp.data.readers.impressions import open_impressions
from clickexp.data.readers.lists import open_lists
from clickexp.data.readers.tiangong_st import open_tiangong_st
from clickexp.data.readers.yandex import open_yandex
from clickexp.simulation.letor import open_letor

FORMATS = {
    "baidu_ultr_uva": open_baidu_ultr_uva,
    "counts": open_counts,
    "impressions": open_impressions,
    "letor": open_letor,
    "lists": open_lists,
    "tiangong_st": open_tiangong_st,
    "yandex": open_yandex,
}
"""The opener of each format."""
