"""Plots for notebooks: message rate and size over time, lag per queue, queue × time heat map, born → store
latency.

`pip install 'rmq-spark[notebook]'` brings altair, imported when a chart is drawn; `rate_data` and the other
`…_data` need only Arrow.
"""

from rmq_spark.charts.counting import MESSAGE_COLUMNS
from rmq_spark.charts.data import Drawn, heat_data, lag_data, latency_data, rate_data
from rmq_spark.charts.drawing import heat_map, lag, latency, rate

__all__ = [
    "MESSAGE_COLUMNS",
    "Drawn",
    "heat_data",
    "heat_map",
    "lag",
    "lag_data",
    "latency",
    "latency_data",
    "rate",
    "rate_data",
]
