"""The report about a store: what is wrong, may a broker start, what is gone, who is affected.

`report(path)` collects everything from the files, and writes nothing. The result has three forms: `html()`
is one page without anything from the network, `markdown()` is for a ticket or a terminal, `json()` for
programs::

    from rmq_spark.report import report

    Path("report.html").write_text(report("/data/store").html())
"""

from rmq_spark.report.collect import Report, report
from rmq_spark.report.contents import Section

__all__ = ["Report", "Section", "report"]
