"""Charts for notebooks: rate and size over time, busy queues, latency, lag, and a map of the store's files.

`pip install 'rmq-spark[notebook]'` installs altair, which is imported when a chart is drawn; `rate_data` and
the other `…_data` functions need only Arrow.
"""

from rmq_spark.charts.counting import MESSAGE_COLUMNS
from rmq_spark.charts.data import Drawn, heat_data, lag_data, latency_data, rate_data
from rmq_spark.charts.drawing import heat_map, lag, latency, rate
from rmq_spark.charts.file_map import file_map, file_map_data

__all__ = [
    "MESSAGE_COLUMNS",
    "Drawn",
    "file_map",
    "file_map_data",
    "heat_data",
    "heat_map",
    "lag",
    "lag_data",
    "latency",
    "latency_data",
    "rate",
    "rate_data",
]
