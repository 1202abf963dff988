"""Samples as a page in the text format of Prometheus.

prometheus_client writes and escapes the name and the labels of each series. It needs 12 us for a series, so
that a page of 11,000 series would take 140 ms. The page keeps these texts for the series that it showed last,
and puts only the new values behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rmq_spark.metrics.families import FAMILIES, Family
from store_format.errors import UnsupportedFormatError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = tuple[str, ...]
_Key = tuple[str, _Labels]


def refuse_without_client() -> None:
    """Raises UnsupportedFormatError if prometheus_client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UnsupportedFormatError(
            "metrics need the package prometheus_client: install rmqlog with the extra metrics, or "
            "`pip install prometheus_client`"
        ) from error


class MetricsPage:
    """Writes pages. The names of series that the last page did not have are forgotten."""

    def __init__(self) -> None:
        self._heads: dict[_Key, str] = {}  # series -> its name and labels, as text

    def write(self, samples: Mapping[str, Sequence[tuple[_Labels, float]]]) -> bytes:
        """The page of these samples by family. Families without samples are left out."""
        keys = [(name, labels) for name, found in samples.items() for labels, _ in found]
        self._heads = {key: self._heads.get(key, "") for key in keys}
        self._learn([key for key in keys if not self._heads[key]])
        return "".join(self._lines(samples)).encode()

    def _lines(self, samples: Mapping[str, Sequence[tuple[_Labels, float]]]) -> Iterator[str]:
        for family in FAMILIES:
            found = samples.get(family.name)
            if found:
                yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
                for labels, value in found:
                    yield f"{self._heads[family.name, labels]} {value!r}\n"

    def _learn(self, keys: Sequence[_Key]) -> None:
        """Has prometheus_client write series of these names and labels."""
        by_family: dict[str, list[_Labels]] = {}
        for name, labels in keys:
            by_family.setdefault(name, []).append(labels)
        for family in FAMILIES:
            new = by_family.get(family.name, [])
            self._heads.update(
                zip(((family.name, labels) for labels in new), _heads(family, new), strict=True)
            )


def _heads(family: Family, series: Sequence[_Labels]) -> list[str]:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily

    if not series:
        return []
    gauges = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels in series:
        gauges.add_metric(labels, 0.0)

    class OneFamily:
        def collect(self) -> Iterator[GaugeMetricFamily]:
            yield gauges

    registry = CollectorRegistry(auto_describe=False)
    registry.register(OneFamily())
    lines = generate_latest(registry).decode().split("\n")
    return [line.rpartition(" ")[0] for line in lines if line and not line.startswith("#")]
