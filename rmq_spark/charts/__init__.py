"""Charts for notebooks: rate, busy queues, latency, lag, disk use, delayed messages, dead letters, files.

`overview(store)` draws the most important charts on one page. Each chart takes a store or a cluster from
`rmq_spark.open`, and most take a `topic`, too::

    import rmq_spark
    from rmq_spark import charts

    charts.rate(rmq_spark.open("/data/store"), topic="Orders")

The charts are Altair charts: `chart.save("rate.svg")` writes an SVG, PNG or HTML file. They need altair,
which the extra `notebook` installs (`pip install '.[notebook]'` in a checkout); without altair, a chart
raises UnsupportedFormatError. `rate_data` and the other `…_data` functions return the numbers of a chart, and
need only Arrow.
"""

from rmq_spark.charts.data import (
    MESSAGE_COLUMNS,
    Drawn,
    dead_letters_data,
    delayed_data,
    disk_use_data,
    heat_data,
    lag_data,
    latency_data,
    rate_data,
)
from rmq_spark.charts.drawing import dead_letters, delayed, disk_use, heat_map, lag, latency, overview, rate
from rmq_spark.charts.file_map import file_map, file_map_data

__all__ = [
    "MESSAGE_COLUMNS",
    "Drawn",
    "dead_letters",
    "dead_letters_data",
    "delayed",
    "delayed_data",
    "disk_use",
    "disk_use_data",
    "file_map",
    "file_map_data",
    "heat_data",
    "heat_map",
    "lag",
    "lag_data",
    "latency",
    "latency_data",
    "overview",
    "rate",
    "rate_data",
]
