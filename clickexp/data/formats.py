"""The formats that `clickexp-data prepare` reads."""

from clickexp.data.baidu import open_baidu_ultr_uva
from clickexp.data.csv import open_csv
from clickexp.data.impressions import open_impressions
from clickexp.data.letor import open_letor
from clickexp.data.parquet import open_parquet
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
"""The opener of each format."""
