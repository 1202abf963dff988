"""What the notebooks share: the stores they look at, unpacked beside them, a Spark that keeps its log to
itself, charts as pictures.

Nothing of it is needed for a store of your own: there it is `MessageStore.open("/data/store")`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import tarfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORES = Path(__file__).resolve().parent.parent / "tests" / "golden"
_PLACE = Path("data")  # in the directory that the notebook runs in


def unpack(name: str, to: str | None = None) -> str:
    """A store that a real broker wrote, as `data/<to>`, or `data/<name>`: made anew, so whatever a notebook
    did to it is gone.
    """
    directory = _PLACE / (to or name)
    shutil.rmtree(directory, ignore_errors=True)
    with tarfile.open(_STORES / name / "store.tar.gz") as archive:
        # since Python 3.11.4
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(directory)
    return str(directory)


def start_spark(cores: int = 2) -> SparkSession:
    """Spark in this process, in UTC, with the format registered. What its JVM prints is in
    `data/spark.log`.
    """
    from pyspark.sql import SparkSession

    import rmq_spark

    # Of the test tools, which one of PySpark's own modules imports; nothing here uses pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    _PLACE.mkdir(exist_ok=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("rmqlog notebook")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")  # a stream turns it off itself, and warns
        .config("spark.sql.warehouse.dir", str((_PLACE / "warehouse").absolute()))
    )
    # The JVM writes to the file descriptor it inherits, past Python's sys.stderr, and a notebook would show
    # all of it.
    kept = os.dup(2)
    with open(_PLACE / "spark.log", "ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            spark = builder.getOrCreate()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    rmq_spark.register(spark)
    return spark


def charts_as_pictures() -> None:
    """Charts are shown as PNG, for where no Vega runs, such as a repository's page. Without this, altair
    shows them alive.
    """
    import altair as alt

    alt.renderers.register("pictures", _picture)
    alt.renderers.enable("pictures")


def _picture(spec: dict[str, Any], **_: object) -> tuple[dict[str, Any], dict[str, Any]]:  # Any: JSON
    """With a digest of the data: fonts and versions change a picture's bytes, a test wants to know whether it
    shows something else.
    """
    import vl_convert

    data = json.dumps(spec["datasets"], sort_keys=True).encode()
    bundle = {
        "text/plain": f"<chart: {spec['title']['text']}>",
        "image/png": base64.b64encode(vl_convert.vegalite_to_png(spec)).decode(),
    }
    return bundle, {"image/png": {"data_sha256": hashlib.sha256(data).hexdigest()}}
