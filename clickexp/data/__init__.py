"""Readers that turn each format into packed sessions, and the loader that feeds them to training."""

from clickexp.data.baidu import open_baidu_ultr_uva
from clickexp.data.csv import open_csv
from clickexp.data.dataset import Dataset, keep_queries_seen, split
from clickexp.data.features import Features
from clickexp.data.impressions import open_impressions
from clickexp.data.letor import open_letor
from clickexp.data.loader import Superbatch, superbatches
from clickexp.data.log import Log, LogWriter, log_format, open_prepared, prepare
from clickexp.data.pack import PackWriter
from clickexp.data.parquet import open_parquet
from clickexp.data.schema import DataError, Place
from clickexp.data.sessions import Sessions
from clickexp.data.tiangong_st import open_tiangong_st
from clickexp.data.yandex import open_yandex

FORMATS = {
    "baidu_ultr_uva": open_baidu_ultr_uva,
    "csv": open_csv,
    "impressions": open_impressions,
    "letor": open_letor,
    "parquet": open_parquet,
    "tiangong_st": open_tiangong_st,
    "yandex": open_yandex,
}
"""The opener of each format that `clickexp-data prepare` reads."""

__all__ = [
    "FORMATS",
    "DataError",
    "Dataset",
    "Features",
    "Log",
    "LogWriter",
    "PackWriter",
    "Place",
    "Sessions",
    "Superbatch",
    "keep_queries_seen",
    "log_format",
    "open_baidu_ultr_uva",
    "open_csv",
    "open_impressions",
    "open_letor",
    "open_parquet",
    "open_prepared",
    "open_tiangong_st",
    "open_yandex",
    "prepare",
    "split",
    "superbatches",
]
